"""What a worker knows of one operator and its feeders: the data and the parts of its machine.

Each operator has :class:`~bedload.migration.holdings.Holdings` of what is here, a part that reads state back
(:mod:`bedload.worker.restoring`) and one that moves it (:mod:`bedload.worker.moving`). They know nothing of each other,
of turns or of readers; the machine passes on what follows from what they say.

Nothing here decides anything; :mod:`bedload.worker.machine` does, and draws the phases.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from bedload.core.clock import Clock
from bedload.core.epoch import EpochTime
from bedload.core.errors import BedloadError, ProtocolError
from bedload.core.ids import (
    NO_EPOCH,
    NO_QUERY,
    NO_TURN,
    DeploymentId,
    Epoch,
    KeyGroup,
    OperatorName,
    QueryId,
    Turn,
    WorkerId,
)
from bedload.core.limits import Limits
from bedload.migration.holdings import Holdings
from bedload.migration.parking import Parking
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.worker.allowance import Allowance
from bedload.worker.failures import report
from bedload.worker.moving import Moving
from bedload.worker.peers import Peer
from bedload.worker.records import Kept, Records, Scratch
from bedload.worker.restoring import Restoring
from bedload.worker.runtime import Runtime, Startable
from bedload.worker.weight import Weight

TurnMessage = m.Join | m.Apply | m.Done | m.AskPart | m.Backlog


class Phase(enum.Enum):
    """Where an operator is at a worker."""

    IDLE = "no epoch"
    OPEN = "applying sub-batches"
    SEALED = "all applied and durable, outputs fixed, waiting for Spark's commit"
    ABORTED = "rolled back, waiting for another turn"


@dataclass
class Applied:
    """A sub-batch that was applied, or is being applied as its state arrives."""

    checksum: int
    output: Kept | None
    outputs: list[pa.RecordBatch] = field(default_factory=list)
    """The outputs so far, while rows of it wait for their state."""
    waiting: list[Peer] | None = None
    """Who waits for the answer; None: it is there."""


@dataclass
class Feeder:
    """What this worker knows of one feeder in the current turn, over all of its attempts."""

    place: int = 0
    """How many came before it."""
    schema: pa.Schema | None = None
    applied: dict[int, Applied] = field(default_factory=dict)
    last: int = -1
    batches: int | None = None
    """Set when it is done: how many sub-batches it sent."""
    released: bool = False
    """It was answered before the seal."""
    share: list[Kept] = field(default_factory=list)
    """Of the sealed outputs, in parts."""
    waiting: list[Peer] = field(default_factory=list)
    peers: set[Peer] = field(default_factory=set)
    """Its attempts that are connected: while there is one, it has its Spark task slot."""

    def gone(self, peer: Peer) -> None:
        """Nobody waits there any more."""
        self.peers.discard(peer)
        self.waiting = [waiting for waiting in self.waiting if waiting != peer]
        for applied in self.applied.values():
            if applied.waiting is not None and peer in applied.waiting:
                applied.waiting.remove(peer)

    @property
    def all_waiting(self) -> list[Peer]:
        """Whoever waits for an answer to something of it."""
        return [*self.waiting, *(peer for applied in self.applied.values() for peer in applied.waiting or ())]


@dataclass
class Ends:
    """Which feeders of a turn have come to their end. It is kept, as the end of each feeder asks for it."""

    expected: int | None = None
    """How many feeders the plan has, once it is known."""
    undone: int = 0
    """How many are not done."""
    unplaced: set[int] = field(default_factory=set)
    """The places of those that are not done and have no attempt that is connected."""
    held: dict[int, Feeder] = field(default_factory=dict)
    """Those that are done and not released, by their place."""

    def check(self, where: str, feeders: Iterable[Feeder]) -> None:
        """Raise an AssertionError if it is not what the feeders say, which come in the order of their places."""
        feeders = list(feeders)
        undone = [it for it in feeders if it.batches is None]
        assert self.undone == len(undone), f"{where}: {undone} are not done, and {self.undone} are known"
        unplaced = {it.place for it in undone if not it.peers}
        assert self.unplaced == unplaced, f"{where}: {unplaced} have no attempt, and {self.unplaced} are known"
        held = [it.place for it in feeders if it.batches is not None and not it.released]
        assert sorted(self.held) == held, f"{where}: {held} are held, and {sorted(self.held)} are known"


@dataclass
class Code:
    """The versions of an operator's code that were shipped."""

    shipped: dict[DeploymentId, Startable] = field(default_factory=dict)
    unloaded: dict[DeploymentId, BedloadError] = field(default_factory=dict)
    """Why some could not be loaded."""
    active: DeploymentId | None = None
    """The one that runs."""

    def get(self, operator: OperatorName, deployment: DeploymentId) -> Startable:
        """A version to run."""
        found = self.shipped.get(deployment)
        if found is None and deployment in self.unloaded:
            raise self.unloaded[deployment]
        if found is None:
            raise ProtocolError(f"operator {operator}: deployment {deployment} was never shipped")
        return found


