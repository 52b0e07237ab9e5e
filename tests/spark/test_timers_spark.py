"""Sessions with timers are those of Spark's own session windows, whatever is killed, replayed or moved."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import bedload as bl
from tests.spark.conftest import Sink
from tests.spark.faults import kill
from tests.spark.test_beat_spark import FAST, Files, going, reach, shown
from tests.spark.test_recovery_spark import supervised, upto
from tests.spark.test_time_spark import logged

pytestmark = pytest.mark.spark

START = 1_700_000_000_000
STEP = 10_000
"""Milliseconds between the rows of one batch and those of the next."""
ROWS = 100
KEYS = 40
GAP = 25_000


class Sessions(bl.Operator):
    """Rows of a key less than a gap apart."""

    first: int = bl.value(0)
    last: int = bl.value(0)
    n: int = bl.value(0)
    total: dict[str, int] = bl.map()
    """A container, so that rows of it do not rest."""

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> Iterable[Any]:
        for row in rows:
            if self.n and row.at >= self.last + GAP:
                yield self._ends(key)
                self.n = 0
            if not self.n:
                self.first = row.at
            self.last, self.n = row.at, self.n + 1
            self.total["n"] = self.n
        ctx.timers.set(self.last + GAP)
        ctx.timers.processing.set(ctx.now + 1, "tick")

    def on_timer(self, key: Any, timer: bl.Timer, ctx: bl.Context) -> Iterable[Any]:
        if timer.name == "tick":
            assert timer.at <= ctx.now
            return
        assert self.total == {"n": self.n}
        yield self._ends(key)
        ctx.forget()

    def _ends(self, key: Any) -> tuple[Any, ...]:
        return key, self.first, self.last + GAP, self.n


def with_keys(values: DataFrame) -> DataFrame:
    """A key is silent for some batches, and then is not."""
    batch = F.expr(f"value div {ROWS}")
    key = (F.col("value") % KEYS).alias("key")
    heard = (batch + F.col("value") % KEYS) % 9 < 4
    return values.where(heard).select(key, (F.lit(START) + batch * STEP).alias("at"), F.col("timestamp"))


def spark_sessions(spark: SparkSession, batches: int, watermark: int) -> set[tuple[Any, ...]]:
    """The sessions that have ended, as Spark's batch engine finds them."""
    at = F.timestamp_millis(F.lit(START) + F.expr(f"value div {ROWS}") * STEP)
    rows = with_keys(spark.range(batches * ROWS).select(F.col("id").alias("value")).withColumn("timestamp", at))
    window = F.session_window("timestamp", f"{GAP} milliseconds")
    ends = F.unix_millis("session_window.end")
    found = rows.groupBy("key", window).count().select("key", F.unix_millis("session_window.start"), ends, "count")
    # SUBTLE: here, since Spark would push a condition on the end below the sessions, and so cut them off there.
    return {tuple(row) for row in found.collect() if row[2] <= watermark}


def test_sessions_are_those_of_spark_through_kills_replays_and_moves(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS, numPartitions=2, startTimestamp=START, advanceMillisPerBatch=STEP
    )
    rows = with_keys(source.load().withWatermark("timestamp", "1 second"))
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(rows, key="key", operator=Sessions, schema="key long, first long, end long, n long")
        with supervised(cluster, out, sink, tmp_path / "spark") as running:
            upto(cluster, running, "Sessions", 5)
            kill(cluster.workers[0])
            reached = upto(cluster, running, "Sessions", 8)
            cluster.rescale(3, strategy="lazy").wait()
            reached = upto(cluster, running, "Sessions", reached + 3)
            cluster.move(keys=[1, 2], to=0, strategy="progressive").wait()
            cluster.rescale(2).wait()
            kill(cluster.workers[1])
            last = upto(cluster, running, "Sessions", reached + 6)
    watermark = logged(tmp_path / "spark")[last].watermark
    made = [row for epoch, rows_ in sink.epochs.items() if epoch <= last for row in rows_]
    assert len(made) == len(set(made)), "a session came out twice"
    assert set(made) == spark_sessions(spark, last + 1, watermark)
    assert len(made) > KEYS


class Ticks(bl.Operator):
    """Each key has a timer that is due in the next epoch, whichever that is."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        ctx.timers.processing.set(ctx.now + 1)

    def on_timer(self, key: Any, timer: bl.Timer, ctx: bl.Context) -> tuple[Any, ...]:
        assert timer.at <= ctx.now
        self.n += 1
        ctx.timers.processing.set(ctx.now + 1)
        return key, self.n


def test_timers_fire_once_while_the_source_is_quiet_and_the_cluster_grows(spark: SparkSession, tmp_path: Path) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()
    files.put()
    rows = files.read().select(F.explode(F.sequence(F.lit(0), F.lit(KEYS - 1))).alias("key"))
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(rows, key="key", operator=Ticks, schema="key long, n long", beat=FAST)
        with going(out, sink, tmp_path / "spark") as query:
            reach(lambda: len(sink.epochs) > 2, query, "epochs without rows")
            cluster.rescale(4, strategy="lazy").wait()
            reached = max(sink.epochs)
            reach(lambda: max(sink.epochs) > reached + 2, query, "epochs of four workers")
        epochs = shown("Ticks", cluster)
    assert [row["rows"] for row in epochs] == [KEYS] + [0] * (len(epochs) - 1), "only beats run"
    assert len([keys for keys in epochs[-1]["keys"].values() if keys]) == 4
    assert {epoch: sorted(rows_) for epoch, rows_ in sink.epochs.items()} == {
        epoch: [(key, epoch) for key in range(KEYS) if epoch] for epoch in range(len(sink.epochs))
    }


def test_timers_are_state_that_is_read_live_and_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS, numPartitions=2, startTimestamp=START, advanceMillisPerBatch=STEP
    )
    rows = with_keys(source.load().withWatermark("timestamp", "1 second"))
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(rows, key="key", operator=Sessions, schema="key long, first long, end long, n long")
        with supervised(cluster, out, Sink(), tmp_path / "spark") as running:
            upto(cluster, running, "Sessions", 3)
        cluster.checkpoint()
        live = [cluster.state("Sessions").get(key) for key in range(KEYS)]
    source = spark.read.format("bedload")
    table = source.load(str(tmp_path / "bedload")).collect()
    timers = source.option("readRegisteredTimers", True).load(str(tmp_path / "bedload"))
    ends = {row.key: row.timer_at for row in timers.where("timer_name = '' AND timer_clock = 'event'").collect()}
    assert ends == {row.key: row.last + GAP for row in table}
    for state in (*(it for it in live if it is not None), *(row.asDict() for row in table)):
        timers = {(it["name"], it["clock"]): it["at"] for it in map(_as_dict, state["bedload_timers"])}
        assert timers["", "event"] == state["last"] + GAP
    assert len(table) > KEYS // 4


def _as_dict(timer: Any) -> dict[str, Any]:
    return dict(timer.asDict() if isinstance(timer, Row) else timer._asdict() if isinstance(timer, tuple) else timer)
