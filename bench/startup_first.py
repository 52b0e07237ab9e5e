"""Inside the isolated process: seconds until the first epoch is committed, and until state is read first.

What was there before:

- *cold*: nothing. A fresh process with a fresh JVM; the clock starts when the Spark session is up.
- *warm*: the JVM has run two streaming queries of its own, so it has loaded and compiled what any query needs.
- *python too*: these were `mapInArrow` queries, so that Python processes are at hand as well.

Where something was there, the same is done once more in that session, with new state (*again*): what a second `attach`
costs.

Invariants: the first epoch's clock starts before the operator is applied, and stops when its progress event is seen;
`attach` has a clock of its own, the import of Bedload included. The rows of the first epoch are the same for all.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from bench.counter_systems import SYSTEMS, stateless
from bench.isolate import WrongAnswer
from bench.source import keyed_rows
from bench.spark_run import make_session

KEYS, ROWS = 1_000, 10_000
STATELESS = "spark-stateless-arrow"
_POLL_SECONDS = 0.01


def first_epoch(system: str, before: str, workdir: str, timeout: float) -> dict[str, Any]:
    """How long a system takes until its first epoch: the entry point of the isolated process."""
    it, root = SYSTEMS[system], Path(workdir)
    began = time.monotonic()
    spark = make_session(system, dict(it.conf), root)
    session = time.monotonic() - began
    try:
        if before == "cold":
            return {"session_s": session, **_run(spark, system, root / "cold", timeout)}
        for number in range(2):
            rows = keyed_rows(spark, KEYS, ROWS)
            _first_epoch(rows if before == "warm" else stateless(rows), root / f"before-{number}", timeout)
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
        first = _first_epoch(out, root, timeout)
    return {
        "attach_s": attached - began,
        "apply_s": applied - attached,
        "epoch_s": first - attached,
        "total_s": first - began,
    }


def _first_epoch(out: DataFrame, root: Path, timeout: float) -> float:
    """Run a query until its first epoch is committed; when that was."""
    query = _start(out, root)
    try:
        _wait_for_epoch(query, timeout)
        return time.monotonic()
    finally:
        query.stop()


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
            _first_epoch(counter_bedload.operator(cluster, keyed_rows(spark, KEYS, ROWS)), root, timeout)
        parquet = str(root / "keys.parquet")
        spark.range(KEYS).write.parquet(parquet)
        figures = {}
        for name in ("first", "later"):
            figures[f"{name}_parquet_s"] = _count(spark.read, "parquet", parquet)
            figures[f"{name}_s"] = _count(spark.read, "bedload", str(root / "bedload"))
        return figures
    finally:
        spark.stop()


class Plain(DataSource):
    """The least that a data source in Python can be."""

    @classmethod
    def name(cls) -> str:
        return "plain"

    def schema(self) -> str:
        return "key long"

    def reader(self, schema: Any) -> DataSourceReader:
        return PlainReader()


class PlainReader(DataSourceReader):
    """As many rows as there are keys."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"key": list(range(KEYS))})


def plain_read(workdir: str, timeout: float) -> dict[str, Any]:
    """How long any data source in Python takes, first and later, after the same queries as in :func:`first_read`."""
    root = Path(workdir)
    spark = make_session("read", {}, root)
    try:
        _first_epoch(stateless(keyed_rows(spark, KEYS, ROWS)), root, timeout)
        spark.dataSource.register(Plain)
        return {f"{name}_s": _count(spark.read, "plain", str(root)) for name in ("first", "later")}
    finally:
        spark.stop()


def _count(reader: Any, form: str, path: str) -> float:
    began = time.monotonic()
    found = reader.format(form).load(path).count()
    if found != KEYS:
        raise WrongAnswer(f"{form} gave {found:,} rows instead of {KEYS:,}")
    return time.monotonic() - began
