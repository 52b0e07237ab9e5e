"""A deque that logs its changes.

Invariants: reads are the builtin's own; ``+``, ``*`` and ``copy()`` give plain deques with the same
``maxlen``; what a full deque drops at one end when it gains at the other is logged as a pop is.

The log of a large deque is a window (see :mod:`bedload.state.window`), so appends, pops and writes log
at most one entry each. Rotation, insertion and removal in the middle copy the deque once.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any

from bedload.state.changes import SequenceChanges, as_is, changed_at, diff_sequence, never, same
from bedload.state.handling import Adopt, handling, mismatch, named, rewriting, touching, tracks
from bedload.state.journal import SLOTS, SMALL, Journal, Tagged, Tracked
from bedload.state.types import DequeNode
from bedload.state.window import WindowLog


class TrackedDeque(Tracked, deque[Any]):
    """The base of all tracked deques."""

    __slots__ = SLOTS

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A plain deque: code that rebuilds a value by ``type(x)(...)`` gets one that has no owner."""
        return deque(*args, **kwargs)

    def changes(self) -> Any:
        """What to apply to the committed deque to get this one."""
        return self._bl_changes()

    def copy(self) -> Any:
        """A plain, shallow copy."""
        return self._bl_shallow()

    def __copy__(self) -> Any:
        return self._bl_shallow()

    def __add__(self, other: Any) -> Any:
        return self._bl_shallow() + other

    def __mul__(self, times: Any) -> Any:
        return self._bl_shallow() * times

    def __rmul__(self, times: Any) -> Any:
        return times * self._bl_shallow()

    def __repr__(self) -> str:
        return repr(self._bl_shallow())

    def _bl_shallow(self) -> deque[Any]:
        return deque(self, self.maxlen)


_REWRITERS = ("clear", "insert", "remove", "reverse", "rotate", "__delitem__", "__imul__", "__init__")
_MUTATORS = (
    *_REWRITERS,
    *("append", "appendleft", "extend", "extendleft", "pop", "popleft", "__iadd__", "__setitem__"),
)


@tracks(DequeNode)
@cache
def deque_family(node: DequeNode) -> Adopt:
    """The classes of one declared deque type."""
    return deque_classes(node)[0]


