"""Lists, deques and heaps whose items expire: they know which items an epoch has written, and where the others were.

Invariants: while an epoch has changed one, its log is a copy of what was there, and has a tag for each item that is
there now: the place that the item had, or :data:`NEW` for one that was written. What moves items moves their tags.

So expiries need not be known here: the seal makes the new ones of the old ones and the tags. Every mutator is written
out, since each has to do the same to the tags. A child that changed in place is found by looking.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any, Final

from bedload.state.handling import Adopt, Handling, handling
from bedload.state.tracked_deque import deque_classes
from bedload.state.tracked_heap import heap_classes
from bedload.state.tracked_list import list_classes
from bedload.state.ttl import CODE
from bedload.state.types import DequeNode, HeapNode, ListNode, TypeNode

NEW: Final = -1
"""The tag of an item that was written."""


@cache
def lasting_items(node: TypeNode, reads: bool) -> Adopt:
    """How a list, a deque or a heap whose items expire is adopted."""
    kind: dict[str, Any]
    if isinstance(node, HeapNode):
        made, more, kind = heap_classes(node, lasting=True), _heap(handling(node.item), node.maxlen), _HEAP_READS
    elif isinstance(node, ListNode):
        made, more, kind = list_classes(node, lasting=True), _list(handling(node.item), node.maxlen), _LIST_READS
    else:
        assert isinstance(node, DequeNode)
        made, more, kind = deque_classes(node, lasting=True), _deque(handling(node.item)), _DEQUE_READS
    adopt, clean, raw = made
    for name, method in more.items():
        setattr(raw, name, method)
    clean._bl_drop, clean._bl_renew = _touching("_bl_drop"), _touching("_bl_renew")
    raw._bl_renew = _renew
    if reads:
        for name, items in kind.items():
            for cls in (clean, raw):
                setattr(cls, name, _reading(getattr(cls, name), items))
    return adopt


def _touching(name: str) -> Any:
    def method(self: Any, places: Any) -> None:
        self._bl_touch()
        getattr(self, name)(places)

    return method


def _renew(self: Any, places: Any) -> None:
    """The items at these places count as written."""
    tags = self._bl_log.tags
    for place in places:
        tags[place] = NEW


def _reading(read: Any, items: Any) -> Any:
    """A read as operator code has it: what it gives counts as written."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not CODE.runs:
            return read(self, *args, **kwargs)
        CODE.runs = False  # what it does to know is no read
        try:
            found = read(self, *args, **kwargs)
            if len(self):
                self._bl_renew(items(self, *args, **kwargs))
        finally:
            CODE.runs = True
        return found

    return method


def _all(self: Any, *_args: Any, **_kwargs: Any) -> range:
    return range(len(self))


def _at(self: Any, index: Any) -> Any:
    places = range(len(self))[index]
    return places if isinstance(places, range) else (places,)


_LIST_READS = {"__getitem__": _at, "__iter__": _all, "__reversed__": _all}
_DEQUE_READS = {"__getitem__": _at, "__iter__": _all, "__reversed__": _all}
_HEAP_READS = {
    "__getitem__": _at,
    "__iter__": _all,
    "__reversed__": _all,
    "peek": lambda self: (0,),
    "nsmallest": _all,
    "nlargest": _all,
    "copy": _all,
}


# --- lists ---


