"""Columns as a layout of the state study: whole batches on a `ColumnTable`.

A counter is updated by the aggregate `count`, as `cluster.aggregate` does it. Bytes and lists are columns of
objects: an update assigns new ones, since the table takes them as immutable.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from bedload.core.ids import NO_EPOCH, KeyGroup, WorkerId
from bedload.operators.aggregates import Aggregates
from bedload.operators.aggregates import count as agg_count
from bedload.store.columns import ColumnSpec, ColumnTable, warm_up
from bedload.worker.operator import Context
from bench.state_inputs import GROUPS, LIST_LENGTH, Batch, Keys, Shape
from bench.state_layouts import from_bytes, to_bytes


class ColumnLayout:
    """`ColumnTable`: arrays by slot, as aggregates and vector operators have them."""

    epochs: ClassVar[bool] = True

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._context = Context("state", WorkerId(0), NO_EPOCH)
        if shape.counter:
            rows = pa.schema([("key", pa.int64())])
            self._count: Aggregates | None = Aggregates({"n": agg_count()}, rows, [0], ["key"])
            (spec,) = self._count.columns
        else:
            item = pa.binary() if shape.large else pa.int64()
            self._count = None
            spec = ColumnSpec("state", pa.list_(item), []) if shape.kind == "list" else ColumnSpec("state", item, b"")
        self._spec = spec
        warm_up()
        self._table = ColumnTable([pa.int64()], [spec], GROUPS)

    def fill(self, keys: Keys, states: list[Any]) -> None:
        column = pa.array(states, self._spec.type)
        batch = pa.RecordBatch.from_arrays([column], names=[self._spec.name])
        self._table.put([keys.column], keys.groups, batch)

    def update(self, batch: Batch) -> None:
        table = self._table
        slots = table.locate([batch.keys.column], batch.keys.groups)
        if self._count is not None:
            rows = pa.RecordBatch.from_arrays([batch.keys.column], names=["key"])
            self._count.update(table, slots, rows, self._context)
        elif self._shape.kind == "value":
            distinct, last = np.unique(slots[::-1], return_index=True)
            table.write_column(distinct, self._spec.name, batch.values.take(pa.array(len(slots) - 1 - last)))
        else:
            order = np.argsort(slots, kind="stable")
            distinct, begins = np.unique(slots[order], return_index=True)
            values = batch.values.take(pa.array(order)).to_pylist()
            live = table.values(self._spec.name)
            ends = [*begins[1:].tolist(), len(values)]
            for slot, begin, end in zip(distinct.tolist(), begins.tolist(), ends, strict=True):
                live[slot] = [*live[slot], *values[begin:end]][-LIST_LENGTH:]

    def touched(self) -> int:
        return len(self._table.index.touched)

    def commit(self) -> None:
        self._table.seal()
        self._table.commit()

    def abort(self) -> None:
        self._table.abort()

    def read(self, group: int, key: int) -> Any:
        (found,) = self._table.read(KeyGroup(group), [key])
        return None if found is None else found[self._spec.name]

    def read_many(self, keys: Keys) -> Sequence[Any]:
        found: Sequence[Any] = self._table.committed(self._table.find([keys.column], keys.groups)).column(0)
        return found

    def scan(self) -> int:
        return int(self._table.extract(self._table.committed_slots()).num_rows)

    def state(self) -> dict[int, Any]:
        batch = self._table.extract(self._table.committed_slots())
        return dict(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def extract(self, groups: Iterable[int]) -> Any:
        slots = np.concatenate([self._table.committed_slots(KeyGroup(group)) for group in groups])
        batch = self._table.extract(slots)
        return to_bytes([batch.append_column("group", pa.array(self._table.index.group_of(slots)))])

    def install(self, payload: Any) -> None:
        (batch,) = from_bytes(payload)
        groups = batch.column("group").to_numpy()
        self._table.put([batch.column(0)], groups, batch)

    def discard(self, groups: Iterable[int]) -> None:
        self._table.drop(map(KeyGroup, groups))

    def fresh(self) -> "ColumnLayout":
        return ColumnLayout(self._shape)

    def close(self) -> None:
        """Nothing is held."""
