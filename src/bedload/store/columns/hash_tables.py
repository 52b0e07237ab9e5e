"""Many hash tables in one array, each of a size of its own.

A key group has a table of its own, so growing it moves the entries of one group, some thousands, and dropping
a group touches no other. An entry is (31 bits of hash, number + 1), 0 if empty; where it wants to be is its hash
modulo the table's size, so a table is moved without looking at keys.

Sizes are powers of two and places are given out as in a buddy system: a table that was left behind joins its
neighbour, and the next one to grow takes both. Tables of equal load do not all grow in the same batch, because each
has a limit of its own between 55 and 80 percent.

Invariant: tables and free pieces cover the array, without overlap.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bedload.store.columns import kernels as k
from bedload.store.columns.memory import PLAIN, Memory

FIRST = 64
"""Entries of a table's first size."""
_STEEP = 1024
"""Up to this size a table grows fourfold: small ones are cheap, and growing costs a call each."""
_GOLDEN = 0.6180339887498949
"""Its multiples, modulo one, are spread evenly however many are taken."""


class HashTables:
    """A list of tables, all empty at first."""

    def __init__(self, count: int, memory: Memory = PLAIN) -> None:
        self.list = np.zeros((count, 4), np.int64)
        self._load = _loads(0, count)
        self._entries = memory.other(np.int64)
        self._entries.resize(FIRST)  # so that the place of a table without entries can be read
        self._top = FIRST
        self._free: dict[int, set[int]] = {}
        """Free places by size."""

    @property
    def entries(self) -> npt.NDArray[np.int64]:
        """The entries of all tables."""
        return self._entries.array

    @property
    def nbytes(self) -> int:
        """Memory of all tables."""
        return self._entries.nbytes + self.list.nbytes + self._load.nbytes

    def extend(self) -> None:
        """Have one more table."""
        count = len(self.list)
        self.list = np.concatenate((self.list, np.zeros((1, 4), np.int64)))
        self._load = np.concatenate((self._load, _loads(count, 1)))

    def grow(self, table: int) -> None:
        """Make room in a table."""
        capacity = int(self.list[table, k.CAPACITY])
        self._resize(table, max(FIRST, capacity * (4 if capacity < _STEEP else 2)))

    def foresee(self, more: int) -> None:
        """About so many entries will come."""
        self._entries.foresee(self._top + 2 * more)

    def grow_full(self) -> None:
        """Make room in every table that has none."""
        used, limit = self.list[:, k.USED], self.list[:, k.LIMIT]
        for table in np.flatnonzero(used >= limit).tolist():
            self.grow(table)

    def sparse(self) -> list[int]:
        """Tables that have lost most of their entries, or all."""
        used, capacity = self.list[:, k.USED], self.list[:, k.CAPACITY]
        few = (used * 16 <= capacity) & (capacity > FIRST)
        return np.flatnonzero(few | ((used == 0) & (capacity > 0))).tolist()

    def fit(self, table: int) -> None:
        """Make a table as small as its entries allow."""
        capacity, used = int(self.list[table, k.CAPACITY]), int(self.list[table, k.USED])
        smaller = capacity
        while smaller > FIRST and used * 4 <= smaller:
            smaller //= 2
        if used == 0:
            self.drop(table)
        elif smaller < capacity:
            self._resize(table, smaller)

    def drop(self, table: int) -> None:
        """Empty a table and take its place away."""
        offset, capacity, _, _ = self.list[table].tolist()
        self.list[table] = 0
        if capacity:
            self._give_back(offset, capacity)

    def some(self, table: int, places: int) -> npt.NDArray[np.int64]:
        """The numbers in so many places of a table, in no order."""
        offset, capacity, _, _ = self.list[table].tolist()
        end = offset + min(places, capacity)
        found = np.empty(np.count_nonzero(self.entries[offset:end]), np.int64)
        k.slots_in(self.entries, offset, end - offset, found)
        return found

    def numbers(self, table: int) -> npt.NDArray[np.int64]:
        """The numbers in a table, in no order."""
        offset, capacity, used, _ = self.list[table].tolist()
        found = np.empty(used, np.int64)
        if used:
            k.slots_in(self.entries, offset, capacity, found)
        return found

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        pieces = [(place, size) for size, places in self._free.items() for place in places]
        assert len(self._entries) == self._top
        assert not self.list[self.list[:, k.CAPACITY] == 0].any(), "a table without entries counts some"
        for table in np.flatnonzero(self.list[:, k.CAPACITY]).tolist():
            offset, capacity, used, limit = self.list[table].tolist()
            entries = self.entries[offset : offset + capacity]
            assert used == np.count_nonzero(entries), f"table {table} counts {used} entries"
            assert used <= limit < capacity, f"table {table} is overfull"
            assert capacity & (capacity - 1) == 0
            assert (entries >= 0).all()
            pieces.append((offset, capacity))
        end = FIRST
        for place, size in sorted(pieces):
            assert place == end, f"entries from {end} to {place} belong to nobody, or to two"
            end = place + size
        assert end == self._top

    def _resize(self, table: int, capacity: int) -> None:
        old, old_capacity, used, _ = self.list[table].tolist()
        new = self._take(capacity)
        k.rehash(self.entries, old, old_capacity, new, capacity)
        self.list[table] = new, capacity, used, int(capacity * self._load[table])
        if old_capacity:
            self._give_back(old, old_capacity)

    def _take(self, size: int) -> int:
        fitting = [s for s, places in self._free.items() if s >= size and places]
        if fitting:
            found = min(fitting)
            place = min(self._free[found])
            self._free[found].remove(place)
        else:
            while self._top % size:
                piece = self._top & -self._top
                self._give_back_at(self._top, piece)
                self._top += piece
            place, found = self._top, size
            self._top += size
            self._entries.resize(self._top)
        while found > size:
            found //= 2
            self._give_back_at(place + found, found)
        return place

    def _give_back(self, place: int, size: int) -> None:
        while place ^ size in self._free.get(size, ()):
            self._free[size].remove(place ^ size)
            place &= ~size
            size *= 2
        self._give_back_at(place, size)
        # What is free at the end goes back to the system.
        trimmed = True
        while trimmed:
            trimmed = False
            for piece, places in self._free.items():
                if self._top - piece in places:
                    places.remove(self._top - piece)
                    self._top -= piece
                    trimmed = True
        self._entries.resize(self._top)

    def _give_back_at(self, place: int, size: int) -> None:
        self._free.setdefault(size, set()).add(place)


def _loads(first: int, count: int) -> npt.NDArray[np.float64]:
    """How full tables may be."""
    return np.asarray(0.55 + 0.25 * (np.arange(first, first + count) * _GOLDEN % 1), np.float64)
