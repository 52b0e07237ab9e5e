"""Workers as Spark tasks on a real cluster: a master and two of Spark's workers, with one executor each."""

from __future__ import annotations

import os
import signal
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.apps import alive, eventually, running
from tests.spark.standalone import Standalone, standalone

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as started:
        yield started


def counts(epochs: int) -> dict[str, dict[str, int]]:
    """What must come out: 400 numbers per epoch, counted by their remainder of 20, as JSON has it."""
    seen: Counter[str] = Counter()
    found = {}
    for epoch in range(epochs):
        seen.update(str(value % 20) for value in range(epoch * 400, (epoch + 1) * 400))
        found[str(epoch)] = dict(seen)
    return found


def pids(event: dict[str, Any], name: str = "workers") -> list[int]:
    return [event[name][worker] for worker in sorted(event[name])]


def test_workers_in_executors_count_right_survive_a_retry_and_give_their_slots_back(
    cluster: Standalone, tmp_path: Path
) -> None:
    with running("counting", tmp_path, cluster.master) as app:
        workers = pids(app.expect("attached"))
        assert len(set(workers)) == 2
        executors = [cluster.executor_of(pid) for pid in workers]
        assert None not in executors
        assert len({executor.pid for executor in executors if executor is not None}) == 2, "one on each executor"

        assert app.expect("plain")["epochs"] == counts(4)

        retried = app.expect("retried")
        assert retried["failed"], "no task failed, so nothing was tried again"
        assert retried["epochs"] == counts(3)

        stopped = app.expect("stopped")
        assert sorted(stopped["met"]) == [0, 1, 2, 3], "four tasks at once need all four slots"

        message = app.expect("refused")["message"]
        assert "4 workers and at least one feeder need 5 task slots, but Spark has 4." in message
        for advice in ("workers=3", "spark.cores.max", "host='process'"):
            assert advice in message
        app.expect("stopped after the session")
        app.ends()
    assert not any(alive(pid) for pid in workers)


def test_a_python_without_our_packages_is_told_at_once_with_what_to_set(cluster: Standalone, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    python = str(bare / "bin" / "python")
    with running("bare", tmp_path / "app", cluster.master, python) as app:
        for _ in ("as tasks", "beside the driver"):
            message = app.expect("wrong")["message"]
            assert message.startswith(f"Spark's tasks run with {python}")
            assert "lacks py" in message
            assert "PYSPARK_PYTHON" in message
            assert len(message.splitlines()) == 1
        app.ends()


def test_attach_does_not_wait_for_executors_for_ever(cluster: Standalone, tmp_path: Path) -> None:
    with running("unserved", tmp_path, cluster.master) as app:
        assert len(app.expect("attached")["workers"]) == 1
        assert app.expect("refused")["kind"] == "WorkerStartFailed"
        app.ends()


def test_speculative_attempts_change_nothing_and_workers_get_none(cluster: Standalone, tmp_path: Path) -> None:
    with running("speculating", tmp_path, cluster.master) as app:
        counted = app.expect("counted")
        assert {"1-0-0", "1-0-1"} <= set(counted["attempts"]), "no second attempt ran beside the slow one"
        assert counted["epochs"] == counts(3)
        workers = app.expect("workers")
        assert pids(workers, "before") == pids(workers, "after")
        app.expect("stopped")
        app.ends()


def test_a_killed_executor_fails_the_query_clearly_and_a_killed_driver_takes_its_workers_along(
    cluster: Standalone, tmp_path: Path
) -> None:
    with running("losing", tmp_path, cluster.master) as app:
        first, _ = pids(app.expect("running"))
        executor = cluster.executor_of(first)
        assert executor is not None
        os.kill(executor.pid, signal.SIGKILL)

        error = app.expect("failed")["error"]
        assert "WorkerLost" in error
        down = app.expect("down")["error"]
        assert f"worker 0 was lost (process {first} ended" in down
        assert "128 key groups of Count" in down
        assert "in memory only" in down
        app.expect("stopped")
        eventually(lambda: not alive(first), "the worker ended with its executor")

        again = app.expect("again")
        assert again["epochs"] == counts(2)
        workers = pids(app.expect("asleep"))
        executors = [found.pid for pid in workers if (found := cluster.executor_of(pid)) is not None]
        assert len(executors) == 2
        app.kill()
        eventually(lambda: not any(alive(pid) for pid in (*workers, *executors)), "all ended with the driver")
