"""The part of a bootstrap that runs on executors: rows become files of a snapshot, or an error that says why."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint_states import COUNTS, OPERATOR, groups_of_keys, read_part, schema_of

import bedload as bl
from bedload.checkpoint import paths
from bedload.checkpoint.records import OperatorSchema, SnapshotPart
from bedload.checkpoint.storage import open_storage
from bedload.core.errors import CheckpointError, StoreError, from_wire
from bedload.core.ids import Generation, Turn, make_turn
from bedload.spark.bootstrap import INITIAL_QUERY, manifest_of
from bedload.spark.bootstrap_task import RESULT, Result, Start, Task, decode_result, starts_of_rows, whole_groups
from bedload.state import array, build_specs, codec, map, value  # noqa: A004 - named for what they declare
from bedload.state.timers import ARROW
from bedload.store.deltas import GROUP
from bedload.worker.durable import Place
from bedload.worker.operator import state_of

TURN = make_turn(Generation(3), 0)
N = Start("n", pa.int64(), nullable=False, default=5, column="bedload_value_0")


def task(folder: Path, *starts: Start, schema: OperatorSchema = COUNTS) -> Task:
    return Task(Place(str(folder), Generation(3)), OPERATOR, Turn(TURN), schema, starts)


def batch(keys: list[Any], values: list[Any] | None = None) -> pa.RecordBatch:
    columns = {GROUP: pa.array(groups_of_keys(COUNTS, keys), pa.int16()), "bedload_key_0": pa.array(keys, pa.int64())}
    if values is not None:
        columns["bedload_value_0"] = pa.array(values, pa.int64())
    made = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return made.take(pa.array(np.argsort(made.column(GROUP).to_numpy(), kind="stable")))


def run(made: Task, batches: list[pa.RecordBatch]) -> Result:
    (result,) = made(iter(batches))
    return decode_result(result.column(RESULT)[0].as_py())


def by_group(keys: list[int]) -> list[pa.RecordBatch]:
    """One batch per key group, as Spark's sorted rows may be cut."""
    whole = batch(keys, keys)
    groups = whole.column(GROUP).to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    return [whole.slice(first, end - first) for first, end in pairwise(cuts)]


def stored(folder: Path, parts: list[SnapshotPart]) -> dict[int, int]:
    storage, found = open_storage(str(folder)), {}
    for part in parts:
        state = read_part(storage, paths.snapshot(OPERATOR, TURN), COUNTS, part, part.groups)
        found |= dict(zip(state.column("bedload_key_0").to_pylist(), state.column("n").to_pylist(), strict=True))
    return found


def test_rows_become_parts_that_have_each_key_group_once(tmp_path: Path) -> None:
    result = run(task(tmp_path, N), by_group(list(range(200))))
    assert result.error is None
    assert sorted(group for part in result.parts for group in part.groups) == list(range(8))
    assert stored(tmp_path, result.parts) == {key: key for key in range(200)}


def test_a_variable_without_a_column_has_its_default(tmp_path: Path) -> None:
    start = Start("n", pa.int64(), nullable=False, default=5)
    result = run(task(tmp_path, start), [batch([1, 2, 3])])
    assert stored(tmp_path, result.parts) == {1: 5, 2: 5, 3: 5}


def test_no_rows_are_no_parts(tmp_path: Path) -> None:
    assert run(task(tmp_path, N), []) == Result()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("batches", "kind", "says"),
    [
        ([[1, 2], [7, 1]], "DataError", "the key 1 more than once"),
        ([[4, 2, 4]], "DataError", "the key 4 more than once"),
        ([[1, None]], "NullKey", "null in the key column 'car'"),
    ],
)
def test_keys_that_are_null_or_there_twice_are_named(
    tmp_path: Path, batches: list[list[Any]], kind: str, says: str
) -> None:
    schema = schema_of({"car": pa.int64()}, {"n": pa.int64()}, groups=1)  # so that any order is sorted
    columns = [
        pa.RecordBatch.from_arrays(
            [pa.array([0] * len(keys), pa.int16()), pa.array(keys, pa.int64())], [GROUP, "bedload_key_0"]
        )
        for keys in batches
    ]
    start = Start("n", pa.int64(), nullable=False, default=5)
    result = run(task(tmp_path, start, schema=schema), columns)
    assert result.error is not None
    assert result.error[0] == kind
    assert says in str(from_wire(*result.error))


