"""Approximate aggregates against exact results, against Spark's own sketches, and in a running query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

import bedload as bl
from bedload.core.ids import Epoch, WorkerId
from bedload.operators import aggregates as agg
from bedload.store.columns import ColumnTable
from bedload.worker.operator import Context
from tests.spark.conftest import Sink, committed, numbers, run

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

CTX = Context("Trip", WorkerId(0), Epoch(0))
ROWS, KEYS = 6000, 3


def _rows(kind: pa.DataType) -> pa.Table:
    """Keys a, b and c with thousands, hundreds and a dozen different values, and some nulls; d has only nulls."""
    rng = np.random.default_rng(5)
    keys = rng.choice(["a", "b", "c"], ROWS, p=[0.7, 0.2, 0.1])
    spread = np.where(keys == "a", 5000, np.where(keys == "b", 300, 12))
    whole = np.minimum(rng.integers(0, 2**31, ROWS) % spread, rng.integers(0, 2**31, ROWS) % spread)
    column = pa.array(whole)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind):
        column = column.cast(kind)
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.decimal128(19, 0)).cast(kind)
    elif pa.types.is_boolean(kind):
        column = pa.array(whole % 2 == 0)
    else:
        column = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
    gone = rng.random(ROWS) < 0.1
    values = [None if null else value for null, value in zip(gone, column.to_pylist(), strict=True)]
    return pa.table({"key": pa.array([*keys, "d"]), "x": pa.array([*values, None], kind)})


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows, schema=from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))


def _ours(rows: pa.Table, functions: dict[str, agg.Function], ahead: bool) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Results, and the state."""
    logic = agg.Aggregates(functions, rows.schema, [0], ["key"])
    table = ColumnTable([pa.string()], logic.columns, 1)
    for batch in rows.to_batches(max_chunksize=1500):
        groups = np.zeros(batch.num_rows, np.int16)
        if ahead:
            partial = logic.partial(batch, at_most=1.0)
            assert partial is not None
            slots = table.locate([partial.column(0)], groups[: partial.num_rows])
            logic.update_partial(table, slots, partial, CTX)
        else:
            logic.update(table, table.locate([batch.column(0)], groups), batch, CTX)
    result = logic.result(table, table.changed(), CTX)
    assert result is not None
    table.commit()
    return result, table.extract(table.committed_slots())


