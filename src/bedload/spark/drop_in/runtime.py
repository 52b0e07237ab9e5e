"""An epoch of one processor at one worker.

::

    unpickle ─▶ init ─▶ rows, key by key in ascending order ─▶ timers that are due ─▶ close

All of it is done in the seal, when the rows of the epoch are here: so a key is called once in an epoch. The timers that
fire are fixed before the first of them does; one is deleted after its call; one that is registered for a time that has
passed fires in the next epoch. A key that is left without state and timers is forgotten.

A processor object lives for one epoch at one worker: what it sets on itself lasts no longer, as on Spark.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from bedload.core.epoch import EpochTime
from bedload.core.errors import BedloadError, DataError
from bedload.core.ids import KeyGroup, OperatorName, WorkerId
from bedload.keys import freeze_keys, groups_in
from bedload.spark.drop_in.declaring import Declarations
from bedload.spark.drop_in.handle import NO_KEY, Here, Variables, WorkerHandle
from bedload.spark.drop_in.initial import InitialRows
from bedload.spark.drop_in.key_forms import with_rows, with_timers
from bedload.spark.drop_in.key_parts import KeyPart
from bedload.spark.drop_in.named_rows import row_class
from bedload.spark.drop_in.outputs import Frames, rows_as_columns
from bedload.spark.drop_in.rows import PandasForm, rows_as_frames, rows_as_rows
from bedload.state import RecordLayout, StateSpec
from bedload.state.expiries import with_expiries
from bedload.state.generated import function
from bedload.state.kinds import Layout, Store, VariableKind
from bedload.state.specs import TIMERS
from bedload.state.timers import TimerClock, put_timers, timers_on
from bedload.state.ttl import is_expiry
from bedload.store import row_slots
from bedload.store.deltas import StateVariable, describe
from bedload.worker.firing import Firing, Owns
from bedload.worker.grouping import sort_rows
from bedload.worker.operator import slots_class
from bedload.worker.row_runtime import OperatorRuntime
from bedload.worker.stores import Stores


class TimeMode(StrEnum):
    """Spark's time modes, in small letters."""

    NONE = "none"
    PROCESSING = "processingtime"
    EVENT = "eventtime"

    @property
    def clock(self) -> TimerClock | None:
        """What timers go by; None: there are none."""
        return {TimeMode.PROCESSING: TimerClock.PROCESSING, TimeMode.EVENT: TimerClock.EVENT}.get(self)


@dataclass(frozen=True)
class ProcessorDeployment:
    """A processor as it is shipped to the workers."""

    name: OperatorName
    processor: bytes
    declared: Declarations
    mode: TimeMode
    key: tuple[int, ...]
    """The columns that the key is kept as, by position in the input."""
    key_names: tuple[str, ...]
    columns: tuple[str, ...]
    """The input's columns, as the processor knows them."""
    output: pa.Schema
    out: StructType
    key_types: tuple[pa.DataType, ...]
    parts: tuple[KeyPart, ...] = ()
    """What was grouped by, if there is a struct among it; else it is what the key is kept as."""
    event_time: int | None = None
    """The column of the input that has the watermark."""
    emitted_time: int | None = None
    """The column of the output that carries the watermark on."""
    pandas: PandasForm | None = None
    """None: the processor takes and gives Rows."""
    initial: InitialRows | None = None
    key_groups: int = 1
    epoch_bytes: int | None = None
    store: Store = Store.MEMORY
    store_url: str = ""

    @property
    def layout(self) -> Layout:
        """How its state lies in memory."""
        return Layout.ROWS

    @property
    def specs(self) -> tuple[StateSpec, ...]:
        """The state variables as Bedload has them."""
        return with_expiries(self.declared.specs(timed=self.mode.clock is not None))

    @property
    def variables(self) -> tuple[StateVariable, ...]:
        """The state variables."""
        return describe(self.specs)

    @property
    def timed(self) -> bool:
        """Whether its keys have timers, or something of them expires."""
        return self.mode.clock is not None

    def prepare(self) -> None:
        """Load what the first epoch should not wait for: modules that the processor needs."""
        pickle.loads(self.processor)

    def start(self, worker: WorkerId, stores: Stores | None = None) -> ProcessorRuntime:
        """The running processor."""
        return ProcessorRuntime(self, worker, stores)


