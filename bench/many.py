"""Many operators, queries, partitions and workers: epochs, and what the coordinator has to do for each.

    python -m bench.many --quick
    python -m bench.many --workers 8,16,32 --json out.json

Invariants:
- ``spark``: each measurement runs in a process tree of its own, on real Spark, and its counts are checked.
- ``alone``: the coordinator without sockets and Spark, in sizes that no single machine has; messages and bytes are
  exact, processor time is the least of a few epochs.

Why: the coordinator is one thread. What it does for an epoch must grow with workers + partitions, and with nothing
faster, or a cluster cannot grow. docs/concepts/scale.md extends what is measured here on paper.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from bench.checkpoint import result_of
from bench.isolate import BUSY_SECONDS, run_isolated
from bench.many_load import Cost, Load
from bench.report import Column, Report, Result, Status, finish, machine_info
from bench.spark_run import CORES

RUN_SECONDS = 900.0
LAYOUTS = ("chained", "queries")
GRID = ((8, 200), (32, 200), (128, 200), (32, 800), (128, 3200))
"""Workers and partitions from which the slopes are taken."""
LARGE = (1000, 10_000)
TRIES = 3
COLUMNS: Mapping[str, tuple[str, tuple[Column, ...]]] = {
    "spark": (
        "an epoch of all operators, on real Spark",
        (
            Column("operators", "operators"),
            Column("partitions", "partitions"),
            Column("workers", "workers"),
            Column("attach_s", "attach s", "{:.1f}"),
            Column("epoch_p50_s", "p50 s", "{:.2f}"),
            Column("epoch_max_s", "max s", "{:.2f}"),
            Column("coordinator_ms", "coordinator ms", "{:.1f}"),
            Column("coordinator_share", "share", "{:.1%}"),
            Column("messages", "messages", "{:,.0f}"),
            Column("bytes", "bytes", "{:,.0f}"),
            Column("coordinator_us_per_message", "µs/message", "{:.1f}"),
            Column("workers_cpu_s", "workers' CPU s", "{:.2f}"),
        ),
    ),
    "alone": (
        "an epoch of one operator, the coordinator alone",
        (
            Column("workers", "workers"),
            Column("partitions", "partitions"),
            Column("messages", "messages", "{:,.0f}"),
            Column("bytes", "bytes", "{:,.0f}"),
            Column("coordinator_ms", "CPU ms", "{:.2f}"),
        ),
    ),
}
TARGETS = {
    "large_cpu_vs_slopes": 1.3,
    "large_bytes_vs_slopes": 1.1,
    "coordinator_share_of_epoch": 0.1,
}
"""At most."""


def alone(workers: int, partitions: int) -> Result:
    """The coordinator alone, on an epoch like all but the first one."""
    busy = psutil.cpu_percent(interval=BUSY_SECONDS) / 100 * (os.cpu_count() or 1)
    load = Load(workers, partitions)
    load.epoch()
    cost: Cost = min((load.epoch() for _ in range(TRIES)), key=lambda it: it.cpu_s)
    params = {"part": "alone", "workers": workers, "partitions": partitions}
    figures = {
        "messages": float(cost.messages),
        "bytes": float(cost.bytes),
        "coordinator_ms": 1000 * cost.cpu_s,
        "busy_cores_before": round(busy, 2),
    }
    return Result("coordinator", params, Status.OK, figures)


def slopes(results: Sequence[Result], figure: str) -> np.ndarray:
    """What an epoch, a worker and a partition cost: least squares, by share, so that small sizes count as large do."""
    sizes = np.array([[1.0, r.params["workers"], r.params["partitions"]] for r in results])
    found = np.array([r.figures[figure] for r in results])
    solution: np.ndarray = np.linalg.lstsq(sizes / found[:, None], np.ones(len(found)), rcond=None)[0]
    return solution


def ratios_of(results: Sequence[Result]) -> dict[str, float]:
    """What the largest size takes over what the slopes of smaller ones say, and the coordinator's share of an epoch."""
    small = [r for r in results if r.params["part"] == "alone" and r.params["workers"] != LARGE[0]]
    large = [r for r in results if r.params["part"] == "alone" and r.params["workers"] == LARGE[0]]
    ratios: dict[str, float] = {}
    if small and large:
        at = np.array([1.0, *LARGE])
        for name, figure in (("large_cpu_vs_slopes", "coordinator_ms"), ("large_bytes_vs_slopes", "bytes")):
            ratios[name] = large[0].figures[figure] / float(slopes(small, figure) @ at)
    shares = [r.figures["coordinator_share"] for r in results if "coordinator_share" in r.figures]
    if shares:
        ratios["coordinator_share_of_epoch"] = max(shares)
    return ratios


