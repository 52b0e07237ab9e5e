"""Checkpoints for the tests of the data source: with records, and made by a real operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import bedload as bl
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import compact
from bedload.checkpoint.records import OperatorSchema, TurnRecord, manifest_of
from bedload.checkpoint.storage import open_storage
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.keys import hash_columns, key_groups
from bedload.worker.operator import state_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.state_schema import state_schema
from tests.checkpoint_states import ME, OPERATOR, Writer, collect_garbage

GROUPS = 8


class Recorded(Writer):
    """Writes turns with their records, into a checkpoint."""

    def __init__(self, folder: Path, schema: OperatorSchema) -> None:
        storage = open_storage(str(folder))
        self.checkpoint = Checkpoint.open(storage, ME)
        super().__init__(storage, self.checkpoint.add_schema(OPERATOR, schema))

    def turn(self, changed: pa.RecordBatch) -> TurnRecord:
        record = super().turn(changed)
        self.checkpoint.write_turn(OPERATOR, record)
        return record

    def snapshot(self, number: int) -> None:
        record = self.records[number]
        parts = compact(self.storage, OPERATOR, record.turn)
        self.checkpoint.write_manifest(OPERATOR, manifest_of(record, self.schema, parts))

    def collect(self, retain: int) -> None:
        self.checkpoint.claim()
        collect_garbage(self.checkpoint, OPERATOR, self.checkpoint.load_history(OPERATOR), retain)


class Basket(bl.Operator):
    """What a customer put in: a negative item ends the customer."""

    n: int = bl.value(0)
    items: dict[int, int] = bl.map()
    recent: list[int] = bl.list(maxlen=3)

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            if row.item < 0:
                ctx.forget()
                return
            self.n += 1
            self.items[row.item] = self.items.get(row.item, 0) + 1
            self.recent.append(row.item)


class Baskets:
    """A checkpoint that a :class:`Basket` wrote, and the states that it had after each epoch."""

    def __init__(self, folder: Path) -> None:
        self.deployment = Deployment(
            OPERATOR, Basket, (0,), ("customer", "item"), pa.schema([("x", pa.int64())]), (pa.int64(),)
        )
        schema = state_schema(self.deployment, ["customer"], [pa.int64()], GROUPS, state_of(Basket))
        self.writer = Recorded(folder, schema)
        self.runtime = self.deployment.start(WorkerId(0))
        self.states: list[dict[int, dict[str, Any]]] = []
        self.changed: list[set[int]] = []

    def epoch(self, rows: list[tuple[int, int]]) -> None:
        self.runtime.begin(Epoch(len(self.states)), [KeyGroup(group) for group in range(GROUPS)])
        if rows:
            customers = pa.array([customer for customer, _ in rows], pa.int64())
            items = pa.array([item for _, item in rows], pa.int64())
            groups = pa.array(key_groups(hash_columns([customers]), GROUPS), pa.int16())
            self.runtime.apply(pa.RecordBatch.from_arrays([customers, items, groups], ["customer", "item", "group"]))
        self.runtime.seal()
        delta = self.runtime.delta()
        self.runtime.commit()
        self.changed.append(set() if delta is None else set(delta.column("bedload_key_0").to_pylist()))
        if delta is None:
            delta = pa.RecordBatch.from_pylist([], pa.schema([("bedload_group", pa.int16())]))
        self.writer.turn(delta)
        plain = {key: {name: _plain(value) for name, value in state.items()} for key, state in self.runtime.snapshot()}
        self.states.append(plain)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
