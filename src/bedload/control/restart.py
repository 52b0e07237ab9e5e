"""Starting all workers anew: a change that moves no state, since what begins reads it from the checkpoint. No I/O.

It goes through two phases of :class:`~bedload.control.phases.ChangePhase`::

    HOLDING ──all epochs are over──▶ RESTARTING ──all have come──▶ OVER
       └── they take too long ──▶ OVER, and nothing was changed

A worker that does not come is asked for again, and left out if it does not come then either.
"""

from __future__ import annotations

from bedload.control import refusals
from bedload.control.change import Change
from bedload.control.epochs import OperatorEpochs
from bedload.control.instructions import Instruction, StartWorkers, ToWorker, WorkersLeft
from bedload.control.members import Members
from bedload.control.phases import ChangePhase
from bedload.core.clock import Clock
from bedload.core.errors import BedloadError
from bedload.core.ids import OperatorName, WorkerId
from bedload.core.limits import Limits
from bedload.protocol import messages as m

MAX_STARTS = 3
"""So often a worker is started before the others do without it."""


class Restart:
    """How all workers start anew. A part of :class:`~bedload.control.changes.Changes`."""

    def __init__(
        self, operators: dict[OperatorName, OperatorEpochs], members: Members, clock: Clock, limits: Limits
    ) -> None:
        self._operators = operators
        self._members = members
        self._clock = clock
        self._hold_seconds = limits.hold_seconds

    def hold(self, change: Change) -> None:
        """No epoch begins from here on."""
        change.phase, change.held_at = ChangePhase.HOLDING, self._clock.monotonic()

    def under_way(self) -> list[OperatorEpochs]:
        """The epochs that have to be over first."""
        return [epochs for epochs in self._operators.values() if epochs.standing.under_way]

    def overdue(self, change: Change) -> BedloadError | None:
        """Why it is given up, if epochs under way take too long.

        SUBTLE: tasks that wait for the restart hold Spark's task slots, and an epoch of another query may need one.
        """
        if change.held_at is None or self._clock.monotonic() - change.held_at < self._hold_seconds:
            return None
        it = self.under_way()[0].standing
        return refusals.held_too_long(it.name, it.epoch, it.query, self._hold_seconds)

    def begin(self, change: Change) -> list[Instruction]:
        """All epochs are at rest: every worker ends, and others begin with what the checkpoint has."""
        change.phase, leaving = ChangePhase.RESTARTING, tuple(self._members.addresses)
        out = [ToWorker(worker, m.Stop()) for worker in leaving]
        absent = self._members.start_anew(change.members)
        for epochs in self._operators.values():
            epochs.recovery.restarted(change.members)
        return [*out, WorkersLeft(leaving), *([StartWorkers(absent)] if absent else [])]

    def again(self, change: Change, worker: WorkerId) -> list[Instruction]:
        """A worker does not come: ask for it again, unless that was done often enough."""
        change.starts[worker] += 1
        return [StartWorkers((worker,))] if change.starts[worker] < MAX_STARTS else []

    def leave_out(self, worker: WorkerId) -> bool:
        """The others do without a worker that does not come; whether there are any."""
        self._members.call_off([worker])
        if not self._members.asked and not self._members.addresses:
            return False
        for epochs in self._operators.values():
            epochs.recovery.leave_out(worker)
        return True
