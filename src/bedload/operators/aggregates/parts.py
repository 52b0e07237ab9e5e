"""The parts that aggregates are made of: pieces of state, each with its columns, its update and its merge.

``mean(x)`` is the parts sum of x and count of x; ``sum(x)`` next to it uses the same sum. A part is identified by its
meaning (class, column, type), so parts that several aggregates need are kept and updated once.

Invariants: the name of a state column depends on the part alone, not on the aggregates beside it, so that aggregates
can be added and dropped without disturbing the others; objects in state are replaced and never changed in place,
because the before-images share them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.operators.aggregates import decimals
from bedload.operators.aggregates import kernels as k
from bedload.operators.aggregates.batch import Batch, Overflowed
from bedload.operators.aggregates.carriers import carrier, has_numbers, is_decimal, is_integer, restore, sum_type
from bedload.store.columns import ColumnSpec
from bedload.store.columns.index import Flags, Slots
from bedload.store.columns.layout import arrow_of


class State(Protocol):
    """Columns by slot: a table, or the scratch columns of a partial aggregation."""

    def values(self, name: str) -> npt.NDArray[Any]:
        """The array of a column."""
        ...

    def valid(self, name: str) -> Flags:
        """The mask of a nullable column."""
        ...


class Part(ABC):
    """A piece of state."""

    mergeable: ClassVar[bool] = False
    """Whether states of two sets of rows can be joined, whatever the order of the rows."""

    @property
    @abstractmethod
    def columns(self) -> tuple[ColumnSpec, ...]:
        """Its state columns."""

    @abstractmethod
    def update(self, state: State, batch: Batch) -> None:
        """Take the rows of a batch."""

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Take states made elsewhere; ``where`` gives the position in the batch of each state column."""
        raise NotImplementedError

    @property
    def covers(self) -> tuple[Part, ...]:
        """Parts whose columns this one updates along with its own."""
        return ()


class Held(Part):
    """A part whose first column is a result as it stands."""

    def read(self, state: State, slots: Slots, kind: pa.DataType) -> pa.Array:
        """The values in these slots."""
        return read_column(self.columns[0], state, slots, kind)


def read_column(spec: ColumnSpec, state: State, slots: Slots, kind: pa.DataType) -> pa.Array:
    """A state column as values of their own type."""
    values, valid = state.values(spec.name)[slots], state.valid(spec.name)[slots] if spec.nullable else None
    if is_decimal(kind):
        return arrow_of(values, valid, kind)
    return restore(values, None if valid is None else ~valid, kind)


@dataclass(frozen=True)
class Rows(Held):
    """The number of rows."""

    mergeable = True

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """One counter."""
        return (ColumnSpec("count()", pa.int64(), 0),)

    def update(self, state: State, batch: Batch) -> None:
        """Count."""
        k.count_rows(batch.slots, state.values("count()"))

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Add counts."""
        _add_counts("count()", state, batch, where)


@dataclass(frozen=True)
class Count(Held):
    """The number of rows in which a column is not null."""

    column: str
    at: int

    mergeable = True

    @property
    def name(self) -> str:
        """The name of the counter."""
        return f"count({self.column})"

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """One counter."""
        return (ColumnSpec(self.name, pa.int64(), 0),)

    def update(self, state: State, batch: Batch) -> None:
        """Count."""
        if batch.column(self.at).null_count:
            k.count_valid(batch.slots, batch.valid(self.at), state.values(self.name))
        else:
            k.count_rows(batch.slots, state.values(self.name))

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Add counts."""
        _add_counts(self.name, state, batch, where)


def _add_counts(name: str, state: State, batch: Batch, where: Mapping[str, int]) -> None:
    k.add_counts(batch.slots, batch.numbers(where[name], np.int64), state.values(name))


