"""The coordinator: all operators of a cluster and its workers. Events in, instructions out, no I/O.

Its driver (the Spark driver's endpoint, the in-process cluster, the simulator) calls one method per
event and carries out the instructions that come back, in order. Messages to one worker stay in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from bedload.checkpoint.records import Manifest, TurnRecord
from bedload.control import refusals
from bedload.control.changes import MAX_STARTS, Changes, Wish
from bedload.control.compaction import Compaction, Retention
from bedload.control.epochs import OperatorEpochs, QueryFacts
from bedload.control.instructions import (
    ChangeResult,
    CheckpointResult,
    DeployResult,
    EpochEnded,
    Instruction,
    ReplaceWorker,
    Reply,
    Token,
    ToWorker,
    WorkersLeft,
)
from bedload.control.lineage import Lineage
from bedload.control.shipping import Shipping
from bedload.core.clock import Clock, SystemClock
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
        workers: dict[WorkerId, str],
        *,
        durable: bool = False,
        retention: Retention | None = None,
        takes_slots: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._addresses = dict(workers)
        self._durable = durable
        """State is in a checkpoint: a lost worker is replaced, and what it had is read back."""
        self._takes_slots = takes_slots
        """A worker takes a Spark task slot: no feeder may wait for one, in what may be the slot that it needs."""
        self._retention = retention or Retention()
        self._compactions: dict[OperatorName, Compaction] = {}
        self._shipping = Shipping()
        self._missing: dict[WorkerId, BedloadError] = {}
        """Workers that were lost and whose replacement is not ready."""
        self._losses = 0
        """Workers lost since an epoch was committed."""
        self._waiting: list[tuple[Token, m.Open]] = []
        """Opens that wait for a replacement."""
        self._operators: dict[OperatorName, OperatorEpochs] = {}
        self._down: BedloadError | None = None
        self._clock = clock or SystemClock()
        self._unsettled: tuple[WorkerId, WorkerLost, WorkerLost] | None = None
        """Without a checkpoint: a worker that was lost, while it is found out whether state was lost with it."""
        self._restarted: int | None = None
        """The last change that started all workers anew."""
        self._last_words: dict[WorkerId, str] = {}
        """Why workers are about to end."""
        self._in_vain: Counter[WorkerId] = Counter()
        """How often a replacement was lost before it was ready."""
        self._newcomers: dict[WorkerId, str] = {}
        """Workers that were asked for, joined, and do not have all code yet."""
        self.changes = Changes(self._operators, self._addresses, self._shipping.latest, self._clock, durable=durable)
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
        """Ship an operator to every worker; answered by a :class:`DeployResult`.

        ``running`` names the queries that run now, to refuse an operator that is in use. ``lineage`` is what the
        checkpoint has of an operator that is new to this coordinator, or ``fresh``.
        """
        deployment = self._shipping.number()
        known = self._operators.get(operator)
        if self._down is not None:
            return deployment, [DeployResult(token, self._down)]
        if known is not None and known.query in running:
            return deployment, [DeployResult(token, refusals.in_use(operator, known.query))]
        if known is not None and known.routing.key_groups != key_groups and not fresh:
            return deployment, [
                DeployResult(token, refusals.groups_changed(operator, known.routing.key_groups, key_groups))
            ]
        out: list[Instruction] = []
        if known is None or fresh:
            if known is not None:
                out += known.reset(RoutingTable.initial(key_groups, self.changes.members), lineage)
            else:
                routing = RoutingTable.initial(key_groups, self.changes.members)
                known = self._operators[operator] = OperatorEpochs(
                    operator, routing, self._addresses, lineage, self._missing, self._clock
                )
                known.hold, known.loads = self._holds, partial(self._shipping.loads, operator)
                if fresh:
                    known.reset(routing)
                if lineage is not None:
                    self._compactions[operator] = Compaction(known, self._retention, self._addresses)
        out += self._shipping.ship(
            token,
            operator,
            deployment,
            key_groups,
            payload,
            workers=self._addresses,
            newcomers=self._newcomers,
            active=known.deployment,
        )
        # Without a worker nobody would answer; the replacements get the code when they come.
        return deployment, out if self._addresses else [*out, *self._deployed_by_all()]

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
        return [*out, *(ToWorker(worker, m.Stop()) for worker in (*self._addresses, *self._newcomers))]

    # --- events ---

    def open(self, token: Token, ask: m.Open) -> list[Instruction]:
        """A feeder asks to take part in an epoch."""
        epochs = self._operators.get(ask.operator)
        error = self._down
        if error is None and epochs is None:
            error = UnknownOperator(f"operator {ask.operator!r} was not applied on this cluster")
        if error is not None or epochs is None:
            return [Reply(token, m.Refused(m.WireError.of(error or ProtocolError("no operator"))))]
        out: list[Instruction] = []
        for other in self._operators.values():
            if other is not epochs:
                out += other.asked_elsewhere(ask)
        late = not epochs.holds(ask)
        if late and not self._shipping.knows(ask.operator, ask.deployment):
            return [Reply(token, m.Refused(m.WireError.of(refusals.superseded(ask.operator))))]
        if self._missing and late:
            if self._takes_slots:
                error = next(iter(self._missing.values()))
                return self._then([*out, Reply(token, m.Refused(m.WireError.of(error)))])
            epochs.asked(ask)
            self._waiting.append((token, ask))
            return self._then(out)
        # SUBTLE: before a restart, too. It begins nothing then, but it may be all that says what became of the epoch
        # before it, which the restart waits for.
        out += epochs.open(token, ask)
        if self.changes.holding and self._takes_slots and late:
            out += epochs.refuse_parked(refusals.restarting())
        return self._then(out)

    def _holds(self, ask: m.Open) -> bool:
        """Whether no turn may begin for now.

        SUBTLE: one of an epoch that another operator of the query is in may. That epoch would never end without it, and
        whoever holds turns up waits for that.
        """
        if self._unsettled is not None:
            return True
        return self.changes.holding and not any(epochs.is_in(ask) for epochs in self._operators.values())

    def feeder_failed(self, message: m.FeederFailed) -> list[Instruction]:
        """A feeder met bad data."""
        epochs = self._operators.get(message.operator)
        return [] if epochs is None else epochs.feeder_failed(message)

    def from_worker(self, message: m.Message, body: bytes | None = None) -> list[Instruction]:
        """A worker says something."""
        match message:
            case m.Deployed():
                return self._deployed(message)
            case m.Sealed(operator=operator):
                return self._then(self._operators[operator].sealed(message))
            case m.Failed():
                return self._then(self._failed(message))
            case m.Probed(operator=operator):
                return self._then(self._operators[operator].probed(message))
            case m.Settled(operator=operator):
                out = self._operators[operator].settled(message)
                return [*out, *self._settled_in_memory()] if not self._durable else self._then(out)
            case m.Restored():
                return self._then(self._restored(message))
            case m.Copied(operator=operator) | m.Arrived(operator=operator) | m.Released(operator=operator):
                transfer = self._operators[operator].transfer
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
        if words := self._last_words.pop(worker, ""):
            how = f"its last words: {words}; {how}"
        if self._down is None and worker in self._newcomers:
            return self._not_started(worker, how)
        if self._down is not None or worker not in self._addresses:
            return []  # one that came too late, or had left
        del self._addresses[worker]
        self._shipping.forget(worker)
        lost = {name: len(epochs.routing.groups_of(worker)) for name, epochs in self._operators.items()}
        state = ", ".join(f"{count} key groups of {name}" for name, count in lost.items()) or "no state"
        if not self._durable:
            return self._lost_from_memory(worker, how, state)
        error = refusals.lost(worker, how, state)
        self._losses += 1
        if self._losses > _MAX_LOSSES:
            return self._end(refusals.too_many_lost(worker, how, self._losses))
        # Lost before it was ready: one that came in place of another.
        self._in_vain[worker] = self._in_vain[worker] + 1 if worker in self._missing else 0
        self._missing[worker] = error
        self._shipping.only(self._addresses)
        out = self._deployed_by_all()
        for epochs in self._operators.values():
            out += epochs.lost(worker, error)
            if self._takes_slots:
                out += epochs.refuse_parked(error)
        out += self.changes.lost(worker)
        if self._in_vain[worker] >= MAX_STARTS:
            why = f"it was started {MAX_STARTS} times in vain, the last time: {how}"
            return [*self._then(out), *self.worker_not_replaced(worker, why)]
        return self._then([*out, ReplaceWorker(worker)])

    def _lost_from_memory(self, worker: WorkerId, how: str, state: str) -> list[Instruction]:
        """Without a checkpoint state is lost with its worker, unless that had been handed nothing for good."""
        error = refusals.lost_in_a_move(worker, how)
        over = refusals.lost_for_good(worker, how, state)
        sealed = any(it.has_sealed(worker) for it in self._operators.values())
        if self.changes.current is None or self._unsettled is not None or sealed:
            return self._end(over)
        self._unsettled = worker, error, over
        out = [step for epochs in self._operators.values() for step in epochs.lost(worker, error)]
        return [*out, *self._settled_in_memory()]

    def _settled_in_memory(self) -> list[Instruction]:
        """Give back what was moved to a lost worker, once it is certain that no epoch with it is whole.

        SUBTLE: if all others have sealed an epoch, the lost one may have done so, too, and Spark have committed it.
        """
        if self._unsettled is None:
            return self._then([])
        worker, error, over = self._unsettled
        fates = [epochs.fate for epochs in self._operators.values()]
        if None in fates:
            return []
        self._unsettled = None
        back = None if True in fates else self.changes.newcomer_lost(worker, error)
        return self._end(over) if back is None else self._then([*back, *self._go_on()])

    def worker_joined(self, worker: WorkerId, address: str) -> list[Instruction]:
        """A replacement is there: give it the code, then let whoever waited go on."""
        new = worker in self.changes.starting
        if self._down is not None or (worker not in self._missing and not new):
            return [ToWorker(worker, m.Stop())]
        (self._newcomers if new else self._addresses)[worker] = address
        active = {name: epochs.deployment for name, epochs in self._operators.items()}
        return self._shipping.send_all(worker, active) or self._ready(worker)

    def worker_not_started(self, worker: WorkerId, why: str) -> list[Instruction]:
        """A worker that was asked for does not come."""
        if worker in self._newcomers or worker not in self.changes.starting:
            return []  # it came at the last moment, and may have been lost and replaced since
        return self._not_started(worker, why)

    def _not_started(self, worker: WorkerId, why: str) -> list[Instruction]:
        """It does not come, or went before it had a part in anything."""
        self._newcomers.pop(worker, None)
        self._shipping.forget(worker)
        if self._down is not None or worker not in self.changes.starting:
            return []
        error = WorkerStartFailed(f"worker {worker} was asked for and did not come up: {why}", worker=worker)
        if self.changes.restarting is None:
            return self._then(self.changes.not_started(worker, error))
        out = self.changes.not_restarted(worker, error)
        return self._end(error) if out is None else self._then(out)

    def worker_not_replaced(self, worker: WorkerId, why: str) -> list[Instruction]:
        """No replacement comes: the others take the key groups over."""
        error = self._missing.get(worker)
        if error is None or worker in self._addresses or self._down is not None:
            return []  # it came at the last moment
        if not self._addresses:
            return self._end(
                WorkerLost(f"{error.message}. No worker is left, and none could be started: {why}", worker=worker)
            )
        out: list[Instruction] = []
        for name, epochs in self._operators.items():
            out += epochs.without(worker, self._shipping.latest(name))
        del self._missing[worker]
        self.changes.remove(worker)
        return self._then([*out, *self._go_on()])

    def turn_written(self, operator: OperatorName, turn: Turn, location: str) -> list[Instruction]:
        """Answers :class:`WriteTurn`."""
        return self._operators[operator].turn_written(turn, location)

    def turn_unwritten(self, operator: OperatorName, turn: Turn, error: BedloadError) -> list[Instruction]:
        """:class:`WriteTurn` failed."""
        if isinstance(error, Fenced):
            return self._end(error)
        return self._then(self._operators[operator].failed(turn, error))

    def turn_checked(self, operator: OperatorName, turn: Turn, whole: bool) -> list[Instruction]:
        """Answers :class:`CheckTurn`."""
        return self._then(self._operators[operator].turn_checked(turn, whole))

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
        return self._then(self._operators[operator].stage_inspected(turn, stage, feeders, shape))

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
        return self._then([step for epochs in self._operators.values() for step in epochs.progress(query, run, epoch)])

    def query_ended(self, query: QueryId, run: RunId) -> list[Instruction]:
        """A run of a query is over."""
        return self._then([step for epochs in self._operators.values() for step in epochs.query_ended(query, run)])

    # --- seeing it ---

    def operator(self, name: OperatorName) -> OperatorEpochs:
        """One operator's epochs."""
        epochs = self._operators.get(name)
        if epochs is None:
            known = ", ".join(sorted(self._operators)) or "none"
            raise UnknownOperator(f"no operator {name!r} was applied on this cluster; there are: {known}")
        return epochs

    def record(self, operator: OperatorName, turn: Turn) -> TurnRecord | None:
        """The record of a turn."""
        lineage = self._operators[operator].lineage
        return None if lineage is None else lineage.history.record(turn)

    @property
    def operators(self) -> tuple[OperatorName, ...]:
        """All operators that were applied."""
        return tuple(self._operators)

    @property
    def workers(self) -> dict[WorkerId, str]:
        """Addresses of the workers that are there."""
        return dict(self._addresses)

    @property
    def error(self) -> BedloadError | None:
        """Why the cluster takes no more work, if it does not."""
        return self._down

    # --- steps ---

    def _deployed(self, message: m.Deployed) -> list[Instruction]:
        if not self._shipping.is_loading(message.worker, message.deployment):
            return self._then(self._deployed_by_all()) if self._shipping.answered(message) else []
        # SUBTLE: also with an error. A worker that cannot run what runs here has ended itself; that it cannot load what
        # was superseded concerns nobody but a query that begins with it.
        has_all = self._shipping.loaded(message.worker, message.deployment)
        return self._ready(message.worker) if has_all else []

    def _deployed_by_all(self) -> list[Instruction]:
        out: list[Instruction] = []
        for operator, deployment, result in self._shipping.finished():
            if result.error is None:
                out += self._operators[operator].prefetch(deployment)
            out.append(result)
        return out

    def _ready(self, worker: WorkerId) -> list[Instruction]:
        """A replacement has the code: it can take part."""
        self._shipping.forget(worker)
        if worker in self._newcomers:
            address = self._newcomers.pop(worker)
            if worker not in self.changes.starting:  # whoever wanted it does not any more
                return [ToWorker(worker, m.Stop()), WorkersLeft((worker,))]
            self._addresses[worker] = address
            self._missing.pop(worker, None)  # it was lost as one that an earlier change had asked for
            return self._then([*self.changes.ready(worker), *self._go_on()])
        del self._missing[worker]
        return self._then([*self._prefetch(self._operators), *self._go_on()])

    def _prefetch(self, operators: Iterable[OperatorName], *, again: bool = True) -> list[Instruction]:
        """Have workers read what they lack, before an epoch asks for it; ``again``: also those that tried in vain."""
        return [
            step
            for name in operators
            for step in self._operators[name].prefetch(self._shipping.latest(name), again=again)
        ]

    def _read_back(self) -> list[Instruction]:
        """Have state read that nobody has.

        No epoch may come that would do so: the query is over, and people look at its state.
        """
        if self._missing or self.changes.holding or self._down is not None:
            return []
        return self._prefetch((name for name, it in self._operators.items() if it.left_unread), again=False)

    def _go_on(self) -> list[Instruction]:
        if self._missing:
            return []
        waiting, self._waiting = self._waiting, []
        out = [step for epochs in self._operators.values() for step in epochs.go_on()]
        return [*out, *(step for token, ask in waiting for step in self.open(token, ask))]

    def _failed(self, message: m.Failed) -> list[Instruction]:
        error = message.error.error()
        if isinstance(error, Fenced):
            return self._end(error)
        unrestored = message.worker if message.unrestored else None
        return self._operators[message.operator].failed(message.turn, error, unrestored)

    def _worker_failed(self, message: m.WorkerFailed) -> list[Instruction]:
        if message.operator is not None:
            return self.changes.failed(message)
        self._last_words[message.worker] = message.error.message  # it ends, which is a loss like any other
        return []

    def _restored(self, message: m.Restored) -> list[Instruction]:
        self.restoring[message.operator, message.worker] = message
        epochs = self._operators[message.operator]
        error = None if message.error is None else message.error.error()
        if isinstance(error, Fenced):
            return self._end(error)
        if message.told < epochs.ordered.get(message.worker, 0):
            return []  # it speaks of what it was told before: there is more to read by now
        if error is not None:
            epochs.unrestored(message.worker, error)
        elif message.left == 0 and epochs.lineage is not None:
            epochs.lineage.has_read(message.worker)
        return []

    def _then(self, steps: list[Instruction]) -> list[Instruction]:
        """After whatever happened: go on with what waited for it, and start the snapshots that are due."""
        # Before all else, as nothing may move that is not there; and again, as others may have to read it then.
        steps = [*steps, *self._read_back()]
        steps = [*steps, *self.changes.go_on()]
        steps += self._read_back()
        if self._down is None and self.changes.doom is not None:
            return [*steps, *self._end(self.changes.doom)]
        if self.changes.restarting not in (None, self._restarted):
            # All begin anew, those that were lost, too.
            self._restarted = self.changes.restarting
            self._missing.clear()
            self._shipping.forget_all_but(self._newcomers)
        # SUBTLE: remembered, as a change may have been called off before this began.
        held, self._held = self._held, self.changes.holding
        if held and not self._held:
            steps += [*self._prefetch(self._operators), *self._go_on()]
        steps += self._unneeded()
        self._shipping.only(self._addresses)  # who has left does not answer
        steps += self._deployed_by_all()
        ended = {step.operator for step in steps if isinstance(step, EpochEnded) and step.committed}
        if ended:
            self._losses = 0
        for name, compaction in self._compactions.items():
            steps += compaction.go_on()
            steps += compaction.committed() if name in ended else []
        return steps

    def _unneeded(self) -> list[Instruction]:
        """Whoever was lost and should have left anyway is not waited for; if its replacement came, it leaves."""
        tables = [epochs.routing.workers for epochs in self._operators.values()]
        gone = [w for w in self._missing if not any(w in workers for workers in (self.changes.wanted, *tables))]
        if not gone:
            return []
        out: list[Instruction] = []
        for worker in gone:
            del self._missing[worker]
            self._shipping.forget(worker)
            here = self._addresses.pop(worker, None), self._newcomers.pop(worker, None)
            if here != (None, None):
                out += [ToWorker(worker, m.Stop()), WorkersLeft((worker,))]
        return [*out, *self._go_on()]

    def _end(self, error: BedloadError) -> list[Instruction]:
        self._down = error
        out = [step for epochs in self._operators.values() for step in epochs.ended(error)]
        out += [step for compaction in self._compactions.values() for step in compaction.ended(error)]
        out += self._shipping.ended(error)
        out += [Reply(token, m.Refused(m.WireError.of(error))) for token, _ in self._waiting]
        self._waiting = []
        return [*out, *self.changes.ended(error)]


_MAX_LOSSES = 20
"""After so many without progress, replacing them does not help."""

__all__ = ["Coordinator", "OperatorEpochs", "QueryFacts"]
