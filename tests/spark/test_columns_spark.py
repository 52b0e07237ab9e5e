"""Aggregates and vector operators on real queries, exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bedload as bl
from bedload import errors
from tests.patience import PATIENCE
from tests.spark.conftest import Sink, committed, fail, numbers, run

pytestmark = pytest.mark.spark


def aggregated(cluster: bl.Cluster, df: DataFrame, name: str, **options: Any) -> DataFrame:
    return cluster.aggregate(
        df,
        key="key",
        name=name,
        n=bl.agg.count(),
        total=bl.agg.sum("value"),
        mean=bl.agg.mean("value"),
        low=bl.agg.min("value"),
        high=bl.agg.max("value"),
        **options,
    )


def expected(values: range, keys: int) -> list[tuple[Any, ...]]:
    rows = []
    for key in range(keys):
        mine = [v for v in values if v % keys == key]
        if mine:
            rows.append((key, len(mine), sum(mine), sum(mine) / len(mine), min(mine), max(mine)))
    return rows


@pytest.mark.parametrize("keys", [7, 5000])
def test_aggregates_give_the_changed_keys_of_each_epoch(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, keys: int
) -> None:
    """Few keys are combined in the feeder before they are sent; many are not."""
    df = numbers(spark, 2000, 3).selectExpr(f"value % {keys} as key", "value", "value as other")
    sink = Sink()
    run(aggregated(cluster, df, f"Agg{keys}"), sink, tmp_path, 3)
    for epoch in range(3):
        seen = {v % keys for v in range(2000 * epoch, 2000 * (epoch + 1))}
        want = [row for row in expected(range(2000 * (epoch + 1)), keys) if row[0] in seen]
        assert sorted(sink.epochs[epoch]) == want


def test_aggregates_equal_sparks_own_streaming_aggregation(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark, 500, 2).selectExpr(
        "concat('k', value % 13) as a",
        "case when value % 5 = 0 then null else value % 3 end as b",
        "case when value % 4 = 0 then null else cast(value as double) / 7 end as x",
    )
    ours = cluster.aggregate(
        df,
        key=["a", "b"],
        name="Same",
        n=bl.agg.count(),
        c=bl.agg.count("x"),
        s=bl.agg.sum("x"),
        m=bl.agg.mean("x"),
        sd=bl.agg.std("x"),
        lo=bl.agg.min("x"),
    )
    theirs = df.groupBy("a", "b").agg(
        F.count("*").alias("n"),
        F.count("x").alias("c"),
        F.sum("x").alias("s"),
        F.avg("x").alias("m"),
        F.stddev_samp("x").alias("sd"),
        F.min("x").alias("lo"),
    )
    assert [(f.name, f.dataType) for f in ours.schema] == [(f.name, f.dataType) for f in theirs.schema]
    mine, spark_s = Sink(), Sink()
    run(ours, mine, tmp_path / "ours", 3)

    def stop_after(batch: DataFrame, epoch: int) -> None:
        if epoch >= 3:
            raise RuntimeError("_EnoughError")
        spark_s(batch, epoch)

    query = (
        theirs.writeStream.outputMode("update").foreachBatch(stop_after)
        .option("checkpointLocation", str(tmp_path / "theirs")).start()
    )  # fmt: skip
    with pytest.raises(Exception, match="_EnoughError"):
        query.awaitTermination(PATIENCE)
    for epoch in range(3):
        left = {row[:2]: row[2:] for row in mine.epochs[epoch]}
        right = {row[:2]: row[2:] for row in spark_s.epochs[epoch]}
        assert left.keys() == right.keys()
        for key, values in left.items():
            assert values == pytest.approx(right[key], nan_ok=True), key


@pytest.mark.parametrize("keys", [9, 3000])
def test_a_retried_task_a_second_action_and_a_replay_count_once(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, keys: int
) -> None:
    marker = tmp_path / "failed"

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for begin in range(0, batch.num_rows, 50):
                yield batch.slice(begin, 50)
            task = TaskContext.get()
            assert task is not None
            if task.partitionId() == 1 and not marker.exists():
                marker.touch()
                raise RuntimeError("a task fails after its rows were sent")

    name = f"Faults{keys}"
    df = numbers(spark, 1500, 3).selectExpr(f"value % {keys} as key", "value").mapInArrow(
        fails_once, "key long, value long"
    )  # fmt: skip
    out = aggregated(cluster, df, name)
    sink = Sink()
    tries: list[int] = []

    def twice(batch: DataFrame, epoch: int) -> None:
        first = sorted(map(tuple, batch.collect()))
        assert sorted(map(tuple, batch.collect())) == first
        tries.append(epoch)
        if tries == [0, 1]:
            raise OSError("the sink failed after the epoch was sealed")
        sink.epochs[epoch] = first

    assert "the sink failed" in fail(out, twice, tmp_path / "c")
    run(out, Sink(twice), tmp_path / "c", 3)
    assert marker.exists()
    assert tries == [0, 1, 1, 2]
    seen = {v % keys for v in range(3000, 4500)}
    assert sorted(sink.epochs[2]) == [row for row in expected(range(4500), keys) if row[0] in seen]
    committed(cluster, name, 2)
    answer = cluster.state(name).get(2)
    assert answer is not None
    assert answer.epoch == 2
    assert sum(v == len([v for v in range(4500) if v % keys == 2]) for v in answer.values())


class Speeds(bl.VectorOperator):
    n: int = bl.value(0)
    top: float | None = bl.value(None)
    last: str = bl.value("")

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
        count = len(state["n"])
        n = state["n"] + np.bincount(batch.index, minlength=count)
        best = np.full(count, -np.inf)
        np.maximum.at(best, batch.index, batch.numpy("value").astype(float))
        old = np.asarray(state["top"], dtype=float)
        return {"n": n, "top": np.fmax(best, old), "last": [f"epoch-{ctx.epoch}"] * count}, {
            "key": batch.keys,
            "n": n,
        }

    def result(self, keys: pa.Array, state: Any, ctx: bl.Context) -> Any:
        return {"key": keys, "n": -state["n"]}


def test_a_vector_operator_sees_columns_and_keeps_columns(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark, 300, 1).selectExpr("value % 6 as key", "value")
    out = cluster.apply(df, key="key", operator=Speeds, schema="key long, n long")
    sink = Sink()
    run(out, sink, tmp_path, 2)
    for epoch, rows in sink.epochs.items():
        assert sorted(rows) == sorted(
            [(k, 50 * (epoch + 1)) for k in range(6)] + [(k, -50 * (epoch + 1)) for k in range(6)]
        )
    committed(cluster, "Speeds", 1)
    answer = cluster.state(Speeds).get(5)
    assert answer is not None
    assert dict(answer) == {"n": 100, "top": 599.0, "last": "epoch-1"}


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        ("length", ["state column 'n'", "3 values for"]),
        ("name", ["'m', which is not declared"]),
        ("type", ["column 'n' does not fit int64"]),
        ("raises", ["OperatorFailed", "epoch 0", "bad batch"]),
        ("in place", ["OperatorFailed", "read-only", "The new state is what the call returns"]),
        ("bent", ["OutputError", "output column 'n' does not fit the schema: 1.5 (float) is not a bigint"]),
        ("output", ["OutputError", "columns key, n"]),
    ],
)
def test_what_a_vector_operator_does_wrong_is_said_with_the_column(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, returns: str, says: list[str]
) -> None:
    class Wrong(bl.VectorOperator):
        n: int = bl.value(0)

        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
            if returns == "raises":
                raise ValueError("bad batch")
            if returns == "in place":
                state["n"] += 1
                return None
            if returns == "bent":
                return None, {"key": batch.keys, "n": np.full(len(batch.keys), 1.5)}
            if returns == "output":
                return None, {"key": batch.keys}
            return {
                "length": {"n": [1, 2, 3]},
                "name": {"m": state["n"]},
                "type": {"n": ["x"] * len(state["n"])},
            }[returns]

    df = numbers(spark, 300, 1).selectExpr("value % 50 as key", "value")
    out = cluster.apply(df, key="key", operator=Wrong, schema="key long, n long", fresh=True)
    error = fail(out, Sink(), tmp_path)
    for text in ["Wrong", *says]:
        assert text in error


def test_what_is_wrong_with_an_aggregate_is_said_at_once(spark: SparkSession, cluster: bl.Cluster) -> None:
    df = numbers(spark).selectExpr("value as key", "value", "cast(value as string) as text")
    with pytest.raises(errors.DefinitionError, match="at least one"):
        cluster.aggregate(df, key="key")
    with pytest.raises(errors.SchemaError, match=r"the column .speed. is not in the input"):
        cluster.aggregate(df, key="key", x=bl.agg.sum("speed"))
    with pytest.raises(errors.SchemaError, match="must be a number"):
        cluster.aggregate(df, key="key", total=bl.agg.sum("text"))


def test_a_second_aggregate_needs_a_name(spark: SparkSession) -> None:
    df = numbers(spark).selectExpr("value as key", "value")
    with bl.attach(spark, workers=1) as cluster:
        for _ in range(2):  # applied again it is the same one
            cluster.aggregate(df, key="key", n=bl.agg.count())
        with pytest.raises(
            errors.DefinitionError, match=r"n=count\(\) by key has no name .* s=sum\('value'\) by key needs"
        ):
            cluster.aggregate(df, key="key", s=bl.agg.sum("value"))
        cluster.aggregate(df, key="key", name="sums", s=bl.agg.sum("value"))
