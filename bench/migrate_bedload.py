"""Bedload's moves: a rescale from 2 to 4 workers while the query runs, by each strategy.

Invariants:
- All cases run in one session, so the JVM is warm for each; each has workers of its own and a copy of the same
  checkpoint, so nothing of a former move is in memory or on disk.
- After the run, the counts in the checkpoint, at the last epoch that Spark committed, add up to the rows that went in.
- A live move counts only if it was one: keys moved, no worker was lost on the way, and the query ran through. A rescale
  that lost its workers and read everything back also ends well, with no stoppage on record and seconds without output.

Stoppage is what the workers say: how long rows of a moved key waited for its state, over all keys that had rows while
they were on their way. If none had, there is nothing to take percentiles of, and no figure: a small state may move
between two epochs. It begins when a worker takes a row up, so what waits before that, for a busy worker or for new
processes to start, shows in latency and gap alone. For `stop_restart` it is the gap between the commits around it.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import bedload as bl
from bedload.migration.record import MoveRecord
from bench.isolate import WrongAnswer
from bench.migrate_load import Schedule, key_expression, open_loop
from bench.migrate_measure import stream_figures
from bench.migrate_operators import OPERATORS, SCHEMA, initial_columns
from bench.migrate_plan import CONTROL, RESTARTING, Case, Timing
from bench.migrate_run import WORKERS_AFTER, WORKERS_BEFORE, Watched, run_cases, wall
from bench.spark_run import make_session

STOPPAGE = ("stoppage_ms_p50", "stoppage_ms_p99", "stoppage_ms_max")
KEY_GROUPS = 256
CONTROL_SECONDS = 1.0
"""Where nothing is asked for, the epochs of so many seconds stand for those of a move."""
COUNTED = ("moved_groups", "moved_keys", "waited_keys", "asked_keys", "rows_parked")


def measure(
    cases: Sequence[Mapping[str, Any]], timing: Mapping[str, Any], warm_up: Mapping[str, Any], workdir: str
) -> dict[str, Any]:
    """Measure the cases: the entry point of the isolated process."""
    root, times = Path(workdir), Timing(**timing)
    spark = make_session("migrate-bedload", {}, root)
    spark.sparkContext.setLogLevel("ERROR")
    templates, place = Templates(spark, root / "templates"), root / "case"
    try:
        done = run_cases(
            [warm_up, *cases],
            lambda case: _measure(spark, case, templates, place, times),
            root / "answers.jsonl",
            lambda: shutil.rmtree(place, ignore_errors=True),
        )
    finally:
        spark.stop()
    return {"cases": done}


class Templates:
    """Checkpoints that hold the state every case of a setting begins with."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark = spark
        self._root = root
        self._held = ""

    def copy(self, case: Case, place: Path) -> None:
        """A checkpoint of the case's own. One template is kept at a time: cases come setting by setting."""
        name = f"{case.layout}-{case.keys}-{case.value_bytes}"
        if name != self._held:
            shutil.rmtree(self._root, ignore_errors=True)
            self._make(case, self._root / name)
            self._held = name
        shutil.copytree(self._root / name, place)

    def _make(self, case: Case, place: Path) -> None:
        start = self._spark.range(case.keys).selectExpr(*initial_columns(case.layout, case.value_bytes))
        rows = _rows(self._spark, case, Schedule(wall(), case.rate))
        with bl.attach(self._spark, workers=1, checkpoint=place.as_uri(), key_groups=KEY_GROUPS) as cluster:
            cluster.apply(
                rows, key="key", operator=OPERATORS[case.layout], schema=SCHEMA, name="kept", initial_state=start
            )


def _rows(spark: SparkSession, case: Case, schedule: Schedule) -> Any:
    return open_loop(spark, schedule).selectExpr(f"{key_expression(case.keys, case.skew)} AS key")