@pytest.mark.parametrize("ahead", [False, True], ids=["rows", "partial rows"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.int32(),
        pa.float64(),
        pa.string(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.timestamp("us"),
        pa.decimal128(7, 2),
    ],
    ids=str,
)
def test_distinct_counts_and_frequent_values_are_as_close_as_sparks(
    spark: SparkSession, kind: pa.DataType, ahead: bool
) -> None:
    rows = _rows(kind)
    theirs = (
        _frame(spark, rows)
        .groupBy("key")
        .agg(
            F.approx_count_distinct("x", 0.05).alias("n"),
            F.expr("approx_top_k(x, 4, 1000) filter (where x is not null)").alias("top"),
            F.countDistinct("x").alias("exactly"),
        )
    )
    ours, _ = _ours(
        rows, {"n": agg.approx_distinct("x"), "top": agg.approx_top_k("x", 4, max_items_tracked=1000)}, ahead
    )
    assert ours.schema == to_arrow_schema(theirs.drop("exactly").schema, timezone="UTC")
    found = {row["key"]: row for row in ours.to_pylist()}
    wanted = {row["key"]: row for row in theirs.toArrow().to_pylist()}
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        # The error is the standard deviation; Spark's own estimate may be off by as much, to the other side.
        assert found[key]["n"] == pytest.approx(row["exactly"], rel=3 * 0.05)
        assert found[key]["n"] == pytest.approx(row["n"], rel=6 * 0.05)
    for key in "bcd":  # a has more values than are tracked
        counts = [pair["count"] for pair in found[key]["top"]]
        assert counts == [pair["count"] for pair in wanted[key]["top"]]
        exact = [value for name, value in zip(*(c.to_pylist() for c in rows.columns), strict=True) if name == key]
        assert counts == [exact.count(pair["item"]) for pair in found[key]["top"]]


@pytest.mark.parametrize("ahead", [False, True], ids=["rows", "partial rows"])
def test_quantiles_are_within_the_error_of_the_exact_ones(spark: SparkSession, ahead: bool) -> None:
    rows, ranks, error = _rows(pa.float64()), [0.0, 0.1, 0.5, 0.9, 1.0], 0.02
    around = [max(0.0, min(1.0, rank + side * 2 * error)) for side in (-1, 1) for rank in ranks]
    exactly = F.percentile("x", F.array(*(F.lit(rank) for rank in around)))
    theirs = (
        _frame(spark, rows)
        .groupBy("key")
        .agg(F.percentile_approx("x", 0.5).alias("median"), F.percentile_approx("x", ranks).alias("several"))
    )
    functions = {
        "median": agg.approx_quantile("x", 0.5, rank_error=error),
        "several": agg.approx_quantile("x", ranks, rank_error=error),
    }
    ours, _ = _ours(rows, functions, ahead)
    assert ours.schema == to_arrow_schema(theirs.schema, timezone="UTC")
    bounds = {row.key: row.bounds for row in _frame(spark, rows).groupBy("key").agg(exactly.alias("bounds")).collect()}
    for row in ours.to_pylist():
        if row["key"] == "d":
            assert (row["median"], row["several"]) == (None, None)
            continue
        low, high = bounds[row["key"]][: len(ranks)], bounds[row["key"]][len(ranks) :]
        for at_least, found, at_most in zip(low, row["several"], high, strict=True):
            # Spark goes half way between two values, where a sketch gives one of them.
            assert np.floor(at_least) <= found <= np.ceil(at_most)
        assert row["median"] == row["several"][2]


def test_sparks_own_functions_read_the_state(spark: SparkSession) -> None:
    rows = _rows(pa.float64())
    functions = {"n": agg.approx_distinct("x"), "median": agg.approx_quantile("x", 0.5)}
    ours, state = _ours(rows, functions, ahead=True)
    frame = spark.createDataFrame(pa.Table.from_batches([state])).where("`hll(x, 9)` is not null")
    read = frame.selectExpr(
        "key0", "hll_sketch_estimate(`hll(x, 9)`) as n", "kll_sketch_get_quantile_double(`kll(x, 269)`, 0.5D) as median"
    ).collect()
    found = {row["key"]: row for row in ours.to_pylist()}
    assert {row.key0: (row.n, row.median) for row in read} == {
        key: (found[key]["n"], found[key]["median"]) for key in "abc"
    }
    # And Spark's own sketch of the values' hashes counts what ours counts.
    hashed = _frame(spark, rows).where("key = 'a'").selectExpr("hll_sketch_estimate(hll_sketch_agg(xxhash64(x), 9)) n")
    (theirs,) = hashed.collect()
    unmerged, _ = _ours(rows, functions, ahead=False)
    (mine,) = [row["n"] for row in unmerged.to_pylist() if row["key"] == "a"]
    assert theirs.n == pytest.approx(mine, rel=0.05)


def test_sketches_in_a_running_query_whose_batches_are_read_twice(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    """The second read runs the feeders again, which must send what they sent before, although KLL flips coins."""
    df = numbers(spark, ROWS, 2).selectExpr(
        f"value % {KEYS} as key",
        "cast(value as double) as x",
        "if(value % 2 = 0, 'even', string(value)) as s",
    )
    out = cluster.aggregate(
        df,
        key="key",
        name="Sketches",
        rows=bl.agg.count(),
        n=bl.agg.approx_distinct("x"),
        median=bl.agg.approx_quantile("x", 0.5),
        ends=bl.agg.approx_quantile("x", [0.0, 1.0]),
        top=bl.agg.approx_top_k("s", 1),
    )
    epochs: dict[int, list[list[Any]]] = {}

    def twice(batch: DataFrame, epoch: int) -> None:
        epochs[epoch] = [sorted(tuple(row) for row in batch.collect()) for _ in range(2)]

    run(out, Sink(twice), tmp_path, 3)
    assert sorted(epochs) == [0, 1, 2]
    for epoch, (first, second) in epochs.items():
        assert first == second
        total = (epoch + 1) * ROWS
        assert [row[0] for row in first] == list(range(KEYS))
        for key, rows, n, median, ends, top in first:
            assert rows == total // KEYS
            assert n == pytest.approx(rows, rel=4 * 0.05)
            assert median == pytest.approx(total / 2, abs=0.02 * total)
            assert ends == [key, total - KEYS + key]
            assert [pair.item for pair in top] == ["even"]
            assert top[0]["count"] == pytest.approx(rows / 2, abs=0.0069 * rows)
    committed(cluster, "Sketches", 1)
    state = cluster.state("Sketches").get(0)
    assert state is not None
    assert {name: type(value) for name, value in state.items()} == {
        "count()": int,
        "hll(x, 9)": bytes,
        "kll(x, 269)": bytes,
        "frequent_items(s, 9)": bytes,
    }
