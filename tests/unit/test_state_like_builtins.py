"""Where a tracked container meets other code it passes for the builtin, and what leaves it is plain."""

import bisect
import copy
import dataclasses
import json
import pickle
from collections import Counter, deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.errors import StateTypeError
from bedload.state import Journal, Tracked, TrackedMap
from bedload.state.handling import handling
from bedload.state.types import parse_type


def track(annotation: Any, value: Any, journal: Journal | None = None) -> Any:
    how = handling(parse_type(annotation, "t"))
    assert how is not None
    return how.adopt(value, journal or Journal(), None, None)


@dataclasses.dataclass(order=True)
class Point:
    x: int
    tags: list[str] = dataclasses.field(default_factory=list)

    def shift(self, by: int) -> "Point":
        self.x += by
        return self


@dataclasses.dataclass(slots=True)
class Slotted:
    x: int = 0


@dataclasses.dataclass(frozen=True)
class Sealed:
    tags: list[str]


@dataclasses.dataclass(eq=False)
class ById:
    x: int = 0


SAMPLES = [
    (list[int], [3, 1, 2]),
    (dict[str, int], {"a": 1, "b": 2}),
    (set[int], {1, 2}),
    (Counter[str], Counter(a=2)),
    (deque[int], deque([1, 2], 5)),
    (dict[str, list[int]], {"a": [1]}),
    (list[dict[str, set[int]]], [{"a": {1}}]),
    (Point, Point(1, ["a"])),
    (Slotted, Slotted(1)),
]


@pytest.mark.parametrize(("annotation", "plain"), SAMPLES)
@pytest.mark.parametrize("touched", [False, True])
def test_copies_and_pickles_are_plain_all_the_way(annotation: Any, plain: Any, touched: bool) -> None:
    tracked = track(annotation, plain)
    if touched:
        tracked._bl_touch()
    for made in (copy.deepcopy(tracked), pickle.loads(pickle.dumps(tracked))):
        assert made == plain
        assert type(made) is type(plain)
        for inner in made.values() if isinstance(made, dict) else made if isinstance(made, list) else ():
            assert not isinstance(inner, Tracked)
    assert type(copy.copy(tracked)) is type(plain)
    assert copy.copy(tracked) == plain


@pytest.mark.parametrize(("annotation", "plain"), SAMPLES)
def test_it_is_an_instance_of_prints_as_and_equals_the_builtin(annotation: Any, plain: Any) -> None:
    tracked = track(annotation, plain)
    assert isinstance(tracked, type(plain))
    assert repr(tracked) == repr(plain)
    assert tracked == plain
    assert plain == tracked
    assert (tracked != plain, plain != tracked) == (False, False)


def test_shallow_copies_share_children_as_with_builtins() -> None:
    tracked = track(dict[str, list[int]], {"a": [1]})
    tracked.copy()["a"].append(2)
    assert tracked == {"a": [1, 2]}


@pytest.mark.parametrize(
    "made",
    [
        lambda: track(list[int], [1, 2])[:],
        lambda: track(list[int], [1]) + [2],  # noqa: RUF005
        lambda: [0] + track(list[int], [1]),  # noqa: RUF005
        lambda: track(list[int], [1]) * 2,
        lambda: track(list[int], [1]).copy(),
        lambda: track(dict[str, int], {"a": 1}).copy(),
        lambda: track(dict[str, int], {"a": 1}) | {"b": 1},
        lambda: {"b": 1} | track(dict[str, int], {"a": 1}),
        lambda: track(set[int], {1}) | {2},
        lambda: {2} | track(set[int], {1}),
        lambda: track(set[int], {1}) & {1},
        lambda: track(set[int], {1}).union({2}),
        lambda: track(set[int], {1}).copy(),
        lambda: track(Counter[str], Counter(a=1)) + Counter(b=1),
        lambda: +track(Counter[str], Counter(a=1)),
        lambda: track(Counter[str], Counter(a=1)).copy(),
        lambda: track(deque[int], deque([1])).copy(),
        lambda: track(deque[int], deque([1])) + deque([2]),
        lambda: 2 * track(deque[int], deque([1])),
        lambda: type(track(list[int], [1]))(x for x in (1, 2)),
        lambda: type(track(dict[str, int], {})).fromkeys("ab", 1),
        lambda: dataclasses.replace(track(Point, Point(1)), x=2),
        lambda: dataclasses.asdict(track(Point, Point(1, ["a"])))["tags"],
    ],
)
def test_what_is_made_of_it_is_plain(made: Any) -> None:
    assert type(made()) in (list, dict, set, Counter, deque, Point)


