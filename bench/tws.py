"""Spark's transformWithState and Bedload's drop-in, on the same unmodified processors.

    python -m bench.tws --json out.json --minutes 9
    python -m bench.tws --json out.json --minutes 9 --resume
    python -m bench.tws --names map,timers --forms rows

Invariants:
- Each case runs in a process tree of its own; the engines take turns, case by case.
- Before a processor is timed, both engines run it on a smaller load, and what comes out must be the same.
- All keys are in the state before the first measured batch, and all state is durable on both sides.

Why: what a Python processor costs on Spark is the way between it and its state, for each key and batch. At small
batches the trigger itself, some tenths of a second of Spark's own work, bounds every engine. So the report has what an
almost empty trigger takes, and what ratio an engine could reach that did nothing else.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.isolate import Outcome, run_isolated
from bench.report import NO_FIGURE, Column, Report, Result, Status, finish, machine_info, median_of_rounds, short_count
from bench.spark_run import CORES
from bench.tws_pieces import Pieces
from bench.tws_plan import (
    BATCH_ROWS,
    BEDLOAD,
    FORMS,
    KEYS,
    NAMES,
    SPARK,
    SYSTEMS,
    TARGET_KEYS,
    Case,
    Verdict,
    compared,
    plan_cases,
    plan_quick,
    verdicts_of,
)

CASE_SECONDS = 1800.0
WIDTH = 150
KNOWN = {"NotAvailable": Status.UNAVAILABLE, "WrongAnswer": Status.WRONG}
COLUMNS = (
    Column("processor", "processor"),
    Column("form", "form"),
    Column("keys", "keys", "{:,}"),
    Column("batch_rows", "batch rows", "{:,}"),
    Column("rows_per_s", "rows/s", "{:,.0f}"),
    Column("rows_per_s_min", "slowest", "{:,.0f}"),
    Column("rows_per_s_max", "fastest", "{:,.0f}"),
    Column("trigger_s", "trigger s", "{:.2f}"),
    Column("cpu_s_per_m_rows", "CPU s/M rows", "{:,.2f}"),
    Column("peak_rss_mb", "peak RSS MB", "{:,.0f}"),
)


@dataclass
class Run:
    """A run of the benchmark under way."""

    options: argparse.Namespace
    pieces: Pieces
    workdir: Path
    console: Console
    ends: float
    """No case begins after that."""
    digests: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """What each engine gave for each processor so far."""

    def round(self, number: int, cases: Sequence[Case]) -> list[Result]:
        """All cases once; fewer if the time is up."""
        found = []
        for at, case in enumerate(cases, 1):
            label = f"[{number + 1}/{self.options.rounds}, {at}/{len(cases)}] {case.label}"
            if (known := self.pieces.find(number, case)) is not None:
                result, digest = known
                self._learn(case, digest)
                self._say(f"{label}: {_shown(result)} (from before)")
            elif time.monotonic() > self.ends:
                continue
            else:
                result = self._measure(number, case, label)
            found.append(judged(result, self.digests))
        return found

    def _measure(self, number: int, case: Case, label: str) -> Result:
        place = self.workdir / f"{case.system}-{case.name}-{case.form}-{case.keys}-{case.batch_rows}"
        arguments = {
            "case": case.as_json(),
            "check": (case.system, case.name, case.form) not in self.digests and not case.floor,
            "full": self.options.full,
            "workdir": str(place / "work"),
        }
        box = self.options.box
        outcome = run_isolated("bench.tws_run:measure", arguments, place, CASE_SECONDS if box is None else 60 * box)
        digest = None if outcome.value is None else outcome.value.get("digest")
        self._learn(case, digest)
        result = result_of(case, outcome, boxed=box is not None)
        self.pieces.add(number, case, result, digest)
        self._say(f"{label}: {_shown(judged(result, self.digests))} ({outcome.seconds:.0f} s)")
        if result.status is Status.FAILED:
            self._say(f"  log: {outcome.log}")
            for line in outcome.log_tail():
                self.console.print(f"  | {line[:300]}", markup=False, highlight=False, style="dim")
        else:
            shutil.rmtree(place / "work", ignore_errors=True)
        return result

    def _learn(self, case: Case, digest: str | None) -> None:
        if digest is not None:
            self.digests[case.system, case.name, case.form] = digest

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)


def result_of(case: Case, outcome: Outcome, *, boxed: bool = False) -> Result:
    """The figures of a case, or why there are none; ``boxed``: it may not take longer than it was given."""
    if outcome.value is None:
        if boxed and outcome.error_kind == "Timeout":
            return Result(case.system, case.params, Status.UNAVAILABLE, {}, outcome.error)
        return Result(case.system, case.params, KNOWN.get(outcome.error_kind, Status.FAILED), {}, outcome.error)
    value = outcome.value
    figures = {name: round(float(value[name]), 3) for name in ("rows_per_s", "wall_rows_per_s", "cpu_s_per_m_rows")}
    figures |= {
        "trigger_s": round(float(value["trigger_s_median"]), 3),
        "peak_rss_mb": round(outcome.peak_mb, 1),
        "busy_cores_before": round(outcome.busy_cores, 2),
        "run_s": round(outcome.seconds, 1),
    }
    return Result(case.system, case.params, Status.OK, figures, "an almost empty trigger" if case.floor else "")


def judged(result: Result, digests: dict[tuple[str, str, str], str]) -> Result:
    """The result; a wrong one if Bedload gave something else than Spark."""
    name, form = result.params["processor"], result.params["form"]
    spark, mine = (digests.get((system, name, form)) for system in (SPARK, BEDLOAD))
    if result.system != BEDLOAD or None in (spark, mine) or spark == mine:
        return result
    return Result(result.system, result.params, Status.WRONG, {}, "what came out is not what Spark gave")


def _shown(result: Result) -> str:
    if result.status is not Status.OK:
        return f"{result.status}: {result.note}"
    figures = result.figures
    return f"{figures['rows_per_s']:,.0f} rows/s, trigger {figures['trigger_s']:.2f} s"


# --- the report


def make_report(rounds: Sequence[Sequence[Result]], full: bool) -> Report:
    """The median of the rounds; the verdicts are its ratios."""
    results = [median_of_rounds(of_one, spread="rows_per_s") for of_one in zip(*rounds, strict=True)]
    verdicts = verdicts_of(results)
    settings = {
        "full": full,
        "rounds": len(rounds),
        "cores_used": CORES,
        "targets": {verdict.name: f">= {verdict.least:g}" for verdict in verdicts},
        "bounds": {verdict.name: round(verdict.bound, 2) for verdict in verdicts if verdict.bound is not None},
    }
    ratios = {}
    for params, found in compared(results):
        where = (
            f"{params['processor']}_{params['form']}_{short_count(params['keys'])}_{short_count(params['batch_rows'])}"
        )
        ratios |= {f"{figure}_{where}": value for figure, value in found.items()}
    title = f"transformWithState, local[{CORES}], median of {len(rounds)} round(s)".replace("[", r"\[")
    return Report("tws", results, COLUMNS, ratios, settings, machine_info(), title)


def ratio_table(results: Sequence[Result]) -> Table:
    """Bedload beside Spark, case by case."""
    table = Table(title="Bedload / Spark (CPU: Spark / Bedload; bound: were it only the trigger)", title_justify="left")
    for name in ("processor", "form", "keys", "batch rows", "rows/s", "bound", "CPU", "memory"):
        table.add_column(name, justify="left" if name in ("processor", "form") else "right", no_wrap=True)
    for params, found in compared(results):
        bound = f"{found['bound']:.1f}x" if "bound" in found else NO_FIGURE
        sizes = (f"{params['keys']:,}", f"{params['batch_rows']:,}")
        figures = (f"{found['rate']:.1f}x", bound, f"{found['cpu']:.1f}x", f"{found['memory']:.2f}x")
        table.add_row(params["processor"], params["form"], *sizes, *figures)
    return table


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Each target and whether it was met."""
    table = Table(title="verdicts, 10,000 keys", title_justify="left")
    for name, justify in (
        ("target", "left"),
        ("measured", "right"),
        ("at least", "right"),
        ("bound", "right"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for it in verdicts:
        said, style = ("met", "green") if it.met else ("MISSED", "red")
        if not it.met and it.bound is not None and it.bound < it.least:
            said, style = "out of reach: the trigger", "yellow"
        bound = NO_FIGURE if it.bound is None else f"{it.bound:.1f}"
        table.add_row(it.name, f"{it.value:.2f}", f"{it.least:g}", bound, f"[{style}]{said}[/]")
    return table


def tables(report: Report) -> Iterator[Table]:
    """The figures, the ratios, and the verdicts."""
    yield report.table()
    yield ratio_table(report.results)
    if verdicts := verdicts_of(report.results):
        yield verdict_table(verdicts)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tws",
        description="The same processors on Spark's transformWithState and on Bedload: rows/s of whole triggers,\n"
        "CPU of all processes, and memory; what comes out is compared before it is timed.",
        epilog="count: a value. map: counters by product. list: a key's last 20 rows. timers: sessions by event time.\n"
        "ttl: the map with a TTL. trigger s: the median. bound: the ratio if Bedload's trigger had nothing to do.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="small batches, one processor as pandas: some minutes")
    sizes.add_argument("--full", action="store_true", help="200,000 keys too, and more triggers: some hours")
    parser.add_argument("--names", type=_some(NAMES), metavar="A,B", help=f"only these of {', '.join(NAMES)}")
    parser.add_argument("--forms", type=_some(FORMS), metavar="A,B", help=f"only these of {', '.join(FORMS)}")
    parser.add_argument("--systems", type=_some(SYSTEMS), default=SYSTEMS, metavar="A", help="only this engine")
    parser.add_argument("--keys", type=_numbers, metavar="N,N", help="numbers of keys (10000; --full: 10000,200000)")
    parser.add_argument("--batch-rows", type=_numbers, default=BATCH_ROWS, metavar="N,N", help="(50000,500000)")
    parser.add_argument("--rounds", type=_positive, default=1, metavar="N", help="rounds, median taken (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no case after so many minutes")
    parser.add_argument("--box", type=float, metavar="N", help="give a case up after N minutes; the table says so (30)")
    parser.add_argument("--resume", action="store_true", help="go on with the run to --json that was cut off")
    options = parser.parse_args(arguments)
    options.keys = options.keys or (KEYS if options.full else (TARGET_KEYS,))
    if options.json is None and (options.resume or options.minutes is not None):
        parser.error("a run in pieces needs --json FILE: what is done is kept in FILE.part")
    return options


def cases_of(options: argparse.Namespace) -> list[Case]:
    """What is asked for."""
    if not options.quick:
        sizes = (options.keys, options.batch_rows)
        return plan_cases(options.names or NAMES, options.forms or FORMS, *sizes, options.systems)
    wanted = plan_quick(options.systems)
    return [
        case
        for case in wanted
        if case.floor or (case.name in (options.names or NAMES) and case.form in (options.forms or FORMS))
    ]


def _some(known: Sequence[str]):  # type: ignore[no-untyped-def]
    def parsed(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return parsed


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    values = tuple(int(part.replace("_", "")) for part in text.split(","))
    if min(values) < 4:
        raise argparse.ArgumentTypeError("at least 4")
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a case failed or gave something else than Spark."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    ends = float("inf") if options.minutes is None else time.monotonic() + 60 * options.minutes
    pieces = Pieces.begin(options.json, options.resume)
    run, cases = Run(options, pieces, workdir, console, ends), cases_of(options)
    rounds = [run.round(number, cases) for number in range(options.rounds)]
    whole = all(len(results) == len(cases) for results in rounds)
    if not whole:
        rounds = rounds[:1]
    report = make_report(rounds, options.full)
    code = finish(report, console, workdir, tables=tables(report), json_file=options.json if whole else None)
    if not whole:
        console.print(f"{len(rounds[0])} of {len(cases)} cases of the first round; go on with --resume")
    elif not code:
        pieces.end()
    return code


if __name__ == "__main__":
    sys.exit(main())
