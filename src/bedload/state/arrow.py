"""Declared types as Arrow types, and their values to and from what Arrow takes.

Invariants: every value of a declared type comes back equal and of the same builtin type; a value that is not of the
declared type is refused, not converted. Two exact conversions are allowed: to a declared int, of a bool or anything
with ``__index__``; to a declared float, of a real number that a float holds exactly.

==================  ===========================================================================
Python              Arrow
==================  ===========================================================================
int                 int64; larger ones are refused
datetime            struct of wall, zone and fold: see :mod:`bedload.state.moments`
timedelta           duration[us]; beyond 292,000 years refused
Decimal             string: a decimal128 column has one scale, and so would lose ``1.0`` against ``1.00``
tuple               struct of f0, f1, ..., or of the names of its items; ``tuple[X, ...]`` a list
set, list, Heap     list; that of a heap is in heap order
deque               list if declared by ``bl.deque``, else struct of items and maxlen
dict, Counter       map; with None allowed as a key, a list of key and value, as Arrow's keys are not null
dataclass           struct
array               fixed-size list, one within the other for more dimensions
timers              list of structs of at, name and clock
with a codec        binary
==================  ===========================================================================
"""

from __future__ import annotations

import collections
import datetime as dt
import numbers
import operator
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cache, partial
from typing import Any, TypeAlias

import pyarrow as pa

from bedload.core.errors import StateTypeError
from bedload.state.arrays import ArrayNode, array_of_lists, column_arrays, fitted, list_type
from bedload.state.changes import as_is
from bedload.state.handling import mismatch
from bedload.state.heap import Heap
from bedload.state.moments import MOMENT, decode_moment, encode_moment, refuse_nanoseconds
from bedload.state.opaque import decode_opaque, encode_opaque
from bedload.state.timers import ARROW as TIMERS
from bedload.state.timers import Timer, in_full, timers_in_column, timers_of
from bedload.state.tuples import INT64_MAX, INT64_MIN, field_names, quickly
from bedload.state.types import (
    CounterNode,
    DequeNode,
    HeapNode,
    ListNode,
    MapNode,
    OpaqueNode,
    OptionalNode,
    ScalarNode,
    SetNode,
    StructNode,
    TimersNode,
    TupleNode,
    TypeNode,
)

Convert: TypeAlias = Callable[[Any], Any]

_ARROW_SCALARS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.datetime: MOMENT,
    dt.timedelta: pa.duration("us"),
    Decimal: pa.string(),
}

_EMPTY = "_empty"
"""Parquet has no struct without fields."""


@cache
def arrow_type(node: TypeNode) -> pa.DataType:
    """The Arrow type of a declared type."""
    match node:
        case ScalarNode(py):
            return _ARROW_SCALARS[py]
        case OptionalNode(item):
            return arrow_type(item)
        case TupleNode(items, repeated=False):
            return _struct(zip(field_names(node), items, strict=True))
        case TupleNode(items):
            return pa.list_(arrow_type(items[0]))
        case DequeNode(item, declared=False):
            return pa.struct([("items", pa.list_(arrow_type(item))), ("maxlen", pa.int64())])
        case ListNode(item) | SetNode(item) | DequeNode(item):
            return pa.list_(arrow_type(item))
        case MapNode(key, value):
            return _map(key, arrow_type(value))
        case CounterNode(key):
            return _map(key, pa.int64())
        case StructNode(fields=fields):
            return _struct(fields)
        case OpaqueNode():
            return pa.binary()
        case ArrayNode():
            return list_type(node)
        case TimersNode():
            return TIMERS
    raise AssertionError(node)


def _struct(fields: Iterable[tuple[str, TypeNode]]) -> pa.DataType:
    return pa.struct([(name, arrow_type(node)) for name, node in fields] or [(_EMPTY, pa.bool_())])


def _map(key: TypeNode, value: pa.DataType) -> pa.DataType:
    if isinstance(key, OptionalNode):
        return pa.list_(pa.struct([("key", arrow_type(key)), ("value", value)]))
    return pa.map_(arrow_type(key), value)


# --- to Arrow -------------------------------------------------------------------------------------


