"""Random histories of random state, written as deltas, merged, compacted and restored at random points.

What comes back at any turn is what the same history made of plain Python objects: values, their types, and the order of
dicts. Rows and columns, every kind of container, nested ones, and every kind of key.
"""

import copy
import dataclasses
import datetime as dt
import math
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.checkpoint_states import OPERATOR, Writer, groups_of_keys, merge

from bedload.checkpoint import paths
from bedload.checkpoint.records import Manifest, OperatorSchema, TurnRecord, Variable, manifest_of, pack_schema
from bedload.checkpoint.restore import Restore
from bedload.checkpoint.snapshots import write_parts
from bedload.checkpoint.storage import open_storage
from bedload.core.ids import KeyGroup
from bedload.keys import canonical_key, freeze_keys
from bedload.state import RecordLayout, build_specs, codec, specs
from bedload.state.settling import Settling
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.deltas import StateVariable, describe, key_column, rows_delta
from bedload.store.rows import ROW_SLOTS, RowStore

FAST = settings(max_examples=10, deadline=None)
GROUPS = 5

KEYS: dict[str, tuple[list[pa.DataType], list[Any]]] = {
    "int": ([pa.int64()], [0, 1, -5, 2**40, 7, 8]),
    "string": ([pa.string()], ["", "a", "b", "ü" * 30, "a\0", "c"]),
    "float": ([pa.float64()], [0.0, -0.0, math.nan, 1.5, -math.inf, 2.0]),
    "composite": ([pa.string(), pa.int64()], [("a", 1), (None, 1), ("a", None), (None, None), ("", 0), ("b", 1)]),
    "decimal and date": (
        [pa.decimal128(20, 2), pa.date32()],
        [(Decimal("1.00"), dt.date(2020, 1, 1)), (Decimal("1.00"), None), (Decimal("-7.25"), dt.date(1950, 1, 1))],
    ),
}


def schema_for(key_types: Sequence[pa.DataType], variables: Sequence[StateVariable], layout: Any) -> OperatorSchema:
    return OperatorSchema(
        number=1,
        layout=layout,
        key_names=tuple(f"k{i}" for i in range(len(key_types))),
        key_types=pack_schema(pa.schema([(f"k{i}", kind) for i, kind in enumerate(key_types)])),
        key_groups=GROUPS,
        variables=tuple(
            Variable(name=of.name, type=of.type, arrow=pack_schema(pa.schema([of.field])), kind=of.kind)  # type: ignore[arg-type]
            for of in variables
        ),
    )


def exactly(value: Any) -> Any:
    """A form in which all that equality forgives is told apart: types, order, zones, bounds, digits."""
    kind = type(value)
    if kind is dt.datetime:
        return value.replace(tzinfo=None), value.fold, repr(value.tzinfo)
    if kind in (dict, Counter):
        return kind, [(exactly(k), exactly(v)) for k, v in value.items()]
    if kind is deque:
        return kind, value.maxlen, [exactly(v) for v in value]
    if kind in (list, tuple):
        return kind, [exactly(v) for v in value]
    if kind is set:
        return kind, {(type(v), v) for v in value}
    if dataclasses.is_dataclass(value):
        return kind, [exactly(v) for v in vars(value).values()]
    return kind, repr(value)


Model = dict[Any, dict[str, Any]]
Decode = Callable[[pa.RecordBatch], list[dict[str, Any]]]


