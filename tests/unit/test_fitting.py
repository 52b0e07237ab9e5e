"""What an operator returns reaches its column as it is, or is refused with a reason; nothing is bent."""

from __future__ import annotations

import datetime as dt
import enum
from collections import deque
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bedload as bl
from bedload.core.errors import DataError, OperatorFailed, OutputError, StateTypeError
from bedload.testing import OperatorHarness, ddl
from bedload.worker.fitting import fitted
from bedload.worker.misfits import misfit

NOON = dt.datetime(2026, 2, 1, 12)
AWARE = NOON.replace(tzinfo=ZoneInfo("America/New_York"))
DAY = dt.date(2026, 2, 1)
INF = float("inf")


class Level(enum.IntEnum):
    HIGH = 3


class Place(NamedTuple):
    x: int
    y: int


def kind_of(text: str) -> pa.DataType:
    return ddl.parse(f"v {text}").field(0).type


REFUSED: list[tuple[str, Any, str]] = [
    ("int", 1.5, "1.5 (float) is not an int"),
    ("int", float("nan"), "nan (float) is not an int"),
    ("bigint", INF, "inf (float) is not a bigint"),
    ("int", True, "True (bool) is not an int"),
    ("int", np.True_, "(bool) is not an int"),
    ("int", "1", "'1' (str) is not an int"),
    ("tinyint", 1000, "1000 (int) is too large for a tinyint"),
    ("bigint", 1e300, "1e+300 (float) is too large for a bigint"),
    ("float", 1e300, "1e+300 (float) is too large for a float"),
    ("float", np.float64(-1e300), "is too large for a float"),
    ("double", True, "True (bool) is not a double"),
    ("double", 2**60 + 1, "may have more digits than a double keeps: use float(x)"),
    ("double", Decimal("1.5"), "Decimal('1.5') (Decimal) is not a double"),
    ("boolean", 1, "1 (int) is not a boolean"),
    ("decimal(10, 2)", 1.5, "1.5 (float) is not a decimal(10, 2)"),
    ("decimal(10, 2)", True, "True (bool) is not a decimal(10, 2)"),
    ("decimal(10, 2)", Decimal("1.234"), "has other digits than a decimal(10, 2) can have"),
    ("string", 3, "3 (int) is not a string"),
    ("string", b"abc", "b'abc' (bytes) is not a string"),
    ("string", "a\ud800", "does not fit a string"),
    ("binary", "abc", "'abc' (str) is not a binary"),
    ("date", 5, "5 (int) is not a date"),
    ("date", NOON, "(datetime) is not a date: use .date()"),
    ("date", pd.NaT, "NaT (NaTType) is not a date"),
    ("timestamp", 5, "5 (int) is not a timestamp"),
    ("timestamp", 5.5, "5.5 (float) is not a timestamp"),
    ("timestamp", DAY, "(date) is not a timestamp"),
    ("timestamp", pd.Timestamp(1, unit="ns"), "has nanoseconds, and a timestamp has none"),
    ("timestamp_ntz", AWARE, "has a time zone, and a timestamp_ntz has none"),
    ("timestamp_ntz", 5, "5 (int) is not a timestamp_ntz"),
    ("time(6)", 5, "5 (int) is not a time"),
    ("time(6)", dt.time(1, tzinfo=dt.UTC), "has a time zone, and a time has none"),
    ("interval day to second", 5, "5 (int) is not an interval day to second"),
    ("interval day to second", pd.Timedelta(5, "ns"), "has nanoseconds"),
    ("array<string>", "abc", "'abc' (str) is not an array<string>"),
    ("array<int>", b"ab", "b'ab' (bytes) is not an array<int>"),
    ("array<string>", {"a": 1}, "{'a': 1} (dict) is not an array<string>"),
    ("array<int>", iter([1]), "(list_iterator) is not an array<int>"),
    ("array<int>", np.array(5), "array(5) (ndarray) is not an array<int>"),
    ("array<int>", np.array([1, 1.5]), "1.5 (float) at v[1] is not an int"),
    ("array<int>", np.array([True]), "True (bool) at v[0] is not an int"),
    ("array<float>", np.array([0.5, 1e300]), "1e+300 (float) at v[1] is too large for a float"),
    ("array<array<date>>", [[], [DAY, 5]], "5 (int) at v[1][1] is not a date"),
    ("map<string, int>", "ab", "'ab' (str) is not a map<string, int>: use a dict or a list of pairs"),
    ("map<string, int>", [("a", 1, 2)], "use a dict or a list of pairs"),
    ("map<string, int>", {"a": 1.5}, "1.5 (float) at v['a'] is not an int"),
    ("map<string, int>", {b"a": 1}, "b'a' (bytes) at v.key is not a string"),
    ("map<string, int>", {None: 1}, "v.key is null, but it is declared NOT NULL"),
    ("struct<x: int>", {"X": 1}, "{'X': 1} (dict) has the unknown fields X; there are: x"),
    ("struct<x: int, y: int>", (1,), "(1,) (tuple) has 1 values for 2 fields: x, y"),
    ("struct<x: int, y: int>", [("x", 1)], "[('x', 1)] (list) is not a struct<x: int, y: int>: use a dict or a tuple"),
    ("struct<x: int not null>", {}, "v.x is null, but it is declared NOT NULL"),
    ("struct<x: timestamp_ntz>", {"x": AWARE}, "at v.x has a time zone"),
    ("array<struct<x: int>>", [{"x": 1}, {"xx": 1}], "{'xx': 1} (dict) at v[1] has the unknown fields xx"),
    ("map<int, struct<x: array<double>>>", {7: {"x": (0.5, True)}}, "True (bool) at v[7].x[1] is not a double"),
]


