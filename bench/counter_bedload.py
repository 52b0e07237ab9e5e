"""Bedload's side of the running count. Imported only where Bedload is measured: see `counter_systems`.

The state is kept in a checkpoint unless a benchmark asks for memory alone, and then the report says so: Spark's own
state is durable, and a count that is not does less than what it is compared with.
"""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import bedload as bl

WORKERS = 2
SCHEMA = "key long, n long"


class Count(bl.Operator):
    """Emits a key's count once per epoch, as Spark's update mode does."""

    n: int = bl.value(0)

    def process(self, key: int, rows: Any, ctx: Any) -> None:
        self.n += len(rows)

    def result(self, key: int, ctx: Any) -> tuple[int, int]:
        return key, self.n


class CountNow(bl.Operator):
    """Emits a key's count with every sub-batch that holds the key: lower latency, more outputs."""

    n: int = bl.value(0)

    def process(self, key: int, rows: Any, ctx: Any) -> tuple[int, int]:
        self.n += len(rows)
        return key, self.n


def attach(spark: SparkSession, checkpoint: Path | None) -> tuple["bl.Cluster", str]:
    """A cluster with one worker per core, durable if there is a place for it; and what to say if not."""
    if checkpoint is None:
        return bl.attach(spark, workers=WORKERS), "state in memory only"
    return bl.attach(spark, workers=WORKERS, checkpoint=checkpoint.as_uri()), ""


def keys(cluster: "bl.Cluster") -> int:
    """How many keys had state at the end of the last epoch."""
    epochs = cluster.epochs()
    return sum(epochs[-1]["keys"].values()) if epochs else 0


def operator(cluster: "bl.Cluster", rows: DataFrame) -> DataFrame:
    """Outputs once per key and epoch."""
    return cluster.apply(rows, key="key", operator=Count, schema=SCHEMA)


def operator_now(cluster: "bl.Cluster", rows: DataFrame) -> DataFrame:
    """Outputs from ``process``."""
    return cluster.apply(rows, key="key", operator=CountNow, schema=SCHEMA)


def aggregate(cluster: "bl.Cluster", rows: DataFrame) -> DataFrame:
    """Columnar state."""
    return cluster.aggregate(rows, key="key", n=bl.agg.count())
