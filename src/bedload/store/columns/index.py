"""From a key's words to its slot, by key group; which slots are whose; and which the epoch has touched.

- ``keys``: the words of the key in each slot; in a free slot the first word links to the next free one
- ``owner``: the key group of each block of slots, -1 for a block of nobody
- ``mark``: for each slot its place on the epoch's list of touched ones plus one, or 0
- ``touched``, ``fresh``: that list, and whether the epoch made the slot

Invariants (:meth:`KeyIndex.check`): a slot that the index names lies in a block of its key group; every other slot of
the block is on the group's free list or was not given out yet; a block of nobody is on the list of free blocks.

Why one file: every method works on the same few arrays, and keeps the same invariants of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bedload.core.errors import ClusterError, ProtocolError
from bedload.core.ids import KeyGroup
from bedload.store.columns import kernels as k
from bedload.store.columns.compiling import read_only
from bedload.store.columns.memory import PLAIN, GrowingArray, Memory
from bedload.store.columns.runs import Runs, Slots, Spans, runs_in
from bedload.store.columns.split_tables import SplitTables

__all__ = ["BLOCK", "MAX_SLOTS", "Flags", "KeyIndex", "Slots"]

Flags = npt.NDArray[np.bool_]

BLOCK = 64
"""Slots per block. All slots of a block belong to one key group; what a group wastes is half a block on average."""

MAX_SLOTS = 2**31 - BLOCK
"""Marks are 32-bit integers, to save four bytes per key."""

KEPT_PLACES = 65536
"""Places for touched slots that are kept from one epoch to the next, however small the table is."""

_TOGETHER = 1 << 15
"""New keys whose tables are made, and filled, together: a megabyte, with what else is written."""

_SORTED_BELOW = 4096
"""Slots of a key group that are sorted as they are."""


class KeyIndex:
    """Finds slots, makes them, frees them."""

    def __init__(
        self, key_groups: int, width: int, *, block: int = BLOCK, max_slots: int = MAX_SLOTS, memory: Memory = PLAIN
    ) -> None:
        self._block = block
        self._max_blocks = max_slots // block
        self._counters = np.zeros(8, np.int64)
        self._counters[k.BLOCK] = block
        self._groups = np.zeros((key_groups, 4), np.int64)
        self._groups[:, k.FREE] = -1
        self._tables = SplitTables(key_groups, memory=memory)
        self._keys = memory.by_slot(np.int64, width)
        self._mark = memory.by_slot(np.int32)
        self._owner = GrowingArray(np.int32)
        self._free_blocks = np.empty(0, np.int32)
        self._touched = GrowingArray(np.int64)
        self._fresh = GrowingArray(np.bool_)
        self._add_blocks(1)

    # --- what is there ---

    @property
    def key_groups(self) -> int:
        """Key groups that there can be."""
        return len(self._groups)

    @property
    def block(self) -> int:
        """Slots in a block."""
        return self._block

    @property
    def capacity(self) -> int:
        """Slots that there is room for."""
        return len(self._mark)

    @property
    def live(self) -> int:
        """Keys in the index."""
        return int(self._counters[k.LIVE])

    @property
    def keys(self) -> npt.NDArray[np.int64]:
        """The words of the key in each slot."""
        return self._keys.array

    @property
    def mark(self) -> npt.NDArray[np.int32]:
        """For each slot its place on the list of touched ones plus one, or 0."""
        return self._mark.array

    @property
    def touched(self) -> Slots:
        """The slots that the epoch has met, in that order."""
        return self._touched.array[: self._counters[k.TOUCHED]]

    @property
    def fresh(self) -> Flags:
        """For each touched slot, whether the epoch made it."""
        return self._fresh.array[: self._counters[k.TOUCHED]]

    @property
    def kept_places(self) -> int:
        """How many touched slots to keep room for between epochs: not more than a quarter of the keys."""
        return max(KEPT_PLACES, self.live // 4)

    @property
    def nbytes(self) -> int:
        """Memory of the index, the keys and the marks."""
        growing = (self._keys, self._mark, self._owner, self._touched, self._fresh)
        plain = self._counters.nbytes + self._groups.nbytes + self._free_blocks.nbytes
        return sum(array.nbytes for array in growing) + plain + self._tables.nbytes

    def count(self, group: KeyGroup) -> int:
        """Keys of a key group."""
        return int(self._groups[group, k.KEYS])

    def used_groups(self) -> npt.NDArray[np.int64]:
        """The key groups that have keys."""
        return np.flatnonzero(self._groups[:, k.KEYS])

    def slots_of(self, group: KeyGroup) -> Slots:
        """The slots of a key group, in ascending order."""
        return self.slots_within(group, self.blocks_of(group))

    def blocks_of(self, group: KeyGroup) -> Slots:
        """The blocks of a key group, in ascending order."""
        return np.flatnonzero(self._owner.array == group)

    def slots_within(self, group: KeyGroup, blocks: Slots) -> Slots:
        """The slots of a key group in some blocks, if they are still its own."""
        blocks = blocks[blocks < len(self._owner)]
        blocks = blocks[self._owner.array[blocks] == group]
        slots = (blocks[:, None] * self._block + np.arange(self._block)).ravel()
        following, left, free, _ = self._groups[group].tolist()
        if left:
            slots = slots[(slots < following) | (slots >= following + left)]
        if free >= 0:
            # In a free slot there are words, too. But nothing leads from them to it.
            slots = slots[self.find(self.keys[slots], np.full(len(slots), group)) == slots]
        return slots

    def runs_within(self, group: KeyGroup, blocks: Slots) -> tuple[Slots, Slots]:
        """The same as runs: where each begins, and how long it is."""
        following, left, free, _ = self._groups[group].tolist()
        if free < 0:
            first, last = following // self._block, (following + left) // self._block
            whole = blocks[(blocks < first) | (blocks >= last)] if left else blocks
            begins, lengths = runs_in(whole)
            begins, lengths = begins * self._block, lengths * self._block
            if len(whole) == len(blocks) or following % self._block == 0 or first not in blocks:
                return begins, lengths
            return np.append(begins, first * self._block), np.append(lengths, following % self._block)
        return runs_in(self.slots_within(group, blocks))

    def some_slots(self, group: KeyGroup, places: int) -> tuple[Slots, bool]:
        """Slots of a key group, those in so many places of its table, in no order; and whether it has no more."""
        return self._tables.some_of(group, places)

    def all_slots(self) -> Slots:
        """Every slot that holds a key, by key group."""
        return self.slots_in(self.used_groups().tolist())

    def slots_in(self, groups: Sequence[int]) -> Slots:
        """The slots of different key groups, group by group, each in ascending order."""
        parts = [self._tables.numbers_of(group) for group in groups]
        if len(parts) < 2 and sum(map(len, parts)) < _SORTED_BELOW:
            return np.sort(parts[0]) if parts else np.empty(0, np.int64)
        # Blocks are put in order instead of slots: they are few, and a sort of many slots costs more than all else.
        rank = np.full(len(self._groups) + 1, len(parts), np.int64)  # one more, for the blocks of nobody
        rank[groups] = np.arange(len(parts))
        order = rank[self._owner.array]
        blocks = np.flatnonzero(order < len(parts))
        if len(parts) > 1:
            blocks = blocks[np.argsort(order[blocks], kind="stable")]
        place = np.empty(len(self._owner), np.int64)
        place[blocks] = np.arange(len(blocks))
        held = np.zeros(len(blocks) * self._block, np.bool_)
        for part in parts:
            held[place[part // self._block] * self._block + part % self._block] = True
        places = np.flatnonzero(held)
        return blocks[places // self._block] * self._block + places % self._block

    def group_of(self, slots: Slots) -> npt.NDArray[np.int32]:
        """The key group of each slot."""
        owners: npt.NDArray[np.int32] = self._owner.array[slots // self._block]
        return owners

    # --- finding and changing ---

    def locate(self, words: npt.NDArray[np.int64], of_group: npt.NDArray[np.integer[Any]]) -> Slots:
        """The slot of each key, new ones included. Afterwards the table must have room for ``capacity`` slots.

        If it raises, the rows before the one that failed are located, and their slots are on the touched list.
        """
        words, of_group = self._arguments(words, of_group)
        rows = len(words)
        places = int(self._counters[k.TOUCHED]) + rows
        self._touched.at_least(places)
        self._fresh.at_least(places)
        slots = np.empty(rows, np.int64)
        row = 0
        while True:
            row, why = k.locate(
                words,
                of_group,
                row,
                *self._tables.arrays,
                self._groups,
                self._counters,
                self.keys,
                self._owner.array,
                self._free_blocks,
                self.mark,
                self._touched.array,
                self._fresh.array,
                slots,
            )
            if why == k.NEED_TABLE:
                self._tables.grow(int(self._counters[k.FULL]))
            elif why == k.NEED_SLOTS:
                self._more_blocks()
            else:
                return slots

    def insert(self, words: npt.NDArray[np.int64], spans: Spans, more: int = 0) -> Runs | None:
        """New slots for keys that are not there, each once, as committed ones; None, and nothing was done, if one is.

        So many more keys of the last key group follow later. For the table the same holds as for :meth:`locate`.
        """
        words, spans = read_only(words, np.int64), read_only(spans, np.int64)
        self._check_groups(spans[:, 0])
        counters, tables = self._counters, self._tables
        # Slots that were freed are runs of their own, and so are blocks; else there are hardly any.
        freed = (self._groups[spans[:, 0], k.FREE] >= 0).any()
        most = len(words) if freed else len(words) // self._block
        found = np.empty((3, most + 3 * len(spans)), np.int64)
        counters[k.RUNS] = row = 0

        def runs() -> Runs:
            begins, places, lengths = found[:, : counters[k.RUNS]]
            return Runs.of(begins, places, lengths, row)

        arrays = self._groups, counters
        # Few key groups at a time: a table that was made just now is in the cache.
        parts = np.split(spans, np.flatnonzero(np.diff(spans[:, 1] // _TOGETHER)) + 1)
        try:
            for i, part in enumerate(parts):
                last = i == len(parts) - 1
                tables.expect(part[:, 0], part[:, 2] - part[:, 1], more if last else 0)
                why = k.NEED_TABLE
                while why:
                    space = self.keys, self._owner.array, self._free_blocks
                    row, why = k.insert(words, part, row, *tables.arrays, *arrays, *space, found)
                    if why == k.NEED_TABLE:
                        tables.grow(int(counters[k.FULL]))
                    elif why == k.NEED_SLOTS:
                        self._more_blocks()
                    elif why == k.KNOWN:
                        self.remove(runs().slots)
                        return None
        except ClusterError:
            self.remove(runs().slots)
            raise
        made = runs()
        # Keys come in the order of their slots, and epochs touch them in any: the pages that those write to are had
        # here, one after the other, or somebody would wait for many at once. What was freed has them.
        for begin, length in () if freed else zip(made.begins.tolist(), made.lengths.tolist(), strict=True):
            self._mark.array[begin : begin + length] |= 0
        return made

    def foresee(self, keys: int, groups: int = 0) -> None:
        """About so many keys will come, of so many key groups if that is known."""
        for array in (self._keys, self._mark):
            array.foresee(self.capacity + keys)
        self._tables.foresee(keys, groups)

    def find(self, words: npt.NDArray[np.int64], of_group: npt.NDArray[np.integer[Any]]) -> Slots:
        """The slot of each key, -1 where there is none."""
        words, of_group = self._arguments(words, of_group)
        slots = np.empty(len(words), np.int64)
        k.find(words, of_group, *self._tables.arrays, self.keys, slots)
        return slots

    def remove(self, slots: Slots) -> None:
        """Take keys out, each once, that no epoch has touched; their slots are free for other keys of their group."""
        tables = self._tables
        slots = read_only(slots, np.int64)
        done = k.remove(slots, *tables.arrays, self._groups, self._counters, self.keys, self._owner.array)
        if done < len(slots):
            raise ProtocolError(f"slot {int(slots[done])} was freed, but it holds no key")
        for table in tables.sparse():
            tables.fit(table)
        # A key group without keys that has slots.
        _, left, free, keys = self._groups.T
        empty = np.flatnonzero((keys == 0) & ((left > 0) | (free >= 0)))
        if len(empty):
            self.drop(*map(KeyGroup, empty.tolist()))

    def drop(self, *groups: KeyGroup) -> None:
        """Take out all keys of groups, and give their blocks back for other groups."""
        gone = np.zeros(len(self._groups) + 1, np.bool_)  # one more, for the blocks of nobody: they are of group -1
        gone[list(groups)] = True
        for group in groups:
            self._counters[k.LIVE] -= self.count(group)
            self._tables.drop_group(group)
            self._groups[group] = 0, 0, -1, 0
        top = int(self._counters[k.NEXT_BLOCK])
        owner = self._owner.array[:top]
        owner[gone[owner]] = -1
        self._list_free_blocks(owner)

    def touch(self, slots: Slots) -> None:
        """Put those of these slots, which hold keys and are different ones, on the touched list that are not on it."""
        slots = slots[self.mark[slots] == 0]
        begin = int(self._counters[k.TOUCHED])
        end = begin + len(slots)
        self._touched.at_least(end)
        self._fresh.at_least(end)
        self._touched.array[begin:end] = slots
        self._fresh.array[begin:end] = False
        self.mark[slots] = np.arange(begin + 1, end + 1)
        self._counters[k.TOUCHED] = end

    def untouch(self, since: int = 0) -> None:
        """Forget what was touched from this place on: all of it at the end of an epoch."""
        self.mark[self.touched[since:]] = 0
        self._counters[k.TOUCHED] = since
        kept = max(self.kept_places, since)
        if len(self._touched) > kept:
            self._touched.resize(kept)
            self._fresh.resize(kept)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        self._tables.check()
        top = int(self._counters[k.NEXT_BLOCK])
        owner = self._owner.array
        assert len(self._keys) == len(self._mark) == len(owner) * self._block
        assert (owner[top:] == -1).all(), "a block was given out beyond the last one"
        free = self._free_blocks[: self._counters[k.FREE_BLOCKS]]
        nobodys = np.flatnonzero(owner[:top] == -1)
        assert sorted(free.tolist()) == nobodys.tolist(), "the list of free blocks is wrong"
        live = 0
        for group in range(len(self._groups)):
            slots = self.slots_of(KeyGroup(group))
            live += len(slots)
            assert self.count(KeyGroup(group)) == len(slots)
            following, left, link, _ = self._groups[group].tolist()
            unused = list(range(following, following + left))
            chain = []
            while link >= 0:
                chain.append(link)
                link = int(self.keys[link, 0])
            blocks = np.flatnonzero(owner == group)
            own = (blocks[:, None] * self._block + np.arange(self._block)).ravel().tolist()
            held = slots.tolist()
            runs = zip(*self.runs_within(KeyGroup(group), blocks), strict=True)
            assert sorted(slot for begin, length in runs for slot in range(begin, begin + length)) == held
            assert sorted([*held, *chain, *unused]) == own, f"slots of group {group} are lost, shared or misplaced"
            assert not self.mark[[*chain, *unused]].any(), f"a free slot of group {group} is marked as touched"
            groups = np.full(len(slots), group, np.int32)
            assert self.find(self.keys[slots], groups).tolist() == held, f"keys of group {group} are not found"
        assert live == self.live
        touched = self.touched
        assert self.mark[touched].tolist() == list(range(1, len(touched) + 1)), "marks and places differ"
        assert np.count_nonzero(self.mark) == len(touched), "a slot is marked that is not on the list"

    # --- steps ---

    def _arguments(
        self, words: npt.NDArray[np.int64], of_group: npt.NDArray[np.integer[Any]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        groups = read_only(of_group, np.int32)
        if len(groups) != len(words):
            raise ProtocolError(f"{len(words)} keys were given with {len(groups)} key groups")
        self._check_groups(groups)
        return read_only(words, np.int64), groups

    def _check_groups(self, groups: npt.NDArray[np.integer[Any]]) -> None:
        # Kernels check no bounds.
        if len(groups) and not 0 <= groups.min() <= groups.max() < len(self._groups):
            raise ProtocolError(f"key groups must be from 0 to {len(self._groups) - 1}: some are not")

    def _more_blocks(self) -> None:
        blocks = len(self._owner)
        self._add_blocks(blocks + max(64, blocks // 16))

    def _add_blocks(self, blocks: int) -> None:
        before = len(self._owner)
        blocks = min(blocks, self._max_blocks)
        if blocks <= before:
            raise ClusterError(
                f"the state of an operator at one worker is full: it has room for {before * self._block} keys. "
                "Add workers, so that each holds fewer keys"
            )
        self._owner.resize(blocks)
        self._owner.array[before:] = -1
        self._keys.resize(blocks * self._block)
        self._mark.resize(blocks * self._block)

    def _list_free_blocks(self, owner: npt.NDArray[np.int32]) -> None:
        """Take stock of the blocks of nobody; those at the end need no list, and their memory goes back."""
        owned = np.flatnonzero(owner >= 0)
        top = int(owned[-1]) + 1 if len(owned) else 0
        free = np.flatnonzero(owner[:top] < 0)
        # Blocks are taken from the end of the list: the lowest first, so that the end of the table empties.
        self._free_blocks = free[::-1].astype(np.int32)
        self._counters[k.FREE_BLOCKS], self._counters[k.NEXT_BLOCK] = len(free), top
        room = top + max(64, top // 16)
        if room < len(self._owner):
            for array, length in (
                (self._owner, room),
                (self._keys, room * self._block),
                (self._mark, room * self._block),
            ):
                array.resize(length)
