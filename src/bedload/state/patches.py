"""What an epoch changed in a container, as plain data that outlives the operator's code.

A patch is a list. Its values are *encoded*, as :func:`bedload.state.arrow.encoder` gives them, so that no class of the
user's is needed to apply it::

    ["map", removed keys, [[key, value], ...]]                 dict, Counter: first remove, then put, in order
    ["set", added, removed]                                    set
    ["seq", start, kept, head, tail, [[index, value], ...]]    list, deque: head + old[start:start + kept] + tail,
                                                               with entries of the kept part replaced
    ["struct", {field: value}, [deleted fields]]               dataclass

The patches of a key are packed together, by variable, as MessagePack. None in place of a patch says that the whole new
value is in the variable's column. MessagePack has no dates, so these are extension types, little-endian and signed:
1 is a date (days since 1970, 32 bits), 2 a datetime without a zone (microseconds since 1970, 64 bits), 3 a timedelta
(microseconds, 64 bits).

Invariants: applying the patch of an epoch to the encoded value from before gives the encoded value from after it, the
order of a map included; what is packed fits the variable's Arrow column.

Why not every container has patches (:func:`has_patches`): ``Decimal("1.0")`` and ``Decimal("1.00")`` are one key of a
dict, but two strings once they are encoded, and the dict goes on with the one that came first. Maps and sets of such
keys are written whole.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

import msgspec

from bedload.core.errors import StateTypeError
from bedload.state.arrow import encode_all
from bedload.state.changes import MapChanges, SequenceChanges, StructChanges, as_is
from bedload.state.journal import MISSING
from bedload.state.tuples import INT64_MAX, field_names
from bedload.state.types import (
    CounterNode,
    DequeNode,
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

Patch: TypeAlias = list[Any]
Convert: TypeAlias = Callable[[Any], Any]

_INT = ScalarNode(int)
_DATE, _DATETIME, _TIMEDELTA = 1, 2, 3
_DAY_ONE = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_LARGE = re.compile(rb"\xcf[\x80-\xff]")
"""How MessagePack writes a number from 2**63 on; other bytes may look the same."""


# --- which types ---


@cache
def is_exact(node: TypeNode) -> bool:
    """Whether values of a type that are equal are encoded alike."""
    match node:
        case ScalarNode(py):
            # 0.0 == -0.0, Decimal("1.0") == Decimal("1.00"), and one instant has many zones.
            return py not in (float, Decimal, dt.datetime)
        case OptionalNode(item) | ListNode(item) | SetNode(item) | DequeNode(item):
            return is_exact(item)
        case TupleNode(items):
            return all(map(is_exact, items))
        case MapNode(key, value):
            return is_exact(key) and is_exact(value)
        case CounterNode(key):
            return is_exact(key)
        case TimersNode():
            return True
    return False  # a dataclass says itself what is equal, and what a codec wrote may hold anything


@cache
def is_small(node: TypeNode) -> bool:
    """Whether values of a type have a small size that does not grow: to write one again costs next to nothing."""
    match node:
        case ScalarNode(py):
            return py not in (str, bytes, Decimal)
        case OptionalNode(item):
            return is_small(item)
        case TupleNode(items, repeated=False):
            return all(map(is_small, items))
        case StructNode(fields=fields):
            return not node.mutable and all(is_small(field) for _, field in fields)
        case TimersNode():
            return True  # most keys have one or none
    return False


@cache
def has_patches(node: TypeNode) -> bool:
    """Whether changes in place of a value of this type are written as patches."""
    match node:
        case OptionalNode(item):
            return has_patches(item)
        case MapNode(key=key) | CounterNode(key=key) | SetNode(item=key):
            return is_exact(key)
    return isinstance(node, ListNode | DequeNode | StructNode)


# --- patches ---


@cache
def patch_encoder(node: TypeNode) -> Callable[[Any], Patch]:
    """Makes patches of the changes of containers of this type. Ask for it once, not per key."""
    match node:
        case OptionalNode(item):
            return patch_encoder(item)
        case MapNode(key, value):
            return _map_encoder(key, value)
        case CounterNode(key):
            return _map_encoder(key, _INT)
        case SetNode(item):
            each = _many(item)
            return lambda changes: ["set", each(changes.added), each(changes.removed)]
        case ListNode(item) | DequeNode(item):
            return _sequence_encoder(_many(item))
        case StructNode():
            return _struct_encoder(node)
    raise AssertionError(node)


def pack_patches(patches: Mapping[str, Patch | None]) -> bytes:
    """The patches of a key as bytes; None for a variable whose whole value is in its column."""
    try:
        packed = _encoder.encode(patches)
    except (OverflowError, UnicodeEncodeError) as bad:
        raise StateTypeError(f"it holds what cannot be stored ({bad}); keep large numbers as Decimal or str") from bad
    if _LARGE.search(packed):
        _check_numbers(patches)
    return packed


def unpack_patches(data: bytes) -> dict[str, Patch | None]:
    """The patches of a key from their bytes; values are what Arrow's ``to_pylist`` would give."""
    found: dict[str, Patch | None] = _decoder.decode(data)
    return found


Many: TypeAlias = Callable[[Collection[Any]], list[Any]]
"""Encodes many values of a type."""


@cache
def _many(node: TypeNode) -> Many:
    exact = _as_it_is(node)
    ready = _ready(node)

    def encode(values: Collection[Any]) -> list[Any]:
        if exact.issuperset(map(type, values)):
            return list(values)
        encoded = encode_all(node, values)
        return encoded if ready is None else [ready(value) for value in encoded]

    return encode


