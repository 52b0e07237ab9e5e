"""How keys and frames look to a processor where Spark's ways are not plain."""

from __future__ import annotations

import datetime as dt
import gc
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from bedload.core.ids import KeyGroup
from bedload.spark.drop_in.initial import InitialRows
from bedload.spark.drop_in.key_forms import with_rows, with_timers
from bedload.spark.drop_in.key_parts import KeyPart, unique
from bedload.spark.drop_in.named_rows import row_class
from bedload.spark.drop_in.rows import PandasForm, rows_as_frames

FORM = PandasForm(time_zone="America/New_York", rows=10, columns=(0, 1, 2))
NOON = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
AWARE, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")


def test_timestamps_in_keys_are_naive_in_the_sessions_zone_in_the_pandas_form() -> None:
    assert with_rows(pa.array([NOON, None], AWARE), FORM) == [pd.Timestamp("2024-07-01 08:00:00"), None]
    assert with_rows(pa.array([NOON.replace(tzinfo=None)], NAIVE), FORM) == [pd.Timestamp("2024-07-01 12:00:00")]
    assert with_rows(pa.array([NOON], AWARE), None) == [NOON]
    assert with_rows(pa.array([1, None]), FORM) == [1, None]


def test_structs_in_keys_are_dicts_with_rows_and_rows_with_timers() -> None:
    kind = StructType().add("at", TimestampType()).add("in", StructType().add("x", LongType(), False))
    part = KeyPart("st", 0, kind, nullable=True)
    given = pa.array(
        [{"at": NOON, "in": {"x": 1}}, None], pa.struct([("at", AWARE), ("in", pa.struct([("x", "int64")]))])
    )
    assert with_rows(given, None) == [{"at": NOON, "in": {"x": 1}}, None]
    assert with_rows(given, FORM) == [{"at": pd.Timestamp("2024-07-01 08:00:00"), "in": {"x": 1}}, None]
    types = (pa.bool_(), AWARE, pa.bool_(), pa.int64(), pa.string())
    key = with_timers(types, FORM, (part, KeyPart("k", 1, StringType(), nullable=True)))
    (full, name), (none, _) = key((True, NOON, True, 1, "a")), key((False, None, False, None, "a"))
    assert (full, full["in"].x, name, none) == (Row(at=dt.datetime(2024, 7, 1, 8), **{"in": Row(x=1)}), 1, "a", None)
    assert key((True, None, False, None, "a"))[0] == (None, None)


def test_names_of_the_fields_of_a_key_are_told_apart() -> None:
    assert unique(["a_b", "k", "A_b", "a_b_", "a_b"]) == ["a_b", "k", "A_b_", "a_b__", "a_b___"]


def test_frames_end_where_they_are_as_large_as_they_may_be() -> None:
    batch = pa.record_batch({"k": ["a"] * 5, "n": range(5), "b": [True] * 5})

    def sizes(size: int) -> list[int]:
        of_key = rows_as_frames(batch, ("k", "n", "b"), np.arange(5), replace(FORM, size=size))
        return [len(frame) for frame in of_key(0, 5)]

    assert [sizes(1), sizes(26), sizes(60)] == [[1] * 5, [2, 2, 1], [5]]


