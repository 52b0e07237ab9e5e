"""Both operators of the fault tests with a checkpoint and Spark's own file sink, until enough epochs are in it.

Started again after whatever ended it, with the same or with other workers, it goes on where it was.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

import bedload as bl
from bedload.transport import parse_address
from tests.spark import tally
from tests.spark.apps import eventually, say
from tests.spark.apps.beside import NAMES, Beside, sink_of
from tests.spark.apps.restless import Restless
from tests.spark.apps.session import session
from tests.spark.tally import KINDS, applied, file_sink, states, stream


@dataclasses.dataclass
class Settings:
    """What an application is told, as JSON."""

    folder: str
    """Of the checkpoints and the sinks: what is to outlive an application."""
    epochs: int = 10
    """The application ends when so many are in both sinks."""
    workers: int = 2
    host: str | None = None
    master: str = "local[4]"
    checkpoint: str = ""
    """A URL; a folder beside the sinks unless given."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    gate: int = -1
    """In this epoch the input waits until the file ``go`` is there, after it gave a part of its rows."""
    trigger: str = "100 milliseconds"
    spark: dict[str, str] = dataclasses.field(default_factory=dict)
    storage_at: str = ""
    """A folder to import the filesystem of the checkpoint from."""
    moves: int | None = None
    """A seed: state is moved about all the time, as it has it."""
    most: int = 4
    """With moves: there are never more workers than that."""
    silent_seconds: float = 60.0
    """After so long a worker that hangs is given up."""
    beside: str = ""
    """The input of a third query (see :mod:`tests.spark.apps.beside`), if there is one."""
    seed: int = 0
    """Of what the third query does."""


def gated(df: DataFrame, epoch: int, folder: Path) -> DataFrame:
    """The input, with a gate in one epoch."""
    go, waiting = str(folder / "go"), str(folder / "waiting")

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        closed = task.getLocalProperty("streaming.sql.batchId") == str(epoch)
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if closed:
                Path(f"{waiting}-{task.partitionId()}-{os.getpid()}").touch()
            while closed and not Path(go).exists():
                time.sleep(0.05)
            yield batch.slice(half)

    return df.mapInArrow(wait, df.schema)


def main(folder: Path, settings: Settings) -> None:
    """Run the application."""
    if settings.storage_at:
        from tests.spark.faulty_store import register

        register()
        sys.path.insert(0, settings.storage_at)
    # Executors do not have the tests: operators go there with their code.
    cloudpickle.register_pickle_by_value(tally)
    kept = Path(settings.folder)
    spark = session(settings.master, folder, **settings.spark)
    cluster = bl.attach(
        spark,
        workers=settings.workers,
        host=settings.host,
        checkpoint=settings.checkpoint or (kept / "bedload").as_uri(),
        storage_options=settings.options,
        silent_seconds=settings.silent_seconds,
    )
    jvm = [child.pid for child in psutil.Process().children() if child.name() == "java"]
    say("attached", workers=cluster.workers, jvm=jvm)
    df = stream(spark)
    df = df if settings.gate < 0 else gated(df, settings.gate, kept)
    runs = {}
    for kind in KINDS:
        writer = applied(cluster, df, kind).writeStream.format("parquet").trigger(processingTime=settings.trigger)
        place = writer.option("path", str(kept / f"sink-{kind}"))
        runs[kind] = cluster.run(place.option("checkpointLocation", str(kept / f"spark-{kind}")), first_pause=0.2)
    beside = Beside(cluster, spark, kept, settings.beside, settings.seed) if settings.beside else None
    names = [*KINDS, *(NAMES if beside is not None else ())]
    say("running", workers=cluster.workers, jvm=jvm, port=parse_address(cluster._driver.address)[1])
    restart = settings.host == "process"
    restless = None if settings.moves is None else Restless(cluster, settings.moves, settings.most, restart, names)
    told: Any = None
    while True:
        for kind, run in (runs if beside is None else {**runs, "beside": beside}).items():
            if (error := run.exception()) is not None:
                say("failed", kind=kind, error=str(error), down=_down(cluster))
                # SUBTLE: a Spark session with a task that waits at the gate would not end by itself.
                os._exit(1)
        done = {kind: max(cluster.committed(kind).values(), default=-1) for kind in names}
        news = {"epochs": done, "workers": cluster.workers, "restarts": [run.restarts for run in runs.values()]}
        if news != told:
            told = news
            say("epoch", **news, restoring=cluster.restoring())
        if all(done[kind] + 1 >= (settings.epochs if kind in KINDS else 1) for kind in names):
            break
        time.sleep(0.05)
    if restless is not None:
        restless.stop()
    for run in runs.values():
        run.stop()
    found = {kind: settled(cluster, kind, kind, file_sink(kept / f"sink-{kind}")) for kind in KINDS}
    if beside is not None:
        beside.stop()
        found |= {name: settled(cluster, kind, name, sink_of(kept)) for name, kind in NAMES.items()}
    moved = [] if restless is None else restless.done
    say("done", states=found, restarts=[run.restarts for run in runs.values()], moved=moved)
    cluster.stop()
    spark.stop()


def settled(cluster: bl.Cluster, kind: str, name: str, sink: dict[int, list[tuple[Any, ...]]]) -> Any:
    """The states, when the news of the last commit have come; ``sink``: what is in it, by epoch."""
    last = max(sink)
    # The last epoch in the sink may be one that Spark did not commit before the stop; and one without rows may have had
    # no task, so that the state is as of the one before it.
    first = max((epoch for epoch, rows in sink.items() if rows and epoch < last), default=last)
    found: Any = None

    def same() -> bool:
        nonlocal found
        found = states(cluster, kind, name)
        return all(first <= epoch <= last for epoch, _ in found.values())

    eventually(same, f"the state of {name} is as of an epoch from {first} to {last}")
    return found


def _down(cluster: bl.Cluster) -> str:
    try:
        cluster.state("rows")
    except bl.errors.BedloadError as error:
        return f"{type(error).__name__}: {error.message}"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), Settings(**json.loads(sys.argv[2])))
