"""Sketches over random rows, epochs, aborts, moves and partial rows.

As long as a key has few values, its sketches hold all of them, so the results are exact and the oracle is plain Python.
With many, results are compared with the truth within the error that the sketch promises.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from bedload.core.ids import Epoch, WorkerId
from bedload.operators import aggregates as agg
from bedload.store.columns import ColumnTable
from bedload.worker.operator import Context

CTX = Context("Trip", WorkerId(0), Epoch(0))
RANKS = [0.0, 0.25, 0.5, 0.75, 1.0]
KINDS = {
    pa.int32(): st.integers(-20, 20),
    pa.float64(): st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, -2.5, 1e300]),
    pa.string(): st.text("ab\U0001f697", max_size=2),
    pa.bool_(): st.booleans(),
}

Row = tuple[str, Any]


class Running:
    """Sketches of one column, in a table of three key groups."""

    def __init__(self, kind: pa.DataType, functions: dict[str, agg.Function]) -> None:
        self.schema = pa.schema([("key", pa.string()), ("x", kind)])
        self.logic = agg.Aggregates(functions, self.schema, [0], ["key"])
        self.table = self.empty()

    def empty(self) -> ColumnTable:
        return ColumnTable([pa.string()], self.logic.columns, 3)

    def take(self, keys: Any, values: Any, ahead: bool) -> None:
        # Sliced out of longer ones: columns of Spark's batches have offsets, too.
        columns = [
            pa.array([column[0], *column], kind).slice(1)
            for column, kind in zip((keys, values), self.schema.types, strict=True)
        ]
        groups = groups_of(columns[0])
        if ahead:
            partial = self.logic.partial(pa.RecordBatch.from_arrays(columns, schema=self.schema), at_most=1.0)
            assert partial is not None
            slots = self.table.locate([partial.column(0)], groups_of(partial.column(0)))
            self.logic.update_partial(self.table, slots, partial, CTX)
        else:
            batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            self.logic.update(self.table, self.table.locate(columns[:1], groups), batch, CTX)

    def move(self) -> None:
        """To another table, between epochs."""
        rows = self.table.extract(self.table.committed_slots())
        self.table = self.empty()
        if rows.num_rows:
            self.table.put(rows.columns[:1], groups_of(rows.column(0)), rows)

    def results(self) -> dict[str, dict[str, Any]]:
        slots = self.table.committed_slots()
        found = self.logic.result(self.table, slots, CTX)
        return {} if found is None else {row.pop("key"): row for row in found.to_pylist()}


def groups_of(keys: pa.Array) -> Any:
    return np.array(["abc".index(key) for key in keys.to_pylist()], np.int16)


def plain(value: Any) -> Any:
    """Equal for what is one value to Spark."""
    return ("nan" if value != value else value + 0.0) if isinstance(value, float) else value


def check_exactly(found: dict[str, dict[str, Any]], rows: list[Row]) -> None:
    assert set(found) == {key for key, _ in rows}
    for key, results in found.items():
        values = [plain(value) for k, value in rows if k == key and value is not None]
        counts = Counter(values)
        assert results["distinct"] == len(counts)
        top = {plain(pair["item"]): pair["count"] for pair in results["top"]}
        assert top == counts
        assert [pair["count"] for pair in results["top"]] == sorted(counts.values(), reverse=True)
        if "quantiles" in results:
            ordered = sorted(value for value in values if value != "nan")
            expected = [ordered[max(0, math.ceil(rank * len(ordered)) - 1)] for rank in RANKS] if ordered else None
            assert results["quantiles"] == expected


@st.composite
def histories(draw: st.DrawFn) -> tuple[pa.DataType, list[tuple[bool, list[tuple[bool, list[Row]]]]]]:
    """A type; then epochs: whether each commits, and its batches, each as rows or combined by key."""
    kind = draw(st.sampled_from(list(KINDS)))
    rows = st.lists(st.tuples(st.sampled_from("abc"), st.none() | KINDS[kind]), min_size=1, max_size=20)
    batches = st.lists(st.tuples(st.booleans(), rows), max_size=3)
    return kind, draw(st.lists(st.tuples(st.booleans(), batches), min_size=1, max_size=4))


@given(histories(), st.booleans())
def test_small_sketches_are_exact_over_epochs_aborts_moves_and_partial_rows(history, move):
    kind, epochs = history
    functions = {"distinct": agg.approx_distinct("x"), "top": agg.approx_top_k("x", 100)}
    if kind not in (pa.string(), pa.bool_()):
        functions["quantiles"] = agg.approx_quantile("x", RANKS)
    running = Running(kind, functions)
    committed: list[Row] = []
    for commits, batches in epochs:
        for ahead, rows in batches:
            running.take(*zip(*rows, strict=True), ahead)
        running.table.seal()
        if commits:
            running.table.commit()
            committed += [row for _, rows in batches for row in rows]
        else:
            running.table.abort()
        running.table.check()
        if move:
            running.move()
        check_exactly(running.results(), committed)


@settings(max_examples=25)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 4000)), min_size=1, max_size=8),
)
def test_large_sketches_stay_within_their_errors_and_an_abort_puts_them_back(seed, epochs):
    rse, rank_error, tracked = 0.05, 0.05, 64
    functions = {
        "distinct": agg.approx_distinct("x", rse=rse),
        "quantiles": agg.approx_quantile("x", RANKS, rank_error=rank_error),
        "top": agg.approx_top_k("x", 10, max_items_tracked=tracked),
    }
    running = Running(pa.int64(), functions)
    rng = np.random.default_rng(seed)
    kept: list[Any] = []
    for commits, ahead, count in epochs:
        values = np.where(rng.random(count) < 0.4, rng.integers(0, 3, count), rng.integers(0, 10**6, count))
        before = running.table.extract(running.table.committed_slots())
        running.take(["a"] * count, values, ahead)
        if commits:
            running.table.commit()
            kept.append(values)
        else:
            running.table.abort()
            assert running.table.extract(running.table.committed_slots()) == before
    if not kept:
        return
    values = np.sort(np.concatenate(kept))
    found = running.results()["a"]
    # Six standard deviations, and more than five: KLL's error is one of 99 %.
    assert abs(found["distinct"] - len(np.unique(values))) <= max(1, 6 * rse * len(np.unique(values)))
    low = np.searchsorted(values, found["quantiles"], "left") / len(values)
    high = np.searchsorted(values, found["quantiles"], "right") / len(values)
    for rank, at_least, at_most in zip(RANKS, low, high, strict=True):
        assert at_least - 2 * rank_error <= rank <= at_most + 2 * rank_error
    for pair in found["top"]:
        assert abs(pair["count"] - np.sum(values == pair["item"])) <= 2.7 / tracked * len(values)


@given(st.integers(0, 2**32), st.integers(1, 3000), st.sampled_from([pa.float64(), pa.int32()]))
@settings(max_examples=25)
def test_the_same_rows_give_the_same_partial_rows(seed, count, kind):
    functions = {
        "distinct": agg.approx_distinct("x"),
        "quantiles": agg.approx_quantile("x", 0.5, rank_error=0.1),
        "top": agg.approx_top_k("x", 2, max_items_tracked=8),
    }
    rng = np.random.default_rng(seed)
    keys = pa.array(rng.choice(list("abc"), count))
    values = pa.array((rng.standard_normal(count) * 1000).astype(kind.to_pandas_dtype()))
    rows = pa.RecordBatch.from_arrays([keys, values], names=["key", "x"])
    first, second = (Running(kind, functions).logic.partial(rows, at_most=1.0) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.serialize() == second.serialize()
