"""Where a change of the cluster is, for people: how much of it is done, and what it waits for. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bedload.control.change import Change
from bedload.control.phases import ChangePhase, TransferPhase
from bedload.control.standing import Phase, Standing
from bedload.control.transfer import Transfer
from bedload.core.ids import OperatorName, WorkerId


@dataclass(frozen=True)
class Seen:
    """A change, as somebody saw it."""

    phase: ChangePhase
    progress: float = 0.0
    """How much of it is done, from 0 to 1."""
    waits_for: str = ""
    """What has to happen before it goes on, in words; empty: it is being worked on."""
    sent: int = 0
    """Bytes of state that were sent so far."""


def see(change: Change, standings: Mapping[OperatorName, Standing]) -> Seen:
    """Look at the change that is under way."""
    return Seen(change.phase, change.progress, _waits_for(change, standings), change.sent)


def in_line(change: Change, before: Iterable[Change]) -> Seen:
    """Look at a change that waits for those before it."""
    ahead = [it.what for it in before]
    return Seen(change.phase, waits_for=f"the change{'s' if len(ahead) > 1 else ''} before it ({', '.join(ahead)})")


def _waits_for(change: Change, standings: Mapping[OperatorName, Standing]) -> str:
    found: list[str] = []
    match change.phase:
        case ChangePhase.STARTING:
            found = [f"{_workers(change.waiting)} to start"]
        case ChangePhase.WEIGHING:
            silent = {worker for _, worker in change.waiting}
            found = [f"{_workers(silent)} to say what there is to move, between two batches of rows"]
        case ChangePhase.HOLDING:
            found = [_end_of_epoch(at) for at in standings.values() if at.under_way]
        case ChangePhase.MOVING:
            found = [_before_it_moves(standings[name], transfer) for name, transfer in change.transfers.items()]
            if all(transfer.done for transfer in change.transfers.values()):
                found = [_before_they_leave(at) for at in standings.values()]
    return "; ".join(dict.fromkeys(filter(None, found)))


def _before_it_moves(at: Standing, transfer: Transfer) -> str:
    """What one operator's transfer waits for."""
    match transfer.phase:
        case TransferPhase.WAITING | TransferPhase.DUE:
            return _before_the_flip(at, transfer)
        case TransferPhase.COPYING if at.forsaken and at.unknown:
            return _end_of_epoch(at)  # what it touched is not copied before
        case TransferPhase.ARRIVED:
            return _end_of_epoch(at)
        case TransferPhase.ENDING:
            return f"{_workers(transfer.awaited)} to drop {'what has moved' if transfer.flipped else 'the copies'}"
    return ""


def _before_they_leave(at: Standing) -> str:
    """All has moved: what those wait for that are not wanted any more."""
    leaving = [worker for worker in at.members.not_owning if at.needs(worker)]
    return f"{_end_of_epoch(at)}, before which {_workers(leaving)} cannot leave" if leaving else ""


def _before_the_flip(at: Standing, transfer: Transfer) -> str:
    if at.loads():
        return f"all workers to load {at.name}"
    if missing := transfer.missing or [it for it in at.routing.workers if at.members.is_missing(it)]:
        return f"{_workers(missing)} to be replaced"
    if at.reads_back:
        assert at.lineage is not None
        if at.lineage.being_read:
            return f"the state of {at.name} to be read back from the checkpoint"
        idle = ", and no query runs on it: start one" if at.forsaken else ""
        return f"the next epoch of {at.name}: its state is read back from the checkpoint when one begins{idle}"
    return _end_of_epoch(at)


def _end_of_epoch(at: Standing) -> str:
    if at.phase is Phase.IDLE:
        return ""
    if not at.forsaken:
        return f"the end of epoch {at.epoch} of {at.name}"
    return f"Spark's word on epoch {at.epoch} of {at.name}: no query runs on it. Start the query again to have it soon"


def _workers(workers: Iterable[WorkerId]) -> str:
    numbers = sorted(workers)
    return f"worker{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
