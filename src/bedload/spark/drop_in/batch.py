"""A processor on a DataFrame that does not stream: one epoch in tasks of Spark's, whose state is thrown away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from bedload.core.clock import SystemClock
from bedload.core.epoch import EpochTime
from bedload.core.errors import BedloadError
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.protocol.split import GROUP_FIELD
from bedload.spark.drop_in.runtime import ProcessorDeployment

_NO_WATERMARK = -1
_MOST = np.iinfo(np.int16).max
"""Key groups are numbers of 16 bits."""
_Run = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def in_batch(df: DataFrame, deployment: ProcessorDeployment) -> DataFrame:
    """The outputs for a DataFrame; each action computes them anew."""
    partitions = min(int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions"))), _MOST)
    keys = [F.col(df.columns[at]) for at in deployment.key]
    # One partition for each key group, so that a task knows which keys are its own.
    placed = df.repartitionById(partitions, F.pmod(F.xxhash64(*keys), F.lit(partitions)).cast("int"))
    timed = placed.withColumn("bedload_now", F.unix_millis(F.current_timestamp()))
    return timed.mapInArrow(_run(replace(deployment, key_groups=partitions)), deployment.out)


def _run(deployment: ProcessorDeployment) -> _Run:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from _one_epoch(deployment, batches)
        except BedloadError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # as in the feeder
            raise

    return run


def _one_epoch(deployment: ProcessorDeployment, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    mine = KeyGroup(task.partitionId())
    runtime = deployment.start(WorkerId(0))
    runtime.begin(Epoch(0), [mine])
    now = None
    for batch in batches:
        if batch.num_rows:
            now = int(batch.column(batch.num_columns - 1)[0].as_py())
            group = pa.array(np.full(batch.num_rows, mine, np.int16))
            rows = batch.select(range(batch.num_columns - 1))
            runtime.apply(rows.append_column(GROUP_FIELD, group))
    if now is None:  # only rows know the time of the action
        now = int(SystemClock().wall() * 1000)
    runtime.set_time(EpochTime(_NO_WATERMARK, now, _NO_WATERMARK))
    made = runtime.seal()
    if made is not None:
        yield made
