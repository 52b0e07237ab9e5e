"""A dict, and a Counter, that log their changes.

Invariants: reads are the builtin's own; ``copy()``, ``|`` and the Counter's arithmetic give plain
objects; the committed content is restored with its order.

The log of a large map is a dict from changed key to old value, or MISSING. Order needs more only when
a committed key is deleted, since it would come back at the end: then the order of all keys is kept,
once. Everything else is one entry per changed key.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from bedload.state.changes import MapChanges, as_is, diff_map, never, same
from bedload.state.handling import Adopt, Handling, handling, mismatch, named, rewriting, touching, tracks
from bedload.state.journal import MISSING, SLOTS, SMALL, Journal, Tracked
from bedload.state.types import CounterNode, MapNode, TypeNode


class TrackedMap(Tracked, dict[Any, Any]):
    """The base of all tracked dicts."""

    __slots__ = SLOTS

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A plain dict: code that rebuilds a value by ``type(x)(...)`` gets one that has no owner."""
        return dict(*args, **kwargs)

    def changes(self) -> Any:
        """What to apply to the committed dict to get this one."""
        return self._bl_changes()

    def _bl_shallow(self) -> dict[Any, Any]:
        return dict.copy(self)


class TrackedCounter(Tracked, Counter[Any]):
    """The base of all tracked Counters."""

    __slots__ = SLOTS

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A plain Counter, as for the dict."""
        return Counter(*args, **kwargs)

    def changes(self) -> Any:
        """What to apply to the committed Counter to get this one."""
        return self._bl_changes()

    def copy(self) -> Any:
        """A plain copy."""
        return self._bl_shallow()

    def __repr__(self) -> str:
        return repr(self._bl_shallow())

    def _bl_shallow(self) -> Counter[Any]:
        plain: Counter[Any] = Counter()
        dict.update(plain, self)
        return plain


_NONE: Any = frozenset()


class MapLog(dict[Any, Any]):
    """Changed key to old value. What is special of some is on the class for the others: most epochs make many."""

    deleted: set[Any] = _NONE
    """Committed keys that were deleted, even if they are back."""
    order: dict[Any, Any] | None = None
    """The keys in order, from before the first such deletion. A dict, as its copy is the fastest."""
    reordered = False
    """Whether anything was deleted, so that the log's own order says nothing about new keys."""

    def removing(self, current: Any, key: Any) -> None:
        """Note that a key, which is there, is about to go."""
        self.reordered = True
        if key not in self:
            self[key] = dict.__getitem__(current, key)
        if self[key] is not MISSING and key not in self.deleted:
            if self.order is None:
                self.order, self.deleted = dict.copy(current), set()
            self.deleted.add(key)

    def committed(self, current: Any) -> dict[Any, Any]:
        """The committed dict."""
        if self.order is None:
            old = dict.copy(current)
            for key, value in self.items():
                if value is MISSING:
                    old.pop(key, None)
                else:
                    old[key] = value
            return old
        return {
            key: self[key] if key in self else dict.__getitem__(current, key)
            for key in self.order
            if self.get(key) is not MISSING
        }

    def restore(self, current: Any) -> None:
        """Make the current dict the committed one."""
        if self.order is None:
            for key, value in self.items():
                if value is MISSING:
                    dict.pop(current, key, None)
                else:
                    dict.__setitem__(current, key, value)
        else:
            old = self.committed(current)
            dict.clear(current)
            dict.update(current, old)

    def differs(self, current: Any, child_differs: Any) -> bool:
        """Whether the current dict is other than the committed one, or in another order."""
        if self.deleted:
            return True
        for key, old in self.items():
            now = dict.get(current, key, MISSING)
            if now is old:
                if child_differs is not None and now is not MISSING and child_differs(now):
                    return True
            elif child_differs is not None or now != old:
                return True
        return False

    def changes(self, current: Any, plain: Any) -> MapChanges:
        """What changed."""
        keys = [key for key in dict.keys(current) if key in self] if self.reordered else self
        get = dict.__getitem__
        if plain is as_is:
            return MapChanges(tuple(self.deleted), {key: get(current, key) for key in keys})
        return MapChanges(tuple(self.deleted), {key: plain(get(current, key)) for key in keys})


_MUTATORS = ("clear", "popitem", "setdefault", "update", "__delitem__", "__init__", "__ior__", "__setitem__")
COUNTING = ("subtract", "__iadd__", "__iand__", "__isub__", "_keep_positive")


@tracks(MapNode)
@cache
def map_family(node: MapNode) -> Adopt:
    """The classes of one declared dict type."""
    clean, _ = map_classes(TrackedMap, dict, handling(node.value))
    return map_adopter(clean, node, handling(node.value))


@tracks(CounterNode)
@cache
def counter_family(node: CounterNode) -> Adopt:
    """The classes of one declared Counter type."""
    clean, _ = map_classes(TrackedCounter, Counter, None, *COUNTING)
    return map_adopter(clean, node, None)


def map_adopter(clean: type[Any], node: TypeNode, item: Handling | None) -> Adopt:
    """How a dict, or a Counter, is adopted into a class."""

    def adopt(value: Any, journal: Journal, owner: Tracked | None, key: Any) -> Any:
        if not isinstance(value, dict):
            raise mismatch(node, value)
        self: Any = dict.__new__(clean)
        self._bl_attach(journal, owner, key)
        if item is None:
            dict.update(self, value)
        else:
            dict.update(self, {k: item.adopt(v, journal, self, k) for k, v in value.items()})
        return self

    return adopt


