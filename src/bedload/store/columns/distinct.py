"""The different slots of a batch, found by a compiled loop.

Why not ``np.unique``: it sorts, which costs 50 to 70 ns a row where this costs two to six.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bedload.store.columns.compiling import jit, read_only
from bedload.store.columns.index import Slots

_MIX = np.uint64(0x9E3779B97F4A7C15)


@jit
def _number(slots: Any, shift: Any, table: Any, found: Any, numbers: Any) -> int:
    mask = table.shape[0] - 1
    count = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        at = np.int64((np.uint64(slot) * _MIX) >> shift)
        while True:
            number = table[at]
            if number < 0:
                table[at] = count
                found[count] = slot
                numbers[i] = count
                count += 1
                break
            if found[number] == slot:
                numbers[i] = number
                break
            at = (at + 1) & mask
    return count


def distinct(slots: Slots) -> tuple[Slots, npt.NDArray[np.int32]]:
    """The different slots, in the order of first appearance, and for each row the number of its slot in them."""
    bits = max(1, (2 * len(slots) - 1).bit_length())
    found, numbers = np.empty(len(slots), np.int64), np.empty(len(slots), np.int32)
    table = np.full(1 << bits, -1, np.int32)
    count = _number(read_only(slots, np.int64), np.uint64(64 - bits), table, found, numbers)
    return found[:count], numbers
