"""Time: what timers, TTL and the beat cost, at a worker and in queries, beside Spark's `transformWithState`.

    python -m bench.timers --quick
    python -m bench.timers --parts timers,ttl --rounds 5 --json out.json

Invariants:
- Each measurement runs in a process tree of its own, and counts only if its state, its outputs and the timers that
  fired are what an oracle says.
- What is compared takes turns within a round; see `timers_plan`.
- At a worker, rates are over its processor time. Those of queries are over whole triggers.

Why: state that knows time is paid for with every row, due or not, and what is due comes in heaps.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.checkpoint import merged, result_of
from bench.isolate import run_isolated
from bench.report import Column, Report, Result, Status, finish, machine_info
from bench.spark_run import CORES
from bench.timers_plan import (
    BATCH_ROWS,
    EPOCH_ROWS,
    FEW_KEYS,
    MANY_KEYS,
    MAP_KEYS,
    MAP_ROWS,
    PARTS,
    TARGETS,
    Job,
    plan_round,
    ratios_of,
    verdict,
)

RUN_SECONDS = 400.0
RATE = Column("rows_per_s", "rows/s", "{:,.0f}")
TABLES: dict[str, tuple[str, tuple[Column, ...]]] = {
    "timers": (
        f"a counter at one worker: {MANY_KEYS:,} keys with a timer each, 1 % due in each epoch of {EPOCH_ROWS:,} rows; "
        "CPU, ms",
        (
            Column("rows_per_s", "rows/CPU s", "{:,.0f}"),
            Column("epoch_ms", "epoch", "{:,.0f}"),
            Column("nothing_due_ms", "nothing due", "{:.2f}"),
            Column("some_fire_ms", "1 % fire", "{:,.1f}"),
            Column("all_fire_ms", "all fire", "{:,.0f}"),
            Column("fired_m_per_s", "M timers/s", "{:.2f}"),
            Column("state_mb", "state MB", "{:,.1f}"),
        ),
    ),
    "ttl": (
        f"TTL at one worker: maps of 20 entries in {MAP_KEYS:,} keys ({MAP_ROWS:,} rows), aggregates and arrays of "
        f"{MANY_KEYS:,} keys ({EPOCH_ROWS:,} rows); CPU, ms",
        (
            Column("rows_per_s", "rows/CPU s", "{:,.0f}"),
            Column("epoch_ms", "epoch", "{:,.0f}"),
            Column("expired_share", "expire/epoch", "{:.2%}"),
            Column("nothing_due_ms", "nothing due", "{:.2f}"),
            Column("all_expire_ms", "all expire", "{:,.0f}"),
            Column("state_mb", "state MB", "{:,.1f}"),
        ),
    ),
    "queries": (
        f"queries: {FEW_KEYS:,} keys, batches of {BATCH_ROWS:,} rows, 1 % of timers due in each; rows/s of triggers",
        (
            RATE,
            Column("trigger_ms", "trigger ms", "{:,.0f}"),
            Column("cpu_s_per_m_rows", "CPU s/M rows", "{:.2f}"),
            Column("peak_rss_mb", "peak RSS MB", "{:,.0f}"),
        ),
    ),
    "beat": (
        "the beat with nothing due: of a trigger with rows; of a second of a quiet source; and an epoch without rows",
        (
            Column("trigger_ms", "trigger ms", "{:.1f}"),
            Column("asking_ms", "asking ms", "{:.2f}"),
            Column("planning_ms", "planning ms", "{:.1f}"),
            Column("cpu_ms", "CPU ms", "{:.1f}"),
            Column("epochs_per_s", "epochs/s", "{:.2f}"),
        ),
    ),
}


def run_job(job: Job, label: str, workdir: Path, console: Console) -> Result:
    """One measurement; prints how it went."""
    place = workdir / job.label
    arguments: dict[str, Any] = dict(job.run)
    if job.part in ("queries", "beat"):
        arguments["workdir"] = str(place / "work")
    with console.status(_plain(label)):
        outcome = run_isolated(job.target, arguments, place, RUN_SECONDS)
    result = result_of(job.system, job.params, outcome)
    said = job.shown.format(**result.figures) if result.status is Status.OK else f"{result.status}: {result.note}"
    console.print(f"{label}: {said} ({outcome.seconds:.0f} s)", markup=False, highlight=False)
    if result.status is Status.FAILED:
        console.print(f"  log: {outcome.log}", markup=False, highlight=False)
        for line in outcome.log_tail():
            console.print(f"  | {line}", markup=False, highlight=False, style="dim")
    else:
        shutil.rmtree(place, ignore_errors=True)
    return result


def make_report(rounds: Sequence[Sequence[Result]], quick: bool) -> Report:
    """Everything in one JSON form; `tables` shows it."""
    settings = {
        "quick": quick,
        "rounds": len(rounds),
        "cores_used": CORES,
        "targets": {name: f"{sign} {bound:g}" for name, (sign, bound) in TARGETS.items()},
    }
    return Report("timers", merged(rounds), (), ratios_of(rounds), settings, machine_info())


def tables(report: Report) -> Iterable[Table]:
    """A table for each part, and one for the verdicts."""
    for part, (title, columns) in TABLES.items():
        found = [result for result in report.results if result.params["part"] == part]
        if found:
            yield Report(part, found, (Column("variant", ""), *columns), title=title).table()
    table = Table(title="ratios, and what a beat adds (in ms)", title_justify="left")
    for name, justify in (("figure", "left"), ("measured", "right"), ("target", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name, value in report.ratios.items():
        table.add_row(name, f"{value:.2f}", verdict(name, value))
    yield table


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.timers",
        description="What timers, TTL and the beat cost: a worker with a million keys, whole queries beside Spark's\n"
        "transformWithState on RocksDB, and a query with nothing due.",
        epilog="kept: a timer is set once, and again when it fires. moved: every batch with rows of a key moves it.\n"
        "all expire: an epoch in which everything is gone.\n\n"
        "targets:\n" + "\n".join(f"  {name} {sign} {bound:g}" for name, (sign, bound) in TARGETS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer epochs and batches, one round: about ten minutes")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="rounds, median taken (3; 1 with --quick)")
    parser.add_argument(
        "--parts", type=_parts, default=list(PARTS), metavar="A,B", help=f"only these of {', '.join(PARTS)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    return options


def _parts(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return names


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a measurement failed or was wrong, so that a pipeline notices."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    rounds: list[list[Result]] = []
    for number in range(options.rounds):
        jobs = plan_round(number, options.quick, options.parts)
        rounds.append([])
        for at, job in enumerate(jobs, 1):
            label = f"[{number + 1}/{options.rounds}, {at}/{len(jobs)}] {job.label}"
            rounds[-1].append(run_job(job, label, workdir, console))
    report = make_report(rounds, options.quick)
    return finish(report, console, workdir, tables=tables(report), json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
