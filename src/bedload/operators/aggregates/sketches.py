"""Approximate aggregates: state of bounded size from the sketches of Apache DataSketches.

A key's state is a sketch in its serialized form, as a binary column: it is read, moved, written to Parquet and opened
elsewhere like any other bytes. An update opens the sketch, gives it all values that the batch has for the key in one
go, and writes new bytes: bytes cannot be changed in place, so the before-images need no care. Opening and closing
take half a microsecond for a small sketch and a few for a large one (twenty for many frequent items), so no open
sketches are kept, which an abort would have to find.

Invariants: a slot that has met no value holds null; the first update of an empty slot depends on the rows alone, not on
chance, because feeders that are run again must send the same partial rows; values that a distinct count has met before
leave its bytes as they are, so its key has not changed.

The package is optional. If it is missing, the definition of the query fails.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import DefinitionError
from bedload.keys import hash_columns
from bedload.operators.aggregates.batch import Batch
from bedload.operators.aggregates.kll_runs import sketch_of
from bedload.operators.aggregates.parts import Part, State
from bedload.operators.aggregates.results import Result
from bedload.store.columns import ColumnSpec
from bedload.store.columns.index import Flags, Slots


@functools.cache
def library() -> Any:
    """The package ``datasketches``."""
    try:
        import datasketches
    except ImportError as error:
        raise DefinitionError(
            f"approximate aggregates need the package datasketches, which cannot be imported here ({error}): "
            f"pip install bedload[sketches], where the driver runs and where the executors run"
        ) from error
    return datasketches


class Sketch(Part):
    """A sketch per key."""

    mergeable: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the state column: what sketch it is, of which column, and its size."""

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The sketch, null as long as it is empty."""
        return (ColumnSpec(self.name, pa.binary()),)

    def update(self, state: State, batch: Batch) -> None:
        """Give each sketch the values that the batch has for it."""
        held = state.values(self.name)
        for slot, new in self._updates(batch, held):
            held[slot] = new

    def merge(self, state: State, batch: Batch, where: Mapping[str, int]) -> None:
        """Join sketches."""
        held = state.values(self.name)
        for slot, more in zip(batch.slots.tolist(), batch.column(where[self.name]).to_pylist(), strict=True):
            if more is not None:
                old = held[slot]
                held[slot] = more if old is None else self._merged(old, more)

    @abstractmethod
    def _updates(self, batch: Batch, held: npt.NDArray[Any]) -> Iterator[tuple[int, bytes]]:
        """New bytes for the slots that the batch has values for, each slot once."""

    @abstractmethod
    def _merged(self, old: bytes, more: bytes) -> bytes:
        """One sketch for the values of two."""


@dataclass(frozen=True)
class Runs:
    """The rows of a batch that count, those of one slot after another."""

    rows: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int32]
    """For each of the rows, the number of its slot among the batch's slots."""
    slots: Slots
    """The batch's slots, by number."""

    @classmethod
    def of(cls, batch: Batch, counts: Flags) -> Runs:
        """The rows that ``counts`` is True for, in their order within a slot."""
        slots, groups = batch.groups
        rows = np.flatnonzero(counts)
        # NumPy sorts small integers by their digits, in a tenth of the time.
        small = groups[rows].astype(np.uint16) if len(slots) <= 2**16 else groups[rows]
        rows = rows[np.argsort(small, kind="stable")]
        return cls(rows, groups[rows], slots)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Slot, begin and end of each run."""
        return bounds(self.groups, self.slots)


def bounds(groups: npt.NDArray[Any], slots: Slots) -> Iterator[tuple[int, int, int]]:
    """Slot, begin and end of each stretch of one group."""
    begins = np.flatnonzero(np.diff(groups, prepend=-1))
    ends = np.append(begins, len(groups))[1:]
    return zip(slots[groups[begins]].tolist(), begins.tolist(), ends.tolist(), strict=True)


# --- how many different values ---


@dataclass(frozen=True)
class DistinctSketch(Sketch):
    """A HyperLogLog sketch of the values of a column.

    It is given their 64-bit hashes, which are those of Spark's ``xxhash64(column)``: so every type is an integer to
    it, the empty string counts (the library leaves it out), and no Python string is made.
    """

    column: str
    at: int
    lg_k: int
    """The logarithm of the number of registers."""

    @property
    def name(self) -> str:
        """Of the state column."""
        return f"hll({self.column}, {self.lg_k})"

    def _updates(self, batch: Batch, held: npt.NDArray[Any]) -> Iterator[tuple[int, bytes]]:
        runs = Runs.of(batch, batch.valid(self.at))
        values = hash_columns([_hashable(batch.column(self.at))])[runs.rows].tolist()
        sketches = library()
        for slot, begin, end in runs:
            old = held[slot]
            if old is None:
                sketch = sketches.hll_sketch(self.lg_k, sketches.HLL_8)
            else:
                sketch = sketches.hll_sketch.deserialize(old)
            deque(map(sketch.update, values[begin:end]), maxlen=0)
            yield slot, self._kept(old, sketch.serialize_compact())

    def _merged(self, old: bytes, more: bytes) -> bytes:
        sketches = library()
        union = sketches.hll_union(self.lg_k)
        union.update(sketches.hll_sketch.deserialize(old))
        union.update(sketches.hll_sketch.deserialize(more))
        return self._kept(old, union.get_result(sketches.HLL_8).serialize_compact())

    def _kept(self, old: bytes | None, new: bytes) -> bytes:
        # SUBTLE: a small sketch is a set of entries, four bytes each, which come in another order after every
        # opening. Entries are only added, so the same size means the same set. A large one is its registers.
        small = len(new) < 1 << self.lg_k
        return old if old is not None and small and len(old) == len(new) else new


@dataclass(frozen=True)
class DistinctCount(Result):
    """The estimated number of different values."""

    part: DistinctSketch

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sketch."""
        return (self.part,)

    def column(self, state: State, slots: Slots) -> pa.Array:
        """Never null."""
        opened = library().hll_sketch.deserialize
        held = state.values(self.part.name)[slots]
        return pa.array([0 if old is None else round(opened(old).get_estimate()) for old in held], pa.int64())


