"""An operator's first state from a DataFrame: ``initial_state=`` of ``cluster.apply`` and ``cluster.aggregate``.

::

    DataFrame ─▶ checked, cast ─▶ by key group ─▶ executors: files of a snapshot ─▶ driver: its manifest

The executors write the files straight to the checkpoint's storage. The manifest, which the driver writes when all are
there, makes them the operator's state: it is one file, so all of it counts or nothing.

Invariants: a manifest has each key group once; what fails leaves nothing that counts, and its files are deleted as far
as that is possible (what a lost task writes later is swept with other garbage).

State that no query has made is at batch -1 of :data:`INITIAL_QUERY`. Any query may go on from it, at whatever epoch it
is: one that took over the source offsets of another query does not begin at 0.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, DecimalType, StringType, StructType

from bedload.checkpoint import paths
from bedload.checkpoint.records import Manifest, OperatorSchema, SnapshotPart
from bedload.checkpoint.strays import stray_files
from bedload.checkpoint.timestamps import NAIVE, UTC, has_datetimes, stamped_type
from bedload.checkpoint.uniform import uniform
from bedload.control.coordinator import Coordinator
from bedload.control.lineage import Lineage
from bedload.core.errors import (
    BedloadError,
    CheckpointError,
    DefinitionError,
    KeyColumnError,
    SchemaError,
    from_wire,
)
from bedload.core.ids import NO_EPOCH, DeploymentId, OperatorName, QueryId, Turn, make_turn
from bedload.operators.aggregates import Function
from bedload.operators.aggregates.planning import plan
from bedload.operators.aggregates.results import AsHeld
from bedload.spark.bootstrap_task import RESULT, Start, Task, decode_result
from bedload.spark.driver import Driver
from bedload.spark.keeper import Keeper
from bedload.spark.source_columns import KEY_GROUP, readable
from bedload.store.deltas import GROUP, key_column

INITIAL_QUERY = QueryId("00000000-0000-0000-0000-000000000000")
"""The query of state that no query has made: of the form of Spark's ids, and nobody's."""

_BESIDE = (KEY_GROUP, "partition_id")
"""Columns that a table of state has beside keys and variables: ours, and Spark's."""

_WIDER = {
    "smallint": ("tinyint",),
    "int": ("tinyint", "smallint"),
    "bigint": ("tinyint", "smallint", "int"),
    "double": ("float", "tinyint", "smallint", "int"),
}
"""What fits into a type without loss."""

_TURNS_AHEAD = 1 << 20
"""A query that runs while the files are written takes turns, too; it does not get so far."""


@dataclass(frozen=True)
class InitialState:
    """What the user gave, and what it is for."""

    df: DataFrame
    starts: Sequence[Start]
    aliases: Mapping[str, str]
    """Other names that a variable may come under."""
    of_spark: bool = False
    """Whether it is the state of a processor of Spark's: null is a key, and timers are known by their times."""


def deploy_with_initial_state(
    spark: SparkSession,
    driver: Driver,
    keeper: Keeper,
    name: OperatorName,
    initial: InitialState,
    wanted: OperatorSchema,
    payload: bytes,
    *,
    fresh: bool,
) -> DeploymentId:
    """Write the state, make it the operator's, and ship the operator."""
    turn, known = _turn_for(driver, keeper, name, fresh=fresh)
    rows, starts = prepare(name, initial, wanted)
    parts = _write(spark, keeper, Task(keeper.place, name, turn, wanted, starts, initial.of_spark), rows)
    try:
        lineage = keeper.lineage(name, wanted, fresh=True)
        if known:
            driver.deploy(name, wanted.key_groups, payload, fresh=True, lineage=lineage)
        made = manifest_of(turn, lineage.schema, parts)
        manifest = uniform(keeper.checkpoint.storage, name, lineage.schema, made)
        keeper.checkpoint.check_fence()
        keeper.checkpoint.write_manifest(name, manifest)
    except BaseException:
        _clean_up(keeper, name, turn)
        raise
    keeper.checkpoint.storage.delete(stray_files(keeper.checkpoint.storage, paths.snapshot(name, turn), manifest.parts))
    if known:
        driver.call(lambda c: _adopt(c, name, lineage, manifest))
        number = driver.deploy(name, wanted.key_groups, payload, fresh=False)
    else:
        lineage.history.snapshot(manifest)
        number = driver.deploy(name, wanted.key_groups, payload, fresh=False, lineage=lineage)
    return number


def aggregate_aliases(functions: Mapping[str, Function], schema: pa.Schema) -> dict[str, str]:
    """Aggregates that give their state as it is, by their own names: with n=bl.agg.count(), ``n`` is ``count()``."""
    found = {}
    for name, function in functions.items():
        planned = plan(name, function, schema)
        columns = planned.result.part.columns if isinstance(planned.result, AsHeld) else ()
        if len(columns) == 1 and columns[0].type == planned.field.type:
            found[name] = columns[0].name
    return found


