"""A KLL sketch of many values at once, written in the format that the library reads.

The library flips coins when it thins values out, and cannot be given a seed. But a feeder that is run again must send
the same bytes (the worker compares checksums), so what a feeder makes of a batch is thinned out here, without chance.

Invariants: equal values and k give equal bytes; the weights of the items add up to the number of values; the rank of
any value is off by at most half the weight of the heaviest item, which is less than ``1 / k`` of all values.

Why the error is so small: sorted values are cut into runs of equal length, and each run is represented by its middle. A
sketch that meets its values one by one cannot do that.

The format is that of Apache DataSketches (family 15, serial version 1), common to its Java, C++ and Python libraries.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

_PREAMBLE = struct.Struct("<BBBBHBxQHBx")
_FULL, _VERSION, _FAMILY, _NO_FLAGS = 5, 1, 15, 0
_MIN_WIDTH = 8
"""The least room of a level, the library's default."""


def sketch_of(values: npt.NDArray[np.float64], k: int) -> bytes:
    """The sketch of more than k values, none of them NaN."""
    ordered = np.sort(values)
    count = len(ordered)
    top = 1
    while _items(count, top) > _capacity(k, top + 1):
        top += 1
    runs = count >> top
    begin = runs << top
    levels: list[npt.NDArray[np.float64]] = [_NOTHING] * top
    levels.append(ordered[:begin].reshape(runs, 1 << top)[:, 1 << (top - 1)])
    # What is left over is shorter than a run: a shorter one for each bit of its length.
    for level in range(top - 1, -1, -1):
        length = 1 << level
        if count & length:
            levels[level] = ordered[begin + length // 2 : begin + length // 2 + 1]
            begin += length
    sizes = [len(level) for level in levels]
    # Room that is not used comes first.
    bounds = _capacity(k, len(levels)) - sum(sizes) + np.cumsum([0, *sizes[:-1]])
    return b"".join(
        [
            _PREAMBLE.pack(_FULL, _VERSION, _FAMILY, _NO_FLAGS, k, _MIN_WIDTH, count, k, len(levels)),
            bounds.astype("<u4").tobytes(),
            ordered[[0, -1]].astype("<f8").tobytes(),
            np.concatenate(levels).astype("<f8").tobytes(),
        ]
    )


_NOTHING = np.empty(0, np.float64)


def _items(count: int, top: int) -> int:
    """How many items stand for so many values, if those of the top level stand for ``2**top`` each."""
    return (count >> top) + (count & ((1 << top) - 1)).bit_count()


def _capacity(k: int, levels: int) -> int:
    """The items that a sketch of so many levels has room for: each level two thirds of the one above."""
    return sum(max(_MIN_WIDTH, ((k << (depth + 1)) // 3**depth + 1) >> 1) for depth in range(levels))
