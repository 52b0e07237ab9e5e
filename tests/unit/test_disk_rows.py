"""Rows on disk: what leaves memory and when, what a full disk does, names and values as bytes."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.disks import MemoryDisk, MemoryDisks

import bedload.store.cache
from bedload import state as bl
from bedload.core.errors import LocalDiskError
from bedload.core.ids import Epoch, KeyGroup, OperatorName, Turn, WorkerId
from bedload.keys import freeze_keys
from bedload.keys.canonical import NAN
from bedload.state import RecordLayout
from bedload.state.kinds import Store
from bedload.store.cache import Cache
from bedload.store.disk import Packing, key_of, name_of
from bedload.store.disk_rows import DiskStore
from bedload.store.disk_table import DiskTable
from bedload.worker.operator import Operator, make_shared, state_of
from bedload.worker.row_runtime import Deployment, OperatorRuntime

GROUP, OTHER = KeyGroup(0), KeyGroup(1)


class Count(Operator):
    n: int = bl.value(0)

    def process(self, key: int, rows: Any, ctx: Any) -> None:
        self.n += len(rows)


def table_of(cache: Cache, disk: MemoryDisk | None = None, operator: type[Operator] = Count) -> DiskTable:
    table = DiskTable(OperatorName("rows"), disk or MemoryDisk(), cache)
    layout = RecordLayout(state_of(operator))
    table.bind(layout, make_shared(operator, {}, layout, table.slots)[1], 1, [pa.int64()])
    return table


def epoch(table: DiskTable, keys: list[int], *, commit: bool = True) -> None:
    table.begin([GROUP, OTHER])
    store = table.stores[GROUP]
    table.ready([(store, keys)])
    for row in store.touch(keys):
        row.n += 1
    table.seal()
    if commit:
        table.commit()
    else:
        table.abort()


def hot(table: DiskTable) -> set[int]:
    store = table.stores[GROUP]
    assert isinstance(store, DiskStore)
    return set(store.rows)


def tidy(table: DiskTable) -> None:
    for _ in range(1000):
        if not table.untidy:
            return
        table.tidy_disk()
    raise AssertionError("it is never tidy")


def test_what_was_not_touched_for_longest_leaves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bedload.store.cache, "SLICE", 2)
    cache = Cache(1 << 30)
    table = table_of(cache)
    for keys in ([1, 2, 3, 4], [5, 6], [1, 7]):
        epoch(table, keys)
    each = table.place.each
    assert (cache.count, cache.used) == (7, 7 * each)
    cache.most = 4 * each
    tidy(table)
    assert {1, 7} <= hot(table) <= {1, 5, 6, 7}
    cache.most = 2 * each
    tidy(table)
    assert {7} <= hot(table) <= {1, 7}
    assert dict(table.snapshot()) == {1: {"n": 2}} | {key: {"n": 1} for key in range(2, 8)}
    assert table.sizes().keys == 7


def test_what_did_not_change_since_it_was_read_leaves_without_a_write() -> None:
    table = table_of(Cache(0))
    epoch(table, [1, 2])
    tidy(table)
    written = table.place.figures.written
    epoch(table, [1, 2], commit=False)
    assert hot(table) == {1, 2}
    tidy(table)
    assert hot(table) == set()
    assert table.place.figures.written == written == 2
    assert dict(table.snapshot()) == {1: {"n": 1}, 2: {"n": 1}}


def test_what_an_epoch_has_touched_stays_until_it_ends_and_nobody_tries_without_end() -> None:
    table = table_of(Cache(0))
    epoch(table, [1])
    table.begin([GROUP])
    table.stores[GROUP].touch([1, 2, 3])
    tidy(table)
    assert hot(table) == {1, 2, 3}
    assert table.image_bytes() > 3 * table.place.each
    table.abort()
    epoch(table, [2])
    tidy(table)
    assert hot(table) == set()


def test_the_keys_of_a_batch_are_read_at_once() -> None:
    disk = MemoryDisk()
    table = table_of(Cache(0), disk)
    epoch(table, list(range(100)))
    tidy(table)
    disk.gets = 0
    table.begin([GROUP])
    keys = list(range(50, 150))
    table.ready([(table.stores[GROUP], keys)])
    table.stores[GROUP].touch(keys)
    assert disk.gets == 1, "new keys are not looked for once more"
    table.abort()
    stats = table.stats()
    assert (stats.keys, stats.reads, stats.evictions, stats.memory_keys) == (100, 100, 100, 50)


def test_a_full_disk_fails_who_needs_room_and_nothing_is_lost() -> None:
    disk = MemoryDisk()
    table = table_of(Cache(0), disk)
    epoch(table, [1, 2, 3])
    disk.full = True
    table.tidy_disk()
    assert not table.untidy, "it is not tried again and again"
    assert hot(table) == {1, 2, 3}
    table.begin([GROUP, OTHER])
    with pytest.raises(LocalDiskError):
        table.ready([(table.stores[GROUP], [4])])
    table.abort()
    assert dict(table.snapshot()) == {key: {"n": 1} for key in (1, 2, 3)}
    disk.full = False
    epoch(table, [1, 4])
    tidy(table)
    assert hot(table) == set()
    assert dict(table.snapshot()) == {1: {"n": 2}, 2: {"n": 1}, 3: {"n": 1}, 4: {"n": 1}}


def test_a_key_group_that_comes_back_finds_nothing_of_before() -> None:
    disk = MemoryDisk()
    table = table_of(Cache(0), disk)
    epoch(table, [1, 2])
    tidy(table)
    disk.full = True  # even if it could not be taken away
    table.drop([GROUP])
    disk.full = False
    assert disk.data
    table.install([GROUP], None)
    assert table.sizes().keys == 0
    assert table.read(GROUP, [1, 2]) == [None, None]
    assert table.place.cache.count == 0


def test_dead_keys_are_taken_from_the_disk() -> None:
    disk = MemoryDisk()
    table = table_of(Cache(0), disk)
    keys = list(range(600))
    epoch(table, keys)
    tidy(table)
    assert len(disk.data) == 600
    table.begin([GROUP])
    store = table.stores[GROUP]
    store.touch(keys)
    store.forget(keys)
    table.seal()
    table.commit()
    assert table.untidy
    tidy(table)
    assert len(disk.data) < 600
    assert table.sizes().keys == 0
    assert table.read(GROUP, [3]) == [None]


def test_keys_that_go_before_anything_was_written_leave_no_trace() -> None:
    table = table_of(Cache(1 << 30))
    for number in range(3):
        epoch(table, [number])
        table.begin([GROUP])
        table.stores[GROUP].touch([number])
        table.stores[GROUP].forget([number])
        table.seal()
        table.commit()
    store = table.stores[GROUP]
    assert isinstance(store, DiskStore)
    assert not store._buried


def test_lists_of_objects_that_are_touched_again_and_again_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bedload.store.cache, "_LOOSE", 10)
    cache = Cache(1000 * 300)
    table = table_of(cache)
    for number in range(300):
        epoch(table, [1, 2, 3, 1000 + number % 50])
        assert cache._listed <= 2 * (10 * cache.count + 10)
    assert cache.count == 53
    assert sum(len(it.rows) + 8 for it in (*cache._entries, *cache._tidied)) == cache._listed
    assert dict(table.snapshot())[1] == {"n": 300}


@dataclass
class Point:
    x: int = 0
    path: list[int] | None = None


class Everything(Operator):
    at: dt.datetime | None = bl.value(None)
    price: Decimal = bl.value(Decimal("1.50"))
    where: Point = bl.value(Point())
    seen: dict[str, list[int]] = bl.map()
    words: Counter[str] = bl.counter()
    pair: tuple[int, str] = bl.value((1, "a"))
    raw: dict[str, int] = bl.value({}, codec="msgspec")
    grid: np.ndarray = bl.array((2, 2), np.float64)


def test_values_of_all_types_come_back() -> None:
    layout = RecordLayout(state_of(Everything))
    packing = Packing(layout)
    zone = dt.timezone(dt.timedelta(hours=2))
    values: dict[str, list[Any]] = {
        "at": [None, dt.datetime(2026, 1, 2, tzinfo=zone)],
        "price": [Decimal("2.00"), Decimal(3)],
        "where": [Point(1, [2]), Point()],
        "seen": [{"a": [1]}, {}],
        "words": [Counter("aab"), Counter()],
        "pair": [(2, "b"), (3, "c")],
        "raw": [{"z": 1}, {}],
        "grid": [np.ones((2, 2)), np.zeros((2, 2))],
    }
    found = packing.values(packing.of_columns(values, 2))
    assert [it.tolist() for it in found.pop("grid")] == [it.tolist() for it in values.pop("grid")]
    assert found == values
    assert [str(it) for it in found["price"]] == ["2.00", "3"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, -1, 2**63 - 1, None]),
        pa.array([True, False]),
        pa.array([0.0, -0.0, 1.5, float("nan"), float("inf")]),
        pa.array(["", "a", "\u00e4\u4e2d"]),
        pa.array([b"", b"\x00\xff"]),
        pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        pa.array([dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2026, 1, 1)], pa.timestamp("us")),
        pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        pa.array([Decimal("1.50"), Decimal("-3.25")], pa.decimal128(10, 2)),
    ],
    ids=lambda column: str(column.type),
)
def test_names_tell_keys_apart_and_give_them_back(column: pa.Array) -> None:
    for columns in ([column], [column, column]):
        keys = freeze_keys(columns)
        back = [key_of(name_of(key)) for key in keys]
        assert [repr(key) for key in back] == [repr(key) for key in keys]
        assert len(set(map(name_of, keys))) == len(set(map(repr, keys)))
    assert key_of(name_of(NAN)) is NAN


def test_operator_code_on_disk_gives_what_it_gives_in_memory() -> None:
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])

    class Running(Operator):
        n: int = bl.value(0)

        def process(self, key: int, rows: Any, ctx: Any) -> tuple[int, int]:
            self.n += len(rows)
            return key, self.n

    outputs = []
    for store in Store:
        deployment = Deployment(OperatorName("op"), Running, (0,), ("k",), schema, (pa.int64(),), store=store)
        stores = MemoryDisks(500)
        runtime = OperatorRuntime(deployment, WorkerId(0), stores)
        found = []
        for number in range(6):
            runtime.stand(Turn(number), Turn(number - 1), [GROUP, OTHER])
            runtime.begin(Epoch(number), [GROUP, OTHER])
            ks = [(number * 7 + i * i) % 23 for i in range(12)]
            groups = pa.array([key % 2 for key in ks], pa.int16())
            batch = pa.RecordBatch.from_arrays([pa.array(ks), groups], names=["k", "bedload_group"])
            out = runtime.apply(batch)
            assert out is not None
            found.append(sorted(zip(*(column.to_pylist() for column in out.columns), strict=True)))
            runtime.seal()
            runtime.write(Turn(number), lambda group: True)
            runtime.commit() if number % 3 else runtime.abort()
            while runtime.untidy:
                runtime.tidy()
        outputs.append((found, sorted((key, it["n"]) for key, it in runtime.snapshot())))
        runtime.give_up()
    assert all(it == outputs[0] for it in outputs)
