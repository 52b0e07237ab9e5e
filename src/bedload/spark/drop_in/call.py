"""``bl.transformWithState``: Spark's call, on Bedload.

The arguments are checked by Spark: its own method is called first, and raises what it raises. What it gives is a plan
that is not run, but read: which columns the input has, and which of them are the key.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructField, StructType

from bedload.checkpoint.heritage import Terms
from bedload.core.errors import DefinitionError
from bedload.core.ids import OperatorName
from bedload.spark.application import Application, Keyed
from bedload.spark.attachment import records_per_batch
from bedload.spark.cluster import Cluster
from bedload.spark.drop_in.batch import in_batch
from bedload.spark.drop_in.declaring import Declarations, declared_by
from bedload.spark.drop_in.initial import InitialRows
from bedload.spark.drop_in.key_parts import KeyPart, structs_of, unique
from bedload.spark.drop_in.rows import PandasForm
from bedload.spark.drop_in.runtime import ProcessorDeployment, TimeMode
from bedload.spark.drop_in.sessions import cluster_of, name_for
from bedload.spark.drop_in.shipped import shipped
from bedload.spark.drop_in.take_over import state_of_spark
from bedload.spark.schemas import arrow_schema, key_types
from bedload.spark.state_view import RowDecoder

_ROWS, _PANDAS = GroupedData.transformWithState, GroupedData.transformWithStateInPandas
"""Spark's own, also where they are patched."""
_DELAY = "spark.watermarkDelayMs"
"""By this Spark knows a column that has the watermark."""
_NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"


def transformWithState(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    name: str | None = None,
    takeOver: str | None = None,
) -> DataFrame:
    """Run a ``StatefulProcessor`` of Spark's on Bedload: ``df.groupBy("k").transformWithState(...)`` in other words.

    ::

        out = bl.transformWithState(df.groupBy("car"), Trips(), "car string, n long", "Update", "None")

    The arguments are Spark's, and the processor is the one that Spark runs, as it is. It runs on the cluster that is
    attached to the session; if there is none, one is attached. Its state is Bedload's: ``cluster.state(name)``,
    ``format("bedload")``, checkpoints, moves. ``name``: under which the state is kept, the processor's class name
    unless given. ``takeOver``: the ``checkpointLocation`` of a query of Spark's that was stopped: as long as there is
    no state under the name, it begins with that of Spark's query: variables, expiries and timers.
    """
    _check_grouped(grouped)
    planned = _ROWS(
        grouped, statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName
    )
    call = _Call.of(grouped, statefulProcessor, outputStructType, timeMode, eventTimeColumnName, planned)
    return _apply(call, name, takeOver)


def transformWithStateInPandas(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    name: str | None = None,
    takeOver: str | None = None,
) -> DataFrame:
    """The same as :func:`transformWithState` for a processor that takes and gives pandas DataFrames."""
    _check_grouped(grouped)
    planned = _PANDAS(
        grouped, statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName
    )
    call = _Call.of(grouped, statefulProcessor, outputStructType, timeMode, eventTimeColumnName, planned)
    return _apply(call.in_pandas(), name, takeOver)


