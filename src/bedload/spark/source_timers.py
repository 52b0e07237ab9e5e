"""The timers in a state as a table: a row for each, ``option("readRegisteredTimers", True)``.

In the state the timers of a key are hidden variables: of an operator on rows one list, of one on arrays a column for
each clock and name. Here they have one form, whatever keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bedload.checkpoint.records import OperatorSchema, Variable, pack_schema
from bedload.core.errors import DefinitionError
from bedload.core.ids import OperatorName
from bedload.spark.source_columns import Columns, columns_of
from bedload.state.kinds import VariableKind
from bedload.state.timers import VARIABLE
from bedload.store.deltas import GROUP, key_column
from bedload.worker.vector_timers import TimerColumn

NAME, CLOCK, AT = "timer_name", "timer_clock", "timer_at"
_FIELDS = ((NAME, pa.string(), "str"), (CLOCK, pa.string(), "str"), (AT, pa.int64(), "int"))


class TimersTable:
    """The timers of an operator's state."""

    def __init__(self, operator: OperatorName, schema: OperatorSchema) -> None:
        self._schema = schema
        names = [variable.name for variable in schema.variables]
        self.listed = VARIABLE in names
        """Whether a key has a list of them."""
        self.each = tuple(found for name in names if (found := TimerColumn.of(name)) is not None)
        """Else the column of each."""
        if not self.listed and not self.each:
            raise DefinitionError(f"operator {operator} has no timers in this state; leave readRegisteredTimers out")

    @property
    def variables(self) -> list[str]:
        """The state variables to read."""
        return [VARIABLE] if self.listed else [timer.column for timer in self.each]

    @cached_property
    def columns(self) -> Columns:
        """The key's columns, name, clock and time of a timer, and the key group."""
        made = tuple(_variable(name, kind, word) for name, kind, word in _FIELDS)
        return columns_of(msgspec.structs.replace(self._schema, variables=made))

    def rows(self, found: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Of keys with their timers, a row for each timer."""
        parts = [self._of_lists(found)] if self.listed else [self._of_column(found, timer) for timer in self.each]
        table = pa.concat_tables(parts).combine_chunks()
        return {name: table.column(name).combine_chunks() for name in table.column_names}

    def _of_lists(self, found: Mapping[str, pa.Array]) -> pa.Table:
        lists = found[VARIABLE]
        timers = lists.flatten()
        what = {NAME: timers.field("name"), CLOCK: timers.field("clock"), AT: timers.field("at")}
        return self._table(found, pc.list_parent_indices(lists), what)

    def _of_column(self, found: Mapping[str, pa.Array], timer: TimerColumn) -> pa.Table:
        times = found[timer.column]
        keys = pa.array(np.flatnonzero(times.is_valid().to_numpy(zero_copy_only=False)))
        what = {
            NAME: pa.repeat(pa.scalar(timer.name, pa.string()), len(keys)),
            CLOCK: pa.repeat(pa.scalar(str(timer.clock), pa.string()), len(keys)),
            AT: times.drop_null().cast(pa.int64()),
        }
        return self._table(found, keys, what)

    def _table(self, found: Mapping[str, pa.Array], keys: pa.Array, what: Mapping[str, pa.Array]) -> pa.Table:
        of_keys = [key_column(i) for i in range(len(self._schema.key_names))]
        return pa.table({name: found[name].take(keys) for name in (*of_keys, GROUP)} | dict(what))


def _variable(name: str, kind: pa.DataType, word: str) -> Variable:
    arrow = pack_schema(pa.schema([pa.field(name, kind)]))
    return Variable(name=name, type=word, arrow=arrow, kind=VariableKind.VALUE)
