"""A Spark session for a benchmark, and the two ways to run a streaming query in it.

Invariants:
- Every system gets the same session but for the settings that it names itself.
- A rate is rows over the sum of whole trigger durations (`triggerExecution`: planning, logs, work and
  commit), from the progress events of the measured batches, every one of which must have been seen.
- Processor time is that of all processes of the session, the JVM's too, from the end of the warm-up to the end of the
  run, over the rows of the batches that ended in between.
- A check keeps all outputs of its batches; a timed run produces them all into Spark's `noop` sink.

Why: the time of `addBatch` alone would hide what a system does around it, and an average over the
query's life would include its start. The rate over the wall clock is taken too: work that a system put
between triggers shows as a gap between the two.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.isolate import cpu_seconds

CORES = 2
POLL_SECONDS = 0.1

SESSION: Mapping[str, str] = {
    "spark.driver.memory": "4g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # One state partition per core; Spark's default of 200 is meant for clusters.
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True)
class Rate:
    """How fast the measured batches went."""

    rows: int
    trigger_seconds: float
    rows_per_s: float
    wall_rows_per_s: float
    slowest_trigger_s: float
    trigger_s: list[float]
    cpu_s_per_m_rows: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For the way back from an isolated run."""
        return asdict(self)


def make_session(name: str, conf: Mapping[str, str], workdir: Path) -> SparkSession:
    """A local session on `CORES` cores, with everything that it writes below `workdir`."""
    builder = SparkSession.builder.master(f"local[{CORES}]").appName(f"bench-{name}")
    places = {
        "spark.local.dir": str(workdir / "local"),
        "spark.sql.warehouse.dir": str(workdir / "warehouse"),
    }
    for key, value in {**SESSION, **places, **conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def run_timed(out: DataFrame, checkpoint: Path, warmup: int, batches: int, timeout: float) -> Rate:
    """Run `warmup + batches` triggers into the `noop` sink and rate the last `batches`."""
    query = out.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint)).start()
    try:
        first = wait_for_batch(query, warmup - 1, timeout)
        began = cpu_seconds()
        last = wait_for_batch(query, warmup + batches - 1, timeout)
        took = cpu_seconds() - began
        events = [_as_dict(event) for event in query.recentProgress]
    finally:
        query.stop()
    rows = sum(int(event["numInputRows"]) for event in events if first < event["batchId"] <= last)
    return replace(rate_of(events, warmup, batches), cpu_s_per_m_rows=took / rows * 1e6)


def rate_of(events: list[dict[str, Any]], warmup: int, batches: int) -> Rate:
    """The rate over batches `warmup` to `warmup + batches - 1` of a query's progress events."""
    wanted = range(warmup, warmup + batches)
    by_batch = {event["batchId"]: event for event in events if event["batchId"] in wanted}
    missing = [batch for batch in wanted if batch not in by_batch]
    if missing:
        raise RuntimeError(f"no progress event for batches {missing}: the rate would be wrong")
    measured = [by_batch[batch] for batch in wanted]
    rows = sum(int(event["numInputRows"]) for event in measured)
    triggers = [event["durationMs"]["triggerExecution"] / 1000 for event in measured]
    first = datetime.fromisoformat(measured[0]["timestamp"])
    last = datetime.fromisoformat(measured[-1]["timestamp"])
    wall = (last - first).total_seconds() + triggers[-1]
    return Rate(rows, sum(triggers), rows / sum(triggers), rows / wall, max(triggers), triggers)


def run_collecting(out: DataFrame, checkpoint: Path, batches: int, timeout: float) -> pa.Table:
    """Run `batches` triggers and give back all their outputs."""
    kept: dict[int, pa.Table] = {}

    def keep(rows: DataFrame, batch_id: int) -> None:
        # Batches after the last one wanted run until the query stops. They are read whole too: a sink
        # that skipped them would leave a system with an epoch half consumed. By batch id, since a batch
        # that ran again replaces what its first attempt gave.
        kept[batch_id] = rows.toArrow()

    query = (
        out.writeStream.foreachBatch(keep).outputMode("update").option("checkpointLocation", str(checkpoint)).start()
    )
    try:
        wait_for_batch(query, batches - 1, timeout)
    finally:
        query.stop()
    return pa.concat_tables([kept[batch] for batch in range(batches)])


def wait_for_batch(query: StreamingQuery, batch: int, timeout: float) -> int:
    """Return when a query has committed this batch, with the last one that it has; raise what it failed with."""
    deadline = time.monotonic() + timeout
    while True:
        failure = query.exception()
        if failure is not None:
            raise failure
        progress = query.lastProgress
        seen = -1 if progress is None else int(progress["batchId"])
        if seen >= batch:
            return seen
        if not query.isActive:
            raise RuntimeError(f"the query stopped by itself after batch {seen}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"batch {batch} not done after {timeout:.0f} s; the last one was {seen}")
        time.sleep(POLL_SECONDS)


def _as_dict(event: Any) -> dict[str, Any]:
    return {name: event[name] for name in ("batchId", "numInputRows", "timestamp", "durationMs")}