# --- which turn ---


def _turn_for(driver: Driver, keeper: Keeper, name: OperatorName, *, fresh: bool) -> tuple[Turn, bool]:
    """The turn of the new state, and whether the operator was applied on this cluster before."""

    def look(coordinator: Coordinator) -> tuple[Turn, bool] | None:
        if name not in coordinator.operators:
            return None
        epochs = coordinator.operator(name)
        assert epochs.lineage is not None, "a cluster with a checkpoint has a lineage of every operator"
        turn = Turn(epochs.lineage.next_turn(epochs.turn) + _TURNS_AHEAD)
        return turn, epochs.lineage.history.head is not None

    found = driver.call(look)
    if found is None:
        # All turns of former attachments are smaller, and this one has made none of this operator yet.
        turn, has_state = make_turn(keeper.generation, 0), keeper.checkpoint.load_history(name).head is not None
    else:
        turn, has_state = found
    if has_state and not fresh:
        raise DefinitionError(
            f"operator {name} has state in the checkpoint, so it cannot be given an initial one. Leave initial_state "
            f"out to go on with what is there, give this application another name (name=...), or replace the state "
            f"with fresh=True",
            operator=name,
        )
    return turn, found is not None


def _adopt(coordinator: Coordinator, name: OperatorName, lineage: Lineage, manifest: Manifest) -> None:
    """The operator was reset: let it stand on the new state."""
    epochs = coordinator.operator(name)
    assert epochs.lineage is not None
    epochs.lineage.adopt(lineage)
    epochs.lineage.history.snapshot(manifest)
    epochs.lineage.head = epochs.turn = manifest.turn


# --- columns ---


def prepare(name: OperatorName, initial: InitialState, schema: OperatorSchema) -> tuple[DataFrame, tuple[Start, ...]]:
    """Key columns, variables and key group under names of our own, and which variable is where."""
    if initial.df.isStreaming:
        raise DefinitionError(
            f"operator {name}: initial_state is a streaming DataFrame; it must be a batch: read it with spark.read"
        )
    df = flatten(initial.df, schema.key_names)
    columns = _by_name(name, df)
    chosen: list[Column] = []
    for i, field in enumerate(schema.keys):
        chosen.append(_key(name, df, columns.pop(field.name.lower(), None), field).alias(key_column(i)))
    starts = []
    for i, start in enumerate(initial.starts):
        others = [alias for alias, variable in initial.aliases.items() if variable == start.name]
        given = [columns.pop(other.lower()) for other in (start.name, *others) if other.lower() in columns]
        if len(given) > 1:
            raise SchemaError(f"operator {name}: initial_state has the variable {start.name!r} as {', '.join(given)}")
        if given:
            made = f"bedload_value_{i}"
            chosen.append(_variable(name, df, given[0], start).alias(made))
            start = replace(start, column=made)
        starts.append(start)
    left = [column for low, column in columns.items() if low not in _BESIDE]
    if left:
        raise SchemaError(
            f"operator {name}: initial_state has columns that are neither key nor state variable: {', '.join(left)}. "
            f"The key is {', '.join(schema.key_names)}; the variables are {_names(initial)}. Rename or drop them with "
            f"initial_state.select(...)",
            operator=name,
        )
    hashed = F.xxhash64(*(F.col(key_column(i)) for i in range(len(schema.key_names))))
    return df.select(*chosen).withColumn(GROUP, F.pmod(hashed, F.lit(schema.key_groups)).cast("short")), tuple(starts)


def flatten(df: DataFrame, key_names: Sequence[str]) -> DataFrame:
    """What Spark's own state reader gives, with the fields of its ``key`` and ``value`` as columns."""
    kinds = {field.name: field.dataType for field in df.schema.fields}
    key, value = kinds.get("key"), kinds.get("value")
    if not isinstance(key, StructType) or not isinstance(value, StructType):
        return df
    fields = key.fieldNames()
    same = {field.lower() for field in fields} == {name.lower() for name in key_names}
    if len(fields) == len(key_names) and not same:
        keys = [F.col(f"key.{_quoted(field)}").alias(name) for field, name in zip(fields, key_names, strict=True)]
    else:
        keys = [F.col(f"key.{_quoted(field)}").alias(field) for field in fields]
    values = [F.col(f"value.{_quoted(field)}").alias(field) for field in value.fieldNames()]
    # Others, such as the time at which a value expires, are kept: whoever drops them has to say so.
    return df.select(*keys, *values, *(F.col(_quoted(column)) for column in kinds if column not in ("key", "value")))


