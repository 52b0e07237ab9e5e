"""Changes of the cluster, one at a time: what users ask for, from the first new worker to the last one that left.

Phases of a change::

    STARTING new workers ──▶ WEIGHING what there is ──▶ MOVING every operator ──▶ workers LEAVING ──▶ over
                                  (restart: HOLDING epochs ──▶ RESTARTING all workers)

Others wait in a queue. A change that fails before anything flipped leaves the cluster as it was; one that lost a worker
later goes on with what the checkpoint has. If a worker cannot do its part after something flipped, the change ends
there: whoever owns something by then is a member, and the error says what has moved. A worker that does not come when
all start anew is asked for again, and left out if it does not come then either.
"""

from __future__ import annotations

import enum
import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from bedload.control import refusals
from bedload.control.epochs import OperatorEpochs
from bedload.control.instructions import ChangeResult, Instruction, StartWorkers, Token, ToWorker, WorkersLeft
from bedload.control.members import Members
from bedload.control.transfer import Transfer
from bedload.core.clock import Clock
from bedload.core.errors import BedloadError, MoveCancelled, MoveFailed, MoveRefused, WorkerStartFailed
from bedload.core.ids import DeploymentId, KeyGroup, OperatorName, WorkerId
from bedload.keys import RoutingTable
from bedload.migration import plan
from bedload.migration.chooser import Facts, choose
from bedload.migration.record import MoveRecord, stoppages
from bedload.migration.strategies import DEFAULT, Strategy
from bedload.protocol import messages as m

Kind = Literal["rescale", "move", "drain", "rebalance", "pin", "unpin"]

MAX_QUEUED = 16
MAX_PINS = 1_000_000
"""Single keys of an operator with a place of their own: every feeder is told of all of them when an epoch opens."""
HOLD_SECONDS = 120.0
"""So long the epochs under way may take to end before a restart of all workers is given up."""
MAX_STARTS = 3
"""So often a worker is started before the others do without it."""


@dataclass(frozen=True)
class Wish:
    """What a user asks for."""

    kind: Kind
    strategy: Strategy | None = None
    """None: one that fits is chosen."""
    workers: int | None = None
    """How many there shall be."""
    worker: WorkerId | None = None
    """Who takes it, or who leaves."""
    operator: OperatorName | None = None
    """None: all of them."""
    groups: tuple[KeyGroup, ...] = ()
    keys: tuple[int, ...] = ()
    """By their hash."""


class ChangePhase(enum.Enum):
    """Where a change is."""

    QUEUED = "waits for the change before it"
    STARTING = "new workers start"
    WEIGHING = "workers say what their key groups weigh"
    MOVING = "state moves"
    HOLDING = "waits for the epochs under way"
    RESTARTING = "all workers start anew"
    OVER = "over"


@dataclass
class Change:
    """One change."""

    number: int
    to: Token
    wish: Wish
    phase: ChangePhase = ChangePhase.QUEUED
    requested: float = 0.0
    members: tuple[WorkerId, ...] = ()
    """Who shall own key groups in the end."""
    before: tuple[WorkerId, ...] = ()
    waiting: set[Any] = field(default_factory=set)
    """Whose word is awaited."""
    weights: dict[OperatorName, dict[WorkerId, m.Weighed]] = field(default_factory=dict)
    transfers: dict[OperatorName, Transfer] = field(default_factory=dict)
    failure: BedloadError | None = None
    starts: Counter[WorkerId] = field(default_factory=Counter)
    """How often each worker was started in vain."""
    held_at: float | None = None
    routings: list[tuple[OperatorName, str]] = field(default_factory=list)
    """Every change of ownership while it went on: of which operator, and why."""

    @property
    def flipped(self) -> bool:
        """Whether ownership of anything has changed."""
        return self.phase is ChangePhase.RESTARTING or any(it.flipped for it in self.transfers.values())


