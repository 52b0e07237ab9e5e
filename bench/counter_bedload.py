"""Bedload's side of the running count. Imported only where Bedload is measured: see `counter_systems`.

The state is kept in a checkpoint where `attach` takes one: Spark's own state is durable, and a count
that is not would be compared with more than it does.
"""

import inspect
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

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


def takes_checkpoint() -> bool:
    """Whether this Bedload can keep the state durable."""
    return "checkpoint" in inspect.signature(bl.attach).parameters


def attach(spark: SparkSession, checkpoint: Path) -> Any:
    """A cluster of `WORKERS` workers, one per core, durable where it can be."""
    options = {"checkpoint": checkpoint.as_uri()} if takes_checkpoint() else {}
    return bl.attach(spark, workers=WORKERS, **options)
