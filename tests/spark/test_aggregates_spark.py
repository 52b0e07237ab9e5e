"""Aggregates against Spark's own: the same rows through ``groupBy().agg()``, comparing values, types and nullability.

Spark runs on one partition, so that it meets the rows in the same order: ``first``, ``last`` and ties depend on it.
"""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from bedload.core.errors import DataError, SchemaError
from bedload.core.ids import Epoch, WorkerId
from bedload.operators import aggregates as agg
from bedload.store.columns import ColumnTable
from bedload.worker.operator import Context

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

ROWS, KEYS, LIMIT = 1500, 60, 100_000
CTX = Context("Trip", WorkerId(0), Epoch(0))
DAY = 86_400_000_000


def _ints(bits: int, rng: np.random.Generator) -> pa.Array:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    values = rng.integers(low // 256, high // 256, ROWS, endpoint=True) if bits > 8 else rng.integers(low, high, ROWS)
    if bits < 64:
        values[:2] = low, high
    return pa.array(values, pa.int64()).cast(f"int{bits}")


def _floats(dtype: Any, rng: np.random.Generator) -> pa.Array:
    values = (rng.standard_normal(ROWS) * 100).astype(dtype)
    special = rng.integers(0, ROWS, 30)
    values[special] = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30], dtype)[np.arange(30) % 6]
    return pa.array(values)


def _texts(rng: np.random.Generator) -> pa.Array:
    alphabet = np.array(list("abcXYZ019 éß日本\U0001f697"))
    return pa.array(["".join(rng.choice(alphabet, n)) for n in rng.integers(0, 6, ROWS)])


def _decimals(precision: int, scale: int, digits: int, rng: np.random.Generator) -> pa.Array:
    whole = [int("".join(map(str, rng.integers(0, 10, digits)))) * (-1) ** int(n) for n in rng.integers(0, 2, ROWS)]
    exact = decimal.Context(prec=60)
    return pa.array([decimal.Decimal(n).scaleb(-scale, exact) for n in whole], pa.decimal128(precision, scale))


def _column(kind: pa.DataType, rng: np.random.Generator) -> pa.Array:
    types = pa.types
    if types.is_integer(kind):
        column = _ints(kind.bit_width, rng)
    elif types.is_floating(kind):
        column = _floats(kind.to_pandas_dtype(), rng)
    elif types.is_boolean(kind):
        column = pa.array(rng.integers(0, 2, ROWS).astype(bool))
    elif types.is_string(kind):
        column = _texts(rng)
    elif types.is_binary(kind):
        column = pa.array([rng.bytes(n) for n in rng.integers(0, 4, ROWS)])
    elif types.is_date(kind):
        column = pa.array(rng.integers(-700_000, 2_900_000, ROWS).astype(np.int32)).cast(kind)
    elif types.is_timestamp(kind):
        column = pa.array(rng.integers(-719_162 * DAY, 2_932_897 * DAY, ROWS)).cast(kind)
    elif types.is_duration(kind):
        column = pa.array(rng.integers(-DAY, DAY, ROWS)).cast(kind)
    else:
        column = _decimals(kind.precision, kind.scale, min(kind.precision, 33), rng)
    nulls = rng.random(ROWS) < 0.2
    return pa.array(np.where(nulls, None, np.fromiter(column.to_pylist(), object, ROWS)).tolist(), kind)


