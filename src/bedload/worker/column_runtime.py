"""Running code on columns: the counterpart of :class:`~bedload.worker.row_runtime.OperatorRuntime` for whole batches.

One :class:`~bedload.store.columns.ColumnTable` holds all key groups that the worker owns. A sub-batch costs one pass to
find the slots of its keys and whatever the logic does with them; there is no Python object per row or key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.epoch import Due, EpochTime
from bedload.core.errors import BedloadError, OperatorFailed
from bedload.core.ids import NO_EPOCH, Epoch, KeyGroup, OperatorName, WorkerId
from bedload.keys import groups_in, hash_columns, without_groups
from bedload.keys.lookup import Hashes
from bedload.state.kinds import Layout, Store, VariableKind
from bedload.state.timers import TimerClock
from bedload.store.columns import ColumnSpec, ColumnTable, warm_up
from bedload.store.columns.index import Flags, Slots
from bedload.store.deltas import StateVariable
from bedload.store.due import NEVER
from bedload.store.shelf import NO_HASHES
from bedload.worker.batch_context import BatchContext
from bedload.worker.expiry import KeyTtl, VariableTtl
from bedload.worker.failures import operator_failed, report
from bedload.worker.firing import Owns
from bedload.worker.slots import COMBINED, PartialLogic, SlotLogic, TimedLogic
from bedload.worker.stores import Stores
from bedload.worker.table_runtime import TableRuntime, column_table
from bedload.worker.timers import due_at
from bedload.worker.vector_firing import due_slots, fire, owned
from bedload.worker.vector_timers import BatchTimer, TimerColumn

_T = TypeVar("_T")


@dataclass(frozen=True)
class ColumnDeployment:
    """Code on columns as it is shipped to the workers."""

    name: OperatorName
    logic: SlotLogic
    key: tuple[int, ...]
    """The key's columns, by position in the input."""
    key_types: tuple[pa.DataType, ...]
    key_groups: int
    epoch_bytes: int | None = None
    """What an epoch may take at a worker beside the state; None: what the worker finds right."""
    ttl: KeyTtl | None = None
    """How long a key lives without a row; None: for good."""
    store: Store = Store.MEMORY
    """Where its state is that was not touched of late."""

    @property
    def state_columns(self) -> tuple[ColumnSpec, ...]:
        """The logic's state columns, and that of the expiries."""
        return (*self.logic.columns, *(() if self.ttl is None else (self.ttl.spec,)))

    @property
    def layout(self) -> Layout:
        """How its state lies in memory."""
        return Layout.COLUMNS

    @property
    def store_url(self) -> str:
        """None: it is not in a remote store."""
        return ""

    @property
    def variables(self) -> tuple[StateVariable, ...]:
        """The state columns."""
        return tuple(
            StateVariable(spec.name, VariableKind.COLUMN, str(spec.type), pa.field(spec.name, spec.type))
            for spec in self.state_columns
        )

    @property
    def timed(self) -> bool:
        """Whether its keys have timers, or expire."""
        return any(spec.times for spec in self.state_columns)

    def prepare(self) -> None:
        """Compile what the first batch would wait for."""
        warm_up()

    def start(self, worker: WorkerId, stores: Stores | None = None) -> ColumnRuntime:
        """The running operator."""
        return ColumnRuntime(self, worker, stores)


