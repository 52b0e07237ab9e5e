"""A processor of Spark's on Bedload gives what it gives on Spark, whatever is killed, replayed or moved."""

from __future__ import annotations

import doctest
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import bedload as bl
from bedload.spark.attachment import records_per_batch
from tests.spark.apps import eventually
from tests.spark.conftest import Sink
from tests.spark.faults import kill
from tests.spark.test_recovery_spark import supervised, upto

pytestmark = pytest.mark.spark

START = 1_700_000_000_000
STEP = 10_000
ROWS, KEYS = 60, 20
OUT = "key long, kind string, n long, recent array<long>, seen array<string>, at long"


class Visits(StatefulProcessor):
    """A value, a list, a map and event-time timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long, last timestamp")
        self.recent = handle.getListState("recent", "value long")
        self.seen = handle.getMapState("seen", "rest int", "times long, name string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n, last = self.total.get() or (0, None)
        for row in sorted(rows, key=lambda it: it.value):
            n, last = n + 1, row.timestamp
            self.recent.appendValue((row.value,))
            rest = (row.value % 3,)
            found = self.seen.getValue(rest)
            self.seen.updateValue(rest, ((found.times if found else 0) + 1, f"rest {rest[0]}"))
        self.total.update((n, last))
        kept = list(self.recent.get())[-5:]
        self.recent.put(kept)
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 15_000)
        if n % 7 == 0:
            for at in list(self.handle.listTimers()):
                self.handle.deleteTimer(at)
        yield self._row(key[0], "rows", n, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n = (self.total.get() or (0,))[0]
        if n > 25:
            self.total.clear()
            self.recent.clear()
            self.seen.removeKey((0,))
        yield self._row(key.key, "timer", n, expiredTimerInfo.getExpiryTimeInMs())

    def _row(self, key: int, kind: str, n: int, at: int) -> Row:
        recent = [value for (value,) in self.recent.get()]
        seen = sorted(f"{rest} {times} {name}" for (rest,), (times, name) in self.seen.iterator())
        return Row(at=at, key=key, kind=kind, n=n, recent=recent, seen=seen)


def visits(spark: SparkSession) -> DataFrame:
    """Keys are silent for some batches."""
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS, numPartitions=2, startTimestamp=START, advanceMillisPerBatch=STEP
    )
    heard = (F.expr(f"value div {ROWS}") + F.col("value") % KEYS) % 5 < 3
    rows = source.load().withWatermark("timestamp", "1 second").where(heard)
    return rows.select((F.col("value") % KEYS).alias("key"), "value", "timestamp")


@pytest.fixture
def rocks(spark: SparkSession) -> Iterator[None]:
    """The state store that Spark asks for."""
    name = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(name)
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.set(name, before)


def on_spark(spark: SparkSession, location: Path, last: int) -> Sink:
    """Spark's own run, up to a batch."""
    sink = Sink()
    out = visits(spark).groupBy("key").transformWithState(Visits(), OUT, "Update", "EventTime")
    query = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(location)).start()
    try:
        eventually(
            lambda: query.exception() is not None or max(sink.epochs, default=-1) > last, f"batch {last} is done"
        )
        assert query.exception() is None
    finally:
        query.stop()
    return sink


def test_outputs_and_state_are_sparks_through_kills_replays_and_moves(
    spark: SparkSession, tmp_path: Path, rocks: None
) -> None:
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = bl.transformWithState(visits(spark).groupBy("key"), Visits(), OUT, "Update", "EventTime")
        with supervised(cluster, out, sink, tmp_path / "query") as running:
            upto(cluster, running, "Visits", 3)
            kill(cluster.workers[0])
            reached = upto(cluster, running, "Visits", 6)
            cluster.rescale(3, strategy="lazy").wait()
            reached = upto(cluster, running, "Visits", reached + 2)
            cluster.rescale(2).wait()
            kill(cluster.workers[1])
            last = upto(cluster, running, "Visits", reached + 4)
        cluster.checkpoint()
        live = {key: cluster.state("Visits").get(key) for key in range(KEYS)}
    spark_sink = on_spark(spark, tmp_path / "spark", max(sink.epochs))

    for epoch in range(last + 1):
        assert sorted(sink.epochs[epoch]) == sorted(spark_sink.epochs[epoch]), f"epoch {epoch}"
    assert any(row[1] == "timer" for row in sink.rows)
    at = max(state.epoch for state in live.values() if state is not None)
    store = spark.read.format("statestore").option("batchId", at).option("stateVarName", "total")
    totals = {row.key.key: row.value for row in store.load(str(tmp_path / "spark")).collect()}
    for key, state in live.items():
        total = None if state is None else state["total"]
        assert (total is None) == (key not in totals), key
        if total is not None:
            assert total[0] == totals[key].n
    table = spark.read.format("bedload").option("batchId", at).load(str(tmp_path / "bedload"))
    assert table.schema["total"].dataType.simpleString() == "struct<n:bigint,last:timestamp>"
    assert {row.key: row.total.n for row in table.where("total is not null").collect()} == {
        key: value.n for key, value in totals.items()
    }


