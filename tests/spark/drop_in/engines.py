"""One program on either engine: the same input files, batch by batch, and a clock that stands still within a batch.

Invariants:
- Batch ``n`` reads the files of batch ``n`` and no others, whatever is stopped or replayed.
- The time of batch ``n`` is ``START + n * STEP`` on both engines: the query's clock is Spark's own ``ManualClock``,
  which the sink moves at the end of each batch.
- Batches without data are switched off, as in Spark's own tests, so that batches of both engines compare one to one.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shlex
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

import bedload as bl

START = 1_700_000_000_000
"""The time of batch 0, in milliseconds."""
STEP = 1_000
"""From one batch to the next."""
SPARK, BEDLOAD = "spark", "bedload"
ENGINES = (SPARK, BEDLOAD)
ROWS, PANDAS = "rows", "pandas"
TEXT = "k string, text string"
"""The output of most programs: a key, and what is to be compared as text."""

CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "America/New_York",
}
"""For both engines; the zone is none that a machine of ours would have."""

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """A query: a processor, its input by batch, and all arguments of the call."""

    processor: Any
    batches: Sequence[Sequence[Row]]
    schema: str = "k string, v long"
    by: tuple[str, ...] = ("k",)
    output: str = TEXT
    form: str = ROWS
    time_mode: str = "None"
    output_mode: str = "Update"
    watermark: tuple[str, str] | None = None
    """A column, and how late it may be."""
    initial: tuple[str, Sequence[Row], tuple[str, ...]] | None = None
    """Schema, rows and keys of the initial state."""
    event_time_column: str = ""
    chain: Callable[[str, DataFrame], DataFrame] | None = None
    """What comes after the operator, on which engine."""
    sink_mode: str = "update"
    conf: Mapping[str, str] = field(default_factory=dict)
    stops: frozenset[int] = frozenset()
    """The query is stopped before these batches, and started again."""
    fails: frozenset[int] = frozenset()
    """The sink fails in these batches once, so that they are replayed."""
    then: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Before a batch the query is stopped, and goes on with these fields of the program changed."""
    named: bool = True
    """The state gets a name of its own on Bedload; else it is that of the processor's class."""
    files: int = 1
    """Files of a batch, and so its partitions."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # SUBTLE: hypothesis warns of what is longer than 30,000 characters, in place of the failure that it has found.
        printer.text(f"Program({', '.join(f'{name}={value!r:.1000}' for name, value in vars(self).items())})")


@dataclass
class Seen:
    """What a run showed."""

    epochs: dict[int, list[Row]] = field(default_factory=dict)
    error: BaseException | None = None
    name: str | None = None
    """Of the state, on Bedload."""

    @property
    def by_key(self) -> dict[tuple[int, Any], list[Row]]:
        """The outputs of each batch and key, in their order; the key is the first column."""
        found: dict[tuple[int, Any], list[Row]] = {}
        for epoch, rows in self.epochs.items():
            for key, *rest in rows:
                found.setdefault((epoch, key), []).append(tuple(rest))
        return found

    @property
    def multisets(self) -> dict[int, Counter[str]]:
        """The outputs of each batch in no order."""
        return {epoch: Counter(map(repr, rows)) for epoch, rows in self.epochs.items()}


def apply(engine: str, grouped: Any, form: str, *args: Any, name: str | None = None, **options: Any) -> DataFrame:
    """The call, by the engine's door to it."""
    method = "transformWithState" if form == ROWS else "transformWithStateInPandas"
    if engine == SPARK:
        return getattr(grouped, method)(*args, **options)
    return getattr(bl, method)(grouped, *args, name=name, **options)


def made(session: SparkSession, engine: str, program: Program, df: DataFrame, name: str | None = None) -> DataFrame:
    """A program's output on a DataFrame; ``name``: of the state, on Bedload."""
    if program.watermark is not None:
        df = df.withWatermark(*program.watermark)
    initial = None
    if program.initial is not None:
        schema, rows, keys = program.initial
        initial = session.createDataFrame(list(rows), schema).groupBy(*keys)
    out = apply(
        engine,
        df.groupBy(*program.by),
        program.form,
        program.processor,
        program.output,
        program.output_mode,
        program.time_mode,
        initial,
        program.event_time_column,
        name=name,
    )
    return out if program.chain is None else program.chain(engine, out)


def run(session: SparkSession, engine: str, program: Program, place: Path) -> Seen:
    """Run a program to its end, or to its first error that is not its own."""
    if engine != SPARK:
        return _tried(session, engine, program, place)
    # Spark gives the process that runs `init` ten seconds to start, which a machine with much to do may not have.
    with _quick_python(session):
        for _ in range(20):
            seen = _tried(session, engine, program, place)
            if "worker failed to connect back" not in str(seen.error):
                break
            shutil.rmtree(place / "in")
            shutil.rmtree(place / "checkpoint")
    return seen


@contextmanager
def _quick_python(session: SparkSession) -> Iterator[None]:
    """Have Spark's processes start in a quarter of the time.

    Spark puts an archive of its modules before those that are installed, and Python compiles what it takes from there
    in each process anew.
    """
    context: Any = session.sparkContext
    before, context.pythonExec = context.pythonExec, _without_archive()
    try:
        yield
    finally:
        context.pythonExec = before


