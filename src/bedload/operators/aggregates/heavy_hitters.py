"""The most frequent values of a column, from a frequent-items sketch (Misra and Gries) of bounded size.

The sketch keeps items as text, so each type has a way to text and back. Within a batch Arrow counts the pairs of key
and value, and the sketch is told each pair once, with its count.

Invariant: a count is never less than the truth minus the sketch's error, nor more than the truth plus it; the error is
at most 3.5 / (size of the sketch's table) of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.keys.columns import floats_of
from bedload.operators.aggregates.batch import Batch
from bedload.operators.aggregates.carriers import is_float, is_time
from bedload.operators.aggregates.parts import Part, State
from bedload.operators.aggregates.results import Result
from bedload.operators.aggregates.sketches import Runs, Sketch, bounds, library
from bedload.store.columns.index import Slots


@dataclass(frozen=True)
class FrequentItems(Sketch):
    """A sketch of the values of a column and of how often each of them occurs."""

    column: str
    at: int
    lg_size: int
    """The logarithm of the size of its table, of which three quarters are used."""

    @property
    def name(self) -> str:
        """Of the state column."""
        return f"frequent_items({self.column}, {self.lg_size})"

    def _updates(self, batch: Batch, held: npt.NDArray[Any]) -> Iterator[tuple[int, bytes]]:
        runs = Runs.of(batch, batch.valid(self.at))
        if not len(runs.rows):
            return
        texts, codes = _texts(batch, self.at, runs.rows)
        # Rows are in the order of their groups, and pairs in that of their first rows: so pairs are as well.
        pairs = pa.array(runs.groups * np.int64(len(texts)) + codes).value_counts()
        groups, items = np.divmod(pairs.field("values").to_numpy(), len(texts))
        weights = pairs.field("counts").to_numpy().tolist()
        items = items.tolist()
        made, opened = library().frequent_strings_sketch, library().frequent_strings_sketch.deserialize
        for slot, begin, end in bounds(groups, runs.slots):
            old = held[slot]
            sketch = made(self.lg_size) if old is None else opened(old)
            for i in range(begin, end):
                sketch.update(texts[items[i]], weights[i])
            yield slot, sketch.serialize()

    def _merged(self, old: bytes, more: bytes) -> bytes:
        opened = library().frequent_strings_sketch.deserialize
        sketch = opened(old)
        sketch.merge(opened(more))
        merged: bytes = sketch.serialize()
        return merged


@dataclass(frozen=True)
class TopK(Result):
    """The most frequent values and their estimated counts, the most frequent one first.

    A value is among them only if it occurs for sure more often than the sketch's error, as in Spark.
    """

    part: FrequentItems
    k: int
    item: pa.DataType

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sketch."""
        return (self.part,)

    @property
    def kind(self) -> pa.DataType:
        """The type of the column, as Spark's ``approx_top_k`` has it."""
        pair = pa.struct([pa.field("item", self.item), pa.field("count", pa.int64(), nullable=False)])
        return pa.list_(pa.field("element", pair, nullable=False))

    def column(self, state: State, slots: Slots) -> pa.Array:
        """Never null."""
        sketches = library()
        opened, sure = sketches.frequent_strings_sketch.deserialize, sketches.frequent_items_error_type
        texts: list[str] = []
        counts: list[int] = []
        ends = [0]
        for old in state.values(self.part.name)[slots]:
            if old is not None:
                found = opened(old).get_frequent_items(sure.NO_FALSE_POSITIVES)
                # They come by falling count; of values with the same count, the one whose text is first is taken.
                least = found[min(self.k, len(found)) - 1][1] if found else 0
                best = sorted((-count, text) for text, count, _, _ in found if count >= least)[: self.k]
                texts += [text for _, text in best]
                counts += [-count for count, _ in best]
            ends.append(len(texts))
        pair = self.kind.value_type
        pairs = pa.StructArray.from_arrays(
            [_values(texts, self.item), pa.array(counts, pa.int64())], fields=[pair.field(0), pair.field(1)]
        )
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, type=self.kind)


def lg_size_for(items: int) -> int:
    """The logarithm of the size of the table that tracks so many items."""
    return max(3, math.ceil(math.log2(items / 0.75)))


def _texts(batch: Batch, at: int, rows: npt.NDArray[np.int64]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The different values of some rows as texts, and for each row the number of its one."""
    column = batch.column(at)
    kind = column.type
    column = pa.array(floats_of(column)[rows]) if is_float(kind) else column.take(pa.array(rows))
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    if _is_text(kind):
        first = np.empty(len(encoded.dictionary), np.int64)
        first[codes[::-1]] = rows[::-1]
        return batch.objects(at, first).tolist(), codes
    return encoded.dictionary.view(_plain(kind)).cast(_between(kind)).cast(pa.string()).to_pylist(), codes


def _values(texts: list[str], kind: pa.DataType) -> pa.Array:
    if _is_text(kind):
        return pa.array(texts, kind)
    return pa.array(texts, pa.string()).cast(_between(kind)).cast(_plain(kind)).view(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """What times are counted in."""
    if not is_time(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _between(kind: pa.DataType) -> pa.DataType:
    """The type that has a text which can be read back: for booleans, numbers."""
    return pa.int8() if pa.types.is_boolean(kind) else _plain(kind)
