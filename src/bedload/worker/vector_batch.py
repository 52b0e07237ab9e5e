"""A batch of rows as a vector operator sees it: columns, the distinct keys, and the rows in the order of these."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NARROW = 1 << 16


class RowsByKey:
    """The rows of a batch in the order of its keys: those of one key side by side, in the order of arrival.

    Those of key i are at ``offsets[i]:offsets[i + 1]``, and key i is the one at position i of ``batch.keys`` and of the
    arrays of the state. Each key has rows, so one call reduces the rows of every key, in the order of the state::

        rows = batch.by_key
        top = np.maximum.reduceat(rows.numpy("speed"), rows.offsets[:-1])
        return {"top": np.maximum(state["top"], top)}
    """

    def __init__(self, rows: pa.RecordBatch, index: npt.NDArray[np.int64], keys: list[pa.Array]) -> None:
        count = len(keys[0])
        # SUBTLE: a stable sort of 16-bit integers is a radix sort, several times as fast as of wider ones.
        narrow = index.astype(np.uint16) if count <= _NARROW else index
        self.order: npt.NDArray[np.int64] = np.argsort(narrow, kind="stable")
        """For each row here, its position in the batch."""
        self.offsets: npt.NDArray[np.int64] = np.zeros(count + 1, np.int64)
        """Where the rows of each key begin; and, last, how many rows there are."""
        np.cumsum(np.bincount(index, minlength=count), out=self.offsets[1:])
        self.key_columns = keys
        """The distinct keys, one Arrow array per key column; those of the batch."""
        self._rows = rows
        self._take = pa.array(self.order)
        self._columns: dict[str, pa.Array] = {}

    @property
    def keys(self) -> pa.Array:
        """The distinct keys, if the key is one column; those of the batch."""
        return _only(self.key_columns)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, column: str) -> pa.Array:
        """An input column in this order, as an Arrow array."""
        found = self._columns.get(column)
        if found is None:
            found = self._columns[column] = _column(self._rows, column).take(self._take)
        return found

    def numpy(self, column: str) -> npt.NDArray[Any]:
        """An input column in this order, as a NumPy array; nulls become NaN or None, as Arrow does it."""
        return _numpy(self[column])


class VectorBatch:
    """A batch of input rows, as columns, and which key each row belongs to."""

    def __init__(self, rows: pa.RecordBatch, index: npt.NDArray[np.int64], keys: list[pa.Array]) -> None:
        self._rows = rows
        self.index = index
        """For each row, the position of its key in ``keys`` and in the arrays of the state."""
        self.key_columns = keys
        """The distinct keys, one Arrow array per key column."""

    @property
    def keys(self) -> pa.Array:
        """The distinct keys, if the key is one column."""
        return _only(self.key_columns)

    @cached_property
    def by_key(self) -> RowsByKey:
        """The rows in the order of their keys, for code that needs the rows of a key side by side."""
        return RowsByKey(self._rows, self.index, self.key_columns)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __getitem__(self, column: str) -> pa.Array:
        """An input column, as an Arrow array."""
        return _column(self._rows, column)

    def numpy(self, column: str) -> npt.NDArray[Any]:
        """An input column, as a NumPy array; nulls become NaN or None, as Arrow does it."""
        return _numpy(self[column])


def _only(keys: list[pa.Array]) -> pa.Array:
    if len(keys) != 1:
        raise AttributeError("the key has several columns: use key_columns")
    return keys[0]


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    try:
        return rows.column(name)
    except KeyError:
        raise KeyError(f"no column {name!r}; there are: {', '.join(rows.schema.names)}") from None


def _numpy(column: pa.Array) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values
