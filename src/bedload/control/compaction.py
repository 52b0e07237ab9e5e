"""Snapshots as the coordinator sees them: one at a time per operator; it counts when all workers have written.

Invariants: a snapshot is of a committed turn; its manifest is written after every worker has written its parts, and the
parts cover every key group. A worker that is lost or leaves ends the snapshot under way, which costs nothing but time:
if somebody asked for it, another one begins as soon as all owners are there.

What a snapshot makes needless is deleted some files at a time, the promises first: other work on files comes in
between, and a crash leaves at most files that nothing points to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from bedload.checkpoint.history import CompactionSettings, Garbage
from bedload.checkpoint.records import Manifest, SnapshotPart, manifest_of
from bedload.control.instructions import CheckpointResult, CollectGarbage, Instruction, Token, ToWorker, WriteManifest
from bedload.control.standing import Standing
from bedload.core.errors import BedloadError, ProtocolError
from bedload.core.ids import Epoch, OperatorName, Ticket, Turn, WorkerId
from bedload.protocol import messages as m

_PARTS = msgspec.msgpack.Decoder(list[SnapshotPart])


@dataclass(frozen=True)
class Retention:
    """What is kept, and when it is written anew."""

    epochs: int = 100
    """So many epochs back can be restored and read."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    slice_files: int = 256
    """Files that are deleted in one go: some milliseconds on a disk, and a call or two to an object store."""


@dataclass(frozen=True)
class Snapshotting:
    """How far a worker has come with its part of a snapshot."""

    operator: OperatorName
    epoch: Epoch
    worker: WorkerId
    written: int
    """Key groups."""
    left: int
    keys: int
    bytes: int
    """Read from files so far."""
    asked: bool
    """Somebody waits for it; if not, it keeps to its share of a core."""


@dataclass
class _Running:
    ticket: Ticket
    turn: Turn
    waiting: set[WorkerId]
    steps: dict[WorkerId, tuple[m.Compacting, int]]
    """How far each has come, and how many key groups it has."""
    asked: list[Token]
    """Whom it is for."""
    parts: list[SnapshotPart] = field(default_factory=list)


