"""Inside the isolated process: seconds until the first epoch is committed, and until state is read first.

Three kinds:

- *cold*: a fresh process with a fresh JVM. The clock starts when the Spark session is up.
- *spark warm*: the JVM has run two plain `mapInArrow` queries before, so it has loaded and compiled what any streaming
  query needs, and has Python processes at hand. The system itself is used for the first time.
- *again*: the same once more in that session, with new state: what a second `attach` costs.

Invariants: the first epoch's clock starts before the operator is applied, and stops when its progress event is seen;
`attach` has a clock of its own. The rows of the first epoch are the same for all.
"""

import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.counter_systems import SYSTEMS
from bench.isolate import WrongAnswer
from bench.source import keyed_rows
from bench.spark_run import make_session

KEYS, ROWS = 1_000, 10_000
STATELESS = "spark-stateless-arrow"
_POLL_SECONDS = 0.01


def first_epoch(system: str, warm: bool, workdir: str, timeout: float) -> dict[str, Any]:
    """How long a system takes until its first epoch: the entry point of the isolated process."""
    it, root = SYSTEMS[system], Path(workdir)
    began = time.monotonic()
    spark = make_session(system, dict(it.conf), root)
    session = time.monotonic() - began
    try:
        if not warm:
            return {"session_s": session, **_run(spark, system, root / "cold", timeout)}
        for number in range(2):
            _run(spark, STATELESS, root / f"before-{number}", timeout)
        once = _run(spark, system, root / "first", timeout)
        again = _run(spark, system, root / "again", timeout)
        return {"session_s": session, **once, **{f"again_{name}": value for name, value in again.items()}}
    finally:
        spark.stop()


def _run(spark: SparkSession, system: str, root: Path, timeout: float) -> dict[str, float]:
    began = time.monotonic()
    with SYSTEMS[system].open(spark, root) as opened:
        attached = time.monotonic()
        out = opened.transform(keyed_rows(spark, KEYS, ROWS))
        applied = time.monotonic()
        query = _start(out, root)
        started = time.monotonic()
        try:
            _wait_for_epoch(query, timeout)
            first = time.monotonic()
        finally:
            query.stop()
    return {
        "attach_s": attached - began,
        "apply_s": applied - attached,
        "start_s": started - applied,
        "epoch_s": first - attached,
        "total_s": first - began,
    }


def _start(out: DataFrame, root: Path) -> StreamingQuery:
    writer = out.writeStream.format("noop").outputMode("update")
    return writer.option("checkpointLocation", str(root / "spark")).start()


def _wait_for_epoch(query: StreamingQuery, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while query.lastProgress is None:
        failure = query.exception()
        if failure is not None:
            raise failure
        if time.monotonic() > deadline:
            raise TimeoutError(f"no epoch was committed within {timeout:.0f} s")
        time.sleep(_POLL_SECONDS)


def first_read(workdir: str, timeout: float) -> dict[str, Any]:
    """How long `format("bedload")` takes, first and later, beside a Parquet file of the same rows."""
    from bench import counter_bedload

    root = Path(workdir)
    spark = make_session("read", {}, root)
    try:
        cluster, _ = counter_bedload.attach(spark, root / "bedload")
        with cluster:
            query = _start(counter_bedload.operator(cluster, keyed_rows(spark, KEYS, ROWS)), root)
            try:
                _wait_for_epoch(query, timeout)
            finally:
                query.stop()
        parquet = str(root / "keys.parquet")
        spark.range(KEYS).write.parquet(parquet)
        figures = {}
        for name in ("first", "later"):
            figures[f"{name}_parquet_s"] = _count(spark.read, "parquet", parquet)
            figures[f"{name}_s"] = _count(spark.read, "bedload", str(root / "bedload"))
        return figures
    finally:
        spark.stop()


def _count(reader: Any, form: str, path: str) -> float:
    began = time.monotonic()
    found = reader.format(form).load(path).count()
    if found != KEYS:
        raise WrongAnswer(f"{form} gave {found:,} rows instead of {KEYS:,}")
    return time.monotonic() - began
