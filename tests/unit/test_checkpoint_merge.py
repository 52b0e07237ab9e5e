"""A state and deltas become the state that plain dicts would have become."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.checkpoint_states import COUNTS, delta, groups_of_keys, merge, rows_of, schema_of, state

from bedload.checkpoint.forms import StateForm
from bedload.checkpoint.merge import KeyFilter
from bedload.checkpoint.patches import apply_patches
from bedload.core.errors import CheckpointDamaged, DefinitionError
from bedload.store.deltas import GROUP, OP

SPEEDS = schema_of({"car": pa.string()}, {"seen": pa.map_(pa.string(), pa.int64()), "last": pa.list_(pa.int64())})


def n(**counts: int) -> dict[int, dict[str, int]]:
    return {int(key[1:]): {"n": count} for key, count in counts.items()}


def patch(**patches: Any) -> bytes:
    return msgspec.msgpack.encode(patches)


def test_the_last_delta_counts() -> None:
    base = state(COUNTS, n(k1=1, k2=2, k3=3))
    deltas = [delta(COUNTS, n(k2=20, k4=40)), delta(COUNTS, n(k4=41), removed=[1]), delta(COUNTS, n(k2=21))]
    assert rows_of(merge(COUNTS, base, deltas)) == n(k2=21, k3=3, k4=41)


def test_a_key_that_was_removed_and_put_again_is_there_once() -> None:
    base = state(COUNTS, n(k1=1))
    deltas = [delta(COUNTS, removed=[1]), delta(COUNTS, n(k1=5)), delta(COUNTS, n(k9=9)), delta(COUNTS, removed=[9])]
    assert rows_of(merge(COUNTS, base, deltas)) == n(k1=5)


def test_removing_what_is_not_there_does_nothing() -> None:
    assert rows_of(merge(COUNTS, None, [delta(COUNTS, removed=[7])])) == {}


def test_without_deltas_the_state_is_given_as_it_is() -> None:
    base = state(COUNTS, n(k1=1, k2=2))
    merged = merge(COUNTS, pa.Table.from_batches([base]), [])
    assert merged.equals(base)


def test_only_the_key_groups_asked_for_are_there() -> None:
    keys = {key: {"n": key} for key in range(200)}
    base, change = state(COUNTS, keys), delta(COUNTS, {key: {"n": -key} for key in range(150, 260)}, removed=[3])
    merged = merge(COUNTS, base, [change], [1, 4, 5])
    assert set(merged.column(GROUP).to_pylist()) == {1, 4, 5}
    expected = (keys | {key: {"n": -key} for key in range(150, 260)}).items()
    assert rows_of(merged) == {
        key: row for key, row in expected if key != 3 and groups_of_keys(COUNTS, [key])[0] in (1, 4, 5)
    }


def test_untouched_keys_keep_their_order() -> None:
    base = state(COUNTS, {key: {"n": 0} for key in range(100)})
    before = base.column("bedload_key_0").to_pylist()
    merged = merge(COUNTS, base, [delta(COUNTS, n(k50=1), removed=[51])])
    assert merged.column("bedload_key_0").to_pylist() == [key for key in before if key != 51]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.bool_(), [True, False]),
        (pa.int8(), [1, -1]),
        (pa.int64(), [2**62, -(2**62)]),
        (pa.float64(), [1.5, -2.5, math.inf]),
        (pa.float32(), [1.5, -2.5]),
        (pa.string(), ["", "a", "ü" * 40]),
        (pa.large_string(), ["", "a"]),
        (pa.binary(), [b"", b"\0", b"\0\0"]),
        (pa.binary(3), [b"abc", b"abd"]),
        (pa.date32(), [dt.date(1960, 1, 1), dt.date(2020, 1, 1)]),
        (pa.timestamp("us"), [dt.datetime(1960, 1, 1), dt.datetime(2020, 1, 1, 1, 1, 1, 1)]),
        (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
        (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("-2.50")]),
        (pa.decimal128(38, 2), [Decimal("1.00"), Decimal(-(2**90))]),
    ],
)
def test_every_type_of_key_is_found_again(kind: pa.DataType, keys: list[Any]) -> None:
    schema = schema_of({"k": kind}, {"n": pa.int64()})
    base = state(schema, {key: {"n": 0} for key in keys})
    merged = merge(schema, base, [delta(schema, {keys[0]: {"n": 1}}), delta(schema, removed=keys[1:2])])
    assert rows_of(merged) == {key: {"n": int(i == 0)} for i, key in enumerate(keys) if i != 1}
    # Null is a key of processors, and may be changed, removed, or left alone.
    keys.append(None)
    base = state(schema, {key: {"n": 0} for key in keys})
    put, gone = delta(schema, {None: {"n": 7}}), delta(schema, removed=[None])
    assert rows_of(merge(schema, base, [put])) == {key: {"n": 7 if key is None else 0} for key in keys}
    assert rows_of(merge(schema, base, [put, gone])) == {key: {"n": 0} for key in keys[:-1]}
    assert rows_of(merge(schema, base, [delta(schema, removed=keys[:-1])])) == {None: {"n": 0}}


def test_null_is_another_key_than_zero_and_than_no_text() -> None:
    for kind, zero in ((pa.int64(), 0), (pa.string(), ""), (pa.bool_(), False)):
        schema = schema_of({"k": kind}, {"n": pa.int64()}, groups=1)  # so that only the key tells them apart
        base = state(schema, {zero: {"n": 1}, None: {"n": 2}})
        merged = merge(schema, base, [delta(schema, {zero: {"n": 3}})])
        assert rows_of(merged) == {zero: {"n": 3}, None: {"n": 2}}
        form = StateForm.of(schema)
        for wanted in ([zero], [None], [zero, None], []):
            kept = KeyFilter(form, [pa.array(wanted, kind)]).keep(base)
            assert set(rows_of(kept)) == set(wanted)


def test_composite_keys_may_have_nulls() -> None:
    schema = schema_of({"a": pa.int64(), "b": pa.string()}, {"n": pa.int64()})
    keys = [(1, "x"), (None, "x"), (1, None), (None, None), (0, "x"), (1, "")]
    base = state(schema, {key: {"n": 0} for key in keys})
    deltas = [
        delta(schema, {key: {"n": i} for i, key in enumerate(keys) if key[0] is None}),
        delta(schema, removed=[(1, None)]),
    ]
    merged = merge(schema, base, deltas)
    assert rows_of(merged, keys=2) == {
        (1, "x"): {"n": 0},
        (None, "x"): {"n": 1},
        (None, None): {"n": 3},
        (0, "x"): {"n": 0},
        (1, ""): {"n": 0},
    }


def test_nan_is_one_key_and_minus_zero_is_zero() -> None:
    schema = schema_of({"k": pa.float64()}, {"n": pa.int64()})
    other_nan = pa.array([-math.nan]).to_pylist()[0]
    base = state(schema, {math.nan: {"n": 0}, 0.0: {"n": 0}})
    merged = merge(schema, base, [delta(schema, {other_nan: {"n": 1}, -0.0: {"n": 2}})])
    assert sorted(merged.column("n").to_pylist()) == [1, 2]


def test_a_patch_changes_one_variable_and_leaves_the_other() -> None:
    base = state(SPEEDS, {"a": {"seen": [("x", 1), ("y", 2)], "last": [1]}, "b": {"seen": [], "last": []}})
    change = delta(SPEEDS, patched={"a": (patch(seen=["map", ["x"], [["z", 3], ["x", 4]]]), {})})
    merged = merge(SPEEDS, base, [change])
    assert rows_of(merged) == {
        "a": {"seen": [("y", 2), ("z", 3), ("x", 4)], "last": [1]},
        "b": {"seen": [], "last": []},
    }


def test_a_patch_may_bring_a_whole_value_which_later_patches_change() -> None:
    base = state(SPEEDS, {"a": {"seen": [("x", 1)], "last": [1, 2, 3]}})
    deltas = [
        delta(SPEEDS, patched={"a": (patch(last=["seq", 1, 2, [], [4], []]), {})}),
        delta(SPEEDS, patched={"a": (patch(last=None), {"last": [9, 9]})}),
        delta(SPEEDS, patched={"a": (patch(last=["seq", 0, 2, [8], [], [[1, 7]]]), {})}),
    ]
    assert rows_of(merge(SPEEDS, base, deltas)) == {"a": {"seen": [("x", 1)], "last": [8, 9, 7]}}


def test_a_key_that_the_deltas_make_can_be_patched_by_later_ones() -> None:
    deltas = [
        delta(SPEEDS, {"a": {"seen": [("x", 1)], "last": []}}),
        delta(SPEEDS, patched={"a": (patch(seen=["map", [], [["x", 2]]]), {})}),
        delta(SPEEDS, patched={"a": (patch(seen=["map", [], [["y", 5]]], last=["seq", 0, 0, [], [1], []]), {})}),
    ]
    assert rows_of(merge(SPEEDS, None, deltas)) == {"a": {"seen": [("x", 2), ("y", 5)], "last": [1]}}


def test_patches_before_a_put_or_a_remove_do_not_count() -> None:
    base = state(SPEEDS, {"a": {"seen": [], "last": [1]}, "b": {"seen": [], "last": [1]}})
    grow = patch(last=["seq", 0, 1, [], [2], []])
    deltas = [
        delta(SPEEDS, patched={"a": (grow, {}), "b": (grow, {})}),
        delta(SPEEDS, {"a": {"seen": [], "last": [7]}}, removed=["b"]),
        delta(SPEEDS, patched={"a": (grow, {})}),
    ]
    assert rows_of(merge(SPEEDS, base, deltas)) == {"a": {"seen": [], "last": [7, 2]}}


def test_a_patch_of_a_key_without_state_is_damage() -> None:
    grow = patch(last=["seq", 0, 1, [], [2], []])
    with pytest.raises(CheckpointDamaged, match=r"patched that have no state, among them 'a'"):
        merge(SPEEDS, None, [delta(SPEEDS, patched={"a": (grow, {})})])
    with pytest.raises(CheckpointDamaged, match="no state"):
        merge(
            SPEEDS,
            state(SPEEDS, {"a": {"seen": [], "last": [1]}}),
            [delta(SPEEDS, removed=["a"]), delta(SPEEDS, patched={"a": (grow, {})})],
        )


@pytest.mark.parametrize(
    "bad",
    [
        b"\xc1",
        patch() + b"x",
        b"\x93\x01\x02\x03",
        patch(last=["seq", 0, 5, [], [], []]),
        b"\x81\xa4last\x91\xa5other",
        patch(last=["seq", 0, 1, [], ["text"], []]),
    ],
)
def test_a_patch_that_does_not_fit_is_damage(bad: bytes) -> None:
    base = state(SPEEDS, {"a": {"seen": [], "last": [1]}})
    with pytest.raises(CheckpointDamaged):
        merge(SPEEDS, base, [delta(SPEEDS, patched={"a": (bad, {})})])


def test_only_the_variables_asked_for_are_there() -> None:
    base = state(SPEEDS, {"a": {"seen": [("x", 1)], "last": [1]}})
    change = delta(SPEEDS, patched={"a": (patch(seen=["map", ["x"], []], last=["seq", 0, 1, [], [2], []]), {})})
    assert rows_of(merge(SPEEDS, base, [change], variables=["last"])) == {"a": {"last": [1, 2]}}
    assert rows_of(merge(SPEEDS, base, [change], variables=[])) == {"a": {}}
    with pytest.raises(DefinitionError, match=r"'speed'.*'seen', 'last'"):
        merge(SPEEDS, base, [], variables=["speed"])


def test_a_delta_of_another_schema_is_refused() -> None:
    other = schema_of({"car": pa.int64()}, {"n": pa.float64()})
    with pytest.raises(CheckpointDamaged, match=r"'n' has type double.*int64"):
        merge(COUNTS, None, [delta(other, {1: {"n": 1.0}})])
    with pytest.raises(CheckpointDamaged, match="no column 'n'"):
        merge(COUNTS, None, [delta(COUNTS, n(k1=1)).drop_columns(["n"])])


def test_an_unknown_operation_is_damage() -> None:
    change = delta(COUNTS, n(k1=1))
    change = change.set_column(change.schema.get_field_index(OP), OP, pa.array([3], pa.int8()))
    with pytest.raises(CheckpointDamaged, match="neither PUT"):
        merge(COUNTS, None, [change])


def test_a_key_group_that_cannot_be_is_damage() -> None:
    change = delta(COUNTS, n(k1=1)).set_column(0, GROUP, pa.array([8], pa.int16()))
    with pytest.raises(CheckpointDamaged, match="there are 8 key groups"):
        merge(COUNTS, None, [change], range(8))


class TestPatches:
    """Single patches, on encoded values."""

    def test_a_key_of_a_map_that_is_put_again_keeps_its_place_and_its_first_form(self) -> None:
        kind = pa.map_(pa.float64(), pa.int64())
        value = apply_patches(kind, [(0.0, 1), (1.0, 2)], [["map", [], [[-0.0, 5]]]])
        assert value == [(0.0, 5), (1.0, 2)]
        assert math.copysign(1, value[0][0]) == 1

    def test_nan_is_one_key_of_a_map(self) -> None:
        assert apply_patches(pa.map_(pa.float64(), pa.int64()), [(math.nan, 1)], [["map", [math.nan], []]]) == []

    def test_a_map_with_a_null_key_is_a_list_of_structs(self) -> None:
        kind = pa.list_(pa.struct([("key", pa.int64()), ("value", pa.int64())]))
        assert apply_patches(kind, [], [["map", [], [[None, 1], [2, 3]]]]) == [
            {"key": None, "value": 1},
            {"key": 2, "value": 3},
        ]

    def test_maps_in_maps_come_as_arrow_takes_them(self) -> None:
        kind = pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))
        value = apply_patches(kind, [], [["map", [], [["a", [["b", 1]]]]]])
        assert pa.array([value], kind).to_pylist() == [[("a", [("b", 1)])]]

    def test_sets_of_tuples(self) -> None:
        kind = pa.list_(pa.struct([("f0", pa.int64()), ("f1", pa.string())]))
        old = [{"f0": 1, "f1": "a"}, {"f0": 2, "f1": "b"}]
        assert apply_patches(kind, old, [["set", [{"f0": 3, "f1": "c"}], [{"f0": 1, "f1": "a"}]]]) == [
            {"f0": 2, "f1": "b"},
            {"f0": 3, "f1": "c"},
        ]

    def test_the_fields_of_a_struct(self) -> None:
        kind = pa.struct([("x", pa.int64()), ("y", pa.int64())])
        assert apply_patches(kind, {"x": 1, "y": 2}, [["struct", {"x": 5}, []], ["struct", {}, ["y"]]]) == {
            "x": 5,
            "y": None,
        }

    def test_a_null_cannot_be_patched(self) -> None:
        with pytest.raises(CheckpointDamaged, match="null"):
            apply_patches(pa.list_(pa.int64()), None, [["seq", 0, 0, [], [1], []]])

    def test_the_old_value_stays_as_it_was(self) -> None:
        old = [1, 2, 3]
        assert apply_patches(pa.list_(pa.int64()), old, [["seq", 1, 2, [0], [], [[0, 9]]]]) == [0, 9, 3]
        assert old == [1, 2, 3]