@cache
def encoder(node: TypeNode) -> Convert:
    """Checks a plain value of the type and gives what Arrow takes for it."""
    match node:
        case ScalarNode(py):
            return _SCALAR_ENCODERS.get(py) or _exact(node, py)
        case OptionalNode(item):
            encode = encoder(item)
            return lambda value: None if value is None else encode(value)
        case TupleNode():
            return _tuple_encoder(node)
        case HeapNode(item):
            return _items(node, (list, Heap), item)
        case ListNode(item):
            return _items(node, list, item)
        case SetNode(item):
            return _items(node, set, item)
        case DequeNode(item):
            inner = _items(node, collections.deque, item)
            if node.declared:
                return inner
            return lambda value: {"items": inner(value), "maxlen": value.maxlen}
        case MapNode(key, value):
            return _map_encoder(node, dict, key, value)
        case CounterNode(key):
            return _map_encoder(node, collections.Counter, key, ScalarNode(int))
        case StructNode():
            return _struct_encoder(node)
        case OpaqueNode():
            return lambda value: _encode_checked(node, value)
        case ArrayNode():
            return lambda value: fitted(node, value).tolist()
        case TimersNode():
            return lambda value: [Timer._asdict(timer) for timer in in_full(value)]
    raise AssertionError(node)


def encode_all(node: TypeNode, values: Any) -> list[Any]:
    """Encode many values; those of the exact type go as they are, checked by one pass in C."""
    scalar = node.item if isinstance(node, OptionalNode) else node
    if isinstance(scalar, ScalarNode) and scalar.py not in (dt.datetime, Decimal):
        allowed = {scalar.py, type(None)} if scalar is not node else {scalar.py}
        if set(map(type, values)) <= allowed:
            return list(values)
    encode = encoder(node)
    return [encode(value) for value in values]


def _exact(node: ScalarNode, py: type) -> Convert:
    def encode(value: Any) -> Any:
        # A datetime is a date, but one that would lose its time.
        if not isinstance(value, py) or (py is dt.date and isinstance(value, dt.datetime)):
            raise mismatch(node, value)
        return value

    return encode


def _encode_int(value: Any) -> int:
    try:
        number = int(operator.index(value))  # int: a bool indexes as itself
    except TypeError:
        raise mismatch(ScalarNode(int), value) from None
    if not INT64_MIN <= number <= INT64_MAX:
        raise StateTypeError(
            f"the int {number} does not fit 64 bits; keep it as Decimal or str, or ask for "
            'bl.value(..., codec="pickle")'
        )
    return number


def _encode_float(value: Any) -> float:
    if isinstance(value, float):
        return float(value)
    if isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            raise mismatch(ScalarNode(float), value) from None
        if number == value or number != number:
            return number
    raise mismatch(ScalarNode(float), value)


def _encode_decimal(value: Any) -> str:
    if not isinstance(value, Decimal):
        raise mismatch(ScalarNode(Decimal), value)
    return str(value)


def _encode_timedelta(value: Any) -> dt.timedelta:
    if not isinstance(value, dt.timedelta):
        raise mismatch(ScalarNode(dt.timedelta), value)
    if not INT64_MIN <= value // dt.timedelta(microseconds=1) <= INT64_MAX:
        raise StateTypeError(f"the timedelta {value} does not fit 64 bits of microseconds; keep it as an int")
    refuse_nanoseconds(value)
    return value


_SCALAR_ENCODERS: dict[type, Convert] = {
    int: _encode_int,
    float: _encode_float,
    Decimal: _encode_decimal,
    dt.datetime: encode_moment,
    dt.timedelta: _encode_timedelta,
}


def _items(node: TypeNode, py: type | tuple[type, ...], item: TypeNode) -> Convert:
    def encode(value: Any) -> list[Any]:
        if not isinstance(value, py):
            raise mismatch(node, value)
        return encode_all(item, value)

    return encode


def _tuple_encoder(node: TupleNode) -> Convert:
    if node.repeated:
        return _items(node, tuple, node.items[0])
    encoders = [(name, encoder(item)) for name, item in zip(field_names(node), node.items, strict=True)]

    def encode(value: Any) -> dict[str, Any]:
        if not isinstance(value, tuple) or len(value) != len(encoders):
            raise mismatch(node, value)
        return {name: enc(v) for (name, enc), v in zip(encoders, value, strict=True)} or {_EMPTY: True}

    return quickly(node, encode)


