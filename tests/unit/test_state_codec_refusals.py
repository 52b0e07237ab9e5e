"""What the codec refuses, and what it says then."""

import datetime as dt
import importlib.resources
import math
import pickle
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bedload.core.errors import StateTypeError
from bedload.state import build_specs, codec, specs


def built(annotation: Any, declaration: Any) -> Any:
    return build_specs("Op", {"x": annotation}, {"x": declaration})


@pytest.mark.parametrize(
    ("annotation", "declaration", "bad"),
    [
        (int, specs.value(0), "one"),
        (int, specs.value(0), 1.5),
        (int, specs.value(0), None),
        (float, specs.value(0.0), 2**53 + 1),
        (str, specs.value(""), b"x"),
        (bool, specs.value(False), 1),
        (dt.date, specs.value(dt.date(2000, 1, 1)), dt.datetime(2000, 1, 1)),
        (list[int], specs.list_(), (1, 2)),
        (list[int], specs.list_(), [1, "x"]),
        (dict[str, int], specs.map_(), {"a": "b"}),
        (dict[str, int], specs.map_(), {1: 1}),
        (set[str], specs.set_(), {"a", 1}),
        (tuple[int, int], specs.value((0, 0)), (1, 2, 3)),
        (dict[str, list[int]], specs.map_(), {"a": [1, None]}),
        (str, specs.value(""), "\ud800"),
        (dict[str, int], specs.value({}, codec="msgspec"), {"a": "not an int"}),
        (object, specs.value(None, codec="pickle"), lambda: None),
        (object, specs.value(None, codec="msgspec"), object()),
    ],
)
def test_a_wrong_value_is_refused_with_variable_and_key(annotation: Any, declaration: Any, bad: Any) -> None:
    good = built(annotation, declaration)
    with pytest.raises(StateTypeError, match=r"'x'.*of key 'car-17' \(str\)"):
        codec.encode(good, [{"x": bad}], keys=["car-17"])


def test_an_int_beyond_64_bits_is_refused_in_any_depth() -> None:
    with pytest.raises(StateTypeError, match="does not fit 64 bits"):
        codec.encode(built(int, specs.value(0)), [{"x": 1}, {"x": 2**63}])
    with pytest.raises(StateTypeError, match=r"does not fit 64 bits|Arrow cannot store"):
        codec.encode(built(list[int], specs.list_()), [{"x": [2**63]}])


def test_a_missing_variable_is_refused() -> None:
    with pytest.raises(StateTypeError, match="no value"):
        codec.encode(built(int, specs.value(0)), [{}])


def test_a_time_zone_without_a_name_is_refused() -> None:
    class Odd(dt.tzinfo):
        def utcoffset(self, _: Any) -> dt.timedelta:
            return dt.timedelta(0)

    spec = built(dt.datetime, specs.value(dt.datetime(2000, 1, 1)))
    with pytest.raises(StateTypeError, match="no name to find it by"):
        codec.encode(spec, [{"x": dt.datetime(2000, 1, 1, tzinfo=Odd())}])


def test_a_time_zone_of_an_unknown_name_is_refused() -> None:
    """One that was read from a file may be called anything, and could not be found again."""
    berlin = importlib.resources.files("tzdata") / "zoneinfo" / "Europe" / "Berlin"
    with berlin.open("rb") as file:
        odd = zoneinfo.ZoneInfo.from_file(file, key="Nowhere/Else")
    spec = built(dt.datetime, specs.value(dt.datetime(2000, 1, 1)))
    with pytest.raises(StateTypeError, match="the time zone 'Nowhere/Else' is not known"):
        codec.encode(spec, [{"x": dt.datetime(2000, 1, 1, tzinfo=odd)}])


