"""The coordinator: all operators of a cluster and its workers. Events in, instructions out, no I/O.

Its driver (the Spark driver's endpoint, the in-process cluster, the simulator) calls one method per
event and carries out the instructions that come back, in order. Messages to one worker stay in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bedload.checkpoint.records import Manifest, TurnRecord
from bedload.control import refusals
from bedload.control.attempt import StageFacts
from bedload.control.compaction import Retention, Snapshotting
from bedload.control.inquiries import QueryFacts
from bedload.control.instructions import (
    ChangeResult,
    CheckpointResult,
    DeployResult,
    Instruction,
    Token,
    ToWorker,
)
from bedload.control.lineage import Lineage
from bedload.control.members import Worker
from bedload.control.parts import Parts
from bedload.control.staff import Staff
from bedload.control.standing import Phase, Standing
from bedload.control.wish import Wish
from bedload.core.clock import Clock
from bedload.core.errors import (
    BedloadError,
    ClusterStopped,
    Fenced,
    ProtocolError,
    UnknownOperator,
)
from bedload.core.ids import (
    LOCAL,
    NO_CHANGE,
    ChangeId,
    DeploymentId,
    Epoch,
    OperatorName,
    QueryId,
    RunId,
    Site,
    Turn,
    WorkerId,
)
from bedload.core.limits import LIMITS, Limits
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
        limits: Limits = LIMITS,
    ) -> None:
        parts = self._parts = Parts(
            workers,
            durable=durable,
            retention=retention or Retention(),
            takes_slots=takes_slots,
            clock=clock,
            limits=limits,
        )
        self._staff = Staff(parts)
        self._operators, self.members, self.changes = parts.operators, parts.members, parts.changes
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
        deployment = self._parts.rollout.number()
        known = self._operators.get(operator)
        if self._parts.down is not None:
            return deployment, [DeployResult(token, self._parts.down)]
        if known is not None and known.standing.query in running:
            return deployment, [DeployResult(token, refusals.in_use(operator, known.standing.query))]
        if known is not None and known.standing.routing.key_groups != key_groups and not fresh:
            return deployment, [
                DeployResult(token, refusals.groups_changed(operator, known.standing.routing.key_groups, key_groups))
            ]
        out: list[Instruction] = []
        if known is None:
            known = self._parts.take_in(operator, key_groups, lineage, fresh=fresh)
        elif fresh:
            out += known.reset(RoutingTable.initial(key_groups, self.members.owning), lineage)
        active = known.standing.deployment
        out += self._parts.rollout.roll_out(token, operator, deployment, key_groups, payload, active=active)
        # Without a worker nobody would answer; the replacements get the code when they come.
        return deployment, out if self.members.addresses else [*out, *self._parts.deployed_by_all()]

    def each_query_anew(self, operator: OperatorName) -> None:
        """A query that starts anew starts without state, as on Spark, whatever one before it left."""
        self._operators[operator].per_query = True

    def checkpoint(self, token: Token, operator: OperatorName) -> list[Instruction]:
        """Have all that is committed of an operator in a snapshot; answered by a :class:`CheckpointResult`."""
        compaction = self._parts.compactions.get(operator)
        if self._parts.down is not None or compaction is None:
            return [CheckpointResult(token, self._parts.down)]
        return compaction.ask(token)

    def change(self, token: Token, wish: Wish) -> tuple[ChangeId, list[Instruction]]:
        """Change the cluster while it runs; answered by a :class:`ChangeResult`."""
        if self._parts.down is not None:
            return NO_CHANGE, [ChangeResult(token, NO_CHANGE, self._parts.down)]
        number, out = self.changes.ask(token, wish)
        return number, self._parts.then(out)

    def cancel(self, number: ChangeId) -> tuple[bool, list[Instruction]]:
        """Call a change off, if nothing has flipped yet; whether that could be done."""
        could, out = self.changes.cancel(number)
        return could, self._parts.then(out)

    def stop(self) -> list[Instruction]:
        """End the cluster."""
        out = self._parts.end(ClusterStopped("the cluster was stopped; attach again with bedload.attach(...)"))
        return [*out, *(ToWorker(worker, m.Stop()) for worker in (*self.members.addresses, *self.members.loading))]

    # --- events ---

    def open(self, token: Token, ask: m.Open) -> list[Instruction]:
        """A feeder asks to take part in an epoch."""
        return self._parts.open(token, ask)

    def worker_lost(self, worker: WorkerId, how: str) -> list[Instruction]:
        """A worker is gone."""
        return self._staff.worker_lost(worker, how)

    def worker_joined(self, worker: WorkerId, address: str, pid: int = 0, site: Site = LOCAL) -> list[Instruction]:
        """A worker that was asked for, or one in place of a lost one, is there."""
        return self._staff.worker_joined(worker, address, pid, site)

    def worker_not_started(self, worker: WorkerId, why: str) -> list[Instruction]:
        """A worker that was asked for does not come."""
        return self._staff.worker_not_started(worker, why)

    def worker_not_replaced(self, worker: WorkerId, why: str) -> list[Instruction]:
        """No replacement comes."""
        return self._staff.worker_not_replaced(worker, why)

    def feeder_failed(self, message: m.FeederFailed) -> list[Instruction]:
        """A feeder met bad data."""
        epochs = self._operators.get(message.operator)
        return [] if epochs is None else epochs.turns.feeder_failed(message)

    def from_worker(self, message: m.Message, body: bytes | None = None) -> list[Instruction]:
        """A worker says something."""
        match message:
            case m.Deployed():
                return self._staff.deployed(message)
            case m.Sealed(operator=operator):
                return self._parts.then(self._operators[operator].turns.sealed(message))
            case m.Failed():
                return self._parts.then(self._failed(message))
            case m.Probed(operator=operator):
                return self._parts.then(self._operators[operator].turns.probed(message))
            case m.Settled(operator=operator):
                out = self._operators[operator].turns.settled(message)
                return [*out, *self._staff.settled_in_memory()] if not self._parts.durable else self._parts.then(out)
            case m.Restored():
                return self._parts.then(self._restored(message))
            case m.Copied(operator=operator) | m.Arrived(operator=operator) | m.Released(operator=operator):
                transfer = self._operators[operator].standing.transfer
                return self._parts.then([] if transfer is None else transfer.from_worker(message, body))
            case m.Progressed(operator=operator):
                moving = self._operators[operator].standing.transfer
                if moving is not None:
                    moving.progressed(message)
                return []
            case m.WorkerFailed():
                return self._parts.then(self._worker_failed(message))
            case m.Weighed():
                return self._parts.then(self.changes.weighed(message))
            case m.Compacted(operator=operator):
                return self._parts.compactions[operator].compacted(message, body)
            case m.Compacting(operator=operator):
                self._parts.compactions[operator].progressed(message)
                return []
            case _:
                raise ProtocolError(f"a worker sent {type(message).__name__}")

    def turn_written(self, operator: OperatorName, turn: Turn, location: str) -> list[Instruction]:
        """Answers :class:`WriteTurn`."""
        return self._operators[operator].turns.turn_written(turn, location)

    def turn_unwritten(self, operator: OperatorName, turn: Turn, error: BedloadError) -> list[Instruction]:
        """:class:`WriteTurn` failed."""
        if isinstance(error, Fenced):
            return self._parts.end(error)
        return self._parts.then(self._operators[operator].turns.failed(turn, error))

    def turn_checked(self, operator: OperatorName, turn: Turn, whole: bool) -> list[Instruction]:
        """Answers :class:`CheckTurn`."""
        return self._parts.then(self._operators[operator].turns.turn_checked(turn, whole))

    def snapshot_written(
        self, operator: OperatorName, turn: Turn, error: BedloadError | None, counts: Manifest | None = None
    ) -> list[Instruction]:
        """Answers :class:`WriteManifest`; ``counts`` is the manifest that does, if it may be another one."""
        return self._parts.compactions[operator].written(turn, error, counts)

    def garbage_collected(self, operator: OperatorName, error: BedloadError | None = None) -> list[Instruction]:
        """Answers :class:`CollectGarbage`."""
        return self._parts.compactions[operator].collected(error)

    @property
    def checkpointing(self) -> list[Snapshotting]:
        """How far each worker has come with the snapshots that are under way."""
        return [item for _, compaction in sorted(self._parts.compactions.items()) for item in compaction.under_way]

    def failed(self, error: BedloadError) -> list[Instruction]:
        """The cluster cannot go on: a newer attachment has the checkpoint, or it cannot be read."""
        return self._parts.end(error) if self._parts.down is None else []

    def stage_inspected(self, operator: OperatorName, turn: Turn, stage: int, facts: StageFacts) -> list[Instruction]:
        """Answers :class:`InspectStage`."""
        return self._parts.then(self._operators[operator].turns.stage_inspected(turn, stage, facts))

    def stage_unknown(self, operator: OperatorName, turn: Turn, error: BedloadError) -> list[Instruction]:
        """:class:`InspectStage` could not be answered."""
        return self._parts.then(self._operators[operator].stage_unknown(turn, error))

    def query_inspected(
        self, operator: OperatorName, query: QueryId, turn: Turn, facts: QueryFacts
    ) -> list[Instruction]:
        """Answers :class:`InspectQuery`."""
        return self._parts.then(self._operators[operator].query_inspected(query, turn, facts))

    def query_unknown(self, operator: OperatorName, error: BedloadError) -> list[Instruction]:
        """:class:`InspectQuery` could not be answered."""
        return self._parts.then(self._operators[operator].query_unknown(error))

    def progress(self, query: QueryId, run: RunId, epoch: Epoch) -> list[Instruction]:
        """Spark committed an epoch."""
        return self._parts.then(
            [step for epochs in self._operators.values() for step in epochs.turns.progress(query, run, epoch)]
        )

    def query_ended(self, query: QueryId, run: RunId) -> list[Instruction]:
        """A run of a query is over."""
        return self._parts.then(
            [step for epochs in self._operators.values() for step in epochs.query_ended(query, run)]
        )

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

    def latest(self, operator: OperatorName) -> DeploymentId | None:
        """The code of an operator that was shipped last; None: it was never applied."""
        return self._parts.rollout.latest(operator) if operator in self._operators else None

    @property
    def workers(self) -> Mapping[WorkerId, str]:
        """Addresses of the workers that are there."""
        return self.members.addresses

    @property
    def error(self) -> BedloadError | None:
        """Why the cluster takes no more work, if it does not."""
        return self._parts.down

    def check(self) -> None:
        """The invariants of all parts hold. It is cheap: tests call it after every event."""
        self.members.check()
        if self._parts.down is not None:
            assert self.changes.current is None, f"the cluster is over ({self._parts.down}), and a change is under way"
            assert not len(self._parts.room), (
                f"the cluster is over ({self._parts.down}), and {len(self._parts.room)} opens wait"
            )
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

    def _failed(self, message: m.Failed) -> list[Instruction]:
        error = message.error.error()
        if isinstance(error, Fenced):
            return self._parts.end(error)
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
            return self._parts.end(error)
        if message.told < epochs.standing.ordered.get(message.worker, 0):
            return []  # it speaks of what it was told before: there is more to read by now
        if error is not None:
            epochs.recovery.unrestored(message.worker, error)
        elif message.left == 0 and epochs.standing.lineage is not None:
            epochs.standing.lineage.has_read(message.worker)
        return []
