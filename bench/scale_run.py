"""What the isolated runs of all systems share: the load, the oracle, steps that are told, and whose the cores were.

Invariants: the oracle is a batch query over the very rows of the source. It knows how many rows and keys there are, and
the sum over all rows of a mark of their key, so a count that went to the wrong key is wrong, too. It looks at the load
itself as well: an epoch has the rows and the different keys that it should have.
"""

import contextlib
import os
import time
from typing import Any

import psutil  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.isolate import WrongAnswer
from bench.scale_measure import Beat, beats_of
from bench.scale_plan import CHANGED, KEY, ROWS_PER_EPOCH, Case, mark_expression, numbers_expression
from bench.source import PARTITIONS

CONF = {"spark.ui.showConsoleProgress": "false"}
STEP = "step: "
"""How a line of the log begins that is shown while it runs."""


def say(text: str) -> None:
    """Tell who waits what is done now."""
    print(f"{STEP}{text}", flush=True)


def wall() -> float:
    """Spark stamps its progress by this clock."""
    return time.time()  # noqa: TID251  measured against the stamps of another process


def load(spark: SparkSession, case: Case) -> DataFrame:
    """A streaming DataFrame of one column, `key long`; see `scale_plan`."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_PER_EPOCH)
        .option("numPartitions", PARTITIONS)
        .load()
    )
    return numbers.selectExpr(f"explode({numbers_expression(case)}) AS number").selectExpr(KEY)


def check(spark: SparkSession, case: Case, batch: int, state: DataFrame) -> None:
    """Compare a state of `key, n` as of the end of a batch with the rows that went in."""
    numbers = spark.range((batch + 1) * ROWS_PER_EPOCH)
    source = numbers.selectExpr("id", f"explode({numbers_expression(case, 'id')}) AS number").selectExpr("id", KEY)
    changed = source.where(f"id >= {batch * ROWS_PER_EPOCH}").select("key").distinct().count()
    rows = source.selectExpr("count(*)", f"sum({mark_expression()})").first()
    found = state.selectExpr("sum(n)", f"sum(n * {mark_expression()})", "count(*)").first()
    assert rows is not None
    assert found is not None
    if (rows[0], changed) != (case.rows(batch), CHANGED):
        raise WrongAnswer(f"the load had {rows[0]} rows, {changed} keys in an epoch, not {case.rows(batch)}, {CHANGED}")
    expected = (*rows, case.keys)
    if tuple(found) != expected:
        raise WrongAnswer(f"rows counted, their marks and keys are {tuple(found)} instead of {expected}")


def last_batch(query: StreamingQuery) -> int:
    """The last one that is committed."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def beats(query: StreamingQuery) -> list[Beat]:
    """The epochs of this run of a query so far."""
    return beats_of(_as_dict(event) for event in query.recentProgress)


def _as_dict(event: Any) -> dict[str, Any]:
    return {name: event[name] for name in ("batchId", "timestamp", "durationMs")}


class Cores:
    """Processor time since it was made: that of this benchmark's processes, and that of all others."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._own, self._all = _own_seconds(), _busy_seconds()

    def own_seconds(self) -> float:
        """What the processes of this session used."""
        return _own_seconds() - self._own

    def others(self) -> float:
        """How many cores were busy with something else."""
        busy = _busy_seconds() - self._all - self.own_seconds()
        return max(busy / (time.monotonic() - self._began), 0.0)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq")))


def _own_seconds() -> float:
    session, total = os.getsid(0), 0.0
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(pid) == session:
                # With what its children used that have ended.
                total += sum(psutil.Process(pid).cpu_times()[:4])
    return total