def test_a_frame_may_be_changed_and_no_other_sees_it() -> None:
    batch = pa.record_batch({"k": ["a", "a", "b"], "n": range(3), "b": [1.0, 2.0, 3.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_key = rows_as_frames(batch, ("k", "n", "b"), np.arange(3), FORM)
        (first,), (second,) = of_key(0, 2), of_key(2, 3)
        first["m"] = first["n"] * 2
        first.loc[0, "n"] = 7
        first.iloc[1, 2] = 8.5
        first.index.name = "i"
        first.sort_values("n", inplace=True)
        second.drop(columns="k", inplace=True)
    assert [first.to_dict("list"), first.index.tolist(), second.to_dict("list"), second.index.name] == [
        {"k": ["a", "a"], "n": [1, 7], "b": [8.5, 1.0], "m": [2, 0]},
        [1, 0],
        {"n": [2], "b": [3.0]},
        None,
    ]


def test_an_initial_state_has_the_keys_of_the_input_whatever_the_sessions_zone_is() -> None:
    schema = StructType().add("at", TimestampType()).add("n", LongType())
    session: Any = SimpleNamespace(conf={"spark.sql.session.timeZone": "America/New_York"})
    df: Any = SimpleNamespace(
        schema=schema, toArrow=lambda: pa.table({"at": pa.array([NOON, None], AWARE), "n": [1, 2]})
    )
    found = InitialRows.of(session, df, [(0, "at")], ("at", "n"), (), (AWARE,))
    rows = found.of_groups([KeyGroup(0)], 1, None)
    assert rows is not None
    assert rows.column(0).to_pylist() == [NOON, None]


def test_columns_of_frames_have_the_names_of_a_named_tuple() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([n]) for n in range(4)], names=["v", "v", "class", "_x"])
    form = replace(FORM, columns=(0, 1, 2, 3))
    (frame,) = rows_as_frames(batch, ("v", "v", "class", "_x"), np.arange(1), form)(0, 1)
    assert list(frame.columns) == ["v", "_1", "_2", "_3"]
    assert frame.iloc[0].tolist() == [0, 1, 2, 3]


def test_timestamps_in_the_keys_of_timers_are_naive() -> None:
    types = (pa.string(), AWARE, NAIVE)
    key = ("k", NOON, NOON.replace(tzinfo=None))
    assert with_timers(types, FORM)(key) == ("k", dt.datetime(2024, 7, 1, 8), dt.datetime(2024, 7, 1, 12))
    here = NOON.astimezone().replace(tzinfo=None)
    assert with_timers(types, None)(key) == ("k", here, dt.datetime(2024, 7, 1, 12))
    assert with_timers(types, None)(("k", None, None)) == ("k", None, None)
    assert with_timers((pa.int64(),), None)((1,)) == (1,)
    for year in (1800, 2024, 2055, 3000):  # in the last two pandas knows no summer time
        summer = dt.datetime(year, 7, 1, 12, 0, 0, 1, tzinfo=dt.UTC)
        assert with_timers((AWARE,), FORM)((summer,)) == tuple(with_rows(pa.array([summer], AWARE), FORM))


def test_nulls_of_one_key_are_not_seen_in_the_frames_of_another() -> None:
    large = 2**53 + 1
    batch = pa.record_batch({"k": ["a", "a", "b", "b"], "n": [large, 2, None, 3], "b": [True, False, None, True]})
    of_key = rows_as_frames(batch, ("k", "n", "b"), np.arange(4), FORM)
    (first,), (second,) = of_key(0, 2), of_key(2, 4)
    assert [str(kind) for kind in first.dtypes] == ["object", "int64", "bool"]
    assert first["n"].tolist() == [large, 2]
    assert first["b"].tolist() == [True, False]
    assert str(second["n"].dtype) == "float64"
    assert second["b"].tolist() == [None, True]
    (again,) = of_key(0, 2)
    assert again.equals(first)


def test_a_row_class_is_made_whenever_the_collector_runs() -> None:
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        made = [row_class([f"unheard_{of}_{at}" for at in range(of)])(*range(of)) for of in range(1, 40)]
    finally:
        gc.set_threshold(*before)
    assert [row[-1] for row in made] == list(range(39))


def test_frames_without_a_limit_and_with_nullable_integers() -> None:
    form = PandasForm(time_zone="UTC", rows=-1, nullable=True, columns=(1, 2))
    large = 2**53 + 1
    batch = pa.record_batch({"p": list("aabb"), "a b": [large, 2, None, 3], "v": range(4)})
    of_key = rows_as_frames(batch, ("p", "a b", "v"), np.arange(4), form)
    (first,), (second,) = of_key(0, 2), of_key(2, 4)
    assert list(first.columns) == ["_1", "v"], "numbered as in the rows"
    assert (str(first["_1"].dtype), first["_1"].tolist()) == ("int64", [large, 2])
    assert (str(second["_1"].dtype), second["_1"].tolist()) == ("object", [pd.NA, 3])
