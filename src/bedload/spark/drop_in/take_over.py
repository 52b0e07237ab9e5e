"""The state that a query of Spark's left in its own store, as the first state of a processor here.

Spark's ``statestore`` source reads one variable at a time, and the timers. They are put together by key, in the form
that a state of Bedload's has: expiries beside the values, timers as a variable.

Invariant: variables come under names of our own, as one may have that of a column of the key, or of another one but for
the case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from bedload.spark.bootstrap import InitialState
from bedload.spark.bootstrap_task import starts_of_rows
from bedload.spark.drop_in.conversions import are_plain
from bedload.spark.drop_in.declaring import Declared
from bedload.spark.drop_in.key_parts import KeyPart
from bedload.spark.drop_in.runtime import ProcessorDeployment
from bedload.state.expiries import hidden_name
from bedload.state.kinds import VariableKind
from bedload.state.timers import VARIABLE, TimerClock

_TTL = "ttlExpirationMs"


def state_of_spark(spark: SparkSession, location: str, deployment: ProcessorDeployment) -> InitialState | None:
    """The state of a query that has stopped, by its ``checkpointLocation``: a row for each key; None: it has none."""
    specs = deployment.specs
    columns = {spec.name: f"bedload_taken_{at}" for at, spec in enumerate(specs)}
    parts = [_variable(spark, location, declared, columns) for declared in deployment.declared.variables]
    clock = deployment.mode.clock
    if clock is not None:
        parts.append(_timers(spark, location, clock, columns[VARIABLE]))
    if not parts:
        return None
    keys = [f"bedload_key_{at}" for at in range(len(deployment.key))]
    keyed = [
        df.select(
            *(column.alias(name) for column, name in zip(_key(df, deployment.parts), keys, strict=True)),
            *(column for column in df.columns if column != "key"),
        )
        for df in parts
    ]
    whole = keyed[0]
    for df in keyed[1:]:
        whole = whole.unionByName(df, allowMissingColumns=True)
    found = {name: column for name, column in columns.items() if column in whole.columns}
    grouped = whole.groupBy(*keys).agg(*(F.first(it, ignorenulls=True).alias(it) for it in found.values()))
    filled = [_or_empty(name, column, grouped.schema[column].dataType) for name, column in found.items()]
    named = [F.col(column).alias(name) for column, name in zip(keys, deployment.key_names, strict=True)]
    aliases = {column: name for name, column in found.items()}
    return InitialState(grouped.select(*named, *filled), starts_of_rows(specs), aliases, of_spark=True)


def _key(df: DataFrame, parts: Sequence[KeyPart]) -> list[Column]:
    """The key of Spark's state, by the columns that it is kept as here."""
    kind = df.schema["key"].dataType
    assert isinstance(kind, StructType)
    columns = [F.col("key").getField(field) for field in kind.names]
    if not parts:
        return columns
    return [it for part, column in zip(parts, columns, strict=True) for _, it in part.fields(column)]


def _or_empty(name: str, given: str, kind: DataType) -> Column:
    """A column in which keys that have nothing of a variable have its default."""
    column = F.col(given)
    if isinstance(kind, ArrayType):
        column = F.coalesce(column, F.array().cast(kind))
    elif isinstance(kind, MapType):
        column = F.coalesce(column, F.create_map().cast(kind))
    elif name.startswith("bedload_"):
        column = F.coalesce(column, F.lit(0).cast(kind))
    return column.alias(given)


def _reader(spark: SparkSession) -> Any:
    return spark.read.format("statestore").option("flattenCollectionTypes", "false")


def _variable(spark: SparkSession, location: str, declared: Declared, columns: Mapping[str, str]) -> DataFrame:
    """A variable, with its expiry if it has one: columns ``key``, and those of the state."""
    df = _reader(spark).option("stateVarName", declared.name).load(location)
    name, expiry = declared.attribute, hidden_name(declared.attribute, TimerClock.PROCESSING)
    given = {VariableKind.VALUE: "value", VariableKind.LIST: "list_value", VariableKind.MAP: "map_value"}[declared.kind]
    column, timed, made = F.col(given), declared.ttl is not None, list[Column]()
    whole: Any = df.schema[given].dataType
    kind = {VariableKind.LIST: "elementType", VariableKind.MAP: "valueType"}.get(declared.kind)
    last = whole if kind is None else getattr(whole, kind)
    last = last["value"].dataType if timed else last
    if declared.kind is VariableKind.VALUE:
        made.append(_kept(column.getField("value") if timed else column, last))
        if timed:
            made.append(column.getField(_TTL))
    elif declared.kind is VariableKind.LIST:
        made.append(F.transform(column, lambda it: _kept(it.getField("value") if timed else it, last)))
        if timed:
            made.append(F.transform(column, lambda it: it.getField(_TTL)))
    else:
        first, entries = whole.keyType, F.map_entries(column)

        def pairs(value: Callable[[Column], Column]) -> Column:
            return F.map_from_entries(
                F.transform(entries, lambda it: F.struct(_kept(it["key"], first), value(it["value"])))
            )

        made.append(pairs(lambda it: _kept(it.getField("value") if timed else it, last)))
        if timed:
            made.append(pairs(lambda it: it.getField(_TTL)))
    found: DataFrame = df.select(
        "key", *(it.alias(columns[as_]) for it, as_ in zip(made, (name, expiry), strict=False))
    )
    return found


def _timers(spark: SparkSession, location: str, clock: TimerClock, name: str) -> DataFrame:
    df = _reader(spark).option("readRegisteredTimers", "true").load(location)
    timer = F.struct(
        F.col("expiration_timestamp_ms").alias("at"), F.lit("").alias("name"), F.lit(str(clock)).alias("clock")
    )
    found: DataFrame = df.groupBy("key").agg(F.sort_array(F.collect_list(timer)).alias(name))
    return found


def _kept(column: Column, kind: DataType) -> Column:
    """A value of a state variable, as it is kept here: what is nested in it, too."""
    if isinstance(kind, StructType):
        # By place: two fields may have one name but for the case.
        names = [f"f{at}" for at in range(len(kind.fields))]
        placed = column.cast(StructType([StructField(n, f.dataType) for n, f in zip(names, kind.fields, strict=True)]))
        shown = kind.names if are_plain(kind.names) else names
        fields = [
            _kept(placed.getField(n), f.dataType).alias(s) for n, s, f in zip(names, shown, kind.fields, strict=True)
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda it: _kept(it, kind.elementType))
    if isinstance(kind, MapType):
        return F.transform(
            F.map_entries(column),
            lambda it: F.struct(
                _kept(it["key"], kind.keyType).alias("f0"), _kept(it["value"], kind.valueType).alias("f1")
            ),
        )
    if isinstance(kind, DecimalType):
        return column.cast(StringType())
    if kind.simpleString() in ("tinyint", "smallint", "int"):
        return column.cast("bigint")
    return column.cast("double") if kind.simpleString() == "float" else column