class ColumnRuntime(TableRuntime[ColumnTable]):
    """One operator on columns at one worker."""

    def __init__(self, deployment: ColumnDeployment, worker: WorkerId, stores: Stores | None = None) -> None:
        self._worker = worker
        self._context = BatchContext(deployment.name, worker)
        self._table = column_table(deployment, stores)
        self._groups: frozenset[KeyGroup] = frozenset()
        self.rows = 0
        self.durable = False
        self._is_set_up = False
        self._bind(deployment)

    def _bind(self, deployment: ColumnDeployment) -> None:
        self.deployment = deployment
        logic = self._logic = deployment.logic
        timed = logic if isinstance(logic, TimedLogic) else None
        self._timers: tuple[TimerColumn, ...] = () if timed is None else timed.timers
        # A key that is gone takes its variables with it, so it comes first.
        self._expiring: tuple[KeyTtl | VariableTtl, ...] = () if deployment.ttl is None else (deployment.ttl,)
        self._expiring += () if timed is None else timed.lives
        self._expiries = frozenset(it.column for it in self._expiring)
        self._context._have(self._timers)
        self._context._begin(NO_EPOCH)  # setup belongs to none, also of code that comes later
        self._call("setup", lambda: self._logic.setup(self._context))
        self._is_set_up = True

    def redeploy(self, deployment: Any) -> None:
        """New code for the same state, between epochs."""
        report(self.close())
        self._table.rebind(deployment.state_columns)
        self._bind(deployment)

    def close(self) -> OperatorFailed | None:
        """Let the logic release what it made in ``setup``; what that raised."""
        is_set_up, self._is_set_up = self._is_set_up, False
        try:
            if is_set_up:
                self._call("close", self._logic.close)
        except OperatorFailed as failed:
            return failed
        return None

    # --- epochs ---

    def begin(self, epoch: Epoch, groups: Iterable[KeyGroup]) -> None:
        """An epoch begins."""
        self._groups = frozenset(groups)
        self._table.begin(groups)
        self._context._begin(epoch)
        self.rows = 0

    def set_time(self, time: EpochTime) -> None:
        """The time of the epoch that has begun: once, and before its first row."""
        self._context._time = time

    def hashes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The hash of the key of each row of a sub-batch."""
        return hash_columns(self._key_columns(batch, self._is_partial(batch)))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take a sub-batch; the outputs that leave at once, if there are any."""
        self.rows += batch.num_rows
        parts = (batch.slice(it.start, it.stop - it.start) for it in self._table.batches(batch.num_rows))
        return _joined([made for part in parts if (made := self._apply(part)) is not None])

    def _apply(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        rows = without_groups(batch)
        combined = self._is_partial(batch)
        known = len(self._table.index.touched)
        slots = self._table.locate(self._key_columns(batch, combined), groups_in(batch))
        for it in self._expiring:
            it.renew(self._table, self._table.index.touched[known:], self._time)
        if combined:
            self._call("process", lambda: self._merge(slots, rows))
            return None
        return self._call("process", lambda: self._logic.update(self._table, slots, rows, self._context))

    def _is_partial(self, batch: pa.RecordBatch) -> bool:
        """Whether the feeder has combined the rows by key."""
        return COMBINED.items() <= (batch.schema.metadata or {}).items()

    def _key_columns(self, batch: pa.RecordBatch, combined: bool) -> list[pa.Array]:
        # Of rows that were combined, the key's columns come first.
        key = range(len(self.deployment.key)) if combined else self.deployment.key
        return [batch.column(i) for i in key]

    def _merge(self, slots: Slots, rows: pa.RecordBatch) -> None:
        assert isinstance(self._logic, PartialLogic)
        self._logic.update_partial(self._table, slots, rows, self._context)

    @property
    def timed(self) -> bool:
        """Whether its keys have timers, or expire."""
        return bool(self._timers or self._expiring)

    def next_due(self) -> Due | None:
        """The earliest that a timer, or the end of a key, may be due."""
        clocks = {timer.column: timer.clock for timer in self._timers}
        clocks |= {it.column: it.clock for it in self._expiring}
        found: dict[TimerClock, int] = {}
        # What is kept of other key groups, while they move, is not for this worker to do.
        for column, at in self._table.next_due(clocks, self._groups).items():
            found[clocks[column]] = min(at, found.get(clocks[column], NEVER))
        return due_at(found) if clocks else None

    def due_hashes(self, groups: Iterable[KeyGroup], time: EpochTime) -> Hashes:
        """Keys of these key groups that have something due."""
        due = self._due(time, groups)
        return hash_columns(self._table.keys(due)) if len(due) else NO_HASHES

    def seal(self, owns: Owns | None = None) -> pa.RecordBatch | None:
        """All rows of the epoch are here: the outputs of timers that are due, then those for the keys that changed."""
        known, fired = len(self._table.index.touched), list[Slots]()
        outputs = self._call("on_timer", lambda: self._fire(owns, fired)) if self.timed else []
        changed = self._table.changed(but=self._expiries)
        if self._expiring and len(changed):
            changed = self._heard(changed, known, fired)
        # Aggregates are made key by key. To a user's code all keys of the epoch are given at once.
        by_key = isinstance(self._logic, PartialLogic)
        for part in self._table.parts(len(changed)) if by_key else [slice(None)] if len(changed) else []:
            made = self._call("result", partial(self._logic.result, self._table, changed[part], self._context))
            outputs += [] if made is None else [made]
        self._table.seal()
        return _joined(outputs)

    def _heard(self, changed: Slots, known: int, fired: list[Slots]) -> Slots:
        """Those keys that had rows, so that they were among the first touched, or whose timers fired."""
        mark = self._table.index.mark
        heard: Flags = np.zeros(len(self._table.index.touched) + 1, np.bool_)
        heard[: known + 1] = True
        for slots in fired:
            heard[mark[slots]] = True
        return changed[heard[mark[changed]]]

    def _fire(self, owns: Owns | None, fired: list[Slots]) -> list[pa.RecordBatch]:
        """What is due expires, and then fires; ``fired`` gets the keys of timers."""
        table, time, outputs = self._table, self._time, list[pa.RecordBatch]()
        due = owned(table, self._due(time, self._groups), owns)
        if self._expiring:
            table.touch(due)
        for it in self._expiring:
            if it.begun(time):
                it.expire(table, due, time)
        if self._timers:
            logic = self._logic
            assert isinstance(logic, TimedLogic)
            taken = 0

            def call(slots: Slots, timer: BatchTimer) -> None:
                nonlocal taken
                fired.append(slots)
                made = logic.fire(table, slots, timer, self._context)
                if made is not None:
                    outputs.append(made)
                    taken += made.nbytes
                    if self.allow is not None:
                        self.allow(taken)

            fire(table, self._timers, due, time, call)
        return outputs

    def _due(self, time: EpochTime, groups: Iterable[KeyGroup]) -> Slots:
        columns = [(timer.column, timer.clock) for timer in self._timers]
        columns += [(it.column, it.clock) for it in self._expiring if it.begun(time)]
        return due_slots(self._table, columns, time, groups) if columns else np.empty(0, np.int64)

    @property
    def _time(self) -> EpochTime:
        assert self._context._time is not None, "rows came before the time of their epoch"
        return self._context._time

    def _call(self, method: str, function: Callable[[], _T]) -> _T:
        try:
            return function()
        except BedloadError:
            raise
        except BaseException as error:
            raise operator_failed(
                self.deployment.name, method, error, worker=self._worker, epoch=self._context.epoch
            ) from error


def _joined(outputs: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    """All of them as one."""
    return outputs[0] if len(outputs) == 1 else pa.concat_batches(outputs) if outputs else None
