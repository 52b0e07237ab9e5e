"""State that is moved about all the time while workers and the driver are killed: all as if nothing had been."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.faults import check_done, check_sinks, kill, kill_driver, recovering
from tests.spark.standalone import Standalone, standalone

pytestmark = pytest.mark.spark


def test_moves_and_killed_workers_leave_what_a_run_left_alone_does(tmp_path: Path) -> None:
    with recovering(tmp_path, 1, epochs=30, moves=11, host="process") as app:
        app.expect("running")
        for _ in range(3):
            app.expect("moved")
            workers = app.latest("epoch")["workers"]
            kill(*list(workers.values())[-1:])  # none while all of them start anew
        done = app.expect("done")
        app.ends()
    assert len(done["moved"]) >= 3
    check_done(tmp_path, done, 30)


def test_a_driver_that_is_killed_in_the_middle_of_moves_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    with recovering(tmp_path, 1, epochs=100_000, moves=5, host="process") as app:
        jvm = app.expect("running")["jvm"]
        app.expect("moved")
        app.expect("moved")
        kill_driver(app, jvm, whole=True)
    there = max(check_sinks(tmp_path, 0).values())
    with recovering(tmp_path, 2, epochs=there + 6, moves=6, host="process") as app:
        app.expect("running")
        done = app.expect("done")
        app.ends()
    check_done(tmp_path, done, there + 6)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as started:
        yield started


def test_on_a_standalone_cluster_too(tmp_path: Path, machines: Standalone) -> None:
    cores = {"spark_executor_cores": "2", "spark_executor_memory": "512m", "spark_cores_max": "4"}
    settings = {"workers": 1, "host": "task", "master": machines.master, "spark": cores, "moves": 3, "most": 2}
    with recovering(tmp_path, 1, epochs=14, **settings) as app:
        app.expect("running")
        app.expect("moved")
        workers = app.latest("epoch")["workers"]
        kill(*list(workers.values())[-1:])  # none while all of them start anew
        done = app.expect("done")
        app.ends()
    assert done["moved"]
    check_done(tmp_path, done, 14)
