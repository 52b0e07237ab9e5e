"""Spark's own count on RocksDB with changelogs, under the same load: the entry point of an isolated run.

Its seal is the commit of the state store, by partition; its bytes per epoch are those of the changelogs. It has no live
move, no snapshot that can be asked for, and its memory is the JVM's and RocksDB's cache, so those are not compared:
`migrate` and `checkpoint` have what Spark does instead.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.counter_systems import ROCKSDB
from bench.isolate import WrongAnswer
from bench.scale_measure import stream_figures
from bench.scale_plan import ROWS_PER_EPOCH, Case, Timing
from bench.scale_run import CONF, Cores, beats, check, last_batch, load, say
from bench.spark_run import CORES, make_session, wait_for_batch

CHANGELOGS = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}


def measure(case: Mapping[str, Any], timing: Mapping[str, Any], workdir: str) -> dict[str, Any]:
    """Measure one case."""
    plan, times, root = Case(**case), Timing(**timing), Path(workdir)
    spark = make_session("scale-spark", {**CONF, **ROCKSDB, **CHANGELOGS}, root)
    spark.sparkContext.setLogLevel("ERROR")
    place = root / "spark"
    try:
        out = load(spark, plan).groupBy("key").count().withColumnRenamed("count", "n")
        writer = out.writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", str(place)).start()
        try:
            for epoch in range(plan.fill_epochs):
                wait_for_batch(query, epoch, times.timeout_s)
                say(f"filled by {epoch + 1} of {plan.fill_epochs} epochs")
            first = plan.fill_epochs + times.settle
            wait_for_batch(query, first, times.timeout_s)
            say("steady epochs")
            cores = Cores()
            wait_for_batch(query, first + times.steady, times.timeout_s)
            rows = ROWS_PER_EPOCH * (last_batch(query) - first)
            figures = {"cpu_us_per_row": cores.own_seconds() / rows * 1e6, "others_cores": cores.others()}
            steady = [beat for beat in beats(query) if first < beat.batch <= first + times.steady]
            events = list(query.recentProgress)
        finally:
            query.stop()
        measured = {beat.batch for beat in steady}
        commits = [e["stateOperators"][0]["commitTimeMs"] / CORES for e in events if e["batchId"] in measured]
        figures |= {**stream_figures(steady, ROWS_PER_EPOCH), "seal_ms": median(commits)}
        figures["bytes_per_epoch"] = _changelog_bytes(place, measured)
        say("oracle")
        # The batch that was under way when the query was stopped is not committed.
        last = last_batch(query)
        state = spark.read.format("statestore").option("batchId", last).load(str(place))
        check(spark, plan, last, state.selectExpr("key.key AS key", "value.count AS n"))
    finally:
        spark.stop()
    return figures


def _changelog_bytes(place: Path, batches: set[int]) -> float:
    """Bytes of an epoch in all partitions; the files of a batch have its number plus one."""
    sizes: dict[int, int] = defaultdict(int)
    for file in place.glob("state/0/*/*.changelog"):
        sizes[int(file.name.split(".")[0].split("_")[0]) - 1] += file.stat().st_size
    found = [sizes[batch] for batch in batches if batch in sizes]
    if not found:
        raise WrongAnswer(f"no changelogs of the measured epochs under {place}")
    return float(median(found))
