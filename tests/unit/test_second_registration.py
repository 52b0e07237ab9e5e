"""A worker comes while the one of its number is thought to be there: its host is gone, and nobody has noticed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.real_cluster import RealCluster

import bedload as bl
from bedload.core.errors import WorkerLost
from bedload.core.ids import WorkerId
from bedload.spark.hosts import ProcessHost

ROWS = [(key, 1) for key in range(100)]


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        self.n += len(rows)
        return key, self.n


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("noticed", ["by its silence", "by the end of its connection"])
def test_a_worker_that_came_too_early_takes_the_place_of_the_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    with RealCluster(Count, workers=1, checkpoint=str(tmp_path)) as cluster:
        cluster.epoch(ROWS)
        victim = cluster.pids()[WorkerId(0)]
        # As on a cluster, where the host can neither reach the process nor start another: Spark alone does.
        asked: list[WorkerId] = []
        monkeypatch.setattr(cluster.host, "kill", lambda worker, task: None)
        monkeypatch.setattr(cluster.host, "replace", asked.append)
        other = ProcessHost()
        os.kill(victim, signal.SIGSTOP)
        try:
            assert cluster.keeper is not None
            other.start(cluster.driver.address, cluster.credentials, 1, cluster.keeper.place)
            eventually(lambda: bool(cluster.driver._contacts._spares))
            assert cluster.pids() == {0: victim}
            if noticed == "by the end of its connection":
                os.kill(victim, signal.SIGKILL)
            else:
                cluster.let_patience_end(WorkerId(0), victim)
            eventually(lambda: cluster.pids().get(WorkerId(0), victim) != victim)
            assert asked == []
            cluster.restart()
            for expected in (2, 3):
                rows = cluster.epoch(ROWS)
                assert [row["n"] for row in rows] == [expected] * 100
        finally:
            if noticed == "by its silence":
                os.kill(victim, signal.SIGCONT)  # to end with its standard input
            cluster.driver.stop()
            other.stop()


def test_without_a_checkpoint_it_has_no_state_to_go_on_with_and_ends_with_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RealCluster(Count, workers=1) as cluster:
        cluster.epoch(ROWS)
        other = ProcessHost()
        try:
            other.start(cluster.driver.address, cluster.credentials, 1, None)
            eventually(lambda: bool(cluster.driver._contacts._spares))
            os.kill(cluster.pids()[WorkerId(0)], signal.SIGKILL)
            eventually(lambda: cluster.driver.call(lambda c: c.error) is not None)
            with pytest.raises(WorkerLost):
                cluster.epoch(ROWS)
        finally:
            cluster.driver.stop()
            other.stop()
