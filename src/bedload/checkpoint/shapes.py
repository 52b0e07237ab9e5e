"""What a declared type is made of, written down for readers that do not have the operator's code.

An Arrow type does not tell a Decimal from a str, a set from a list, or an int from an int that may be None, nor does it
know what a new field of a dataclass starts with. A :class:`Shape` does. It is in the checkpoint beside the Arrow type,
and :mod:`bedload.checkpoint.evolution` decides by it what a changed operator can take over.

Invariants: a shape is plain data and needs no class of the user's; two variables of one shape have one Arrow type.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import msgspec
import pyarrow as pa

from bedload.core.errors import CheckpointDamaged, StateTypeError
from bedload.state import StateSpec
from bedload.state.arrays import ArrayNode
from bedload.state.arrow import arrow_type, encoder
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
    field_renamed_from,
)


class ShapeKind(enum.StrEnum):
    """What a node is: a scalar by the name of its class, or what it is made of. The values are in checkpoints."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STR = "str"
    BYTES = "bytes"
    DATE = "date"
    DATETIME = "datetime"
    TIMEDELTA = "timedelta"
    DECIMAL = "Decimal"
    OPTIONAL = "optional"
    TUPLE = "tuple"
    REPEATED = "tuple..."
    """A tuple of any number of items of one type."""
    LIST = "list"
    SET = "set"
    DEQUE = "deque"
    FREE_DEQUE = "free deque"
    """One that carries its own maxlen."""
    DICT = "dict"
    COUNTER = "Counter"
    DATACLASS = "dataclass"
    ARRAY = "array"
    OPAQUE = "opaque"
    """What only a codec can read."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of a declared type."""

    kind: ShapeKind
    items: tuple[Shape, ...] = ()
    """What it holds; of a dict the keys and the values."""
    fields: tuple[FieldShape, ...] = ()
    """Of a dataclass."""
    maxlen: int | None = None
    name: str = ""
    """Of the dataclass, the dtype of an array, or the annotation of an opaque value."""
    codec: str = ""
    dims: tuple[int, ...] = ()
    """The shape of an array."""

    def __str__(self) -> str:
        inside = ", ".join(map(str, self.items))
        match self.kind:
            case ShapeKind.OPTIONAL:
                return f"{inside} | None"
            case ShapeKind.REPEATED:
                return f"tuple[{inside}, ...]"
            case ShapeKind.TUPLE:
                return f"tuple[{inside or '()'}]"
            case ShapeKind.FREE_DEQUE:
                return f"deque[{inside}]"
            case ShapeKind.DATACLASS:
                return self.name
            case ShapeKind.ARRAY:
                return f"{self.name}[{', '.join(map(str, self.dims))}]"
            case ShapeKind.OPAQUE:
                return f"{self.name} by {self.codec}"
        return f"{self.kind}[{inside}]" if self.items else str(self.kind)


class FieldShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One field of a dataclass."""

    name: str
    shape: Shape
    default: bytes | None = None
    """As :func:`pack_value` gives it; None if it has none."""
    renamed_from: str | None = None


def shape_of(node: TypeNode) -> Shape:
    """The shape of a declared type."""
    match node:
        case ScalarNode(py):
            return Shape(kind=ShapeKind(py.__name__))
        case OptionalNode(item):
            return Shape(kind=ShapeKind.OPTIONAL, items=(shape_of(item),))
        case TupleNode(items, names=names) if names:
            fields = tuple(map(_named, names, items))
            return Shape(kind=ShapeKind.DATACLASS, name="struct", fields=fields)
        case TupleNode(items, repeated=repeated):
            return Shape(kind=ShapeKind.REPEATED if repeated else ShapeKind.TUPLE, items=tuple(map(shape_of, items)))
        case HeapNode(item):
            return Shape(kind=ShapeKind.LIST, items=(shape_of(item),))  # what its maxlen drops, only its order knows
        case ListNode(item, maxlen):
            return Shape(kind=ShapeKind.LIST, items=(shape_of(item),), maxlen=maxlen)
        case DequeNode(item, maxlen, declared=True):
            return Shape(kind=ShapeKind.DEQUE, items=(shape_of(item),), maxlen=maxlen)
        case DequeNode(item):
            return Shape(kind=ShapeKind.FREE_DEQUE, items=(shape_of(item),))
        case SetNode(item):
            return Shape(kind=ShapeKind.SET, items=(shape_of(item),))
        case MapNode(key, value):
            return Shape(kind=ShapeKind.DICT, items=(shape_of(key), shape_of(value)))
        case CounterNode(key):
            return Shape(kind=ShapeKind.COUNTER, items=(shape_of(key),))
        case StructNode():
            declared = {field.name: field for field in dataclasses.fields(node.cls)}
            fields = tuple(_field(declared[name], of) for name, of in node.fields)
            return Shape(kind=ShapeKind.DATACLASS, name=str(node), fields=fields)
        case ArrayNode(dims, dtype):
            return Shape(kind=ShapeKind.ARRAY, name=dtype, dims=dims)
        case OpaqueNode():
            return Shape(kind=ShapeKind.OPAQUE, name=str(node), codec=node.codec)
        case TimersNode():
            of = {"at": ShapeKind.INT, "name": ShapeKind.STR, "clock": ShapeKind.STR}
            fields = tuple(FieldShape(name=name, shape=Shape(kind=kind)) for name, kind in of.items())
            return Shape(kind=ShapeKind.REPEATED, items=(Shape(kind=ShapeKind.DATACLASS, name="Timer", fields=fields),))
    raise AssertionError(node)


def _named(name: str, node: TypeNode) -> FieldShape:
    """A named item of a tuple: where it is new, it is None if it can be."""
    default = pack_value(None, arrow_type(node)) if isinstance(node, OptionalNode) else None
    return FieldShape(name=name, shape=shape_of(node), default=default)


def _field(declared: dataclasses.Field[Any], node: TypeNode) -> FieldShape:
    return FieldShape(
        name=declared.name,
        shape=shape_of(node),
        default=_field_default(declared, node),
        renamed_from=field_renamed_from(declared),
    )


def _field_default(declared: dataclasses.Field[Any], node: TypeNode) -> bytes | None:
    """What a field starts with; none if it does not say so, or says something that the field cannot hold."""
    try:
        if declared.default is not dataclasses.MISSING:
            return pack_value(encoder(node)(declared.default), arrow_type(node))
        if declared.default_factory is not dataclasses.MISSING:
            return pack_value(encoder(node)(declared.default_factory()), arrow_type(node))
    except (StateTypeError, pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
    return None


def default_of(spec: StateSpec) -> bytes:
    """What a state variable of a new key is, as :func:`pack_value` gives it."""
    return pack_value(encoder(spec.type)(spec.fresh_default()), arrow_type(spec.type))


def pack_value(encoded: Any, kind: pa.DataType) -> bytes:
    """One encoded value as an Arrow IPC stream of one column and one row."""
    column = pa.array([encoded], kind)
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([column], names=["value"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack_value(data: bytes, kind: pa.DataType) -> pa.Array:
    """The column of one row that :func:`pack_value` packed."""
    try:
        with pa.ipc.open_stream(data) as reader:
            (batch,) = list(reader)
        column = batch.column(0)
    except (pa.ArrowException, OSError, ValueError) as bad:
        raise CheckpointDamaged(f"a default in an operator's schema cannot be read: {bad}") from bad
    if len(column) != 1 or column.type != kind:
        raise CheckpointDamaged(f"a default in an operator's schema is {len(column)} {column.type}, and not one {kind}")
    return column
