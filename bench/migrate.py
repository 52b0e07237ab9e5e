"""Moving state while the stream runs: every strategy from 2 to 4 workers, beside Spark's offline repartition.

    python -m bench.migrate --quick
    python -m bench.migrate --sweep size --strategies seamless,lazy --json out.json --plots docs/images

Invariants:
- The load is an open loop (`migrate_load`): rows come due by the clock, also while nothing takes them.
- Every case is checked: the counts in the state, at the last committed batch, add up to the rows that went in.
- All cases of a system run in one process tree, warm, each with its own checkpoint and workers.

Why: a move is judged by what it does to the stream around it. See `migrate_measure` for what the figures mean.
"""

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.isolate import Outcome, run_isolated
from bench.migrate_plan import (
    BASE_MB,
    COLUMNS,
    CONTROL,
    FIELDS,
    FLIGHT,
    FULL,
    OURS,
    PARTS,
    QUICK,
    RATE,
    RESTARTING,
    SPARK,
    STRATEGIES,
    SWEEPS,
    Case,
    Timing,
    plan_cases,
)
from bench.report import Column, Report, Result, Status, finish, machine_info

WARM_UP_MB = 1
CASE_SECONDS = 400.0
POLL_SECONDS = 0.3

MOVES = (
    Column("state_mb", "MB", "{:,.0f}"),
    Column("keys", "keys", "{:,}"),
    Column("skew", "skew"),
    Column("stoppage_ms_p50", "stop p50", "{:,.1f}"),
    Column("stoppage_ms_p99", "p99", "{:,.1f}"),
    Column("stoppage_ms_max", "max", "{:,.1f}"),
    Column("spike", "spike", "{:.1f}"),
    Column("stabilise_s", "stable", "{:.1f}"),
    Column("duration_s", "move", "{:.2f}"),
    Column("moved_mb", "moved", "{:,.1f}"),
    Column("unavailable_s", "unavail.", "{:.3f}"),
    Column("asked_keys", "asked", "{:,.0f}"),
    Column("gap_s", "gap", "{:.2f}"),
    Column("latency_ms_p99", "latency p99", "{:,.0f}"),
    Column("latency_ms_max", "max", "{:,.0f}"),
    Column("steady_epoch_ms", "epoch", "{:,.0f}"),
)
TRANSFER = (
    Column("layout", "state as"),
    Column("moved_mb", "moved MB", "{:,.1f}"),
    Column("duration_s", "s", "{:.3f}"),
    Column("mb_per_s", "MB/s", "{:,.0f}"),
    Column("stoppage_ms_p99", "stop p99 ms", "{:,.1f}"),
)
COMPARED = (("gap_s", "gap"), ("latency_ms_max", "latency_max"), ("stabilise_s", "stabilise"))
COMPARED_LIVE = (("stoppage_ms_p99", "stoppage_p99"),)
"""Among live moves only: what a worker measures of a key and a gap between commits are not the same thing, and a ratio
of the two would say little and look grand."""
UNSETTLED = "did not settle"
UNASKED = "no rows met it"
WIDTH = 200
KNOWN = {"NotAvailable": Status.UNAVAILABLE, "WrongAnswer": Status.WRONG}