def deque_classes(node: DequeNode, lasting: bool = False) -> tuple[Adopt, Any, Any]:
    """How a deque is adopted, the class between epochs, and that with a copy for a log.

    Of one that is ``lasting`` the log always is such a copy, with tags.
    """
    item = handling(node.item)
    plain, dirty = (item.plain, item.dirty) if item else (as_is, never)

    class Growing(TrackedDeque):
        """What all of them share."""

        __slots__ = ()

        def _bl_begin(self) -> None:
            size = len(self)
            if lasting:
                self._bl_log = Tagged(deque.__iter__(self))
                self._bl_log.tags = deque(self._bl_log.tags, self.maxlen)
                self.__class__ = Raw
            elif size <= SMALL:
                self._bl_log = list(self)
                self.__class__ = Raw
            else:
                self._bl_log = WindowLog(size)
                self.__class__ = Logged

        def _bl_before(self) -> Any:
            return self._bl_log

        def _bl_restore(self) -> None:
            old = self._bl_before()
            deque.clear(self)
            deque.extend(self, old)

        def _bl_plain(self) -> Any:
            return deque(self if item is None else [item.plain(v) for v in self], self.maxlen)

        def _bl_committed(self) -> Any:
            if self._bl_log is None:
                return self._bl_plain()
            old = self._bl_before()
            return deque(old if item is None else [item.committed(v) for v in old], self.maxlen)

        def _bl_changes(self) -> Any:
            if self._bl_log is None:
                return SequenceChanges(0, len(self), (), (), {})
            found = diff_sequence(self._bl_log, list(self), plain, dirty)
            return self._bl_plain() if found is None else found

        def _bl_news(self) -> Any:
            if item is None:
                return self
            old = set(map(id, self._bl_log))
            return [value for value in self if id(value) not in old or dirty(value)]

        def _bl_differs(self) -> bool:
            if item is None:
                return bool(list(self) != self._bl_log)
            return not same(self._bl_log, list(self), item.differs)

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
        if item is not None:

            def append(self, value: Any, /) -> None:
                deque.append(self, _put(self, value))

            def appendleft(self, value: Any, /) -> None:
                deque.appendleft(self, _put(self, value))

            def extend(self, values: Any, /) -> None:
                for value in list(self) if values is self else values:
                    self.append(value)

            def extendleft(self, values: Any, /) -> None:
                for value in list(self) if values is self else values:
                    self.appendleft(value)

            def insert(self, index: Any, value: Any, /) -> None:
                deque.insert(self, index, _put(self, value))

            def __setitem__(self, index: Any, value: Any, /) -> None:
                if not (-len(self) <= index < len(self) and deque.__getitem__(self, index) is value):
                    deque.__setitem__(self, index, _put(self, value))

            def __iadd__(self, values: Any, /) -> Any:
                self.extend(values)
                return self

            def __imul__(self, times: Any, /) -> Any:
                more = list(self) * times
                size = len(self)
                if len(more) < size:
                    self.clear()
                self.extend(more[size:])
                return self

            def __init__(self, values: Any = (), maxlen: Any = None) -> None:
                deque.__init__(self, [_put(self, v) for v in values], maxlen)

    @rewriting(*_REWRITERS)
    class Logged(Growing):
        """The log holds entries."""

        __slots__ = ()

        def _bl_full(self) -> Any:
            self._bl_log = self._bl_log.committed(list(self))
            self.__class__ = Raw  # type: ignore[assignment]
            return self

        def _bl_before(self) -> Any:
            return self._bl_log.committed(list(self))

        def _bl_child_changed(self, key: Any) -> None:
            self._bl_log.children = True

        def _bl_differs(self) -> bool:
            return bool(self._bl_log.differs(self, item and item.differs))

        def _bl_changes(self) -> Any:
            log, current = self._bl_log, list(self)
            return log.changes(current, plain, changed_at(current, dirty) if log.children else ())

        def _bl_news(self) -> Any:
            log, current = self._bl_log, list(self)
            return log.news(current, changed_at(current, dirty) if log.children else ())

        def append(self, value: Any, /) -> None:
            if item is not None:
                value = _put(self, value)
            if len(self) == self.maxlen:
                if not self.maxlen:
                    return
                log = self._bl_log
                at = log.base  # log.note(self, 0), written out
                if at >= log.size:
                    # Nothing committed is left in it, so there is nothing more to log.
                    deque.append(self._bl_full(), value)
                    return
                if at >= 0 and at not in log:
                    log[at] = self[0]
                log.base = at + 1
            deque.append(self, value)

        def appendleft(self, value: Any, /) -> None:
            value = _put(self, value)
            log = self._bl_log
            if len(self) == self.maxlen:
                if not self.maxlen:
                    return
                log.note(self, self.maxlen - 1)
            log.base -= 1
            deque.appendleft(self, value)

        def extend(self, values: Any, /) -> None:
            for value in list(self) if values is self else values:
                self.append(value)

        def extendleft(self, values: Any, /) -> None:
            for value in list(self) if values is self else values:
                self.appendleft(value)

        def __iadd__(self, values: Any, /) -> Any:
            self.extend(values)
            return self

        def pop(self) -> Any:  # type: ignore[override]
            if self:
                self._bl_log.note(self, len(self) - 1)
            return deque.pop(self)

        def popleft(self) -> Any:
            if self:
                log = self._bl_log
                log.note(self, 0)
                log.base += 1
            return deque.popleft(self)

        def __setitem__(self, index: Any, value: Any, /) -> None:
            size = len(self)
            if type(index) is not int or not -size <= index < size:
                self._bl_full()[index] = value
                return
            if index < 0:
                index += size
            if item is not None and deque.__getitem__(self, index) is value:
                return
            value = _put(self, value)
            self._bl_log.note(self, index)
            deque.__setitem__(self, index, value)

    named(TrackedDeque, Growing, Clean, Raw, Logged)

    def _put(self: Any, value: Any) -> Any:
        return value if item is None else item.adopt(value, self._bl_journal, self, None)

    def adopt(value: Any, journal: Journal, owner: Tracked | None, key: Any) -> Any:
        if not isinstance(value, deque | list):
            raise mismatch(node, value)
        maxlen = node.maxlen if node.declared else getattr(value, "maxlen", None)
        self = deque.__new__(Clean)
        self._bl_attach(journal, owner, key)
        deque.__init__(self, value if item is None else [item.adopt(v, journal, self, None) for v in value], maxlen)
        return self

    return adopt, Clean, Raw
