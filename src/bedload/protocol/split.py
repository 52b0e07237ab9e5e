"""Cutting an Arrow batch into one part per worker, as columns: no Python object per row.

The parts keep the order of the rows (the sort is stable), so the rows of a key reach its owner in
arrival order.
"""

import numpy as np
import pyarrow as pa
import xxhash

from bedload.core.ids import WorkerId

GROUP_COLUMN = "__bedload_group"
"""The key group of each row, a 16-bit integer computed by Spark: the last column of feeder input."""


def split(batch: pa.RecordBatch, owners: np.ndarray) -> list[tuple[WorkerId, pa.RecordBatch]]:
    """The rows of each worker that has any, in ascending order of workers.

    ``owners`` holds the owner of each key group.
    """
    if batch.num_rows == 0:
        return []
    owner = owners[batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)]
    first = int(owner[0])
    if (owner == first).all():
        return [(WorkerId(first), batch)]
    # SUBTLE: NumPy's stable sort of 16-bit integers is a radix sort, which is why the owners are.
    order = np.argsort(owner, kind="stable")
    rows = batch.take(pa.array(order))
    counts = np.bincount(owner)
    parts, start = [], 0
    for worker in np.flatnonzero(counts):
        length = int(counts[worker])
        parts.append((WorkerId(int(worker)), rows.slice(start, length)))
        start += length
    return parts


def pack(batch: pa.RecordBatch) -> tuple[pa.Buffer, int]:
    """The batch as bytes without its schema, and their checksum.

    Equal rows give equal bytes: Arrow's own kernels zero what lies under nulls and behind the end.
    """
    buffer = batch.serialize()
    return buffer, xxhash.xxh3_64_intdigest(buffer)


def unpack(body: memoryview | bytes | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """What :func:`pack` made, without a copy."""
    buffer = body if isinstance(body, pa.Buffer) else pa.py_buffer(body)
    return pa.ipc.read_record_batch(buffer, schema)
