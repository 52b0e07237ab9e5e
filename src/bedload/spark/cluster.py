"""``bedload.Cluster``: workers for a Spark session, and operators on its streaming DataFrames.

Why one file: it is what users call, and most of it is what they read about that; the work is done by its parts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from bedload.checkpoint.storage import open_storage
from bedload.core.durations import Duration
from bedload.core.epoch import EpochStats
from bedload.core.errors import ClusterStopped
from bedload.core.ids import Epoch, OperatorName, QueryId
from bedload.core.store_stats import StoreStats
from bedload.migration import Strategy
from bedload.operators.aggregates import Function
from bedload.spark import applying
from bedload.spark.application import Application, Keyed
from bedload.spark.attachment import Attachment
from bedload.spark.beat import Beats
from bedload.spark.changes import WAIT_SECONDS, Change, Wishes
from bedload.spark.deployments import Deployments
from bedload.spark.driver import Driver
from bedload.spark.keeper import Keeper
from bedload.spark.listener import ProgressListener
from bedload.spark.moves import MAIN_COLUMNS, table_schema
from bedload.spark.plan import Plans, keep_empty_partitions
from bedload.spark.registry import forget, remember
from bedload.spark.schemas import KeyColumn
from bedload.spark.state_view import OperatorState
from bedload.spark.supervisor import Supervised, starter
from bedload.spark.table import Table
from bedload.spark.waiting import wait_for_epoch
from bedload.state.kinds import IN_MEMORY, Chosen
from bedload.state.ttl import Clock, Ttl
from bedload.transport import Credentials
from bedload.worker.operator import Operator
from bedload.worker.parameters import parts_of
from bedload.worker.vector import VectorOperator

_RESTORING = "operator string, worker int, read int, left int, keys bigint, bytes bigint, slice_ms_longest double"
_CHECKPOINTING = (
    "operator string, epoch bigint, worker int, written int, left int, keys bigint, bytes bigint, asked boolean"
)
_EPOCHS = (
    f"operator string, query string, epoch bigint, committed boolean, {EpochStats.columns()}, seconds double, "
    "watermark bigint, processing bigint"
)
_numbers = itertools.count()
_MAIN_OF_STORES = ("operator", "worker", "store", "keys", "memory_keys", "memory_bytes", "disk_bytes", "hit_rate")
_MAIN_OF_EPOCHS = ("operator", "epoch", "committed", "rows", "seconds", "watermark")


class Cluster:
    """Workers attached to a Spark session. Made by :func:`attach`; a context manager, which ends them.

    All calls may be made from any thread, also at the same time, and from the function of ``foreachBatch``. There, do
    not wait for what needs the end of the epoch: ``Change.wait``, ``wait_for_epoch``, ``checkpoint``.
    """

    def __init__(self, attached: Attachment) -> None:
        spark, host, keeper = attached.spark, attached.host, attached.keeper
        self._attached = attached
        self._spark = spark
        self._host = host
        self._credentials = Credentials.fresh(encrypted=attached.encrypt)
        self._stopped = False
        self._ending = threading.RLock()
        self._plans = Plans(spark)
        self._driver = Driver(
            attached.listen,
            self._credentials,
            self._plans,
            host,
            attached.workers,
            keeper=keeper,
            retention=attached.retention,
            replace_seconds=attached.start_seconds,
            patience=attached.patience,
        )
        self._deployments = Deployments(attached, self._driver, self._credentials)
        self._beats = Beats(spark, self._driver, self._plans, keeper)
        self._wishes = Wishes(self._driver, self._deployments.states, self._driver.members, host.room)
        self._listener = ProgressListener(self._driver)
        self.number = next(_numbers)
        """Clusters are numbered in the order of their start."""
        try:
            host.start(
                self._driver.address, self._credentials, attached.workers, None if keeper is None else keeper.place
            )
            self._driver.wait_for_workers(attached.start_seconds, host.check)
            spark.streams.addListener(self._listener)
        except BaseException:
            self._driver.stop()
            host.stop()
            raise
        remember(self)

    # --- operators ---

    def apply(
        self,
        df: DataFrame,
        *,
        key: KeyColumn | Sequence[KeyColumn],
        operator: applying.AnyOperator,
        schema: str | StructType,
        name: str | None = None,
        key_groups: int | None = None,
        fresh: bool = False,
        initial_state: DataFrame | None = None,
        drop: str | Iterable[str] = (),
        beat: Duration | bool | None = None,
        ttl: Duration | None = None,
        clock: Clock | None = None,
        store: str | None = None,
    ) -> DataFrame:
        """Run a stateful operator on a streaming DataFrame; its outputs as a streaming DataFrame.

        ``operator``: a class, or one with its parameters (``Sessions(gap=30)``). ``key``: the key column, or several in
        a list; a ``KeyColumn`` is the name of a column, or ``F.col`` of it (``df.car``), and no expression. ``schema``:
        the output's columns, as a DDL string or a ``StructType``. ``name``: the identity of the state, the operator's
        class name unless given; applying the same name again after its query stopped goes on with that state.
        ``fresh``: give up whatever state there is under that name and start empty. ``drop``: state variables that the
        class does not declare any more and whose stored state may go; of others :class:`StateDropped` warns.

        ``initial_state``: what an operator without state starts with: a batch DataFrame with the key columns and a
        column per state variable (one that is left out has its default), or what Spark's ``statestore`` format reads
        from another query's checkpoint. It becomes durable before this returns, so it needs a checkpoint.

        ``beat``: while the sources are quiet, epochs without rows do what is due, this long after the last epoch at
        the earliest (``"5 seconds"``). None: a second, if there are timers or a TTL; a duration, or True: also if there
        are none; False: what is due waits for rows. Spark counts the sources of a query: one that had a beat keeps it.

        ``ttl`` and ``clock``: how long a key lives without a row, as for :meth:`aggregate`; its timers go with it.
        Single variables have one where they are declared: ``bl.map(ttl="1 hour")``.

        ``store``: where its state is: ``"memory"``, ``"disk"`` for what is larger than that, or ``"redis://…"`` for
        what is to be apart from the workers; left out, as :func:`attach` has it. Another one is taken up when the state
        is read back from a checkpoint. Of vector operators and aggregates it is numbers, times and decimals that can be
        on disk, and nothing in Redis.
        """
        named = OperatorName(name or str(getattr(parts_of(operator)[0], "__name__", operator)))
        keyed = self._keyed(named, df, key, key_groups)
        life, stores = Ttl.of(ttl, clock), self._stores(named, store)
        applied = applying.of_operator(self._spark, keyed, operator, schema, initial_state, drop, life, *stores)
        return self._deployments.launch(self._beats.into(applied, beat), fresh=fresh)

    def aggregate(
        self,
        df: DataFrame,
        *,
        key: KeyColumn | Sequence[KeyColumn],
        name: str | None = None,
        key_groups: int | None = None,
        fresh: bool = False,
        initial_state: DataFrame | None = None,
        drop: str | Iterable[str] = (),
        ttl: Duration | None = None,
        clock: Clock | None = None,
        beat: Duration | bool | None = None,
        store: str | None = None,
        **aggregates: Function,
    ) -> DataFrame:
        """Aggregate a streaming DataFrame by key: ``cluster.aggregate(df, key="car", n=bl.agg.count())``.

        The result has the key's columns and one column per aggregate; each epoch gives a row for every key that changed
        in it, as Spark's update mode does. ``name`` (``"aggregate"`` for the only one), ``key_groups``, ``fresh``,
        ``initial_state``, ``drop``, ``beat`` and ``store`` are as for :meth:`apply`. The initial state of an aggregate
        whose result is its state (a count, a sum, ...) is the column of its name.

        ``ttl``: how long a key lives without a row, as a ``timedelta`` or in words (``"1 hour"``); then it is gone,
        without an output, and a row that comes later starts it anew. ``clock``: ``"processing"`` (the default), the
        times of the epochs, or ``"event"``, the watermark, without which no key goes. A key lives on with each epoch
        that has a row of it, from the time of that epoch. Another TTL counts from the next row of a key; with the first
        TTL all keys that are there count as if they had a row in the first epoch.
        """
        keyed = self._keyed(OperatorName(name or "aggregate"), df, key, key_groups)
        life, stores = Ttl.of(ttl, clock), self._stores(keyed.name, store)
        applied = applying.of_aggregates(self._spark, keyed, aggregates, initial_state, drop, life, *stores)
        functions = ", ".join(f"{column}={it}" for column, it in aggregates.items())
        unnamed = f"the aggregate {functions} by {', '.join(keyed.names)}"
        return self._deployments.launch(self._beats.into(applied, beat), fresh=fresh, unnamed=None if name else unnamed)

    def state(self, name: str | type[Operator] | type[VectorOperator]) -> OperatorState:
        """The live state of an operator, by its name or class."""
        self._check_running()
        return self._deployments.state(OperatorName(name if isinstance(name, str) else name.__name__))

    # --- changing it while queries run ---

    def rescale(self, workers: int, *, strategy: str | Strategy | None = None) -> Change:
        """Have this many workers from now on, while queries run; returns at once, with a handle.

        New workers start before anything moves. If there are too many workers, those with the highest numbers end, each
        after its last key has left. Requests wait for those before them.

        ``strategy``: how state moves, one of ``bedload.strategies``: its name or a variant of it; ``"auto"``: the one
        that fits size, churn and skew best, and the result says why; None: the default, ``"seamless"``. It means the
        same in all calls that move state.
        """
        self._check_running()
        return self._wishes.rescale(workers, strategy)

    def move(
        self,
        *,
        keys: Iterable[Any] | None = None,
        key_groups: Iterable[int] | None = None,
        to: int | str,
        operator: str | type[Operator] | type[VectorOperator] | None = None,
        strategy: str | Strategy | None = None,
    ) -> Change:
        """Move some keys, or whole key groups, of an operator to a worker. Give one of the two.

        Keys that move by themselves stay where they are put (see :meth:`pin`). ``operator`` can be left out if there
        is one only. A composite key is a tuple, in the order of the key's columns.
        """
        self._check_running()
        return self._wishes.move(keys, key_groups, to, operator, strategy)

    def drain(self, worker: int, *, strategy: str | Strategy | None = None) -> Change:
        """Move everything away from a worker, then end it."""
        self._check_running()
        return self._wishes.drain(worker, strategy)

    def rebalance(self, *, strategy: str | Strategy | None = None) -> Change:
        """Even out the load of the workers, as measured of late, by moving as few key groups as that takes."""
        self._check_running()
        return self._wishes.rebalance(strategy)

    def pin(
        self,
        key: Any,
        worker: int,
        *,
        operator: str | type[Operator] | type[VectorOperator] | None = None,
        strategy: str | Strategy | None = None,
    ) -> Change:
        """Have one key live with a worker, whatever becomes of its key group; until :meth:`unpin`, or that worker ends.

        For a single hot key, or for a data source that travels.
        """
        self._check_running()
        return self._wishes.pin([key], worker, operator, strategy)

    def unpin(
        self,
        key: Any,
        *,
        operator: str | type[Operator] | type[VectorOperator] | None = None,
        strategy: str | Strategy | None = None,
    ) -> Change:
        """Have a pinned key live with its key group again; :class:`MoveRefused` if it is not pinned."""
        self._check_running()
        return self._wishes.unpin([key], operator, strategy)

    def history(self) -> Table:
        """Every change of the cluster and what it cost, in the order of the calls: a row per change and operator.

        A list of dicts that prints as a table of the main columns, and also is a DataFrame (``.df()``), as
        :meth:`epochs` and :meth:`restoring` are; ``.show(all_columns=True)`` shows everything. With a checkpoint,
        changes of earlier attachments are in it too. What the call itself refused has no row, nor has what was done
        before any operator was applied. ``outcome`` is ``done``, ``called off`` or what went wrong; ``stoppage_ms_*``
        is how long rows of a key on its way were held up; ``spike`` is the longest epoch meanwhile over the median
        before (null: no epoch ran), and ``stabilise_s`` the time until epochs were as short as before (null: not yet
        known).
        """
        return Table(self._spark, table_schema(), self._driver.moves.rows(), MAIN_COLUMNS)

    # --- keeping it ---

    def run(
        self,
        query: DataStreamWriter | Callable[[], StreamingQuery],
        *,
        restarts: int = 10,
        first_pause: float = 0.5,
        longest_pause: float = 30.0,
        forget_after: float = 60.0,
    ) -> Supervised:
        """Start a query, and start it again when it fails over something that passes: a lost worker, a lost executor.

        ``query``: ``out.writeStream....`` without ``start()``, with a ``checkpointLocation``; or a function that starts
        the query and returns it. After a failure it waits ``first_pause`` seconds, each time twice as long, up to
        ``longest_pause``; after ``restarts`` failures in a row it gives up. After a run of ``forget_after`` seconds
        both start again. Errors that would come again (bad data, the operator's own, a foreign checkpoint) end it at
        once.
        """
        self._check_running()
        return Supervised(
            starter(query),
            lambda: None if self._stopped else self._driver.call(lambda c: c.error),
            restarts=restarts,
            first_pause=first_pause,
            longest_pause=longest_pause,
            forget_after=forget_after,
        )

    def checkpoint(self, *, timeout: float = WAIT_SECONDS) -> dict[str, int]:
        """Write everything that is committed now as snapshots, and return when they are there.

        Every epoch is durable without it. It makes the next restore fast, and the state readable as Parquet by
        whatever reads that. Returns the last committed epoch of each operator that has one. After
        ``timeout`` seconds :class:`Timeout` is raised, and the writing goes on.
        """
        self._durable("checkpoint()")
        names = self._driver.call(lambda c: c.operators)
        self._driver.checkpoint(names, timeout)
        found = self._driver.call(lambda c: {name: c.operator(name).committed for name in names})
        return {str(name): max(epochs.values()) for name, epochs in found.items() if epochs}

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        timeout: float = WAIT_SECONDS,
    ) -> str:
        """Make a copy of the committed state that another cluster, site or machine can start from; its URL.

        ``timeout`` is for the snapshots that it begins with, as for :meth:`checkpoint`.
        """
        keeper = self._durable("export()")
        self.checkpoint(timeout=timeout)
        target = open_storage(os.fspath(path), storage_options)
        keeper.checkpoint.export(target)
        return target.url

    def restoring(self) -> Table:
        """How far each worker has come with reading state back: key groups read and left, keys, bytes.

        ``slice_ms_longest`` is the longest that rows of other key groups waited for a step of it.
        """
        found = self._driver.call(lambda c: dict(c.restoring))
        rows = (
            {
                "operator": str(operator),
                "worker": int(worker),
                "read": item.groups,
                "left": item.left,
                "keys": item.keys,
                "bytes": item.bytes,
                "slice_ms_longest": round(item.slice * 1000, 3),
            }
            for (operator, worker), item in sorted(found.items())
        )
        return Table(self._spark, _RESTORING, rows)

    def checkpointing(self) -> Table:
        """How far each worker has come with the snapshots under way: key groups written and left, keys, bytes read.

        Empty if there is none. ``asked`` says whether a :meth:`checkpoint` waits for it; if not, it was due, and takes
        at most half a core of each worker's machine.
        """
        rows = (asdict(item) for item in self._driver.call(lambda c: c.checkpointing))
        return Table(self._spark, _CHECKPOINTING, rows)

    def _durable(self, what: str) -> Keeper:
        self._check_running()
        return self._attached.durable(what)

    # --- seeing it ---

    @property
    def running(self) -> bool:
        """Whether it is there, and can go on."""
        return not self._stopped and self._driver.call(lambda c: c.error) is None

    @property
    def workers(self) -> dict[int, int]:
        """The workers that are there, and their process ids."""
        if self._stopped:
            return {}
        return {int(worker): pid for worker, pid in self._driver.call(lambda c: c.members.pids).items()}

    def epochs(self) -> Table:
        """The latest epochs, oldest first: what each was, what it took, and its time (``ctx.watermark``, ``ctx.now``).

        Rows are counted as they reach the workers: those that a feeder combined by key count as one. Of these, ``late``
        ones were dropped, as :func:`transformWithState` does in mode EventTime with what comes too late. ``keys``,
        ``busy`` and, of it, ``sealing`` (seconds) are by worker, the others of all workers together. ``misses`` are
        keys that were not in memory, and were looked for on a local disk (:meth:`stores`).
        """
        rows = (
            {
                "operator": str(item.operator),
                "query": str(item.query),
                "epoch": int(item.epoch),
                "committed": item.committed,
                **EpochStats.table(item.stats),
                "seconds": item.seconds,
                "watermark": item.time and item.time.watermark,
                "processing": item.time and item.time.processing,
            }
            for item in list(self._driver.ended)
        )
        return Table(self._spark, _EPOCHS, rows, _MAIN_OF_EPOCHS)

    def stores(self) -> Table:
        """Where the state of each operator is at each worker: keys, bytes in memory and on disk, and what was done.

        ``hit_rate`` is the share of the keys that operator code wanted and that were in memory; all counts are since
        the operator started at the worker. ``memory_bytes`` is an estimate; of state that is in memory as a
        whole, what it takes when it is encoded.
        """
        self._check_running()
        states = sorted(self._deployments.states.items())
        rows = [it.row(str(name), int(worker)) for name, state in states for worker, it in state.stores().items()]
        return Table(self._spark, StoreStats.COLUMNS, rows, _MAIN_OF_STORES)

    def committed(self, name: str) -> dict[str, Epoch]:
        """The last committed epoch of each query that used this operator."""
        found = self._driver.call(lambda c: dict(c.operator(OperatorName(name)).committed))
        return {str(query): epoch for query, epoch in found.items()}

    def wait_for_epoch(self, query: StreamingQuery | Supervised, epoch: int = 0, *, seconds: float = 600.0) -> None:
        """Return when Spark has committed this epoch of a query, and live reads show it; the first one unless given.

        Raises what the query failed with, :class:`EpochIncomplete` if Spark goes on and the operators do not see its
        batches, and :class:`Timeout` after so many seconds.
        """

        def committed(query: str) -> int:
            self._check_running()
            return self._driver.call(
                lambda c: max((c.operator(name).committed.get(QueryId(query), -1) for name in c.operators), default=-1)
            )

        def reached(query: str) -> int:
            return self._driver.call(
                lambda c: max((c.operator(name).reached(QueryId(query)) for name in c.operators), default=-1)
            )

        wait_for_epoch(query, epoch, committed, seconds, reached=reached, last_batch=self._plans.last_batch)

    # --- the end ---

    def stop(self) -> None:
        """End the workers. Stop the queries first: one that still runs fails with ``ClusterStopped``."""
        with self._ending:
            if self._stopped:
                return
            self._stopped = True
            forget(self)
            with contextlib.suppress(Exception):  # the Spark session may be gone already
                self._spark.streams.removeListener(self._listener)
            self._deployments.close()
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
        names = ", ".join(self._deployments.states) or "none"
        workers = len(self.workers)
        return f"<bedload cluster of {workers} worker{'s' if workers != 1 else ''}, operators: {names}>"

    # --- steps ---

    def _launch(self, applied: Application, *, beat: bool) -> DataFrame:
        """Run what was made elsewhere."""
        self._check_running()
        keep_empty_partitions(applied.keyed.df.sparkSession)
        return self._deployments.launch(self._beats.into(applied, beat), fresh=False)

    def _keyed(
        self, name: OperatorName, df: DataFrame, key: KeyColumn | Sequence[KeyColumn], key_groups: int | None
    ) -> Keyed:
        self._check_running()
        groups = self._attached.key_groups if key_groups is None else key_groups
        keyed = Keyed.of(self._spark, name, df, key, groups)
        keep_empty_partitions(df.sparkSession)
        return keyed

    def _stores(self, name: OperatorName, asked: str | None) -> tuple[Chosen, Chosen]:
        """Where the state of an operator is if that can be, and where it has to be."""
        if asked is None:
            return self._attached.store, IN_MEMORY
        return (self._attached.store_of(asked, f"operator {name}"),) * 2

    def _check_running(self) -> None:
        if self._stopped:
            raise ClusterStopped("the cluster was stopped; attach again with bedload.attach(...)")
        down = self._driver.call(lambda c: c.error)
        if down is not None:
            raise down
