"""Rows on disk in corners: values of users' classes, containers that were kept, new code, many keys that go."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.disks import MemoryDisk
from tests.shelves import shelved
from tests.unit.test_disk_rows import GROUP, epoch, hot, table_of, tidy

import bedload.store.cache
from bedload import state as bl
from bedload.core.errors import StateNotOpen
from bedload.store.cache import Cache
from bedload.store.disk_rows import DiskStore
from bedload.store.disk_table import DiskTable
from bedload.worker.operator import Operator


class Doing(Operator):
    def process(self, key: int, rows: Any, ctx: Any) -> None: ...


def forget(table: DiskTable, keys: Sequence[int], *, commit: bool = True) -> None:
    table.begin([GROUP])
    table.stores[GROUP].touch(keys)
    table.stores[GROUP].forget(keys)
    tidy(table)
    if not commit:
        table.abort()
        return
    table.seal()
    table.commit()


def test_values_of_classes_that_no_pickle_finds_leave_as_what_they_are_equal_to() -> None:
    class Color(enum.StrEnum):
        RED = "red"

    class Day(dt.date):
        pass

    class Plain(Doing):
        color: str = bl.value("")

    class Mixed(Doing):
        color: str = bl.value("")
        seen: dict[str, dt.date] = bl.map()
        grid: np.ndarray = bl.array((2,), np.float64)

    for operator in (Plain, Mixed):
        table = table_of(Cache(0), operator=operator)
        table.begin([GROUP])
        for row in table.stores[GROUP].touch([1, 2]):
            row.color = Color.RED
            if operator is Mixed:
                row.seen[Color.RED] = Day(2026, 1, 2)
        table.seal()
        table.commit()
        before = table.read(GROUP, [1])
        tidy(table)
        assert hot(table) == set()
        (found,) = table.read(GROUP, [1])
        assert repr(found) != repr(before)
        assert found is not None
        assert type(found["color"]) is str
        if operator is Mixed:
            assert found.pop("grid").tolist() == [0, 0]
            assert before[0] is not None
            before[0].pop("grid")
        assert [found] == before


def test_a_container_of_an_object_that_has_left_is_of_no_key() -> None:
    class Kept(Doing):
        items: list[int] = bl.list()

    table = table_of(Cache(0), operator=Kept)
    table.begin([GROUP])
    kept = [row.items for row in table.stores[GROUP].touch(range(50))]
    table.seal()
    table.commit()
    tidy(table)
    table.begin([GROUP])
    table.stores[GROUP].touch(range(50))  # these have the places in memory that those had
    for items in kept:
        with pytest.raises(StateNotOpen):
            items.append(1)
    table.abort()


def test_workers_that_heard_of_new_code_sooner_and_later_understand_each_other() -> None:
    class Before(Doing):
        first: int = bl.value(0)
        second: int = bl.value(0)

    class After(Doing):
        second: int = bl.value(0)
        first: int = bl.value(0)

    old, new = table_of(Cache(0), operator=Before), table_of(Cache(0), operator=After)
    old.begin([GROUP])
    for row in old.stores[GROUP].touch([1]):
        row.first, row.second = 1, 2
    old.seal()
    old.commit()
    shelf = shelved(old, [GROUP])
    batch, _ = shelf.collect_range(0, len(shelf.hashes))
    assert batch is not None
    new.take_in(batch)
    assert dict(new.snapshot()) == dict(old.snapshot()) == {1: {"first": 1, "second": 2}}


def test_of_many_keys_that_go_at_once_none_is_left_on_the_disk() -> None:
    disk = MemoryDisk()
    table = table_of(Cache(0), disk)
    epoch(table, list(range(1800)))
    tidy(table)
    disk.full = True
    forget(table, range(1700))
    tidy(table)  # what could not be taken away is tried again
    disk.full = False
    epoch(table, [])
    tidy(table)
    assert len(disk.data) < 100 + 512
    store = table.stores[GROUP]
    assert isinstance(store, DiskStore)
    assert len(store._buried) < 512
    assert set(dict(table.snapshot())) == set(range(1700, 1800))


def test_what_an_aborted_epoch_had_removed_can_leave() -> None:
    cache = Cache(1 << 30)
    table = table_of(cache)
    epoch(table, [1, 2, 3])
    cache.most = 0
    forget(table, [1, 2], commit=False)
    assert hot(table) == {1, 2}
    tidy(table)
    epoch(table, [4])
    tidy(table)
    assert (hot(table), cache.used) == (set(), 0)


def test_objects_leave_beside_those_that_the_epoch_has_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bedload.store.cache, "SLICE", 4)
    cache = Cache(1 << 30)
    table = table_of(cache)
    epoch(table, list(range(40)))
    cache.most = 10 * table.place.each
    table.begin([GROUP])
    table.stores[GROUP].touch(range(0, 40, 4))
    tidy(table)
    assert hot(table) == set(range(0, 40, 4))
    table.abort()


def test_objects_that_are_no_more_are_not_kept_in_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bedload.store.cache, "_LITTER", 10)
    cache = Cache(1 << 30)
    table = table_of(cache)

    def kept() -> int:
        return sum(len(it.rows) for it in (*cache._tidied, *cache._entries)) - cache.count

    for number in range(0, 2000, 20):
        epoch(table, list(range(number, number + 20)))
        forget(table, range(number, number + 15))
        tidy(table)
        # Those that an epoch has touched again are in two lists, for a while.
        assert kept() <= 2 * cache.count + 10 + 40
    assert cache.count == 500
    table.drop([GROUP])
    tidy(table)
    assert (cache.count, kept()) == (0, 0)
