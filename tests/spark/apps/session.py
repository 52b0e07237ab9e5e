"""The Spark sessions of the applications, and how they run a query for some epochs."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.patience import start_patiently
from tests.spark.apps import eventually
from tests.spark.conftest import Sink, run


def session(master: str, folder: Path, python: str = sys.executable, **settings: str) -> SparkSession:
    """A session on loopback, whose tasks run with a Python; settings have ``_`` for ``.`` in their names."""
    os.environ["PYSPARK_PYTHON"] = python
    start_patiently()
    faulthandler.register(signal.SIGUSR1)  # how a test asks an application that hangs where it is
    chosen = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-Xss4m",  # Spark matches long error texts by recursion
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


def no_jobs(spark: SparkSession) -> None:
    """Wait until Spark shows no running job; it does so a moment after the last one ended."""
    eventually(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), "no job runs")


def counts(out: DataFrame, checkpoint: Path, epochs: int) -> dict[int, dict[int, int]]:
    """Run a query with rows of key and count for so many epochs: the counts, by epoch."""
    sink = Sink()
    run(out, sink, checkpoint, epochs)
    found = {epoch: dict(rows) for epoch, rows in sink.epochs.items()}
    for epoch, rows in sink.epochs.items():
        assert len(rows) == len(found[epoch]), f"a key came out twice in epoch {epoch}: {rows}"
    return found
