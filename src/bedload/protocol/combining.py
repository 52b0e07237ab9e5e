"""Rows combined by key before they are sent, where that pays."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

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

    def __init__(self, combiner: Combiner | None, key_columns: int) -> None:
        """``combiner``: None if the operator cannot; ``key_columns``: how many the key has."""
        self._combiner = combiner
        self._key_columns = key_columns
        self._combines: bool | None = None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What to send for a batch."""
        if self._combiner is None or self._combines is False:
            return batch
        if self._combines is None:
            found = self._combiner.partial(batch, at_most=COMBINE_BELOW) if batch.num_rows else None
            self._combines = found is not None
        else:
            found = self._combiner.partial(batch, at_most=1.0)
        return batch if found is None else found

    @property
    def key(self) -> range | None:
        """Where the key's columns are in what is sent, if not where the input has them."""
        return range(self._key_columns) if self._combines else None
