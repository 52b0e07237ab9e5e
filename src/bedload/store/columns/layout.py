"""How values of a type lie in arrays, and the way from Arrow to there and back, a column at a time.

============================================ ==========================================================
booleans, integers, floats                   themselves
dates                                        days, as Arrow counts them
timestamps, times of day, durations          the number that Arrow has: its unit and zone are the type's
decimals of up to 18 digits                  the unscaled value: 64 bits
decimals of up to 38 digits                  the unscaled value: 128 bits, as :data:`WIDE`
everything else                              Python objects
============================================ ==========================================================

Invariants: what goes to an array and back is what it was, nulls included; nothing here is done by row in Python.

Why two widths: half of the memory and one addition instead of two, for nearly all decimals that there are. Arrow's
128 bits are :data:`WIDE` as they stand, so wide columns come and go without a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.keys.kinds import MAX_LONG_DIGITS

WIDE = np.dtype([("low", "<u8"), ("high", "<i8")])
"""128 bits, two's complement."""


def layout_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """The NumPy type of an array of such values; None if they are kept as Python objects."""
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        plain: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return plain
    if types.is_decimal128(kind):
        return np.dtype(np.int64) if kind.precision <= MAX_LONG_DIGITS else WIDE
    if types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind):
        return np.dtype(f"i{kind.bit_width // 8}")
    return None


def array_of(column: pa.Array, layout: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """A column as an array of its layout, which is arbitrary under nulls; read-only where it is no copy.

    A decimal may be taken as :data:`WIDE` although it has few digits: that is how Arrow has it.
    """
    kind, count = column.type, len(column)
    layout = layout_of(kind) if layout is None else layout
    assert layout is not None, f"{kind} has no layout"
    if layout.kind == "b":
        flags = column.fill_null(False) if column.null_count else column
        return np.asarray(flags.to_numpy(zero_copy_only=False))
    buffer = column.buffers()[1]
    if buffer is None or not count:
        return np.zeros(count, layout)
    if pa.types.is_decimal(kind):
        wide = np.frombuffer(buffer, WIDE, count, WIDE.itemsize * column.offset)
        # The low half of what fits it is the value.
        return wide if layout == WIDE else wide["low"].astype(np.int64)
    return np.frombuffer(buffer, layout, count, layout.itemsize * column.offset)


def arrow_of(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    """An array of the layout of a type as a column of the type, which shares its memory where Arrow has it so."""
    if values.dtype.kind == "b":
        return pa.array(values, mask=None if valid is None else ~valid)
    if pa.types.is_decimal(kind):
        values = widened(values)
    present = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [present, pa.py_buffer(np.ascontiguousarray(values))])


def widened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Unscaled values as 128 bits, whatever they are now."""
    if values.dtype == WIDE:
        return values
    wide = np.empty(len(values), WIDE)
    wide["low"] = values.view(np.uint64)
    wide["high"] = values >> 63
    return wide
