"""A heap that logs its changes.

Invariants: its items are a plain list of its own, in the very order in which ``heapq`` would have them, so that items
which are equal, and yet can be told apart, leave it in the same order after a restore; operator code never gets hold
of that list. With ``maxlen`` it never holds more than the largest so many.

A push or a pop moves the items on one path between the root and a leaf. The log of a large heap (see
:mod:`bedload.state.window`) keeps the old items of the places on it; that is done in Python, and compares before it
writes, so a comparison that raises has changed nothing. When a quarter of the heap has moved it is copied once, and
from then on ``heapq`` itself does the work, as on small ones.
"""

from __future__ import annotations

import heapq
from functools import cache
from itertools import pairwise
from operator import lt
from typing import Any

from bedload.state.changes import SequenceChanges, as_is, changed_at, diff_sequence, never, same
from bedload.state.handling import Adopt, handling, mismatch, named, rewriting, touching, tracks
from bedload.state.heap import Heap
from bedload.state.journal import SLOTS, SMALL, Journal, Tagged, Tracked
from bedload.state.types import HeapNode
from bedload.state.window import WindowLog


class TrackedHeap(Tracked, Heap[Any]):
    """The base of all tracked heaps."""

    __slots__ = (*SLOTS, "_bl_items")

    _bl_items: list[Any]

    def changes(self) -> Any:
        """What to apply to the committed items to get these."""
        return self._bl_changes()

    def peek(self) -> Any:
        """The smallest item."""
        return self._bl_items[0]

    def nsmallest(self, n: int, key: Any = None) -> list[Any]:
        """The smallest so many items, in order."""
        return heapq.nsmallest(n, self._bl_items, key)

    def nlargest(self, n: int, key: Any = None) -> list[Any]:
        """The largest so many items, the largest first."""
        return heapq.nlargest(n, self._bl_items, key)

    def copy(self) -> list[Any]:
        """A plain list of the items, in heap order."""
        return self._bl_items[:]

    def __len__(self) -> int:
        return len(self._bl_items)

    def __iter__(self) -> Any:
        return iter(self._bl_items[:])

    def __reversed__(self) -> Any:
        return reversed(self._bl_items)

    def __contains__(self, item: object) -> bool:
        return item in self._bl_items

    def __getitem__(self, index: Any) -> Any:
        return self._bl_items[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TrackedHeap):
            other = other._bl_items
        return self._bl_items == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._bl_items)

    def _bl_shallow(self) -> list[Any]:
        return self._bl_items[:]


_MUTATORS = ("clear", "extend", "pop", "push", "pushpop", "replace")


@tracks(HeapNode)
@cache
def heap_family(node: HeapNode) -> Adopt:
    """The classes of one declared heap type."""
    return heap_classes(node)[0]


