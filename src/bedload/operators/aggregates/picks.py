"""Parts that keep values of single rows: first and last, the row where another column is best, collected values.

Each first finds the rows of a batch that count, with a compiled loop, and then copies their values to the state. So
values may be of any type: where it has no array of its own, only the few rows that were picked become Python objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.keys import NAN
from bedload.operators.aggregates import decimal_kernels as dk
from bedload.operators.aggregates import decimals
from bedload.operators.aggregates import kernels as k
from bedload.operators.aggregates.batch import Batch
from bedload.operators.aggregates.carriers import carrier, is_decimal, is_float, list_type
from bedload.operators.aggregates.parts import Held, State
from bedload.store.columns import ColumnSpec
from bedload.store.columns.index import Slots
from bedload.store.columns.layout import WIDE

RowNumbers = npt.NDArray[np.int64]


def put(state: State, spec: ColumnSpec, batch: Batch, at: int, rows: RowNumbers) -> None:
    """Copy the values of some rows to their slots; where a slot has several of them, the last row stays."""
    slots = batch.slots[rows]
    held = state.values(spec.name)
    if not spec.fixed:
        held[slots] = batch.objects(at, rows)
        return
    held[slots] = batch.numbers(at, held.dtype)[rows]
    state.valid(spec.name)[slots] = batch.valid(at)[rows]


@dataclass(frozen=True)
class WideExtreme(Held):
    """The smallest or the largest value of a column of strings, binary or decimals."""

    column: str
    at: int
    kind: pa.DataType
    largest: bool

    mergeable = True

    @property
    def name(self) -> str:
        """The name of the value."""
        return f"{'max' if self.largest else 'min'}({self.column})"

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """One value, null at first."""
        return (ColumnSpec(self.name, self.kind),)

    def update(self, state: State, batch: Batch) -> None:
        """Compare."""
        self._compare(state, batch, self.at)

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Compare extremes."""
        self._compare(state, batch, where[self.name])

    def _compare(self, state: State, batch: Batch, at: int) -> None:
        if is_decimal(self.kind):
            held, valid = state.values(self.name), state.valid(self.name)
            decimals.keep_best(batch, at, self.largest, held, valid)
        else:
            _win_objects(state.values(self.name), batch, at, self.largest)


def _win_objects(held: npt.NDArray[Any], batch: Batch, by: int, largest: bool) -> RowNumbers:
    """Update the best objects; the rows that won over them, or drew with them."""
    rows = batch.last_best_rows(by, largest)
    values = batch.objects(by, rows)
    won = np.zeros(len(rows), bool)
    for i, (slot, value) in enumerate(zip(batch.slots[rows].tolist(), values, strict=True)):
        old = held[slot]
        if old is None or not (old > value if largest else value > old):
            held[slot] = value
            won[i] = True
    return rows[won]


@dataclass(frozen=True)
class First(Held):
    """The value of the first row."""

    column: str
    at: int
    kind: pa.DataType
    ignore_nulls: bool

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The value, and whether there was a row that counts."""
        name = f"first({self.column}{', ignore_nulls' if self.ignore_nulls else ''})"
        return (ColumnSpec(name, carrier(self.kind)), ColumnSpec(f"{name}.seen", pa.bool_(), False))

    def update(self, state: State, batch: Batch) -> None:
        """Take the values of keys that have none yet."""
        value, seen = self.columns
        counts = batch.valid(self.at) if self.ignore_nulls else batch.everything
        rows = np.empty(len(batch.slots), np.int64)
        found = k.first_rows(batch.slots, counts, state.values(seen.name), rows)
        if found:
            put(state, value, batch, self.at, rows[:found])


@dataclass(frozen=True)
class Last(Held):
    """The value of the last row."""

    column: str
    at: int
    kind: pa.DataType
    ignore_nulls: bool

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The value."""
        name = f"last({self.column}{', ignore_nulls' if self.ignore_nulls else ''})"
        return (ColumnSpec(name, carrier(self.kind)),)

    def update(self, state: State, batch: Batch) -> None:
        """Take the last value of each key."""
        (value,) = self.columns
        if value.fixed:
            held, valid = state.values(value.name), state.valid(value.name)
            numbers = batch.numbers(self.at, held.dtype)
            k.keep_last(batch.slots, numbers, batch.valid(self.at), self.ignore_nulls, held, valid)
            return
        rows = np.flatnonzero(batch.valid(self.at)) if self.ignore_nulls else np.arange(len(batch.slots))
        # Making objects costs more than finding the rows that stay.
        slots, groups = batch.groups
        last = np.full(len(slots), -1, np.int64)
        last[groups[rows]] = rows
        put(state, value, batch, self.at, last[last >= 0])


