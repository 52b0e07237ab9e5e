"""Every tracked container beside its builtin, through random operations, commits, aborts and snapshots."""

import collections
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.applied_changes import apply_changes

from bedload.state import Journal
from bedload.state.handling import handling
from bedload.state.types import ListNode, ScalarNode, TypeNode, parse_type

FAST = settings(max_examples=120, deadline=None)
SIZES = st.sampled_from([0, 1, 5, 63, 64, 65, 70])
NUMBERS = st.integers(0, 80)
INDEX = st.integers(-90, 90)
MANY = st.lists(NUMBERS, max_size=6)
SLICE = st.builds(
    slice,
    st.none() | INDEX,
    st.none() | INDEX,
    st.none() | st.sampled_from([1, 2, -1, 3]),
)


def op(name: str, *args: Any) -> Any:
    return st.tuples(st.just(name), st.tuples(*args))


CONTROL = st.sampled_from(["commit", "abort", "snapshot"]).map(lambda name: (name, None))


def steps(*ops: Any) -> Any:
    return st.lists(st.one_of(*ops, CONTROL), max_size=25)


LIST_OPS = (
    op("append", NUMBERS),
    op("extend", MANY),
    op("insert", INDEX, NUMBERS),
    op("remove", NUMBERS),
    op("pop"),
    op("pop", INDEX),
    op("pop", st.just(0)),
    op("clear"),
    op("sort"),
    op("reverse"),
    op("__setitem__", INDEX, NUMBERS),
    op("__setitem__", SLICE, MANY),
    op("__delitem__", INDEX),
    op("__delitem__", SLICE),
    op("__iadd__", MANY),
    op("__imul__", st.integers(-1, 2)),
    op("index", NUMBERS),
    op("count", NUMBERS),
    op("__getitem__", SLICE),
    op("__add__", MANY),
)
DEQUE_OPS = (
    op("append", NUMBERS),
    op("appendleft", NUMBERS),
    op("extend", MANY),
    op("extendleft", MANY),
    op("pop"),
    op("popleft"),
    op("clear"),
    op("insert", INDEX, NUMBERS),
    op("remove", NUMBERS),
    op("reverse"),
    op("rotate", INDEX),
    op("__setitem__", INDEX, NUMBERS),
    op("__delitem__", INDEX),
    op("__iadd__", MANY),
    op("__imul__", st.integers(-1, 2)),
    op("__getitem__", INDEX),
    op("__mul__", st.integers(0, 2)),
)
PAIRS = st.dictionaries(NUMBERS, NUMBERS, max_size=5)
MAP_OPS = (
    op("__setitem__", NUMBERS, NUMBERS),
    op("__delitem__", NUMBERS),
    op("pop", NUMBERS),
    op("pop", NUMBERS, st.none()),
    op("popitem"),
    op("clear"),
    op("setdefault", NUMBERS, NUMBERS),
    op("update", PAIRS),
    op("update", PAIRS.map(lambda d: list(d.items()))),
    op("__ior__", PAIRS),
    op("__or__", PAIRS),
    op("get", NUMBERS),
    op("__getitem__", NUMBERS),
)
COUNTS = st.dictionaries(NUMBERS, st.integers(-3, 5), max_size=5).map(collections.Counter)
COUNTER_OPS = (
    op("__setitem__", NUMBERS, NUMBERS),
    op("__delitem__", NUMBERS),
    op("pop", NUMBERS, st.none()),
    op("popitem"),
    op("clear"),
    op("setdefault", NUMBERS, NUMBERS),
    op("update", MANY),
    op("update", COUNTS),
    op("subtract", MANY),
    op("__iadd__", COUNTS),
    op("__isub__", COUNTS),
    op("__ior__", COUNTS),
    op("__iand__", COUNTS),
    op("__add__", COUNTS),
    op("__and__", COUNTS),
    op("__getitem__", NUMBERS),
    op("most_common", st.integers(0, 3)),
    op("total"),
)
SETS = st.sets(NUMBERS, max_size=6)
SET_OPS = (
    op("add", NUMBERS),
    op("discard", NUMBERS),
    op("remove", NUMBERS),
    op("clear"),
    op("update", SETS, MANY),
    op("difference_update", SETS),
    op("intersection_update", SETS),
    op("symmetric_difference_update", SETS),
    op("__ior__", SETS),
    op("__isub__", SETS),
    op("__iand__", SETS),
    op("__ixor__", SETS),
    op("__or__", SETS),
    op("__sub__", SETS),
    op("__rsub__", SETS),
    op("union", MANY),
    op("issuperset", SETS),
)