def test_null_is_a_key_where_it_is_asked_for(tmp_path: Path) -> None:
    made = replace(task(tmp_path, N), of_spark=True)
    keys = [0, 1, None]
    assert stored(tmp_path, run(made, [batch(keys, [5, 6, 7])]).parts) == {0: 5, 1: 6, None: 7}
    twice = run(made, [batch([0, None, None], [5, 6, 7])])
    assert "has the key None more than once" in str(twice.error)


def test_a_null_is_taken_where_the_variable_may_be_none(tmp_path: Path) -> None:
    assert "null for 1 of 2 keys" in str(run(task(tmp_path, N), [batch([1, 2], [3, None])]).error)
    optional = Start("n", pa.int64(), nullable=True, default=None, column="bedload_value_0")
    result = run(task(tmp_path, optional), [batch([1, 2], [3, None])])
    assert stored(tmp_path, result.parts) == {1: 3, 2: None}


def test_a_storage_that_does_not_answer_is_raised_for_spark_to_try_again(tmp_path: Path) -> None:
    (tmp_path / "operators").write_text("in the way")
    with pytest.raises(StoreError):
        run(task(tmp_path, N), [batch([1], [1])])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.data())
def test_cut_anywhere_each_key_group_comes_once_and_whole(groups: list[int], data: Any) -> None:
    groups.sort()
    rows = pa.RecordBatch.from_arrays([pa.array(groups, pa.int16()), pa.array(range(len(groups)))], [GROUP, "row"])
    cuts = sorted(data.draw(st.sets(st.integers(1, len(groups)), max_size=6)) | {len(groups)})
    batches = [rows.slice(first, end - first) for first, end in pairwise([0, *cuts])]
    found = list(whole_groups(batches))
    assert [group for named, _ in found for group in named] == sorted(set(groups))
    assert [row for _, part in found for row in part.column("row").to_pylist()] == list(range(len(groups)))
    for named, part in found:
        assert set(part.column(GROUP).to_pylist()) == set(named)


def test_the_manifest_covers_key_groups_that_nobody_met() -> None:
    parts = [SnapshotPart(groups=(3, 5), rows=2, files={}), SnapshotPart(groups=(1,), rows=1, files={})]
    made = manifest_of(TURN, COUNTS, parts)
    assert sorted(group for part in made.parts for group in part.groups) == list(range(8))
    assert (made.rows, made.query, made.epoch, made.committed) == (3, INITIAL_QUERY, -1, {})


def test_a_key_group_of_two_tasks_is_refused() -> None:
    parts = [SnapshotPart(groups=(3, 5), rows=2, files={}), SnapshotPart(groups=(3,), rows=1, files={})]
    with pytest.raises(CheckpointError, match="key groups 3 of the initial state were written by several tasks"):
        manifest_of(TURN, COUNTS, parts)


def written(folder: Path, annotation: Any, declaration: Any, given: pa.Array) -> tuple[Result, list[Any]]:
    """What becomes of a column that Spark gave for a variable of an ``Operator``."""
    return of_specs(folder, build_specs("Op", {"v": annotation}, {"v": declaration}), given)


def of_specs(folder: Path, specs: Any, given: pa.Array, **more: Any) -> tuple[Result, list[Any]]:
    """The same of a variable that is there."""
    (name,) = (spec.name for spec in specs)
    schema = schema_of({"car": pa.int64()}, {name: codec.arrow_schema(specs).field(name).type}, groups=1, kind="value")
    (start,) = (replace(start, column="bedload_value_0") for start in starts_of_rows(specs))
    keys = pa.array(range(len(given)), pa.int64())
    rows = pa.RecordBatch.from_arrays(
        [pa.array([0] * len(given), pa.int16()), keys, given], [GROUP, "bedload_key_0", "bedload_value_0"]
    )
    result = run(replace(task(folder, start, schema=schema), **more), [rows])
    found = []
    for part in result.parts:
        state = read_part(open_storage(str(folder)), paths.snapshot(OPERATOR, TURN), schema, part, part.groups)
        found += [row[name] for row in codec.decode(specs, state)]
    return result, found


