"""One operator's epochs, as the coordinator sees them: a state machine without I/O.

Phases::

    IDLE ──Open──▶ OPEN ──Sealed by all──▶ SEALED ──Spark committed──▶ IDLE
                     │ failure, replay         │ replay
                     └──────▶ ABORTED ◀────────┘            (a replay opens a new turn)

Spark says only indirectly that it committed epoch N: it opens N+1, or its progress event for N arrives.
It says that it did *not* commit N by opening N again in a new run. So a sealed epoch waits until one of
these happens, or until somebody who waits for it looks into Spark's commit log, and nothing else ends it.

With a checkpoint (:class:`~bedload.control.lineage.Lineage`) the loss of a worker ends nothing but the epoch
under way. Whether that is whole depends on what the lost worker wrote before it went: SETTLING finds out. What
another driver left behind is taken up as SEALED: Spark says what became of it by what it asks for.

Here is decided which turn begins and who has a part in it; what becomes of it is in :mod:`bedload.control.turns`.

An ``Open`` that cannot be answered yet (a stage's shape, another query's state or the end of a seal has
to be found out first) is parked and looked at again when the answer is there.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from bedload.control import refusals
from bedload.control.attempt import Attempt
from bedload.control.instructions import (
    InspectQuery,
    InspectStage,
    Instruction,
    Reply,
    Token,
    ToWorker,
    WriteTurn,
)
from bedload.control.lineage import Lineage
from bedload.control.standing import Phase
from bedload.control.turns import Turns, refuse
from bedload.core.clock import Clock
from bedload.core.errors import BedloadError, CheckpointError, EpochAborted
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


@dataclass(frozen=True)
class QueryFacts:
    """What the driver found out about a query."""

    active: bool
    committed: Epoch | None
    """The latest epoch in the query's commit log, if that could be read."""
    without_data: frozenset[Epoch]
    """Epochs in which a source had nothing to read, so that an operator may have had no partition."""
    location: str = ""
    """The query's checkpoint location, if that is known."""
    log_read: bool = False
    """The commit log was read: if no epoch is in it, none was committed."""

    def reaches(self, epoch: Epoch) -> bool:
        """Whether that epoch may have been committed when somebody looked."""
        if self.committed is None:
            return not self.log_read
        return self.committed >= epoch


Found = tuple[QueryId, QueryFacts, tuple[Epoch, ...]]
"""What was found out, about whom, and into which gap somebody looked."""


