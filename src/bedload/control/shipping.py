"""The code of all operators: what was shipped, and who has not said yet that it could load it. No I/O.

A worker loads code on one of two occasions, and what its answer means differs: an operator is applied, and the user
waits until all workers have it; or a worker joins, and takes part in nothing until it has all code.

Invariant: a newcomer takes part in nothing before it has all code, that which is applied while it loads included. A
replacement is one of the workers already: the user waits for it as for the others.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass

from bedload.control.instructions import DeployResult, Instruction, Token, ToWorker
from bedload.core.errors import BedloadError, OperatorNotShippable
from bedload.core.ids import DeploymentId, OperatorName, WorkerId
from bedload.protocol import messages as m

_KEPT_DEPLOYMENTS = 3
"""A replacement gets the latest versions of an operator's code: one that runs, and one that was just applied."""


@dataclass(frozen=True)
class _Shipped:
    operator: OperatorName
    deployment: DeploymentId
    key_groups: int
    payload: bytes

    def to(self, worker: WorkerId) -> ToWorker:
        return ToWorker(worker, m.Deploy(self.operator, self.deployment, self.key_groups), self.payload)


@dataclass
class _Deploying:
    to: Token
    operator: OperatorName
    waiting: set[WorkerId]
    error: BedloadError | None = None


class Shipping:
    """Who has which code."""

    def __init__(self) -> None:
        self._count = 0
        self._shipped: dict[OperatorName, list[_Shipped]] = {}
        self._deploying: dict[DeploymentId, _Deploying] = {}
        self._joining: dict[WorkerId, set[DeploymentId]] = {}

    def number(self) -> DeploymentId:
        """The number of the next deployment, whether it is shipped or refused."""
        self._count += 1
        return DeploymentId(self._count - 1)

    def latest(self, operator: OperatorName) -> DeploymentId:
        """The deployment of an operator that was applied last."""
        return self._shipped[operator][-1].deployment

    # --- to all ---

    def ship(
        self,
        token: Token,
        operator: OperatorName,
        deployment: DeploymentId,
        key_groups: int,
        payload: bytes,
        *,
        workers: Collection[WorkerId],
        newcomers: Collection[WorkerId],
    ) -> list[Instruction]:
        """Ship an operator: the user waits for the workers, newcomers load it with all else."""
        shipped = _Shipped(operator, deployment, key_groups, payload)
        kept = self._shipped.setdefault(operator, [])
        kept.append(shipped)
        del kept[:-_KEPT_DEPLOYMENTS]
        self._deploying[deployment] = _Deploying(token, operator, set(workers))
        for worker, waiting in self._joining.items():
            if worker in newcomers:
                waiting.add(deployment)
        return [shipped.to(worker) for worker in (*workers, *newcomers)]

    def answered(self, message: m.Deployed) -> bool:
        """A worker has loaded an operator that was applied, or could not; whether somebody waits for that."""
        pending = self._deploying.get(message.deployment)
        if pending is None:
            return False
        pending.waiting.discard(message.worker)
        if message.error is not None:
            pending.error = OperatorNotShippable(
                f"worker {message.worker} could not load the operator: {message.error.message}"
            )
        return True

    def only(self, workers: Collection[WorkerId]) -> None:
        """Nobody else answers."""
        for pending in self._deploying.values():
            pending.waiting.intersection_update(workers)

    def finished(self) -> list[tuple[OperatorName, DeploymentId, DeployResult]]:
        """The deployments that all have answered, each once."""
        over = {number: pending for number, pending in self._deploying.items() if not pending.waiting}
        for number in over:
            del self._deploying[number]
        return [(it.operator, number, DeployResult(it.to, it.error)) for number, it in over.items()]

    def ended(self, error: BedloadError) -> list[Instruction]:
        """The cluster is over: nobody waits any longer."""
        out: list[Instruction] = [DeployResult(pending.to, error) for pending in self._deploying.values()]
        self._deploying = {}
        return out

    # --- to one that joins ---

    def send_all(self, worker: WorkerId) -> list[Instruction]:
        """Give a worker that joined all code; nothing if there is none."""
        every = [shipped for kept in self._shipped.values() for shipped in kept]
        self._joining[worker] = {shipped.deployment for shipped in every}
        return [shipped.to(worker) for shipped in every]

    def is_loading(self, worker: WorkerId, deployment: DeploymentId) -> bool:
        """Whether this is code that a worker loads because it joined."""
        return deployment in self._joining.get(worker, ())

    def loaded(self, worker: WorkerId, deployment: DeploymentId) -> bool:
        """A worker that joined has loaded some of the code; whether it has all of it now."""
        self._joining[worker].discard(deployment)
        return not self._joining[worker]

    def forget(self, worker: WorkerId) -> None:
        """A worker has all code, or is gone: it joins no longer."""
        self._joining.pop(worker, None)

    def forget_all_but(self, workers: Container[WorkerId]) -> None:
        """All but these begin anew."""
        self._joining = {worker: code for worker, code in self._joining.items() if worker in workers}
