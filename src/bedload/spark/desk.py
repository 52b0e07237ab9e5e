"""The coordinator's work on files: what it decides, done by the :class:`~bedload.spark.keeper.Keeper`, and the report.

Invariant: every step ends in an event, whether it was done or failed, so the coordinator never waits in vain.

Its methods run on the driver's threads for files: a store may take seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bedload.checkpoint.records import TurnRecord
from bedload.control.coordinator import Coordinator
from bedload.control.instructions import CheckTurn, CollectGarbage, Instruction, WriteManifest, WriteTurn
from bedload.core.errors import BedloadError, CheckpointError
from bedload.core.ids import QueryId
from bedload.spark.keeper import Keeper

_log = logging.getLogger("bedload")

Event = Callable[[Coordinator], list[Instruction]]
"""What the coordinator is told: a call of one of its methods."""


class Desk:
    """Carries out the steps on files. Without a keeper there are none."""

    def __init__(
        self, keeper: Keeper | None, find_location: Callable[[QueryId], str], tell: Callable[[Event], None]
    ) -> None:
        self._keeper = keeper
        self._find_location = find_location
        self._tell = tell
        self._locations: dict[QueryId, str] = {}

    def write_turn(self, step: WriteTurn) -> None:
        """Put a turn on record."""
        assert self._keeper is not None
        record = step.record
        try:
            location = self._location(record.query)
            self._keeper.write_turn(step.operator, record, location)
        except Exception as raised:
            error = _as_checkpoint_error(raised)
            self._tell(lambda c: c.turn_unwritten(step.operator, record.turn, error))
            return
        self._tell(lambda c: c.turn_written(step.operator, record.turn, location))

    def _location(self, query: QueryId) -> str:
        known = self._locations.get(query)
        if known is None:
            known = self._locations[query] = self._find_location(query)
        return known

    def check_turn(self, step: CheckTurn, record: TurnRecord | None) -> None:
        """Give a turn up, and find out whether all of it had been written; ``record`` is what is known of it."""
        assert self._keeper is not None
        try:
            whole = record is not None and self._keeper.give_up(step.operator, record)
        except Exception as raised:
            # SUBTLE: not knowing is no reason to guess. The cluster ends, and the next attachment finds out.
            error = _as_checkpoint_error(raised)
            self._tell(lambda c: c.failed(error))
            return
        self._tell(lambda c: c.turn_checked(step.operator, step.turn, whole))

    def write_manifest(self, step: WriteManifest) -> None:
        """Make a snapshot count."""
        assert self._keeper is not None
        error: BedloadError | None = None
        try:
            self._keeper.write_manifest(step.operator, step.manifest)
        except Exception as raised:
            error = _as_checkpoint_error(raised)
            _log.warning("operator %s: a snapshot could not be written: %s", step.operator, error)
        self._tell(lambda c: c.snapshot_written(step.operator, step.manifest.turn, error))

    def collect(self, step: CollectGarbage) -> None:
        """Delete what is not needed any more."""
        assert self._keeper is not None
        try:
            self._keeper.collect(step.operator, step.garbage)
        except Exception as raised:
            _log.warning("operator %s: old files could not be deleted: %s", step.operator, raised)
        self._tell(lambda c: c.garbage_collected(step.operator))


def _as_checkpoint_error(error: Exception) -> BedloadError:
    return error if isinstance(error, BedloadError) else CheckpointError(f"the checkpoint could not be used: {error!r}")