@pytest.mark.parametrize(
    ("kind", "value", "says"), REFUSED, ids=[f"{kind} {value!r:.12}" for kind, value, _ in REFUSED]
)
def test_a_value_that_would_be_changed_is_refused_with_a_reason(kind: str, value: Any, says: str) -> None:
    class Returns(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            return key, value

    with pytest.raises(OutputError) as caught:
        OperatorHarness(Returns, schema=f"k string, v {kind}", key="k").run_epoch([{"k": "a"}])
    assert "key 'a'" in caught.value.message
    assert caught.value.message.endswith(says) or says in caught.value.message.split("in column 'v': ")[1]


@pytest.mark.parametrize("form", ["a dict", "a list of tuples", "yielded", "among good ones"])
def test_it_is_refused_in_every_form_of_a_row(form: str) -> None:
    bad, good = ("a", [1.5]), ("a", [1])
    forms = {
        "a dict": {"k": "a", "v": [1.5]},
        "a list of tuples": [bad],
        "yielded": (row for row in [bad]),
        "among good ones": [good, bad, good],
    }

    class Returns(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            return forms[form]

    with pytest.raises(OutputError, match=r"1.5 \(float\) at v\[0\] is not an int"):
        OperatorHarness(Returns, schema="k string, v array<int>", key="k").run_epoch([{"k": "a"}])


TAKEN: list[tuple[str, Any, Any]] = [
    ("int", 2.0, 2),
    ("int", Level.HIGH, 3),
    ("bigint", np.int8(3), 3),
    ("bigint", np.float64(2), 2),
    ("float", INF, INF),
    ("float", np.float64(0.5), 0.5),
    ("double", 2, 2.0),
    ("double", np.float32(0.5), 0.5),
    ("decimal(10, 2)", Decimal("1.5000"), Decimal("1.50")),
    ("binary", bytearray(b"a"), b"a"),
    ("timestamp", AWARE, AWARE),
    ("timestamp", NOON, NOON.replace(tzinfo=dt.UTC)),
    ("timestamp", pd.Timestamp(NOON), NOON.replace(tzinfo=dt.UTC)),
    ("timestamp_ntz", NOON, NOON),
    ("time(6)", dt.time(1, 2, 3, 4), dt.time(1, 2, 3, 4)),
    ("array<int>", {3}, [3]),
    ("array<int>", range(2), [0, 1]),
    ("array<int>", deque([1]), [1]),
    ("array<int>", pa.array([1, None]), [1, None]),
    ("array<int>", np.array([1.0, 2.0]), [1, 2]),
    ("array<float>", np.array([0.5, INF]), [0.5, INF]),
    ("array<string>", np.array(["a", "b"]), ["a", "b"]),
    ("array<array<int>>", np.array([[1, 2]]), [[1, 2]]),
    ("array<double>", [1, 0.5, None], [1.0, 0.5, None]),
    ("map<string, int>", [("a", 1)], [("a", 1)]),
    ("map<string, array<int>>", {"a": (1,)}, [("a", [1])]),
    ("struct<x: int, y: int>", Place(1, 2), {"x": 1, "y": 2}),
    ("struct<x: int, y: int>", {"y": 2}, {"x": None, "y": 2}),
    ("struct<>", {}, {}),
]


@pytest.mark.parametrize(("kind", "value", "kept"), TAKEN, ids=[f"{kind} {value!r:.12}" for kind, value, _ in TAKEN])
def test_a_value_that_is_kept_is_taken(kind: str, value: Any, kept: Any) -> None:
    assert fitted([value, None, value], kind_of(kind)).to_pylist() == [kept, None, kept]
    assert misfit(value, pa.field("v", kind_of(kind))) is None


def test_integers_and_floats_in_one_column_keep_every_digit() -> None:
    assert fitted([2**53 + 1, 2.0, None], pa.int64()).to_pylist() == [2**53 + 1, 2, None]
    assert fitted([np.array([1]), np.array([2**53 + 1]), np.array([2.0])], pa.list_(pa.int64())).to_pylist() == [
        [1],
        [2**53 + 1],
        [2],
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("s"), NOON.replace(microsecond=1)),
        (pa.duration("ms"), dt.timedelta(microseconds=1)),
        (pa.time32("s"), dt.time(1, 1, 1, 1)),
    ],
)
def test_what_a_coarser_type_of_arrow_would_cut_is_refused(kind: pa.DataType, value: Any) -> None:
    assert misfit(value, pa.field("v", kind)) is not None


