"""A shelf of columns without names: its entries are runs of slots, so that nothing is done for a key alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup
from bedload.store.columns.index import Slots
from bedload.store.columns.runs import Runs
from bedload.store.columns.shelf import TableShelf
from bedload.store.columns.slot_table import SlotTable
from bedload.store.deltas import delta_batch
from bedload.store.entries import Entries, Hashes, Numbers
from bedload.store.selection import Selection
from bedload.store.shelf import NO_HASHES, Collected

Groups = npt.NDArray[np.int16]


class RunEntries(Entries):
    """Entries as runs of slots. They are had by their number alone."""

    def __init__(self, expected: int = 0) -> None:
        super().__init__()
        self._slots = np.empty((0, 3), np.int64)
        """By run: its first slot, the entry after its last, its key group."""
        self._known = 0

    def add_runs(self, begins: Slots, lengths: Slots, group: KeyGroup) -> None:
        """Make entries of slots of a key group."""
        first, end = self._known, self._known + len(begins)
        if end > len(self._slots):
            made = np.zeros((max(end, 2 * len(self._slots)), 3), np.int64)
            made[:first] = self._slots[:first]
            self._slots = made
        some = self._slots[first:end]
        some[:, 0], some[:, 1], some[:, 2] = begins, self._count + np.cumsum(lengths), group
        self._known = end
        self._count += int(lengths.sum())

    @property
    def groups(self) -> Groups:
        """The key group of each entry."""
        return self.within(0, self._count)[1]

    def within(self, first: int, count: int) -> tuple[Runs, Groups]:
        """The runs of a range of entries, and the key group of each entry."""
        end = max(first, min(first + count, self._count))
        ends = self._slots[: self._known, 1]
        low, high = np.searchsorted(ends, first, "right"), np.searchsorted(ends, end)
        slots, ends, groups = self._slots[low : high + 1 if end > first else low].T
        begins = np.append(self._slots[low - 1, 1] if low else 0, ends)[: len(ends)]
        cut = np.maximum(begins, first)
        lengths = np.minimum(ends, end) - cut
        runs = Runs.of(slots + cut - begins, cut - first, lengths, end - first)
        return runs, np.repeat(groups.astype(np.int16), lengths)


class BareShelf(TableShelf):
    """Keys of an operator on columns that nothing touches, and that nobody asks for by hash."""

    _entries: RunEntries

    def __init__(self, table: SlotTable, selection: Selection) -> None:
        super().__init__(table, selection, RunEntries)
        self._lost = False
        """Whether keys went that are on it."""

    @property
    def unnoted(self) -> int:
        """Nothing touches its keys."""
        return 0

    def sealed(self) -> None:
        """An epoch is sealed, which has touched none of them."""

    def note_some(self, keys: int) -> Hashes:
        """There are none."""
        return NO_HASHES

    def freed(self, slots: Slots) -> None:
        """The keys in these slots go, which must not be."""
        self._lost |= bool(self._begun[self._table.index.group_of(slots)].any())

    def collect_range(self, first: int, count: int) -> Collected:
        """The current state of the keys of a range."""
        if self._lost:
            raise ProtocolError("keys were dropped that were on their way to another worker")
        runs, groups = self._entries.within(first, count)
        if not runs.total:
            return None, NO_HASHES
        keys, values = self._table.current_of(runs)
        return self._weighed(delta_batch(groups, np.zeros(runs.total, np.int8), keys, values)), NO_HASHES

    def _weight(self, entries: Numbers) -> int:
        return self._table.weight(self._slots_of(entries))

    def _keys(self, entries: Numbers) -> list[pa.Array]:
        return self._table.keys(self._slots_of(entries))

    def _slots_of(self, entries: Numbers) -> Slots:
        """The slots of a range of entries."""
        return self._entries.within(int(entries[0]), len(entries))[0].slots

    def _put(self, some: Slots, group: KeyGroup) -> Hashes:
        self._entries.add_runs(*self._table.index.runs_within(group, some), group)
        return NO_HASHES
