"""New keys in bulk: the table is as if they had come one by one, and what fails leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.errors import ClusterError, ProtocolError
from bedload.core.ids import KeyGroup
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.deltas import GROUP, key_column

N = ColumnSpec("n", pa.int64(), 0)


def state(keys: list[int], groups: list[int], kind: pa.DataType) -> pa.RecordBatch:
    columns = [pa.array(groups, pa.int16()), pa.array(keys).cast(kind), pa.array(keys, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, [GROUP, key_column(0), "n"])


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_groups_come_and_go_beside_an_epoch_that_touches_others(kind: pa.DataType) -> None:
    table = ColumnTable([kind], [N], 5, block=16)
    chance = np.random.default_rng(3)
    there: dict[int, list[int]] = {group: [] for group in range(4)}
    for round_ in range(30):
        mine = chance.integers(0, 500, 20)
        slots = table.locate([pa.array(mine).cast(kind)], np.full(20, 4))
        table.values("n")[slots] = round_
        group = int(chance.integers(4))
        table.drop([KeyGroup(group)])
        keys = chance.choice(10_000, int(chance.integers(1, 2000)), replace=False) * 5 + group
        there[group] = keys.tolist()
        table.install([KeyGroup(group)], state(there[group], [group] * len(keys), kind))
        table.check()
        assert len(table.index.touched) == len(set(mine.tolist())), "an install touches nothing"
        table.commit() if round_ % 2 else table.abort()
        for other, keys_there in there.items():
            found = table.find([pa.array(keys_there, pa.int64()).cast(kind)], np.full(len(keys_there), other))
            assert table.values("n")[found].tolist() == keys_there
            assert table.index.count(KeyGroup(other)) == len(keys_there)
    table.check()


def test_free_slots_of_a_group_are_used_first() -> None:
    table = ColumnTable([pa.int64()], [N], 2, block=16)
    table.install([KeyGroup(0)], state(list(range(20)), [0] * 20, pa.int64()))
    table.discard(table.find([pa.array([3, 7, 11])], np.zeros(3, np.int16)))
    before = table.index.capacity
    slots = table.index.insert(np.array([[100], [101]]), np.zeros(2, np.int16))
    assert slots is not None
    assert set(slots.tolist()) <= {3, 7, 11}
    assert table.index.capacity == before
    table.check()


@pytest.mark.parametrize("keys", [[1, 2, 3, 2], [*range(2000), 1999], [1, 50]])
def test_a_key_that_is_there_twice_fails_the_whole_of_it(keys: list[int]) -> None:
    table = ColumnTable([pa.int64()], [N], 3, block=16)
    table.install([KeyGroup(1)], state([50], [1], pa.int64()))
    twice = state([77, *keys], [0, *([1] * len(keys))], pa.int64())
    with pytest.raises(ProtocolError, match="there already, or twice"):
        table.install([KeyGroup(0), KeyGroup(1)], twice, more=[KeyGroup(1)])
    table.check()
    assert table.index.live == 1


def test_what_does_not_fit_in_leaves_nothing() -> None:
    table = ColumnTable([pa.int64()], [N], 2, block=16, max_slots=32)
    table.install([KeyGroup(0)], state([1], [0], pa.int64()))
    with pytest.raises(ClusterError, match="room for 32 keys"):
        table.install([KeyGroup(1)], state(list(range(40)), [1] * 40, pa.int64()))
    table.check()
    assert table.index.live == 1
