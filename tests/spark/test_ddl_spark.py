"""A DDL string means in the testing kit what it means in ``cluster.apply``."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from bedload.core.errors import SchemaError
from bedload.spark.schemas import arrow_schema, output_schema
from bedload.testing.input import as_schema

pytestmark = pytest.mark.spark

MEANT = [
    "car string, n long",
    "car STRING, `a b` Int, `x``y` int",
    "a byte, b tinyint, c short, d smallint, e int, f integer, g long, h bigint",
    "a float, b real, c double, d boolean, e binary, f date, v void",
    "a timestamp, b timestamp_ltz, c timestamp_ntz",
    "a decimal, b dec(5), c numeric(38, 38), d decimal( 16 , 8 )",
    "a time, b time(3)",
    "a interval day, b interval day to second, c interval hour to minute, d interval second",
    "a array<int>, b map<string, array<map<int, date>>>, c struct<x: int, y string not null>, d struct<>",
    "a: int, b: struct<x: decimal(3, 1)>",
    "struct<a: int, b: string>",
    "a int not null, b string NOT NULL comment 'it''s', c int comment \"x\"",
    "a string collate UTF8_LCASE",
    "date date, struct string, array int, comment long, `not` int",
    "a int -- the first\n, b int /* the second */",
    "_a1 int, 1a int",
    "a struct<`>` int>, `日本` string",
]
REFUSED = [
    "",
    "int",
    "array<int>",
    "a",
    "a int,",
    "a int b int",
    "a-b int",
    "1 int",
    "a strng",
    "a char(5)",
    "a varchar(5)",
    "a interval",
    "a interval year to month",
    "a interval second to day",
    "a interval day to day",
    "a decimal(39, 0)",
    "a decimal(2, 3)",
    "a array<int",
    "a array<int>>",
    "a array",
    "a map<int>",
    "a int comment b",
    "a int not",
    "a int, A int",
    "a void not null",
    "a string collate",
    "日本 string",
    "a decimal(٣)",
]


@pytest.mark.parametrize("text", MEANT)
def test_the_kit_reads_what_spark_reads(spark: SparkSession, text: str) -> None:
    wanted = arrow_schema(spark, output_schema("x", text))
    assert as_schema(text, "schema").equals(wanted)
    assert as_schema(output_schema("x", text), "schema").equals(wanted)


@pytest.mark.parametrize("text", REFUSED)
def test_the_kit_refuses_what_apply_refuses(spark: SparkSession, text: str) -> None:
    with pytest.raises(SchemaError):
        arrow_schema(spark, output_schema("x", text))
    with pytest.raises(SchemaError):
        as_schema(text, "schema")


def test_apply_refuses_a_collation_that_is_not_there(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match="collate nope"):
        output_schema("x", "a string collate nope")
