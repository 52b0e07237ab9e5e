"""What docs/reference/threads.md says: a cluster, its changes and its reads may be used from many threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from tests.patience import PATIENCE
from tests.spark.conftest import numbers, start

pytestmark = pytest.mark.spark
THREADS = 6


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        self.n += len(rows)
        return key, self.n


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Make all calls at the same moment, each on a thread of its own; what they return."""
    gate = threading.Barrier(len(calls))

    def go(call: Callable[[], Any]) -> Any:
        gate.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(go, call) for call in calls]
        return [future.result(PATIENCE) for future in futures]


def test_threads_apply_operators_change_the_cluster_read_it_and_stop_it(spark: SparkSession, tmp_path: Path) -> None:
    cluster = bl.attach(spark, workers=1)
    names = [f"Count{number}" for number in range(THREADS)]
    stream = numbers(spark, 100, 1).selectExpr("value % 10 as key")

    def apply(name: str) -> DataFrame:
        return cluster.apply(stream, key="key", operator=Count, schema="key long, n long", name=name)

    outs = together([lambda name=name: apply(name) for name in names])  # type: ignore[misc]
    assert {cluster.state(name).name for name in names} == set(names)
    queries = [
        start(out, lambda batch, _: batch.collect(), tmp_path / name)
        for out, name in zip(outs[:2], names, strict=False)
    ]
    together([lambda query=query: cluster.wait_for_epoch(query, 1) for query in queries])  # type: ignore[misc]

    one, two = together([lambda: cluster.rescale(2), lambda: cluster.rescale(3)])

    def reads(name: str) -> list[int]:
        found = [cluster.state(name).get(key) for key in range(10) for _ in range(10)]
        assert (len(cluster.epochs()), len(cluster.history()), cluster.workers, repr(cluster)) is not None
        return [answer["n"] for answer in found if answer is not None]

    waits: list[Callable[[], Any]] = [one.wait, one.wait, two.wait, two.wait]
    looks: list[Callable[[], Any]] = [lambda name=name: reads(name) for name in names[:2] * 2]  # type: ignore[misc]
    results = together([*waits, *looks])
    assert results[0] == results[1]
    assert results[2] == results[3]
    assert len(cluster.workers) in (2, 3)
    for counts in results[4:]:
        assert len(counts) == 100
        assert min(counts) >= 20
    for query in queries:
        query.stop()

    pids = [*cluster.workers.values()]
    together([lambda: (cluster.stop(), _is_over(pids))] * 3)
    with pytest.raises(bl.errors.ClusterStopped):
        cluster.state(names[0])


def _is_over(pids: list[int]) -> None:
    """Whoever called ``stop`` goes on when the workers have ended."""
    assert pids
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)


def test_state_is_read_in_foreach_batch_as_of_the_epoch_before(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[Any] = []
    with bl.attach(spark, workers=1) as cluster:
        out = cluster.apply(numbers(spark, 10, 1), key="value", operator=Count, schema="key long, n long", name="Batch")

        def look(batch: DataFrame, epoch: int) -> None:
            batch.collect()
            seen.append(cluster.state("Batch").get(0))

        query = start(out, look, tmp_path)
        cluster.wait_for_epoch(query, 1)
        query.stop()
    assert seen[0] is None
    assert seen[1]["n"] == 1
    assert seen[1].epoch == 0
