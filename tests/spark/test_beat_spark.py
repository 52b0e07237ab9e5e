"""Epochs without rows on real Spark: they come while the source is quiet, and change nothing else about a query."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import bedload as bl
from bedload.control.lull import Lull
from bedload.core.epoch import Due
from bedload.core.errors import DefinitionError
from bedload.core.ids import Epoch
from bedload.spark.plan import NO_BEAT_YET, Plans
from bedload.spark.progress import BEAT, read_progress
from tests.patience import PATIENCE
from tests.spark.apps import eventually, running
from tests.spark.conftest import Sink, numbers, run, start
from tests.spark.standalone import standalone

pytestmark = pytest.mark.spark

SCHEMA = "key long, n long, sum long"
FAST = "1 millisecond"


class Sums(bl.Operator):
    n: int = bl.value(0)
    sum: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        for row in rows:
            self.n += 1
            self.sum += row.value

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, self.n, self.sum


class Timed(Sums):
    """There always is something due, by either clock; only rows have an output."""

    result = bl.Operator.result

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> Any:
        super().process(key, rows, ctx)
        self.on_timer(key, None, ctx)
        return key, self.n, self.sum

    def on_timer(self, key: Any, timer: Any, ctx: bl.Context) -> None:
        ctx.timers.set(ctx.watermark + 1)
        ctx.timers.processing.set(ctx.now + 1)


class Closing(bl.VectorOperator):
    """Says what a key has when there was no row of it for a while, and forgets it."""

    n: int = bl.value(0)
    timers = ()
    processing_timers = ("",)

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        ctx.timers.processing.set(ctx.now + 100)
        return {"n": state["n"] + np.bincount(batch.index, minlength=len(state["n"]))}

    def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
        ctx.forget()
        return None, {"key": keys, "n": state["n"], "sum": state["n"]}


class Files:
    """A source with a file for each epoch that has rows: the number of the file, and a time in its name's seconds."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        folder.mkdir()
        self._spark, self._folder, self._put = spark, folder, 0
        self._hidden = folder.parent / f"{folder.name}-hidden"

    def put(self, second: int = 0) -> int:
        """Another file; how many there are."""
        row = {"value": self._put, "at": f"2024-01-01T00:{second // 60:02}:{second % 60:02}Z"}
        self._hidden.write_text(json.dumps(row) + "\n")
        os.utime(self._hidden, (self._put, self._put))  # Spark takes the oldest first
        self._hidden.rename(self._folder / f"{self._put:04}.json")
        self._put += 1
        return self._put

    def read(self, delay: str | None = None) -> DataFrame:
        """The stream of them, of one key."""
        reader = self._spark.readStream.schema("value long, at timestamp").option("maxFilesPerTrigger", 1)
        rows = reader.json(str(self._folder))
        rows = rows if delay is None else rows.withWatermark("at", delay)
        return rows.select(F.lit(7).cast("long").alias("key"), "value", "at")


@contextmanager
def going(df: DataFrame, sink: Any, checkpoint: Path, **trigger: Any) -> Iterator[StreamingQuery]:
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        yield query
    finally:
        query.stop()


def ends(df: DataFrame, sink: Any, checkpoint: Path, **trigger: Any) -> None:
    """Run a query that ends by itself."""
    with going(df, sink, checkpoint, **trigger) as query:
        assert query.awaitTermination(PATIENCE), "the query does not end"


def shown(name: str, cluster: bl.Cluster) -> list[dict[str, Any]]:
    return [row for row in cluster.epochs() if row["operator"] == name and row["committed"]]


def committed(count: int, name: str, cluster: bl.Cluster) -> list[dict[str, Any]]:
    """So many epochs of a query that is over: Spark has committed them, of which the cluster hears a moment later."""
    eventually(lambda: len(shown(name, cluster)) >= count, f"{count} epochs")
    return shown(name, cluster)


def reach(holds: Callable[[], bool], query: StreamingQuery, what: str) -> None:
    eventually(lambda: holds() or not query.isActive, what)
    assert query.isActive, query.exception()


def sources(query: StreamingQuery) -> list[str]:
    assert query.lastProgress is not None
    return [source.description for source in query.lastProgress.sources]


