"""Containers in containers: changes deep inside are seen, backed up and undone, beside a plain model.

The model copies what is put in, because adopting does.
"""

import collections
import copy
import dataclasses
from collections import Counter, deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.applied_changes import apply_changes

from bedload.state import Journal, Tracked
from bedload.state.handling import handling
from bedload.state.types import parse_type

FAST = settings(max_examples=150, deadline=None)


@dataclasses.dataclass
class Point:
    x: int = 0
    tags: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Car:
    name: str
    at: Point
    seen: Counter[str]
    last: deque[int]
    path: list[Point]
    spare: Point | None = None


def car(n: int = 0) -> Car:
    return Car(f"car{n}", Point(n), Counter(a=n), deque([n], 3), [Point(1)], None)


SHAPES: list[tuple[Any, Any]] = [
    (dict[str, list[int]], lambda n: {f"k{i}": [i] for i in range(n)}),
    (dict[str, dict[str, Counter[str]]], lambda n: {f"k{i}": {"in": Counter(a=1)} for i in range(n)}),
    (list[list[int]], lambda n: [[i] for i in range(n)]),
    (list[set[int] | None], lambda n: [{i} if i % 3 else None for i in range(n)]),
    (deque[list[int]], lambda n: deque([[i] for i in range(n)], 70)),
    (dict[str, Car], lambda n: {f"k{i}": car(i) for i in range(n)}),
    (list[tuple[int, list[int]]], lambda n: [(i, [i]) for i in range(n)]),
    (dict[str, tuple[list[int], ...]], lambda n: {f"k{i}": ([i], [i]) for i in range(n)}),
    (Car, lambda n: car(n)),
]


def children(value: Any) -> list[Any]:
    """The values in a value, in an order that a tracked value and its model share."""
    if isinstance(value, Counter):
        return []
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | deque | tuple):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, f.name) for f in dataclasses.fields(value)]
    return []


def pick(root: Any, path: list[int]) -> Any:
    """Some container in the tree; the same numbers find the same place in an equal tree."""
    at = root
    for number in path:
        inner = [c for c in children(at) if c is not None and not isinstance(c, int | str)]
        if not inner:
            break
        at = inner[number % len(inner)]
    return at


def mutate(at: Any, what: int, number: int) -> None:
    """One change in place; ``number`` chooses where."""
    if isinstance(at, Counter):
        at["abc"[number % 3]] += 1
        if what % 3 == 0:
            del at["a"]
    elif isinstance(at, dict):
        keys = list(at)
        key = keys[number % len(keys)] if keys else "new"
        other = keys[what % len(keys)] if keys else "new"
        if what % 6 == 0:
            at.pop(key, None)
        elif what % 6 == 1 and keys:
            at[f"new{number}"] = at[other]
        elif what % 6 == 2 and keys:
            at[key] = copy.deepcopy(at[other])
        elif what % 6 == 3 and keys:
            mutate(at.setdefault(key, None), what // 6, number)
        elif what % 6 == 4 and keys:
            at.update({key: copy.deepcopy(at[other])})
        elif keys:
            at.popitem()
    elif isinstance(at, list):
        if what % 6 == 0 and at:
            at.pop(number % len(at))
        elif what % 6 == 1 and at:
            at.append(copy.deepcopy(at[number % len(at)]))
        elif what % 6 == 2 and at:
            at[number % len(at)] = copy.deepcopy(at[what % len(at)])
        elif what % 6 == 3:
            at.reverse()
        elif what % 6 == 4:
            at[:] = [x for i, x in enumerate(at) if i % 5 != number % 5]
        elif at and isinstance(at[0], int):
            at += [number]
        elif at:
            at.pop()
    elif isinstance(at, deque):
        if what % 4 == 0 and at:
            at.popleft()
        elif what % 4 == 1 and at:
            at.append(copy.deepcopy(at[0]))
        elif what % 4 == 2 and at:
            at.appendleft(copy.deepcopy(at[-1]))
        else:
            at.rotate(1)
    elif isinstance(at, set):
        (at.discard if what % 2 else at.add)(f"t{number % 5}")
    elif isinstance(at, Point):
        at.x += number
        if what % 3 == 0:
            at.tags = {f"r{number}"}
    elif isinstance(at, Car):
        at.name += "x"
        if what % 2:
            at.spare = Point(number)
        else:
            at.at = Point(number, {"new"})


def unshare(value: Any) -> Any:
    if isinstance(value, Counter | set) or value is None or isinstance(value, int | str):
        return copy.copy(value)
    if isinstance(value, dict):
        return {k: unshare(v) for k, v in value.items()}
    if isinstance(value, deque):
        return deque(map(unshare, value), value.maxlen)
    if isinstance(value, list | tuple):
        return type(value)(map(unshare, value))
    return type(value)(*(unshare(getattr(value, f.name)) for f in dataclasses.fields(value)))


def form(value: Any) -> Any:
    """Equality with the order of dicts and with nothing tracked left in it."""
    assert not isinstance(value, Tracked)
    if isinstance(value, Counter):
        return ("counter", list(value.items()))
    if isinstance(value, dict):
        return ("dict", [(k, form(v)) for k, v in value.items()])
    if isinstance(value, deque):
        return ("deque", value.maxlen, [form(v) for v in value])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [form(v) for v in value])
    if dataclasses.is_dataclass(value):
        return (type(value), [form(c) for c in children(value)])
    return value


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("mutate"),
            st.lists(st.integers(0, 200), max_size=3),
            st.integers(0, 40),
            st.integers(0, 200),
        ),
        st.tuples(st.sampled_from(["commit", "abort", "snapshot"])),
    ),
    max_size=20,
)


