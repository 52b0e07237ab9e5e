"""Workers that hang under queries on Spark: processes of the driver's, and Spark tasks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bedload as bl
from tests.patience import PATIENCE
from tests.spark.apps import alive, eventually
from tests.spark.conftest import Sink, fail, numbers
from tests.spark.tally import applied, check_epochs, check_states, states, stream

pytestmark = pytest.mark.spark

WORKERS = {"process": 2, "task": 1}
"""Of the session's two slots one is for the feeders."""
POISONED = 57


class Endless(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        for row in rows:
            while row.value == POISONED:
                pass
            self.n += 1
        yield key, self.n


@pytest.mark.parametrize("host", WORKERS)
@pytest.mark.parametrize("wakes", [False, True], ids=["for good", "until it is given up"])
def test_a_stopped_worker_is_replaced_while_a_supervised_query_goes_on(
    spark: SparkSession, tmp_path: Path, host: str, wakes: bool
) -> None:
    sink = Sink()
    settings = {"checkpoint": tmp_path / "bedload", "silent_seconds": 5}
    with bl.attach(spark, workers=WORKERS[host], host=host, **settings) as cluster:
        writer = applied(cluster, stream(spark), "rows").writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(tmp_path / "spark"))
        with cluster.run(writer, first_pause=0.2, restarts=100) as running:
            cluster.wait_for_epoch(running, 1, seconds=PATIENCE)
            victim = cluster.workers[0]
            os.kill(victim, signal.SIGSTOP)
            try:
                eventually(lambda: cluster.workers.get(0, victim) != victim, "another one is in its place")
            finally:
                if wakes and alive(victim):
                    os.kill(victim, signal.SIGCONT)
            cluster.wait_for_epoch(running, max(cluster.committed("rows").values()) + 2, seconds=PATIENCE)
            assert running.exception() is None
            eventually(lambda: not alive(victim), "the stopped process is gone")
        check_epochs("rows", sink.epochs, 4)
        assert check_states("rows", states(cluster, "rows")) in (len(sink.epochs) - 1, len(sink.epochs) - 2)


@pytest.mark.parametrize("host", WORKERS)
def test_operator_code_that_does_not_come_to_an_end_fails_the_query_with_the_place_where_it_is(
    spark: SparkSession, tmp_path: Path, host: str
) -> None:
    with bl.attach(spark, workers=WORKERS[host], host=host, stuck_seconds=3) as cluster:
        out = cluster.apply(numbers(spark, 100, 1), key="value", operator=Endless, schema="key long, n long")
        error = fail(out, Sink(), tmp_path)
    assert "WorkerLost" in error
    assert "busy with one thing" in error
    assert "while row.value == POISONED" in error
