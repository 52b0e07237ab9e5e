"""Random types of Spark's, and random values of them, as a program would give them.

Only what both engines take in the same way: what does not fit a type is a matter of the cases.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from random import Random  # noqa: TID251  of a seed
from typing import Any

import numpy as np
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_TEXTS = ("", "a", "b", "é", "日本", "x" * 300, "a b", "\\", '"', "\n", "null")
_FLOATS = (0.0, 1.0, -1.5, 0.1, 1e300, -1e-300, math.inf, -math.inf, math.nan, 3.0, 2.0**53)
_ZONE = dt.timezone(dt.timedelta(hours=5, minutes=30))
_SIMPLE: tuple[DataType, ...] = (
    *(LongType(), IntegerType(), ShortType(), ByteType(), DoubleType(), FloatType(), StringType(), BooleanType()),
    *(BinaryType(), DateType(), TimestampType(), TimestampNTZType(), DecimalType(10, 2), LongType(), StringType()),
)


_KEYS: tuple[DataType, ...] = (StringType(), LongType(), DateType())
"""Of maps; in state, Spark has maps by strings only."""


def a_type(random: Random, depth: int = 2, keys: tuple[DataType, ...] = _KEYS) -> DataType:
    """A type, with others inside it now and then; ``keys``: of maps, if there may be any."""
    if depth == 0 or random.random() < 0.7:
        return random.choice(_SIMPLE)
    kind = random.randrange(3 if keys else 2)
    if kind == 0:
        return ArrayType(a_type(random, depth - 1, keys))
    if kind == 1:
        return a_struct(random, depth - 1, keys)
    return MapType(random.choice(keys), a_type(random, depth - 1, keys))


def a_struct(random: Random, depth: int = 2, keys: tuple[DataType, ...] = _KEYS[:1]) -> StructType:
    """A type of some fields."""
    return StructType([StructField(f"f{at}", a_type(random, depth, keys)) for at in range(random.randint(1, 3))])


def _number(random: Random, bits: int) -> int:
    half = 1 << (bits - 1)
    return random.choice((0, 1, -1, random.randrange(-half, half), half - 1, -half, random.randrange(100)))


def _moment(random: Random) -> dt.datetime:
    # Not in the hour that a zone has twice or not at all.
    days, rest = random.randrange(-20_000, 40_000), random.choice((0, 1, 999_999, random.randrange(10**6)))
    return dt.datetime(1970, 1, 1, 12) + dt.timedelta(days=days, microseconds=rest)


_MAKERS: dict[type[DataType], Callable[[Random], Any]] = {
    **{kind: lambda random, bits=bits: _number(random, bits) for kind, bits in _BITS.items()},  # type: ignore[misc]
    DoubleType: lambda random: random.choice((*_FLOATS, random.uniform(-1e6, 1e6))),
    FloatType: lambda random: random.choice((0.0, 0.5, 0.1, -2.25, math.nan, random.uniform(-100, 100))),
    StringType: lambda random: random.choice(_TEXTS),
    BooleanType: lambda random: random.random() < 0.5,
    BinaryType: lambda random: random.choice((b"", b"a", b"\0\xff", bytes(300))),
    DateType: lambda random: dt.date(1970, 1, 1) + dt.timedelta(days=random.randrange(-20_000, 40_000)),
    TimestampType: lambda random: _moment(random).replace(tzinfo=dt.UTC),
    TimestampNTZType: _moment,
    DecimalType: lambda random: Decimal(random.randrange(-(10**9), 10**9)).scaleb(-2),
}


def plain(random: Random, kind: DataType, nulls: float = 0.15) -> Any:
    """A value of a column: maps are lists of pairs, structs are dicts."""
    if random.random() < nulls:
        return None
    if isinstance(kind, ArrayType):
        return [plain(random, kind.elementType, nulls) for _ in range(random.randrange(4))]
    if isinstance(kind, MapType):
        keys = {repr(key): key for _ in range(random.randrange(3)) if (key := plain(random, kind.keyType, 0)) == key}
        return [(key, plain(random, kind.valueType, nulls)) for key in keys.values()]
    if isinstance(kind, StructType):
        return {field.name: plain(random, field.dataType, nulls) for field in kind.fields}
    return _MAKERS[type(kind)](random)


def given(random: Random, kind: StructType, *, key: bool = False) -> Any:
    """A value for a state variable, in one of the forms that there are; ``key``: equal keys are given alike."""
    values = [_given(random, field.dataType, top=True, key=key) for field in kind.fields]
    form = 0 if key else random.randrange(4)
    if form == 1:
        return list(values)
    if form == 2:
        return Row(*kind.names)(*values)
    return tuple(values)


def _given(random: Random, kind: DataType, *, top: bool = False, key: bool = False) -> Any:
    if random.random() < 0.15:
        return None
    if isinstance(kind, ArrayType):
        items = [_given(random, kind.elementType, key=key) for _ in range(random.randrange(4))]
        return items if random.random() < 0.7 else tuple(items)
    if isinstance(kind, MapType):
        return {key: _given(random, kind.valueType) for key, _ in plain(random, kind, 0)}
    if isinstance(kind, StructType):
        values = [_given(random, field.dataType, key=key) for field in kind.fields]
        form = random.randrange(3)
        if form == 0:
            return dict(zip(kind.names, values, strict=True))
        return Row(*kind.names)(*values) if form == 1 else tuple(values)
    return _in_some_form(random, kind, _MAKERS[type(kind)](random), top)


def _in_some_form(random: Random, kind: DataType, value: Any, top: bool) -> Any:
    """The same value, as NumPy or pandas might give it, or another zone."""
    form = random.randrange(6)
    if isinstance(kind, TimestampType):
        return value.astimezone(_ZONE) if form == 0 else value.replace(tzinfo=None) if form == 1 else value
    if form or not top:
        return value
    if type(kind) in _BITS:
        return np.int64(value)
    if isinstance(kind, DoubleType):
        return np.float64(value)
    return np.bool_(value) if isinstance(kind, BooleanType) else value
