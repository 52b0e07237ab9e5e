"""Whether values are of their declared types, many at a time: what the seal of every epoch asks.

A check takes all values of a variable at once and goes through them by columns, as Arrow does: what is in the lists of
all keys is one column, and one pass in C looks at it. It refuses by raising anything, and may refuse a value that fits:
then :func:`bedload.state.codec.encode`, which is exact, decides. It never accepts a value that cannot be encoded.

Why not encode them: where nothing is written to a checkpoint, that would cost several times as much, for nothing.
"""

from __future__ import annotations

import datetime as dt
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias

from bedload.state.arrays import ArrayNode, fitted
from bedload.state.arrow import encoder
from bedload.state.heap import Heap
from bedload.state.timers import Timer
from bedload.state.types import (
    CounterNode,
    DequeNode,
    HeapNode,
    ListNode,
    MapNode,
    OptionalNode,
    ScalarNode,
    SetNode,
    StructNode,
    TimersNode,
    TupleNode,
    TypeNode,
)

Check: TypeAlias = Callable[[list[Any]], None]

_INT = ScalarNode(int)
_BOUNDED = (dt.datetime, dt.timedelta)
"""Types with values that cannot be stored."""

_flat: Callable[[Iterable[Any]], list[Any]] = lambda parts: list(chain.from_iterable(parts))  # noqa: E731


@cache
def check_whole(node: TypeNode) -> Check:
    """A check of values of this type, plain or tracked."""
    match node:
        case ScalarNode(py):
            return _check_scalar(node, py)
        case OptionalNode(item):
            inner = check_whole(item)
            return lambda values: inner([value for value in values if value is not None])
        case TupleNode(items, repeated=True):
            return _check_items((tuple,), check_whole(items[0]))
        case TupleNode(items):
            return _check_tuple([check_whole(item) for item in items])
        case SetNode(item):
            return _check_items((set,), check_whole(item))
        case DequeNode(item):
            return _check_items((deque,), check_whole(item))
        case ListNode(item):
            return _check_items((list, Heap) if isinstance(node, HeapNode) else (list,), check_whole(item))
        case MapNode(key, value):
            return _check_map(dict, check_whole(key), check_whole(value))
        case CounterNode(key):
            return _check_map(Counter, check_whole(key), check_whole(_INT))
        case StructNode(cls=cls):
            return _check_struct(cls, {name: check_whole(field) for name, field in node.fields})
        case ArrayNode():
            return _each(partial(fitted, node))
        case TimersNode():
            return _check_timers
    return _each(encoder(node))


@cache
def check_news(node: TypeNode) -> Check:
    """A check of what is new in tracked containers of this type, each of which has a log."""
    match node:
        case OptionalNode(item):
            return check_news(item)
        case ListNode(item) | SetNode(item) | DequeNode(item):
            return _check_new_items(check_whole(item), backwards=isinstance(node, ListNode))
        case MapNode() | CounterNode():
            return _check_new_entries(check_whole(node.key), check_whole(getattr(node, "value", _INT)))
        case StructNode():
            fields = {name: check_whole(field) for name, field in node.fields}
            return lambda found: _check_fields(fields, [container._bl_news() for container in found])
    return check_whole(node)  # a tuple does not say which of its containers changed


def _check_scalar(node: ScalarNode, py: type) -> Check:
    encode = encoder(node)
    if py is int:

        def whole_numbers(values: list[Any]) -> None:
            array("q", values)  # takes what has __index__, and refuses what has more than 64 bits

        return whole_numbers
    if py is str:

        def texts(values: list[Any]) -> None:
            if not all(map(str.isascii, values)):
                for value in values:
                    value.encode()  # half of a surrogate pair has no encoding

        return texts

    def exact(values: list[Any]) -> None:
        if py in _BOUNDED or not set(map(type, values)) <= {py}:
            for value in values:
                encode(value)

    return exact


def _check_timers(values: list[Any]) -> None:
    """They were checked when they were set; operator code may have assigned something else, if it tried."""
    others = [value for value in values if type(value) is not int]  # those in short form
    if not (set(map(type, others)) <= {tuple} and set(map(type, chain.from_iterable(others))) <= {Timer}):
        raise TypeError("something else than timers was assigned")


def _each(encode: Callable[[Any], Any]) -> Check:
    def check(values: list[Any]) -> None:
        for value in values:
            encode(value)

    return check


def _kinds(py: type | tuple[type, ...], values: list[Any]) -> None:
    for kind in set(map(type, values)):
        if not issubclass(kind, py):
            raise TypeError(kind)


def _check_items(py: tuple[type, ...], item: Check) -> Check:
    backwards = list in py

    def check(values: list[Any]) -> None:
        _kinds(py, values)
        item(_flat(map(reversed, values) if backwards else values))

    return check


def _check_new_items(item: Check, *, backwards: bool) -> Check:
    def check(found: list[Any]) -> None:
        news = [c if c._bl_flat else c._bl_news() for c in found]
        # SUBTLE: of tracked lists, only the iterator from the end is the builtin's own. It is the fastest.
        item(_flat(map(reversed, news) if backwards else news))

    return check


def _check_new_entries(key: Check, value: Check) -> Check:
    def check(found: list[Any]) -> None:
        news = [c if c._bl_flat else c._bl_news() for c in found]
        key(_flat(news))
        value(_flat(map(dict.values, news)))

    return check


def _check_tuple(items: list[Check]) -> Check:
    def check(values: list[Any]) -> None:
        _kinds(tuple, values)
        if not set(map(len, values)) <= {len(items)}:
            raise ValueError("a tuple of another length")
        for item, column in zip(items, zip(*values, strict=True), strict=bool(values)):
            item(list(column))

    return check


def _check_map(py: type, key: Check, value: Check) -> Check:
    def check(values: list[Any]) -> None:
        _kinds(py, values)
        key(_flat(values))
        value(_flat(map(dict.values, values)))

    return check


def _check_struct(cls: type, fields: dict[str, Check]) -> Check:
    parts = [(attrgetter(name), check) for name, check in fields.items()]

    def check(values: list[Any]) -> None:
        _kinds(cls, values)
        for get, field in parts:
            field(list(map(get, values)))

    return check


def _check_fields(fields: dict[str, Check], news: list[dict[str, Any]]) -> None:
    for name, field in fields.items():
        field([changed[name] for changed in news if name in changed])