class Durable:
    """One operator's checkpoint, beside what its state has to be at each turn."""

    def __init__(self, folder: str, schema: OperatorSchema, decode: Decode) -> None:
        self.writer = Writer(open_storage(folder), schema)
        self.schema = schema
        self.decode = decode
        self.deltas: list[pa.RecordBatch] = []
        self.states: dict[int, Model] = {}
        self.manifests: list[Manifest] = []

    def seal(self, delta: pa.RecordBatch | None, model: Model) -> None:
        if delta is None:
            empty = merge(self.schema, None, [])
            delta = empty.append_column("bedload_op", pa.array([], pa.int8()))
        self.deltas.append(delta)
        self.states[self.writer.turn(delta).turn] = copy.deepcopy(model)

    def compact(self, choice: int, chunk_groups: int, target_bytes: int) -> None:
        record = self.writer.records[choice % len(self.writer.records)]
        chunks = self.restore(record).chunks(chunk_groups=chunk_groups)
        folder = paths.snapshot(OPERATOR, record.turn)
        parts = write_parts(self.writer.storage, folder, self.schema, chunks, target_bytes=target_bytes)
        self.manifests.append(manifest_of(record, self.schema, parts))

    def restore(self, record: TurnRecord) -> Restore:
        plan = self.writer.plan(self.manifests, record.turn)
        return Restore(self.writer.storage, OPERATOR, self.schema, plan)

    def rows(self, batch: pa.RecordBatch) -> Model:
        count = len(self.schema.key_names)
        keys = freeze_keys([batch.column(key_column(i)) for i in range(count)]) if batch.num_rows else []
        assert len(set(keys)) == len(keys)
        names = [variable.name for variable in self.schema.variables]
        return dict(zip(keys, self.decode(batch.select(names)), strict=True))

    def check(self, chunk_groups: int) -> None:
        for record in self.writer.records:
            found: Model = {}
            groups: list[int] = []
            for some, batch in self.restore(record).chunks(chunk_groups=chunk_groups):
                batch.validate(full=True)
                found |= self.rows(batch)
                groups += some
            assert sorted(groups) == list(range(GROUPS))
            assert_same(found, self.states[record.turn])
        if self.deltas:
            assert_same(self.rows(merge(self.schema, None, self.deltas)), self.states[self.writer.records[-1].turn])


def assert_same(found: Model, expected: Model) -> None:
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        for name, value in row.items():
            assert exactly(found[key][name]) == exactly(value), (key, name)


# --- rows ---


@dataclasses.dataclass
class Point:
    x: int = 0
    path: list[dt.datetime] = dataclasses.field(default_factory=list)
    label: str | None = None


@dataclasses.dataclass(frozen=True)
class Pair:
    left: int
    right: dt.date


ANNOTATIONS: dict[str, Any] = {
    "count": int,
    "spent": dt.timedelta,
    "recent": list[int],
    "moments": list[dt.datetime],
    "seen": dict[str, list[int]],
    "nested": dict[int | None, dict[str, dict[dt.date, dt.timedelta]]],
    "prices": dict[Decimal, float],
    "words": Counter[str],
    "tags": set[tuple[int, str]],
    "pairs": set[Pair],
    "last": deque[bytes],
    "queues": dict[str, deque[int]],
    "at": Point | None,
    "both": tuple[int, list[int]],
    "raw": dict[str, int],
}
SPECS = build_specs(
    "Op",
    ANNOTATIONS,
    {
        "count": specs.value(0),
        "spent": specs.value(dt.timedelta(0)),
        "recent": specs.list_(maxlen=4),
        "moments": specs.list_(),
        "seen": specs.map_(),
        "nested": specs.map_(),
        "prices": specs.map_(),
        "words": specs.counter(),
        "tags": specs.set_(),
        "pairs": specs.set_(),
        "last": specs.deque(maxlen=3),
        "queues": specs.map_(),
        "at": specs.value(),
        "both": specs.value((0, [])),
        "raw": specs.value({}, codec="msgspec"),
    },
)


class Row:
    __slots__ = (*ROW_SLOTS, *ANNOTATIONS)


class Plain:
    """The model of a row."""

    def __init__(self) -> None:
        self.count, self.spent, self.recent, self.moments = 0, dt.timedelta(0), [], []
        self.seen: dict[Any, Any] = {}
        self.nested: dict[Any, Any] = {}
        self.prices: dict[Any, Any] = {}
        self.words: Counter[str] = Counter()
        self.tags: set[Any] = set()
        self.pairs: set[Any] = set()
        self.last: deque[bytes] = deque(maxlen=3)
        self.queues: dict[Any, Any] = {}
        self.at: Any = None
        self.both = (0, [])
        self.raw: dict[str, int] = {}


