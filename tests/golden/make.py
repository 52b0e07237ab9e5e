"""Writes the golden checkpoints: ``python -m tests.golden.make tests/golden/v2``.

A golden checkpoint is one of each layout with everything in it: two attachments with a change of the operator between
them, epochs that were run again, a snapshot, patches, keys that went. Beside it is the state at each turn, as the
runtimes had it in memory when they wrote it. ``tests/unit/test_golden_checkpoints.py`` reads them with the code of
today, and has the code of today write them again.

They are made once for a version of the format, by operators of that version. Never write those of a version that was
released again: files like them are out there. A change that needs that is a new version, with a folder of its own.
"""

import dataclasses
import json
import sys
from collections import Counter, deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import compact
from bedload.checkpoint.records import (
    VERSION,
    Claim,
    Format,
    OperatorSchema,
    TurnRecord,
    encode,
    manifest_of,
    pack_owners,
)
from bedload.checkpoint.restore import Restore
from bedload.checkpoint.segments import SegmentMeta, write_segment
from bedload.checkpoint.storage import Storage, open_storage
from bedload.checkpoint.strays import stray_files
from bedload.checkpoint.uniform import uniform
from bedload.core.ids import Epoch, Generation, KeyGroup, QueryId, Turn, WorkerId, make_turn
from bedload.keys import hash_columns, key_groups
from bedload.worker.operator import state_of
from bedload.worker.runtime import Runtime
from bedload.worker.state_schema import state_schema
from tests.golden import operators as version_1
from tests.golden import operators_2 as version_2

QUERY = QueryId("11111111-2222-3333-4444-555555555555")
LAYOUTS = ("rows", "columns")
OPERATORS: dict[int, Any] = {1: version_1, 2: version_2}
"""By the version of the format; whatever of them does not differ is the first one's."""
NAME = version_1.NAME
GROUPS = version_1.GROUPS
OWNERS = [group % 2 for group in range(GROUPS)]


def deployment_of(golden: Any, layout: str, version: int) -> Any:
    return golden.rows_deployment(version) if layout == "rows" else golden.columns_deployment(version)


def schema_of(golden: Any, layout: str, version: int) -> OperatorSchema:
    deployment = deployment_of(golden, layout, version)
    if layout == "rows":
        return state_schema(deployment, ["key"], golden.ROW_KEYS, GROUPS, state_of(deployment.operator))
    return state_schema(deployment, ["id", "site"], golden.COLUMN_KEYS, GROUPS)


def input_of(golden: Any, layout: str, version: int, epoch: list[Any]) -> pa.RecordBatch:
    if layout == "rows":
        rows = pa.RecordBatch.from_pylist([{"key": key, "step": step} for key, step in epoch])
        keys = [rows.column(0)]
    else:
        rows = pa.RecordBatch.from_pylist(epoch, golden.column_input(version))
        keys = [rows.column(0), rows.column(1)]
    groups = key_groups(hash_columns(keys), GROUPS)
    return rows.append_column("bedload_group", pa.array(groups, pa.int16()))


