"""Keys that move from one runtime to another while both run, for rows and columns alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.shelves import drop, note, noted, shelved
from tests.shelves import meant as meant_by
from tests.thorough import examples

from bedload import state as bl
from bedload.core.errors import ProtocolError, StateTypeError
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.keys import hash_columns
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.index import Slots
from bedload.store.deltas import GROUP, OP, PATCH, PUT, REMOVE
from bedload.store.shelf import NO_HASHES, Shelf
from bedload.testing.input import InputFormat
from bedload.worker.column_runtime import ColumnDeployment, ColumnRuntime
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows
from bedload.worker.runtime import Runtime, Startable

GROUPS = 4
FORGET = 0
EVERY = [KeyGroup(group) for group in range(GROUPS)]
NAME = OperatorName("subject")
FORM = InputFormat(
    pa.schema([("name", pa.string()), ("number", pa.int32()), ("what", pa.int64()), ("n", pa.int64())]),
    ["name", "number"],
    GROUPS,
)
OUT = pa.schema([("n", pa.int64())])


class Small(Operator):
    """Values alone."""

    total: int = bl.value(0)
    last: float | None = bl.value()

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        for row in rows:
            if row.what == FORGET:
                ctx.forget()
            elif row.what % 2:
                self.total += row.n
            else:
                self.last = row.n / 2 if row.n else None


class Large(Operator):
    """Containers, a plain one assigned in each epoch."""

    total: int = bl.value(0)
    tally: Counter[str] = bl.counter()
    items: list[int] = bl.list()
    loose: Any = bl.value(None, codec="msgspec")

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        for row in rows:
            if row.what == FORGET:
                ctx.forget()
            elif row.what % 3 == 0:
                self.total += row.n
                self.items = [*self.items, row.n]
            elif row.what % 3 == 1:
                self.tally[f"t{row.n % 3}"] += 1
            else:
                self.loose = {"n": [row.n]}


class Columns:
    """Numbers, a nullable one, and objects."""

    columns: ClassVar = (
        ColumnSpec("total", pa.int64(), 0),
        ColumnSpec("last", pa.float64()),
        ColumnSpec("label", pa.string(), "new"),
    )

    def setup(self, ctx: Context) -> None:
        pass

    def close(self) -> None:
        pass

    def update(self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: Context) -> None:
        for slot, row in zip(slots, batch.to_pylist(), strict=True):
            if row["what"] == FORGET:
                table.delete(np.array([slot]))
            elif row["what"] % 3 == 0:
                table.values("total")[slot] += row["n"]
            elif row["what"] % 3 == 1:
                table.values("last")[slot] = row["n"] / 2
                table.valid("last")[slot] = row["n"] > 0
            else:
                table.values("label")[slot] = f"l{row['n']}"

    def result(self, table: ColumnTable, slots: Slots, ctx: Context) -> None:
        return None


def rows_of(operator: type[Operator]) -> Deployment:
    return Deployment(NAME, operator, FORM.key, FORM.columns, OUT, FORM.key_types)


SUBJECTS: dict[str, Startable] = {
    "small": rows_of(Small),
    "large": rows_of(Large),
    "columns": ColumnDeployment(NAME, Columns(), FORM.key, FORM.key_types, GROUPS),
}
subjects = pytest.mark.parametrize("subject", sorted(SUBJECTS))
Key = tuple[str | None, int | None]


class Command(NamedTuple):
    name: str | None
    number: int | None
    what: int = 3
    n: int = 1


def put(*keys: Key, n: int = 1) -> list[Command]:
    return [Command(*key, 3, n) for key in keys]


def forget(*keys: Key) -> list[Command]:
    return [Command(*key, FORGET) for key in keys]


class Worker:
    """A runtime, fed row by row."""

    def __init__(self, subject: str, number: int = 0) -> None:
        self.runtime: Runtime = SUBJECTS[subject].start(WorkerId(number))
        self._epoch = -1

    def begin(self) -> None:
        self._epoch += 1
        self.runtime.begin(Epoch(self._epoch), EVERY)

    def feed(self, commands: list[Command]) -> None:
        for command in commands:
            self.runtime.apply(FORM.batch([command._asdict()]))

    def end(self, commits: bool = True) -> None:
        self.runtime.commit() if commits else self.runtime.abort()
        self.check()

    def epoch(self, commands: list[Command], commits: bool = True) -> None:
        self.begin()
        self.feed(commands)
        self.runtime.seal()
        self.end(commits)

    def check(self) -> None:
        if isinstance(self.runtime, ColumnRuntime):
            self.runtime._table.check()

    def state(self) -> dict[Any, Any]:
        self.check()
        return {key: {name: repr(value) for name, value in state.items()} for key, state in self.runtime.snapshot()}


def hashes_of(*keys: Key) -> np.ndarray:
    batch = FORM.batch([Command(*key)._asdict() for key in keys])
    return hash_columns([batch.column(0), batch.column(1)])


def group_of(key: Key) -> KeyGroup:
    return FORM.group(key)


def checked(batch: pa.RecordBatch | None) -> list[tuple[int, int, Key]]:
    """A collected batch, proven to be in delta form: its key groups, ops and keys."""
    if batch is None:
        return []
    batch.validate(full=True)
    groups, ops = batch.column(GROUP).to_pylist(), batch.column(OP).to_pylist()
    keys = list(zip(batch.column(2).to_pylist(), batch.column(3).to_pylist(), strict=True))
    assert groups == sorted(groups)
    assert len(set(keys)) == len(keys), "a key is named twice"
    assert set(ops) <= {PUT, REMOVE}
    assert groups == [group_of(key) for key in keys]
    return list(zip(groups, ops, keys, strict=True))


def ops_of(batch: pa.RecordBatch | None) -> dict[Key, int]:
    return {key: op for _, op, key in checked(batch)}


A, B, C, D = ("a", 1), ("b", 2), ("a", None), (None, 1)

KEYS = st.tuples(st.sampled_from(["a", "bb", None]), st.sampled_from([0, 1, None]))
commands = st.lists(
    st.builds(lambda key, what, n: Command(*key, what, n), KEYS, st.integers(0, 8), st.integers(0, 9)), max_size=10
)


class EpochPlan(NamedTuple):
    steps: list[Command]
    sweeps: list[int]
    """Before a step, how many entries are swept."""
    sealed: bool
    """Whether it is collected between the seal and the end."""
    commits: bool
    unsealed: bool
    """Whether it is aborted before the seal."""
    late: str
    """Until when not all is noted that it touched."""


epochs = st.lists(
    st.builds(
        EpochPlan,
        commands,
        st.lists(st.integers(0, 3), max_size=10),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["the seal", "the end", "the next seal"]),
    ),
    max_size=5,
)
selections = st.tuples(st.sampled_from(["all", "only", "without"]), st.lists(KEYS, max_size=5))


class Copy:
    """A shelf at one worker and what arrived at the other, where an epoch is under way all the time."""

    def __init__(self, source: Worker, target: Worker, shelf: Shelf) -> None:
        self.source, self.target, self.shelf = source, target, shelf
        self.cursor = 0
        self.missed = False
        """Whether an epoch ended without a seal: what it had touched is not noted, and is as it was."""
        self.left: set[int] = set()
        """Left out, and not noted since."""

    def take(self, collected: tuple[pa.RecordBatch | None, np.ndarray]) -> None:
        batch, left = collected
        given = {key for _, _, key in checked(batch)}
        if batch is not None:
            self.target.runtime.take_in(batch)
            named = self.source.runtime.hashes(FORM.batch([Command(*key)._asdict() for key in given]))
            assert not set(named.tolist()) & set(left.tolist()), "a unit was divided"
        self.left |= set(left.tolist())

    def sweep(self, count: int) -> np.ndarray:
        """List some and take some; what was listed and the epoch has touched."""
        listed = self.shelf.list_some(count)
        count = min(count, self.shelf.whole - self.cursor)
        self.take(self.shelf.collect_range(self.cursor, count))
        self.cursor += count
        return listed.touched

    def run(self, plan: EpochPlan) -> None:
        self.source.begin()
        sweeps = iter(plan.sweeps)
        for step in plan.steps:
            self.sweep(next(sweeps, 0))
            self.source.feed([step])
        self.sweep(next(sweeps, 0))
        if plan.unsealed:
            self.missed = True
            self.source.end(commits=False)
            return
        self.take(self.shelf.collect(noted(self.shelf)))  # of the epoch before
        self.source.runtime.seal()
        self.shelf.sealed()
        if plan.late != "the seal":
            some = np.union1d(self.shelf.note_some(len(plan.steps) // 2), self.sweep(next(sweeps, 0)))
            self.source.end(plan.commits)
            rest = noted(self.shelf) if plan.late == "the end" else NO_HASHES
            late = np.union1d(some, rest)
            self.left -= set(late.tolist())
            self.take(self.shelf.collect(late))
            self.missed |= plan.late == "the next seal"
            return
        touched = noted(self.shelf)
        assert set(touched.tolist()) == set(note(self.shelf).tolist()), "noting twice is not the same"
        self.left -= set(touched.tolist())
        if not self.missed:
            assert not self.left, "a key was left out and is not noted"
        touched = np.union1d(touched, self.sweep(next(sweeps, 0)))
        if plan.sealed:
            self.take(self.shelf.collect(touched))
        self.source.end(plan.commits)
        # What a sealed epoch gave away is right if it was committed, and put right here if it was not.
        if not (plan.sealed and plan.commits):
            self.take(self.shelf.collect(touched))


def copied(
    subject: str,
    before: list[Command],
    plans: list[EpochPlan],
    moved: set[KeyGroup],
    selection: tuple[str, list[Key]],
    listed: int = 0,
) -> None:
    """``listed``: so many keys are listed at once."""
    source, target = Worker(subject), Worker(subject, 1)
    source.epoch(before)
    kind, chosen = selection
    numbers = source.runtime.hashes(FORM.batch([Command(*key)._asdict() for key in chosen]))
    target.begin()
    mine = [command for command in before if group_of((command.name, command.number)) not in moved]
    target.feed(mine)
    shelf = source.runtime.shelve(meant_by(moved, **({} if kind == "all" else {kind: numbers})))
    shelf.list_some(listed)
    copy = Copy(source, target, shelf)
    for plan in plans:
        copy.run(plan)
    copy.sweep(1000)
    copy.take(shelf.collect(noted(shelf)))
    # Keys that an epoch had touched when they were swept, and that then ended without a seal.
    copy.take(shelf.collect(np.array(sorted(copy.left), np.int64)))

    def meant(key: Key) -> bool:
        number = int(source.runtime.hashes(FORM.batch([Command(*key)._asdict()]))[0])
        return group_of(key) in moved and (kind == "all" or (number in numbers) == (kind == "only"))

    expected = {key: state for key, state in source.state().items() if meant(key)}
    assert {key: state for key, state in target.state().items() if group_of(key) in moved} == expected
    target.runtime.seal()
    delta = target.runtime.delta()
    assert delta is None or not set(delta.column(GROUP).to_pylist()) & moved, "what was taken in is listed as changed"
    target.end(commits=False)
    assert target.state() == expected
    stay = {key: state for key, state in source.state().items() if not meant(key)}
    drop(shelf)
    assert source.state() == stay


@subjects
@examples(25)
@given(before=commands, plans=epochs, moved=st.sets(st.sampled_from(EVERY)), selection=selections)
def test_a_copy_that_follows_the_notes_is_the_state(
    subject: str,
    before: list[Command],
    plans: list[EpochPlan],
    moved: set[KeyGroup],
    selection: tuple[str, list[Key]],
) -> None:
    copied(subject, before, plans, moved, selection)


@contextmanager
def hashed_by(function: Callable[[Any], Any]) -> Iterator[None]:
    """All who hash keys do it so."""
    with ExitStack() as stack:
        for module in ("store.row_shelf", "store.columns.shelf", "worker.row_runtime", "worker.column_runtime"):
            stack.enter_context(mock.patch(f"bedload.{module}.hash_columns", function))
        yield


@subjects
@examples(20)
@given(before=commands, plans=epochs, selection=selections)
def test_keys_with_one_hash_move_together(
    subject: str, before: list[Command], plans: list[EpochPlan], selection: tuple[str, list[Key]]
) -> None:
    with hashed_by(lambda columns: hash_columns(columns) % GROUPS):  # keys of one hash are of one key group
        copied(subject, before, plans, set(EVERY), selection, 1000)


@subjects
def test_the_keys_of_a_hash_come_with_the_first_of_them(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch(put(A, B, C, D))
    with hashed_by(lambda columns: hash_columns(columns) % 2):
        shelf = shelved(worker.runtime, EVERY)
        units = [set(ops_of(shelf.collect_range(i, 1)[0])) for i in range(len(shelf.hashes))]
    both = [unit for unit in units if unit]
    assert len(both) == len(set(shelf.hashes.tolist()))
    assert sorted(map(repr, [key for unit in both for key in unit])) == sorted(map(repr, [A, B, C, D]))


@subjects
def test_touched_keys_are_left_out_until_the_seal_and_noted_then(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch(put(A, B))
    shelf = shelved(worker.runtime, EVERY)
    assert sorted(shelf.groups.tolist()) == shelf.groups.tolist()
    assert set(shelf.hashes.tolist()) == set(hashes_of(A, B).tolist())
    worker.begin()
    worker.feed([*put(A, n=5), *put(C)])
    batch, left = shelf.collect_range(0, 10)
    assert ops_of(batch) == {B: PUT}
    assert left.tolist() == hashes_of(A).tolist()
    batch, left = shelf.collect(hashes_of(A, B, B, C, D))
    assert ops_of(batch) == {B: PUT}
    assert left.tolist() == hashes_of(A).tolist(), "a key that is not on the shelf is not left out either"
    worker.runtime.seal()
    assert set(note(shelf).tolist()) == set(hashes_of(A, C).tolist())
    assert shelf.hashes[-1] == hashes_of(C)[0], "a new key joins at the end"
    batch, left = shelf.collect(hashes_of(A, C))
    assert batch is not None
    assert ops_of(batch) == {A: PUT, C: PUT}
    assert sorted(batch.column("total").to_pylist()) == [1, 6]
    assert left.tolist() == []
    assert worker.runtime.touched_keys == 2
    worker.end()
    assert worker.runtime.touched_keys == 0


@subjects
def test_a_shelf_made_within_an_epoch_has_the_keys_that_it_removed_and_made(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch(put(A, B))
    worker.begin()
    worker.feed([*forget(A), *put(C)])
    shelf = shelved(worker.runtime, EVERY)
    assert set(shelf.hashes.tolist()) == set(hashes_of(A, B, C).tolist())
    batch, left = shelf.collect(shelf.hashes)
    assert ops_of(batch) == {B: PUT}
    assert set(left.tolist()) == set(hashes_of(A, C).tolist())
    worker.runtime.seal()
    assert ops_of(shelf.collect(shelf.hashes)[0]) == {A: REMOVE, B: PUT, C: PUT}
    worker.end()
    assert ops_of(shelf.collect(shelf.hashes)[0]) == {A: REMOVE, B: PUT, C: PUT}


@subjects
def test_what_an_aborted_epoch_gave_away_is_put_right_by_its_notes(subject: str) -> None:
    source, target = Worker(subject), Worker(subject, 1)
    source.epoch(put(A, B))
    shelf = shelved(source.runtime, EVERY)
    source.begin()
    source.feed([*put(A, n=4), *forget(B), *put(C)])
    source.runtime.seal()
    noted = note(shelf)
    batch, _ = shelf.collect(noted)
    assert ops_of(batch) == {A: PUT, B: REMOVE, C: PUT}
    target.begin()
    target.runtime.take_in(batch)
    assert set(target.state()) == {A, C}
    source.end(commits=False)
    batch, _ = shelf.collect(noted)
    assert ops_of(batch) == {A: PUT, B: PUT, C: REMOVE}
    target.runtime.take_in(batch)
    assert target.state() == source.state()


@subjects
def test_a_key_that_went_and_came_back_has_one_entry(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch(put(A, B))
    shelf = shelved(worker.runtime, EVERY)
    for steps in (forget(A), put(A, n=7), forget(A), put(A, n=9)):
        worker.begin()
        worker.feed(steps)
        worker.runtime.seal()
        assert note(shelf).tolist() == hashes_of(A).tolist()
        worker.end()
    assert len(shelf.hashes) == 2
    batch, _ = shelf.collect_range(0, 2)
    assert batch is not None
    assert ops_of(batch) == {A: PUT, B: PUT}
    assert 9 in batch.column("total").to_pylist()


@subjects
def test_what_is_collected_does_not_change_with_the_state(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch([Command(*A, what, 2) for what in (3, 4, 5)])
    batch, _ = shelved(worker.runtime, EVERY).collect_range(0, 5)
    assert batch is not None
    before = batch.to_pylist()
    worker.epoch([Command(*A, what, 3) for what in (3, 4, 5)])
    assert batch.to_pylist() == before


@subjects
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
def test_what_comes_in_within_an_epoch_is_committed_state(subject: str, commits: bool, sealed: bool) -> None:
    source, target = Worker(subject), Worker(subject, 1)
    source.epoch(put(A, C, D, n=5))
    target.epoch(put(A, B))
    batch, _ = shelved(source.runtime, EVERY).collect_range(0, 5)
    target.begin()
    target.feed(put(B))
    if sealed:
        target.runtime.seal()
    target.runtime.take_in(batch)
    here = source.state()
    assert {key: state for key, state in target.state().items() if key != B} == here
    if not sealed:
        target.feed(put(C))
        target.runtime.seal()
    delta = target.runtime.delta()
    assert delta is not None
    changed = set(zip(delta.column(2).to_pylist(), delta.column(3).to_pylist(), strict=True))
    assert changed == ({B} if sealed else {B, C})
    assert set().union(*(change.entries for change in target.runtime.changes())) == changed
    target.end(commits)
    after = {key: state for key, state in target.state().items() if key != B}
    if commits and not sealed:
        assert after.pop(C)["total"] == "6"
        del here[C]
    assert after == here
    target.epoch(put(A, D))
    assert target.runtime.keys == 4


@subjects
def test_keys_that_the_epoch_has_touched_are_not_taken_in_nor_is_anything_beside_them(subject: str) -> None:
    source, target = Worker(subject), Worker(subject, 1)
    source.epoch(put(A, B, C, D, n=5))
    shelf = shelved(source.runtime, EVERY)
    source.epoch(forget(A))
    target.epoch(put(A, B))
    for commands, taken in ((put(A), (A, B, C)), (forget(B), (B, C)), (put(C), (A, C))):
        target.begin()
        target.feed(commands)
        before = target.state()
        with pytest.raises(ProtocolError, match="touched"):
            target.runtime.take_in(shelf.collect(hashes_of(*taken))[0])
        assert target.state() == before
        target.runtime.seal()
        target.end(commits=False)
        assert target.state() == before


@subjects
def test_a_removed_row_of_a_key_that_is_not_there_is_nothing(subject: str) -> None:
    source, target = Worker(subject), Worker(subject, 1)
    source.epoch(put(A, B))
    shelf = shelved(source.runtime, EVERY)
    source.epoch(forget(A, B))
    batch, _ = shelf.collect_range(0, 2)
    assert ops_of(batch) == {A: REMOVE, B: REMOVE}
    target.runtime.take_in(batch)
    assert target.state() == {}
    target.epoch(put(A))
    target.runtime.take_in(batch)
    assert target.state() == {}
    assert target.runtime.keys == 0


@subjects
def test_what_is_not_whole_keys_in_delta_form_is_not_taken_in(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch(put(A))
    batch, _ = shelved(worker.runtime, EVERY).collect_range(0, 1)
    assert batch is not None
    with pytest.raises(ProtocolError, match="without the columns bedload_op"):
        worker.runtime.take_in(batch.drop_columns([OP]))
    with pytest.raises(ProtocolError, match="patches"):
        worker.runtime.take_in(batch.set_column(1, OP, pa.array([PATCH], pa.int8())))
    with pytest.raises(StateTypeError):
        worker.runtime.take_in(batch.set_column(4, "total", pa.array(["x"])))
    assert worker.state()[A]["total"] == "1"


@subjects
def test_key_groups_and_shelves_can_be_dropped_while_an_epoch_is_under_way_elsewhere(subject: str) -> None:
    worker = Worker(subject)
    assert group_of(A) != group_of(B)
    worker.epoch(put(A, B, C, D))
    whole, single = shelved(worker.runtime, [group_of(A)]), shelved(worker.runtime, EVERY, only=hashes_of(A))
    worker.begin()
    worker.feed(put(A))
    before = worker.state()
    for forget in (lambda: worker.runtime.drop([group_of(B), group_of(A)]), lambda: drop(whole), lambda: drop(single)):
        with pytest.raises(ProtocolError):
            forget()
        assert worker.state() == before
    worker.runtime.drop([group_of(B)])
    assert B not in worker.state()
    assert A in worker.state()
    worker.runtime.seal()
    worker.end()
    assert worker.runtime.keys == len(worker.state())
    before = worker.state()
    worker.begin()
    others = [key for key in (C, D) if group_of(key) != group_of(B)]
    worker.feed(put(*others))
    drop(single)
    worker.runtime.seal()
    worker.end(commits=False)
    assert worker.state() == {key: state for key, state in before.items() if key != A}
    assert worker.runtime.keys_in([group_of(A)]) == sum(group_of(key) == group_of(A) for key in others)


def test_keys_whose_rows_wait_for_the_seal_are_not_dropped() -> None:
    class Grouped(Small):
        grouped = True

    runtime = rows_of(Grouped).start(WorkerId(0))
    runtime.begin(Epoch(0), EVERY)
    runtime.apply(FORM.batch([command._asdict() for command in put(A, B)]))
    runtime.seal()
    runtime.commit()
    runtime.begin(Epoch(1), EVERY)
    runtime.apply(FORM.batch([command._asdict() for command in put(A)]))
    shelf = shelved(runtime, EVERY)
    batch, left = shelf.collect_range(0, 2)
    assert ops_of(batch) == {A: PUT, B: PUT}
    assert not len(left)
    with pytest.raises(ProtocolError, match="wait"):
        drop(shelf)
    with pytest.raises(ProtocolError, match="wait"):
        runtime.drop([group_of(A)])
    runtime.drop([group_of(B)])
    runtime.seal()
    assert note(shelf).tolist() == hashes_of(A).tolist()
    runtime.commit()
    assert {key for key, _ in runtime.snapshot()} == {A}


@subjects
def test_a_shelf_of_nothing_gives_nothing(subject: str) -> None:
    worker = Worker(subject)
    shelf = shelved(worker.runtime, [])
    assert shelf.collect_range(0, 10)[0] is None
    assert shelf.collect(hashes_of(A))[0] is None
    worker.epoch(put(A))
    assert shelved(worker.runtime, EVERY, only=np.empty(0, np.int64)).hashes.tolist() == []
    assert shelved(worker.runtime, EVERY, without=hashes_of(A)).hashes.tolist() == []
    worker.begin()
    worker.feed(put(A))
    worker.runtime.seal()
    assert note(shelf).tolist() == []
    drop(shelf)
    worker.end()


@subjects
def test_sizes_are_told_from_a_sample(subject: str) -> None:
    worker = Worker(subject)
    assert worker.runtime.state_bytes() == 0
    worker.epoch(put(*((f"key {i}", i) for i in range(300))))
    shelf = shelved(worker.runtime, EVERY)
    assert shelf.nbytes_hint > 10
    batch, _ = shelf.collect_range(0, 300)
    assert batch is not None
    assert shelf.nbytes_hint == pytest.approx(batch.nbytes / 300, rel=0.5)
    assert worker.runtime.state_bytes() == pytest.approx(batch.nbytes, rel=0.5)
    assert worker.runtime.keys_in(EVERY[:2]) == np.count_nonzero(shelf.groups < 2)
    assert worker.runtime.keys_in(EVERY) == 300


@subjects
def test_a_shelf_goes_on_while_the_code_is_replaced(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch(put(A, B))
    shelf = shelved(worker.runtime, EVERY)
    worker.runtime.redeploy(SUBJECTS[subject])
    worker.begin()
    worker.feed(put(A, C))
    worker.runtime.seal()
    assert set(note(shelf).tolist()) == set(hashes_of(A, C).tolist())
    worker.end()
    assert ops_of(shelf.collect_range(0, 3)[0]) == {A: PUT, B: PUT, C: PUT}


@subjects
def test_a_key_that_was_touched_holds_back_those_with_its_hash(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch(put(A, B, C, D))
    with hashed_by(lambda columns: hash_columns(columns) * 0):
        shelf = shelved(worker.runtime, EVERY)
        worker.begin()
        worker.feed(put(B))
        for collected in (shelf.collect_range(0, 1), shelf.collect(np.zeros(1, np.int64))):
            assert collected[0] is None
            assert collected[1].tolist() == [0]
        worker.runtime.seal()
        assert note(shelf).tolist() == [0]
        assert set(ops_of(shelf.collect_range(0, 1)[0])) == {A, B, C, D}
        assert shelf.collect_range(1, 3)[0] is None
        worker.end()


@subjects
def test_a_key_that_went_and_is_made_again_by_an_open_epoch_is_left_out(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch(put(A))
    shelf = shelved(worker.runtime, EVERY)
    worker.epoch(forget(A))
    assert ops_of(shelf.collect_range(0, 1)[0]) == {A: REMOVE}
    worker.begin()
    worker.feed(put(A))
    batch, left = shelf.collect_range(0, 1)
    assert batch is None
    assert left.tolist() == hashes_of(A).tolist()
    worker.runtime.seal()
    worker.end()
    assert ops_of(shelf.collect_range(0, 1)[0]) == {A: PUT}, "also if nobody noted it"


@pytest.mark.parametrize("subject", ["small", "large"])
@pytest.mark.parametrize("kind", ["all", "without"])
def test_rows_of_a_large_key_group_are_forgotten_some_at_a_time(subject: str, kind: str) -> None:
    worker = Worker(subject)
    keys = [key for number in range(100) if group_of(key := ("a", number)) == EVERY[0]]
    worker.epoch(put(*keys))
    stay = keys[:1] if kind == "without" else []
    shelf = shelved(worker.runtime, EVERY[:1], **({"without": hashes_of(*stay)} if stay else {}))
    shelf.collect_range(0, 3)
    counts = [worker.runtime.keys]
    while not shelf.drop_some(3):
        counts.append(worker.runtime.keys)
    assert max(before - after for before, after in pairwise(counts)) <= 3
    assert worker.runtime.keys == len(stay)
    assert len(counts) > len(keys) // 2, "what the shelf takes itself is given back some at a time, too"


@subjects
def test_a_shelf_of_no_use_takes_nothing_with_it(subject: str) -> None:
    worker = Worker(subject)
    worker.epoch(put(A, B, C, D))
    shelf = shelved(worker.runtime, EVERY)
    while not shelf.let_go(1):
        pass
    worker.epoch(put(A))
    assert worker.runtime.keys == 4