def _by_name(name: OperatorName, df: DataFrame) -> dict[str, str]:
    found: dict[str, str] = {}
    for column in df.columns:
        if column.lower() in found:
            raise SchemaError(f"operator {name}: initial_state has the column {column!r} more than once")
        found[column.lower()] = column
    return found


def _key(name: OperatorName, df: DataFrame, column: str | None, field: pa.Field) -> Column:
    if column is None:
        raise KeyColumnError(
            f"operator {name}: initial_state has no key column {field.name!r}; it has: {', '.join(df.columns)}",
            operator=name,
            column=field.name,
        )
    return _cast(df, column, _spark_type(field.type), f"operator {name}: the key column {column!r} of initial_state")


def _variable(name: OperatorName, df: DataFrame, column: str, start: Start) -> Column:
    where = f"operator {name}: the column {column!r} of initial_state, for the variable {start.name!r},"
    wanted = _spark_type(start.type)
    if has_datetimes(start.type) and df.schema[column].dataType.simpleString() != wanted.simpleString():
        kinds = [_spark_type(stamped_type(start.type, zone)) for zone in (NAIVE, UTC)]
        wanted = next(
            (kind for kind in kinds if kind.simpleString() == df.schema[column].dataType.simpleString()), kinds[1]
        )
    # A Decimal is kept as text, so that 1.0 stays apart from 1.00.
    if str(start.declared) == "Decimal" and isinstance(df.schema[column].dataType, DecimalType):
        return F.col(_quoted(column)).cast(StringType())
    return _cast(df, column, wanted, where)


def _cast(df: DataFrame, column: str, wanted: DataType, where: str) -> Column:
    has, want = df.schema[column].dataType.simpleString(), wanted.simpleString()
    if has != want and has not in _WIDER.get(want, ()):
        raise SchemaError(
            f"{where} is {has}, but the state has {want}: cast it, as in "
            f"initial_state.withColumn({column!r}, F.col({column!r}).cast({want!r}))"
        )
    return F.col(_quoted(column)).cast(wanted)


def _spark_type(kind: pa.DataType) -> DataType:
    return from_arrow_type(readable(kind))


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


def _names(initial: InitialState) -> str:
    also = {variable: alias for alias, variable in initial.aliases.items()}
    names = [f"{start.name} (or {also[start.name]})" if start.name in also else start.name for start in initial.starts]
    return ", ".join(names) or "none"


# --- files ---


def _write(spark: SparkSession, keeper: Keeper, task: Task, rows: DataFrame) -> list[SnapshotPart]:
    name, turn = task.operator, task.turn

    def write(batches: Any) -> Any:
        return task(batches)

    tasks = min(int(spark.conf.get("spark.sql.shuffle.partitions") or 200), task.schema.key_groups)
    # SUBTLE: the number is given, as Spark may divide the partitions of a shuffle that it sizes by itself.
    sorted_rows = rows.repartition(tasks, GROUP).sortWithinPartitions(GROUP)
    try:
        results = [
            decode_result(bytes(row[RESULT])) for row in sorted_rows.mapInArrow(write, f"{RESULT} binary").collect()
        ]
        for result in results:
            if result.error is not None:
                raise from_wire(*result.error)
    except BedloadError:
        _clean_up(keeper, name, turn)
        raise
    except PySparkException as failed:
        _clean_up(keeper, name, turn)
        raise CheckpointError(
            f"operator {name}: the initial state could not be written, and nothing was changed: {failed}", operator=name
        ) from failed
    return [part for result in results for part in result.parts]


def manifest_of(turn: Turn, schema: OperatorSchema, parts: Iterable[SnapshotPart]) -> Manifest:
    """The manifest of an initial state: key groups that no task met have no keys."""
    written = list(parts)
    times = Counter(group for part in written for group in part.groups)
    twice = sorted(group for group, count in times.items() if count > 1)
    if twice:
        raise CheckpointError(
            f"key groups {', '.join(map(str, twice[:5]))} of the initial state were written by several tasks: a table "
            "that changes while it is read? Write it to files first"
        )
    empty = tuple(group for group in range(schema.key_groups) if group not in times)
    if empty:
        written.append(SnapshotPart(groups=empty, rows=0, files={}))
    return Manifest(
        turn=turn,
        schema=schema.number,
        query=INITIAL_QUERY,
        epoch=NO_EPOCH,
        parts=tuple(sorted(written, key=lambda part: part.groups[0])),
        bytes=sum(info.bytes for part in written for info in part.files.values()),
        rows=sum(part.rows for part in written),
        committed={},
    )


def _clean_up(keeper: Keeper, name: OperatorName, turn: Turn) -> None:
    storage = keeper.checkpoint.storage
    with contextlib.suppress(CheckpointError):  # what went wrong first is what the user must see
        if not storage.exists(paths.manifest(name, turn)):
            storage.delete(stray_files(storage, paths.snapshot(name, turn), []))
