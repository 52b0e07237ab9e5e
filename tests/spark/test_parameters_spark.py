"""Two applications of one class, each with parameters of its own, on a cluster that is changed and restarted."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from bedload import errors
from tests.patience import PATIENCE
from tests.spark.apps import eventually
from tests.spark.conftest import numbers, start

pytestmark = pytest.mark.spark

KEYS = 11
ROWS = 60


class Scaled(bl.Operator):
    """Adds up what it sees, times a factor."""

    grouped = True
    total: int = bl.value(0)
    factor: int = bl.param()
    base: int = bl.param(0, fixed=True)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.total += self.factor * sum(row.value for row in rows)
        return key, self.base + self.total


class VectorScaled(bl.VectorOperator):
    """The same on columns."""

    total: int = bl.value(0)
    factor: int = bl.param()
    base: int = bl.param(0, fixed=True)

    def process(self, batch: Any, state: Any, ctx: Any) -> Any:
        sums = np.bincount(batch.index, batch.numpy("value"), len(state["total"])).astype(np.int64)
        return {"total": state["total"] + self.factor * sums}

    def result(self, keys: Any, state: Any, ctx: Any) -> Any:
        return {"key": keys, "total": self.base + state["total"]}


def expected(factors: Sequence[int], base: int) -> dict[int, list[tuple[int, int]]]:
    """What each epoch gives, by the factor that it runs with."""
    totals: dict[int, int] = defaultdict(int)
    found = {}
    for epoch, factor in enumerate(factors):
        for value in range(epoch * ROWS, (epoch + 1) * ROWS):
            totals[value % KEYS] += factor * value
        found[epoch] = sorted((key, base + total) for key, total in totals.items())
    return found


class Runs:
    """Queries that run side by side until they are told to stop, at the end of an epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.epochs: dict[str, dict[int, list[tuple[Any, ...]]]] = defaultdict(dict)
        self._stop = threading.Event()

    def start(self, outputs: Mapping[str, DataFrame]) -> None:
        self._stop.clear()
        self._queries = {name: start(df, self._sink(name), self.folder / name) for name, df in outputs.items()}

    def _sink(self, name: str) -> Any:
        def take(batch: DataFrame, epoch: int) -> None:
            rows = sorted(tuple(row) for row in batch.collect())
            if self._stop.is_set():
                raise RuntimeError("enough")  # after the operator has run: the epoch is run again by the next one
            self.epochs[name][epoch] = rows

        return take

    def go_on(self, epochs: int = 1) -> None:
        wanted = {name: len(self.epochs[name]) + epochs for name in self._queries}

        def there() -> bool:
            for name, query in self._queries.items():
                assert query.isActive, f"{name} ended: {query.exception()}"
            return all(len(self.epochs[name]) >= count for name, count in wanted.items())

        eventually(there, f"{epochs} epochs more")

    def stop(self) -> None:
        self._stop.set()
        for name, query in self._queries.items():
            with pytest.raises(Exception, match="enough"):
                query.awaitTermination(PATIENCE)
            assert not query.isActive, name

    def count(self, name: str) -> int:
        return len(self.epochs[name])


def recorded(root: Path, name: str) -> list[dict[str, str]]:
    """The parameters of each turn, oldest first."""
    files = sorted((root / "operators" / name / "turns").glob("*.json"))
    return [json.loads(file.read_text())["parameters"] for file in files]


@pytest.mark.parametrize("operator", [Scaled, VectorScaled])
def test_two_applications_of_a_class_keep_their_parameters_through_moves_losses_and_restarts(
    spark: SparkSession, tmp_path: Path, operator: Any
) -> None:
    root, runs = tmp_path / "bedload", Runs(tmp_path)
    df = numbers(spark, ROWS).selectExpr(f"value % {KEYS} as key", "value")

    def apply(cluster: bl.Cluster, name: str, **parameters: int) -> DataFrame:
        return cluster.apply(
            df, key="key", operator=operator(**parameters), schema="key long, total long", name=name, key_groups=16
        )

    with bl.attach(spark, workers=1, checkpoint=root) as cluster:
        outputs = {"three": apply(cluster, "three", factor=3, base=100), "five": apply(cluster, "five", factor=5)}
        runs.start(outputs)
        runs.go_on()
        cluster.rescale(3).wait(PATIENCE)
        runs.go_on()
        runs.stop()
        lost = cluster.workers[1]
        os.kill(lost, signal.SIGKILL)
        eventually(lambda: cluster.workers.get(1, lost) != lost, "the worker is replaced")
        runs.start(outputs)
        runs.go_on()
        runs.stop()
        with pytest.raises(errors.SchemaChanged, match=r"base: 100 → 1: .*base=100, and the parameter is declared as"):
            apply(cluster, "three", factor=3, base=1)
    before = {name: runs.count(name) for name in outputs}
    assert {it["factor"] for it in recorded(root, "three")} == {"3"}
    assert {it["factor"] for it in recorded(root, "five")} == {"5"}

    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        with pytest.raises(errors.SchemaChanged, match=r"operator three: .*\n  base: 100 → 2: "):
            apply(cluster, "three", factor=3, base=2)
        runs.start({"three": apply(cluster, "three", factor=3, base=100), "five": apply(cluster, "five", factor=7)})
        runs.go_on()
        cluster.rescale(1).wait(PATIENCE)
        runs.go_on()
        runs.stop()

    count = runs.count("three")
    assert dict(runs.epochs["three"]) == expected([3] * count, 100)
    after = runs.count("five") - before["five"]
    assert dict(runs.epochs["five"]) == expected([5] * before["five"] + [7] * after, 0)
    assert recorded(root, "three")[-1] == {"factor": "3", "base": "100"}
    assert recorded(root, "five")[-1] == {"factor": "7", "base": "0"}