@pytest.mark.parametrize(
    ("fine", "good"),
    [
        (pd.Timestamp("2024-01-01 00:00:00.123456789"), pd.Timestamp("2024-01-01 00:00:00.123456")),
        (pd.Timedelta("1.123456789s"), pd.Timedelta("1.123456s")),
    ],
)
def test_nanoseconds_are_not_dropped(fine: Any, good: Any) -> None:
    declared = dt.datetime if isinstance(fine, dt.datetime) else dt.timedelta
    spec = built(declared | None, specs.value(None))
    with pytest.raises(StateTypeError, match="has nanoseconds"):
        codec.encode(spec, [{"x": fine}])
    (row,) = codec.decode(spec, codec.encode(spec, [{"x": good}]))
    assert row["x"] == good
    assert type(row["x"]) is declared


def test_numpy_scalars_become_python_numbers() -> None:
    two = build_specs("Op", {"n": int, "f": float}, {"n": specs.value(0), "f": specs.value(0.0)})
    (row,) = codec.decode(two, codec.encode(two, [{"n": np.int64(7), "f": np.float32(0.5)}]))
    assert row == {"n": 7, "f": 0.5}
    assert (type(row["n"]), type(row["f"])) == (int, float)


def test_a_bool_in_an_int_variable_becomes_an_int() -> None:
    spec = built(int, specs.value(0))
    (row,) = codec.decode(spec, codec.encode(spec, [{"x": True}]))
    assert type(row["x"]) is int


def test_nan_comes_back_as_nan() -> None:
    spec = built(float, specs.value(0.0))
    (row,) = codec.decode(spec, codec.encode(spec, [{"x": math.nan}]))
    assert math.isnan(row["x"])


class Exploding:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("pickle bytes were loaded",))


@pytest.mark.parametrize("tag", [b"P", b""])
def test_pickle_bytes_are_not_loaded_unless_the_spec_says_pickle(tag: bytes) -> None:
    spec = built(object, specs.value(None, codec="msgspec"))
    stored = pa.RecordBatch.from_arrays([pa.array([tag + pickle.dumps(Exploding())])], names=["x"])
    with pytest.raises(StateTypeError, match="not read"):
        codec.decode(spec, stored)


def test_a_changed_type_is_refused_on_read() -> None:
    stored = codec.encode(built(int, specs.value(0)), [{"x": 1}])
    with pytest.raises(StateTypeError, match="stored as int64, but str is declared"):
        codec.decode(built(str, specs.value("")), stored)


def test_a_new_variable_is_left_to_its_default_and_a_dropped_one_ignored() -> None:
    old = build_specs("Op", {}, {"a": specs.value(0), "b": specs.value(0)})
    new = build_specs("Op", {}, {"b": specs.value(0), "c": specs.value(0)})
    assert codec.decode(new, codec.encode(old, [{"a": 1, "b": 2}])) == [{"b": 2}]


def test_an_operator_without_variables_keeps_its_row_count() -> None:
    assert codec.decode((), codec.encode((), [{}, {}])) == [{}, {}]


def test_the_schema_does_not_depend_on_the_values() -> None:
    spec = built(dict[str, list[int | None]], specs.map_())
    assert codec.encode(spec, []).schema.equals(codec.encode(spec, [{"x": {"a": [None]}}]).schema)


def test_the_columns_go_through_parquet() -> None:
    all_kinds = build_specs(
        "Op",
        {"m": dict[str, list[int]], "t": tuple[()], "at": dt.datetime, "d": dt.timedelta},
        {
            "m": specs.map_(),
            "t": specs.value(()),
            "at": specs.value(dt.datetime(2000, 1, 1)),
            "d": specs.value(dt.timedelta(0)),
        },
    )
    rows = [{"m": {"a": [1]}, "t": (), "at": dt.datetime(1, 1, 1, tzinfo=dt.UTC), "d": dt.timedelta(1)}]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([codec.encode(all_kinds, rows)]), sink)
    (batch,) = pq.read_table(pa.BufferReader(sink.getvalue())).to_batches()
    assert codec.decode(all_kinds, batch) == rows
