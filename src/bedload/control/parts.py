"""The parts of a cluster, as the coordinator has them, and what follows every event. No I/O.

Invariant: after every event :meth:`Parts.then` has run, so whatever could go on has gone on.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bedload.control import refusals
from bedload.control.changes import Changes
from bedload.control.compaction import Compaction, Retention
from bedload.control.epochs import OperatorEpochs
from bedload.control.instructions import EpochEnded, Instruction, Token, ToWorker, WorkersLeft
from bedload.control.lineage import Lineage
from bedload.control.members import Members, Worker
from bedload.control.refusals import refuse
from bedload.control.rollout import Rollout
from bedload.control.room import Until, WaitingRoom
from bedload.control.standing import Standing
from bedload.core.clock import Clock
from bedload.core.errors import BedloadError, ProtocolError, UnknownOperator, WorkerLost
from bedload.core.ids import OperatorName, WorkerId
from bedload.core.limits import Limits
from bedload.keys import RoutingTable
from bedload.protocol import messages as m


class Parts:
    """All parts of a cluster."""

    def __init__(
        self,
        workers: Iterable[Worker],
        *,
        durable: bool,
        retention: Retention,
        takes_slots: bool,
        clock: Clock,
        limits: Limits,
    ) -> None:
        self.members = Members(workers)
        self.durable = durable
        """State is in a checkpoint: a lost worker is replaced, and what it had is read back."""
        self.takes_slots = takes_slots
        """A worker takes a Spark task slot: no feeder may wait for one, in what may be the slot that it needs."""
        self._retention = retention
        self.compactions: dict[OperatorName, Compaction] = {}
        self.rollout = Rollout(self.members)
        self.losses = 0
        """Workers lost since an epoch was committed."""
        self.room = WaitingRoom()
        self.operators: dict[OperatorName, OperatorEpochs] = {}
        self.down: BedloadError | None = None
        self._clock = clock
        self.unsettled: tuple[WorkerId, WorkerLost, WorkerLost] | None = None
        """Without a checkpoint: a worker that was lost, while it is found out whether state was lost with it."""
        self.changes = Changes(self.operators, self.members, self.rollout.latest, clock, limits, durable=durable)
        self._held = False
        """Whether no epoch could begin when something happened last, because all workers start anew."""

    def take_in(self, name: OperatorName, key_groups: int, lineage: Lineage | None, *, fresh: bool) -> OperatorEpochs:
        """An operator is new here."""
        routing = RoutingTable.initial(key_groups, self.members.owning)
        standing = Standing(name, routing, self.members, lineage, self._clock)
        standing.loads, standing.on_routing = partial(self.rollout.loads, name), self.changes.routed
        epochs = self.operators[name] = OperatorEpochs(standing, self.room, self.holds)
        if fresh:
            epochs.reset(routing)
        if lineage is not None:
            self.compactions[name] = Compaction(standing, self._retention)
        return epochs

    def open(self, token: Token, ask: m.Open) -> list[Instruction]:
        """A feeder asks to take part in an epoch."""
        epochs = self.operators.get(ask.operator)
        error = self.down
        if error is None and epochs is None:
            error = UnknownOperator(f"operator {ask.operator!r} was not applied on this cluster")
        if error is not None or epochs is None:
            return [refuse(token, error or ProtocolError("no operator"))]
        out: list[Instruction] = []
        for other in self.operators.values():
            if other is not epochs:
                out += other.asked_elsewhere(ask)
        late = not epochs.standing.holds(ask)
        if late and not self.rollout.knows(ask.operator, ask.deployment):
            return [refuse(token, refusals.superseded(ask.operator))]
        if late and (missing := self.members.missing):
            if self.takes_slots:
                error = next(iter(missing.values()))
                return self.then([*out, refuse(token, error)])
            epochs.asked(ask)
            self.room.enter(token, ask, Until.REPLACED)
            return self.then(out)
        # SUBTLE: before a restart, too. It begins nothing then, but it may be all that says what became of the epoch
        # before it, which the restart waits for.
        out += epochs.open(token, ask)
        if self.changes.holding and self.takes_slots and late:
            out += self.room.refuse(epochs.standing.name, refusals.restarting())
        return self.then(out)

    def holds(self, ask: m.Open) -> bool:
        """Whether no turn may begin for now.

        SUBTLE: one of an epoch that another operator of the query is in may. That epoch would never end without it, and
        whoever holds turns up waits for that.
        """
        if self.unsettled is not None:
            return True
        return self.changes.holding and not any(epochs.standing.is_in(ask) for epochs in self.operators.values())

    def then(self, out: list[Instruction]) -> list[Instruction]:
        """What follows every event, step by step; the order counts."""
        # State is read back before all else, as nothing may move that is not there; and again, as others may have to
        # read it when it has moved.
        out = [*out, *self._read_back(), *self.changes.go_on(), *self._read_back()]
        change = self.changes.current
        if self.down is None and change is not None and change.doom is not None:
            return [*out, *self.end(change.doom)]
        out += self._let_in_who_was_held()
        out += self._let_go_of_the_unneeded()
        out += self.deployed_by_all()
        return [*out, *self._compact(out)]

    def _let_in_who_was_held(self) -> list[Instruction]:
        """No change holds epochs up any more."""
        # SUBTLE: remembered, as a change may have been called off before this began.
        held, self._held = self._held, self.changes.holding
        return [*self.prefetch(self.operators), *self.let_in()] if held and not self._held else []

    def _compact(self, out: list[Instruction]) -> list[Instruction]:
        """Start the snapshots that are due, or that had to wait."""
        ended = {step.operator for step in out if isinstance(step, EpochEnded) and step.committed}
        if ended:
            self.losses = 0
        steps: list[Instruction] = []
        for name, compaction in self.compactions.items():
            steps += compaction.go_on()
            steps += compaction.committed() if name in ended else []
        return steps

    def _let_go_of_the_unneeded(self) -> list[Instruction]:
        """Whoever was lost and should have left anyway is not waited for; if its replacement came, it leaves."""
        if not self.members.missing:
            return []
        tables = [epochs.standing.routing.workers for epochs in self.operators.values()]
        needed = self.changes.wanted.union(*tables)
        gone = [worker for worker in self.members.missing if worker not in needed]
        if not gone:
            return []
        out: list[Instruction] = []
        for worker in gone:
            self.members.not_missed(worker)
            if self.members.is_here(worker) or worker in self.members.loading:
                self.members.left(worker)
                out += [ToWorker(worker, m.Stop()), WorkersLeft((worker,))]
        return [*out, *self.let_in()]

    def prefetch(self, operators: Iterable[OperatorName], *, again: bool = True) -> list[Instruction]:
        """Have workers read what they lack, before an epoch asks for it; ``again``: also those that tried in vain."""
        return [
            step
            for name in operators
            for step in self.operators[name].recovery.prefetch(self.rollout.latest(name), again=again)
        ]

    def _read_back(self) -> list[Instruction]:
        """Have state read that nobody has.

        No epoch may come that would do so: the query is over, and people look at its state.
        """
        if self.members.missing or self.changes.holding or self.down is not None:
            return []
        left = (name for name, epochs in self.operators.items() if epochs.recovery.left_unread)
        return self.prefetch(left, again=False)

    def let_in(self) -> list[Instruction]:
        """All workers may be there again: look at all that wait."""
        if self.members.missing:
            return []
        out = [step for epochs in self.operators.values() for step in epochs.look_again()]
        return [*out, *(step for it in self.room.replaced() for step in self.open(it.token, it.ask))]

    def deployed_by_all(self) -> list[Instruction]:
        """Answer for the code that all have."""
        out: list[Instruction] = []
        for operator, deployment, result in self.rollout.finished():
            if result.error is None:
                out += self.operators[operator].recovery.prefetch(deployment)
            out.append(result)
        return out

    def end(self, error: BedloadError) -> list[Instruction]:
        """The cluster is over: nobody waits any longer."""
        self.down = error
        out = [step for epochs in self.operators.values() for step in epochs.ended(error)]
        out += [step for compaction in self.compactions.values() for step in compaction.ended(error)]
        out += self.rollout.ended(error)
        out += [refuse(it.token, error) for it in self.room.replaced()]
        return [*out, *self.changes.ended(error)]