def plain(value: Any) -> Any:
    """A value as JSON that tells it from all others, the order of a dict included."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {type(value).__name__: fields}
    if isinstance(value, dict):
        name = "Counter" if isinstance(value, Counter) else "dict"
        return {name: [[plain(key), plain(item)] for key, item in value.items()]}
    if isinstance(value, deque):
        return {"deque": [plain(item) for item in value], "maxlen": value.maxlen}
    if isinstance(value, tuple):
        return {"tuple": [plain(item) for item in value]}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return {str(value.dtype): value.tolist()}
    if isinstance(value, set):
        return {"set": sorted((plain(item) for item in value), key=json.dumps)}
    return value if value is None or type(value) in (bool, int, str) else {type(value).__name__: repr(value)}


def state_of_runtime(runtime: Runtime) -> list[Any]:
    """All keys and their state, in an order of their own."""
    return sorted(([plain(key), plain(row)] for key, row in runtime.snapshot()), key=lambda pair: json.dumps(pair[0]))


def start(
    golden: Any, layout: str, version: int, checkpoint: Checkpoint | None = None, turn: Turn | None = None
) -> Runtime:
    """A runtime with nothing, or with the state at a turn."""
    runtime: Runtime = deployment_of(golden, layout, version).start(WorkerId(0))
    if checkpoint is None or turn is None:
        runtime.install([KeyGroup(group) for group in range(GROUPS)], None)
        return runtime
    schemas = {schema.number: schema for schema in checkpoint.schemas(NAME)}
    plan = checkpoint.load_history(NAME).restore_plan(turn)
    restore = Restore(checkpoint.storage, NAME, schemas[version], plan, schemas=schemas, threads=1)
    for groups, state in restore.chunks():
        runtime.install([KeyGroup(group) for group in groups], state)
    return runtime


class Maker:
    """Writes one checkpoint."""

    def __init__(self, storage: Storage, golden: Any, layout: str) -> None:
        self.storage, self.golden, self.layout = storage, golden, layout
        storage.write(paths.FORMAT, encode(Format(id="0" * 32, bedload="0.1.0")))
        self.checkpoint = Checkpoint.open(storage)
        self.generation = Generation(0)
        self.head: Turn | None = None
        self.turns = 0
        self.epoch = -1
        self.states: dict[str, Any] = {}

    def attach(self, version: int) -> None:
        """A driver comes, with this version of the operator."""
        self.generation = Generation(self.generation + 1)
        claim = Claim(
            generation=self.generation, token="0" * 32, when=1700000000.0, host="host", pid=1, bedload="0.1.0"
        )
        self.storage.write(paths.generation(self.generation), encode(claim))
        base = version - 1 or None
        schema = msgspec.structs.replace(schema_of(self.golden, self.layout, version), base=base)
        self.schema = self.checkpoint.add_schema(NAME, schema)
        assert self.schema.number == version
        self.runtime = start(self.golden, self.layout, version, self.checkpoint, self.head)

    def run(self, rows: pa.RecordBatch, *, again: bool = False, replayed: bool = False) -> None:
        """One epoch; ``replayed``: Spark will not commit it; ``again``: it is the one before, run again."""
        self.epoch += not again
        self.turns += 1
        turn = make_turn(self.generation, self.turns)
        record = TurnRecord(
            turn=turn,
            parent=self.head,
            generation=self.generation,
            query=QUERY,
            run=f"run {self.generation}",
            epoch=Epoch(self.epoch),
            location="file:/spark",
            schema=self.schema.number,
            owners=pack_owners(OWNERS),
            workers=(WorkerId(0), WorkerId(1)),
            committed={QUERY: Epoch(self.epoch - 1)} if self.epoch else {},
        )
        self.checkpoint.write_turn(NAME, record)
        self.runtime.begin(record.epoch, [KeyGroup(group) for group in range(GROUPS)])
        self.runtime.apply(rows)
        self.runtime.seal()
        delta = self.runtime.delta()
        assert delta is not None
        owner = [OWNERS[group] for group in delta.column("bedload_group").to_pylist()]
        for worker in record.workers:
            mine = delta.filter(pa.array([it == worker for it in owner]))
            meta = SegmentMeta(NAME, turn, worker, record.epoch, QUERY)
            write_segment(self.storage, paths.delta(NAME, turn, worker), mine if mine.num_rows else None, meta)
        if replayed:
            self.runtime.abort()
            self.storage.write(paths.abandoned(NAME, turn), b"")
            return
        self.runtime.commit()
        self.head = turn
        self.states[str(turn)] = {"schema": self.schema.number, "state": state_of_runtime(self.runtime)}
        self.record = record

    def snapshot(self) -> None:
        """Of the head."""
        parts = compact(self.storage, NAME, self.record.turn, target_bytes=600)
        manifest = uniform(self.storage, NAME, self.schema, manifest_of(self.record, self.schema, parts))
        self.checkpoint.write_manifest(NAME, manifest)
        folder = paths.snapshot(NAME, self.record.turn)
        self.storage.delete(stray_files(self.storage, folder, manifest.parts))


def make(folder: Path, golden: Any, layout: str) -> None:
    """Write a checkpoint of this layout and what is to be found in it."""
    maker = Maker(open_storage(str(folder / layout / "checkpoint")), golden, layout)
    epochs: Any = golden.ROW_EPOCHS if layout == "rows" else golden.COLUMN_EPOCHS
    for version, all_epochs in epochs.items():
        maker.attach(version)
        for number, epoch in enumerate(all_epochs):
            rows = input_of(golden, layout, version, epoch)
            if number == 1:
                maker.run(rows, replayed=True)
            maker.run(rows, again=number == 1)
            if (version, number) == (1, 1):
                maker.snapshot()
    expected = {"head": str(maker.head), "turns": maker.states}
    (folder / layout / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if target.exists():
        raise SystemExit(f"{target} is there: golden files are written once")
    for one in LAYOUTS:
        make(target, OPERATORS[VERSION], one)
