"""After workers were lost, left or came: which of an operator's workers are told to read state back, and when.

Invariant: an owner that does not hold the state at the head is told to read it before a turn begins.
"""

from __future__ import annotations

from collections.abc import Iterable

from bedload.control.instructions import Instruction, ToWorker
from bedload.control.standing import Phase, Standing
from bedload.core.errors import BedloadError, CheckpointError, EpochAborted
from bedload.core.ids import DeploymentId, Turn, WorkerId
from bedload.migration.plan import leave_out

MOST_READS = 15
"""So often in a row state that a move needs is read back in vain before whoever waits for that is told."""
PAUSE_SECONDS = 2.0
"""Between two looks at what somebody waits for: most of the time Spark's word, or a store's, comes before the first."""


class Recovery:
    """What one operator's workers have to read back."""

    def __init__(self, standing: Standing) -> None:
        self.standing = standing
        self.unread: BedloadError | None = None
        """Why a worker could not read its state; it was not told again since."""
        self._unread_at = 0.0
        self._in_vain: set[WorkerId] = set()
        """Who could not, and is left alone until somebody needs it: a store that fails is not asked all the time."""
        self._failures = 0
        """How often in a row."""

    def begin(self) -> None:
        """Somebody needs the state: what was read in vain is read again."""
        self._failures = 0
        self._try_again()

    def _try_again(self) -> None:
        self.unread, self._in_vain = None, set()

    def reads_again(self) -> bool:
        """Whether state that could not be read back, and that somebody needs, is tried again, after a pause; or not."""
        at = self.standing
        if at.query is None or self._failures > MOST_READS:
            return False
        if at.now - self._unread_at >= PAUSE_SECONDS:
            self._try_again()
        return True

    def unrestored(self, worker: WorkerId, error: BedloadError) -> None:
        """A worker could not read its state: it has to be told again, when an epoch begins or a move needs it."""
        at = self.standing
        if at.lineage is not None:
            at.lineage.unread(worker)
            self._could_not_read(error, {worker})

    def _could_not_read(self, error: BedloadError, workers: set[WorkerId]) -> None:
        self.unread, self._unread_at = error, self.standing.now
        self._in_vain |= workers
        self._failures += 1

    def without(self, worker: WorkerId, deployment: DeploymentId) -> list[Instruction]:
        """Nobody comes in place of a lost worker: the others share its key groups, and read them back."""
        self.leave_out(worker)
        return self.prefetch(deployment)

    def leave_out(self, worker: WorkerId) -> None:
        """A worker takes no part any more: the others share its key groups, and have to read them back."""
        at = self.standing
        if worker not in at.routing.workers:
            return
        before = at.routing
        at.set_routing(leave_out(before, worker, at.addresses), f"worker {worker} takes no part any more")
        if at.lineage is not None:
            at.lineage.left_out(worker)
            for move in before.diff(at.routing):
                of_keys = set(map(at.routing.group_of, move.keys))
                at.lineage.take_over(move.target, {*move.key_groups, *of_keys})

    def left(self, worker: WorkerId) -> None:
        """A worker has left the cluster; another one of its number may come."""
        self.lost(worker)

    def lost(self, worker: WorkerId) -> None:
        """A worker is gone, its memory with it."""
        at = self.standing
        at.forget_told(worker)
        self._in_vain.discard(worker)
        if at.lineage is not None:
            at.lineage.lost(worker)

    def restarted(self, workers: Iterable[WorkerId]) -> None:
        """All workers begin anew, these ones: each reads its share back."""
        at = self.standing
        assert at.lineage is not None
        # As after a loss: the outputs that the old ones recorded cannot be repeated.
        at.current.gone = EpochAborted(
            f"operator {at.name}: all workers were started anew (stop_restart) while tasks of epoch {at.epoch} "
            f"were reading its outputs: start the query again, or let cluster.run(...) do so"
        )
        at.told.clear()
        at.ordered.clear()
        self._in_vain.clear()
        at.lineage.restarted()
        at.set_routing(at.routing.reassign(workers), "all workers start anew")

    @property
    def left_unread(self) -> bool:
        """Whether no epoch is under way, and a worker has not got, nor reads, nor tried to, the last one's state."""
        at = self.standing
        if at.lineage is None or at.phase in (Phase.OPEN, Phase.SETTLING):
            return False
        return not at.lineage.lacking(at.routing) <= self._in_vain

    def prefetch(self, deployment: DeploymentId, *, again: bool = True) -> list[Instruction]:
        """Have workers read the state that Spark most likely asks for, before it does.

        ``again``: also those that tried in vain.
        """
        at = self.standing
        if at.lineage is None or at.phase in (Phase.OPEN, Phase.SETTLING):
            return []
        if again:
            self._in_vain.clear()
        base = at.turn if at.phase is Phase.SEALED and at.current.taken_up else at.lineage.head
        try:
            return self.restore(deployment, base, idle_only=True)
        except CheckpointError as error:
            self._could_not_read(error, at.lineage.lacking(at.routing))  # who begins an epoch is told why
            return []

    def restore(self, deployment: DeploymentId, base: Turn | None, *, idle_only: bool = False) -> list[Instruction]:
        """Have workers read the state at a turn that they do not hold."""
        at = self.standing
        assert at.lineage is not None
        restores: list[Instruction] = []
        begun = Turn(at.turn - 1) if at.phase is Phase.OPEN else at.turn  # the open one is about to begin
        for worker in at.addresses:
            if idle_only and at.lineage.takes_part(worker) and at.phase is Phase.SEALED:
                continue  # it has the turn with its before-images, and cannot let go of it now
            if idle_only and worker in self._in_vain:
                continue
            groups = at.routing.groups_of(worker)
            for message, plan in at.lineage.restore(worker, deployment, groups, base, at.routing, begun):
                at.tells(worker)
                at.ordered[worker] = at.told[worker]
                restores.append(ToWorker(worker, message, plan))
        superseded = at.transfer.superseded() if restores and at.transfer is not None else []
        return [*superseded, *restores]
