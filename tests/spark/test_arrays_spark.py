"""Arrays on a cluster that changes, loses a worker and is restarted; read as a table, and put in as initial state."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pyspark.sql import SparkSession

import bedload as bl
from bedload import errors
from bedload.worker.operator import state_of
from tests.patience import PATIENCE
from tests.spark.apps import eventually
from tests.spark.conftest import numbers, run

pytestmark = pytest.mark.spark

KEYS, ROWS = 11, 60


def step(arrays: dict[str, npt.NDArray[Any]], value: int) -> None:
    """What a row does to the arrays of its key; some of them stay as they were."""
    for i, array in enumerate(arrays.values()):
        if (value + i) % 3:
            flat = array.reshape(-1)
            flat[value % flat.size] = value % 2 if array.dtype == bool else value % 100


class All(bl.Operator):
    """An array of every dtype, and of some shapes."""

    bool_: np.ndarray = bl.array((2, 3), "bool")
    int8: np.ndarray = bl.array(3, "int8", default=-1)
    int16: np.ndarray = bl.array(3, "int16")
    int32: np.ndarray = bl.array((2, 1, 2), "int32")
    int64: np.ndarray = bl.array(2, "int64", default=-(2**63))
    uint8: np.ndarray = bl.array(2, "uint8", default=255)
    uint16: np.ndarray = bl.array(2, "uint16")
    uint32: np.ndarray = bl.array((2, 2), "uint32")
    uint64: np.ndarray = bl.array((3, 2), "uint64", default=2**64 - 1)
    float16: np.ndarray = bl.array(4, "float16", default=np.nan)
    float32: np.ndarray = bl.array((2, 2), "float32", default=-0.0)
    float64: np.ndarray = bl.array(5, default=np.inf)

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            step({spec.name: getattr(self, spec.name) for spec in state_of(All)}, row.value)


def fresh() -> dict[str, npt.NDArray[Any]]:
    return {spec.name: spec.fresh_default() for spec in state_of(All)}


def expected(epochs: int) -> dict[int, dict[str, npt.NDArray[Any]]]:
    found = {key: fresh() for key in range(KEYS)}
    for value in range(epochs * ROWS):
        step(found[value % KEYS], value)
    return found


def as_bytes(state: Any) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in dict(state).items()}


def check_live(cluster: bl.Cluster, epochs: int, name: str = "all") -> None:
    for key, arrays in expected(epochs).items():
        found = cluster.state(name).get(key)
        assert found is not None
        assert as_bytes(found) == as_bytes(arrays), key


def check_table(spark: SparkSession, root: Path, epochs: int, **options: Any) -> None:
    rows = {row.key: row for row in spark.read.format("bedload").options(**options).load(str(root)).collect()}
    wanted = expected(epochs)
    assert rows.keys() == wanted.keys()
    for key, arrays in wanted.items():
        for name, array in arrays.items():
            values = np.array(rows[key][name], object).reshape(-1)
            found = np.array([int(x) if array.dtype.kind in "iu" else x for x in values], array.dtype)
            assert found.tobytes() == array.tobytes(), f"{key} {name}"


def test_arrays_go_through_moves_losses_restarts_tables_and_initial_state(spark: SparkSession, tmp_path: Path) -> None:
    root, other = tmp_path / "bedload", tmp_path / "other"
    df = numbers(spark, ROWS, 1).selectExpr(f"value % {KEYS} as key", "value")
    options: dict[str, Any] = {"key": "key", "schema": "key long", "name": "all", "key_groups": 16}
    with bl.attach(spark, workers=1, checkpoint=root) as cluster:
        out = cluster.apply(df, operator=All, **options)

        def sink(batch: Any, epoch: int) -> None:
            batch.count()
            if epoch == 1:
                cluster.rescale(3)
            if epoch == 2:
                os.kill(cluster.workers[min(cluster.workers)], signal.SIGKILL)

        run(out, sink, tmp_path / "query", 5)
        check_live(cluster, 5)
        cluster.checkpoint()
        check_table(spark, root, 5, batchId=4)
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        out = cluster.apply(df, operator=All, **options)
        run(out, lambda batch, epoch: batch.count(), tmp_path / "query", 7)
        check_live(cluster, 7)
        check_table(spark, root, 7, batchId=6)
    with bl.attach(spark, workers=2, checkpoint=other) as cluster:
        state = spark.read.format("bedload").option("batchId", 6).load(str(root))
        cluster.apply(df, operator=All, initial_state=state, **options)
        eventually(lambda: cluster.state("all").count() == KEYS, "the state is there")
        check_live(cluster, 7)


class Counts(bl.Operator):
    """How often each digit was seen; ``n`` is what stays."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            self.n += 1
            self.count(row.value % 10)

    def count(self, digit: int) -> None: ...


class Digits(Counts):
    digits: np.ndarray = bl.array(10, "int32")

    def count(self, digit: int) -> None:
        np.add.at(self.digits, digit, 1)


class Wide(Counts):
    digits: np.ndarray = bl.array(10, "float64")

    def count(self, digit: int) -> None:
        self.digits[digit] += 0.5


def test_an_array_that_goes_and_comes_back_starts_anew(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "bedload"
    df = numbers(spark, ROWS, 1).selectExpr(f"value % {KEYS} as key", "value")
    options: dict[str, Any] = {"key": "key", "schema": "key long", "name": "counts", "key_groups": 16}

    def live(cluster: bl.Cluster) -> dict[int, Any]:
        return {key: dict(cluster.state("counts").get(key) or {}) for key in range(KEYS)}

    def check(cluster: bl.Cluster, first: int, to: int, weight: float, more: int = 0) -> None:
        """The digits of these epochs, after those of as many others."""
        for key, state in live(cluster).items():
            wanted = np.zeros(10)
            for value in range(first * ROWS, to * ROWS):
                if value % KEYS == key:
                    wanted[value % 10] += weight if value >= more * ROWS else 1
            assert state["n"] == sum(value % KEYS == key for value in range(to * ROWS))
            if "digits" in state:
                assert state["digits"].tolist() == wanted.tolist(), key

    def lose(cluster: bl.Cluster) -> None:
        number = min(cluster.workers)
        lost = cluster.workers[number]
        os.kill(lost, signal.SIGKILL)
        eventually(lambda: cluster.workers.get(number, lost) != lost, "the worker is replaced")

    def go(cluster: bl.Cluster, operator: Any, epochs: int) -> None:
        out = cluster.apply(df, operator=operator, **options)
        run(out, lambda batch, epoch: batch.count(), tmp_path / "query", epochs)

    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        go(cluster, Digits, 2)
        check(cluster, 0, 2, 1)
    with bl.attach(spark, workers=2, checkpoint=root) as cluster, pytest.warns(errors.StateDropped):
        cluster.apply(df, operator=Counts, **options)
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        go(cluster, Wide, 4)  # no epoch ran without it
        check(cluster, 0, 4, 0.5, more=2)
        lose(cluster)
        go(cluster, Wide, 5)
        check(cluster, 0, 5, 0.5, more=2)
    with bl.attach(spark, workers=1, checkpoint=root) as cluster:
        with pytest.warns(errors.StateDropped):
            go(cluster, Counts, 7)
        check(cluster, 0, 7, 1)
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        go(cluster, Digits, 9)
        check(cluster, 7, 9, 1)
        cluster.rescale(3).wait(PATIENCE)
        lose(cluster)
        go(cluster, Digits, 10)
        check(cluster, 7, 10, 1)
        cluster.checkpoint()
        lose(cluster)
        go(cluster, Digits, 11)
        check(cluster, 7, 11, 1)
