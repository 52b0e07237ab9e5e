"""What a feeder makes of its rows before it sends them: combined by key, where that pays, and with their key groups.

The key group is computed here, of the rows that are left, and not by Spark of all rows that there are: a column more in
Spark's plan costs more per row than the hash does here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from bedload.protocol.split import with_groups

COMBINE_BELOW = 0.5
"""Rows are combined by key before they are sent if that leaves at most this share of them."""


class Combiner(Protocol):
    """Partial aggregation in the feeder."""

    def partial(self, batch: pa.RecordBatch, *, at_most: float = COMBINE_BELOW) -> pa.RecordBatch | None:
        """One row per distinct key of the batch, with partial results; None if that is not worth it."""
        ...


class Combining:
    """Whether one feeder combines its rows: its first batch decides, for all of them.

    SUBTLE: the choice depends on the rows alone, so every attempt makes the same one.
    """

    def __init__(self, combiner: Combiner | None, key: Sequence[int], key_groups: int) -> None:
        """``combiner``: None if the operator cannot; ``key``: where the input has the key's columns."""
        self._combiner = combiner
        self._key = key
        self._key_groups = key_groups
        self._combines: bool | None = None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What to send for a batch."""
        rows = self._combined(batch)
        return with_groups(rows, self.key, self._key_groups)

    def _combined(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._combiner is None or self._combines is False:
            return batch
        if self._combines is None:
            found = self._combiner.partial(batch, at_most=COMBINE_BELOW) if batch.num_rows else None
            self._combines = found is not None
        else:
            found = self._combiner.partial(batch, at_most=1.0)
        return batch if found is None else found

    @property
    def key(self) -> Sequence[int]:
        """Where the key's columns are in what is sent."""
        return range(len(self._key)) if self._combines else self._key
