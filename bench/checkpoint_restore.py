"""Reading a million counts back: from a snapshot, and from a snapshot with deltas after it.

Invariants:
- The files are those that workers write: segments from a runtime's own deltas, the snapshot by compaction.
- What is read back has every key, and its counts add up, or it is not timed.
- Reads take turns with pyarrow's plain read of the same Parquet files. All of them find the files in the page cache.

Why: a restore cannot be faster than reading the files. What it takes longer goes into checksums, into merging, and
then into the runtime's own tables and objects.
"""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import bedload as bl
from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.claimant import this_process
from bedload.checkpoint.compaction import compact
from bedload.checkpoint.records import TurnRecord, manifest_of, pack_owners
from bedload.checkpoint.restore import Restore
from bedload.checkpoint.segments import SegmentMeta, write_segment
from bedload.checkpoint.storage import open_storage
from bedload.core.clock import SystemClock
from bedload.core.ids import Epoch, Generation, KeyGroup, OperatorName, QueryId, Turn, WorkerId, make_turn
from bedload.keys import DEFAULT_KEY_GROUPS, hash_columns, key_groups
from bedload.operators.aggregates import Aggregates
from bedload.protocol.split import GROUP_COLUMN
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.row_runtime import Deployment
from bedload.worker.runtime import Runtime, Startable
from bedload.worker.state_schema import state_schema
from bench.counter_bedload import WORKERS, Count
from bench.isolate import WrongAnswer

NAME = OperatorName("count")
QUERY = QueryId("query")
LAYOUTS = ("columns", "rows")
DELTAS = 20
CHANGED = 0.01
SEED = 7


@dataclass(frozen=True)
class RestoreRun:
    """One measurement."""

    layout: str
    keys: int
    deltas: int
    repeats: int

    @property
    def params(self) -> dict[str, Any]:
        """What identifies it in the report."""
        return {"part": "restore", "layout": self.layout, "keys": self.keys, "deltas": self.deltas}


def deployment_of(layout: str) -> Startable:
    """The running count in a layout."""
    key = pa.schema([("key", pa.int64())])
    if layout == "columns":
        logic = Aggregates({"n": bl.agg.count()}, key, (0,), ["key"])
        return ColumnDeployment(NAME, logic, (0,), (pa.int64(),), DEFAULT_KEY_GROUPS)
    output = key.append(pa.field("n", pa.int64()))
    return Deployment(NAME, Count, (0,), ("key",), output, (pa.int64(),))


