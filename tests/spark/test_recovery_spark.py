"""Real losses on real Spark: workers, executors, drivers. What is left equals an oracle that never failed.

State and the whole output of the sinks are compared, for operators on objects and on columns.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.storage import open_storage
from bedload.core.ids import OperatorName, generation_of
from bedload.spark.supervisor import Supervised
from tests.simulator.chance import Chance
from tests.spark.apps import alive, eventually
from tests.spark.apps.recovering import gated
from tests.spark.conftest import Sink, committed, fail, numbers, run
from tests.spark.faults import check_done, check_sinks, family, kill, kill_driver, recovering
from tests.spark.standalone import Standalone, standalone
from tests.spark.tally import (
    KINDS,
    applied,
    check_epoch,
    check_epochs,
    check_states,
    set_back,
    states,
    stream,
    values,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("durable") / "checkpoint"


@pytest.fixture(scope="module")
def durable(spark: SparkSession, place: Path) -> Iterator[bl.Cluster]:
    """Two workers that tests may kill; each test applies operators under its own name."""
    with bl.attach(spark, workers=2, checkpoint=place) as cluster:
        yield cluster


def supervised(
    cluster: bl.Cluster, out: DataFrame, sink: Sink, location: Path, trigger: str = "20 milliseconds"
) -> Supervised:
    writer = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(location))
    return cluster.run(writer.trigger(processingTime=trigger), first_pause=0.2)


def upto(cluster: bl.Cluster, running: Supervised, name: str, epoch: int) -> int:
    """Wait until an epoch is committed; the last one that is."""

    def there() -> bool:
        error = running.exception()
        assert error is None, f"the query ended: {error}"
        return max(cluster.committed(name).values(), default=-1) >= epoch

    eventually(there, f"epoch {epoch} of {name} is committed")
    return int(max(cluster.committed(name).values()))


def read_back(cluster: bl.Cluster, name: str) -> dict[int, tuple[int, int]]:
    """For each worker how many key groups of an operator it read, and how many it waits for."""
    return {item["worker"]: (item["read"], item["left"]) for item in cluster.restoring() if item["operator"] == name}


def check_all(cluster: bl.Cluster, kind: str, name: str, sink: Sink, at_least: int) -> None:
    """Every output since the first epoch and the state of every key."""
    check_epochs(kind, sink.epochs, at_least)
    eventually(
        lambda: len({epoch for epoch, _ in states(cluster, kind, name).values()}) == 1, "all workers are at one epoch"
    )
    assert check_states(kind, states(cluster, kind, name)) in (len(sink.epochs) - 1, len(sink.epochs) - 2)


# --- workers ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_killed_in_an_epoch_is_replaced_and_only_its_key_groups_are_read_back(
    spark: SparkSession, durable: bl.Cluster, tmp_path: Path, kind: str
) -> None:
    name, sink = f"InEpoch{kind}", Sink()
    out = applied(durable, gated(stream(spark), 3, tmp_path), kind, name)
    with supervised(durable, out, sink, tmp_path / "spark") as running:
        eventually(lambda: len(list(tmp_path.glob("waiting-*"))) == 2, "both partitions gave a part of epoch 3")
        before = durable.workers
        kill(before[1])
        (tmp_path / "go").touch()
        upto(durable, running, name, 5)
        assert running.restarts >= 1
    after = durable.workers
    assert after[0] == before[0], "a healthy worker goes on"
    assert after[1] != before[1]
    assert read_back(durable, name) == {0: (0, 0), 1: (128, 0)}, "what a healthy worker has is not read again"
    check_all(durable, kind, name, sink, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_killed_between_epochs_and_then_all_of_them_at_once(
    spark: SparkSession, durable: bl.Cluster, tmp_path: Path, kind: str
) -> None:
    name, sink = f"Between{kind}", Sink()
    out = applied(durable, stream(spark), kind, name)
    with supervised(durable, out, sink, tmp_path / "spark", trigger="700 milliseconds") as running:
        upto(durable, running, name, 1)
        before = durable.workers
        kill(before[0])
        last = upto(durable, running, name, max(durable.committed(name).values()) + 2)
        assert durable.workers[1] == before[1]
        assert read_back(durable, name) == {0: (128, 0), 1: (0, 0)}
        kill(*durable.workers.values())
        last = upto(durable, running, name, last + 3)
        assert read_back(durable, name) == {0: (128, 0), 1: (128, 0)}
    assert not any(alive(pid) for pid in before.values())
    check_all(durable, kind, name, sink, last + 1)


def test_without_a_supervisor_the_query_fails_and_a_restart_goes_on(
    spark: SparkSession, durable: bl.Cluster, tmp_path: Path
) -> None:
    sink = Sink()
    out = applied(durable, gated(stream(spark), 2, tmp_path), "rows", "Unsupervised")
    query = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "spark")).start()
    eventually(lambda: len(list(tmp_path.glob("waiting-*"))) == 2, "both partitions gave a part of epoch 2")
    lost = durable.workers[1]
    kill(lost)
    (tmp_path / "go").touch()
    eventually(lambda: not query.isActive, "the query ended")
    text = str(query.exception())
    assert f"worker 1 was lost (process {lost} ended" in text
    assert "read back by its replacement: start the query again" in text
    run(out, sink, tmp_path / "spark", 4)
    check_epochs("rows", sink.epochs, 4)
    eventually(lambda: 1 in durable.workers, "the replacement is there")


class Texts(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: int, rows: bl.Rows, ctx: bl.Context) -> Any:
        for row in rows:
            self.n += 1
            yield key, self.n, f"{row.value:0250}"


def test_outputs_in_local_files_are_there_for_a_retry_a_second_action_and_a_replay(
    spark: SparkSession, tmp_path: Path
) -> None:
    many, marker = 6_000, tmp_path / "failed"

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not marker.exists():
            marker.touch()
            raise RuntimeError("a task fails when its rows were applied")

    def twice(batch: DataFrame, epoch: int) -> None:
        if epoch > 2:
            return
        first = sorted(map(tuple, batch.collect()))
        if epoch == 1 and epoch not in killed:
            killed.append(epoch)
            kill(cluster.workers[0])
        assert sorted(map(tuple, batch.collect())) == first
        found[epoch] = first

    killed: list[int] = []
    found: dict[int, list[tuple[Any, ...]]] = {}
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    # The outputs of an epoch take three times what it may take in memory, and so they would fail it.
    with bl.attach(
        spark, checkpoint=tmp_path / "state", epoch_bytes=400_000, local_dir=tmp_path, encrypt=False
    ) as cluster:
        df = numbers(spark, many, 1).selectExpr("value % 20 AS key", "value")
        df = df.mapInArrow(fails_once, "key long, value long")
        out = cluster.apply(df, key="key", operator=Texts, schema="key long, n long, text string", name="Texts")
        running = supervised(cluster, out, Sink(twice), tmp_path / "spark")
        try:
            upto(cluster, running, "Texts", 2)
        finally:
            running.stop()
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
    assert marker.exists()
    assert killed
    for epoch in range(3):
        values = range(epoch * many, (epoch + 1) * many)
        assert found[epoch] == sorted((value % 20, value // 20 + 1, f"{value:0250}") for value in values)


# --- another number of workers, other hosts ---


def test_a_restart_with_other_workers_and_other_hosts_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    sinks = {kind: Sink() for kind in KINDS}
    shapes: list[dict[str, Any]] = [{"workers": 3}, {"workers": 1, "host": "task"}, {"workers": 2, "host": "process"}]
    for number, shape in enumerate(shapes, 1):
        with bl.attach(spark, checkpoint=tmp_path / "bedload", **shape) as cluster:
            for kind in KINDS:
                out = applied(cluster, stream(spark), kind)
                run(out, sinks[kind], tmp_path / kind, 2 * number)
                committed(cluster, kind, 2 * number - 1)
                assert check_states(kind, states(cluster, kind)) == 2 * number - 1
                if number > 1:
                    groups = [read for read, _ in read_back(cluster, kind).values()]
                    assert sum(groups) == 256, f"all key groups were read back, each once: {groups}"
            if number == 2:
                cluster.checkpoint()  # the next one starts from snapshots
    for kind in KINDS:
        check_epochs(kind, sinks[kind].epochs, 6)


# --- Spark's checkpoint does not fit the state ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_that_is_set_back_finds_the_state_of_that_epoch(
    spark: SparkSession, durable: bl.Cluster, tmp_path: Path, kind: str
) -> None:
    name, sink = f"Back{kind}", Sink()
    out = applied(durable, stream(spark), kind, name)
    run(out, sink, tmp_path, 6)
    for epoch in (2, 0):
        set_back(tmp_path, epoch)
        again = Sink()
        run(out, again, tmp_path, epoch + 3)
        assert sorted(again.epochs) == [epoch + 1, epoch + 2]
        for number, rows in again.epochs.items():
            check_epoch(kind, number, rows)
        committed(durable, name, epoch + 2)
        assert check_states(kind, states(durable, kind, name)) == epoch + 2


def test_a_new_attachment_finds_the_state_of_an_earlier_epoch_but_not_of_one_that_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    locations = {kind: tmp_path / kind for kind in KINDS}
    with bl.attach(spark, workers=1, checkpoint=tmp_path / "bedload", retain_epochs=2) as cluster:
        for kind in KINDS:
            run(applied(cluster, stream(spark), kind), Sink(), locations[kind], 6)
            committed(cluster, kind, 5)
        assert cluster.checkpoint() == dict.fromkeys(KINDS, 5)
        for kind in KINDS:
            run(applied(cluster, stream(spark), kind), Sink(), locations[kind], 9)
            committed(cluster, kind, 8)
        assert cluster.checkpoint() == dict.fromkeys(KINDS, 8)
        for kind in KINDS:  # deleting goes on beside the query; what is there still could be gone back to
            turns = tmp_path / "bedload" / "operators" / kind / "turns"
            eventually(lambda turns=turns: len(list(turns.glob("*.json"))) <= 3, "no turn before epoch 6 is left")
    with bl.attach(spark, workers=1, checkpoint=tmp_path / "bedload", retain_epochs=2) as cluster:
        for kind in KINDS:
            out = applied(cluster, stream(spark), kind)
            again = Sink()
            set_back(locations[kind], 6)
            run(out, again, locations[kind], 8)
            check_epoch(kind, 7, again.epochs[7])
            set_back(locations[kind], 0)
            error = fail(out, again, locations[kind])
            assert "EpochNotRetained" in error
            assert "Spark asks for epoch 1" in error
            assert "retained are the states after" in error
            assert list(again.epochs) == [7], "no row was applied"


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_or_foreign_spark_checkpoint_is_refused_before_a_row_is_applied(
    spark: SparkSession, durable: bl.Cluster, tmp_path: Path, kind: str
) -> None:
    name, sink = f"Foreign{kind}", Sink()
    out = applied(durable, stream(spark), kind, name)
    run(out, sink, tmp_path / "own", 3)
    committed(durable, name, 2)
    other = applied(durable, stream(spark), kind, f"Other{kind}")
    run(other, Sink(), tmp_path / "other", 2)

    error = fail(out, sink, tmp_path / "other")
    assert "EpochMismatch" in error
    assert "at epoch 2, but there is no state" in error
    assert check_states(kind, states(durable, kind, name)) == 2

    shutil.move(tmp_path / "own", tmp_path / "aside")
    error = fail(out, sink, tmp_path / "own")
    assert "CheckpointForeign" in error
    assert "Spark's checkpoint was deleted or replaced" in error
    assert "No row was applied" in error
    assert check_states(kind, states(durable, kind, name)) == 2

    shutil.rmtree(tmp_path / "own")
    shutil.move(tmp_path / "aside", tmp_path / "own")
    run(out, sink, tmp_path / "own", 4)
    check_epochs(kind, sink.epochs, 4)


def test_a_deleted_spark_checkpoint_is_refused_by_a_new_attachment_too(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(2):
        with bl.attach(spark, workers=1, checkpoint=tmp_path / "bedload") as cluster:
            for kind in KINDS:
                out = applied(cluster, stream(spark), kind)
                if number == 0:
                    run(out, Sink(), tmp_path / kind, 2)
                    continue
                shutil.rmtree(tmp_path / kind)
                error = fail(out, Sink(), tmp_path / kind)
                assert "CheckpointForeign" in error
                assert "its state has epoch 1" in error
                # New rows from elsewhere are welcome, and come on top of all that the state had.
                sink = Sink()
                run(out, sink, tmp_path / f"{kind}-elsewhere", 1)
                counts = [row[2 if kind == "rows" else 1] for row in sink.epochs[0] if row[0] == 0]
                before, new = len(values(0, 2)), len(values(0, 1))
                expected = range(before + 1, before + new + 1) if kind == "rows" else [before + new]
                assert sorted(counts) == list(expected)


# --- two attachments ---


@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
def test_of_two_attachments_the_newer_one_wins_and_the_older_one_ends(
    spark: SparkSession, tmp_path: Path, frozen: bool
) -> None:
    """The older one is in the middle of epoch 2 of both operators when the newer one comes."""
    with recovering(tmp_path, 1, epochs=1000, gate=2) as older:
        older.expect("running")
        eventually(lambda: len(list(tmp_path.glob("waiting-*"))) == 4, "both queries gave a part of epoch 2")
        processes = family(older.pid)
        try:
            if frozen:
                for pid in processes:
                    os.kill(pid, signal.SIGSTOP)
            with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as newer:
                for kind in KINDS:
                    writer = applied(newer, stream(spark), kind).writeStream.format("parquet")
                    place = writer.option("path", str(tmp_path / f"sink-{kind}"))
                    running = newer.run(place.option("checkpointLocation", str(tmp_path / f"spark-{kind}")))
                    upto(newer, running, kind, 4)
                    running.stop()
                found = check_sinks(tmp_path, 5)
                assert {kind: check_states(kind, states(newer, kind)) for kind in KINDS}
        finally:
            for pid in processes if frozen else ():
                if alive(pid):
                    os.kill(pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        failed = older.expect("failed")
        assert "bedload.core.errors.Fenced" in failed["error"] or "Fenced" in failed["down"]
        assert failed["down"].startswith("Fenced: the checkpoint")
        assert "taken over by generation 2" in failed["down"]
    assert check_sinks(tmp_path, 5) == found, "what the older one did late changed nothing"
    checkpoint = Checkpoint.open(open_storage(str(tmp_path / "bedload")))
    for kind in KINDS:
        head = checkpoint.load_history(OperatorName(kind)).head
        assert head is not None
        assert generation_of(head) == 2


# --- executors ---


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as started:
        yield started


def test_a_killed_executor_and_a_killed_worker_in_a_task_are_replaced(machines: Standalone, tmp_path: Path) -> None:
    cores = {"spark_executor_cores": "2", "spark_executor_memory": "512m", "spark_cores_max": "4"}
    with recovering(tmp_path, 1, epochs=9, master=machines.master, spark=cores) as app:
        workers = app.expect("running")["workers"]
        _upto(app, 1)
        executors = {worker: machines.executor_of(pid) for worker, pid in workers.items()}
        victim = executors["0"]
        assert victim is not None
        lost = {worker for worker, executor in executors.items() if executor == victim}
        kill(victim.pid)
        news = _upto(app, 4)
        for worker, pid in workers.items():
            assert (news["workers"][worker] != pid) == (worker in lost), "workers in the other executor go on"
        back = {(item["operator"], str(item["worker"])): (item["read"], item["left"]) for item in news["restoring"]}
        assert back == {(kind, worker): (128 * (worker in lost), 0) for kind in KINDS for worker in workers}
        kill(news["workers"]["1"])
        done = app.expect("done")
        app.ends()
    check_done(tmp_path, done, 9)


def _upto(app: Any, epoch: int) -> dict[str, Any]:
    while True:
        news: dict[str, Any] = app.expect("epoch")
        if min(news["epochs"].values()) >= epoch:
            return news


# --- drivers ---


def test_a_driver_killed_at_random_moments_is_started_again_until_all_is_in_the_sink(tmp_path: Path) -> None:
    chance = Chance(20261115)
    epochs, number = 12, 0
    shapes = [(2, "process"), (3, "process"), (2, "task")]
    for workers, host in shapes:
        number += 1
        with recovering(tmp_path, number, epochs=1000, workers=workers, host=host) as app:
            jvm = app.expect(chance.pick(["attached", "running", "running"]))["jvm"]
            time.sleep(chance.number(0, 4000) / 1000)
            kill_driver(app, jvm, whole=chance.happens(0.7))
        check_sinks(tmp_path, 0)
    with recovering(tmp_path, number + 1, epochs=epochs) as app:
        done = app.expect("done")
        app.ends()
    check_done(tmp_path, done, epochs)
