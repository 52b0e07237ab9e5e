"""What durability costs: throughput, bytes written, restart and restore, with a local checkpoint.

    python -m bench.checkpoint --quick
    python -m bench.checkpoint --rounds 5 --json out.json

Invariants:
- Each measurement runs in a process tree of its own, and is checked: durable counts against the rows that went in,
  the keys after a restart, the state that was read back.
- What is compared takes turns within a round; see `checkpoint_plan`.
- A restart goes on with the state that the first round made. Both sides keep it on the same local disk.

Why: durable state is paid in every trigger, and gives back a fast restart. Both sides belong in one table.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.checkpoint_plan import TARGETS, Job, plan_round, ratios_of, verdict
from bench.isolate import Outcome, run_isolated
from bench.report import Column, Report, Result, Status, finish, machine_info, median_of_rounds
from bench.spark_run import CORES, SESSION

RUN_SECONDS = 300.0

TABLES: dict[str, tuple[str, tuple[Column, ...]]] = {
    "throughput": (
        "running count, batches of 0.5 M rows, rows/s of whole triggers",
        (
            Column("keys", "keys", "{:,}"),
            Column("state", "state"),
            Column("rows_per_s", "rows/s", "{:,.0f}"),
            Column("slowest_trigger_s", "slowest s", "{:.2f}"),
            Column("bytes_per_row", "bytes/row", "{:.1f}"),
        ),
    ),
    "bytes": (
        "bytes written per epoch",
        (
            Column("keys", "keys", "{:,}"),
            Column("changed", "changed", "{:,}"),
            Column("bytes_per_epoch", "written", "{:,.0f}"),
            Column("changed_bytes", "of changes", "{:,.0f}"),
            Column("bytes_vs_changed", "ratio", "{:.2f}"),
        ),
    ),
    "restart": (
        "restart: seconds to the first new epoch; cold and its steps, then the query alone, then warm",
        (
            Column("keys", "keys", "{:,}"),
            Column("restart_s", "restart", "{:.2f}"),
            Column("attach_s", "attach", "{:.2f}"),
            Column("start_s", "plan+start", "{:.2f}"),
            Column("first_epoch_s", "first epoch", "{:.2f}"),
            Column("cpu_s", "CPU", "{:.1f}"),
            Column("session_s", "session before", "{:.2f}"),
            Column("query_restart_s", "query alone", "{:.2f}"),
            Column("warm_restart_s", "warm", "{:.2f}"),
        ),
    ),
    "restore": (
        "reading state back, million keys/s",
        (
            Column("keys", "keys", "{:,}"),
            Column("deltas", "deltas"),
            Column("files_mb", "files MB", "{:.1f}"),
            Column("raw_keys_per_s", "pyarrow alone", "{:.1f}"),
            Column("restore_keys_per_s", "restore", "{:.1f}"),
            Column("restore_mb_per_s", "MB/s", "{:,.0f}"),
            Column("install_keys_per_s", "into a worker", "{:.2f}"),
        ),
    ),
}
PARTS = tuple(TABLES)
MILLIONS = ("raw_keys_per_s", "restore_keys_per_s", "install_keys_per_s")


def run_job(job: Job, label: str, workdir: Path, console: Console) -> Result:
    """One measurement; prints how it went."""
    place = workdir / job.place
    arguments: dict[str, Any] = {"run": dict(job.run), "workdir": str(place / "work")}
    if job.part != "restore":
        arguments["timeout"] = RUN_SECONDS
    with console.status(_plain(label)):
        outcome = run_isolated(job.target, arguments, place, RUN_SECONDS)
    result = result_of(job.system, job.params, outcome)
    shown = job.shown.format(**result.figures) if result.status is Status.OK else f"{result.status}: {result.note}"
    console.print(f"{label}: {shown} ({outcome.seconds:.0f} s)", markup=False, highlight=False)
    if result.status is Status.FAILED:
        console.print(f"  log: {outcome.log}", markup=False, highlight=False)
        for line in outcome.log_tail():
            console.print(f"  | {line}", markup=False, highlight=False, style="dim")
    elif job.part in ("throughput", "restore"):
        shutil.rmtree(place, ignore_errors=True)
    return result


def result_of(system: str, params: Mapping[str, Any], outcome: Outcome) -> Result:
    """The figures of a measurement, or why there are none."""
    if outcome.value is None:
        known = {"NotAvailable": Status.UNAVAILABLE, "WrongAnswer": Status.WRONG}
        return Result(system, params, known.get(outcome.error_kind, Status.FAILED), {}, outcome.error)
    figures = {name: round(float(value), 4) for name, value in outcome.value.items()}
    figures |= {"peak_rss_mb": round(outcome.peak_mb, 1), "run_s": round(outcome.seconds, 1)}
    figures["busy_cores_before"] = round(outcome.busy_cores, 2)
    return Result(system, params, Status.OK, figures)


def merged(rounds: Sequence[Sequence[Result]]) -> list[Result]:
    """One result for each measurement: the median of the rounds that made it, in the order of the first."""
    by_id: dict[tuple[Any, ...], list[Result]] = {}
    for result in (result for results in rounds for result in results):
        by_id.setdefault((result.system, *result.params.items()), []).append(result)
    return [median_of_rounds(results) for results in by_id.values()]


def make_report(rounds: Sequence[Sequence[Result]], options: argparse.Namespace) -> Report:
    """Everything in one JSON form; `tables` shows it."""
    settings = {
        "quick": options.quick,
        "rounds": len(rounds),
        "cores_used": CORES,
        "shuffle_partitions": int(SESSION["spark.sql.shuffle.partitions"]),
        "targets": {name: f"{sign} {bound:g}" for name, (sign, bound) in TARGETS.items()},
    }
    return Report("checkpoint", merged(rounds), (), ratios_of(rounds), settings, machine_info())


def tables(report: Report) -> Iterable[Table]:
    """A table for each part, and one for the ratios."""
    for part, (title, columns) in TABLES.items():
        found = [_in_millions(result) for result in report.results if result.params["part"] == part]
        # What fills a state for another part has nothing to show here.
        found = [r for r in found if r.status is not Status.OK or any(c.name in r.figures for c in columns)]
        if found:
            yield Report(part, found, columns, title=title).table()
    table = Table(title="ratios", title_justify="left")
    for name, justify in (("ratio", "left"), ("x", "right"), ("target", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name, value in report.ratios.items():
        table.add_row(name, f"{value:.2f}", verdict(name, value))
    yield table


def _in_millions(result: Result) -> Result:
    figures = {name: value / 1e6 if name in MILLIONS else value for name, value in result.figures.items()}
    return Result(result.system, result.params, result.status, figures, result.note)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.checkpoint",
        description="What durable state costs and gives: the running count with a checkpoint against memory alone,\n"
        "bytes written per epoch against what changed, a restart with a million keys against Spark's\n"
        "groupBy().count() on RocksDB, and reading state back against pyarrow's plain read.",
        epilog="targets:\n" + "\n".join(f"  {name} {sign} {bound:g}" for name, (sign, bound) in TARGETS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer measurements and one round: under three minutes")
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
    """Run the benchmark; 1 if a measurement failed or answered wrong, so that a pipeline notices."""
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
    report = make_report(rounds, options)
    return finish(report, console, workdir, tables=tables(report), json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
