"""New keys in bulk: the table is as if they had come one by one, and what fails leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.errors import ClusterError, ProtocolError
from bedload.core.ids import KeyGroup
from bedload.store.columns import ColumnSpec, ColumnTable, index
from bedload.store.deltas import GROUP, key_column

N = ColumnSpec("n", pa.int64(), 0)


@pytest.fixture(autouse=True, params=[None, 16], ids=["in one part", "in parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param is not None:
        monkeypatch.setattr(index, "_TOGETHER", request.param)


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
    runs = table.index.insert(np.array([[100], [101]]), np.array([[0, 0, 2]]))
    assert runs is not None
    assert set(runs.slots.tolist()) <= {3, 7, 11}
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


def test_a_key_that_is_there_in_the_last_of_many_groups_fails_all_of_them() -> None:
    table = ColumnTable([pa.int64()], [N], 40, block=16)
    table.install([KeyGroup(39)], state([999], [39], pa.int64()))
    keys, groups = [*range(390), 999], [*np.repeat(np.arange(39), 10).tolist(), 39]
    with pytest.raises(ProtocolError, match="there already, or twice"):
        table.install([*map(KeyGroup, range(40))], state(keys, groups, pa.int64()), more=[KeyGroup(39)])
    table.check()
    assert table.index.live == 1


def test_what_does_not_fit_in_leaves_nothing() -> None:
    table = ColumnTable([pa.int64()], [N], 2, block=16, max_slots=32)
    table.install([KeyGroup(0)], state([1], [0], pa.int64()))
    with pytest.raises(ClusterError, match="room for 32 keys"):
        table.install([KeyGroup(1)], state(list(range(40)), [1] * 40, pa.int64()))
    table.check()
    assert table.index.live == 1


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
@pytest.mark.parametrize("seed", range(4))
def test_keys_in_bulk_are_as_keys_one_by_one(kind: pa.DataType, seed: int) -> None:
    chance = np.random.default_rng(seed)
    table, other = (ColumnTable([kind], [N, ColumnSpec("x", pa.int32())], 6, block=16) for _ in range(2))
    there: list[int] = []
    for _ in range(8):
        new = (chance.choice(5000, int(chance.integers(1, 900)), replace=False) + 5000 * len(there)).tolist()
        gone = chance.choice(there, len(there) // 3, replace=False).tolist() if there else []
        new.sort(key=lambda key: key % 6)
        there = [key for key in there if key not in set(gone)] + new
        for each in (table, other):
            slots = each.find([pa.array(gone, pa.int64()).cast(kind)], np.array(gone, np.int64) % 6)
            each.discard(slots)
        keys = [pa.array(new).cast(kind)]
        table.put(keys, np.array(new) % 6, pa.record_batch({"n": pa.array(new)}))
        slots = other.locate(keys, np.array(new) % 6)
        other.values("n")[slots] = new
        other.commit()
        table.check()
        of = np.array(there) % 6
        for each in (table, other):
            slots = each.find([pa.array(there).cast(kind)], of)
            assert each.committed(slots).to_pydict() == {"n": there, "x": [None] * len(there)}
        assert table.index.live == other.index.live == len(there)
