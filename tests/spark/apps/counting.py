"""Counts on a cluster, with workers as Spark tasks; then more workers than there is room for, and a late stop.

Two queries: a plain one, and one before whose operator a task fails once, after it gave some rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import BarrierTaskContext, TaskContext

import bedload as bl
from tests.spark.apps import say
from tests.spark.apps.session import counts, no_jobs, session
from tests.spark.conftest import numbers

FOLDER, MASTER = Path(sys.argv[1]), sys.argv[2]
FAILED = str(FOLDER / "failed-once")
SCHEMA = "key long, n long"


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        self.n += len(rows)

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, self.n


def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    for batch in batches:
        yield batch
        # The operator has taken the rows, or is about to: this comes after them in its stream.
        if task.partitionId() == 1 and task.attemptNumber() == 0 and not Path(FAILED).exists():
            Path(FAILED).touch()
            raise RuntimeError("this attempt is lost")


def meet(numbers: Iterator[int]) -> Iterator[int]:
    context = BarrierTaskContext.get()
    context.barrier()
    yield context.partitionId()


def main() -> None:
    spark = session(MASTER, FOLDER, spark_executor_cores="2", spark_executor_memory="512m", spark_cores_max="4")
    # Small batches, so that the task that fails has given some and has not given others.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    cluster = bl.attach(spark, workers=2, encrypt=True)
    say("attached", workers=cluster.workers)
    stream = numbers(spark, 400, 2).selectExpr("value % 20 as key", "value")

    plain = cluster.apply(stream, key="key", operator=Count, schema=SCHEMA, name="plain")
    say("plain", epochs=counts(plain, FOLDER / "plain", 4))

    failing = stream.mapInArrow(fail_once, stream.schema)
    retried = cluster.apply(failing, key="key", operator=Count, schema=SCHEMA, name="retried")
    say("retried", epochs=counts(retried, FOLDER / "retried", 3), failed=Path(FAILED).exists())

    cluster.stop()
    no_jobs(spark)
    met = spark.sparkContext.parallelize(range(4), 4).barrier().mapPartitions(meet).collect()
    say("stopped", met=met)

    try:
        bl.attach(spark, workers=4)
    except bl.errors.TooFewSlots as error:
        say("refused", message=error.message)

    left = bl.attach(spark, workers=1)
    spark.stop()
    left.stop()
    say("stopped after the session")


if __name__ == "__main__":
    main()
