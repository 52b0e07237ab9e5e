"""The same input through Bedload and through Spark's own ``transformWithState``: timers and TTL do the same.

Spark's side runs as it is, without failures; Bedload's through kills, replays and moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import bedload as bl
from bedload.core.epoch import EpochTime
from tests.spark.apps import eventually
from tests.spark.conftest import Sink, run
from tests.spark.faults import kill
from tests.spark.test_recovery_spark import supervised, upto
from tests.spark.test_time_spark import logged
from tests.spark.test_timers_spark import GAP, KEYS, ROWS, START, STEP, Sessions, with_keys

pytestmark = pytest.mark.spark

SESSION = "key long, first long, end long, n long"
TTL = 3_000
"""Of the counts. Triggers are a second apart, and keys are silent for five of nine batches: so some counts expire."""
TRIGGER = "1 second"


class SparkSessions(StatefulProcessor):
    """What :class:`Sessions` does, as Spark's documentation would write it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", "first long, last long, n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        first, last, n = self._session.get() or (0, 0, 0)
        for at in sorted(row.at for row in rows):
            if n and at >= last + GAP:
                yield self._ended(key, first, last, n)
                n = 0
            if not n:
                first = at
            last, n = at, n + 1
        self._session.update((first, last, n))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(last + GAP)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        session = self._session.get()
        assert session is not None
        yield self._ended(key, *session)
        self._session.clear()

    def close(self) -> None:
        """Nothing to release."""

    @staticmethod
    def _ended(key: Any, first: int, last: int, n: int) -> Row:
        return Row(key=key[0], first=first, end=last + GAP, n=n)


class SparkCounts(StatefulProcessor):
    """Rows of a key since there were none for a while."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", "n long", TTL)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        state = self._n.get()
        n = (0 if state is None else state[0]) + sum(1 for _ in rows)
        self._n.update((n,))
        yield Row(key=key[0], n=n)

    def close(self) -> None:
        """Nothing to release."""


class Counts(bl.Operator):
    """The same."""

    n: int = bl.value(0, ttl=f"{TTL} milliseconds")

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> Iterable[Any]:
        self.n += len(rows)
        yield key, self.n


class ArrayCounts(bl.VectorOperator):
    """The same."""

    n: int = bl.value(0, ttl=f"{TTL} milliseconds")

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        n = state["n"] + np.bincount(batch.index, minlength=len(state["n"]))
        return {"n": n}, {"key": batch.keys, "n": n}


@pytest.fixture(autouse=True)
def _rocksdb(spark: SparkSession) -> Iterator[None]:
    """It is what ``transformWithState`` needs."""
    setting = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    assert before is not None
    spark.conf.set(setting, before)


def stream(spark: SparkSession) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS, numPartitions=2, startTimestamp=START, advanceMillisPerBatch=STEP
    )
    return with_keys(source.load().withWatermark("timestamp", "1 second"))


def test_sessions_with_timers_are_those_of_transform_with_state(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(stream(spark), key="key", operator=Sessions, schema=SESSION)
        with supervised(cluster, out, sink, tmp_path / "ours") as running:
            upto(cluster, running, "Sessions", 3)
            kill(cluster.workers[0])
            reached = upto(cluster, running, "Sessions", 6)
            cluster.rescale(3, strategy="lazy").wait()
            last = upto(cluster, running, "Sessions", reached + 4)
    theirs = Sink()
    rows = stream(spark).groupBy("key")
    sessions = rows.transformWithState(SparkSessions(), SESSION, "Append", "EventTime")
    run(sessions, theirs, tmp_path / "theirs", last + 1)
    # What ends at the last watermark or after it may come with the next batch.
    until = min(logged(tmp_path / place)[last].watermark for place in ("ours", "theirs"))
    ours, spark_s = ([row for row in it.rows if row[2] < until] for it in (sink, theirs))
    assert len(ours) == len(set(ours)), "a session came out twice"
    assert set(ours) == set(spark_s)
    assert len(ours) > KEYS // 2


def counts(times: dict[int, EpochTime], epochs: int) -> tuple[list[dict[int, int]], int]:
    """What each epoch counts for its keys, at the times that Spark logged; and how many counts had expired."""
    n, until, expired, found = dict[int, int](), dict[int, int](), 0, []
    for epoch in range(epochs):
        now, seen = times[epoch].processing, {}
        for value in range(epoch * ROWS, (epoch + 1) * ROWS):
            key = value % KEYS
            if (epoch + value % KEYS) % 9 >= 4:
                continue
            if until.get(key, now + 1) <= now:
                n[key], expired = 0, expired + 1
            n[key], until[key] = n.get(key, 0) + 1, now + TTL
            seen[key] = n[key]
        found.append(seen)
    return found, expired


def check_counts(sink: Sink, place: Path, epochs: int) -> None:
    """The last count of each key and epoch is the right one."""
    wanted, expired = counts(logged(place), epochs)
    for epoch, right in enumerate(wanted):
        made: dict[int, int] = {}
        for key, n in sink.epochs[epoch]:
            made[key] = max(n, made.get(key, 0))
        assert made == right, f"epoch {epoch}"
    assert expired, "nothing has expired: the test says nothing"


EPOCHS = 11


@pytest.mark.parametrize("operator", [Counts, ArrayCounts])
def test_counts_with_a_ttl_are_right_at_the_logged_times(spark: SparkSession, tmp_path: Path, operator: Any) -> None:
    sink, name = Sink(), operator.__name__
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(stream(spark), key="key", operator=operator, schema="key long, n long")
        with supervised(cluster, out, sink, tmp_path / "ours", TRIGGER) as running:
            reached = upto(cluster, running, name, 3)
            kill(cluster.workers[0])
            cluster.rescale(3, strategy="lazy").wait()
            last = upto(cluster, running, name, max(reached + 4, EPOCHS))
    check_counts(sink, tmp_path / "ours", last + 1)


def test_counts_of_transform_with_state_are_right_by_the_same_rule(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    rows = stream(spark).groupBy("key")
    out = rows.transformWithState(SparkCounts(), "key long, n long", "Update", "ProcessingTime")
    place = tmp_path / "theirs"
    query = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(place))
    running = query.outputMode("update").trigger(processingTime=TRIGGER).start()
    try:
        eventually(lambda: len(sink.epochs) > EPOCHS or not running.isActive, "the query has its epochs")
        assert running.exception() is None
    finally:
        running.stop()
    check_counts(sink, place, EPOCHS)