def _list(item: Handling | None, maxlen: int | None) -> dict[str, Any]:
    def put(self: Any, value: Any) -> Any:
        return value if item is None else item.adopt(value, self._bl_journal, self, None)

    def slice_put(self: Any, index: slice, values: list[Any]) -> list[Any]:
        if item is None:
            return values
        # Items of the slice that stay in it are kept, not copied; each in one place.
        own, kept = set(map(id, list.__getitem__(self, index))), []
        for value in values:
            stays = id(value) in own
            own.discard(id(value))
            kept.append(value if stays else put(self, value))
        return kept

    def cut(self: Any) -> None:
        if maxlen is not None and (more := len(self) - maxlen) > 0:
            list.__delitem__(self, slice(0, more))
            del self._bl_log.tags[:more]

    def append(self: Any, value: Any, /) -> None:
        list.append(self, put(self, value))
        self._bl_log.tags.append(NEW)
        cut(self)

    def extend(self: Any, values: Any, /) -> None:
        more = [put(self, value) for value in list(values)]
        list.extend(self, more)
        self._bl_log.tags.extend([NEW] * len(more))
        cut(self)

    def __iadd__(self: Any, values: Any, /) -> Any:  # noqa: N807
        extend(self, values)
        return self

    def insert(self: Any, index: Any, value: Any, /) -> None:
        list.insert(self, index, put(self, value))
        self._bl_log.tags.insert(index, NEW)
        cut(self)

    def pop(self: Any, index: Any = -1, /) -> Any:
        value = list.pop(self, index)
        self._bl_log.tags.pop(index)
        return value

    def remove(self: Any, value: Any, /) -> None:
        pop(self, list.index(self, value))

    def clear(self: Any) -> None:
        list.clear(self)
        self._bl_log.tags.clear()

    def reverse(self: Any) -> None:
        list.reverse(self)
        self._bl_log.tags.reverse()

    def sort(self: Any, *, key: Any = None, reverse: bool = False) -> None:
        items, tags = list.__getitem__(self, slice(None)), self._bl_log.tags
        of = items if key is None else [key(value) for value in items]
        order = sorted(range(len(items)), key=of.__getitem__, reverse=reverse)
        list.__setitem__(self, slice(None), [items[i] for i in order])
        tags[:] = [tags[i] for i in order]

    def __delitem__(self: Any, index: Any, /) -> None:  # noqa: N807
        list.__delitem__(self, index)
        del self._bl_log.tags[index]

    def __setitem__(self: Any, index: Any, value: Any, /) -> None:  # noqa: N807
        if isinstance(index, slice):
            kept = slice_put(self, index, list(value))
            list.__setitem__(self, index, kept)
            self._bl_log.tags[index] = [NEW] * len(kept)
            cut(self)
        else:
            if list.__getitem__(self, index) is not value:
                list.__setitem__(self, index, put(self, value))
            self._bl_log.tags[index] = NEW

    def __imul__(self: Any, times: Any, /) -> Any:  # noqa: N807
        size = len(self)
        more = list.__mul__(self, times)
        if len(more) < size:
            clear(self)
        extend(self, more[size:])
        return self

    def __init__(self: Any, *args: Any) -> None:  # noqa: N807
        __setitem__(self, slice(None), list(*args))

    def drop(self: Any, places: Any) -> None:
        for place in sorted(places, reverse=True):
            __delitem__(self, place)

    methods = {
        name: method
        for name, method in locals().items()
        if name not in ("item", "maxlen", "put", "slice_put", "cut", "drop")
    }
    return {**methods, "_bl_drop": drop}


# --- deques ---


def _deque(item: Handling | None) -> dict[str, Any]:
    def put(self: Any, value: Any) -> Any:
        return value if item is None else item.adopt(value, self._bl_journal, self, None)

    def append(self: Any, value: Any, /) -> None:
        deque.append(self, put(self, value))
        self._bl_log.tags.append(NEW)

    def appendleft(self: Any, value: Any, /) -> None:
        deque.appendleft(self, put(self, value))
        self._bl_log.tags.appendleft(NEW)

    def extend(self: Any, values: Any, /) -> None:
        for value in list(values):
            append(self, value)

    def extendleft(self: Any, values: Any, /) -> None:
        for value in list(values):
            appendleft(self, value)

    def __iadd__(self: Any, values: Any, /) -> Any:  # noqa: N807
        extend(self, values)
        return self

    def insert(self: Any, index: Any, value: Any, /) -> None:
        deque.insert(self, index, put(self, value))
        self._bl_log.tags.insert(index, NEW)

    def pop(self: Any) -> Any:
        value = deque.pop(self)
        self._bl_log.tags.pop()
        return value

    def popleft(self: Any) -> Any:
        value = deque.popleft(self)
        self._bl_log.tags.popleft()
        return value

    def remove(self: Any, value: Any, /) -> None:
        at = deque.index(self, value)
        deque.__delitem__(self, at)
        del self._bl_log.tags[at]

    def clear(self: Any) -> None:
        deque.clear(self)
        self._bl_log.tags.clear()

    def reverse(self: Any) -> None:
        deque.reverse(self)
        self._bl_log.tags.reverse()

    def rotate(self: Any, n: Any = 1, /) -> None:
        deque.rotate(self, n)
        self._bl_log.tags.rotate(n)

    def __delitem__(self: Any, index: Any, /) -> None:  # noqa: N807
        deque.__delitem__(self, index)
        del self._bl_log.tags[index]

    def __setitem__(self: Any, index: Any, value: Any, /) -> None:  # noqa: N807
        if deque.__getitem__(self, index) is not value:
            deque.__setitem__(self, index, put(self, value))
        self._bl_log.tags[index] = NEW

    def __imul__(self: Any, times: Any, /) -> Any:  # noqa: N807
        more, size = list(deque.__iter__(self)) * times, len(self)
        if len(more) < size:
            clear(self)
        extend(self, more[size:])
        return self

    def __init__(self: Any, values: Any = (), maxlen: Any = None) -> None:  # noqa: N807
        made = [put(self, value) for value in values]
        deque.__init__(self, made, maxlen)
        self._bl_log.tags = deque([NEW] * len(made), maxlen)

    def drop(self: Any, places: Any) -> None:
        for place in sorted(places, reverse=True):
            __delitem__(self, place)

    methods = {name: method for name, method in locals().items() if name not in ("item", "put", "drop")}
    return {**methods, "_bl_drop": drop}


