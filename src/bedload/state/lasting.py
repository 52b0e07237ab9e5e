"""Maps, counters and sets whose entries expire: they know which entries an epoch has written.

Invariants: while an epoch has changed one, its log names every entry that was written in it, also one that is equal to
what it was, or that is no more; what it has read, too, where reading counts.

They are the tracked classes with one change: their log always is one of entries. A copy of what was there, as small
maps have for their log, does not tell an entry that was written again from one that was left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from bedload.state.handling import Adopt, handling, mismatch, named
from bedload.state.journal import MISSING, Journal, Tracked
from bedload.state.tracked_map import COUNTING, MapLog, TrackedCounter, TrackedMap, map_adopter, map_classes
from bedload.state.tracked_set import CleanSet, LoggedSet, TrackedSet
from bedload.state.ttl import CODE
from bedload.state.types import CounterNode, MapNode, SetNode, TypeNode

_ALWAYS = -1
"""So small a map has a log that is a copy."""


@cache
def lasting_entries(node: TypeNode, reads: bool) -> Adopt:
    """How a map, a counter or a set whose entries expire is adopted."""
    if isinstance(node, SetNode):
        return _sets(node, reads)
    assert isinstance(node, MapNode | CounterNode)
    item = handling(node.value) if isinstance(node, MapNode) else None
    if isinstance(node, MapNode):
        builtin: Any = dict
        clean, logged = map_classes(TrackedMap, dict, item, small=_ALWAYS)
    else:
        builtin = Counter
        clean, logged = map_classes(TrackedCounter, Counter, item, *COUNTING, small=_ALWAYS)
    for name, method in {**_ENTRIES, **(_MAP if builtin is dict else _COUNTER)}.items():
        setattr(logged, name, method)
    if item is not None:
        logged.__setitem__ = _noting(logged.__setitem__)
    clean._bl_drop = logged._bl_drop = _drop
    clean._bl_renew = logged._bl_renew = _renew
    if reads:
        for cls in (clean, logged):
            _reading(cls, builtin)
    return map_adopter(clean, node, item)


@cache
def times_of_entries(node: MapNode) -> Adopt:
    """How the map of the times at which entries expire is adopted: only the seal writes it, many entries at once."""
    clean, logged = map_classes(TrackedMap, dict, None, small=_ALWAYS)

    def put(self: Any, keys: Iterable[Any], at: int) -> None:
        log, get = self._bl_log, dict.get
        for key in keys:
            if key not in log:
                log[key] = get(self, key, MISSING)
        dict.update(self, dict.fromkeys(keys, at))

    def first_put(self: Any, keys: Iterable[Any], at: int) -> None:
        # What `_bl_touch` does, without a call: the seal has seen to it that its record is open.
        self._bl_log = log = MapLog()
        self.__class__ = logged
        self._bl_journal.dirty.append(self)
        get = self.get
        for key in keys:
            log[key] = get(key, MISSING)
        dict.update(self, dict.fromkeys(keys, at))

    clean._bl_put, logged._bl_put = first_put, put
    clean._bl_drop = logged._bl_drop = _drop
    return map_adopter(clean, node, None)


def count_puts(
    rows: Iterable[Any], parts: Callable[[Any], Any], index: int, absent: Any, at: int
) -> tuple[list[Any], list[Any]]:
    """Have what the epoch put into the maps of objects expire then: the objects, and those that need another look.

    ``parts`` gives the map of an object, that of its times, and its image, in which ``index`` is the map's place.
    """
    done, others = [], []
    for row in rows:
        value, times, image = parts(row)
        log = value._bl_log if image is not absent and value is image[index] else _OTHER
        if type(log) is MapLog:
            if put := [key for key in log if key in value] if log.reordered else log:
                times._bl_put(put, at)
                done.append(row)
            if log.reordered:
                times._bl_drop([key for key in log if key not in value])
        elif log is not None:
            others.append(row)
    return done, others


_OTHER: Any = object()


def times_patch(of_map: list[Any], times: Any) -> list[Any] | None:
    """The patch of the times of entries, from that of the map that has these; None: it has to be made as others are."""
    if of_map[0] != "map":
        return None
    _, removed, pairs = of_map
    log = times._bl_log
    if not pairs or removed or log.reordered or len(log) != len(pairs):
        return None
    # SUBTLE: what is written in an epoch is what was put into the map, and all of it has one time.
    at = dict.__getitem__(times, next(iter(log)))
    return ["map", [], [(key, at) for key, _ in pairs]]


# --- of all of them ---


def _written(self: Any) -> list[Any]:
    """The entries that the epoch has written, and that are there."""
    return list(filter(self.__contains__, self._bl_log))


def _gone(self: Any) -> list[Any]:
    """The entries that the epoch has removed, or those that it has made and removed."""
    return [key for key in self._bl_log if key not in self]


def _put(self: Any) -> Any:
    return _written(self) if self._bl_log.reordered else self._bl_log


def _removed(self: Any) -> Any:
    return _gone(self) if self._bl_log.reordered else ()


# --- maps and counters ---


def _drop(self: Any, keys: Iterable[Any]) -> None:
    there = [key for key in keys if dict.__contains__(self, key)]  # past what counts reading
    if there:
        self._bl_touch()
        removing, pop = self._bl_log.removing, dict.pop
        for key in there:
            removing(self, key)
            pop(self, key)


def _renew(self: Any, keys: Iterable[Any]) -> None:
    """These entries, which are there, count as written."""
    self._bl_touch()
    log = self._bl_log
    for key in keys:
        if key not in log:
            log[key] = dict.__getitem__(self, key)


def _noting(write: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    def __setitem__(self: Any, key: Any, value: Any, /) -> None:  # noqa: N807
        if dict.get(self, key, MISSING) is value:
            self._bl_log.setdefault(key, value)
        else:
            write(self, key, value)

    return __setitem__


def _clear(self: Any) -> None:
    for key in list(dict.keys(self)):
        del self[key]


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    self.update(*args, **kwargs)


def _count_in(self: Any, iterable: Any = None, /, **kwds: Any) -> None:
    for key, count in Counter(iterable, **kwds).items():
        self[key] = count + dict.get(self, key, 0)


_ENTRIES: dict[str, Any] = {"_bl_written": _put, "_bl_gone": _removed, "clear": _clear, "__init__": _init}
_MAP: dict[str, Any] = {}
_COUNTER: dict[str, Any] = {"update": _count_in}


_IN_PLACE = ("__iadd__", "__iand__", "__ior__", "__isub__")


def _unread(write: Any) -> Any:
    """A write as operator code does it: what it looks at itself is no read."""

    def method(self: Any, *args: Any) -> Any:
        runs, CODE.runs = CODE.runs, False
        try:
            return write(self, *args)
        finally:
            CODE.runs = runs

    return method


def _reading(cls: Any, builtin: Any) -> None:
    """Have entries that operator code reads count as written."""

    def __getitem__(self: Any, key: Any, /) -> Any:  # noqa: N807
        value = builtin.__getitem__(self, key)
        if CODE.runs and dict.__contains__(self, key):
            _renew(self, (key,))
        return value

    def get(self: Any, key: Any, default: Any = None, /) -> Any:
        value = dict.get(self, key, MISSING)
        if value is MISSING:
            return default
        if CODE.runs:
            _renew(self, (key,))
        return value

    def __contains__(self: Any, key: Any, /) -> bool:  # noqa: N807
        there = dict.__contains__(self, key)
        if there and CODE.runs:
            _renew(self, (key,))
        return there

    def every(name: str) -> Any:
        read = getattr(dict, name)

        def method(self: Any) -> Any:
            if CODE.runs and len(self):
                _renew(self, list(dict.keys(self)))
            return read(self)

        return method

    # SUBTLE: to remove an entry may copy the map, and a Counter looks at all counts for one that it adds to.
    for name in ("__delitem__", "clear", "pop", "popitem", *(() if builtin is dict else _IN_PLACE)):
        setattr(cls, name, _unread(getattr(cls, name)))
    cls.__getitem__, cls.get, cls.__contains__ = __getitem__, get, __contains__
    for name in ("__iter__", "__reversed__", "keys", "values", "items"):
        setattr(cls, name, every(name))


# --- sets ---


class LastingSet(CleanSet):
    """Nothing changed in this epoch."""

    __slots__ = ()

    def _bl_begin(self) -> None:
        self._bl_log = {}
        self.__class__ = LoggedLastingSet  # type: ignore[assignment]

    def add(self, value: Any, /) -> None:
        """Add an element, or have it live on."""
        self._bl_touch()
        self.add(value)

    def _bl_drop(self, values: Iterable[Any]) -> None:
        self.difference_update(list(values))

    def _bl_renew(self, values: Iterable[Any]) -> None:
        self._bl_touch()
        self._bl_renew(values)


class LoggedLastingSet(LoggedSet):
    """The log holds elements."""

    __slots__ = ()

    _bl_written = _written
    _bl_gone = _gone

    def _bl_drop(self, values: Iterable[Any]) -> None:
        self.difference_update(list(values))

    def _bl_renew(self, values: Iterable[Any]) -> None:
        for value in values:
            self._bl_log.setdefault(value, True)

    def clear(self) -> None:
        """Remove all elements."""
        self.difference_update(list(self))

    def intersection_update(self, *others: Any) -> None:
        """Keep what is in all of the others, too."""
        kept = set(self).intersection(*others)
        self.difference_update([value for value in set(self) if value not in kept])

    def symmetric_difference_update(self, other: Any, /) -> None:
        """Keep what is in one of the two alone."""
        for value in set(other):
            if set.__contains__(self, value):
                self.discard(value)
            else:
                self.add(value)

    def __iand__(self, other: Any) -> Any:  # type: ignore[misc]
        if not isinstance(other, set | frozenset):
            return NotImplemented
        self.intersection_update(other)
        return self

    def __ixor__(self, other: Any) -> Any:  # type: ignore[misc]
        if not isinstance(other, set | frozenset):
            return NotImplemented
        self.symmetric_difference_update(other)
        return self

    def __init__(self, values: Any = (), /) -> None:
        kept = list(values)
        self.clear()
        self.update(kept)


class ReadLastingSet(LastingSet):
    """Nothing changed in this epoch; reading counts."""

    __slots__ = ()

    def _bl_begin(self) -> None:
        self._bl_log = {}
        self.__class__ = LoggedReadLastingSet  # type: ignore[assignment]


class LoggedReadLastingSet(LoggedLastingSet):
    """The log holds elements; reading counts."""

    __slots__ = ()


def _reading_elements(cls: Any) -> None:
    def __contains__(self: Any, value: Any, /) -> bool:  # noqa: N807
        there = set.__contains__(self, value)
        if there and CODE.runs:
            self._bl_renew((value,))
        return there

    def __iter__(self: Any) -> Any:  # noqa: N807
        if CODE.runs and len(self):
            self._bl_renew(set.copy(self))
        return set.__iter__(self)

    cls.__contains__, cls.__iter__ = __contains__, __iter__


for _cls in (ReadLastingSet, LoggedReadLastingSet):
    _reading_elements(_cls)
LastingSet._bl_clean = LoggedLastingSet._bl_clean = LastingSet
ReadLastingSet._bl_clean = LoggedReadLastingSet._bl_clean = ReadLastingSet
named(TrackedSet, LastingSet, LoggedLastingSet, ReadLastingSet, LoggedReadLastingSet)


def _sets(node: SetNode, reads: bool) -> Adopt:
    cls: Any = ReadLastingSet if reads else LastingSet

    def adopt(value: Any, journal: Journal, owner: Tracked | None, key: Any) -> Any:
        if not isinstance(value, set):
            raise mismatch(node, value)
        self = set.__new__(cls)
        self._bl_attach(journal, owner, key)
        set.update(self, value)
        return self

    return adopt
