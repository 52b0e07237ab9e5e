"""Between Spark's types and Arrow's, and checks of what users declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructType, VariantType, _parse_datatype_string

from bedload.core.errors import KeyColumnError, KeyTypeError, SchemaError
from bedload.keys import check_key_type, kept_type


def output_schema(operator: str, schema: str | StructType) -> StructType:
    """The declared output columns."""
    if isinstance(schema, StructType):
        found = schema
    elif not isinstance(schema, str):
        raise SchemaError(
            f"operator {operator}: schema={schema!r:.200} is a {type(schema).__name__}; give the output's columns as a "
            f"DDL string such as 'car string, n long', or as a StructType"
        )
    else:
        try:
            parsed = _parse_datatype_string(schema)
        except (PySparkException, Py4JError, TypeError, AttributeError) as error:
            raise SchemaError(
                f"operator {operator}: schema={schema!r} is not a DDL string such as 'car string, n long': {error}"
            ) from error
        if not isinstance(parsed, StructType):
            raise SchemaError(f"operator {operator}: schema={schema!r} names a type, not columns")
        found = parsed
    if not found.fields:
        raise SchemaError(f"operator {operator}: schema={schema!r} has no columns")
    names = [field.name.lower() for field in found.fields]
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise SchemaError(f"operator {operator}: schema={schema!r} has columns twice: {', '.join(doubles)}")
    return found


def arrow_schema(spark: SparkSession, schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark exchanges with Python for these columns."""
    try:
        return to_arrow_schema(schema, timezone=spark.conf.get("spark.sql.session.timeZone"))
    except (PySparkException, TypeError, ValueError) as error:
        raise SchemaError(f"Spark cannot exchange these columns with Python: {error}") from error


KeyColumn: TypeAlias = str | Column
"""A column of a key: its name, or ``F.col`` of it."""


def key_columns(operator: str, df: DataFrame, key: KeyColumn | Sequence[KeyColumn]) -> list[tuple[int, str]]:
    """Position and name of the key's columns."""
    given = list(key) if isinstance(key, Iterable) and not isinstance(key, str | Column) else [key]
    wanted = [_name(operator, it) if isinstance(it, Column) else it for it in given]
    if not wanted or not all(isinstance(name, str) for name in wanted):
        raise KeyColumnError(
            f"operator {operator}: key={key!r} must name one column, or a list of columns: key='car', or "
            f"key=['car', 'lane']"
        )
    if len(set(wanted)) != len(wanted):
        raise KeyColumnError(f"operator {operator}: key={key!r} names a column twice")
    found = []
    for name in wanted:
        where = [i for i, column in enumerate(df.columns) if column == name]
        if len(where) != 1:
            problem = "is not there" if not where else "is there more than once"
            raise KeyColumnError(
                f"operator {operator}: the key column {name!r} {problem}; the input has: {', '.join(df.columns)}",
                operator=operator,
                column=name,
            )
        found.append((where[0], name))
    return found


def _name(operator: str, column: Column) -> str:
    """The name of a column that was given as ``F.col(name)`` or ``df.name``."""
    # SUBTLE: F.lit("k") reads as k, too. Spark's own node of the expression tells them apart.
    node = column._jc.node()  # type: ignore[operator]
    kind = node.getClass().getSimpleName()
    if kind == "UnresolvedAttribute" and node.nameParts().length() == 1:  # F.col; several parts are a field of a struct
        return str(node.nameParts().apply(0))
    if kind == "ExpressionColumnNode" and node.expression().getClass().getSimpleName() == "AttributeReference":
        return str(node.expression().name())  # of a DataFrame
    raise KeyColumnError(
        f"operator {operator}: the key {column!r} is an expression, and a key has to be a column of the input: make it "
        f"one before, df.withColumn('key', ...), and give its name, key='key'",
        operator=operator,
    )


def key_types(operator: str, spark: SparkSession, df: DataFrame, key: list[tuple[int, str]]) -> tuple[pa.DataType, ...]:
    """The Arrow types that the key's columns are kept under, if they can be hashed."""
    kinds = []
    for index, name in key:
        field = df.schema.fields[index]
        where = f"operator {operator}: key column {name!r}"
        try:
            kind = to_arrow_schema(StructType([field]), timezone=spark.conf.get("spark.sql.session.timeZone")).field(0)
        except (PySparkException, TypeError) as error:
            raise KeyTypeError(
                f"{where} has the type {field.dataType.simpleString()}, which has no form in Python: {error}",
                operator=operator,
                column=name,
            ) from error
        _check_equality(where, field.dataType, operator, name)
        check_key_type(kind.type, name)
        kinds.append(kept_type(kind.type))
    return tuple(kinds)


def _check_equality(where: str, kind: DataType, operator: str, name: str) -> None:
    """Refuse a type by which Spark takes values for one key that Arrow tells apart."""
    collation = getattr(kind, "collation", "UTF8_BINARY") if isinstance(kind, StringType) else "UTF8_BINARY"
    if collation != "UTF8_BINARY":
        raise KeyTypeError(
            f"{where} is a string of collation {collation}, by which different bytes can be one key; keys are told "
            f"apart by their bytes. Make one spelling of it before, say lower(collate({name}, 'UTF8_BINARY')), or "
            f"collate({name}, 'UTF8_BINARY') if the bytes are what counts",
            operator=operator,
            column=name,
        )
    if isinstance(kind, VariantType):
        raise KeyTypeError(
            f"{where} is a variant, which Spark does not group by: take out of it what is the key, say "
            f"variant_get({name}, '$.id', 'string')",
            operator=operator,
            column=name,
        )
