"""About how many bytes values take when they are encoded, found out without encoding them.

What is sent at a time has to be bounded before it is made. So this looks at lengths alone: those of strings, and how
many items containers have. It is exact within a small factor: a string counts by its characters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from itertools import chain
from operator import itemgetter, methodcaller
from typing import Any

import pyarrow as pa

from bedload.state.arrays import ArrayNode
from bedload.state.opaque import encode_opaque
from bedload.state.patches import is_small
from bedload.state.types import (
    CounterNode,
    DequeNode,
    ListNode,
    MapNode,
    OpaqueNode,
    OptionalNode,
    SetNode,
    StructNode,
    TimersNode,
    TupleNode,
    TypeNode,
)

Weigh = Callable[[Collection[Any]], int]

_SMALL = 16
_TIMER = 40


@cache
def weigher(node: TypeNode) -> Weigh:
    """From plain or live values of a type to their bytes."""
    match node:
        case OptionalNode(item):
            inner = weigher(item)
            return lambda values: len(values) + inner([value for value in values if value is not None])
        case TimersNode():
            return lambda values: _TIMER * sum(1 if type(value) is int else len(value) for value in values)
        case ArrayNode():
            return lambda values: node.nbytes * len(values)
        case _ if is_small(node):
            return lambda values: _SMALL * len(values)
        case TupleNode(items, repeated=False):
            return partial(_of_parts, [(itemgetter(i), weigher(item)) for i, item in enumerate(items)])
        case StructNode(fields=fields):
            return partial(_of_parts, [(partial(_field, name), weigher(item)) for name, item in fields])
        case TupleNode((item, *_)) | ListNode(item) | SetNode(item) | DequeNode(item):
            return _of_items(item)
        case MapNode(key, value):
            return partial(
                _of_parts, [(methodcaller("keys"), _of_items(key)), (methodcaller("values"), _of_items(value))]
            )
        case CounterNode(key):
            inner = _of_items(key)
            return lambda values: inner(values) + _SMALL * sum(map(len, values))
        case OpaqueNode():
            return lambda values: sum(len(encode_opaque(node, value)) for value in values)
    return lambda values: sum(map(_length, values))


def has_width(kind: pa.DataType) -> bool:
    """Whether all values of an Arrow type have the same number of bytes."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind))


def weight_of(values: Iterable[Any]) -> int:
    """Bytes of immutable values of whatever type."""
    total = 0
    for value in values:
        if isinstance(value, str | bytes):
            total += len(value)
        elif isinstance(value, dict):
            total += weight_of(value.keys()) + weight_of(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            total += weight_of(value)
        total += _SMALL
    return total


def _of_items(item: TypeNode) -> Weigh:
    inner = weigher(item)
    if is_small(item):
        return lambda values: _SMALL * (len(values) + sum(map(len, values)))
    return lambda values: _SMALL * len(values) + inner(list(chain.from_iterable(values)))


def _of_parts(parts: list[tuple[Callable[[Any], Any], Weigh]], values: Collection[Any]) -> int:
    return sum(weigh(list(map(part, values))) for part, weigh in parts)


def _field(name: str, value: Any) -> Any:
    return getattr(value, name, "")  # without it the value cannot be encoded, which says so


def _length(value: Any) -> int:
    return _SMALL + (len(value) if isinstance(value, str | bytes) else len(str(value)))
