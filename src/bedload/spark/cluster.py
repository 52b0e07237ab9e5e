"""``bedload.attach``: workers for a Spark session, and operators on its streaming DataFrames."""

from __future__ import annotations

import contextlib
import inspect
import os
import secrets
import sys
from types import TracebackType
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bedload.core.errors import (
    BedloadError,
    ClusterStopped,
    DefinitionError,
    OperatorNotShippable,
    SchemaError,
    StateTypeError,
    UnknownOperator,
)
from bedload.core.ids import DeploymentId, Epoch, OperatorName, WorkerId
from bedload.keys import DEFAULT_KEY_GROUPS, RoutingTable, check_key_groups
from bedload.operators.aggregates import Aggregates, Function
from bedload.protocol.split import GROUP_COLUMN
from bedload.spark.driver import Driver
from bedload.spark.feeder import Combiner, FeederSpec, feed
from bedload.spark.hosts import ProcessHost, TaskHost, WorkerHost
from bedload.spark.listener import ProgressListener
from bedload.spark.plan import Plans, mark
from bedload.spark.schemas import arrow_schema, key_columns, key_types, output_schema
from bedload.spark.state_view import ColumnDecoder, Decoder, OperatorState, RowDecoder
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.operator import Operator, check_operator, state_of
from bedload.worker.runtime import Deployment
from bedload.worker.vector import VectorLogic, VectorOperator, check_vector_operator

_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_CONNECT_SECONDS = 600.0
"""A worker answers no new feeder while operator code keeps its one thread busy; a dead one is known at once."""


def attach(
    spark: SparkSession,
    *,
    workers: int = 2,
    key_groups: int = DEFAULT_KEY_GROUPS,
    host: str | None = None,
    start_seconds: float = 60.0,
    checkpoint: str | None = None,
) -> Cluster:
    """Start workers for a Spark session.

    ``workers``: how many. ``key_groups``: the default number of key groups of an operator's state, fixed
    when the state is created. ``host``: ``"process"`` (child processes of the driver, the default with a
    ``local[...]`` master) or ``"task"`` (long-running Spark tasks, the default on a cluster; each takes a
    task slot). ``start_seconds``: how long to wait for the workers.

    Use it as a context manager, or call :meth:`Cluster.stop`. Sets
    ``spark.sql.execution.arrow.maxRecordsPerBatch`` to 65536 on the session unless it was changed from
    Spark's default of 10000: larger batches are faster here.
    """
    if workers < 1:
        raise DefinitionError(f"workers={workers}: at least one worker is needed")
    check_key_groups(key_groups)
    if checkpoint is not None:
        raise DefinitionError(
            f"checkpoint={checkpoint!r}: this version keeps state in memory only; leave checkpoint out"
        )
    context = spark.sparkContext
    local = str(context.master).startswith("local")
    kind = host or ("process" if local else "task")
    if kind not in ("process", "task"):
        raise DefinitionError(f"host={host!r}: use 'process', 'task', or leave it out")
    if local and "PYSPARK_PYTHON" not in os.environ:
        # SUBTLE: Spark would run "python3" from the PATH, which in a virtual environment that is not activated
        # is another Python, without our packages. In local mode the driver's own is the right one.
        context.pythonExec = sys.executable
    if spark.conf.get(_ARROW_ROWS) == "10000":
        spark.conf.set(_ARROW_ROWS, "65536")
    listen = "127.0.0.1" if local else str(context.getConf().get("spark.driver.host"))
    chosen: WorkerHost = ProcessHost() if kind == "process" else TaskHost(spark)
    return Cluster(spark, chosen, listen, workers, key_groups, start_seconds)