def lg_k_for(rse: float) -> int:
    """The logarithm of the number of registers for a relative standard error, also of merged sketches."""
    return max(4, math.ceil(2 * math.log2(1.04 / rse)))


def _hashable(column: pa.Array) -> pa.Array:
    kind = column.type
    # Times of day and intervals cannot be keys, so the hash does not know them.
    return column.view(pa.int64()) if pa.types.is_time64(kind) or pa.types.is_duration(kind) else column


# --- quantiles ---


@dataclass(frozen=True)
class QuantileSketch(Sketch):
    """A KLL sketch of the values of a column as doubles. NaN has no rank and is left out."""

    column: str
    at: int
    k: int
    """The items of the largest level."""

    @property
    def name(self) -> str:
        """Of the state column."""
        return f"kll({self.column}, {self.k})"

    def _updates(self, batch: Batch, held: npt.NDArray[Any]) -> Iterator[tuple[int, bytes]]:
        numbers = batch.numbers(self.at, np.float64)
        runs = Runs.of(batch, batch.valid(self.at) & ~np.isnan(numbers))
        values = numbers[runs.rows]
        made, opened = library().kll_doubles_sketch, library().kll_doubles_sketch.deserialize
        for slot, begin, end in runs:
            old = held[slot]
            if old is None and end - begin > self.k:
                yield slot, sketch_of(values[begin:end], self.k)
                continue
            sketch = made(self.k) if old is None else opened(old)
            sketch.update(values[begin:end])
            yield slot, sketch.serialize()

    def _merged(self, old: bytes, more: bytes) -> bytes:
        opened = library().kll_doubles_sketch.deserialize
        sketch = opened(old)
        sketch.merge(opened(more))
        merged: bytes = sketch.serialize()
        return merged


@dataclass(frozen=True)
class Quantiles(Result):
    """Values at some ranks: an array of them, or the only one."""

    part: QuantileSketch
    ranks: tuple[float, ...]
    several: bool

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sketch."""
        return (self.part,)

    @property
    def kind(self) -> pa.DataType:
        """The type of the column."""
        return pa.list_(pa.field("element", pa.float64(), nullable=False)) if self.several else pa.float64()

    def column(self, state: State, slots: Slots) -> pa.Array:
        """Null where there is no value."""
        opened = library().kll_doubles_sketch.deserialize
        found: list[Any] = []
        for old in state.values(self.part.name)[slots]:
            quantiles = None if old is None else self._of(opened(old))
            found.append(quantiles if self.several or quantiles is None else quantiles[0])
        return pa.array(found, self.kind)

    def _of(self, sketch: Any) -> list[float]:
        found: list[float] = sketch.get_quantiles(list(self.ranks), True)
        # The ends may have been thinned out, but are kept beside.
        ends = {0.0: sketch.get_min_value(), 1.0: sketch.get_max_value()}
        return [ends.get(rank, value) for rank, value in zip(self.ranks, found, strict=True)]


def k_for(rank_error: float) -> int:
    """The smallest k whose error, in ranks and with 99 % confidence, is at most this (or the largest k there is)."""
    error = library().kll_doubles_sketch.get_normalized_rank_error
    low, high = 8, 2**16 - 1
    while low < high:
        middle = (low + high) // 2
        if error(middle, False) <= rank_error:
            high = middle
        else:
            low = middle + 1
    return low
