"""Exactly once on real Spark: whatever Spark does with a batch, each row counts once, or the query says why not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bedload as bl
from bedload.core.ids import Epoch, OperatorName, QueryId, RunId
from bedload.protocol import messages as m
from bedload.transport import Channel
from tests.spark.conftest import Sink, committed, fail, numbers, run, start

pytestmark = pytest.mark.spark

SCHEMA = "key long, n long, total long"


class Now(bl.Operator):
    """Outputs from ``process``: the running count, which repeats would disturb."""

    n: int = bl.value(0)
    total: int = bl.value(0)
    log: list[int] = bl.list()

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        for row in rows:
            self.n += 1
            self.total += row.value
            self.log.append(row.value)
            yield key, self.n, self.total


class Sealed(Now):
    """Outputs at the seal."""

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        for _ in super().process(key, rows, ctx):
            pass

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, self.n, self.total


class Grouped(Sealed):
    grouped = True


KINDS = [Now, Sealed, Grouped]


def keyed(spark: SparkSession, rows: int = 200, partitions: int = 4) -> DataFrame:
    return numbers(spark, rows, partitions).selectExpr("value % 9 as key", "value")


def check_exactly_once(cluster: bl.Cluster, name: str, values: int) -> None:
    """State equals that of an oracle that never failed."""
    committed(cluster, name, values // 200 - 1)
    for key in range(9):
        expected = list(range(key, values, 9))
        answer = cluster.state(name).get(key)
        assert answer is not None
        assert (answer["n"], answer["total"]) == (len(expected), sum(expected))
        assert sorted(answer["log"]) == expected


def check_outputs(operator: type[bl.Operator], sink: Sink, values: int) -> None:
    """Every count of a key was output once."""
    for key in range(9):
        counts = sorted(n for k, n, _ in sink.rows if k == key)
        total = len(range(key, values, 9))
        if operator is Now:
            assert counts == list(range(1, total + 1))
        else:
            assert counts == sorted({len(range(key, 200 * (e + 1), 9)) for e in sink.epochs})


@pytest.mark.parametrize("operator", KINDS)
def test_a_task_that_fails_half_way_is_retried_without_applying_a_row_twice(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, operator: type[bl.Operator]
) -> None:
    marker = tmp_path / "failed"

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start_row in range(0, batch.num_rows, 10):
                yield batch.slice(start_row, 10)
            task = TaskContext.get()
            assert task is not None
            if task.partitionId() == 1 and not marker.exists():
                marker.touch()
                raise RuntimeError("a task fails after its rows were sent")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    try:
        df = keyed(spark).mapInArrow(fails_once, "key long, value long")
        name = f"Retry{operator.__name__}"
        sink = Sink()
        run(cluster.apply(df, key="key", operator=operator, schema=SCHEMA, name=name), sink, tmp_path / "c", 3)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
    assert marker.exists()
    check_exactly_once(cluster, name, 600)
    check_outputs(operator, sink, 600)


@pytest.mark.parametrize("operator", KINDS)
def test_two_actions_on_one_batch_see_the_same_outputs_and_count_once(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, operator: type[bl.Operator]
) -> None:
    name = f"Twice{operator.__name__}"
    sink = Sink()
    pairs = []

    def twice(batch: DataFrame, epoch: int) -> None:
        first = sorted(map(tuple, batch.collect()))
        second = sorted(map(tuple, batch.collect()))
        pairs.append((first, second, batch.count()))
        sink.epochs[epoch] = first

    out = cluster.apply(keyed(spark), key="key", operator=operator, schema=SCHEMA, name=name)
    run(out, Sink(twice), tmp_path, 2)
    assert len(pairs) == 2
    assert all(first == second and len(first) == count for first, second, count in pairs)
    check_exactly_once(cluster, name, 400)
    check_outputs(operator, sink, 400)


def test_two_actions_of_different_shape_are_refused_and_persist_makes_them_work(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    out = cluster.apply(keyed(spark), key="key", operator=Now, schema=SCHEMA, name="Shapes")

    def different(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        batch.coalesce(1).collect()

    error = fail(out, different, tmp_path)
    assert "NotDeterministic" in error
    assert "persist()" in error

    sink = Sink()

    def persisted(batch: DataFrame, epoch: int) -> None:
        batch.persist()
        sink.epochs[epoch] = [tuple(row) for row in batch.coalesce(1).collect()]
        assert batch.count() == len(sink.epochs[epoch])
        batch.unpersist()

    run(out, Sink(persisted), tmp_path, 2)
    check_exactly_once(cluster, "Shapes", 400)
    check_outputs(Now, sink, 400)


@pytest.mark.parametrize("operator", KINDS)
def test_a_downstream_coalesce_runs_all_partitions_in_one_task(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, operator: type[bl.Operator]
) -> None:
    name = f"Coalesce{operator.__name__}"
    out = cluster.apply(keyed(spark), key="key", operator=operator, schema=SCHEMA, name=name)
    sink = Sink()
    run(out.coalesce(1), sink, tmp_path, 3)
    check_exactly_once(cluster, name, 600)
    check_outputs(operator, sink, 600)


@pytest.mark.parametrize("operator", KINDS)
def test_more_partitions_than_task_slots_do_not_wait_for_each_other(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, operator: type[bl.Operator]
) -> None:
    name = f"Slots{operator.__name__}"
    out = cluster.apply(keyed(spark, 200, 7), key="key", operator=operator, schema=SCHEMA, name=name)
    sink = Sink()
    run(out, sink, tmp_path, 2)
    check_exactly_once(cluster, name, 400)
    check_outputs(operator, sink, 400)


def test_an_upstream_shuffle_and_a_union_of_two_sources_count_every_row(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    shuffled = keyed(spark, 100, 2).repartition(3, "key")
    other = numbers(spark, 100, 3).selectExpr("value % 9 as key", "value + 1000000 as value")
    out = cluster.apply(shuffled.union(other), key="key", operator=Sealed, schema=SCHEMA, name="Union")
    run(out, Sink(), tmp_path, 3)
    committed(cluster, "Union", 2)
    for key in range(9):
        expected = list(range(key, 300, 9))
        answer = cluster.state("Union").get(key)
        assert answer is not None
        assert sorted(answer["log"]) == sorted(expected + [v + 1000000 for v in expected])


def test_operators_on_both_sides_of_a_union_and_a_coalesce_find_their_own_partitions(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    left = cluster.apply(keyed(spark, 200, 5), key="key", operator=Now, schema=SCHEMA, name="Left")
    right = cluster.apply(keyed(spark, 200, 2), key="key", operator=Sealed, schema=SCHEMA, name="Right")
    both = left.coalesce(2).union(right).selectExpr("key", "n as value")
    out = cluster.apply(both, key="key", operator=Sealed, schema=SCHEMA, name="Both")
    run(out, Sink(), tmp_path, 2)
    check_exactly_once(cluster, "Left", 400)
    check_exactly_once(cluster, "Right", 400)
    committed(cluster, "Both", 1)
    for key in range(9):
        answer = cluster.state("Both").get(key)
        assert answer is not None
        assert answer["n"] == len(range(key, 400, 9)) + 2


def test_an_upstream_that_is_not_deterministic_is_noticed_on_a_repeat(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    def changing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for batch in batches:
            noise = pa.array([int.from_bytes(os.urandom(4), "big")] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column(0), noise], names=["key", "value"])

    df = keyed(spark).mapInArrow(changing, "key long, value long")
    out = cluster.apply(df, key="key", operator=Now, schema=SCHEMA, name="Noise")

    def twice(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        batch.collect()

    error = fail(out, twice, tmp_path)
    assert "NotDeterministic" in error
    assert "persist()" in error
    sink = Sink()
    run(out, sink, tmp_path, 2)  # one action: whatever came first counts
    committed(cluster, "Noise", 1)
    answer = cluster.state("Noise").get(0)
    assert answer is not None
    assert answer["n"] == len(range(0, 400, 9))


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_consumer_that_stops_early_is_named_at_the_next_epoch(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, partitions: int
) -> None:
    """Inside a partition (1), and before some partitions ran at all (4)."""
    name = f"Early{partitions}"
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        df = keyed(spark, 20_000, partitions)
        out = cluster.apply(df, key="key", operator=Now, schema=SCHEMA, name=name)
        error = fail(out, lambda batch, epoch: batch.take(1), tmp_path)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
    assert "EpochIncomplete" in error
    assert "epoch 0" in error
    assert "stopped early" in error
    assert cluster.state(name).get(0) is None, "what was not committed is not seen"


def test_a_batch_that_no_action_consumed_is_named_at_the_next_epoch(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    out = cluster.apply(keyed(spark), key="key", operator=Now, schema=SCHEMA, name="Skipped")

    def skips(batch: DataFrame, epoch: int) -> None:
        if epoch != 1:
            batch.collect()

    error = fail(out, skips, tmp_path)
    assert "EpochIncomplete" in error
    assert "epoch 1" in error


def test_an_epoch_without_data_for_the_operator_is_no_gap(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.json").write_text('{"key": 1, "value": 1}\n')
    files = spark.readStream.schema("key long, value long").json(str(folder))
    applied = cluster.apply(files, key="key", operator=Sealed, schema=SCHEMA, name="Quiet")
    other = numbers(spark, 10, 1).selectExpr("value as key", "value as n", "value as total")
    sink = Sink()

    def feeds_later(batch: DataFrame, epoch: int) -> None:
        sink(batch, epoch)
        if epoch == 3:
            (folder / "1.json").write_text('{"key": 1, "value": 5}\n')

    run(applied.union(other), Sink(feeds_later), tmp_path / "c", 7)
    committed(cluster, "Quiet", 1)
    answer = cluster.state("Quiet").get(1)
    assert answer is not None
    assert answer["log"] == [1, 5]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_an_epoch_of_empty_files_is_no_gap(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    row = {"json": '{"key": 1, "value": %d}\n', "csv": "1,%d\n"}[kind]
    texts = ["", row % 1, "", "", row % 5, "", row % 7, row % 0]
    for number, text in enumerate(texts):
        (folder / f"{number}.{kind}").write_text(text)
        os.utime(folder / f"{number}.{kind}", (1e9 + number, 1e9 + number))
    reader = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1).format(kind)
    out = cluster.apply(reader.load(str(folder)), key="key", operator=Sealed, schema=SCHEMA, name=f"Empty{kind}")
    sink = Sink()
    run(out, sink, tmp_path / "c", len(texts) - 1)
    assert sink.rows == [(1, 1, 1), (1, 2, 6), (1, 3, 13)]
    committed(cluster, f"Empty{kind}", len(texts) - 2)
    answer = cluster.state(f"Empty{kind}").get(1)
    assert answer is not None
    assert answer["log"] == [1, 5, 7]


def test_empty_files_that_spark_has_deleted_are_no_gap(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    """``cleanSource`` removes them when the next epoch begins, before its tasks ask."""
    folder = tmp_path / "in"
    folder.mkdir()
    texts = ["1,1\n", "", "", "1,5\n", "", "1,7\n", "1,0\n"]
    for number, text in enumerate(texts):
        (folder / f"{number}.csv").write_text(text)
        os.utime(folder / f"{number}.csv", (1e9 + number, 1e9 + number))
    reader = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1)
    files = reader.option("cleanSource", "delete").csv(str(folder))
    out = cluster.apply(files, key="key", operator=Sealed, schema=SCHEMA, name="Cleaned")
    run(out, Sink(), tmp_path / "c", len(texts) - 1)
    committed(cluster, "Cleaned", len(texts) - 2)
    answer = cluster.state("Cleaned").get(1)
    assert answer is not None
    assert answer["log"] == [1, 5, 7]


def test_empty_files_that_no_action_looked_at_do_not_hide_one_with_rows(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, text in enumerate(["1,1\n", "", "1,5\n", "", "1,7\n"]):
        (folder / f"{number}.csv").write_text(text)
        os.utime(folder / f"{number}.csv", (1e9 + number, 1e9 + number))
    reader = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1)
    out = cluster.apply(reader.csv(str(folder)), key="key", operator=Sealed, schema=SCHEMA, name="Hidden")

    def skips(batch: DataFrame, epoch: int) -> None:
        if epoch not in (1, 2):
            batch.collect()

    error = fail(out, skips, tmp_path)
    assert "EpochIncomplete" in error
    assert "epoch 2" in error


def test_a_batch_without_rows_behind_a_shuffle_is_no_gap(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"  # else there is nothing to be seen here
    rows = keyed(spark).where("value % 800 < 200").repartition("key")
    out = cluster.apply(rows, key="key", operator=Sealed, schema=SCHEMA, name="Shuffled")
    run(out, Sink(), tmp_path / "c", 6)
    committed(cluster, "Shuffled", 5)
    for key in range(9):
        answer = cluster.state("Shuffled").get(key)
        assert answer is not None
        assert sorted(answer["log"]) == [v for v in range(key, 1200, 9) if v % 800 < 200]


@pytest.mark.parametrize("operator", KINDS)
def test_an_epoch_that_spark_did_not_commit_is_rolled_back_and_replayed(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, operator: type[bl.Operator]
) -> None:
    name = f"Replay{operator.__name__}"
    out = cluster.apply(keyed(spark), key="key", operator=operator, schema=SCHEMA, name=name)
    sink = Sink()
    tries = {0: 0, 1: 0, 2: 0}

    def crashes(batch: DataFrame, epoch: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        tries[epoch] += 1
        if epoch == 1 and tries[1] <= 2:
            raise OSError("the sink failed after the epoch was sealed")
        sink.epochs[epoch] = rows

    for _ in range(2):
        assert "the sink failed" in fail(out, crashes, tmp_path)
    run(out, Sink(crashes), tmp_path, 3)
    assert tries == {0: 1, 1: 3, 2: 1}
    check_exactly_once(cluster, name, 600)
    check_outputs(operator, sink, 600)


def test_messages_of_a_former_run_are_refused(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    out = cluster.apply(keyed(spark, 20, 1), key="key", operator=Now, schema=SCHEMA, name="Former")
    first = run(out, Sink(), tmp_path, 1)
    query = start(out, Sink(), tmp_path)
    try:
        while not cluster.committed("Former").get(str(query.id), 0):
            query.awaitTermination(0.1)
        deployment = cluster._driver.call(lambda c: c.operator(OperatorName("Former")).deployment)
        assert deployment is not None
        former = m.Open(
            OperatorName("Former"),
            deployment,
            QueryId(str(first.id)),
            RunId(str(first.runId)),
            Epoch(1),
            0,
            0,
            99,
            "zombie",
        )
        driver = cluster._driver
        with Channel.connect(driver.address, cluster._credentials) as channel:
            channel.send(m.encode(former))
            answer = m.decode(channel.recv(10).header)
        assert isinstance(answer, m.Refused)
        assert answer.error.kind == "StaleAttempt"
        coordinator = driver.coordinator
        assert coordinator is not None
        worker_address = next(iter(coordinator.workers.values()))
        with Channel.connect(worker_address, cluster._credentials) as channel:
            join = m.Join(OperatorName("Former"), m.Turn(0), m.FeederId(0, 0))
            channel.send(m.encode(join), (pa.schema([]).serialize(),))
            answer = m.decode(channel.recv(10).header)
        assert isinstance(answer, m.Refused)
        assert answer.error.kind == "StaleAttempt"
    finally:
        query.stop()
    assert query.exception() is None


def test_an_exception_of_user_code_rolls_back_and_the_fixed_operator_goes_on(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    class Poisoned(Now):
        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            for row in rows:
                if row.value == 333:
                    raise ValueError("cannot take 333")
            yield from super().process(key, rows, ctx)

    def applied(operator: type[bl.Operator]) -> DataFrame:
        return cluster.apply(keyed(spark), key="key", operator=operator, schema=SCHEMA, name="Fixed")

    sink = Sink()
    error = fail(applied(Poisoned), sink, tmp_path)
    assert "OperatorFailed" in error
    assert "cannot take 333" in error
    assert "key 0, epoch 1" in error
    assert "test_epochs.py" in error, "the user's own traceback"
    run(applied(Now), sink, tmp_path, 3)
    check_exactly_once(cluster, "Fixed", 600)
    check_outputs(Now, sink, 600)


def test_an_operator_that_is_used_twice_in_a_plan_is_refused(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    out = cluster.apply(keyed(spark), key="key", operator=Now, schema=SCHEMA, name="Doubled")
    error = fail(out.union(out), Sink(), tmp_path)
    assert "2 times in the plan" in error


def test_a_second_query_on_the_same_operator_is_refused_while_the_first_runs(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    out = cluster.apply(keyed(spark), key="key", operator=Now, schema=SCHEMA, name="Busy")
    sink = Sink()
    first = start(out, sink, tmp_path / "one")
    try:
        while not sink.epochs:
            first.awaitTermination(0.1)
        assert "OperatorBusy" in fail(out, Sink(), tmp_path / "two")
        with pytest.raises(bl.errors.OperatorBusy, match="in use by the running query"):
            cluster.apply(keyed(spark), key="key", operator=Now, schema=SCHEMA, name="Busy")
    finally:
        first.stop()
    assert first.exception() is None


def test_a_query_whose_earlier_epochs_are_not_in_the_state_is_refused_unless_fresh(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    def applied(name: str, *, fresh: bool = False) -> DataFrame:
        return cluster.apply(keyed(spark, 20, 1), key="key", operator=Now, schema=SCHEMA, name=name, fresh=fresh)

    run(applied("Old"), Sink(), tmp_path, 2)
    error = fail(applied("New"), Sink(), tmp_path)
    assert "EpochMismatch" in error
    assert "fresh=True" in error
    run(applied("New", fresh=True), Sink(), tmp_path, 4)
    committed(cluster, "New", 3)
    assert sum(answer["n"] for k in range(9) if (answer := cluster.state("New").get(k))) == 40


def test_rows_of_a_source_partition_reach_a_key_in_order(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "17")
    try:
        df = numbers(spark, 1000, 3).select(
            (F.col("value") % 9).alias("key"), "value", F.spark_partition_id().alias("p")
        )

        class Ordered(bl.Operator):
            by_source: dict[int, list[int]] = bl.map()

            def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
                for row in rows:
                    self.by_source.setdefault(row.p, []).append(row.value)

        run(cluster.apply(df, key="key", operator=Ordered, schema="x long"), Sink(), tmp_path, 2)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
    committed(cluster, "Ordered", 1)
    for key in range(9):
        answer = cluster.state("Ordered").get(key)
        assert answer is not None
        assert sorted(v for values in answer["by_source"].values() for v in values) == list(range(key, 2000, 9))
        for values in answer["by_source"].values():
            assert values == sorted(values)
