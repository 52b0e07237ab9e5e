"""Stores: rows per second with state in memory, on disk with room enough or a quarter of it, and on RocksDB in Spark.

    python -m bench.stores --quick
    python -m bench.stores --cases uniform --keys 2000000 --json out.json

Invariants:
- All systems have the same rows: first each key once, then keys drawn by a hash of the row's number, evenly or as Zipf
  has them (1.0). Each run is in a process tree of its own, with a checkpoint on the local disk.
- `tight` may have a quarter of what the state takes in memory, `roomy` twice of it: as objects, as columns, or as
  objects over a Redis, which is on the same machine and shares its cores.
- After the last epoch, keys that are drawn at random have the count that Spark finds in the same rows.

Why: state on disk has to be worth it beside Spark's own, and to cost little where it fits into memory.
"""

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own customary name
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

import bedload as bl
from bench.backfill import memory_mb
from bench.isolate import NotAvailable, WrongAnswer, run_isolated
from bench.report import Column, Report, Result, Status, finish, machine_info

MEMORY, ROOMY, TIGHT, SPARK = "memory", "disk-roomy", "disk-tight", "spark-native-rocksdb"
COLUMNS_MEMORY, COLUMNS_ROOMY, COLUMNS_TIGHT = "columns-memory", "columns-roomy", "columns-tight"
REDIS, REDIS_TIGHT = "redis-roomy", "redis-tight"
SYSTEMS = (MEMORY, ROOMY, TIGHT, COLUMNS_MEMORY, COLUMNS_ROOMY, COLUMNS_TIGHT, REDIS, REDIS_TIGHT, SPARK)
IN_COLUMNS = (COLUMNS_MEMORY, COLUMNS_ROOMY, COLUMNS_TIGHT)
CASES = {"uniform": 20_000_000, "zipf": 20_000_000, "values": 4_000_000}
"""The keys of each."""
OBJECT_BYTES = {"uniform": 300, "zipf": 300, "values": 1400}
"""What a key takes in memory, about."""
COLUMN_BYTES = 40
"""The same as columns."""
WORKERS = 2
ROWS = {"uniform": 400_000, "zipf": 400_000, "values": 50_000}
"""Of an epoch."""
STEADY, SETTLE = 12, 3
RUN_SECONDS = 7200.0
TEXT = 1000
COLUMNS = (
    Column("keys", "keys", "{:,}"),
    Column("rows_per_s", "rows/s", "{:,.0f}"),
    Column("fill_rows_per_s", "filling rows/s", "{:,.0f}"),
    Column("vs_spark", "vs Spark", "{:.2f}x"),
    Column("vs_memory", "vs memory", "{:.2f}x"),
    Column("longest", "longest / median epoch", "{:.2f}"),
    Column("budget_mb", "budget MB", "{:,.0f}"),
    Column("peak_mb", "worker peak MB", "{:,.0f}"),
    Column("own_mb", "without files MB", "{:,.0f}"),
    Column("idle_mb", "empty worker MB", "{:,.0f}"),
    Column("disk_mb", "on disk MB", "{:,.0f}"),
    Column("hit_rate", "hit rate", "{:.2f}"),
)


@dataclass(frozen=True)
class Aim:
    """What is to be reached: a figure of a system under a load, at least, or at most."""

    name: str
    case: str
    system: str
    figure: str
    bound: float
    at_most: bool = False

    def reached(self, figures: Mapping[str, float]) -> bool:
        """Whether it is."""
        return figures[self.figure] <= self.bound if self.at_most else figures[self.figure] >= self.bound


AIMS = (
    *(
        Aim(f"{system}, {case}: rows/s against Spark's RocksDB", case, system, "vs_spark", bound)
        for case, system, bound in (
            ("uniform", COLUMNS_TIGHT, 3.0),
            ("uniform", TIGHT, 1.0),
            ("zipf", COLUMNS_TIGHT, 5.0),
            ("zipf", TIGHT, 2.0),
            ("values", TIGHT, 1.0),
        )
    ),
    *(
        Aim(f"{system}, {case}: rows/s against memory", case, system, "vs_memory", 0.8)
        for case in ("uniform", "zipf")
        for system in (ROOMY, COLUMNS_ROOMY)
    ),
    *(
        Aim(f"{system}, {case}: longest epoch against the median", case, system, "longest", 1.5, at_most=True)
        for case in ("uniform", "zipf")
        for system in (TIGHT, COLUMNS_TIGHT)
    ),
    Aim("disk-tight, values: peak above an empty worker against budget", "values", TIGHT, "over_budget", 1.3, True),
)


class Counted(bl.Operator):
    """A running count."""

    n: int = bl.value(0)

    def process(self, key: int, rows: bl.Rows, ctx: bl.Context) -> tuple[int, int]:
        """Count."""
        self.n += len(rows)
        return key, self.n