DAY, SECOND = dt.date(2020, 1, 1), dt.timedelta(seconds=1)
MOMENT = dt.datetime(2020, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))


def many(row: Any, n: int) -> None:
    """Containers so large that they log single entries."""
    row.seen.update({f"k{i}": [i] for i in range(70)})
    row.words.update({f"w{i}": i for i in range(70)})
    row.tags.update((i, "t") for i in range(70))
    row.moments.extend(MOMENT + i * SECOND for i in range(70))
    row.nested.update({i: {"in": {DAY: SECOND}} for i in range(70)})


CHANGES: list[Callable[[Any, int], Any]] = [
    many,
    lambda row, n: setattr(row, "count", row.count + n),
    lambda row, n: setattr(row, "spent", row.spent - n * SECOND),
    lambda row, n: row.recent.append(n),
    lambda row, n: setattr(row, "recent", [n]),
    lambda row, n: row.moments.append(MOMENT + n * SECOND),
    lambda row, n: row.moments.insert(0, dt.datetime(1900 + n, 1, 1, fold=n % 2)),
    lambda row, n: row.moments and row.moments.pop(n % len(row.moments)),
    lambda row, n: row.moments and row.moments.__setitem__(n % len(row.moments), MOMENT),
    lambda row, n: row.seen.setdefault(f"k{n}", []).append(n),
    lambda row, n: row.seen.pop(f"k{n}", None),
    lambda row, n: row.seen.__setitem__(f"k{n}", row.seen.pop(f"k{n}", [])[:2]),
    lambda row, n: row.nested.setdefault(n if n % 3 else None, {}).setdefault("in", {}).update({DAY: n * SECOND}),
    lambda row, n: row.nested.pop(n if n % 3 else None, None),
    lambda row, n: row.nested.get(n, {}).clear(),
    lambda row, n: row.prices.update({Decimal(n % 3): n / 3, Decimal(f"{n % 3}.0"): -0.0}),
    lambda row, n: row.words.update([f"w{n}"]),
    lambda row, n: row.words.__delitem__(f"w{n}"),
    lambda row, n: row.words.clear(),
    lambda row, n: row.tags.symmetric_difference_update({(n, "t"), (n, "u")}),
    lambda row, n: row.pairs.symmetric_difference_update({Pair(n, DAY)}),
    lambda row, n: row.last.append(bytes([n])),
    lambda row, n: row.last.appendleft(bytes([n])),
    lambda row, n: row.queues.setdefault("q", deque(maxlen=1 + n % 3)).append(n),
    lambda row, n: setattr(row, "at", Point(n)),
    lambda row, n: row.at is not None and row.at.path.append(MOMENT + n * SECOND),
    lambda row, n: row.at is not None and setattr(row.at, "label", f"{n}"),
    lambda row, n: setattr(row, "at", None),
    lambda row, n: row.both[1].append(n),
    lambda row, n: setattr(row, "both", (n, [])),
    lambda row, n: row.raw.update({"a": n}),
]

FORGET = len(CHANGES)
TOUCHES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, FORGET), st.integers(0, 75)), min_size=1, max_size=8)
COMPACTIONS = st.none() | st.tuples(st.integers(0, 99), st.integers(1, GROUPS), st.sampled_from([1, 2000, 1 << 20]))
EPOCHS = st.lists(st.tuples(TOUCHES, st.booleans() | st.just(True), COMPACTIONS), max_size=6)


