"""Decimals in state: sums, extremes and means of unscaled values.

Invariants: a sum is exact, and at the end of each batch within its precision, or the batch fails; a mean is the exact
quotient, rounded once, half up.

Why the range is checked when a batch ends, and not at each row: whether a sum that leaves its range comes back depends
on the order of rows, which Spark leaves open as well.
"""

from __future__ import annotations

import decimal
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.operators.aggregates import decimal_kernels as dk
from bedload.operators.aggregates import kernels as k
from bedload.operators.aggregates.batch import Batch
from bedload.store.columns.compiling import read_only
from bedload.store.columns.index import Flags, Slots
from bedload.store.columns.layout import WIDE, widened

Array = npt.NDArray[Any]


def add(batch: Batch, at: int, kind: pa.DataType, sums: Array, valid: Flags) -> int:
    """Add a column to sums of a type. Returns the first row whose sum does not fit it any more, or -1."""
    values, ok = batch.numbers(at, sums.dtype), batch.valid(at)
    carries = np.zeros(len(batch.slots), np.int8)
    limits = limits_of(kind)
    if sums.dtype == WIDE:
        strayed, _ = dk.add_wide(batch.slots, values, ok, limits, sums, valid, carries)
    else:
        strayed = dk.add_narrow(batch.slots, values, ok, 10**kind.precision, sums, valid, carries)
    return _first_beyond(batch.slots, sums, limits, carries) if strayed else -1


def keep_best(batch: Batch, at: int, largest: bool, best: Array, valid: Flags) -> None:
    """Keep the largest or the smallest values of a column."""
    arguments = batch.slots, batch.numbers(at, best.dtype), batch.valid(at)
    if best.dtype == WIDE:
        dk.keep_best(*arguments, largest, best, valid)
    else:
        (k.keep_largest if largest else k.keep_smallest)(*arguments, best, valid)


def divide(totals: Array, counts: npt.NDArray[np.int64], more_digits: int, kind: pa.DataType) -> tuple[Array, int]:
    """Means of a type with so many more digits behind the point; and the first place where one does not fit, or -1."""
    made = np.zeros(len(totals), WIDE)
    wide, by = read_only(widened(totals), WIDE), read_only(counts, np.int64)
    return made, dk.divide(wide, by, 10**more_digits, limits_of(kind), made)


@functools.cache
def limits_of(kind: pa.DataType) -> Array:
    """The numbers next to the range of a type, unscaled: the one below and the one above."""
    limit = 10**kind.precision
    words = [(number & 0xFFFF_FFFF_FFFF_FFFF, number >> 64) for number in (-limit, limit)]
    return read_only(np.array(words, WIDE), WIDE)


def exact_mean(total: Any, count: int, scale: int, kind: pa.DataType) -> decimal.Decimal:
    """A single mean, whether it fits its type or not: for what is said to people."""
    number = (int(total["high"]) << 64) | int(total["low"]) if total.dtype == WIDE else int(total)
    mean = _EXACT.divide(decimal.Decimal(number).scaleb(-scale, _EXACT), decimal.Decimal(count))
    return mean.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=_EXACT)


# Python's own context rounds to 28 digits, in every operation but comparisons.
_EXACT = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)


def _first_beyond(slots: Slots, sums: Array, limits: Array, carries: npt.NDArray[np.int8]) -> int:
    wide = widened(sums[slots])
    low, high = wide["low"], wide["high"]
    floor, limit = limits
    bad = (high > limit["high"]) | ((high == limit["high"]) & (low >= limit["low"]))
    bad |= (high < floor["high"]) | ((high == floor["high"]) & (low <= floor["low"]))
    wrapped = np.flatnonzero(carries)
    if len(wrapped):
        # What wrapped around and not back again is beyond, wherever it stands now.
        around, which = np.unique(slots[wrapped], return_inverse=True)
        times = np.bincount(which, carries[wrapped])
        bad |= np.isin(slots, around[times != 0])
    return int(np.argmax(bad)) if bad.any() else -1
