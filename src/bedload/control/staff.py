"""Workers that come, are lost, or do not come: what that means for the cluster. Events in, instructions out.

Invariants: with a checkpoint a lost worker is replaced, or the others take its key groups over. Without one the cluster
is over, unless no state was lost with the worker.
"""

from __future__ import annotations

from bedload.control import refusals
from bedload.control.instructions import Instruction, ReplaceWorker, ToWorker, WorkersLeft
from bedload.control.members import Life, Worker
from bedload.control.parts import Parts
from bedload.control.restart import MAX_STARTS
from bedload.core.errors import WorkerLost, WorkerStartFailed
from bedload.core.ids import Site, WorkerId
from bedload.protocol import messages as m

_MAX_LOSSES = 20
"""After so many without progress, replacing them does not help."""


class Staff:
    """The comings and losses of workers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def worker_lost(self, worker: WorkerId, how: str) -> list[Instruction]:
        """A worker is gone."""
        known = self._parts.members.get(worker)
        if known is not None and known.last_words:
            how = f"its last words: {known.last_words}; {how}"
        if self._parts.down is None and known is not None and known.life is Life.LOADING:
            return self._not_started(worker, how)
        if self._parts.down is not None or known is None or not known.here:
            return []  # one that came too late, or had left
        self._parts.members.gone(worker)
        lost = {name: len(epochs.standing.routing.groups_of(worker)) for name, epochs in self._parts.operators.items()}
        state = ", ".join(f"{count} key groups of {name}" for name, count in lost.items()) or "no state"
        if not self._parts.durable:
            return self._lost_from_memory(worker, how, state)
        error = refusals.lost(worker, how, state)
        self._parts.losses += 1
        if self._parts.losses > _MAX_LOSSES:
            return self._parts.end(refusals.too_many_lost(worker, how, self._parts.losses))
        missed = self._parts.members.missed(worker, error)
        out = self._parts.deployed_by_all()
        for epochs in self._parts.operators.values():
            out += epochs.turns.lost(worker, error)
            if self._parts.takes_slots:
                out += self._parts.room.refuse(epochs.standing.name, error)
        out += self._parts.changes.lost(worker)
        if missed.in_vain >= MAX_STARTS:
            why = f"it was started {MAX_STARTS} times in vain, the last time: {how}"
            return [*self._parts.then(out), *self.worker_not_replaced(worker, why)]
        return self._parts.then([*out, ReplaceWorker(worker)])

    def _lost_from_memory(self, worker: WorkerId, how: str, state: str) -> list[Instruction]:
        """Without a checkpoint state is lost with its worker, unless that had been handed nothing for good."""
        error = refusals.lost_in_a_move(worker, how)
        over = refusals.lost_for_good(worker, how, state)
        sealed = any(it.standing.has_sealed(worker) for it in self._parts.operators.values())
        if self._parts.changes.current is None or self._parts.unsettled is not None or sealed:
            return self._parts.end(over)
        self._parts.unsettled = worker, error, over
        out = [step for epochs in self._parts.operators.values() for step in epochs.turns.lost(worker, error)]
        return [*out, *self.settled_in_memory()]

    def settled_in_memory(self) -> list[Instruction]:
        """Give back what was moved to a lost worker, once it is certain that no epoch with it is whole.

        SUBTLE: if all others have sealed an epoch, the lost one may have done so, too, and Spark have committed it.
        """
        if self._parts.unsettled is None:
            return self._parts.then([])
        worker, error, over = self._parts.unsettled
        fates = [epochs.turns.fate for epochs in self._parts.operators.values()]
        if None in fates:
            return []
        self._parts.unsettled = None
        back = None if True in fates else self._parts.changes.newcomer_lost(worker, error)
        return self._parts.end(over) if back is None else self._parts.then([*back, *self._parts.let_in()])

    def worker_joined(self, worker: WorkerId, address: str, pid: int, site: Site) -> list[Instruction]:
        """A replacement is there: give it the code, then let whoever waited go on."""
        if self._parts.down is not None or not (
            self._parts.members.is_missing(worker) or self._parts.members.is_asked(worker)
        ):
            return [ToWorker(worker, m.Stop())]
        came = self._parts.members.came(worker, address, pid, site)
        active = {name: epochs.standing.deployment for name, epochs in self._parts.operators.items()}
        return self._parts.rollout.send_all(came, active) or self._ready(came)

    def worker_not_started(self, worker: WorkerId, why: str) -> list[Instruction]:
        """A worker that was asked for does not come."""
        if worker in self._parts.members.loading or not self._parts.members.is_asked(worker):
            return []  # it came at the last moment, and may have been lost and replaced since
        return self._not_started(worker, why)

    def _not_started(self, worker: WorkerId, why: str) -> list[Instruction]:
        """It does not come, or went before it had a part in anything."""
        self._parts.members.not_started(worker)
        if self._parts.down is not None or not self._parts.members.is_asked(worker):
            return []
        error = WorkerStartFailed(f"worker {worker} was asked for and did not come up: {why}", worker=worker)
        if not self._parts.changes.restarting:
            return self._parts.then(self._parts.changes.not_started(worker, error))
        out = self._parts.changes.not_restarted(worker, error)
        return self._parts.end(error) if out is None else self._parts.then(out)

    def worker_not_replaced(self, worker: WorkerId, why: str) -> list[Instruction]:
        """No replacement comes: the others take the key groups over."""
        error = self._parts.members.missing.get(worker)
        if error is None or self._parts.members.is_here(worker) or self._parts.down is not None:
            return []  # it came at the last moment
        if not self._parts.members.addresses:
            return self._parts.end(
                WorkerLost(f"{error.message}. No worker is left, and none could be started: {why}", worker=worker)
            )
        out: list[Instruction] = []
        for name, epochs in self._parts.operators.items():
            out += epochs.recovery.without(worker, self._parts.rollout.latest(name))
        self._parts.members.not_missed(worker)
        self._parts.changes.remove(worker)
        return self._parts.then([*out, *self._parts.let_in()])

    def deployed(self, message: m.Deployed) -> list[Instruction]:
        """A worker has loaded code, or could not."""
        worker = self._parts.members.get(message.worker)
        if worker is None or message.deployment not in worker.code:
            return self._parts.then(self._parts.deployed_by_all()) if self._parts.rollout.answered(message) else []
        # SUBTLE: also with an error. A worker that cannot run what runs here has ended itself; that it cannot load what
        # was superseded concerns nobody but a query that begins with it.
        worker.code.discard(message.deployment)
        return [] if worker.code else self._ready(worker)

    def _ready(self, worker: Worker) -> list[Instruction]:
        """A worker that came has the code: it can take part."""
        new = worker.life is Life.LOADING
        if new and not worker.asked:  # whoever wanted it does not any more
            self._parts.members.left(worker.id)
            return [ToWorker(worker.id, m.Stop()), WorkersLeft((worker.id,))]
        self._parts.members.ready(worker)
        if new:
            return self._parts.then([*self._parts.changes.ready(worker.id), *self._parts.let_in()])
        return self._parts.then([*self._parts.prefetch(self._parts.operators), *self._parts.let_in()])
