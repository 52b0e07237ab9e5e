"""The coordinator: all operators of a cluster and its workers. Events in, instructions out, no I/O.

Its driver (the Spark driver's endpoint, the in-process cluster, the simulator) calls one method per
event and carries out the instructions that come back, in order. Messages to one worker stay in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bedload.checkpoint.records import Manifest, TurnRecord
from bedload.control import refusals
from bedload.control.changes import MAX_STARTS, Changes
from bedload.control.compaction import Compaction, Retention
from bedload.control.epochs import OperatorEpochs
from bedload.control.inquiries import QueryFacts
from bedload.control.instructions import (
    ChangeResult,
    CheckpointResult,
    DeployResult,
    EpochEnded,
    Instruction,
    ReplaceWorker,
    Token,
    ToWorker,
    WorkersLeft,
)
from bedload.control.lineage import Lineage
from bedload.control.members import Life, Members, Worker
from bedload.control.refusals import refuse
from bedload.control.rollout import Rollout
from bedload.control.room import Until, WaitingRoom
from bedload.control.standing import Phase, Standing
from bedload.control.wish import Wish
from bedload.core.clock import Clock
from bedload.core.errors import (
    BedloadError,
    ClusterStopped,
    Fenced,
    ProtocolError,
    UnknownOperator,
    WorkerLost,
    WorkerStartFailed,
)
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId, Turn, WorkerId
from bedload.keys import RoutingTable
from bedload.protocol import messages as m


class Coordinator:
    """The state of a cluster, as decided in the driver."""

    def __init__(
        self,
        workers: Iterable[Worker],
        *,
        durable: bool = False,
        retention: Retention | None = None,
        takes_slots: bool = False,
        clock: Clock,
    ) -> None:
        self.members = Members(workers)
        self._durable = durable
        """State is in a checkpoint: a lost worker is replaced, and what it had is read back."""
        self._takes_slots = takes_slots
        """A worker takes a Spark task slot: no feeder may wait for one, in what may be the slot that it needs."""
        self._retention = retention or Retention()
        self._compactions: dict[OperatorName, Compaction] = {}
        self._rollout = Rollout(self.members)
        self._losses = 0
        """Workers lost since an epoch was committed."""
        self._room = WaitingRoom()
        self._operators: dict[OperatorName, OperatorEpochs] = {}
        self._down: BedloadError | None = None
        self._clock = clock
        self._unsettled: tuple[WorkerId, WorkerLost, WorkerLost] | None = None
        """Without a checkpoint: a worker that was lost, while it is found out whether state was lost with it."""
        self.changes = Changes(self._operators, self.members, self._rollout.latest, self._clock, durable=durable)
        self._held = False
        """Whether no epoch could begin when something happened last, because all workers start anew."""
        self.restoring: dict[tuple[OperatorName, WorkerId], m.Restored] = {}
        """How far each worker has come with reading state back."""

    # --- what the user asks for ---

    def deploy(
        self,
        token: Token,
        operator: OperatorName,
        key_groups: int,
        payload: bytes,
        *,
        running: frozenset[QueryId] = frozenset(),
        fresh: bool = False,
        lineage: Lineage | None = None,
    ) -> tuple[DeploymentId, list[Instruction]]:
        """Give an operator to every worker; answered by a :class:`DeployResult`.

        ``running`` names the queries that run now, to refuse an operator that is in use. ``lineage`` is what the
        checkpoint has of an operator that is new to this coordinator, or ``fresh``.
        """
        deployment = self._rollout.number()
        known = self._operators.get(operator)
        if self._down is not None:
            return deployment, [DeployResult(token, self._down)]
        if known is not None and known.standing.query in running:
            return deployment, [DeployResult(token, refusals.in_use(operator, known.standing.query))]
        if known is not None and known.standing.routing.key_groups != key_groups and not fresh:
            return deployment, [
                DeployResult(token, refusals.groups_changed(operator, known.standing.routing.key_groups, key_groups))
            ]
        out: list[Instruction] = []
        if known is None:
            known = self._take_in(operator, key_groups, lineage, fresh=fresh)
        elif fresh:
            out += known.reset(RoutingTable.initial(key_groups, self.members.owning), lineage)
        active = known.standing.deployment
        out += self._rollout.roll_out(token, operator, deployment, key_groups, payload, active=active)
        # Without a worker nobody would answer; the replacements get the code when they come.
        return deployment, out if self.members.addresses else [*out, *self._deployed_by_all()]

    def _take_in(self, name: OperatorName, key_groups: int, lineage: Lineage | None, *, fresh: bool) -> OperatorEpochs:
        """An operator is new here."""
        routing = RoutingTable.initial(key_groups, self.members.owning)
        standing = Standing(name, routing, self.members, lineage, self._clock)
        standing.loads, standing.on_routing = partial(self._rollout.loads, name), self.changes.routed
        epochs = self._operators[name] = OperatorEpochs(standing, self._room, self._holds)
        if fresh:
            epochs.reset(routing)
        if lineage is not None:
            self._compactions[name] = Compaction(standing, self._retention)
        return epochs

    def checkpoint(self, token: Token, operator: OperatorName) -> list[Instruction]:
        """Have all that is committed of an operator in a snapshot; answered by a :class:`CheckpointResult`."""
        compaction = self._compactions.get(operator)
        if self._down is not None or compaction is None:
            return [CheckpointResult(token, self._down)]
        return compaction.ask(token)

    def change(self, token: Token, wish: Wish) -> tuple[int, list[Instruction]]:
        """Change the cluster while it runs; answered by a :class:`ChangeResult`."""
        if self._down is not None:
            return -1, [ChangeResult(token, -1, self._down)]
        number, out = self.changes.ask(token, wish)
        return number, self._then(out)

    def cancel(self, number: int) -> tuple[bool, list[Instruction]]:
        """Call a change off, if nothing has flipped yet; whether that could be done."""
        could, out = self.changes.cancel(number)
        return could, self._then(out)

    def stop(self) -> list[Instruction]:
        """End the cluster."""
        out = self._end(ClusterStopped("the cluster was stopped; attach again with bedload.attach(...)"))
        return [*out, *(ToWorker(worker, m.Stop()) for worker in (*self.members.addresses, *self.members.loading))]

    # --- events ---

    def open(self, token: Token, ask: m.Open) -> list[Instruction]:
        """A feeder asks to take part in an epoch."""
        epochs = self._operators.get(ask.operator)
        error = self._down
        if error is None and epochs is None:
            error = UnknownOperator(f"operator {ask.operator!r} was not applied on this cluster")
        if error is not None or epochs is None:
            return [refuse(token, error or ProtocolError("no operator"))]
        out: list[Instruction] = []
        for other in self._operators.values():
            if other is not epochs:
                out += other.asked_elsewhere(ask)
        late = not epochs.standing.holds(ask)
        if late and not self._rollout.knows(ask.operator, ask.deployment):
            return [refuse(token, refusals.superseded(ask.operator))]
        if late and (missing := self.members.missing):
            if self._takes_slots:
                error = next(iter(missing.values()))
                return self._then([*out, refuse(token, error)])
            epochs.asked(ask)
            self._room.enter(token, ask, Until.REPLACED)
            return self._then(out)
        # SUBTLE: before a restart, too. It begins nothing then, but it may be all that says what became of the epoch
        # before it, which the restart waits for.
        out += epochs.open(token, ask)
        if self.changes.holding and self._takes_slots and late:
            out += self._room.refuse(epochs.standing.name, refusals.restarting())
        return self._then(out)

    def _holds(self, ask: m.Open) -> bool:
        """Whether no turn may begin for now.

        SUBTLE: one of an epoch that another operator of the query is in may. That epoch would never end without it, and
        whoever holds turns up waits for that.
        """
        if self._unsettled is not None:
            return True
        return self.changes.holding and not any(epochs.standing.is_in(ask) for epochs in self._operators.values())

    def feeder_failed(self, message: m.FeederFailed) -> list[Instruction]:
        """A feeder met bad data."""
        epochs = self._operators.get(message.operator)
        return [] if epochs is None else epochs.turns.feeder_failed(message)

    def from_worker(self, message: m.Message, body: bytes | None = None) -> list[Instruction]:
        """A worker says something."""
        match message:
            case m.Deployed():
                return self._deployed(message)
            case m.Sealed(operator=operator):
                return self._then(self._operators[operator].turns.sealed(message))
            case m.Failed():
                return self._then(self._failed(message))
            case m.Probed(operator=operator):
                return self._then(self._operators[operator].turns.probed(message))
            case m.Settled(operator=operator):
                out = self._operators[operator].turns.settled(message)
                return [*out, *self._settled_in_memory()] if not self._durable else self._then(out)
            case m.Restored():
                return self._then(self._restored(message))
            case m.Copied(operator=operator) | m.Arrived(operator=operator) | m.Released(operator=operator):
                transfer = self._operators[operator].standing.transfer
                return self._then([] if transfer is None else transfer.from_worker(message, body))
            case m.WorkerFailed():
                return self._then(self._worker_failed(message))
            case m.Weighed():
                return self._then(self.changes.weighed(message))
            case m.Compacted(operator=operator):
                return self._compactions[operator].compacted(message, body)
            case _:
                raise ProtocolError(f"a worker sent {type(message).__name__}")

    def worker_lost(self, worker: WorkerId, how: str) -> list[Instruction]:
        """A worker is gone."""
        known = self.members.get(worker)
        if known is not None and known.last_words:
            how = f"its last words: {known.last_words}; {how}"
        if self._down is None and known is not None and known.life is Life.LOADING:
            return self._not_started(worker, how)
        if self._down is not None or known is None or not known.here:
            return []  # one that came too late, or had left
        self.members.gone(worker)
        lost = {name: len(epochs.standing.routing.groups_of(worker)) for name, epochs in self._operators.items()}
        state = ", ".join(f"{count} key groups of {name}" for name, count in lost.items()) or "no state"
        if not self._durable:
            return self._lost_from_memory(worker, how, state)
        error = refusals.lost(worker, how, state)
        self._losses += 1
        if self._losses > _MAX_LOSSES:
            return self._end(refusals.too_many_lost(worker, how, self._losses))
        missed = self.members.missed(worker, error)
        out = self._deployed_by_all()
        for epochs in self._operators.values():
            out += epochs.turns.lost(worker, error)
            if self._takes_slots:
                out += self._room.refuse(epochs.standing.name, error)
        out += self.changes.lost(worker)
        if missed.in_vain >= MAX_STARTS:
            why = f"it was started {MAX_STARTS} times in vain, the last time: {how}"
            return [*self._then(out), *self.worker_not_replaced(worker, why)]
        return self._then([*out, ReplaceWorker(worker)])

    def _lost_from_memory(self, worker: WorkerId, how: str, state: str) -> list[Instruction]:
        """Without a checkpoint state is lost with its worker, unless that had been handed nothing for good."""
        error = refusals.lost_in_a_move(worker, how)
        over = refusals.lost_for_good(worker, how, state)
        sealed = any(it.standing.has_sealed(worker) for it in self._operators.values())
        if self.changes.current is None or self._unsettled is not None or sealed:
            return self._end(over)
        self._unsettled = worker, error, over
        out = [step for epochs in self._operators.values() for step in epochs.turns.lost(worker, error)]
        return [*out, *self._settled_in_memory()]

    def _settled_in_memory(self) -> list[Instruction]:
        """Give back what was moved to a lost worker, once it is certain that no epoch with it is whole.

        SUBTLE: if all others have sealed an epoch, the lost one may have done so, too, and Spark have committed it.
        """
        if self._unsettled is None:
            return self._then([])
        worker, error, over = self._unsettled
        fates = [epochs.turns.fate for epochs in self._operators.values()]
        if None in fates:
            return []
        self._unsettled = None
        back = None if True in fates else self.changes.newcomer_lost(worker, error)
        return self._end(over) if back is None else self._then([*back, *self._let_in()])

    def worker_joined(self, worker: WorkerId, address: str, pid: int = 0) -> list[Instruction]:
        """A replacement is there: give it the code, then let whoever waited go on."""
        if self._down is not None or not (self.members.is_missing(worker) or self.members.is_asked(worker)):
            return [ToWorker(worker, m.Stop())]
        came = self.members.came(worker, address, pid)
        active = {name: epochs.standing.deployment for name, epochs in self._operators.items()}
        return self._rollout.send_all(came, active) or self._ready(came)

    def worker_not_started(self, worker: WorkerId, why: str) -> list[Instruction]:
        """A worker that was asked for does not come."""
        if worker in self.members.loading or not self.members.is_asked(worker):
            return []  # it came at the last moment, and may have been lost and replaced since
        return self._not_started(worker, why)

    def _not_started(self, worker: WorkerId, why: str) -> list[Instruction]:
        """It does not come, or went before it had a part in anything."""
        self.members.not_started(worker)
        if self._down is not None or not self.members.is_asked(worker):
            return []
        error = WorkerStartFailed(f"worker {worker} was asked for and did not come up: {why}", worker=worker)
        if not self.changes.restarting:
            return self._then(self.changes.not_started(worker, error))
        out = self.changes.not_restarted(worker, error)
        return self._end(error) if out is None else self._then(out)

    def worker_not_replaced(self, worker: WorkerId, why: str) -> list[Instruction]:
        """No replacement comes: the others take the key groups over."""
        error = self.members.missing.get(worker)
        if error is None or self.members.is_here(worker) or self._down is not None:
            return []  # it came at the last moment
        if not self.members.addresses:
            return self._end(
                WorkerLost(f"{error.message}. No worker is left, and none could be started: {why}", worker=worker)
            )
        out: list[Instruction] = []
        for name, epochs in self._operators.items():
            out += epochs.recovery.without(worker, self._rollout.latest(name))
        self.members.not_missed(worker)
        self.changes.remove(worker)
        return self._then([*out, *self._let_in()])

    def turn_written(self, operator: OperatorName, turn: Turn, location: str) -> list[Instruction]:
        """Answers :class:`WriteTurn`."""
        return self._operators[operator].turns.turn_written(turn, location)

    def turn_unwritten(self, operator: OperatorName, turn: Turn, error: BedloadError) -> list[Instruction]:
        """:class:`WriteTurn` failed."""
        if isinstance(error, Fenced):
            return self._end(error)
        return self._then(self._operators[operator].turns.failed(turn, error))

    def turn_checked(self, operator: OperatorName, turn: Turn, whole: bool) -> list[Instruction]:
        """Answers :class:`CheckTurn`."""
        return self._then(self._operators[operator].turns.turn_checked(turn, whole))

    def snapshot_written(
        self, operator: OperatorName, turn: Turn, error: BedloadError | None, counts: Manifest | None = None
    ) -> list[Instruction]:
        """Answers :class:`WriteManifest`; ``counts`` is the manifest that does, if it may be another one."""
        return self._compactions[operator].written(turn, error, counts)

    def garbage_collected(self, operator: OperatorName) -> list[Instruction]:
        """Answers :class:`CollectGarbage`."""
        self._compactions[operator].collected()
        return []

    def failed(self, error: BedloadError) -> list[Instruction]:
        """The cluster cannot go on: a newer attachment has the checkpoint, or it cannot be read."""
        return self._end(error) if self._down is None else []

    def stage_inspected(
        self, operator: OperatorName, turn: Turn, stage: int, feeders: int, shape: int
    ) -> list[Instruction]:
        """Answers :class:`InspectStage`."""
        return self._then(self._operators[operator].turns.stage_inspected(turn, stage, feeders, shape))

    def stage_unknown(self, operator: OperatorName, turn: Turn, error: BedloadError) -> list[Instruction]:
        """:class:`InspectStage` could not be answered."""
        return self._then(self._operators[operator].stage_unknown(turn, error))

    def query_inspected(
        self, operator: OperatorName, query: QueryId, turn: Turn, facts: QueryFacts
    ) -> list[Instruction]:
        """Answers :class:`InspectQuery`."""
        return self._then(self._operators[operator].query_inspected(query, turn, facts))

    def query_unknown(self, operator: OperatorName, error: BedloadError) -> list[Instruction]:
        """:class:`InspectQuery` could not be answered."""
        return self._then(self._operators[operator].query_unknown(error))

    def progress(self, query: QueryId, run: RunId, epoch: Epoch) -> list[Instruction]:
        """Spark committed an epoch."""
        return self._then(
            [step for epochs in self._operators.values() for step in epochs.turns.progress(query, run, epoch)]
        )

    def query_ended(self, query: QueryId, run: RunId) -> list[Instruction]:
        """A run of a query is over."""
        return self._then([step for epochs in self._operators.values() for step in epochs.query_ended(query, run)])

    # --- seeing it ---

    def operator(self, name: OperatorName) -> Standing:
        """Where one operator stands."""
        epochs = self._operators.get(name)
        if epochs is None:
            known = ", ".join(sorted(self._operators)) or "none"
            raise UnknownOperator(f"no operator {name!r} was applied on this cluster; there are: {known}")
        return epochs.standing

    def record(self, operator: OperatorName, turn: Turn) -> TurnRecord | None:
        """The record of a turn."""
        lineage = self._operators[operator].standing.lineage
        return None if lineage is None else lineage.history.record(turn)

    @property
    def operators(self) -> tuple[OperatorName, ...]:
        """All operators that were applied."""
        return tuple(self._operators)

    @property
    def workers(self) -> dict[WorkerId, str]:
        """Addresses of the workers that are there."""
        return self.members.addresses

    @property
    def error(self) -> BedloadError | None:
        """Why the cluster takes no more work, if it does not."""
        return self._down

    def check(self) -> None:
        """The invariants of all parts hold. It is cheap: tests call it after every event."""
        self.members.check()
        if self._down is not None:
            assert self.changes.current is None, f"the cluster is over ({self._down}), and a change is under way"
            assert not len(self._room), f"the cluster is over ({self._down}), and {len(self._room)} opens wait"
            return
        self.changes.check()
        for name, epochs in self._operators.items():
            at = epochs.standing
            if at.phase is Phase.OPEN:
                gone = [worker for worker in at.current.workers if not self.members.is_here(worker)]
                assert not gone, f"turn {at.turn} of {name} is open, and its workers {gone} are gone"
            settles = at.phase is Phase.SETTLING
            assert not settles or at.current.error is not None, f"turn {at.turn} of {name} settles for no reason"

    # --- steps ---

    def _deployed(self, message: m.Deployed) -> list[Instruction]:
        worker = self.members.get(message.worker)
        if worker is None or message.deployment not in worker.code:
            return self._then(self._deployed_by_all()) if self._rollout.answered(message) else []
        # SUBTLE: also with an error. A worker that cannot run what runs here has ended itself; that it cannot load what
        # was superseded concerns nobody but a query that begins with it.
        worker.code.discard(message.deployment)
        return [] if worker.code else self._ready(worker)

    def _deployed_by_all(self) -> list[Instruction]:
        """Answer for the code that all have."""
        out: list[Instruction] = []
        for operator, deployment, result in self._rollout.finished():
            if result.error is None:
                out += self._operators[operator].recovery.prefetch(deployment)
            out.append(result)
        return out

    def _ready(self, worker: Worker) -> list[Instruction]:
        """A worker that came has the code: it can take part."""
        new = worker.life is Life.LOADING
        if new and not worker.asked:  # whoever wanted it does not any more
            self.members.left(worker.id)
            return [ToWorker(worker.id, m.Stop()), WorkersLeft((worker.id,))]
        self.members.ready(worker)
        if new:
            return self._then([*self.changes.ready(worker.id), *self._let_in()])
        return self._then([*self._prefetch(self._operators), *self._let_in()])

    def _prefetch(self, operators: Iterable[OperatorName]) -> list[Instruction]:
        """Have workers read what they lack, before an epoch asks for it."""
        return [
            step for name in operators for step in self._operators[name].recovery.prefetch(self._rollout.latest(name))
        ]

    def _read_back(self) -> list[Instruction]:
        """Have state read that nobody has.

        No epoch may come that would do so: the query is over, and people look at its state.
        """
        if self.members.missing or self.changes.holding or self._down is not None:
            return []
        return self._prefetch(name for name, epochs in self._operators.items() if epochs.recovery.left_unread)

    def _let_in(self) -> list[Instruction]:
        """All workers may be there again: look at all that wait."""
        if self.members.missing:
            return []
        out = [step for epochs in self._operators.values() for step in epochs.look_again()]
        return [*out, *(step for it in self._room.replaced() for step in self.open(it.token, it.ask))]

    def _failed(self, message: m.Failed) -> list[Instruction]:
        error = message.error.error()
        if isinstance(error, Fenced):
            return self._end(error)
        unrestored = message.worker if message.unrestored else None
        return self._operators[message.operator].turns.failed(message.turn, error, unrestored)

    def _worker_failed(self, message: m.WorkerFailed) -> list[Instruction]:
        if message.operator is not None:
            return self.changes.failed(message)
        if (worker := self.members.get(message.worker)) is not None:
            worker.last_words = message.error.message  # it ends, which is a loss like any other
        return []

    def _restored(self, message: m.Restored) -> list[Instruction]:
        self.restoring[message.operator, message.worker] = message
        epochs = self._operators[message.operator]
        error = None if message.error is None else message.error.error()
        if isinstance(error, Fenced):
            return self._end(error)
        if message.told < epochs.standing.ordered.get(message.worker, 0):
            return []  # it speaks of what it was told before: there is more to read by now
        if error is not None:
            epochs.recovery.unrestored(message.worker, error)
        elif message.left == 0 and epochs.standing.lineage is not None:
            epochs.standing.lineage.has_read(message.worker)
        return []

    def _then(self, out: list[Instruction]) -> list[Instruction]:
        """What follows every event, step by step; the order counts."""
        # State is read back before all else, as nothing may move that is not there; and again, as others may have to
        # read it when it has moved.
        out = [*out, *self._read_back(), *self.changes.go_on(), *self._read_back()]
        change = self.changes.current
        if self._down is None and change is not None and change.doom is not None:
            return [*out, *self._end(change.doom)]
        out += self._let_in_who_was_held()
        out += self._let_go_of_the_unneeded()
        out += self._deployed_by_all()
        return [*out, *self._compact(out)]

    def _let_in_who_was_held(self) -> list[Instruction]:
        """No change holds epochs up any more."""
        # SUBTLE: remembered, as a change may have been called off before this began.
        held, self._held = self._held, self.changes.holding
        return [*self._prefetch(self._operators), *self._let_in()] if held and not self._held else []

    def _compact(self, out: list[Instruction]) -> list[Instruction]:
        """Start the snapshots that are due, or that had to wait."""
        ended = {step.operator for step in out if isinstance(step, EpochEnded) and step.committed}
        if ended:
            self._losses = 0
        steps: list[Instruction] = []
        for name, compaction in self._compactions.items():
            steps += compaction.go_on()
            steps += compaction.committed() if name in ended else []
        return steps

    def _let_go_of_the_unneeded(self) -> list[Instruction]:
        """Whoever was lost and should have left anyway is not waited for; if its replacement came, it leaves."""
        tables = [epochs.standing.routing.workers for epochs in self._operators.values()]
        needed = self.changes.wanted.union(*tables)
        gone = [worker for worker in self.members.missing if worker not in needed]
        if not gone:
            return []
        out: list[Instruction] = []
        for worker in gone:
            self.members.not_missed(worker)
            if self.members.is_here(worker) or worker in self.members.loading:
                self.members.left(worker)
                out += [ToWorker(worker, m.Stop()), WorkersLeft((worker,))]
        return [*out, *self._let_in()]

    def _end(self, error: BedloadError) -> list[Instruction]:
        self._down = error
        out = [step for epochs in self._operators.values() for step in epochs.ended(error)]
        out += [step for compaction in self._compactions.values() for step in compaction.ended(error)]
        out += self._rollout.ended(error)
        out += [refuse(it.token, error) for it in self._room.replaced()]
        return [*out, *self.changes.ended(error)]


_MAX_LOSSES = 20
"""After so many without progress, replacing them does not help."""
