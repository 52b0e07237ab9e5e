"""What leaves a runtime as a delta, and key groups that come and go, for both layouts."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.errors import ProtocolError, StateTypeError
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.keys import freeze_keys, hash_columns, key_groups
from bedload.state.patches import unpack_patches
from bedload.store.columns import ColumnSpec
from bedload.store.deltas import PATCH, PUT, REMOVE
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment, OperatorRuntime
from bedload.worker.rows import Rows
from bedload.worker.runtime import Runtime

OUT = pa.schema([("key", pa.string()), ("n", pa.int64())])


class Worker:
    """A runtime on which the test does what operator code would do."""

    def __init__(self, operator: type[Operator], *keys: pa.DataType) -> None:
        types = keys or (pa.int64(),)
        position = tuple(range(len(types)))
        columns = tuple(f"key{i}" for i in position)
        self.deployment = Deployment(OperatorName("op"), operator, position, columns, OUT, types)
        self.runtime = OperatorRuntime(self.deployment, WorkerId(0))
        self.epoch = -1

    def begin(self) -> None:
        self.epoch += 1
        self.runtime.begin(Epoch(self.epoch), [KeyGroup(group) for group in range(4)])

    def touch(self, key: Any, group: int = 0) -> Any:
        (found,) = self.runtime._table.stores[KeyGroup(group)].touch([key])
        return found

    def forget(self, key: Any, group: int = 0) -> None:
        self.touch(key, group)
        self.runtime._table.stores[KeyGroup(group)].forget([key])

    def delta(self) -> list[tuple[Any, ...]]:
        self.runtime.seal()
        found = self.runtime.delta()
        if found is None:
            return []
        found.validate(full=True)
        return [tuple(row.values()) for row in found.to_pylist()]


class Idle(Operator):
    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        pass


class Numbers(Idle):
    n: int = bl.value(0)
    x: float = bl.value(0.0)


@dataclasses.dataclass
class Trip:
    start: int
    stops: list[int]


class Mixed(Idle):
    n: int = bl.value(0)
    text: str = bl.value("")
    tally: Counter[str] = bl.counter()
    trip: Trip | None = bl.value()


def test_small_variables_are_put_whole_and_sorted_by_group() -> None:
    worker = Worker(Numbers)
    worker.begin()
    worker.touch(1, 3).n = 5
    worker.touch(2, 0).x = 0.5
    assert worker.delta() == [(0, PUT, 2, 0, 0.5), (3, PUT, 1, 5, 0.0)]
    worker.runtime.commit()
    worker.begin()
    worker.touch(1, 3).n = 6
    worker.touch(2, 0)
    worker.touch(7, 1)
    worker.forget(7, 1)
    assert worker.delta() == [(3, PUT, 1, 6, 0.0)]
    worker.runtime.commit()
    worker.begin()
    worker.forget(2, 0)
    worker.touch(1, 3).n = 7
    assert worker.delta() == [(0, REMOVE, 2, None, None), (3, PUT, 1, 7, 0.0)]
    worker.runtime.abort()
    worker.begin()
    assert worker.delta() == []


@pytest.mark.parametrize("durable", [True, False])
def test_the_delta_of_many_keys_is_encoded_in_parts_and_whole(durable: bool) -> None:
    worker = Worker(Numbers, pa.int64(), pa.string())
    worker.runtime.durable = durable
    keys = [(number, str(number)) for number in range(10_000)]
    worker.begin()
    for key in keys:
        worker.touch(key, key[0] % 4).n = key[0]
    assert sorted(worker.delta()) == sorted((key[0] % 4, PUT, *key, key[0], 0.0) for key in keys)
    worker.runtime.commit()
    worker.begin()
    for key in keys:
        if key[0] % 3:
            worker.touch(key, key[0] % 4).n += 1
        else:
            worker.forget(key, key[0] % 4)
    changed = [(key[0] % 4, PUT, *key, key[0] + 1, 0.0) for key in keys if key[0] % 3]
    removed = [(key[0] % 4, REMOVE, *key, None, None) for key in keys if not key[0] % 3]
    found = worker.delta()
    assert sorted(found, key=lambda row: row[:3]) == sorted([*changed, *removed], key=lambda row: row[:3])
    assert [row[0] for row in found] == sorted(row[0] for row in found)


def test_what_cannot_be_encoded_is_named_among_many_keys() -> None:
    worker = Worker(Numbers)
    worker.runtime.durable = True
    worker.begin()
    for key in range(10_000):
        worker.touch(key, key % 4).n = key if key != 7_777 else "seven"
    with pytest.raises(StateTypeError, match="7777"):
        worker.delta()


def test_other_variables_are_patched_if_the_key_was_there() -> None:
    worker = Worker(Mixed)
    worker.begin()
    item = worker.touch(1)
    item.n, item.text, item.trip = 1, "one", Trip(1, [])
    item.tally["a"] += 1
    assert worker.delta() == [(0, PUT, 1, 1, "one", [("a", 1)], {"start": 1, "stops": []})]
    worker.runtime.commit()
    worker.begin()
    item = worker.touch(1)
    item.n = 2
    item.tally["b"] += 1
    item.trip.stops.append(7)
    worker.touch(2)
    worker.forget(3)
    (patched, put) = sorted(worker.delta(), key=lambda row: -row[1])
    assert patched[:-1] == (0, PATCH, 1, 2, None, None, None)
    assert unpack_patches(patched[-1]) == {
        "n": None,
        "tally": ["map", [], [["b", 1]]],
        "trip": ["struct", {"stops": [7]}, []],
    }
    assert put == (0, PUT, 2, 0, "", [], None, None)


def test_a_container_that_was_replaced_is_written_whole() -> None:
    worker = Worker(Mixed)
    worker.begin()
    worker.touch(1)
    worker.delta()
    worker.runtime.commit()
    worker.begin()
    item = worker.touch(1)
    item.tally = Counter("aab")
    ((*_, tally, trip, patch),) = worker.delta()
    assert dict(tally) == {"a": 2, "b": 1}
    assert trip is None
    assert unpack_patches(patch) == {"tally": None}


def test_a_key_of_which_everything_was_written_is_put() -> None:
    class Text(Idle):
        text: str = bl.value("")

    worker = Worker(Text)
    for text in ("a", "b"):
        worker.begin()
        worker.touch(1).text = text
        assert worker.delta() == [(0, PUT, 1, text)]
        worker.runtime.commit()


def test_a_key_that_was_forgotten_and_made_again_is_put() -> None:
    worker = Worker(Mixed)
    worker.begin()
    worker.touch(1).tally["a"] = 5
    worker.delta()
    worker.runtime.commit()
    worker.begin()
    worker.forget(1)
    worker.touch(1).n = 3
    assert worker.delta() == [(0, PUT, 1, 3, "", [], None)]


def test_an_operator_without_variables_puts_keys() -> None:
    worker = Worker(Idle)
    worker.begin()
    worker.touch(5, 2)
    assert worker.delta() == [(2, PUT, 5)]


BERLIN, NEW = ZoneInfo("Europe/Berlin"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("annotation", "old", "new"),
    [
        (float, 0.0, -0.0),
        (Decimal, Decimal("1.0"), Decimal("1.00")),
        (dt.datetime, NEW, NEW.astimezone(BERLIN)),
        (tuple[int, float], (1, 0.0), (1, -0.0)),
    ],
)
def test_values_that_are_equal_but_print_differently_are_written(annotation: Any, old: Any, new: Any) -> None:
    class Exact(Idle):
        __annotations__ = {"v": annotation, "items": dict[str, annotation]}
        v = bl.value(old)
        items = bl.map()

    worker = Worker(Exact)
    worker.begin()
    worker.touch(1)
    worker.touch(2).items["a"] = old
    worker.delta()
    worker.runtime.commit()
    worker.begin()
    worker.touch(1).v = new
    worker.touch(2).items["a"] = new
    assert [row[2] for row in worker.delta()] == [1, 2]


@pytest.mark.parametrize("durable", [False, True])
def test_a_value_of_another_type_is_refused_even_if_it_equals_what_was_there(durable: bool) -> None:
    worker = Worker(Mixed)
    worker.runtime.durable = durable
    worker.begin()
    worker.touch(1).n = 1
    worker.touch(1).tally["a"] = 1
    worker.delta()
    worker.runtime.commit()
    for change in (lambda row: setattr(row, "n", 1.0), lambda row: row.tally.update({"a": 0.0})):
        worker.begin()
        change(worker.touch(1))
        with pytest.raises(StateTypeError, match="of key 1"):
            worker.delta()
        worker.runtime.abort()


@pytest.mark.parametrize("durable", [False, True])
def test_a_value_that_cannot_be_stored_is_named_with_variable_and_key(durable: bool) -> None:
    worker = Worker(Mixed)
    worker.runtime.durable = durable
    worker.begin()
    worker.touch(1)
    worker.touch(77).n = "many"
    with pytest.raises(StateTypeError, match=r"'n' \(int\) of key 77 \(int\): expected int, got str"):
        worker.delta()
    worker.runtime.abort()
    worker.begin()
    worker.touch(1)
    worker.delta()
    worker.runtime.commit()
    for number, says in ((2**63, "does not fit 64 bits"), ("x", "expected int")):
        worker.begin()
        worker.touch(1).tally["a"] = number
        with pytest.raises(StateTypeError, match=rf"tally.*key 1.*{says}|key 1 \(tally\): .*{says}"):
            worker.delta()
        worker.runtime.abort()


def test_a_delta_needs_the_types_of_the_key() -> None:
    runtime = OperatorRuntime(Deployment(OperatorName("op"), Numbers, (0,), ("k",), OUT), WorkerId(0))
    with pytest.raises(ProtocolError, match="0 key_types for 1 key columns"):
        runtime.delta()


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array([1, -5], pa.int8())],
        [pa.array([True, False])],
        [pa.array([0.0, float("nan"), 1.5], pa.float32())],
        [pa.array(["a", "ü", ""], pa.large_string())],
        [pa.array([b"a", b"\xff"], pa.binary())],
        [pa.array([b"ab", b"cd"], pa.binary(2))],
        [pa.array([dt.date(1, 1, 1), dt.date(2026, 1, 1)])],
        [pa.array([NEW, dt.datetime(1900, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "America/New_York"))],
        [pa.array([dt.datetime(2026, 1, 1, 2, 3, 4, 5)], pa.timestamp("us"))],
        [pa.array([Decimal("1.50"), Decimal("-2.00")], pa.decimal128(10, 2))],
        [pa.array(["a", "b", "a"]).dictionary_encode()],
        [pa.array(["a", None]), pa.array([None, 2], pa.int32())],
    ],
    ids=lambda columns: str(columns[-1].type),
)
def test_keys_of_every_type_come_back_from_a_delta(columns: list[pa.Array]) -> None:
    worker = Worker(Numbers, *(column.type for column in columns))
    worker.begin()
    for key in freeze_keys(columns):
        worker.touch(key).n = 1
    worker.runtime.seal()
    delta = worker.runtime.delta()
    assert delta is not None
    worker.runtime.commit()
    other = Worker(Numbers, *(column.type for column in columns))
    other.runtime.install([KeyGroup(0)], delta)
    assert dict(other.runtime.snapshot()) == dict(worker.runtime.snapshot())
    assert [column.type for column in delta.columns[2:-2]] == list(
        ColumnDeployment(OperatorName("op"), Adding(), (0,), worker.deployment.key_types, 4)
        .start(WorkerId(0))
        ._table.words.types
    )


class Adding:
    """Counts rows in a column."""

    columns = (ColumnSpec("n", pa.int64(), 0), ColumnSpec("x", pa.float64()))

    def setup(self, ctx: Context) -> None:
        pass

    def close(self) -> None:
        pass

    def update(self, table: Any, slots: Any, batch: pa.RecordBatch, ctx: Context) -> None:
        np.add.at(table.values("n"), slots, 1)

    def result(self, table: Any, slots: Any, ctx: Context) -> None:
        return None


class Counting(Operator):
    n: int = bl.value(0)
    x: float | None = bl.value()

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        self.n += len(rows)


def started(layout: str) -> Runtime:
    name, types = OperatorName("op"), (pa.int64(),)
    if layout == "columns":
        return ColumnDeployment(name, Adding(), (0,), types, 4).start(WorkerId(0))
    return Deployment(name, Counting, (0,), ("k",), OUT, types).start(WorkerId(0))


def numbered(count: int) -> pa.RecordBatch:
    keys = pa.array(range(count), pa.int64())
    return pa.record_batch({"k": keys, "g": pa.array(key_groups(hash_columns([keys]), 4), pa.int16())})


def state(**columns: Any) -> pa.RecordBatch:
    types = {"bedload_group": pa.int16(), "bedload_key_0": pa.int64(), "n": pa.int64(), "x": pa.float64()}
    return pa.record_batch({name: pa.array(values, types[name]) for name, values in columns.items()})


EVERY = [KeyGroup(group) for group in range(4)]
layouts = pytest.mark.parametrize("layout", ["columns", "rows"])


@layouts
def test_restored_groups_are_committed_state(layout: str) -> None:
    runtime = started(layout)
    runtime.install(EVERY, None)
    runtime.drop(EVERY)
    runtime.install(EVERY, state(bedload_group=[0, 2, 2], bedload_key_0=[1, 2, 3], n=[10, 20, 30], x=[None, 0.5, 1]))
    assert dict(runtime.snapshot()) == {1: {"n": 10, "x": None}, 2: {"n": 20, "x": 0.5}, 3: {"n": 30, "x": 1.0}}
    assert runtime.read(KeyGroup(2), 3) == {"n": 30, "x": 1.0}
    runtime.begin(Epoch(0), EVERY)
    assert runtime.seal() is None
    assert runtime.delta() is None


@layouts
def test_a_variable_that_the_restored_state_does_not_have_gets_its_default(layout: str) -> None:
    runtime = started(layout)
    runtime.install([KeyGroup(1)], state(bedload_group=[1], bedload_key_0=[4], x=[0.5]))
    assert dict(runtime.snapshot()) == {4: {"n": 0, "x": 0.5}}


@layouts
def test_groups_with_state_are_not_installed_over(layout: str) -> None:
    runtime = started(layout)
    runtime.begin(Epoch(0), EVERY)
    runtime.apply(numbered(20))
    with pytest.raises(ProtocolError, match="has state already"):
        runtime.install(EVERY, None)
    runtime.seal()
    runtime.commit()
    with pytest.raises(ProtocolError, match="has state already"):
        runtime.install([KeyGroup(1)], None)
    assert runtime.keys == 20


@layouts
def test_state_of_other_groups_or_without_its_columns_is_not_installed(layout: str) -> None:
    runtime = started(layout)
    with pytest.raises(ProtocolError, match="key group 3"):
        runtime.install([KeyGroup(0)], state(bedload_group=[0, 3], bedload_key_0=[1, 2], n=[1, 2]))
    with pytest.raises(ProtocolError, match="without the columns bedload_key_0"):
        runtime.install([KeyGroup(0)], state(bedload_group=[0], n=[1]))
    assert runtime.keys == 0


def test_state_of_another_type_than_declared_is_not_installed() -> None:
    runtime = started("rows")
    batch = pa.record_batch({"bedload_group": pa.array([0], pa.int16()), "bedload_key_0": [1], "n": ["many"]})
    with pytest.raises(StateTypeError, match="'n' is stored as string, but int is declared"):
        runtime.install([KeyGroup(0)], batch)
    assert runtime.keys == 0


@layouts
def test_groups_are_dropped_between_epochs_only(layout: str) -> None:
    runtime = started(layout)
    runtime.begin(Epoch(0), EVERY)
    runtime.apply(numbered(20))
    with pytest.raises(ProtocolError):
        runtime.drop([KeyGroup(0)])
    runtime.seal()
    runtime.commit()
    before = dict(runtime.snapshot())
    gone = {key for key, group in zip(*numbered(20).to_pydict().values(), strict=True) if group in (0, 3)}
    runtime.drop([KeyGroup(0), KeyGroup(3)])
    assert dict(runtime.snapshot()) == {key: value for key, value in before.items() if key not in gone}
    runtime.begin(Epoch(1), EVERY)
    runtime.apply(numbered(20))
    runtime.seal()
    runtime.commit()
    assert {key: value["n"] for key, value in runtime.snapshot()} == {key: 1 + (key not in gone) for key in range(20)}


def test_a_deployment_tells_its_layout_and_its_variables() -> None:
    class Every(Idle):
        n: int = bl.value(0)
        trip: Trip | None = bl.value()
        loose: Any = bl.value(None, codec="pickle")
        tally: Counter[str] = bl.counter()

    rows = Worker(Every).deployment
    assert rows.layout == "rows"
    assert [(v.name, v.kind, v.type) for v in rows.variables] == [
        ("n", "value", "int"),
        ("trip", "struct", "Trip | None"),
        ("loose", "opaque", "Any"),
        ("tally", "counter", "Counter[str]"),
    ]
    assert [v.field.type for v in rows.variables][3] == pa.map_(pa.string(), pa.int64())
    columns = ColumnDeployment(OperatorName("op"), Adding(), (0,), (pa.int64(),), 4)
    assert columns.layout == "columns"
    assert columns.variables == (
        ("n", "column", "int64", pa.field("n", pa.int64())),
        ("x", "column", "double", pa.field("x", pa.float64())),
    )