def heap_classes(node: HeapNode, lasting: bool = False) -> tuple[Adopt, Any, Any]:
    """How a heap is adopted, the class between epochs, and that with a copy for a log.

    Of one that is ``lasting`` the log always is such a copy, with tags.
    """
    item, maxlen = handling(node.item), node.maxlen
    plain, dirty = (item.plain, item.dirty) if item else (as_is, never)

    class Shared(TrackedHeap):
        """What all of them share."""

        __slots__ = ()

        def extend(self, items: Any, /) -> None:
            for value in list(items):
                self.push(value)

        def _bl_begin(self) -> None:
            size = len(self._bl_items)
            if lasting:
                self._bl_log = Tagged(self._bl_items)
                self.__class__ = Raw
            elif size <= SMALL:
                self._bl_log = self._bl_items[:]
                self.__class__ = Raw
            else:
                self._bl_log = WindowLog(size)
                self.__class__ = Logged

        def _bl_before(self) -> Any:
            return self._bl_log

        def _bl_restore(self) -> None:
            self._bl_items[:] = self._bl_before()

        def _bl_plain(self) -> list[Any]:
            return self._bl_items[:] if item is None else [item.plain(v) for v in self._bl_items]

        def _bl_committed(self) -> list[Any]:
            if self._bl_log is None:
                return self._bl_plain()
            old = self._bl_before()
            return list(old) if item is None else [item.committed(v) for v in old]

        def _bl_changes(self) -> Any:
            if self._bl_log is None:
                return SequenceChanges(0, len(self._bl_items), (), (), {})
            found = diff_sequence(self._bl_log, self._bl_items, plain, dirty)
            return self._bl_plain() if found is None else found

        def _bl_news(self) -> Any:
            if item is None:
                return self._bl_items
            old = set(map(id, self._bl_log))
            return [value for value in self._bl_items if id(value) not in old or dirty(value)]

        def _bl_differs(self) -> bool:
            if item is None:
                return bool(self._bl_items != self._bl_log)
            return not same(self._bl_log, self._bl_items, item.differs)

    @touching(*_MUTATORS)
    class Clean(Shared):
        """Nothing changed in this epoch."""

        __slots__ = ()

    Shared._bl_clean = Clean

    class Raw(Shared):
        """The log is a copy."""

        __slots__ = ()

        def push(self, value: Any, /) -> None:
            items = self._bl_items
            if maxlen is not None and len(items) >= maxlen:
                self.pushpop(value)
            else:
                heapq.heappush(items, _put(self, value))

        def pop(self) -> Any:
            return heapq.heappop(self._bl_items)

        def pushpop(self, value: Any, /) -> Any:
            return heapq.heappushpop(self._bl_items, value if item is None else _put(self, value))

        def replace(self, value: Any, /) -> Any:
            return heapq.heapreplace(self._bl_items, _put(self, value))

        def clear(self) -> None:
            self._bl_items.clear()

    @rewriting("clear")
    class Logged(Shared):
        """The log holds entries."""

        __slots__ = ()

        def _bl_full(self) -> Any:
            self._bl_log = self._bl_log.committed(self._bl_items)
            self.__class__ = Raw  # type: ignore[assignment]
            return self

        def _bl_moved_much(self) -> bool:
            log: WindowLog = self._bl_log
            return len(log) * 4 > log.size

        def _bl_before(self) -> Any:
            return self._bl_log.committed(self._bl_items)

        def _bl_child_changed(self, key: Any) -> None:
            self._bl_log.children = True

        def _bl_differs(self) -> bool:
            return bool(self._bl_log.differs(self._bl_items, item and item.differs))

        def _bl_changes(self) -> Any:
            log, items = self._bl_log, self._bl_items
            return log.changes(items, plain, changed_at(items, dirty) if log.children else ())

        def _bl_news(self) -> Any:
            log, items = self._bl_log, self._bl_items
            return log.news(items, changed_at(items, dirty) if log.children else ())

        def push(self, value: Any, /) -> None:
            items, log = self._bl_items, self._bl_log
            if maxlen is not None and len(items) >= maxlen:
                self.pushpop(value)
                return
            if self._bl_moved_much():
                self._bl_full().push(value)
                return
            value = _put(self, value)
            at = len(items)
            path = [at]
            while at and value < items[(at - 1) >> 1]:
                at = (at - 1) >> 1
                path.append(at)
            items.append(value)
            for low, high in pairwise(path):
                log.note(items, low)
                items[low] = items[high]
            log.note(items, at)
            items[at] = value

        def pop(self) -> Any:
            items, log = self._bl_items, self._bl_log
            if len(items) < 2 or self._bl_moved_much():
                return self._bl_full().pop()
            top, last = items[0], items[-1]
            path = _path(items, last, len(items) - 1)
            log.note(items, len(items) - 1)
            items.pop()
            _sink(self, path, last)
            return top

        def pushpop(self, value: Any, /) -> Any:
            kept = _put(self, value)
            return self._bl_swap(kept) if self._bl_items and self._bl_items[0] < kept else kept

        def replace(self, value: Any, /) -> Any:
            if not self._bl_items:
                raise IndexError("index out of range")
            return self._bl_swap(_put(self, value))

        def _bl_swap(self, value: Any) -> Any:
            if self._bl_moved_much():
                return heapq.heapreplace(self._bl_full()._bl_items, value)
            items = self._bl_items
            top = items[0]
            _sink(self, _path(items, value, len(items)), value)
            return top

    named(TrackedHeap, Shared, Clean, Raw, Logged)

    def _put(self: Any, value: Any) -> Any:
        return value if item is None else item.adopt(value, self._bl_journal, self, None)

    def adopt(value: Any, journal: Journal, owner: Tracked | None, key: Any) -> Any:
        if not isinstance(value, list | Heap):
            raise mismatch(node, value)
        self: Any = object.__new__(Clean)
        self._bl_attach(journal, owner, key)
        items = list(value) if item is None else [item.adopt(v, journal, self, None) for v in value]
        if maxlen is not None and len(items) > maxlen:
            items = sorted(items)[-maxlen:]
        elif any(map(lt, items[1::2], items)) or any(map(lt, items[2::2], items)):
            heapq.heapify(items)  # SUBTLE: not if it is one: that would reorder items that are equal
        self._bl_items = items
        return self

    return adopt, Clean, Raw


def _path(items: list[Any], value: Any, size: int) -> list[int]:
    """The places from the root down to where ``value`` belongs if it comes in at the root, as ``heapq`` finds it."""
    at, path = 0, [0]
    while (child := 2 * at + 1) < size:
        if child + 1 < size and not items[child] < items[child + 1]:
            child += 1
        path.append(child)
        at = child
    while len(path) > 1 and value < items[path[-1]]:
        path.pop()
    return path


def _sink(heap: TrackedHeap, path: list[int], value: Any) -> None:
    """Move the items of a path one place up, and put ``value`` at its end."""
    items, note = heap._bl_items, heap._bl_log.note
    for high, low in pairwise(path):
        note(items, high)
        items[high] = items[low]
    note(items, path[-1])
    items[path[-1]] = value
