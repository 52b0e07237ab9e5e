"""One operator's epochs, as the coordinator sees them: a state machine without I/O.

Phases::

    IDLE ──Open──▶ OPEN ──Sealed by all──▶ SEALED ──Spark committed──▶ IDLE
                     │ failure, replay         │ replay
                     └──────▶ ABORTED ◀────────┘            (a replay opens a new turn)

Spark says only indirectly that it committed epoch N: it opens N+1, or its progress event for N arrives.
It says that it did *not* commit N by opening N again in a new run. So a sealed epoch waits until one of
these happens, or until somebody who waits for it looks into Spark's commit log, and nothing else ends it.

With a checkpoint (:class:`~bedload.control.lineage.Lineage`) the loss of a worker ends nothing but the epoch under way.
Whether that epoch is whole depends on what the lost worker wrote before it went: SETTLING finds out. The last turn that
another driver left behind counts as SEALED: the epoch that Spark asks for next tells what became of it.

This module decides which turn begins and who has a part in it; what becomes of it is in :mod:`bedload.control.turns`.

An ``Open`` that cannot be answered yet (a stage's shape, another query's state or the end of a seal has to be found out
first) waits in the :mod:`~bedload.control.room`, and is looked at again when the answer is there.
"""

from __future__ import annotations

from collections.abc import Callable

from bedload.control import refusals
from bedload.control.attempt import Attempt
from bedload.control.inquiries import Found, Inquiries, QueryFacts
from bedload.control.instructions import InspectStage, Instruction, Reply, Token, ToWorker
from bedload.control.lineage import Lineage
from bedload.control.recovery import Recovery
from bedload.control.refusals import refuse
from bedload.control.room import WaitingRoom
from bedload.control.standing import NOTHING, Phase, Standing
from bedload.control.turns import Turns
from bedload.core.errors import BedloadError, CheckpointError, EpochAborted
from bedload.core.ids import NO_EPOCH, NO_MOVE, Epoch, QueryId, RunId, Turn
from bedload.keys import RoutingTable
from bedload.protocol import messages as m


