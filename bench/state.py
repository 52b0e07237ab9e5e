"""State layouts: rows, columns, plain dicts and RocksDB, by operation, kind of state and number of keys.

    python -m bench.state --quick
    python -m bench.state --json out.json --plots plots
    python -m bench.state --layouts rows,columns --keys 1000000 --kinds value

Invariants:
- Each layout, shape and number of keys is measured in a process of its own, and only after it was checked
  against plain dicts.
- What a layout cannot hold is in the table, without figures and with the reason.
- A ratio says how many times as fast (or as small) the first is as the second, within this run.

Why: where state lives decides what every operator costs. The study says what each layout is good for, and what is
paid for epochs and types over plain dicts.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.isolate import Outcome, run_isolated
from bench.plots import MissingPlots
from bench.report import Column, Report, Result, Status, finish, machine_info, short_count
from bench.state_inputs import BATCH_ROWS, KINDS, SIZES, Shape
from bench.state_layouts import LAYOUTS, unsupported
from bench.state_plots import write_plots

FEW_KEYS = 100_000
RUN_SECONDS = 300.0

OPERATIONS = {
    "update_ns": "update",
    "commit_ns": "commit",
    "abort_ns": "abort",
    "read_ns": "read",
    "snapshot_read_ns": "read in epoch",
    "read_many_ns": "read many",
    "scan_ns": "scan",
    "extract_ns": "extract",
    "install_ns": "install",
    "repartition_ns": "repartition",
    "merge_ns": "merge",
    "bytes_per_key": "bytes/key",
}
COLUMNS = (
    Column("kind", "kind"),
    Column("size", "values"),
    Column("keys", "keys", "{:,}"),
    *(Column(name, title.replace(" ", "\n"), "{:,.0f}") for name, title in OPERATIONS.items()),
)
COMPARED = (("columns", "rows"), ("rows", "dict"), ("columns", "dict"), ("rocksdb", "dict"), ("rocksdb", "rows"))
SHOWN = (("columns", "rows"), ("rows", "dict"))
SHOWN_OPERATIONS = ("update_ns", "scan_ns", "repartition_ns", "bytes_per_key")


@dataclass(frozen=True)
class Run:
    """One measurement to make."""

    layout: str
    shape: Shape
    keys: int

    @property
    def params(self) -> dict[str, Any]:
        """What identifies it in the report."""
        return {"kind": self.shape.kind, "size": self.shape.size, "keys": self.keys}


def plan_runs(options: argparse.Namespace) -> list[Run]:
    """The measurements, in order: the layouts of one shape after another, so that a slow spell hits all."""
    return [
        Run(layout, Shape(kind, size), keys)
        for keys in options.keys
        for kind in KINDS
        for size in SIZES
        if _wanted(kind, size, keys, options)
        for layout in options.layouts
    ]


def _wanted(kind: str, size: str, keys: int, options: argparse.Namespace) -> bool:
    if options.kinds is not None:
        return kind in options.kinds
    if options.quick and size == "large":
        return kind == "value" and keys < FEW_KEYS
    # Containers of a million keys take minutes to fill and move, and say nothing new per key.
    return keys < FEW_KEYS or kind == "value"


def run_one(run: Run, options: argparse.Namespace, workdir: Path) -> tuple[Result, Outcome | None]:
    """Measure in a process of its own, or say why not."""
    why = unsupported(run.layout, run.shape)
    if why:
        return Result(run.layout, run.params, Status.UNAVAILABLE, {}, why), None
    many = run.keys >= FEW_KEYS
    arguments = {
        "layout": run.layout,
        **run.params,
        "least": (1 if many else 3) if options.quick else (3 if many else 7),
        "seconds": 0.1 if options.quick else 1.0,
    }
    outcome = run_isolated("bench.state_measure:measure", arguments, workdir, RUN_SECONDS)
    if outcome.value is None:
        known = {"NotAvailable": Status.UNAVAILABLE, "WrongAnswer": Status.WRONG}
        status = known.get(outcome.error_kind, Status.FAILED)
        return Result(run.layout, run.params, status, {}, outcome.error), outcome
    figures = {name: round(float(value), 1) for name, value in outcome.value.items()}
    figures |= {"peak_rss_mb": round(outcome.peak_mb, 1), "run_s": round(outcome.seconds, 1)}
    figures["busy_cores_before"] = round(outcome.busy_cores, 2)
    return Result(run.layout, run.params, Status.OK, figures), outcome


def ratios_of(results: Sequence[Result]) -> dict[str, float]:
    """How many times as fast, or as small, one layout is as another, by operation and shape."""
    by_cell: dict[tuple[Any, ...], dict[str, Result]] = {}
    for result in results:
        by_cell.setdefault(tuple(result.params.values()), {})[result.system] = result
    found = {}
    for (kind, size, keys), cell in by_cell.items():
        for own, peer in COMPARED:
            if own not in cell or peer not in cell:
                continue
            for figure in OPERATIONS:
                mine, other = cell[own].figures.get(figure, 0.0), cell[peer].figures.get(figure, 0.0)
                if mine > 0 and other > 0:
                    name = figure.removesuffix("_ns")
                    found[f"{own}_vs_{peer}_{name}_{kind}_{size}_{short_count(keys)}"] = other / mine
    return found


def make_report(results: Sequence[Result], options: argparse.Namespace) -> Report:
    """The table and the JSON form."""
    settings = {
        "quick": options.quick,
        "batch_rows": dict(BATCH_ROWS),
        "layouts": list(options.layouts),
        "keys": list(options.keys),
    }
    title = "state layouts: nanoseconds per row (update) or per key (all else), medians"
    return Report("state", results, COLUMNS, ratios_of(results), settings, machine_info(), title)


def _shown(report: Report) -> Report:
    """With the ratios that say most: all of them are hundreds."""
    starts = tuple(
        f"{own}_vs_{peer}_{figure.removesuffix('_ns')}_" for own, peer in SHOWN for figure in SHOWN_OPERATIONS
    )
    return replace(report, ratios={name: value for name, value in report.ratios.items() if name.startswith(starts)})


def _draw(results: Sequence[Result], place: Path | None) -> Iterator[str]:
    """Draw the plots that were asked for, and say so."""
    if place is None:
        return
    try:
        for file in write_plots(results, place):
            yield f"drew {file}"
    except MissingPlots as missing:
        yield f"no plots: {missing}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.state",
        description="What each layout of state costs: nanoseconds per row or key and bytes per key, by operation.\n"
        "Each layout is checked against plain dicts before it is timed.",
        epilog=f"With {FEW_KEYS:,} keys or more only values are measured, unless --kinds asks for others.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer shapes and repetitions: under two minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the results here as PNG (needs matplotlib)")
    parser.add_argument(
        "--keys", type=_numbers, default=[10_000, 1_000_000], metavar="N,N", help="numbers of keys (10000,1000000)"
    )
    parser.add_argument(
        "--layouts", type=_names(tuple(LAYOUTS)), default=list(LAYOUTS), metavar="A,B", help=", ".join(LAYOUTS)
    )
    parser.add_argument("--kinds", type=_names(KINDS), metavar="A,B", help=f"{', '.join(KINDS)}; at every size")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    numbers = [int(part.replace("_", "")) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: numbers of keys must be positive")
    return numbers


def _names(known: Sequence[str]) -> Any:
    def names(text: str) -> list[str]:
        asked = text.split(",")
        unknown = [name for name in asked if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        return asked

    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; 1 if a layout failed or answered wrong."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 180)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    runs = plan_runs(options)
    results = []
    for number, run in enumerate(runs, 1):
        place = workdir / str(number)
        result, outcome = run_one(run, options, place)
        results.append(result)
        if outcome is None:
            continue
        shown = f"{result.figures['update_ns']:,.0f} ns/row" if result.figures else f"{result.status}: {result.note}"
        text = (
            f"[{number}/{len(runs)}] {run.layout}, {run.shape.kind} of {run.shape.size} values, {run.keys:,} keys: "
            f"{shown} ({outcome.seconds:.0f} s)"
        )
        console.print(text, markup=False, highlight=False)
        if result.status is Status.FAILED:
            for line in outcome.log_tail():
                console.print(f"  | {line}", markup=False, highlight=False, style="dim")
        else:
            shutil.rmtree(place, ignore_errors=True)
    report = make_report(results, options)
    tables = (report.table(), _shown(report).ratio_table())
    notes = _draw(results, options.plots)
    return finish(report, console, workdir, tables=tables, json_file=options.json, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
