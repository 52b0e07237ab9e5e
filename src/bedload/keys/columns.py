"""Arrow key columns as NumPy arrays of raw values, without a copy where Arrow allows it.

Invariant: an array here has one element per row of the column, whatever the column's offset. What stands
under a null is arbitrary but readable; the caller puts nulls right.

Why not ``Array.to_numpy``: it turns integers with nulls into doubles, which lose digits, and decimals and
strings into Python objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""The bytes of all rows; the start of each row in them; its length."""

_NUMPY: dict[pa.DataType, Any] = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.date32(): np.int32,
}


def numbers_of(column: pa.Array) -> npt.NDArray[Any]:
    """A column of booleans, numbers, dates (days) or timestamps (microseconds)."""
    if pa.types.is_boolean(column.type):
        flags = column.fill_null(False) if column.null_count else column
        return np.asarray(flags.to_numpy(zero_copy_only=False))
    dtype = _NUMPY.get(column.type, np.int64)
    return _items(column.buffers()[1], dtype, column.offset, len(column))


def floats_of(column: pa.Array) -> npt.NDArray[Any]:
    """A new array of floats or doubles with one NaN, the canonical one, and without ``-0.0``."""
    values = numbers_of(column).copy()
    values[np.isnan(values)] = np.nan  # first, as arithmetic on a signalling NaN warns
    values += 0.0  # turns -0.0 into 0.0 and leaves every other value as it is
    return values


def longs_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """The unscaled values of a column of decimals that fit 64 bits."""
    # A decimal128 is two little-endian words, the low one first; what fits it is the value.
    words = _items(column.buffers()[1], np.int64, 2 * column.offset, 2 * len(column))
    return np.ascontiguousarray(words[::2])


def large_decimals_of(column: pa.Array) -> Bytes:
    """The unscaled values of a column of decimals as the shortest big-endian two's complement."""
    little = _items(column.buffers()[1], np.uint8, 16 * column.offset, 16 * len(column))
    big = np.ascontiguousarray(little.reshape(-1, 16)[:, ::-1])
    sign = np.where(big[:, 0] & 0x80, 0xFF, 0).astype(np.uint8)
    # Leading bytes that only repeat the sign are dropped, as long as the next byte still shows it.
    differs = big != sign[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), 15)
    shows_sign = (big[np.arange(len(big)), first] & 0x80) == (sign & 0x80)
    first = np.where(shows_sign, first, first - 1).astype(np.int64)
    return big.reshape(-1), np.arange(len(big), dtype=np.int64) * 16 + first, 16 - first


def bytes_of(column: pa.Array) -> Bytes:
    """A column of strings or binary."""
    n = len(column)
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        data = _items(column.buffers()[1], np.uint8, 0, (column.offset + n) * width)
        starts = np.arange(column.offset, column.offset + n, dtype=np.int64) * width
        return data, starts, np.full(n, width, np.int64)
    _, offsets_buffer, data_buffer = column.buffers()
    if n == 0 or offsets_buffer is None:
        return np.empty(0, np.uint8), np.zeros(n, np.int64), np.zeros(n, np.int64)
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    offsets = _items(offsets_buffer, np.int64 if large else np.int32, column.offset, n + 1)
    offsets = offsets.astype(np.int64, copy=False)
    return _items(data_buffer, np.uint8, 0, int(offsets[-1])), offsets[:-1], np.diff(offsets)


def _items(buffer: pa.Buffer | None, dtype: Any, offset: int, count: int) -> npt.NDArray[Any]:
    if buffer is None or count == 0:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, count, offset * np.dtype(dtype).itemsize)
