"""Which objects of stores on disk stay in memory: one budget for all operators of a worker.

What was not touched for longest goes first; how long ago is counted in commits. So nothing is done when an object is
touched, and at a commit one list is added for each key group that the epoch touched. An object is of the list with its
own stamp; those that were touched again are passed over, and lists are rid of them a little at a time.

Invariants: every object of a store that could leave is in a list with its stamp; objects that an epoch has touched stay
until it ends, whatever the budget says; an object leaves memory after its state is on the disk, not before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bedload.store.disk_rows import DiskStore

SLICE = 512
"""Objects that leave at a time, at most: some milliseconds for small ones."""
_FEWEST = 8
_SLICE_SECONDS = 0.005
"""About so much of a processor's time it takes to have some leave: there are as many as that allows."""
_GROWTH = 1.25
_LIST, _LOOSE = 8, 1 << 16
"""What a list counts by itself, in objects; and how much of what was touched again is nothing to be rid of."""
LEAST_SHARE = 0.25
"""What rows or columns may have of the budget, whatever the others have."""
_LITTER = 1 << 13
"""So many objects that are gone may be in lists, or a quarter as many as are in memory."""


class Entry(NamedTuple):
    """Objects of a key group that were touched last at the same time, when they were put here."""

    stamp: int
    store: DiskStore
    rows: list[Any]

    def left(self) -> list[Any]:
        """Those that were not touched since, and are there still, if only because an abort would put them back."""
        stamp, rows, gone = self.stamp, self.store.rows, self.store.gone
        found = [row for row in self.rows if row._bedload_seen == stamp]
        if gone:
            return [row for row in found if rows.get(key := row._bedload_key) is row or gone.get(key) is row]
        return [row for row in found if rows.get(row._bedload_key) is row]


class Cache:
    """The objects in memory, the oldest first."""

    def __init__(self, most: int, processor: Callable[[], float] | None = None) -> None:
        """``most``: how many bytes they may take, about. ``processor``: the seconds that this thread has had."""
        self.most = most
        self._processor = processor
        self.slice = SLICE
        """Objects that leave at a time."""
        self.used = 0
        """About the bytes of the objects that stores on disk have in memory."""
        self.others = 0
        """Bytes that columns have of the same budget."""
        self.count = 0
        """How many they are."""
        self.now = 0
        """The number of the last commit."""
        self.stuck = False
        """Whether nothing could leave the last time: it is tried again when something has changed."""
        self._tidied: deque[Entry] = deque()
        """Entries without those that were touched again, as far as that was known; older than all others."""
        self._entries: deque[Entry] = deque()
        self._listed = self._due = 0
        """How long all lists are, and how much of that is to be looked at."""
        self._litter = self._known = 0
        """Objects that are gone and may be in lists; and how many of them when the lists were begun to be tidied."""

    def seen(self, store: DiskStore, rows: list[Any]) -> None:
        """These objects have been touched now."""
        self.stuck = False
        for start in range(0, len(rows), SLICE):
            self._entries.append(Entry(self.now, store, rows[start : start + SLICE]))
            self._listed += _LIST
        self._listed += len(rows)
        self._due += 3 * (len(rows) + _LIST)

    @property
    def over(self) -> bool:
        """Whether objects should leave."""
        return self.used > self._mine

    @property
    def _mine(self) -> int:
        """What the objects may take: what columns leave, but not less than a part of it."""
        return max(self.most - self.others, int(self.most * LEAST_SHARE))

    def gone(self, rows: int) -> None:
        """So many objects are no more, and have not left through :meth:`make_room`: lists keep them alive."""
        self._litter += rows

    @property
    def littered(self) -> bool:
        """Whether lists are to be rid of what is gone: it takes memory that nobody counts."""
        return self._litter > self.count // 4 + _LITTER

    def clear_some(self) -> None:
        """Rid some lists of it."""
        self._tidy(16 * SLICE)

    def make_room(self, steps: int) -> None:
        """Have objects leave until the rest fit, in so many slices at most. Raises LocalDiskError; try again then."""
        self.stuck = False
        while steps > 0 and self.over and not self.stuck:
            steps -= 1
            began = 0.0 if self._processor is None else self._processor()
            self._leave_some()
            if self._processor is not None:
                self._fit(self._processor() - began)

    def leave(self, objects: int) -> None:
        """About so many objects, and some more, leave if there is no room for them."""
        if self.over:
            self.make_room(2 + 2 * objects // self.slice)

    def _fit(self, took: float) -> None:
        """A slice took so long."""
        if took > _SLICE_SECONDS:
            self.slice = max(_FEWEST, int(self.slice * max(0.25, _SLICE_SECONDS / took)))
        else:
            self.slice = min(SLICE, int(self.slice * _GROWTH) + 1)

    def _leave_some(self) -> None:
        """Have some objects leave."""
        entries = list[Entry]()
        found, held = 0, list[Entry]()
        going: list[tuple[DiskStore, list[Any]]] = []
        for _ in range(SLICE):  # key groups of few objects have many lists
            if found >= self.slice or not (self._tidied or self._entries):
                break
            entry = self._next(self.slice - found)
            self._listed -= len(entry.rows) + _LIST
            entries.append(entry)
            rows = entry.left()
            free = [row for row in rows if row._bedload_image is None]
            if len(free) < len(rows):
                # The epoch under way has touched them: they may be the oldest again, if it is aborted.
                held.append(entry._replace(rows=[row for row in rows if row._bedload_image is not None]))
            if free:
                going.append((entry.store, free))
                found += len(free)
        try:
            by_disk: dict[int, list[tuple[DiskStore, list[Any]]]] = {}
            for store, rows in going:
                by_disk.setdefault(id(store.place), []).append((store, rows))
            for some in by_disk.values():
                some[0][0].place.put_away(some)
        except BaseException:
            self.stuck = True
            self._tidied.extendleft(reversed(entries))  # what left all the same is passed over
            self._listed += sum(len(entry.rows) + _LIST for entry in entries)
            raise
        self.stuck = not found and len(held) == len(entries)
        self._entries.extend(held)
        self._listed += sum(len(entry.rows) + _LIST for entry in held)

    def _next(self, most: int) -> Entry:
        """The oldest list, or so many objects of it."""
        lists = self._tidied or self._entries
        entry = lists.popleft()
        if len(entry.rows) > most:
            lists.appendleft(entry._replace(rows=entry.rows[most:]))
            self._listed += _LIST
            entry = entry._replace(rows=entry.rows[:most])
        return entry

    def tidy(self) -> None:
        """Rid some lists of what was touched again, if that is most of them: about thrice as much as has come."""
        due, self._due = self._due, 0
        if self._listed > (2 + _LIST) * self.count + _LOOSE:
            self._tidy(due)

    def _tidy(self, due: int) -> None:
        while due > 0:
            if not self._entries:
                self._entries, self._tidied = self._tidied, deque()
                self._litter -= self._known
                self._known = self._litter
                return
            entry = self._entries.popleft()
            rows = entry.left()
            due -= len(entry.rows) + _LIST
            self._listed -= len(entry.rows) - len(rows)
            if rows:
                self._tidied.append(entry._replace(rows=rows))
            else:
                self._listed -= _LIST
