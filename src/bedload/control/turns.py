"""What becomes of an operator's turns: sealed, committed, rolled back; and of its state, when workers are lost.

Invariants:
- A turn that began ends once, by a commit or by an abort; a seal alone ends nothing.
- No turn begins here: :class:`~bedload.control.epochs.OperatorEpochs` decides which one does, and draws the phases.
- When a turn is sealed or rolled back by what workers say, those that wait are looked at again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable

from bedload.control import refusals
from bedload.control.instructions import CheckTurn, EpochEnded, Instruction, Reply, Token, ToWorker
from bedload.control.lineage import Lineage
from bedload.control.standing import Phase, Standing
from bedload.core.clock import Clock
from bedload.core.errors import BedloadError, CheckpointError, EpochAborted
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, RunId, Turn, WorkerId
from bedload.keys import RoutingTable
from bedload.migration.plan import leave_out
from bedload.protocol import messages as m


class Turns(Standing, ABC):
    """The turns of one operator, from the first word of a worker to the end."""

    def __init__(
        self,
        name: OperatorName,
        routing: RoutingTable,
        addresses: dict[WorkerId, str],
        lineage: Lineage | None,
        missing: Container[WorkerId],
        clock: Clock | None,
    ) -> None:
        super().__init__(name, routing, addresses, lineage, missing, clock)
        self._error: BedloadError | None = None
        """Why the last turn was rolled back, or is being settled."""
        self._parked: list[tuple[Token, m.Open]] = []
        """Opens that cannot be answered yet."""
        self.unread: BedloadError | None = None
        """Why a worker could not read its state; it was not told again since."""
        self._unread_at = 0.0
        self._in_vain: set[WorkerId] = set()
        """Who could not, and is left alone until somebody needs it: a store that fails is not asked all the time."""
        self._reads_in_vain = 0
        """How often in a row."""

    @property
    @abstractmethod
    def in_the_dark(self) -> bool:
        """Whether nobody can say what became of the last turn, and no run goes on that would: it was tried for long."""

    @abstractmethod
    def _unpark(self) -> list[Instruction]:
        """Look again at those that wait."""

    def refuse_parked(self, error: BedloadError) -> list[Instruction]:
        """Let nobody wait any longer."""
        parked, self._parked = self._parked, []
        return [refuse(token, error) for token, _ in parked]

    # --- to the seal, and what keeps it from that ---

    def stage_inspected(self, turn: Turn, stage: int, feeders: int, shape: int) -> list[Instruction]:
        """The operator has this many feeders; the stage's own RDD has ``shape`` partitions."""
        if turn != self.turn:
            return []
        self._current.shapes[stage] = shape
        out: list[Instruction] = []
        if stage == self._current.first_stage and self.phase is Phase.OPEN:
            self._current.feeders = feeders
            out += self._expect()
        return out + self._unpark()

    def turn_written(self, turn: Turn, location: str) -> list[Instruction]:
        """The turn is on record: from here on it may be sealed."""
        if self.lineage is not None and self.query is not None and location and turn == self.turn:
            self.lineage.locations[self.query] = location
        if turn != self.turn or self.phase is not Phase.OPEN:
            return []
        self._current.recorded = True
        return self._expect()

    def _expect(self) -> list[Instruction]:
        current = self._current
        if current.feeders is None or not current.recorded:
            return []
        return self._tell(m.Expect(self.name, self.turn, current.feeders))

    def sealed(self, message: m.Sealed) -> list[Instruction]:
        """A worker has sealed the current turn."""
        if message.turn != self.turn or self.phase not in (Phase.OPEN, Phase.SETTLING):
            return []
        self._current.sealed(message)
        return self._seal() if self._current.sealed_by_all and self.phase is Phase.OPEN else []

    def _seal(self) -> list[Instruction]:
        self.phase = Phase.SEALED
        self._current.probing = None
        self._current.sealed_at = self._clock.monotonic()
        if self.lineage is not None:
            self.lineage.history.sealed(self.turn, self._current.bytes)
        out = self._commit() if self._current.spark_committed else []
        return out + self._unpark()

    def feeder_failed(self, message: m.FeederFailed) -> list[Instruction]:
        """A feeder cannot go on with this turn. Each worker knows whether it is too late to roll back."""
        return self._tell(message) if message.turn == self.turn and self.phase is Phase.OPEN else []

    def failed(self, turn: Turn, error: BedloadError, unrestored: WorkerId | None = None) -> list[Instruction]:
        """A worker cannot go on with this turn; ``unrestored`` names one that has not got its state."""
        if unrestored is not None:
            self.unrestored(unrestored, error)
        if turn != self.turn or self.phase is not Phase.OPEN:
            return []
        return [*self._abort(error), *self._unpark()]

    def _probe(self) -> list[Instruction]:
        if self._current.probing is not None:
            return []
        self._current.probing = set(self._partakers())
        return self._tell(m.Probe(self.name, self.turn))

    def probed(self, message: m.Probed) -> list[Instruction]:
        """A worker has said all that it had to say about this turn."""
        probing = self._current.probing
        if message.turn != self.turn or probing is None:
            return []
        probing.discard(message.worker)
        if probing:
            return []
        return [*self._abort(refusals.incomplete(self.name, self.epoch, None)), *self._unpark()]

    # --- the end ---

    def progress(self, query: QueryId, run: RunId, epoch: Epoch) -> list[Instruction]:
        """Spark has committed an epoch."""
        if query != self.query or run != self.run or epoch != self.epoch:
            return []
        self._current.spark_committed = True
        return self._commit() if self.phase is Phase.SEALED else []

    def _commit(self) -> list[Instruction]:
        assert self.query is not None
        self.phase = Phase.IDLE
        self.committed[self.query] = self.epoch
        self._committed_turn = self.turn
        self._committed_epoch = (self.epoch, self.query)
        if self.lineage is not None:
            self.lineage.committed(self.turn)
        moved = [] if self.transfer is None else self.transfer.committed()
        if self.run is None:
            return moved  # no worker has a part in it, and whoever watched it has been told by another driver
        it = self._current
        seconds = it.sealed_at - it.began
        ended = EpochEnded(
            self.name, self.query, self.run, self.epoch, True, it.rows, it.keys, it.busy, it.bytes, it.began, seconds
        )
        more = [] if self.transfer is None else self.transfer.go_on()
        return [*self._tell(m.Commit(self.name, self.turn)), ended, *moved, *more]

    def _abort(self, error: BedloadError) -> list[Instruction]:
        assert self.query is not None
        self.phase, self._error = Phase.ABORTED, error
        self._current.probing, self._current.settling = None, set()
        if self.run is None:
            return []
        ended = EpochEnded(self.name, self.query, self.run, self.epoch, False, 0, {}, {})
        return [*self._tell(m.Abort(self.name, self.turn, m.WireError.of(error))), ended]

    # --- the loss of a worker: is the turn whole? ---

    def lost(self, worker: WorkerId, error: BedloadError) -> list[Instruction]:
        """A worker is gone, its memory with it; the others go on."""
        self.left(worker)
        if worker not in self._current.workers:
            return []  # it came after the turn had begun
        self._current.gone = error
        if self.phase is Phase.SETTLING:
            self._current.settling.discard(worker)
            return self._settled_by_all()
        return self.doubt(error)

    def doubt(self, error: BedloadError) -> list[Instruction]:
        """The turn cannot go on: roll it back, unless all have sealed it. They are asked."""
        if self.phase is not Phase.OPEN:
            return []
        self.phase, self._error = Phase.SETTLING, error
        self._current.probing, self._current.settling = None, set(self._partakers())
        mine = [(token, ask) for token, ask in self._parked if (ask.run, ask.epoch) == (self.run, self.epoch)]
        self._parked = [item for item in self._parked if item not in mine]
        out: list[Instruction] = [refuse(token, error) for token, _ in mine]
        out += self._tell(m.Settle(self.name, self.turn, m.WireError.of(error)))
        return [*out, *self._settled_by_all()]

    def settled(self, message: m.Settled) -> list[Instruction]:
        """A worker has rolled the turn back, or it had sealed it."""
        if message.turn != self.turn or self.phase is not Phase.SETTLING:
            return []
        self._current.settling.discard(message.worker)
        if not message.sealed:
            # It will not be sealed by that worker any more, so it can never be whole.
            return self._undo()
        return self._settled_by_all()

    def _settled_by_all(self) -> list[Instruction]:
        if self._current.settling:
            return []
        if self._current.gone is None:
            return self._seal()  # nobody is missing: all have sealed it
        # All that are left have sealed it: whether it is whole is for the store to say.
        return [] if self.lineage is None else [CheckTurn(self.name, self.turn)]

    @property
    def fate(self) -> bool | None:
        """After a loss without a checkpoint: whether the turn may be whole; None: that is not known yet."""
        if self.phase is not Phase.SETTLING:
            return False
        return None if self._current.settling else True

    def turn_checked(self, turn: Turn, whole: bool) -> list[Instruction]:
        """Answers :class:`CheckTurn`."""
        if turn != self.turn or self.phase is not Phase.SETTLING:
            return []
        return self._seal() if whole else self._undo()

    def _undo(self) -> list[Instruction]:
        assert self._error is not None
        return [*self._abort(self._error), *self._unpark()]

    # --- the state of those that were lost, left or came ---

    def unrestored(self, worker: WorkerId, error: BedloadError) -> None:
        """A worker could not read its state: it has to be told again, when an epoch begins or a move needs it."""
        if self.lineage is not None:
            self.lineage.unread(worker)
            self._could_not_read(error, {worker})

    def _could_not_read(self, error: BedloadError, workers: set[WorkerId]) -> None:
        self.unread, self._unread_at = error, self.now
        self._in_vain |= workers
        self._reads_in_vain += 1

    def _forget_failure(self) -> None:
        """What could not be read is tried again."""
        self.unread, self._in_vain = None, set()

    def without(self, worker: WorkerId, deployment: DeploymentId) -> list[Instruction]:
        """Nobody comes in place of a lost worker: the others share its key groups, and read them back."""
        self.leave_out(worker)
        return self.prefetch(deployment)

    def leave_out(self, worker: WorkerId) -> None:
        """A worker takes no part any more: the others share its key groups, and have to read them back."""
        if worker not in self.routing.workers:
            return
        before, self.routing = self.routing, leave_out(self.routing, worker, self.addresses)
        if self.lineage is not None:
            self.lineage.left_out(worker)
            for move in before.diff(self.routing):
                of_keys = {KeyGroup(key % self.routing.key_groups) for key in move.keys}
                self.lineage.take_over(move.target, {*move.key_groups, *of_keys})

    def left(self, worker: WorkerId) -> None:
        """A worker has left the cluster; another one of its number may come."""
        self.forget_told(worker)
        self._in_vain.discard(worker)
        if self.lineage is not None:
            self.lineage.lost(worker)

    def restarted(self, workers: Iterable[WorkerId]) -> None:
        """All workers begin anew, these ones: each reads its share back."""
        assert self.lineage is not None
        # As after a loss: the outputs that the old ones recorded cannot be repeated.
        self._current.gone = EpochAborted(
            f"operator {self.name}: all workers were started anew (stop_restart) while tasks of epoch {self.epoch} "
            f"were reading its outputs: start the query again, or let cluster.run(...) do so"
        )
        self.told.clear()
        self.ordered.clear()
        self._in_vain.clear()
        self.lineage.restarted()
        self.routing = self.routing.reassign(workers)

    @property
    def left_unread(self) -> bool:
        """Whether no epoch is under way, and a worker has not got, nor reads, nor tried to, the last one's state."""
        if self.lineage is None or self.phase in (Phase.OPEN, Phase.SETTLING):
            return False
        return not self.lineage.lacking(self.routing) <= self._in_vain

    def prefetch(self, deployment: DeploymentId, *, again: bool = True) -> list[Instruction]:
        """Have workers read the state that Spark most likely asks for, before it does.

        ``again``: also those that tried in vain.
        """
        if self.lineage is None or self.phase in (Phase.OPEN, Phase.SETTLING):
            return []
        if again:
            self._in_vain.clear()
        base = self.turn if self.phase is Phase.SEALED and self._current.taken_up else self.lineage.head
        try:
            return self._restore(deployment, base, idle_only=True)
        except CheckpointError as error:
            self._could_not_read(error, self.lineage.lacking(self.routing))  # who begins an epoch is told why
            return []

    def _restore(self, deployment: DeploymentId, base: Turn | None, *, idle_only: bool = False) -> list[Instruction]:
        assert self.lineage is not None
        restores: list[Instruction] = []
        for worker in self.addresses:
            if idle_only and self.lineage.takes_part(worker) and self.phase is Phase.SEALED:
                continue  # it has the turn with its before-images, and cannot let go of it now
            if idle_only and worker in self._in_vain:
                continue
            groups = self.routing.groups_of(worker)
            for message, plan in self.lineage.restore(worker, deployment, groups, base, self.routing):
                self.tells(worker)
                self.ordered[worker] = self.told[worker]
                restores.append(ToWorker(worker, message, plan))
        superseded = self.transfer.superseded() if restores and self.transfer is not None else []
        return [*superseded, *restores]

    def _tell(self, message: m.Message) -> list[Instruction]:
        return [ToWorker(worker, message) for worker in self._partakers()]


def refuse(token: Token, error: BedloadError) -> Reply:
    """Tell a feeder why it cannot take part."""
    return Reply(token, m.Refused(m.WireError.of(error)))
