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
from bedload.checkpoint.evolution import same_state
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.history import History
from bedload.checkpoint.intact import advise
from bedload.checkpoint.records import OperatorSchema
from bedload.checkpoint.storage import open_storage
from bedload.control.lineage import Lineage
from bedload.core.errors import CheckpointDamaged, EpochNotRetained
from bedload.core.ids import Generation, OperatorName
from bedload.migration.record import MoveRecord
from bedload.spark.state_schema import check_stored
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
        """What the checkpoint has of an operator, with the schema that it is wanted in now as the current one.

        Raises :class:`SchemaChanged` if the state there cannot become that, unless it is given up (``fresh``).
        """
        history = self._history(operator)
        known = {schema.number: schema for schema in self.checkpoint.schemas(operator)}
        for number in history.schemas - known.keys():
            self.checkpoint.schema(operator, number)  # raises: it is missing
        held = (
            None if history.head is None or fresh else (history.record(history.head) or history.manifest(history.head))
        )
        stored = None if held is None else self.checkpoint.schema(operator, held.schema)
        if stored is not None and same_state(stored, wanted):
            return Lineage(self.generation, history, known, stored.number)
        if stored is not None:
            check_stored(operator, stored, wanted)
            taken = {variable.name for variable in wanted.variables}
            taken |= {variable.renamed_from for variable in wanted.variables if variable.renamed_from}
            if dropped := [variable.name for variable in stored.variables if variable.name not in taken]:
                _log.warning(
                    "operator %s does not declare %s any more: the next snapshot drops what is stored of it. If it has "
                    "another name now, declare that (renamed_from=...)",
                    operator,
                    ", ".join(dropped),
                )
        # SUBTLE: the schema of the head, not the last one: that may be of a change that never ran.
        base = None if stored is None else stored.number
        added = self.checkpoint.add_schema(operator, msgspec.structs.replace(wanted, base=base))
        return Lineage(self.generation, history, {**known, added.number: added}, added.number)

    def _history(self, operator: OperatorName) -> History:
        try:
            history = self.checkpoint.load_history(operator)
            history.restore_plan(history.head)
        except (CheckpointDamaged, EpochNotRetained) as error:
            damaged = CheckpointDamaged(error.message, **error.details)
            raise advise(self.checkpoint.storage, operator, None, damaged) from error
        # SUBTLE: after the look. Turns of a newer attachment may be in it, and to go on from them would be to write
        # turns of their numbers over theirs.
        self.checkpoint.check_fence()
        return history

    def write_move(self, record: MoveRecord) -> None:
        """Remember a move."""
        data = msgspec.json.encode(_MoveFile(generation=self.generation, move=record))
        self.checkpoint.write_move(record.number, OperatorName(record.operator), msgspec.json.format(data, indent=1))

    def moves(self) -> list[tuple[Generation, MoveRecord]]:
        """The moves of former attachments, oldest first; a file that is not whole is looked over."""
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
