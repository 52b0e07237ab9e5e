"""Running code on columns: the counterpart of :class:`~bedload.worker.row_runtime.OperatorRuntime` for whole batches.

One :class:`~bedload.store.columns.ColumnTable` holds all key groups that the worker owns. A sub-batch costs one pass to
find the slots of its keys and whatever the logic does with them; there is no Python object per row or key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.epoch import EpochTime
from bedload.core.errors import BedloadError, OperatorFailed
from bedload.core.ids import NO_EPOCH, Epoch, KeyGroup, OperatorName, WorkerId
from bedload.keys import groups_in, hash_columns, without_groups
from bedload.state.kinds import Layout, VariableKind
from bedload.store.columns import ColumnTable, warm_up
from bedload.store.columns.index import Slots
from bedload.store.deltas import StateVariable
from bedload.worker.failures import operator_failed, report
from bedload.worker.operator import BatchContext
from bedload.worker.slots import COMBINED, PartialLogic, SlotLogic
from bedload.worker.table_runtime import TableRuntime

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

    @property
    def layout(self) -> Layout:
        """How its state lies in memory."""
        return Layout.COLUMNS

    @property
    def variables(self) -> tuple[StateVariable, ...]:
        """The state columns."""
        return tuple(
            StateVariable(spec.name, VariableKind.COLUMN, str(spec.type), pa.field(spec.name, spec.type))
            for spec in self.logic.columns
        )

    def prepare(self) -> None:
        """Compile what the first batch would wait for."""
        warm_up()

    def start(self, worker: WorkerId) -> ColumnRuntime:
        """The running operator."""
        return ColumnRuntime(self, worker)


class ColumnRuntime(TableRuntime[ColumnTable]):
    """One operator on columns at one worker."""

    def __init__(self, deployment: ColumnDeployment, worker: WorkerId) -> None:
        self._worker = worker
        self._context = BatchContext(deployment.name, worker, NO_EPOCH)
        self._table = ColumnTable(deployment.key_types, deployment.logic.columns, deployment.key_groups)
        self.rows = 0
        self.durable = False
        self._is_set_up = False
        self._bind(deployment)

    def _bind(self, deployment: ColumnDeployment) -> None:
        self.deployment = deployment
        self._logic = deployment.logic
        self._context._begin(NO_EPOCH)  # setup belongs to none, also of code that comes later
        self._call("setup", lambda: self._logic.setup(self._context))
        self._is_set_up = True

    def redeploy(self, deployment: Any) -> None:
        """New code for the same state, between epochs."""
        report(self.close())
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
        rows = without_groups(batch)
        partial = self._is_partial(batch)
        slots = self._table.locate(self._key_columns(batch, partial), groups_in(batch))
        if partial:
            self._call("process", lambda: self._merge(slots, rows))
            return None
        return self._call("process", lambda: self._logic.update(self._table, slots, rows, self._context))

    def _is_partial(self, batch: pa.RecordBatch) -> bool:
        """Whether the feeder has combined the rows by key."""
        return COMBINED.items() <= (batch.schema.metadata or {}).items()

    def _key_columns(self, batch: pa.RecordBatch, partial: bool) -> list[pa.Array]:
        # Of rows that were combined, the key's columns come first.
        key = range(len(self.deployment.key)) if partial else self.deployment.key
        return [batch.column(i) for i in key]

    def _merge(self, slots: Slots, rows: pa.RecordBatch) -> None:
        assert isinstance(self._logic, PartialLogic)
        self._logic.update_partial(self._table, slots, rows, self._context)

    def seal(self) -> pa.RecordBatch | None:
        """All rows of the epoch are here; the outputs for the keys that changed."""
        changed = self._table.changed()
        outputs = None
        if len(changed):
            outputs = self._call("result", lambda: self._logic.result(self._table, changed, self._context))
        self._table.seal()
        return outputs

    def _call(self, method: str, function: Callable[[], _T]) -> _T:
        try:
            return function()
        except BedloadError:
            raise
        except BaseException as error:
            raise operator_failed(
                self.deployment.name, method, error, worker=self._worker, epoch=self._context.epoch
            ) from error
