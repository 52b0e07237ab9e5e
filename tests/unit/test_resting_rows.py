"""Rows at rest wake whole or not at all, and what moves on of them is what came, whatever code came meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.ids import KeyGroup, OperatorName
from bedload.keys import hash_columns
from bedload.state import RecordLayout
from bedload.store.deltas import PUT, delta_batch
from bedload.store.resting import FEW, RestingStore
from bedload.store.row_table import RowTable
from bedload.store.selection import Selection
from bedload.worker.operator import Operator, make_shared, state_of

GROUP, OTHER = KeyGroup(0), KeyGroup(1)


class Seen(Operator):
    """Its state is which keys there are."""

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


class Picky(Operator):
    n: int = bl.value(0)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "n" and value == 13:
            raise ValueError("not this one")
        super().__setattr__(name, value)

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


class Two(Operator):
    a: int = bl.value(0)
    b: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


class TwoTheOtherWayRound(Operator):
    b: int = bl.value(0)
    a: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


def resting(operator: type[Operator], keys: list[int], **state: pa.Array) -> RowTable:
    table = RowTable(OperatorName("rows"), RestingStore)
    table.bind(RecordLayout(state_of(operator)), make_shared(operator)[1], 1, [pa.int64()])
    rows = len(keys)
    table.take_in(delta_batch(np.zeros(rows, np.int16), np.full(rows, PUT, np.int8), [pa.array(keys)], state))
    return table


def test_keys_of_an_operator_without_variables_wake_and_stay() -> None:
    table = resting(Seen, [1, 2, 3])
    table.begin([GROUP])
    assert len(table.stores[GROUP].touch([1, 3, 4])) == 3
    table.seal()
    table.abort()
    assert dict(table.snapshot()) == {1: {}, 2: {}, 3: {}}


def test_keys_that_cannot_wake_are_at_rest_still() -> None:
    table = resting(Picky, [1, 2], n=pa.array([12, 13]))
    table.begin([GROUP])
    with pytest.raises(ValueError, match="not this one"):
        table.stores[GROUP].touch([1, 2])
    table.abort()
    assert dict(table.snapshot()) == {1: {"n": 12}, 2: {"n": 13}}


def test_new_code_may_declare_the_variables_in_another_order() -> None:
    table = resting(Two, [1, 2], a=pa.array([10, 20]), b=pa.array([11, 21]))
    layout = RecordLayout(state_of(TwoTheOtherWayRound))
    table.bind(layout, make_shared(TwoTheOtherWayRound)[1], 1, [pa.int64()])
    later = {"b": pa.array([31]), "a": pa.array([30])}
    table.take_in(delta_batch(np.ones(1, np.int16), np.full(1, PUT, np.int8), [pa.array([3])], later))
    shelf = table.shelve(Selection([GROUP, OTHER], named=False))
    shelf.list_some(3)
    state, _ = shelf.collect_range(0, 3)
    assert state is not None
    assert [(row["a"], row["b"]) for row in state.to_pylist()] == [(10, 11), (20, 21), (30, 31)]
    table.begin([GROUP, OTHER])
    for row in (*table.stores[GROUP].touch([1, 2]), *table.stores[OTHER].touch([3])):
        row.a += 5
    table.seal(durable=True)
    delta = table.delta()
    assert delta is not None
    assert [(row["a"], row["b"]) for row in delta.to_pylist()] == [(15, 11), (25, 21), (35, 31)]


def test_what_few_keys_at_rest_keep_is_bounded() -> None:
    many = list(range(2000))
    table = resting(Two, many, a=pa.array(many), b=pa.array(many))
    store = table.stores[GROUP]
    assert isinstance(store, RestingStore)
    for first in range(0, len(many) - 3, 97):
        table.begin([GROUP])
        for row in store.touch(many[first : first + 97][:-1]):
            row.a += 1
        table.seal()
        table.commit()
        rest = sum(store.asleep(many))
        assert sum(batch.num_rows for batch in store._batches.values()) <= max(FEW, 4 * rest)
    assert 0 < rest < 2 * FEW
    expected = {key: {"a": key if store.asleep([key])[0] else key + 1, "b": key} for key in many}
    assert dict(table.snapshot()) == expected


def test_neighbours_that_stay_at_rest_do_not_keep_what_they_came_with() -> None:
    many = list(range(2000))
    table = resting(Two, many, a=pa.array(many), b=pa.array(many))
    store = table.stores[GROUP]
    assert isinstance(store, RestingStore)
    table.begin([GROUP])
    store.touch(many[:-100])
    table.seal()
    table.commit()
    assert sum(batch.get_total_buffer_size() for batch in store._batches.values()) == 100 * 2 * 8


def test_single_keys_are_forgotten_after_a_large_key_group() -> None:
    table, keys = resting(Two, list(range(5))), pa.array([100, 101])
    counts = {"a": pa.array([0, 1]), "b": pa.array([2, 3])}
    table.take_in(delta_batch(np.full(2, OTHER, np.int16), np.full(2, PUT, np.int8), [keys], counts))
    shelf = table.shelve(Selection([GROUP], single=[OTHER], only=hash_columns([keys.slice(1)])))
    while not shelf.drop_some(2):
        pass
    assert [key for key, _ in table.snapshot()] == [100]
