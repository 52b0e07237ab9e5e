"""Where an operator stands, as the coordinator knows it, and what that means for moves: facts and questions, no events.

:class:`~bedload.control.epochs.OperatorEpochs` and its parts change the facts. Ownership changes by
:meth:`Standing.set_routing` alone. Whoever wants to know asks: the transfer, the changes, the snapshots, and users.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from bedload.control.attempt import Attempt
from bedload.control.lineage import Lineage
from bedload.control.members import Life, Members
from bedload.control.transfer import Transfer
from bedload.core.clock import Clock
from bedload.core.ids import (
    NO_EPOCH,
    NO_QUERY,
    NO_TURN,
    DeploymentId,
    Epoch,
    OperatorName,
    QueryId,
    RunId,
    Turn,
    WorkerId,
)
from bedload.keys import RoutingTable
from bedload.protocol import messages as m

NOTHING = NO_TURN, NO_EPOCH, NO_QUERY
"""No state is committed."""


class Phase(enum.Enum):
    """Where an operator's current epoch is."""

    IDLE = "no epoch, or the last one is committed"
    OPEN = "feeders are sending"
    SEALED = "durable on every worker; Spark may commit it"
    ABORTED = "rolled back; Spark has to replay it"
    SETTLING = "a worker was lost: is the epoch whole or not?"


