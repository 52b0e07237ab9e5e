"""A set of named aggregates as logic on columns: what a worker runs, and what a feeder runs ahead of it.

::

    feeder   batch ──partial──▶ one row per key, with state columns
    worker   batch ──update──▶ state columns ◀──update_partial── partial rows
             state columns ──result──▶ keys and aggregates of the keys that changed

Invariants: it pickles; parts that several aggregates need are there once; the state columns of an aggregate have the
same names and types whatever aggregates are beside it; what ``partial`` and ``update_partial`` leave is what ``update``
leaves on the same rows, but for the rounding of doubles and the error of sketches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from bedload.core.errors import DataError, DefinitionError, SchemaError
from bedload.operators.aggregates.batch import Batch, Overflowed
from bedload.operators.aggregates.functions import Function, check_functions
from bedload.operators.aggregates.partials import PREFIX, Scratch, group_keys
from bedload.operators.aggregates.parts import Part
from bedload.operators.aggregates.planning import Aggregate, plan
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.index import Slots
from bedload.worker.operator import Context
from bedload.worker.slots import COMBINED


class Aggregates:
    """Named aggregates over the rows of each key; a :class:`~bedload.worker.slots.SlotLogic`."""

    def __init__(
        self, functions: Mapping[str, Function], schema: pa.Schema, key: Sequence[int], names: Sequence[str]
    ) -> None:
        check_functions(functions)
        double = sorted(set(functions) & set(names))
        if double:
            raise SchemaError(
                f"aggregates are named as key columns: {', '.join(double)}. The output has the key columns "
                f"and the aggregates, so give these another name"
            )
        self._key = tuple(key)
        self._aggregates: dict[str, Aggregate] = {name: plan(name, f, schema) for name, f in functions.items()}
        keys = [schema.field(at).with_name(name) for at, name in zip(key, names, strict=True)]
        self.output = pa.schema([*keys, *(aggregate.field for aggregate in self._aggregates.values())])
        """The key columns, then the aggregates."""
        self._parts = _needed(self._aggregates.values())
        self.columns: tuple[ColumnSpec, ...] = _state_columns(self._parts)
        """The state columns."""
        self.partial_schema = _partial_schema(keys, self.columns)
        """What :meth:`partial` gives."""

    @property
    def mergeable(self) -> bool:
        """Whether all functions can be aggregated ahead, whatever the order of rows."""
        return all(part.mergeable for part in self._parts)

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """For each function the state columns that it is computed from, which may be shared with others."""
        return {
            str(aggregate.function): tuple(spec.name for part in aggregate.result.parts for spec in part.columns)
            for aggregate in self._aggregates.values()
        }

    def setup(self, ctx: Context) -> None:
        """Nothing is shared."""

    def close(self) -> None:
        """Nothing is held."""

    def update(self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch | None:
        """Take the rows of a batch; nothing leaves before the end of the epoch."""
        rows = Batch(slots, batch.columns, batch.schema.names)
        try:
            for part in self._parts:
                part.update(table, rows)
        except Overflowed as overflow:
            key = [batch.column(at)[overflow.row].as_py() for at in self._key]
            raise self._overflow(overflow.part, key, ctx) from None
        return None

    def result(self, table: ColumnTable, slots: Slots, ctx: Context) -> pa.RecordBatch | None:
        """Keys and aggregates of these slots."""
        if not len(slots):
            return None
        # Instants are kept in UTC, and given in the zone of the session.
        keys = [key.cast(self.output.field(i).type) for i, key in enumerate(table.keys(slots))]
        columns = [*keys, *(a.result.column(table, slots) for a in self._aggregates.values())]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)

    # --- ahead of the worker ---

    def partial(self, batch: pa.RecordBatch, *, at_most: float = 0.5) -> pa.RecordBatch | None:
        """One row for each key of a batch.

        None if there would be more than ``at_most`` times as many rows: then it is cheaper to send the rows.
        """
        self._check_mergeable()
        keys = [batch.column(at) for at in self._key]
        slots, count, rows = group_keys(keys)
        if count > at_most * batch.num_rows:
            return None
        scratch = Scratch(self.columns, count)
        view = Batch(slots, batch.columns, batch.schema.names)
        try:
            for part in self._parts:
                part.update(scratch, view)
        except Overflowed as overflow:
            raise self._overflow(overflow.part, [key[overflow.row].as_py() for key in keys]) from None
        take = pa.array(rows)
        columns = [*(key.take(take) for key in keys), *scratch.arrays()]
        return pa.RecordBatch.from_arrays(columns, schema=self.partial_schema)

    def update_partial(
        self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: Context | None = None
    ) -> None:
        """Take rows of :meth:`partial`; the key group may be there or not."""
        self._check_mergeable()
        first = len(self._key)
        where = {spec.name: first + i for i, spec in enumerate(self.columns)}
        rows = Batch(slots, batch.columns, batch.schema.names)
        try:
            for part in self._parts:
                part.merge(table, rows, where)
        except Overflowed as overflow:
            key = [batch.column(at)[overflow.row].as_py() for at in range(first)]
            raise self._overflow(overflow.part, key, ctx) from None

    def _check_mergeable(self) -> None:
        if not self.mergeable:
            rest = [
                f"{name}={aggregate.function}"
                for name, aggregate in self._aggregates.items()
                if not all(part.mergeable for part in aggregate.result.parts)
            ]
            raise DefinitionError(f"these aggregates cannot be computed ahead of the worker: {', '.join(rest)}")

    def _overflow(self, part: Part, key: list[object], ctx: Context | None = None) -> DataError:
        name, aggregate = next((n, a) for n, a in self._aggregates.items() if part in a.result.parts)
        kind = part.columns[0].type
        where = f"operator {ctx.operator}, " if ctx is not None else ""
        said = repr(key[0]) if len(key) == 1 else repr(tuple(key))
        column = aggregate.function.columns[0]
        return DataError(
            f"{where}key {said}: the sum of aggregate {name}={aggregate.function} does not fit {kind} any more "
            f"(Spark's ARITHMETIC_OVERFLOW). Cast the column to a larger type before aggregating: "
            f"df.withColumn({column!r}, F.col({column!r}).cast('double')), or to a decimal",
            aggregate=name,
            key=key[0] if len(key) == 1 else tuple(key),
        )


def _needed(aggregates: Iterable[Aggregate]) -> tuple[Part, ...]:
    parts = dict.fromkeys(part for a in aggregates for part in a.result.parts)
    covered = {other for part in parts for other in part.covers}
    return tuple(part for part in parts if part not in covered)


def _state_columns(parts: Sequence[Part]) -> tuple[ColumnSpec, ...]:
    specs = [spec for part in parts for spec in part.columns]
    names = [spec.name for spec in specs]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        # Only by columns whose names look like calls: first("x, ignore_nulls") and first("x", ignore_nulls=True).
        raise SchemaError(f"two aggregates would keep their state as {', '.join(double)}: rename an input column")
    return tuple(specs)


def _partial_schema(keys: Sequence[pa.Field], columns: Sequence[ColumnSpec]) -> pa.Schema:
    partial = [
        pa.field(f"{PREFIX}{i}", spec.type, nullable=spec.nullable or not spec.fixed) for i, spec in enumerate(columns)
    ]
    return pa.schema([*keys, *partial], COMBINED)