class OperatorEpochs(Turns):
    """The epochs of one operator, over all of its queries."""

    def __init__(
        self,
        name: OperatorName,
        routing: RoutingTable,
        addresses: dict[WorkerId, str],
        lineage: Lineage | None = None,
        missing: Container[WorkerId] = (),
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, routing, addresses, lineage, missing, clock)
        self._first_ask: tuple[RunId | None, Epoch, float] = (None, NO_EPOCH, 0.0)
        self.fresh = False
        """The user allows a query with committed epochs to start on empty state."""
        self.hold: Callable[[m.Open], bool] = lambda _: False
        """Whether no turn may begin for now, because of this open."""
        self.deployment: DeploymentId | None = None
        """The code of the last turn."""
        self._query_ended = False
        self._looking: dict[QueryId, tuple[Epoch, ...]] = {}
        """Queries that somebody looks at because of an open, and into which gap."""
        self._behind: dict[tuple[RunId, Epoch], float] = {}
        """Since when the commit log has not reached what an open follows."""
        self._looks_in_vain = 0
        """How often in a row nobody could say what became of the last turn, with no run that would."""
        if lineage is not None and lineage.history.head is not None:
            self._take_up(lineage, lineage.history.head)

    def _take_up(self, lineage: Lineage, head: Turn) -> None:
        """Go on with what another driver left behind: its last epoch is durable, and Spark may have committed it."""
        held = lineage.history.record(head)
        self.turn = head
        if held is None:  # a snapshot stands alone: nothing before it is there any more
            manifest = lineage.history.manifest(head)
            assert manifest is not None
            self.committed = {QueryId(query): epoch for query, epoch in manifest.committed.items()}
            if manifest.epoch == NO_EPOCH:
                self.fresh = True  # it was given, no query made it: any may go on from it, whatever its epoch
            else:
                self.epoch, self.query = manifest.epoch, manifest.query
            lineage.head = head
            return
        self.phase, self._current = Phase.SEALED, Attempt(taken_up=True)
        self.epoch, self.query = held.epoch, held.query
        self.committed = {QueryId(query): epoch for query, epoch in held.committed.items()}
        lineage.head = held.parent

    # --- events ---

    def open(self, token: Token, ask: m.Open, found: Found | None = None) -> list[Instruction]:
        """A feeder wants to take part; ``found`` is what was found out about a query because of it."""
        self.asked(ask)
        if self.run == ask.run and self.epoch == ask.epoch and self.phase is not Phase.IDLE:
            return self._join(token, ask)
        if self._is_stale(ask):
            return [refuse(token, refusals.stale(self.name, ask, self.run, self.epoch))]
        if self.phase is Phase.SETTLING:
            return self._park(token, ask, [])
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
            case Phase.OPEN | Phase.SEALED if self.lineage is not None and ask.query == self.query:
                back = EpochAborted(
                    f"operator {self.name}: epoch {self.epoch} was rolled back: Spark went back further"
                )
                return [*self._abort(back), *self._start(token, ask, found)]
            case Phase.OPEN | Phase.SEALED:
                return [refuse(token, refusals.behind(self.name, ask, self.epoch))]
            case Phase.ABORTED if self.lineage is not None and ask.query == self.query and ask.epoch < self.epoch:
                return self._start(token, ask, found)
            case Phase.ABORTED if ask.query == self.query and ask.epoch != self.epoch:
                return [refuse(token, refusals.incomplete(self.name, self.epoch, self._error))]
            case _:
                return self._start(token, ask, found)

    def asked_elsewhere(self, ask: m.Open) -> list[Instruction]:
        """Spark wants an epoch of another operator of the query: that says what became of the one before it here, too.

        It may be all that is heard of it. Progress events get lost, and where rows go through both operators, the open
        that this one waits for comes only when the other one's is answered.
        """
        if ask.query != self.query or self.phase not in (Phase.OPEN, Phase.SEALED) or self._is_stale(ask):
            return []
        if ask.epoch > self.epoch:
            return self._commit() if self.phase is Phase.SEALED else self._probe()
        if ask.epoch < self.epoch and self.lineage is None:
            return []
        replay = EpochAborted(f"operator {self.name}: epoch {self.epoch} was rolled back because Spark replays it")
        return [*self._abort(replay), *self._unpark()]

    def is_in(self, ask: m.Open) -> bool:
        """Whether the epoch of an open is under way here."""
        return self.under_way and (self.query, self.run, self.epoch) == (ask.query, ask.run, ask.epoch)

    def asked(self, ask: m.Open) -> None:
        """Spark wants an epoch: from now on it takes time, whether it can begin or not."""
        if self._first_ask[:2] != (ask.run, ask.epoch):
            self._first_ask = ask.run, ask.epoch, self._clock.monotonic()

    def stage_unknown(self, turn: Turn, error: BedloadError) -> list[Instruction]:
        """A stage could not be inspected: the turn cannot be sealed, or a second action not be matched."""
        if turn != self.turn:
            return []
        # SUBTLE: only as long as no worker can have sealed it. Else its tasks may be done and Spark about to commit it.
        if self.phase is Phase.OPEN and self._current.feeders is None:
            return self.failed(turn, error)
        parked, self._parked = self._parked, []
        out: list[Instruction] = []
        for token, ask in parked:
            second = self.phase in (Phase.OPEN, Phase.SEALED) and (ask.run, ask.epoch) == (self.run, self.epoch)
            out += [refuse(token, error)] if second else self.open(token, ask)
        return out

    def query_inspected(self, query: QueryId, turn: Turn, facts: QueryFacts) -> list[Instruction]:
        """What was found out about a query that stands in the way of an open, or about its own gap."""
        gap = self._looking.pop(query, ())
        # SUBTLE: the query may have started again since somebody looked. Then it has begun another turn.
        if turn != self.turn:
            return self._unpark()
        out = self._learn(facts) if query == self.query else []
        return [*out, *self._unpark((query, facts, gap))]

    def _learn(self, facts: QueryFacts) -> list[Instruction]:
        """Draw what follows for the last turn from a look at its query."""
        if self.run is not None and not facts.active:
            self._past_runs.add(self.run)
        committed = facts.committed is not None and facts.committed >= self.epoch
        if self.phase is Phase.SEALED and committed:
            return self._commit()
        if self.phase is Phase.SEALED and not facts.active:
            # SUBTLE: not rolled back. The next run need not replay it: a sink that has the epoch skips it, as Spark's
            # file sink does, and Spark commits it without a task of ours.
            self._looks_in_vain += 1
            return []
        self._looks_in_vain = 0
        if self.phase is Phase.OPEN and (committed or self.run in self._past_runs):
            # Its tasks are over: it was sealed, and word of that is on its way, or it never will be.
            return self._probe()
        return []

    def inquire(self) -> list[Instruction]:
        """Somebody waits for the end of this epoch: look now and then what became of it.

        Spark's word may not come: progress events get lost, the next epoch's open may wait for a task slot, and a query
        that was stopped may never start again.
        """
        if self.query is None or not (self.unknown or self.unread is not None):
            return []
        place = "" if self.lineage is None else self.lineage.locations.get(self.query, "")
        return self._look(self.query, place, pause=_WAITING_SECONDS)

    def try_again(self) -> None:
        """Somebody needs what was looked for or read in vain."""
        self._looks_in_vain, self._reads_in_vain = 0, 0
        self._forget_failure()

    def reads_again(self) -> bool:
        """Whether state that could not be read back, and that somebody needs, is tried again, after a pause; or not."""
        if self.query is None or self._reads_in_vain > MOST_READS:
            return False
        if self.now - self._unread_at >= _WAITING_SECONDS:
            self._forget_failure()
        return True

    @property
    def in_the_dark(self) -> bool:
        """Whether nobody can say what became of the last turn, and no run goes on that would: it was tried for long."""
        return self.unknown and self._looks_in_vain >= MOST_LOOKS

    def query_unknown(self, error: BedloadError) -> list[Instruction]:
        """A query could not be inspected: whoever waited for that is refused, and Spark tries again."""
        self._looking.clear()
        self._looks_in_vain += 1
        return self.refuse_parked(error)

    def query_ended(self, query: QueryId, run: RunId) -> list[Instruction]:
        """A run of a query is over. A sealed epoch stays: the next run says what became of it."""
        self._past_runs.add(run)
        return []

    def reset(self, routing: RoutingTable, lineage: Lineage | None = None) -> list[Instruction]:
        """The user gives the state up: start empty, at whatever epoch Spark asks for, with these owners.

        ``lineage`` has the schema that the state is written in from now on.
        """
        out: list[Instruction] = []
        if self.phase in (Phase.OPEN, Phase.SEALED, Phase.SETTLING):
            out = self._abort(EpochAborted(f"operator {self.name}: its state was given up (fresh=True)"))
        self.phase, self._error, self.fresh = Phase.IDLE, None, True
        self.committed = {}
        self._committed_turn, self._committed_epoch = NO_TURN, (NO_EPOCH, NO_QUERY)
        if self.lineage is not None:
            self.lineage.reset()
        if self.run is not None:
            self._past_runs.add(self.run)
        self.query, self.run, self._query_ended = None, None, False
        move = -1 if self.transfer is None else self.transfer.reset()
        out += [ToWorker(worker, m.Reset(self.name, move)) for worker in self.addresses]
        # Before whoever waits is let in: a turn that begins with other owners than the next one would lose keys.
        self.routing = routing
        if lineage is not None and self.lineage is not None:
            self.lineage.adopt(lineage)
        return [*out, *self._unpark()]

    def ended(self, error: BedloadError) -> list[Instruction]:
        """The cluster is over."""
        out = self.refuse_parked(error)
        if self.phase in (Phase.OPEN, Phase.SEALED, Phase.SETTLING) and self.run is not None:
            out = [*self._abort(error), *out]
        return out

    def holds(self, ask: m.Open) -> bool:
        """Whether an open is of the turn that is under way, so that it need not wait for another worker."""
        return (ask.run, ask.epoch) == (self.run, self.epoch) and self.phase is not Phase.IDLE

    def go_on(self) -> list[Instruction]:
        """All workers are there again."""
        return self._unpark()

    # --- steps ---

    def _join(self, token: Token, ask: m.Open) -> list[Instruction]:
        """Another feeder, attempt or action of the current turn."""
        if self.phase in (Phase.ABORTED, Phase.SETTLING):
            assert self._error is not None
            return [refuse(token, self._error)]
        current = self._current
        if ask.deployment != current.deployment:
            return [refuse(token, refusals.used_twice(self.name, ask.query))]
        if current.gone is not None:
            return [refuse(token, current.gone)]  # nobody can repeat its outputs: Spark has to replay the epoch
        again = current.opened(ask.nonce)
        if again is not None:
            return [Reply(token, again)]
        first, shapes = current.first_stage, current.shapes
        if ask.stage != first:
            if ask.stage not in shapes or first not in shapes:
                asked = ask.stage in shapes or any(parked.stage == ask.stage for _, parked in self._parked)
                return self._park(token, ask, [] if asked else [self._inspect(ask)])
            if shapes[ask.stage] != shapes[first]:
                return [refuse(token, refusals.other_shape(self.name, self.epoch, shapes[first], shapes[ask.stage]))]
        backlog = {} if self.transfer is None else self.transfer.backlog()
        return [Reply(token, current.join(ask, self.turn, self.routing, self.addresses, backlog))]

    def _start(self, token: Token, ask: m.Open, found: Found | None) -> list[Instruction]:
        """Open a new turn for the epoch, if it follows the state."""
        last = self.committed.get(ask.query, Epoch(-1))
        if ask.epoch <= last:
            return self._go_back(token, ask, last)
        if self.lineage is not None and self.committed and ask.query not in self.committed and not self.fresh:
            if found is None or found[0] != ask.query:
                return self._park(token, ask, self._look(ask.query, gap=self._gap(ask)))
            owner = self._at(found[1].location)
            if owner is not None:
                error = refusals.deleted(self.name, ask, owner, self.committed[owner], found[1].location)
                return [refuse(token, error)]
        if ask.epoch > last + 1 and not self.fresh:
            gap = self._gap(ask)
            # SUBTLE: somebody may have looked for another reason, and not into this gap.
            if found is None or found[0] != ask.query or not set(gap) <= set(found[2]):
                return self._park(token, ask, self._look(ask.query, gap=gap))
            return self._after_gap(token, ask, found[1])
        return self._begin(token, ask)

    def _go_back(self, token: Token, ask: m.Open, last: Epoch) -> list[Instruction]:
        """Spark asks for an epoch that is in the state: start from the state before it, if that is kept."""
        if self.lineage is None:
            return [refuse(token, refusals.behind(self.name, ask, last))]
        history = self.lineage.history
        turn = None if self.lineage.head is None else history.turn_of(ask.query, ask.epoch, self.lineage.head)
        base = None if turn is None else history.base_for(ask.query, ask.epoch, self.lineage.head)
        record = None if turn is None else history.record(turn)
        if base is None or record is None:
            return [refuse(token, refusals.not_retained(self.name, ask, last, history.describe_retained()))]
        self.lineage.head = base.turn
        self.committed = {QueryId(query): epoch for query, epoch in record.committed.items()}
        return self._begin(token, ask)

    def _at(self, location: str) -> QueryId | None:
        """The query in the state that had its Spark checkpoint at a place."""
        assert self.lineage is not None
        for query, place in self.lineage.locations.items():
            if place == location and place and query in self.committed:
                return query
        return None

    def _is_stale(self, ask: m.Open) -> bool:
        """Whether the task is of a former run, or of a former epoch of this run."""
        if self.run == ask.run:
            return ask.epoch <= self.epoch
        # SUBTLE: a zombie of a run that never got to open anything is not among the past runs. Spark numbers
        # stages in ascending order, so one before the current run's tells that it is not a later run.
        return ask.run in self._past_runs or (ask.query == self.query and ask.stage < self._current.first_stage)

    def _take_over(self, token: Token, ask: m.Open, owner: QueryId, found: Found | None) -> list[Instruction]:
        """Another query wants the state: it gets it if the one that has it is over."""
        if found is None or found[0] != owner:
            place = "" if self.lineage is None else self.lineage.locations.get(owner, "")
            return self._park(token, ask, self._look(owner, place))
        facts = found[1]
        if facts.active:
            return [refuse(token, refusals.busy(self.name, ask, self.query))]
        if self.phase is Phase.OPEN and facts.committed is not None and facts.committed >= self.epoch:
            # Spark committed it: either word of the last seal is on its way, or the epoch was never whole.
            return self._park(token, ask, self._probe())
        return [*self._release(facts), *self.open(token, ask, found)]

    def _begin(self, token: Token, ask: m.Open) -> list[Instruction]:
        if any(worker in self._missing for worker in self.routing.workers) or self.hold(ask):
            return self._park(token, ask, [])
        # SUBTLE: no turn begins on what a failed move has left between two owners.
        failed = [] if self.transfer is None else self.transfer.give_up()
        if self.run is not None and self.run != ask.run:
            self._past_runs.add(self.run)
        lineage = self.lineage
        self.turn = Turn(self.turn + 1) if lineage is None else lineage.next_turn(self.turn)
        self.epoch, self.query, self.run = ask.epoch, ask.query, ask.run
        self.phase, self._error, self.deployment = Phase.OPEN, None, ask.deployment
        # Who takes part is known only when it is known what flips here.
        self._current = Attempt(frozenset(), self._first_ask[2], first_stage=ask.stage, recorded=lineage is None)
        self._query_ended = False
        self._behind.clear()
        self._looks_in_vain = 0
        if self.fresh and ask.epoch > self.committed.get(ask.query, Epoch(-1)) + 1:
            # The user lets the query start here: what was before it is no gap, also if this epoch has to be replayed.
            self.committed[ask.query] = Epoch(ask.epoch - 1)
        self.fresh = False
        out: list[Instruction] = failed
        if lineage is not None:
            try:
                self._reads_in_vain = 0
                self._forget_failure()
                out += self._restore(ask.deployment, lineage.head)
            except CheckpointError as error:
                self.phase, self._error = Phase.ABORTED, error
                return [*failed, refuse(token, error), *self._unpark()]
        if self.transfer is not None and self.transfer.due and not self.reads_back:
            out += self.transfer.flip()
        workers = self._taking_part()
        self._current.workers, self._current.deployment = frozenset(workers), ask.deployment
        if lineage is not None:
            lineage.begins(workers)
            record = lineage.record(self.turn, ask.query, ask.run, ask.epoch, self.routing, self.committed)
            lineage.history.add(record)
            out.append(WriteTurn(self.name, record))
        out += [
            ToWorker(
                worker,
                m.Begin(
                    self.name,
                    self.turn,
                    ask.epoch,
                    ask.query,
                    ask.deployment,
                    self.routing.groups_of(worker),
                    self.routing.guests_of(worker),
                ),
            )
            for worker in workers
        ]
        return [*out, self._inspect(ask), *self._join(token, ask), *self._unpark()]

    def _release(self, facts: QueryFacts) -> list[Instruction]:
        """The operator's query is over and another one wants the state: settle what is pending."""
        out: list[Instruction] = []
        if self.phase in (Phase.OPEN, Phase.SEALED):
            # SUBTLE: what another driver sealed and nobody knows the fate of stays: it is durable, and taking rows
            # out that may have reached the sink would be worse than keeping some that may not.
            known = facts.committed is not None and facts.committed >= self.epoch
            kept = facts.reaches(self.epoch) if self._current.taken_up else known
            if self.phase is Phase.SEALED and kept:
                out = self._commit()
            else:
                out = self._abort(
                    EpochAborted(f"operator {self.name}: epoch {self.epoch} was rolled back: its query ended")
                )
        self._query_ended = True
        return out

    def _inspect(self, ask: m.Open) -> InspectStage:
        return InspectStage(self.name, ask.deployment, self.turn, ask.query, ask.epoch, ask.stage)

    def _park(self, token: Token, ask: m.Open, first: list[Instruction]) -> list[Instruction]:
        self._parked.append((token, ask))
        return first

    def _unpark(self, found: Found | None = None) -> list[Instruction]:
        parked, self._parked = self._parked, []
        turn, out = self.turn, list[Instruction]()
        for token, ask in parked:
            # What was found out about a query does not hold any more when it has begun another turn.
            out += self.open(token, ask, found if self.turn == turn else None)
        return out

    def _look(
        self, query: QueryId, place: str = "", *, gap: tuple[Epoch, ...] = (), pause: float = 0.0
    ) -> list[Instruction]:
        """Have somebody look at a query, unless somebody does: the answer is for all that wait."""
        if query in self._looking:
            return []
        self._looking[query] = gap
        return [InspectQuery(self.name, query, self.turn, place, gap, pause)]

    def _gap(self, ask: m.Open) -> tuple[Epoch, ...]:
        """The epochs between the state's and the asked one."""
        last = self.committed.get(ask.query, Epoch(-1))
        return tuple(Epoch(epoch) for epoch in range(last + 1, ask.epoch))

    def _after_gap(self, token: Token, ask: m.Open, facts: QueryFacts) -> list[Instruction]:
        """Begin, if there was nothing in the epochs between the state's and the asked one."""
        gap = self._gap(ask)
        missing = [epoch for epoch in gap if epoch not in facts.without_data]
        if not missing:
            return self._begin(token, ask)
        if not facts.reaches(gap[-1]):
            # SUBTLE: another query's open had somebody look before Spark committed what lies between.
            since = self._behind.setdefault((ask.run, ask.epoch), self.now)
            if self.now - since < _LOG_SECONDS:
                return self._park(token, ask, self._look(ask.query, gap=gap, pause=_LOOK_AGAIN_SECONDS))
            return [refuse(token, refusals.log_behind(self.name, ask, facts.committed, _LOG_SECONDS))]
        if ask.query in self.committed:
            return [refuse(token, refusals.skipped(self.name, missing))]
        return [refuse(token, refusals.no_state(self.name, ask))]


_LOOK_AGAIN_SECONDS = 0.2
_WAITING_SECONDS = 2.0
"""Between two looks at a query whose epoch somebody waits for: most of the time Spark's word comes before the first."""
MOST_READS = 15
"""So often in a row state that a move needs is read back in vain before whoever waits for that is told."""
MOST_LOOKS = 60
"""So often in a row it is looked in vain for what became of an epoch before whoever waits for that is told."""
_LOG_SECONDS = 60.0
"""How long Spark's commit log may stay behind the epoch that it asks for."""