@dataclass
class Hosted:
    """One operator at this worker."""

    name: OperatorName
    holdings: Holdings
    parking: Parking
    restoring: Restoring
    moving: Moving
    code: Code = field(default_factory=Code)
    runtime: Runtime | None = None
    phase: Phase = Phase.IDLE
    turn: Turn = NO_TURN
    epoch: Epoch = NO_EPOCH
    query: QueryId = NO_QUERY
    committed: tuple[Epoch, QueryId] = NO_EPOCH, NO_QUERY
    """The last committed epoch, which live reads show, and whose it was."""
    time: EpochTime | None = None
    """The time of the epoch; None: it is not known, and before that no row of it is applied."""
    feeders: dict[m.FeederId, Feeder] = field(default_factory=dict)
    ends: Ends = field(default_factory=Ends)
    error: BedloadError | None = None
    early: list[tuple[Peer, TurnMessage, Body]] = field(default_factory=list)
    """Messages of a turn that has not begun here, or whose time is not known."""
    reads: list[tuple[Peer, m.Read, Body]] = field(default_factory=list)
    """Reads of key groups that are on their way."""
    records: Records = field(default_factory=Records)
    """The outputs of the current turn."""
    weight: Weight = field(default_factory=Weight)

    @classmethod
    def at(cls, worker: WorkerId, name: OperatorName, clock: Clock, limits: Limits) -> Hosted:
        """An operator that a worker hears of for the first time."""
        holdings = Holdings()
        parking = Parking(holdings, limits)
        restoring = Restoring(worker, name, holdings, clock, limits)
        return cls(name, holdings, parking, restoring, Moving(worker, name, parking, clock, limits))

    @property
    def unfinished(self) -> bool:
        """Whether there is something to send, to forget, to count, to put in or to give out."""
        moving = self.moving.sender is not None or self.moving.drops or self.moving.counts
        if moving or self.restoring.busy or self.parking.due:
            return True
        return self.runtime is not None and self.runtime.untidy

    def tidy(self) -> list[float]:
        """Have a little of the state leave memory, if it has to; the pause until there may be more, if there is one."""
        if self.runtime is None or not self.runtime.untidy:
            return []
        self.runtime.tidy()
        return [0.0]

    def close(self) -> None:
        """The operator releases what it holds."""
        if self.runtime is not None:
            report(self.runtime.close())

    def give_up(self) -> None:
        """Nothing runs here any more, and its state is nobody's."""
        self.close()
        if self.runtime is not None:
            self.runtime.give_up()
        self.runtime, self.code.active = None, None
        self.committed = NO_EPOCH, NO_QUERY

    @property
    def waits_for_time(self) -> bool:
        """Whether a turn is under way, and its time is not known."""
        return self.phase is Phase.OPEN and self.time is None

    def allow(self, worker: WorkerId, limit: int | None, scratch: Scratch | None, limits: Limits) -> None:
        """A turn begins, which may take so many bytes beside the state."""
        where = f"operator {self.name}, epoch {self.epoch}, worker {worker}"
        self.records = Records.within(Allowance(self.name, worker, limit), scratch, limits.output_bytes, where)

    def no_feeders(self) -> None:
        """A turn begins, or is over."""
        self.records.clear()
        self.feeders, self.ends = {}, Ends()

    def weigh(self, worker: WorkerId, message: m.Weigh) -> m.Weighed:
        """What its key groups weigh here."""
        weight, runtime = self.weight, self.runtime
        rows = {KeyGroup(int(group)): float(weight.rows[group]) for group in np.flatnonzero(weight.rows)}
        keys, size = (0, 0) if runtime is None else (runtime.keys, runtime.state_bytes())
        return m.Weighed(worker, self.name, message.ticket, rows, keys, size, weight.touched, weight.took)

    def check(self) -> None:
        """Raise an AssertionError if this cannot be."""
        for part in (self.holdings, self.restoring, self.moving):
            part.check()
        where = f"operator {self.name}, turn {self.turn}, {self.phase.name}"
        running = self.phase in (Phase.OPEN, Phase.SEALED)
        assert not running or self.runtime is not None, f"{where}: nothing runs"
        assert (self.error is not None) == (self.phase is Phase.ABORTED), f"{where}: {self.error!r}"
        assert running or not self.feeders, f"{where}: there are feeders"
        assert self.phase is Phase.OPEN or self.parking.empty, f"{where}: rows wait"
        self.ends.check(where, self.feeders.values())
        first = self.turn if self.waits_for_time else self.turn + 1
        late = [message for _, message, _ in self.early if message.turn < first]
        assert not late, f"{where}: {late} wait for their turn"
        if self.phase is Phase.SEALED:
            count = self.ends.expected
            assert len(self.feeders) == count, f"{where}: {len(self.feeders)} of {count} feeders"
            waiting = [name for name, it in self.feeders.items() if it.batches is None or it.all_waiting]
            assert not waiting, f"{where}: {waiting} are not done, or wait"