@dataclass(frozen=True)
class Sum(Held):
    """A sum of integers as a bigint, or of any numbers as a double."""

    column: str
    at: int
    kind: pa.DataType
    """Of the sum: int64 or float64."""
    exact: bool
    """False for integers that are summed up as doubles, as the mean of bigints is: it must not overflow."""

    mergeable = True

    @property
    def name(self) -> str:
        """The name of the sum."""
        return f"sum({self.column})" if self.exact else f"approximate_sum({self.column})"

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """One sum, null at first."""
        return (ColumnSpec(self.name, self.kind),)

    def update(self, state: State, batch: Batch) -> None:
        """Add."""
        self._add(state, batch, self.at)

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Add sums."""
        self._add(state, batch, where[self.name])

    def _add(self, state: State, batch: Batch, at: int) -> None:
        sums, valid = state.values(self.name), state.valid(self.name)
        if not is_integer(self.kind):
            k.add_doubles(batch.slots, batch.numbers(at, np.float64), batch.valid(at), sums, valid)
            return
        row = k.add_integers(batch.slots, batch.numbers(at, np.int64), batch.valid(at), sums, valid)
        if row >= 0:
            raise Overflowed(self, row)


@dataclass(frozen=True)
class DecimalSum(Held):
    """A sum of decimals."""

    column: str
    at: int
    kind: pa.DataType
    """Of the sum."""

    mergeable = True

    @property
    def name(self) -> str:
        """The name of the sum."""
        return f"sum({self.column})"

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """One sum, null at first."""
        return (ColumnSpec(self.name, self.kind),)

    def update(self, state: State, batch: Batch) -> None:
        """Add."""
        self._add(state, batch, self.at)

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Add sums."""
        self._add(state, batch, where[self.name])

    def _add(self, state: State, batch: Batch, at: int) -> None:
        row = decimals.add(batch, at, self.kind, state.values(self.name), state.valid(self.name))
        if row >= 0:
            raise Overflowed(self, row)


@dataclass(frozen=True)
class Moments(Part):
    """Count, mean and sum of squared differences of the values of a column as doubles."""

    column: str
    at: int

    mergeable = True

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The three of them; the count is that of :class:`Count`."""
        names = self.names
        return (
            ColumnSpec(names[0], pa.int64(), 0),
            ColumnSpec(names[1], pa.float64(), 0.0),
            ColumnSpec(names[2], pa.float64(), 0.0),
        )

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of count, mean and sum of squares."""
        return f"count({self.column})", f"center({self.column})", f"squares({self.column})"

    @property
    def covers(self) -> tuple[Part, ...]:
        """The count, which the update needs as it was before each row."""
        return (Count(self.column, self.at),)

    def update(self, state: State, batch: Batch) -> None:
        """Take values."""
        held = [state.values(name) for name in self.names]
        k.add_moments(batch.slots, batch.numbers(self.at, np.float64), batch.valid(self.at), *held)

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Take moments."""
        count, center, squares = (where[name] for name in self.names)
        held = [state.values(name) for name in self.names]
        theirs = (batch.numbers(count, np.int64), batch.numbers(center, np.float64), batch.numbers(squares, np.float64))
        k.merge_moments(batch.slots, *theirs, *held)


@dataclass(frozen=True)
class Extreme(Held):
    """The smallest or the largest value of a column of numbers or times."""

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
        return (ColumnSpec(self.name, carrier(self.kind)),)

    def update(self, state: State, batch: Batch) -> None:
        """Compare."""
        self._compare(state, batch, self.at)

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Compare extremes."""
        self._compare(state, batch, where[self.name])

    def _compare(self, state: State, batch: Batch, at: int) -> None:
        held = state.values(self.name)
        keep = k.keep_largest if self.largest else k.keep_smallest
        keep(batch.slots, batch.numbers(at, held.dtype.type), batch.valid(at), held, state.valid(self.name))


@dataclass(frozen=True)
class Logical(Held):
    """Whether any or all values of a column of booleans are true."""

    column: str
    at: int
    either: bool

    mergeable = True

    @property
    def name(self) -> str:
        """The name of the value."""
        return f"{'any' if self.either else 'all'}({self.column})"

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """One value, null at first."""
        return (ColumnSpec(self.name, pa.bool_()),)

    def update(self, state: State, batch: Batch) -> None:
        """Combine."""
        self._combine(state, batch, self.at)

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Combine what was combined."""
        self._combine(state, batch, where[self.name])

    def _combine(self, state: State, batch: Batch, at: int) -> None:
        keep = k.keep_any if self.either else k.keep_all
        values, held = batch.numbers(at, np.bool_), state.values(self.name)
        keep(batch.slots, values, batch.valid(at), held, state.valid(self.name))


def sum_part(column: str, at: int, kind: pa.DataType) -> Sum | DecimalSum:
    """The sum of a column, for ``sum``."""
    made = sum_type(kind)
    return Sum(column, at, made, exact=True) if has_numbers(kind) else DecimalSum(column, at, made)


def mean_sum_part(column: str, at: int, kind: pa.DataType) -> Sum | DecimalSum:
    """The sum of a column, for ``mean``: that of ``sum``, unless it could overflow."""
    if pa.types.is_int64(kind):
        return Sum(column, at, pa.float64(), exact=False)
    return sum_part(column, at, kind)
