"""Single keys that live where they are put: moved, pinned, let go, read and counted while the query runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bedload as bl
from bedload.core.errors import DefinitionError, KeyTypeError, MoveRefused, UnknownOperator
from bedload.keys import RoutingTable
from tests.patience import PATIENCE
from tests.spark.apps import eventually
from tests.spark.conftest import Sink, committed, numbers, run
from tests.spark.faults import kill
from tests.spark.moving import Live, live
from tests.spark.tally import KEYS, KINDS, ROWS, applied, check_epochs, check_states, states, stream

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", params=["durable", "memory"])
def two(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two workers, and one that tests drain; each test applies operators under its own name."""
    place = tmp_path_factory.mktemp("keys") / "checkpoint" if request.param == "durable" else None
    with bl.attach(spark, workers=2, checkpoint=place) as cluster:
        yield cluster


def routing(cluster: bl.Cluster, name: str) -> RoutingTable:
    return cluster._driver.call(lambda c: c.operator(name).routing)  # type: ignore[arg-type]


def owner(cluster: bl.Cluster, name: str, key: Any) -> int:
    return int(routing(cluster, name).owner_of_key(cluster.state(name).hash_of(key)))


@pytest.mark.parametrize("kind", KINDS)
def test_of_the_keys_that_are_moved_those_with_state_are_counted(
    spark: SparkSession, two: bl.Cluster, tmp_path: Path, kind: str
) -> None:
    name = f"Counted{kind}"
    run(applied(two, stream(spark), kind, name), Sink(), tmp_path / "spark", 1)
    committed(two, name, 0)
    home = owner(two, name, 1)
    absent = [key for key in range(KEYS, 10 * KEYS) if owner(two, name, key) == home]
    done = two.move(keys=[1, *absent[:2]], to=1 - home, operator=name).wait(PATIENCE)
    assert (done.what, done.moved_keys) == (f"move of 3 keys of {name} to worker {1 - home}", 1)
    (row,) = [row for row in two.history() if row["operator"] == name]
    assert (row["kind"], row["moved_keys"], row["moved_groups"]) == ("move", 1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_lives_with_its_worker_until_it_is_let_go_also_between_runs(
    spark: SparkSession, two: bl.Cluster, tmp_path: Path, kind: str
) -> None:
    name, sink = f"Pinned{kind}", Sink()
    out = applied(two, stream(spark), kind, name)
    home = {key: owner(two, name, key) for key in range(KEYS)}
    run(out, sink, tmp_path / "spark", 2)
    committed(two, name, 1)
    away = {key: 1 - at for key, at in home.items() if key < 6}
    for target in (0, 1):
        keys = [key for key, at in away.items() if at == target]
        done = two.move(keys=keys, to=target, operator=name).wait(PATIENCE)
        assert (done.records[0].single_keys, done.moved_keys) == (len(keys), len(keys))
    assert {key: owner(two, name, key) for key in range(KEYS)} == {**home, **away}
    assert check_states(kind, states(two, kind, name)) == 1, "a read goes to where the key is"
    assert two.state(name).count() == KEYS
    run(out, sink, tmp_path / "spark", 4)
    two.unpin(0, operator=name).wait(PATIENCE)
    assert owner(two, name, 0) == home[0]
    with pytest.raises(
        MoveRefused, match=f"unpin of key 0 of {name}: there is nothing to do, since no such key is pinned"
    ):
        two.unpin(0, operator=name)
    two.pin(1, home[1], operator=name).wait(PATIENCE)
    run(out, sink, tmp_path / "spark", 6)
    check_epochs(kind, sink.epochs, 6)
    kinds = [row["kind"] for row in two.history() if row["operator"] == name]
    assert kinds == ["move", "move", "unpin", "pin"], "as they were asked for; a call that is refused has no row"
    eventually(lambda: two.committed(name) != {} and max(two.committed(name).values()) == 5, "epoch 5 is committed")
    assert check_states(kind, states(two, kind, name)) == 5
    assert two.state(name).count() == KEYS


def test_a_worker_that_is_drained_takes_no_pins_with_it(spark: SparkSession, two: bl.Cluster, tmp_path: Path) -> None:
    name, sink = "Drained", Sink()
    out = applied(two, stream(spark), "rows", name)
    run(out, sink, tmp_path / "spark", 2)
    two.rescale(3).wait(PATIENCE)
    for key in range(4):
        two.pin(key, 2, operator=name).wait(PATIENCE)
    run(out, sink, tmp_path / "spark", 3)
    two.drain(2).wait(PATIENCE)
    assert routing(two, name).pins == ()
    run(out, sink, tmp_path / "spark", 4)
    check_epochs("rows", sink.epochs, 4)
    assert two.state(name).count() == KEYS


def test_a_key_of_several_columns_is_moved_as_a_tuple(spark: SparkSession, two: bl.Cluster, tmp_path: Path) -> None:
    df = numbers(spark).selectExpr("value % 3 as a", "cast(value % 2 as string) as b", "value")
    out = two.aggregate(df, key=["a", "b"], name="Pairs", n=bl.agg.count())
    run(out, Sink(), tmp_path / "spark", 2)
    committed(two, "Pairs", 1)
    target = 1 - owner(two, "Pairs", (2, "1"))
    assert two.move(keys=[(2, "1")], to=target, operator="Pairs").wait(PATIENCE).moved_keys == 1
    answer = two.state("Pairs").get((2, "1"))
    assert answer is not None
    assert list(answer.values()) == [33]
    with pytest.raises(KeyTypeError, match="tuple"):
        two.pin("2", target, operator="Pairs")


def test_reads_go_on_while_keys_move(spark: SparkSession, tmp_path: Path) -> None:
    problems: list[BaseException] = []
    stop = threading.Event()

    def read(running: Live) -> None:
        seen = -1
        try:
            while not stop.is_set():
                answer = running.cluster.state("rows").get(7)
                assert answer is not None, "the key was there, and is not any more"
                assert answer.epoch >= seen, "a read went back in time"
                assert answer["n"] == len(range(7, (answer.epoch + 1) * ROWS, KEYS))
                seen = answer.epoch
        except BaseException as error:
            problems.append(error)

    with (
        bl.attach(spark, workers=2, checkpoint=tmp_path / "checkpoint") as cluster,
        live(spark, cluster, tmp_path) as running,
    ):
        reader = threading.Thread(target=read, args=(running,))
        reader.start()
        try:
            for target in (0, 1, 0, 1):
                cluster.pin(7, target, operator="rows").wait(PATIENCE)
                running.go_on()
                cluster.move(key_groups=range(256), to=target, operator="rows").wait(PATIENCE)
                running.go_on()
            cluster.drain(1).wait(PATIENCE)
        finally:
            stop.set()
            reader.join(PATIENCE)
        assert not problems, problems[0]
        assert not reader.is_alive()


@pytest.mark.parametrize("victim", ["its worker", "the worker of its key group"])
def test_a_pinned_key_outlives_the_loss_of_a_worker(spark: SparkSession, tmp_path: Path, victim: str) -> None:
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "checkpoint") as cluster:
        out = applied(cluster, stream(spark), "rows")
        run(out, sink, tmp_path / "spark", 2)
        committed(cluster, "rows", 1)
        home = owner(cluster, "rows", 5)
        cluster.pin(5, 1 - home).wait(PATIENCE)
        run(out, sink, tmp_path / "spark", 3)
        committed(cluster, "rows", 2)
        kill(cluster.workers[1 - home if victim == "its worker" else home])
        assert check_states("rows", states(cluster, "rows")) == 2
        assert owner(cluster, "rows", 5) == 1 - home
        run(out, sink, tmp_path / "spark", 5)
        check_epochs("rows", sink.epochs, 5)
        committed(cluster, "rows", 4)
        assert check_states("rows", states(cluster, "rows")) == 4
    # The next attachment has the state, and places of its own for it.
    with bl.attach(spark, workers=3, checkpoint=tmp_path / "checkpoint") as cluster:
        run(applied(cluster, stream(spark), "rows"), sink, tmp_path / "spark", 6)
        check_epochs("rows", sink.epochs, 6)
        assert cluster.state("rows").count() == KEYS


