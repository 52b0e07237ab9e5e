"""One case of the benchmark of ``transformWithState``, in a process of its own.

Invariants: both engines get the same session, source, sink and processor; the engine's name decides by whose door the
processor goes in, and which settings Spark needs for it. The outputs of a smaller run are given back as a digest.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own customary name

from bench.counter_systems import ROCKSDB
from bench.isolate import NotAvailable, WrongAnswer
from bench.source import PARTITIONS
from bench.spark_run import CORES, make_session, run_collecting, run_timed
from bench.tws_plan import BEDLOAD, PRODUCTS, Case, key_expression
from bench.tws_processors import OUTPUT, PROCESSORS

RUN_SECONDS = 900.0
START_MS = 1_700_000_000_000
STEP_MS = 1_000
CONF = {
    "spark.ui.showConsoleProgress": "false",
    # Batches of both engines are those that have data: what is measured has a batch at once anyway.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
CHECK_KEYS, CHECK_ROWS, CHECK_BATCHES = 400, 4_000, 5


def measure(case: Mapping[str, Any], check: bool, full: bool, workdir: str) -> dict[str, Any]:
    """Give the digest of a smaller run, if asked, then time the case: the entry point of the isolated process."""
    plan, root = Case(**case), Path(workdir)
    spark = make_session(f"tws-{plan.system}", {**CONF, **ROCKSDB}, root)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        found: dict[str, Any] = {}
        if check:
            with _engine(spark, plan.system, root / "bedload-check") as door:
                found["digest"] = _digest(spark, door, plan, root / "check")
        with _engine(spark, plan.system, root / "bedload") as door:
            out = door(plan, _rows(spark, plan))
            warmup, batches = plan.batches(full)
            rate = run_timed(out, root / "timed", warmup, batches, RUN_SECONDS)
        if rate.rows != plan.batch_rows * batches:
            raise WrongAnswer(f"the measured batches held {rate.rows:,} rows")
        return {**rate.as_json(), **found, "trigger_s_median": median(rate.trigger_s)}
    finally:
        spark.stop()


@contextmanager
def _engine(spark: SparkSession, system: str, place: Path) -> Iterator[Any]:
    """How a processor gets onto rows."""
    if system != BEDLOAD:
        yield lambda case, rows: _apply(case, rows, None)
        return
    try:
        import bedload as bl

        bl.transformWithState  # noqa: B018  imported on first use
    except (ImportError, AttributeError) as error:
        raise NotAvailable(f"{type(error).__name__}: {error}") from error
    with bl.attach(spark, workers=CORES, checkpoint=place.as_uri()):
        yield lambda case, rows: _apply(case, rows, bl)


def _apply(case: Case, rows: DataFrame, bedload: Any) -> DataFrame:
    kind, mode = PROCESSORS[case.name, case.form]
    grouped = rows.withWatermark("timestamp", "0 seconds").groupBy("key")
    name = "transformWithState" if case.form == "rows" else "transformWithStateInPandas"
    arguments = (kind(), OUTPUT, "Update", mode)
    if bedload is None:
        return getattr(grouped, name)(*arguments)
    return getattr(bedload, name)(grouped, *arguments)


def _rows(spark: SparkSession, case: Case) -> DataFrame:
    """A stream of `key`, `value`, `product` and `timestamp`, the same in every run."""
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", case.batch_rows)
        .option("numPartitions", PARTITIONS)
        .option("startTimestamp", START_MS)
        .option("advanceMillisPerBatch", STEP_MS)
        .load()
    )
    product = F.expr(f"int(pmod(xxhash64(value, 7), {PRODUCTS}))").alias("product")
    key = F.expr(key_expression(case.keys, case.batch_rows, case.pauses)).alias("key")
    return source.select(key, "value", product, "timestamp")


def _digest(spark: SparkSession, door: Any, case: Case, place: Path) -> str:
    """What the first batches of a smaller load give, as one number; they must give something."""
    out = door(case, _rows(spark, replace(case, keys=CHECK_KEYS, batch_rows=CHECK_ROWS)))
    got = run_collecting(out, place, CHECK_BATCHES, RUN_SECONDS)
    if not got.num_rows:
        raise WrongAnswer("nothing came out")
    return hashlib.sha256(repr(sorted(tuple(row.values()) for row in got.to_pylist())).encode()).hexdigest()
