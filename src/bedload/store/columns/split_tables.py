"""The hash tables of key groups: one for each, and several for a large one, so that none takes long to grow.

A table that is full and large is split in two by the next bit of the hashes, from the highest one down (extendible
hashing). The tables of a key group are a list in the directory: hashes with the same highest bits have the same one.

Invariants: a key group has a list of two to the power of some bits; a table of as many bits or fewer is in it side by
side, as often as it stands for hashes; a table is of one key group, or spare.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bedload.store.columns import kernels as k
from bedload.store.columns.hash_tables import FIRST, HashTables
from bedload.store.columns.memory import PLAIN, Memory

_Longs = npt.NDArray[np.int64]

WIDEST = 65536
"""Entries of a table that is split instead of doubled: half a millisecond, and it lies in a second-level cache."""
_AT_ONCE = 1 << 18
"""Entries that room is made for in one step, unless more come in it."""
_BITS = 31
"""Of a hash. The lower ones say where in a table a key wants to be."""
_MOST_BITS = 15
_LOWEST_LOAD = 0.55


class SplitTables(HashTables):
    """A list of tables for each key group, all empty at first. The first tables are those of groups with one."""

    def __init__(self, groups: int, widest: int | None = None, memory: Memory = PLAIN) -> None:
        super().__init__(groups, memory)
        self._groups = groups
        self._widest = WIDEST if widest is None else widest
        self.roots = np.stack((np.arange(groups), np.full(groups, _BITS)), 1)
        """By key group: where its list begins in the directory, and how many bits do not choose a table."""
        self.directory = np.arange(groups)
        self._end = groups
        """Of the directory; what follows is room."""
        self._of = np.arange(groups)
        """By table: its key group."""
        self._bits = np.zeros(groups, np.int64)
        """By table: how many bits all of its hashes have in common."""
        self._spare: list[int] = []
        self._coming, self._likely = 0, 0
        """So many key groups are to come, and about so many keys each of them is likely to have."""

    @property
    def nbytes(self) -> int:
        """Memory of all of it."""
        return super().nbytes + sum(it.nbytes for it in (self.roots, self.directory, self._of, self._bits))

    @property
    def arrays(self) -> tuple[_Longs, _Longs, _Longs, _Longs]:
        """As kernels take them."""
        return self.entries, self.list, self.roots, self.directory

    def tables_of(self, group: int) -> npt.NDArray[np.int64]:
        """The tables of a key group."""
        first, shift = self.roots[group].tolist()
        if shift == _BITS:
            return self.directory[first : first + 1]
        return np.unique(self.directory[first : first + (1 << (_BITS - shift))])

    def numbers_of(self, group: int) -> npt.NDArray[np.int64]:
        """The numbers in the tables of a key group, in no order."""
        return np.concatenate([self.numbers(table) for table in self.tables_of(group).tolist()])

    def some_of(self, group: int, places: int) -> tuple[npt.NDArray[np.int64], bool]:
        """The numbers in so many places of a key group's tables, in no order; and whether there are no others."""
        found = []
        for table in self.tables_of(group).tolist():
            found.append(self.some(table, max(0, places)))
            places -= int(self.list[table, k.CAPACITY])
        return np.concatenate(found), places >= 0

    def grow(self, table: int) -> None:
        """Make room in a table."""
        if self.list[table, k.CAPACITY] < self._widest or self._bits[table] >= _MOST_BITS:
            super().grow(table)
        else:
            self._split(table)

    def foresee(self, more: int, groups: int = 0) -> None:
        """About so many entries will come, of so many key groups if that is known."""
        super().foresee(more)
        self._coming, self._likely = groups, more // groups if groups else 0

    def expect(self, groups: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], more: int = 0) -> None:
        """Make room for so many more entries of key groups, where that is most of what they will have then.

        So many more of the last one follow.
        """
        wanted = counts.copy()
        wanted[-1:] += more
        tables = self.directory[self.roots[groups, k.FIRST]]
        used, limit = self.list[tables, k.USED], self.list[tables, k.LIMIT]
        single = self.roots[groups, k.SHIFT] == _BITS
        # SUBTLE: of no more key groups than were foreseen: what comes later may be small, and have as much room.
        come = np.flatnonzero(used == 0)[: self._coming]
        wanted[come] = np.maximum(wanted[come], self._likely)
        self._coming -= len(come)
        for at in np.flatnonzero(single & (used + wanted > limit) & (wanted > used)).tolist():
            self._provide(int(groups[at]), int(tables[at]), int(used[at] + wanted[at]), int(used[at] + counts[at]))

    def drop_group(self, group: int) -> None:
        """Empty the tables of a key group and take their places away."""
        tables = self.tables_of(group).tolist()
        for table in tables:
            self.drop(table)
        if len(tables) > 1:
            self._spare += [table for table in tables if table >= self._groups]
            self.roots[group] = group, _BITS
            self.directory[group] = group
            self._bits[group] = 0

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        super().check()
        seen = list(self._spare)
        for group in range(self._groups):
            first, shift = self.roots[group].tolist()
            held = self.directory[first : first + (1 << (_BITS - shift))]
            for table in np.unique(held).tolist():
                at = np.flatnonzero(held == table)
                span = 1 << (_BITS - shift - int(self._bits[table]))
                assert self._of[table] == group
                assert at.tolist() == list(range(at[0], at[0] + span)), f"table {table} is not side by side"
                assert at[0] % span == 0
                offset, capacity = self.list[table, : k.USED].tolist()
                entries = self.entries[offset : offset + capacity]
                tags = entries[entries > 0] >> 32
                assert (first + (tags >> shift) >= first + at[0]).all()
                assert ((tags >> shift) <= at[-1]).all(), f"table {table} has entries of another"
            seen += np.unique(held).tolist()
        assert sorted(seen) == list(range(len(self.list))), "a table is of nobody, or of two"

    # --- steps ---

    def _provide(self, group: int, table: int, needed: int, now: int) -> None:
        """Make room for so many entries in all, at once for those that come ``now``: tables of many take long."""
        bits = 0
        if not self.list[table, k.USED]:
            while needed > int(_LOWEST_LOAD * self._widest) << bits and bits < _MOST_BITS:
                bits += 1
        if bits:
            needed = min(needed, max(now, _AT_ONCE)) // (1 << bits) * 17 // 16  # hashes are not spread evenly
            self.drop(table)
            made = [table, *(self._new(group) for _ in range((1 << bits) - 1))]
            self._enlist(group, np.array(made))
            self._bits[made] = bits
        else:
            made = [table]
        for one in made:
            capacity = max(FIRST, int(self.list[one, k.CAPACITY]))
            while int(capacity * self._load[one]) < needed and (capacity < self._widest or bits == _MOST_BITS):
                capacity *= 2
            if capacity > self.list[one, k.CAPACITY]:
                self._resize(one, capacity)

    def _split(self, table: int) -> None:
        group, bits = int(self._of[table]), int(self._bits[table])
        first, shift = self.roots[group].tolist()
        held = self.directory[first : first + (1 << (_BITS - shift))]
        if bits == _BITS - shift:
            held = np.repeat(held, 2)
            self._enlist(group, held)
            first = int(self.roots[group, k.FIRST])
        at = first + np.flatnonzero(held == table)
        other = self._new(group)
        self.directory[at[len(at) // 2 :]] = other
        self._bits[table] = self._bits[other] = bits + 1
        old, capacity, used, limit = self.list[table].tolist()
        low, high = self._take(capacity), self._take(capacity)
        gone = k.split(self.entries, old, capacity, low, high, _BITS - 1 - bits)
        self.list[table] = low, capacity, used - gone, limit
        self.list[other] = high, capacity, gone, int(capacity * self._load[other])
        self._give_back(old, capacity)

    def _new(self, group: int) -> int:
        if self._spare:
            table = self._spare.pop()
        else:
            table = len(self.list)
            self.extend()
            self._of, self._bits = np.append(self._of, group), np.append(self._bits, 0)
        self._of[table] = group
        return table

    def _enlist(self, group: int, tables: npt.NDArray[np.int64]) -> None:
        """Give a key group another list, behind all others."""
        if self._end + len(tables) > len(self.directory):
            self._make_room(len(tables))
        first, self._end = self._end, self._end + len(tables)
        self.directory[first : self._end] = tables
        self.roots[group] = first, _BITS - (len(tables).bit_length() - 1)

    def _make_room(self, more: int) -> None:
        """Have room for a longer list, and close the gaps that former lists left: so rarely that it costs little."""
        kept, end = [self.directory[: self._groups]], self._groups
        for group in np.flatnonzero(self.roots[:, k.SHIFT] < _BITS).tolist():
            first, shift = self.roots[group].tolist()
            kept.append(self.directory[first : first + (1 << (_BITS - shift))])
            self.roots[group, k.FIRST] = end
            end += len(kept[-1])
        self.directory = np.concatenate([*kept, np.zeros(end + more, np.int64)])
        self._end = end
