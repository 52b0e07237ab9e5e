"""Where an operator stands, as the coordinator knows it, and what that means for moves: facts and questions, no events.

:class:`~bedload.control.epochs.OperatorEpochs` changes the facts. :class:`~bedload.control.transfer.Transfer` and
:class:`~bedload.control.changes.Changes` ask the questions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container

from bedload.control.attempt import Attempt
from bedload.control.lineage import Lineage
from bedload.control.transfer import Transfer
from bedload.core.clock import Clock, SystemClock
from bedload.core.ids import (
    NO_EPOCH,
    NO_QUERY,
    NO_TURN,
    Epoch,
    OperatorName,
    QueryId,
    RunId,
    Turn,
    WorkerId,
)
from bedload.keys import RoutingTable


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
        addresses: dict[WorkerId, str],
        lineage: Lineage | None,
        missing: Container[WorkerId],
        clock: Clock | None,
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
        self.addresses = addresses
        self.loads: Callable[[], bool] = lambda: False
        """Whether a worker has not loaded yet what was applied."""
        self._clock = clock or SystemClock()
        self.transfer: Transfer | None = None
        """State that is on its way between workers."""
        self._committed_turn = NO_TURN
        self._committed_epoch = (NO_EPOCH, NO_QUERY)
        self._missing = missing
        """Workers that were lost and whose replacement is not ready: no turn begins without them."""
        self._past_runs: set[RunId] = set()
        self._current = Attempt()
        self.told: dict[WorkerId, int] = {}
        """How often each worker was told what is its own, by a flip or to read it back."""
        self.ordered: dict[WorkerId, int] = {}
        """The same when it was told to read something back for the last time."""

    @property
    def routing(self) -> RoutingTable:
        """Who owns what."""
        return self._routing

    def set_routing(self, table: RoutingTable, why: str) -> None:
        """Ownership changes: there is no other door."""
        self._routing = table
        self.on_routing(self.name, why)

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
        return self._clock.monotonic()

    @property
    def base(self) -> Turn:
        """The turn of the committed state."""
        if self.lineage is None:
            return self._committed_turn
        return NO_TURN if self.lineage.head is None else self.lineage.head

    @property
    def base_epoch(self) -> tuple[Epoch, QueryId]:
        """The epoch of the committed state, and its query."""
        if self.lineage is None:
            return self._committed_epoch
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

    def is_here(self, worker: WorkerId) -> bool:
        """Whether a worker is there, with all code."""
        return worker in self.addresses and worker not in self._missing

    def needs(self, worker: WorkerId) -> bool:
        """Whether a worker has a part in a turn that is not over, or that tasks still ask it about."""
        # SUBTLE: tasks of a turn that was rolled back shall hear why, and not that a worker is gone.
        told = self.phase in (Phase.ABORTED, Phase.SEALED) and self.run not in self._past_runs
        under_way = told or self.phase in (Phase.OPEN, Phase.SETTLING)
        return under_way and worker in self._current.workers

    def has_sealed(self, worker: WorkerId) -> bool:
        """Whether a worker has a part in an epoch that waits for Spark's commit."""
        return self.phase is Phase.SEALED and worker in self._current.workers

    def _taking_part(self) -> list[WorkerId]:
        """Who has a part in the turn that begins: the owners, and old owners, which feeders tell what is needed."""
        moving = () if self.transfer is None else self.transfer.needed
        return [worker for worker in self.addresses if worker in self.routing.workers or worker in moving]

    @property
    def reads_back(self) -> bool:
        """Whether a worker is reading state back, or will have to."""
        return self.lineage is not None and (self.lineage.being_read or self.lineage.owes)

    @property
    def at_rest(self) -> bool:
        """Whether a move may begin: all workers are there with their state, and with the code to take it in."""
        if self.loads():
            return False
        missing = any(worker in self._missing for worker in self.routing.workers)
        taken_up = self._current.taken_up and self.phase is Phase.SEALED
        return not missing and not self.reads_back and self.phase is not Phase.SETTLING and not taken_up

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
            return self.run is not None and self.run not in self._past_runs
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
        return self.run is None or self.run in self._past_runs

    @property
    def nobody_has_state(self) -> bool:
        """Whether no worker has state in memory: whoever owns it next reads it, or begins without."""
        if self.phase not in (Phase.IDLE, Phase.ABORTED):
            return False
        if self.lineage is None:
            return self._committed_turn == NO_TURN
        return not self.lineage.held

    def _partakers(self) -> list[WorkerId]:
        return [worker for worker in self.addresses if worker in self._current.workers]
