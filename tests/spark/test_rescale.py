"""Clusters that grow and shrink while queries run: what comes out equals that of one that was left alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from bedload.control import inquiries
from bedload.core.errors import DefinitionError, MoveCancelled, MoveFailed, MoveRefused, TooFewSlots, WorkerStartFailed
from tests.patience import PATIENCE
from tests.spark.apps import alive, eventually
from tests.spark.conftest import Sink, committed, fail, numbers, run
from tests.spark.moving import live
from tests.spark.tally import KEYS, KINDS, ROWS, applied, check_epochs, check_states, states, stream

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("moving") / "checkpoint"


@pytest.fixture(scope="module")
def durable(spark: SparkSession, place: Path) -> Iterator[bl.Cluster]:
    """A cluster that tests change, with operators under names of their own; each test leaves two workers or more."""
    with bl.attach(spark, workers=2, checkpoint=place) as cluster:
        yield cluster


def rows_of(cluster: bl.Cluster, kind: str) -> list[dict[str, Any]]:
    return [row for row in cluster.history() if row["kind"] == kind]


# --- what comes out ---


def test_a_stream_that_is_rescaled_and_has_keys_moved_equals_one_that_was_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        bl.attach(spark, workers=2, checkpoint=tmp_path / "checkpoint") as cluster,
        live(spark, cluster, tmp_path) as running,
    ):
        pids = dict(cluster.workers)
        done = cluster.rescale(4).wait(PATIENCE)
        assert sorted(cluster.workers) == [0, 1, 2, 3]
        assert {worker: cluster.workers[worker] for worker in pids} == pids, "those that were there go on"
        assert {it.operator: it.moved_groups for it in done.records} == {"rows": 128, "columns": 128}
        running.go_on()
        for kind in KINDS:
            cluster.move(keys=[1, 2, 3], to=3, operator=kind).wait(PATIENCE)
        running.go_on()
        pids = dict(cluster.workers)
        cluster.rescale(3).wait(PATIENCE)
        assert sorted(cluster.workers) == [0, 1, 2]
        eventually(lambda: not alive(pids[3]), "the worker that was drained has ended")
        cluster.pin(7, 2, operator="rows").wait(PATIENCE)
        running.go_on()
        cluster.rescale(1).wait(PATIENCE)
        assert sorted(cluster.workers) == [0]
        running.go_on()
        cluster.rescale(2).wait(PATIENCE)
        cluster.move(key_groups=range(0, 256, 2), to=1, operator="columns").wait(PATIENCE)
        running.go_on()
        assert [row["workers_after"] for row in rows_of(cluster, "rescale")[::2]] == [4, 3, 1, 2]
        assert all(row["outcome"] == "done" for row in cluster.history())


def test_state_that_is_in_memory_only_moves_too(spark: SparkSession, tmp_path: Path) -> None:
    with bl.attach(spark, workers=1) as cluster, live(spark, cluster, tmp_path) as running:
        cluster.rescale(2).wait(PATIENCE)
        running.go_on()
        cluster.move(keys=[4, 5], to=1, operator="columns").wait(PATIENCE)
        cluster.move(key_groups=range(100), to=1, operator="rows").wait(PATIENCE)
        running.go_on()
        cluster.rebalance().wait(PATIENCE)
        running.go_on()
        cluster.drain(0).wait(PATIENCE)
        assert sorted(cluster.workers) == [1]
        with pytest.raises(MoveRefused, match="attach with"):
            cluster.rescale(2, strategy="stop_restart")


def test_every_strategy_leaves_output_and_state_as_they_would_have_been(spark: SparkSession, tmp_path: Path) -> None:
    with (
        bl.attach(spark, workers=2, checkpoint=tmp_path / "checkpoint") as cluster,
        live(spark, cluster, tmp_path) as running,
    ):
        for name, strategy in bl.strategies.items():
            if strategy.restart:
                before = set(cluster.workers.values())
                result = cluster.rescale(2, strategy=name).wait(PATIENCE)
                assert not before & set(cluster.workers.values()), "all workers are others"
            else:
                cluster.move(key_groups=range(256), to=0, operator="rows", strategy=name).wait(PATIENCE)
                cluster.move(key_groups=range(256), to=1, operator="columns", strategy=name).wait(PATIENCE)
                running.go_on()
                result = cluster.move(key_groups=range(0, 256, 2), to=1, operator="rows", strategy=name).wait(PATIENCE)
                cluster.move(key_groups=range(0, 256, 2), to=0, operator="columns", strategy=name).wait(PATIENCE)
                assert result.records[0].moved_groups == 128
                assert result.moved_keys > 0
                assert result.moved_bytes > 0
            assert result.strategy == name
            running.go_on()
        chosen = cluster.move(key_groups=range(256), to=0, operator="rows", strategy="auto").wait(PATIENCE)
        assert chosen.strategy in bl.strategies
        assert "state" in chosen.why
        assert chosen.why in str(chosen)


# --- without a query that runs ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster_is_rescaled_before_the_first_query_and_between_two_runs_of_it(
    spark: SparkSession, durable: bl.Cluster, tmp_path: Path, kind: str
) -> None:
    name, sink = f"Between{kind}", Sink()
    durable.rescale(3).wait(PATIENCE)
    out = applied(durable, stream(spark), kind, name)
    durable.rescale(2).wait(PATIENCE)
    run(out, sink, tmp_path / "spark", 3)
    committed(durable, name, 2)
    done = durable.rescale(3).wait(PATIENCE)
    assert next(it for it in done.records if it.operator == name).moved_keys > 0
    assert check_states(kind, states(durable, kind, name)) == 2
    run(out, sink, tmp_path / "spark", 5)
    durable.rescale(2).wait(PATIENCE)
    run(out, sink, tmp_path / "spark", 6)
    check_epochs(kind, sink.epochs, 6)
    eventually(lambda: check_states(kind, states(durable, kind, name)) == 5, "epoch 5 is committed")


def _fails_after_the_seal(batch: DataFrame, _: int) -> None:
    """Spark has read all outputs of the epoch, and does not commit it."""
    batch.collect()
    raise RuntimeError("the sink fails after the seal")


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_checkpoint", [True, False])
def test_changes_end_after_their_query_failed_within_an_epoch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool, kind: str, in_checkpoint: bool
) -> None:
    monkeypatch.setattr(inquiries, "MOST_LOOKS", 2)
    place = tmp_path / "checkpoint" if in_checkpoint else None
    with bl.attach(spark, workers=2, checkpoint=place) as cluster:
        rows, sink = stream(spark), Sink()
        out = applied(cluster, rows, kind)
        run(out, sink, tmp_path / "spark", 2)
        committed(cluster, kind, 1)
        # No epoch comes that these could wait for.
        if sealed:
            fail(out, _fails_after_the_seal, tmp_path / "spark")
            with pytest.raises(MoveFailed, match=r"its last epoch, 2, is not known to be committed.*Start the query"):
                cluster.rescale(3).wait(PATIENCE)
            assert sorted(cluster.workers) == [0, 1]
        else:
            bad = rows.selectExpr("key", f"if(value < {2 * ROWS} or key <> 3, value, raise_error('bad')) as value")
            assert "bad" in fail(applied(cluster, bad, kind), sink, tmp_path / "spark")
            cluster.rescale(3).wait(PATIENCE)
            cluster.pin(5, 1, operator=kind).wait(PATIENCE)
            out = applied(cluster, rows, kind)
        assert check_states(kind, states(cluster, kind)) == 1, "epoch 2 is not committed, so it is not there"
        run(out, sink, tmp_path / "spark", 3)
        committed(cluster, kind, 2)
        cluster.drain(0).wait(PATIENCE)
        run(out, sink, tmp_path / "spark", 4)
        check_epochs(kind, sink.epochs, 4)
        eventually(lambda: check_states(kind, states(cluster, kind)) == 3, "epoch 3 is committed")


def test_a_cluster_without_operators_is_rescaled(spark: SparkSession, tmp_path: Path) -> None:
    with bl.attach(spark, workers=1) as cluster:
        done = cluster.rescale(2).wait(PATIENCE)
        assert (done.records, done.moved_keys, sorted(cluster.workers)) == ((), 0, [0, 1])
        assert cluster.history().df().count() == 0
        cluster.drain(0).wait(PATIENCE)
        assert sorted(cluster.workers) == [1]
        sink = Sink()
        run(applied(cluster, stream(spark), "rows"), sink, tmp_path / "spark", 2)
        check_epochs("rows", sink.epochs, 2)


# --- one after the other, or not at all ---


def test_requests_wait_for_those_before_them_and_can_be_called_off(spark: SparkSession, durable: bl.Cluster) -> None:
    durable.rescale(2).wait(PATIENCE)
    first, second, third = durable.rescale(4), durable.rescale(3), durable.rescale(2)
    assert third.stage == "waits for the changes before it (rescale to 4 workers, rescale to 3 workers)"
    assert str(third) == f"rescale to 2 workers: 0%, {third.stage}"
    assert third.cancel()
    with pytest.raises(MoveCancelled, match="called off"):
        third.wait(0)
    assert repr(third) == "<rescale to 2 workers: called off>"
    assert third.done
    assert not third.cancel()
    second.wait(PATIENCE)
    assert first.done
    assert (first.progress, first.stage) == (1.0, "over")
    assert sorted(durable.workers) == [0, 1, 2]
    assert not second.cancel(), "it is over"


def test_a_change_that_is_called_off_while_its_workers_start_leaves_the_cluster_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Sink()
    with bl.attach(spark, workers=1, checkpoint=tmp_path / "checkpoint") as cluster:
        out = applied(cluster, stream(spark), "rows")
        run(out, sink, tmp_path / "spark", 2)
        change = cluster.rescale(2)
        assert not change.done
        assert change.result is None
        with pytest.raises(TimeoutError, match="rescale to 2 workers is not over"):
            change.wait(0)
        assert change.cancel()
        with pytest.raises(MoveCancelled):
            change.wait(PATIENCE)
        assert sorted(cluster.workers) == [0]
        (row,) = cluster.history()
        assert (row["outcome"], row["workers_before"], row["workers_after"]) == ("called off", 1, 1)
        cluster.rescale(2).wait(PATIENCE)
        assert sorted(cluster.workers) == [0, 1]
        run(out, sink, tmp_path / "spark", 4)
        check_epochs("rows", sink.epochs, 4)


@pytest.mark.parametrize("how", ["cannot be started", "ends at once", "never comes"])
def test_a_worker_that_does_not_come_up_fails_the_change_and_nothing_else(
    spark: SparkSession, durable: bl.Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    durable.rescale(2).wait(PATIENCE)
    before = dict(durable.workers)
    with monkeypatch.context() as patched:
        patched.setenv("BEDLOAD_NO_FORK", "1")  # one that is forked has no interpreter to be missing
        match how:
            case "cannot be started":
                patched.setattr("bedload.spark.hosts.sys.executable", "/nowhere/python")
            case "ends at once":
                patched.setattr("bedload.spark.hosts.sys.executable", "/bin/false")
            case _:
                patched.setattr("bedload.spark.hosts.sys.executable", "/bin/cat")
                patched.setattr(durable._driver, "_replace_seconds", 0.3)
        with pytest.raises(WorkerStartFailed, match="worker 2 was asked for and did not come up"):
            durable.rescale(3).wait(PATIENCE)
    assert durable.workers == before
    durable.rescale(3).wait(PATIENCE)
    assert sorted(durable.workers) == [0, 1, 2]
    durable.rescale(2).wait(PATIENCE)


def test_a_cluster_that_stops_ends_its_changes(spark: SparkSession) -> None:
    cluster = bl.attach(spark, workers=1)
    try:
        change = cluster.rescale(2)
    finally:
        cluster.stop()
    with pytest.raises(bl.errors.ClusterStopped):
        change.wait(0)
    assert "failed" in repr(change)


# --- the history ---


def test_every_change_is_in_the_history_and_the_next_attachment_sees_it(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    place, sink = tmp_path / "checkpoint", Sink()
    with bl.attach(spark, workers=1, checkpoint=place) as cluster:
        assert cluster.history() == []
        out = applied(cluster, stream(spark), "columns", "Kept")
        run(out, sink, tmp_path / "spark", 3)
        committed(cluster, "Kept", 2)
        cluster.rescale(2).wait(PATIENCE)
        run(out, sink, tmp_path / "spark", 5)
        row = cluster.history().df().first()
        assert row is not None
        assert (row.attachment, row.number, row.kind, row.operator, row.outcome) == (1, 0, "rescale", "Kept", "done")
        assert (row.workers_before, row.workers_after, row.moved_groups) == (1, 2, 128)
        assert 0 < row.moved_keys < KEYS
        assert row.duration_s > 0
        assert row.epoch_s_median > 0
        assert abs(row.requested.timestamp() - (place / "moves").stat().st_mtime) < 24 * 3600
    kept = sorted(path.name for path in (place / "moves").iterdir())
    assert kept == ["0000000001-0000000000-Kept.json"]
    assert json.loads((place / "moves" / kept[0]).read_text())["move"]["moved_groups"] == 128
    (place / "moves" / "0000000001-0000000009-Kept.json").write_text("{")
    (place / "moves" / "notes.txt").write_text("a stranger's")
    with bl.attach(spark, workers=2, checkpoint=place) as cluster, caplog.at_level(logging.WARNING, "bedload"):
        run(applied(cluster, stream(spark), "columns", "Kept"), sink, tmp_path / "spark", 6)
        cluster.move(key_groups=[0], to=1).wait(PATIENCE)
        found = cluster.history()
        assert [(row["attachment"], row["number"], row["kind"]) for row in found] == [
            (1, 0, "rescale"),
            (2, 0, "move"),
        ]
        assert found[0]["requested"] < found[1]["requested"]
        told = str(found).splitlines()
        assert told[0].split()[:4] == ["number", "kind", "operator", "outcome"]
        assert [line.split()[:4] for line in told[1:3]] == [
            ["0", "rescale", "Kept", "done"],
            ["0", "move", "Kept", "done"],
        ]
        assert all(len(line) <= 110 for line in told)
        found.show()
        found.show(1, vertical=True, all_columns=True)
        shown = capsys.readouterr().out
        assert shown.count("stoppage_ms_p99") == 2
        assert shown.count("stabilise_s") == 1, "all columns on demand"
        assert "0000000001-0000000009-Kept.json" in caplog.text
        assert cluster.history().df().count() == 2
        epoch = cluster.epochs().df().collect()[-1].asDict()
        assert epoch == cluster.epochs()[-1], "all three are lists of dicts, and DataFrames"
        assert [row.asDict() for row in cluster.restoring().df().collect()] == cluster.restoring()
        assert cluster.checkpointing().df().columns == [
            "operator",
            "epoch",
            "worker",
            "written",
            "left",
            "keys",
            "bytes",
            "asked",
        ]
        check_epochs("columns", sink.epochs, 6)
        copy = bl.attach(spark, workers=1, checkpoint=cluster.export(tmp_path / "copy"))
        with copy:
            assert copy.history() == [], "a copy has a story of its own"


# --- what is refused ---


def test_what_cannot_be_is_refused_with_what_to_do(spark: SparkSession, durable: bl.Cluster) -> None:
    durable.rescale(2).wait(PATIENCE)
    for wrong in (0, -1, True, 1.5, "2"):
        with pytest.raises(DefinitionError, match="at least 1"):
            durable.rescale(wrong)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"no strategy 'quick'; there are: stop_restart, .* and auto"):
        durable.rescale(3, strategy="quick")
    with pytest.raises(MoveRefused, match="no worker 7 to drain; there are 0, 1"):
        durable.drain(7)
    same = durable.rescale(2)
    assert same.done
    assert str(same.wait()) == "rescale to 2 workers: done, no state moved"
    with bl.attach(spark, workers=1) as small, pytest.raises(MoveRefused, match="worker 0 is the last one"):
        small.drain(0)


def test_workers_in_tasks_need_a_slot_each_and_one_for_a_feeder(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    with bl.attach(spark, workers=1, host="task") as cluster:
        with pytest.raises(TooFewSlots, match=r"need 3 task slots, but Spark has 2\. .*rescale\(1\)"):
            cluster.rescale(2)
        run(applied(cluster, numbers(spark).selectExpr("value as key", "value"), "columns"), sink, tmp_path, 2)
        assert len(sink.rows) == 200
        assert sorted(cluster.workers) == [0]