@cache
def _without_archive() -> str:
    place = tempfile.mkdtemp(prefix="bedload-python-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    script = Path(place, "python")
    script.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return str(script)


def _tried(session: SparkSession, engine: str, program: Program, place: Path) -> Seen:
    seen = Seen()
    before = {name: session.conf.get(name, None) for name in program.conf}
    try:
        for name, value in program.conf.items():
            session.conf.set(name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bl.errors.StateDropped)
            _run(session, engine, program, place, seen)
    except Exception as error:
        seen.error = error
    finally:
        for name, value in before.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)
    return seen


def run_batch(session: SparkSession, engine: str, program: Program, place: Path) -> Seen:
    """Run a program on a batch DataFrame of its first batch; twice, since each action runs all of it again."""
    seen = Seen()
    df = session.createDataFrame(list(program.batches[0]), program.schema)
    try:
        out = made(session, engine, program, df, f"batch_{next(_numbers)}")
        for action in range(2):
            seen.epochs[action] = [tuple(row) for row in out.collect()]
    except Exception as error:
        seen.error = error
    return seen


def _run(session: SparkSession, engine: str, program: Program, place: Path, seen: Seen) -> None:
    source, checkpoint = place / "in", place / "checkpoint"
    source.mkdir(parents=True)
    name = seen.name = f"{type(program.processor).__name__}_{next(_numbers)}" if program.named else None
    failing = set(program.fails)
    ends = sorted({*program.stops, *program.then, *(epoch + 1 for epoch in program.fails), len(program.batches)} - {0})
    now, written = program, 0
    with ExitStack() as attached:
        if engine == BEDLOAD and program.then:
            session = _another(session, program, place, attached)
        out = _out(session, engine, now, source, name)
        while ends:
            if written in program.then:
                now = Program(**{**vars(now), **program.then[written]})
                if engine == BEDLOAD:
                    attached.close()
                    session = _another(session, program, place, attached)
                out = _out(session, engine, now, source, name)
            run = _Run(session, out, now.sink_mode, checkpoint, seen, failing, written)
            try:
                while written < ends[0]:
                    _write(now, source, written)
                    written += 1
                run.query.processAllAvailable()
                ends.pop(0)
            except Exception as error:
                if _OnceError.__name__ not in str(error):
                    raise
            finally:
                run.query.stop()


_numbers = itertools.count()


def _another(session: SparkSession, program: Program, place: Path, attached: ExitStack) -> SparkSession:
    """A session with a cluster of its own, which goes on with what is there: code with other state needs that."""
    made = session.newSession()
    for name, value in {**CONF, **program.conf}.items():
        made.conf.set(name, value)
    attached.enter_context(bl.attach(made, workers=2, checkpoint=place / "bedload"))
    return made


def _out(session: SparkSession, engine: str, program: Program, source: Path, name: str | None) -> DataFrame:
    reader = session.readStream.schema(program.schema).option("maxFilesPerTrigger", program.files)
    return made(session, engine, program, reader.parquet(str(source)), name)


class _Run:
    """A run of the query, on a clock that its sink moves."""

    def __init__(
        self, session: SparkSession, out: DataFrame, mode: str, place: Path, seen: Seen, failing: set[int], epoch: int
    ) -> None:
        jvm: Any = session._jvm
        clock = jvm.org.apache.spark.util.ManualClock(START + epoch * STEP)

        def sink(batch: DataFrame, epoch: int) -> None:
            rows = [tuple(row) for row in batch.collect()]
            if epoch in failing:
                failing.discard(epoch)
                raise _OnceError
            seen.epochs[epoch] = rows
            clock.setTime(START + (epoch + 1) * STEP)

        writer = out.writeStream.foreachBatch(sink).outputMode(mode).option("checkpointLocation", str(place))
        self.query = writer.start()
        put_clock(session, self.query, clock)


class _OnceError(Exception):
    pass


def put_clock(session: SparkSession, query: StreamingQuery, clock: Any) -> None:
    """Have a query that has no data yet read this clock from now on."""
    jvm: Any = session._jvm
    handle: Any = query
    kind = jvm.java.lang.Class.forName("org.apache.spark.sql.execution.streaming.runtime.StreamExecution")
    (found,) = [it for it in kind.getDeclaredFields() if it.getName() == "triggerClock"]
    found.setAccessible(True)
    found.set(handle._jsq.streamingQuery(), clock)


def _write(program: Program, source: Path, batch: int) -> None:
    """Put the files of a batch in place at once; Spark takes the oldest first."""
    schema = StructType.fromDDL(program.schema)
    rows = [dict(zip(schema.names, row, strict=True)) for row in program.batches[batch]]
    for at in range(program.files):
        table = pa.Table.from_pylist(rows[at :: program.files], to_arrow_schema(schema, timezone="UTC"))
        hidden = source / f".{batch:04}-{at}.parquet"
        pq.write_table(table, hidden)
        stamp = START // 1000 + batch * program.files + at
        os.utime(hidden, (stamp, stamp))
    for at in range(program.files):
        (source / f".{batch:04}-{at}.parquet").rename(source / f"{batch:04}-{at}.parquet")
