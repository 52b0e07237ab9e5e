"""The driver's part in a checkpoint: its claim, what it finds, and the moves that it remembers.

Turns and snapshots are written by :class:`~bedload.checkpoint.filing.Filing`.

Invariant: no history is gone on from in which a newer attachment may have turns.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.heritage import inherit
from bedload.checkpoint.records import OperatorSchema
from bedload.checkpoint.storage import open_storage
from bedload.control.lineage import Lineage
from bedload.core.ids import Generation, OperatorName
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
        super().__init__(Checkpoint.open(open_storage(url, options)))
        self.generation = self.checkpoint.claim()
        self.place = Place(url, self.generation, dict(options or {}))

    def lineage(self, operator: OperatorName, wanted: OperatorSchema, *, fresh: bool = False) -> Lineage:
        """What the checkpoint has of an operator; see :func:`inherit`."""
        return Lineage(self.generation, *inherit(self, operator, wanted, fresh=fresh))

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
