"""What runs on columns: code that takes a whole batch and the slots of its keys.

An implementation (aggregates, vector operators) says which columns it needs, updates them for a batch, and makes the
outputs for the keys that changed in an epoch. It never sees the index, the before-images or the epochs.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa

from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.index import Slots
from bedload.worker.batch_context import BatchContext
from bedload.worker.expiry import VariableTtl
from bedload.worker.vector_timers import BatchTimer, TimerColumn


class SlotLogic(Protocol):
    """Shipped to the workers, so it pickles."""

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The state columns."""
        ...

    def setup(self, ctx: BatchContext) -> None:
        """Called once per worker, before anything else."""
        ...

    def update(
        self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: BatchContext
    ) -> pa.RecordBatch | None:
        """Take a batch whose i-th row has its key's state in slot ``slots[i]``; outputs that leave at once, if any.

        The slots have been located: their before-images are taken, and ``table.values(name)[slots]`` may be written.
        The batch has the input's columns without the key group.
        """
        ...

    def result(self, table: ColumnTable, slots: Slots, ctx: BatchContext) -> pa.RecordBatch | None:
        """The outputs at the end of the epoch, for the slots that changed in it, in the declared schema."""
        ...

    def close(self) -> None:
        """Release what ``setup`` made."""
        ...


@runtime_checkable
class TimedLogic(Protocol):
    """Logic whose keys may have timers, and variables that expire."""

    @property
    def timers(self) -> tuple[TimerColumn, ...]:
        """What each key may be set, in the order in which timers of one time fire; none: there are no timers."""
        ...

    @property
    def lives(self) -> tuple[VariableTtl, ...]:
        """Which variables expire."""
        ...

    def fire(self, table: ColumnTable, slots: Slots, timer: BatchTimer, ctx: BatchContext) -> pa.RecordBatch | None:
        """A timer of these keys, which have been located, is due, and is not set any more; the outputs, if any."""
        ...


COMBINED = {b"bedload": b"combined"}
"""The metadata of the schema of rows that a feeder has combined by key."""


@runtime_checkable
class PartialLogic(Protocol):
    """Logic whose rows a feeder may combine by key before they are sent."""

    def update_partial(
        self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: BatchContext | None = None
    ) -> None:
        """Take rows that a feeder has combined, which their schema says (:data:`COMBINED`): key, then partial state."""
        ...
