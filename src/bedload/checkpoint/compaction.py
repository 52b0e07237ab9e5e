"""Compaction: the state at a turn, written as a snapshot, so that restores need no deltas from before it.

Workers share the work by key groups, each in a child process of low priority: the worker's own thread has an epoch to
run, and a child's memory goes back to the system with it. A child is told what to do by a JSON job on its standard
input (storage options may hold secrets, which do not belong on a command line), and answers by a JSON result on its
standard output. The driver makes one manifest of all parts, and with that the snapshot counts.

Parts of the last snapshot that nothing has changed since are taken over (:mod:`bedload.checkpoint.resting`).

Invariants: compaction changes no existing file, and can be given up or done again at any moment; a manifest has each
key group of the operator once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.history import History, Plan
from bedload.checkpoint.pools import THREADS, Pools
from bedload.checkpoint.records import OperatorSchema, SnapshotPart
from bedload.checkpoint.resting import resting_parts, take_over
from bedload.checkpoint.snapshots import TARGET_BYTES, write_parts
from bedload.checkpoint.storage import Storage, open_storage
from bedload.checkpoint.uniform import zones_before
from bedload.core.errors import CheckpointError, from_wire, to_wire
from bedload.core.ids import OperatorName, Turn

if TYPE_CHECKING:
    from bedload.checkpoint.restore import Chunk, Restore

COMMAND = (sys.executable, "-X", "faulthandler", "-m", "bedload.checkpoint", "compact")
"""Starts a child that takes a job."""

_SLICES = 32
"""All key groups are compacted in so many steps, or more: the arrays of one are small (10 M new keys took 2.8 instead
of 4.2 seconds, and half the memory), and between two steps a child can tell how far it is, or pause."""


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
    niceness: int = 10
    """The worker beside it comes first."""
    share: float | None = None
    """Of a core, at most; None: whatever its priority leaves to it."""


class Step(msgspec.Struct, frozen=True):
    """How far a job has come."""

    groups: int
    """Key groups that are done."""
    keys: int
    """In these."""
    bytes: int
    """Read from files."""


Steps: TypeAlias = Callable[[Step], None]


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
    steps: Steps = lambda _: None,
) -> list[SnapshotPart]:
    """Write the state of these key groups, or of all, at a turn; no manifest yet. ``steps`` hears how far it is."""
    checkpoint = Checkpoint.open(storage, pools=pools)
    history = checkpoint.load_history(operator)
    plan = history.restore_plan(turn)
    restore, schema = _restore(checkpoint, operator, plan, threads)
    wanted = list(range(schema.key_groups)) if groups is None else sorted(set(groups))
    folder, zones = paths.snapshot(operator, turn), zones_before(plan.snapshot)
    kept: list[SnapshotPart] = []
    # To see what rests, the deltas are read once more: not where they are so many that nothing will.
    if plan.snapshot is not None and _bytes(history, plan) < plan.snapshot.bytes:
        kept = resting_parts(storage, operator, schema, plan, wanted)
        take_over(storage, operator, kept, plan.snapshot.turn, turn)
    held = {group for part in kept for group in part.groups}
    done, keys = len(held), sum(part.rows for part in kept)
    read = 0

    def progress(_done: int, _all: int, size: int) -> None:
        nonlocal read
        read = size
        steps(Step(done, keys, read))

    def counted() -> Iterator[Chunk]:
        nonlocal done, keys
        left = [group for group in wanted if group not in held]
        size = max(1, schema.key_groups // _SLICES)
        for chunk_groups, batch in restore.chunks(left, chunk_groups=size, progress=progress):
            yield chunk_groups, batch
            done, keys = done + len(chunk_groups), keys + batch.num_rows
            steps(Step(done, keys, read))

    return [*kept, *write_parts(storage, folder, schema, counted(), target_bytes=target_bytes, zones=zones)]


def restore_at(
    checkpoint: Checkpoint, operator: OperatorName, turn: Turn, *, threads: int | None = None
) -> tuple[Restore, OperatorSchema]:
    """How to read the state at a turn, and its schema: the one that the turn itself was written in."""
    return _restore(checkpoint, operator, checkpoint.load_history(operator).restore_plan(turn), threads)


def _restore(
    checkpoint: Checkpoint, operator: OperatorName, plan: Plan, threads: int | None
) -> tuple[Restore, OperatorSchema]:
    # Compiled code comes with it, which is not needed to start a child or to read its result.
    from bedload.checkpoint.restore import Restore

    last = plan.deltas[-1] if plan.deltas else plan.snapshot
    assert last is not None, "a turn has a record or a snapshot"
    schema = checkpoint.schema(operator, last.schema)
    schemas = {known.number: known for known in checkpoint.schemas(operator)}
    storage, pools = checkpoint.storage, checkpoint.pools
    return Restore(storage, operator, schema, plan, schemas=schemas, threads=threads, pools=pools), schema


def _bytes(history: History, plan: Plan) -> int:
    return sum(history.delta_bytes(record.turn) for record in plan.deltas)


# --- in a child process ---


def run_job(
    data: bytes,
    say: Callable[[bytes], None] = lambda _: None,
    pace: Callable[[Job], Callable[[], None]] = lambda _: lambda: None,
) -> bytes:
    """Do a job that is given as JSON; gives the result as JSON, also if it failed.

    ``say`` gets each step as JSON; ``pace`` sets the priority, and gives what is called between two steps.
    """
    try:
        job = msgspec.json.decode(data, type=Job)
        pause = pace(job)

        def steps(step: Step) -> None:
            say(msgspec.json.encode(step))
            pause()

        storage = open_storage(job.url, job.options)
        parts = compact(storage, job.operator, job.turn, job.groups, target_bytes=job.target_bytes, steps=steps)
        result = Result(parts=tuple(parts))
    except Exception as failed:  # whatever it is, the parent has to be told
        result = Result(error=to_wire(failed))
    return msgspec.json.encode(result)


def encode_job(job: Job) -> bytes:
    """What to write to the child's standard input."""
    return msgspec.json.encode(job)


def decode_result(output: bytes) -> tuple[SnapshotPart, ...]:
    """The parts that a child wrote, from its standard output; raises what it failed with."""
    said = output.rpartition(b"\n")[2]
    try:
        result = msgspec.json.decode(said, type=Result)
    except msgspec.MsgspecError as bad:
        raise CheckpointError(
            f"a compaction ended without a result ({bad}), {output[-200:]!r}: see the worker's log. The state is safe, "
            "and will be compacted later"
        ) from bad
    if result.error is not None:
        raise from_wire(*result.error)
    return result.parts


def last_step(output: bytes) -> Step | None:
    """How far a child has come, from what it has said so far; None: it has said nothing yet."""
    whole = output.rpartition(b"\n")[0].rpartition(b"\n")[2]
    return msgspec.json.decode(whole, type=Step) if whole else None