NOON = dt.datetime(2024, 7, 1, 12)


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        (None, NOON),
        ("UTC", NOON.replace(tzinfo=zoneinfo.ZoneInfo("UTC"))),
        ("Europe/Berlin", NOON.replace(hour=14, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))),
    ],
)
def test_timestamps_become_datetimes_of_their_zone(tmp_path: Path, zone: str | None, shown: dt.datetime) -> None:
    kind = pa.timestamp("us", zone)
    given = pa.array([NOON, None], pa.timestamp("us")).cast(pa.int64()).cast(kind)
    result, found = written(tmp_path / "one", dt.datetime | None, value(), given)
    assert result.error is None
    assert repr(found) == repr([shown, None])
    entries = pa.array([[("a", 0)]], pa.map_(pa.string(), pa.int64())).cast(pa.map_(pa.string(), kind))
    _, found = written(tmp_path / "map", dict[str, dt.datetime], map(), entries)
    assert [moment.tzinfo for moment in found[0].values()] == [shown.tzinfo]


def timers(*found: tuple[int | None, str | None, str]) -> list[dict[str, Any]]:
    return [{"at": at, "name": name, "clock": clock} for at, name, clock in found]


class Alarms(bl.Operator):
    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> None: ...


def test_timers_are_put_in_the_order_in_which_they_fire(tmp_path: Path) -> None:
    given = [timers((9, "b", "event"), (3, "a", "event"), (3, "", "processing")), []]
    result, found = of_specs(tmp_path, state_of(Alarms), pa.array(given, ARROW))
    assert result.error is None
    assert found == [((3, "", "processing"), (3, "a", "event"), (9, "b", "event")), ()]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (timers((9, "b", "event"), (3, "b", "event")), "two timers of a key have the same name and clock"),
        (timers((None, "b", "event")), "a timer has no time"),
        (timers((1, None, "event")), "null for a name"),
        (timers((1, "", "sun")), "'sun' is not a valid TimerClock"),
    ],
)
def test_timers_that_a_key_cannot_have_are_refused(tmp_path: Path, given: Any, why: str) -> None:
    result, _ = of_specs(tmp_path, state_of(Alarms), pa.array([given], ARROW))
    assert result.error is not None
    assert why in str(from_wire(*result.error))


def test_timers_of_sparks_are_known_by_their_times(tmp_path: Path) -> None:
    given = [timers((9, "", "event"), (3, "", "event"), (9, "", "event")), []]
    result, found = of_specs(tmp_path, state_of(Alarms), pa.array(given, ARROW), of_spark=True)
    assert result.error is None
    assert found == [((3, "", "event"), (9, "", "event")), ()]


def test_structs_stay_what_they_are(tmp_path: Path) -> None:
    moment = NOON.replace(fold=1, tzinfo=dt.UTC)
    specs = build_specs("Op", {"v": dt.datetime | None}, {"v": value()})
    _, found = written(tmp_path, dt.datetime | None, value(), codec.encode(specs, [{"v": moment}]).column("v"))
    assert (repr(found[0]), found[0].fold) == (repr(moment), 1)


def test_lists_become_arrays(tmp_path: Path) -> None:
    given = pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.float32())))
    result, found = written(tmp_path, np.ndarray, array((2, 2), "float32"), given)
    assert result.error is None
    assert (found[0].dtype, found[0].tolist()) == (np.float32, [[1, 2], [3, 4]])
    short = pa.array([[[1, 2], [3]]], pa.list_(pa.list_(pa.float32())))
    result, _ = written(tmp_path, np.ndarray, array((2, 2), "float32"), short)
    assert result.error is not None
    assert "has values that are not of its type (float32[2, 2])" in str(from_wire(*result.error))
    holes = pa.array([[[1, None], [3, 4]]], pa.list_(pa.list_(pa.float32())))
    result, _ = written(tmp_path, np.ndarray, array((2, 2), "float32"), holes)
    assert result.error is not None
    assert "there are nulls in an array, float32[2, 2]; put numbers in their places" in str(from_wire(*result.error))
