"""From parts to output columns: what is done once per key at the end of an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.core.errors import DataError
from bedload.operators.aggregates import decimals
from bedload.operators.aggregates.functions import Function
from bedload.operators.aggregates.parts import Count, DecimalSum, Held, Moments, Part, State, Sum
from bedload.operators.aggregates.reducing import Reduced
from bedload.store.columns.index import Slots
from bedload.store.columns.layout import arrow_of


class Result(ABC):
    """How an output column comes out of the state."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """The parts that it needs."""

    @abstractmethod
    def column(self, state: State, slots: Slots) -> pa.Array:
        """The output for these slots."""


@dataclass(frozen=True)
class AsHeld(Result):
    """The state itself."""

    part: Held
    kind: pa.DataType

    @property
    def parts(self) -> tuple[Part, ...]:
        """The one."""
        return (self.part,)

    def column(self, state: State, slots: Slots) -> pa.Array:
        """The values in their own type."""
        return self.part.read(state, slots, self.kind)


@dataclass(frozen=True)
class DoubleMean(Result):
    """The mean of numbers."""

    total: Sum | DecimalSum
    count: Count

    @property
    def parts(self) -> tuple[Part, ...]:
        """Sum and count."""
        return (self.total, self.count)

    def column(self, state: State, slots: Slots) -> pa.Array:
        """The quotients, null where there was nothing."""
        counts = state.values(self.count.name)[slots]
        return _divided(state.values(self.total.name)[slots], counts, counts == 0)


@dataclass(frozen=True)
class DecimalMean(Result):
    """The mean of decimals, rounded half up as Spark does."""

    name: str
    function: Function
    total: Sum | DecimalSum
    count: Count
    kind: pa.DataType

    @property
    def parts(self) -> tuple[Part, ...]:
        """Sum and count."""
        return (self.total, self.count)

    def column(self, state: State, slots: Slots) -> pa.Array:
        """The quotients, null where there was nothing."""
        totals, counts = state.values(self.total.name)[slots], state.values(self.count.name)[slots]
        scale = self.total.kind.scale
        means, row = decimals.divide(totals, counts, self.kind.scale - scale, self.kind)
        if row >= 0:
            mean = decimals.exact_mean(totals[row], int(counts[row]), scale, self.kind)
            raise DataError(
                f"aggregate {self.name}={self.function}: the mean {mean} does not fit {self.kind}, the type that "
                f"Spark gives it (ARITHMETIC_OVERFLOW). Cast the column to double, or to fewer digits",
                aggregate=self.name,
            )
        return arrow_of(means, counts != 0, self.kind)


@dataclass(frozen=True)
class Spread(Result):
    """Variance or standard deviation."""

    moments: Moments
    sample: bool
    root: bool

    @property
    def parts(self) -> tuple[Part, ...]:
        """The moments."""
        return (self.moments,)

    def column(self, state: State, slots: Slots) -> pa.Array:
        """Null where there are too few values."""
        count, _, squares = self.moments.names
        degrees = state.values(count)[slots] - int(self.sample)
        return _divided(state.values(squares)[slots], degrees, degrees <= 0, root=self.root)


@dataclass(frozen=True)
class OwnResult(Result):
    """What the user's functions make of their state."""

    part: Reduced

    @property
    def parts(self) -> tuple[Part, ...]:
        """The one."""
        return (self.part,)

    def column(self, state: State, slots: Slots) -> pa.Array:
        """Never null."""
        return self.part.read(state, slots)


def _divided(values: Any, by: Any, null: Any, *, root: bool = False) -> pa.Array:
    made = values / np.where(null, 1, by)
    return pa.array(np.sqrt(made) if root else made, mask=null)