@dataclass(frozen=True)
class _Call:
    """What was asked for."""

    spark: SparkSession
    processor: bytes
    declared: Declarations
    default_name: str
    mode: TimeMode
    df: DataFrame
    """The input, with columns under names of our own."""
    names: tuple[str, ...]
    """What the processor calls them."""
    parts: tuple[KeyPart, ...]
    """What was grouped by, if there is a struct among it."""
    key: tuple[int, ...]
    key_names: tuple[str, ...]
    values: tuple[int, ...]
    """The columns that a DataFrame has."""
    out: StructType
    event_name: str
    initial: tuple[DataFrame, list[tuple[int, str]], tuple[str, ...], tuple[KeyPart, ...]] | None = None
    """Rows to begin with, the columns of their key, what the processor calls their columns, and the key's parts."""
    pandas: PandasForm | None = None

    @classmethod
    def of(
        cls,
        grouped: GroupedData,
        processor: StatefulProcessor,
        out: StructType | str,
        mode: str,
        event_name: str,
        planned: DataFrame,
    ) -> _Call:
        """Read the plan, and run the processor's ``init``."""
        spark = grouped.session
        node = _node(planned)
        df, names, parts = _input(spark, node.left(), int(node.groupingAttributesLen()))
        if not parts:
            raise DefinitionError("transformWithState needs a key: group by one column at least")
        schema = _parsed(out) if isinstance(out, str) else out
        data = shipped(processor)
        declared = declared_by(_copied(processor), mode, _parsed)
        first = len(names) - len(grouped._df.columns)
        df, key = _with_key(df, parts)
        initial = None
        if node.hasInitialState():
            rows, columns, begun = _input(spark, node.right(), int(node.initGroupingAttrsLen()))
            initial = *_with_key(rows, _alike(begun, parts)), columns, structs_of(begun)
        return cls(
            spark,
            data,
            declared,
            type(processor).__name__,
            TimeMode(mode.lower()),
            df,
            names,
            structs_of(parts),
            tuple(at for at, _ in key),
            tuple(name for _, name in key),
            tuple(range(first, len(names))),
            StructType([StructField(it.name, it.dataType, True, it.metadata) for it in schema.fields]),
            event_name,
            initial,
        )

    def in_pandas(self) -> _Call:
        """The same for a processor that takes DataFrames."""
        conf = self.spark.conf.get
        form = PandasForm(
            time_zone=str(conf("spark.sql.session.timeZone")),
            rows=records_per_batch(self.spark),
            size=_bytes(self.spark, str(conf("spark.sql.execution.arrow.maxBytesPerBatch"))),
            safe_check=conf("spark.sql.execution.pandas.convertToArrowArraySafely") == "true",
            by_name=conf("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName") == "true",
            int_to_decimal=conf("spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled") == "true",
            nullable=conf("spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype") == "true",
            columns=self.values,
        )
        return replace(self, pandas=form)

    def deployment(
        self, name: OperatorName, types: tuple[pa.DataType, ...], output: pa.Schema, groups: int = 1
    ) -> ProcessorDeployment:
        """What is shipped."""
        event_time = _watermarked(self.df)
        return ProcessorDeployment(
            name,
            self.processor,
            self.declared,
            self.mode,
            self.key,
            self.key_names,
            self.names,
            output,
            self.out,
            types,
            event_time=event_time if self.mode is TimeMode.EVENT else None,
            emitted_time=_place(self.out, self.event_name) if self.event_name else None,
            parts=self.parts,
            pandas=self.pandas,
            initial=self.initial and InitialRows.of(self.spark, *self.initial, types),
            key_groups=groups,
        )

    @property
    def key_columns(self) -> tuple[tuple[int, str], ...]:
        """Position and name of the key's columns."""
        return tuple(zip(self.key, self.key_names, strict=True))


def _apply(call: _Call, given: str | None, take_over: str | None) -> DataFrame:
    spark = call.spark
    output = arrow_schema(spark, call.out)
    if not call.df.isStreaming:
        if take_over is not None:
            raise DefinitionError("takeOver is for a stream: the state of a batch DataFrame ends with it")
        name = OperatorName(given or call.default_name)
        types = key_types(name, spark, call.df, list(call.key_columns))
        return in_batch(call.df, call.deployment(name, types, output))
    cluster = cluster_of(spark)
    name = name_for(cluster, given or call.default_name, given is not None)
    types = key_types(name, spark, call.df, list(call.key_columns))
    keyed = Keyed(name, call.df, call.key_columns, types, cluster._attached.key_groups)
    deployment = replace(
        call.deployment(name, types, output, keyed.groups),
        store=cluster._attached.store.kind,
        store_url=cluster._attached.store.url,
    )
    specs = deployment.specs
    initial = None
    if take_over is not None and not _has_state(cluster, name):
        initial = state_of_spark(spark, take_over, deployment)
    applied = Application(
        keyed,
        call.out,
        output,
        deployment,
        RowDecoder(specs),
        specs,
        initial=initial,
        terms=Terms(drop=call.declared.dropped),
        null_keys=True,
        per_query=True,
    )
    quiet = spark.conf.get(_NO_DATA) == "false"
    made = cluster._launch(applied, beat=call.mode.clock is not None and not quiet)
    if not call.event_name:
        return made
    delay = call.df.schema.fields[_watermarked(call.df) or 0].metadata[_DELAY]
    column = call.out.fields[_place(call.out, call.event_name)]
    return made.withMetadata(column.name, {**column.metadata, _DELAY: delay})


