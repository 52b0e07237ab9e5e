"""The code of all operators: what was rolled out, and which workers have not loaded it yet. No I/O.

A worker loads code on two occasions: an operator is applied, and the user waits until all workers have it; or a worker
joins, and takes part in nothing until it has all code.

Invariants: before a newcomer takes part in anything, it has all code, also what was applied while it loaded, and has
run the ``setup`` of each operator's current code; if that fails, it ends. A replacement counts as one of the workers:
the user waits for it, too. Whoever joins gets every deployment that a query may still run on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bedload.control.instructions import DeployResult, Instruction, Token, ToWorker
from bedload.control.members import Members, Worker
from bedload.core.errors import BedloadError, OperatorNotShippable
from bedload.core.ids import DeploymentId, OperatorName, WorkerId
from bedload.protocol import messages as m

MOST_BYTES = 64 << 20
MOST_KEPT = 64
"""Code of an operator that is kept for workers that join: so many deployments, of so many bytes in all, and in any case
the one that runs and the one that was applied last. A query that begins with another one is refused."""


@dataclass(frozen=True)
class _Code:
    operator: OperatorName
    deployment: DeploymentId
    key_groups: int
    payload: bytes

    def to(self, worker: WorkerId, *, start: bool = False) -> ToWorker:
        return ToWorker(worker, m.Deploy(self.operator, self.deployment, self.key_groups, start), self.payload)


@dataclass
class _Deploying:
    to: Token
    operator: OperatorName
    waiting: set[WorkerId]
    error: BedloadError | None = None


class Rollout:
    """Who has which code."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._count = 0
        self._kept: dict[OperatorName, list[_Code]] = {}
        self._deploying: dict[DeploymentId, _Deploying] = {}

    def number(self) -> DeploymentId:
        """The number of the next deployment, whether it is rolled out or refused."""
        self._count += 1
        return DeploymentId(self._count - 1)

    def latest(self, operator: OperatorName) -> DeploymentId:
        """The deployment of an operator that was applied last."""
        return self._kept[operator][-1].deployment

    def loads(self, operator: OperatorName) -> bool:
        """Whether a worker has not loaded yet what was applied."""
        return any(pending.operator == operator for pending in self._deploying.values())

    # --- to all ---

    def roll_out(
        self,
        token: Token,
        operator: OperatorName,
        deployment: DeploymentId,
        key_groups: int,
        payload: bytes,
        *,
        active: DeploymentId | None = None,
    ) -> list[Instruction]:
        """Roll an operator out: the user waits for workers, newcomers load it with all else. ``active``: what runs."""
        workers, newcomers = self._members.addresses, self._members.loading
        kept = self._kept.setdefault(operator, [])
        same = next((it.payload for it in kept if it.payload == payload), payload)
        code = _Code(operator, deployment, key_groups, same)
        kept.append(code)
        while len(kept) > MOST_KEPT or sum({id(it.payload): len(it.payload) for it in kept}.values()) > MOST_BYTES:
            oldest = next((it for it in kept[:-1] if it.deployment != active), None)
            if oldest is None:
                break
            kept.remove(oldest)
        self._deploying[deployment] = _Deploying(token, operator, set(workers))
        for worker in newcomers.values():
            worker.code.add(deployment)
        return [*map(code.to, workers), *(code.to(worker, start=True) for worker in newcomers)]

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

    def finished(self) -> list[tuple[OperatorName, DeploymentId, DeployResult]]:
        """The deployments that all have answered, each once. Who is gone does not answer."""
        for pending in self._deploying.values():
            pending.waiting.intersection_update(self._members.addresses)
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

    def send_all(
        self, worker: Worker, active: Mapping[OperatorName, DeploymentId | None] = MappingProxyType({})
    ) -> list[Instruction]:
        """Give a worker that joined all code, and have it run what is ``active``; nothing if there is none."""
        worker.code = {code.deployment for kept in self._kept.values() for code in kept}
        out: list[Instruction] = []
        for name, kept in self._kept.items():
            runs = active.get(name)
            known = runs if any(it.deployment == runs for it in kept) else kept[-1].deployment
            out += [code.to(worker.id, start=code.deployment == known) for code in kept]
        return out

    def knows(self, operator: OperatorName, deployment: DeploymentId) -> bool:
        """Whether a worker that joins would get this code."""
        return any(it.deployment == deployment for it in self._kept.get(operator, ()))
