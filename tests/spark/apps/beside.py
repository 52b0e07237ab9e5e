"""A third query beside the two of the fault tests: everything about it is awkward.

Two operators one after the other in one plan; epochs without rows, and without partitions; a sink that fails after it
has consumed a batch, or after it has written it, and looks at a batch twice; and the query is stopped and started
again now and then. What must come out follows from the number of the epoch, as with the others.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from bedload.spark.supervisor import Supervised
from tests.simulator.chance import Chance
from tests.spark.apps import say
from tests.spark.tally import KEYS, ROWS, applied, check_epochs, check_states, is_empty, stream

FIRST, SECOND = "beside-rows", "beside-columns"
NAMES = {FIRST: "rows", SECOND: "columns"}
"""Its operators, and which of the two kinds each is."""
INPUTS = ("files", "shuffled")
_FILES = 300
"""More than a soak's round gets to."""


class Beside:
    """The query, until it is told to stop."""

    def __init__(self, cluster: bl.Cluster, spark: SparkSession, kept: Path, source: str, seed: int) -> None:
        self._cluster = cluster
        self._chance = Chance(f"beside {seed}")
        self._sink = kept / "sink-beside"
        self._sink.mkdir(exist_ok=True)
        self._place = str(kept / "spark-beside")
        df = _files(spark, kept / "input") if source == "files" else _shuffled(spark)
        rows = applied(cluster, df, "rows", FIRST).selectExpr("key", "value")
        self._out = applied(cluster, rows, "columns", SECOND)
        self._run = self._start()
        self._ended: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._restart_now_and_then, daemon=True)
        self._thread.start()

    def exception(self) -> BaseException | None:
        """Why it ended, if it did so by itself."""
        return self._ended or self._run.exception()

    def stop(self) -> None:
        """Stop it for good."""
        self._over.set()
        self._thread.join()
        self._run.stop()

    def _start(self) -> Supervised:
        writer = self._out.writeStream.foreachBatch(self._write).option("checkpointLocation", self._place)
        writer = writer.trigger(processingTime="100 milliseconds")
        return self._cluster.run(writer, first_pause=0.2, longest_pause=1.0, restarts=1_000_000)

    def _restart_now_and_then(self) -> None:
        try:
            before = self._in_sink
            while not self._over.wait(self._chance.number(3_000, 12_000) / 1000):
                if self._in_sink == before:
                    continue  # on a slow machine an epoch takes longer, and would never come to its end
                self._run.stop()
                say("beside", did="stopped")
                before = self._in_sink
                self._run = self._start()
                say("beside", did="started")
        except BaseException as error:
            self._ended = error

    @property
    def _in_sink(self) -> int:
        return len(list(self._sink.glob("*.json")))

    def _write(self, batch: DataFrame, epoch: int) -> None:
        rows = sorted(list(row) for row in batch.collect())
        if self._chance.happens(0.15):
            say("beside", did=f"the sink fails after the seal of epoch {epoch}")
            raise RuntimeError("the sink fails just after the seal")
        path = self._sink / f"{epoch}.json"
        if self._chance.happens(0.2):
            _same(path, rows, sorted(list(row) for row in batch.collect()), "a second action")
        if path.exists():
            _same(path, json.loads(path.read_text()), rows, "a replay")
        part = path.with_suffix(".part")
        part.write_text(json.dumps(rows))
        part.replace(path)
        if self._chance.happens(0.1):
            say("beside", did=f"the sink fails after it wrote epoch {epoch}")
            raise RuntimeError("the sink fails after it wrote")


def _same(path: Path, before: list[Any], after: list[Any], what: str) -> None:
    # Not by an exception: whoever keeps the query running would only start it again.
    if before != after:
        path.with_suffix(".wrong").write_text(json.dumps({"what": what, "before": before, "after": after}))


def _shuffled(spark: SparkSession) -> DataFrame:
    """Epochs without rows behind a shuffle: how many partitions there are is planned when it is seen how few rows."""
    return stream(spark).where(f"(value div {ROWS}) % 3 != 1").repartition("key")


def _files(spark: SparkSession, folder: Path) -> DataFrame:
    """A file an epoch. Spark plans no partition for an empty one."""
    if not folder.exists():
        part = folder.with_suffix(".part")
        part.mkdir(exist_ok=True)
        for epoch in range(_FILES):
            values = [] if is_empty(epoch) else range(epoch * ROWS, (epoch + 1) * ROWS)
            path = part / f"{epoch:05}.json"
            path.write_text("".join(f'{{"key": {value % KEYS}, "value": {value}}}\n' for value in values))
            os.utime(path, (1_700_000_000 + epoch, 1_700_000_000 + epoch))  # Spark takes the oldest first
        part.rename(folder)
    reader = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1)
    return reader.option("maxFileAge", "10000d").json(str(folder))


# --- what must have come out ---


def sink_of(kept: Path) -> dict[int, list[tuple[Any, ...]]]:
    """What is in its sink, by epoch."""
    found = {int(path.stem): path for path in (kept / "sink-beside").glob("*.json")}
    return {epoch: [tuple(row) for row in json.loads(path.read_text())] for epoch, path in found.items()}


def check_beside(kept: Path) -> int:
    """All in its sink is right; how many epochs that is."""
    wrong = list((kept / "sink-beside").glob("*.wrong"))
    assert not wrong, f"an epoch did not give the same again: {wrong[0].read_text()[:2000]}"
    epochs = sink_of(kept)
    check_epochs("columns", epochs, 0, gaps=True)
    return len(epochs)


def check_beside_states(kept: Path, states: Mapping[str, Mapping[str, Any]]) -> None:
    """The states of both of its operators are as of the last epoch in its sink, or the one before."""
    there = check_beside(kept)
    for name, kind in NAMES.items():
        found = {int(key): state for key, state in states[name].items()}
        epoch = check_states(kind, found, gaps=True)
        assert epoch in (there - 1, there - 2), f"{name} is at epoch {epoch}, its sink has {there} epochs"
