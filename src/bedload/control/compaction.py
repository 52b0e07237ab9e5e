"""Snapshots as the coordinator sees them: one at a time per operator, written by the workers, counted when all did.

Invariants: a snapshot is of a committed turn; its manifest is written after every worker has written its parts; a
worker that is lost ends the snapshot under way, and nothing but time is lost with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from bedload.checkpoint.history import CompactionSettings
from bedload.checkpoint.records import Manifest, SnapshotPart
from bedload.control.epochs import OperatorEpochs
from bedload.control.instructions import CheckpointResult, CollectGarbage, Instruction, Token, ToWorker, WriteManifest
from bedload.core.errors import BedloadError, EpochAborted
from bedload.core.ids import Turn, WorkerId
from bedload.protocol import messages as m

_PARTS = msgspec.msgpack.Decoder(list[SnapshotPart])


@dataclass(frozen=True)
class Retention:
    """What is kept, and when it is written anew."""

    epochs: int = 100
    """So many epochs back can be restored and read."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)


@dataclass
class _Running:
    turn: Turn
    waiting: set[WorkerId]
    parts: list[SnapshotPart] = field(default_factory=list)


class Compaction:
    """The snapshots of one operator."""

    def __init__(self, epochs: OperatorEpochs, retention: Retention, addresses: dict[WorkerId, str]) -> None:
        self._epochs = epochs
        self._retention = retention
        self._addresses = addresses
        self._running: _Running | None = None
        self._asked: list[tuple[Token, Turn]] = []
        """Who waits for a snapshot, and of which turn or a later one."""
        self._collecting = False

    # --- events ---

    def ask(self, token: Token) -> list[Instruction]:
        """Somebody wants everything that is committed now in a snapshot."""
        lineage = self._epochs.lineage
        assert lineage is not None
        if lineage.head is None or lineage.history.manifest(lineage.head) is not None:
            return [CheckpointResult(token, None)]
        self._asked.append((token, lineage.head))
        return self._start()

    def committed(self) -> list[Instruction]:
        """An epoch was committed: start a snapshot if one is due."""
        lineage = self._epochs.lineage
        if self._running is not None or lineage is None or lineage.head is None:
            return []
        due = lineage.history.needs_compaction(self._retention.compaction)
        return self._start() if due else []

    def compacted(self, message: m.Compacted, parts: bytes | None) -> list[Instruction]:
        """A worker has written its parts, or could not."""
        running = self._running
        if running is None or message.turn != running.turn or message.worker not in running.waiting:
            return []
        if message.error is not None:
            return self._fail(message.error.error())
        running.parts += _PARTS.decode(parts or b"\x90")
        running.waiting.discard(message.worker)
        return [] if running.waiting else self._complete(running)

    def written(self, turn: Turn, error: BedloadError | None) -> list[Instruction]:
        """The manifest is there, or could not be written."""
        running, lineage = self._running, self._epochs.lineage
        if running is None or running.turn != turn or lineage is None:
            return []
        if error is not None:
            return self._fail(error)
        lineage.history.snapshot(self._manifest(running))
        self._running = None
        out: list[Instruction] = [CheckpointResult(token, None) for token, wanted in self._asked if wanted <= turn]
        self._asked = [(token, wanted) for token, wanted in self._asked if wanted > turn]
        if self._asked:
            out += self._start()  # they asked while the one before was under way
        return [*out, *self._collect()]

    def collected(self) -> None:
        """The garbage is gone."""
        self._collecting = False

    def lost(self, worker: WorkerId) -> list[Instruction]:
        """A worker is gone, and what it was writing with it."""
        if self._running is None or worker not in self._running.waiting:
            return []
        return self._fail(
            EpochAborted(
                f"operator {self._epochs.name}: worker {worker} was lost while it wrote its part of a snapshot. All "
                f"epochs are durable without it; ask for the snapshot again"
            )
        )

    def ended(self, error: BedloadError) -> list[Instruction]:
        """The cluster is over."""
        self._running = None
        asked, self._asked = self._asked, []
        return [CheckpointResult(token, error) for token, _ in asked]

    # --- steps ---

    def _start(self) -> list[Instruction]:
        lineage = self._epochs.lineage
        if self._running is not None or lineage is None or lineage.head is None:
            return []
        owners = {worker for worker in self._epochs.routing.owners if worker in self._addresses}
        if len(owners) < len(set(self._epochs.routing.owners)):
            return self._fail(
                EpochAborted(f"operator {self._epochs.name}: a worker is missing; try again when it is back")
            )
        self._running = _Running(lineage.head, owners)
        return [
            ToWorker(
                worker,
                m.Compact(self._epochs.name, lineage.head, self._epochs.routing.groups_of(worker)),
            )
            for worker in sorted(owners)
        ]

    def _complete(self, running: _Running) -> list[Instruction]:
        return [WriteManifest(self._epochs.name, self._manifest(running))]

    def _manifest(self, running: _Running) -> Manifest:
        lineage = self._epochs.lineage
        assert lineage is not None
        held = lineage.history.record(running.turn) or lineage.history.manifest(running.turn)
        assert held is not None
        parts = tuple(sorted(running.parts, key=lambda part: part.groups))
        return Manifest(
            turn=running.turn,
            schema=held.schema,
            query=held.query,
            epoch=held.epoch,
            parts=parts,
            bytes=sum(file.bytes for part in parts for file in part.files.values()),
            rows=sum(part.rows for part in parts),
            committed=lineage.history.last_epochs(running.turn),
        )

    def _fail(self, error: BedloadError) -> list[Instruction]:
        self._running = None
        asked, self._asked = self._asked, []
        return [CheckpointResult(token, error) for token, _ in asked]

    def _collect(self) -> list[Instruction]:
        lineage = self._epochs.lineage
        assert lineage is not None
        if self._collecting or lineage.being_read:
            return []  # what is garbage since this snapshot may be in the plan that a worker reads by; next time
        garbage = lineage.history.garbage(self._retention.epochs, [lineage.head] if lineage.head is not None else [])
        if not garbage.paths:
            return []
        self._collecting = True
        lineage.history.forget(garbage)
        return [CollectGarbage(self._epochs.name, garbage)]
