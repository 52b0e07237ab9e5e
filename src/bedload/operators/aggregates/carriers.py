"""How values are carried in state, and what types the results have.

A carrier is the Arrow type of a state column: 64-bit integers for integers, dates, times and timestamps, doubles for
floats, booleans; and for everything else the type itself, decimals in words and the rest as Python objects. Three
carriers for numbers instead of a dozen types keep the number of compiled kernels small; Spark, too, gives every field
of a row eight bytes.

Result types are Spark's; ``tests/spark/test_aggregates_spark.py`` compares them with Spark itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MAX_DIGITS = 38
"""The most digits that a decimal of Spark's has."""


def is_integer(kind: pa.DataType) -> bool:
    """Whether it is one of Spark's integers, which are signed."""
    return bool(pa.types.is_signed_integer(kind))


def is_float(kind: pa.DataType) -> bool:
    """Whether it is Spark's float or double."""
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


def is_decimal(kind: pa.DataType) -> bool:
    """Whether it is a decimal."""
    return bool(pa.types.is_decimal128(kind))


def is_time(kind: pa.DataType) -> bool:
    """Whether it counts days or parts of a second: dates, timestamps, times of day, intervals."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_duration(kind):
        return bool(kind.unit == "us")
    return bool(types.is_date32(kind) or types.is_time64(kind))


def is_wide(kind: pa.DataType) -> bool:
    """Whether it has an order, but no 64 bits to hold it: strings, binary, decimals."""
    types = pa.types
    texts = types.is_string(kind) or types.is_large_string(kind)
    return bool(texts or types.is_binary(kind) or types.is_large_binary(kind) or is_decimal(kind))


def carrier(kind: pa.DataType) -> pa.DataType:
    """The type of the state column that holds values of this type."""
    if pa.types.is_boolean(kind):
        return pa.bool_()
    if is_integer(kind) or is_time(kind):
        return pa.int64()
    return pa.float64() if is_float(kind) else kind


def has_numbers(kind: pa.DataType) -> bool:
    """Whether its carrier is an array of numbers rather than of objects."""
    return bool(pa.types.is_boolean(kind) or is_integer(kind) or is_time(kind) or is_float(kind))


def restore(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    """Values of a carrier as an Arrow column of their own type; ``mask`` is True for nulls."""
    if is_time(kind):
        plain = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values.astype(plain.to_pandas_dtype(), copy=False), type=plain, mask=mask).view(kind)
    if has_numbers(kind):
        return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), type=kind, mask=mask)
    return pa.array(values, type=kind, mask=mask)


def sum_type(kind: pa.DataType) -> pa.DataType:
    """The type of a sum."""
    if is_decimal(kind):
        return _bounded(kind.precision + 10, kind.scale)
    return pa.int64() if is_integer(kind) else pa.float64()


def mean_type(kind: pa.DataType) -> pa.DataType:
    """The type of a mean."""
    return _bounded(kind.precision + 4, kind.scale + 4) if is_decimal(kind) else pa.float64()


def list_type(kind: pa.DataType) -> pa.DataType:
    """The type of collected values, as Spark exchanges it: without nulls."""
    return pa.list_(pa.field("element", kind, nullable=False))


def _bounded(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(min(precision, MAX_DIGITS), min(scale, MAX_DIGITS))
