"""What runs on columns: code that takes a whole batch and the slots of its keys.

An implementation (aggregates, vector operators) says which columns it needs, updates them for a batch, and makes the
outputs for the keys that changed in an epoch. It never sees the index, the before-images or the epochs.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa

from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.index import Slots
from bedload.worker.operator import Context


class SlotLogic(Protocol):
    """Shipped to the workers, so it pickles."""

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The state columns."""
        ...

    def setup(self, ctx: Context) -> None:
        """Called once per worker, before anything else."""
        ...

    def update(self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch | None:
        """Take a batch whose i-th row has its key's state in slot ``slots[i]``; outputs that leave at once, if any.

        The slots have been located: their before-images are taken, and ``table.values(name)[slots]`` may be written.
        The batch has the input's columns without the key group.
        """
        ...

    def result(self, table: ColumnTable, slots: Slots, ctx: Context) -> pa.RecordBatch | None:
        """The outputs at the end of the epoch, for the slots that changed in it, in the declared schema."""
        ...

    def close(self) -> None:
        """Release what ``setup`` made."""
        ...


COMBINED = {b"bedload": b"combined"}
"""The metadata of the schema of rows that a feeder has combined by key."""


@runtime_checkable
class PartialLogic(Protocol):
    """Logic whose rows a feeder may combine by key before they are sent."""

    def update_partial(
        self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: Context | None = None
    ) -> None:
        """Take rows that a feeder has combined, which their schema says (:data:`COMBINED`): key, then partial state."""
        ...
