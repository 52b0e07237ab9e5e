"""The layouts of the state study, behind one set of operations: rows, columns, and plain dicts.

Invariants:
- Every layout takes the same Arrow batch and leaves the same state; `state` gives it as plain values for the check.
- What leaves by `extract` is bytes that could be sent: a move goes between processes.
- All are split by key group, and all but columns group the rows of a batch by key first, as a worker does.

Why not through the runtimes of the worker: those add calls of user code, outputs and messages. Here the loops are
what an operator of each layout does, and nothing else.
"""

import pickle
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from bedload import state as bl
from bedload.core.ids import NO_EPOCH, KeyGroup, WorkerId
from bedload.keys import freeze_keys
from bedload.operators.aggregates import Aggregates
from bedload.operators.aggregates import count as agg_count
from bedload.state import RecordLayout, codec
from bedload.store import RowStore
from bedload.store.columns import ColumnSpec, ColumnStore, ColumnTable, warm_up
from bedload.worker.grouping import Grouped, group_rows
from bedload.worker.operator import Context, Operator, make_shared, state_of
from bench.state_inputs import GROUPS, LIST_LENGTH, NESTED_LENGTH, Batch, Keys, Shape


class Layout(Protocol):
    """One way to keep state. `epochs` says whether it can commit, abort and read what was committed."""

    epochs: ClassVar[bool]

    def fill(self, keys: Keys, states: list[Any]) -> None:
        """Put keys in."""

    def update(self, batch: Batch) -> None:
        """Apply rows, inside an epoch that begins by itself."""

    def touched(self) -> int:
        """Keys that the epoch has touched."""

    def commit(self) -> None:
        """The epoch counts."""

    def abort(self) -> None:
        """It does not."""

    def read(self, group: int, key: int) -> Any:
        """The committed state of a key."""

    def read_many(self, keys: Keys) -> Sequence[Any]:
        """The committed states of many keys, in whatever form the layout gives them fastest."""

    def scan(self) -> int:
        """Look at the committed state of every key, in whatever form; the number of keys."""

    def state(self) -> dict[int, Any]:
        """The committed state of every key, as plain values."""

    def extract(self, groups: Iterable[int]) -> Any:
        """The committed state of key groups, as bytes."""

    def install(self, payload: Any) -> None:
        """Put in what another one extracted."""

    def discard(self, groups: Iterable[int]) -> None:
        """Drop key groups."""

    def fresh(self) -> "Layout":
        """An empty one of the same shape."""

    def close(self) -> None:
        """Release what is held outside of memory."""


# --- plain dicts


class Plain:
    """What a program without a state library keeps per key."""

    __slots__ = ("state",)

    def __init__(self, state: Any) -> None:
        self.state = state


def change(shape: Shape, objects: Sequence[Any], grouped: Grouped, batch: Batch, *, bounded: bool) -> None:
    """What operator code does with the rows of each key; `bounded` lists drop what is too much by themselves."""
    runs = zip(objects, pairwise(grouped.bounds), strict=True)
    if shape.counter:
        for item, (begin, end) in runs:
            item.state += end - begin
        return
    order = pa.array(grouped.order)
    values = batch.values.take(order).to_pylist()
    if shape.kind == "value":
        for item, (_, end) in runs:
            item.state = values[end - 1]
        return
    if shape.kind == "list":
        for item, (begin, end) in runs:
            kept = item.state
            for value in values[begin:end]:
                kept.append(value)
                if not bounded and len(kept) > LIST_LENGTH:
                    del kept[0]
        return
    fields = batch.fields.take(order).to_pylist()
    if shape.kind == "map":
        for item, (begin, end) in runs:
            kept = item.state
            for at in range(begin, end):
                kept[fields[at]] = values[at]
        return
    for item, (begin, end) in runs:
        kept = item.state
        for at in range(begin, end):
            inner = kept[fields[at]]
            inner.append(values[at])
            if len(inner) > NESTED_LENGTH:
                del inner[0]


