"""A list that logs its changes.

Invariants: reads are the builtin's own; slices, ``+``, ``*`` and ``copy()`` give plain lists; with
``maxlen`` it never holds more than the last so many after an operation, dropping from the left; C code that writes
into lists past their methods, as ``heapq`` does, is refused (see :mod:`bedload.state.guarded_list`).

The log of a large list is a window (see :mod:`bedload.state.window`): appends log nothing but the old
length, pops and deletions at the ends and single writes log one entry each. Insertions and deletions
in the middle, sorting and slice assignment copy the list once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from bedload.state.changes import SequenceChanges, as_is, changed_at, diff_sequence, never, same
from bedload.state.guarded_list import guard
from bedload.state.handling import Adopt, handling, mismatch, named, rewriting, touching, tracks
from bedload.state.journal import SLOTS, SMALL, Journal, Tagged, Tracked
from bedload.state.types import ListNode
from bedload.state.window import WindowLog


class TrackedList(Tracked, list[Any]):
    """The base of all tracked lists."""

    __slots__ = SLOTS

    def __new__(cls, *args: Any) -> Any:
        """A plain list: code that rebuilds a value by ``type(x)(...)`` gets one that has no owner."""
        return list(*args)

    def changes(self) -> Any:
        """What to apply to the committed list to get this one."""
        return self._bl_changes()

    def copy(self) -> list[Any]:
        """A plain, shallow copy."""
        return self[:]

    def __iter__(self) -> Any:
        return iter(self[:])

    def __add__(self, other: Any) -> Any:
        return self[:] + _exactly(other)

    def __radd__(self, other: Any) -> Any:
        return other + self[:]

    def _bl_shallow(self) -> list[Any]:
        return self[:]


def _exactly(value: Any) -> Any:
    return value[:] if isinstance(value, TrackedList) else value


def _comparing(name: str) -> Any:
    compare = getattr(list, name)

    def method(self: TrackedList, other: Any) -> Any:
        return compare(self[:], _exactly(other))

    return method


# SUBTLE: the builtin's own comparisons, its ``+`` and its iterator ask for what the guard takes away.
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(TrackedList, _name, _comparing(_name))
setattr(TrackedList, "__hash__", None)  # noqa: B010 - as of a list

_REWRITERS = ("clear", "remove", "reverse", "sort", "__imul__", "__init__")
_MUTATORS = (*_REWRITERS, "append", "extend", "insert", "pop", "__delitem__", "__iadd__", "__setitem__")


@tracks(ListNode)
@cache
def list_family(node: ListNode) -> Adopt:
    """The classes of one declared list type."""
    return list_classes(node)[0]


def list_classes(node: ListNode, lasting: bool = False) -> tuple[Adopt, Any, Any]:
    """How a list is adopted, the class between epochs, and that with a copy for a log.

    Of one that is ``lasting`` the log always is such a copy, with tags.
    """
    item, maxlen = handling(node.item), node.maxlen
    plain, dirty = (item.plain, item.dirty) if item else (as_is, never)

    class Growing(TrackedList):
        """What all of them share, and how new items come in."""

        __slots__ = ()
        if item is not None or maxlen is not None:

            def append(self, value: Any, /) -> None:
                list.append(self, value if item is None else _put(self, value))
                if maxlen is not None and len(self) > maxlen:
                    del self[0]

            def extend(self, values: Any, /) -> None:
                if values is self:
                    values = list(self)
                list.extend(self, values if item is None else (_put(self, v) for v in values))
                _trim(self)

            def __iadd__(self, values: Any, /) -> Any:
                self.extend(values)
                return self

        def _bl_begin(self) -> None:
            size = len(self)
            if lasting:
                self._bl_log = Tagged(list.__getitem__(self, slice(None)))
                self.__class__ = Raw
            elif size <= SMALL:
                self._bl_log = self[:]
                self.__class__ = Raw
            else:
                self._bl_log = WindowLog(size)
                self.__class__ = Logged

        def _bl_before(self) -> Any:
            return self._bl_log

        def _bl_restore(self) -> None:
            list.__setitem__(self, slice(None), self._bl_before())

        def _bl_plain(self) -> list[Any]:
            return list(self) if item is None else [item.plain(v) for v in self]

        def _bl_committed(self) -> list[Any]:
            if self._bl_log is None:
                return self._bl_plain()
            old = self._bl_before()
            return list(old) if item is None else [item.committed(v) for v in old]

        def _bl_changes(self) -> Any:
            if self._bl_log is None:
                return SequenceChanges(0, len(self), (), (), {})
            found = diff_sequence(self._bl_log, self, plain, dirty)
            return self._bl_plain() if found is None else found

        def _bl_news(self) -> Any:
            if item is None:
                return self
            old = set(map(id, self._bl_log))
            return [value for value in self if id(value) not in old or dirty(value)]

        def _bl_differs(self) -> bool:
            if item is None:
                return bool(self[:] != self._bl_log)
            return not same(self._bl_log, self, item.differs)

    @touching(*_MUTATORS)
    class Clean(Growing):
        """Nothing changed in this epoch."""

        __slots__ = ()

        def append(self, value: Any, /) -> None:
            self._bl_touch()
            self.append(value)

    Growing._bl_clean = Clean

    class Raw(Growing):
        """The log is a copy."""

        __slots__ = ()
        _bl_flat = item is None
        if item is not None or maxlen is not None:

            def insert(self, index: Any, value: Any, /) -> None:
                list.insert(self, index, _put(self, value))
                _trim(self)

            def __setitem__(self, index: Any, value: Any, /) -> None:
                if isinstance(index, slice):
                    list.__setitem__(self, index, _put_slice(self, index, value))
                    _trim(self)
                else:
                    list.__setitem__(self, index, value if _is_at(self, index, value) else _put(self, value))

            def __imul__(self, times: Any, /) -> Any:  # type: ignore[misc]
                more = list.__mul__(self, times)
                size = len(self)
                if len(more) < size:
                    self.clear()
                self.extend(more[size:])
                return self

            def __init__(self, *args: Any) -> None:
                self[:] = list(*args)

    @rewriting(*_REWRITERS)
    class Logged(Growing):
        """The log holds entries."""

        __slots__ = ()

        def _bl_full(self) -> Any:
            self._bl_log = self._bl_log.committed(self)
            self.__class__ = Raw  # type: ignore[assignment]
            return self

        def _bl_before(self) -> Any:
            return self._bl_log.committed(self)

        def _bl_child_changed(self, key: Any) -> None:
            self._bl_log.children = True

        def _bl_differs(self) -> bool:
            return bool(self._bl_log.differs(self, item and item.differs))

        def _bl_changes(self) -> Any:
            log = self._bl_log
            return log.changes(self, plain, changed_at(self, dirty) if log.children else ())

        def _bl_news(self) -> Any:
            log = self._bl_log
            return log.news(self, changed_at(self, dirty) if log.children else ())

        def __setitem__(self, index: Any, value: Any, /) -> None:
            size = len(self)
            if type(index) is int and -size <= index < size:
                if index < 0:
                    index += size
                if item is not None:
                    if list.__getitem__(self, index) is value:
                        return
                    value = _put(self, value)
                self._bl_log.note(self, index)
                list.__setitem__(self, index, value)
            else:
                self._bl_full()[index] = value

        def __delitem__(self, index: Any, /) -> None:
            start, stop = _ends(index, len(self))
            if start < 0:
                del self._bl_full()[index]
                return
            log = self._bl_log
            for i in range(start, stop):
                log.note(self, i)
            if stop < len(self):
                log.base += stop
            list.__delitem__(self, slice(start, stop))

        def pop(self, index: Any = -1, /) -> Any:
            start, _ = _ends(index, len(self))
            if start < 0:
                return self._bl_full().pop(index)
            value = list.__getitem__(self, start)
            del self[start]
            return value

        def insert(self, index: Any, value: Any, /) -> None:
            if type(index) is int and index >= len(self):
                self.append(value)
            else:
                self._bl_full().insert(index, value)

    named(TrackedList, Growing, Clean, Raw, Logged)
    guard(Growing, Clean, Raw, Logged)

    def _put(self: Any, value: Any) -> Any:
        return value if item is None else item.adopt(value, self._bl_journal, self, None)

    def _put_slice(self: Any, index: slice, values: Any) -> list[Any]:
        if item is None:
            return list(values)
        # Items of the slice that stay in it (``l[:] = [x for x in l if ...]``) are kept, not copied.
        own = {id(v) for v in list.__getitem__(self, index)}
        kept = []
        for value in list(values):
            if id(value) in own:
                own.remove(id(value))
                kept.append(value)
            else:
                kept.append(_put(self, value))
        return kept

    def _trim(self: Any) -> None:
        if maxlen is not None and len(self) > maxlen:
            del self[: len(self) - maxlen]

    def adopt(value: Any, journal: Journal, owner: Tracked | None, key: Any) -> Any:
        if not isinstance(value, list):
            raise mismatch(node, value)
        self = list.__new__(Clean)
        self._bl_attach(journal, owner, key)
        kept = value if maxlen is None or len(value) <= maxlen else value[len(value) - maxlen :]
        list.extend(self, kept if item is None else [item.adopt(v, journal, self, None) for v in kept])
        return self

    return adopt, Clean, Raw


def _is_at(self: list[Any], index: Any, value: Any) -> bool:
    try:
        return list.__getitem__(self, index) is value
    except IndexError:
        return False  # the write says so in its own words


def _ends(index: Any, size: int) -> tuple[int, int]:
    """The range of an index or slice if it touches an end of the list, else (-1, -1)."""
    if type(index) is int:
        if index in (-1, size - 1) and size:
            return size - 1, size
        if index in (0, -size) and size:
            return 0, 1
    elif isinstance(index, slice):
        start, stop, step = index.indices(size)
        if step == 1 and (start == 0 or stop == size):
            return (start, stop) if start < stop else (size, size)
    return -1, -1