class Cluster:
    """Workers attached to a Spark session. Made by :func:`attach`."""

    def __init__(
        self,
        spark: SparkSession,
        host: WorkerHost,
        listen: str,
        workers: int,
        key_groups: int,
        start_seconds: float,
    ) -> None:
        self._spark = spark
        self._host = host
        self._key_groups = key_groups
        self._secret = secrets.token_bytes(32)
        self._states: dict[OperatorName, OperatorState] = {}
        self._stopped = False
        self._driver = Driver(listen, self._secret, Plans(spark), workers)
        self._listener = ProgressListener(self._driver)
        try:
            host.start(self._driver.address, self._secret, workers)
            self._driver.wait_for_workers(start_seconds, host.check)
            spark.streams.addListener(self._listener)
        except BaseException:
            self._driver.stop()
            host.stop()
            raise

    # --- operators ---

    def apply(
        self,
        df: DataFrame,
        *,
        key: str | list[str] | tuple[str, ...],
        operator: type[Operator] | type[VectorOperator],
        schema: str | StructType,
        name: str | None = None,
        key_groups: int | None = None,
        fresh: bool = False,
    ) -> DataFrame:
        """Run a stateful operator on a streaming DataFrame; its outputs as a streaming DataFrame.

        ``key``: the key column, or several. ``schema``: the output's columns, as a DDL string or a
        ``StructType``. ``name``: the identity of the state, the operator's class name unless given; applying
        the same name again after its query stopped goes on with that state. ``fresh``: give up whatever
        state there is under that name and start empty.
        """
        named = OperatorName(name or str(getattr(operator, "__name__", operator)))
        groups, positions, keys = self._check(named, df, key, key_groups)
        out = output_schema(named, schema)
        arrow_out = arrow_schema(self._spark, out)
        if inspect.isclass(operator) and issubclass(operator, VectorOperator):
            check_vector_operator(operator)
            logic = VectorLogic(operator, arrow_out)
            return self._run_on_columns(df, named, logic, positions, keys, groups, out, arrow_out, fresh=fresh)
        operator = check_operator(operator)
        specs = state_of(operator)
        deployment = Deployment(named, operator, tuple(index for index, _ in positions), tuple(df.columns), arrow_out)
        number = self._deploy(named, groups, deployment, RowDecoder(specs), keys, fresh=fresh)
        return self._plan(df, named, number, positions, groups, out, arrow_out)

    def aggregate(
        self,
        df: DataFrame,
        *,
        key: str | list[str] | tuple[str, ...],
        name: str = "aggregate",
        key_groups: int | None = None,
        fresh: bool = False,
        **aggregates: Function,
    ) -> DataFrame:
        """Aggregate a streaming DataFrame by key: ``cluster.aggregate(df, key="car", n=bl.agg.count())``.

        The result has the key's columns and one column per aggregate; each epoch gives a row for every key that
        changed in it, as Spark's update mode does. ``name``, ``key_groups`` and ``fresh`` are as for :meth:`apply`.
        """
        named = OperatorName(name)
        groups, positions, keys = self._check(named, df, key, key_groups)
        if not aggregates:
            raise DefinitionError(f"aggregate {named}: name at least one, such as n=bl.agg.count()")
        key_names = [column for _, column in positions]
        used = [c for c in df.columns if c in key_names or any(c in f.columns for f in aggregates.values())]
        unknown = sorted({c for f in aggregates.values() for c in f.columns} - set(df.columns))
        if unknown:
            raise SchemaError(
                f"aggregate {named}: no column {', '.join(unknown)} in the input; there are: {', '.join(df.columns)}"
            )
        df = df.select(*(F.col(f"`{column}`") for column in used))
        positions = key_columns(named, df, key_names)
        at = tuple(index for index, _ in positions)
        logic = Aggregates(aggregates, arrow_schema(self._spark, df.schema), at, key_names)
        out = from_arrow_schema(logic.output)
        return self._run_on_columns(df, named, logic, positions, keys, groups, out, logic.output, fresh=fresh)

    def state(self, name: str | type[Operator] | type[VectorOperator]) -> OperatorState:
        """The live state of an operator, by its name or class."""
        self._check_running()
        named = OperatorName(name if isinstance(name, str) else name.__name__)
        found = self._states.get(named)
        if found is None:
            known = ", ".join(sorted(self._states)) or "none"
            raise UnknownOperator(f"no operator {named!r} was applied on this cluster; there are: {known}")
        return found

    # --- seeing it ---

    @property
    def workers(self) -> dict[int, int]:
        """The workers that are there, and their process ids."""
        if self._stopped:
            return {}
        alive = self._driver.call(lambda c: c.workers)
        return {int(worker): self._driver.pids[worker] for worker in alive}

    def epochs(self) -> list[dict[str, Any]]:
        """The latest epochs, oldest first: operator, query, epoch, committed, rows, keys and busy seconds.

        Rows are counted as they reach the workers: those that a feeder combined by key count as one.
        """
        return [
            {
                "operator": str(item.operator),
                "query": str(item.query),
                "epoch": int(item.epoch),
                "committed": item.committed,
                "rows": item.rows,
                "keys": {int(w): count for w, count in item.keys.items()},
                "busy": {int(w): seconds for w, seconds in item.busy.items()},
            }
            for item in list(self._driver.ended)
        ]

    def committed(self, name: str) -> dict[str, Epoch]:
        """The last committed epoch of each query that used this operator."""
        found = self._driver.call(lambda c: dict(c.operator(OperatorName(name)).committed))
        return {str(query): epoch for query, epoch in found.items()}

    # --- the end ---

    def stop(self) -> None:
        """End the workers. Stop the queries first: one that still runs fails with ``ClusterStopped``."""
        if self._stopped:
            return
        self._stopped = True
        with contextlib.suppress(Exception):  # the Spark session may be gone already
            self._spark.streams.removeListener(self._listener)
        for state in self._states.values():
            state.close()
        self._driver.stop()
        self._host.stop()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self._stopped:
            return "<bedload cluster, stopped>"
        return f"<bedload cluster of {len(self.workers)} workers, operators: {', '.join(self._states) or 'none'}>"

    # --- steps ---

    def _check(
        self, name: OperatorName, df: DataFrame, key: str | list[str] | tuple[str, ...], key_groups: int | None
    ) -> tuple[int, list[tuple[int, str]], tuple[pa.DataType, ...]]:
        """What every application needs: the number of key groups, and where and what the key is."""
        self._check_running()
        if not df.isStreaming:
            raise DefinitionError(
                f"operator {name}: the DataFrame is not a streaming one; read it with spark.readStream"
            )
        groups = self._key_groups if key_groups is None else key_groups
        check_key_groups(groups)
        positions = key_columns(name, df, key)
        return groups, positions, key_types(name, self._spark, df, positions)

    def _run_on_columns(
        self,
        df: DataFrame,
        name: OperatorName,
        logic: Any,
        positions: list[tuple[int, str]],
        keys: tuple[pa.DataType, ...],
        groups: int,
        out: StructType,
        arrow_out: pa.Schema,
        *,
        fresh: bool,
    ) -> DataFrame:
        deployment = ColumnDeployment(name, logic, tuple(index for index, _ in positions), keys, groups)
        number = self._deploy(name, groups, deployment, ColumnDecoder(logic.columns), keys, fresh=fresh)
        combiner = logic if getattr(logic, "mergeable", False) else None
        return self._plan(df, name, number, positions, groups, out, arrow_out, combiner)

    def _deploy(
        self,
        name: OperatorName,
        groups: int,
        deployment: Any,
        decoder: Decoder,
        keys: tuple[pa.DataType, ...],
        *,
        fresh: bool,
    ) -> DeploymentId:
        if not fresh:
            self._check_same_state(name, decoder)
        number = self._driver.deploy(name, groups, _ship(name, deployment), fresh=fresh)
        self._remember(name, decoder, keys)
        return number

    def _check_running(self) -> None:
        if self._stopped:
            raise ClusterStopped("the cluster was stopped; attach again with bedload.attach(...)")
        down = self._driver.call(lambda c: c.error)
        if down is not None:
            raise down

    def _check_same_state(self, name: OperatorName, decoder: Decoder) -> None:
        known = self._states.get(name)
        if known is not None and known.decoder.variables != decoder.variables:
            before, after = known.decoder.variables, decoder.variables
            differ = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
            raise StateTypeError(
                f"operator {name} was applied before with other state: {', '.join(differ)} differ. Keep the state "
                f"variables as they were, give this application another name (name=...), or give the state up with "
                f"fresh=True",
                operator=name,
            )

    def _remember(self, name: OperatorName, decoder: Decoder, keys: tuple[pa.DataType, ...]) -> None:
        def where() -> tuple[RoutingTable, dict[WorkerId, str]]:
            def look(coordinator: Any) -> tuple[RoutingTable, dict[WorkerId, str]]:
                if coordinator.error is not None:
                    raise coordinator.error
                return coordinator.operator(name).routing, coordinator.workers

            return self._driver.call(look)

        self._states[name] = OperatorState(name, decoder, keys, where, self._secret)

    def _plan(
        self,
        df: DataFrame,
        name: OperatorName,
        number: DeploymentId,
        positions: list[tuple[int, str]],
        groups: int,
        out: StructType,
        arrow_out: pa.Schema,
        combiner: Combiner | None = None,
    ) -> DataFrame:
        spec = FeederSpec(
            name,
            number,
            self._driver.address,
            self._secret,
            tuple(positions),
            arrow_out,
            _CONNECT_SECONDS,
            combiner,
        )
        function = feed(spec)
        function.__name__ = mark(number, name)
        columns = [F.col(f"`{column}`") for _, column in positions]
        group = F.pmod(F.xxhash64(*columns), F.lit(groups)).cast("short")
        return df.withColumn(GROUP_COLUMN, group).mapInArrow(function, out)


def _ship(name: OperatorName, deployment: Any) -> bytes:
    try:
        payload: bytes = cloudpickle.dumps(deployment)
    except BedloadError:
        raise
    except Exception as error:
        raise OperatorNotShippable(
            f"operator {name} cannot be pickled: {type(error).__name__}: {error}. It refers to something "
            f"that lives in this process only (a connection, a lock, the SparkSession): make that in setup() instead"
        ) from error
    return payload
