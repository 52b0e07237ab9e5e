"""Compaction: the state at a turn, written as a snapshot, so that restores need no deltas from before it.

Workers share the work by key groups, each in a child process of low priority: the worker's own thread has an epoch to
run, and a child's memory goes back to the system with it. A child is told what to do by a JSON job on its standard
input (storage options may hold secrets, which do not belong on a command line), and answers by a JSON result on its
standard output. The driver makes one manifest of all parts, and with that the snapshot counts.

Invariants: compaction changes no existing file, and can be given up or done again at any moment; a manifest has each
key group of the operator once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.pools import THREADS, Pools
from bedload.checkpoint.records import OperatorSchema, SnapshotPart
from bedload.checkpoint.snapshots import TARGET_BYTES, write_parts
from bedload.checkpoint.storage import Storage, open_storage
from bedload.checkpoint.uniform import zones_before
from bedload.core.errors import CheckpointError, from_wire, to_wire
from bedload.core.ids import OperatorName, Turn

if TYPE_CHECKING:
    from bedload.checkpoint.restore import Progress, Restore

COMMAND = (sys.executable, "-X", "faulthandler", "-m", "bedload.checkpoint", "compact")
"""Starts a child that takes a job."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is to compact."""

    url: str
    operator: OperatorName
    turn: Turn
    groups: tuple[int, ...] | None = None
    """None: all key groups."""
    options: dict[str, Any] = {}
    """Of the storage."""
    target_bytes: int = TARGET_BYTES


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What it has written, or what went wrong."""

    parts: tuple[SnapshotPart, ...] = ()
    error: tuple[str, str, dict[str, str]] | None = None
    """As :func:`bedload.core.errors.to_wire` gives it."""


def compact(
    storage: Storage,
    operator: OperatorName,
    turn: Turn,
    groups: Iterable[int] | None = None,
    *,
    target_bytes: int = TARGET_BYTES,
    threads: int = 1,
    pools: Pools = THREADS,
    progress: Progress | None = None,
) -> list[SnapshotPart]:
    """Write the state of these key groups, or of all, at a turn; no manifest yet."""
    checkpoint = Checkpoint.open(storage, pools=pools)
    restore, schema = restore_at(checkpoint, operator, turn, threads=threads)
    chunks = restore.chunks(groups, progress=progress)
    folder, zones = paths.snapshot(operator, turn), zones_before(restore.snapshot)
    return write_parts(storage, folder, schema, chunks, target_bytes=target_bytes, zones=zones)


def restore_at(
    checkpoint: Checkpoint, operator: OperatorName, turn: Turn, *, threads: int | None = None
) -> tuple[Restore, OperatorSchema]:
    """How to read the state at a turn, and its schema: the one that the turn itself was written in."""
    # Compiled code comes with it, which is not needed to start a child or to read its result.
    from bedload.checkpoint.restore import Restore

    plan = checkpoint.load_history(operator).restore_plan(turn)
    last = plan.deltas[-1] if plan.deltas else plan.snapshot
    assert last is not None, "a turn has a record or a snapshot"
    schema = checkpoint.schema(operator, last.schema)
    schemas = {known.number: known for known in checkpoint.schemas(operator)}
    storage, pools = checkpoint.storage, checkpoint.pools
    return Restore(storage, operator, schema, plan, schemas=schemas, threads=threads, pools=pools), schema


# --- in a child process ---


def run_job(data: bytes, sign_of_life: Callable[[], None] = lambda: None) -> bytes:
    """Do a job that is given as JSON; gives the result as JSON, also if it failed."""

    def progress(_done: int, _all: int, _bytes: int) -> None:
        sign_of_life()

    try:
        job = msgspec.json.decode(data, type=Job)
        storage = open_storage(job.url, job.options)
        parts = compact(storage, job.operator, job.turn, job.groups, target_bytes=job.target_bytes, progress=progress)
        result = Result(parts=tuple(parts))
    except Exception as failed:  # whatever it is, the parent has to be told
        result = Result(error=to_wire(failed))
    return msgspec.json.encode(result)


def encode_job(job: Job) -> bytes:
    """What to write to the child's standard input."""
    return msgspec.json.encode(job)


def decode_result(output: bytes) -> tuple[SnapshotPart, ...]:
    """The parts that a child wrote, from its standard output; raises what it failed with."""
    try:
        result = msgspec.json.decode(output, type=Result)
    except msgspec.MsgspecError as bad:
        raise CheckpointError(
            f"a compaction ended without a result ({bad}), {output[-200:]!r}: see the worker's log. The state is safe, "
            "and will be compacted later"
        ) from bad
    if result.error is not None:
        raise from_wire(*result.error)
    return result.parts
