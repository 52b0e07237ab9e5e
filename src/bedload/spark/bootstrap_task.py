"""The part of a bootstrap that runs on executors: rows of some key groups in, files of a snapshot out.

Invariants: rows come sorted by key group, and all rows of a key group come to one task; a key is there once, and is not
null unless it has several columns; a value that the operator could not load is refused here, where it can be named.

Why errors are given back as a result instead of being raised: Spark would run the task again, three times, and bury
what it said under its own words. What a second try may mend (the storage did not answer) is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from bedload.checkpoint import paths
from bedload.checkpoint.forms import StateForm, groups_of
from bedload.checkpoint.records import OperatorSchema, SnapshotPart
from bedload.checkpoint.snapshots import write_parts
from bedload.checkpoint.timestamps import NAIVE, has_datetimes, stamped_type, unstamped
from bedload.core.errors import BedloadError, DataError, NullKey, StateTypeError, StoreError, to_wire
from bedload.core.ids import OperatorName, Turn
from bedload.spark.bootstrap_expiries import fitting, with_unset
from bedload.state import StateSpec
from bedload.state.arrow import arrow_type, decode_all, decoder, encoder
from bedload.state.moments import MOMENT
from bedload.state.timers import in_order, timers_column
from bedload.state.types import OptionalNode, ScalarNode, TimersNode, TypeNode
from bedload.store.columns import ColumnSpec
from bedload.store.columns.index import KeyIndex
from bedload.store.columns.key_words import KeyWords
from bedload.store.deltas import GROUP
from bedload.worker.durable import Place

RESULT = "result"


@dataclass(frozen=True)
class Start:
    """How a state variable starts: what its column must be, and what a key has that no column says anything of."""

    name: str
    type: pa.DataType
    nullable: bool
    default: Any
    """As Arrow takes it."""
    declared: TypeNode | None = None
    """Its declared type, if values have to be looked at to know that they can be loaded."""
    column: str | None = None
    """The column that it comes from; None: all keys have the default."""


def starts_of_rows(specs: Iterable[StateSpec]) -> list[Start]:
    """The variables of an ``Operator``."""
    found = []
    for spec in specs:
        node = spec.type.item if isinstance(spec.type, OptionalNode) else spec.type
        looked_at = decoder(node) is not None or not isinstance(node, ScalarNode)
        found.append(
            Start(
                spec.name,
                arrow_type(spec.type),
                isinstance(spec.type, OptionalNode),
                encoder(spec.type)(spec.fresh_default()),
                spec.type if looked_at else None,
            )
        )
    return found


def starts_of_columns(columns: Iterable[ColumnSpec]) -> list[Start]:
    """The state of an operator on columns."""
    return with_unset([Start(spec.name, spec.type, spec.initial is None, spec.initial) for spec in columns])


class Result(msgspec.Struct, frozen=True):
    """What a task has written, or why it could not."""

    parts: list[SnapshotPart] = []
    error: tuple[str, str, dict[str, str]] | None = None


def decode_result(data: bytes) -> Result:
    """What a task gave."""
    return msgspec.msgpack.decode(data, type=Result)


@dataclass(frozen=True)
class Task:
    """Writes the key groups that come to it."""

    place: Place
    operator: OperatorName
    turn: Turn
    schema: OperatorSchema
    starts: tuple[Start, ...]
    of_spark: bool = False
    """Whether it is the state of a processor of Spark's: null is a key, and timers are known by their times."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take rows of key group, key columns and the variables that have a column; give one :class:`Result`."""
        try:
            folder = paths.snapshot(self.operator, self.turn)
            chunks = whole_groups(self.states(batches))
            result = Result(write_parts(self.place.open(), folder, self.schema, chunks))
        except StoreError:
            raise
        except BedloadError as error:
            result = Result(error=to_wire(error))
        yield pa.RecordBatch.from_arrays([pa.array([msgspec.msgpack.encode(result)], pa.binary())], [RESULT])

    def states(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches in state form, checked."""
        form = StateForm.of(self.schema)
        keys = _Keys(self.operator, self.schema, form, self.of_spark)
        for batch in batches:
            if not batch.num_rows:
                continue
            columns = [batch.column(GROUP).cast(pa.int16())]
            columns += [batch.column(name).cast(form.schema.field(name).type) for name in form.key_columns]
            keys.check(columns[1:], columns[0])
            variables = {start.name: self._variable(start, batch) for start in self.starts}
            columns += fitting(self.operator, self.starts, variables).values()
            yield pa.RecordBatch.from_arrays(columns, schema=form.schema)

    def _variable(self, start: Start, batch: pa.RecordBatch) -> pa.Array:
        if start.column is None:
            return pa.array([start.default], start.type).take(pa.array(np.zeros(batch.num_rows, np.int64)))
        column = batch.column(start.column)
        where = f"operator {self.operator}: initial state of variable {start.name!r}"
        if column.null_count and not start.nullable:
            raise DataError(
                f"{where} is null for {column.null_count} of {batch.num_rows} keys that were looked at. It may not be "
                "null: filter those keys, give them a value (F.coalesce), or leave the column out to have the default",
                operator=self.operator,
            )
        try:
            made = _in_state(column, start.type)
            if start.declared is not None:
                values = decode_all(start.declared, made.to_pylist())
                if isinstance(start.declared, TimersNode):
                    made = timers_column([in_order(timers, by_time=self.of_spark) for timers in values])
        except BedloadError as bad:
            raise StateTypeError(f"{where}: {bad.message}", operator=self.operator) from bad
        except Exception as bad:  # whatever a codec or a class of the user's says against a value
            raise StateTypeError(
                f"{where} has values that are not of its type ({start.declared or start.type}): "
                f"{type(bad).__name__}: {bad}",
                operator=self.operator,
            ) from bad
        return made


def _in_state(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """What Spark gave as a column of the state: its timestamps are datetimes of their zone, as in a row."""
    stamps = _timestamps(column.type, kind)
    if stamps is None:
        return column.cast(kind)
    zone = stamps.tz or NAIVE
    return unstamped(column.cast(stamped_type(kind, zone)), kind, zone)


def _timestamps(given: pa.DataType, kind: pa.DataType) -> pa.DataType | None:
    """The timestamps that were given where the state has datetimes; None if it has none there."""
    if kind == MOMENT:
        return given if pa.types.is_timestamp(given) else None
    inner = range(kind.num_fields if has_datetimes(kind) else 0)
    found = (_timestamps(given.field(i).type, kind.field(i).type) for i in inner)
    return next((stamps for stamps in found if stamps is not None), None)


class _Keys:
    """The keys that a task has met."""

    def __init__(self, operator: OperatorName, schema: OperatorSchema, form: StateForm, null_keys: bool) -> None:
        self._operator = operator
        self._names = schema.key_names
        self._null_keys = null_keys
        self._words = KeyWords(form.key_types, nullable=null_keys)
        self._index = KeyIndex(form.key_groups, self._words.width)

    def check(self, keys: list[pa.Array], groups: pa.Array) -> None:
        """Raise if one is null, or was there before."""
        if len(keys) == 1 and keys[0].null_count and not self._null_keys:
            raise NullKey(
                f"operator {self._operator}: {keys[0].null_count} rows of the initial state have null in the key "
                f"column {self._names[0]!r}: filter them out",
                operator=self._operator,
                column=self._names[0],
            )
        index = self._index
        before, met = index.live, len(index.touched)
        slots = index.locate(self._words.encode(keys), groups.to_numpy())
        if index.live - before == len(slots):
            return
        place = index.mark[slots] - 1
        first = np.zeros(len(slots), np.bool_)
        first[np.unique(place, return_index=True)[1]] = True
        row = int(np.flatnonzero(~first | (place < met))[0])
        key = [column[row].as_py() for column in keys]
        raise DataError(
            f"operator {self._operator}: the initial state has the key {key[0] if len(key) == 1 else tuple(key)!r} "
            f"more than once; a key has one state. Aggregate the rows of a key first (groupBy({', '.join(self._names)})"
            ".agg(...))",
            operator=self._operator,
        )


def whole_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[int], pa.RecordBatch]]:
    """The batches, cut and joined so that each key group comes once: they are sorted by it."""
    held: list[pa.RecordBatch] = []
    """Rows of the last key group met, which may go on."""
    for batch in batches:
        groups = groups_of(batch)
        cut = int(np.searchsorted(groups, groups[-1]))
        if cut == 0 and (not held or groups_of(held[0])[0] == groups[0]):
            held.append(batch)
            continue
        if cut == 0:
            yield _joined(held)
            held = [batch]
            continue
        yield _joined([*held, batch.slice(0, cut)])
        held = [batch.slice(cut)]
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> tuple[list[int], pa.RecordBatch]:
    batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return np.unique(groups_of(batch)).tolist(), batch
