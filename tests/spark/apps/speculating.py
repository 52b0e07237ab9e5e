"""Counts on a cluster that speculates: whatever runs long gets a second attempt beside the first."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

import bedload as bl
from tests.spark.apps import say
from tests.spark.apps.session import counts, no_jobs, session
from tests.spark.conftest import numbers

FOLDER, MASTER = Path(sys.argv[1]), sys.argv[2]
SEEN = str(FOLDER / "attempts")


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        self.n += len(rows)

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, self.n


def first(mark: Path) -> bool:
    """Whether nobody was here before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def slow_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    epoch = task.getLocalProperty("streaming.sql.batchId")
    Path(SEEN, f"{epoch}-{task.partitionId()}-{task.attemptNumber()}").touch()
    for number, batch in enumerate(batches):
        # The first attempt that comes so far, which on a busy machine may be the second that was started: half of its
        # rows are applied, and only the other one can end the epoch soon.
        if number == 1 and task.partitionId() == 0 and epoch == "1" and first(Path(FOLDER, "slow")):
            time.sleep(60)
        yield batch


def main() -> None:
    Path(SEEN).mkdir()
    spark = session(
        MASTER,
        FOLDER,
        spark_executor_cores="3",
        spark_executor_memory="512m",
        spark_cores_max="6",
        spark_speculation="true",
        spark_speculation_interval="100ms",
        spark_speculation_multiplier="1.1",
        spark_speculation_quantile="0.1",
        spark_speculation_minTaskRuntime="100ms",
        # Above this a task is copied even when no other of its stage has ended: the case of workers.
        spark_speculation_task_duration_threshold="1s",
        # Tasks wait for both executors, and each has room for a task more than it needs: however workers and feeders
        # lie, another host is left for a second attempt.
        spark_scheduler_minRegisteredResourcesRatio="1.0",
        spark_scheduler_maxRegisteredResourcesWaitingTime="600s",
    )
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    with bl.attach(spark, workers=2) as cluster:
        before = cluster.workers
        stream = numbers(spark, 400, 2).selectExpr("value % 20 as key", "value")
        slow = stream.mapInArrow(slow_at_first, stream.schema)
        out = cluster.apply(slow, key="key", operator=Count, schema="key long, n long")
        epochs = counts(out, FOLDER / "checkpoint", 3)
        say("counted", epochs=epochs, attempts=sorted(path.name for path in Path(SEEN).iterdir()))
        say("workers", before=before, after=cluster.workers)
    no_jobs(spark)
    say("stopped")
    spark.stop()


if __name__ == "__main__":
    main()