def _rows(kind: pa.DataType, seed: int) -> pa.Table:
    """Columns: key, x of the given type, and others to choose rows by. Some keys have one row, some only nulls."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, KEYS - 10, ROWS)
    keys[:5] = KEYS - 1 - np.arange(5)
    x = _column(kind, rng).to_pylist()
    empty = np.isin(keys, [0, 1, KEYS - 1])
    return pa.table(
        {
            "key": pa.array([f"car-{key}" for key in keys]),
            "x": pa.array([None if gone else value for gone, value in zip(empty, x, strict=True)], kind),
            "n": pa.array(rng.integers(0, 8, ROWS).tolist(), pa.int32()),
            "f": _column(pa.float64(), rng),
            "s": _column(pa.string(), rng),
            "d": _column(pa.decimal128(12, 3), rng),
        }
    )


def _frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return spark.createDataFrame(rows, schema=schema).coalesce(1)


Pairs = dict[str, tuple[agg.Function, Column]]


def _pairs(kind: pa.DataType) -> Pairs:
    pairs: Pairs = {
        "rows": (agg.count(), F.count(F.lit(1))),
        "count": (agg.count("x"), F.count("x")),
        "min": (agg.min("x"), F.min("x")),
        "max": (agg.max("x"), F.max("x")),
        "first": (agg.first("x"), F.first("x")),
        "first_value": (agg.first("x", ignore_nulls=True), F.first("x", ignorenulls=True)),
        "last": (agg.last("x"), F.last("x")),
        "last_value": (agg.last("x", ignore_nulls=True), F.last("x", ignorenulls=True)),
        "collect_list": (agg.collect_list("x", LIMIT), F.collect_list("x")),
        "collect_set": (agg.collect_set("x", LIMIT), F.collect_set("x")),
        "min_by_x": (agg.arg_min("n", "x"), F.min_by("n", "x")),
    }
    for by in "nfsd":
        pairs[f"min_by_{by}"] = (agg.arg_min("x", by), F.min_by("x", by))
        pairs[f"max_by_{by}"] = (agg.arg_max("x", by), F.max_by("x", by))
    if pa.types.is_boolean(kind):
        pairs["any"] = (agg.any("x"), F.bool_or("x"))
        pairs["all"] = (agg.all("x"), F.bool_and("x"))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        pairs["sum"] = (agg.sum("x"), F.sum("x"))
        pairs["mean"] = (agg.mean("x"), F.avg("x"))
        pairs["var"] = (agg.var("x"), F.var_samp("x"))
        pairs["std"] = (agg.std("x"), F.stddev_samp("x"))
        pairs["var_pop"] = (agg.var_pop("x"), F.var_pop("x"))
        pairs["std_pop"] = (agg.std_pop("x"), F.stddev_pop("x"))
    return pairs


def _ours(rows: pa.Table, functions: dict[str, agg.Function], *, ahead: bool = False) -> pa.RecordBatch:
    logic = agg.Aggregates(functions, rows.schema, [0], ["key"])
    table = ColumnTable([pa.string()], logic.columns, 1)
    for batch in rows.to_batches(max_chunksize=400):
        groups = np.zeros(batch.num_rows, np.int16)
        if ahead:
            partial = logic.partial(batch, at_most=1.0)
            assert partial is not None
            slots = table.locate([partial.column(0)], groups[: partial.num_rows])
            logic.update_partial(table, slots, partial, CTX)
        else:
            logic.update(table, table.locate([batch.column(0)], groups), batch, CTX)
    result = logic.result(table, table.changed(), CTX)
    assert result is not None
    return result


def _same(found: Any, wanted: Any, name: str) -> bool:
    if name == "collect_set":
        # A set has no order, and Spark keeps each NaN.
        return {v for v in found if v == v} == {v for v in wanted if v == v}
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(_same(f, w, "") for f, w in zip(found, wanted, strict=True))
    if isinstance(wanted, float) and isinstance(found, float):
        both_nan = math.isnan(found) and math.isnan(wanted)
        return both_nan or found == wanted or math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
    return type(found) is type(wanted) and bool(found == wanted)


KINDS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
    pa.duration("us"),
    pa.decimal128(7, 2),
    pa.decimal128(9, 3),
    pa.decimal128(18, 6),
    pa.decimal128(28, 4),
    pa.decimal128(38, 18),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_values_and_types_are_those_of_spark(spark: SparkSession, kind: pa.DataType) -> None:
    rows, pairs = _rows(kind, seed=KINDS.index(kind)), _pairs(kind)
    frame = _frame(spark, rows)
    assert to_arrow_schema(frame.schema, timezone="UTC") == rows.schema
    theirs = frame.groupBy("key").agg(*(column.alias(name) for name, (_, column) in pairs.items()))
    ours = _ours(rows, {name: function for name, (function, _) in pairs.items()})
    assert ours.schema == to_arrow_schema(theirs.schema, timezone="UTC")
    wanted = {row["key"]: row for row in theirs.toArrow().to_pylist()}
    found = {row["key"]: row for row in ours.to_pylist()}
    assert found.keys() == wanted.keys()
    different = [
        (key, name, found[key][name], wanted[key][name])
        for key in wanted
        for name in pairs
        if not _same(found[key][name], wanted[key][name], name)
    ]
    assert different == []


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.decimal128(7, 2), pa.decimal128(18, 6), pa.decimal128(38, 18)], ids=str
)
def test_aggregating_ahead_gives_what_spark_gives(spark: SparkSession, kind: pa.DataType) -> None:
    rows = _rows(kind, seed=100)
    names = {"rows", "count", "min", "max", "sum", "mean", "var", "std_pop"}
    pairs = {name: pair for name, pair in _pairs(kind).items() if name in names}
    theirs = _frame(spark, rows).groupBy("key").agg(*(c.alias(name) for name, (_, c) in pairs.items()))
    wanted = {row["key"]: row for row in theirs.toArrow().to_pylist()}
    ours = _ours(rows, {name: function for name, (function, _) in pairs.items()}, ahead=True)
    for row in ours.to_pylist():
        assert all(_same(row[name], wanted[row["key"]][name], name) for name in pairs), (row, wanted[row["key"]])
    assert ours.num_rows == len(wanted)


def _both_fail(spark: SparkSession, rows: pa.Table, function: agg.Function, column: str) -> None:
    with pytest.raises(ArithmeticException):
        _frame(spark, rows).groupBy("key").agg(F.expr(column)).collect()
    with pytest.raises(DataError, match="ARITHMETIC_OVERFLOW"):
        _ours(rows, {"out": function})


@pytest.mark.parametrize(
    ("kind", "values", "function", "column"),
    [
        (pa.int64(), [2**63 - 1, 1], agg.sum("x"), "sum(x)"),
        (pa.int64(), [-(2**63), -1], agg.sum("x"), "sum(x)"),
        (pa.decimal128(38, 0), [decimal.Decimal("9" * 38)] * 2, agg.sum("x"), "sum(x)"),
        (pa.decimal128(38, 0), [decimal.Decimal("-" + "9" * 38)] * 2, agg.sum("x"), "sum(x)"),
        (pa.decimal128(38, 0), [decimal.Decimal("9" * 38)], agg.mean("x"), "avg(x)"),
    ],
    ids=["bigint", "bigint, negative", "decimal", "decimal, negative", "mean of decimals"],
)
def test_what_overflows_in_spark_overflows_here(
    spark: SparkSession, kind: pa.DataType, values: list[Any], function: agg.Function, column: str
) -> None:
    rows = pa.table({"key": pa.array(["a"] * len(values)), "x": pa.array(values, kind)})
    _both_fail(spark, rows, function, column)


def test_what_does_not_overflow_in_spark_does_not_here(spark: SparkSession) -> None:
    rows = pa.table({"key": pa.array(["a"] * 3), "x": pa.array([2**63 - 1] * 3)})
    (wanted,) = _frame(spark, rows).groupBy("key").agg(F.avg("x").alias("out")).collect()
    assert _ours(rows, {"out": agg.mean("x")}).column("out").to_pylist() == [wanted.out]


@pytest.mark.parametrize(
    ("kind", "function", "column"),
    [
        (pa.bool_(), agg.sum("x"), "sum(x)"),
        (pa.bool_(), agg.mean("x"), "avg(x)"),
        (pa.date32(), agg.sum("x"), "sum(x)"),
        (pa.binary(), agg.var("x"), "var_samp(x)"),
        (pa.int32(), agg.any("x"), "bool_or(x)"),
        (pa.timestamp("us"), agg.mean("x"), "avg(x)"),
    ],
    ids=["sum of booleans", "mean of booleans", "sum of dates", "var of bytes", "any of ints", "mean of times"],
)
def test_what_spark_refuses_is_refused(
    spark: SparkSession, kind: pa.DataType, function: agg.Function, column: str
) -> None:
    rows = pa.table({"key": pa.array(["a"]), "x": pa.array([None], kind)})
    with pytest.raises(PySparkException):
        _frame(spark, rows).groupBy("key").agg(F.expr(column))
    with pytest.raises(SchemaError):
        agg.Aggregates({"out": function}, rows.schema, [0], ["key"])


def test_instants_are_the_same_whatever_the_time_zone(spark: SparkSession) -> None:
    """A timestamp's column has the session's time zone as its type; state is the instant."""
    at = datetime.datetime(2024, 3, 31, 1, 30, tzinfo=datetime.UTC)
    rows = pa.table({"key": pa.array(["a"]), "x": pa.array([at], pa.timestamp("us", "Europe/Athens"))})
    out = _ours(rows, {"out": agg.max("x")})
    assert out.schema.field("out").type == pa.timestamp("us", "Europe/Athens")
    (wanted,) = _frame(spark, rows).groupBy("key").agg(F.max("x").alias("out")).toArrow().to_pylist()
    assert out.column("out").to_pylist() == [wanted["out"]] == [at]
