"""One change of the cluster: its phase, the workers it waits for, and what is remembered of it when it is over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bedload.control import refusals
from bedload.control.instructions import Instruction, Token
from bedload.control.phases import ChangePhase
from bedload.control.standing import Standing
from bedload.control.transfer import Transfer
from bedload.control.wish import Wish
from bedload.core.errors import BedloadError, MoveCancelled
from bedload.core.ids import ChangeId, OperatorName, Ticket, WorkerId
from bedload.migration.record import CALLED_OFF, DONE, MoveRecord
from bedload.migration.strategies import name_of
from bedload.protocol import messages as m


@dataclass
class Change:
    """One change."""

    number: ChangeId
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

    _shown: float = field(default=0.0, init=False)
    """The most that was seen of its progress."""

    @property
    def what(self) -> str:
        """It, in words."""
        return self.wish.what or f"the {self.wish.kind.value}"

    @property
    def ticket(self) -> Ticket:
        """Of the question what there is to move."""
        return Ticket(self.number)

    @property
    def flipped(self) -> bool:
        """Whether ownership of anything has changed."""
        return self.phase is ChangePhase.RESTARTING or any(it.flipped for it in self.transfers.values())

    @property
    def progress(self) -> float:
        """How much of it is done, from 0 to 1. What was seen of it is not taken back when a step starts anew."""
        if self.failure is not None:
            return self._shown  # nothing more moves
        # An operator counts for as much as it has state.
        sizes = {name: 1 + sum(it.bytes for it in self.weights.get(name, {}).values()) for name in self.transfers}
        done = sum(sizes[name] * transfer.progress for name, transfer in self.transfers.items())
        # All of it is done when it is over: workers may have to leave.
        self._shown = max(self._shown, min(0.99, done / sum(sizes.values()) if sizes else 0.0))
        return self._shown

    @property
    def sent(self) -> int:
        """Bytes of state that were sent so far."""
        return sum(it.tally.sent for it in self.transfers.values())

    @property
    def doom(self) -> BedloadError | None:
        """Why the cluster cannot go on: a move failed, and there is no checkpoint to read its state from."""
        dooms = [it.doom for it in self.transfers.values() if it.doom is not None]
        return refusals.torn(dooms[0]) if dooms else None

    def call_off(self) -> list[Instruction]:
        """Nothing more moves."""
        return [step for transfer in self.transfers.values() for step in transfer.called_off()]

    def __str__(self) -> str:
        return f"change {self.number} is {self.phase.name}"

    def check(self) -> None:
        """The invariants hold."""
        awaits = self.phase in (ChangePhase.STARTING, ChangePhase.WEIGHING)
        assert awaits == bool(self.waiting), f"{self} and waits for {self.waiting or 'nobody'}"
        assert self.phase is ChangePhase.MOVING or not self.transfers, f"{self} and moves state"
        restarts = self.phase in (ChangePhase.HOLDING, ChangePhase.RESTARTING)
        assert restarts == (self.held_at is not None), f"{self} and holds epochs since {self.held_at}"
        assert self.members, f"{self} and nobody shall own anything"
        for transfer in self.transfers.values():
            transfer.check()

    def without(self, worker: WorkerId, here: tuple[WorkerId, ...]) -> None:
        """A worker was lost and will not be replaced; these are here."""
        self.members = tuple(it for it in self.members if it != worker) or here
        self.before = tuple(it for it in self.before if it != worker) or here
        for transfer in self.transfers.values():
            transfer.without(worker)

    def stopped_halfway(self) -> BedloadError:
        """The failure, and what has moved by then."""
        assert self.failure is not None
        moved = sum(it.tally.groups for it in self.transfers.values())
        ending = "Nothing has moved: the cluster is as it was"
        if any(it.flipped for it in self.transfers.values()):
            read = any(it.tally.from_checkpoint for it in self.transfers.values())
            ending = f"{moved} key groups had new owners by then and have stayed with them"
            ending += "; what had not arrived was read from the checkpoint" if read else ""
        error = refusals.told(self.failure, ending)
        error.details["moved"] = moved
        return error


def record_of(change: Change, at: Standing, error: BedloadError | None, *, now: float, workers: int) -> MoveRecord:
    """What is remembered of one operator's part in a change that is over now, with so many workers."""
    transfer = change.transfers.get(at.name)
    strategy = change.wish.strategy if transfer is None else transfer.strategy
    outcome = DONE if error is None else CALLED_OFF if isinstance(error, MoveCancelled) else error.message
    record = MoveRecord(
        number=change.number,
        kind=change.wish.kind.value,
        operator=at.name,
        strategy=name_of(strategy),
        why="" if transfer is None else transfer.why,
        outcome=outcome,
        began=change.requested,
        duration_s=now - change.requested,
        workers_before=len(change.before),
        workers_after=workers,
    )
    if transfer is None:
        if change.held_at is None or error is not None:
            return record
        # Every key was stopped, from the last epoch before to the last worker's start.
        stopped = (now - change.held_at) * 1000
        facts: dict[str, Any] = dict.fromkeys(("stoppage_ms_p50", "stoppage_ms_p99", "stoppage_ms_max"), stopped)
        facts["moved_groups"] = at.routing.key_groups
        return msgspec.structs.replace(record, **facts, from_checkpoint=True)
    return msgspec.structs.replace(record, **transfer.tally.facts())