def tables(report: Report) -> Iterable[Table]:
    """A table for each part, the slopes, and the ratios with their targets."""
    for part, (title, columns) in COLUMNS.items():
        found = [result for result in report.results if result.params["part"] == part]
        if found:
            yield Report(part, found, columns, title=title).table()
    small = [r for r in report.results if r.params["part"] == "alone" and r.params["workers"] != LARGE[0]]
    if small:
        table = Table(title="slopes of the coordinator alone, for an operator and epoch", title_justify="left")
        for name in ("figure", "each epoch", "each worker", "each partition"):
            table.add_column(name, justify="left" if name == "figure" else "right")
        for figure in ("messages", "bytes", "coordinator_ms"):
            table.add_row(figure, *(f"{value:,.4f}" for value in slopes(small, figure)))
        yield table
    table = Table(title="ratios (less is better)", title_justify="left")
    for name in ("ratio", "x", "target"):
        table.add_column(name)
    for name, value in report.ratios.items():
        bound = TARGETS[name]
        table.add_row(name, f"{value:.3f}", f"<= {bound:g}: {'met' if value <= bound else 'missed'}")
    yield table


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.many",
        description="Epochs of 8 operators, chained in one query and in 8 queries, from 200 source partitions to 8,\n"
        "16 and 32 workers, with the coordinator's time, messages and bytes; and the coordinator alone\n"
        "with up to 1,000 workers and 10,000 partitions.",
        epilog="targets:\n" + "\n".join(f"  {name} <= {bound:g}" for name, bound in TARGETS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="4 operators, 40 partitions, 4 and 8 workers: a few minutes"
    )
    parser.add_argument("--workers", metavar="A,B", help="8,16,32 (4,8 with --quick)")
    parser.add_argument("--operators", type=int, metavar="N", help="8 (4 with --quick)")
    parser.add_argument("--partitions", type=int, metavar="N", help="200 (40 with --quick)")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="measured epochs (5)")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), metavar="A,B", help=f"of {', '.join(LAYOUTS)}")
    parser.add_argument("--parts", default=",".join(COLUMNS), metavar="A,B", help=f"of {', '.join(COLUMNS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    options = parser.parse_args(arguments)
    options.workers = [
        int(number) for number in (options.workers or ("4,8" if options.quick else "8,16,32")).split(",")
    ]
    options.operators = options.operators or (4 if options.quick else 8)
    options.partitions = options.partitions or (40 if options.quick else 200)
    if options.partitions % 10:
        parser.error("--partitions: a multiple of 10, so that every epoch holds each key as often")
    for name, known in (("layouts", LAYOUTS), ("parts", tuple(COLUMNS))):
        chosen = getattr(options, name).split(",")
        if not set(chosen) <= set(known):
            parser.error(f"--{name}: of {', '.join(known)}")
        setattr(options, name, chosen)
    return options


def run_spark(options: argparse.Namespace, workdir: Path, console: Console) -> Iterable[Result]:
    """All measurements on Spark."""
    for workers in options.workers:
        for layout in options.layouts:
            sizes = {"operators": options.operators, "partitions": options.partitions, "workers": workers}
            label = f"{layout}, {sizes}"
            place = workdir / f"{layout}-{workers}"
            arguments: dict[str, Any] = {
                **sizes,
                "layout": layout,
                "epochs": options.epochs,
                "workdir": str(place / "work"),
                "timeout": RUN_SECONDS,
            }
            with console.status(label):
                outcome = run_isolated("bench.many_spark:measure", arguments, place, RUN_SECONDS + 60)
            result = result_of(layout, {"part": "spark", **sizes}, outcome)
            shown = "{epoch_p50_s:.2f} s, coordinator {coordinator_ms:.1f} ms, {messages:,.0f} messages"
            said = (
                shown.format(**result.figures) if result.figures else f"{result.status}: {result.note} ({outcome.log})"
            )
            console.print(f"{label}: {said} ({outcome.seconds:.0f} s)", markup=False, highlight=False)
            yield result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a measurement failed or answered wrong."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 190)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    results: list[Result] = []
    if "alone" in options.parts:
        results += [alone(*size) for size in (*GRID, LARGE)]
    if "spark" in options.parts:
        results += run_spark(options, workdir, console)
    settings = {
        "quick": options.quick,
        "cores_used": CORES,
        "targets": {name: f"<= {bound:g}" for name, bound in TARGETS.items()},
    }
    report = Report("many", results, (), ratios_of(results), settings, machine_info())
    return finish(report, console, workdir, tables=tables(report), json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
