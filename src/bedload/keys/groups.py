"""From the hash of a key to its key group.

Invariant: ``kg = pmod(hash, G)`` and ``0 <= kg < G``, as Spark's ``pmod`` gives it. ``G`` is fixed when an
operator's state is created.

Why a modulus and not the high bits of the hash: ``pmod(xxhash64(key), G)`` is one expression in SQL, and it
works for every ``G``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import DefinitionError
from bedload.core.ids import KeyGroup, KeyHash

DEFAULT_KEY_GROUPS = 256
"""Enough to balance some tens of workers within a few per cent; few enough for a table per epoch."""

MAX_KEY_GROUPS = 32768
"""2**15, as for Flink's maximum parallelism: beyond it the cost per key group outweighs its use."""


def check_key_groups(key_groups: int) -> None:
    """Raise :class:`DefinitionError` unless there can be that many key groups."""
    if not 1 <= key_groups <= MAX_KEY_GROUPS:
        raise DefinitionError(
            f"{key_groups} key groups: their number must be from 1 to {MAX_KEY_GROUPS} "
            f"(the default is {DEFAULT_KEY_GROUPS})"
        )


def key_group(key: KeyHash, key_groups: int) -> KeyGroup:
    """The key group of a key with this hash."""
    check_key_groups(key_groups)
    return KeyGroup(key % key_groups)


def key_groups(hashes: npt.NDArray[np.int64], key_groups: int) -> npt.NDArray[np.int32]:
    """The key group of each hash."""
    check_key_groups(key_groups)
    if key_groups & (key_groups - 1) == 0:
        # The same for a power of two, in two's complement, and thirty times faster.
        return (hashes & np.int64(key_groups - 1)).astype(np.int32)
    return (hashes % np.int64(key_groups)).astype(np.int32)


def groups_in(batch: pa.RecordBatch) -> npt.NDArray[np.int16]:
    """The key group of each row of what a feeder sends: its last column."""
    groups: npt.NDArray[np.int16] = batch.column(_place(batch)).to_numpy(zero_copy_only=False)
    return groups


def without_groups(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, without their key groups."""
    return batch.select(range(_place(batch)))


def _place(batch: pa.RecordBatch) -> int:
    return int(batch.num_columns) - 1