def _has_state(cluster: Cluster, name: OperatorName) -> bool:
    """Whether there is state of that name in the checkpoint."""
    keeper = cluster._attached.durable("takeOver")
    return keeper.checkpoint.load_history(name).head is not None


def _bytes(spark: SparkSession, text: str) -> int:
    """A size as Spark writes it, such as 64MB."""
    jvm: Any = spark._jvm
    return int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(text))


def _parsed(text: str) -> StructType:
    found: Any = StructType.fromDDL(text)
    return found  # type: ignore[no-any-return]


def _check_grouped(grouped: Any) -> None:
    """Refuse what is not grouped, or is so by Spark Connect, which has no plan to be read."""
    if not isinstance(grouped, GroupedData):
        kind = f"{type(grouped).__module__}.{type(grouped).__qualname__}"
        raise DefinitionError(
            f"transformWithState takes what df.groupBy(...) returns in a session of Spark's own (classic), and not a "
            f"{kind}: write bl.transformWithState(df.groupBy('car'), ...)"
        )


def _copied(processor: StatefulProcessor) -> StatefulProcessor:
    """Another object, so that what ``init`` sets is not on the user's.

    SUBTLE: not by pickling. Where a class of ``__main__`` is unpickled in its own process, its methods are replaced by
    others that do not see the module's variables any more.
    """
    try:
        return copy.deepcopy(processor)
    except Exception:
        return copy.copy(processor)


# --- Spark's plan ---


def _node(planned: Any) -> Any:
    """The node of the call in the plan that Spark made of it."""
    node = planned._jdf.queryExecution().analyzed()
    while node.getClass().getSimpleName() != "TransformWithStateInPySpark":
        node = node.children().apply(0)
    return node


def _input(spark: SparkSession, plan: Any, count: int) -> tuple[DataFrame, tuple[str, ...], tuple[KeyPart, ...]]:
    """The rows that a processor gets, what it calls their columns, and which of them are the key.

    ``count``: so many columns of the key come first in Spark's plan.
    """
    found = plan.output()
    ids = [int(found.apply(i).exprId().id()) for i in range(found.size())]
    names = [str(found.apply(i).name()) for i in range(found.size())]
    data = ids[count:]
    # A key that is a column of the input is there once; one that is a field of a struct comes before the others.
    kept = [i for i in range(count) if ids[i] not in data] + list(range(count, len(ids)))
    datasets: Any = getattr(getattr(spark._jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")  # type: ignore[union-attr]
    session: Any = spark
    df = DataFrame(datasets.ofRows(session._jsparkSession, plan), session)
    own = [f"c{i}" for i in range(len(ids))]
    df = df.toDF(*own).select(*(own[i] for i in kept))
    places = {ids[i]: at for at, i in reversed(list(enumerate(kept)))}
    fields, shown = df.schema.fields, tuple(names[i] for i in kept)
    at = [places[it] for it in ids[:count]]
    return df, shown, tuple(KeyPart(shown[i], i, fields[i].dataType, fields[i].nullable) for i in at)


def _with_key(df: DataFrame, parts: Sequence[KeyPart]) -> tuple[DataFrame, list[tuple[int, str]]]:
    """The same rows, with the fields of structs of the key as columns at the end; positions and names of the key's."""
    added: list[Column] = []
    places, names, width = [], [], len(df.columns)
    for part in parts:
        if not part.is_struct:
            places.append(part.at)
            names.append(part.name)
            continue
        for name, column in part.fields(df[df.columns[part.at]]):
            places.append(width + len(added))
            names.append(name)
            added.append(column.alias(f"f{len(added)}"))
    return df.select("*", *added) if added else df, list(zip(places, unique(names), strict=True))


def _alike(begun: Sequence[KeyPart], parts: Sequence[KeyPart]) -> list[KeyPart]:
    """The key of the initial state, kept as that of the input is: which of them may be null does not count."""
    if len(begun) != len(parts):
        return list(begun)
    return [
        replace(mine, kind=its.kind, nullable=its.nullable)
        if mine.kind.simpleString() == its.kind.simpleString()
        else mine
        for mine, its in zip(begun, parts, strict=True)
    ]


def _watermarked(df: DataFrame) -> int | None:
    """The column that has the watermark."""
    return next((i for i, field in enumerate(df.schema.fields) if _DELAY in field.metadata), None)


def _place(out: StructType, name: str) -> int:
    names = out.names
    return names.index(name) if name in names else [it.lower() for it in names].index(name.lower())