class DictLayout:
    """A dict of objects per key group: no epochs, no types, no Arrow. The bound for Python objects."""

    epochs: ClassVar[bool] = False

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._groups: list[dict[int, Plain]] = [{} for _ in range(GROUPS)]

    def fill(self, keys: Keys, states: list[Any]) -> None:
        for (group, key), state in zip(keys.pairs(), states, strict=True):
            self._groups[group][key] = Plain(state)

    def update(self, batch: Batch) -> None:
        grouped = group_rows([batch.keys.column], batch.keys.groups)
        objects: list[Plain] = []
        for group, start, stop in grouped.groups:
            objects += map(self._groups[group].__getitem__, grouped.keys[start:stop])
        change(self._shape, objects, grouped, batch, bounded=False)

    def touched(self) -> int:
        return 0

    def commit(self) -> None:
        """There are no epochs."""

    def abort(self) -> None:
        raise NotImplementedError

    def read(self, group: int, key: int) -> Any:
        return self._groups[group][key].state

    def read_many(self, keys: Keys) -> Sequence[Any]:
        groups = self._groups
        pairs = zip(keys.groups.tolist(), keys.column.to_pylist(), strict=True)
        return [groups[group][key].state for group, key in pairs]

    def scan(self) -> int:
        return len([(key, item.state) for group in self._groups for key, item in group.items()])

    def state(self) -> dict[int, Any]:
        # Through pickle, since the caller compares it with what comes later.
        held = {key: item.state for group in self._groups for key, item in group.items()}
        copied: dict[int, Any] = pickle.loads(pickle.dumps(held))
        return copied

    def extract(self, groups: Iterable[int]) -> Any:
        found = {g: {key: item.state for key, item in self._groups[g].items()} for g in groups}
        return pickle.dumps(found, pickle.HIGHEST_PROTOCOL)

    def install(self, payload: Any) -> None:
        for group, states in pickle.loads(payload).items():
            self._groups[group].update((key, Plain(state)) for key, state in states.items())

    def discard(self, groups: Iterable[int]) -> None:
        for group in groups:
            self._groups[group] = {}

    def fresh(self) -> "DictLayout":
        return DictLayout(self._shape)

    def close(self) -> None:
        """Nothing is held."""


# --- rows


class Counter(Operator):
    state: int = bl.value(0)


class LargeValue(Operator):
    state: bytes = bl.value(b"")


class SmallList(Operator):
    state: list[int] = bl.list(maxlen=LIST_LENGTH)


class LargeList(Operator):
    state: list[bytes] = bl.list(maxlen=LIST_LENGTH)


class SmallMap(Operator):
    state: dict[str, int] = bl.map()


class LargeMap(Operator):
    state: dict[str, bytes] = bl.map()


class SmallNested(Operator):
    state: dict[str, list[int]] = bl.map()


class LargeNested(Operator):
    state: dict[str, list[bytes]] = bl.map()


OPERATORS: dict[tuple[str, str], type[Operator]] = {
    ("value", "small"): Counter,
    ("value", "large"): LargeValue,
    ("list", "small"): SmallList,
    ("list", "large"): LargeList,
    ("map", "small"): SmallMap,
    ("map", "large"): LargeMap,
    ("nested", "small"): SmallNested,
    ("nested", "large"): LargeNested,
}


