"""What becomes of an operator's turns: sealed, committed, rolled back; also when workers are lost.

Invariants:
- A turn that began ends once, by a commit or by an abort; a seal alone ends nothing.
- No turn begins here: :class:`~bedload.control.epochs.OperatorEpochs` decides which one does, and draws the phases.
- When workers say that a turn is sealed or rolled back, opens that wait are looked at again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bedload.control import refusals
from bedload.control.attempt import StageFacts
from bedload.control.instructions import CheckTurn, EpochEnded, Instruction, ToWorker, WriteTurn
from bedload.control.recovery import Recovery
from bedload.control.room import WaitingRoom
from bedload.control.standing import Phase, Standing
from bedload.core.errors import BedloadError
from bedload.core.ids import Epoch, QueryId, RunId, Turn, WorkerId
from bedload.protocol import messages as m


class Turns:
    """The turns of one operator, from the first word of a worker to the end."""

    def __init__(
        self, standing: Standing, room: WaitingRoom, recovery: Recovery, look_again: Callable[[], list[Instruction]]
    ) -> None:
        self.standing = standing
        self._room = room
        self.recovery = recovery
        self._look_again = look_again
        """Looks at those that wait."""

    # --- to the seal, and what keeps it from that ---

    def stage_inspected(self, turn: Turn, stage: int, facts: StageFacts) -> list[Instruction]:
        """What the stage is like, and with the first one the epoch."""
        at = self.standing
        if turn != at.turn:
            return []
        current = at.current
        current.shapes[stage] = facts.shape
        out: list[Instruction] = []
        if stage == current.first_stage and at.phase is Phase.OPEN and current.time is None:
            current.feeders, current.time = facts.feeders, facts.time
            out += self._tell(m.Time(at.name, at.turn, facts.time))
            if at.lineage is not None and current.record is not None:
                record = msgspec.structs.replace(current.record, time=facts.time)
                at.lineage.history.add(record)
                out.append(WriteTurn(at.name, record))
            out += self._expect()
        return out + self._look_again()

    def turn_written(self, turn: Turn, location: str) -> list[Instruction]:
        """The turn is on record: from here on it may be sealed."""
        at = self.standing
        if at.lineage is not None and at.query is not None and location and turn == at.turn:
            at.lineage.locations[at.query] = location
        if turn != at.turn or at.phase is not Phase.OPEN:
            return []
        at.current.recorded = True
        return self._expect()

    def _expect(self) -> list[Instruction]:
        at = self.standing
        current = at.current
        if current.feeders is None or not current.recorded:
            return []
        return self._tell(m.Expect(at.name, at.turn, current.feeders))

    def sealed(self, message: m.Sealed) -> list[Instruction]:
        """A worker has sealed the current turn."""
        at = self.standing
        if message.turn != at.turn or at.phase not in (Phase.OPEN, Phase.SETTLING):
            return []
        at.current.sealed(message)
        return self._seal() if at.current.sealed_by_all and at.phase is Phase.OPEN else []

    def _seal(self) -> list[Instruction]:
        at = self.standing
        at.phase = Phase.SEALED
        at.current.probing = None
        at.current.sealed_at = at.clock.monotonic()
        if at.lineage is not None:
            at.lineage.history.sealed(at.turn, at.current.bytes)
        out = self.commit() if at.current.spark_committed else []
        return out + self._look_again()

    def feeder_failed(self, message: m.FeederFailed) -> list[Instruction]:
        """A feeder cannot go on with this turn. Each worker knows whether it is too late to roll back."""
        at = self.standing
        return self._tell(message) if message.turn == at.turn and at.phase is Phase.OPEN else []

    def failed(self, turn: Turn, error: BedloadError, unrestored: WorkerId | None = None) -> list[Instruction]:
        """A worker cannot go on with this turn; ``unrestored`` names one that has not got its state."""
        at = self.standing
        if unrestored is not None:
            self.recovery.unrestored(unrestored, error)
        if turn != at.turn or at.phase is not Phase.OPEN:
            return []
        return [*self.abort(error), *self._look_again()]

    def probe(self) -> list[Instruction]:
        """Ask the workers for all that they have to say about this turn."""
        at = self.standing
        if at.current.probing is not None:
            return []
        at.current.probing = set(at.partakers())
        return self._tell(m.Probe(at.name, at.turn))

    def probed(self, message: m.Probed) -> list[Instruction]:
        """A worker has said all that it had to say about this turn."""
        at = self.standing
        probing = at.current.probing
        if message.turn != at.turn or probing is None:
            return []
        probing.discard(message.worker)
        if probing:
            return []
        return [*self.abort(refusals.incomplete(at.name, at.epoch, None)), *self._look_again()]

    # --- the end ---

    def progress(self, query: QueryId, run: RunId, epoch: Epoch) -> list[Instruction]:
        """Spark has committed an epoch."""
        at = self.standing
        if query != at.query or run != at.run or epoch != at.epoch:
            return []
        at.current.spark_committed = True
        return self.commit() if at.phase is Phase.SEALED else []

    def commit(self) -> list[Instruction]:
        """The turn counts."""
        at = self.standing
        assert at.query is not None
        at.phase = Phase.IDLE
        at.committed[at.query] = at.epoch
        at.in_memory = at.turn, at.epoch, at.query
        if at.lineage is not None:
            at.lineage.committed(at.turn)
        moved = [] if at.transfer is None else at.transfer.committed()
        if at.run is None:
            return moved  # no worker has a part in it, and whoever watched it has been told by another driver
        it = at.current
        seconds = it.sealed_at - it.began
        ended = EpochEnded(
            at.name, at.query, at.run, at.epoch, True, it.time, it.stats, began=it.began, seconds=seconds
        )
        more = [] if at.transfer is None else at.transfer.go_on()
        return [*self._tell(m.Commit(at.name, at.turn)), ended, *moved, *more]

    def abort(self, error: BedloadError) -> list[Instruction]:
        """Roll the turn back."""
        at = self.standing
        assert at.query is not None
        at.phase, at.current.error = Phase.ABORTED, error
        at.current.probing, at.current.settling = None, set()
        if at.run is None:
            return []
        ended = EpochEnded(at.name, at.query, at.run, at.epoch, False, at.current.time)
        return [*self._tell(m.Abort(at.name, at.turn, m.WireError.of(error))), ended]

    # --- the loss of a worker: is the turn whole? ---

    def lost(self, worker: WorkerId, error: BedloadError) -> list[Instruction]:
        """A worker is gone, its memory with it; the others go on."""
        at = self.standing
        self.recovery.lost(worker)
        if worker not in at.current.workers:
            return []  # it came after the turn had begun
        at.current.gone = error
        if at.phase is Phase.SETTLING:
            at.current.settling.discard(worker)
            return self._settled_by_all()
        return self.doubt(error)

    def doubt(self, error: BedloadError) -> list[Instruction]:
        """The turn cannot go on: roll it back, unless all have sealed it. They are asked."""
        at = self.standing
        if at.phase is not Phase.OPEN:
            return []
        at.phase, at.current.error = Phase.SETTLING, error
        at.current.probing, at.current.settling = None, set(at.partakers())
        mine = self._room.leave(at.name, at.has_begun)
        out: list[Instruction] = [refusals.refuse(it.token, error) for it in mine]
        out += self._tell(m.Settle(at.name, at.turn, m.WireError.of(error)))
        return [*out, *self._settled_by_all()]

    def settled(self, message: m.Settled) -> list[Instruction]:
        """A worker has rolled the turn back, or it had sealed it."""
        at = self.standing
        if message.turn != at.turn or at.phase is not Phase.SETTLING:
            return []
        at.current.settling.discard(message.worker)
        if not message.sealed:
            # It will not be sealed by that worker any more, so it can never be whole.
            return self._undo()
        return self._settled_by_all()

    def _settled_by_all(self) -> list[Instruction]:
        at = self.standing
        if at.current.settling:
            return []
        if at.current.gone is None:
            return self._seal()  # nobody is missing: all have sealed it
        # All that are left have sealed it: whether it is whole is for the store to say.
        return [] if at.lineage is None else [CheckTurn(at.name, at.turn)]

    @property
    def fate(self) -> bool | None:
        """After a loss without a checkpoint: whether the turn may be whole; None: that is not known yet."""
        at = self.standing
        if at.phase is not Phase.SETTLING:
            return False
        return None if at.current.settling else True

    def turn_checked(self, turn: Turn, whole: bool) -> list[Instruction]:
        """Answers :class:`CheckTurn`."""
        at = self.standing
        if turn != at.turn or at.phase is not Phase.SETTLING:
            return []
        return self._seal() if whole else self._undo()

    def _undo(self) -> list[Instruction]:
        at = self.standing
        assert at.current.error is not None
        return [*self.abort(at.current.error), *self._look_again()]

    def _tell(self, message: m.Message) -> list[Instruction]:
        return [ToWorker(worker, message) for worker in self.standing.partakers()]