class Changes:
    """All changes of a cluster. A part of the :class:`~bedload.control.coordinator.Coordinator`."""

    def __init__(
        self,
        operators: dict[OperatorName, OperatorEpochs],
        members: Members,
        deployment_of: Callable[[OperatorName], DeploymentId],
        clock: Clock,
        *,
        durable: bool,
    ) -> None:
        self._operators = operators
        self._members = members
        self._deployment_of = deployment_of
        self._clock = clock
        self._durable = durable
        self.current: Change | None = None
        self._queue: deque[Change] = deque()
        self._numbers = itertools.count()
        self._moves = itertools.count()

    # --- what the user asks for ---

    def ask(self, to: Token, wish: Wish) -> tuple[int, list[Instruction]]:
        """Take a wish; answered by a :class:`ChangeResult`."""
        change = Change(next(self._numbers), to, wish, requested=self._clock.monotonic())
        if self.current is not None and len(self._queue) >= MAX_QUEUED:
            error = MoveRefused(f"{len(self._queue)} changes are waiting already; wait for one of them to end")
            return change.number, [ChangeResult(to, change.number, error)]
        self._queue.append(change)
        return change.number, self._next()

    def cancel(self, number: int) -> tuple[bool, list[Instruction]]:
        """Call a change off, if nothing has flipped yet; whether that could be done."""
        for change in self._queue:
            if change.number == number:
                self._queue.remove(change)
                return True, self._over(change, MoveCancelled(f"change {number} was called off before it began"))
        change_ = self.current
        if change_ is None or change_.number != number or change_.flipped or change_.failure is not None:
            return False, []
        return True, self._fail(change_, MoveCancelled(f"change {number} was called off; nothing had moved"))

    def seen(self, number: int) -> tuple[ChangePhase, float]:
        """Where a change is, and how much of it is done."""
        change = self.current
        if change is not None and change.number == number:
            parts = [it.progress for it in change.transfers.values()]
            return change.phase, sum(parts) / len(parts) if parts else 0.0
        return (ChangePhase.QUEUED if any(it.number == number for it in self._queue) else ChangePhase.OVER), 0.0

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
    def restarting(self) -> int | None:
        """The change for which all workers were told to end, and others start."""
        change = self.current
        return change.number if change is not None and change.phase is ChangePhase.RESTARTING else None

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
        here = tuple(sorted(self._members.addresses))
        change = self.current
        if change is not None:
            change.members = tuple(it for it in change.members if it != worker) or here
            change.before = tuple(it for it in change.before if it != worker) or here
            for transfer in change.transfers.values():
                transfer.without(worker)

    def not_started(self, worker: WorkerId, error: BedloadError) -> list[Instruction]:
        """A worker that was asked for will not come."""
        self._members.call_off([worker])
        change = self.current
        if change is None or change.phase is not ChangePhase.STARTING:
            return []
        return self._fail(change, error)

    def not_restarted(self, worker: WorkerId, error: BedloadError) -> list[Instruction] | None:
        """When all start anew, one does not come, or is gone before it had a part in anything; None: nobody is left."""
        change = self.current
        assert change is not None
        change.starts[worker] += 1
        if change.starts[worker] < MAX_STARTS:
            return [StartWorkers((worker,))]
        self._members.call_off([worker])
        if not self._members.asked and not self._members.addresses:
            return None
        for epochs in self._operators.values():
            epochs.recovery.leave_out(worker)
        self.remove(worker)
        change.failure = WorkerStartFailed(
            f"{error.message}. It was started {MAX_STARTS} times; the others have its share of the key groups: there "
            f"are {len(self._members.owning)} workers now",
            worker=worker,
        )
        return []  # whoever asks goes on with it, and with the epochs that were held up

    def failed(self, message: m.WorkerFailed) -> list[Instruction]:
        """A worker cannot do its part."""
        change, error = self.current, message.error.error()
        if change is None or message.operator is None:
            return []
        if message.move is None:
            weighing = change.phase is ChangePhase.WEIGHING and message.ticket == change.number
            return (
                self._fail(change, self._told(error, "Nothing has moved: the cluster is as it was")) if weighing else []
            )
        transfer = change.transfers.get(message.operator)
        out = None if transfer is None else transfer.failed(message.move, error)
        if out is None:
            return []  # all is where it should be
        change.failure = change.failure or error
        for other in change.transfers.values():
            out += other.called_off()
        return [*out, *self.go_on()]

    @property
    def doom(self) -> BedloadError | None:
        """Why the cluster cannot go on: a move failed, and there is no checkpoint to read its state from."""
        moves = () if self.current is None else self.current.transfers.values()
        for error in (it.doom for it in moves if it.doom is not None):
            why = (
                "Some of its keys have changed at their new owners and others have not arrived there, and this cluster "
            )
            why += "keeps state in memory only, so the cluster has ended. Attach again, and start the queries from new "
            why += 'checkpoint locations. With bedload.attach(spark, checkpoint="file:///...") the rest is read back'
            return self._told(error, why)
        return None

    @staticmethod
    def _told(error: BedloadError, ending: str) -> BedloadError:
        return type(error)(f"{error.message.rstrip()}. {ending}", **error.details)

    def weighed(self, message: m.Weighed) -> list[Instruction]:
        """A worker has said what its key groups weigh."""
        change = self.current
        if change is None or change.phase is not ChangePhase.WEIGHING or message.ticket != change.number:
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
        if any(
            it.standing.routing.groups_of(worker) or it.standing.routing.guests_of(worker)
            for it in self._operators.values()
        ):
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
        out: list[Instruction] = []
        if change.phase is ChangePhase.HOLDING:
            return self._held(change)
        if change.phase is ChangePhase.RESTARTING and not self._members.asked:
            return self._finish(change)
        if change.phase is not ChangePhase.MOVING:
            return []
        for transfer in change.transfers.values():
            out += transfer.go_on()
        if all(transfer.done for transfer in change.transfers.values()):
            return [*out, *self._leave(change)]
        return [*out, *self._look_for_ends(change)]

    def _leave(self, change: Change) -> list[Instruction]:
        """All has moved: those that are not wanted any more leave, as soon as nobody talks to them."""
        for name in change.transfers:
            self._operators[name].standing.transfer = None
        self._stop_halfway(change)
        self._keep_owners(change)
        leaving = self._members.not_owning
        # SUBTLE: not in the middle of an epoch in which feeders talk to it. It has no part in the next one.
        needed = [
            epochs for epochs in self._operators.values() if any(epochs.standing.needs(worker) for worker in leaving)
        ]
        if any(epochs.standing.undecided or not epochs.inquiries.in_the_dark for epochs in needed):
            return [
                step for epochs in needed if not epochs.inquiries.in_the_dark for step in epochs.inquiries.inquire()
            ]
        for worker, epochs in itertools.product(leaving, self._operators.values()):
            epochs.recovery.leave_out(worker)  # it may own something of an operator that was applied meanwhile
        return self._finish(change)

    def _look_for_ends(self, change: Change) -> list[Instruction]:
        """State moves when epochs end: find out what became of them, since no other one may come."""
        waiting = [self._operators[name] for name, transfer in change.transfers.items() if transfer.in_line]
        if change.failure is not None:
            return [
                step for epochs in waiting if not epochs.inquiries.in_the_dark for step in epochs.inquiries.inquire()
            ]
        looks = [step for epochs in waiting for step in epochs.inquiries.inquire()]
        for epochs in waiting:
            if epochs.inquiries.in_the_dark:
                return [
                    *looks,
                    *self._give_up(
                        change, refusals.left_open(epochs.standing.name, epochs.standing.epoch, epochs.standing.query)
                    ),
                ]
            if epochs.recovery.unread is not None and not epochs.recovery.reads_again():
                return [*looks, *self._give_up(change, refusals.unread(epochs.standing.name, epochs.recovery.unread))]
        return looks

    def _give_up(self, change: Change, error: BedloadError) -> list[Instruction]:
        """A change cannot go on: what has flipped stays, and nothing more moves."""
        change.failure = error
        out = [step for transfer in change.transfers.values() for step in transfer.called_off()]
        return [*out, *self.go_on()]

    def ended(self, error: BedloadError) -> list[Instruction]:
        """The cluster is over."""
        changes = [*([] if self.current is None else [self.current]), *self._queue]
        self.current, self._queue = None, deque()
        out = [step for it in changes for transfer in it.transfers.values() for step in transfer.ended()]
        return [*out, *(ChangeResult(it.to, it.number, error) for it in changes)]

    # --- steps ---

    def _next(self) -> list[Instruction]:
        if self.current is not None or not self._queue:
            return []
        change = self.current = self._queue.popleft()
        change.before = self._members.owning
        try:
            change.members = self._members_after(change.wish)
            self._check(change.wish)
        except BedloadError as error:
            return self._over(change, error)
        if change.wish.strategy is not None and change.wish.strategy.restart:
            change.phase, change.held_at = ChangePhase.HOLDING, self._clock.monotonic()
            return self.go_on()
        new = tuple(worker for worker in change.members if worker not in self._members.owning)
        change.phase, change.waiting = ChangePhase.STARTING, set(new)
        if not new:
            return self._weigh(change)
        self._members.ask(new)
        return [StartWorkers(new)]

    def _members_after(self, wish: Wish) -> tuple[WorkerId, ...]:
        members = self._members.owning
        if wish.kind == "drain":
            if wish.worker not in members:
                raise MoveRefused(f"there is no worker {wish.worker} to drain; there are {_listed(members)}")
            if len(members) == 1:
                raise MoveRefused(f"worker {wish.worker} is the last one: its state has nowhere to go")
            return tuple(worker for worker in members if worker != wish.worker)
        if wish.kind != "rescale":
            return members
        assert wish.workers is not None
        if wish.workers <= len(members):
            return members[: wish.workers]
        free = (WorkerId(number) for number in itertools.count() if number not in members)
        return tuple(sorted((*members, *itertools.islice(free, wish.workers - len(members)))))

    def _check(self, wish: Wish) -> None:
        if wish.kind in ("move", "pin") and wish.worker not in self._members.owning:
            raise MoveRefused(f"there is no worker {wish.worker}; there are {_listed(self._members.owning)}")
        if wish.operator is not None and wish.operator not in self._operators:
            known = ", ".join(sorted(self._operators)) or "none"
            raise MoveRefused(f"no operator {wish.operator!r} was applied on this cluster; there are: {known}")
        for name in self._concerned(wish):
            count = self._operators[name].standing.routing.key_groups
            pinned = {pin.key for pin in self._operators[name].standing.routing.pins}
            if wish.kind == "pin" and len(pinned.union(wish.keys)) > MAX_PINS:
                raise MoveRefused(
                    f"operator {name}: {len(pinned.union(wish.keys)):,} keys would have a place of their own, at most "
                    f"{MAX_PINS:,} can: move key groups, or unpin keys first"
                )
            if bad := [group for group in wish.groups if not 0 <= group < count]:
                raise MoveRefused(f"operator {name} has no key group {bad[0]}: they are 0 to {count - 1}")
        if wish.strategy is not None and wish.strategy.restart and not self._durable:
            raise MoveRefused(
                "stop_restart starts workers from the checkpoint, and this cluster keeps state in memory only: attach "
                'with bedload.attach(spark, checkpoint="file:///..."), or use another strategy'
            )

    def _concerned(self, wish: Wish) -> list[OperatorName]:
        return [name for name in self._operators if wish.operator in (None, name)]

    def _weigh(self, change: Change) -> list[Instruction]:
        change.phase = ChangePhase.WEIGHING
        asked = [(name, worker) for name in self._concerned(change.wish) for worker in self._members.addresses]
        change.waiting = set(asked)
        if not asked:
            return self._move(change)
        return [ToWorker(worker, m.Weigh(name, change.number)) for name, worker in asked]

    def _without_weight(self, change: Change, worker: WorkerId) -> list[Instruction]:
        """Go on without the word of a worker that is gone."""
        change.waiting = {item for item in change.waiting if item[1] != worker}
        return self._move(change) if not change.waiting else []

    def _move(self, change: Change) -> list[Instruction]:
        change.phase, change.waiting = ChangePhase.MOVING, set()
        wish = change.wish
        if wish.kind in ("move", "pin") and wish.worker not in change.members:
            return self._over(
                change,
                MoveRefused(
                    f"worker {wish.worker} was lost before anything was moved to it, and no other came in its place; "
                    f"there are {_listed(change.members)}"
                ),
            )
        self._members.own(change.members)
        try:
            for name in self._concerned(change.wish):
                epochs = self._operators[name]
                strategy, why = self._strategy(change, name)
                target, deployment = self._target(change, epochs), self._deployment_of(name)
                change.transfers[name] = Transfer(epochs.turns, target, strategy, deployment, self._moves, why)
        except BedloadError as error:
            return self._over(change, error)
        for name, transfer in change.transfers.items():
            self._operators[name].standing.transfer = transfer
            self._operators[name].inquiries.try_again()
        return self.go_on()

    def _strategy(self, change: Change, name: OperatorName) -> tuple[Strategy, str]:
        if change.wish.strategy is not None:
            return change.wish.strategy, ""
        weights = change.weights.get(name, {}).values()
        rows = [count for it in weights for count in it.rows.values()]
        return choose(
            Facts(
                sum(it.bytes for it in weights),
                sum(it.keys for it in weights),
                sum(it.touched for it in weights),
                max(rows, default=0.0) / (sum(rows) or 1.0),
                self._operators[name].standing.routing.key_groups,
            )
        )

    def _target(self, change: Change, epochs: OperatorEpochs) -> RoutingTable:
        wish, routing = change.wish, epochs.standing.routing
        if not set(change.members) <= set(routing.workers):
            # It was applied, or its state given up, while workers came that it does not know.
            routing = routing.next(workers={*routing.workers, *change.members})
        match wish.kind:
            case "rescale" | "drain":
                return routing.reassign(change.members)
            case "move":
                assert wish.worker is not None
                return plan.place(routing, wish.groups, wish.worker)
            case "pin":
                assert wish.worker is not None
                return plan.pin(routing, wish.keys, wish.worker)
            case "unpin":
                return plan.unpin(routing, wish.keys)
            case "rebalance":
                loads: dict[WorkerId, dict[int, float]] = {
                    worker: it.rows for worker, it in change.weights.get(epochs.standing.name, {}).items()
                }
                return plan.balance(routing, loads)

    def _held(self, change: Change) -> list[Instruction]:
        """No epoch begins: start all anew when those under way are over, and give up if they take too long.

        SUBTLE: tasks that wait for the restart hold Spark's task slots, and an epoch of another query may need one.
        """
        under_way = [epochs for epochs in self._operators.values() if epochs.standing.under_way]
        if not under_way:
            return self._restart(change)
        if change.held_at is None or self._clock.monotonic() - change.held_at < HOLD_SECONDS:
            return [step for epochs in under_way for step in epochs.inquiries.inquire()]
        it = under_way[0].standing
        return self._fail(
            change,
            MoveFailed(
                f"the workers were not started anew: epoch {it.epoch} of operator {it.name} (query {it.query}) did "
                f"not come to an end within {HOLD_SECONDS:g} seconds. Its tasks may need slots that tasks of other "
                f"queries hold. Nothing has moved; try again, or with a strategy that lets epochs go on"
            ),
        )

    def _restart(self, change: Change) -> list[Instruction]:
        """All epochs are at rest: every worker ends, and others begin with what the checkpoint has."""
        change.phase = ChangePhase.RESTARTING
        leaving = tuple(self._members.addresses)
        out: list[Instruction] = [ToWorker(worker, m.Stop()) for worker in leaving]
        self._members.start_anew(change.members)
        for epochs in self._operators.values():
            epochs.recovery.restarted(change.members)
        return [*out, WorkersLeft(leaving), StartWorkers(change.members)]

    def _finish(self, change: Change) -> list[Instruction]:
        gone = self._members.not_owning
        out: list[Instruction] = []
        for worker in gone:
            self._members.left(worker)
            for epochs in self._operators.values():
                epochs.recovery.left(worker)
            out.append(ToWorker(worker, m.Stop()))
        if gone:
            out.append(WorkersLeft(gone))
        return [*out, *self._over(change, change.failure)]

    def _fail(self, change: Change, error: BedloadError) -> list[Instruction]:
        """Before anything flipped, or with everything given back."""
        change.failure = error
        self._members.own(change.before)
        self._members.call_off(self._members.asked)
        out: list[Instruction] = []
        for transfer in change.transfers.values():
            out += transfer.called_off()
        if change.phase is not ChangePhase.MOVING:
            return [*out, *self._finish(change)]
        return [*out, *self.go_on()]

    def _stop_halfway(self, change: Change) -> None:
        """A change has failed: whoever owns something is a member, and the error says what has moved."""
        if not isinstance(change.failure, MoveFailed) or "moved" in change.failure.details:
            return
        tables = [epochs.standing.routing for epochs in self._operators.values()]
        owners = {it for table in tables for it in (*table.owners, *(pin.worker for pin in table.pins))}
        stay = set(change.before) & set(change.members)
        self._members.own(owners | stay)
        for epochs in self._operators.values():
            if set(epochs.standing.routing.workers) != set(self._members.owning):
                epochs.standing.set_routing(
                    epochs.standing.routing.next(workers=self._members.owning), "the change stopped halfway"
                )
        moved = sum(it.groups for it in change.transfers.values())
        ending = "Nothing has moved: the cluster is as it was"
        if any(it.flipped for it in change.transfers.values()):
            read = any(it.from_checkpoint for it in change.transfers.values())
            ending = f"{moved} key groups had new owners by then and have stayed with them"
            ending += "; what had not arrived was read from the checkpoint" if read else ""
        change.failure = self._told(change.failure, ending)
        change.failure.details["moved"] = moved

    def _keep_owners(self, change: Change) -> None:
        """A change has failed: who has the only state of an operator that was applied meanwhile stays."""
        tables = [
            it.standing.routing
            for it in self._operators.values()
            if it.standing.lineage is None and not it.standing.nobody_has_state
        ]
        owners = {it for table in tables for it in (*table.owners, *(pin.worker for pin in table.pins))}
        if change.failure is not None:
            self._members.own(owners | set(self._members.owning))

    def _over(self, change: Change, error: BedloadError | None) -> list[Instruction]:
        change.phase = ChangePhase.OVER
        if self.current is change:
            self.current = None
        records = tuple(self._record(change, name, error) for name in self._concerned(change.wish))
        return [ChangeResult(change.to, change.number, error, records, tuple(change.routings)), *self._next()]

    def _record(self, change: Change, name: OperatorName, error: BedloadError | None) -> MoveRecord:
        now = self._clock.monotonic()
        transfer = change.transfers.get(name)
        strategy = transfer.strategy if transfer is not None else change.wish.strategy or DEFAULT
        outcome = "done" if error is None else "called off" if isinstance(error, MoveCancelled) else error.message
        record = MoveRecord(
            number=change.number,
            kind=change.wish.kind,
            operator=name,
            strategy=strategy.name,
            why="" if transfer is None else transfer.why,
            outcome=outcome,
            began=change.requested,
            duration_s=now - change.requested,
            workers_before=len(change.before),
            workers_after=len(self._members.owning),
        )
        if transfer is None:
            if change.held_at is None or error is not None:
                return record
            # Every key was stopped, from the last epoch before to the last worker's start.
            stopped = (now - change.held_at) * 1000
            facts: dict[str, Any] = dict.fromkeys(("stoppage_ms_p50", "stoppage_ms_p99", "stoppage_ms_max"), stopped)
            facts["moved_groups"] = self._operators[name].standing.routing.key_groups
            return msgspec.structs.replace(record, **facts, from_checkpoint=True)
        waited = np.concatenate(transfer.waits) if transfer.waits else np.empty(0)
        facts = stoppages(waited, transfer.asked)
        facts |= {
            "moved_groups": transfer.groups,
            "moved_keys": transfer.keys,
            "moved_bytes": transfer.bytes,
            "single_keys": transfer.single_keys,
            "flips": transfer.flips,
            "copy_s": transfer.copy_s,
            "handover_s": transfer.handover_s,
            "from_checkpoint": transfer.from_checkpoint,
            "asked_keys": max(transfer.asked, len(waited)),
            "waited_keys": len(waited),
            "rows_parked": transfer.rows,
        }
        return msgspec.structs.replace(record, **facts)


def _listed(workers: tuple[WorkerId, ...]) -> str:
    return ", ".join(map(str, workers))
