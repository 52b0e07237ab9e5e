"""What is particular to shelves of columns: slots that are given to other keys, and code on whole batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.shelves import drop, note, shelved

import bedload as bl
from bedload import VectorOperator, value
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.keys import hash_columns, key_groups
from bedload.operators.aggregates.logic import Aggregates
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns import shelf as shelf_of_columns
from bedload.store.columns.shelf import ColumnShelf
from bedload.store.deltas import OP, PUT, REMOVE
from bedload.store.selection import Selection
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.runtime import Runtime
from bedload.worker.vector import VectorLogic

GROUPS = 8
EVERY = [KeyGroup(group) for group in range(GROUPS)]


class Subject:
    """A table of one string key and one number."""

    def __init__(self) -> None:
        self.table = ColumnTable([pa.string()], [ColumnSpec("n", pa.int64(), 0)], 2, block=4)

    def write(self, keys: list[str], n: int, group: int = 0) -> np.ndarray:
        slots = self.table.locate([pa.array(keys, pa.string())], np.full(len(keys), group))
        self.table.values("n")[slots] = n
        return slots

    def shelve(self, **which: Any) -> ColumnShelf:
        return shelved(self.table, [KeyGroup(0)], **which)

    def given(self, shelf: ColumnShelf, *keys: str) -> dict[str, tuple[int, int | None]]:
        batch, left = shelf.collect(hash_columns([pa.array(keys)]))
        assert not len(left)
        self.table.check()
        return {} if batch is None else {row["bedload_key_0"]: (row[OP], row["n"]) for row in batch.to_pylist()}


def test_a_slot_that_was_given_to_another_key_does_not_give_its_state() -> None:
    subject = Subject()
    (slot,) = subject.write(["old"], 1)
    subject.table.commit()
    shelf = subject.shelve()
    subject.table.delete(subject.write(["old"], 1))
    subject.table.commit()
    assert subject.write(["new"], 2).tolist() == [slot], "the slot was not reused: this test proves nothing"
    subject.table.commit()
    assert subject.given(shelf, "old", "new") == {"old": (REMOVE, None)}
    assert ColumnShelf.collect_range(shelf, 0, 1)[0].column(OP).to_pylist() == [REMOVE]
    subject.write(["new"], 3)
    subject.table.seal()
    assert note(shelf).tolist() == hash_columns([pa.array(["new"])]).tolist()
    assert subject.given(shelf, "old", "new") == {"old": (REMOVE, None), "new": (PUT, 3)}


def test_blocks_and_interned_bytes_that_were_given_to_other_keys_do_not_mislead() -> None:
    subject = Subject()
    keys = [f"key {i}" for i in range(6000)]
    subject.write(keys, 1)
    subject.table.commit()
    shelf = subject.shelve()
    subject.table.drop([KeyGroup(0)])
    others = [f"other {i}" for i in range(6000)]
    subject.write(others, 2, group=1)
    subject.table.commit()
    subject.write(keys[:2], 3)
    subject.table.seal()
    assert set(note(shelf).tolist()) == set(hash_columns([pa.array(keys[:2])]).tolist())
    subject.table.commit()
    expected: dict[str, tuple[int, int | None]] = dict.fromkeys(keys, (REMOVE, None))
    expected |= dict.fromkeys(keys[:2], (PUT, 3))
    assert subject.given(shelf, *keys, *others) == expected
    assert len(shelf.hashes) == 6000


def test_a_shelf_that_nobody_has_any_more_is_not_told_of_slots() -> None:
    subject = Subject()
    subject.write(["a"], 1)
    subject.table.commit()
    shelf = subject.shelve()
    assert len(subject.table.watchers) == 1
    del shelf
    assert len(subject.table.watchers) == 0


def test_another_shelf_learns_of_keys_that_were_dropped_or_taken_out() -> None:
    subject = Subject()
    subject.write(["a", "b", "c"], 1)
    subject.table.commit()
    both, one = subject.shelve(), subject.shelve(only=hash_columns([pa.array(["a"])]))
    drop(one)
    assert subject.given(both, "a", "b", "c") == {"a": (REMOVE, None), "b": (PUT, 1), "c": (PUT, 1)}
    gone, _ = both.collect(hash_columns([pa.array(["a"])]))
    assert gone is not None
    subject.table.take_in(gone.set_column(2, "bedload_key_0", pa.array(["b"])))
    assert subject.given(both, "a", "b", "c") == {"a": (REMOVE, None), "b": (REMOVE, None), "c": (PUT, 1)}
    drop(both)
    assert subject.table.index.live == 0


@pytest.mark.parametrize("without", [[], ["k3", "k77"]])
def test_a_large_key_group_goes_some_keys_at_a_time(monkeypatch: pytest.MonkeyPatch, without: list[str]) -> None:
    monkeypatch.setattr(shelf_of_columns, "_ONE_BY_ONE", 16)
    table = ColumnTable([pa.string()], [ColumnSpec("label", pa.string(), "new")], 2, block=4)
    keys = [f"k{i}" for i in range(100)]
    table.locate([pa.array(keys)], np.arange(100) % 2)
    table.commit()
    odd = [key for key in without if int(key[1:]) % 2]
    shelf = shelved(table, EVERY[:2], without=hash_columns([pa.array(without, pa.string())]) if without else None)
    left = []
    while not shelf.drop_some(8):
        table.check()
        left.append(table.index.live)
    assert left == sorted(left, reverse=True)
    assert all(before - after <= 16 for before, after in pairwise([100, *left]))
    assert table.index.live == len(without)
    assert (table.find([pa.array(odd, pa.string())], np.ones(len(odd))) >= 0).all()


def test_keys_that_came_in_after_the_shelf_was_made_are_noted_when_they_change() -> None:
    subject, other = Subject(), Subject()
    other.write(["a", "b"], 5)
    other.table.commit()
    batch, _ = other.shelve().collect_range(0, 2)
    shelf = subject.shelve()
    subject.table.take_in(batch)
    assert not len(shelf.hashes)
    subject.write(["a"], 6)
    subject.table.seal()
    note(shelf)
    assert subject.given(shelf, "a", "b") == {"a": (PUT, 6)}


def test_slots_of_many_groups_come_group_by_group() -> None:
    table = ColumnTable([pa.int64()], [ColumnSpec("n", pa.int64(), 0)], GROUPS, block=4)
    keys = np.random.default_rng(1).permutation(500)
    table.locate([pa.array(keys)], keys % 7)
    table.commit()
    table.discard(table.find([pa.array(keys[:200])], keys[:200] % 7))
    table.drop([KeyGroup(3)])
    wanted = [KeyGroup(group) for group in (5, 0, 3, 6)]
    assert table.index.slots_in(wanted).tolist() == [
        slot for group in wanted for slot in table.index.slots_of(group).tolist()
    ]
    assert table.index.slots_in([]).tolist() == []


# --- code on whole batches ---


class Mean(VectorOperator):
    n: int = value(0)
    name: str | None = value(None)

    def process(self, batch: Any, state: Any, ctx: Any) -> Any:
        n = state["n"] + np.bincount(batch.index, minlength=len(state["n"]))
        return {"n": n, "name": np.array([f"n{i}" if i % 2 else None for i in n.tolist()], object)}


SCHEMA = pa.schema([("x", pa.float64()), ("key", pa.string())])


def vector() -> ColumnDeployment:
    logic = VectorLogic(Mean, pa.schema([("n", pa.int64())]))
    return ColumnDeployment(OperatorName("op"), logic, (1,), (pa.string(),), GROUPS)


def aggregate() -> ColumnDeployment:
    functions = {
        "n": bl.agg.count(),
        "total": bl.agg.sum("x"),
        "most": bl.agg.max("x"),
        "different": bl.agg.approx_distinct("x"),
    }
    return ColumnDeployment(
        OperatorName("op"), Aggregates(functions, SCHEMA, (1,), ("key",)), (1,), (pa.string(),), GROUPS
    )


def batch_of(first: int, count: int) -> pa.RecordBatch:
    keys = pa.array([f"k{i % 50}" for i in range(first, first + count)])
    groups = pa.array(key_groups(hash_columns([keys]), GROUPS), pa.int16())
    numbers = pa.array(np.arange(first, first + count) / 2)
    return pa.RecordBatch.from_arrays([numbers, keys, groups], names=["x", "key", "bedload_group"])


def epoch(runtime: Runtime, number: int, batch: pa.RecordBatch) -> None:
    runtime.begin(Epoch(number), EVERY)
    runtime.apply(batch)
    runtime.seal()
    runtime.commit()


@pytest.mark.parametrize("make", [vector, aggregate])
def test_code_on_whole_batches_goes_on_elsewhere_where_it_was(make: Any) -> None:
    alone, source, target = (make().start(WorkerId(i)) for i in range(3))
    for runtime in (alone, source):
        epoch(runtime, 0, batch_of(0, 120))
    moved = EVERY[::2]
    shelf = shelved(source, moved)
    target.begin(Epoch(1), EVERY)
    for first in range(0, len(shelf.hashes), 7):
        target.take_in(shelf.collect_range(first, 7)[0])
    drop(shelf)
    alone.begin(Epoch(1), EVERY)
    source.begin(Epoch(1), EVERY)
    rows = batch_of(30, 100)
    alone.apply(rows)
    there = np.isin(rows.column(2).to_numpy(), moved)
    source.apply(rows.filter(pa.array(~there)))
    target.apply(rows.filter(pa.array(there)))
    for runtime in (alone, source, target):
        runtime.seal()
        runtime.commit()
    assert dict(source.snapshot()) | dict(target.snapshot()) == dict(alone.snapshot())
    assert source.keys + target.keys == alone.keys


def test_the_hashes_of_rows_that_were_combined_are_those_of_their_keys() -> None:
    deployment = aggregate()
    runtime, rows = deployment.start(WorkerId(0)), batch_of(0, 200)
    assert isinstance(deployment.logic, Aggregates)
    assert runtime.hashes(rows).tolist() == hash_columns([rows.column(1)]).tolist()
    combined = deployment.logic.partial(rows)
    assert combined is not None
    assert runtime.hashes(combined).tolist() == hash_columns([combined.column(0)]).tolist()
    assert len(set(runtime.hashes(combined).tolist())) == 50
    alike = combined.replace_schema_metadata(None)
    assert runtime.hashes(alike).tolist() == hash_columns([alike.column(1)]).tolist(), "names alone say nothing"


def test_small_key_groups_are_forgotten_together_and_not_all_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = 1024
    table = ColumnTable([pa.string()], [ColumnSpec("n", pa.int64(), 0)], groups)
    table.locate([pa.array([f"key {i}" for i in range(groups)])], np.arange(groups))
    table.commit()
    shelf = table.shelve(Selection([KeyGroup(group) for group in range(groups)]))
    dropped: list[int] = []
    drop_groups = table.index.drop

    def counted(*some: KeyGroup) -> None:
        dropped.append(len(some))
        drop_groups(*some)

    monkeypatch.setattr(table.index, "drop", counted)
    assert not shelf.drop_some(1 << 14)
    assert dropped == [256], "each costs a look at the blocks of all"
    while not shelf.drop_some(1 << 14):
        table.check()
    assert sum(dropped) == groups
    assert table.sizes().keys == 0
