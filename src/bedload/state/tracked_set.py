"""A set that logs its changes.

Invariants: reads are the builtin's own; the operators and methods that make a new set make a plain
one. Elements cannot change in place, so there are no children.

The log of a large set is a dict from changed element to whether it was there. Intersection and
symmetric difference in place copy the set once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from bedload.state.changes import SetChanges
from bedload.state.handling import Adopt, mismatch, named, rewriting, touching, tracks
from bedload.state.journal import SLOTS, SMALL, Journal, Tracked
from bedload.state.types import SetNode

_MAKERS = (
    *("union", "intersection", "difference", "symmetric_difference"),
    *("__or__", "__and__", "__sub__", "__xor__", "__ror__", "__rand__", "__rsub__", "__rxor__"),
)


def _making_plain(cls: type[Any]) -> type[Any]:
    def maker(name: str) -> Any:
        make = getattr(set, name)

        def method(self: Any, *args: Any) -> Any:
            return make(set(self), *args)

        return method

    for name in _MAKERS:
        setattr(cls, name, maker(name))
    return cls


@_making_plain
class TrackedSet(Tracked, set[Any]):
    """The base of all tracked sets."""

    __slots__ = SLOTS

    def __new__(cls, *args: Any) -> Any:
        """A plain set: code that rebuilds a value by ``type(x)(...)`` gets one that has no owner."""
        return set(*args)

    def changes(self) -> Any:
        """What to apply to the committed set to get this one."""
        return self._bl_changes()

    def copy(self) -> set[Any]:
        """A plain copy."""
        return set(self)

    def __repr__(self) -> str:
        # Not that of a copy: copying a set can change the order.
        return f"{{{', '.join(map(repr, self))}}}" if self else "set()"

    def _bl_shallow(self) -> set[Any]:
        return set(self)

    def _bl_plain(self) -> set[Any]:
        return set(self)

    def _bl_begin(self) -> None:
        if len(self) <= SMALL:
            self._bl_log = set(self)
            self.__class__ = RawSet
        else:
            self._bl_log = {}
            self.__class__ = LoggedSet

    def _bl_before(self) -> set[Any]:
        before: set[Any] = self._bl_log
        return before

    def _bl_restore(self) -> None:
        set.clear(self)
        set.update(self, self._bl_log)

    def _bl_committed(self) -> set[Any]:
        return set(self) if self._bl_log is None else set(self._bl_before())

    def _bl_changes(self) -> Any:
        if self._bl_log is None:
            return SetChanges(frozenset(), frozenset())
        old = self._bl_log
        return SetChanges(frozenset(self - old), frozenset(old - self))

    def _bl_news(self) -> Any:
        return self

    def _bl_differs(self) -> bool:
        return set.__ne__(self, self._bl_log)


_REWRITERS = (*("clear", "intersection_update", "symmetric_difference_update", "__iand__", "__ixor__", "__init__"),)


@touching(*_REWRITERS, "difference_update", "pop", "remove", "update", "__ior__", "__isub__")
class CleanSet(TrackedSet):
    """Nothing changed in this epoch."""

    __slots__ = ()

    def add(self, value: Any, /) -> None:
        """Add an element; one that is there is no change."""
        if value not in self:
            self._bl_touch()
            self.add(value)

    def discard(self, value: Any, /) -> None:
        """Remove an element if it is there."""
        if value in self:
            self._bl_touch()
            self.discard(value)


TrackedSet._bl_clean = CleanSet


class RawSet(TrackedSet):
    """The log is a copy."""

    __slots__ = ()


@rewriting(*_REWRITERS)
class LoggedSet(TrackedSet):
    """The log holds elements."""

    __slots__ = ()

    def _bl_full(self) -> Any:
        self._bl_log = self._bl_before()
        self.__class__ = RawSet  # type: ignore[assignment]
        return self

    def _bl_before(self) -> set[Any]:
        old = set(self)
        for value, was_there in self._bl_log.items():
            if was_there:
                old.add(value)
            else:
                old.discard(value)
        return old

    def _bl_restore(self) -> None:
        for value, was_there in self._bl_log.items():
            if was_there:
                set.add(self, value)
            else:
                set.discard(self, value)

    def _bl_changes(self) -> Any:
        changed = self._bl_log.items()
        return SetChanges(
            frozenset(value for value, was_there in changed if not was_there and value in self),
            frozenset(value for value, was_there in changed if was_there and value not in self),
        )

    def _bl_news(self) -> Any:
        return [value for value, was_there in self._bl_log.items() if not was_there and value in self]

    def _bl_differs(self) -> bool:
        return any((value in self) != was_there for value, was_there in self._bl_log.items())

    def add(self, value: Any, /) -> None:
        """Add an element."""
        log = self._bl_log
        if value not in log:
            log[value] = value in self
        set.add(self, value)

    def _bl_taking(self, value: Any) -> None:
        if value in self:
            self._bl_log.setdefault(value, True)

    def discard(self, value: Any, /) -> None:
        """Remove an element if it is there."""
        self._bl_taking(value)
        set.discard(self, value)

    def remove(self, value: Any, /) -> None:
        """Remove an element."""
        self._bl_taking(value)
        set.remove(self, value)

    def pop(self) -> Any:
        """Remove and give some element."""
        value = set.pop(self)
        self._bl_log.setdefault(value, True)
        return value

    def update(self, *others: Any) -> None:
        """Add all elements of the others."""
        for other in others:
            for value in list(other):
                self.add(value)

    def difference_update(self, *others: Any) -> None:
        """Remove all elements of the others."""
        for other in others:
            for value in list(other):
                self.discard(value)

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        if not isinstance(other, set | frozenset):
            return NotImplemented
        self.update(other)
        return self

    def __isub__(self, other: Any) -> Any:  # type: ignore[misc]
        if not isinstance(other, set | frozenset):
            return NotImplemented
        self.difference_update(other)
        return self


named(TrackedSet, CleanSet, RawSet, LoggedSet)


@tracks(SetNode)
@cache
def set_family(node: SetNode) -> Adopt:
    """How a set is adopted; all element types share the classes."""

    def adopt(value: Any, journal: Journal, owner: Tracked | None, key: Any) -> Any:
        if not isinstance(value, set):
            raise mismatch(node, value)
        self = set.__new__(CleanSet)
        self._bl_attach(journal, owner, key)
        set.update(self, value)
        return self

    return adopt