@dataclass(frozen=True)
class Arg(Held):
    """The value in the row in which another column is smallest or largest."""

    column: str
    at: int
    kind: pa.DataType
    by: str
    by_at: int
    by_kind: pa.DataType
    largest: bool

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The value, and what it won with."""
        name = f"arg_{'max' if self.largest else 'min'}({self.column}, {self.by})"
        by = pa.int64() if pa.types.is_boolean(self.by_kind) else carrier(self.by_kind)
        return (ColumnSpec(name, carrier(self.kind)), ColumnSpec(f"{name}.by", by))

    def update(self, state: State, batch: Batch) -> None:
        """Take the values of the rows that win."""
        value, by = self.columns
        best = state.values(by.name)
        if by.fixed:
            rows = np.empty(len(batch.slots), np.int64)
            numbers, counts = batch.numbers(self.by_at, best.dtype), batch.valid(self.by_at)
            winning = dk.winning_rows if best.dtype == WIDE else k.winning_rows
            rows = rows[: winning(batch.slots, numbers, counts, best, state.valid(by.name), self.largest, rows)]
        else:
            rows = _win_objects(best, batch, self.by_at, self.largest)
        if len(rows):
            put(state, value, batch, self.at, rows)


@dataclass(frozen=True)
class Collected(Held):
    """The first values that are not null, up to a limit; all of them or the different ones."""

    column: str
    at: int
    kind: pa.DataType
    limit: int
    distinct: bool

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The list, null as long as it is empty."""
        name = f"collect_{'set' if self.distinct else 'list'}({self.column}, {self.limit})"
        return (ColumnSpec(name, list_type(self.kind)),)

    def update(self, state: State, batch: Batch) -> None:
        """Append what there is room for."""
        held = state.values(self.columns[0].name)
        slots, groups = batch.groups
        has_room = np.fromiter((old is None or len(old) < self.limit for old in held[slots]), bool, len(slots))
        rows = np.flatnonzero(batch.valid(self.at) & has_room[groups])
        if not len(rows):
            return
        rows = rows[np.argsort(groups[rows], kind="stable")]
        of_row = groups[rows]
        starts = np.flatnonzero(np.diff(of_row, prepend=-1))
        if not self.distinct:
            # A key may have many rows in a batch: make objects only of those that can find room.
            place = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
            rows = rows[place < self.limit]
            of_row = groups[rows]
            starts = np.flatnonzero(np.diff(of_row, prepend=-1))
        values = batch.objects(self.at, rows).tolist()
        ends = [*starts[1:].tolist(), len(rows)]
        for start, end in zip(starts.tolist(), ends, strict=True):
            slot = slots[of_row[start]]
            # A new list: the old one is the before-image.
            held[slot] = self._joined(held[slot] or [], values[start:end])[: self.limit]

    def _joined(self, old: list[Any], more: list[Any]) -> list[Any]:
        if not self.distinct:
            return old + more
        if is_float(self.kind):
            return list(dict.fromkeys(NAN if value != value else value for value in old + more))
        return list(dict.fromkeys(old + more))

    def read(self, state: State, slots: Slots, kind: pa.DataType) -> pa.Array:
        """The lists in these slots, never null."""
        found = [held or [] for held in state.values(self.columns[0].name)[slots]]
        return pa.array(found, type=kind)
