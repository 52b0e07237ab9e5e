"""Handles on changes of a live cluster, looked at from many threads while all kinds of things happen."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from bedload.core.errors import BedloadError, EpochIncomplete, MoveCancelled
from tests.patience import PATIENCE
from tests.spark.apps import eventually
from tests.spark.conftest import Sink, start
from tests.spark.faults import kill
from tests.spark.moving import live
from tests.spark.tally import applied, check_epochs, stream

pytestmark = pytest.mark.spark
WATCHERS = 4
STAGES = ("waits for", "new workers start", "workers say", "state moves", "all workers start anew", "over")


class Watched:
    """What was seen of a change, in order, by each of some threads."""

    def __init__(self, change: bl.Change) -> None:
        self.change = change
        self.progress: list[list[float]] = [[] for _ in range(WATCHERS)]
        self.stages: set[str] = set()

    def look(self, number: int) -> None:
        change = self.change
        while not change.done:
            self.progress[number].append(change.progress)
            self.stages.add(change.stage)
            assert "over" not in str(change).partition(":")[2].split(","), str(change)
            assert change.waits_for is not None
            assert change._repr_html_().count("<pre>") == 1
        self.progress[number].append(change.progress)

    def check(self) -> None:
        for seen in self.progress:
            assert all(0.0 <= before <= after <= 1.0 for before, after in itertools.pairwise(seen)), seen
            assert seen[-1] == 1.0
        assert all(stage.startswith(STAGES) for stage in self.stages), self.stages


@contextlib.contextmanager
def watched(*changes: bl.Change) -> Iterator[None]:
    """Look at changes from several threads until they are over."""
    every = [Watched(change) for change in changes]
    with ThreadPoolExecutor(WATCHERS * len(every)) as threads:
        looks = [threads.submit(it.look, number) for it in every for number in range(WATCHERS)]
        try:
            yield
        finally:
            for change in changes:
                with contextlib.suppress(BedloadError):
                    change.wait(PATIENCE)
        for look in looks:
            look.result(PATIENCE)
    for it in every:
        it.check()


def test_progress_goes_up_whatever_happens_and_cancel_works_at_every_stage(spark: SparkSession, tmp_path: Path) -> None:
    with (
        bl.attach(spark, workers=2, checkpoint=tmp_path / "checkpoint") as cluster,
        live(spark, cluster, tmp_path) as running,
    ):
        one, two = cluster.rescale(4), cluster.rescale(3)
        with watched(one, two):
            assert two.stage == "waits for the change before it (rescale to 4 workers)" or one.done
        assert (one.result, two.result) != (None, None)
        assert sorted(cluster.workers) == [0, 1, 2]
        running.go_on()

        cluster.rescale(2).wait(PATIENCE)
        # Called off wherever it is: at once, or as soon as it shows a new stage.
        calls = []
        for wanted in range(4):
            change, before = cluster.rescale(4 if wanted < 3 else 3), dict(cluster.workers)
            with watched(change):
                stages: set[str] = set()
                while len(stages) <= wanted and not change.done:
                    stages.add(change.stage)
                off = change.cancel()
            calls.append((change, off))
            if off:
                with pytest.raises(MoveCancelled, match=f"^{change.what} was called off"):
                    change.wait(0)
                eventually(lambda before=before: dict(cluster.workers) == before, "the cluster is as it was")  # type: ignore[misc]
            else:
                change.wait(PATIENCE)
                cluster.rescale(2).wait(PATIENCE)
        history = {row["number"]: row for row in cluster.history() if row["operator"] == "rows"}
        for change, off in calls:
            row = history[change.number]
            assert (row["outcome"] == "called off") == off
            assert not off or row["workers_before"] == row["workers_after"] == 2
        numbers_of = [row["number"] for row in cluster.history()]
        assert numbers_of == sorted(numbers_of)
        running.go_on()


def test_workers_that_die_while_state_moves(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "checkpoint") as cluster:
        writer = applied(cluster, stream(spark), "rows").writeStream.foreachBatch(sink)
        with cluster.run(writer.option("checkpointLocation", str(tmp_path / "spark")), restarts=50) as query:
            cluster.wait_for_epoch(query, 1)
            for workers, victim in ((3, 0), (2, 1)):
                change = cluster.rescale(workers)
                with watched(change):
                    eventually(lambda change=change: change.done or "start" not in change.stage, "it goes on")  # type: ignore[misc]
                    kill(cluster.workers[victim])
                    cluster.wait_for_epoch(query, len(sink.epochs) + 1)
                assert change.result is not None
                assert len(cluster.workers) == workers
        check_epochs("rows", sink.epochs, 3)


def test_a_query_that_stops_and_starts_again_while_state_moves(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "checkpoint") as cluster:
        out = applied(cluster, stream(spark), "rows")
        query = start(out, sink, tmp_path / "spark")
        cluster.wait_for_epoch(query, 1)
        for workers in (3, 2):
            change = cluster.rescale(workers)
            with watched(change):
                query.stop()
                query = start(out, sink, tmp_path / "spark")
                cluster.wait_for_epoch(query, len(sink.epochs) + 1)
            assert change.result is not None
            assert len(cluster.workers) == workers
        query.stop()
        check_epochs("rows", sink.epochs, 3)


def test_what_users_name_is_escaped_in_a_notebook(spark: SparkSession, tmp_path: Path) -> None:
    name, gate = "<b>Trip</b>", threading.Event()

    def sink(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        if epoch:
            gate.wait(PATIENCE)

    with bl.attach(spark, workers=2) as cluster:
        query = start(applied(cluster, stream(spark), "rows", name), sink, tmp_path / "spark")
        cluster.wait_for_epoch(query)
        change = cluster.move(keys=[1, 2], to=0, operator=name)
        try:
            assert "<b>" not in change._repr_html_()
            eventually(lambda: change.done or "end of epoch" in change.waits_for, "it waits for the epoch")
            assert "<b>" not in change._repr_html_()
        finally:
            gate.set()
        change.wait(PATIENCE)
        assert "&lt;b&gt;Trip" in change._repr_html_()
        assert "<b>" not in change._repr_html_()
        assert [row["kind"] for row in cluster.history()] == ["move"]
        query.stop()


# --- waiting for an epoch ---


def test_a_sink_that_reads_nothing_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    def nothing(batch: DataFrame, epoch: int) -> None:
        pass

    with bl.attach(spark, workers=1) as cluster:
        query = start(applied(cluster, stream(spark), "rows"), nothing, tmp_path / "spark")
        with pytest.raises(EpochIncomplete, match=r"up to \d+, and their rows never reached .*use-foreach-batch"):
            cluster.wait_for_epoch(query, seconds=PATIENCE)
        assert query.isActive
        query.stop()


def test_batches_without_rows_are_no_alarm(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    df = spark.readStream.schema("value long").csv(str(folder)).selectExpr("value as key", "value")
    with bl.attach(spark, workers=1) as cluster:
        query = start(applied(cluster, df, "rows"), lambda batch, _: batch.collect(), tmp_path / "spark")

        def put(number: int, text: str) -> None:
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").rename(folder / f"{number}.csv")

        for number in range(3):
            put(number, "")
            eventually(lambda number=number: cluster._plans.last_batch(query)[0] >= number, "it is committed")  # type: ignore[misc]
        assert cluster._plans.last_batch(query) == (2, False)
        with pytest.raises(TimeoutError, match="unless they had no rows"):
            cluster.wait_for_epoch(query, 0, seconds=3)
        put(3, "1\n")
        cluster.wait_for_epoch(query, 3)
        query.stop()