class ProcessorRuntime(OperatorRuntime):
    """One processor at one worker."""

    deployment: ProcessorDeployment

    def _bind(self, deployment: Any) -> None:
        self.deployment = deployment
        specs = deployment.specs
        layout = RecordLayout(specs)
        row = type("State", (slots_class((*layout.names, *row_slots(layout), *self._table.slots)),), {"__slots__": ()})
        self._table.bind(layout, row, len(deployment.key), deployment.key_types)
        self._expiries = self._table.layout.expiries
        self._here = Here(deployment.name)
        self._current = None if deployment.mode.clock is None else self._here
        self._variables = Variables(deployment.declared, self._here)
        shown = [part.at for part in deployment.parts] or deployment.key
        self._key_row = row_class([deployment.columns[at] for at in shown])
        self._is_empty = _emptiness(specs)
        self._grouped, self._has_result, self._holder = True, False, None

    def _seal(self, owns: Owns | None) -> pa.RecordBatch | None:
        time = self._context._time
        assert time is not None
        batch, self._waiting = self._arrived(time), []
        handle = WorkerHandle(self._variables, self._here, self.deployment.mode.clock)
        processor: StatefulProcessor = pickle.loads(self.deployment.processor)
        self._run("init", lambda: processor.init(handle))
        handle.open = False
        epoch = _Epoch(self, processor, time)
        try:
            initial = self.deployment.initial
            if initial is not None and self._context.epoch == 0:
                epoch.initial(initial, owns)
            if batch is not None and batch.num_rows:
                epoch.rows(batch)
            if self._current is not None:
                epoch.timers(owns)
        finally:
            self._here.item, self._here.store = NO_KEY, None
        if self._expiries is not None:
            self._sweep(owns)
        self._run("close", processor.close)
        made = self._columns(epoch.outputs, time)
        epoch.forget()
        self._table.seal(None, durable=self.durable)
        return made

    def _arrived(self, time: EpochTime) -> pa.RecordBatch | None:
        """The rows of the epoch, without those that are too late."""
        self.late = 0
        if not self._waiting:
            return None
        table = pa.Table.from_batches(self._waiting)
        at = self.deployment.event_time
        if at is not None:
            late = pc.less_equal(_milliseconds(table.column(at)), pa.scalar(time.late * 1000, pa.int64()))
            table = table.filter(pc.invert(pc.fill_null(late, False)))
            self.late = self.rows - table.num_rows
        found = table.combine_chunks().to_batches()
        if len(found) > 1:
            raise DataError(
                f"operator {self.deployment.name}: the rows of an epoch at one worker have more than 2 GB of text in a "
                f"column: make the batches smaller, or use more workers",
                operator=self.deployment.name,
            )
        return found[0] if found else None

    def _columns(self, outputs: list[Any] | Frames, time: EpochTime) -> pa.RecordBatch | None:
        deployment = self.deployment
        if isinstance(outputs, Frames):
            made = outputs.batch()
        else:
            made = rows_as_columns(deployment.name, outputs, deployment.output)
        if made is not None and deployment.emitted_time is not None:
            _check_emitted(deployment, made.column(deployment.emitted_time), time)
        return made

    def _run(self, method: str, call: Callable[[], Any]) -> None:
        """Call a method of the processor that is not about a key."""
        try:
            call()
        except BedloadError as error:
            raise self._located(method, error) from error
        except BaseException as error:
            raise self._failed(method, error) from error


