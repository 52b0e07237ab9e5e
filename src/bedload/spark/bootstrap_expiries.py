"""When something of an initial state expires, as it was given: made to say what it would if an operator had written it.

Such columns come from the table of another state, or from whoever made them. Afterwards each time of an entry is of one
that is there; 0, which stands for what is not counted yet, is left out of them; and in columns null stands for nothing
to expire, so it is where a variable has its default alone.

Entries are compared by how they are written down: so NaN is NaN, and what is a struct needs no hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from bedload.core.errors import DataError
from bedload.core.ids import OperatorName
from bedload.state.ttl import UNCOUNTED, variable_of

if TYPE_CHECKING:
    from bedload.spark.bootstrap_task import Start


def with_unset(starts: Sequence[Start]) -> list[Start]:
    """How the variables of an operator on columns start: when one of them expires may be null."""
    return [replace(start, nullable=True) if variable_of(start.name) else start for start in starts]


def fitting(operator: OperatorName, starts: Sequence[Start], columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """The columns of all variables, with expiries that are of what is there."""
    made = dict(columns)
    for start in starts:
        variable, column = variable_of(start.name), columns[start.name]
        if variable is None or start.column is None:
            continue
        ats = _times(column)
        if pc.any(pc.less(ats, UNCOUNTED)).as_py():
            raise DataError(
                f"operator {operator}: initial state of variable {start.name!r} has times before 1970. It says when "
                f"something expires, in milliseconds since 1970; 0 is for what starts to count with the first epoch",
                operator=operator,
            )
        if ats is column:
            if column.null_count:
                default = next(it.default for it in starts if it.name == variable)
                made[start.name] = _of_values(column, columns[variable], default)
        elif _has_keys(column.type):
            made[start.name] = _of_entries(column, columns[variable])
    return made


def _has_keys(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) or pa.types.is_struct(kind.value_type))


def _times(column: pa.Array) -> pa.Array:
    """All times in a column: one for each key, those of items, or those of entries with or without null."""
    kind = column.type
    if pa.types.is_integer(kind):
        return column
    if pa.types.is_map(kind):
        return column.items
    return column.flatten().field("value") if _has_keys(kind) else column.flatten()


def _of_values(column: pa.Array, values: pa.Array, default: Any) -> pa.Array:
    """What has no time and is not the default starts to count."""
    same = values.is_null() if default is None else pc.equal(values, pa.scalar(default, values.type)).fill_null(False)
    lost = pc.and_(column.is_null(), pc.invert(same))
    return pc.if_else(lost, pa.scalar(UNCOUNTED, column.type), column)


def _of_entries(column: pa.Array, values: pa.Array) -> pa.Array:
    """The times of entries that are there, but for 0."""
    found = _listed(values, pa.types.is_map(values.type) or not _is_set(column.type, values.type))
    rows = column.to_pylist()
    kept = [
        [pair for pair, key in zip(row, keys, strict=True) if _at(pair) != UNCOUNTED and key in there]
        for row, keys, there in zip(rows, _listed(column, keyed=True), map(set, found), strict=True)
    ]
    return column if kept == rows else pa.array(kept, column.type)


def _is_set(expiries: pa.DataType, kind: pa.DataType) -> bool:
    entry = expiries.key_type if pa.types.is_map(expiries) else expiries.value_type.field("key").type
    return bool(kind.value_type == entry)


def _listed(column: pa.Array, keyed: bool) -> list[list[str]]:
    """The entries of each value of a column, written down; ``keyed``: of maps, else of sets."""
    return [[repr(_key(it) if keyed else it) for it in row] for row in column.to_pylist()]


def _key(pair: Any) -> Any:
    return pair["key"] if isinstance(pair, dict) else pair[0]


def _at(pair: Any) -> int:
    return int(pair["value"] if isinstance(pair, dict) else pair[1])
