"""What every layout of a key group's state must do: :class:`~bedload.store.KeyGroupStore`.

A layout joins by a :class:`Subject` in ``LAYOUTS``: it says how operator code of that layout would add to a
key's state. Everything else here goes through the interface, against a model of plain dicts.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bedload import state as bl
from bedload.core.errors import ProtocolError, StateTypeError
from bedload.core.ids import KeyGroup
from bedload.state import RecordLayout
from bedload.store import KeyGroupStore, RowStore
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
    """Take an entry from the map of a key, and assign a new list."""

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
    """One layout, and how its operator code changes state."""

    def make(self) -> KeyGroupStore: ...

    def run(self, store: KeyGroupStore, op: Op) -> None: ...


def change(state: Any, op: Op) -> None:
    """What operator code does, to a live object as to a model of one."""
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


class Shape(Operator):
    total: int = bl.value(0)
    tags: dict[int, list[int]] = bl.map()
    tally: Counter[int] = bl.counter()
    recent: deque[int] = bl.deque()
    items: list[int] = bl.list()


class Rows:
    """One object per key."""

    def make(self) -> KeyGroupStore:
        _, row = make_shared(Shape)
        return RowStore(GROUP, RecordLayout(state_of(Shape)), row)

    def run(self, store: KeyGroupStore, op: Op) -> None:
        assert isinstance(store, RowStore)
        (live,) = store.touch([op.key])
        if isinstance(op, Forget):
            store.forget(op.key)
        else:
            change(live, op)


LAYOUTS: dict[str, Callable[[], Subject]] = {"rows": Rows}


@pytest.fixture(params=sorted(LAYOUTS))
def subject(request: pytest.FixtureRequest) -> Subject:
    return LAYOUTS[request.param]()


class _Plain:
    def __init__(self, state: dict[str, Any] | None) -> None:
        fresh = {"total": 0, "tags": {}, "tally": Counter(), "recent": deque(), "items": []}
        self.__dict__.update(fresh if state is None else state)


def model_run(model: Model, op: Op) -> None:
    if isinstance(op, Forget):
        model.pop(op.key, None)
        return
    plain = _Plain(model.get(op.key))
    change(plain, op)
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
@settings(max_examples=150, deadline=None)
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
            model_run(current, op)
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
@settings(max_examples=150, deadline=None)
@given(history=histories)
def test_changes_of_committed_epochs_replayed_on_nothing_give_the_state(layout: str, history: History) -> None:
    subject = LAYOUTS[layout]()
    store, backup = subject.make(), subject.make()
    for steps, ending in history:
        store.begin()
        for op in steps:
            subject.run(store, op)
        store.seal()
        changes = copy.deepcopy(store.changes())
        if ending == "commit":
            store.commit()
            backup.replay(changes)
        else:
            store.abort()
        assert committed(backup) == committed(store)


@layouts
@settings(max_examples=150, deadline=None)
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
            model_run(after, op)
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
@settings(max_examples=100, deadline=None)
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
    assert set(store.changes().entries["a"]) == {"tags", "items"}


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
    state["tags"][1].append(99)
    again = store.read("a")
    assert again is not None
    assert again["tags"] == {1: [1]}


def test_discard_drops_everything(subject: Subject) -> None:
    store = subject.make()
    subject.run(store, Add("a", 1))
    store.commit()
    store.discard()
    assert committed(store) == {}
