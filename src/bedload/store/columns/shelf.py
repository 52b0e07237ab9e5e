"""A shelf of keys of a :class:`~bedload.store.columns.ColumnTable`: entries are slots.

Invariants: an entry is *here*, with the one slot that holds its key, or *gone*, with the key itself; no slot has two
entries. The table says which slots are about to be free for other keys (:meth:`ColumnShelf.freed`), so an entry never
leads to the state of another key. An entry that is gone is looked for by its key before anything is said about it, as
an epoch may have made the key again, in any slot.

Why not the key of each entry: it would double what a shelf costs, and the words of a key are no help, because those of
strings are given to others once no key has them. Keys that go are few.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.ids import KeyGroup
from bedload.keys import hash_columns
from bedload.store.columns.compiled_entries import CompiledEntries
from bedload.store.columns.index import Slots
from bedload.store.columns.slot_table import SlotTable
from bedload.store.deltas import REMOVE, delta_batch
from bedload.store.entries import Entries, Hashes, Numbers, with_room
from bedload.store.selection import Flags, Selection
from bedload.store.shelf import NO_HASHES, AnyShelf

NO_SLOTS: Slots = np.empty(0, np.int64)
_ONE_BY_ONE = 1 << 15
"""Keys that go in a step if something has to be done for each."""


class TableShelf(AnyShelf[Slots]):
    """What all shelves of columns have in common: key groups are listed by blocks of slots."""

    def __init__(self, table: SlotTable, selection: Selection, entries: Callable[[int], Entries]) -> None:
        index = table.index
        expected = sum(map(index.count, selection.groups))
        super().__init__(selection, entries(expected), index.key_groups, expected, NO_SLOTS)
        self._table = table
        self._each = index.block
        self._going: Slots | None = None
        """Blocks of the key group that is to be dropped next, of which the keys go one by one."""
        table.watchers.add(self)

    def freed(self, slots: Slots) -> None:
        """The keys in these slots go."""
        raise NotImplementedError

    @property
    def _most_each(self) -> float:
        return self._table.most_each

    def _key(self, entries: Numbers) -> Any:
        keys = [column[0].as_py() for column in self._keys(entries[:1])]
        return keys[0] if len(keys) == 1 else tuple(keys)

    def _keys(self, entries: Numbers) -> list[pa.Array]:
        """The keys of entries."""
        raise NotImplementedError

    def _held_in(self, group: KeyGroup) -> Slots:
        return self._table.index.blocks_of(group)

    def _leave(self) -> None:
        self._table.watchers.discard(self)

    def _count(self, group: KeyGroup) -> int:
        return self._table.index.count(group)

    def _forget(self, groups: list[KeyGroup], keys: int) -> int:
        table, index = self._table, self._table.index
        done = next((i for i, group in enumerate(groups) if not self._goes_at_once(group)), len(groups))
        if done or not groups:
            table.drop(groups[:done])  # together: it costs a look at the blocks of all
            self._going = None
            return done
        group, some = groups[0], _ONE_BY_ONE // index.block
        going = index.blocks_of(group) if self._going is None else self._going
        slots = index.slots_within(group, going[:some])
        if not self._selection.admits_all(group):
            slots = slots[self._selection.admits(hash_columns(table.keys(slots)), np.full(len(slots), group))]
        table.discard(slots)
        self._going = going[some:] if len(going) > some else None
        return int(self._going is None)

    def _goes_at_once(self, group: KeyGroup) -> bool:
        """Whether nothing has to be done for each key of a key group, or there are few."""
        table = self._table
        return self._selection.admits_all(group) and (not table.dear or table.index.count(group) <= _ONE_BY_ONE)

    def _tidied(self, keys: int) -> bool:
        return self._table.tidy(keys)


class ColumnShelf(TableShelf):
    """Keys of an operator on columns."""

    _entries: CompiledEntries

    def __init__(self, table: SlotTable, selection: Selection) -> None:
        counts = np.zeros(table.index.key_groups, np.int64)
        counts[selection.groups] = [table.index.count(group) for group in selection.groups]
        super().__init__(table, selection, partial(CompiledEntries, counts=counts))
        self._slots = np.zeros(self.expected, np.int64)
        """By entry: its slot, or -1 - n if its key is the n-th of those that are gone."""
        # SUBTLE: as long as the table, and it costs no memory before it is written to. To grow it means to copy it.
        self._entry = np.zeros(table.index.capacity, np.int32)
        """By slot: its entry plus one, or 0."""
        self._gone: list[list[pa.Array]] = [[] for _ in table.words.types]
        """The keys that are gone, by key column, in pieces."""
        self._gone_keys = self._gone_bytes = 0
        self._unnoted: Slots = NO_SLOTS
        """Slots that sealed epochs have touched."""
        self._unnoted_gone: Hashes = NO_HASHES
        """The hashes of those whose keys went before they were noted."""

    def let_go(self, keys: int) -> bool:
        """Give back what it takes for so many keys; whether that was all."""
        self._leave()
        return self._entries.let_go(keys)

    def sealed(self) -> None:
        """An epoch is sealed: what it touched has to be noted."""
        index = self._table.index
        self._unnoted = np.concatenate((self._unnoted, index.touched[self._begun[index.group_of(index.touched)]]))

    @property
    def unnoted(self) -> int:
        """So many slots have to be looked at."""
        return len(self._unnoted) + len(self._unnoted_gone)

    def note_some(self, keys: int) -> Hashes:
        """The hashes of so many touched keys; new ones join the shelf."""
        touched, self._unnoted = self._unnoted[:keys], self._unnoted[keys:]
        self._cover(touched)
        unknown = touched[self._entry[touched] == 0]
        if len(unknown):
            hashes = hash_columns(self._table.keys(unknown))
            self._look_again(self._entries.find(hashes))
            self._add_meant(unknown, hashes)
        entries = self._entry[touched]
        hashes = np.concatenate((self._unnoted_gone, self.hashes[entries[entries > 0] - 1]))
        self._unnoted_gone = NO_HASHES
        return np.unique(hashes) if self._entries.any_shared else hashes

    def freed(self, slots: Slots) -> None:
        """The keys in these slots go: keep those that have an entry."""
        self._forget_unnoted(slots)
        slots = slots[slots < len(self._entry)]
        slots = slots[self._entry[slots] > 0]
        if not len(slots):
            return
        for pieces, column in zip(self._gone, self._table.keys(slots), strict=True):
            pieces.append(column)
            self._gone_bytes += column.nbytes
        entries = self._entry[slots] - 1
        self._entry[slots] = 0
        self._slots[entries] = -1 - np.arange(self._gone_keys, self._gone_keys + len(slots))
        self._gone_keys += len(slots)

    # --- steps ---

    def _forget_unnoted(self, slots: Slots) -> None:
        """These are about to be free: of those that wait to be noted, keep the hashes."""
        if not len(self._unnoted):
            return
        self._cover(slots)
        self._cover(self._unnoted)
        going = np.zeros(len(self._entry), np.bool_)
        going[slots] = True
        gone = going[self._unnoted]
        entries = self._entry[self._unnoted[gone]]  # of those without one nothing was collected
        self._unnoted_gone = np.concatenate((self._unnoted_gone, self.hashes[entries[entries > 0] - 1]))
        self._unnoted = self._unnoted[~gone]

    def _put(self, some: Slots, group: KeyGroup) -> Hashes:
        held = self._table.index.slots_within(group, some)
        slots, hashes = self._add_meant(held, hash_columns(self._table.keys(held)))
        return hashes[self._table.index.mark[slots] > 0]

    def _held(self, entries: Numbers) -> Flags | None:
        self._look_again(entries)
        index = self._table.index
        if self._table.sealed or not len(index.touched):
            return None
        slots = self._slots[entries]
        held: Flags = (index.mark[np.maximum(slots, 0)] > 0) & (slots >= 0)
        return held

    def _weight(self, entries: Numbers) -> int:
        slots = self._slots[entries]
        gone = int(np.count_nonzero(slots < 0))
        return self._table.weight(slots[slots >= 0]) + gone * self._gone_bytes // max(1, self._gone_keys)

    def _keys(self, entries: Numbers) -> list[pa.Array]:
        slots = self._slots[entries]
        return self._keys_gone(slots) if slots[0] < 0 else self._table.keys(slots)

    def _batch(self, entries: Numbers) -> pa.RecordBatch:
        table = self._table
        slots, groups = self._slots[entries], self.groups[entries]
        here = slots >= 0
        if not here.all() or table.deleted(slots).any():
            return self._batch_with_removed(slots, groups, here)
        state = table.current(slots)
        names = state.schema.names
        ops = np.zeros(len(slots), np.int8)
        return delta_batch(groups, ops, table.keys(slots), dict(zip(names, state.columns, strict=True)))

    def _batch_with_removed(self, slots: Slots, groups: npt.NDArray[np.int16], here: Flags) -> pa.RecordBatch:
        table = self._table
        deleted = here.copy()
        deleted[here] = table.deleted(slots[here])
        put = here & ~deleted
        parts = [put, deleted, ~here]
        keys = zip(table.keys(slots[put]), table.keys(slots[deleted]), self._keys_gone(slots[~here]), strict=True)
        state = table.current(slots[put])
        removed = len(slots) - state.num_rows
        ops = np.zeros(len(slots), np.int8)
        ops[state.num_rows :] = REMOVE
        variables = {
            name: pa.concat_arrays([column, pa.nulls(removed, column.type)])
            for name, column in zip(state.schema.names, state.columns, strict=True)
        }
        ordered = np.concatenate([groups[part] for part in parts])
        return delta_batch(ordered, ops, [pa.concat_arrays(columns) for columns in keys], variables)

    def _look_again(self, entries: Numbers) -> None:
        """Find those of the entries that were gone and have a slot by now."""
        if not self._gone_keys:
            return
        entries = entries[self._slots[entries] < 0]
        if not len(entries):
            return
        slots = self._table.find_any(self._keys_gone(self._slots[entries]), self.groups[entries])
        back = slots >= 0
        self._set(entries[back], slots[back])

    def _keys_gone(self, marks: npt.NDArray[np.int64]) -> list[pa.Array]:
        """The keys of entries that are gone, by what stands for their slot."""
        places = pa.array(-1 - marks)
        found = []
        for pieces, kind in zip(self._gone, self._table.words.types, strict=True):
            if len(pieces) > 1:
                pieces[:] = [pa.concat_arrays(pieces)]
            found.append(pieces[0].take(places) if pieces else pa.nulls(0, kind))
        return found

    def _add_meant(self, slots: Slots, hashes: Hashes) -> tuple[Slots, Hashes]:
        """Make entries of the slots that are meant and have none."""
        self._cover(slots)
        groups = self._table.index.group_of(slots)
        new = self._selection.admits(hashes, groups) & (self._entry[slots] == 0)
        slots, hashes = slots[new], hashes[new]
        self._set(self._entries.add(hashes, groups[new]), slots)
        return slots, hashes

    def _set(self, entries: Numbers, slots: Slots) -> None:
        self._cover(slots)
        self._slots = with_room(self._slots, len(self._entries))
        self._slots[entries] = slots
        self._entry[slots] = entries + 1

    def _cover(self, slots: npt.NDArray[Any]) -> None:
        if len(slots):
            # It may be as long as the table; what was never written to costs no memory.
            self._entry = with_room(self._entry, int(slots.max()) + 1)
