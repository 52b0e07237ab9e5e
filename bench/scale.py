"""Costs that follow the change, not the state: the same load on states of 100 thousand to 30 million keys.

    python -m bench.scale --quick
    python -m bench.scale --json out.json --plots docs/images

Invariants:
- Every case, a state of one size in one system, has a process tree of its own, and is checked: the counts in the state,
  after all that was done to it, are those of the rows that went in.
- The load is the same at every size; see `scale_plan`.

Why: a system that is fast with a million keys may do something for every key in each epoch, snapshot or move. That
shows only in a line over sizes.
"""

import argparse
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.isolate import Outcome, run_isolated
from bench.report import Column, Report, Result, Status, finish, machine_info
from bench.scale_page import figures_text, write_page
from bench.scale_plan import (
    CHANGED,
    COLUMNS,
    FULL,
    QUICK,
    ROWS,
    ROWS_PER_EPOCH,
    SPARK,
    SYSTEMS,
    Case,
    Timing,
    Verdict,
    plan_cases,
    verdicts_of,
    with_memory_per_key,
)
from bench.scale_run import STEP

TARGETS = {
    COLUMNS: "bench.scale_bedload:measure",
    ROWS: "bench.scale_bedload:measure",
    SPARK: "bench.scale_spark:measure",
}
CASE_SECONDS = 1200.0
POLL_SECONDS = 0.3
SAMPLE_SECONDS = 5.0
WIDTH = 150
KNOWN = {"NotAvailable": Status.UNAVAILABLE, "WrongAnswer": Status.WRONG}

TABLES: tuple[tuple[str, tuple[Column, ...]], ...] = (
    (
        f"the stream: {ROWS_PER_EPOCH:,} rows of {CHANGED:,} keys in each epoch; times in ms",
        (
            Column("keys", "keys", "{:,}"),
            Column("rows_per_s", "rows/s", "{:,.0f}"),
            Column("cpu_us_per_row", "CPU us/row", "{:.2f}"),
            Column("epoch_ms_p50", "epoch p50", "{:,.0f}"),
            Column("epoch_ms_p99", "p99", "{:,.0f}"),
            Column("worker_ms", "worker", "{:,.1f}"),
            Column("seal_ms", "seal", "{:,.1f}"),
            Column("bytes_per_epoch", "bytes/epoch", "{:,.0f}"),
            Column("memory_per_key", "B/key", "{:,.0f}"),
            Column("others_cores", "others' cores", "{:.1f}"),
        ),
    ),
    (
        "around it: snapshots, restore, rescale from 2 to 4 workers; slice and epochs in ms, the others in s",
        (
            Column("keys", "keys", "{:,}"),
            Column("snapshot_s", "snapshot", "{:.2f}"),
            Column("snapshot_beside_s", "beside", "{:.2f}"),
            Column("snapshot_again_s", "again", "{:.2f}"),
            Column("restore_s", "restore", "{:.2f}"),
            Column("raw_read_s", "raw read", "{:.2f}"),
            Column("move_s", "move", "{:.2f}"),
            Column("moved_mb", "MB", "{:,.0f}"),
            Column("move_epoch_ms_longest", "longest epoch", "{:,.0f}"),
            Column("no_move_epoch_ms_longest", "no_move", "{:,.0f}"),
            Column("slice_ms_longest", "slice", "{:,.1f}"),
        ),
    ),
)


def run_case(case: Case, timing: Timing, label: str, workdir: Path, console: Console) -> Result:
    """One case, in a process of its own; what it does is shown as it does it."""
    place = workdir / f"{case.system}-{case.keys}"
    arguments = {"case": case.as_json(), "timing": asdict(timing), "workdir": str(place / "work")}
    outcomes: list[Outcome] = []

    def run() -> None:
        outcomes.append(run_isolated(TARGETS[case.system], arguments, place, CASE_SECONDS, SAMPLE_SECONDS))

    runner = threading.Thread(target=run)
    console.print(label, markup=False, highlight=False)
    runner.start()
    seen = 0
    while runner.is_alive():
        runner.join(POLL_SECONDS)
        steps = steps_in(place / "log.txt")
        for step in steps[seen:]:
            console.print(f"  {step}", markup=False, highlight=False, style="dim")
        seen = len(steps)
    if not outcomes:
        raise RuntimeError(f"{case.label} could not be run")
    outcome = outcomes[0]
    result = result_of(case, outcome)
    console.print(f"  {_shown(result)} ({outcome.seconds:.0f} s)", markup=False, highlight=False)
    if result.status is Status.FAILED:
        console.print(f"  log: {outcome.log}", markup=False, highlight=False)
        for line in outcome.log_tail():
            console.print(f"  | {line[:300]}", markup=False, highlight=False, style="dim")
    shutil.rmtree(place / "work", ignore_errors=True)
    return result


def steps_in(log: Path) -> list[str]:
    """What a run said that it does, in whole lines."""
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    return [line.removeprefix(STEP) for line in lines if line.startswith(STEP)]