class Standing:
    """The facts of one operator."""

    def __init__(
        self,
        name: OperatorName,
        routing: RoutingTable,
        members: Members,
        lineage: Lineage | None,
        clock: Clock,
    ) -> None:
        self.name = name
        self._routing = routing
        self.on_routing: Callable[[OperatorName, str], None] = lambda *_: None
        """Told of every change of ownership, and why."""
        self.lineage = lineage
        """None: state is kept in memory only."""
        self.phase = Phase.IDLE
        self.turn = Turn(-1)
        self.epoch = Epoch(-1)
        self.query: QueryId | None = None
        self.run: RunId | None = None
        self.committed: dict[QueryId, Epoch] = {}
        self.members = members
        self.loads: Callable[[], bool] = lambda: False
        """Whether a worker has not loaded yet what was applied."""
        self.clock = clock
        self.transfer: Transfer | None = None
        """State that is on its way between workers."""
        self.in_memory: tuple[Turn, Epoch, QueryId] = NOTHING
        """Without a checkpoint: the turn of the committed state, its epoch and query."""
        self.past_runs: set[RunId] = set()
        self.current = Attempt()
        self.told: dict[WorkerId, int] = {}
        """How often each worker was told what is its own, by a flip or to read it back."""
        self.ordered: dict[WorkerId, int] = {}
        """The same when it was told to read something back for the last time."""

    @property
    def routing(self) -> RoutingTable:
        """Who owns what."""
        return self._routing

    def reached(self, query: QueryId) -> Epoch:
        """The last epoch of a query that was begun here; -1: none."""
        return max(self.committed.get(query, Epoch(-1)), self.epoch if query == self.query else Epoch(-1))

    @property
    def owners(self) -> set[WorkerId]:
        """Who owns something."""
        return {*self._routing.owners, *(pin.worker for pin in self._routing.pins)}

    def set_routing(self, table: RoutingTable, why: str) -> None:
        """Ownership changes: there is no other door."""
        self._routing = table
        self.on_routing(self.name, why)

    def has_begun(self, ask: m.Open) -> bool:
        """Whether an open is of the last epoch that began, and of the same run."""
        return (ask.run, ask.epoch) == (self.run, self.epoch)

    def is_in(self, ask: m.Open) -> bool:
        """Whether the epoch of an open is under way here."""
        return self.under_way and self.query == ask.query and self.has_begun(ask)

    def holds(self, ask: m.Open) -> bool:
        """Whether an open is of the turn that is under way, so that it need not wait for another worker."""
        return self.has_begun(ask) and self.phase is not Phase.IDLE

    @property
    def deployment(self) -> DeploymentId | None:
        """The code of the last turn."""
        return self.current.deployment

    def tells(self, worker: WorkerId) -> None:
        """A worker is told what is its own."""
        self.told[worker] = self.told.get(worker, 0) + 1

    def forget_told(self, worker: WorkerId) -> None:
        """Another process has been told nothing."""
        self.told.pop(worker, None)
        self.ordered.pop(worker, None)

    @property
    def now(self) -> float:
        """The time on the coordinator's clock."""
        return self.clock.monotonic()

    @property
    def base(self) -> Turn:
        """The turn of the committed state."""
        if self.lineage is None:
            return self.in_memory[0]
        return NO_TURN if self.lineage.head is None else self.lineage.head

    @property
    def base_epoch(self) -> tuple[Epoch, QueryId]:
        """The epoch of the committed state, and its query."""
        if self.lineage is None:
            return self.in_memory[1:]
        return self.lineage.epoch_of_head

    @property
    def between_epochs(self) -> bool:
        """Whether ownership may change right now: no turn is under way that builds upon the committed state.

        SUBTLE: a turn that was rolled back is none, whether each worker has heard of that or not: word of the flip
        comes after it on the same channel, and nobody can open that turn again.
        """
        if self.phase not in (Phase.IDLE, Phase.ABORTED) or not self.at_rest:
            return False
        return self.lineage is None or self.lineage.all_hold_head(self.routing)

    @property
    def rolled_back(self) -> bool:
        """Whether the last turn was rolled back."""
        return self.phase is Phase.ABORTED

    @property
    def addresses(self) -> Mapping[WorkerId, str]:
        """Where the workers are that are here."""
        return self.members.addresses

    @property
    def lacks_workers(self) -> bool:
        """Whether one was lost and its replacement is not ready: no turn begins without it."""
        missing = self.members.missing
        return bool(missing) and any(worker in missing for worker in self.routing.workers)

    def is_here(self, worker: WorkerId) -> bool:
        """Whether a worker is there, with all code."""
        known = self.members.get(worker)
        return known is not None and known.life is Life.HERE

    def needs(self, worker: WorkerId) -> bool:
        """Whether a worker has a part in a turn that is not over, or that tasks still ask it about."""
        # SUBTLE: tasks of a turn that was rolled back shall hear why, and not that a worker is gone.
        told = self.phase in (Phase.ABORTED, Phase.SEALED) and self.run not in self.past_runs
        under_way = told or self.phase in (Phase.OPEN, Phase.SETTLING)
        return under_way and worker in self.current.workers

    def has_sealed(self, worker: WorkerId) -> bool:
        """Whether a worker has a part in an epoch that waits for Spark's commit."""
        return self.phase is Phase.SEALED and worker in self.current.workers

    def taking_part(self) -> list[WorkerId]:
        """Who has a part in the turn that begins: the owners, and old owners, which feeders tell what is needed."""
        moving = set() if self.transfer is None else self.transfer.needed
        partaking = moving.union(self.routing.workers)
        return [worker for worker in self.addresses if worker in partaking]

    @property
    def reads_back(self) -> bool:
        """Whether a worker is reading state back, or will have to."""
        return self.lineage is not None and (self.lineage.being_read or self.lineage.owes)

    @property
    def at_rest(self) -> bool:
        """Whether a move may begin: all workers are there with their state, and with the code to take it in."""
        if self.loads():
            return False
        taken_up = self.current.taken_up and self.phase is Phase.SEALED
        return not self.lacks_workers and not self.reads_back and self.phase is not Phase.SETTLING and not taken_up

    @property
    def is_sealed(self) -> bool:
        """Whether an epoch waits for Spark's commit."""
        return self.phase is Phase.SEALED

    @property
    def undecided(self) -> bool:
        """Whether an epoch is under way that workers may still seal or roll back."""
        return self.phase in (Phase.OPEN, Phase.SETTLING)

    @property
    def under_way(self) -> bool:
        """Whether an epoch is being worked on, or feeders of a run that goes on may still take its outputs."""
        if self.phase is Phase.SEALED:
            return self.run is not None and self.run not in self.past_runs
        return self.phase in (Phase.OPEN, Phase.SETTLING)

    @property
    def unknown(self) -> bool:
        """Whether Spark has not said what became of the last turn, or whether tasks still ask about it."""
        if self.phase is Phase.ABORTED:
            return not self.forsaken
        return self.phase in (Phase.OPEN, Phase.SEALED)

    @property
    def forsaken(self) -> bool:
        """Whether no run is known to go on that would begin another epoch."""
        return self.run is None or self.run in self.past_runs

    @property
    def nobody_has_state(self) -> bool:
        """Whether no worker has state in memory: whoever owns it next reads it, or begins without."""
        if self.phase not in (Phase.IDLE, Phase.ABORTED):
            return False
        if self.lineage is None:
            return self.in_memory == NOTHING
        return not self.lineage.held

    def partakers(self) -> list[WorkerId]:
        """Who has a part in the last turn and is there."""
        return [worker for worker in self.addresses if worker in self.current.workers]