class RowLayout:
    """`RowStore`: one tracked object per key, as `Operator` has it."""

    epochs: ClassVar[bool] = True

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        operator = OPERATORS[shape.kind, shape.size]
        self._layout = RecordLayout(state_of(operator))
        _, row = make_shared(operator)
        self._stores = [RowStore(KeyGroup(group), self._layout, row) for group in range(GROUPS)]

    def fill(self, keys: Keys, states: list[Any]) -> None:
        by_group: dict[int, list[tuple[int, Any]]] = {}
        for (group, key), state in zip(keys.pairs(), states, strict=True):
            by_group.setdefault(group, []).append((key, state))
        for group, pairs in by_group.items():
            encoded = codec.encode(self._layout.specs, [{"state": state} for _, state in pairs])
            self._stores[group].install([key for key, _ in pairs], encoded)

    def update(self, batch: Batch) -> None:
        grouped = group_rows([batch.keys.column], batch.keys.groups)
        objects: list[Any] = []
        for group, start, stop in grouped.groups:
            objects += self._stores[group].touch(grouped.keys[start:stop])
        change(self._shape, objects, grouped, batch, bounded=True)

    def touched(self) -> int:
        return sum(store.sizes().touched for store in self._stores)

    def commit(self) -> None:
        for store in self._stores:
            store.seal()
            store.commit()

    def abort(self) -> None:
        for store in self._stores:
            store.abort()

    def read(self, group: int, key: int) -> Any:
        found = self._stores[group].read(key)
        return None if found is None else found["state"]

    def read_many(self, keys: Keys) -> Sequence[Any]:
        stores = self._stores
        return [
            stores[group].read(key) for group, key in zip(keys.groups.tolist(), keys.column.to_pylist(), strict=True)
        ]

    def scan(self) -> int:
        return sum(1 for store in self._stores for _ in store.snapshot())

    def state(self) -> dict[int, Any]:
        return {key: found["state"] for store in self._stores for key, found in store.snapshot()}

    def extract(self, groups: Iterable[int]) -> Any:
        parts = []
        for group in groups:
            keys, state = self._stores[group].extract()
            parts.append((group, state.append_column("key", pa.array(keys, pa.int64()))))
        return [group for group, _ in parts], _to_bytes([batch for _, batch in parts])

    def install(self, payload: Any) -> None:
        groups, data = payload
        for group, batch in zip(groups, _from_bytes(data), strict=True):
            self._stores[group].install(freeze_keys([batch.column("key")]), batch)

    def discard(self, groups: Iterable[int]) -> None:
        for group in groups:
            self._stores[group].discard()

    def fresh(self) -> "RowLayout":
        return RowLayout(self._shape)

    def close(self) -> None:
        """Nothing is held."""


# --- columns

COLUMN_KINDS = ("value", "list")
"""What columns can hold: numbers as arrays; bytes and lists as objects, which are replaced, never changed."""


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
        self._stores = [ColumnStore(KeyGroup(group), self._table) for group in range(GROUPS)]

    def fill(self, keys: Keys, states: list[Any]) -> None:
        column = pa.array(states, self._spec.type)
        batch = pa.RecordBatch.from_arrays([column], names=[self._spec.name])
        self._table.install([keys.column], keys.groups, batch)

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
        found = self._stores[group].read(key)
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
        return _to_bytes([batch.append_column("group", pa.array(self._table.index.group_of(slots)))])

    def install(self, payload: Any) -> None:
        (batch,) = _from_bytes(payload)
        groups = batch.column("group").to_numpy()
        self._table.install_batch(batch.select(range(batch.num_columns - 1)), groups)

    def discard(self, groups: Iterable[int]) -> None:
        for group in groups:
            self._table.drop_group(KeyGroup(group))

    def fresh(self) -> "ColumnLayout":
        return ColumnLayout(self._shape)

    def close(self) -> None:
        """Nothing is held."""


def _to_bytes(batches: list[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _from_bytes(data: pa.Buffer) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


def rocksdb_layout(shape: Shape) -> Layout:
    """Made late: rocksdict may not be installed."""
    from bench.state_rocksdb import RocksLayout

    return RocksLayout(shape)


LAYOUTS: dict[str, Callable[[Shape], Layout]] = {
    "rows": RowLayout,
    "columns": ColumnLayout,
    "dict": DictLayout,
    "rocksdb": rocksdb_layout,
}


def unsupported(layout: str, shape: Shape) -> str:
    """Why a layout cannot hold a shape, or nothing."""
    if layout == "columns" and shape.kind not in COLUMN_KINDS:
        return "a column holds scalars, or lists that are replaced as a whole"
    return ""
