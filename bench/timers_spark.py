"""Timers and TTL of whole queries: Bedload beside Spark's `transformWithState` in Python, on the same work.

Invariants:
- Event time comes from the source, a step for each batch. So the timers that are due in a batch are the same for all.
- All state is durable: Bedload's in a checkpoint, Spark's in RocksDB.
- A query is timed only after a smaller one gave the true counts, and the calls of timers that there should be.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own customary name
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import bedload as bl
from bench.counter_systems import ROCKSDB, need_tws
from bench.isolate import WrongAnswer
from bench.source import PARTITIONS, key_expression, true_counts
from bench.spark_run import make_session, run_collecting, run_timed
from bench.timers_operators import CYCLE, SCHEMA, START, STEP, Arrays, ArraysKept, Count, CountKept, due_at

SPARK = "spark-tws-rows"
CHECKED = (500, 4_000, 4)
"""Keys, rows of a batch and batches of the check."""
TIMEOUT = 300.0
WORKERS = 2


def source(spark: SparkSession, keys: int, batch_rows: int) -> DataFrame:
    """`key long, timestamp timestamp`: each batch a step later than the one before, and the watermark with it."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", batch_rows)
        .option("numPartitions", PARTITIONS)
        .option("startTimestamp", START)
        .option("advanceMillisPerBatch", STEP)
        .load()
        .withWatermark("timestamp", "0 seconds")
    )
    return numbers.select(F.expr(key_expression(keys)).alias("key"), "timestamp")


# --- Spark's processors


class Counting(StatefulProcessor):
    """The count, as Spark's documentation would write it."""

    ttl: int | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._n = handle.getValueState("n", "n long", self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        state = self._n.get()
        n = (0 if state is None else state[0]) + sum(1 for _ in rows)
        self._n.update((n,))
        if state is None:
            self.begins(key[0], timerValues)
        yield Row(key=key[0], n=n, fired=False)

    def begins(self, key: int, times: Any) -> None:
        """A key's first row."""

    def close(self) -> None:
        """Nothing to release."""


class CountingTtl(Counting):
    """Forgotten after an hour without a row."""

    ttl = 3_600_000


class CountingTimed(Counting):
    """With a timer that the first row of a key sets."""

    def begins(self, key: int, times: Any) -> None:
        self._handle.registerTimer(due_at(key, times.getCurrentWatermarkInMs()))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        self._handle.registerTimer(due_at(key[0], timerValues.getCurrentWatermarkInMs() + STEP))
        state = self._n.get()
        yield Row(key=key[0], n=0 if state is None else state[0], fired=True)


TIME_MODES = {"plain": "None", "timers": "EventTime", "ttl": "ProcessingTime"}


def _processor(variant: str) -> StatefulProcessor:
    return {"plain": Counting, "timers": CountingTimed, "ttl": CountingTtl}[variant]()


def _operator(system: str, variant: str) -> Any:
    if variant == "ttl":
        from bench.timers_ttl import ArraysHour, CountTtl

        return CountTtl if system == "rows" else ArraysHour
    return {
        ("rows", "plain"): Count,
        ("rows", "timers"): CountKept,
        ("columns", "plain"): Arrays,
        ("columns", "timers"): ArraysKept,
    }[system, variant]


# --- inside the isolated process


def measure(
    system: str, variant: str, keys: int, batch_rows: int, warmup: int, batches: int, workdir: str
) -> dict[str, Any]:
    """Check, then time one system: the entry point of the isolated process."""
    root, of_spark = Path(workdir), system == SPARK
    if of_spark:
        need_tws()
    spark = make_session(f"timers-{system}", ROCKSDB if of_spark else {}, root)
    run = partial(_transformed, spark, system, variant)
    try:
        few, some, count = CHECKED
        got = run(root / "check", few, some, lambda out: run_collecting(out, root / "c", count, TIMEOUT))
        truth = _pairs(true_counts(spark, few, some * count).toArrow(), "n")
        check(got, truth, variant, few, count)
        rate = run(root / "timed", keys, batch_rows, lambda out: run_timed(out, root / "t", warmup, batches, TIMEOUT))
    finally:
        spark.stop()
    if rate.rows != batch_rows * batches:
        raise WrongAnswer(f"the measured batches held {rate.rows:,} rows instead of {batch_rows * batches:,}")
    return {
        "rows_per_s": rate.rows_per_s,
        "trigger_ms": 1000 * rate.trigger_seconds / batches,
        "cpu_s_per_m_rows": rate.cpu_s_per_m_rows,
    }


def _transformed(
    spark: SparkSession,
    system: str,
    variant: str,
    place: Path,
    keys: int,
    batch_rows: int,
    run: Callable[[DataFrame], Any],
) -> Any:
    """What a run of the system's query gives."""
    rows = source(spark, keys, batch_rows)
    if system == SPARK:
        return run(
            rows.groupBy("key").transformWithState(
                statefulProcessor=_processor(variant),
                outputStructType=SCHEMA,
                outputMode="Update",
                timeMode=TIME_MODES[variant],
            )
        )
    with bl.attach(spark, workers=WORKERS, checkpoint=place.as_uri()) as cluster:
        return run(cluster.apply(rows, key="key", operator=_operator(system, variant), schema=SCHEMA))


def check(got: pa.Table, truth: Mapping[int, int], variant: str, keys: int, batches: int) -> None:
    """The last counts are the true ones, and each timer fired when it was due."""
    counted = _pairs(got.group_by("key").aggregate([("n", "max")]), "n_max")
    wrong = sorted(key for key in truth.keys() | counted.keys() if truth.get(key) != counted.get(key))
    if wrong:
        key = wrong[0]
        raise WrongAnswer(f"{len(wrong)} of {keys} keys wrong, such as {key}: {counted.get(key)}, not {truth.get(key)}")
    fired = sorted(got.filter(pc.field("fired"))["key"].to_pylist())
    if fired != sorted(expected_fires(variant, keys, batches)):
        raise WrongAnswer(f"{len(fired)} timers fired, which are not those that were due")


def expected_fires(variant: str, keys: int, batches: int) -> list[int]:
    """The keys of the timers that fire: in each batch those of one place in the cycle; watermarks are a batch late."""
    if variant != "timers":
        return []
    return [key for batch in range(1, batches) for key in range(keys) if key % CYCLE == (batch - 1) % CYCLE]


def _pairs(table: pa.Table, value: str) -> Mapping[int, int]:
    return dict(zip(table["key"].to_pylist(), table[value].to_pylist(), strict=True))