class Measured:
    """What the cases gave: results by case, and the latency of each over time."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self.series: list[dict[str, Any]] = []
        self.busy = 0.0

    def add(self, said: Mapping[str, Any]) -> Result:
        """Take an answer of an isolated run."""
        case = Case(**said["case"])
        if said.get("figures") is None:
            status = KNOWN.get(said["kind"], Status.FAILED)
            result = Result(case.strategy, case.params, status, {}, said["error"])
        else:
            figures = {name: round(float(value), 4) for name, value in said["figures"].items()}
            notes = [] if "stabilise_s" in figures else [UNSETTLED]
            if figures.get("asked_keys") == 0 and case.strategy not in RESTARTING:
                notes.append(UNASKED)
            note = "; ".join(notes)
            result = Result(case.strategy, case.params, Status.OK, figures, note)
            self.series.append({"strategy": case.strategy, **case.params, "points": said["series"]})
        self.results[_id(case)] = result
        return result

    def fail(self, cases: Sequence[Case], outcome: Outcome) -> None:
        """The run ended without an answer for these."""
        for case in cases:
            if _id(case) not in self.results:
                status = KNOWN.get(outcome.error_kind, Status.FAILED)
                self.results[_id(case)] = Result(case.strategy, case.params, status, {}, outcome.error)


def _id(case: Case) -> str:
    return json.dumps(case.as_json(), sort_keys=True)


def run_system(
    target: str, cases: Sequence[Case], timing: Timing, place: Path, measured: Measured, console: Console
) -> None:
    """Run the cases of one system in a process of their own, and print each as it ends."""
    warm_up = Case(cases[-1].strategy, WARM_UP_MB, 0.0, rate=cases[0].rate)
    arguments = {
        "cases": [case.as_json() for case in cases],
        "timing": asdict(timing),
        "warm_up": warm_up.as_json(),
        "workdir": str(place / "work"),
    }
    outcomes: list[Outcome] = []
    limit = CASE_SECONDS * (len(cases) + 1)
    runner = threading.Thread(target=lambda: outcomes.append(run_isolated(target, arguments, place, limit)))
    runner.start()
    seen = 0
    with console.status("") as status:
        while True:
            over = not runner.is_alive()
            lines = _answers(place / "work" / "answers.jsonl")
            for line in lines[max(seen, 1) :]:
                _show(measured.add(json.loads(line)), json.loads(line)["seconds"], console)
            seen = len(lines)
            doing = "warming up" if seen == 0 else cases[seen - 1].label if seen <= len(cases) else ""
            status.update(f"{seen} of {len(cases)}: {doing}")
            if over:
                break
            runner.join(POLL_SECONDS)
    if not outcomes:
        raise RuntimeError(f"{target} could not be run")
    outcome = outcomes[0]
    measured.busy = max(measured.busy, outcome.busy_cores)
    measured.fail(cases, outcome)
    if outcome.value is None and outcome.error_kind not in KNOWN:
        console.print(f"{target}: {outcome.error}\n  log: {outcome.log}", markup=False, highlight=False)
        for line in outcome.log_tail():
            console.print(f"  | {line[:300]}", markup=False, highlight=False, style="dim")


def _answers(path: Path) -> list[str]:
    """Whole lines only: the last one may be half written."""
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def _show(result: Result, seconds: float, console: Console) -> None:
    figures, params = result.figures, result.params
    label = f"{result.system}, {params['state_mb']:g} MB, {params['skew']}, {params['layout']}"
    if result.status is Status.OK:
        stable = figures.get("stabilise_s")
        said = f"latency up to {figures['latency_ms_max']:,.0f} ms, spike {figures['spike']:.1f}, "
        said += "not stable again" if stable is None else f"stable after {stable:.1f} s"
        if "stoppage_ms_p99" in figures:
            said = f"stoppage p99 {figures['stoppage_ms_p99']:,.1f} ms, {said}"
    else:
        said = f"{result.status}: {result.note}"
    console.print(f"{label}: {said} ({seconds:.0f} s)", markup=False, highlight=False)


def run_flight(state_mb: float, place: Path, measured: Measured, console: Console) -> None:
    """The bound for moving columns."""
    params = {"part": "columns", "state_mb": state_mb, "layout": "buffers"}
    outcome = run_isolated(
        "bench.migrate_flight:measure", {"state_mb": state_mb, "workdir": str(place / "work")}, place, CASE_SECONDS
    )
    if outcome.value is None:
        result = Result(FLIGHT, params, Status.FAILED, {}, outcome.error)
    else:
        result = Result(FLIGHT, params, Status.OK, {k: round(float(v), 4) for k, v in outcome.value.items()})
        console.print(f"{FLIGHT}, {state_mb:g} MB: {outcome.value['mb_per_s']:,.0f} MB/s", highlight=False)
    measured.results[FLIGHT] = result


# --- the report


def ratios_of(results: Sequence[Result]) -> dict[str, float]:
    """How many times as much the others cost as the default strategy, by setting; and the speed of a transfer."""
    found: dict[str, float] = {}
    moves = [r for r in results if r.params["part"] == "moves" and r.status is Status.OK]
    for own in (r for r in moves if r.system == OURS):
        tag = f"{own.params['state_mb']:g}mb_{own.params['skew'].replace(' ', '')}"
        if (own.params["keys"], own.params["value_bytes"]) != _usual(own.params["state_mb"]):
            tag += f"_{own.params['keys']}_keys"
        for other in moves:
            if other.params != own.params or other.system in (OURS, CONTROL):
                continue
            name = "spark" if other.system == SPARK else other.system
            for figure, short in COMPARED if other.system in RESTARTING else (*COMPARED, *COMPARED_LIVE):
                if own.figures.get(figure) and other.figures.get(figure):
                    found[f"{short}_{name}_vs_{OURS}_{tag}"] = other.figures[figure] / own.figures[figure]
    return found | _transfer_ratios(results)


def _usual(state_mb: float) -> tuple[int, int]:
    case = Case(OURS, state_mb, 0.0)
    return case.keys, case.value_bytes


def _transfer_ratios(results: Sequence[Result]) -> dict[str, float]:
    speeds = {
        (r.system, r.params["layout"]): r.figures["mb_per_s"]
        for r in results
        if r.params["part"] == "columns" and r.figures.get("mb_per_s")
    }
    bound = speeds.get((FLIGHT, "buffers"))
    found = {}
    for (system, layout), speed in speeds.items():
        if layout == COLUMNS and (system, FIELDS) in speeds:
            found[f"columns_vs_rows_mb_per_s_{system}"] = speed / speeds[system, FIELDS]
        if layout == COLUMNS and bound:
            found[f"columns_vs_flight_mb_per_s_{system}"] = speed / bound
    return found


def make_report(measured: Measured, options: argparse.Namespace, timing: Timing) -> Report:
    """Everything in one JSON form."""
    results = list(measured.results.values())
    settings = {"quick": options.quick, "sweep": options.sweep, "rate": options.rate, "timing": asdict(timing)}
    return Report("migrate", results, (), ratios_of(results), settings, machine_info())


def tables(report: Report) -> Iterator[Table]:
    """A table for the moves, one for the speed of transfers, one for the ratios."""
    for part, title, columns in (
        (
            "moves",
            "rescale from 2 to 4 workers, open-loop load; stop, latency, epoch in ms; stable, move, unavail., gap in s",
            MOVES,
        ),
        ("columns", "the speed of a transfer: state as columns, as rows, and bare Arrow Flight", TRANSFER),
    ):
        found = [result for result in report.results if result.params["part"] == part]
        if found:
            yield Report(part, found, columns, title=title).table()
    if report.ratios:
        yield report.ratio_table()


def write_json(report: Report, series: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The report, with the latency of each case over time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {**report.as_json(), "series": series}
    said["results"] = [{"strategy": result["system"], **result} for result in said["results"]]
    path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def _draw(report: Report, series: Sequence[Mapping[str, Any]], place: Path | None) -> Iterator[str]:
    """Draw the plots that were asked for, and say so."""
    if place is None:
        return
    from bench.migrate_plots import write_plots

    for path in write_plots(report.results, series, place):
        yield f"wrote {path}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.migrate",
        description="A live rescale from 2 to 4 workers by every strategy, under an open-loop load, with 10 MB to\n"
        "1 GB of state and uniform to Zipf 1.5 keys, beside Spark's offline repartition of the same state.",
        epilog=f"strategies: {', '.join(STRATEGIES)}\n\n"
        "stop: how long rows of a moved key waited for its state, over keys with rows (for what stops the query, the\n"
        "gap between commits). unavail.: the longest of it. asked: keys that is taken over; 0: none had rows.\n"
        "gap: longest time without a commit, the same for all. spike: that over the median epoch before.\n"
        "stable: seconds from the request until latency stays under 1.1 times the highest before it. latency: commit\n"
        "minus due time.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="10 and 100 MB, uniform and Zipf 1.5, about eight minutes")
    parser.add_argument("--sweep", choices=SWEEPS, help="change one thing only; without it: all sizes by all skews")
    parser.add_argument("--strategies", type=_strategies, default=list(STRATEGIES), metavar="A,B", help="only these")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), metavar="A,B", help=f"only these of {PARTS}")
    parser.add_argument("--rate", type=float, default=RATE, metavar="N", help=f"rows/s of the load ({RATE:,.0f})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results and latencies over time as JSON")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw migrate-*.png there")
    return parser.parse_args(arguments)


def _strategies(text: str) -> list[str]:
    return _some_of(text, STRATEGIES, "strategy")


def _parts(text: str) -> list[str]:
    return _some_of(text, PARTS, "part")


def _some_of(text: str, known: Sequence[str], what: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")
    return text.split(",")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a case failed or counted wrong, so that a pipeline notices."""
    options = parse(arguments)
    timing = QUICK if options.quick else FULL
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    measured = Measured()
    cases = plan_cases(
        quick=options.quick,
        sweep=options.sweep,
        strategies=options.strategies,
        parts=options.parts,
        rate=options.rate,
    )
    for target, of_system in (
        ("bench.migrate_bedload:measure", [case for case in cases if case.strategy != SPARK]),
        ("bench.migrate_spark:measure", [case for case in cases if case.strategy == SPARK]),
    ):
        if of_system:
            run_system(target, of_system, timing, workdir / target.split(":")[0], measured, console)
    if "columns" in options.parts and options.sweep is None:
        run_flight(BASE_MB, workdir / "flight", measured, console)
    order = {_id(case): at for at, case in enumerate(cases)}
    measured.results = dict(sorted(measured.results.items(), key=lambda item: order.get(item[0], len(order))))
    report = make_report(measured, options, timing)
    return finish(
        report,
        console,
        workdir,
        tables=tables(report),
        json_file=options.json,
        write_json=lambda path: write_json(report, measured.series, path),
        busy=measured.busy,
        notes=_draw(report, measured.series, options.plots),
    )


if __name__ == "__main__":
    sys.exit(main())
