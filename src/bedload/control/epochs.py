"""One operator's epochs, as the coordinator sees them: a state machine without I/O.

Phases::

    IDLE ──Open──▶ OPEN ──Sealed by all──▶ SEALED ──Spark committed──▶ IDLE
                     │ failure, replay         │ replay
                     └──────▶ ABORTED ◀────────┘            (a replay opens a new turn)

Spark says only indirectly that it committed epoch N: it opens N+1, or its progress event for N arrives.
It says that it did *not* commit N by opening N again in a new run. So a sealed epoch waits until one of
these happens, and nothing else ends it.

An ``Open`` that cannot be answered yet (a stage's shape, another query's state or the end of a seal has
to be found out first) is parked and looked at again when the answer is there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from bedload.control.instructions import (
    EpochEnded,
    InspectQuery,
    InspectStage,
    Instruction,
    Reply,
    Token,
    ToWorker,
)
from bedload.core.errors import (
    BedloadError,
    EpochAborted,
    EpochIncomplete,
    EpochMismatch,
    NotDeterministic,
    OperatorBusy,
    StaleAttempt,
)
from bedload.core.ids import Epoch, OperatorName, QueryId, RunId, Turn, WorkerId
from bedload.keys import RoutingTable
from bedload.protocol import messages as m


class Phase(enum.Enum):
    """Where an operator's current epoch is."""

    IDLE = "no epoch, or the last one is committed"
    OPEN = "feeders are sending"
    SEALED = "durable on every worker; Spark may commit it"
    ABORTED = "rolled back; Spark has to replay it"


@dataclass(frozen=True)
class QueryFacts:
    """What the driver found out about a query."""

    active: bool
    committed: Epoch | None
    """The latest epoch in the query's commit log, if that could be read."""
    without_data: frozenset[Epoch]
    """Recent epochs in which a source had no new data, so that an operator may have had no partition."""


Found = tuple[QueryId, QueryFacts]
"""What was found out, and about whom."""


@dataclass
class _Seal:
    rows: int = 0
    keys: dict[WorkerId, int] = field(default_factory=dict)
    busy: dict[WorkerId, float] = field(default_factory=dict)


