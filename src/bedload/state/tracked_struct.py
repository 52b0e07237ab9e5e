"""A mutable dataclass that logs its changes.

Invariants: a tracked instance is an instance of its dataclass, equal both ways to a plain one, and
prints, pickles and copies as one; only declared fields are state, whatever else is set on an instance
is not kept.

A dataclass has few fields, so its log is always a copy of them. Its ``__init__`` is not called when a
value is adopted, copied or restored: the fields are set as they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from bedload.state.changes import StructChanges
from bedload.state.handling import Adopt, Handling, handling, mismatch, tracks
from bedload.state.journal import MISSING, SLOTS, Journal, Tracked
from bedload.state.types import StructNode

_set = object.__setattr__
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


@tracks(StructNode)
@cache
def struct_family(node: StructNode) -> Adopt:
    """The classes of one dataclass."""
    plain_class: Any = node.cls
    names = tuple(name for name, _ in node.fields)
    nested: dict[str, Handling] = {name: how for name, field in node.fields if (how := handling(field)) is not None}

    def build(values: dict[str, Any]) -> Any:
        built = object.__new__(plain_class)
        for name, value in values.items():
            _set(built, name, value)
        return built

    def values_of(value: Any) -> dict[str, Any]:
        # A deleted field is left out; a class-level default stands in for it, as in Python.
        found = {}
        for name in names:
            at = getattr(value, name, MISSING)
            if at is not MISSING:
                found[name] = at
        return found

    class Struct(Tracked, plain_class):  # type: ignore[misc]
        """What both of them share."""

        __slots__ = SLOTS

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return plain_class(*args, **kwargs)

        def _bl_attach(self, journal: Journal, owner: Tracked | None, key: Any) -> None:
            _set(self, "_bl_journal", journal)
            _set(self, "_bl_owner", owner)
            _set(self, "_bl_key", key)
            _set(self, "_bl_log", None)

        def _bl_begin(self) -> None:
            _set(self, "_bl_log", values_of(self))
            _set(self, "__class__", Raw)

        def _bl_settle(self) -> None:
            _set(self, "_bl_log", None)
            _set(self, "__class__", Clean)

        def _bl_restore(self) -> None:
            old = self._bl_log
            for name in names:
                if name in old:
                    _set(self, name, old[name])
                elif name in values_of(self):
                    object.__delattr__(self, name)

        def _bl_shallow(self) -> Any:
            return build(values_of(self))

        def _bl_plain(self) -> Any:
            return build({n: nested[n].plain(v) if n in nested else v for n, v in values_of(self).items()})

        def _bl_committed(self) -> Any:
            old = self._bl_log
            if old is None:
                return self._bl_plain()
            return build({n: nested[n].committed(v) if n in nested else v for n, v in old.items()})

        def _bl_changes(self) -> Any:
            old, changed = self._bl_log, {}
            for name in names if old is not None else ():
                now = getattr(self, name, MISSING)
                how = nested.get(name)
                if now is MISSING:
                    changed[name] = MISSING
                elif now is not old.get(name, MISSING) or (how is not None and how.dirty(now)):
                    changed[name] = now if how is None else how.plain(now)
            return StructChanges(changed)

        def _bl_news(self) -> Any:
            found = {}
            for name in names:
                now, how = getattr(self, name, MISSING), nested.get(name)
                if now is not self._bl_log.get(name, MISSING) or (how is not None and how.dirty(now)):
                    found[name] = now
            return found

        def _bl_differs(self) -> bool:
            for name in names:
                old, now = self._bl_log.get(name, MISSING), getattr(self, name, MISSING)
                if now is old:
                    if now is not MISSING and name in nested and nested[name].differs(now):
                        return True
                elif name in nested or now != old:
                    return True
            return False

    class Clean(Struct):
        """Nothing changed in this epoch."""

        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            self._bl_touch()
            setattr(self, name, value)

        def __delattr__(self, name: str) -> None:
            self._bl_touch()
            delattr(self, name)

    class Raw(Struct):
        """The log is a copy."""

        __slots__ = ()
        if nested:

            def __setattr__(self, name: str, value: Any) -> None:
                how = nested.get(name)
                if how is not None:
                    if getattr(self, name, MISSING) is value:
                        return
                    value = how.adopt(value, self._bl_journal, self, name)
                plain_class.__setattr__(self, name, value)

    for name in _COMPARISONS if plain_class.__eq__ is not object.__eq__ else _COMPARISONS[2:]:
        setattr(Struct, name, _comparing(getattr(plain_class, name)))
    setattr(Struct, "__hash__", plain_class.__hash__)  # noqa: B010 - defining __eq__ took it away
    for cls in (Struct, Clean, Raw):
        cls.__name__, cls.__qualname__ = plain_class.__name__, plain_class.__qualname__
        cls.__module__, cls.__doc__ = plain_class.__module__, plain_class.__doc__

    def adopt(value: Any, journal: Journal, owner: Tracked | None, key: Any) -> Any:
        if not isinstance(value, plain_class):
            raise mismatch(node, value)
        self: Any = object.__new__(Clean)
        self._bl_attach(journal, owner, key)
        for name, at in values_of(value).items():
            how = nested.get(name)
            _set(self, name, at if how is None else how.adopt(at, journal, self, name))
        return self

    return adopt


def _shallow(value: Any) -> Any:
    return value._bl_shallow() if isinstance(value, Tracked) else value


def _comparing(compare: Any) -> Any:
    def method(self: Any, other: Any) -> Any:
        return compare(self._bl_shallow(), _shallow(other))

    return method
