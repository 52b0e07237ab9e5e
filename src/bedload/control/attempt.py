"""One turn as the coordinator sees it: who opened it, what its stages look like, what the workers said.

Invariant: all of it belongs to one turn. Another turn is another object, so nothing has to be reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bedload.checkpoint.records import TurnRecord
from bedload.core.epoch import Due, EpochStats, EpochTime
from bedload.core.errors import BedloadError
from bedload.core.ids import DeploymentId, Turn, WorkerId
from bedload.keys import RoutingTable
from bedload.protocol import messages as m
from bedload.protocol.routes import version_of

NO_STAGE = -1
"""Before the first stage: Spark numbers them from 0."""


@dataclass(frozen=True)
class StageFacts:
    """What the driver found out about a stage of an epoch."""

    feeders: int
    """How many the operator has."""
    shape: int
    """How many partitions the stage's own RDD has."""
    time: EpochTime


@dataclass
class Attempt:
    """What is known of the current turn."""

    workers: frozenset[WorkerId] = frozenset()
    """Those that have a part in it. Others may join the cluster meanwhile."""
    began: float = 0.0
    sealed_at: float = 0.0
    first_stage: int = NO_STAGE
    """The stage of the first action on the batch."""
    shapes: dict[int, int] = field(default_factory=dict)
    """The partitions of each stage's own RDD, as far as looked at."""
    feeders: int | None = None
    """How many there will be."""
    time: EpochTime | None = None
    """Of the epoch, once it is known."""
    record: TurnRecord | None = None
    """What is to be put on record with the time, if there is a checkpoint."""
    recorded: bool = True
    """Whether the turn is on record, or needs none: only then may a worker seal it."""
    spark_committed: bool = False
    """Spark's word came before the last worker's."""
    taken_up: bool = False
    """Another driver left it behind: no worker has a part in it."""
    probing: set[WorkerId] | None = None
    """Who has not answered the probe, if there is one."""
    settling: set[WorkerId] = field(default_factory=set)
    """Who has not said yet what became of the turn after a loss."""
    gone: BedloadError | None = None
    """The loss of a worker that had a part in it, and with that the recorded outputs of its part."""
    error: BedloadError | None = None
    """Why it was rolled back, or is being settled."""
    deployment: DeploymentId | None = None
    """Whose feeders it is of: all of them, as a query runs by one plan."""
    seals: dict[WorkerId, m.Sealed] = field(default_factory=dict)
    """What those have said that have sealed it."""
    _routes: tuple[RoutingTable, Mapping[WorkerId, str], m.Version, m.Routes] | None = None
    """What feeders are told, with what it was made from."""
    _opened: dict[str, m.Opened] = field(default_factory=dict)
    _ordinals: dict[int, int] = field(default_factory=dict)

    def sealed(self, message: m.Sealed) -> None:
        """A worker has sealed it."""
        self.seals[message.worker] = message

    @property
    def stats(self) -> dict[WorkerId, EpochStats]:
        """The figures of those that have sealed it."""
        return {worker: it.stats for worker, it in self.seals.items()}

    @property
    def due(self) -> Due | None:
        """When the state has something to do next without rows; None: that is not known."""
        return Due.first(it.due for it in self.seals.values()) if self.sealed_by_all else None

    @property
    def bytes(self) -> int:
        """What was written to make it durable."""
        return sum(it.stats.bytes for it in self.seals.values())

    @property
    def sealed_by_all(self) -> bool:
        """Whether all have."""
        # The number first: this is asked once for each worker.
        return len(self.seals) >= len(self.workers) and self.seals.keys() >= self.workers

    def opened(self, nonce: str) -> m.Opened | None:
        """The answer that an open got before."""
        return self._opened.get(nonce)

    def join(
        self,
        ask: m.Open,
        turn: Turn,
        routing: RoutingTable,
        addresses: Mapping[WorkerId, str],
        backlog: dict[WorkerId, m.Backlogged],
    ) -> m.Opened:
        """Let a feeder take part: it is the next one of its task attempt. ``addresses``: of all that are here."""
        ordinal = self._ordinals.get(ask.attempt, 0)
        self._ordinals[ask.attempt] = ordinal + 1
        version, routes = self._told(routing, addresses)
        known = None if ask.knows == version else routes
        answer = m.Opened(turn, m.FeederId(ask.partition, ordinal), version, known, backlog)
        self._opened[ask.nonce] = answer
        return answer

    def _told(self, routing: RoutingTable, addresses: Mapping[WorkerId, str]) -> tuple[m.Version, m.Routes]:
        """What its feeders are told: made once, unless a worker comes or goes meanwhile."""
        made = self._routes
        if made is None or made[0] is not routing or made[1] is not addresses:
            here = {worker: address for worker, address in addresses.items() if worker in self.workers}
            routes = m.Routes(routing.owners, here, {pin.key: pin.worker for pin in routing.pins})
            made = self._routes = routing, addresses, version_of(routes), routes
        return made[2:]
