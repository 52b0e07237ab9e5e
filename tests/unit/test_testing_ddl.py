"""DDL schemas in the testing kit. ``tests/spark/test_ddl_spark.py`` compares them with Spark's own parser."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from bedload.core.errors import SchemaError
from bedload.testing.input import as_schema


def element(kind: pa.DataType, nullable: bool = True) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable))


OTHERS = [pa.binary(), pa.time64("ns"), pa.time64("ns"), pa.null()]
MAP = pa.map_(pa.string(), pa.field("value", element(pa.int64())))
STRUCT = pa.struct([("x", pa.int32()), ("y z", pa.string())])


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("car string, n long", [("car", pa.string()), ("n", pa.int64())]),
        ("a: byte, B smallint , c INT", [("a", pa.int8()), ("B", pa.int16()), ("c", pa.int32())]),
        ("struct<x:float,y:double>", [("x", pa.float32()), ("y", pa.float64())]),
        ("`a b` boolean, `x``y` date", [("a b", pa.bool_()), ("x`y", pa.date32())]),
        ("t timestamp, l timestamp_ntz", [("t", pa.timestamp("us", "UTC")), ("l", pa.timestamp("us"))]),
        (
            "d decimal(10, 2), e dec, f numeric(5)",
            [("d", pa.decimal128(10, 2)), ("e", pa.decimal128(10, 0)), ("f", pa.decimal128(5, 0))],
        ),
        ("b binary, t time, u time(3), v void", [(n, k) for n, k in zip("btuv", OTHERS, strict=True)]),
        ("a interval day to second, b interval hour", [("a", pa.duration("us")), ("b", pa.duration("us"))]),
        ("s string collate UTF8_LCASE, x real /* no */ -- more", [("s", pa.string()), ("x", pa.float32())]),
        ("a array<int>, m map<string, array<long>>", [("a", element(pa.int32())), ("m", MAP)]),
        ("s struct<>, u struct<x: int, `y z` string>", [("s", pa.struct([])), ("u", STRUCT)]),
    ],
)
def test_columns(text: str, fields: list[tuple[str, pa.DataType]]) -> None:
    assert as_schema(text, "schema").equals(pa.schema(fields))


def test_columns_may_be_not_null_and_have_comments() -> None:
    found = as_schema("car string NOT NULL COMMENT 'the plate', p struct<x int not null>", "schema")
    point = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    assert found.equals(pa.schema([pa.field("car", pa.string(), nullable=False), pa.field("p", point)]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the name of a column is missing at the beginning"),
        ("int", "the type of column 'int' is missing after 'int'"),
        ("array<int>", "after 'array' comes '<' instead of the type of column 'array'"),
        ("car string,", "the name of a column is missing after 'car string ,'"),
        ("car string n long", "after 'car string' comes 'n' instead of a comma or the end"),
        ("a-b int", "'-' does not belong there; write a name that has it in `backquotes`"),
        ("1 int", "comes '1' instead of the name of a column"),
        ("car strng", "the type 'strng' has no form here; there are: boolean, byte"),
        ("car varchar(5)", "the type 'varchar' has no form here"),
        ("i interval year to month", "an interval of months has no form in Python: use interval day to second"),
        ("i interval second to day", "comes 'day' instead of a smaller unit than second"),
        ("d decimal(39, 2)", "decimal(39, 2): a decimal has 1 to 38 digits, and no more behind the point"),
        ("d decimal(2, 3)", "decimal(2, 3): a decimal has"),
        ("d decimal(x)", "comes 'x' instead of a number"),
        ("d decimal(1, 1, 1)", "comes ',' instead of ')'"),
        ("a array<int", "'>' is missing after 'array < int'"),
        ("a array<`int`>", "comes 'int' instead of a type"),
        ("m map<int>", "comes '>' instead of ','"),
        ("a array int", "comes 'int' instead of '<'"),
        ("a int comment b", "comes 'b' instead of the comment as 'text'"),
    ],
)
def test_what_is_not_ddl_is_refused_with_the_place(text: str, says: str) -> None:
    with pytest.raises(SchemaError) as caught:
        as_schema(text, "schema")
    assert caught.value.message.startswith(f"schema={text!r} is not a DDL string such as 'car string, n long': ")
    assert says in caught.value.message


@pytest.mark.parametrize("columns", ["car string, Car int", {"car": pa.string(), "Car": pa.string()}])
def test_columns_are_there_once(columns: object) -> None:
    with pytest.raises(SchemaError, match="has columns twice: car"):
        as_schema(columns, "input")  # type: ignore[arg-type]


def test_what_is_no_schema_at_all_is_refused() -> None:
    with pytest.raises(SchemaError, match="schema=7: give a DDL string such as 'car string, n long'"):
        as_schema(7, "schema")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="input has no columns"):
        as_schema("struct<>", "input")


def test_a_struct_type_of_spark_is_what_it_says() -> None:
    inner = t.StructType([t.StructField("x", t.DecimalType(5, 1), nullable=False)])
    columns = t.StructType(
        [
            t.StructField("car", t.StringType(), nullable=False),
            t.StructField("a", t.ArrayType(t.TimestampType(), containsNull=False)),
            t.StructField("m", t.MapType(t.LongType(), inner, valueContainsNull=False)),
            t.StructField("i", t.DayTimeIntervalType()),
            t.StructField("l", t.TimestampNTZType()),
        ]
    )
    point = pa.struct([pa.field("x", pa.decimal128(5, 1), nullable=False)])
    assert as_schema(columns, "schema").equals(
        pa.schema(
            [
                pa.field("car", pa.string(), nullable=False),
                pa.field("a", element(pa.timestamp("us", "UTC"), nullable=False)),
                pa.field("m", pa.map_(pa.int64(), pa.field("value", point, nullable=False))),
                pa.field("i", pa.duration("us")),
                pa.field("l", pa.timestamp("us")),
            ]
        )
    )


def test_a_type_of_spark_without_a_form_is_refused() -> None:
    columns = t.StructType([t.StructField("v", t.VariantType())])
    with pytest.raises(SchemaError, match="the type 'variant' has no form here"):
        as_schema(columns, "schema")
