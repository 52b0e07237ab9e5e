"""What the coordinator asks its driver to do. The driver does it and reports back by events."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from bedload.core.errors import BedloadError
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId, Turn, WorkerId
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
    """Find out how many feeders the operator has in this epoch, and the shape of the stage.

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
    rows: int
    keys: dict[WorkerId, int]
    busy: dict[WorkerId, float]


Instruction = ToWorker | Reply | InspectStage | InspectQuery | DeployResult | EpochEnded
