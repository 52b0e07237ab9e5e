"""A column table: what counts as a change, what is refused, and what a failure leaves behind."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.errors import ClusterError, KeyTypeError, NullKey, ProtocolError, StateTypeError
from bedload.core.ids import KeyGroup
from bedload.store.columns import ColumnSpec, ColumnTable

N = ColumnSpec("n", pa.int64(), 0)
LAST = ColumnSpec("last", pa.float64())
LABEL = ColumnSpec("label", pa.string())


def table_of(*columns: ColumnSpec, key: pa.DataType | None = None, **options: Any) -> ColumnTable:
    return ColumnTable([key or pa.int64()], columns, 4, block=4, **options)


def locate(table: ColumnTable, keys: list[Any], group: int = 0) -> Any:
    return table.locate([pa.array(keys, table.words.types[0])], np.full(len(keys), group))


def committed(table: ColumnTable) -> dict[Any, tuple[Any, ...]]:
    slots = table.committed_slots()
    values = zip(*(column.to_pylist() for column in table.committed(slots).columns), strict=True)
    return dict(zip(table.keys(slots)[0].to_pylist(), values, strict=True))


# --- what is a change ---


def test_a_nan_is_no_change_of_a_nan_but_minus_zero_is_one_of_zero() -> None:
    table = table_of(ColumnSpec("x", pa.float64(), 0.0))
    slots = locate(table, [1, 2])
    table.values("x")[slots] = [np.nan, 0.0]
    table.commit()
    table.values("x")[locate(table, [1, 2])] = [np.nan, -0.0]
    assert table.changed().tolist() == [slots[1]]


def test_what_stands_under_a_null_is_no_change() -> None:
    table = table_of(LAST)
    slots = locate(table, [1, 2])
    table.commit()
    locate(table, [1, 2])
    table.values("last")[slots] = 5.0
    table.valid("last")[slots[1]] = True
    assert table.changed().tolist() == [slots[1]]


def test_a_nullable_column_tells_null_from_nan() -> None:
    table = table_of(LAST)
    table.write_column(locate(table, [1, 2, 3]), "last", pa.array([None, float("nan"), 1.0]))
    table.commit()
    column = table.committed(table.committed_slots()).column("last")
    assert column.null_count == 1
    assert np.isnan(column[1].as_py())


def test_lists_of_equal_length_are_values_not_a_matrix() -> None:
    table = table_of(ColumnSpec("items", pa.list_(pa.int64()), []))
    table.write_column(locate(table, [1, 2]), "items", pa.array([[1, 2], [3, 4]]))
    locate(table, [3])
    table.commit()
    assert committed(table) == {1: ([1, 2],), 2: ([3, 4],), 3: ([],)}


def test_a_key_that_was_deleted_and_made_again_is_a_change_even_if_it_came_out_the_same() -> None:
    table = table_of(N)
    slots = locate(table, [1, 2])
    table.commit()
    table.delete(locate(table, [1]))
    locate(table, [1, 2])
    assert table.changed().tolist() == table.created().tolist() == [slots[0]]
    assert table.removed().tolist() == []


# --- keys ---


@pytest.mark.parametrize(
    "junk",
    [
        pa.array(np.array([1, 2]), mask=np.array([True, True])),
        pa.array(np.array([0.5, np.nan]), mask=np.array([True, True])),
        pa.Array.from_buffers(
            pa.string(), 2, [pa.py_buffer(b"\0"), pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"abb")]
        ),
    ],
    ids=["integers", "doubles", "strings"],
)
def test_what_stands_under_a_null_is_no_part_of_a_key(junk: pa.Array) -> None:
    table = ColumnTable([pa.int64(), junk.type], [N], 1)
    first, second = table.locate([pa.array([7, 7]), junk], np.zeros(2)).tolist()
    assert first == second
    table.check()


# --- snapshots ---


def test_within_an_epoch_reads_see_the_last_commit() -> None:
    table = table_of(N)
    table.values("n")[locate(table, [1, 2, 3])] = [10, 20, 30]
    table.commit()
    table.values("n")[locate(table, [1, 9])] = 99
    table.delete(locate(table, [2]))
    assert committed(table) == {1: (10,), 2: (20,), 3: (30,)}
    assert table.find([pa.array([9, 2])], np.zeros(2)).tolist()[0] == -1
    assert table.extract(table.committed_slots(KeyGroup(0))).to_pydict() == {"key0": [1, 2, 3], "n": [10, 20, 30]}


def test_what_was_extracted_does_not_change_with_the_table() -> None:
    table = table_of(N)
    # One range of slots, which could have been given without a copy.
    slots = locate(table, list(range(8)))
    table.values("n")[slots] = 1
    table.commit()
    batch = table.extract(table.committed_slots(KeyGroup(0)))
    values = table.committed(table.committed_slots())
    locate(table, list(range(8)))
    table.values("n")[slots] = 2
    assert batch.column("n").to_pylist() == values.column("n").to_pylist() == [1] * 8


def test_a_key_that_is_made_again_starts_anew() -> None:
    table = table_of(N, LAST, LABEL)
    slots = locate(table, [1])
    for name, value in {"n": 5, "last": 0.5, "label": "x"}.items():
        table.write_column(slots, name, pa.array([value]))
    table.commit()
    table.delete(locate(table, [1]))
    slots = locate(table, [1])
    assert table.current(slots).to_pylist() == [{"n": 0, "last": None, "label": None}]
    table.abort()
    assert committed(table) == {1: (5, 0.5, "x")}


# --- what is refused ---


def test_a_full_table_says_so_and_the_abort_leaves_the_committed_state() -> None:
    table = table_of(N, max_slots=16)
    table.values("n")[locate(table, [1, 2])] = [1, 2]
    table.commit()
    with pytest.raises(ClusterError, match="room for 16 keys"):
        locate(table, list(range(40)))
    table.values("n")[:] = 77
    table.abort()
    table.check()
    assert committed(table) == {1: (1,), 2: (2,)}


def test_key_groups_that_do_not_exist_are_refused() -> None:
    table = table_of(N)
    for group in (-1, 4):
        with pytest.raises(ProtocolError, match="from 0 to 3"):
            locate(table, [1], group)
    with pytest.raises(ProtocolError, match="2 keys were given with 1"):
        table.locate([pa.array([1, 2])], np.zeros(1))


def test_null_is_no_key_in_a_single_column() -> None:
    table = table_of(N, key=pa.string())
    for keys in (pa.array(["a", None]), pa.array(["a", None]).dictionary_encode(null_encoding="encode")):
        with pytest.raises(NullKey, match="1 of 2 rows"):
            table.locate([keys], np.zeros(2))
        assert table.find([keys], np.zeros(2)).tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        (pa.int64(), pa.array([1], pa.int32())),
        (pa.string(), pa.array([b"a"])),
        (pa.decimal128(10, 2), pa.array([decimal.Decimal("1.0")], pa.decimal128(10, 1))),
        (pa.binary(2), pa.array([b"abc"], pa.binary(3))),
    ],
)
def test_keys_of_another_type_are_refused(declared: pa.DataType, given: pa.Array) -> None:
    with pytest.raises(KeyTypeError, match="was given"):
        table_of(N, key=declared).locate([given], np.zeros(1))


def test_other_layouts_of_a_key_find_the_same_slot() -> None:
    table = table_of(N, key=pa.string())
    slots = locate(table, ["a", "bb"])
    for kind in (pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        given = pa.array(["bb", "a"], pa.string()).cast(kind)
        assert table.locate([given], np.zeros(2)).tolist() == [slots[1], slots[0]]


def test_a_null_in_a_column_without_nulls_is_refused_and_nothing_is_installed() -> None:
    table = table_of(N, key=pa.string())
    with pytest.raises(StateTypeError, match="'n' is not nullable"):
        table.put([pa.array(["a", "b"])], np.zeros(2), pa.record_batch({"n": pa.array([1, None])}))
    table.check()
    assert committed(table) == {}
    table.begin([])


def test_values_of_another_type_are_not_written() -> None:
    table = table_of(N, LAST)
    with pytest.raises(StateTypeError, match="'n' has type int64"):
        table.write_column(locate(table, [1]), "n", pa.array(["many"]))


def test_objects_of_another_type_are_refused_at_the_seal() -> None:
    table = table_of(LABEL)
    table.values("label")[locate(table, [1])] = 5
    with pytest.raises(StateTypeError, match="'label'"):
        table.seal()


def test_only_located_keys_are_deleted() -> None:
    table = table_of(N)
    slots = locate(table, [1])
    table.commit()
    with pytest.raises(ProtocolError, match="has not located"):
        table.delete(slots)


def test_a_key_that_the_epoch_has_deleted_is_not_counted() -> None:
    table = table_of(N)
    locate(table, [1, 2])
    table.commit()
    table.delete(locate(table, [1, 3]))
    assert table.sizes().keys == 1
    locate(table, [1])
    assert table.sizes().keys == 2
    table.abort()
    assert table.sizes().keys == 2


def test_a_slot_is_freed_once() -> None:
    table = table_of(N)
    slots = locate(table, [1, 2])
    table.commit()
    table.discard(np.concatenate((slots[:1], slots[:1])))
    table.check()
    assert table.index.live == 1
    with pytest.raises(ProtocolError, match="holds no key"):
        table.discard(slots[:1])


def test_moving_needs_the_epoch_to_have_ended() -> None:
    table = table_of(N)
    slots = locate(table, [1])
    with pytest.raises(ProtocolError):
        table.discard(slots)
    with pytest.raises(ProtocolError):
        table.drop([KeyGroup(0)])
    with pytest.raises(ProtocolError):
        table.put([pa.array([1])], np.zeros(1), pa.record_batch({"n": pa.array([1])}))


# --- keys that come in within an epoch ---


def install(table: ColumnTable, keys: list[Any], group: int, **columns: list[Any]) -> None:
    types = {spec.name: spec.type for spec in table.columns}
    state = pa.record_batch({name: pa.array(values, types[name]) for name, values in columns.items()})
    table.put([pa.array(keys, table.words.types[0])], np.full(len(keys), group), state)


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_keys_installed_within_an_epoch_are_committed_state_however_it_ends(ending: str) -> None:
    table = table_of(N, LAST)
    table.values("n")[locate(table, [1, 2])] = [1, 2]
    table.commit()
    table.values("n")[locate(table, [1, 9])] = 77
    touched = table.index.touched.tolist()
    install(table, list(range(20, 60)), 1, n=list(range(40)), last=[0.5, None] * 20)
    table.check()
    assert table.index.touched.tolist() == touched
    assert committed(table)[21] == (1, None)
    table.values("n")[locate(table, [20], group=1)] = -1
    table.delete(locate(table, [21], group=1))
    assert committed(table)[20] == (0, 0.5)
    table.commit() if ending == "commit" else table.abort()
    table.check()
    found = committed(table)
    expected = (
        {20: (-1, 0.5), 21: None, 1: (77, None)} if ending == "commit" else {20: (0, 0.5), 21: (1, None), 9: None}
    )
    assert {key: found.get(key) for key in expected} == expected
    assert found[59] == (39, None)


def test_installed_keys_are_no_change_until_they_are_changed() -> None:
    table = table_of(N)
    table.values("n")[locate(table, [1])] = 1
    install(table, [5, 6], 1, n=[5, 6])
    table.values("n")[locate(table, [6], group=1)] = 7
    delta = table.delta()
    assert delta is not None
    assert delta.select(["bedload_group", "bedload_key_0", "n"]).to_pylist() == [
        {"bedload_group": 0, "bedload_key_0": 1, "n": 1},
        {"bedload_group": 1, "bedload_key_0": 6, "n": 7},
    ]


def test_a_column_that_the_installed_state_does_not_have_starts_as_for_a_new_key() -> None:
    table = table_of(N, LAST, LABEL)
    install(table, [1, 2], 0, label=["a", None])
    assert committed(table) == {1: (0, None, "a"), 2: (0, None, None)}


def test_keys_that_an_epoch_has_touched_are_not_put_over() -> None:
    table = table_of(N)
    table.values("n")[locate(table, [1, 2])] = [1, 2]
    table.commit()
    locate(table, [1])
    with pytest.raises(ProtocolError, match="touched some of them already"):
        install(table, [30, 1, 2], 0, n=[0, 0, 0])
    table.check()
    assert table.index.live == 2
    table.abort()
    assert committed(table) == {1: (1,), 2: (2,)}


def test_an_install_that_fails_within_an_epoch_leaves_the_epoch_as_it_was() -> None:
    table = table_of(N, key=pa.string())
    table.values("n")[locate(table, ["a"])] = 5
    with pytest.raises(StateTypeError, match="not nullable"):
        install(table, [f"key {i}" for i in range(40)], 1, n=[None] * 40)
    table.check()
    assert table.index.live == 1
    table.commit()
    assert committed(table) == {"a": (5,)}


def test_an_install_that_fails_between_epochs_leaves_nothing() -> None:
    table = table_of(N, LAST, ColumnSpec("m", pa.int64(), 0))
    install(table, [1], 0, n=[1])
    for keys in ([4, 5], [4, 1]):
        with pytest.raises(StateTypeError):
            install(table, keys, 0, n=[9, 9], m=[1, None])
    table.check()
    table.begin([])
    assert committed(table) == {1: (1, None, 0)}


def test_a_table_that_is_full_takes_nothing_of_an_install() -> None:
    table = table_of(N, max_slots=16)
    locate(table, [1])
    with pytest.raises(ClusterError, match="room for 16 keys"):
        install(table, list(range(100, 140)), 1, n=[0] * 40)
    table.check()
    assert table.index.live == 1


# --- deltas ---


def test_a_delta_is_sorted_by_group_and_removed_keys_are_null_in_it() -> None:
    table = table_of(N, LABEL)
    for group in (2, 0):
        slots = locate(table, [group * 10, group * 10 + 1], group)
        table.write_column(slots, "n", pa.array([1, 2]))
        table.write_column(slots, "label", pa.array(["a", None]))
    table.commit()
    assert table.delta() is None
    table.values("n")[locate(table, [20], 2)] = 9
    slots = locate(table, [0, 21, 30], 0)
    table.delete(slots[[0, 2]])
    delta = table.delta()
    assert delta is not None
    delta.validate(full=True)
    assert [tuple(row.values()) for row in delta.to_pylist()] == [
        (0, 0, 21, 0, None),
        (0, 2, 0, None, None),
        (2, 0, 20, 9, "a"),
    ]


def test_a_delta_of_nothing_but_removed_keys() -> None:
    table = table_of(N)
    locate(table, [1, 2])
    table.commit()
    table.delete(locate(table, [2]))
    delta = table.delta()
    assert delta is not None
    assert [tuple(row.values()) for row in delta.to_pylist()] == [(0, 2, 2, None)]


def test_a_delta_does_not_change_with_the_table() -> None:
    table = table_of(N)
    slots = locate(table, list(range(8)))
    table.values("n")[slots] = 1
    delta = table.delta()
    assert delta is not None
    table.values("n")[slots] = 2
    assert delta.column("n").to_pylist() == [1] * 8


def test_a_column_without_nulls_has_no_mask() -> None:
    with pytest.raises(ProtocolError, match="not nullable"):
        table_of(N).valid("n")


# --- many at once ---


@pytest.mark.parametrize("holes", [0, 1, 700], ids=["one after another", "with a hole", "here and there"])
def test_many_keys_that_are_put_in_at_once_are_as_if_they_had_come_one_by_one(holes: int) -> None:
    table = ColumnTable([pa.int64()], [N, LAST, LABEL], 4)
    random = np.random.default_rng(holes)
    there = random.choice(3000, holes, replace=False)
    table.put([pa.array(there)], there % 4, pa.RecordBatch.from_pydict({"n": there}))
    keys = np.concatenate([np.arange(group, 3000, 4) for group in range(4)])
    last = [None if key % 7 == 0 else key / 2 for key in keys.tolist()]
    state = pa.RecordBatch.from_pydict({"n": keys + 5, "last": last, "label": [f"l{key}" for key in keys.tolist()]})
    table.put([pa.array(keys)], keys % 4, state)
    table.index.check()
    wanted = {key: (key + 5, None if key % 7 == 0 else key / 2, f"l{key}") for key in range(3000)}
    assert committed(table) == wanted


def test_room_is_made_for_the_keys_that_come_and_not_for_those_that_are_there() -> None:
    table = ColumnTable([pa.int64()], [N], 4)
    keys = np.arange(4000)
    state = pa.RecordBatch.from_pydict({"n": keys})
    for _ in range(2):  # what finds keys that are there has a list of them
        table.put([pa.array(keys)], keys % 4, state)
    before = table.index.nbytes
    for _ in range(3):
        table.put([pa.array(keys)], keys % 4, state)
    assert table.index.nbytes == before


def test_to_weigh_a_table_does_not_look_at_all_keys_of_a_key_group(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ColumnTable([pa.int64()], [ColumnSpec("n", pa.int64(), 0)], 1)
    table.locate([pa.array(range(50_000))], np.zeros(50_000, np.int16))
    table.commit()
    looked, is_committed = 0, table._is_committed

    def counted(slots: Any) -> Any:
        nonlocal looked
        looked += len(slots)
        return is_committed(slots)

    monkeypatch.setattr(table, "_is_committed", counted)
    assert table.encoded_bytes() == 50_000 * 16
    assert looked < 5000


def test_to_weigh_a_table_finds_the_few_keys_that_are_committed() -> None:
    table = ColumnTable([pa.int64()], [ColumnSpec("n", pa.int64(), 0)], 1)
    table.locate([pa.array(range(3))], np.zeros(3, np.int16))
    table.commit()
    table.locate([pa.array(range(3, 20_000))], np.zeros(19_997, np.int16))
    assert table.encoded_bytes() == 20_000 * 16
