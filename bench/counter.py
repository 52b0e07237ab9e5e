"""Running count per key: Bedload beside Spark's own operators, on two cores.

    python -m bench.counter --quick
    python -m bench.counter --keys 10000 --systems bedload-operator,spark-native-rocksdb --json out.json

Invariants:
- A system is timed only after its counts over a smaller input equalled the true ones, key by key.
- Each measurement runs in a process tree of its own; rounds go through all systems in turn, so that a
  slow spell of the machine hits all of them, and the median of the rounds is reported, with the slowest and the
  fastest round beside it.
- All keys are in the state before the first measured batch.

Why: a keyed count is the least work that a stateful operator can do, so what is left is the cost of the
runtime around it.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

from bench.counter_systems import SYSTEMS, System
from bench.isolate import Outcome, WrongAnswer, run_isolated
from bench.report import Column, Report, Result, Status, finish, machine_info, median_of_rounds, ratio, short_count
from bench.source import fill_batches, keyed_rows, true_counts
from bench.spark_run import CORES, SESSION, make_session, run_collecting, run_timed

BASELINE = "spark-native-rocksdb"
MANY_KEYS = 100_000
# JVM starts and first batches alone would use up a quick run, so it leaves out what no other figure needs:
# transformWithState counts by the better of its two forms, which was rows in every run.
QUICK_NOT = (
    "bedload-operator-now",
    "bedload-aggregate",
    "spark-native-default",
    "spark-tws-pandas",
    "bytewax",
    "pathway",
)
QUICK_MANY_KEYS = ("bedload-operator", "bedload-aggregate", BASELINE)
RUN_SECONDS = 600.0

# name in the ratio -> the systems it stands for, the best of which counts
PEERS = {
    "native_rocksdb": ("spark-native-rocksdb",),
    "native_default": ("spark-native-default",),
    "tws": ("spark-tws-rows", "spark-tws-pandas"),
    "stateless": ("spark-stateless-arrow",),
    "bytewax": ("bytewax",),
    "pathway": ("pathway",),
}
COLUMNS = (
    Column("keys", "keys", "{:,}"),
    Column("batch_rows", "batch rows", "{:,}"),
    Column("rows_per_s", "rows/s", "{:,.0f}"),
    Column("rows_per_s_min", "slowest", "{:,.0f}"),
    Column("rows_per_s_max", "fastest", "{:,.0f}"),
    Column("cpu_s_per_m_rows", "CPU s/M rows", "{:.2f}"),
    Column("vs_native_rocksdb", "vs native rocksdb", "{:.2f}x"),
    Column("peak_rss_mb", "peak RSS MB", "{:,.0f}"),
)


@dataclass(frozen=True)
class Run:
    """One measurement to make."""

    system: str
    keys: int
    batch_rows: int
    warmup: int
    batches: int

    @property
    def params(self) -> dict[str, Any]:
        """What identifies the measurement in the report."""
        return {"keys": self.keys, "batch_rows": self.batch_rows}


def plan_runs(options: argparse.Namespace) -> list[Run]:
    """The measurements of one round, in order."""
    return [
        _plan(system, keys, options)
        for keys in options.keys
        for system in SYSTEMS.values()
        if _wanted(system, keys, options)
    ]


def _wanted(system: System, keys: int, options: argparse.Namespace) -> bool:
    if options.systems is not None:
        return system.name in options.systems
    if keys < MANY_KEYS:
        return not (options.quick and system.name in QUICK_NOT)
    return system.name in QUICK_MANY_KEYS if options.quick else not system.slow


def _plan(system: System, keys: int, options: argparse.Namespace) -> Run:
    # SUBTLE: slow systems get fewer batches, never smaller ones. What they pay is per key and batch, so a
    # tenth of the rows takes nearly as long, and their rows/s would look several times worse than they are.
    rows = options.batch_rows
    if system.slow:
        settle, batches = (0, 1) if options.quick else (1, 3)
    else:
        settle = 1 if options.quick else 4
        batches = 3 if options.quick else 10
        if options.large or keys >= MANY_KEYS:
            settle, batches = settle // 2, batches // 2
    return Run(system.name, keys, rows, fill_batches(keys, rows) + settle, batches)


# --- inside the isolated process


def measure(system: str, run: dict[str, Any], check: bool, conf: dict[str, str], workdir: str) -> dict[str, Any]:
    """Check, if asked, then time one system: the entry point of the isolated process."""
    it, plan, root = SYSTEMS[system], Run(**run), Path(workdir)
    it.require()
    if it.alone is not None:
        return it.alone(plan.keys, plan.batch_rows, plan.warmup, plan.batches, check, root)
    spark = make_session(system, {**it.conf, **conf}, root)
    try:
        if check:
            _check(spark, it, root / "check")
        with it.open(spark, root / "timed") as opened:
            out = opened.transform(keyed_rows(spark, plan.keys, plan.batch_rows))
            rate = run_timed(out, root / "timed" / "spark", plan.warmup, plan.batches, RUN_SECONDS)
        expected = plan.batch_rows * plan.batches
        if rate.rows != expected:
            raise WrongAnswer(f"the measured batches held {rate.rows:,} rows instead of {expected:,}")
        jvm: Any = spark._jvm
        return {**rate.as_json(), "note": opened.note, "java": jvm.java.lang.System.getProperty("java.version")}
    finally:
        spark.stop()


def _check(spark: SparkSession, system: System, root: Path) -> None:
    """Two smaller batches through the same code; the last count of every key must be the true one."""
    # Large enough for several Arrow batches in each task, except where that would take minutes.
    keys, batch_rows, batches = (500, 4_000, 2) if system.slow else (10_000, 300_000, 2)
    with system.open(spark, root) as opened:
        out = opened.transform(keyed_rows(spark, keys, batch_rows))
        got = run_collecting(out, root / "spark", batches, RUN_SECONDS)
    # Counts only grow, so the largest is the last, however many were emitted in a batch.
    column, last = ("n", "max") if system.counts else ("key", "count")
    per_key = got.group_by("key").aggregate([(column, last)])
    counted = dict(zip(*(per_key[name].to_pylist() for name in ("key", f"{column}_{last}")), strict=True))
    truth_table = true_counts(spark, keys, batch_rows * batches).toArrow()
    truth = dict(zip(*(truth_table[name].to_pylist() for name in ("key", "n")), strict=True))
    wrong = sorted(key for key in counted.keys() | truth.keys() if counted.get(key) != truth.get(key))
    if wrong:
        raise WrongAnswer(
            f"{len(wrong):,} of {keys:,} keys wrong, such as key {wrong[0]}: "
            f"{counted.get(wrong[0])} instead of {truth.get(wrong[0])}"
        )


# --- around it


def run_round(
    runs: Sequence[Run],
    options: argparse.Namespace,
    settled: dict[str, Result],
    workdir: Path,
    console: Console,
) -> list[tuple[Result, str]]:
    """All measurements once. `settled` holds the systems that need not be run again, and why."""
    found = []
    for number, run in enumerate(runs, 1):
        if run.system in settled and settled[run.system].status is not Status.OK:
            found.append((replace(settled[run.system], params=run.params), ""))
            continue
        label = f"[{number}/{len(runs)}] {run.system}, {run.keys:,} keys"
        place = workdir / f"{run.system}-{run.keys}"
        with console.status(_escape(label)):
            outcome = run_isolated(
                "bench.counter:measure",
                {
                    "system": run.system,
                    "run": vars(run),
                    "check": run.system not in settled,
                    "conf": dict(options.conf),
                    "workdir": str(place / "work"),
                },
                place,
                RUN_SECONDS,
            )
        result = _result_of(run, outcome)
        # A system that answered wrong or is not there will be so at every size; one that failed may not.
        if result.status is not Status.FAILED:
            settled.setdefault(run.system, result)
        shown = f"{result.figures['rows_per_s']:,.0f} rows/s" if result.figures else f"{result.status}: {result.note}"
        console.print(f"{label}: {shown} ({outcome.seconds:.0f} s)", markup=False, highlight=False)
        if result.status is Status.FAILED:
            _show_failure(outcome, console)
        else:
            shutil.rmtree(place, ignore_errors=True)
        found.append((result, (outcome.value or {}).get("java", "")))
    return found


def _result_of(run: Run, outcome: Outcome) -> Result:
    if outcome.value is None:
        known = {"NotAvailable": Status.UNAVAILABLE, "WrongAnswer": Status.WRONG}
        return Result(run.system, run.params, known.get(outcome.error_kind, Status.FAILED), {}, outcome.error)
    names = ("rows_per_s", "wall_rows_per_s", "slowest_trigger_s", "cpu_s_per_m_rows")
    # Engines that are not Spark end before anybody could ask for their processor time.
    figures = {name: round(float(outcome.value[name]), 3) for name in names if name in outcome.value}
    figures["peak_rss_mb"] = round(outcome.peak_mb, 1)
    figures["run_s"] = round(outcome.seconds, 1)
    figures["busy_cores_before"] = round(outcome.busy_cores, 2)
    return Result(run.system, run.params, Status.OK, figures, str(outcome.value["note"]))


def _show_failure(outcome: Outcome, console: Console) -> None:
    console.print(f"  log: {outcome.log}", markup=False, highlight=False)
    for line in outcome.log_tail():
        console.print(f"  | {line}", markup=False, highlight=False, style="dim")


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def make_report(rounds: Sequence[Sequence[Result]], options: argparse.Namespace, java: str) -> Report:
    """The median of the rounds, with ratios."""
    merged = [median_of_rounds(of_one, spread="rows_per_s") for of_one in zip(*rounds, strict=True)]
    results = []
    for result in merged:
        against = ratio(merged, result.system, (BASELINE,), "rows_per_s", keys=result.params["keys"])
        figures = (
            dict(result.figures) if against is None else {**result.figures, "vs_native_rocksdb": round(against, 3)}
        )
        results.append(replace(result, figures=figures))
    ratios = {}
    for own in ("bedload-operator", "bedload-operator-now", "bedload-aggregate"):
        for keys in options.keys:
            for peer, systems in PEERS.items():
                value = ratio(results, own, systems, "rows_per_s", keys=keys)
                if value is not None:
                    ratios[f"{own.replace('-', '_')}_vs_{peer}_{short_count(keys)}"] = value
    machine = machine_info()
    machine["versions"] = {**machine["versions"], "java": java or "unknown"}
    settings = {
        "quick": options.quick,
        "large": options.large,
        "rounds": len(rounds),
        "cores_used": CORES,
        "shuffle_partitions": int(SESSION["spark.sql.shuffle.partitions"]),
        "conf": dict(options.conf),
    }
    title = (
        f"running count per key, local[{CORES}], {CORES} shuffle partitions (one per core), "
        f"median of {len(rounds)} round(s)"
    ).replace("[", r"\[")
    return Report("counter", results, COLUMNS, ratios, settings, machine, title)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    width = max(map(len, SYSTEMS))
    systems = "\n".join(f"  {s.name:<{width}}  {s.about}" for s in SYSTEMS.values())
    parser = argparse.ArgumentParser(
        prog="python -m bench.counter",
        description="Running count per key over a deterministic stream: rows/s of whole triggers and peak\n"
        "memory, each system in its own process tree, checked for right counts before it is timed.",
        epilog=f"systems:\n{systems}\n\n"
        f"With {MANY_KEYS:,} keys or more the transformWithState systems run only if named in --systems,\n"
        f"and --quick runs only {', '.join(QUICK_MANY_KEYS)}.\n"
        f"With fewer keys --quick leaves out {', '.join(QUICK_NOT)}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer batches and one round: under three minutes")
    parser.add_argument("--large", action="store_true", help="batches of 2,000,000 rows")
    parser.add_argument(
        "--keys",
        type=_numbers,
        default=[10_000, 1_000_000],
        metavar="N,N",
        help="numbers of keys (10000,1000000)",
    )
    parser.add_argument("--systems", type=_systems, metavar="A,B", help="only these, at every number of keys")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="rounds, median taken (3; 1 with --quick)")
    parser.add_argument("--batch-rows", type=_positive, metavar="N", help="rows a batch, for all systems (500000)")
    parser.add_argument(
        "--conf",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Spark setting, for all systems",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON too")
    options = parser.parse_args(arguments)
    if options.batch_rows is None:
        options.batch_rows = 2_000_000 if options.large else 500_000
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    return options


def _positive(text: str) -> int:
    value = int(text.replace("_", ""))
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _numbers(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _systems(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no system {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    return names


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} is not KEY=VALUE")
    return key, value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a system failed or counted wrong, so that a pipeline notices."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    workdir = Path(tempfile.mkdtemp(prefix="bedload-bench-"))
    runs = plan_runs(options)
    settled: dict[str, Result] = {}
    rounds, java = [], ""
    for number in range(1, options.rounds + 1):
        if options.rounds > 1:
            console.print(f"round {number} of {options.rounds}")
        found = run_round(runs, options, settled, workdir / f"round-{number}", console)
        rounds.append([result for result, _ in found])
        java = next((version for _, version in found if version), java)
    report = make_report(rounds, options, java)
    return finish(report, console, workdir, tables=report.tables(), json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