def result_of(case: Case, outcome: Outcome) -> Result:
    """The figures of a case, or why there are none."""
    params = {"state": case.system, "keys": case.keys}
    if outcome.value is None:
        return Result(SYSTEMS[case.system], params, KNOWN.get(outcome.error_kind, Status.FAILED), {}, outcome.error)
    figures = {name: round(float(value), 4) for name, value in outcome.value.items()}
    figures |= {"peak_mb": round(outcome.peak_mb, 1), "busy_cores_before": round(outcome.busy_cores, 2)}
    return Result(SYSTEMS[case.system], params, Status.OK, {**figures, "run_s": round(outcome.seconds, 1)})


def busy_cores(results: Sequence[Result]) -> float:
    """How many cores something else kept busy, in the worst case of the run."""
    return max((r.figures.get("others_cores", r.figures["busy_cores_before"]) for r in results if r.figures), default=0)


def _shown(result: Result) -> str:
    if result.status is not Status.OK:
        return f"{result.status}: {result.note}"
    figures = result.figures
    said = f"{figures['rows_per_s']:,.0f} rows/s, epoch p50 {figures['epoch_ms_p50']:,.0f} ms"
    if "move_s" in figures:
        said += f", move {figures['move_s']:.1f} s, longest epoch {figures['move_vs_no_move']:.2f}x of no_move"
        said += f", snapshot {figures['snapshot_s']:.1f} s, restore {figures['restore_s']:.1f} s"
    return said


# --- the report


def make_report(results: Sequence[Result], quick: bool, timing: Timing) -> Report:
    """Everything in one JSON form; the verdicts are its ratios."""
    order = list(SYSTEMS.values())
    found = sorted(with_memory_per_key(results), key=lambda r: (order.index(r.system), r.params["keys"]))
    verdicts = verdicts_of(found)
    settings = {
        "quick": quick,
        "rows_per_epoch": ROWS_PER_EPOCH,
        "changed_keys_per_epoch": CHANGED,
        "timing": asdict(timing),
        "targets": {verdict.name: f"<= {verdict.limit:g}" for verdict in verdicts},
    }
    ratios = {verdict.name: verdict.value for verdict in verdicts}
    return Report("scale", found, (), ratios, settings, machine_info())


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Each target and whether it was met."""
    table = Table(title="verdicts (flat: the worst size over the smallest)", title_justify="left")
    for name, justify in (("target", "left"), ("measured", "right"), ("at most", "right"), ("", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for it in verdicts:
        said, style = ("met", "green") if it.met else ("MISSED", "red")
        table.add_row(it.name, f"{it.value:.2f}", f"{it.limit:g}", f"[{style}]{said}[/]")
    return table


def tables(report: Report) -> Iterator[Table]:
    """The stream, what goes on around it, and the verdicts."""
    for title, columns in TABLES:
        # What a system does not have at all has no row.
        shown = [r for r in report.results if r.status is not Status.OK or any(c.name in r.figures for c in columns)]
        if shown:
            yield Report("scale", shown, columns, title=title).table()
    if verdicts := verdicts_of(report.results):
        yield verdict_table(verdicts)


def _written(report: Report, options: argparse.Namespace, busy: float) -> Iterator[str]:
    """Draw the plots and fill the page, if that was asked for, and say so."""
    drawn: list[str] = []
    if options.plots is not None:
        from bench.scale_plots import write_plots

        for path in write_plots(report.results, options.plots):
            drawn.append(path.name)
            yield f"wrote {path}"
    if options.page is not None:
        write_page(options.page, figures_text(report, TABLES, busy, drawn))
        yield f"wrote the figures into {options.page}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale",
        description=f"The same load ({ROWS_PER_EPOCH:,} rows of {CHANGED:,} keys in each epoch) on states of 100\n"
        "thousand to 30 million keys (columns) and 10 million (rows), beside Spark's own count on RocksDB:\n"
        "what epochs, seals, snapshots, restores and moves cost as the state grows.",
        epilog="epoch: from commit to commit. seal: the slowest worker's, from the last row to durable. B/key: what\n"
        "the workers have more than with the smallest state, for each key more. again: a snapshot of what few\n"
        "epochs changed. raw read: pyarrow's read of the files. no_move: the longest of as many epochs as the move\n"
        "lasted, without one. slice: the longest step that a move took at a worker. others' cores: busy with\n"
        "something else.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes and epochs: about eight minutes")
    parser.add_argument(
        "--systems", type=_systems, default=list(SYSTEMS), metavar="A,B", help=f"only these of {', '.join(SYSTEMS)}"
    )
    parser.add_argument("--most-keys", type=int, metavar="N", help="no state of more keys than this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw scale-*.png there, one for each question")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the figures into this page (docs/benchmarks.md)")
    return parser.parse_args(arguments)


def _systems(text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in SYSTEMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no system {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    return text.split(",")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a case failed or counted wrong, so that a pipeline notices."""
    options = parse(arguments)
    timing = QUICK if options.quick else FULL
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    cases = plan_cases(options.quick, options.systems, options.most_keys)
    results = [
        run_case(case, timing, f"[{at}/{len(cases)}] {case.label}", workdir, console)
        for at, case in enumerate(cases, 1)
    ]
    report, busy = make_report(results, options.quick, timing), busy_cores(results)
    return finish(
        report,
        console,
        workdir,
        tables=tables(report),
        json_file=options.json,
        busy=busy,
        notes=_written(report, options, busy),
    )


if __name__ == "__main__":
    sys.exit(main())