def _map_encoder(node: TypeNode, py: Any, key: TypeNode, value: TypeNode) -> Convert:
    as_list = isinstance(key, OptionalNode)

    def encode(entries: Any) -> list[Any]:
        if not isinstance(entries, py):
            raise mismatch(node, entries)
        pairs = zip(encode_all(key, entries.keys()), encode_all(value, entries.values()), strict=True)
        return [{"key": k, "value": v} for k, v in pairs] if as_list else list(pairs)

    return encode


def _struct_encoder(node: StructNode) -> Convert:
    encoders = [(name, encoder(field)) for name, field in node.fields]

    def encode(value: Any) -> dict[str, Any]:
        if not isinstance(value, node.cls):
            raise mismatch(node, value)
        encoded: dict[str, Any] = {}
        for name, enc in encoders:
            try:
                encoded[name] = enc(getattr(value, name))
            except AttributeError:
                raise StateTypeError(f"field {name!r} of {node} was deleted; set it to a value") from None
            except StateTypeError as bad:
                raise StateTypeError(f"field {name!r} of {node}: {bad.message}") from None
        return encoded or {_EMPTY: True}

    return encode


def _encode_checked(node: OpaqueNode, value: Any) -> bytes:
    data = encode_opaque(node, value)
    if node.codec == "msgspec":
        decode_opaque(node, data)  # what could not be read back must not be written
    return data


# --- from Arrow -----------------------------------------------------------------------------------


@cache
def decoder(node: TypeNode) -> Convert | None:
    """Turns what Arrow gives into the plain value; None if it is that already."""
    match node:
        case ScalarNode(py):
            return _SCALAR_DECODERS.get(py)
        case OptionalNode(item):
            decode = decoder(item)
            return None if decode is None else lambda value: None if value is None else decode(value)
        case TupleNode(items, repeated=True):
            return lambda value: tuple(decode_all(items[0], value))
        case TupleNode(items):
            decoders = [(name, decoder(item) or as_is) for name, item in zip(field_names(node), items, strict=True)]
            return lambda value: tuple([decode(value[name]) for name, decode in decoders])
        case ListNode(item):
            return None if decoder(item) is None else lambda value: decode_all(item, value)
        case SetNode(item):
            return lambda value: set(decode_all(item, value))
        case DequeNode(item, maxlen, declared=True):
            return lambda value: collections.deque(decode_all(item, value), maxlen)
        case DequeNode(item):
            return lambda value: collections.deque(decode_all(item, value["items"]), value["maxlen"])
        case MapNode(key, value):
            return _map_decoder(key, value)
        case CounterNode(key):
            decode_map = _map_decoder(key, ScalarNode(int))
            return lambda value: collections.Counter(decode_map(value))
        case StructNode():
            return _struct_decoder(node)
        case OpaqueNode():
            return lambda value: decode_opaque(node, value)
        case ArrayNode():
            return partial(array_of_lists, node)
        case TimersNode():
            return timers_of
    raise AssertionError(node)


def decode_all(node: TypeNode, values: list[Any]) -> list[Any]:
    """Decode many values."""
    decode = decoder(node)
    return values if decode is None else [decode(value) for value in values]


def decoded_column(node: TypeNode, column: pa.Array) -> list[Any]:
    """The plain values of a column that has the type of the node."""
    if isinstance(node, ArrayNode) and not column.null_count:
        return list(column_arrays(node, column))
    if isinstance(node, TimersNode) and not column.null_count:
        return timers_in_column(column)
    numbers = not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    # Several times as fast as to_pylist.
    return decode_all(node, column.to_numpy().tolist() if numbers else column.to_pylist())


_SCALAR_DECODERS: dict[type, Convert] = {dt.datetime: decode_moment, Decimal: Decimal}


def _map_decoder(key: TypeNode, value: TypeNode) -> Convert:
    as_list = isinstance(key, OptionalNode)

    def decode(entries: list[Any]) -> dict[Any, Any]:
        pairs = [(entry["key"], entry["value"]) for entry in entries] if as_list else entries
        keys = decode_all(key, [k for k, _ in pairs])
        return dict(zip(keys, decode_all(value, [v for _, v in pairs]), strict=True))

    return decode


def _struct_decoder(node: StructNode) -> Convert:
    decoders = [(name, decoder(field)) for name, field in node.fields]

    def decode(value: dict[str, Any]) -> Any:
        built: Any = object.__new__(node.cls)
        for name, dec in decoders:
            object.__setattr__(built, name, value[name] if dec is None else dec(value[name]))
        return built

    return decode
