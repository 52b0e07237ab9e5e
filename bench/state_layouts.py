"""The layouts of the state study behind one set of operations; rows and plain dicts are here.

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

import pyarrow as pa

from bedload import state as bl
from bedload.core.ids import KeyGroup
from bedload.keys import freeze_keys
from bedload.state import RecordLayout, codec
from bedload.state.settling import Settling
from bedload.store import RowStore
from bedload.store.deltas import plain_columns
from bedload.worker.grouping import Grouped, group_rows
from bedload.worker.operator import Operator, make_shared, state_of
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
        _, self._row = make_shared(operator)
        self._stores = list(map(self._store, range(GROUPS)))

    def fill(self, keys: Keys, states: list[Any]) -> None:
        by_group: dict[int, list[tuple[int, Any]]] = {}
        for (group, key), state in zip(keys.pairs(), states, strict=True):
            by_group.setdefault(group, []).append((key, state))
        for group, pairs in by_group.items():
            encoded = codec.encode(self._layout.specs, [{"state": state} for _, state in pairs])
            self._put(group, [key for key, _ in pairs], encoded)

    def update(self, batch: Batch) -> None:
        grouped = group_rows([batch.keys.column], batch.keys.groups)
        objects: list[Any] = []
        for group, start, stop in grouped.groups:
            objects += self._stores[group].touch(grouped.keys[start:stop])
        change(self._shape, objects, grouped, batch, bounded=True)

    def touched(self) -> int:
        return sum(store.sizes().touched for store in self._stores)

    def commit(self) -> None:
        settling = Settling(self._layout)
        for store in self._stores:
            store.seal(settling)
        settling.check()
        for store in self._stores:
            store.commit()

    def abort(self) -> None:
        for store in self._stores:
            store.abort()

    def read(self, group: int, key: int) -> Any:
        (found,) = self._stores[group].read([key])
        return None if found is None else found["state"]

    def read_many(self, keys: Keys) -> Sequence[Any]:
        stores = self._stores
        return [
            stores[group].read([key])[0]
            for group, key in zip(keys.groups.tolist(), keys.column.to_pylist(), strict=True)
        ]

    def scan(self) -> int:
        return sum(len(self._all(group)) for group in range(GROUPS))

    def state(self) -> dict[int, Any]:
        return {key: found["state"] for group in range(GROUPS) for key, found in self._all(group)}

    def extract(self, groups: Iterable[int]) -> Any:
        parts = []
        for group in groups:
            pairs = self._all(group)
            state = codec.encode(self._layout.specs, [found for _, found in pairs])
            parts.append((group, state.append_column("key", pa.array([key for key, _ in pairs], pa.int64()))))
        return [group for group, _ in parts], to_bytes([batch for _, batch in parts])

    def install(self, payload: Any) -> None:
        groups, data = payload
        for group, batch in zip(groups, from_bytes(data), strict=True):
            self._put(group, freeze_keys([batch.column("key")]), batch)

    def discard(self, groups: Iterable[int]) -> None:
        for group in groups:
            self._stores[group] = self._store(group)

    def fresh(self) -> "RowLayout":
        return RowLayout(self._shape)

    def close(self) -> None:
        """Nothing is held."""

    def _store(self, group: int) -> RowStore:
        return RowStore(KeyGroup(group), self._layout, self._row)

    def _put(self, group: int, keys: list[Any], state: pa.RecordBatch) -> None:
        self._stores[group].put(keys, plain_columns(self._layout.specs, state))

    def _all(self, group: int) -> list[tuple[int, dict[str, Any]]]:
        store = self._stores[group]
        pairs = (pair for keys in store.scan() for pair in zip(keys, store.read(keys), strict=True))
        return [(key, found) for key, found in pairs if found is not None]


def to_bytes(batches: list[pa.RecordBatch]) -> pa.Buffer:
    """Batches of one schema as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def from_bytes(data: pa.Buffer) -> list[pa.RecordBatch]:
    """The batches of a stream."""
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


COLUMN_KINDS = ("value", "list")
"""What columns can hold: numbers as arrays; bytes and lists as objects, which are replaced, never changed."""


def column_layout(shape: Shape) -> Layout:
    """Made late: compiled kernels are loaded only where they are measured."""
    from bench.state_columns import ColumnLayout

    return ColumnLayout(shape)


def rocksdb_layout(shape: Shape) -> Layout:
    """Made late: rocksdict may not be installed."""
    from bench.state_rocksdb import RocksLayout

    return RocksLayout(shape)


LAYOUTS: dict[str, Callable[[Shape], Layout]] = {
    "rows": RowLayout,
    "columns": column_layout,
    "dict": DictLayout,
    "rocksdb": rocksdb_layout,
}


def unsupported(layout: str, shape: Shape) -> str:
    """Why a layout cannot hold a shape, or nothing."""
    if layout == "columns" and shape.kind not in COLUMN_KINDS:
        return "a column holds scalars, or lists that are replaced as a whole"
    return ""