def test_input_rows_are_held_to_the_same_rules() -> None:
    class Counts(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            return key, len(rows)

    harness = OperatorHarness(Counts, schema="k string, n long", key="k", input="k string, v array<int>")
    with pytest.raises(DataError, match=r"1.5 \(float\) at v\[0\] is not an int"):
        harness.run_epoch([("a", [1.5])])


# --- nested arrays are made here, so Arrow's own are the measure ---

LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
    "string": st.text(st.characters(codec="utf-8"), max_size=3),
    "binary": st.binary(max_size=3),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp_ntz": st.datetimes(),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[str, list[Any]]:
    kind, values = draw(st.sampled_from(list(LEAVES.items())))
    for _ in range(draw(st.integers(0, 3))):
        inner = st.none() | values
        match draw(st.sampled_from(["array", "map", "dicts", "tuples"])):
            case "array":
                kind, values = f"array<{kind}>", st.lists(inner, max_size=3)
            case "map":
                kind, values = f"map<int, {kind}>", st.dictionaries(LEAVES["int"], inner, max_size=3)
            case "dicts":
                kind = f"struct<a: {kind}, b: int>"
                values = st.fixed_dictionaries({"a": inner}, optional={"b": LEAVES["int"]})
            case _:
                kind, values = f"struct<a: {kind}, b: int>", st.tuples(inner, LEAVES["int"])
    return kind, draw(st.lists(st.none() | values, max_size=5))


@given(columns())
def test_values_of_the_right_types_are_what_arrow_makes_of_them(drawn: tuple[str, list[Any]]) -> None:
    kind, column = kind_of(drawn[0]), drawn[1]
    made = fitted(column, kind)
    made.validate(full=True)
    assert made.type == kind
    assert made.equals(pa.array(column, type=kind))


# --- operators on columns ---


VECTOR_REFUSED: list[tuple[str, Any, str]] = [
    ("int", np.array([1.5]), "1.5 (float) is not an int"),
    ("int", np.array([True]), "True (bool) is not an int"),
    ("int", ["5"], "'5' (str) is not an int"),
    ("string", np.array([5]), "5 (int) is not a string"),
    ("string", [b"a"], "b'a' (bytes) is not a string"),
    ("binary", ["a"], "'a' (str) is not a binary"),
    ("float", np.array([1e300]), "1e+300 (float) is too large for a float"),
    ("double", np.array([2**60 + 1]), "use float(x)"),
    ("decimal(10, 1)", np.array([1.25]), "1.25 (float) is not a decimal(10, 1)"),
    ("date", np.array(["2026-02-01T12"], "datetime64[us]"), "(datetime) is not a date: use .date()"),
    ("timestamp", np.array([5]), "5 (int) is not a timestamp"),
    ("timestamp_ntz", pa.array([AWARE]), "has a time zone, and a timestamp_ntz has none"),
    ("array<int>", [[1.5]], "1.5 (float) at v[0] is not an int"),
    ("array<float>", [np.array([1e300])], "1e+300 (float) at v[0] is too large for a float"),
    ("struct<x: int>", [{"X": 1}], "has the unknown fields X; there are: x"),
    ("double not null", np.array([np.nan]), "null, or NaN, but the column is declared NOT NULL"),
]


def of_vector(kind: str, values: Any) -> Any:
    class Returns(bl.VectorOperator):
        n: int = bl.value(0)

        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
            return None, {"k": batch.keys, "v": values}

    return OperatorHarness(Returns, schema=f"k string, v {kind}", key="k", input="k string").run_epoch([("a",)])


@pytest.mark.parametrize(
    ("kind", "values", "says"), VECTOR_REFUSED, ids=[f"{kind} {values!r:.12}" for kind, values, _ in VECTOR_REFUSED]
)
def test_an_output_column_that_would_be_changed_is_refused(kind: str, values: Any, says: str) -> None:
    with pytest.raises(OutputError) as caught:
        of_vector(kind, values)
    assert "operator Returns: output column 'v' does not fit the schema: " in caught.value.message
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("kind", "values", "kept"),
    [
        ("int", np.array([2.0]), 2),
        ("double", np.array([2]), 2.0),
        ("float", np.array([INF]), INF),
        ("double", np.array([np.nan]), None),
        ("string", pa.array(["a"]).dictionary_encode(), "a"),
        ("date", np.array(["2026-02-01"], "datetime64[D]"), DAY),
        ("timestamp", np.array(["2026-02-01T12"], "datetime64[s]"), NOON.replace(tzinfo=dt.UTC)),
        ("array<float>", [np.array([0.5])], [0.5]),
        ("struct<x: int, y: int>", [{"x": 1}], {"x": 1, "y": None}),
    ],
)
def test_an_output_column_that_is_kept_is_taken(kind: str, values: Any, kept: Any) -> None:
    assert of_vector(kind, values) == [{"k": "a", "v": kept}]


