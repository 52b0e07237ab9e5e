"""The Spark sessions of the applications, and how they run a query for some epochs."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

Epochs = dict[int, dict[int, int]]
"""What came out: key and count, by epoch."""


def session(master: str, folder: Path, **settings: str) -> SparkSession:
    """A session on loopback; settings have ``_`` for ``.`` in their names."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    chosen = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **{name.replace("_", "."): setting for name, setting in settings.items()},
    }
    builder = SparkSession.builder.master(master).appName(folder.name)
    for name, setting in chosen.items():
        builder = builder.config(name, setting)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def numbers(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """A stream of 0, 1, 2, ... with so many rows per epoch, the same on every replay."""
    source = spark.readStream.format("rate-micro-batch")
    return source.option("rowsPerBatch", rows).option("numPartitions", partitions).load().select("value")


def run(out: DataFrame, checkpoint: Path, epochs: int, seconds: float = 90.0) -> Epochs:
    """Run a query for so many epochs: the (key, count) rows of each."""
    found: Epochs = {}
    enough = threading.Event()

    def take(batch: DataFrame, epoch: int) -> None:
        rows = batch.collect()
        found[epoch] = dict(tuple(row) for row in rows)
        assert len(found[epoch]) == len(rows), f"a key came out twice in epoch {epoch}"
        if epoch + 1 >= epochs:
            enough.set()

    query = out.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
    waited = 0.0
    while not enough.wait(0.1) and query.isActive and waited < seconds:
        waited += 0.1
    query.stop()
    if query.exception() is not None:
        raise query.exception()
    assert enough.is_set(), f"only {len(found)} epochs within {seconds:g} seconds"
    return {epoch: found[epoch] for epoch in range(epochs)}
