"""Changes of a cluster of real worker processes that cannot do their part: the error reaches whoever asked."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.real_cluster import RealCluster

import bedload as bl
from bedload.core.errors import BedloadError, WorkerStartFailed
from bedload.core.ids import WorkerId

KEYS = 200
SECONDS = 120


class Picky(bl.Operator):
    """Runs at the first two workers only."""

    n: int = bl.value(0)

    def setup(self, ctx: Any) -> None:
        if ctx.worker >= 2:
            raise RuntimeError("too many connections")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.n += len(rows)
        return key, self.n


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "in memory"])
def test_setup_that_fails_at_a_newcomer_fails_the_change_and_nothing_else(durable: bool, tmp_path: Path) -> None:
    with RealCluster(Picky, checkpoint=tmp_path.as_uri() if durable else None) as cluster:
        cluster.epoch((key, 1) for key in range(KEYS))
        change = cluster.change("rescale", workers=3)
        with pytest.raises(WorkerStartFailed, match="too many connections"):
            change.result(SECONDS)
        out = cluster.epoch((key, 1) for key in range(KEYS))
        assert {row["n"] for row in out} == {2}


def test_when_all_start_anew_one_whose_setup_fails_is_left_out(tmp_path: Path) -> None:
    with RealCluster(Picky, checkpoint=tmp_path.as_uri()) as cluster:
        cluster.epoch((key, 1) for key in range(KEYS))
        change = cluster.change("rescale", "stop_restart", workers=3)
        with pytest.raises(WorkerStartFailed, match=r"(?s)too many connections.*there are 2 workers now"):
            change.result(SECONDS)
        out = cluster.epoch((key, 1) for key in range(KEYS))
        assert {row["n"] for row in out} == {2}


def test_a_replacement_whose_setup_fails_is_left_out_after_some_times(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    class Once(bl.Operator):
        """Runs once at worker 1."""

        n: int = bl.value(0)

        def setup(self, ctx: Any) -> None:
            if ctx.worker == 1:
                try:
                    (marks / "was here").mkdir()
                except FileExistsError:
                    raise RuntimeError("only once") from None

        def process(self, key: Any, rows: Any, ctx: Any) -> Any:
            self.n += len(rows)
            return key, self.n

    with RealCluster(Once, checkpoint=(tmp_path / "checkpoint").as_uri()) as cluster:
        cluster.epoch((key, 1) for key in range(KEYS))
        os.kill(cluster.pids()[WorkerId(1)], signal.SIGKILL)
        left: Any = ()
        for _ in range(20):  # until the loss is known, an epoch fails, and is replayed
            try:
                left = cluster.epoch((key, 1) for key in range(KEYS))
                break
            except BedloadError:
                cluster.restart()
        assert {row["n"] for row in left} == {2}
        assert cluster.driver.call(lambda coordinator: coordinator.members.owning) == (0,)
