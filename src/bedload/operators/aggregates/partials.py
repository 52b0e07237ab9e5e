"""Aggregating ahead: rows of a batch become one row per key, before they travel to the worker.

A partial row is a key and the state that its rows give from the empty state, so the worker merges two states. Here
state is kept in scratch columns, which are as long as the batch has keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.store.columns import ColumnSpec
from bedload.store.columns.index import Flags, Slots
from bedload.store.columns.layout import arrow_of

PREFIX = "__p"
"""Partial columns are named ``__p0``, ``__p1``, ... by the number of their state column."""


class Scratch:
    """State of ``slots`` new keys."""

    def __init__(self, columns: Sequence[ColumnSpec], slots: int) -> None:
        self._columns = columns
        self._values = {spec.name: np.full(slots, spec.start(), spec.dtype) for spec in columns}
        self._valid = {spec.name: np.zeros(slots, bool) for spec in columns if spec.nullable}

    def values(self, name: str) -> npt.NDArray[Any]:
        """The array of a column."""
        return self._values[name]

    def valid(self, name: str) -> Flags:
        """The mask of a nullable column."""
        return self._valid[name]

    def arrays(self) -> list[pa.Array]:
        """All columns as Arrow."""
        return [self._array(spec) for spec in self._columns]

    def _array(self, spec: ColumnSpec) -> pa.Array:
        values = self._values[spec.name]
        return arrow_of(values, self._valid.get(spec.name), spec.type) if spec.fixed else pa.array(values, spec.type)


def group_keys(keys: Sequence[pa.Array]) -> tuple[Slots, int, npt.NDArray[np.int64]]:
    """For each row the number of its key among the batch's keys; how many there are; a row of each.

    Rows of one number have one key. The reverse does not hold (0.0 and -0.0 get two numbers): it need not, because
    the merge at the worker goes by the key.
    """
    codes, count = _codes(keys[0])
    for column in keys[1:]:
        more, size = _codes(column)
        codes, count = _codes(pa.array(codes * size + more))
    rows = np.empty(count, np.int64)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, count, rows


def _codes(column: pa.Array) -> tuple[Slots, int]:
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