def _measure(spark: SparkSession, case: Case, templates: Templates, place: Path, timing: Timing) -> dict[str, Any]:
    checkpoint = place / "bedload"
    templates.copy(case, checkpoint)
    with bl.attach(spark, workers=WORKERS_BEFORE, checkpoint=checkpoint.as_uri(), key_groups=KEY_GROUPS) as cluster:
        watched = Watched(Schedule(wall() + 1, case.rate), timing.timeout_s)
        rows = _rows(spark, case, watched.schedule)
        out = cluster.apply(rows, key="key", operator=OPERATORS[case.layout], schema=SCHEMA, name="kept")

        def start() -> StreamingQuery:
            writer = out.writeStream.format("noop").outputMode("update")
            return watched.started(writer.option("checkpointLocation", str(place / "spark")).start())

        with cluster.run(start, first_pause=0.05) as supervised:
            watched.fails_by(supervised.exception)
            watched.wait_until_caught_up()
            steady_s = watched.run_steadily(timing.steady_s)
            requested = wall()
            record = _move(cluster, case, timing)
            done = requested + (CONTROL_SECONDS if record is None else record.duration_s)
            watched.wait_until_stable(requested, steady_s, timing)
            restarts = supervised.restarts
    _check(spark, case, watched, checkpoint)
    beats = watched.beats()
    figures = stream_figures(beats, requested, done, steady_s, timing.hold_s)
    return {
        "figures": figures | recorded(case, record, figures["gap_s"], restarts),
        "series": watched.series(requested),
    }


def _move(cluster: bl.Cluster, case: Case, timing: Timing) -> MoveRecord | None:
    """Ask for it and wait until it is over."""
    if case.strategy == CONTROL:
        return None
    if case.part == "columns":
        # Between workers that are there: the time it takes to start some is not that of a transfer.
        first_half = range(KEY_GROUPS // WORKERS_BEFORE)
        change = cluster.move(key_groups=first_half, to=1, strategy=case.strategy)
    else:
        change = cluster.rescale(WORKERS_AFTER, strategy=case.strategy)
    (record,) = change.wait(timing.timeout_s).records
    return record


def refusal(case: Case, record: MoveRecord | None, restarts: int) -> str | None:
    """Why this was not the move that the case is about; None if it was."""
    if case.strategy not in RESTARTING and restarts:
        return f"the query failed and was started again ({restarts} times)"
    if record is None:
        return None
    if record.outcome != "done":
        return f"the move ended as {record.outcome!r}"
    if case.strategy in RESTARTING:
        return None
    if record.from_checkpoint:
        return "a worker was lost on the way, and state was read from the checkpoint instead of moved"
    return None if record.moved_keys else "no key was moved"


def recorded(case: Case, record: MoveRecord | None, gap_s: float, restarts: int) -> dict[str, float]:
    """The figures that a move's own record gives."""
    if (problem := refusal(case, record, restarts)) is not None:
        raise WrongAnswer(problem)
    if record is None:
        return {}
    figures = {name: float(getattr(record, name)) for name in ("duration_s", *COUNTED)}
    figures["moved_mb"] = record.moved_bytes / 1e6
    figures |= {"copy_s": record.copy_s, "handover_s": record.handover_s}
    if seconds := record.copy_s + record.handover_s:
        figures["mb_per_s"] = figures["moved_mb"] / seconds
    if case.strategy in RESTARTING:
        # No key waits at a worker: all of them wait for one.
        figures |= dict.fromkeys(STOPPAGE, gap_s * 1000)
        return {**figures, "unavailable_s": gap_s}
    # Of keys that had rows while they were on their way. If none had, none was stopped.
    figures |= {name: float(getattr(record, name)) for name in STOPPAGE}
    return {**figures, "unavailable_s": record.stoppage_ms_max / 1000}


def _check(spark: SparkSession, case: Case, watched: Watched, checkpoint: Path) -> None:
    batch, expected = watched.last_batch()
    table = spark.read.format("bedload").option("stateVarName", "n").option("batchId", batch)
    state = table.load(checkpoint.as_uri())
    column = "n" if "n" in state.columns else "value"
    found = state.selectExpr(f"sum({column})", "count(*)").first()
    assert found is not None
    if tuple(found) != (expected, case.keys):
        raise WrongAnswer(f"rows counted and keys are {tuple(found)} instead of {(expected, case.keys)}")