@pytest.mark.parametrize("trigger", [{}, {"processingTime": "50 milliseconds"}])
def test_epochs_go_on_while_the_source_is_quiet(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, trigger: dict[str, str]
) -> None:
    files, sink, name = Files(spark, tmp_path / "in"), Sink(), f"quiet {trigger}"
    out = cluster.apply(files.read(), key="key", operator=Timed, schema=SCHEMA, name=name, beat=FAST)
    files.put()
    with going(out, sink, tmp_path / "spark", **trigger) as query:
        reach(lambda: len(shown(name, cluster)) >= 4, query, "four epochs, one with rows")
        files.put()
        reach(lambda: len(sink.rows) >= 2, query, "the second row")
        so_far = len(shown(name, cluster))
        reach(lambda: len(shown(name, cluster)) >= so_far + 3, query, "three more epochs")
    epochs = shown(name, cluster)
    assert [row["epoch"] for row in epochs] == list(range(len(epochs))), "the operator sees every epoch"
    assert sum(row["rows"] for row in epochs) == 2
    times = [row["processing"] for row in epochs]
    assert times == sorted(set(times)), "each has a later time"
    assert sink.rows == [(7, 1, 0), (7, 2, 1)]


def test_a_restarted_query_beats_on(spark: SparkSession, tmp_path: Path) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()
    seen = 0
    for _ in range(2):
        with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
            out = cluster.apply(files.read(), key="key", operator=Timed, schema=SCHEMA, beat=FAST)
            for _ in range(2):
                count = files.put()
                with going(out, sink, tmp_path / "spark") as query:
                    reach(lambda n=count: len(sink.rows) >= n, query, "its row")
                    seen = max(sink.epochs)
                    reach(lambda n=seen: max(sink.epochs) >= n + 3, query, "three epochs without rows")
    assert sink.rows == [(7, 1, 0), (7, 2, 1), (7, 3, 3), (7, 4, 6)]
    assert sorted(sink.epochs) == list(range(len(sink.epochs)))


