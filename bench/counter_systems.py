"""The systems that count: how each one turns rows of `key` into running counts.

Invariants:
- Every system is a transformation from `key long` to `key long, n long` (`spark-stateless-arrow`, which
  holds no state, passes its rows on), so source, sink, session and clock are the same for all. Systems
  that are not Spark (`alone`) count the same rows in processes of their own.
- What a system needs is checked by `require`, before a JVM is started for nothing.

Why: the differences that are measured should be those between the systems, written as their own
documentation would write them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench import counter_peers
from bench.isolate import NotAvailable

Transform = Callable[[DataFrame], DataFrame]


SCHEMA = "key long, n long"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STORES = "org.apache.spark.sql.execution.streaming.state."
ROCKSDB = {PROVIDER: STORES + "RocksDBStateStoreProvider"}
DEFAULT_STORE = {PROVIDER: STORES + "HDFSBackedStateStoreProvider"}


@dataclass(frozen=True)
class Opened:
    """A system that is ready to run: its transformation, and what the report has to say about it."""

    transform: Transform
    note: str = ""
    keys: Callable[[], int] | None = None
    """How many keys have state, where Spark's progress events do not tell."""


Opener = Callable[[SparkSession, Path], AbstractContextManager[Opened]]
Alone = Callable[[int, int, int, int, bool, Path], dict[str, Any]]
"""From keys, rows per batch, warm-up batches, measured batches, whether to check first, and a place, to figures."""


def _nothing() -> None:
    """For a system that needs no more than Spark."""


@dataclass(frozen=True)
class System:
    """A system under test. `slow` ones get fewer batches, and few keys unless asked."""

    name: str
    about: str
    open: Opener
    conf: Mapping[str, str] = field(default_factory=dict)
    require: Callable[[], None] = _nothing
    slow: bool = False
    counts: bool = True
    alone: Alone | None = None


def _plainly(transform: Transform, note: str = "") -> Opener:
    @contextmanager
    def opened(spark: SparkSession, workdir: Path) -> Iterator[Opened]:
        yield Opened(transform, note)

    return opened


# --- Bedload


def _need_bedload() -> None:
    try:
        import bedload
        from bench import counter_bedload  # noqa: F401  the operators must be definable too

        bedload.attach  # noqa: B018  imported on first use
    except (ImportError, AttributeError) as error:
        raise NotAvailable(f"{type(error).__name__}: {error}") from error


def bedload_opener(build: str, durable: bool = True) -> Opener:
    """Bedload with the transformation of that name in `counter_bedload`; its state in a checkpoint unless told."""

    @contextmanager
    def opened(spark: SparkSession, workdir: Path) -> Iterator[Opened]:
        from bench import counter_bedload

        cluster, note = counter_bedload.attach(spark, workdir / "bedload" if durable else None)
        with cluster:
            transform = partial(getattr(counter_bedload, build), cluster)
            yield Opened(transform, note, partial(counter_bedload.keys, cluster))

    return opened


# --- Spark, native


def _native(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").count().withColumnRenamed("count", "n")


# --- Spark, transformWithState


class CountRows(StatefulProcessor):
    """Spark's row-based processor: one get and one update per key and batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        state = self._n.get()
        n = (state[0] if state is not None else 0) + sum(1 for _ in rows)
        self._n.update((n,))
        yield Row(key=key[0], n=n)


class CountFrames(CountRows):
    """The same, with the rows and outputs as pandas frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        import pandas as pd  # type: ignore[import-untyped]

        state = self._n.get()
        n = (state[0] if state is not None else 0) + sum(len(frame) for frame in rows)
        self._n.update((n,))
        yield pd.DataFrame({"key": [key[0]], "n": [n]})


def need_tws() -> None:
    """Raise NotAvailable unless what Spark's transformWithState needs is there."""
    for module, package in (("google", "protobuf"), ("pandas", "pandas")):
        if find_spec(module) is None:
            raise NotAvailable(f"Spark's transformWithState needs {package}: pip install {package}")


def _tws_rows(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithState(
        statefulProcessor=CountRows(), outputStructType=SCHEMA, outputMode="Update", timeMode="None"
    )


def _tws_pandas(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithStateInPandas(
        statefulProcessor=CountFrames(), outputStructType=SCHEMA, outputMode="Update", timeMode="None"
    )


# --- engines that are not Spark


def _peer(package: str, about: str) -> System:
    return System(
        package,
        about,
        _plainly(stateless),
        require=partial(counter_peers.need, package),
        alone=partial(counter_peers.measure, package),
    )


# --- Spark, stateless


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def stateless(rows: DataFrame) -> DataFrame:
    """Passes rows on."""
    return rows.mapInArrow(_pass_on, schema="key long")


SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        System(
            "bedload-operator",
            "Operator with result: once per key and epoch",
            bedload_opener("operator"),
            require=_need_bedload,
        ),
        System(
            "bedload-operator-now",
            "Operator with outputs from process",
            bedload_opener("operator_now"),
            require=_need_bedload,
        ),
        System(
            "bedload-aggregate",
            "aggregate(n=count()) on columns",
            bedload_opener("aggregate"),
            require=_need_bedload,
        ),
        System("spark-native-rocksdb", "groupBy().count(), RocksDB state store", _plainly(_native), ROCKSDB),
        System(
            "spark-native-default",
            "groupBy().count(), default state store",
            _plainly(_native),
            DEFAULT_STORE,
        ),
        System(
            "spark-tws-rows",
            "transformWithState, rows",
            _plainly(_tws_rows, "few batches measured"),
            ROCKSDB,
            require=need_tws,
            slow=True,
        ),
        System(
            "spark-tws-pandas",
            "transformWithStateInPandas",
            _plainly(_tws_pandas, "few batches measured"),
            ROCKSDB,
            require=need_tws,
            slow=True,
        ),
        System(
            "spark-stateless-arrow",
            "mapInArrow that passes rows on: the limit for Python on Spark",
            _plainly(stateless, "no state, no counts: a bound"),
            counts=False,
        ),
        _peer("bytewax", "Bytewax, stateful_batch, two processes"),
        _peer("pathway", "Pathway, groupby().reduce(count()), two threads"),
    )
}
