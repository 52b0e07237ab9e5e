"""Spark's own way from 2 to 4 partitions of state: stop the query, rewrite its checkpoint, start it again.

The query is a native aggregation, the same count with the same value per key, on RocksDB with changelogs: what Spark
recommends for large state. `StreamingCheckpointManager.repartition` needs a stopped query.

Invariants: after the run, the counts in the state add up to the rows that went in, in 4 partitions.

A plain `stop()` ends a batch half way, and the repartition then refuses by default. It is told to leave such a batch
out, which is the fastest way: the batch is run again later, and the state is right either way. All that time no key is
available, so the stoppage of every key is the gap between the commits before and after.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own customary name
from pyspark.sql.streaming.query import StreamingQuery

from bench.counter_systems import ROCKSDB
from bench.isolate import NotAvailable, WrongAnswer
from bench.migrate_load import NEVER, Schedule, key_expression, open_loop, value_expression
from bench.migrate_measure import during, stream_figures
from bench.migrate_plan import OVERHEAD, Case, Timing
from bench.migrate_run import WORKERS_AFTER, WORKERS_BEFORE, Watched, run_cases, wall
from bench.spark_run import make_session

CONF = {
    **ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": str(WORKERS_BEFORE),
}


def measure(
    cases: Sequence[Mapping[str, Any]], timing: Mapping[str, Any], warm_up: Mapping[str, Any], workdir: str
) -> dict[str, Any]:
    """Measure the cases: the entry point of the isolated process."""
    root, times = Path(workdir), Timing(**timing)
    spark = make_session("migrate-spark", CONF, root)
    spark.sparkContext.setLogLevel("ERROR")
    if not hasattr(spark, "_streamingCheckpointManager"):
        raise NotAvailable("this Spark has no StreamingCheckpointManager")
    place = root / "case"
    try:
        # The first repartition in a JVM takes seconds longer than any other: not what is compared.
        done = run_cases(
            [warm_up, *cases],
            lambda case: _measure(spark, case, place, times),
            root / "answers.jsonl",
            lambda: shutil.rmtree(place, ignore_errors=True),
        )
    finally:
        spark.stop()
    return {"cases": done}


def _measure(spark: SparkSession, case: Case, place: Path, timing: Timing) -> dict[str, Any]:
    filling = Watched(Schedule(NEVER, case.rate, case.keys), timing.timeout_s)
    query = filling.started(_start(spark, case, filling.schedule, place))
    try:
        filling.wait("filling the state", lambda: any(epoch.end == 0 for epoch in filling.epochs()))
    finally:
        query.stop()
    watched = Watched(Schedule(wall() + 1, case.rate, case.keys), timing.timeout_s)
    query = watched.started(_start(spark, case, watched.schedule, place))
    try:
        watched.wait_until_caught_up()
        steady_s = watched.run_steadily(timing.steady_s)
        requested = wall()
        query.stop()
        stopped = wall()
        spark._streamingCheckpointManager.repartition(str(place / "spark"), WORKERS_AFTER, False)
        repartitioned = wall()
        query = watched.started(_start(spark, case, watched.schedule, place))
        watched.wait("the first batch after the restart", lambda: bool(query.recentProgress))
        done = watched.epochs()[-1].ended
        watched.wait_until_stable(requested, steady_s, timing)
    finally:
        query.stop()
    state_bytes = query.recentProgress[-1]["stateOperators"][0]["customMetrics"].get("rocksdbSstFileSize", 0)
    _check(spark, case, watched, place)
    beats = watched.beats()
    figures = stream_figures(beats, requested, done, steady_s, timing.hold_s)
    gap = max(beat.seconds for beat in during(beats, requested, done))
    figures |= {f"stoppage_ms_{which}": gap * 1000 for which in ("p50", "p99", "max")}
    # All state is read and written again, whatever part of it gets another place.
    moved = case.keys * (case.value_bytes + OVERHEAD) / 1e6
    figures |= {"unavailable_s": gap, "duration_s": done - requested, "moved_mb": moved}
    figures |= {"stop_s": stopped - requested, "repartition_s": repartitioned - stopped}
    figures |= {"sst_mb": float(state_bytes) / 1e6}
    return {"figures": figures, "series": watched.series(requested)}


def _start(spark: SparkSession, case: Case, schedule: Schedule, place: Path) -> StreamingQuery:
    value = f"CASE WHEN value < 0 THEN {value_expression(case.value_bytes)} END AS kept"
    rows = open_loop(spark, schedule).selectExpr(f"{key_expression(case.keys, case.skew)} AS key", value)
    counted = rows.groupBy("key").agg(F.count("*").alias("n"), F.max("kept").alias("kept"))
    # The length stands for the value: without any use of it the optimiser would drop it from the state.
    out = counted.selectExpr("key", "n", "length(kept) AS size")
    writer = out.writeStream.format("noop").outputMode("update")
    return writer.option("checkpointLocation", str(place / "spark")).start()


def _check(spark: SparkSession, case: Case, watched: Watched, place: Path) -> None:
    batch, rows = watched.last_batch()
    state = spark.read.format("statestore").option("batchId", batch).load(str(place / "spark"))
    found = state.selectExpr("sum(value.count)", "count(*)", "count(DISTINCT partition_id)").first()
    assert found is not None
    expected = (rows + case.keys, case.keys, WORKERS_AFTER)
    if tuple(found) != expected:
        raise WrongAnswer(f"rows counted, keys and partitions are {tuple(found)} instead of {expected}")