@pytest.mark.parametrize("keys", list(KEYS))
@FAST
@given(epochs=EPOCHS, chunk_groups=st.integers(1, GROUPS))
@example(epochs=[([(0, 0, 0)], True, None), ([(0, FORGET, 0)], True, None)], chunk_groups=1)
def test_rows_come_back_as_plain_objects_would_be(keys: str, epochs: list[Any], chunk_groups: int) -> None:
    key_types, some_keys = KEYS[keys]
    layout = RecordLayout(SPECS)
    schema = schema_for(key_types, describe(SPECS), "rows")
    stores = [RowStore(KeyGroup(group), layout, Row) for group in range(GROUPS)]
    model: dict[Any, Plain] = {}
    with tempfile.TemporaryDirectory() as folder:
        durable = Durable(folder, schema, lambda batch: codec.decode(SPECS, batch))
        for touches, commits, compaction in epochs:
            before = copy.deepcopy(model)
            for which, what, n in touches:
                key = some_keys[which % len(some_keys)]
                (group,) = groups_of_keys(schema, [key])
                key = canonical_key(key)
                (row,) = stores[group].touch([key])
                plain = model.setdefault(key, Plain())
                if what == FORGET:
                    stores[group].forget([key])
                    del model[key]
                else:
                    CHANGES[what](row, n)
                    CHANGES[what](plain, n)
                    del plain.recent[:-4]
            settling = Settling(layout)
            for store in stores:
                store.seal(settling)
            settling.check()
            if commits:
                delta = rows_delta(layout, [store.written() for store in stores], key_types)
                durable.seal(delta, {key: vars(plain) for key, plain in model.items()})
            else:
                model = before
            for store in stores:
                store.commit() if commits else store.abort()
            if compaction is not None and durable.states:
                durable.compact(*compaction)
        durable.check(chunk_groups)


# --- columns ---

COLUMNS = [
    ColumnSpec("n", pa.int64(), 0),
    ColumnSpec("best", pa.float64()),
    ColumnSpec("flag", pa.bool_(), False),
    ColumnSpec("name", pa.string()),
    ColumnSpec("tags", pa.list_(pa.string()), None),
    ColumnSpec("seen", pa.map_(pa.string(), pa.struct([])), None),
]
VALUES = st.fixed_dictionaries(
    {
        "n": st.integers(-(2**63), 2**63 - 1),
        "best": st.none() | st.floats(),
        "flag": st.booleans(),
        "name": st.none() | st.text(max_size=5),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "seen": st.none()
        | st.dictionaries(st.text(max_size=2), st.just({}), max_size=2).map(lambda d: list(d.items())),
    }
)
WRITES = st.lists(st.tuples(st.integers(0, 5), st.none() | VALUES), min_size=1, max_size=8)
COLUMN_EPOCHS = st.lists(st.tuples(WRITES, st.booleans() | st.just(True), COMPACTIONS), max_size=5)


@pytest.mark.parametrize("keys", list(KEYS))
@FAST
@given(epochs=COLUMN_EPOCHS, chunk_groups=st.integers(1, GROUPS))
def test_columns_come_back_as_plain_objects_would_be(keys: str, epochs: list[Any], chunk_groups: int) -> None:
    key_types, some_keys = KEYS[keys]
    table = ColumnTable(key_types, COLUMNS, GROUPS)
    described = [StateVariable(c.name, "column", str(c.type), pa.field(c.name, c.type)) for c in COLUMNS]
    schema = schema_for(key_types, described, "columns")
    model: Model = {}
    with tempfile.TemporaryDirectory() as folder:
        durable = Durable(folder, schema, lambda batch: batch.to_pylist())
        for writes, commits, compaction in epochs:
            before = dict(model)
            for which, values in writes:
                key = some_keys[which % len(some_keys)]
                parts = key if len(key_types) > 1 else (key,)
                columns = [pa.array([part], kind) for part, kind in zip(parts, key_types, strict=True)]
                slots = table.locate(columns, np.asarray(groups_of_keys(schema, [key]), np.int32))
                if values is None:
                    table.delete(slots)
                    model.pop(canonical_key(key), None)
                else:
                    for column in COLUMNS:
                        table.write_column(slots, column.name, pa.array([values[column.name]], column.type))
                    model[canonical_key(key)] = values
            if commits:
                durable.seal(table.delta(), model)
                table.commit()
            else:
                model = before
                table.abort()
            if compaction is not None and durable.states:
                durable.compact(*compaction)
        durable.check(chunk_groups)
