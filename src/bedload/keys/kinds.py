"""Which Arrow types a key column may have, and how each of them is hashed.

Invariant: a type has a :class:`KeyKind` if, and only if, Spark hands it to Python for a type that it
can group by, and the hash of its values is proven equal to Spark's.

Why a closed list: a key of a type that is hashed differently on the two sides would be routed to one
worker and looked up on another. So what is not known to agree is refused when the query is defined.
"""

from __future__ import annotations

from enum import Enum, auto

import pyarrow as pa

from bedload.core.errors import KeyTypeError

MAX_LONG_DIGITS = 18
"""The most decimal digits that always fit a 64-bit integer; Spark hashes wider decimals as bytes."""


class KeyKind(Enum):
    """What the values of a key column are, to the hash and to Python."""

    BOOL = auto()
    INT = auto()
    LONG = auto()
    FLOAT = auto()
    DOUBLE = auto()
    STRING = auto()
    BINARY = auto()
    FIXED_BINARY = auto()
    DATE = auto()
    TIMESTAMP = auto()
    TIMESTAMP_NTZ = auto()
    SMALL_DECIMAL = auto()
    LARGE_DECIMAL = auto()


_PLAIN: dict[pa.DataType, KeyKind] = {
    pa.bool_(): KeyKind.BOOL,
    pa.int8(): KeyKind.INT,
    pa.int16(): KeyKind.INT,
    pa.int32(): KeyKind.INT,
    pa.int64(): KeyKind.LONG,
    pa.float32(): KeyKind.FLOAT,
    pa.float64(): KeyKind.DOUBLE,
    pa.string(): KeyKind.STRING,
    pa.large_string(): KeyKind.STRING,
    pa.binary(): KeyKind.BINARY,
    pa.large_binary(): KeyKind.BINARY,
    pa.date32(): KeyKind.DATE,
    pa.timestamp("us"): KeyKind.TIMESTAMP_NTZ,
}


def kind_of(data_type: pa.DataType, column: str = "key") -> KeyKind:
    """The kind of a key column. Raises :class:`KeyTypeError` for a type that cannot be a key."""
    data_type = value_type(data_type)
    kind = _PLAIN.get(data_type)
    if kind is not None:
        return kind
    if pa.types.is_decimal128(data_type) and data_type.scale >= 0:
        return KeyKind.SMALL_DECIMAL if data_type.precision <= MAX_LONG_DIGITS else KeyKind.LARGE_DECIMAL
    if pa.types.is_timestamp(data_type) and data_type.unit == "us":
        return KeyKind.TIMESTAMP
    if pa.types.is_fixed_size_binary(data_type):
        return KeyKind.FIXED_BINARY
    raise KeyTypeError(
        f"key column {column!r} has type {data_type}, which cannot be a key: {_advice(data_type)}",
        column=column,
        type=str(data_type),
    )


def check_key_type(data_type: pa.DataType, column: str = "key") -> None:
    """Raise :class:`KeyTypeError`, naming the column and its type, unless the type can be a key."""
    kind_of(data_type, column)


def value_type(data_type: pa.DataType) -> pa.DataType:
    """The type of the values: dictionary encoding is a layout, not another type of key."""
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def kept_type(data_type: pa.DataType) -> pa.DataType:
    """The type that keys of this one are kept under: an instant is the same whatever zone it is shown in."""
    data_type = value_type(data_type)
    return pa.timestamp("us", "UTC") if kind_of(data_type) is KeyKind.TIMESTAMP else data_type


def _advice(data_type: pa.DataType) -> str:
    if pa.types.is_timestamp(data_type):
        return "Spark's timestamps count microseconds; cast it to timestamp[us]"
    if pa.types.is_date(data_type):
        return "Spark's dates count days; cast it to date32"
    if pa.types.is_map(data_type):
        return "Spark does not group by maps; make its entries columns, or encode it as a string"
    if pa.types.is_struct(data_type):
        return "use the fields of the struct as key columns"
    if pa.types.is_nested(data_type):
        return "use its elements as key columns, or encode it as a string"
    if pa.types.is_unsigned_integer(data_type):
        return "Spark has no unsigned integers; cast it to a signed type"
    return "cast it to a boolean, a number, a string, binary, a date, a timestamp or a decimal"
