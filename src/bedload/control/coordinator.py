"""The coordinator: all operators of a cluster and its workers. Events in, instructions out, no I/O.

Its driver (the Spark driver's endpoint, the in-process cluster, the simulator) calls one method per
event and carries out the instructions that come back, in order. Messages to one worker stay in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bedload.control.epochs import OperatorEpochs, Phase, QueryFacts
from bedload.control.instructions import DeployResult, Instruction, Reply, Token, ToWorker
from bedload.core.errors import (
    BedloadError,
    ClusterStopped,
    KeyGroupsChanged,
    OperatorBusy,
    OperatorNotShippable,
    ProtocolError,
    UnknownOperator,
    WorkerLost,
)
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId, Turn, WorkerId
from bedload.keys import RoutingTable
from bedload.protocol import messages as m


@dataclass
class _Deploying:
    to: Token
    waiting: set[WorkerId] = field(default_factory=set)
    error: BedloadError | None = None


class Coordinator:
    """The state of a cluster, as decided in the driver."""

    def __init__(self, workers: dict[WorkerId, str]) -> None:
        self._addresses = dict(workers)
        self._operators: dict[OperatorName, OperatorEpochs] = {}
        self._deploying: dict[DeploymentId, _Deploying] = {}
        self._deployments = 0
        self._down: BedloadError | None = None

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
    ) -> tuple[DeploymentId, list[Instruction]]:
        """Ship an operator to every worker; answered by a :class:`DeployResult`.

        ``running`` names the queries that run now, to refuse an operator that is in use.
        """
        deployment = DeploymentId(self._deployments)
        self._deployments += 1
        known = self._operators.get(operator)
        if self._down is not None:
            return deployment, [DeployResult(token, self._down)]
        if known is not None and known.query in running:
            return deployment, [DeployResult(token, _in_use(known))]
        if known is not None and known.routing.key_groups != key_groups and not fresh:
            return deployment, [DeployResult(token, _groups_changed(known, key_groups))]
        out: list[Instruction] = []
        if known is None or fresh:
            if known is not None:
                out += known.reset()
                known.routing = RoutingTable.initial(key_groups, sorted(self._addresses))
            else:
                routing = RoutingTable.initial(key_groups, sorted(self._addresses))
                known = self._operators[operator] = OperatorEpochs(operator, routing, self._addresses)
                known.fresh = fresh
        self._deploying[deployment] = _Deploying(token, set(self._addresses))
        out += [ToWorker(worker, m.Deploy(operator, deployment, key_groups), payload) for worker in self._addresses]
        return deployment, out

    def stop(self) -> list[Instruction]:
        """End the cluster."""
        out = self._end(ClusterStopped("the cluster was stopped; attach again with bedload.attach(...)"))
        return [*out, *(ToWorker(worker, m.Stop()) for worker in self._addresses)]

    # --- events ---

    def open(self, token: Token, ask: m.Open) -> list[Instruction]:
        """A feeder asks to take part in an epoch."""
        epochs = self._operators.get(ask.operator)
        error = self._down
        if error is None and epochs is None:
            error = UnknownOperator(f"operator {ask.operator!r} was not applied on this cluster")
        if error is not None or epochs is None:
            return [Reply(token, m.Refused(m.WireError.of(error or ProtocolError("no operator"))))]
        return epochs.open(token, ask)

    def feeder_failed(self, message: m.FeederFailed) -> list[Instruction]:
        """A feeder met bad data."""
        epochs = self._operators.get(message.operator)
        return [] if epochs is None else epochs.feeder_failed(message)

    def from_worker(self, message: m.Message) -> list[Instruction]:
        """A worker says something."""
        match message:
            case m.Deployed():
                return self._deployed(message)
            case m.Sealed(operator=operator):
                return self._operators[operator].sealed(message)
            case m.Failed(operator=operator, turn=turn, error=error):
                return self._operators[operator].failed(turn, error.error())
            case m.Probed(operator=operator):
                return self._operators[operator].probed(message)
            case _:
                raise ProtocolError(f"a worker sent {type(message).__name__}")

    def worker_lost(self, worker: WorkerId, how: str) -> list[Instruction]:
        """A worker is gone."""
        if self._down is not None:
            return []
        del self._addresses[worker]
        lost = {name: len(epochs.routing.groups_of(worker)) for name, epochs in self._operators.items()}
        state = ", ".join(f"{count} key groups of {name}" for name, count in lost.items()) or "no state"
        return self._end(
            WorkerLost(
                f"worker {worker} was lost ({how}). The epochs under way were rolled back. Its state is lost "
                f"({state}), because this cluster keeps state in memory only. Stop it, attach again, and start "
                f"the queries from new checkpoint locations. State is durable with a checkpoint, "
                f'bedload.attach(spark, checkpoint="file:///..."), in versions that have one; this one does not yet',
                worker=worker,
            )
        )

    def stage_inspected(
        self, operator: OperatorName, turn: Turn, stage: int, feeders: int, shape: int
    ) -> list[Instruction]:
        """Answers :class:`InspectStage`."""
        return self._operators[operator].stage_inspected(turn, stage, feeders, shape)

    def stage_unknown(self, operator: OperatorName, turn: Turn, error: BedloadError) -> list[Instruction]:
        """:class:`InspectStage` could not be answered."""
        return self._operators[operator].stage_unknown(turn, error)

    def query_inspected(
        self, operator: OperatorName, query: QueryId, turn: Turn, facts: QueryFacts
    ) -> list[Instruction]:
        """Answers :class:`InspectQuery`."""
        return self._operators[operator].query_inspected(query, turn, facts)

    def query_unknown(self, operator: OperatorName, error: BedloadError) -> list[Instruction]:
        """:class:`InspectQuery` could not be answered."""
        return self._operators[operator].query_unknown(error)

    def progress(self, query: QueryId, run: RunId, epoch: Epoch) -> list[Instruction]:
        """Spark committed an epoch."""
        return [step for epochs in self._operators.values() for step in epochs.progress(query, run, epoch)]

    def query_ended(self, query: QueryId, run: RunId) -> list[Instruction]:
        """A run of a query is over."""
        return [step for epochs in self._operators.values() for step in epochs.query_ended(query, run)]

    # --- seeing it ---

    def operator(self, name: OperatorName) -> OperatorEpochs:
        """One operator's epochs."""
        epochs = self._operators.get(name)
        if epochs is None:
            known = ", ".join(sorted(self._operators)) or "none"
            raise UnknownOperator(f"no operator {name!r} was applied on this cluster; there are: {known}")
        return epochs

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
        pending = self._deploying.get(message.deployment)
        if pending is None:
            return []
        pending.waiting.discard(message.worker)
        if message.error is not None:
            pending.error = OperatorNotShippable(
                f"worker {message.worker} could not load the operator: {message.error.message}"
            )
        if pending.waiting:
            return []
        del self._deploying[message.deployment]
        return [DeployResult(pending.to, pending.error)]

    def _end(self, error: BedloadError) -> list[Instruction]:
        self._down = error
        out = [step for epochs in self._operators.values() for step in epochs.lost(error)]
        out += [DeployResult(pending.to, error) for pending in self._deploying.values()]
        self._deploying = {}
        return out


def _in_use(epochs: OperatorEpochs) -> OperatorBusy:
    return OperatorBusy(
        f"operator {epochs.name} is in use by the running query {epochs.query}: applying it twice at once would "
        f"mix two streams in one state. Stop that query, or give this application another name "
        f"(cluster.apply(..., name=...))",
        operator=epochs.name,
    )


def _groups_changed(epochs: OperatorEpochs, key_groups: int) -> KeyGroupsChanged:
    return KeyGroupsChanged(
        f"operator {epochs.name} has state in {epochs.routing.key_groups} key groups, but {key_groups} were asked "
        f"for. The number is fixed when the state is created: use key_groups={epochs.routing.key_groups}, or give "
        f"the state up with fresh=True",
        operator=epochs.name,
    )


__all__ = ["Coordinator", "OperatorEpochs", "Phase", "QueryFacts"]
