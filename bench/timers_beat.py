"""What a beat costs (ADR 27): in a trigger with nothing due, while the source is quiet, and for an epoch of its own.

Invariants:
- A trigger's cost is taken from its progress event: all of it, and of it the time to ask the sources where they are.
- Processor time is that of all processes of the session.
- `rate` is what a plain union with Spark's rate source costs instead, which has an epoch each second, due or not.

Why: a query whose operator has timers pays for the beat in every trigger, and mostly nothing is due.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.isolate import cpu_seconds
from bench.spark_run import CORES, make_session, wait_for_batch

RUN_SECONDS = 300.0
SETTLE_SECONDS = 10.0
"""In which the JVM compiles what a quiet query does again and again."""
TARGETS = {"trigger_ms_more": 5.0, "quiet_cpu_ms_per_s_more": 50.0}
"""At most."""
QUIET = {"quiet": "", "quiet, each second": "1 second"}
"""How often a query with a quiet source is triggered; empty: as often as Spark likes."""
COMPARED = (
    ("trigger_ms_more", ("rows",), "trigger_ms"),
    ("trigger_cpu_ms_more", ("rows",), "cpu_ms"),
    ("quiet_cpu_ms_per_s_more", tuple(QUIET), "cpu_ms"),
)
"""What a beat adds: its name, the variants of which the worst counts, and the figure."""


@dataclass(frozen=True)
class BeatJob:
    """One measurement."""

    system: str
    variant: str
    run: Mapping[str, Any]
    """The arguments of :func:`measure`, but for its place."""

    @property
    def part(self) -> str:
        """What kind of query it is."""
        return str(self.run["part"])


def jobs(quick: bool) -> Iterator[BeatJob]:
    """With and without a beat, one after the other."""
    asked = {"triggers": 40 if quick else 100, "seconds": 5.0 if quick else 10.0}

    def job(part: str, system: str, variant: str, trigger: str = "") -> BeatJob:
        return BeatJob(system, variant, {"part": part, "system": system, "trigger": trigger, **asked})

    yield from (job("rows", system, "rows") for system in ("without", "beat"))
    for variant, trigger in QUIET.items():
        if trigger or not quick:
            yield from (job("quiet", system, variant, trigger) for system in ("without", "beat", "rate"))
    yield job("due", "beat", "due")


def measure(part: str, system: str, trigger: str, triggers: int, seconds: float, workdir: str) -> dict[str, float]:
    """One measurement, in a session of its own; called by `run_isolated`."""
    import bedload as bl
    from bench.counter_bedload import SCHEMA, WORKERS, Count

    place = Path(workdir)
    spark = make_session("beat", {"spark.sql.streaming.noDataProgressEventInterval": "1000000000"}, place)
    try:
        with bl.attach(spark, workers=WORKERS, checkpoint=(place / "bedload").as_uri()) as cluster:
            rows = _rows(spark) if part == "rows" else _one_row(spark, place)
            beat = {"rows": "1 day", "quiet": "1 day", "due": "1 millisecond"}[part] if system == "beat" else False
            if system == "rate":
                never = spark.readStream.format("rate").load().selectExpr("value AS key").where("key < 0")
                rows = rows.union(never)
            began = time.monotonic()
            out = cluster.apply(rows, key="key", operator=Count, schema=SCHEMA, beat=beat)
            apply_s = time.monotonic() - began
            writer = out.writeStream.format("noop").option("checkpointLocation", str(place / "spark"))
            query = (writer.trigger(processingTime=trigger) if trigger else writer).outputMode("update").start()
            try:
                if part != "quiet":
                    return {**_of_triggers(query, triggers), "apply_s": apply_s}
                wait_for_batch(query, 0, RUN_SECONDS)
                time.sleep(SETTLE_SECONDS)
                first, busy, at = _last(query), cpu_seconds(), time.monotonic()
                time.sleep(seconds)
                took = time.monotonic() - at
                return {"cpu_ms": 1000 * (cpu_seconds() - busy) / took, "epochs_per_s": (_last(query) - first) / took}
            finally:
                query.stop()
    finally:
        spark.stop()


def _rows(spark: SparkSession) -> DataFrame:
    """Few rows in each trigger."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", CORES)
    return source.load().selectExpr("value % 10 AS key")


def _one_row(spark: SparkSession, place: Path) -> DataFrame:
    """A row at the beginning, and no other."""
    folder = place / "in"
    folder.mkdir(parents=True)
    (folder / "0.json").write_text('{"key": 1}\n')
    return spark.readStream.schema("key long").json(str(folder))


def _of_triggers(query: Any, triggers: int) -> dict[str, float]:
    warmup = 20
    first = wait_for_batch(query, warmup, RUN_SECONDS)
    busy = cpu_seconds()
    last = wait_for_batch(query, first + triggers, RUN_SECONDS)
    busy = cpu_seconds() - busy
    took = [event["durationMs"] for event in query.recentProgress if first < event["batchId"] <= last]
    return {
        "trigger_ms": median(it["triggerExecution"] for it in took),
        "asking_ms": mean(it["latestOffset"] for it in took),
        "planning_ms": median(it["queryPlanning"] for it in took),
        "cpu_ms": 1000 * busy / (last - first),
    }


def _last(query: Any) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])
