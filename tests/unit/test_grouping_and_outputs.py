"""Rows of a sub-batch by key, and output rows as Arrow."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload.core.errors import OutputError
from bedload.core.ids import WorkerId
from bedload.keys import hash_columns, key_groups
from bedload.protocol.split import pack, split, unpack
from bedload.worker.grouping import group_rows
from bedload.worker.outputs import OutputRows
from bedload.worker.rows import Rows, SortedBatch, row_type, rows_of

SCHEMA = pa.schema([pa.field("car", pa.string()), pa.field("n", pa.int64(), nullable=False)])

keys = st.lists(st.one_of(st.integers(-3, 3), st.none()), max_size=40)


@given(keys, st.lists(st.sampled_from(["a", "b", ""]), min_size=40, max_size=40))
def test_grouping_keeps_every_row_once_in_arrival_order_per_key(first: list[int | None], second: list[str]) -> None:
    if not first:
        return
    columns = [pa.array(first, pa.int64()), pa.array(second[: len(first)])]
    groups = key_groups(hash_columns(columns), 8).astype(np.int16)
    grouped = group_rows(columns, groups)
    expected: dict[Any, list[int]] = {}
    for i, key in enumerate(zip(first, second, strict=False)):
        expected.setdefault(key, []).append(i)
    bounds = list(zip(grouped.bounds, grouped.bounds[1:], strict=False))
    found = {key: grouped.order[a:b].tolist() for key, (a, b) in zip(grouped.keys, bounds, strict=True)}
    assert found == expected
    assert len(grouped.keys) == len(set(grouped.keys))
    for group, a, b in grouped.groups:
        for key in grouped.keys[a:b]:
            assert groups[expected[key][0]] == group
    assert [a for _, a, _ in grouped.groups][1:] == [b for _, _, b in grouped.groups][:-1]


@given(st.lists(st.integers(0, 7), max_size=60), st.integers(1, 4))
def test_split_gives_each_worker_its_rows_in_order(groups: list[int], workers: int) -> None:
    owners = np.array([g % workers for g in range(8)], dtype=np.uint16)
    batch = pa.record_batch(
        [pa.array(range(len(groups)), pa.int64()), pa.array(groups, pa.int16())], names=["i", "group"]
    )
    parts = split(batch, owners)
    for worker, part in parts:
        assert part.column(0).to_pylist() == [i for i, g in enumerate(groups) if g % workers == worker]
        assert part.num_rows
    assert [worker for worker, _ in parts] == sorted({WorkerId(g % workers) for g in groups})


def test_equal_rows_pack_to_equal_bytes_however_they_were_cut() -> None:
    whole = pa.record_batch([pa.array(["a", None, "ccc", "dd"]), pa.array([1, 2, None, 4])], names=["s", "n"])
    part = whole.slice(1, 3)
    again = pa.record_batch([pa.array([None, "ccc", "dd"]), pa.array([2, None, 4])], names=["s", "n"])
    taken = whole.take(pa.array([1, 2, 3]))
    assert pack(taken)[1] == pack(again.take(pa.array([0, 1, 2])))[1]
    assert unpack(pack(part)[0], part.schema).to_pylist() == again.to_pylist()
    assert pack(taken)[1] != pack(taken.take(pa.array([0, 2, 1])))[1]


def some_rows() -> list[Rows]:
    """Of two keys: two rows and one."""
    names = ("a", "b c")
    batch = pa.record_batch(
        [pa.array([3, 1, 2]), pa.array([0.5, None, 2.5]), pa.array([0, 0, 0])], names=[*names, "group"]
    )
    view = SortedBatch(batch, names, row_type(names), np.array([1, 2, 0]))
    return list(rows_of(view, [0, 2, 3]))


def test_rows_are_like_a_sequence_of_named_tuples() -> None:
    one, two = some_rows()
    assert (len(one), len(two)) == (2, 1)
    assert [row.a for row in one] == [1, 2]
    assert [row["b c"] for row in one] == [None, 2.5]
    assert one[1] == (2, 2.5)
    assert one[-1][0] == 2
    assert one[-2] == one[0] == (1, None)
    assert two[0] == two[-1] == (3, 0.5)
    assert one[:1] == [(1, None)]
    assert list(reversed(one)) == [(2, 2.5), (1, None)]
    assert (3, 0.5) in two
    assert (3, 0.5) not in one
    assert two[0].asDict() == {"a": 3, "b c": 0.5}
    assert two.column("a").to_pylist() == [3]
    with pytest.raises(KeyError, match="no column 'x'"):
        _ = one[0]["x"]
    with pytest.raises(KeyError, match="no column"):
        one.column("x")
    with pytest.raises(AttributeError, match="no column 'x'; there are: a, b c"):
        _ = one[0].x
    assert not hasattr(one[0], "x")
    assert copy.deepcopy(one[0]) == one[0]


@pytest.mark.parametrize("at", [1, -2])
def test_a_row_of_another_key_is_out_of_reach(at: int) -> None:
    _, two = some_rows()
    with pytest.raises(IndexError, match=f"row {at} of 1 rows"):
        _ = two[at]


def test_what_a_sequence_answers_is_about_the_rows() -> None:
    one, two = some_rows()
    assert one.count((1, None)) == 1
    assert one.count((3, 0.5)) == 0
    assert one.index((2, 2.5)) == 1
    assert one.index((2, 2.5), 1, 2) == 1
    with pytest.raises(ValueError, match="not in list"):
        one.index((2, 2.5), 0, 1)
    with pytest.raises(ValueError, match="not in list"):
        one.index((3, 0.5))
    assert one == [(1, None), (2, 2.5)]
    assert one == ((1, None), (2, 2.5))
    assert one != two
    assert one != 1
    assert repr(two) == "Rows([Row(a=3, b c=0.5)])"
    assert two
    assert [len(rows) for rows in (tuple(one), sorted(one, reverse=True))] == [2, 2]


def test_what_rows_cannot_do_is_refused_instead_of_done_to_something_else() -> None:
    one, two = some_rows()
    assert isinstance(one, Sequence)
    assert not isinstance(one, tuple), "C code that takes a tuple for one would read past its end"
    for wrong in (lambda: one + two, lambda: one * 2, lambda: one < two, lambda: hash(one)):  # type: ignore[operator]
        with pytest.raises(TypeError, match="Rows"):
            wrong()
    with pytest.raises(TypeError, match=r"rows\['a'\]: rows are indexed by position, as in rows\[0\]; rows.column"):
        one["a"]
    for keep in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"list\(rows\)"):
            keep(one)
    assert pa.array(two).to_pylist() == [[3, 0.5]]
    leaked = {"_asdict", "_fields", "_make", "_replace", "batch", "start", "stop"} & set(dir(one))
    assert not leaked


def test_rows_as_arrow_are_those_of_the_key_without_the_key_group() -> None:
    one, two = some_rows()
    assert one.to_arrow().to_pylist() == [{"a": 1, "b c": None}, {"a": 2, "b c": 2.5}]
    assert two.to_arrow().to_pylist() == [{"a": 3, "b c": 0.5}]
    column, whole = one.column("a").buffers()[1], one.to_arrow().column("a").buffers()[1]
    assert column.address == whole.address == two.to_arrow().column("a").buffers()[1].address, "sorted once"


def test_columns_of_one_name_keep_their_values() -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([2]), pa.array([0])], names=["a", "a", "group"])
    (rows,) = rows_of(SortedBatch(batch, ("a", "a"), row_type(("a", "a")), np.array([0])), [0, 1])
    assert rows[0] == (1, 2)
    assert [column.to_pylist() for column in rows.to_arrow().columns] == [[1], [2]]


def outputs(*returned: Any) -> OutputRows:
    rows = OutputRows("Trip", SCHEMA)
    for number, item in enumerate(returned):
        rows.add(f"key-{number}", item)
    return rows


def test_tuples_dicts_and_iterables_become_rows() -> None:
    batch = outputs(("a", 1), [("b", 2), ["c", 3]], {"n": 4, "car": "d"}, (row for row in [("e", 5)]), []).batch()
    assert batch is not None
    assert [tuple(row.values()) for row in batch.to_pylist()] == [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]
    assert outputs([]).batch() is None


def many(rows: OutputRows, count: int) -> list[tuple[str, int]]:
    """Rows of so many keys, settled after each as between calls of operator code."""
    made = [(f"car {number}", number) for number in range(count)]
    for row in made:
        rows.add(row[0], row)
        rows.settle()
    return made


def test_many_rows_become_columns_on_the_way_and_keep_their_order() -> None:
    rows = OutputRows("Trip", SCHEMA)
    made = many(rows, 10_000)
    assert len(rows.rows) == len(rows.keys) < 5_000, "most of them are columns by now"
    batch = rows.batch()
    assert batch is not None
    assert batch.schema == SCHEMA
    assert list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == made


def test_a_row_that_does_not_fit_is_named_after_others_have_become_columns() -> None:
    rows = OutputRows("Trip", SCHEMA)
    many(rows, 5_000)
    rows.add("the bad one", ("a", None))
    with pytest.raises(OutputError, match=r"key 'the bad one'.*column 'n'"):
        many(rows, 5_000)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (("a", "one"), ["column 'n'", "'one' (str) is not a bigint"]),
        (("a", 1.5), ["column 'n'", "1.5"]),
        ((1, 1), ["column 'car'"]),
        (("a", None), ["column 'n'", "NOT NULL"]),
        (("a", 2**70), ["column 'n'"]),
        (("a", 1, 2), ["3 columns", "car, n"]),
        ({"car": "a", "m": 1}, ["unknown columns", "m"]),
        ([5], ["the list [5]", "A list is many rows", "5 is none", "(5,)"]),
        (iter([5]), ["tuple, a list or a dict", "yield key, n"]),
    ],
)
def test_a_row_that_does_not_fit_names_operator_key_and_column(bad: Any, says: list[str]) -> None:
    with pytest.raises(OutputError) as caught:
        outputs(("good", 1), bad, ("good", 2)).batch()
    for text in ["operator Trip", "key 'key-1'", *says]:
        assert text in str(caught.value)


def test_a_list_of_values_is_told_to_be_many_rows_and_what_to_write_for_one() -> None:
    with pytest.raises(OutputError) as caught:
        outputs(["a", 5])
    assert caught.value.message == (
        "operator Trip, key 'key-0': returned the list ['a', 5]. A list is many rows, so each of its items has to be "
        "one, and 'a' is none. For a single row return a tuple: ('a', 5)"
    )


@pytest.mark.parametrize("bad", [5, "text", b"bytes"])
def test_something_that_is_no_row_at_all_is_refused(bad: Any) -> None:
    with pytest.raises(OutputError, match="return or yield rows"):
        outputs(bad)


def test_columns_that_python_cannot_name_have_their_own_values() -> None:
    row = row_type(("_1", "_2", "_corrupt_record", "class", "a b", "_make", "__len__"))(10, 20, 30, 40, 50, 60, 70)
    assert (row._1, row._2, row._corrupt_record, getattr(row, "class"), row["a b"], row["_make"]) == (
        10,
        20,
        30,
        40,
        50,
        60,
    )
    assert (len(row), row["__len__"]) == (7, 70)
    assert row._asdict() == row.asDict()
    assert row.asDict()["_1"] == 10
    assert row._replace(_1=11)[:2] == (11, 20)
    assert repr(row).startswith("Row(_1=10, _2=20, _corrupt_record=30, class=40, a b=50")
    with pytest.raises(ValueError, match="no column 'nope'"):
        row._replace(nope=1)
