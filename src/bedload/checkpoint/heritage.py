"""What an attachment takes over of an operator: its history, and the schema that its state has from now on."""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from bedload.checkpoint.evolution import check_stored, same_state
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.history import History
from bedload.checkpoint.records import OperatorSchema
from bedload.core.ids import OperatorName

_log = logging.getLogger("bedload")


class Heritage(NamedTuple):
    """What there is of an operator."""

    history: History
    schemas: dict[int, OperatorSchema]
    """By number."""
    current: int
    """The number of the one that state is written in from now on."""


def inherit(files: Filing, operator: OperatorName, wanted: OperatorSchema, *, fresh: bool = False) -> Heritage:
    """What the checkpoint has of an operator, with the schema that it is wanted in now as the current one.

    Raises :class:`SchemaChanged` if the state there cannot become that, unless it is given up (``fresh``).
    """
    checkpoint = files.checkpoint
    history = files.history(operator)
    known = {schema.number: schema for schema in checkpoint.schemas(operator)}
    for number in history.schemas - known.keys():
        checkpoint.schema(operator, number)  # raises: it is missing
    held = None if history.head is None or fresh else (history.record(history.head) or history.manifest(history.head))
    stored = None if held is None else checkpoint.schema(operator, held.schema)
    if stored is not None and same_state(stored, wanted):
        return Heritage(history, known, stored.number)
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
    added = checkpoint.add_schema(operator, msgspec.structs.replace(wanted, base=base))
    return Heritage(history, {**known, added.number: added}, added.number)
