"""What docs/reference/rows.md says of types and row forms is so, on real Spark."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import bedload as bl
from tests.spark.conftest import Sink, fail, numbers, run

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "rows.md").read_text()
TYPES = re.findall(r"^\| ([^|]+) \| `([^|]+)` \| `([^|]+)` \|$", PAGE.split("## What may be returned")[0], re.MULTILINE)
"""From the page: Spark's type, an expression, and what Python has."""
HOUR = dt.timedelta(hours=1)


class Reprs(bl.Operator):
    """Tells what its rows have."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        for row in rows:
            for name, value in row.asDict().items():
                yield key, name, repr(value)


class Mirror(bl.Operator):
    """Gives every row back as it is."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        yield from rows


def test_every_type_arrives_as_the_page_says(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    assert len(TYPES) >= 16
    df = numbers(spark, 1, 1).selectExpr("value as k", *(f"{sql} as c{i}" for i, (_, sql, _) in enumerate(TYPES)))
    out = cluster.apply(df, key="k", operator=Reprs, schema="k long, name string, value string", name="Reprs")
    sink = Sink()
    run(out, sink, tmp_path, 1)
    got = {name: value for _, name, value in sink.rows}
    assert {f"{kind}: {sql}": got[f"c{i}"] for i, (kind, sql, _) in enumerate(TYPES)} == {
        f"{kind}: {sql}": python for kind, sql, python in TYPES
    }


def test_what_arrived_may_be_returned(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    """A row, as it is, fits the schema that it came from: maps as pairs, structs as dicts, and all others."""
    kept = [sql for kind, sql, _ in TYPES if kind not in ("`variant`", "`time(p)`")]  # Spark has no sink for a time
    df = numbers(spark, 1, 1).selectExpr("value as k", *(f"{sql} as c{i}" for i, sql in enumerate(kept)))
    out = cluster.apply(df, key="k", operator=Mirror, schema=df.schema, name="Mirror")
    sink = Sink()
    run(out, sink, tmp_path, 1)
    same = spark.range(1).selectExpr("id as k", *(f"{sql} as c{i}" for i, sql in enumerate(kept)))
    assert sink.rows == [tuple(row) for row in same.collect()]


def test_a_timestamp_has_the_zone_of_the_session(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        df = numbers(spark, 1, 1).selectExpr("value as k", "TIMESTAMP'2026-02-01 12:00:00Z' as t")
        out = cluster.apply(df, key="k", operator=Reprs, schema="k long, name string, value string", name="Zones")
        sink = Sink()
        run(out, sink, tmp_path, 1)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    said = dict(row[1:] for row in sink.rows)["t"]
    assert said == "datetime.datetime(2026, 2, 1, 13, 0, tzinfo=zoneinfo.ZoneInfo(key='Europe/Berlin'))"


FORMS: dict[str, Any] = {
    "a tuple": ("a", 1),
    "Spark's row": Row(k="a", n=1),
    "a dict": {"n": 1, "k": "a"},
    "a dict that leaves one out": {"k": "a"},
    "a list of tuples": [("a", 1), ("a", 2)],
    "a list of lists": [["a", 1], ["a", 2]],
    "a list of dicts": [{"k": "a", "n": 1}],
    "a set of tuples": {("a", 1)},
    "nothing": None,
}
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "a tuple": [("a", 1)],
    "Spark's row": [("a", 1)],
    "a dict": [("a", 1)],
    "a dict that leaves one out": [("a", None)],
    "a list of tuples": [("a", 1), ("a", 2)],
    "a list of lists": [("a", 1), ("a", 2)],
    "a list of dicts": [("a", 1)],
    "a set of tuples": [("a", 1)],
    "nothing": [],
}


def test_rows_may_be_returned_in_these_forms(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    forms = FORMS

    class Forms(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            return forms[key]

    names = ", ".join(f"'{name}'".replace("k's", "k''s") for name in forms)
    df = numbers(spark, len(forms), 1).selectExpr(f"element_at(array({names}), cast(value + 1 as int)) as form")
    out = cluster.apply(df, key="form", operator=Forms, schema="k string, n long")
    sink = Sink()
    run(out, sink, tmp_path, 1)
    assert sorted(sink.rows, key=repr) == sorted((row for rows in ROWS.values() for row in rows), key=repr)


FITS: list[tuple[str, Any, Any]] = [
    ("bigint", 2.0, 2),
    ("double", 2, 2.0),
    ("decimal(10, 2)", 3, Decimal("3.00")),
    ("timestamp", dt.datetime(2026, 2, 1, 12, tzinfo=dt.timezone(HOUR)), dt.datetime(2026, 2, 1, 11)),
    ("timestamp", dt.datetime(2026, 2, 1, 12), dt.datetime(2026, 2, 1, 12)),
    ("array<int>", (1, 2), [1, 2]),
    ("array<int>", {3}, [3]),
    ("map<string, int>", {"a": 1}, {"a": 1}),
    ("map<string, int>", [("a", 1)], {"a": 1}),
    ("struct<x: int, y: int>", {"x": 1}, Row(x=1, y=None)),
    ("struct<x: int, y: int>", (1, 2), Row(x=1, y=2)),
]


def test_values_that_fit_a_column(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    given = tuple(value for _, value, _ in FITS)

    class Fitting(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            return given

    schema = ", ".join(f"c{i} {kind}" for i, (kind, _, _) in enumerate(FITS))
    sink = Sink()
    run(cluster.apply(numbers(spark, 1, 1), key="value", operator=Fitting, schema=schema), sink, tmp_path, 1)
    ((*got,),) = sink.rows
    wanted = [value for _, _, value in FITS]
    assert [_in_utc(value) for value in got] == wanted


def _in_utc(value: Any) -> Any:
    """Spark gives timestamps in this machine's own zone."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 1.5),
        ("bigint", True),
        ("bigint", "1"),
        ("tinyint", 1000),
        ("double", "1"),
        ("decimal(10, 2)", 1.5),
        ("decimal(10, 2)", Decimal("1.234")),
        ("string", 1),
        ("timestamp", dt.date(2026, 2, 1)),
        ("timestamp", "2026-02-01"),
        ("array<int>", "ab"),
        ("array<string>", "ab"),
        ("array<int>", [1.5]),
        ("double", True),
        ("float", 1e300),
        ("string", b"a"),
        ("binary", "a"),
        ("date", dt.datetime(2026, 2, 1, 12)),
        ("date", 5),
        ("timestamp", 5.5),
        ("timestamp_ntz", dt.datetime(2026, 2, 1, 12, tzinfo=dt.UTC)),
        ("interval day to second", 5),
        ("struct<x: int>", {"X": 1}),
        ("map<string, int>", {"a": 1.5}),
    ],
)
def test_values_that_do_not_are_named(kind: str, value: Any) -> None:
    """By the code that workers run, on the Arrow type that Spark has for the column."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType

    from bedload.testing import OperatorHarness

    class Misfit(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            return key, value

    schema = {
        "k": to_arrow_type(DataType.fromDDL("string")),
        "c": to_arrow_type(DataType.fromDDL(kind), timezone="UTC"),
    }
    harness = OperatorHarness(Misfit, schema=schema, key="k")
    with pytest.raises(bl.errors.OutputError, match="does not fit the schema in column 'c'"):
        harness.run_epoch([{"k": "a"}])


BENT: dict[str, tuple[str, Any, str]] = {
    "a fraction": ("array<int>", [1.5], "1.5 (float) at c[0] is not an int"),
    "letters": ("array<string>", "abc", "'abc' (str) is not an array<string>"),
    "a zone": ("timestamp_ntz", dt.datetime(2026, 2, 1, 12, tzinfo=dt.timezone(HOUR)), "has a time zone"),
    "a time": ("date", dt.datetime(2026, 2, 1, 12), "is not a date: use .date()"),
    "a field": ("struct<x: int>", {"X": 1}, "has the unknown fields X; there are: x"),
}


def test_nothing_is_bent_on_its_way_into_spark(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    for number, (kind, value, says) in enumerate(BENT.values()):

        class Bends(bl.Operator):
            n: int = bl.value(0)

            def process(self, key: Any, rows: bl.Rows, ctx: bl.Context, bad: Any = value) -> Any:
                return key, bad

        out = cluster.apply(
            numbers(spark, 1, 1), key="value", operator=Bends, schema=f"k long, c {kind}", name=f"Bends{number}"
        )
        error = fail(out, Sink(), tmp_path / str(number))
        assert "OutputError" in error
        assert says in error


@pytest.mark.parametrize("returned", [["a", 1], "ab", 7], ids=["a list as a row", "text", "a number"])
def test_what_is_no_row_says_so(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, returned: Any) -> None:
    class NoRow(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            return returned

    df = numbers(spark, 1, 1)
    out = cluster.apply(df, key="value", operator=NoRow, schema="k string, n long", name=f"NoRow{type(returned)}")
    assert "OutputError" in fail(out, Sink(), tmp_path)
