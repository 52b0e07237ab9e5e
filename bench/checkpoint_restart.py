"""Starting again from what a stopped query left: seconds until the first new epoch is committed.

Three kinds, one after the other in one process:

- *cold*: a fresh process with a fresh JVM. The clock starts when the Spark session is up, and stops when the first
  epoch's progress event is seen; how long the session took is told beside it. This is the figure of the report.
- *query*: the query is stopped and started again, as a driver does with one that failed. Bedload's workers stay.
- *warm*: the query and the workers are stopped, and both are started again in the same session.

Invariants: on Bedload's side the clock of cold and warm runs over `attach`, so the start of the workers is a part of
them; after a restart, all keys must be there.

Why three: most of the first one is the JVM, which loads and compiles what any streaming query needs, whatever its
state. The others have that behind them.
"""

import os
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.checkpoint_fill import FillRun, changing_rows, open_system
from bench.counter_systems import SYSTEMS, Opened
from bench.isolate import WrongAnswer
from bench.spark_run import make_session

_POLL_SECONDS = 0.02
_CHECK_SECONDS = 20.0


def restart(run: dict[str, Any], workdir: str, timeout: float) -> dict[str, Any]:
    """Go on with what `checkpoint_fill.fill` made in `workdir`: the entry point of the isolated process."""
    plan, root = FillRun(**run), Path(workdir)
    began = time.monotonic()
    spark = make_session(plan.system, dict(SYSTEMS[plan.system].conf), root)
    session = time.monotonic() - began
    try:
        cold = _restart(spark, plan, root, timeout)
        warm = _restart(spark, plan, root, timeout)
    finally:
        spark.stop()
    return {"session_s": session, **cold, "warm_restart_s": warm["restart_s"], "warm_cpu_s": warm["cpu_s"]}


def _restart(spark: SparkSession, plan: FillRun, root: Path, timeout: float) -> dict[str, float]:
    began, used = time.monotonic(), _cpu_seconds()
    with open_system(plan.system, spark, root) as opened:
        attached = time.monotonic()
        out = opened.transform(changing_rows(spark, plan.keys, plan.changed))
        writer = out.writeStream.format("noop").outputMode("update")
        writer = writer.option("checkpointLocation", str(root / "spark"))
        query = writer.start()
        started = time.monotonic()
        try:
            progress = _first_progress(query, timeout)
            first = time.monotonic()
            used = _cpu_seconds() - used
            _check_keys(plan.keys, progress, opened)
        finally:
            query.stop()
        stopped = time.monotonic()
        query = writer.start()
        try:
            _first_progress(query, timeout)
            again = time.monotonic()
        finally:
            query.stop()
    return {
        "restart_s": first - began,
        "attach_s": attached - began,
        "start_s": started - attached,
        "first_epoch_s": first - started,
        "cpu_s": used,
        "query_restart_s": again - stopped,
    }


def _cpu_seconds() -> float:
    """Of this process and all that it started: what a busy machine does not change."""
    total, session = 0.0, os.getsid(0)
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session:
                times = process.cpu_times()
                total += times.user + times.system
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return total


def _first_progress(query: StreamingQuery, timeout: float) -> Any:
    deadline = time.monotonic() + timeout
    while True:
        failure = query.exception()
        if failure is not None:
            raise failure
        progress = query.lastProgress
        if progress is not None:
            return progress
        if time.monotonic() > deadline:
            raise TimeoutError(f"no epoch was committed {timeout:.0f} s after the restart")
        time.sleep(_POLL_SECONDS)


def _check_keys(expected: int, progress: Any, opened: Opened) -> None:
    if opened.keys is None:
        found = sum(int(operator["numRowsTotal"]) for operator in progress["stateOperators"])
    else:
        # Of the last epoch that the driver has heard of, which may be one behind the progress event.
        deadline = time.monotonic() + _CHECK_SECONDS
        while (found := opened.keys()) != expected and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    if found != expected:
        raise WrongAnswer(f"{found:,} keys were there after the restart instead of {expected:,}")
