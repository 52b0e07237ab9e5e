"""What a benchmark found: a table for people and one JSON form for machines.

Invariants:
- A result that is not `ok` carries no measured figure and never enters a ratio: a wrong or missing
  system must not look fast or slow.
- The JSON form is flat, `{"system", "status", <figures>, "note"}`, whatever the benchmark, so one
  reader can follow any figure over time.

Why: figures are compared between systems and between commits. Both need one shape, and a failure has
to be as visible as a number.
"""

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

PACKAGES = ("bedload", "pyspark", "pyarrow", "numpy", "pandas")
BUSY_LIMIT = 0.3
"""So many cores at work for somebody else, and the figures are not to be trusted."""
NO_FIGURE = "–"  # noqa: RUF001  a dash reads as "nothing here" in a table of numbers


class Status(StrEnum):
    """How a system's run ended."""

    OK = "ok"
    UNAVAILABLE = "not available"
    WRONG = "wrong"
    FAILED = "failed"


@dataclass(frozen=True)
class Result:
    """One system under one set of parameters: what was asked, and what was measured."""

    system: str
    params: Mapping[str, Any]
    status: Status = Status.OK
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if self.status is not Status.OK and self.figures:
            raise ValueError(f"{self.system}: a result that is {self.status} cannot carry figures")

    def as_json(self) -> dict[str, Any]:
        """The flat form of the JSON file."""
        flat = {"system": self.system, "status": str(self.status), **self.params, **self.figures}
        return {**flat, "note": self.note} if self.note else flat


def median_of_rounds(rounds: Sequence[Result], spread: str = "") -> Result:
    """One result for several rounds of the same thing: each figure's median, and of one the smallest and the largest.

    A system that failed in any round is reported as that failure: a median over the rounds that
    happened to work would hide it.
    """
    for bad in rounds:
        if bad.status is not Status.OK:
            return bad
    first = rounds[0]
    figures = {name: median(r.figures[name] for r in rounds) for name in first.figures}
    if spread:
        values = [r.figures[spread] for r in rounds]
        figures |= {f"{spread}_min": min(values), f"{spread}_max": max(values)}
    return Result(first.system, first.params, Status.OK, figures, first.note)


def ratio(results: Sequence[Result], system: str, peers: Sequence[str], figure: str, **params: Any) -> float | None:
    """`figure` of `system` over that of the best of `peers`, or None where either was not measured.

    The best peer, since beating the slower one of two proves nothing. Higher is better.
    """

    def find(name: str) -> list[float]:
        return [
            r.figures[figure]
            for r in results
            if r.system == name and figure in r.figures and all(r.params.get(k) == v for k, v in params.items())
        ]

    own = find(system)
    others = [value for peer in peers for value in find(peer)]
    if not own or not others or max(others) <= 0:
        return None
    return own[0] / max(others)


def short_count(n: int) -> str:
    """A count as a name part: 10000 is `10k`, 1000000 is `1m`; one that is not round stays as it is."""
    for unit, suffix in ((1_000_000, "m"), (1_000, "k")):
        if n and n % unit == 0:
            return f"{n // unit}{suffix}"
    return str(n)


@dataclass(frozen=True)
class Column:
    """A column of the table: the name of a param or figure, its title, and how to print it."""

    name: str
    title: str
    form: str = "{}"


@dataclass(frozen=True)
class Report:
    """Everything that one run of a benchmark found."""

    bench: str
    results: Sequence[Result]
    columns: Sequence[Column]
    ratios: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""

    def table(self) -> Table:
        """One row per result; a result without figures says why in its last column."""
        table = Table(title=self.title or self.bench, title_justify="left")
        table.add_column("system", no_wrap=True)
        for column in self.columns:
            table.add_column(column.title, justify="right", no_wrap=True)
        table.add_column("note", overflow="fold")
        for result in self.results:
            known = {**result.params, **result.figures}
            cells = [c.form.format(known[c.name]) if c.name in known else NO_FIGURE for c in self.columns]
            note = result.note
            if result.status is not Status.OK:
                note = f"{result.status}: {note}" if note else str(result.status)
            table.add_row(result.system, *cells, _plain(note), style=None if result.status is Status.OK else "dim")
        return table

    def ratio_table(self) -> Table:
        """The ratios, by name."""
        table = Table(title="ratios", title_justify="left")
        table.add_column("ratio", no_wrap=True)
        table.add_column("x", justify="right", no_wrap=True)
        for name, value in self.ratios.items():
            table.add_row(name, f"{value:.2f}")
        return table

    def tables(self) -> Iterable[Table]:
        """The results, and the ratios if there are any."""
        yield self.table()
        if self.ratios:
            yield self.ratio_table()

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "bench": self.bench,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "results": [result.as_json() for result in self.results],
            "ratios": {name: round(value, 4) for name, value in self.ratios.items()},
        }

    def write_json(self, path: Path) -> None:
        """Write the JSON form; the directories above it are made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")


def finish(
    report: Report,
    console: Console,
    workdir: Path,
    *,
    tables: Iterable[Table],
    json_file: Path | None,
    write_json: Callable[[Path], None] | None = None,
    busy: float | None = None,
    notes: Iterable[str] = (),
) -> int:
    """The end of every benchmark: show what was found, write it, clean up; 1 if something failed or was wrong.

    `write_json` stands in for the report's own, and `busy` for the busiest result's `busy_cores_before`. `notes` are
    said when the JSON is written, one by one, so that they may do what they speak of. The work directory goes, unless
    its logs are needed.
    """
    for table in tables:
        console.print(table)
    if busy is None:
        busy = max((r.figures["busy_cores_before"] for r in report.results if r.figures), default=0.0)
    if busy > BUSY_LIMIT:
        console.print(f"careful: something else kept {busy:.1f} cores busy; these figures are noisy")
    if json_file is not None:
        (write_json or report.write_json)(json_file)
        console.print(f"wrote {json_file}", highlight=False)
    for note in notes:
        console.print(note, markup=False, highlight=False)
    if any(r.status in (Status.FAILED, Status.WRONG) for r in report.results):
        console.print(f"the logs are in {workdir}", highlight=False)
        return 1
    shutil.rmtree(workdir, ignore_errors=True)
    return 0


def machine_info() -> dict[str, Any]:
    """What the figures depend on: cores, memory, and the versions of what ran."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "cpu": _cpu_model(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def _plain(text: str) -> str:
    # Error texts are full of square brackets, which rich would take for its own markup.
    return text.replace("[", r"\[")
