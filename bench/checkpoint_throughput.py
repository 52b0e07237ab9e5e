"""The running count with its state in a checkpoint, or in memory alone: rows/s of whole triggers.

Invariants:
- Both sides have the same source, session, operator and batches; `attach(checkpoint=...)` is the one difference.
- A durable run counts only if the counts in its files, read back after it, add up to the rows that went in.

Why: a checkpoint that is written and cannot be read costs nothing and is worth nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import restore_at
from bedload.checkpoint.history import History
from bedload.checkpoint.storage import open_storage
from bedload.core.ids import OperatorName
from bench.counter_systems import bedload_opener
from bench.isolate import WrongAnswer
from bench.source import fill_batches, keyed_rows
from bench.spark_run import make_session, run_timed

BUILDS = {"bedload-operator": "operator", "bedload-aggregate": "aggregate"}
"""By name in the report, the name in `counter_bedload`."""

STATES = ("memory", "durable")


@dataclass(frozen=True)
class ThroughputRun:
    """One measurement."""

    system: str
    state: str
    keys: int
    batch_rows: int
    settle: int
    batches: int

    @property
    def params(self) -> dict[str, Any]:
        """What identifies it in the report."""
        return {"part": "throughput", "state": self.state, "keys": self.keys, "batch_rows": self.batch_rows}

    @property
    def warmup(self) -> int:
        """Batches before the measured ones: until every key is there, and some more."""
        return fill_batches(self.keys, self.batch_rows) + self.settle


def measure(run: dict[str, Any], workdir: str, timeout: float) -> dict[str, Any]:
    """Time one: the entry point of the isolated process."""
    plan, root = ThroughputRun(**run), Path(workdir)
    spark = make_session(plan.system, {}, root)
    try:
        with bedload_opener(BUILDS[plan.system], plan.state == "durable")(spark, root) as opened:
            out = opened.transform(keyed_rows(spark, plan.keys, plan.batch_rows))
            rate = run_timed(out, root / "spark", plan.warmup, plan.batches, timeout)
    finally:
        spark.stop()
    expected = plan.batch_rows * plan.batches
    if rate.rows != expected:
        raise WrongAnswer(f"the measured batches held {rate.rows:,} rows instead of {expected:,}")
    figures = {name: rate.as_json()[name] for name in ("rows_per_s", "wall_rows_per_s", "slowest_trigger_s")}
    if plan.state == "durable":
        figures["bytes_per_row"] = _check(root / "bedload", plan)
    return figures


def _check(place: Path, plan: ThroughputRun) -> float:
    """Compare the state in the files with the rows that went in; gives the bytes of deltas per measured row."""
    checkpoint, operator, history = open_history(place)
    head = history.head
    record = None if head is None else history.record(head)
    if head is None or record is None or record.epoch < plan.warmup + plan.batches - 1:
        raise WrongAnswer("the checkpoint does not have the epochs that were measured")
    restore, schema = restore_at(checkpoint, operator, head)
    (variable,) = schema.variables
    found = pc.sum(restore.table().column(variable.name)).as_py()
    expected = plan.batch_rows * (record.epoch + 1)
    if found != expected:
        raise WrongAnswer(f"the counts in the checkpoint add up to {found:,} instead of {expected:,}")
    measured = range(plan.warmup, plan.warmup + plan.batches)
    turns = {turn: history.record(turn) for turn in history.chain()}
    size = sum(history.delta_bytes(turn) for turn, of in turns.items() if of is not None and of.epoch in measured)
    return size / (plan.batch_rows * plan.batches)


def open_history(place: Path) -> tuple[Checkpoint, OperatorName, History]:
    """The checkpoint of a run, its one operator, and the turns of that."""
    checkpoint = Checkpoint.open(open_storage(place.as_uri()))
    (operator,) = checkpoint.operators()
    return checkpoint, operator, checkpoint.load_history(operator)