class _Epoch:
    """The calls of one processor object."""

    def __init__(self, runtime: ProcessorRuntime, processor: StatefulProcessor, time: EpochTime) -> None:
        self._runtime = runtime
        self._here = runtime._here
        self._processor = processor
        self._time = time
        mode = runtime.deployment.mode
        self._values = TimerValues() if mode is TimeMode.NONE else TimerValues(time.processing, time.watermark)
        it = runtime.deployment
        self.outputs: list[Any] | Frames = [] if it.pandas is None else Frames(it.out, it.output, it.pandas)

    def initial(self, rows: InitialRows, owns: Owns | None) -> None:
        """Call for what the state begins with."""
        runtime, deployment = self._runtime, self._runtime.deployment
        batch = rows.of_groups(runtime._groups, deployment.key_groups, owns)
        if batch is None or not batch.num_rows:
            return
        handle, times = self._processor.handleInitialState, self._values

        def call(key: Any, states: Iterator[Any]) -> None:
            for state in states:
                handle(key, state, times)

        form = deployment.pandas and replace(deployment.pandas, columns=tuple(range(len(rows.columns))))
        self._each_key("handleInitialState", batch, rows.key, rows.parts, rows.columns, form, call)

    def rows(self, batch: pa.RecordBatch) -> None:
        """Call for each key that has rows."""
        handle, times, add = self._processor.handleInputRows, self._values, self.outputs.extend
        it = self._runtime.deployment

        def call(key: Any, rows: Iterator[Any]) -> None:
            add(handle(key, rows, times))

        self._each_key("handleInputRows", batch, it.key, it.parts, it.columns, it.pandas, call)

    def _each_key(
        self,
        method: str,
        batch: pa.RecordBatch,
        key_at: tuple[int, ...],
        parts: tuple[KeyPart, ...],
        names: Sequence[str],
        form: PandasForm | None,
        call: Callable[[Any, Iterator[Any]], None],
    ) -> None:
        runtime, here = self._runtime, self._here
        found = sort_rows([batch.column(i) for i in key_at], groups_in(batch))
        columns = found.columns
        if parts:
            firsts = pa.array(found.order[found.bounds[:-1]])
            columns = [batch.column(part.at).take(firsts) for part in parts]
        keys = list(zip(*(with_rows(it, form) for it in columns), strict=True))
        stores, items = self._touch(freeze_keys(found.columns), found.groups)
        if form is None:
            of_key = rows_as_rows(batch, names, found.order)
        else:
            of_key = rows_as_frames(batch, names, found.order, form)
        key: Any = None
        try:
            for key, here.item, here.store, (start, stop) in zip(
                keys, items, stores, pairwise(found.bounds), strict=True
            ):
                call(key, of_key(start, stop))
        except BedloadError as error:
            raise runtime._located(method, error, key=_bare(key)) from error
        except BaseException as error:
            raise runtime._failed(method, error, key=_bare(key)) from error

    def _touch(self, keys: list[Any], groups: np.ndarray) -> tuple[list[Any], list[Any]]:
        """The store and the object of each key."""
        by_group = np.argsort(groups, kind="stable")
        cuts = [0, *(np.flatnonzero(np.diff(groups[by_group])) + 1).tolist(), len(keys)]
        stores: list[Any] = [None] * len(keys)
        items: list[Any] = [None] * len(keys)
        places, table = by_group.tolist(), self._runtime._table
        by_store = [places[first:end] for first, end in pairwise(cuts)]
        parts = [(table.stores[KeyGroup(int(groups[mine[0]]))], [keys[place] for place in mine]) for mine in by_store]
        for (store, some), mine in zip(table.ready(parts), by_store, strict=True):
            for place, item in zip(mine, store.touch(some), strict=True):
                stores[place], items[place] = store, item
        return stores, items

    def timers(self, owns: Owns | None) -> None:
        """Call for each timer that is due when the rows are done."""
        runtime, here = self._runtime, self._here
        firing = Firing(here, self._time, runtime.deployment.key_types, runtime._met)
        firing.collect([store for group, store in runtime._table.stores.items() if group in runtime._groups], owns)
        ended: dict[int, tuple[Any, dict[Any, None]]] = {}
        new, row = tuple.__new__, runtime._key_row
        single = len(runtime.deployment.key) == 1
        formed = with_timers(runtime.deployment.key_types, runtime.deployment.pandas, runtime.deployment.parts)
        for entry in firing.fixed():
            key, item, at = entry.key, entry.item, entry.at
            ended.setdefault(entry.store.group, (entry.store, {}))[1][key] = None
            here.item, here.store = item, entry.store
            named = new(row, formed((key,) if single else key))
            try:
                self.outputs.extend(
                    self._processor.handleExpiredTimer(
                        key=named, timerValues=self._values, expiredTimerInfo=ExpiredTimerInfo(at)
                    )
                )
            except BedloadError as error:
                raise runtime._located("handleExpiredTimer", error, key=key) from error
            except BaseException as error:
                raise runtime._failed("handleExpiredTimer", error, key=key) from error
            put_timers(item, tuple(timer for timer in timers_on(item) if timer.at != at))
        for store, keys in ended.values():
            store.arm_again(list(keys))

    def forget(self) -> None:
        """Keys without anything are none."""
        is_empty = self._runtime._is_empty
        for group in self._runtime._groups:
            store = self._runtime._table.stores[group]
            gone = [item._bedload_key for item in store.touched() if is_empty(item)]
            if gone:
                store.forget(gone)


def _bare(key: Any) -> Any:
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key


def _emptiness(specs: Iterable[StateSpec]) -> Callable[[Any], bool]:
    """Whether an object has no state."""
    tests = [
        f"not item.{spec.name}"
        if spec is TIMERS or spec.kind is not VariableKind.VALUE
        else f"item.{spec.name} is None"
        for spec in specs
        if not is_expiry(spec.name)
    ]
    made: Callable[[Any], bool] = function("is_empty(item)", [f"return {' and '.join(tests) or 'True'}"], {})
    return made


def _milliseconds(column: Any) -> Any:
    """Event times in microseconds; of windows their ends."""
    if pa.types.is_struct(column.type):
        column = pc.struct_field(column, "end")
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def _check_emitted(deployment: ProcessorDeployment, column: Any, time: EpochTime) -> None:
    """Refuse rows that are too late for whoever comes next."""
    times = _milliseconds(column)
    first = pc.min(times).as_py()
    if first is not None and first <= time.late * 1000:
        name = deployment.output.names[deployment.emitted_time or 0]
        raise DataError(
            f"[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED] Previous node emitted a row with eventTime={first} "
            f"which is older than current_watermark_value={time.late * 1000}. This can lead to correctness issues in "
            f"the stateful operators downstream in the execution pipeline. Please correct the operator logic to emit "
            f"rows after current global watermark value (the column is {name!r}). SQLSTATE: 42815",
            operator=deployment.name,
        )
