"""The hash table of a large key group is several: the state is the same, and no table grows beyond its bound."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.ids import KeyGroup
from bedload.store.columns import ColumnSpec, ColumnTable, split_tables
from bedload.store.columns import kernels as k

N = ColumnSpec("n", pa.int64(), 0)
GROUPS = 3


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_tables, "WIDEST", 64)


def widest(table: ColumnTable) -> int:
    return int(table.index._tables.list[:, k.CAPACITY].max())


def of(keys: list[int]) -> np.ndarray:
    return np.array(keys, np.int64) % GROUPS


def by_group(keys: list[int]) -> list[int]:
    return sorted(keys, key=lambda key: key % GROUPS)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
@pytest.mark.parametrize("seed", range(5))
def test_keys_come_and_go_in_every_way(seed: int, kind: pa.DataType) -> None:
    chance = np.random.default_rng(seed)
    table = ColumnTable([kind], [N], GROUPS, block=16)
    state: dict[int, int] = {}
    for epoch in range(25):
        known, new = list(state), chance.integers(0, 5000, 300).tolist()
        match chance.integers(6):
            case 0:  # in bulk, all of them new or not
                keys = by_group(list({*new} - {*known} if epoch % 2 else {*new}))
                batch = pa.record_batch({"n": pa.array([epoch] * len(keys), pa.int64())})
                table.put([pa.array(keys, pa.int64()).cast(kind)], of(keys), batch)
                state |= dict.fromkeys(keys, epoch)
            case 1 if known:
                gone = list(set(chance.choice(known, len(known) // 2).tolist()))
                table.discard(table.find([pa.array(gone, pa.int64()).cast(kind)], of(gone)))
                state = {key: n for key, n in state.items() if key not in set(gone)}
            case 2 if epoch % 3 == 0:
                table.drop([KeyGroup(1)])
                state = {key: n for key, n in state.items() if key % GROUPS != 1}
            case _:
                slots = table.locate([pa.array(new, pa.int64()).cast(kind)], of(new))
                table.values("n")[slots] = epoch
                table.delete(slots[:20])
                if chance.integers(3):
                    table.commit()
                    gone = set(new[:20])
                    state = {key: n for key, n in (state | dict.fromkeys(new, epoch)).items() if key not in gone}
                else:
                    table.abort()
        table.check()
        keys = list(state)
        slots = table.find([pa.array(keys, pa.int64()).cast(kind)], of(keys))
        assert table.values("n")[slots].tolist() == list(state.values())
        assert table.index.live == len(state)
        for group in range(GROUPS):
            mine = [key for key in keys if key % GROUPS == group]
            assert table.index.count(KeyGroup(group)) == len(mine)
            assert len(table.index.some_slots(KeyGroup(group), 1 << 20)[0]) == len(mine)
        assert widest(table) <= 64


def test_a_table_that_is_emptied_and_filled_again_takes_no_more_room() -> None:
    table = ColumnTable([pa.int64()], [N], GROUPS, block=16)
    sizes = []
    for _ in range(5):
        table.locate([pa.array(range(3000))], of(list(range(3000))))
        table.commit()
        table.check()
        sizes.append(table.index._tables.nbytes)
        table.drop(list(map(KeyGroup, range(GROUPS))))
        table.check()
    assert max(sizes[1:]) <= sizes[1]


@pytest.mark.parametrize("groups", [0, 1, GROUPS])
def test_what_is_foreseen_is_made_at_once(groups: int) -> None:
    table = ColumnTable([pa.int64()], [N], GROUPS, block=16)
    keys = by_group(list(range(3000)))
    table.foresee(len(keys), groups)
    first, rest = keys[:64], keys[64:]
    for part in (first, rest):
        table.put([pa.array(part)], of(part), pa.record_batch({"n": pa.array(part)}))
        table.check()
    tables = table.index._tables
    assert len(tables.tables_of(0)) > 16
    found = table.find([pa.array(keys)], of(keys))
    assert table.values("n")[found].tolist() == keys


def test_a_large_key_group_that_is_there_already_fails_the_whole_of_it() -> None:
    table = ColumnTable([pa.int64()], [N], 1, block=16)
    table.put([pa.array(range(0, 4000, 2))], np.zeros(2000, np.int16), pa.record_batch({"n": range(2000)}))
    words = np.array([[key] for key in [*range(1, 3001, 2), 1000]])
    assert table.index.insert(words, np.array([[0, 0, len(words)]])) is None
    table._make_room()
    table.check()
    assert table.index.live == 2000


def test_what_is_foreseen_is_foreseen_of_so_many_key_groups_alone() -> None:
    table = ColumnTable([pa.int64()], [N], GROUPS, block=16)
    table.foresee(2000, 2)
    for group in range(GROUPS):
        table.put([pa.array([group])], of([group]), pa.record_batch({"n": pa.array([1])}))
    assert [len(table.index._tables.tables_of(group)) > 1 for group in range(GROUPS)] == [True, True, False]


def test_room_for_a_huge_key_group_comes_with_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_tables, "WIDEST", 1024)
    monkeypatch.setattr(split_tables, "_AT_ONCE", 256)
    table = ColumnTable([pa.int64()], [N], 1, block=16)
    table.foresee(4000, 1)
    made = []
    for first in range(0, 4000, 100):
        keys = list(range(first, first + 100))
        table.put([pa.array(keys)], np.zeros(100, np.int16), pa.record_batch({"n": pa.array(keys)}))
        made.append(int(table.index._tables.list[:, k.CAPACITY].sum()))
        table.check()
    assert made[0] < made[-1] / 2, "room for all of them was made in one step"
    assert len(table.index._tables.tables_of(0)) >= 8, "there are so many tables as all of them need"
    slots = table.find([pa.array(range(4000))], np.zeros(4000, np.int16))
    assert table.values("n")[slots].tolist() == list(range(4000))