# --- heaps: the steps of heapq, on items and tags at once ---


def _up(items: list[Any], tags: list[int], start: int, at: int) -> None:
    """Move the item at a place towards the root as far as it is smaller.

    SUBTLE: by swapping, as ``heapq`` does: a comparison that raises has lost nothing.
    """
    while at > start:
        parent = (at - 1) >> 1
        if not items[at] < items[parent]:
            break
        _swap(items, at, parent)
        _swap(tags, at, parent)
        at = parent


def _down(items: list[Any], tags: list[int], at: int) -> None:
    """Move the item at a place down to where it belongs, by way of a leaf."""
    end, start = len(items), at
    child = 2 * at + 1
    while child < end:
        if child + 1 < end and not items[child] < items[child + 1]:
            child += 1
        _swap(items, at, child)
        _swap(tags, at, child)
        at, child = child, 2 * child + 1
    _up(items, tags, start, at)


def _swap(of: list[Any], a: int, b: int) -> None:
    of[a], of[b] = of[b], of[a]


def _heap(item: Handling | None, maxlen: int | None) -> dict[str, Any]:
    def put(self: Any, value: Any) -> Any:
        return value if item is None else item.adopt(value, self._bl_journal, self, None)

    def swap(self: Any, value: Any) -> Any:
        items, tags = self._bl_items, self._bl_log.tags
        top, items[0], tags[0] = items[0], value, NEW
        _down(items, tags, 0)
        return top

    def push(self: Any, value: Any, /) -> None:
        items, tags = self._bl_items, self._bl_log.tags
        if maxlen is not None and len(items) >= maxlen:
            pushpop(self, value)
            return
        items.append(put(self, value))
        tags.append(NEW)
        _up(items, tags, 0, len(items) - 1)

    def pop(self: Any) -> Any:
        items, tags = self._bl_items, self._bl_log.tags
        last, tag = items.pop(), tags.pop()
        if not items:
            return last
        top, items[0], tags[0] = items[0], last, tag
        _down(items, tags, 0)
        return top

    def pushpop(self: Any, value: Any, /) -> Any:
        kept, items = put(self, value), self._bl_items
        return swap(self, kept) if items and items[0] < kept else kept

    def replace(self: Any, value: Any, /) -> Any:
        if not self._bl_items:
            raise IndexError("index out of range")
        return swap(self, put(self, value))

    def clear(self: Any) -> None:
        self._bl_items.clear()
        self._bl_log.tags.clear()

    def drop(self: Any, places: Any) -> None:
        items, tags, gone = self._bl_items, self._bl_log.tags, set(places)
        if not gone:
            return  # to make a heap of one would reorder items that are equal
        kept = [i for i in range(len(items)) if i not in gone]
        items[:], tags[:] = [items[i] for i in kept], [tags[i] for i in kept]
        for at in reversed(range(len(items) // 2)):
            _down(items, tags, at)

    methods = {"push": push, "pop": pop, "pushpop": pushpop, "replace": replace, "clear": clear}
    return {**methods, "_bl_drop": drop}
