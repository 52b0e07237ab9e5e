"""One operator's state on its way to other owners, as the coordinator sees it: a state machine without I/O.

A transfer goes in steps, and each step through the phases of :class:`~bedload.control.phases.TransferPhase`. Without
copying ahead a step is DUE at once. The operator's routing table says who owns what. It changes only between two
epochs, by ``set_routing``: so every key has one owner at any time.

A worker that cannot do its part ends the transfer (:meth:`Transfer.failed`). Before the flip the old owners go on.
After it the epoch is rolled back, unless all have sealed it; then what has not arrived is read from the checkpoint.
Without a checkpoint, ownership goes back to the old owners if they have all state; otherwise the cluster is over.

The old owner keeps what it handed over until the epoch that used it is committed (ENDING). With a checkpoint nothing
needs that; without one, no state is lost if a new owner is lost before the commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bedload.control.instructions import Instruction, ToWorker
from bedload.control.lots import backlog_of, lots_between
from bedload.control.phases import TransferPhase
from bedload.control.tally import Tally
from bedload.core.errors import BedloadError
from bedload.core.ids import NO_MOVE, DeploymentId, MoveId, WorkerId
from bedload.keys import RoutingTable
from bedload.migration.plan import leave_out, steps_of
from bedload.migration.strategies import Strategy
from bedload.protocol import messages as m

if TYPE_CHECKING:
    from bedload.control.turns import Turns


class Transfer:
    """All that one operator moves for one change of the cluster."""

    def __init__(
        self,
        turns: Turns,
        target: RoutingTable,
        strategy: Strategy,
        deployment: DeploymentId,
        numbers: Iterator[MoveId],
        why: str = "",
    ) -> None:
        self._turns = turns
        self._at = turns.standing
        """Where the operator stands."""
        self.strategy = strategy
        self.why = why
        """Why that strategy, if it was chosen."""
        self.phase = TransferPhase.WAITING
        self.tally = Tally()
        self._deployment = deployment
        self._numbers = numbers
        self._steps: deque[RoutingTable] = deque(steps_of(self._at.routing, target, strategy.groups_per_flip))
        self._total = len(self._steps)
        self._first = self._at.routing
        self._switched = False
        """Ownership changed at once, since there was no state to move."""
        self._before = self._at.routing
        """The routing before the flip."""
        self._move = NO_MOVE
        self._lots: tuple[m.Lot, ...] = ()
        self._open: set[WorkerId] = set()
        """Whose word is awaited."""
        self._again = False
        """The step was called off and starts anew."""
        self._uncommitted = False
        """Nothing was committed since the flip."""
        self._failure: BedloadError | None = None
        """A worker cannot do its part, and the epoch that needs it is not over yet."""
        self.doom: BedloadError | None = None
        """State is neither with its old owners nor with the new ones, and there is no checkpoint."""

    # --- seeing it ---

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self.phase is TransferPhase.DONE

    @property
    def flipped(self) -> bool:
        """Whether ownership of any of it has changed, and somebody has state by that."""
        return self.tally.flips > 0 or (self._switched and not self._at.nobody_has_state)

    @property
    def progress(self) -> float:
        """How much of it is done, from 0 to 1."""
        if self.done:
            return 1.0
        step = 0.0 if self._again else self.tally.share(self.phase, ahead=self.strategy.copy_ahead)
        return min(1.0, (self._total - len(self._steps) + step) / max(1, self._total))

    @property
    def missing(self) -> list[WorkerId]:
        """Workers that have a part in it and are not there: they are being replaced."""
        return sorted({it for lot in self._lots for it in (lot.source, lot.target) if not self._at.is_here(it)})

    @property
    def awaited(self) -> frozenset[WorkerId]:
        """Whose word it waits for."""
        return frozenset(self._open)

    @property
    def in_line(self) -> bool:
        """Whether it may wait for the end of an epoch, or for state that is read back."""
        # What the epoch under way has touched is not copied before it is sealed or rolled back.
        return self.phase in (TransferPhase.WAITING, TransferPhase.COPYING, TransferPhase.DUE, TransferPhase.ARRIVED)

    @property
    def needed(self) -> set[WorkerId]:
        """Workers that have a part in the turns that begin now, whether they own something or not."""
        return set(self._participants()) if self.phase in (TransferPhase.FLIPPED, TransferPhase.ARRIVED) else set()

    def backlog(self) -> dict[WorkerId, m.Backlogged]:
        """What feeders should tell the old owners about."""
        if self.phase is not TransferPhase.FLIPPED or self.strategy.terms.order is not m.Order.BACKLOG:
            return {}
        return backlog_of(self._lots, self._open)

    # --- events ---

    def go_on(self, *, in_the_dark: bool = False) -> list[Instruction]:
        """Something may be possible now that was not before, or nobody can say any more what it waits for."""
        # If nothing more moves, and what moved last cannot be read back for now, it is when an epoch begins.
        in_vain = not self._steps and (in_the_dark or self._turns.recovery.unread is not None)
        if self.phase is TransferPhase.WAITING and not self._open and (self._at.at_rest or in_vain):
            return self._start()
        if self._failure is not None:
            return self.give_up()
        if self.due and self._at.between_epochs:
            return [*self.flip(), *self.go_on()]
        if self.phase is TransferPhase.ARRIVED and self._used:
            return self._end(called_off=False)  # a worker was missing when all had arrived, or an epoch was under way
        return []

    @property
    def due(self) -> bool:
        """Whether ownership flips at the next epoch boundary: state is ready, and all that have a part are there."""
        return self.phase is TransferPhase.DUE and not self.missing

    def progressed(self, message: m.Progressed) -> None:
        """An old owner says how much it has sent."""
        if message.move == self._move:
            self.tally.progressed(message)

    def from_worker(self, message: m.Copied | m.Arrived | m.Released, body: m.Body = None) -> list[Instruction]:
        """A worker says how far it is."""
        match message:
            case m.Copied():
                return self._copied(message)
            case m.Arrived():
                return self._arrived(message, body)
            case m.Released():
                return self._released(message)

    def _copied(self, message: m.Copied) -> list[Instruction]:
        """An old owner has copied all but what changes all the time."""
        if self.phase is not TransferPhase.COPYING or message.move != self._move:
            return []
        self._open.discard(message.worker)
        if self._open:
            return []
        self.phase = TransferPhase.DUE
        self.tally.copied(self._at.now)
        return self.go_on()

    def flip(self) -> list[Instruction]:
        """An epoch boundary: ownership changes here."""
        assert self.phase is TransferPhase.DUE
        at = self._at
        self._before = at.routing
        at.set_routing(self._steps[0], f"move {self._move} flips")
        for lot in self._lots if at.lineage is not None else ():
            assert at.lineage is not None
            if not self._before.groups_of(lot.target) and not self._before.guests_of(lot.target):
                at.lineage.owned_nothing(lot.target)
        self.phase, self._uncommitted = TransferPhase.FLIPPED, True
        self.tally.flipped(self._lots, at.now)
        self._open = {lot.target for lot in self._lots}
        addresses = at.members.addresses_of(self._participants())
        out: list[Instruction] = []
        for worker in self._participants():
            leaving = tuple(lot for lot in self._lots if lot.source == worker)
            arriving = tuple(lot for lot in self._lots if lot.target == worker)
            message = m.Flip(
                at.name,
                self._move,
                at.base,
                self._deployment,
                leaving,
                arriving,
                addresses,
                self.strategy.terms,
                *at.base_epoch,
            )
            at.tells(worker)
            out.append(ToWorker(worker, message))
        return out

    def _arrived(self, message: m.Arrived, body: m.Body) -> list[Instruction]:
        """A new owner has all of its own."""
        if self.phase is not TransferPhase.FLIPPED or message.move != self._move or message.worker not in self._open:
            return []
        self.tally.arrived(message, body)
        self._open.discard(message.worker)
        if self._open:
            return []
        self.phase = TransferPhase.ARRIVED
        self.tally.handed_over(self._at.now)
        return self._end(called_off=False) if self._used else []

    @property
    def _used(self) -> bool:
        """Whether no epoch is under way for which the old owners would have to keep what has arrived.

        A sealed one is none if nothing more moves, because the move was given up: it may stay sealed.
        """
        at = self._at
        return at.between_epochs or at.rolled_back or not (self._steps or at.undecided)

    def committed(self) -> list[Instruction]:
        """An epoch of the operator is committed."""
        self._uncommitted = False
        return self._end(called_off=False) if self.phase is TransferPhase.ARRIVED else []

    def _released(self, message: m.Released) -> list[Instruction]:
        """A worker has forgotten about the move."""
        if message.move != self._move or message.worker not in self._open:
            return []
        self.tally.released(message)
        self._open.discard(message.worker)
        return self._forgotten()

    def superseded(self) -> list[Instruction]:
        """The operator's state is read back from the checkpoint: what was copied of it is worth nothing."""
        return self._call_off() if self.phase in (TransferPhase.COPYING, TransferPhase.DUE) else []

    def lost(self, worker: WorkerId) -> list[Instruction]:
        """A worker of a durable cluster is gone."""
        if self.phase in (TransferPhase.COPYING, TransferPhase.DUE):
            return self._call_off()
        if self.phase in (TransferPhase.FLIPPED, TransferPhase.ARRIVED):
            return self._from_checkpoint(worker)
        self._open.discard(worker)
        return self._forgotten()

    def failed(self, move: MoveId, error: BedloadError) -> list[Instruction] | None:
        """A worker cannot do its part in a move; None: nobody needs it any more."""
        if move != self._move or self.phase not in (TransferPhase.COPYING, TransferPhase.DUE, TransferPhase.FLIPPED):
            return None
        if self.phase is not TransferPhase.FLIPPED:
            return self.called_off()
        self._steps.clear()
        self._failure = error
        return [*self._turns.doubt(error), *self.give_up()]

    def give_up(self) -> list[Instruction]:
        """If a part of it failed after the flip: end it, when it is known what became of the epoch under way."""
        if self.phase is not TransferPhase.FLIPPED:
            self._failure = None
        if self._failure is None or self._at.undecided:
            return []
        error, self._failure = self._failure, None
        if self._at.lineage is not None:
            return self._from_checkpoint(None)
        if not self._uncommitted or self._at.is_sealed:
            self.doom = error  # some keys have changed at their new owners, and others have not arrived
            return []
        self._at.set_routing(self._before, f"move {self._move} failed, and is given back")
        self.tally.given_back(self._lots)
        return self._call_off()

    def without(self, worker: WorkerId) -> None:
        """A worker was lost and will not be replaced: nothing goes there."""
        here = self._at.addresses
        tables = (leave_out(table, worker, here) if worker in table.workers else table for table in self._steps)
        self._steps = deque(tables)

    def called_off(self) -> list[Instruction]:
        """Nobody wants it any more; before the flip."""
        self._steps.clear()
        if self._switched and not self.flipped:
            # There is no state still, and its new owners may leave.
            self._at.set_routing(self._first, "called off before there was state")
        if self.phase in (TransferPhase.COPYING, TransferPhase.DUE):
            return self._call_off()
        if self.phase is TransferPhase.WAITING and not self._open:
            self.phase = TransferPhase.DONE
        return []

    def ended(self) -> list[Instruction]:
        """The cluster is over: nobody sends anything any more."""
        return [] if self.phase in (TransferPhase.WAITING, TransferPhase.DONE) else self._end(called_off=True)

    def reset(self) -> MoveId:
        """The operator's state was given up, and the workers forget all about it; the last move that began."""
        self._steps.clear()
        self.phase, self._switched, self._failure = TransferPhase.DONE, False, None
        return self._move

    def reverts(self, lost: WorkerId) -> list[Instruction] | None:
        """Without a checkpoint a worker is lost: give everything back, if the old owners have it all.

        None: they do not.
        """
        if self.phase is TransferPhase.ENDING:
            self._open.discard(lost)
            return self._forgotten()
        if self.phase in (TransferPhase.FLIPPED, TransferPhase.ARRIVED):
            if not self._uncommitted or self.tally.flips > 1 or self._at.is_sealed:
                return None
            self._at.set_routing(self._before, f"worker {lost} was lost, and what moved is given back")
            self.tally.flips = 0
        self._steps.clear()
        if self.phase in (TransferPhase.WAITING, TransferPhase.DONE):
            return []
        return self._call_off()

    def __str__(self) -> str:
        return f"the transfer of {self._at.name} is {self.phase.name}"

    def check(self) -> None:
        """The invariants hold."""
        awaits = self.phase in (TransferPhase.COPYING, TransferPhase.FLIPPED, TransferPhase.ENDING)
        over = self.phase is TransferPhase.DONE
        assert over or awaits == bool(self._open), f"{self} and waits for {self._open or 'nobody'}"
        moves = not over and self.phase is not TransferPhase.WAITING
        assert not moves or (self._lots and self._move != NO_MOVE), f"{self} and moves nothing"
        assert not over or not self._steps, f"{self} and has {len(self._steps)} steps left"
        assert self.tally.flips >= 0, f"{self} and has flipped {self.tally.flips} times"

    # --- steps ---

    def _start(self) -> list[Instruction]:
        if not self._steps:
            self.phase = TransferPhase.DONE
            return []
        self._again = False
        self._move = next(self._numbers)
        self._lots = lots_between(self._at.routing, self._steps[0])
        self.tally.begins(self._lots)
        if not self._lots or self._at.nobody_has_state:
            self._switched = self._switched or bool(self._lots)
            self._at.set_routing(self._steps.popleft(), "no state has to move")
            return self._start()
        if self.missing:
            return []  # its replacement comes, or it is left out
        if not self.strategy.copy_ahead:
            self.phase = TransferPhase.DUE
            return self.go_on()
        self.phase, self.tally.since = TransferPhase.COPYING, self._at.now
        self._open = {lot.source for lot in self._lots}
        name, terms = self._at.name, self.strategy.terms
        addresses = self._at.members.addresses_of(self._participants())
        out: list[Instruction] = []
        for source in sorted(self._open):
            lots = tuple(lot for lot in self._lots if lot.source == source)
            out.append(ToWorker(source, m.Copy(name, self._move, self._deployment, lots, addresses, terms)))
        return out

    def _call_off(self) -> list[Instruction]:
        """Before the flip: drop the copies; the old owners go on as if nothing had been."""
        self._again = True
        return self._end(called_off=True)

    def _from_checkpoint(self, lost: WorkerId | None) -> list[Instruction]:
        """After the flip: what has not arrived is read back, since the state at the flip is in the checkpoint."""
        lineage = self._at.lineage
        assert lineage is not None
        self.tally.from_checkpoint = True
        for lot in self._lots:
            if lot.target in self._open and lot.target != lost:
                lineage.take_over(lot.target, (*lot.groups, *lot.key_groups))
        return self._end(called_off=False)

    def _end(self, *, called_off: bool) -> list[Instruction]:
        self.phase = TransferPhase.ENDING
        self._open = set(self._participants())
        out: list[Instruction] = []
        for worker in sorted(self._open):
            arriving = tuple(lot for lot in self._lots if lot.target == worker)
            out.append(ToWorker(worker, m.Release(self._at.name, self._move, called_off, arriving)))
        return [*out, *self._forgotten()]

    def _forgotten(self) -> list[Instruction]:
        if self._open or self.phase is not TransferPhase.ENDING:
            return []
        if not self._again and self._steps:
            self._steps.popleft()
        self.phase = TransferPhase.WAITING
        return self.go_on()

    def _participants(self) -> list[WorkerId]:
        here = self._at.addresses
        return sorted({worker for lot in self._lots for worker in (lot.source, lot.target)} & here.keys())