def _as_it_is(node: TypeNode) -> set[type]:
    """Classes whose values MessagePack gets as they are."""
    scalar = node.item if isinstance(node, OptionalNode) else node
    if not isinstance(scalar, ScalarNode) or _ready(node) is not None or scalar.py is Decimal:
        return set()
    return {scalar.py} if scalar is node else {scalar.py, type(None)}


def _map_encoder(key: TypeNode, value: TypeNode) -> Callable[[MapChanges], Patch]:
    keys, values = _many(key), _many(value)
    exact_key, exact_value = _as_it_is(key), _as_it_is(value)

    def encode(changes: MapChanges) -> Patch:
        removed, put = changes.removed, changes.put
        pairs: list[Any]
        if exact_key.issuperset(map(type, put)) and exact_value.issuperset(map(type, put.values())):
            pairs = list(put.items())
        else:
            pairs = list(zip(keys(put.keys()), values(put.values()), strict=True))
        return ["map", keys(removed) if removed else [], pairs]

    return encode


def _sequence_encoder(many: Many) -> Callable[[SequenceChanges], Patch]:
    def encode(changes: SequenceChanges) -> Patch:
        head, tail, items = changes.head, changes.tail, changes.items
        replaced = list(zip(items, many(items.values()), strict=True)) if items else []
        return ["seq", changes.start, changes.kept, many(head) if head else [], many(tail) if tail else [], replaced]

    return encode


def _struct_encoder(node: StructNode) -> Callable[[StructChanges], Patch]:
    encoders = {name: _many(field) for name, field in node.fields}

    def encode(changes: StructChanges) -> Patch:
        encoded = {}
        for name, value in changes.fields.items():
            if value is MISSING:
                raise StateTypeError(f"field {name!r} of {node} was deleted; set it to a value")
            try:
                (encoded[name],) = encoders[name]((value,))
            except StateTypeError as bad:
                raise StateTypeError(f"field {name!r} of {node}: {bad.message}") from None
        return ["struct", encoded, []]

    return encode


def _check_numbers(patches: Mapping[str, Any]) -> None:
    """Refuse numbers that MessagePack takes, but Arrow's 64 bits do not."""
    parts: list[Any] = [patches.values()]
    for part in parts:  # it grows on the way
        for value in part:
            kind = type(value)
            if kind is list or kind is tuple:
                parts.append(value)
            elif kind is dict:
                parts.append(value.values())
            elif isinstance(value, int) and value > INT64_MAX:
                raise StateTypeError(
                    f"the int {value} does not fit 64 bits; keep it as Decimal or str, or ask for "
                    'bl.value(..., codec="pickle")'
                )


# --- what MessagePack does not know ---


@cache
def _ready(node: TypeNode) -> Convert | None:
    """Makes encoded values of a type ready for MessagePack; None if they are."""
    match node:
        case ScalarNode(py):
            return _READY.get(py)
        case OptionalNode(item):
            some = _ready(item)
            return None if some is None else lambda value: None if value is None else some(value)
        case TupleNode(items, repeated=False):
            return _ready_fields(dict(zip(field_names(node), items, strict=True)))
        case StructNode(fields=fields):
            return _ready_fields(dict(fields))
        case DequeNode(item, declared=False):
            return _ready_fields({"items": ListNode(item)})
        case ListNode(item) | SetNode(item) | DequeNode(item) | TupleNode((item,)):
            each = _ready(item)
            return None if each is None else lambda values: [each(value) for value in values]
        case MapNode(key, value):
            return _ready_map(key, value)
        case CounterNode(key):
            return _ready_map(key, _INT)
    return None


def _ready_fields(nodes: Mapping[str, TypeNode]) -> Convert | None:
    known = {name: each for name, node in nodes.items() if (each := _ready(node)) is not None}
    return None if not known else lambda value: {n: known[n](v) if n in known else v for n, v in value.items()}


def _ready_map(key_node: TypeNode, value_node: TypeNode) -> Convert | None:
    key, value = _ready(key_node) or as_is, _ready(value_node) or as_is
    if key is as_is and value is as_is:
        return None
    if isinstance(key_node, OptionalNode):
        return lambda entries: [{"key": key(entry["key"]), "value": value(entry["value"])} for entry in entries]
    return lambda entries: [(key(k), value(v)) for k, v in entries]


def _extension(code: int, number: int, size: int) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, number.to_bytes(size, "little", signed=True))


_READY: dict[type, Convert] = {
    dt.date: lambda value: _extension(_DATE, value.toordinal() - _DAY_ONE, 4),
    dt.datetime: lambda value: {**value, "wall": _extension(_DATETIME, (value["wall"] - _EPOCH) // _MICROSECOND, 8)},
    dt.timedelta: lambda value: _extension(_TIMEDELTA, value // _MICROSECOND, 8),
}


def _from_extension(code: int, data: memoryview) -> Any:
    number = int.from_bytes(data, "little", signed=True)
    if code == _DATE:
        return dt.date.fromordinal(number + _DAY_ONE)
    if code == _DATETIME:
        return _EPOCH + dt.timedelta(microseconds=number)
    if code == _TIMEDELTA:
        return dt.timedelta(microseconds=number)
    raise StateTypeError(f"a patch holds a value of the unknown kind {code}: a newer version of Bedload wrote it")


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Any, ext_hook=_from_extension)
