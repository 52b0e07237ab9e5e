"""Many operators, queries, partitions and workers on real Spark: what an epoch takes, and the coordinator's part in it.

Invariants:
- Every operator gets every row, once: an operator passes on each row that it counts, and every partition holds a key
  at most once. So the true count of each key at each operator is known, and is checked at the end.
- The coordinator's processor time is that of its own thread, sockets included; its messages are counted where they are
  decoded and encoded. Beats come by the clock and not by the epoch, so they are left out.
- The first epochs, which start processes and tell routes, are not measured.
"""

import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own customary name
from pyspark.sql.streaming.query import StreamingQuery

import bedload as bl
from bedload.core.ids import WorkerId
from bedload.protocol import messages as m
from bench.isolate import WrongAnswer
from bench.spark_run import make_session

KEYS = 1000
PARTITION_ROWS = 100
WARM_EPOCHS = 2
POLL_SECONDS = 0.05
LOOKED_AT = range(0, KEYS, 50)
SCHEMA = "key long, n long"


class Pass(bl.Operator):
    """Counts a key's rows, and passes each on."""

    n: int = bl.value(0)

    def process(self, key: int, rows: Any, ctx: Any) -> tuple[int, int]:
        self.n += len(rows)
        return key, self.n


class _Counter:
    """What the coordinator hears and says."""

    def __init__(self, cluster: bl.Cluster) -> None:
        self._driver = cluster._driver
        self.messages = self.bytes = 0
        on_frame, encode = self._driver.on_frame, m.encode

        def hear(peer: Any, header: bytes, body: memoryview | None) -> None:
            if not header.startswith(_BEAT):
                self.messages, self.bytes = self.messages + 1, self.bytes + len(header) + (len(body) if body else 0)
            on_frame(peer, header, body)

        def say(message: m.Message) -> bytes:
            header = encode(message)
            self.messages, self.bytes = self.messages + 1, self.bytes + len(header)
            return header

        self._driver.on_frame = hear  # type: ignore[method-assign]
        m.encode = say

    def look(self) -> tuple[int, int, float]:
        """Messages, bytes, and seconds of the processor, until now."""
        return self._driver.call(lambda _: (self.messages, self.bytes, time.thread_time()))


_BEAT = m.encode(m.Beat(WorkerId(0), "", 0.0, ""))[:6]
"""An array's mark and the message's name."""


def measure(
    layout: str, operators: int, partitions: int, workers: int, epochs: int, workdir: str, timeout: float
) -> dict[str, Any]:
    """Run `operators` chained in one query, or in a query each, and give the figures of one epoch."""
    root = Path(workdir)
    spark = make_session("many", {}, root)
    try:
        began = time.monotonic()
        with bl.attach(spark, workers=workers, checkpoint=root / "bedload", start_seconds=timeout) as cluster:
            attached = time.monotonic() - began
            queries = _start(spark, cluster, layout, operators, partitions, root)
            try:
                figures = _watch(cluster, queries, epochs, timeout)
            finally:
                for query in queries:
                    query.stop()
            _check(cluster, operators, partitions * PARTITION_ROWS)
            return {"attach_s": attached, **figures}
    finally:
        spark.stop()


def _start(
    spark: SparkSession, cluster: bl.Cluster, layout: str, operators: int, partitions: int, root: Path
) -> list[StreamingQuery]:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", partitions * PARTITION_ROWS)
    # Spark deals numbers out to the partitions one by one: so a partition's are of other keys each.
    key = f"pmod(value div {partitions}, {PARTITION_ROWS}) + pmod(value, {partitions}) * {PARTITION_ROWS}"
    numbers = source.option("numPartitions", partitions).load().select(F.expr(f"({key}) % {KEYS}").alias("key"))

    def start(out: DataFrame, name: str) -> StreamingQuery:
        writer = out.writeStream.format("noop").outputMode("update").queryName(name)
        return writer.option("checkpointLocation", str(root / "spark" / name)).start()

    if layout == "chained":
        out = numbers
        for number in range(operators):
            out = cluster.apply(out, key="key", operator=Pass, schema=SCHEMA, name=_name(number))
        return [start(out, "chain")]
    applied = [
        cluster.apply(numbers, key="key", operator=Pass, schema=SCHEMA, name=_name(number))
        for number in range(operators)
    ]
    return [start(out, f"query-{number}") for number, out in enumerate(applied)]


def _name(number: int) -> str:
    return f"pass-{number}"


def _watch(cluster: bl.Cluster, queries: list[StreamingQuery], epochs: int, timeout: float) -> dict[str, float]:
    """Whole epochs of all queries: the coordinator's figures are those between two commits of the first query."""
    counter = _Counter(cluster)
    deadline = time.monotonic() + timeout
    _reach(queries, WARM_EPOCHS - 1, deadline)
    first, before, cpu = _committed(queries), counter.look(), _cpu(cluster)
    _reach(queries, WARM_EPOCHS + epochs - 1, deadline)
    last, after, worked = _committed(queries), counter.look(), _cpu(cluster)
    seconds = [
        event["durationMs"]["triggerExecution"] / 1000
        for query, began, ended in zip(queries, first, last, strict=True)
        for event in query.recentProgress
        if began < event["batchId"] <= ended
    ]
    # Epochs of one query, or rounds of all: whatever was under way when it was looked counts on both ends.
    rounds = sum(ended - began for began, ended in zip(first, last, strict=True)) / len(queries)
    messages, size, time_s = (end - start for start, end in zip(before, after, strict=True))
    return {
        "epochs": len(seconds),
        "epoch_p50_s": median(seconds),
        "epoch_max_s": max(seconds),
        "messages": messages / rounds,
        "bytes": size / rounds,
        "coordinator_ms": 1000 * time_s / rounds,
        "coordinator_us_per_message": 1e6 * time_s / messages,
        "coordinator_share": time_s / rounds / median(seconds),
        "workers_cpu_s": (worked - cpu) / rounds,
    }


def _committed(queries: list[StreamingQuery]) -> list[int]:
    return [-1 if query.lastProgress is None else int(query.lastProgress["batchId"]) for query in queries]


def _reach(queries: list[StreamingQuery], epoch: int, deadline: float) -> None:
    while min(_committed(queries)) < epoch:
        for query in queries:
            failure = query.exception()
            if failure is not None:
                raise failure
        if time.monotonic() > deadline:
            raise TimeoutError(f"epoch {epoch} is not over; the queries are at {_committed(queries)}")
        time.sleep(POLL_SECONDS)


def _cpu(cluster: bl.Cluster) -> float:
    """Processor time of all workers."""
    times = [psutil.Process(pid).cpu_times() for pid in cluster.workers.values()]
    return float(sum(it.user + it.system for it in times))


def _check(cluster: bl.Cluster, operators: int, rows: int) -> None:
    """Every operator has counted what the epochs that it committed held."""
    for number in range(operators):
        name = _name(number)
        state = cluster.state(name)
        for key in LOOKED_AT:
            answer = state.get(key)
            if answer is None:
                raise WrongAnswer(f"{name} has no state of key {key}")
            true = (answer.epoch + 1) * rows // KEYS
            if answer["n"] != true:
                raise WrongAnswer(f"{name}: key {key} has {answer['n']}, and {true} is true")