def test_a_query_whose_operator_lost_its_timers_keeps_a_beat_that_is_silent(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()
    for operator, again in ((Timed, False), (Sums, False), (Sums, True)):
        with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
            for _ in range(1 + again):  # on another cluster, and on the same one
                options: Any = {"key": "key", "schema": SCHEMA, "name": "sums", "drop": "bedload_timers"}
                if operator is Timed:
                    del options["drop"]
                out = cluster.apply(files.read(), operator=operator, **options)
                files.put()
                ends(out, sink, tmp_path / "spark", availableNow=True)
                before = len(sink.epochs)
                ends(out, sink, tmp_path / "spark", availableNow=True)
                assert operator is Timed or len(sink.epochs) == before, "nothing is due"
    assert [row[:2] for row in sink.rows] == [(7, 1), (7, 2), (7, 3), (7, 4)]


def test_who_takes_a_beat_out_is_told_how_to_keep_it(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()
    for beat in (True, False):
        out = cluster.apply(files.read(), key="key", operator=Sums, schema=SCHEMA, beat=beat)
        files.put()
        if beat:
            ends(out, sink, tmp_path / "spark", availableNow=True)
            continue
        with pytest.raises(StreamingQueryException, match=r"There are \[2\] sources"):
            ends(out, sink, tmp_path / "spark", availableNow=True)
    eventually(lambda: "apply it with beat=True" in caplog.text, "the log")


def test_available_now_ends_and_has_an_epoch_for_the_last_watermark(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()
    out = cluster.apply(files.read("1 second"), key="key", operator=Timed, schema=SCHEMA, name="now", beat=FAST)
    for second in (10, 30):
        files.put(second)
    ends(out, sink, tmp_path / "spark", availableNow=True)
    first = committed(3, "now", cluster)
    assert [(row["rows"], row["watermark"] % 60_000) for row in first] == [(1, 0), (1, 9_000), (0, 29_000)]
    files.put(50)
    ends(out, sink, tmp_path / "spark", availableNow=True)
    more = committed(5, "now", cluster)[len(first) :]
    assert [(row["rows"], row["watermark"] % 60_000) for row in more] == [(1, 29_000), (0, 49_000)]
    assert sink.rows == [(7, 1, 0), (7, 2, 1), (7, 3, 3)]


def test_once_is_one_epoch_and_has_one_without_rows_too(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()
    out = cluster.apply(files.read(), key="key", operator=Timed, schema=SCHEMA, name="once", beat=FAST)
    files.put()
    for _ in range(3):
        ends(out, sink, tmp_path / "spark", once=True)
    assert [row["rows"] for row in committed(3, "once", cluster)] == [1, 0, 0]
    assert sink.rows == [(7, 1, 0)]


def test_an_operator_without_timers_has_no_beat_unless_it_asks(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    wanted = {
        "none": (Sums, None, 1),
        "asks": (Sums, "1 hour", 2),
        "timers": (Timed, None, 2),
        "refuses": (Timed, False, 1),
    }
    for name, (operator, beat, count) in wanted.items():
        df = numbers(spark, rows=10).selectExpr("value % 3 AS key", "value")
        out = cluster.apply(df, key="key", operator=operator, schema=SCHEMA, name=name, beat=beat)
        query = run(out, Sink(), tmp_path / name, 2)
        assert len(sources(query)) == count, name
        assert len((tmp_path / name / "offsets/1").read_text().splitlines()) == 2 + count, name
    for name, more, count in (
        ("plain", {}, 1),
        ("ttl", {"ttl": "1 hour"}, 2),
        ("alone", {"ttl": "1 hour", "beat": False}, 1),
    ):
        df = numbers(spark, rows=10).selectExpr("value % 3 AS key", "value")
        out = cluster.aggregate(df, key="key", n=bl.agg.count(), name=name, **more)
        query = run(out, Sink(), tmp_path / name, 2)
        assert len(sources(query)) == count, name
    with pytest.raises(DefinitionError, match="beat='soon' is no duration"):
        cluster.apply(df, key="key", operator=Sums, schema=SCHEMA, name="bad", beat="soon")


def test_timers_on_arrays_fire_and_keys_expire_while_the_source_is_quiet(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()
    rows = files.read()
    closed = cluster.apply(rows, key="key", operator=Closing, schema=SCHEMA, name="closing", beat=FAST)
    counted = cluster.aggregate(rows, key="key", n=bl.agg.count(), name="counted", ttl="1 millisecond", beat=FAST)
    files.put()
    with going(closed, sink, tmp_path / "closing") as query:
        reach(lambda: sink.rows == [(7, 1, 1)], query, "a timer fires")
        assert len(sources(query)) == 2
    with going(counted, Sink(), tmp_path / "counted") as query:
        reach(lambda: len(shown("counted", cluster)) >= 2, query, "an epoch without rows")
        assert [row["rows"] for row in shown("counted", cluster)][:2] == [1, 0]
        assert sum(shown("counted", cluster)[-1]["keys"].values()) == 0, "the key is gone"


def test_with_nothing_due_there_is_no_epoch_and_with_something_due_there_is(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    due, asked, look = Due(), 0, Lull.of

    def said(standing: Any, start: Any) -> Lull:
        nonlocal asked
        asked += 1
        return dataclasses.replace(look(standing, start), due=due)

    monkeypatch.setattr(Lull, "of", said)
    files, sink = Files(spark, tmp_path / "in"), Sink()
    out = cluster.apply(files.read("1 second"), key="key", operator=Timed, schema=SCHEMA, name="due", beat=FAST)
    with going(out, sink, tmp_path / "spark") as query:
        for second in (10, 50):
            files.put(second)
        reach(lambda: len(sink.rows) == 2, query, "both rows")
        reach(lambda: len(shown("due", cluster)) == 2, query, "they are committed")
        after = shown("due", cluster)
        before = asked
        reach(lambda: asked >= before + 5, query, "it was asked for more")
        assert shown("due", cluster) == after, "nothing is due"

        due = Due(watermark=after[-1]["watermark"] + 3_600_000, processing=after[-1]["processing"] + 3_600_000)
        before = asked
        reach(lambda: asked >= before + 5, query, "it was asked for more")
        assert shown("due", cluster) == after, "nothing is due for an hour"

        due = Due(watermark=after[-1]["watermark"] + 1)
        reach(lambda: len(shown("due", cluster)) == 3, query, "an epoch for the watermark")
        before = asked
        reach(lambda: asked >= before + 5, query, "it was asked for more")
        assert [row["watermark"] - after[-1]["watermark"] for row in shown("due", cluster)[2:]] == [40_000], "only one"

        due = Due(processing=after[-1]["processing"])
        reach(lambda: len(shown("due", cluster)) >= 5, query, "epochs for what is due by processing time")
    assert sink.rows == [(7, 1, 0), (7, 2, 1)]


def test_watermarks_are_as_without_a_beat(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    found: dict[Any, list[tuple[int, int]]] = {}
    for beat in (False, FAST):
        one, two = Files(spark, tmp_path / f"one {beat}"), Files(spark, tmp_path / f"two {beat}")
        for second in (10, 60, 40, 300):
            one.put(second)
        for second in (200, 20):
            two.put(second)
        df = one.read("1 second").union(two.read("5 seconds"))
        name = f"watermark {beat}"
        out = cluster.apply(df, key="key", operator=Timed, schema=SCHEMA, name=name, beat=beat)
        ends(out, Sink(), tmp_path / f"spark {beat}", availableNow=True)
        found[beat] = [(row["rows"], row["watermark"]) for row in committed(4, name, cluster)]
    with_rows = [it for it in found[FAST] if it[0]]
    assert with_rows == found[False]
    assert len({watermark for _, watermark in with_rows}) > 2, "they move"


def test_a_query_goes_on_with_a_beat_that_it_did_not_have(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()

    def applied(beat: Any) -> DataFrame:
        rows = files.read()
        rows = rows.union(rows.where("value < 0"))  # one source, and a line for each branch
        return cluster.apply(rows, key="key", operator=Sums, schema=SCHEMA, name="later", beat=beat)

    for _ in range(2):
        files.put()
        ends(applied(None), sink, tmp_path / "spark", availableNow=True)
    assert NO_BEAT_YET not in (tmp_path / "spark/offsets/1").read_text()
    with going(applied(FAST), sink, tmp_path / "spark") as query:
        files.put()
        reach(lambda: len(sink.rows) == 3, query, "the third row")
        so_far = max(sink.epochs)
        reach(lambda: max(sink.epochs) >= so_far + 2, query, "epochs without rows")
        assert sources(query)[-1] == BEAT
    assert sink.rows == [(7, 1, 0), (7, 2, 1), (7, 3, 3)]
    assert NO_BEAT_YET in (tmp_path / "spark/offsets/0").read_text()


def test_a_query_in_which_another_source_would_lose_its_place_gets_no_beat(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    """Files are kept in mind under the number of their source, which a beat before it would change."""
    one, two, sink = Files(spark, tmp_path / "one"), Files(spark, tmp_path / "two"), Sink()

    def both(beat: Any) -> DataFrame:
        sums = cluster.apply(one.read(), key="key", operator=Sums, schema=SCHEMA, name="first of two", beat=beat)
        return sums.union(two.read().selectExpr("-1L", "value", "value"))

    for file in range(3):
        one.put()
        two.put()
        if file == 1:
            query = start(both(FAST), sink, tmp_path / "spark")
            with pytest.raises(Exception, match="another of its sources comes after the beat"):
                query.awaitTermination(PATIENCE)
        ends(both(None), sink, tmp_path / "spark", availableNow=True)
    assert sorted(sink.rows) == [(-1, 0, 0), (-1, 1, 1), (-1, 2, 2), (7, 1, 0), (7, 2, 1), (7, 3, 3)]


def test_an_epoch_that_is_replayed_gets_its_beat_again(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    """The epoch that failed is in Spark's log, with or without a beat in it, and is planned as it was."""
    files, sink = Files(spark, tmp_path / "in"), Sink()
    out = cluster.apply(files.read(), key="key", operator=Timed, schema=SCHEMA, name="replayed", beat=FAST)

    def fail_once(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        if epoch in (1, 2) and epoch not in failed:
            failed.append(epoch)
            raise RuntimeError("before it was committed")
        sink(batch, epoch)

    failed: list[int] = []
    files.put()
    while len(failed) < 2:
        query = start(out, fail_once, tmp_path / "spark")
        with pytest.raises(Exception, match="before it was committed"):
            query.awaitTermination(PATIENCE)
    files.put()
    with going(out, sink, tmp_path / "spark") as query:
        reach(lambda: len(sink.rows) == 2, query, "the second row")
    assert sink.rows == [(7, 1, 0), (7, 2, 1)]
    assert sorted(sink.epochs) == list(range(len(sink.epochs)))


def test_two_operators_in_one_query_beat_each_for_itself(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()
    first = cluster.apply(files.read(), key="key", operator=Sums, schema=SCHEMA, name="upper")
    renamed = first.selectExpr("key", "n AS value")
    out = cluster.apply(renamed, key="key", operator=Timed, schema=SCHEMA, name="lower", beat=FAST)
    files.put()
    with going(out, sink, tmp_path / "spark") as query:
        reach(lambda: len(shown("lower", cluster)) >= 4, query, "epochs without rows")
        files.put()
        reach(lambda: len(sink.rows) >= 2, query, "the second row")
        reach(lambda: len(shown("upper", cluster)) >= 2, query, "the upper one's second epoch")
    assert sink.rows == [(7, 1, 1), (7, 2, 3)]
    assert [row["rows"] for row in shown("upper", cluster)] == [1, 1], "it was fed only where there were rows"


def test_when_the_cluster_is_over_a_quiet_query_hears_of_it(spark: SparkSession, tmp_path: Path) -> None:
    files, sink = Files(spark, tmp_path / "in"), Sink()
    with bl.attach(spark, workers=2) as cluster:
        out = cluster.apply(files.read(), key="key", operator=Timed, schema=SCHEMA, beat=FAST)
        files.put()
        query = start(out, sink, tmp_path / "spark")
        reach(lambda: len(sink.epochs) >= 2, query, "an epoch without rows")
    with pytest.raises(Exception, match="was stopped"):
        query.awaitTermination(PATIENCE)


def test_executors_need_nothing_of_the_driver_s_to_read_a_beat(tmp_path: Path) -> None:
    with standalone(tmp_path) as started, running("beating", tmp_path / "app", started.master) as app:
        assert app.expect("beaten")["rows"] == [1, 0, 0, 0]


def test_a_beat_that_stays_hides_no_epoch_that_was_lost(spark: SparkSession, tmp_path: Path) -> None:
    """It is no source without data: else each epoch of such a query would count as one without."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for epoch, line in enumerate(["1", "2", "2"]):
        (offsets / str(epoch)).write_text(f"v1\n{{}}\n{line}\n{NO_BEAT_YET}")
    assert Plans(spark)._quiet_at(str(tmp_path)) == {2}
    for epoch, lines in enumerate([["1", "2", "3"], ["2", NO_BEAT_YET, "3", NO_BEAT_YET, "4"]]):
        (offsets / str(epoch)).write_text("\n".join(["v1", "{}", *lines]))
    (offsets / "2").unlink()
    assert Plans(spark)._quiet_at(str(tmp_path)) == set(), "the lines of a source are not always at one place"
    beat = {"description": "bedload beat", "startOffset": {"bedload beat": 3}, "endOffset": {"bedload beat": 3}}
    for end, quiet in ((2, False), (1, True)):
        rows = {"description": "rows", "startOffset": 1, "endOffset": end}
        event = {"id": "q", "runId": "r", "batchId": 1, "sources": [rows, beat]}
        assert read_progress(json.dumps(event)).quiet is quiet


def test_a_line_is_put_into_spark_s_log_only_where_a_beat_s_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    offsets, plans, root = tmp_path / "offsets", Plans(spark), f"file:{tmp_path}"
    offsets.mkdir()

    def put(*lines: str, beats: str, version: str = "v1") -> list[str]:
        """What is in the log of a query with these lines and sources, of which some are beats, when it has started."""
        (offsets / ".0.crc").unlink(missing_ok=True)
        (offsets / "0").write_text("\n".join([version, "{}", *lines]))
        changed = plans._with_beats(root, Epoch(0), [it == "B" for it in beats])
        found = (offsets / "0").read_text().splitlines()
        assert changed == (found[2:] != list(lines))
        assert found[:2] == [version, "{}"]
        return found[2:]

    new, old = NO_BEAT_YET, NO_BEAT_YET.replace("0", "7")
    assert put("a", beats="sB") == ["a", new]
    assert put("a", old, beats="sB") == ["a", old], "it is there"
    for lines, beats in ((["a", "b"], "sBs"), (["a", "b", old], "sBsB"), (["a", "b"], "BsBs")):
        with pytest.raises(DefinitionError, match="another of its sources comes after the beat"):
            put(*lines, beats=beats)
        assert (offsets / "0").read_text().splitlines()[2:] == lines
    assert put("a", beats="sBB") == ["a", new, new]
    assert put("a", old, "b", beats="sBsB") == ["a", old, "b", new]
    assert put("a", "a", beats="ssB") == ["a", "a", new], "one source twice"
    assert put("a", beats="ssB") == ["a"], "a source was added, too: Spark says so"
    assert put("a", "b", beats="sB") == ["a", "b"], "one was taken away, too"
    assert put("a", old, beats="s") == ["a", old], "the beat was"
    assert put("a", beats="sB", version="v2") == ["a"], "Spark finds its sources by name there"
