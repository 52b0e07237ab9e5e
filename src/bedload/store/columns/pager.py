"""Which slabs of tables on disk stay in memory: one budget for all operators of a worker, with those on rows.

Three quarters of what it may have are for slabs that are held: those that were touched most of late. A quarter is for
pages of the others, which the system brings when they are touched. When these are more than that, all of them go at
once: that costs a tenth of a microsecond for a page, and to bring one back from the system's cache one or two. A slab
costs a millisecond to lay down, once.

Invariants: before a batch as much leaves as came with the last one, and some more, until it fits; so no step takes
longer because a state is large. What the disk does not take stays in memory.

Why no list of what was touched last: rows are spread over all keys, and the page of a hot key is as likely to have been
touched a moment ago as any other. How often tells more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from bedload.core.errors import LocalDiskError
from bedload.store.cache import LEAST_SHARE, Cache
from bedload.store.columns.paged import SLAB, PagedArray, PagedMemory

HELD = 0.75
"""What of the budget is for slabs that are held, once some are laid down."""
_STEPS = 2
_FEWEST, _MOST = 1 << 15, 1 << 17
"""Rows between two looks at what is in memory."""
_HOTTER = 2.0
"""So many times as often as one that is held a slab was touched that takes its place."""
_SWAPS = 8
"""Slabs that come back to memory for one epoch, at most."""


class Slab(NamedTuple):
    """One of an array."""

    array: PagedArray
    number: int
    heat: float

    def there(self, *, laid: bool) -> bool:
        """Whether it is still there, and held or laid down."""
        found = self.array.laid()
        return self.number < len(found) and bool(found[self.number]) == laid


class Pager:
    """The tables of a worker whose columns may be on disk."""

    def __init__(self, cache: Cache, pages: Callable[[], int] = lambda: 0, slab: int = SLAB) -> None:
        """``cache``: the budget, and what rows have of it. ``pages``: bytes of files that are in this process."""
        self._cache, self._pages, self.slab = cache, pages, slab
        self._tables: list[PagedMemory] = []
        self._coldest: deque[Slab] = deque()
        self._wanted: deque[tuple[Slab, Slab | None]] = deque()
        """Slabs that are to be held, each in place of another one, if there is no room."""
        self._base = 0
        """Bytes of files that are in this process and not of tables."""
        self._before = 0
        self._held_before = 0
        self.rows = _MOST
        """Rows that are taken between two looks."""
        self.stuck = False
        """Whether nothing could be laid down the last time."""

    def table(self, memory: PagedMemory) -> None:
        """A table more."""
        self._tables.append(memory)

    def forget(self, memory: PagedMemory) -> None:
        """It is nobody's any more."""
        self._tables.remove(memory)
        memory.close()
        self._coldest.clear()
        self._wanted.clear()
        self._tell()

    # --- how much there may be ---

    @property
    def held_bytes(self) -> int:
        """What is held."""
        return sum(table.held_bytes for table in self._tables)

    @property
    def any_laid(self) -> bool:
        """Whether anything is laid down."""
        return any(array.laid_bytes for table in self._tables for array in table.arrays)

    @property
    def most(self) -> int:
        """What columns may have."""
        return max(self._cache.most - self._cache.used, int(self._cache.most * LEAST_SHARE))

    @property
    def _most_held(self) -> int:
        return int(self.most * HELD) if self.any_laid else self.most

    @property
    def over(self) -> bool:
        """Whether slabs should be laid down."""
        return self.held_bytes > self._most_held

    # --- between messages, and before a batch ---

    @property
    def untidy(self) -> bool:
        """Whether slabs should be laid down, or taken up."""
        return not self.stuck and (self.over or bool(self._wanted))

    def tidy(self) -> None:
        """Do one of that. What cannot be written stays."""
        with suppress(LocalDiskError):
            if self.over:
                self._lay_some(1)
            elif self._wanted:
                self._swap(*self._wanted.popleft())

    def make_room(self) -> None:
        """Rows are going to come. Raises LocalDiskError if what has to leave memory cannot."""
        held = self._tell()
        if held > self._most_held:
            self.stuck = False
            self._lay_some(_STEPS + 2 * max(0, held - self._held_before) // self.slab)
        self._held_before = self._tell()

    def look(self, table: PagedMemory, *, rows: bool = False) -> None:
        """A table was used: if there are too many pages of what is laid down, let them go; ``rows``: some rows came."""
        if not self.any_laid:
            return
        most = int(self.most * (1 - HELD))
        there = self._pages() - self._base
        grown, self._before = there - self._before, there
        table.read_bytes += max(grown, 0)
        if rows:
            if grown > most:
                self.rows = max(self.rows // 2, min(self.rows, _FEWEST))
            elif grown < most // 4:
                self.rows = min(self.rows * 2, _MOST)
        if there > most:
            for it in self._tables:
                for array in it.arrays:
                    array.let_go()
            self._base, self._before = self._pages(), 0
        self._tell()

    def epoch(self) -> None:
        """An epoch has ended: what has become hot is to be held."""
        self.stuck = False
        self._coldest.clear()
        self._wanted.clear()
        if not self.any_laid:
            return
        held, laid = self._by_heat(laid=False), self._by_heat(laid=True)
        room = self._most_held - self.held_bytes
        while laid and len(self._wanted) < _SWAPS:
            hot = laid.pop()
            if hot.heat <= 0:
                break
            if room >= self.slab:
                room -= self.slab
                self._wanted.append((hot, None))
            elif held and hot.heat > _HOTTER * held[0].heat + 1:
                self._wanted.append((hot, held.popleft()))
            else:
                break

    # --- steps ---

    def _lay_some(self, steps: int) -> None:
        """Lay the coldest slabs down, as long as there are too many, so many at most."""
        while steps > 0 and self.over:
            if not self._coldest:
                self._coldest = self._by_heat(laid=False)
            while self._coldest and not self._coldest[0].there(laid=False):
                self._coldest.popleft()
            if not self._coldest:
                self.stuck = True
                return
            steps -= 1
            self._lay_down(self._coldest.popleft())

    def _lay_down(self, slab: Slab) -> None:
        if not self.any_laid:
            self._base, self._before = self._pages(), 0
        try:
            slab.array.lay_down(slab.number)
        except LocalDiskError:
            self.stuck = True
            raise

    def _swap(self, hot: Slab, cold: Slab | None) -> None:
        if cold is not None and cold.there(laid=False):
            self._lay_down(cold)
        if hot.there(laid=True) and self.held_bytes + self.slab <= self._most_held:
            hot.array.take_up(hot.number)

    def _by_heat(self, *, laid: bool) -> deque[Slab]:
        """The slabs that are held, or those that are laid down: the coldest first."""
        found = []
        for table in self._tables:
            for array, heat in zip(table.arrays, table.heat(), strict=True):
                numbers = np.flatnonzero(array.laid() == laid)
                found += [Slab(array, number, heat[number]) for number in numbers.tolist()]
        return deque(sorted(found, key=lambda slab: slab.heat))

    def _tell(self) -> int:
        """Have the cache of the rows know what is left for them; how much is held."""
        held = self.held_bytes
        self._cache.others = held + max(self._before, 0)
        return held
