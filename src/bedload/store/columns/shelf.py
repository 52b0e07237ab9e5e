"""A shelf of keys of a :class:`~bedload.store.columns.ColumnTable`: entries are slots.

Invariants: an entry is *here*, with the one slot that holds its key, or *gone*, with the key itself; no slot has two
entries. The table says which slots are about to be free for other keys (:meth:`ColumnShelf.freed`), so an entry never
leads to the state of another key. An entry that is gone is looked for by its key before anything is said about it, as
an epoch may have made the key again, in any slot.

Why not the key of each entry: it would double what a shelf costs, and the words of a key are no help, because those of
strings are given to others once no key has them. Keys that go are few.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup
from bedload.keys import hash_columns
from bedload.store.columns.compiled_entries import CompiledEntries
from bedload.store.columns.index import Slots
from bedload.store.columns.slot_table import SlotTable
from bedload.store.deltas import REMOVE, delta_batch
from bedload.store.entries import Hashes, Numbers, Unnamed, with_room
from bedload.store.shelf import NO_HASHES, AnyShelf, Flags, Selection

NO_SLOTS: Slots = np.empty(0, np.int64)


class ColumnShelf(AnyShelf[Slots]):
    """Keys of an operator on columns."""

    def __init__(self, table: SlotTable, selection: Selection) -> None:
        index = table.index
        expected = sum(map(index.count, selection.groups))
        entries = CompiledEntries(expected) if selection.named else Unnamed(expected)
        super().__init__(selection, entries, index.key_groups, expected, NO_SLOTS)
        self._table = table
        self._slots = np.zeros(expected, np.int64)
        """By entry: its slot, or -1 - n if its key is the n-th of those that are gone."""
        # SUBTLE: as long as the table, and it costs no memory before it is written to. To grow it means to copy it.
        self._entry = np.zeros(index.capacity, np.int32)
        """By slot: its entry plus one, or 0."""
        self._gone: list[list[pa.Array]] = [[] for _ in table.words.types]
        """The keys that are gone, by key column, in pieces."""
        self._gone_keys = 0
        self._lost = False
        """Without names: whether keys went that are on it."""
        table.watchers.add(self)

    def note(self) -> Hashes:
        """The hashes of the touched keys; new ones join the shelf."""
        index = self._table.index
        touched = index.touched[self._begun[index.group_of(index.touched)]]
        self._cover(touched)
        unknown = touched[self._entry[touched] == 0]
        if len(unknown):
            hashes = hash_columns(self._table.keys(unknown))
            self._look_again(self._entries.find(hashes))
            self._add_meant(unknown, hashes)
        entries = self._entry[touched]
        hashes = self.hashes[entries[entries > 0] - 1]
        return np.unique(hashes) if self._entries.any_shared else hashes

    def freed(self, slots: Slots) -> None:
        """The keys in these slots go: keep those that have an entry."""
        if not self.named:
            self._lost |= bool(self._begun[self._table.index.group_of(slots)].any())
            return
        if len(self._pending):
            self._pending = np.setdiff1d(self._pending[self._put_so_far :], slots, assume_unique=True)
            self._put_so_far = 0
        slots = slots[slots < len(self._entry)]
        slots = slots[self._entry[slots] > 0]
        if not len(slots):
            return
        for pieces, column in zip(self._gone, self._table.keys(slots), strict=True):
            pieces.append(column)
        entries = self._entry[slots] - 1
        self._entry[slots] = 0
        self._slots[entries] = -1 - np.arange(self._gone_keys, self._gone_keys + len(slots))
        self._gone_keys += len(slots)

    # --- steps ---

    def _held_in(self, group: KeyGroup) -> Slots:
        return self._table.index.slots_of(group)

    def _put(self, some: Slots, group: KeyGroup) -> Hashes:
        if not self.named:
            entries = self._entries.add(NO_HASHES, np.full(len(some), group, np.int16))
            self._slots = with_room(self._slots, len(self._entries))
            self._slots[entries] = some
            return NO_HASHES
        slots, hashes = self._add_meant(some, hash_columns(self._table.keys(some)))
        return hashes[self._table.index.mark[slots] > 0]

    def _leave(self) -> None:
        self._table.watchers.discard(self)

    def _count(self, group: KeyGroup) -> int:
        return self._table.index.count(group)

    def _forget(self, groups: list[KeyGroup]) -> None:
        table = self._table
        whole = [group for group in groups if self._selection.admits_all(group)]
        table.drop(whole)  # together: it costs a look at the blocks of all
        for group in groups:
            if not self._selection.admits_all(group):
                slots = table.index.slots_of(group)
                meant = self._selection.admits(hash_columns(table.keys(slots)), np.full(len(slots), group))
                table.discard(slots[meant])

    def _tidied(self, keys: int) -> bool:
        return self._table.tidy(keys)

    def _held(self, entries: Numbers) -> Flags | None:
        self._look_again(entries)
        index = self._table.index
        if self._table.sealed or not len(index.touched):
            return None
        slots = self._slots[entries]
        held: Flags = (index.mark[np.maximum(slots, 0)] > 0) & (slots >= 0)
        return held

    def _batch(self, entries: Numbers) -> pa.RecordBatch:
        if self._lost:
            raise ProtocolError("keys were dropped that were on their way to another worker")
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