class OperatorEpochs:
    """The epochs of one operator, over all of its queries."""

    def __init__(self, name: OperatorName, routing: RoutingTable, addresses: dict[WorkerId, str]) -> None:
        self.name = name
        self.routing = routing
        self.fresh = False
        """The user allows a query with committed epochs to start on empty state."""
        self.phase = Phase.IDLE
        self.turn = Turn(-1)
        self.epoch = Epoch(-1)
        self.query: QueryId | None = None
        self.run: RunId | None = None
        self.committed: dict[QueryId, Epoch] = {}
        self._addresses = addresses
        self._error: BedloadError | None = None
        self._past_runs: set[RunId] = set()
        self._spark_committed: Epoch | None = None
        self._query_ended = False
        self._opened: dict[str, m.Opened] = {}
        self._ordinals: dict[int, int] = {}
        self._first_stage = -1
        self._shapes: dict[int, int] = {}
        self._sealed = _Seal()
        self._probing: set[WorkerId] | None = None
        self._parked: list[tuple[Token, m.Open]] = []

    # --- events ---

    def open(self, token: Token, ask: m.Open, found: Found | None = None) -> list[Instruction]:
        """A feeder wants to take part; ``found`` is what was found out about a query because of it."""
        if self.run == ask.run and self.epoch == ask.epoch and self.phase is not Phase.IDLE:
            return self._join(token, ask)
        if self._is_stale(ask):
            return [_refuse(token, self._stale(ask))]
        if self.query is not None and ask.query != self.query and not self._query_ended:
            return self._take_over(token, ask, self.query, found)
        match self.phase:
            case Phase.OPEN if ask.query == self.query and ask.epoch > self.epoch:
                return self._park(token, ask, self._probe())
            case Phase.OPEN | Phase.SEALED if ask.query == self.query and ask.epoch == self.epoch:
                replay = EpochAborted(
                    f"operator {self.name}: epoch {self.epoch} was rolled back because Spark replays it"
                )
                return [*self._abort(replay), *self._start(token, ask, found)]
            case Phase.SEALED if ask.query == self.query and ask.epoch > self.epoch:
                return [*self._commit(), *self._start(token, ask, found)]
            case Phase.OPEN | Phase.SEALED:
                return [_refuse(token, self._behind(ask, self.epoch))]
            case Phase.ABORTED if ask.query == self.query and ask.epoch != self.epoch:
                return [_refuse(token, self._incomplete(self._error))]
            case _:
                return self._start(token, ask, found)

    def stage_inspected(self, turn: Turn, stage: int, feeders: int, shape: int) -> list[Instruction]:
        """The operator has this many feeders; the stage's own RDD has ``shape`` partitions."""
        if turn != self.turn:
            return []
        self._shapes[stage] = shape
        out: list[Instruction] = []
        if stage == self._first_stage and self.phase is Phase.OPEN:
            out += self._tell(m.Expect(self.name, turn, feeders))
        return out + self._unpark()

    def stage_unknown(self, turn: Turn, error: BedloadError) -> list[Instruction]:
        """A stage could not be inspected: the turn cannot be sealed, or a second action not be matched."""
        if turn != self.turn:
            return []
        if self.phase is Phase.OPEN:
            return self.failed(turn, error)
        parked, self._parked = self._parked, []
        out: list[Instruction] = []
        for token, ask in parked:
            second = self.phase is Phase.SEALED and (ask.run, ask.epoch) == (self.run, self.epoch)
            out += [_refuse(token, error)] if second else self.open(token, ask)
        return out

    def query_inspected(self, query: QueryId, turn: Turn, facts: QueryFacts) -> list[Instruction]:
        """What was found out about a query that stands in the way of an open, or about its own gap."""
        # SUBTLE: the query may have started again since somebody looked. Then it has begun another turn.
        return self._unpark((query, facts) if turn == self.turn else None)

    def query_unknown(self, error: BedloadError) -> list[Instruction]:
        """A query could not be inspected: whoever waited for that is refused, and Spark tries again."""
        parked, self._parked = self._parked, []
        return [_refuse(token, error) for token, _ in parked]

    def sealed(self, message: m.Sealed) -> list[Instruction]:
        """A worker has sealed the current turn."""
        if message.turn != self.turn or self.phase is not Phase.OPEN:
            return []
        self._sealed.rows += message.rows
        self._sealed.keys[message.worker] = message.keys
        self._sealed.busy[message.worker] = message.busy
        if len(self._sealed.keys) < len(self._addresses):
            return []
        self.phase = Phase.SEALED
        self._probing = None
        out = self._commit() if self._spark_committed == self.epoch else []
        return out + self._unpark()

    def feeder_failed(self, message: m.FeederFailed) -> list[Instruction]:
        """A feeder cannot go on with this turn. Each worker knows whether it is too late to roll back."""
        return self._tell(message) if message.turn == self.turn and self.phase is Phase.OPEN else []

    def failed(self, turn: Turn, error: BedloadError) -> list[Instruction]:
        """A worker cannot go on with this turn."""
        if turn != self.turn or self.phase is not Phase.OPEN:
            return []
        return [*self._abort(error), *self._unpark()]

    def probed(self, message: m.Probed) -> list[Instruction]:
        """A worker has said all that it had to say about this turn."""
        if message.turn != self.turn or self._probing is None:
            return []
        self._probing.discard(message.worker)
        if self._probing:
            return []
        return [*self._abort(self._incomplete(None)), *self._unpark()]

    def progress(self, query: QueryId, run: RunId, epoch: Epoch) -> list[Instruction]:
        """Spark has committed an epoch."""
        if query != self.query or run != self.run or epoch != self.epoch:
            return []
        self._spark_committed = epoch
        return self._commit() if self.phase is Phase.SEALED else []

    def query_ended(self, query: QueryId, run: RunId) -> list[Instruction]:
        """A run of a query is over. A sealed epoch stays: the next run says what became of it."""
        self._past_runs.add(run)
        return []

    def reset(self) -> list[Instruction]:
        """The user gives the state up: start empty, at whatever epoch Spark asks for."""
        out: list[Instruction] = []
        if self.phase in (Phase.OPEN, Phase.SEALED):
            out = self._abort(EpochAborted(f"operator {self.name}: its state was given up (fresh=True)"))
        self.phase, self._error, self.fresh = Phase.IDLE, None, True
        self.committed = {}
        if self.run is not None:
            self._past_runs.add(self.run)
        self.query, self.run, self._query_ended = None, None, False
        return [*out, *self._tell(m.Reset(self.name)), *self._unpark()]

    def lost(self, error: BedloadError) -> list[Instruction]:
        """A worker is gone, and state with it."""
        parked, self._parked = self._parked, []
        out: list[Instruction] = [_refuse(token, error) for token, _ in parked]
        if self.phase in (Phase.OPEN, Phase.SEALED):
            out = [*self._abort(error), *out]
        return out

    # --- steps ---

    def _join(self, token: Token, ask: m.Open) -> list[Instruction]:
        """Another feeder, attempt or action of the current turn."""
        if self.phase is Phase.ABORTED:
            assert self._error is not None
            return [_refuse(token, self._error)]
        again = self._opened.get(ask.nonce)
        if again is not None:
            return [Reply(token, again)]
        if ask.stage != self._first_stage:
            if ask.stage not in self._shapes or self._first_stage not in self._shapes:
                asked = ask.stage in self._shapes or any(p.stage == ask.stage for _, p in self._parked)
                return self._park(token, ask, [] if asked else [self._inspect(ask)])
            if self._shapes[ask.stage] != self._shapes[self._first_stage]:
                return [_refuse(token, self._other_shape(ask))]
        ordinal = self._ordinals.get(ask.attempt, 0)
        self._ordinals[ask.attempt] = ordinal + 1
        opened = m.Opened(self.turn, m.FeederId(ask.partition, ordinal), self.routing.owners, dict(self._addresses))
        self._opened[ask.nonce] = opened
        return [Reply(token, opened)]

    def _start(self, token: Token, ask: m.Open, found: Found | None) -> list[Instruction]:
        """Open a new turn for the epoch, if it follows the state."""
        last = self.committed.get(ask.query, Epoch(-1))
        if ask.epoch <= last:
            return [_refuse(token, self._behind(ask, last))]
        if ask.epoch > last + 1 and not self.fresh:
            if found is None or found[0] != ask.query:
                return self._park(token, ask, [InspectQuery(self.name, ask.query, self.turn)])
            return self._after_gap(token, ask, found[1])
        return self._begin(token, ask)

    def _is_stale(self, ask: m.Open) -> bool:
        """Whether the task is of a former run, or of a former epoch of this run."""
        if self.run == ask.run:
            return ask.epoch <= self.epoch
        # SUBTLE: a zombie of a run that never got to open anything is not among the past runs. Spark numbers
        # stages in ascending order, so one before the current run's tells that it is not a later run.
        return ask.run in self._past_runs or (ask.query == self.query and ask.stage < self._first_stage)

    def _take_over(self, token: Token, ask: m.Open, owner: QueryId, found: Found | None) -> list[Instruction]:
        """Another query wants the state: it gets it if the one that has it is over."""
        if found is None or found[0] != owner:
            return self._park(token, ask, [InspectQuery(self.name, owner, self.turn)])
        facts = found[1]
        if facts.active:
            return [_refuse(token, self._busy(ask))]
        if self.phase is Phase.OPEN and facts.committed is not None and facts.committed >= self.epoch:
            # Spark committed it: either word of the last seal is on its way, or the epoch was never whole.
            return self._park(token, ask, self._probe())
        return [*self._release(facts), *self.open(token, ask, found)]

    def _begin(self, token: Token, ask: m.Open) -> list[Instruction]:
        if self.run is not None and self.run != ask.run:
            self._past_runs.add(self.run)
        self.turn = Turn(self.turn + 1)
        self.epoch, self.query, self.run = ask.epoch, ask.query, ask.run
        self.phase, self._error, self._spark_committed = Phase.OPEN, None, None
        self._query_ended = False
        self.fresh = False
        self._opened, self._ordinals, self._shapes = {}, {}, {}
        self._first_stage = ask.stage
        self._sealed = _Seal()
        out: list[Instruction] = [
            ToWorker(
                worker,
                m.Begin(self.name, self.turn, ask.epoch, ask.query, ask.deployment, self.routing.groups_of(worker)),
            )
            for worker in self._addresses
        ]
        return [*out, self._inspect(ask), *self._join(token, ask), *self._unpark()]

    def _commit(self) -> list[Instruction]:
        assert self.query is not None
        assert self.run is not None
        self.phase = Phase.IDLE
        self.committed[self.query] = self.epoch
        seal = self._sealed
        ended = EpochEnded(self.name, self.query, self.run, self.epoch, True, seal.rows, seal.keys, seal.busy)
        return [*self._tell(m.Commit(self.name, self.turn)), ended]

    def _abort(self, error: BedloadError) -> list[Instruction]:
        assert self.query is not None
        assert self.run is not None
        self.phase, self._error, self._probing = Phase.ABORTED, error, None
        ended = EpochEnded(self.name, self.query, self.run, self.epoch, False, 0, {}, {})
        return [*self._tell(m.Abort(self.name, self.turn, m.WireError.of(error))), ended]

    def _release(self, facts: QueryFacts) -> list[Instruction]:
        """The operator's query is over and another one wants the state: settle what is pending."""
        out: list[Instruction] = []
        if self.phase in (Phase.OPEN, Phase.SEALED):
            if self.phase is Phase.SEALED and facts.committed is not None and facts.committed >= self.epoch:
                out = self._commit()
            else:
                out = self._abort(
                    EpochAborted(f"operator {self.name}: epoch {self.epoch} was rolled back: its query ended")
                )
        self._query_ended = True
        return out

    def _probe(self) -> list[Instruction]:
        if self._probing is not None:
            return []
        self._probing = set(self._addresses)
        return self._tell(m.Probe(self.name, self.turn))

    def _inspect(self, ask: m.Open) -> InspectStage:
        return InspectStage(self.name, ask.deployment, self.turn, ask.query, ask.epoch, ask.stage)

    def _park(self, token: Token, ask: m.Open, first: list[Instruction]) -> list[Instruction]:
        self._parked.append((token, ask))
        return first

    def _unpark(self, found: Found | None = None) -> list[Instruction]:
        parked, self._parked = self._parked, []
        return [step for token, ask in parked for step in self.open(token, ask, found)]

    def _after_gap(self, token: Token, ask: m.Open, facts: QueryFacts) -> list[Instruction]:
        """Begin, if there was nothing in the epochs between the state's and the asked one."""
        last = self.committed.get(ask.query, Epoch(-1))
        missing = [epoch for epoch in range(last + 1, ask.epoch) if Epoch(epoch) not in facts.without_data]
        if not missing:
            return self._begin(token, ask)
        if ask.query in self.committed:
            return [_refuse(token, self._skipped(missing))]
        return [_refuse(token, self._no_state(ask))]

    def _tell(self, message: m.Message) -> list[Instruction]:
        return [ToWorker(worker, message) for worker in self._addresses]

    # --- refusals ---

    def _stale(self, ask: m.Open) -> BedloadError:
        return StaleAttempt(
            f"operator {self.name}: a task of a former run or epoch (run {ask.run}, epoch {ask.epoch}) was "
            f"refused; the current one is run {self.run}, epoch {self.epoch}",
            operator=self.name,
        )

    def _busy(self, ask: m.Open) -> BedloadError:
        return OperatorBusy(
            f"operator {self.name} is in use by the running query {self.query}; query {ask.query} cannot use "
            f"its state at the same time. Stop the first query, or give the second application another name "
            f"(cluster.apply(..., name=...))",
            operator=self.name,
        )

    def _behind(self, ask: m.Open, last: Epoch) -> BedloadError:
        return EpochMismatch(
            f"operator {self.name}: Spark asks for epoch {ask.epoch}, but the state has committed epoch {last} "
            f"of this query. Spark's checkpoint is older than the state (a restored backup, or asynchronous "
            f"progress tracking): restore a checkpoint that reaches epoch {last}",
            operator=self.name,
            epoch=ask.epoch,
        )

    def _no_state(self, ask: m.Open) -> BedloadError:
        return EpochMismatch(
            f"operator {self.name}: Spark continues query {ask.query} at epoch {ask.epoch}, but there is no state "
            f"for its earlier epochs here: it was kept in memory and ended with its cluster, or foreachBatch ran no "
            f"action on the first batches. Start the query from a new checkpointLocation, or accept the loss with "
            f"cluster.apply(..., fresh=True)",
            operator=self.name,
            epoch=ask.epoch,
        )

    def _skipped(self, missing: list[int]) -> BedloadError:
        return EpochIncomplete(
            f"operator {self.name}: the rows of epoch {missing[0]} never came, yet Spark committed it. "
            f"foreachBatch returned without running an action on the batch: {_ACTION}",
            operator=self.name,
            epoch=missing[0],
        )

    def _incomplete(self, cause: BedloadError | None) -> BedloadError:
        if isinstance(cause, EpochIncomplete):
            return cause
        why = f" It had failed with: {cause.message}" if cause is not None else ""
        return EpochIncomplete(
            f"operator {self.name}: epoch {self.epoch} was never whole, yet Spark committed it, so its rows are "
            f"not in the state.{why} A consumer stopped early (limit, take, first, isEmpty as the only action in "
            f"foreachBatch) or swallowed an error: {_ACTION}",
            operator=self.name,
            epoch=self.epoch,
        )

    def _other_shape(self, ask: m.Open) -> BedloadError:
        return NotDeterministic(
            f"operator {self.name}, epoch {self.epoch}: two actions used the same batch with different "
            f"partitioning ({self._shapes[self._first_stage]} and {self._shapes[ask.stage]} partitions, say one "
            f"behind coalesce), so the second cannot be matched with the first. Call persist() on the batch in "
            f"foreachBatch",
            operator=self.name,
            epoch=self.epoch,
        )


_ACTION = (
    "run one action that consumes the whole batch in foreachBatch, or persist() it first. To go on, restart the "
    "query from a checkpoint before that epoch, or accept the loss with cluster.apply(..., fresh=True)"
)


def _refuse(token: Token, error: BedloadError) -> Reply:
    return Reply(token, m.Refused(m.WireError.of(error)))
