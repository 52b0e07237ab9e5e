"""Starting: seconds until the first epoch, until the first read of state, and until a restarted query goes on.

    python -m bench.startup --quick
    python -m bench.startup --rounds 5 --json out.json

Invariants:
- Each measurement runs in a process tree of its own; what is compared takes turns, in each round in the opposite order.
- Ratios are seconds over seconds, so less is better, and each is the median of the rounds' ratios.
- What a restart goes on with was made by the first round; both sides keep it on the same local disk.

Why: a first epoch is what somebody who tries a library waits for, and a restart is what an outage waits for.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.checkpoint import merged, result_of
from bench.checkpoint_fill import FillRun
from bench.checkpoint_plan import CHANGED, MANY_KEYS, OWN, PEER
from bench.isolate import run_isolated
from bench.report import Column, Report, Result, Status, finish, machine_info
from bench.spark_run import CORES, SESSION
from bench.startup_first import STATELESS

RUN_SECONDS = 300.0
OPERATOR = "bedload-operator"
FIRST = (STATELESS, PEER, OPERATOR, OWN)
PARTS: dict[str, tuple[str, tuple[Column, ...]]] = {
    "first": (
        "first epoch: seconds from the operator being applied to the commit, and the steps around it; before: what ran",
        (
            Column("before", "before"),
            Column("attach_s", "attach", "{:.2f}"),
            Column("apply_s", "apply", "{:.2f}"),
            Column("epoch_s", "first epoch", "{:.2f}"),
            Column("total_s", "with attach", "{:.2f}"),
            Column("again_attach_s", "again: attach", "{:.2f}"),
            Column("again_epoch_s", "first epoch", "{:.2f}"),
        ),
    ),
    "read": (
        "reading state as a table: seconds, beside a Parquet file of as many rows",
        (
            Column("first_s", "first", "{:.2f}"),
            Column("later_s", "later", "{:.2f}"),
            Column("first_parquet_s", "Parquet, first", "{:.2f}"),
            Column("later_parquet_s", "later", "{:.2f}"),
        ),
    ),
    "restart": (
        "restart with a million keys: seconds to the first new epoch, cold, the query alone, and warm",
        (
            Column("restart_s", "cold", "{:.2f}"),
            Column("attach_s", "attach", "{:.2f}"),
            Column("query_restart_s", "query alone", "{:.2f}"),
            Column("warm_restart_s", "warm", "{:.2f}"),
            Column("warm_cpu_s", "warm, CPU", "{:.2f}"),
        ),
    ),
}
TARGETS = {
    "first_epoch_vs_map_in_arrow": 1.8,
    "restart_vs_spark": 1.0,
    "warm_restart_vs_spark": 0.5,
}
"""At most."""


@dataclass(frozen=True)
class Job:
    """One measurement in a process of its own."""

    part: str
    system: str
    target: str
    arguments: Mapping[str, Any]
    place: str
    params: Mapping[str, Any] = field(default_factory=dict)
    shown: str = ""

    @property
    def label(self) -> str:
        """For the console."""
        return ", ".join([self.part, self.system, *map(str, self.params.values())])


def plan_round(number: int, quick: bool, parts: Sequence[str]) -> list[Job]:
    """The measurements of one round, numbered from 0."""
    jobs: list[Job] = []
    order = 1 if number % 2 == 0 else -1
    if "first" in parts:
        jobs += [
            Job(
                "first",
                system,
                "bench.startup_first:first_epoch",
                {"system": system, "before": before},
                f"first-{system}-{before.replace(' ', '-')}-{number}",
                {"before": before},
                "{epoch_s:.2f} s, with attach {total_s:.2f} s",
            )
            for before in ("warm", "python too", "cold")
            for system in FIRST[::order]
        ]
    if "read" in parts:
        shown = "{first_s:.2f} s, later {later_s:.2f} s"
        for system, target in (("bedload-source", "first_read"), ("plain-source", "plain_read")):
            jobs.append(Job("read", system, f"bench.startup_first:{target}", {}, f"{target}-{number}", {}, shown))
    if "restart" in parts:
        runs = [FillRun(system, MANY_KEYS, CHANGED, 4) for system in (PEER, OWN)]
        if number == 0:
            fill = "bench.checkpoint_fill:fill"
            jobs += [Job("fill", run.system, fill, {"run": asdict(run)}, run.place, {}, "state made") for run in runs]
        shown = "{restart_s:.2f} s; the query alone {query_restart_s:.2f} s, warm {warm_restart_s:.2f} s"
        restart = "bench.checkpoint_restart:restart"
        jobs += [
            Job("restart", run.system, restart, {"run": asdict(run)}, run.place, {}, shown) for run in runs[::order]
        ]
    return jobs


def run_job(job: Job, label: str, workdir: Path, console: Console) -> Result:
    """One measurement; prints how it went."""
    place = workdir / job.place
    arguments = {**job.arguments, "workdir": str(place / "work"), "timeout": RUN_SECONDS}
    with console.status(label.replace("[", r"\[")):
        outcome = run_isolated(job.target, arguments, place, RUN_SECONDS)
    result = result_of(job.system, {"part": job.part, **job.params}, outcome)
    if result.status is Status.OK:
        shown = job.shown.format(**result.figures)
    else:
        shown = f"{result.status}: {result.note} (log: {outcome.log})"
    console.print(f"{label}: {shown} ({outcome.seconds:.0f} s)", markup=False, highlight=False)
    return result


def ratios_of(rounds: Sequence[Sequence[Result]]) -> dict[str, float]:
    """Seconds of Bedload over seconds of its peer, by name."""
    warm, both, cold = ({"part": "first", "before": before} for before in ("warm", "python too", "cold"))
    restart, read = {"part": "restart"}, {"part": "read"}
    wanted = {
        "first_epoch_vs_map_in_arrow": (OPERATOR, "epoch_s", STATELESS, "epoch_s", warm),
        "first_epoch_with_attach_vs_map_in_arrow": (OPERATOR, "total_s", STATELESS, "total_s", warm),
        "first_epoch_vs_spark_stateful": (OPERATOR, "epoch_s", PEER, "epoch_s", warm),
        "aggregate_first_epoch_vs_map_in_arrow": (OWN, "epoch_s", STATELESS, "epoch_s", warm),
        "aggregate_first_epoch_vs_spark_stateful": (OWN, "epoch_s", PEER, "epoch_s", warm),
        "python_too_first_epoch_vs_map_in_arrow": (OPERATOR, "epoch_s", STATELESS, "epoch_s", both),
        "again_with_attach_vs_map_in_arrow": (OPERATOR, "again_total_s", STATELESS, "again_total_s", warm),
        "cold_first_epoch_with_attach_vs_map_in_arrow": (OPERATOR, "total_s", STATELESS, "total_s", cold),
        "cold_first_epoch_with_attach_vs_spark_stateful": (OPERATOR, "total_s", PEER, "total_s", cold),
        "first_read_vs_plain_source": ("bedload-source", "first_s", "plain-source", "first_s", read),
        "later_read_vs_plain_source": ("bedload-source", "later_s", "plain-source", "later_s", read),
        "restart_vs_spark": (OWN, "restart_s", PEER, "restart_s", restart),
        "query_restart_vs_spark": (OWN, "query_restart_s", PEER, "query_restart_s", restart),
        "warm_restart_vs_spark": (OWN, "warm_restart_s", PEER, "warm_restart_s", restart),
    }
    found: dict[str, float] = {}
    for name, (own, figure, peer, other, params) in wanted.items():
        each = []
        for results in rounds:
            above, below = _find(results, own, params, figure), _find(results, peer, params, other)
            if above is not None and below is not None:
                each.append(above / below)
        if each:
            found[name] = median(each)
    return found


def _find(results: Sequence[Result], system: str, params: Mapping[str, Any], figure: str) -> float | None:
    for result in results:
        if result.system == system and all(result.params.get(name) == value for name, value in params.items()):
            return result.figures.get(figure)
    return None


def tables(report: Report) -> Iterable[Table]:
    """A table for each part, and one for the ratios."""
    for part, (title, columns) in PARTS.items():
        found = [result for result in report.results if result.params["part"] == part]
        if found:
            yield Report(part, found, columns, title=title).table()
    table = Table(title="ratios of seconds (less is better)", title_justify="left")
    for name, justify in (("ratio", "left"), ("x", "right"), ("target", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name, value in report.ratios.items():
        bound = TARGETS.get(name)
        said = "" if bound is None else f"<= {bound:g}: {'met' if value <= bound else 'missed'}"
        table.add_row(name, f"{value:.2f}", said)
    yield table


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.startup",
        description="Seconds until the first epoch with Spark cold and warm, beside a plain mapInArrow query and\n"
        "Spark's groupBy().count() on RocksDB; until the first read of state as a table; and until\n"
        "a query with a million keys goes on after a restart.",
        epilog="targets:\n" + "\n".join(f"  {name} <= {bound:g}" for name, bound in TARGETS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one round: about three minutes")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds, median taken (3; 1 with --quick)")
    parser.add_argument("--parts", default=",".join(PARTS), metavar="A,B", help=f"only these of {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    options = parser.parse_args(arguments)
    options.parts = options.parts.split(",")
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    if options.rounds < 1:
        parser.error("--rounds: at least one")
    return options


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
    settings = {
        "rounds": len(rounds),
        "cores_used": CORES,
        "shuffle_partitions": int(SESSION["spark.sql.shuffle.partitions"]),
        "targets": {name: f"<= {bound:g}" for name, bound in TARGETS.items()},
    }
    report = Report("startup", merged(rounds), (), ratios_of(rounds), settings, machine_info())
    return finish(report, console, workdir, tables=tables(report), json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