def some_visits(folder: Path, numbers: range) -> None:
    """A file for each batch."""
    for number in numbers:
        rows = [
            {"key": key, "value": number * 100 + key, "timestamp": f"2024-01-01T00:{number:02d}:{key:02d}Z"}
            for key in range(KEYS)
            if (number + key) % 5 < 3
        ]
        file = folder / f"{number}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        os.utime(file, (1_000 + number, 1_000 + number))


def run_once(out: DataFrame, location: Path) -> list[tuple[Any, ...]]:
    """A run over what is there."""
    sink = Sink()
    writer = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(location))
    writer.trigger(availableNow=True).start().awaitTermination()
    return sorted(sink.rows)


def test_a_query_of_spark_goes_on_here_as_if_nothing_had_happened(
    spark: SparkSession, tmp_path: Path, rocks: None
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source = spark.readStream.schema("key long, value long, timestamp timestamp").option("maxFilesPerTrigger", 1)
    grouped = source.json(str(folder)).withWatermark("timestamp", "1 second").groupBy("key")
    call = Visits(), OUT, "Update", "EventTime"
    some_visits(folder, range(3))
    assert run_once(grouped.transformWithState(*call), tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "on")
    for part in ("offsets", "commits", "sources"):
        shutil.copytree(tmp_path / "old" / part, tmp_path / "new" / part)
    shutil.copy(tmp_path / "old" / "metadata", tmp_path / "new" / "metadata")
    some_visits(folder, range(3, 6))
    expected = run_once(grouped.transformWithState(*call), tmp_path / "on")
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload"):
        out = bl.transformWithState(grouped, *call, takeOver=str(tmp_path / "old"))
        assert run_once(out, tmp_path / "new") == expected
    assert {row[1] for row in expected} == {"rows", "timer"}
    some_visits(folder, range(6, 8))
    expected = run_once(grouped.transformWithState(*call), tmp_path / "on")
    with bl.attach(spark, workers=1, checkpoint=tmp_path / "bedload"):
        out = bl.transformWithState(grouped, *call, takeOver=str(tmp_path / "old"))  # there is state by now
        assert run_once(out, tmp_path / "new") == expected


class Counting(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.n.update((initialState.n,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n = (self.n.get() or (0,))[0] + sum(1 for _ in rows)
        self.n.update((n,))
        yield Row(k=key[0], n=n)


def counted(spark: SparkSession, folder: Path, location: Path, **more: Any) -> list[tuple[Any, ...]]:
    """A run over what is there."""
    rows = spark.readStream.schema("k string").json(str(folder))
    out = bl.transformWithState(rows.groupBy("k"), Counting(), "k string, n long", "Update", "None", **more)
    sink = Sink()
    writer = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(location))
    writer.trigger(availableNow=True).start().awaitTermination()
    return sorted(sink.rows)


def test_a_query_goes_on_with_its_state_and_another_one_starts_without(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"k": "a"}\n{"k": "b"}\n{"k": "a"}')
    known = spark.createDataFrame([("a", 10), ("z", 5)], "name string, n long").groupBy("name")
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        assert records_per_batch(spark) == 10_000, "DataFrames are as large as on Spark, whatever is sent at once"
        run = [spark, tmp_path / "in"]
        assert counted(*run, tmp_path / "one", initialState=known) == [("a", 12), ("b", 1)]
        assert cluster.state("Counting").get("z")["n"] == (5,)
        (tmp_path / "in" / "2.json").write_text('{"k": "a"}\n{"k": "z"}')
        assert counted(*run, tmp_path / "one", initialState=known) == [("a", 13), ("z", 6)]
        with pytest.raises(StreamingQueryException, match="can go on from"):
            counted(*run, tmp_path / "two")
        (tmp_path / "in" / "3.json").write_text('{"k": "z"}')
        assert counted(*run, tmp_path / "one", initialState=known) == [("z", 7)]
        shutil.rmtree(tmp_path / "one")
        assert counted(*run, tmp_path / "three") == [("a", 3), ("b", 1), ("z", 2)]
        assert cluster.state("Counting").get("z")["n"] == (2,)


def test_the_example_of_sparks_own_docs_runs_with_one_line_changed(spark: SparkSession, tmp_path: Path) -> None:
    text = str(GroupedData.transformWithState.__doc__)
    code = "\n".join(it.source.rstrip() for it in doctest.DocTestParser().get_examples(text))
    # As it stands, it fails on Spark, too: an argument is missing, and a key is a tuple.
    code = code.replace("def handleInputRows(self, key, rows):", "def handleInputRows(self, key, rows, timerValues):")
    code = code.replace("yield Row(id=key, count=count)", "yield Row(id=key[0], count=count)")
    there = 'df.groupBy("value").transformWithState('
    changed = code.replace(there, 'out = bl.transformWithState(df.groupBy("id"), ')
    assert changed != code
    (tmp_path / "in").mkdir()
    rows = [(0, 123), (0, 23), (1, 33), (1, 188), (1, 88)]
    (tmp_path / "in" / "1.json").write_text("\n".join(json.dumps({"id": str(i), "temperature": t}) for i, t in rows))
    before = spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    names: dict[str, Any] = {
        "__name__": "__main__",
        "bl": bl,
        "spark": spark,
        "df": spark.readStream.schema("id string, temperature long").json(str(tmp_path / "in")),
    }
    with bl.attach(spark, workers=1) as cluster:
        exec(changed, names)
        assert run_once(names["out"], tmp_path / "query") == [("0", 2), ("1", 3)]
        assert cluster.state("SimpleStatefulProcessor").get("1")["numViolations"] == (1,)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", before)


def test_two_queries_that_run_have_a_state_each(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"k": "a"}')
    rows = spark.readStream.schema("k string").json(str(tmp_path / "in"))
    with bl.attach(spark, workers=1) as cluster:
        queries = []
        for number in range(2):
            out = bl.transformWithState(rows.groupBy("k"), Counting(), "k string, n long", "Update", "None")
            writer = out.writeStream.foreachBatch(Sink()).option("checkpointLocation", str(tmp_path / str(number)))
            queries.append(writer.start())
        for query in queries:
            cluster.wait_for_epoch(query)
        assert [cluster.state(name).get("a")["n"] for name in ("Counting", "Counting-2")] == [(1,), (1,)]
        for query in queries:
            query.stop()


def test_a_session_without_a_cluster_gets_one_and_patched_code_runs_on_it(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"k": "a"}')
    rows = spark.readStream.schema("k string").json(str(tmp_path / "in"))
    name = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(name, str(tmp_path / "queries"))
    bl.patch_pyspark()
    try:
        out = rows.groupBy("k").transformWithState(Counting(), "k string, n long", "Update", "None")
        sink = Sink()
        out.writeStream.foreachBatch(sink).trigger(availableNow=True).start().awaitTermination()
        assert sink.rows == [("a", 1)]
    finally:
        bl.unpatch_pyspark()
        spark.conf.unset(name)
        from bedload.spark.registry import attached_to

        cluster = attached_to(spark)
        if cluster is not None:
            cluster.stop()
    assert (tmp_path / "queries" / "_bedload").is_dir()
    batch = bl.transformWithState(
        spark.read.schema("k string").json(str(tmp_path / "in")).groupBy("k"),
        Counting(),
        "k string, n long",
        "Update",
        "None",
    )
    assert [tuple(row) for row in batch.collect()] == [("a", 1)]
