"""A backfill: memory of the workers by the size of an epoch, with outputs in local files and all in memory.

    python -m bench.backfill --quick
    python -m bench.backfill --rows 30000000 --json out.json

Invariants:
- All rows are in one epoch (`availableNow` on Parquet files), and each gives an output of about 55 bytes.
- Each run is in a process tree of its own. A worker's peak is what the kernel says (`VmHWM`), the larger of the two.
- The outputs are checked by their number and a sum, in two actions on the batch: the second one gets what was kept.

Why: an epoch's outputs are kept until Spark commits, and in a backfill they are far more than the state.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own customary name
from rich.console import Console

import bedload as bl
from bedload.core.limits import LIMITS
from bench.isolate import NotAvailable, WrongAnswer, run_isolated
from bench.report import Column, Report, Result, Status, finish, machine_info

SYSTEMS = ("local-files", "in-memory")
SIZES, QUICK_SIZES = (1_000_000, 10_000_000, 30_000_000), (500_000, 1_000_000, 3_000_000)
KEYS = 10_000
WORKERS = 2
RUN_SECONDS = 1800.0
STATED_MB = 512.0
"""What a worker may take beside its state, however large the epoch is."""
SCHEMA = "key long, n long, text string"
COLUMNS = (
    Column("rows", "rows in the epoch", "{:,}"),
    Column("idle_mb", "idle worker MB", "{:,.0f}"),
    Column("peak_mb", "peak MB", "{:,.0f}"),
    Column("over_mb", "more MB", "{:,.0f}"),
    Column("first_s", "first action s", "{:.1f}"),
    Column("second_s", "second s", "{:.1f}"),
)


class Backfilled(bl.Operator):
    """A running count with an output for each row."""

    n: int = bl.value(0)

    def process(self, key: int, rows: bl.Rows, ctx: bl.Context) -> Iterator[tuple[Any, ...]]:
        """A row for each row."""
        for row in rows:
            self.n += 1
            yield key, self.n, row.text


class InMemory(Backfilled):
    """The same, at a worker that is told to keep all outputs in memory."""

    def setup(self, ctx: bl.Context) -> None:
        """There is no such setting: nobody but this benchmark has a use for it."""
        object.__setattr__(LIMITS, "output_bytes", 1 << 50)


def memory_mb(pid: int, what: str) -> float:
    """What the kernel says of a process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise NotAvailable("there is no /proc here that tells a process's peak memory") from error
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) * 1024 / 1e6


def totals(rows: int) -> tuple[int, int]:
    """How many outputs there are, and the sum of their counts."""
    each, rest = divmod(rows, KEYS)
    return rows, (KEYS - rest) * each * (each + 1) // 2 + rest * (each + 1) * (each + 2) // 2


def backfill(system: str, rows: int, workdir: str) -> dict[str, float]:
    """One epoch of so many rows; in the isolated process."""
    from bench.spark_run import make_session

    root = Path(workdir)
    spark = make_session(f"backfill-{system}", {}, root)
    seconds: list[float] = []

    def twice(batch: DataFrame, _: int) -> None:
        for _ in range(2):
            began = time.perf_counter()
            found = batch.agg(F.count("text"), F.sum("n")).first()
            seconds.append(time.perf_counter() - began)
            if found is None or tuple(found) != totals(rows):
                raise WrongAnswer(f"{found} of {totals(rows)}")

    try:
        source = spark.range(rows).selectExpr(f"id % {KEYS} AS key", "lpad(hex(id), 32, '0') AS text")
        source.repartition(8).sortWithinPartitions("text").write.parquet(str(root / "rows"))
        more = {"epoch_bytes": 1 << 50} if system == "in-memory" else {}
        with bl.attach(spark, workers=WORKERS, local_dir=root, **more) as cluster:
            idle = max(memory_mb(pid, "VmRSS") for pid in cluster.workers.values())
            operator = InMemory if system == "in-memory" else Backfilled
            df = spark.readStream.schema("key long, text string").parquet(str(root / "rows"))
            out = cluster.apply(df, key="key", operator=operator, schema=SCHEMA)
            writer = out.writeStream.foreachBatch(twice).option("checkpointLocation", str(root / "spark"))
            writer.trigger(availableNow=True).start().awaitTermination()
            peak = max(memory_mb(pid, "VmHWM") for pid in cluster.workers.values())
    finally:
        spark.stop()
    if len(seconds) != 2:
        raise WrongAnswer(f"{len(seconds) // 2} epochs, and not one")
    return {"idle_mb": idle, "peak_mb": peak, "over_mb": peak - idle, "first_s": seconds[0], "second_s": seconds[1]}


def measure(system: str, rows: int, workdir: Path) -> Result:
    """One size of one system."""
    arguments = {"system": system, "rows": rows, "workdir": str(workdir / "work")}
    outcome = run_isolated("bench.backfill:backfill", arguments, workdir, RUN_SECONDS)
    if outcome.value is None:
        status = {"NotAvailable": Status.UNAVAILABLE, "WrongAnswer": Status.WRONG}.get(outcome.error_kind)
        return Result(system, {"rows": rows}, status or Status.FAILED, {}, outcome.error)
    figures = {**outcome.value, "busy_cores_before": round(outcome.busy_cores, 2)}
    note = f"over the stated {STATED_MB:.0f} MB" if figures["over_mb"] > STATED_MB else ""
    return Result(system, {"rows": rows}, Status.OK, figures, note)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.backfill",
        description="Peak memory of a worker by the rows of an epoch, with outputs in local files and all in memory.",
    )
    parser.add_argument("--quick", action="store_true", help="smaller epochs: about two minutes")
    parser.add_argument("--rows", type=int, nargs="+", metavar="N", help="the sizes of the epochs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    options = parser.parse_args(arguments)
    sizes = options.rows or (QUICK_SIZES if options.quick else SIZES)
    console = Console(width=None if sys.stdout.isatty() else 150)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    results = []
    for rows in sizes:
        for system in SYSTEMS:
            with console.status(f"{rows:,} rows, {system}"):
                results.append(measure(system, rows, workdir / f"{system}-{rows}"))
    settings = {"quick": options.quick, "keys": KEYS, "workers": WORKERS, "stated_mb": STATED_MB}
    title = f"one epoch, {KEYS:,} keys, an output for each row; {WORKERS} workers, the larger one's memory"
    report = Report("backfill", results, COLUMNS, {}, settings, machine_info(), title)
    return finish(report, console, workdir, tables=report.tables(), json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
