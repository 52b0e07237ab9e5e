"""Changes of the cluster, one at a time: what users ask for, from the first new worker to the last one that left.

A change goes through the phases of :class:`~bedload.control.phases.ChangePhase`; others wait in a queue. One that fails
before anything flipped leaves the cluster as it was; one that lost a worker later goes on with what the checkpoint has.
If a worker cannot do its part after something flipped, the change ends there: workers that own something by then are
members, and the error says what has moved.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable

from bedload.control import refusals
from bedload.control.change import Change, record_of
from bedload.control.epochs import OperatorEpochs
from bedload.control.instructions import ChangeResult, Instruction, StartWorkers, Token, ToWorker, WorkersLeft
from bedload.control.members import Members
from bedload.control.phases import ChangePhase
from bedload.control.restart import MAX_STARTS, Restart
from bedload.control.seen import Seen, in_line, see
from bedload.control.standing import Standing
from bedload.control.transfer import Transfer
from bedload.control.wish import Kind, Wish, check_wish, listed, members_after, strategy_for, target_of
from bedload.core.clock import Clock
from bedload.core.errors import BedloadError, MoveCancelled, MoveFailed, MoveRefused
from bedload.core.ids import ChangeId, DeploymentId, MoveId, OperatorName, WorkerId
from bedload.core.limits import Limits
from bedload.migration.strategies import restarts
from bedload.protocol import messages as m

MAX_QUEUED = 16


class Changes:
    """All changes of a cluster. A part of the :class:`~bedload.control.coordinator.Coordinator`."""

    def __init__(
        self,
        operators: dict[OperatorName, OperatorEpochs],
        members: Members,
        deployment_of: Callable[[OperatorName], DeploymentId],
        clock: Clock,
        limits: Limits,
        *,
        durable: bool,
    ) -> None:
        self._operators = operators
        self._members = members
        self._deployment_of = deployment_of
        self._clock = clock
        self._restart = Restart(operators, members, clock, limits)
        self._durable = durable
        self.current: Change | None = None
        self._queue: deque[Change] = deque()
        self._numbers = map(ChangeId, itertools.count())
        self._moves = map(MoveId, itertools.count())

    # --- what the user asks for ---

    def ask(self, to: Token, wish: Wish) -> tuple[ChangeId, list[Instruction]]:
        """Take a wish; answered by a :class:`ChangeResult`."""
        change = Change(next(self._numbers), to, wish, requested=self._clock.monotonic())
        if self.current is not None and len(self._queue) >= MAX_QUEUED:
            error = MoveRefused(f"{len(self._queue)} changes are waiting already; wait for one of them to end")
            return change.number, [ChangeResult(to, change.number, error)]
        self._queue.append(change)
        return change.number, self._next(asked=change)

    def cancel(self, number: ChangeId) -> tuple[bool, list[Instruction]]:
        """Call a change off, if nothing has flipped yet; whether that could be done."""
        for change in self._queue:
            if change.number == number:
                self._queue.remove(change)
                return True, self._over(change, MoveCancelled(f"{change.what} was called off before it began"))
        now = self.current
        if now is None or now.number != number or now.flipped or now.failure is not None:
            return False, []
        return True, self._fail(now, MoveCancelled(f"{now.what} was called off; nothing had moved"))

    def seen(self, number: ChangeId) -> Seen:
        """Where a change is, how much of it is done, and what it waits for."""
        every = [*([] if self.current is None else [self.current]), *self._queue]
        for place, change in enumerate(every):
            if change.number == number:
                return in_line(change, every[:place]) if place else see(change, {at.name: at for at in self._standings})
        return Seen(ChangePhase.OVER, 1.0)

    # --- events ---

    @property
    def holding(self) -> bool:
        """Whether no epoch may begin, because all workers start anew."""
        return self.current is not None and self.current.phase in (ChangePhase.HOLDING, ChangePhase.RESTARTING)

    @property
    def wanted(self) -> set[WorkerId]:
        """Workers that own key groups, and those that shall when the current change is over."""
        change = self.current
        return {*self._members.owning, *(change.members if change is not None and change.failure is None else ())}

    @property
    def restarting(self) -> bool:
        """Whether all workers were told to end, and others start."""
        return self.current is not None and self.current.phase is ChangePhase.RESTARTING

    def routed(self, operator: OperatorName, why: str) -> None:
        """Ownership has changed."""
        if self.current is not None:
            self.current.routings.append((operator, why))

    def ready(self, worker: WorkerId) -> list[Instruction]:
        """A worker that was asked for is there, with all code."""
        change = self.current
        if change is None or change.phase is not ChangePhase.STARTING:
            return []
        change.waiting.discard(worker)
        return self._weigh(change) if not change.waiting else []

    def remove(self, worker: WorkerId) -> None:
        """A worker was lost and will not be replaced."""
        self._members.disown(worker)
        if self.current is not None:
            self.current.without(worker, tuple(sorted(self._members.addresses)))

    def not_started(self, worker: WorkerId, error: BedloadError) -> list[Instruction]:
        """A worker that was asked for will not come."""
        self._members.call_off([worker])
        change = self.current
        return self._fail(change, error) if change is not None and change.phase is ChangePhase.STARTING else []

    def not_restarted(self, worker: WorkerId, error: BedloadError) -> list[Instruction] | None:
        """When all start anew, one does not come, or is gone before it had a part in anything; None: nobody is left."""
        change = self.current
        assert change is not None
        if again := self._restart.again(change, worker):
            return again
        if not self._restart.leave_out(worker):
            return None
        self.remove(worker)
        change.failure = refusals.left_out(worker, error, MAX_STARTS, len(self._members.owning))
        return []  # whoever asks goes on with it, and with the epochs that were held up

    def failed(self, message: m.WorkerFailed) -> list[Instruction]:
        """A worker cannot do its part."""
        change, error = self.current, message.error.error()
        if change is None or message.operator is None:
            return []
        if message.move is None:
            if change.phase is not ChangePhase.WEIGHING or message.ticket != change.ticket:
                return []
            return self._fail(change, refusals.told(error, "Nothing has moved: the cluster is as it was"))
        transfer = change.transfers.get(message.operator)
        out = None if transfer is None else transfer.failed(message.move, error)
        if out is None:
            return []  # all is where it should be
        change.failure = change.failure or error
        return [*out, *change.call_off(), *self.go_on()]

    def weighed(self, message: m.Weighed) -> list[Instruction]:
        """A worker has said what its key groups weigh."""
        change = self.current
        if change is None or change.phase is not ChangePhase.WEIGHING or message.ticket != change.ticket:
            return []
        change.weights.setdefault(message.operator, {})[message.worker] = message
        change.waiting.discard((message.operator, message.worker))
        return self._move(change) if not change.waiting else []

    def lost(self, worker: WorkerId) -> list[Instruction]:
        """A worker of a durable cluster is gone; the operators have been told."""
        change = self.current
        if change is None:
            return []
        if change.phase is ChangePhase.WEIGHING:
            return self._without_weight(change, worker)
        out = [step for transfer in change.transfers.values() for step in transfer.lost(worker)]
        return [*out, *self.go_on()]

    def newcomer_lost(self, worker: WorkerId, error: BedloadError) -> list[Instruction] | None:
        """Without a checkpoint a worker is gone that owned nothing before this change; None: state is lost with it."""
        change = self.current
        if change is None:
            return None if worker in self._members.owning else []
        out: list[Instruction] = []
        for transfer in change.transfers.values():
            back = transfer.reverts(worker)
            if back is None:
                return None
            out += back
        if any(worker in at.owners for at in self._standings):
            return None
        leaving = worker not in change.members
        if not leaving and change.flipped:
            return None
        for epochs in self._operators.values():
            epochs.recovery.leave_out(worker)
        self.remove(worker)
        if not leaving:
            return [*out, *self._fail(change, error)]
        # One that was about to leave had handed everything over, or had nothing to hand over.
        weighing = change.phase is ChangePhase.WEIGHING
        return [*out, *(self._without_weight(change, worker) if weighing else self.go_on())]

    def go_on(self) -> list[Instruction]:
        """Something has happened that a change may have waited for."""
        change = self.current
        if change is None:
            return []
        if change.phase is ChangePhase.HOLDING:
            return self._held(change)
        if change.phase is ChangePhase.RESTARTING and not self._members.asked:
            return self._finish(change)
        if change.phase is not ChangePhase.MOVING:
            return []
        out: list[Instruction] = []
        for name, transfer in change.transfers.items():
            in_the_dark = self._operators[name].inquiries.in_the_dark
            out += transfer.go_on(in_the_dark=in_the_dark)
            if in_the_dark and change.failure is not None:
                out += transfer.called_off()  # what it needs is read back when an epoch begins, which may never be
        done = all(transfer.done for transfer in change.transfers.values())
        return [*out, *(self._leave(change) if done else self._look_for_ends(change))]

    def _leave(self, change: Change) -> list[Instruction]:
        """All has moved: those that are not wanted any more leave, as soon as nobody talks to them."""
        for name in change.transfers:
            self._operators[name].standing.transfer = None
        self._stop_halfway(change)
        self._keep_owners(change)
        leaving = self._members.not_owning
        # SUBTLE: not in the middle of an epoch in which feeders talk to it. It has no part in the next one.
        needed = [it for it in self._operators.values() if any(it.standing.needs(worker) for worker in leaving)]
        if any(it.standing.undecided or not it.inquiries.in_the_dark for it in needed):
            return _inquire(needed)
        for worker, epochs in itertools.product(leaving, self._operators.values()):
            epochs.recovery.leave_out(worker)  # it may own something of an operator that was applied meanwhile
        return self._finish(change)

    def _look_for_ends(self, change: Change) -> list[Instruction]:
        """State moves when epochs end: find out what became of them, since no other one may come."""
        waiting = [self._operators[name] for name, transfer in change.transfers.items() if transfer.in_line]
        if change.failure is not None:
            return _inquire(waiting)
        looks = [step for epochs in waiting for step in epochs.inquiries.inquire()]
        for epochs in waiting:
            if (error := epochs.inquiries.stuck()) is not None:
                change.failure = error  # what has flipped stays, and nothing more moves
                return [*looks, *change.call_off(), *self.go_on()]
        return looks

    def ended(self, error: BedloadError) -> list[Instruction]:
        """The cluster is over."""
        changes = [*([] if self.current is None else [self.current]), *self._queue]
        self.current, self._queue = None, deque()
        out = [step for it in changes for transfer in it.transfers.values() for step in transfer.ended()]
        return [*out, *(self._result(it, error) for it in changes)]

    # --- steps ---

    def _next(self, asked: Change | None = None) -> list[Instruction]:
        """Begin with the first one in line; ``asked``: its user waits for the answer."""
        if self.current is not None or not self._queue:
            return []
        change = self.current = self._queue.popleft()
        change.before = self._members.owning
        try:
            change.members = members_after(change.wish, self._members.owning)
            tables = {at.name: at.routing for at in self._standings}
            check_wish(change.wish, self._members.owning, tables, durable=self._durable)
        except BedloadError as error:
            return self._over(change, error, on_record=change is not asked)
        if restarts(change.wish.strategy):
            self._restart.hold(change)
            return self.go_on()
        new = tuple(worker for worker in change.members if worker not in self._members.owning)
        change.phase, change.waiting = ChangePhase.STARTING, set(new)
        if not new:
            return self._weigh(change)
        absent = self._members.ask(new)
        return [StartWorkers(absent)] if absent else []

    def _weigh(self, change: Change) -> list[Instruction]:
        change.phase = ChangePhase.WEIGHING
        asked = [(name, worker) for name in self._concerned(change) for worker in self._members.addresses]
        change.waiting = set(asked)
        weigh = [ToWorker(worker, m.Weigh(name, change.ticket)) for name, worker in asked]
        return [*weigh] if weigh else self._move(change)

    def _without_weight(self, change: Change, worker: WorkerId) -> list[Instruction]:
        """Go on without the word of a worker that is gone."""
        change.waiting = {item for item in change.waiting if item[1] != worker}
        return self._move(change) if not change.waiting else []

    def _move(self, change: Change) -> list[Instruction]:
        change.phase, change.waiting = ChangePhase.MOVING, set()
        wish = change.wish
        if wish.kind in (Kind.MOVE, Kind.PIN) and wish.worker not in change.members:
            return self._over(change, refusals.nowhere_to_go(wish.worker, listed(change.members)))
        self._members.own(change.members)
        try:
            for name in self._concerned(change):
                turns, weights = self._operators[name].turns, change.weights.get(name, {})
                routing = turns.standing.routing
                strategy, why = strategy_for(wish, routing.key_groups, weights.values())
                target, deployment = target_of(wish, routing, change.members, weights), self._deployment_of(name)
                change.transfers[name] = Transfer(turns, target, strategy, deployment, self._moves, why)
        except BedloadError as error:
            return self._over(change, error)
        for name, transfer in change.transfers.items():
            self._operators[name].standing.transfer = transfer
            self._operators[name].inquiries.try_again()
        return self.go_on()

    def _held(self, change: Change) -> list[Instruction]:
        """No epoch begins: start all anew when those under way are over, and give up if they take too long."""
        under_way = self._restart.under_way()
        if not under_way:
            return self._restart.begin(change)
        error = self._restart.overdue(change)
        if error is not None:
            return self._fail(change, error)
        return [step for epochs in under_way for step in epochs.inquiries.inquire()]

    def _finish(self, change: Change) -> list[Instruction]:
        gone = self._members.not_owning
        for worker in gone:
            self._members.left(worker)
            for epochs in self._operators.values():
                epochs.recovery.left(worker)
        stops = [ToWorker(worker, m.Stop()) for worker in gone]
        return [*stops, *([WorkersLeft(gone)] if gone else []), *self._over(change, change.failure)]

    def _fail(self, change: Change, error: BedloadError) -> list[Instruction]:
        """Before anything flipped, or with everything given back."""
        change.failure = error
        self._members.own(change.before)
        self._members.call_off(self._members.asked)
        out = change.call_off()
        if change.phase is not ChangePhase.MOVING:
            return [*out, *self._finish(change)]
        return [*out, *self.go_on()]

    def _stop_halfway(self, change: Change) -> None:
        """A change has failed: whoever owns something is a member, and the error says what has moved."""
        if not isinstance(change.failure, MoveFailed) or "moved" in change.failure.details:
            return
        stay = set(change.before) & set(change.members)
        self._members.own(stay.union(*(at.owners for at in self._standings)))
        owning = self._members.owning
        for at in self._standings:
            if set(at.routing.workers) != set(owning):
                at.set_routing(at.routing.next(workers=owning), "the change stopped halfway")
        change.failure = change.stopped_halfway()

    def _keep_owners(self, change: Change) -> None:
        """A change has failed: workers stay that alone have the state of an operator which was applied meanwhile."""
        if change.failure is not None:
            only = [at for at in self._standings if at.lineage is None and not at.nobody_has_state]
            self._members.own(set(self._members.owning).union(*(at.owners for at in only)))

    def _over(self, change: Change, error: BedloadError | None, *, on_record: bool = True) -> list[Instruction]:
        """``on_record``: unless it is refused by the call itself, which is all that there is to know of it."""
        change.phase = ChangePhase.OVER
        if self.current is change:
            self.current = None
        return [self._result(change, error, on_record=on_record), *self._next()]

    def _result(self, change: Change, error: BedloadError | None, *, on_record: bool = True) -> ChangeResult:
        change.before = change.before or self._members.owning  # it was called off before it began
        now, workers = self._clock.monotonic(), len(self._members.owning)
        records = tuple(
            record_of(change, self._operators[name].standing, error, now=now, workers=workers)
            for name in self._concerned(change)
            if on_record
        )
        return ChangeResult(change.to, change.number, error, records, tuple(change.routings))

    def _concerned(self, change: Change) -> list[OperatorName]:
        return [name for name in self._operators if change.wish.operator in (None, name)]

    @property
    def _standings(self) -> list[Standing]:
        return [epochs.standing for epochs in self._operators.values()]

    def check(self) -> None:
        """The invariants hold: one change at a time, and transfers are those of the current one."""
        change = self.current
        transfers = {} if change is None else change.transfers
        for at in self._standings:
            assert at.transfer is None or at.transfer is transfers.get(at.name), f"{at.name} moves for nobody"
        assert change is not None or not self._queue, "changes wait for none"
        if change is not None:
            change.check()


def _inquire(operators: Iterable[OperatorEpochs]) -> list[Instruction]:
    return [step for it in operators if not it.inquiries.in_the_dark for step in it.inquiries.inquire()]
