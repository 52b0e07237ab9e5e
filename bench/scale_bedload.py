"""One state of Bedload, from its first key to its restore: the entry point of an isolated run.

    fill - snapshot, nothing else running - steady epochs - rescale from 2 to 4 workers beside them - snapshot beside
    them - stop - snapshot of what changed since - restore - epochs upon it - oracle

Invariants:
- Only what a user can call is used.
- The oracle comes last, so it speaks of all that went before: fill, move, snapshots, restore.
- Memory is what the workers have for themselves, without pages that they share.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import bedload as bl
from bench.counter_bedload import SCHEMA, Count
from bench.isolate import WrongAnswer
from bench.scale_measure import during, keys_at, move_figures, restore_figures, stream_figures, worker_figures
from bench.scale_plan import COLUMNS, ROWS_PER_EPOCH, Case, Timing
from bench.scale_run import CONF, Cores, beats, check, last_batch, load, say, wall
from bench.spark_run import make_session, wait_for_batch

WORKERS, WORKERS_AFTER = 2, 4
KEY_GROUPS = 256
NAME = "counts"
AFTER_EPOCHS = 2
"""Epochs that are waited for when something is over, so that the one in which it ended is committed."""
RAW_READS = 3
POLL_SECONDS = 0.01


def measure(case: Mapping[str, Any], timing: Mapping[str, Any], workdir: str) -> dict[str, Any]:
    """Measure one case."""
    run = _Run(Case(**case), Timing(**timing), Path(workdir))
    try:
        with run.attached() as cluster:
            run.fill(cluster)
            run.steady_and_move(cluster)
        with run.attached() as cluster:
            run.restore(cluster)
        run.check()
    finally:
        run.spark.stop()
    return run.figures


class _Run:
    def __init__(self, case: Case, timing: Timing, root: Path) -> None:
        self.spark: SparkSession = make_session("scale-bedload", CONF, root)
        self.spark.sparkContext.setLogLevel("ERROR")
        self.figures: dict[str, float] = {}
        self._case, self._timing, self._root = case, timing, root
        self._checkpoint = root / "bedload"
        self._last = -1

    def attached(self) -> bl.Cluster:
        return bl.attach(self.spark, workers=WORKERS, checkpoint=self._checkpoint.as_uri(), key_groups=KEY_GROUPS)

    def _apply(self, cluster: bl.Cluster) -> DataFrame:
        rows = load(self.spark, self._case)
        if self._case.system == COLUMNS:
            return cluster.aggregate(rows, key="key", name=NAME, n=bl.agg.count())
        return cluster.apply(rows, key="key", operator=Count, schema=SCHEMA, name=NAME)

    def _start(self, out: DataFrame) -> StreamingQuery:
        writer = out.writeStream.format("noop").outputMode("update")
        return writer.option("checkpointLocation", str(self._root / "spark")).start()

    def _wait(self, query: StreamingQuery, batch: int) -> None:
        wait_for_batch(query, batch, self._timing.timeout_s)

    def fill(self, cluster: bl.Cluster) -> None:
        """Every key once; then a snapshot with nothing beside it."""
        case, began = self._case, time.monotonic()
        self._out = self._apply(cluster)
        query = self._start(self._out)
        try:
            for epoch in range(case.fill_epochs):
                self._wait(query, epoch)
                say(f"filled by {epoch + 1} of {case.fill_epochs} epochs")
            self.figures["fill_s"] = time.monotonic() - began
            # What the large epochs held is given back in those of the usual size.
            self._wait(query, case.fill_epochs + 1)
        finally:
            query.stop()
        say("snapshot, idle")
        began = time.monotonic()
        cluster.checkpoint(timeout=self._timing.timeout_s)
        self.figures["snapshot_s"] = time.monotonic() - began

    def steady_and_move(self, cluster: bl.Cluster) -> None:
        """Epochs without anything beside them, with a move, and with a snapshot."""
        query = self._start(self._out)
        try:
            self._wait(query, last_batch(query) + 1)
            first = last_batch(query) + self._timing.settle
            self._wait(query, first)
            say("steady epochs")
            cores = Cores()
            self._wait(query, first + self._timing.steady)
            steady = [beat for beat in beats(query) if first < beat.batch <= first + self._timing.steady]
            rows = ROWS_PER_EPOCH * (last_batch(query) - first)
            self.figures |= stream_figures(steady, ROWS_PER_EPOCH)
            self.figures["cpu_us_per_row"] = cores.own_seconds() / rows * 1e6
            # The cluster hears of a commit a moment after Spark has told of it.
            self._wait(query, last_batch(query) + 1)
            self.figures |= worker_figures(cluster.epochs(), [beat.batch for beat in steady])
            self.figures["workers_mb"] = _own_memory(cluster) / 1e6
            say("rescale from 2 to 4 workers")
            requested = wall()
            cluster.rescale(WORKERS_AFTER).wait(self._timing.timeout_s)
            ended = wall()
            self._wait(query, last_batch(query) + AFTER_EPOCHS)
            moving = during(beats(query), requested, ended)
            (move,) = [row for row in cluster.history() if row["operator"] == NAME]
            self.figures |= move_figures(move, steady, moving)
            self.figures["others_cores"] = cores.others()
            say("snapshot beside the query")
            began, since = time.monotonic(), wall()
            cluster.checkpoint(timeout=self._timing.timeout_s)
            self.figures["snapshot_beside_s"] = time.monotonic() - began
            until = wall()
            self._wait(query, last_batch(query) + AFTER_EPOCHS)
            longest = max(beat.seconds for beat in during(beats(query), since, until))
            self.figures["snapshot_epoch_ms_longest"] = longest * 1000
        finally:
            query.stop()
        say("snapshot of what little changed since, idle")
        began = time.monotonic()
        cluster.checkpoint(timeout=self._timing.timeout_s)
        self.figures["snapshot_again_s"] = time.monotonic() - began

    def restore(self, cluster: bl.Cluster) -> None:
        """All state read back by new workers, and epochs upon it."""
        say("restore")
        began = time.monotonic()
        out = self._apply(cluster)
        read = self._wait_until_restored(cluster, began + self._timing.timeout_s)
        seconds = time.monotonic() - began
        self.figures |= restore_figures(seconds, read, *_raw_read(self._checkpoint))
        began = time.monotonic()
        query = self._start(out)
        try:
            self._wait(query, last_batch(query) + 1)
            self.figures["first_epoch_s"] = time.monotonic() - began
            seen = last_batch(query)
            self._wait(query, seen + AFTER_EPOCHS)
            keys = keys_at(cluster.epochs(), seen)
        finally:
            query.stop()
        self._last = last_batch(query)
        if keys != self._case.keys:
            raise WrongAnswer(f"{keys} keys after the restore instead of {self._case.keys}")

    def _wait_until_restored(self, cluster: bl.Cluster, deadline: float) -> int:
        while True:
            said = [row for row in cluster.restoring() if row["operator"] == NAME]
            read, keys = (sum(row[name] for row in said) for name in ("read", "keys"))
            if (read, keys) == (KEY_GROUPS, self._case.keys) and not any(row["left"] for row in said):
                return sum(row["bytes"] for row in said)
            if time.monotonic() > deadline:
                raise TimeoutError(f"not restored after {self._timing.timeout_s:.0f} s: {said}")
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """The oracle."""
        say("oracle")
        variable = "count()" if self._case.system == COLUMNS else "n"
        table = self.spark.read.format("bedload").option("stateVarName", variable).option("batchId", self._last)
        state = table.load(self._checkpoint.as_uri())
        column = variable if variable in state.columns else "value"
        key = "key" if "key" in state.columns else "key.key"
        check(self.spark, self._case, self._last, state.selectExpr(f"{key} AS key", f"`{column}` AS n"))


def _own_memory(cluster: bl.Cluster) -> int:
    return sum(int(psutil.Process(pid).memory_full_info().uss) for pid in cluster.workers.values())


def _raw_read(checkpoint: Path) -> tuple[int, float]:
    """The bytes of the newest snapshot's files, and how long pyarrow takes to read them."""
    newest = max((checkpoint / "operators" / NAME / "snapshots").iterdir(), key=lambda folder: folder.name)
    files = sorted(newest.rglob("*.parquet"))
    taken = []
    for _ in range(RAW_READS):
        began = time.monotonic()
        for file in files:
            pq.read_table(file)
        taken.append(time.monotonic() - began)
    return sum(file.stat().st_size for file in files), median(taken)
