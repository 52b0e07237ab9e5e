"""State that is large, of which each epoch changes little: what is written for it, and what a restart begins with.

Invariants:
- The first `FILLING` epochs hold every key once. Each epoch after them holds `changed` different keys once.
- The size of a change is that of its key and value in plain Arrow columns, without compression.

Why: whether backup is incremental shows only where the state is much larger than what changes. With the same number
of changes in two states of different size, the bytes have to be the same.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own customary name

import bedload as bl
from bedload.checkpoint import paths
from bench import counter_bedload
from bench.checkpoint_throughput import open_history
from bench.counter_systems import SYSTEMS, Opened
from bench.isolate import WrongAnswer
from bench.source import PARTITIONS, SCATTER
from bench.spark_run import make_session, run_timed

FILLING = 2
MAP = "bedload-map"
FIELDS = 20
KEY, FIELD = "key-", "field-"


@dataclass(frozen=True)
class FillRun:
    """A state to make: so many keys, then so many epochs that change some."""

    system: str
    keys: int
    changed: int
    epochs: int

    def __post_init__(self) -> None:
        if self.keys % (FILLING * self.changed):
            raise ValueError(f"{self.keys} keys cannot be filled by {FILLING} epochs of {self.changed} rows")

    @property
    def params(self) -> dict[str, Any]:
        """What identifies it in the report."""
        return {"part": "bytes", "keys": self.keys, "changed": self.changed}

    @property
    def place(self) -> str:
        """The name of its folder."""
        return f"{self.system}-{self.keys}"


class Fields(bl.Operator):
    """Counts by field within a key: a map of `FIELDS` entries, of which a row changes one."""

    counts: dict[str, int] = bl.map()

    def process(self, key: str, rows: Any, ctx: Any) -> None:
        if not self.counts:
            self.counts.update({f"{FIELD}{number}": 0 for number in range(FIELDS)})
        for row in rows:
            self.counts[row.field] += 1

    def result(self, key: str, ctx: Any) -> tuple[str, int]:
        return key, sum(self.counts.values())


def open_system(system: str, spark: SparkSession, root: Path) -> AbstractContextManager[Opened]:
    """The system, with its state under `root` if it is Bedload."""
    return _open_map(spark, root) if system == MAP else SYSTEMS[system].open(spark, root)


class _open_map(AbstractContextManager[Opened]):  # noqa: N801  used as a function
    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._cluster, self._note = counter_bedload.attach(spark, root / "bedload")

    def __enter__(self) -> Opened:
        return Opened(self._count, self._note)

    def __exit__(self, *exc: object) -> None:
        self._cluster.stop()

    def _count(self, rows: DataFrame) -> DataFrame:
        named = rows.selectExpr(f"concat('{KEY}', key) AS key", f"concat('{FIELD}', pmod(key, {FIELDS})) AS field")
        return self._cluster.apply(named, key="key", operator=Fields, schema="key string, n long")


def changing_rows(spark: SparkSession, keys: int, changed: int) -> DataFrame:
    """A streaming DataFrame of one column, `key long`; see the module."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", changed)
        .option("numPartitions", PARTITIONS)
        .load()
    )
    each = keys // (FILLING * changed)
    several = f"sequence(value * {each}, value * {each} + {each - 1})"
    one = f"array(pmod(value * {SCATTER}L, {keys}L))"
    made = f"CASE WHEN value < {FILLING * changed} THEN {several} ELSE {one} END"
    return numbers.select(F.explode(F.expr(made)).alias("key"))


def changed_keys(keys: int, changed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The keys that an epoch after the filling ones changes."""
    rows = np.arange(epoch * changed, (epoch + 1) * changed, dtype=np.int64)
    return np.asarray(rows * SCATTER % keys, np.int64)


def changed_bytes(system: str, keys: int, changed: int, epoch: int) -> int:
    """The size of what an epoch changes, as plain Arrow columns: the key, and the value or the map's entry."""
    numbers = changed_keys(keys, changed, epoch)
    value = pa.array(np.zeros(len(numbers), np.int64))
    if system != MAP:
        return int(pa.array(numbers).nbytes + value.nbytes)
    names = pa.array([f"{KEY}{number}" for number in numbers.tolist()])
    fields = pa.array([f"{FIELD}{number}" for number in (numbers % FIELDS).tolist()])
    return int(names.nbytes + fields.nbytes + value.nbytes)


def fill(run: dict[str, Any], workdir: str, timeout: float) -> dict[str, Any]:
    """Make the state under `workdir`, and weigh what was written for it: the entry point of the isolated process."""
    plan, root = FillRun(**run), Path(workdir)
    conf = {} if plan.system == MAP else dict(SYSTEMS[plan.system].conf)
    spark = make_session(plan.system, conf, root)
    try:
        with open_system(plan.system, spark, root) as opened:
            out = opened.transform(changing_rows(spark, plan.keys, plan.changed))
            run_timed(out, root / "spark", FILLING, plan.epochs, timeout)
    finally:
        spark.stop()
    return weigh(plan, root) if plan.system.startswith("bedload") else {}


def weigh(plan: FillRun, root: Path) -> dict[str, Any]:
    """Bytes written per epoch, beside the size of what changed in it: medians of the epochs after the filling ones."""
    checkpoint, operator, history = open_history(root / "bedload")
    written, changes, ratios = [], [], []
    for turn in history.chain():
        record = history.record(turn)
        if record is None or not FILLING <= record.epoch < FILLING + plan.epochs:
            continue
        files = [paths.turn(operator, turn), *history.segment_paths(turn)]
        written.append(sum(checkpoint.storage.size(path) for path in files))
        changes.append(changed_bytes(plan.system, plan.keys, plan.changed, record.epoch))
        ratios.append(written[-1] / changes[-1])
    if len(written) != plan.epochs:
        raise WrongAnswer(f"the checkpoint has {len(written)} of {plan.epochs} epochs")
    return {
        "bytes_per_epoch": median(written),
        "changed_bytes": median(changes),
        "bytes_vs_changed": median(ratios),
        "most_bytes_vs_changed": max(ratios),
    }