class Totals(bl.VectorOperator):
    """Counts rows, as each test has it."""

    x: float = bl.value(0.0)
    day: dt.date | None = bl.value(None)

    def result(self, keys: Any, state: Any, ctx: bl.Context) -> Any:
        return {"k": keys, "x": state["x"]}


def run_totals(operator: type[bl.VectorOperator]) -> Any:
    return OperatorHarness(operator, schema="k long, x double", key="k", input="k long").run_epoch([(1,)])


def test_state_that_is_changed_in_place_is_told_to_be_returned() -> None:
    class Adds(Totals):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
            state["x"] += 1

    class Writes(Totals):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
            state["x"][:] = 7

    class WritesADay(Totals):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
            state["day"][:] = np.datetime64("2026-02-01")

    for operator in (Adds, Writes, WritesADay):
        with pytest.raises(
            OperatorFailed, match=r"read-only\n.*The new state is what the call returns.*return \{"
        ) as it:
            run_totals(operator)
        assert "in process" in it.value.message


def test_state_that_is_assigned_has_to_be_returned() -> None:
    class Assigns(Totals):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
            state["x"] = state["x"] + 1

    class Returns(Totals):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
            state["x"] = state["x"] + 1
            state["scratch"] = 5
            del state["day"]
            return {"x": state["x"]}

    with pytest.raises(StateTypeError, match=r"Assigns assigned state\['x'\] and did not return it\. The new state is"):
        run_totals(Assigns)
    assert run_totals(Returns) == [{"k": 1, "x": 1.0}]
