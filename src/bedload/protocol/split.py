"""Cutting an Arrow batch into one part per worker, as columns: no Python object per row.

The parts keep the order of the rows (the sort is stable), so the rows of a key reach its owner in
arrival order.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import xxhash

from bedload.core.ids import KeyHash, WorkerId
from bedload.keys import groups_in, hash_columns, key_groups
from bedload.keys.lookup import places_in

GROUP_COLUMN = "__bedload_group"
"""The key group of each row, a 16-bit integer: the last column of what a feeder sends."""

GROUP_FIELD = pa.field(GROUP_COLUMN, pa.int16())

_FRAMING = 64
"""Bytes at most that a stream of Arrow's has around its schema and its batch."""


def with_groups(rows: pa.RecordBatch, key: Sequence[int], count: int) -> pa.RecordBatch:
    """The rows with the key group of each, of so many; ``key``: the positions of the key's columns."""
    groups = key_groups(hash_columns([rows.column(i) for i in key]), count).astype(np.int16)
    return rows.append_column(GROUP_FIELD, pa.array(groups))


class Pins:
    """Keys that do not live with their key group."""

    def __init__(self, pins: Mapping[KeyHash, WorkerId], count: int) -> None:
        """Of so many key groups."""
        self._keys = np.array(sorted(pins), np.int64)
        self._workers = np.array([pins[KeyHash(key)] for key in self._keys.tolist()], np.uint16)
        self._groups = np.zeros(count, np.bool_)
        self._groups[key_groups(self._keys, count)] = True

    def owners(self, batch: pa.RecordBatch, owners: np.ndarray, key: Sequence[pa.Array]) -> np.ndarray:
        """The owner of each row; ``key`` has the key's columns."""
        groups = groups_in(batch)
        owner: np.ndarray = owners[groups]
        rows = np.flatnonzero(self._groups[groups])
        if len(rows):
            at = pa.array(rows)
            hashes = hash_columns([column.take(at) for column in key])
            places, pinned = places_in(self._keys, hashes)
            owner[rows[pinned]] = self._workers[places[pinned]]
        return owner


def split(
    batch: pa.RecordBatch, owners: np.ndarray, owner: np.ndarray | None = None
) -> list[tuple[WorkerId, pa.RecordBatch]]:
    """The rows of each worker that has any, in ascending order of workers.

    ``owners`` holds the owner of each key group; ``owner`` that of each row, if it is known already.
    """
    if batch.num_rows == 0:
        return []
    if owner is None:
        owner = owners[groups_in(batch)]
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


def pack_whole(batch: pa.RecordBatch) -> pa.Buffer:
    """The batch as bytes with its schema, for a receiver that does not know the schema."""
    # In one piece of memory of the right size: a sink that grows by doubling copies, and touches twice as much.
    room = pa.allocate_buffer(pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size + _FRAMING)
    sink = pa.FixedSizeBufferWriter(room)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return room.slice(0, sink.tell())


def unpack_whole(body: memoryview | bytes | pa.Buffer) -> pa.RecordBatch:
    """What :func:`pack_whole` made, without a copy."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        batch: pa.RecordBatch = reader.read_next_batch()
    return batch


def unpack(body: memoryview | bytes | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """What :func:`pack` made, without a copy."""
    buffer = body if isinstance(body, pa.Buffer) else pa.py_buffer(body)
    return pa.ipc.read_record_batch(buffer, schema)
