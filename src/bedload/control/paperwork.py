"""Work on files that the coordinator has decided upon: the deeds to do one after another, and what to report.

Invariant: each deed ends in an event, whether it was done or failed, so the coordinator never waits in vain.

Nothing is done here: the coordinator's driver does it, where waiting hurts nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from bedload.checkpoint.history import Garbage
from bedload.checkpoint.records import Manifest, TurnRecord
from bedload.control.instructions import CheckTurn, CollectGarbage, Instruction, WriteManifest, WriteTurn
from bedload.core.errors import BedloadError, CheckpointError
from bedload.core.ids import OperatorName, Turn, WorkerId

if TYPE_CHECKING:
    from bedload.control.coordinator import Coordinator

Event = Callable[["Coordinator"], list[Instruction]]
"""What the coordinator is told: a call of one of its methods."""


class Files(Protocol):
    """The files of an attachment."""

    def write_turn(self, operator: OperatorName, record: TurnRecord) -> None:
        """Put a turn on record."""
        ...

    def abandon(self, operator: OperatorName, turn: Turn) -> None:
        """Let no worker acknowledge a turn from now on."""
        ...

    def unwritten(self, operator: OperatorName, record: TurnRecord) -> list[WorkerId]:
        """The workers whose part of a turn is not there."""
        ...

    def write_manifest(self, operator: OperatorName, manifest: Manifest) -> Manifest:
        """Make a snapshot count; gives the manifest that does."""
        ...

    def collect(self, operator: OperatorName, garbage: Garbage) -> None:
        """Delete what no retained epoch needs."""
        ...


@dataclass(frozen=True)
class Paperwork:
    """Deeds, in order, and what the coordinator is told; others may act between two of them."""

    what: str
    deeds: tuple[Callable[[], object], ...]
    done: Callable[[], Event]
    failed: Callable[[BedloadError], Event]

    def failed_by(self, raised: Exception) -> tuple[BedloadError, Event]:
        """A deed raised: what the coordinator is told then."""
        error = raised
        if not isinstance(error, BedloadError):
            error = CheckpointError(f"the checkpoint could not be used: {raised!r}")
        return error, self.failed(error)


FileStep = WriteTurn | CheckTurn | WriteManifest | CollectGarbage


def paperwork(files: Files, step: FileStep, record: TurnRecord | None, find_location: Callable[[], str]) -> Paperwork:
    """What an instruction means; ``record`` is what is known of the turn of a :class:`CheckTurn`."""
    match step:
        case WriteTurn():
            return _write_turn(files, step, find_location)
        case CheckTurn():
            return _check_turn(files, step, record)
        case WriteManifest():
            return _write_manifest(files, step)
        case CollectGarbage(operator=operator, garbage=garbage):
            return Paperwork(
                f"operator {operator}: old files could not be deleted",
                (lambda: files.collect(operator, garbage),),
                lambda: lambda c: c.garbage_collected(operator),
                lambda error: lambda c: c.garbage_collected(operator, error),
            )


def _write_turn(files: Files, step: WriteTurn, find_location: Callable[[], str]) -> Paperwork:
    record, location = step.record, ""

    def write() -> None:
        nonlocal location
        location = find_location()
        files.write_turn(step.operator, msgspec.structs.replace(record, location=location))

    return Paperwork(
        f"operator {step.operator}: turn {record.turn} could not be put on record",
        (write,),
        lambda: lambda c: c.turn_written(step.operator, record.turn, location),
        lambda error: lambda c: c.turn_unwritten(step.operator, record.turn, error),
    )


def _write_manifest(files: Files, step: WriteManifest) -> Paperwork:
    operator, counts = step.operator, step.manifest

    def write() -> None:
        nonlocal counts
        counts = files.write_manifest(operator, step.manifest)

    return Paperwork(
        f"operator {operator}: a snapshot could not be written",
        (write,),
        lambda: lambda c: c.snapshot_written(operator, counts.turn, None, counts),
        lambda error: lambda c: c.snapshot_written(operator, step.manifest.turn, error),
    )


def _check_turn(files: Files, step: CheckTurn, record: TurnRecord | None) -> Paperwork:
    whole = False

    def look() -> None:
        nonlocal whole
        whole = record is not None and not files.unwritten(step.operator, record)

    return Paperwork(
        f"operator {step.operator}: it could not be found out whether turn {step.turn} is whole",
        (lambda: files.abandon(step.operator, step.turn), look),
        lambda: lambda c: c.turn_checked(step.operator, step.turn, whole),
        # SUBTLE: not knowing is no reason to guess. The cluster ends, and the next attachment finds out.
        lambda error: lambda c: c.failed(error),
    )
