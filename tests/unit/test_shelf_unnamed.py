"""Shelves without names, and the bulk insert of what comes from them: the same state as with names, by ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shelves import listed, meant

from bedload import state as bl
from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup, OperatorName
from bedload.state import RecordLayout
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.deltas import PUT, delta_batch
from bedload.store.resting import RestingStore
from bedload.store.row_table import RowTable
from bedload.store.selection import Selection
from bedload.worker.operator import Operator, make_shared, state_of

GROUPS = 4
EVERY = [KeyGroup(group) for group in range(GROUPS)]


class Small(Operator):
    n: int = bl.value(0)
    half: float | None = bl.value(None)

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


def table_of(layout: str) -> Any:
    if layout == "columns":
        columns = [ColumnSpec("n", pa.int64(), 0), ColumnSpec("half", pa.float64(), None)]
        return ColumnTable([pa.int64()], columns, GROUPS, block=4)
    table = RowTable(OperatorName("rows"), RestingStore)
    table.bind(RecordLayout(state_of(Small)), make_shared(Small)[1], 1, [pa.int64()])
    return table


def batch_of(keys: list[int], n: int) -> pa.RecordBatch:
    keys = sorted(keys, key=lambda key: key % GROUPS)
    halves = [None if key % 3 else key / 2 for key in keys]
    state = {"n": pa.array([key + n for key in keys], pa.int64()), "half": pa.array(halves, pa.float64())}
    groups = np.array([key % GROUPS for key in keys], np.int16)
    return delta_batch(groups, np.full(len(keys), PUT, np.int8), [pa.array(keys, pa.int64())], state)


layouts = pytest.mark.parametrize("layout", ["columns", "rows"])
sets = st.lists(st.integers(0, 300), unique=True, min_size=1, max_size=80)


@layouts
@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(sets, min_size=1, max_size=4), at_once=st.integers(1, 40), piece=st.integers(1, 30), data=st.data()
)
def test_what_comes_from_a_shelf_without_names_is_the_state(
    layout: str, parts: list[list[int]], at_once: int, piece: int, data: st.DataObject
) -> None:
    old, new = table_of(layout), table_of(layout)
    for number, keys in enumerate(parts):
        old.take_in(batch_of(keys, number))  # some over what is there
    shelf = listed(old.shelve(Selection(EVERY, named=False)), at_once)
    assert len(shelf.hashes) == 0
    new.foresee(shelf.expected)
    ranges = [(first, min(piece, shelf.whole - first)) for first in range(0, shelf.whole, piece)]
    again = data.draw(st.lists(st.sampled_from(ranges), max_size=3))
    for first, count in [*ranges, *again]:  # some twice, as after a connection that broke
        batch, left = shelf.collect_range(first, count)
        assert not len(left)
        new.take_in(batch)
    wanted = {
        key: {"n": key + number, "half": None if key % 3 else key / 2}
        for number, keys in enumerate(parts)
        for key in keys
    }
    assert dict(new.snapshot()) == dict(old.snapshot()) == wanted
    assert new.sizes().keys == len(wanted)
    if layout == "columns":
        new.check()
    named = listed(new.shelve(meant(EVERY)))
    batch, _ = named.collect_range(0, named.whole)
    assert dict(zip(batch.column("bedload_key_0").to_pylist(), batch.column("n").to_pylist(), strict=True)) == {
        key: state["n"] for key, state in wanted.items()
    }
    while not shelf.drop_some(7):
        pass
    assert old.sizes().keys == 0


def test_a_shelf_without_names_says_so_if_its_keys_go() -> None:
    table = table_of("columns")
    table.take_in(batch_of(list(range(20)), 0))
    shelf = listed(table.shelve(Selection(EVERY, named=False)))
    table.drop([KeyGroup(1)])
    with pytest.raises(ProtocolError, match="on their way"):
        shelf.collect_range(0, 5)


def test_rows_at_rest_wake_one_by_one_and_go_back_when_the_epoch_does_not_count() -> None:
    table = table_of("rows")
    table.take_in(batch_of(list(range(20)), 1))
    store = table.stores[KeyGroup(1)]
    table.begin(EVERY)
    (row,) = store.touch([5])
    assert store.asleep([1, 5, 9]) == [True, False, True]
    row.n, row.half = 70, 0.5
    table.seal()
    assert table.read(KeyGroup(1), [5, 9]) == [{"n": 6, "half": None}, {"n": 10, "half": 4.5}]
    table.abort()
    assert table.read(KeyGroup(1), [5]) == [{"n": 6, "half": None}]
    assert store.sizes().keys == 5
    table.take_in(batch_of([5, 9], 2))  # over an object, and over a row at rest
    assert store.asleep([5, 9]) == [True, True]
    assert table.read(KeyGroup(1), [5, 9]) == [{"n": 7, "half": None}, {"n": 11, "half": 4.5}]
    assert store.sizes().keys == 5
