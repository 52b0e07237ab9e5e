"""A query on a cluster that goes on until it fails; then a new attachment, which falls asleep at work."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import bedload as bl
from tests.spark.apps import eventually, say
from tests.spark.apps.session import counts, no_jobs, session
from tests.spark.conftest import numbers

FOLDER, MASTER = Path(sys.argv[1]), sys.argv[2]
ASLEEP = str(FOLDER / "in-process")


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        self.n += len(rows)

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, self.n


class Sleeper(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        Path(ASLEEP).touch()
        time.sleep(600)


def main() -> None:
    spark = session(MASTER, FOLDER, spark_executor_cores="2", spark_executor_memory="512m", spark_cores_max="4")
    stream = numbers(spark, 400, 2).selectExpr("value % 20 as key", "value")
    cluster = bl.attach(spark, workers=2)
    out = cluster.apply(stream, key="key", operator=Count, schema="key long, n long")
    query = out.writeStream.format("noop").option("checkpointLocation", str(FOLDER / "lost")).start()
    while query.lastProgress is None:
        query.awaitTermination(0.1)
    say("running", workers=cluster.workers)
    try:
        query.awaitTermination()
    except Exception as error:
        say("failed", error=str(error))
    try:
        cluster.apply(stream, key="key", operator=Count, schema="key long, n long")
    except bl.errors.WorkerLost as error:
        say("down", error=error.message)
    cluster.stop()
    no_jobs(spark)
    say("stopped")

    with bl.attach(spark, workers=2) as again:
        out = again.apply(stream, key="key", operator=Count, schema="key long, n long")
        say("again", workers=again.workers, epochs=counts(out, FOLDER / "again", 2))
        out = again.apply(stream, key="key", operator=Sleeper, schema="key long, n long")
        query = out.writeStream.format("noop").option("checkpointLocation", str(FOLDER / "asleep")).start()
        eventually(Path(ASLEEP).exists, "the operator is in process()")
        say("asleep", workers=again.workers)
        query.awaitTermination()


if __name__ == "__main__":
    main()
