"""Workers that hang instead of dying: real processes, real signals."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.real_cluster import RealCluster

import bedload as bl
from bedload.control.liveness import Patience
from bedload.core.errors import WorkerLost, WorkerStartFailed
from bedload.core.ids import WorkerId
from bedload.spark import feeder
from bedload.spark.state_view import Whereabouts

ROWS = [(key, 1) for key in range(100)]
HANGS = -1
# Long enough for a process on a busy machine to be heard now and then, and as short as that allows. Most tests do not
# wait for it: for them the time has passed, see RealCluster.let_patience_end.
SILENT, STUCK = Patience(silent=10.0), Patience(silent=60.0, stuck=3.0)


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        for row in rows:
            while row.x == HANGS:
                pass
        self.n += len(rows)
        return key, self.n


class SlowToStart(Count):
    """Its workers are ready at once, but for the first newcomer."""

    def setup(self, ctx: bl.Context) -> None:
        while ctx.worker == 1:
            time.sleep(1)


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


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def counts(cluster: RealCluster) -> list[int]:
    return [answer["n"] for key, _ in ROWS if (answer := cluster.state.get(key)) is not None]


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when a feeder has heard nothing from a worker for a while, and asks whether its epoch goes on."""
    asked = threading.Event()
    original = feeder._Feed._check_goes_on

    def check_goes_on(self: Any) -> None:
        asked.set()
        original(self)

    monkeypatch.setattr(feeder, "_ASK_SECONDS", 0.5)
    monkeypatch.setattr(feeder._Feed, "_check_goes_on", check_goes_on)
    return asked


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_stopped_process_is_replaced_and_nobody_waits_for_it(
    tmp_path: Path, blocked: threading.Event, encrypted: bool
) -> None:
    patience = None if encrypted else SILENT
    with RealCluster(Count, checkpoint=str(tmp_path), patience=patience, encrypted=encrypted) as cluster:
        cluster.epoch(ROWS)
        blocked.clear()
        victim = cluster.pids()[WorkerId(1)]
        os.kill(victim, signal.SIGSTOP)
        epoch = Background(lambda: cluster.epoch(ROWS))
        snapshot = Background(lambda: cluster.driver.checkpoint([cluster.name]))
        if patience is None:
            assert blocked.wait(PATIENCE)
            cluster.let_patience_end(WorkerId(1), victim)
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


@pytest.mark.parametrize("connected", [True, False])
def test_a_read_at_a_worker_that_was_given_up_is_answered_by_the_one_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    """As on a cluster, where the driver cannot end the process: its connections stay, and say nothing."""
    monkeypatch.setattr("bedload.spark.state_view._CONNECT_SECONDS", 2.0)
    with RealCluster(Count, checkpoint=str(tmp_path)) as cluster:
        cluster.epoch(ROWS)
        key = next(key for key, _ in ROWS if cluster.state.owner_of(key) == 1)
        if connected:
            cluster.state.get(key)
        monkeypatch.setattr(cluster.host, "kill", lambda worker, task: None)
        victim = cluster.host._children.pop(WorkerId(1))
        pid = cluster.pids()[WorkerId(1)]
        os.kill(pid, signal.SIGSTOP)
        answers: list[Any] = []
        looks = itertools.count()
        waits = threading.Event()
        where = cluster.state._where

        def look_again() -> Whereabouts:
            if next(looks):  # there was no answer, or no connection, for a while
                waits.set()
            return where()

        monkeypatch.setattr(cluster.state, "_where", look_again)
        try:
            read = Background(lambda: answers.append(cluster.state.get(key, timeout=PATIENCE / 2)))
            assert waits.wait(PATIENCE)
            cluster.let_patience_end(WorkerId(1), pid)
            assert read.end() is None
            assert [answer["n"] for answer in answers] == [1]
        finally:
            os.kill(pid, signal.SIGCONT)
            victim.kill(PATIENCE)
            victim.close()


def test_newcomers_that_hang_together_end_the_change_alone(tmp_path: Path) -> None:
    """As on a host that is gone: with the first of them the change is over, and the other one has left by that."""
    with RealCluster(SlowToStart, workers=1, checkpoint=str(tmp_path)) as cluster:
        cluster.epoch(ROWS)
        change, driver = cluster.change("rescale", workers=3), cluster.driver
        wait_until(lambda: driver.call(lambda c: WorkerId(2) in c.workers and driver._contacts.get(WorkerId(1))))

        def look(c: Any) -> None:
            liveness = driver._contacts._liveness
            liveness.look = lambda now: {WorkerId(1): "gone", WorkerId(2): "gone"}  # type: ignore[method-assign]
            try:
                driver._look()
            finally:
                del liveness.look

        driver.call(look)
        assert isinstance(change.exception(PATIENCE), WorkerStartFailed)
        cluster.epoch(ROWS)
        assert counts(cluster) == [2] * 100


def test_without_a_checkpoint_a_stopped_process_ends_the_cluster_and_every_wait(blocked: threading.Event) -> None:
    with RealCluster(Count) as cluster:
        cluster.epoch(ROWS)
        blocked.clear()
        victim = cluster.pids()[WorkerId(1)]
        os.kill(victim, signal.SIGSTOP)
        epoch = Background(lambda: cluster.epoch(ROWS))
        drain = cluster.change("drain", worker=WorkerId(1))
        assert blocked.wait(PATIENCE)
        cluster.let_patience_end(WorkerId(1), victim)
        assert isinstance(epoch.end(), WorkerLost)
        assert isinstance(drain.exception(PATIENCE), WorkerLost)


def test_a_feeder_leaves_a_worker_that_was_given_up_and_still_holds_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: threading.Event
) -> None:
    """As on a cluster, where the driver cannot end the process: it is told by the coordinator alone."""
    with RealCluster(Count, checkpoint=str(tmp_path)) as cluster:
        cluster.epoch(ROWS)
        blocked.clear()
        victim = cluster.pids()[WorkerId(1)]
        os.kill(victim, signal.SIGSTOP)
        monkeypatch.setattr(cluster.host, "kill", lambda worker, task: None)
        monkeypatch.setattr(cluster.host, "replace", lambda worker: None)
        try:
            # More than the connection's buffers take, so that the feeder is blocked in the middle of a message.
            epoch = Background(lambda: cluster.epoch((key, 1) for key in range(1_000_000)))
            assert blocked.wait(PATIENCE)
            cluster.let_patience_end(WorkerId(1), victim)
            assert isinstance(epoch.end(), WorkerLost)
        finally:
            os.kill(victim, signal.SIGCONT)