class OperatorEpochs:
    """The epochs of one operator, over all of its queries."""

    def __init__(self, standing: Standing, room: WaitingRoom, hold: Callable[[m.Open], bool] = lambda _: False) -> None:
        self.standing = standing
        self._room = room
        self.recovery = Recovery(standing)
        self.turns = Turns(standing, room, self.recovery, self.look_again)
        self.inquiries = Inquiries(standing, self.turns, self.recovery)
        self._first_ask: tuple[RunId | None, Epoch, float] = (None, NO_EPOCH, 0.0)
        self.fresh = False  # the user allows a query with committed epochs to start on empty state
        self.per_query = False  # a query that the state does not know starts on empty state
        self._hold = hold
        """Whether no turn may begin for now, because of this open."""
        self._query_ended = False
        if (lineage := standing.lineage) is not None and lineage.history.head is not None:
            self._take_up(lineage, lineage.history.head)

    def _take_up(self, lineage: Lineage, head: Turn) -> None:
        """Go on with what another driver left behind: its last epoch is durable, and Spark may have committed it."""
        at = self.standing
        held = lineage.history.record(head)
        at.turn = head
        if held is None:  # a snapshot stands alone: nothing before it is there any more
            manifest = lineage.history.manifest(head)
            assert manifest is not None
            at.committed = {QueryId(query): epoch for query, epoch in manifest.committed.items()}
            if manifest.epoch == NO_EPOCH:
                self.fresh = True  # it was given, no query made it: any may go on from it, whatever its epoch
            else:
                at.epoch, at.query = manifest.epoch, manifest.query
            lineage.head = head
            return
        at.phase, at.current = Phase.SEALED, Attempt(taken_up=True)
        at.epoch, at.query = held.epoch, held.query
        at.committed = {QueryId(query): epoch for query, epoch in held.committed.items()}
        lineage.head = held.parent

    # --- events ---

    def open(self, token: Token, ask: m.Open, found: Found | None = None) -> list[Instruction]:
        """A feeder wants to take part; ``found`` is what was found out about a query because of it."""
        at = self.standing
        self.asked(ask)
        if found is not None and found.turn != at.turn:
            found = None  # it has begun another turn since
        if at.holds(ask):
            return self._join(token, ask)
        if self._is_stale(ask):
            return [refuse(token, refusals.stale(at.name, ask, at.run, at.epoch))]
        if at.phase is Phase.SETTLING:
            return self._wait(token, ask, [])
        if at.query is not None and ask.query != at.query and not self._query_ended:
            return self._take_over(token, ask, at.query, found)
        match at.phase:
            case Phase.OPEN if ask.query == at.query and ask.epoch > at.epoch:
                return self._wait(token, ask, self.turns.probe())
            case Phase.OPEN | Phase.SEALED if ask.query == at.query and ask.epoch == at.epoch:
                return [*self._roll_back(" because Spark replays it"), *self._start(token, ask, found)]
            case Phase.SEALED if ask.query == at.query and ask.epoch > at.epoch:
                return [*self.turns.commit(), *self._start(token, ask, found)]
            case Phase.OPEN | Phase.SEALED if at.lineage is not None and ask.query == at.query:
                return [*self._roll_back(": Spark went back further"), *self._start(token, ask, found)]
            case Phase.OPEN | Phase.SEALED:
                return [refuse(token, refusals.behind(at.name, ask, at.epoch))]
            case Phase.ABORTED if at.lineage is not None and ask.query == at.query and ask.epoch < at.epoch:
                return self._start(token, ask, found)
            case Phase.ABORTED if ask.query == at.query and ask.epoch != at.epoch:
                return [refuse(token, refusals.incomplete(at.name, at.epoch, at.current.error))]
            case _:
                return self._start(token, ask, found)

    def asked_elsewhere(self, ask: m.Open) -> list[Instruction]:
        """Spark wants an epoch of another operator of the query: that says what became of the one before it here, too.

        It may be all that is heard of it. Progress events get lost, and where rows go through both operators, the open
        that this one waits for comes only when the other one's is answered.
        """
        at = self.standing
        if ask.query != at.query or at.phase not in (Phase.OPEN, Phase.SEALED) or self._is_stale(ask):
            return []
        if ask.epoch > at.epoch:
            return self.turns.commit() if at.phase is Phase.SEALED else self.turns.probe()
        if ask.epoch < at.epoch and at.lineage is None:
            return []
        return [*self._roll_back(" because Spark replays it"), *self.look_again()]

    def asked(self, ask: m.Open) -> None:
        """Spark wants an epoch: from now on it takes time, whether it can begin or not."""
        if self._first_ask[:2] != (ask.run, ask.epoch):
            self._first_ask = ask.run, ask.epoch, self.standing.clock.monotonic()

    def stage_unknown(self, turn: Turn, error: BedloadError) -> list[Instruction]:
        """A stage could not be inspected: the turn cannot be sealed, or a second action not be matched."""
        at = self.standing
        if turn != at.turn:
            return []
        # SUBTLE: only as long as no worker can have sealed it. Else its tasks may be done and Spark about to commit it.
        if at.phase is Phase.OPEN and at.current.feeders is None:
            return self.turns.failed(turn, error)
        out: list[Instruction] = []
        for it in self._room.leave(at.name):
            second = at.phase in (Phase.OPEN, Phase.SEALED) and at.has_begun(it.ask)
            out += [refuse(it.token, error)] if second else self.open(it.token, it.ask)
        return out

    def query_inspected(self, query: QueryId, turn: Turn, facts: QueryFacts) -> list[Instruction]:
        """What was found out about a query that stands in the way of an open, or about its own gap."""
        gap = self.inquiries.answered(query)
        # SUBTLE: the query may have started again since somebody looked. Then it has begun another turn.
        if turn != self.standing.turn:
            return self.look_again()
        out = self.inquiries.learn(facts) if query == self.standing.query else []
        return [*out, *self.look_again(Found(query, facts, gap, turn))]

    def query_unknown(self, error: BedloadError) -> list[Instruction]:
        """A query could not be inspected: whoever waited for that is refused, and Spark tries again."""
        self.inquiries.unanswered()
        return self._room.refuse(self.standing.name, error)

    def query_ended(self, query: QueryId, run: RunId) -> list[Instruction]:
        """A run of a query is over. A sealed epoch stays: the next run says what became of it."""
        self.standing.past_runs.add(run)
        return []

    def reset(self, routing: RoutingTable, lineage: Lineage | None = None) -> list[Instruction]:
        """The user gives the state up: start empty, at whatever epoch Spark asks for, with these owners.

        ``lineage`` has the schema that the state is written in from now on.
        """
        at = self.standing
        out: list[Instruction] = []
        if at.phase in (Phase.OPEN, Phase.SEALED, Phase.SETTLING):
            out = self.turns.abort(EpochAborted(f"operator {at.name}: its state was given up (fresh=True)"))
        at.phase, at.current.error, self.fresh = Phase.IDLE, None, True
        at.committed = {}
        at.in_memory = NOTHING
        if at.lineage is not None:
            at.lineage.reset()
        if at.run is not None:
            at.past_runs.add(at.run)
        at.query, at.run, self._query_ended = None, None, False
        move = NO_MOVE if at.transfer is None else at.transfer.reset()
        out += [ToWorker(worker, m.Reset(at.name, move)) for worker in at.addresses]
        # Before whoever waits is let in: a turn that begins with other owners than the next one would lose keys.
        at.set_routing(routing, "the state was given up")
        if lineage is not None and at.lineage is not None:
            at.lineage.adopt(lineage)
        return [*out, *self.look_again()]

    def ended(self, error: BedloadError) -> list[Instruction]:
        """The cluster is over."""
        at = self.standing
        out = self._room.refuse(at.name, error)
        if at.phase in (Phase.OPEN, Phase.SEALED, Phase.SETTLING) and at.run is not None:
            out = [*self.turns.abort(error), *out]
        return out

    # --- steps ---

    def _join(self, token: Token, ask: m.Open) -> list[Instruction]:
        """Another feeder, attempt or action of the current turn."""
        at = self.standing
        if at.phase in (Phase.ABORTED, Phase.SETTLING):
            assert at.current.error is not None
            return [refuse(token, at.current.error)]
        current = at.current
        if ask.deployment != current.deployment:
            return [refuse(token, refusals.used_twice(at.name, ask.query))]
        if current.gone is not None:
            return [refuse(token, current.gone)]  # nobody can repeat its outputs: Spark has to replay the epoch
        again = current.opened(ask.nonce)
        if again is not None:
            return [Reply(token, again)]
        first, shapes = current.first_stage, current.shapes
        if ask.stage != first:
            if ask.stage not in shapes or first not in shapes:
                asked = ask.stage in shapes or any(it.stage == ask.stage for it in self._room.asks(at.name))
                return self._wait(token, ask, [] if asked else [self._inspect(ask)])
            if shapes[ask.stage] != shapes[first]:
                other = refusals.other_shape(at.name, at.epoch, shapes[first], shapes[ask.stage])
                return [refuse(token, other)]
        backlog = {} if at.transfer is None else at.transfer.backlog()
        return [Reply(token, current.join(ask, at.turn, at.routing, at.addresses, backlog))]

    def _start(self, token: Token, ask: m.Open, found: Found | None) -> list[Instruction]:
        """Open a new turn for the epoch, if it follows the state."""
        at = self.standing
        last = at.committed.get(ask.query, Epoch(-1))
        if ask.epoch <= last:
            return self._go_back(token, ask, last)
        if self.per_query and at.committed and ask.query not in at.committed and ask.epoch == 0:
            way = self.inquiries.way_to_nothing(ask, found)
            if way is None:
                return [*self.reset(at.routing), *self._begin(token, ask)]
            return [refuse(token, way)] if isinstance(way, BedloadError) else self._wait(token, ask, way)
        if at.lineage is not None and at.committed and ask.query not in at.committed and not self.fresh:
            if found is None or found.query != ask.query:
                return self._wait(token, ask, self.inquiries.look(ask.query, gap=self.inquiries.gap(ask)))
            owner = self.inquiries.query_at(found.facts.location)
            if owner is not None:
                error = refusals.deleted(at.name, ask, owner, at.committed[owner], found.facts.location)
                return [refuse(token, error)]
        if ask.epoch > last + 1 and not self.fresh:
            gap = self.inquiries.gap(ask)
            # SUBTLE: somebody may have looked for another reason, and not into this gap.
            if found is None or found.query != ask.query or not set(gap) <= set(found.gap):
                return self._wait(token, ask, self.inquiries.look(ask.query, gap=gap))
            return self._after_gap(token, ask, found.facts)
        return self._begin(token, ask)

    def _go_back(self, token: Token, ask: m.Open, last: Epoch) -> list[Instruction]:
        """Spark asks for an epoch that is in the state: start from the state before it, if that is kept."""
        at = self.standing
        if at.lineage is None:
            return [refuse(token, refusals.behind(at.name, ask, last))]
        history = at.lineage.history
        turn = None if at.lineage.head is None else history.turn_of(ask.query, ask.epoch, at.lineage.head)
        base = None if turn is None else history.base_for(ask.query, ask.epoch, at.lineage.head)
        record = None if turn is None else history.record(turn)
        if base is None or record is None:
            return [refuse(token, refusals.not_retained(at.name, ask, last, history.describe_retained()))]
        at.lineage.head = base.turn
        at.committed = {QueryId(query): epoch for query, epoch in record.committed.items()}
        return self._begin(token, ask)

    def _is_stale(self, ask: m.Open) -> bool:
        """Whether the task is of a former run, or of a former epoch of this run."""
        at = self.standing
        if at.run == ask.run:
            return ask.epoch <= at.epoch
        # SUBTLE: a zombie of a run that never got to open anything is not among the past runs. Spark numbers
        # stages in ascending order, so one before the current run's tells that it is not a later run.
        return ask.run in at.past_runs or (ask.query == at.query and ask.stage < at.current.first_stage)

    def _take_over(self, token: Token, ask: m.Open, owner: QueryId, found: Found | None) -> list[Instruction]:
        """Another query wants the state: it gets it if the one that has it is over."""
        at = self.standing
        if found is None or found.query != owner:
            place = "" if at.lineage is None else at.lineage.locations.get(owner, "")
            return self._wait(token, ask, self.inquiries.look(owner, place))
        facts = found.facts
        if facts.active:
            return [refuse(token, refusals.busy(at.name, ask, at.query))]
        if at.phase is Phase.OPEN and facts.committed is not None and facts.committed >= at.epoch:
            # Spark committed it: either word of the last seal is on its way, or the epoch was never whole.
            return self._wait(token, ask, self.turns.probe())
        return [*self._end_query(facts), *self.open(token, ask, found)]

    def _begin(self, token: Token, ask: m.Open) -> list[Instruction]:
        at = self.standing
        if at.lacks_workers or self._hold(ask):
            return self._wait(token, ask, [])
        # SUBTLE: no turn begins on what a failed move has left between two owners.
        failed = [] if at.transfer is None else at.transfer.give_up()
        if at.run is not None and at.run != ask.run:
            at.past_runs.add(at.run)
        lineage = at.lineage
        at.turn = Turn(at.turn + 1) if lineage is None else lineage.next_turn(at.turn)
        at.epoch, at.query, at.run, at.phase = ask.epoch, ask.query, ask.run, Phase.OPEN
        # Who takes part is known only when it is known what flips here.
        at.current = Attempt(
            began=self._first_ask[2], first_stage=ask.stage, recorded=lineage is None, deployment=ask.deployment
        )
        self._query_ended = False
        self.inquiries.begun()
        if self.fresh and ask.epoch > at.committed.get(ask.query, Epoch(-1)) + 1:
            # The user lets the query start here: what was before it is no gap, also if this epoch has to be replayed.
            at.committed[ask.query] = Epoch(ask.epoch - 1)
        self.fresh = False
        out: list[Instruction] = failed
        if lineage is not None:
            try:
                self.recovery.begin()
                out += self.recovery.restore(ask.deployment, lineage.head)
            except CheckpointError as error:
                at.phase, at.current.error = Phase.ABORTED, error
                return [*failed, refuse(token, error), *self.look_again()]
        if at.transfer is not None and at.transfer.due and not at.reads_back:
            out += at.transfer.flip()
        workers = at.taking_part()
        at.current.workers = frozenset(workers)
        if lineage is not None:
            lineage.begins(workers)
            at.current.record = lineage.record(
                at.turn, ask.query, ask.run, ask.epoch, at.routing, at.committed, ask.deployment
            )
            lineage.history.add(at.current.record)  # it is written when the time of the epoch is known
        out += [
            ToWorker(
                worker,
                m.Begin(
                    at.name,
                    at.turn,
                    ask.epoch,
                    ask.query,
                    ask.deployment,
                    at.routing.groups_of(worker),
                    at.routing.guests_of(worker),
                    at.routing.away_from(worker),
                    at.base,
                ),
            )
            for worker in workers
        ]
        return [*out, self._inspect(ask), *self._join(token, ask), *self.look_again()]

    def _end_query(self, facts: QueryFacts) -> list[Instruction]:
        """The operator's query is over and another one wants the state: commit what is pending, or roll it back."""
        at = self.standing
        out: list[Instruction] = []
        if at.phase in (Phase.OPEN, Phase.SEALED):
            # SUBTLE: what another driver sealed and nobody knows the fate of stays: it is durable, and taking rows
            # out that may have reached the sink would be worse than keeping some that may not.
            known = facts.committed is not None and facts.committed >= at.epoch
            kept = facts.reaches(at.epoch) if at.current.taken_up else known
            if at.phase is Phase.SEALED and kept:
                out = self.turns.commit()
            else:
                out = self._roll_back(": its query ended")
        self._query_ended = True
        return out

    def _roll_back(self, why: str) -> list[Instruction]:
        at = self.standing
        return self.turns.abort(EpochAborted(f"operator {at.name}: epoch {at.epoch} was rolled back{why}"))

    def _inspect(self, ask: m.Open) -> InspectStage:
        at = self.standing
        return InspectStage(at.name, ask.deployment, at.turn, ask.query, ask.epoch, ask.stage)

    def _wait(self, token: Token, ask: m.Open, first: list[Instruction]) -> list[Instruction]:
        self._room.enter(token, ask)
        return first

    def look_again(self, found: Found | None = None) -> list[Instruction]:
        """Look at those that wait: something was found out, a turn ended, or all workers are there again."""
        return [step for it in self._room.leave(self.standing.name) for step in self.open(it.token, it.ask, found)]

    def _after_gap(self, token: Token, ask: m.Open, facts: QueryFacts) -> list[Instruction]:
        """Begin, if there was nothing in the epochs between the state's and the asked one."""
        at = self.standing
        gap = self.inquiries.gap(ask)
        missing = [epoch for epoch in gap if epoch not in facts.without_data]
        if not missing:
            return self._begin(token, ask)
        if not facts.reaches(gap[-1]):
            # SUBTLE: another query's open had somebody look before Spark committed what lies between.
            if self.inquiries.log_behind(ask) < _LOG_SECONDS:
                return self._wait(token, ask, self.inquiries.look(ask.query, gap=gap, pause=_LOOK_AGAIN_SECONDS))
            return [refuse(token, refusals.log_behind(at.name, ask, facts.committed, _LOG_SECONDS))]
        if ask.query in at.committed:
            return [refuse(token, refusals.skipped(at.name, missing))]
        return [refuse(token, refusals.no_state(at.name, ask))]


_LOOK_AGAIN_SECONDS = 0.2
_LOG_SECONDS = 60.0  # how long Spark's commit log may stay behind the epoch that it asks for