def order(value: Any) -> Any:
    """What must be the same beside equality: the order of a dict, the bound of a deque."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, collections.deque):
        return value.maxlen, list(value)
    return value


def call(target: Any, name: str, args: Any) -> Any:
    try:
        result = getattr(target, name)(*copy.deepcopy(args))
    except (IndexError, KeyError, ValueError, TypeError) as error:
        return type(error), str(error)
    return "itself" if result is target else result


def run(node: TypeNode, plain: Any, history: list[Any]) -> None:
    journal = Journal()
    how = handling(node)
    assert how is not None
    tracked = how.adopt(plain, journal, None, None)
    committed = copy.deepcopy(plain)
    backup = copy.deepcopy(plain)
    for name, args in history:
        if name == "commit":
            backup = apply_changes(backup, tracked._bl_changes())
            assert how.differs(tracked) == (order(plain) != order(committed))
            journal.commit()
            committed = copy.deepcopy(plain)
            assert order(backup) == order(committed)
        elif name == "abort":
            journal.abort()
            plain = copy.deepcopy(committed)
        elif name == "snapshot":
            assert order(how.committed(tracked)) == order(committed)
            assert type(how.committed(tracked)) is type(plain)
        else:
            expected, got = call(plain, name, args), call(tracked, name, args)
            assert got == expected, name
            assert type(got) is type(expected), name
        assert tracked == plain
        assert plain == tracked
        assert order(tracked) == order(plain)
        if not isinstance(plain, set):  # a set's order depends on its history
            assert repr(tracked) == repr(plain)
        assert len(tracked) == len(plain)
    assert order(how.plain(tracked)) == order(plain)
    assert type(how.plain(tracked)) is type(plain)
    journal.abort()
    assert order(tracked) == order(committed)


@FAST
@given(SIZES, steps(*LIST_OPS))
def test_list_does_what_the_builtin_does(size: int, history: list[Any]) -> None:
    run(parse_type(list[int], "t"), list(range(size)), history)


@FAST
@given(SIZES, st.sampled_from([None, 3, 66, 70]), steps(*DEQUE_OPS))
def test_deque_does_what_the_builtin_does(size: int, maxlen: int | None, history: list[Any]) -> None:
    run(parse_type(collections.deque[int], "t"), collections.deque(range(size), maxlen), history)


@FAST
@given(SIZES, steps(*MAP_OPS))
def test_map_does_what_the_builtin_does(size: int, history: list[Any]) -> None:
    run(parse_type(dict[int, int], "t"), {i: -i for i in range(size)}, history)


@FAST
@given(SIZES, steps(*COUNTER_OPS))
def test_counter_does_what_the_builtin_does(size: int, history: list[Any]) -> None:
    run(parse_type(collections.Counter[int], "t"), collections.Counter({i: i for i in range(size)}), history)


@FAST
@given(SIZES, steps(*SET_OPS))
def test_set_does_what_the_builtin_does(size: int, history: list[Any]) -> None:
    run(parse_type(set[int], "t"), set(range(size)), history)


class LastN(list[Any]):
    """The obvious bounded list: do it, then drop from the left."""

    maxlen = 0


def bounded(name: str) -> Any:
    def method(self: LastN, *args: Any) -> Any:
        result = getattr(list, name)(self, *args)
        if len(self) > self.maxlen:
            del self[: len(self) - self.maxlen]
        return result

    return method


for growing in ("append", "extend", "insert", "__setitem__", "__iadd__", "__imul__"):
    setattr(LastN, growing, bounded(growing))


@FAST
@given(SIZES, st.sampled_from([1, 4, 66, 70]), st.data())
def test_bounded_list_keeps_the_last_items(size: int, maxlen: int, data: st.DataObject) -> None:
    journal = Journal()
    how = handling(ListNode(ScalarNode(int), maxlen))
    assert how is not None
    tracked = how.adopt(list(range(size)), journal, None, None)
    model = LastN(range(size)[-maxlen:])
    model.maxlen = maxlen
    committed = list(model)
    backup = list(model)
    for name, args in data.draw(steps(*LIST_OPS)):
        if name == "commit":
            backup = apply_changes(backup, tracked.changes())
            journal.commit()
            committed = list(model)
            assert backup == committed
        elif name == "abort":
            journal.abort()
            model[:] = committed
        elif name == "snapshot":
            assert how.committed(tracked) == committed
        else:
            assert call(tracked, name, args) == call(model, name, args), name
        assert tracked == model
        assert len(tracked) <= maxlen


@pytest.mark.parametrize("size", [3, 70])
def test_iterating_while_growing_fails_as_with_the_builtin(size: int) -> None:
    how = handling(parse_type(dict[int, int], "t"))
    assert how is not None
    tracked = how.adopt({i: i for i in range(size)}, Journal(), None, None)

    def grow() -> None:
        for key in tracked:
            tracked[key + 1000] = 1

    with pytest.raises(RuntimeError, match="changed size during iteration"):
        grow()
