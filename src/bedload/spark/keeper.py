"""The driver's part in a checkpoint: its claim, what it finds, what the coordinator has it write, and moves.

Invariants: the driver does not go on from a history in which a newer attachment may have turns; every step that the
coordinator has decided upon ends in an event, whether it was done or failed. A store may take seconds: steps run on
threads for files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.claimant import this_process
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.heritage import NO_TERMS, Terms, inherit
from bedload.checkpoint.records import OperatorSchema, TurnRecord
from bedload.checkpoint.storage import open_storage
from bedload.control.instructions import WriteTurn
from bedload.control.lineage import Lineage
from bedload.control.paperwork import Event, FileStep, paperwork
from bedload.core.clock import SystemClock
from bedload.core.errors import StateDropped, warn_user
from bedload.core.ids import Generation, OperatorName, QueryId
from bedload.migration.record import MoveRecord
from bedload.worker.durable import Place

_log = logging.getLogger("bedload")


class _MoveFile(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="move"):
    """What is remembered of a move, as a file."""

    generation: Generation
    move: MoveRecord
    version: int = 1


class Keeper(Filing):
    """One attachment to a checkpoint."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(Checkpoint.open(open_storage(url, options), this_process(SystemClock())))
        self.generation = self.checkpoint.claim()
        self.place = Place(url, self.generation, dict(options or {}))
        self._locations: dict[QueryId, str] = {}

    def lineage(
        self, operator: OperatorName, wanted: OperatorSchema, terms: Terms = NO_TERMS, *, fresh: bool = False
    ) -> Lineage:
        """What the checkpoint has of an operator; see :func:`inherit`. Warns the user of state that would go."""

        def warn(text: str) -> None:
            warn_user(text, StateDropped)

        return Lineage(self.generation, *inherit(self, operator, wanted, terms, fresh=fresh, warn=warn))

    def carry_out(
        self,
        step: FileStep,
        record: TurnRecord | None,
        find_location: Callable[[QueryId], str],
        tell: Callable[[Event], None],
    ) -> None:
        """Do what the coordinator has decided; ``record`` is what it knows of the turn of a ``CheckTurn``."""

        def location() -> str:
            if not isinstance(step, WriteTurn):
                return ""
            query = step.record.query
            known = self._locations.get(query)
            if known is None:
                known = self._locations[query] = find_location(query)
            return known

        work = paperwork(self, step, record, location)
        try:
            for deed in work.deeds:
                deed()
        except Exception as raised:
            error, event = work.failed_by(raised)
            _log.warning("%s: %s", work.what, error)
            tell(event)
            return
        tell(work.done())

    def write_move(self, record: MoveRecord) -> None:
        """Remember a move."""
        data = msgspec.json.encode(_MoveFile(generation=self.generation, move=record))
        self.checkpoint.write_move(record.number, OperatorName(record.operator), msgspec.json.format(data, indent=1))

    def moves(self) -> list[tuple[Generation, MoveRecord]]:
        """The moves of former attachments, oldest first; a file that is not whole is ignored."""
        found = []
        for (generation, number, operator), data in sorted(self.checkpoint.moves().items()):
            if generation == self.generation:
                continue
            try:
                move = msgspec.json.decode(data, type=_MoveFile).move
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                path = paths.move(generation, number, operator)
                _log.warning("%s of the checkpoint is not the record of a move, and is left out: %s", path, error)
                continue
            found.append((generation, move))
        return found
