"""What the coordinator asks its driver to do. The driver does it and reports back by events."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from bedload.checkpoint.history import Garbage
from bedload.checkpoint.records import Manifest, TurnRecord
from bedload.core.epoch import EpochStats, EpochTime
from bedload.core.errors import BedloadError
from bedload.core.ids import ChangeId, DeploymentId, Epoch, OperatorName, QueryId, RunId, Turn, WorkerId
from bedload.migration.record import MoveRecord
from bedload.protocol.messages import Message

Token = Hashable
"""Whom to answer: a connection, a future, or the simulator's name for one."""


@dataclass(frozen=True)
class ToWorker:
    """Send a message to a worker."""

    worker: WorkerId
    message: Message
    body: bytes | None = None


@dataclass(frozen=True)
class Reply:
    """Answer a feeder."""

    to: Token
    message: Message


@dataclass(frozen=True)
class InspectStage:
    """Find out how many feeders the operator has in this epoch, its time, and the shape of the stage.

    Report with :meth:`Coordinator.stage_inspected`.
    """

    operator: OperatorName
    deployment: DeploymentId
    turn: Turn
    query: QueryId
    epoch: Epoch
    stage: int


@dataclass(frozen=True)
class InspectQuery:
    """Find out whether a query is running, and what it has committed.

    Report with :meth:`Coordinator.query_inspected`.
    """

    operator: OperatorName
    query: QueryId
    turn: Turn
    """The operator's turn when the question came up: report it with the answer."""
    location: str = ""
    """Where the query had its Spark checkpoint, for one that does not run here."""
    gap: tuple[Epoch, ...] = ()
    """Epochs that no feeder came for: had they anything to read?"""
    pause: float = 0.0
    """Look after so many seconds: it was looked at before, and too early."""


@dataclass(frozen=True)
class DeployResult:
    """A deployment is loaded at every worker, or it failed."""

    to: Token
    error: BedloadError | None


@dataclass(frozen=True)
class EpochEnded:
    """An epoch was committed or aborted: for whoever watches."""

    operator: OperatorName
    query: QueryId
    run: RunId
    epoch: Epoch
    committed: bool
    time: EpochTime | None = None
    """None: it was over before that was known."""
    stats: dict[WorkerId, EpochStats] = field(default_factory=dict)
    """Of those that sealed it, if it was committed."""
    began: float = 0.0
    """On the coordinator's clock."""
    seconds: float = 0.0
    """From its beginning to the seal of the last worker."""


@dataclass(frozen=True)
class StartWorkers:
    """Start these workers, which are new.

    They come by :meth:`Coordinator.worker_joined`, or :meth:`Coordinator.worker_not_started` says why one does not.
    """

    workers: tuple[WorkerId, ...]


@dataclass(frozen=True)
class WorkersLeft:
    """These workers have no part in the cluster any more and were told to end."""

    workers: tuple[WorkerId, ...]


@dataclass(frozen=True)
class ChangeResult:
    """A change of the cluster is over."""

    to: Token
    number: ChangeId
    error: BedloadError | None
    records: tuple[MoveRecord, ...] = ()
    routings: tuple[tuple[OperatorName, str], ...] = ()
    """Every change of ownership while it went on: of which operator, and why."""


@dataclass(frozen=True)
class WriteTurn:
    """Put a turn on record, with the location of its query's Spark checkpoint.

    Report with :meth:`Coordinator.turn_written` or :meth:`Coordinator.turn_unwritten`.
    """

    operator: OperatorName
    record: TurnRecord


@dataclass(frozen=True)
class CheckTurn:
    """Find out whether all segments of a turn are there, after making sure that no other will be acknowledged.

    Report with :meth:`Coordinator.turn_checked`.
    """

    operator: OperatorName
    turn: Turn


@dataclass(frozen=True)
class ReplaceWorker:
    """Start a worker in place of one that was lost.

    It comes by :meth:`Coordinator.worker_joined`, or :meth:`Coordinator.worker_not_replaced` says why not.
    """

    worker: WorkerId


@dataclass(frozen=True)
class WriteManifest:
    """Make a snapshot count. Report with :meth:`Coordinator.snapshot_written`."""

    operator: OperatorName
    manifest: Manifest


@dataclass(frozen=True)
class CollectGarbage:
    """Delete what no retained epoch needs. Report with :meth:`Coordinator.garbage_collected`."""

    operator: OperatorName
    garbage: Garbage


@dataclass(frozen=True)
class CheckpointResult:
    """What was asked for by :meth:`Coordinator.checkpoint` is done, or it failed."""

    to: Token
    error: BedloadError | None


Instruction = (
    ToWorker
    | Reply
    | InspectStage
    | InspectQuery
    | DeployResult
    | EpochEnded
    | WriteTurn
    | CheckTurn
    | ReplaceWorker
    | WriteManifest
    | CollectGarbage
    | CheckpointResult
    | StartWorkers
    | WorkersLeft
    | ChangeResult
)