@FAST
@given(st.sampled_from(range(len(SHAPES))), st.sampled_from([1, 4, 66]), STEPS)
def test_nested_changes_commit_abort_and_back_up_as_a_deep_copy_would(
    shape: int, size: int, history: list[Any]
) -> None:
    annotation, make = SHAPES[shape]
    how = handling(parse_type(annotation, "t"))
    assert how is not None
    journal = Journal()
    plain = make(size)
    tracked = how.adopt(plain, journal, None, None)
    committed, backup = copy.deepcopy(plain), copy.deepcopy(plain)
    for step in history:
        if step[0] == "mutate":
            _, path, what, number = step
            mutate(pick(tracked, path), what, number)
            mutate(pick(plain, path), what, number)
            plain = unshare(plain)
        elif step[0] == "commit":
            if form(plain) != form(committed):
                assert how.differs(tracked)
            backup = apply_changes(backup, tracked._bl_changes())
            journal.commit()
            committed = copy.deepcopy(plain)
            assert form(backup) == form(committed)
            backup = copy.deepcopy(backup)
        elif step[0] == "abort":
            journal.abort()
            plain = copy.deepcopy(committed)
        else:
            assert form(how.committed(tracked)) == form(committed)
        assert tracked == plain
        assert form(how.plain(tracked)) == form(plain)
    journal.abort()
    assert form(how.plain(tracked)) == form(committed)


@FAST
@given(st.sampled_from(range(len(SHAPES))), st.sampled_from([1, 66]), STEPS)
def test_a_replica_kept_by_changes_can_itself_be_tracked(shape: int, size: int, history: list[Any]) -> None:
    annotation, make = SHAPES[shape]
    how = handling(parse_type(annotation, "t"))
    assert how is not None
    here, there = Journal(), Journal()
    tracked = how.adopt(make(size), here, None, None)
    replica = how.adopt(make(size), there, None, None)
    for step in history:
        if step[0] == "mutate":
            mutate(pick(tracked, step[1]), step[2], step[3])
        elif step[0] == "commit":
            changes = tracked._bl_changes()
            applied = apply_changes(replica, changes)
            replica = applied if isinstance(applied, Tracked) else how.adopt(applied, there, None, None)
            here.commit()
            there.commit()
            assert form(how.plain(replica)) == form(how.plain(tracked))


def test_the_shapes_cover_every_container_as_a_child() -> None:
    found = {type(v) for _, make in SHAPES for v in children(make(4))}
    found |= {type(c) for _, make in SHAPES for v in children(make(4)) for c in children(v)}
    assert found >= {list, dict, set, collections.Counter, collections.deque, Point, Car}