class Written:
    """A checkpoint of some turns, written as two workers would."""

    def __init__(self, root: Path, layout: str) -> None:
        self.deployment = deployment_of(layout)
        self._checkpoint = Checkpoint.open(open_storage(root.as_uri()), this_process(SystemClock()))
        self._generation: Generation = self._checkpoint.claim()
        wanted = state_schema(self.deployment, ["key"], [pa.int64()], DEFAULT_KEY_GROUPS)
        self.schema = self._checkpoint.add_schema(NAME, wanted)
        self.storage = self._checkpoint.storage
        halves = np.array_split(np.arange(DEFAULT_KEY_GROUPS), WORKERS)
        self._groups = {WorkerId(i): [KeyGroup(g) for g in half.tolist()] for i, half in enumerate(halves)}
        self._runtimes = {worker: self.deployment.start(worker) for worker in self._groups}
        self._records: list[TurnRecord] = []
        self.rows = 0

    def epoch(self, keys: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
        """One epoch with a row for each of these keys."""
        number = len(self._records)
        turn: Turn = make_turn(self._generation, number + 1)
        groups = key_groups(hash_columns([pa.array(keys)]), DEFAULT_KEY_GROUPS)
        record = self._record(turn, Epoch(number))
        self._checkpoint.write_turn(NAME, record)
        self._records.append(record)
        for worker, runtime in self._runtimes.items():
            own = np.isin(groups, self._groups[worker])
            delta = _count(runtime, Epoch(number), self._groups[worker], keys[own], groups[own])
            meta = SegmentMeta(NAME, turn, worker, number, QUERY)
            write_segment(self.storage, paths.delta(NAME, turn, worker), delta, meta)
            runtime.commit()
        self.rows += len(keys)

    def snapshot(self) -> None:
        """Compact what there is."""
        record = self._records[-1]
        parts = [part for groups in self._groups.values() for part in compact(self.storage, NAME, record.turn, groups)]
        self._checkpoint.write_manifest(NAME, manifest_of(record, self.schema, parts))

    def restore(self) -> tuple[Restore, list[str]]:
        """How to read the last epoch's state, and the Parquet files that takes."""
        plan = self._checkpoint.load_history(NAME).restore_plan(self._records[-1].turn)
        assert plan.snapshot is not None
        folder = f"{self.storage.url.removeprefix('file://')}/{paths.snapshot(NAME, plan.snapshot.turn)}"
        files = [f"{folder}/{file.path}" for part in plan.snapshot.parts for file in part.files.values()]
        return Restore(self.storage, NAME, self.schema, plan), files

    @property
    def file_bytes(self) -> int:
        """The size of the files that a restore reads: the first epoch's segments are in the snapshot."""
        history = self._checkpoint.load_history(NAME)
        plan = history.restore_plan(history.head)
        snapshot = 0 if plan.snapshot is None else plan.snapshot.bytes
        return snapshot + sum(history.delta_bytes(record.turn) for record in plan.deltas)

    def _record(self, turn: Turn, epoch: Epoch) -> TurnRecord:
        parent = self._records[-1] if self._records else None
        return TurnRecord(
            turn=turn,
            parent=None if parent is None else parent.turn,
            generation=self._generation,
            query=QUERY,
            run="run",
            epoch=epoch,
            location="",
            schema=self.schema.number,
            owners=pack_owners(worker for worker, groups in self._groups.items() for _ in groups),
            workers=tuple(self._groups),
            committed={} if parent is None else parent.last_epochs,
        )


def _count(runtime: Runtime, epoch: Epoch, groups: list[KeyGroup], keys: Any, of_keys: Any) -> pa.RecordBatch | None:
    runtime.begin(epoch, groups)
    runtime.apply(pa.RecordBatch.from_arrays([pa.array(keys), pa.array(of_keys, pa.int16())], ["key", GROUP_COLUMN]))
    runtime.seal()
    return runtime.delta()


def measure(run: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Write the state, then read it back in each way: the entry point of the isolated process."""
    plan, root = RestoreRun(**run), Path(workdir)
    written, chance = Written(root, plan.layout), np.random.default_rng(SEED)
    # Each key once and some more often: counts that are all the same would hardly take room in the files.
    written.epoch(np.concatenate([chance.permutation(plan.keys), chance.integers(0, plan.keys, plan.keys)]))
    written.snapshot()
    for _ in range(plan.deltas):
        written.epoch(chance.choice(plan.keys, int(plan.keys * CHANGED), replace=False))
    restore, files = written.restore()
    state = restore.table()
    _check(state, plan.keys, written)
    ways: dict[str, Callable[[], Any]] = {
        "raw": lambda: [pq.ParquetFile(file).read() for file in files],
        "restore": lambda: _drain(restore),
        "install": lambda: _install(restore, written.deployment),
    }
    taken = {name: median(times) for name, times in _timed(ways, plan.repeats).items()}
    figures = {f"{name}_keys_per_s": plan.keys / seconds for name, seconds in taken.items()}
    sizes = {"files_mb": written.file_bytes / 1e6, "restore_mb_per_s": state.nbytes / 1e6 / taken["restore"]}
    return {**figures, **sizes}


def _timed(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for again in range(repeats + 1):
        for name, way in ways.items():
            gc.collect()
            began = time.perf_counter()
            kept = way()
            seconds = time.perf_counter() - began
            del kept
            if again:  # the first one loads code and fills caches
                taken[name].append(seconds)
    return taken


def _check(table: pa.Table, keys: int, written: Written) -> None:
    (variable,) = written.schema.variables
    total = pc.sum(table.column(variable.name)).as_py()
    if table.num_rows != keys or total != written.rows:
        raise WrongAnswer(f"{table.num_rows:,} keys, {total:,} counted, instead of {keys:,} and {written.rows:,}")


def _drain(restore: Restore) -> int:
    return sum(batch.num_rows for _, batch in restore.chunks())


def _install(restore: Restore, deployment: Startable) -> Runtime:
    runtime = deployment.start(WorkerId(0))
    for groups, batch in _chunks(restore):
        runtime.install(groups, batch)
    return runtime


def _chunks(restore: Restore) -> Iterator[tuple[list[KeyGroup], pa.RecordBatch]]:
    for groups, batch in restore.chunks():
        yield [KeyGroup(group) for group in groups], batch
