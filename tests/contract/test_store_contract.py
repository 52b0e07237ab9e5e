"""What every layout of a key group's state must do: :class:`~bedload.store.KeyGroupStore`.

A layout joins by a :class:`Subject` in ``LAYOUTS``: it says what state it has, and how operator code of that layout
would change it. Everything else here goes through the interface, against a model of plain dicts.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from bedload import state as bl
from bedload.core.errors import ProtocolError, StateTypeError
from bedload.core.ids import KeyGroup
from bedload.state import RecordLayout
from bedload.store import KeyGroupStore, RowStore
from bedload.store.columns import ColumnSpec, ColumnStore, ColumnTable
from bedload.worker.operator import Operator, make_shared, state_of

GROUP = KeyGroup(3)
Model = dict[str, dict[str, Any]]


class Add(NamedTuple):
    """Add to every variable of a key."""

    key: str
    number: int


class Undo(NamedTuple):
    """Add to a variable of a key and take it away again."""

    key: str
    number: int


class Drop(NamedTuple):
    """Take something away, and assign a new list."""

    key: str
    number: int


class Forget(NamedTuple):
    """Remove a key."""

    key: str


class Misfit(NamedTuple):
    """Assign what is not of the declared type."""

    key: str


Op = Add | Undo | Drop | Forget | Misfit


class Subject(Protocol):
    """One layout: its state, and how its operator code changes it. Every state has an integer ``total``."""

    named_by_drop: frozenset[str]
    """The variables that the changes name for a key of which only :class:`Drop` was run."""

    def make(self) -> KeyGroupStore: ...

    def fresh(self) -> dict[str, Any]:
        """The state of a new key."""
        ...

    def change(self, state: Any, op: Op) -> None:
        """What operator code does, to live state as to a model of it."""
        ...

    def run(self, store: KeyGroupStore, op: Op) -> None:
        """Do it in the store."""
        ...

    def damage(self, state: dict[str, Any]) -> None:
        """Change what was read, as deep as it goes."""
        ...


class Shape(Operator):
    total: int = bl.value(0)
    tags: dict[int, list[int]] = bl.map()
    tally: Counter[int] = bl.counter()
    recent: deque[int] = bl.deque()
    items: list[int] = bl.list()


class Rows:
    """One object per key."""

    named_by_drop = frozenset({"tags", "items"})

    def make(self) -> KeyGroupStore:
        _, row = make_shared(Shape)
        return RowStore(GROUP, RecordLayout(state_of(Shape)), row)

    def fresh(self) -> dict[str, Any]:
        return {"total": 0, "tags": {}, "tally": Counter(), "recent": deque(), "items": []}

    def change(self, state: Any, op: Op) -> None:
        match op:
            case Add(number=number):
                state.total += number
                state.tags.setdefault(number % 3, []).append(number)
                state.tally[number % 2] += 1
                state.recent.append(number)
            case Undo(number=number):
                state.total += number
                state.recent.append(number)
                state.recent.pop()
                state.total -= number
            case Drop(number=number):
                state.tags.pop(number % 3, None)
                state.items = [*state.items, number][-3:]
            case Misfit():
                state.items = 5

    def run(self, store: KeyGroupStore, op: Op) -> None:
        assert isinstance(store, RowStore)
        (live,) = store.touch([op.key])
        if isinstance(op, Forget):
            store.forget(op.key)
        else:
            self.change(live, op)

    def damage(self, state: dict[str, Any]) -> None:
        state["total"] = -1
        state["tags"][1].append(99)


class Slot:
    """One key of a table, with its columns as attributes."""

    def __init__(self, table: ColumnTable, slot: int) -> None:
        self.__dict__.update(table=table, slot=slot)

    def __getattr__(self, name: str) -> Any:
        (spec,) = (spec for spec in self.table.columns if spec.name == name)
        if spec.nullable and not self.table.valid(name)[self.slot]:
            return None
        value = self.table.values(name)[self.slot]
        return value.item() if spec.fixed else value

    def __setattr__(self, name: str, value: Any) -> None:
        (spec,) = (spec for spec in self.table.columns if spec.name == name)
        if spec.nullable:
            self.table.valid(name)[self.slot] = value is not None
        if value is not None or not spec.fixed:
            # Under a null the old number stays: nobody may look at it.
            self.table.values(name)[self.slot] = value


class Columns:
    """Slots of arrays, in a table with keys of other groups. A row is one entry of the changes."""

    named_by_drop = frozenset({"total", "last", "label", "odd", "items"})

    def make(self) -> KeyGroupStore:
        specs = (
            ColumnSpec("total", pa.int64(), 0),
            ColumnSpec("last", pa.float64()),
            ColumnSpec("label", pa.string(), "new"),
            ColumnSpec("odd", pa.bool_(), False),
            ColumnSpec("items", pa.list_(pa.int64()), []),
        )
        table = ColumnTable([pa.string()], specs, 8, block=2)
        table.locate([pa.array(["a", "b", "x"])], np.array([4, 4, 5]))
        table.commit()
        return ColumnStore(GROUP, table)

    def fresh(self) -> dict[str, Any]:
        return {"total": 0, "last": None, "label": "new", "odd": False, "items": []}

    def change(self, state: Any, op: Op) -> None:
        match op:
            case Add(number=number):
                state.total += number
                state.last = number / 2
                state.label = f"{number} was added"
                state.odd = number % 2 == 1
                state.items = [*state.items, number][-2:]
            case Undo(number=number):
                last = state.last
                state.total += number
                state.last = 0.5
                state.total -= number
                state.last = last
            case Drop(number=number):
                state.last = None
                state.items = [number, number]
            case Misfit():
                state.items = 5

    def run(self, store: KeyGroupStore, op: Op) -> None:
        assert isinstance(store, ColumnStore)
        table = store.table
        slots = table.locate([pa.array([op.key])], np.array([GROUP]))
        if isinstance(op, Forget):
            table.delete(slots)
        else:
            self.change(Slot(table, int(slots[0])), op)
        table.check()

    def damage(self, state: dict[str, Any]) -> None:
        state["total"] = -1
        state["items"].append(99)


LAYOUTS: dict[str, Callable[[], Subject]] = {"columns": Columns, "rows": Rows}


@pytest.fixture(params=sorted(LAYOUTS))
def subject(request: pytest.FixtureRequest) -> Subject:
    return LAYOUTS[request.param]()


class _Plain:
    def __init__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def model_run(subject: Subject, model: Model, op: Op) -> None:
    if isinstance(op, Forget):
        model.pop(op.key, None)
        return
    plain = _Plain(model.get(op.key) or subject.fresh())
    subject.change(plain, op)
    model[op.key] = vars(plain)


def committed(store: KeyGroupStore) -> Model:
    found = dict(store.snapshot())
    assert all(store.read(key) == state for key, state in found.items())
    return found


keys = st.sampled_from("abcd")
numbers = st.integers(0, 9)
ops = st.one_of(
    st.builds(Add, keys, numbers),
    st.builds(Undo, keys, numbers),
    st.builds(Drop, keys, numbers),
    st.builds(Forget, keys),
)
endings: st.SearchStrategy[Literal["commit", "abort"]] = st.sampled_from(["commit", "commit", "abort"])
histories = st.lists(st.tuples(st.lists(ops, max_size=8), endings), max_size=6)
History = list[tuple[list[Op], Literal["commit", "abort"]]]
layouts = pytest.mark.parametrize("layout", sorted(LAYOUTS))


@layouts
@examples(60)
@given(history=histories)
def test_reads_see_the_last_commit_and_abort_goes_back_to_it(layout: str, history: History) -> None:
    subject = LAYOUTS[layout]()
    store = subject.make()
    model: Model = {}
    for steps, ending in history:
        current = copy.deepcopy(model)
        store.begin()
        for op in steps:
            subject.run(store, op)
            model_run(subject, current, op)
            assert committed(store) == model
        if ending == "commit":
            store.seal()
            store.commit()
            model = current
        else:
            store.abort()
        assert committed(store) == model
        assert store.sizes().keys == len(model)
        assert store.sizes().touched == 0


@layouts
@examples(60)
@given(history=histories)
def test_changes_name_every_key_that_differs_and_none_that_was_not_touched(layout: str, history: History) -> None:
    subject = LAYOUTS[layout]()
    store = subject.make()
    before: Model = {}
    for steps, _ in history:
        after = copy.deepcopy(before)
        store.begin()
        for op in steps:
            subject.run(store, op)
            model_run(subject, after, op)
        store.seal()
        changes = store.changes()
        differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        named = changes.entries.keys() | set(changes.removed)
        assert changes.group == GROUP
        assert differing <= named <= {op.key for op in steps}
        assert set(changes.removed) == before.keys() - after.keys()
        assert changes.created <= changes.entries.keys()
        assert changes.created >= after.keys() - before.keys()
        store.commit()
        before = after


@layouts
@examples(40)
@given(history=histories, moved=st.sets(keys))
def test_extracted_keys_live_on_in_another_store(layout: str, history: History, moved: set[str]) -> None:
    subject = LAYOUTS[layout]()
    store, other = subject.make(), subject.make()
    for steps, ending in history:
        store.begin()
        for op in steps:
            subject.run(store, op)
        store.seal()
        store.commit() if ending == "commit" else store.abort()
    before = committed(store)
    taken, state = store.extract(sorted(moved))
    other.install(taken, state)
    store.discard(taken)
    assert committed(other) == {key: value for key, value in before.items() if key in moved}
    assert committed(store) == {key: value for key, value in before.items() if key not in moved}
    for target in (store, other):
        for key in "abcd":
            subject.run(target, Add(key, 1))
        target.abort()
    assert committed(store) | committed(other) == before


def test_extract_within_an_epoch_gives_the_committed_state(subject: Subject) -> None:
    store, other = subject.make(), subject.make()
    subject.run(store, Add("a", 1))
    subject.run(store, Add("b", 2))
    store.commit()
    before = committed(store)
    subject.run(store, Add("a", 5))
    subject.run(store, Forget("b"))
    subject.run(store, Add("c", 5))
    other.install(*store.extract())
    assert committed(other) == before


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_keys_that_come_in_within_an_epoch_are_committed_state(subject: Subject, ending: str) -> None:
    store, other = subject.make(), subject.make()
    for key in "bc":
        subject.run(other, Add(key, 2))
    other.commit()
    before = committed(other)
    subject.run(store, Add("a", 1))
    store.install(*other.extract())
    assert committed(store) == before
    subject.run(store, Add("b", 5))
    subject.run(store, Forget("c"))
    assert committed(store) == before
    store.seal()
    assert set(store.changes().entries) == {"a", "b"}
    assert store.changes().created == {"a"}
    assert store.changes().removed == ("c",)
    if ending == "abort":
        store.abort()
        assert committed(store) == before
    else:
        store.commit()
        assert {key: state["total"] for key, state in committed(store).items()} == {"a": 1, "b": 7}


@pytest.mark.parametrize("how", ["untouched", "touched", "made", "removed"])
def test_within_an_epoch_keys_that_are_there_are_not_installed_over(subject: Subject, how: str) -> None:
    store, other = subject.make(), subject.make()
    for key in "xab":
        subject.run(other, Add(key, 2))
    other.commit()
    subject.run(store, Add("z" if how == "made" else "a", 1))
    store.commit()
    if how == "removed":
        subject.run(store, Forget("a"))
    else:
        subject.run(store, Add("z" if how == "untouched" else "a", 3))
    before = committed(store)
    with pytest.raises(ProtocolError, match="there already"):
        store.install(*other.extract(["x", "a", "b"]))
    assert committed(store) == before
    store.abort()
    assert committed(store) == before


def test_between_epochs_an_install_takes_the_place_of_what_was_there(subject: Subject) -> None:
    store, other = subject.make(), subject.make()
    for key in "ab":
        subject.run(other, Add(key, 2))
    other.commit()
    subject.run(store, Add("a", 1))
    store.commit()
    store.install(*other.extract())
    assert committed(store) == committed(other)


def test_extract_leaves_keys_without_state_out(subject: Subject) -> None:
    store = subject.make()
    subject.run(store, Add("a", 1))
    store.commit()
    taken, state = store.extract(["a", "nobody"])
    assert taken == ["a"]
    assert state.num_rows == 1


def test_a_key_that_was_changed_back_is_no_change(subject: Subject) -> None:
    store = subject.make()
    subject.run(store, Add("a", 1))
    store.commit()
    subject.run(store, Undo("a", 7))
    assert store.changes().entries == {}
    assert store.sizes().touched == 1


def test_a_key_that_was_removed_and_made_again_is_whole_in_the_changes(subject: Subject) -> None:
    store = subject.make()
    subject.run(store, Add("a", 1))
    store.commit()
    subject.run(store, Forget("a"))
    subject.run(store, Add("a", 2))
    changes = store.changes()
    assert changes.created == {"a"}
    assert changes.removed == ()
    assert changes.entries["a"]["total"] == 2
    store.abort()
    state = store.read("a")
    assert state is not None
    assert state["total"] == 1


def test_a_key_that_came_and_went_in_one_epoch_leaves_nothing(subject: Subject) -> None:
    store = subject.make()
    subject.run(store, Add("a", 1))
    subject.run(store, Forget("a"))
    assert store.changes().entries == {}
    assert store.changes().removed == ()
    store.commit()
    assert committed(store) == {}


def test_changes_are_small_when_little_changed(subject: Subject) -> None:
    store = subject.make()
    for number in range(300):
        subject.run(store, Add("a", number))
    store.commit()
    subject.run(store, Drop("a", 1))
    assert set(store.changes().entries["a"]) == subject.named_by_drop


def test_what_does_not_fit_its_declaration_is_refused_at_the_seal(subject: Subject) -> None:
    store = subject.make()
    subject.run(store, Misfit("a"))
    with pytest.raises(StateTypeError):
        store.seal()
    store.abort()
    assert committed(store) == {}


def test_an_epoch_cannot_begin_before_the_last_one_ended(subject: Subject) -> None:
    store = subject.make()
    store.begin()
    subject.run(store, Add("a", 1))
    with pytest.raises(ProtocolError):
        store.begin()
    with pytest.raises(ProtocolError):
        store.discard()


def test_reads_share_nothing_with_the_live_state(subject: Subject) -> None:
    store = subject.make()
    subject.run(store, Add("a", 1))
    store.commit()
    state = store.read("a")
    assert state is not None
    expected = copy.deepcopy(state)
    subject.damage(state)
    assert state != expected
    assert store.read("a") == expected


def test_discard_drops_everything(subject: Subject) -> None:
    store = subject.make()
    subject.run(store, Add("a", 1))
    store.commit()
    store.discard()
    assert committed(store) == {}