def map_classes(
    base: Any, builtin: Any, item: Handling | None, *more: str, small: int = SMALL
) -> tuple[type[Any], type[Any]]:
    """The class between epochs, and that with a log of entries, which maps of more than ``small`` entries have."""
    plain, dirty = (item.plain, item.dirty) if item else (as_is, never)
    shallow = base._bl_shallow

    class Shared(base):  # type: ignore[misc]
        """What all of them share."""

        __slots__ = ()

        def _bl_begin(self) -> None:
            live: Any = self  # mypy does not see the slots of a base that is a variable
            if len(live) <= small:
                live._bl_log = dict.copy(live)
                live.__class__ = Raw
            else:
                live._bl_log = MapLog()
                live.__class__ = Logged

        def _bl_before(self) -> Any:
            return self._bl_log

        def _bl_restore(self) -> None:
            dict.clear(self)
            dict.update(self, self._bl_log)

        def _bl_plain(self) -> Any:
            return shallow(self) if item is None else {k: item.plain(v) for k, v in self.items()}

        def _bl_committed(self) -> Any:
            if self._bl_log is None:
                return self._bl_plain()
            old = self._bl_before()
            return shallow(old) if item is None else {k: item.committed(v) for k, v in old.items()}

        def _bl_changes(self) -> Any:
            return MapChanges((), {}) if self._bl_log is None else diff_map(self._bl_log, self, plain, dirty)

        def _bl_news(self) -> Any:
            if item is None:
                return self
            get = self._bl_log.get
            return {key: value for key, value in self.items() if get(key, MISSING) is not value or dirty(value)}

        def _bl_differs(self) -> bool:
            # Equal dicts may differ in order, which is state too: code can pop the oldest entry.
            old = self._bl_log
            if len(self) != len(old) or any(a is not b and a != b for a, b in zip(self, old, strict=True)):
                return True
            if item is None:
                return dict.__ne__(self, old)
            return not same(list(old.values()), list(self.values()), item.differs)

    @touching(*_MUTATORS, *more)
    class Clean(Shared):
        """Nothing changed in this epoch."""

        __slots__ = ()

        def __setitem__(self, key: Any, value: Any, /) -> None:
            self._bl_touch()
            self[key] = value

        def pop(self, key: Any, *default: Any) -> Any:
            # Popping what is not there is common, and no change.
            if key not in self:
                return dict.pop(self, key, *default)
            self._bl_touch()
            return self.pop(key, *default)

    Shared._bl_clean = Clean

    class Raw(Shared):
        """The log is a copy."""

        __slots__ = ()
        _bl_flat = item is None
        if item is not None:

            def __setitem__(self, key: Any, value: Any, /) -> None:
                if dict.get(self, key, MISSING) is not value:
                    dict.__setitem__(self, key, item.adopt(value, self._bl_journal, self, key))

            def setdefault(self, key: Any, default: Any = None, /) -> Any:
                if key not in self:
                    self[key] = default
                return self[key]

            def update(self, *args: Any, **kwargs: Any) -> None:
                for key, value in dict(*args, **kwargs).items():
                    self[key] = value

            def __ior__(self, other: Any) -> Any:
                self.update(other)
                return self

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self.update(*args, **kwargs)

    @rewriting("clear", "__init__")
    class Logged(Shared):
        """The log holds entries."""

        __slots__ = ()

        def _bl_full(self) -> Any:
            live: Any = self
            live._bl_log = self._bl_log.committed(self)
            live.__class__ = Raw
            return live

        def _bl_before(self) -> Any:
            return self._bl_log.committed(self)

        def _bl_restore(self) -> None:
            self._bl_log.restore(self)

        def _bl_child_changed(self, key: Any) -> None:
            log = self._bl_log
            if key not in log and key in self:
                log[key] = dict.__getitem__(self, key)

        def _bl_differs(self) -> bool:
            return bool(self._bl_log.differs(self, item and item.differs))

        def _bl_changes(self) -> Any:
            return self._bl_log.changes(self, plain)

        def _bl_news(self) -> Any:
            log, get = self._bl_log, dict.__getitem__
            return {key: get(self, key) for key in (filter(self.__contains__, log) if log.reordered else log)}

        if item is None:
            # The hottest write of all: the defaults make globals into locals.
            def __setitem__(self, key: Any, value: Any, _set: Any = dict.__setitem__, _get: Any = dict.get) -> None:
                log = self._bl_log
                if key not in log:
                    log[key] = _get(self, key, MISSING)
                _set(self, key, value)

        else:

            def __setitem__(  # type: ignore[misc]
                self, key: Any, value: Any, /
            ) -> None:
                old = dict.get(self, key, MISSING)
                if old is not value:
                    value = item.adopt(value, self._bl_journal, self, key)
                    self._bl_log.setdefault(key, old)
                    dict.__setitem__(self, key, value)

        def __delitem__(self, key: Any, /) -> None:
            if key in self:
                self._bl_log.removing(self, key)
            builtin.__delitem__(self, key)

        def pop(self, key: Any, *default: Any) -> Any:
            if key in self:
                self._bl_log.removing(self, key)
            return dict.pop(self, key, *default)

        def popitem(self) -> tuple[Any, Any]:
            if self:
                self._bl_log.removing(self, next(reversed(self)))
            return dict.popitem(self)

        def setdefault(self, key: Any, default: Any = None, /) -> Any:
            if key not in self:
                self[key] = default
            return self[key]

        if builtin is dict:

            def update(self, *args: Any, **kwargs: Any) -> None:
                for key, value in dict(*args, **kwargs).items():
                    self[key] = value

            def __ior__(self, other: Any) -> Any:
                self.update(other)
                return self

        else:

            def update(self, *args: Any, **kwargs: Any) -> None:
                # SUBTLE: an empty Counter takes a mapping by dict.update, past __setitem__.
                Counter.update(self if self else self._bl_full(), *args, **kwargs)

    named(base, Shared, Clean, Raw, Logged)
    return Clean, Logged
