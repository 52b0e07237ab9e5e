"""A large container logs the entries that changed, not itself; a small one is copied once."""

import dataclasses
from collections import Counter, deque
from typing import Any

import pytest

from bedload.state import Journal, MapChanges, SequenceChanges, SetChanges, StructChanges
from bedload.state.handling import handling
from bedload.state.types import parse_type

LARGE = 10_000


@dataclasses.dataclass
class Point:
    x: int
    path: list[int] = dataclasses.field(default_factory=list)


def track(annotation: Any, value: Any, journal: Journal | None = None) -> Any:
    how = handling(parse_type(annotation, "t"))
    assert how is not None
    return how.adopt(value, journal or Journal(), None, None)


def test_one_changed_entry_of_a_large_map_logs_one_entry() -> None:
    tracked = track(dict[int, int], {i: i for i in range(LARGE)})
    for _ in range(3):
        tracked[17] += 1
    assert dict(tracked._bl_log) == {17: 17}
    assert tracked._bl_log.order is None
    assert tracked.changes() == MapChanges((), {17: 20})


def test_a_deleted_entry_of_a_large_map_is_one_change() -> None:
    tracked = track(dict[int, int], {i: i for i in range(LARGE)})
    del tracked[17]
    assert dict(tracked._bl_log) == {17: 17}
    assert tracked.changes() == MapChanges((17,), {})


def test_a_counter_logs_the_counted_elements() -> None:
    tracked = track(Counter[int], Counter(dict.fromkeys(range(LARGE), 1)))
    tracked.update([5, 5, LARGE])
    assert tracked.changes() == MapChanges((), {5: 3, LARGE: 1})


def test_an_append_to_a_large_list_logs_only_the_old_length() -> None:
    tracked = track(list[int], list(range(LARGE)))
    for i in range(5):
        tracked.append(i)
    assert dict(tracked._bl_log) == {}
    assert tracked._bl_log.size == LARGE
    assert tracked.changes() == SequenceChanges(0, LARGE, (), (0, 1, 2, 3, 4), {})


def test_pops_and_writes_of_a_large_list_log_one_entry_each() -> None:
    tracked = track(list[int], list(range(LARGE)))
    tracked.pop()
    tracked.pop(0)
    tracked[6] = -1
    del tracked[:2]
    assert dict(tracked._bl_log) == {LARGE - 1: LARGE - 1, 0: 0, 7: 7, 1: 1, 2: 2}
    assert tracked.changes() == SequenceChanges(3, LARGE - 4, (), (), {4: -1})


@pytest.mark.parametrize("maxlen", [None, LARGE])
def test_a_large_deque_logs_what_leaves_it(maxlen: int | None) -> None:
    tracked = track(deque[int], deque(range(LARGE), maxlen))
    tracked.append(-1)
    if maxlen is None:
        tracked.popleft()
    assert dict(tracked._bl_log) == {0: 0}
    assert tracked.changes() == SequenceChanges(1, LARGE - 1, (), (-1,), {})


def test_a_large_set_logs_the_changed_elements() -> None:
    tracked = track(set[int], set(range(LARGE)))
    tracked.add(-1)
    tracked.discard(3)
    tracked.discard(-2)
    assert tracked._bl_log == {-1: False, 3: True}
    assert tracked.changes() == SetChanges(frozenset({-1}), frozenset({3}))


def test_a_change_in_a_child_marks_one_entry_of_the_parent() -> None:
    journal = Journal()
    tracked = track(dict[str, list[int]], {str(i): [i] for i in range(LARGE)}, journal)
    tracked["17"].append(1)
    assert list(tracked._bl_log) == ["17"]
    assert journal.dirty == [tracked, tracked["17"]]
    assert tracked.changes() == MapChanges((), {"17": [17, 1]})


def test_a_change_in_a_child_of_a_large_list_is_one_change() -> None:
    tracked = track(list[list[int]], [[i] for i in range(LARGE)])
    tracked[17].append(1)
    assert tracked.changes() == SequenceChanges(0, LARGE, (), (), {17: [17, 1]})


def test_a_dataclass_writes_its_changed_fields() -> None:
    point = track(Point, Point(1, [1]))
    point.path.append(2)
    assert point._bl_changes() == StructChanges({"path": [1, 2]})
    point.x = 2
    assert point._bl_changes() == StructChanges({"x": 2, "path": [1, 2]})


def test_a_small_map_writes_its_changed_entries_only() -> None:
    tracked = track(dict[str, int], {"a": 1, "b": 2, "c": 3})
    tracked["b"] = 5
    del tracked["c"]
    tracked["d"] = 6
    assert tracked.changes() == MapChanges(("c",), {"b": 5, "d": 6})


def test_a_key_that_went_and_came_back_is_written_at_its_new_place() -> None:
    for size in (3, 100):
        tracked = track(dict[int, int], {i: i for i in range(size)})
        tracked[0] = tracked.pop(0)
        assert tracked.changes() == MapChanges((0,), {0: 0})


def test_an_untouched_container_has_no_changes() -> None:
    assert track(dict[str, int], {"a": 1}).changes() == MapChanges((), {})
    assert track(list[int], [1, 2]).changes() == SequenceChanges(0, 2, (), (), {})
    assert track(deque[int], deque([1, 2])).changes() == SequenceChanges(0, 2, (), (), {})
    assert track(set[int], {1}).changes() == SetChanges(frozenset(), frozenset())
    assert track(Point, Point(1))._bl_changes() == StructChanges({})


def test_commit_and_abort_leave_no_log() -> None:
    journal = Journal()
    tracked = track(dict[str, list[int]], {"a": [1]}, journal)
    for end in (journal.commit, journal.abort):
        tracked["a"].append(2)
        assert journal.dirty
        end()
        assert journal.dirty == []
        assert tracked._bl_log is None
        assert tracked["a"]._bl_log is None


def test_a_full_large_deque_logs_what_falls_off_at_the_right() -> None:
    journal = Journal()
    tracked = track(deque[int], deque(range(100), 100), journal)
    tracked.appendleft(-1)
    assert dict(tracked._bl_log) == {99: 99}
    journal.abort()
    assert tracked == deque(range(100))


def test_a_large_deque_that_was_replaced_whole_goes_back() -> None:
    journal = Journal()
    tracked = track(deque[int], deque(range(100), 100), journal)
    tracked.extend(range(1000, 1250))
    assert tracked == deque(range(1150, 1250))
    assert tracked.changes() == deque(range(1150, 1250))
    journal.abort()
    assert tracked == deque(range(100))


def test_a_large_counter_that_was_emptied_by_hand_sees_what_is_counted_next() -> None:
    journal = Journal()
    tracked = track(Counter[int], Counter(dict.fromkeys(range(100), 1)), journal)
    for element in list(tracked):
        del tracked[element]
    tracked.update({999: 2})
    assert tracked.changes().put == {999: 2}
    assert set(tracked.changes().removed) == set(range(100))
    journal.abort()
    assert tracked == Counter(range(100))
