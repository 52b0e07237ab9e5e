"""States, deltas and histories for the tests of checkpoints, from plain Python values."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.claimant import this_process
from bedload.checkpoint.evolution import Evolution
from bedload.checkpoint.forms import StateForm, select
from bedload.checkpoint.history import Garbage, History, Plan
from bedload.checkpoint.merge import check_delta, merge_checked
from bedload.checkpoint.records import (
    OperatorSchema,
    SnapshotPart,
    TurnRecord,
    Variable,
    pack_owners,
    pack_schema,
)
from bedload.checkpoint.segments import SegmentMeta, decode_segment, write_segment
from bedload.checkpoint.snapshots import PartReader
from bedload.checkpoint.storage import Storage
from bedload.core.clock import SystemClock
from bedload.core.ids import Epoch, Generation, OperatorName, QueryId, Turn, WorkerId, make_turn
from bedload.keys import hash_columns, key_groups
from bedload.store.deltas import GROUP, OP, PATCHES, PUT, REMOVE, key_column

OPERATOR = OperatorName("Trip")
QUERY = QueryId("query")
ME = this_process(SystemClock())


def schema_of(
    keys: Mapping[str, pa.DataType], variables: Mapping[str, pa.DataType], groups: int = 8, kind: Any = "column"
) -> OperatorSchema:
    return OperatorSchema(
        number=1,
        layout="columns",
        key_names=tuple(keys),
        key_types=pack_schema(pa.schema(list(keys.items()))),
        key_groups=groups,
        variables=tuple(
            Variable(name=name, type=str(of), arrow=pack_schema(pa.schema([(name, of)])), kind=kind)
            for name, of in variables.items()
        ),
    )


COUNTS = schema_of({"car": pa.int64()}, {"n": pa.int64()})


def _keys(schema: OperatorSchema, keys: Sequence[Any]) -> list[pa.Array]:
    types = schema.keys.types
    parts: Any = [keys] if len(types) == 1 else list(zip(*keys, strict=True)) or [()] * len(types)
    return [pa.array(list(part), kind) for part, kind in zip(parts, types, strict=True)]


def groups_of_keys(schema: OperatorSchema, keys: Sequence[Any]) -> list[int]:
    return key_groups(hash_columns(_keys(schema, keys)), schema.key_groups).tolist() if keys else []


def _batch(schema: OperatorSchema, keys: Sequence[Any], rows: Sequence[Mapping[str, Any]], more: Any) -> pa.RecordBatch:
    groups = pa.array(groups_of_keys(schema, keys), pa.int16())
    columns = {GROUP: groups} | more
    columns |= {key_column(i): key for i, key in enumerate(_keys(schema, keys))}
    for variable in schema.variables:
        columns[variable.name] = pa.array([row.get(variable.name) for row in rows], variable.field.type)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return batch.take(pa.array(np.argsort(groups.to_numpy(), kind="stable")))


def state(schema: OperatorSchema, rows: Mapping[Any, Mapping[str, Any]]) -> pa.RecordBatch:
    return _batch(schema, list(rows), list(rows.values()), {})


def delta(
    schema: OperatorSchema,
    put: Mapping[Any, Mapping[str, Any]] | None = None,
    removed: Sequence[Any] = (),
    patched: Mapping[Any, tuple[bytes, Mapping[str, Any]]] | None = None,
) -> pa.RecordBatch:
    put, patched = put or {}, patched or {}
    keys = [*put, *removed, *patched]
    rows = [*put.values(), *({} for _ in removed), *(row for _, row in patched.values())]
    ops = [PUT] * len(put) + [REMOVE] * len(removed) + [1] * len(patched)
    more = {OP: pa.array(ops, pa.int8())}
    if patched:
        cells = [None] * (len(put) + len(removed)) + [patch for patch, _ in patched.values()]
        more[PATCHES] = pa.array(cells, pa.binary())
    return _batch(schema, keys, rows, more)


def merge(
    schema: OperatorSchema,
    state: pa.Table | pa.RecordBatch | None,
    deltas: Sequence[pa.RecordBatch],
    groups: Sequence[int] | None = None,
    *,
    variables: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """The state after these deltas, as a restore makes it: each is checked, and cut to the key groups asked for."""
    form = StateForm.of(schema, variables)
    base = form.empty() if state is None else state
    if isinstance(base, pa.Table):
        (base,) = base.combine_chunks().to_batches() or [form.empty()]
    form.check(base, where="a state")
    for one in deltas:
        check_delta(form, one, "a delta")
    if groups is not None:
        base = select(base, groups, form.key_groups)
        deltas = [select(one, groups, form.key_groups) for one in deltas]
    return merge_checked(form, base.select(form.schema.names), deltas)


def rows_of(batch: pa.RecordBatch | pa.Table, keys: int = 1) -> dict[Any, dict[str, Any]]:
    """Key to variables; fails if a key is there twice or the groups are not in order."""
    found: dict[Any, dict[str, Any]] = {}
    groups = batch.column(GROUP).to_pylist()
    assert groups == sorted(groups)
    for row in batch.to_pylist():
        row.pop(GROUP)
        key = tuple(row.pop(key_column(i)) for i in range(keys))
        key = key[0] if keys == 1 else key
        assert key not in found, f"{key} is there twice"
        found[key] = row
    return found


class Writer:
    """Writes turns of one operator, as two workers would that share the key groups in turns."""

    def __init__(
        self, storage: Storage, schema: OperatorSchema, workers: int = 2, operator: OperatorName = OPERATOR
    ) -> None:
        self.storage, self.schema, self.operator = storage, schema, operator
        self.owners = [group % workers for group in range(schema.key_groups)]
        self.workers = workers
        self.records: list[TurnRecord] = []

    def turn(self, changed: pa.RecordBatch) -> TurnRecord:
        number = make_turn(Generation(1), len(self.records) + 1)
        record = TurnRecord(
            turn=number,
            parent=self.records[-1].turn if self.records else None,
            generation=Generation(1),
            query=QUERY,
            run="run",
            epoch=Epoch(len(self.records)),
            location="",
            schema=self.schema.number,
            owners=pack_owners(self.owners),
            workers=tuple(WorkerId(worker) for worker in range(self.workers)),
            committed={QUERY: Epoch(len(self.records) - 1)} if self.records else {},
        )
        owner = np.asarray(self.owners)[changed.column(GROUP).to_numpy()]
        for worker in record.workers:
            mine = changed.filter(pa.array(owner == worker))
            self.segment(record, worker, mine if mine.num_rows else None)
        self.records.append(record)
        return record

    def segment(self, record: TurnRecord, worker: WorkerId, batch: pa.RecordBatch | None) -> None:
        meta = SegmentMeta(self.operator, record.turn, worker, record.epoch, record.query)
        write_segment(self.storage, paths.delta(self.operator, record.turn, worker), batch, meta)

    def plan(self, manifests: Iterable[Any] = (), turn: Turn | None = None) -> Plan:
        names = {
            f"x/{paths.delta(OPERATOR, record.turn, worker)}".rpartition("/")[2]: 1
            for record in self.records
            for worker in record.workers
        }
        history = History(OPERATOR, self.records, names, manifests)
        return history.restore_plan(history.head if turn is None else turn)


# --- in one step what production does in several ---


def read_segment(storage: Storage, path: str) -> tuple[SegmentMeta, pa.RecordBatch]:
    """What a segment holds."""
    return decode_segment(pa.py_buffer(storage.read(path)), f"{storage.url}/{path}")


def read_part(
    storage: Storage,
    folder: str,
    schema: OperatorSchema,
    part: SnapshotPart,
    groups: Sequence[int],
    variables: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """The state of some key groups of a part of a snapshot."""
    return PartReader(storage, folder, schema, part, variables).read(groups)


def evolve(batch: pa.RecordBatch, stored: OperatorSchema, wanted: OperatorSchema) -> pa.RecordBatch:
    """State under one schema, as that of another."""
    return Evolution([stored, wanted]).apply(batch)


def collect_garbage(checkpoint: Checkpoint, operator: OperatorName, history: History, retain_epochs: int) -> Garbage:
    """Delete what no retained epoch needs."""
    garbage = history.garbage(retain_epochs)
    checkpoint.delete_garbage(operator, garbage)
    history.forget(garbage)
    return garbage
