"""Sessions on arrays are Spark's own, and keys of aggregates expire when they should, whatever is killed or moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bedload as bl
from tests.spark.conftest import Sink
from tests.spark.faults import kill
from tests.spark.test_recovery_spark import supervised, upto
from tests.spark.test_time_spark import logged
from tests.spark.test_timers_spark import GAP, KEYS, ROWS, START, STEP, spark_sessions, with_keys

pytestmark = pytest.mark.spark

TTL = 3 * STEP


class ArraySessions(bl.VectorOperator):
    """Rows of a key less than a gap apart; all rows of a key in a batch are of one time."""

    first: int = bl.value(0)
    last: int = bl.value(0)
    n: int = bl.value(0)

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        rows = batch.by_key
        at, count = rows.numpy("at")[rows.offsets[:-1]], np.diff(rows.offsets)
        ends = (state["n"] > 0) & (at >= state["last"] + GAP)
        new = ends | (state["n"] == 0)
        ctx.timers.set(at + GAP)
        after = {
            "first": np.where(new, at, state["first"]),
            "last": at,
            "n": np.where(new, count, state["n"] + count),
        }
        return after, sessions(batch.keys.filter(ends), {name: values[ends] for name, values in state.items()})

    def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
        assert (timer.at == state["last"] + GAP).all()
        ctx.forget()
        return None, sessions(keys, state)


def sessions(keys: Any, state: Any) -> dict[str, Any]:
    return {"key": keys, "first": state["first"], "end": state["last"] + GAP, "n": state["n"]}


def stream(spark: SparkSession) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS, numPartitions=2, startTimestamp=START, advanceMillisPerBatch=STEP
    )
    return with_keys(source.load().withWatermark("timestamp", "1 second"))


def disturbed(cluster: bl.Cluster, running: Any, name: str) -> int:
    """Kills and moves; the last epoch that was seen."""
    upto(cluster, running, name, 4)
    kill(cluster.workers[0])
    reached = upto(cluster, running, name, 7)
    cluster.rescale(3, strategy="lazy").wait()
    reached = upto(cluster, running, name, reached + 2)
    cluster.move(keys=[1, 2], to=0, strategy="progressive").wait()
    cluster.rescale(2).wait()
    kill(cluster.workers[1])
    return upto(cluster, running, name, reached + 5)


def test_sessions_on_arrays_are_those_of_spark_through_kills_replays_and_moves(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(
            stream(spark), key="key", operator=ArraySessions, schema="key long, first long, end long, n long"
        )
        with supervised(cluster, out, sink, tmp_path / "spark") as running:
            last = disturbed(cluster, running, "ArraySessions")
    watermark = logged(tmp_path / "spark")[last].watermark
    made = [row for epoch, rows in sink.epochs.items() if epoch <= last for row in rows]
    assert len(made) == len(set(made)), "a session came out twice"
    assert set(made) == spark_sessions(spark, last + 1, watermark)
    assert len(made) > KEYS


@pytest.mark.parametrize("clock", ["event", "processing"])
def test_idle_keys_of_an_aggregate_expire_through_kills_replays_and_moves(
    spark: SparkSession, tmp_path: Path, clock: Any
) -> None:
    millis = TTL if clock == "event" else 200  # a key is silent for five batches, however fast they are
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.aggregate(
            stream(spark), key="key", n=bl.agg.count(), name="idle", ttl=f"{millis} milliseconds", clock=clock
        )
        with supervised(cluster, out, sink, tmp_path / "spark") as running:
            last = disturbed(cluster, running, "idle")
    times = logged(tmp_path / "spark")
    state: dict[int, tuple[int, int]] = {}
    column, gone = "bedload_event_ttl" if clock == "event" else "bedload_ttl", 0
    for epoch in range(last + 1):
        now = times[epoch].watermark if clock == "event" else times[epoch].processing
        gone -= len(state)
        state = {key: (n, at) for key, (n, at) in state.items() if not at or at > now}
        gone += len(state)
        if now:
            state = {key: (n, at or now + millis) for key, (n, at) in state.items()}
        counted = rows_of(spark, epoch)
        for key, n in counted.items():
            state[key] = state.get(key, (0, 0))[0] + n, now + millis if now else 0
        assert sorted(sink.epochs.get(epoch, [])) == sorted((key, state[key][0]) for key in counted), epoch
    assert gone < 0, "nothing ever expired"
    table = spark.read.format("bedload").option("batchId", last).load(str(tmp_path / "bedload")).collect()
    assert {row["key"]: (row["count()"], row[column]) for row in table} == state


def rows_of(spark: SparkSession, epoch: int) -> dict[int, int]:
    at = F.timestamp_millis(F.lit(START) + F.expr(f"value div {ROWS}") * STEP)
    values = (
        spark.range(epoch * ROWS, (epoch + 1) * ROWS).select(F.col("id").alias("value")).withColumn("timestamp", at)
    )
    return {row[0]: row[1] for row in with_keys(values).groupBy("key").count().collect()}
