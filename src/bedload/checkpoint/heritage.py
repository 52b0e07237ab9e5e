"""What an attachment takes over of an operator: its history, and the schema that its state has from now on.

Nothing goes by accident: a variable that has state and is not declared any more is told to the user, unless it is named
as one to drop. A parameter may have another value than before, and that is logged, unless the operator declares that
its state depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from bedload.checkpoint.evolution import check_stored, left_behind, refuse, same_state
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.history import History
from bedload.checkpoint.records import OperatorSchema
from bedload.core.ids import OperatorName
from bedload.state.timers import HIDDEN
from bedload.state.ttl import is_expiry

_log = logging.getLogger("bedload")


@dataclass(frozen=True)
class Terms:
    """On which terms an operator goes on with state that is there, beside the state's shape."""

    parameters: dict[str, str] = field(default_factory=dict)
    """What it is applied with, as texts."""
    fixed: frozenset[str] = frozenset()
    """The parameters that may not differ from those that the state was made with."""
    drop: frozenset[str] = frozenset()
    """Variables whose state is given up on purpose."""
    call: str = "apply"
    """How the user applies it."""


NO_TERMS = Terms()


class Heritage(NamedTuple):
    """What there is of an operator."""

    history: History
    schemas: dict[int, OperatorSchema]
    """By number."""
    current: int
    """The number of the one that state is written in from now on."""


def inherit(
    files: Filing,
    operator: OperatorName,
    wanted: OperatorSchema,
    terms: Terms = NO_TERMS,
    *,
    fresh: bool = False,
    warn: Callable[[str], None] = _log.warning,
) -> Heritage:
    """What the checkpoint has of an operator, with the schema that it is wanted in now as the current one.

    Raises :class:`SchemaChanged` if the state there cannot become that, unless it is given up (``fresh``). ``warn`` is
    told of state that would go by accident, before anything is written.
    """
    checkpoint = files.checkpoint
    history = files.history(operator)
    known = {schema.number: schema for schema in checkpoint.schemas(operator)}
    for number in history.schemas - known.keys():
        checkpoint.schema(operator, number)  # raises: it is missing
    held = None if history.head is None or fresh else (history.record(history.head) or history.manifest(history.head))
    stored = None if held is None else checkpoint.schema(operator, held.schema)
    if held is not None and held.parameters is not msgspec.UNSET:
        check_parameters(operator, held.parameters, terms)
    if stored is not None:
        _check_drop(operator, known.values(), terms)
    if stored is not None and same_state(stored, wanted):
        return Heritage(history, known, stored.number)
    if stored is not None:
        check_stored(operator, stored, wanted)
        left = (name for name in left_behind(stored, wanted) if not is_expiry(name))  # nobody asks for these
        if dropped := [name for name in left if name not in terms.drop]:
            warn(_dropped(operator, dropped, terms))
    # SUBTLE: the schema of the head, not the last one: that may be of a change that never ran.
    base = None if stored is None else stored.number
    added = checkpoint.add_schema(operator, msgspec.structs.replace(wanted, base=base))
    return Heritage(history, {**known, added.number: added}, added.number)


def _check_drop(operator: OperatorName, known: Iterable[OperatorSchema], terms: Terms) -> None:
    """Tell the log of names to drop that the state never had. A name may stay in the code when its state is gone."""
    ever = {variable.name for schema in known for variable in schema.variables}
    if unheard := sorted(terms.drop - ever):
        _log.warning(
            "operator %s: drop names %s, which its state never had; it has had: %s",
            operator,
            ", ".join(unheard),
            ", ".join(sorted(ever)),
        )


def check_parameters(operator: OperatorName, before: Mapping[str, str], terms: Terms) -> None:
    """Refuse other values of parameters that the state depends on; tell the log of others that differ."""
    now = terms.parameters
    differ = [name for name in now if name in before and before[name] != now[name]]
    refuse(
        operator,
        [
            f"{name}: {before[name]} → {now[name]}: the state was made with {name}={before[name]}, and the parameter "
            f"is declared as fixed; use that value"
            for name in differ
            if name in terms.fixed
        ],
    )
    changes = [f"{name}: {before[name]} → {now[name]}" for name in differ]
    changes += [f"{name} is new: {now[name]}" for name in now if name not in before]
    changes += [f"{name} is gone, was {before[name]}" for name in before if name not in now]
    if changes:
        _log.info("operator %s goes on with other parameters: %s", operator, "; ".join(changes))


def _dropped(operator: OperatorName, names: list[str], terms: Terms) -> str:
    names = sorted(names, key=lambda name: name.startswith(HIDDEN))
    if terms.call == "aggregate":
        why, way = "no aggregate needs it any more", "If that is not meant, aggregate it again."
    elif names[0].startswith(HIDDEN):
        why = "the class does not have such timers any more"
        way = "Those that are set will not fire. If that is not meant, have on_timer and their names on the class."
    else:
        why = "the class does not declare it any more"
        way = f"If it has another name now, say which: new_name = bl.value(..., renamed_from={names[0]!r})."
    return (
        f"operator {operator}: the stored state has {', '.join(names)}, and {why}. With the next epoch its state is "
        f"dropped; it stays only in the epochs before, as long as these are retained. {way} If it is to go, say so: "
        f"cluster.{terms.call}(..., drop={names!r})"
    )