class Compaction:
    """The snapshots of one operator."""

    def __init__(self, standing: Standing, retention: Retention) -> None:
        self._at = standing
        self._here = standing.addresses
        """Who was here when somebody looked last: it is looked after every event."""
        self._retention = retention
        self._running: _Running | None = None
        self._ticket = Ticket(0)
        self._asked: list[Token] = []
        """Who waits for a snapshot that has not begun."""
        self._garbage: list[Garbage] = []
        """What is deleted at this moment, and what will be after that."""

    @property
    def under_way(self) -> list[Snapshotting]:
        """How far each worker has come with the snapshot under way."""
        running, lineage = self._running, self._at.lineage
        record = None if running is None or lineage is None else lineage.history.record(running.turn)
        if running is None or record is None:
            return []
        name, asked = self._at.name, bool(running.asked)
        return [
            Snapshotting(name, record.epoch, worker, step.groups, count - step.groups, step.keys, step.bytes, asked)
            for worker, (step, count) in sorted(running.steps.items())
        ]

    # --- events ---

    def ask(self, token: Token) -> list[Instruction]:
        """Somebody wants everything that is committed now in a snapshot."""
        lineage = self._at.lineage
        assert lineage is not None
        if self._running is not None and self._running.turn == lineage.head:
            self._running.asked.append(token)
            return []
        self._asked.append(token)
        return self._start()

    def go_on(self) -> list[Instruction]:
        """Workers may have left, been lost or come back."""
        running, before, self._here = self._running, self._here, self._at.addresses
        if running is not None and self._here is not before and not running.waiting <= self._here.keys():
            self._asked += running.asked
            self._running = None
        return self._start() if self._asked else []

    def committed(self) -> list[Instruction]:
        """An epoch was committed: start a snapshot if one is due."""
        lineage = self._at.lineage
        if self._running is not None or lineage is None or lineage.head is None:
            return []
        due = lineage.history.needs_compaction(self._retention.compaction)
        return self._start() if due else []

    def compacted(self, message: m.Compacted, parts: bytes | None) -> list[Instruction]:
        """A worker has written its parts, or could not."""
        running = self._running
        if running is None or message.ticket != running.ticket or message.worker not in running.waiting:
            return []
        if message.error is not None:
            return self._fail(message.error.error())
        written = _PARTS.decode(parts or b"\x90")
        running.parts += written
        running.waiting.discard(message.worker)
        step, count = running.steps[message.worker]
        step = msgspec.structs.replace(step, groups=count, keys=sum(part.rows for part in written))
        running.steps[message.worker] = step, count
        return [] if running.waiting else self._complete(running)

    def progressed(self, message: m.Compacting) -> None:
        """A worker has come so far with its parts."""
        running = self._running
        if running is not None and message.ticket == running.ticket and message.worker in running.waiting:
            running.steps[message.worker] = message, running.steps[message.worker][1]

    def written(self, turn: Turn, error: BedloadError | None, counts: Manifest | None = None) -> list[Instruction]:
        """The manifest is there, maybe that of an attempt that seemed to fail (``counts``), or could not be written."""
        running, lineage = self._running, self._at.lineage
        if running is None or running.turn != turn or lineage is None:
            return []
        if error is not None:
            return self._fail(error)
        lineage.history.snapshot(self._manifest(running) if counts is None else counts)
        self._running = None
        out: list[Instruction] = [CheckpointResult(token, None) for token in running.asked]
        if self._asked:
            out += self._start()  # they asked while the one before was under way
        return [*out, *self._collect()]

    def collected(self, error: BedloadError | None = None) -> list[Instruction]:
        """Some garbage is gone; or it could not be deleted, and the rest stays, too: a promise may be left."""
        self._garbage = [] if error is not None else self._garbage[1:]
        return [CollectGarbage(self._at.name, self._garbage[0])] if self._garbage else []

    def ended(self, error: BedloadError) -> list[Instruction]:
        """The cluster is over."""
        return self._fail(error)

    # --- steps ---

    def _start(self) -> list[Instruction]:
        lineage = self._at.lineage
        if lineage is None:
            return []
        if lineage.head is None or lineage.history.manifest(lineage.head) is not None:
            asked, self._asked = self._asked, []  # nothing is committed, or that is a snapshot already
            return [CheckpointResult(token, None) for token in asked]
        if self._running is not None:
            return []
        owners = set(self._at.routing.owners)
        if not owners <= self._at.addresses.keys():
            return []  # until those that are missing are back, or others own their key groups
        self._ticket = Ticket(self._ticket + 1)
        groups = {worker: self._at.routing.groups_of(worker) for worker in sorted(owners)}
        steps = {
            worker: (m.Compacting(worker, self._at.name, self._ticket, 0, 0, 0), len(owned))
            for worker, owned in groups.items()
        }
        running = self._running = _Running(self._ticket, lineage.head, owners, steps, self._asked)
        self._asked = []
        return [
            ToWorker(worker, m.Compact(self._at.name, running.turn, owned, running.ticket, bool(running.asked)))
            for worker, owned in groups.items()
        ]

    def _complete(self, running: _Running) -> list[Instruction]:
        covered = sorted(group for part in running.parts for group in part.groups)
        if covered != list(range(self._at.routing.key_groups)):
            return self._fail(
                ProtocolError(
                    f"operator {self._at.name}: the parts of a snapshot of turn {running.turn} do not cover each "
                    f"key group once. It was not made to count; all epochs are durable without it"
                )
            )
        return [WriteManifest(self._at.name, self._manifest(running))]

    def _manifest(self, running: _Running) -> Manifest:
        lineage = self._at.lineage
        assert lineage is not None
        record = lineage.history.record(running.turn)
        assert record is not None, "a turn without a record has a snapshot already"
        return manifest_of(record, lineage.schemas[record.schema], running.parts)

    def _fail(self, error: BedloadError) -> list[Instruction]:
        asked = [*([] if self._running is None else self._running.asked), *self._asked]
        self._running, self._asked = None, []
        return [CheckpointResult(token, error) for token in asked]

    def _collect(self) -> list[Instruction]:
        lineage = self._at.lineage
        assert lineage is not None
        if self._garbage or lineage.being_read:
            return []  # what is garbage since this snapshot may be in the plan that a worker reads by; next time
        garbage = lineage.history.garbage(self._retention.epochs, [lineage.head] if lineage.head is not None else [])
        if not garbage.paths:
            return []
        lineage.history.forget(garbage)
        self._garbage = garbage.slices(self._retention.slice_files)
        return [CollectGarbage(self._at.name, self._garbage[0])]
