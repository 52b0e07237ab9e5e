"""The coordinator's work on files (:mod:`bedload.control.paperwork`), done on the driver's threads for files.

A store may take seconds. Every step ends in an event, whether it was done or failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bedload.checkpoint.records import TurnRecord
from bedload.control.instructions import CheckTurn, CollectGarbage, WriteManifest, WriteTurn
from bedload.control.paperwork import Event, FileStep, paperwork
from bedload.core.ids import QueryId
from bedload.spark.keeper import Keeper

_log = logging.getLogger("bedload")


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
        self._do(step)

    def check_turn(self, step: CheckTurn, record: TurnRecord | None) -> None:
        """Give a turn up, and find out whether all of it had been written; ``record`` is what is known of it."""
        self._do(step, record)

    def write_manifest(self, step: WriteManifest) -> None:
        """Make a snapshot count."""
        self._do(step)

    def collect(self, step: CollectGarbage) -> None:
        """Delete what is not needed any more."""
        self._do(step)

    def _do(self, step: FileStep, record: TurnRecord | None = None) -> None:
        assert self._keeper is not None
        query = step.record.query if isinstance(step, WriteTurn) else None
        work = paperwork(self._keeper, step, record, lambda: "" if query is None else self._location(query))
        try:
            for deed in work.deeds:
                deed()
        except Exception as raised:
            error, event = work.failed_by(raised)
            _log.warning("%s: %s", work.what, error)
            self._tell(event)
            return
        self._tell(work.done())

    def _location(self, query: QueryId) -> str:
        known = self._locations.get(query)
        if known is None:
            known = self._locations[query] = self._find_location(query)
        return known
