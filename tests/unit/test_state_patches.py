"""Patches: what they say, what goes through their bytes, and which values have none."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter, deque
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from bedload.checkpoint.patches import apply_patches
from bedload.core.errors import StateTypeError
from bedload.state import Changes, Journal
from bedload.state.arrow import arrow_type, decode_all, encoder
from bedload.state.handling import handling
from bedload.state.patches import has_patches, is_exact, is_small, pack_patches, patch_encoder, unpack_patches
from bedload.state.types import DequeNode, TypeNode, parse_type

LARGE = 100
"""Entries from which on a container logs entries instead of copying itself."""


@dataclasses.dataclass
class Point:
    x: int = 0
    days: list[dt.date] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Spot:
    x: int
    y: float


def tracked(annotation: Any, value: Any) -> tuple[TypeNode, Any]:
    node = parse_type(annotation, "test")
    how = handling(node)
    assert how is not None
    return node, how.adopt(value, Journal(), None, None)


def patch_of(node: TypeNode, value: Any) -> list[Any]:
    changes = value._bl_changes()
    assert isinstance(changes, Changes)
    return patch_encoder(node)(changes)


def sent(node: TypeNode, old: Any, value: Any) -> Any:
    """The old value with the patch of the changes applied, after both have been through their bytes."""
    (patch,) = unpack_patches(pack_patches({"v": patch_of(node, value)})).values()
    assert patch is not None
    kind = arrow_type(node)
    (stored,) = pa.array([encoder(node)(old)], kind).to_pylist()
    (new,) = pa.array([apply_patches(kind, stored, [patch])], kind).to_pylist()
    return decode_all(node, [new])[0]


# --- what they say ---


def test_a_map_says_what_to_remove_and_what_to_put() -> None:
    node, value = tracked(dict[str, int], {"a": 1, "b": 2, "c": 3})
    del value["b"]
    value["c"] = 4
    value["d"] = 5
    assert patch_of(node, value) == ["map", ["b"], [("c", 4), ("d", 5)]]


def test_a_set_says_what_was_added_and_removed() -> None:
    node, value = tracked(set[int], {1, 2})
    value ^= {2, 3}
    assert patch_of(node, value) == ["set", [3], [2]]


def test_a_bounded_list_says_what_it_dropped_and_gained() -> None:
    node, value = tracked(list[float], [1.0, 2.0, 3.0])
    value.append(4.0)
    del value[0]
    assert patch_of(node, value) == ["seq", 1, 2, [], [4.0], []]


def test_a_large_sequence_says_which_entry_changed() -> None:
    node, value = tracked(deque[int], deque(range(LARGE)))
    value[7] = -1
    value.appendleft(-2)
    assert patch_of(node, value) == ["seq", 0, LARGE, [-2], [], [(7, -1)]]


def test_a_dataclass_says_which_fields_changed() -> None:
    node, value = tracked(Point | None, Point(1))
    value.x = 2
    assert patch_of(node, value) == ["struct", {"x": 2}, []]


def test_values_are_encoded_and_keys_too() -> None:
    node, value = tracked(dict[tuple[int, str], Decimal], {})
    value[1, "a"] = Decimal("1.50")
    assert patch_of(node, value) == ["map", [], [({"f0": 1, "f1": "a"}, "1.50")]]


# --- through their bytes ---

NOW = dt.datetime(1960, 5, 1, 12, 30, 15, 7)


@pytest.mark.parametrize(
    ("annotation", "old", "new"),
    [
        (dict[dt.date, int], {dt.date(1, 1, 1): 1}, {dt.date(1, 1, 1): 2, dt.date(9999, 12, 31): 3}),
        (dict[int, dt.datetime], {1: NOW}, {1: NOW.replace(tzinfo=dt.UTC), 2: dt.datetime.max, 3: dt.datetime.min}),
        (set[dt.timedelta], {dt.timedelta(1)}, {dt.timedelta(microseconds=-1), dt.timedelta(days=100_000_000)}),
        (list[bytes], [b"", b"\xff"], [b"", b"\xff", b"\x00\xcf\xff"]),
        (list[float], [1.0], [1.0, float("inf"), -0.0, 1e-300]),
        (dict[str, list[dt.date | None]], {"a": []}, {"a": [None, NOW.date()]}),
        (dict[str, dict[int | None, dt.timedelta]], {}, {"a": {None: dt.timedelta(3), 1: dt.timedelta(0)}}),
        (dict[str, Counter[dt.date]], {}, {"a": Counter({NOW.date(): 2})}),
        (dict[str, tuple[int, dt.date]], {"b": (1, NOW.date())}, {"b": (2, NOW.date())}),
        (dict[str, tuple[dt.date, ...]], {}, {"b": (NOW.date(), NOW.date())}),
        (dict[str, Point], {"p": Point(1)}, {"p": Point(2, [NOW.date()])}),
        (dict[str, deque[dt.date]], {"p": deque()}, {"p": deque([NOW.date()], 5)}),
        (dict[int | None, int], {}, {None: 1, 2: 3}),
        (dict[int, int], {1: 2**63 - 1}, {1: -(2**63), 2: 2**63 - 1}),
    ],
)
def test_what_is_applied_from_bytes_is_the_new_value(annotation: Any, old: Any, new: Any) -> None:
    node, value = tracked(annotation, old)
    if isinstance(new, dict):
        value.update(new)
    elif isinstance(new, set):
        value.symmetric_difference_update(old ^ new)
    else:
        value.extend(new[len(old) :])
    assert repr(sent(node, old, value)) == repr(new)


def test_fields_of_dates_go_through_bytes() -> None:
    node, value = tracked(Point, Point(1))
    value.days.append(NOW.date())
    assert sent(node, Point(1), value) == Point(1, [NOW.date()])


def test_a_deque_with_a_length_of_its_own_is_patched() -> None:
    node = parse_type(deque[int] | None, "test")
    how = handling(node)
    assert how is not None
    value = how.adopt(deque(range(LARGE), LARGE), Journal(), None, None)
    value.append(-1)
    new = sent(node, deque(range(LARGE), LARGE), value)
    assert new == deque(range(LARGE), LARGE) + deque([-1])
    assert new.maxlen == LARGE


def test_whole_values_are_named_without_a_patch() -> None:
    assert unpack_patches(pack_patches({"a": None, "b": ["set", [1], []]})) == {"a": None, "b": ["set", [1], []]}


def test_a_kind_of_value_that_a_newer_version_wrote_is_refused() -> None:
    with pytest.raises(StateTypeError, match="unknown kind 9"):
        unpack_patches(b"\x81\xa1v\x91\xd4\x09\x00")


# --- what is refused ---


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1])
def test_numbers_beyond_64_bits_are_refused(number: int) -> None:
    node, value = tracked(dict[str, list[int]], {})
    value["a"] = [1, number]
    with pytest.raises(StateTypeError, match=r"64 bits|cannot be stored"):
        pack_patches({"v": patch_of(node, value)})


def test_bytes_that_look_like_a_large_number_are_not_refused() -> None:
    patches: dict[str, Any] = {"v": ["seq", 0, 0, [], [b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"], []]}
    assert unpack_patches(pack_patches(patches)) == patches


def test_values_of_another_type_are_refused_and_their_field_is_named() -> None:
    node, value = tracked(dict[str, int], {})
    value["a"] = "many"
    with pytest.raises(StateTypeError, match="expected int"):
        patch_of(node, value)
    node, point = tracked(Point, Point())
    point.x = "far"
    with pytest.raises(StateTypeError, match="field 'x' of Point"):
        patch_of(node, point)


def test_a_deleted_field_is_refused() -> None:
    node, point = tracked(Point, Point())
    del point.days
    with pytest.raises(StateTypeError, match="'days' of Point was deleted"):
        patch_of(node, point)


# --- which types ---


def test_containers_whose_equal_keys_differ_once_encoded_have_no_patches() -> None:
    # The log knows the key that was written, but the dict keeps the one that came first.
    _, value = tracked(dict[Decimal, int], {Decimal(i): i for i in range(LARGE)})
    value[Decimal("7.0")] = -1
    assert str(next(iter(value._bl_changes().put))) == "7.0"
    for annotation in (dict[Decimal, int], Counter[dt.datetime], set[float], dict[tuple[int, float], int], set[Spot]):
        assert not has_patches(parse_type(annotation, "test"))


@pytest.mark.parametrize(
    "annotation", [dict[str, float], Counter[dt.date], set[tuple[int, bytes]], list[Decimal], Point]
)
def test_other_containers_have_patches(annotation: Any) -> None:
    assert has_patches(parse_type(annotation, "test"))
    assert has_patches(parse_type(annotation | None, "test"))


def test_tuples_and_scalars_have_no_patches() -> None:
    assert not has_patches(parse_type(tuple[list[int], int], "test"))
    assert not has_patches(parse_type(str, "test"))


def test_equal_values_are_encoded_alike_unless_they_may_differ_in_print() -> None:
    for exact in (int, str, bytes, bool, dt.date, dt.timedelta, list[int], dict[str, set[int]], tuple[int | None, ...]):
        assert is_exact(parse_type(exact, "test"))
    for vague in (float, Decimal, dt.datetime, list[float], dict[str, Decimal], Spot, tuple[int, float]):
        assert not is_exact(parse_type(vague, "test"))


def test_small_values_are_those_that_cannot_grow() -> None:
    for small in (int, float, bool, dt.datetime, dt.date | None, tuple[int, float], Spot):
        assert is_small(parse_type(small, "test"))
    for other in (str, bytes, Decimal, list[int], tuple[int, ...], tuple[int, str], Point):
        assert not is_small(parse_type(other, "test"))
    assert not is_small(DequeNode(parse_type(int, "test"), declared=True))
