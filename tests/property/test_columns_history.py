"""Random histories of column tables against plain dicts, with the invariants checked after every step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from bedload.core.ids import KeyGroup
from bedload.store.columns import ColumnSpec, ColumnTable, interner, memory, slot_table
from bedload.store.columns import index as column_index

GROUPS = 5
Key = tuple[str | None, int]
Model = dict[Key, tuple[int, float | None, str | None]]
COLUMNS = (
    ColumnSpec("n", pa.int64(), 0),
    ColumnSpec("last", pa.float64()),
    ColumnSpec("label", pa.string()),
)


class Write(NamedTuple):
    """Add to keys and set the rest of their state; a key may come twice."""

    keys: list[Key]
    number: int


class Delete(NamedTuple):
    """Remove keys."""

    keys: list[Key]


class Commit(NamedTuple):
    pass


class Abort(NamedTuple):
    pass


class Move(NamedTuple):
    """Commit, and take a key group to the other table."""

    group: int


class MoveKeys(NamedTuple):
    """Commit, and take keys to the other table."""

    keys: list[Key]


Op = Write | Delete | Commit | Abort | Move | MoveKeys

# The group of a key is its number: many keys of one group, and groups that run empty.
some_keys: st.SearchStrategy[list[Key]] = st.lists(
    st.tuples(st.none() | st.sampled_from(["", "a", "bb", "a longer one", "a longer two"]), st.integers(0, GROUPS - 1)),
    max_size=12,
)
histories = st.lists(
    st.builds(Write, some_keys, st.integers(1, 9))
    | st.builds(Write, some_keys, st.integers(1, 9))
    | st.builds(Delete, some_keys)
    | st.builds(Commit)
    | st.builds(Abort)
    | st.builds(Move, st.integers(0, GROUPS - 1))
    | st.builds(MoveKeys, some_keys),
    max_size=20,
)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens now and then in large tables happens all the time in these small ones."""
    monkeypatch.setattr(interner, "_SWEPT_FROM", 1)
    monkeypatch.setattr(interner, "_SLICE", 1)
    monkeypatch.setattr(slot_table, "_TIDIED", 2)
    monkeypatch.setattr(slot_table, "_TIDIED_PER_KEY", 1)
    monkeypatch.setattr(column_index, "KEPT_PLACES", 2)
    monkeypatch.setattr(memory, "_SMALL", 0)


class Side:
    """A table, and its model: the committed state and the current one."""

    def __init__(self) -> None:
        self.table = ColumnTable([pa.string(), pa.int64()], COLUMNS, GROUPS, block=2)
        self.committed: Model = {}
        self.current: Model = {}

    def run(self, op: Write | Delete | Commit | Abort) -> None:
        table = self.table
        match op:
            case Write(keys, number):
                slots = table.locate(_columns(keys), _groups(keys))
                np.add.at(table.values("n"), slots, number)
                table.values("last")[slots] = number / 2
                table.valid("last")[slots] = number % 2 == 1
                table.write_column(slots, "label", pa.array([f"l{number}"] * len(keys), pa.string()))
                for key in keys:
                    n = self.current.get(key, (0, None, None))[0] + number
                    self.current[key] = (n, number / 2 if number % 2 else None, f"l{number}")
            case Delete(keys):
                table.delete(table.locate(_columns(keys), _groups(keys)))
                for key in keys:
                    self.current.pop(key, None)
            case Commit():
                table.seal()
                table.commit()
                self.committed = dict(self.current)
            case Abort():
                table.abort()
                self.current = dict(self.committed)

    def check(self) -> None:
        table = self.table
        table.check()
        assert _read(table, committed=True) == self.committed
        for group in range(GROUPS):
            batch = table.extract(table.committed_slots(KeyGroup(group)))
            batch.validate(full=True)
            assert _model(batch) == {key: state for key, state in self.committed.items() if key[1] == group}
        changed = dict(zip(_keys(table, table.changed()), _values(table.current(table.changed())), strict=True))
        before, after = self.committed, self.current
        # A key that was removed and made again counts as changed even if it came out the same.
        made = set(_keys(table, table.created()))
        assert made >= after.keys() - before.keys()
        assert {key: after[key] for key in after if key in made or after[key] != before.get(key)} == changed
        assert set(_keys(table, table.removed())) == before.keys() - after.keys()


def _columns(keys: list[Key]) -> list[pa.Array]:
    return [pa.array([key[0] for key in keys], pa.string()), pa.array([key[1] for key in keys], pa.int64())]


def _groups(keys: list[Key]) -> Any:
    return np.array([key[1] for key in keys], np.int16)


def _keys(table: ColumnTable, slots: Any) -> list[Key]:
    first, second = table.keys(slots)
    return list(zip(first.to_pylist(), second.to_pylist(), strict=True))


def _values(state: pa.RecordBatch) -> list[Any]:
    return list(zip(*(column.to_pylist() for column in state.columns), strict=True))


def _model(batch: pa.RecordBatch) -> Model:
    rows = _values(batch)
    return {row[:2]: row[2:] for row in rows}


def _read(table: ColumnTable, *, committed: bool) -> Model:
    slots = table.committed_slots()
    return dict(zip(_keys(table, slots), _values(table.committed(slots)), strict=True))


@examples(150)
@given(history=histories, plain_memory=st.booleans())
def test_tables_do_what_dicts_do_whatever_happens(history: list[Op], plain_memory: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if plain_memory:
            patch.setattr(memory, "_reserve", lambda size: None)
        here, there = Side(), Side()
        for op in history:
            match op:
                case Move(group):
                    _move_group(here, there, KeyGroup(group))
                case MoveKeys(keys):
                    _move_keys(here, there, keys)
                case _:
                    here.run(op)
            here.check()
        here.run(Abort())
        here.check()
        there.check()
        for side in (here, there):
            slots = side.table.find(_columns(list(side.committed)), _groups(list(side.committed)))
            assert _keys(side.table, slots) == list(side.committed)


def _move_group(here: Side, there: Side, group: KeyGroup) -> None:
    here.run(Commit())
    batch = here.table.extract(here.table.committed_slots(group))
    there.table.put(batch.columns[:2], np.full(batch.num_rows, group), batch)
    here.table.drop([group])
    _moved(here, there, [key for key in here.committed if key[1] == group])


def _move_keys(here: Side, there: Side, keys: list[Key]) -> None:
    here.run(Commit())
    slots = here.table.find(_columns(keys), _groups(keys))
    slots = slots[slots >= 0]
    batch = here.table.extract(slots)
    there.table.put(batch.columns[:2], here.table.index.group_of(slots), batch)
    here.table.discard(slots)
    _moved(here, there, [key for key in dict.fromkeys(keys) if key in here.committed])


def _moved(here: Side, there: Side, keys: list[Key]) -> None:
    for key in keys:
        there.committed[key] = there.current[key] = here.committed.pop(key)
        del here.current[key]
