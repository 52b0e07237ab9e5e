"""One real Spark session for all tests here, and what streaming tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import bedload as bl
from tests.patience import PATIENCE, start_patiently
from tests.spark.apps import eventually

os.environ["PYSPARK_PYTHON"] = sys.executable

LONG = (
    "recovery",
    "source",
    "moves_under_faults",
    "standalone",
    "epochs",
    "hosts",
    "storage_faults",
    "hung",
    "soak",
    "queries",
)
"""Files that take minutes. They come first, so that no process is left alone with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; all else stays in order."""
    items.sort(key=lambda item: next((at for at, name in enumerate(LONG) if name in item.path.stem), len(LONG)))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Local Spark with two slots, where a failed task is tried up to three times."""
    start_patiently()
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("bedload-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.driver.extraJavaOptions", "-Xss4m")  # Spark matches long error texts by recursion
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[bl.Cluster]:
    """Two workers, shared by the tests of a module; each test applies operators under its own name."""
    with bl.attach(spark, workers=2) as attached:
        yield attached


class Sink:
    """A sink that is idempotent by epoch, as exactly-once asks for: a replay overwrites."""

    def __init__(self, take: Callable[[DataFrame, int], Any] | None = None) -> None:
        self.epochs: dict[int, list[tuple[Any, ...]]] = {}
        self._take = take

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        if self._take is not None:
            self._take(batch, epoch)
        else:
            self.epochs[epoch] = [tuple(row) for row in batch.collect()]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for epoch in sorted(self.epochs) for row in self.epochs[epoch]]


def numbers(spark: SparkSession, rows: int = 100, partitions: int = 2) -> DataFrame:
    """A stream of 0, 1, 2, ... with ``rows`` per epoch, the same on every replay."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", partitions)
        .load()
        .selectExpr("value")
    )


def start(df: DataFrame, sink: Callable[[DataFrame, int], Any], checkpoint: Any) -> StreamingQuery:
    """Start a query into a foreachBatch sink."""
    return df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()


def run(df: DataFrame, sink: Sink, checkpoint: Any, epochs: int) -> StreamingQuery:
    """Run until the sink has seen that many epochs, then stop at an epoch's end; raises if the query fails."""

    def stop_after(batch: DataFrame, epoch: int) -> None:
        if epoch >= epochs:
            raise _EnoughError
        sink(batch, epoch)

    query = start(df, stop_after, checkpoint)
    try:
        query.awaitTermination(PATIENCE)
    except Exception as error:
        if "_EnoughError" not in str(error):
            raise
    assert not query.isActive, "the query did not come to its end in time"
    return query


def fail(df: DataFrame, sink: Callable[[DataFrame, int], Any], checkpoint: Any) -> str:
    """Run a query that must fail; what it failed with."""
    query = start(df, sink, checkpoint)
    try:
        query.awaitTermination(PATIENCE)
    except Exception as error:
        return str(error)
    query.stop()
    raise AssertionError("the query did not fail")


def committed(cluster: bl.Cluster, name: str, epoch: int) -> None:
    """Wait for the news that Spark committed the epoch: it comes by an event after the query went on."""
    eventually(
        lambda: max(cluster.committed(name).values(), default=-1) >= epoch, f"epoch {epoch} of {name} is committed"
    )


class _EnoughError(Exception):
    pass