def test_what_cannot_be_moved_is_refused_with_what_to_do(spark: SparkSession, two: bl.Cluster) -> None:
    applied(two, stream(spark), "rows", "Refused")
    applied(two, stream(spark), "columns", "Another")
    with pytest.raises(DefinitionError, match="either keys"):
        two.move(to=1)
    with pytest.raises(DefinitionError, match="either keys"):
        two.move(keys=[1], key_groups=[1], to=1)
    with pytest.raises(DefinitionError, match=r"operator=\.\.\."):
        two.move(keys=[1], to=1)
    with pytest.raises(UnknownOperator, match="Nobody"):
        two.move(keys=[1], to=1, operator="Nobody")
    with pytest.raises(DefinitionError, match="name at least one"):
        two.move(keys=[], to=1, operator="Refused")
    with pytest.raises(DefinitionError, match=r"keys=\['car-17'\]"):
        two.move(keys="car-17", to=1, operator="Refused")
    with pytest.raises(KeyTypeError):
        two.move(keys=["car-17"], to=1, operator="Refused")
    with pytest.raises(DefinitionError, match=r"cluster\.workers"):
        two.move(keys=[1], to="edge-2", operator="Refused")  # type: ignore[arg-type]
    with pytest.raises(MoveRefused, match="there is no worker 9; there are 0, 1"):
        two.move(keys=[1], to=9, operator="Refused")
    with pytest.raises(MoveRefused, match="no key group 256: they are 0 to 255"):
        two.move(key_groups=[0, 256], to=1, operator="Refused")
    with pytest.raises(DefinitionError, match="not the number of a key group"):
        two.move(key_groups=["0"], to=1, operator="Refused")  # type: ignore[list-item]
    with pytest.raises(DefinitionError, match="another strategy"):
        two.pin(1, 1, operator="Refused", strategy="stop_restart")
