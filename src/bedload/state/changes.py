"""What one epoch changed in a container, in plain values: for the incremental backup.

Invariants: applying the changes of an epoch to a copy of the value committed before it gives the
value that it committed, the order of a dict included. Changes hold no tracked object.

A value that is not one of the classes here stands for itself: the whole new value. So a variable's
changes are either a patch or a replacement.

Why entries are told apart by identity: it is the cheapest test, and the only one that never says
"unchanged" of a value that prints, rounds or encodes differently (``0.0 == -0.0``). An equal entry that
was written again is backed up again, which does no harm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

from bedload.state.journal import MISSING


class Changes:
    """A patch, as opposed to a whole new value.

    Nobody changes one, but the classes are not frozen: that would make making one several times as slow.
    """

    __slots__ = ()


@dataclasses.dataclass(slots=True)
class MapChanges(Changes):
    """Of a dict or Counter: first remove, then put, in this order.

    A key that was deleted and put again is in both, because it moved to the end.
    """

    removed: tuple[Any, ...]
    put: dict[Any, Any]


@dataclasses.dataclass(slots=True)
class SetChanges(Changes):
    """Of a set."""

    added: frozenset[Any]
    removed: frozenset[Any]


@dataclasses.dataclass(slots=True)
class SequenceChanges(Changes):
    """Of a list or deque: ``head + old[start:start + kept] + tail``, with ``items`` of the kept replaced."""

    start: int
    kept: int
    head: tuple[Any, ...]
    tail: tuple[Any, ...]
    items: dict[int, Any]


@dataclasses.dataclass(slots=True)
class StructChanges(Changes):
    """Of a dataclass: the changed fields."""

    fields: dict[str, Any]


def as_is(value: Any) -> Any:
    """The plain form of a value that cannot change in place."""
    return value


def never(_value: Any) -> bool:
    """Whether a value that cannot change in place did."""
    return False


def same(old: Sequence[Any], new: Sequence[Any], differs: Callable[[Any], bool]) -> bool:
    """Whether two sequences of children are the same objects, and none of them changed.

    Not by equality: a child in ``old`` is live, and may have become equal to what replaced it.
    """
    return len(old) == len(new) and all(a is b and not differs(b) for a, b in zip(old, new, strict=True))


def diff_map(
    old: dict[Any, Any],
    new: dict[Any, Any],
    plain: Callable[[Any], Any] = as_is,
    dirty: Callable[[Any], bool] = never,
) -> MapChanges:
    """The changes between two dicts.

    Keys that stayed come first and in their old order; the first key that is new or out of order
    starts what was put at the end, and everything after it was, too.
    """
    if len(new) >= len(old) and all(map(is_, old, new)):
        # By far the most common: every key is where it was, and new ones are behind them.
        get = old.get
        if dirty is never:
            return MapChanges((), {key: value for key, value in new.items() if value is not get(key, MISSING)})
        return MapChanges(
            (), {key: plain(value) for key, value in new.items() if value is not get(key, MISSING) or dirty(value)}
        )
    removed = [key for key in old if key not in new]
    put: dict[Any, Any] = {}
    order = iter(old)
    stayed = True
    for key, value in new.items():
        if stayed and key in old:
            stayed = any(before is key or before == key for before in order)
        else:
            stayed = False
        if not stayed:
            if key in old:
                removed.append(key)
            put[key] = plain(value)
        elif value is not old[key] or dirty(value):
            put[key] = plain(value)
    return MapChanges(tuple(removed), put)


def diff_sequence(
    old: Sequence[Any],
    new: Sequence[Any],
    plain: Callable[[Any], Any] = as_is,
    dirty: Callable[[Any], bool] = never,
) -> SequenceChanges | None:
    """The changes between two short sequences, or None if writing the new one whole is no more."""
    start = 0
    if old and new and old[0] is not new[0]:
        # A sequence of bounded length drops at the front what it gains at the end.
        first, places = id(new[0]), list(map(id, old))
        start = places.index(first) if first in places else 0
    kept = min(len(old) - start, len(new))
    stays = old[start:] if start else old
    # Counted first: of a sequence that was replaced nothing else is needed, and of one that only grew there are none.
    changed = kept - sum(map(is_, stays, new)) if dirty is never else kept
    if dirty is never and 2 * changed > kept:
        return None
    pairs = enumerate(zip(stays, new, strict=False)) if changed else ()
    items = {i: plain(b) for i, (a, b) in pairs if a is not b or dirty(b)}
    if 2 * len(items) > kept or kept == 0:
        return None
    return SequenceChanges(start, kept, (), tuple(map(plain, new[kept:])), items)


def changed_at(current: Iterable[Any], dirty: Callable[[Any], bool]) -> list[int]:
    """The positions of the children that changed."""
    return [i for i, value in enumerate(current) if dirty(value)]