class Valued(bl.Operator):
    """A count, and a kilobyte that each row replaces if it is later."""

    n: int = bl.value(0)
    text: str = bl.value("")

    def process(self, key: int, rows: bl.Rows, ctx: bl.Context) -> tuple[int, int]:
        """Keep the largest."""
        self.n += len(rows)
        self.text = max(self.text, *(row.text for row in rows))
        return key, self.n


def drawn(case: str, keys: int) -> str:
    """The key of a row, of its number `value`."""
    even = f"pmod(xxhash64(value), {keys})"
    skewed = f"cast(pow({keys}D, pmod(xxhash64(value), 1073741824) / 1073741824D) as long) - 1"
    return f"if(value < {keys}, value, {skewed if case == 'zipf' else even})"


def rows_of(case: str, keys: int, df: DataFrame) -> DataFrame:
    """The rows of these numbers."""
    more = [f"lpad(hex(value), {TEXT}, '0') AS text"] if case == "values" else []
    return df.selectExpr(f"{drawn(case, keys)} AS key", *more)


def budget_of(system: str, case: str, keys: int) -> int:
    """The memory of a worker for state, in bytes."""
    state = keys * (COLUMN_BYTES if system in IN_COLUMNS else OBJECT_BYTES[case]) // WORKERS
    return max(2 * state if system in (ROOMY, COLUMNS_ROOMY, REDIS) else state // 4, 16 << 20)


def measure(system: str, case: str, keys: int, rows: int, workdir: str) -> dict[str, Any]:
    """One system, in the isolated process."""
    from bench.counter_systems import ROCKSDB
    from bench.scale_spark import CHANGELOGS
    from bench.spark_run import make_session

    root = Path(workdir)
    conf = {**ROCKSDB, **CHANGELOGS} if system == SPARK else {}
    spark = make_session(f"stores-{system}", conf, root)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2)
        df = rows_of(case, keys, numbers.load().selectExpr("value"))
        fill = -(-keys // rows)
        if system == SPARK:
            total = [F.count("*").alias("n"), *([F.max("text").alias("text")] if case == "values" else [])]
            with _running(df.groupBy("key").agg(*total), root) as query:
                return _timed(query, rows, fill, [])
        budget, in_memory = budget_of(system, case, keys), system in (MEMORY, COLUMNS_MEMORY)
        means: dict[str, Any] = {"store": "memory"} if in_memory else {"store": "disk", "memory": budget}
        place = redis_server(root) if system in (REDIS, REDIS_TIGHT) else nullcontext()
        with (
            place as url,
            bl.attach(
                spark,
                workers=WORKERS,
                checkpoint=root / "state",
                local_dir=root,
                **(means if url is None else means | {"store": url}),
            ) as cluster,
        ):
            pids = list(cluster.workers.values())
            idle = max(memory_mb(pid, "VmRSS") for pid in pids)
            if system in IN_COLUMNS:
                out = cluster.aggregate(df, key="key", name="counted", n=bl.agg.count())
            else:
                operator = Valued if case == "values" else Counted
                out = cluster.apply(df, key="key", operator=operator, schema="key long, n long", name="counted")
            with _running(out, root) as query:
                figures = _timed(query, rows, fill, pids)
            stores = list(cluster.stores())
            peak = max(memory_mb(pid, "VmHWM") for pid in pids)
            _check(spark, cluster, case, keys, rows)
        wanted = sum(it["hits"] + it["misses"] for it in stores)
        figures |= {"idle_mb": idle, "peak_mb": peak, "disk_mb": sum(it["disk_bytes"] for it in stores) / 1e6}
        if not in_memory:
            figures["budget_mb"] = budget / 1e6
            if wanted:
                figures["hit_rate"] = sum(it["hits"] for it in stores) / wanted
            figures["over_budget"] = (peak - idle) / (budget / 1e6)
        return figures
    finally:
        spark.stop()


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """A Redis of its own, which keeps nothing on the disk; its address."""
    if shutil.which("redis-server") is None:
        raise NotAvailable("no redis-server: sudo apt-get install -y redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(1000):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.01)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


@contextmanager
def _running(out: DataFrame, root: Path) -> Iterator[StreamingQuery]:
    writer = out.writeStream.format("noop").outputMode("update")
    query = writer.option("checkpointLocation", str(root / "spark")).start()
    try:
        yield query
    finally:
        query.stop()


def _timed(query: StreamingQuery, rows: int, fill: int, pids: Sequence[int]) -> dict[str, Any]:
    """The pace of the epochs that fill, and of the steady ones after them; the most memory of their own of workers."""
    began = time.perf_counter()
    last = fill + SETTLE + STEADY
    ends: dict[int, float] = {}
    own = 0.0
    while True:
        own = max([own, *(memory_mb(pid, "RssAnon") for pid in pids)])
        if (error := query.exception()) is not None:
            raise error
        for event in query.recentProgress[-20:]:
            ends.setdefault(event["batchId"], event["batchDuration"] / 1000)
        if max(ends, default=-1) >= last:
            break
        time.sleep(0.05)
        if time.perf_counter() - began > RUN_SECONDS:
            raise TimeoutError(f"epoch {last} was not reached; {max(ends, default=-1)} was")
    steady = sorted(took for batch, took in ends.items() if fill + SETTLE <= batch < last)
    filling = sorted(took for batch, took in ends.items() if 0 < batch < fill) or steady
    half = steady[len(steady) // 2]
    return {
        "rows_per_s": rows * len(steady) / sum(steady),
        "fill_rows_per_s": rows * len(filling) / sum(filling),
        "longest": steady[-1] / half,
        **({"own_mb": own} if pids else {}),
    }


def _check(spark: SparkSession, cluster: bl.Cluster, case: str, keys: int, rows: int) -> None:
    """Some keys have the counts that their rows give."""
    state = cluster.state("counted")
    chosen = [keys * part // 20 for part in range(20)]
    found = {key: state.get(key) for key in chosen}
    epochs = {item.epoch for item in found.values() if item is not None}
    if len(epochs) != 1:
        raise WrongAnswer(f"keys are of the epochs {sorted(epochs)}")
    seen = rows_of(case, keys, spark.range((max(epochs) + 1) * rows).selectExpr("id AS value")).select("key")
    counts = {row.key: row["count"] for row in seen.where(F.col("key").isin(chosen)).groupBy("key").count().collect()}
    wrong = {key: item for key, item in found.items() if counts.get(key, 0) != (0 if item is None else item["n"])}
    if wrong:
        raise WrongAnswer(f"{ {key: item and item['n'] for key, item in wrong.items()} } of {counts}")


def run(system: str, case: str, keys: int, rows: int, workdir: Path) -> Result:
    """One system under one load."""
    shape: Mapping[str, Any] = {"case": case, "keys": keys}
    arguments = {"system": system, "case": case, "keys": keys, "rows": rows, "workdir": str(workdir / "work")}
    outcome = run_isolated("bench.stores:measure", arguments, workdir, RUN_SECONDS)
    if outcome.value is None:
        status = {"NotAvailable": Status.UNAVAILABLE, "WrongAnswer": Status.WRONG}.get(outcome.error_kind)
        return Result(system, dict(shape), status or Status.FAILED, {}, outcome.error)
    return Result(system, dict(shape), Status.OK, {**outcome.value, "busy_cores_before": round(outcome.busy_cores, 2)})


def compared(results: Sequence[Result]) -> list[Result]:
    """The same with how they compare to Spark's, and to state in memory, of the same load."""
    pace = {(it.system, it.params["case"], it.params["keys"]): it.figures.get("rows_per_s") for it in results}
    made = []
    for it in results:
        figures = dict(it.figures)
        for name, other in (("vs_spark", SPARK), ("vs_memory", COLUMNS_MEMORY if it.system in IN_COLUMNS else MEMORY)):
            base = pace.get((other, it.params["case"], it.params["keys"]))
            if base and it.figures and it.system != other:
                figures[name] = round(figures["rows_per_s"] / base, 3)
        made.append(Result(it.system, it.params, it.status, figures, it.note))
    return made


def verdicts(results: Sequence[Result]) -> Table:
    """What is to be reached, and what was."""
    table = Table(title="verdicts", title_justify="left")
    for title in ("figure", "is", "should be", ""):
        table.add_column(title, no_wrap=True)
    for aim in AIMS:
        for it in results:
            if it.system == aim.system and it.params["case"] == aim.case and aim.figure in it.figures:
                bound = f"{'≤' if aim.at_most else '≥'} {aim.bound:g}"
                said = "reached" if aim.reached(it.figures) else "not reached"
                table.add_row(aim.name, f"{it.figures[aim.figure]:.2f}", bound, said)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.stores",
        description="Rows per second by store, with room enough for the state and with a quarter of it.",
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the keys: less than ten minutes")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="which loads")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="which systems")
    parser.add_argument("--keys", type=int, metavar="N", help="so many, whatever the load")
    parser.add_argument("--rows", type=int, metavar="N", help="of an epoch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 190)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    results = []
    for case in options.cases:
        keys = options.keys or (CASES[case] // 10 if options.quick else CASES[case])
        rows = options.rows or (ROWS[case] // 2 if options.quick else ROWS[case])
        for system in options.systems:
            if case == "values" and system in IN_COLUMNS:
                continue  # texts in columns are Python objects in memory
            with console.status(f"{case}, {keys:,} keys, {system}"):
                results.append(run(system, case, keys, rows, workdir / f"{case}-{system}"))
    settings = {"quick": options.quick, "workers": WORKERS, "steady_epochs": STEADY}
    title = f"{WORKERS} workers; a steady epoch after all keys are there"
    found = compared(results)
    report = Report("stores", found, COLUMNS, {}, settings, machine_info(), title)
    tables = [*report.tables(), verdicts(found)]
    return finish(report, console, workdir, tables=tables, json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
