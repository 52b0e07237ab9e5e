"""Workers that hang instead of dying: real processes, real signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.real_cluster import RealCluster

import bedload as bl
from bedload.control.liveness import Patience
from bedload.core.errors import WorkerLost
from bedload.core.ids import WorkerId
from bedload.spark import feeder

ROWS = [(key, 1) for key in range(100)]
HANGS = -1
# Long enough for a process on a busy machine to be heard now and then, and as short as that allows.
SILENT, STUCK = Patience(silent=10.0), Patience(silent=60.0, stuck=3.0)


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        for row in rows:
            while row.x == HANGS:
                pass
        self.n += len(rows)
        return key, self.n


class Background:
    """Something that waits, on a thread of its own."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def end(self) -> BaseException | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it waits still"
        return self._error


def counts(cluster: RealCluster) -> list[int]:
    return [answer["n"] for key, _ in ROWS if (answer := cluster.state.get(key)) is not None]


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_stopped_process_is_replaced_and_nobody_waits_for_it(tmp_path: Path, encrypted: bool) -> None:
    with RealCluster(Count, checkpoint=str(tmp_path), patience=SILENT, encrypted=encrypted) as cluster:
        cluster.epoch(ROWS)
        victim = cluster.pids()[WorkerId(1)]
        os.kill(victim, signal.SIGSTOP)
        epoch = Background(lambda: cluster.epoch(ROWS))
        snapshot = Background(lambda: cluster.driver.checkpoint([cluster.name]))
        error = epoch.end()
        assert isinstance(error, WorkerLost)
        assert "said nothing" in error.message
        assert snapshot.end() is None
        cluster.restart()
        cluster.epoch(ROWS)
        assert counts(cluster) == [2] * 100
        assert cluster.pids()[WorkerId(1)] != victim


def test_a_worker_in_an_endless_loop_is_replaced_and_the_error_says_where_it_was(tmp_path: Path) -> None:
    with RealCluster(Count, checkpoint=str(tmp_path), patience=STUCK) as cluster:
        cluster.epoch(ROWS)
        error = Background(lambda: cluster.epoch([*ROWS[1:], (0, HANGS)])).end()
        assert isinstance(error, WorkerLost)
        assert "while row.x == HANGS" in error.message
        cluster.restart()
        cluster.epoch(ROWS)
        assert counts(cluster) == [2] * 100


def test_without_a_checkpoint_a_stopped_process_ends_the_cluster_and_every_wait() -> None:
    with RealCluster(Count, patience=SILENT) as cluster:
        cluster.epoch(ROWS)
        os.kill(cluster.pids()[WorkerId(1)], signal.SIGSTOP)
        epoch = Background(lambda: cluster.epoch(ROWS))
        drain = cluster.change("drain", worker=WorkerId(1))
        assert isinstance(epoch.end(), WorkerLost)
        assert isinstance(drain.exception(PATIENCE), WorkerLost)


def test_a_feeder_leaves_a_worker_that_was_given_up_and_still_holds_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster, where the driver cannot end the process: it is told by the coordinator alone."""
    monkeypatch.setattr(feeder, "_ASK_SECONDS", 0.5)
    with RealCluster(Count, checkpoint=str(tmp_path), patience=SILENT) as cluster:
        cluster.epoch(ROWS)
        victim = cluster.pids()[WorkerId(1)]
        os.kill(victim, signal.SIGSTOP)
        monkeypatch.setattr(cluster.host, "kill", lambda worker, task: None)
        monkeypatch.setattr(cluster.host, "replace", lambda worker: None)
        try:
            # More than the connection's buffers take, so that the feeder is blocked in the middle of a message.
            error = Background(lambda: cluster.epoch((key, 1) for key in range(1_000_000))).end()
            assert isinstance(error, WorkerLost)
        finally:
            os.kill(victim, signal.SIGCONT)
