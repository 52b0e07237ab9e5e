"""Columns of times against a dict: whatever happens to keys, what is due is found, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from bedload.core.ids import KeyGroup
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.index import Slots
from bedload.store.due import NEVER

GROUPS = 4
COLUMNS = (ColumnSpec("n", pa.int64(), 0), ColumnSpec("at", pa.int64(), times=True))
Model = dict[int, int | None]


class Set(NamedTuple):
    """Set a time of keys, which are made if need be."""

    keys: list[int]
    at: int


class Forget(NamedTuple):
    keys: list[int]


class Renew(NamedTuple):
    keys: list[int]


class Fire(NamedTuple):
    """What is due by a time is taken: of some keys a later time is set, of the others none."""

    now: int
    again: bool


class Look(NamedTuple):
    """Bounds follow, and nothing is taken."""

    now: int


class End(NamedTuple):
    commits: bool


class Move(NamedTuple):
    """Commit, and take a key group to a new table and back: as a whole, or key by key."""

    group: int
    whole: bool


Op = Set | Forget | Renew | Fire | Look | End | Move

times = st.integers(-3, 12)
some_keys = st.lists(st.integers(0, 11), max_size=8, unique=True)
histories = st.lists(
    st.builds(Set, some_keys, times)
    | st.builds(Set, some_keys, times)
    | st.builds(Forget, some_keys)
    | st.builds(Renew, some_keys)
    | st.builds(Fire, times, st.booleans())
    | st.builds(Look, times)
    | st.builds(End, st.booleans())
    | st.builds(Move, st.integers(0, GROUPS - 1), st.booleans()),
    max_size=30,
)


@given(histories)
@examples(300)
def test_what_is_due_is_found_in_every_history(history: list[Op]) -> None:
    table = ColumnTable([pa.int64()], COLUMNS, GROUPS, block=4)
    committed: Model = {}
    current: Model = {}
    for op in history:
        match op:
            case Set(keys, at):
                slots = _located(table, keys)
                table.times("at").put(slots, np.full(len(slots), at))
                current |= dict.fromkeys(keys, at)
            case Forget(keys):
                keys = [key for key in keys if key in current]
                table.delete(_located(table, keys))
                current = {key: at for key, at in current.items() if key not in keys}
            case Renew(keys):
                table.renew(_located(table, keys))
                current |= dict.fromkeys(keys)
            case Fire(now, again):
                column = table.times("at")
                due = column.due(now)
                assert sorted(_keys(table, due)) == sorted(_due(current, now))
                table.touch(due)
                column.clear(due)
                later = due[::2] if again else due[:0]
                column.put(later, np.full(len(later), now + 2))
                for key in _keys(table, due):
                    current[key] = None
                for key in _keys(table, later):
                    current[key] = now + 2
                column.tighten(now)
            case Look(now):
                table.times("at").tighten(now)
            case End(commits):
                if commits:
                    table.commit()
                    committed = dict(current)
                else:
                    table.abort()
                    current = dict(committed)
            case Move(group, whole):
                table.commit()
                committed = dict(current)
                _there_and_back(table, KeyGroup(group), whole=whole)
        table.check()
        for now in (-10, 0, 5, NEVER - 1):
            assert sorted(_keys(table, table.times("at").due(now))) == sorted(_due(current, now)), (op, now)
    table.abort()
    assert {key: state["at"] for key, state in table.snapshot()} == committed


def _due(model: Model, now: int) -> list[int]:
    return [key for key, at in model.items() if at is not None and at <= now]


def _located(table: ColumnTable, keys: list[int]) -> Slots:
    return table.locate([pa.array(keys, pa.int64())], np.array(keys, np.int32) % GROUPS)


def _keys(table: ColumnTable, slots: Slots) -> list[int]:
    found: list[int] = table.keys(slots)[0].to_pylist()
    return found


def _there_and_back(table: ColumnTable, group: KeyGroup, *, whole: bool) -> None:
    """Out of the table and in again: what comes back has to be found, and what went must not."""
    slots = table.committed_slots(group)
    moved = table.extract(slots)
    groups = np.full(len(slots), group, np.int32)
    other = ColumnTable([pa.int64()], COLUMNS, GROUPS, block=4)
    other.put(moved.columns[:1], groups, moved.select(["n", "at"]))
    other.check()
    assert sorted(_keys(other, other.times("at").due(5))) == sorted(
        _keys(table, np.intersect1d(table.times("at").due(5), slots))
    )
    if whole:
        table.drop([group])
    else:
        table.discard(slots)
    table.check()
    table.put(moved.columns[:1], groups, moved.select(["n", "at"]))