def test_other_code_takes_it_for_the_builtin() -> None:
    numbers = track(list[int], [3, 1, 2])
    assert json.dumps({"n": numbers[:], "m": track(dict[str, int], {"a": 1})}) == '{"n": [3, 1, 2], "m": {"a": 1}}'
    assert isinstance(numbers, list)
    assert pa.array([numbers, [4]], pa.list_(pa.int64())).to_pylist() == [[3, 1, 2], [4]]
    assert np.array(numbers).tolist() == [3, 1, 2]
    match numbers:
        case [first, *_]:
            assert first == 3
        case _:
            pytest.fail("a list is a sequence")
    assert sorted(numbers) == [1, 2, 3]
    numbers.sort()
    bisect.insort(numbers, 2)
    assert numbers == [1, 2, 2, 3]
    assert [x * 2 for x in numbers] == [2, 4, 4, 6]
    match track(Point, Point(1)):
        case Point(x=1):
            pass
        case other:
            pytest.fail(repr(other))


def test_setdefault_gives_the_adopted_child() -> None:
    journal = Journal()
    tracked = track(dict[str, list[int]], {}, journal)
    tracked.setdefault("a", []).append(1)
    journal.commit()
    tracked.setdefault("a", []).append(2)
    assert tracked == {"a": [1, 2]}
    journal.abort()
    assert tracked == {"a": [1]}


def test_a_container_put_in_a_second_place_is_copied() -> None:
    tracked = track(dict[str, list[int]], {"a": [1]})
    tracked["b"] = tracked["a"]
    tracked["b"].append(2)
    assert tracked == {"a": [1], "b": [1, 2]}
    mine = [0]
    tracked["c"] = mine
    mine.append(1)
    assert tracked["c"] == [0]


def test_augmented_assignment_of_a_child_keeps_the_child() -> None:
    tracked = track(dict[str, list[int]], {"a": [1]})
    child = tracked["a"]
    tracked["a"] += [2]
    assert tracked["a"] is child
    assert tracked == {"a": [1, 2]}


def test_filtering_a_list_in_place_keeps_its_children() -> None:
    tracked = track(list[list[int]], [[1], [2], [3]])
    kept = tracked[2]
    tracked[:] = [x for x in tracked if x != [2]]
    assert tracked[1] is kept


def test_a_popped_child_goes_back_as_it_was() -> None:
    journal = Journal()
    tracked = track(dict[str, list[int]], {"a": [1], "b": []}, journal)
    child = tracked.pop("a")
    child.append(2)
    tracked["b"] = child
    journal.abort()
    assert list(tracked.items()) == [("a", [1]), ("b", [])]


@pytest.mark.parametrize(
    ("annotation", "start", "put"),
    [
        (dict[str, list[int]], {}, lambda t: t.update(a=5)),
        (list[list[int]], [], lambda t: t.append((1,))),
        (deque[set[int]], deque(), lambda t: t.append([1])),
        (dict[str, tuple[list[int], int]], {}, lambda t: t.update(a=([1],))),
        (dict[str, Point], {}, lambda t: t.update(a={"x": 1})),
    ],
)
def test_a_child_of_another_type_is_refused_at_once(annotation: Any, start: Any, put: Any) -> None:
    with pytest.raises(StateTypeError, match="expected"):
        put(track(annotation, start))


def test_reading_does_not_touch() -> None:
    journal = Journal()
    tracked = track(dict[str, list[int]], {"a": [1]}, journal)
    assert tracked.get("a")[0] == 1
    assert [*tracked.items(), *tracked.values(), len(tracked), "a" in tracked]
    tracked.pop("none", None)
    track(set[int], {1}, journal).add(1)
    track(set[int], {1}, journal).discard(2)
    assert journal.dirty == []


def test_the_class_says_what_it_is() -> None:
    tracked = track(dict[str, int], {})
    assert isinstance(tracked, TrackedMap)
    assert type(tracked).__name__ == "TrackedMap"


def test_a_tracked_dataclass_orders_and_calls_its_methods() -> None:
    journal = Journal()
    point = track(Point, Point(1), journal)
    assert point < Point(2)
    assert Point(2) > point
    assert point.shift(2) is point
    assert point.x == 3
    journal.abort()
    assert point == Point(1)


def test_a_frozen_dataclass_stays_frozen_and_its_containers_are_tracked() -> None:
    journal = Journal()
    sealed = track(Sealed, Sealed(["a"]), journal)
    with pytest.raises(dataclasses.FrozenInstanceError):
        sealed.tags = []
    sealed.tags.append("b")
    assert sealed == Sealed(["a", "b"])
    journal.abort()
    assert sealed == Sealed(["a"])


def test_a_dataclass_that_compares_by_identity_still_does() -> None:
    thing = track(ById, ById())
    assert thing == thing
    assert thing != ById()
    assert hash(thing) == hash(thing)


def test_a_deleted_field_comes_back_on_abort() -> None:
    journal = Journal()
    slotted = track(Slotted, Slotted(4), journal)
    del slotted.x
    assert not hasattr(slotted, "x")
    journal.abort()
    assert slotted == Slotted(4)
