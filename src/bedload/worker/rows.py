"""Input rows of one key, made into Python objects only when somebody looks.

A sub-batch is sorted by key once; the rows of a key are a slice of it. An operator that only asks for
``len(rows)`` or ``rows.column("speed")`` never pays for row objects; the first one that iterates turns
the whole sub-batch into tuples, column by column, which costs a fraction of doing it per key.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa


class _Named:
    """Spark-like additions to a named tuple: access by column name, whatever characters it has."""

    __slots__ = ()
    _columns: tuple[str, ...] = ()

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            try:
                item = self._columns.index(item)
            except ValueError:
                raise KeyError(f"no column {item!r}; there are: {', '.join(self._columns)}") from None
        return super().__getitem__(item)  # type: ignore[misc]

    def asDict(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The row as a dict, as of a Spark row."""
        return {name: self[i] for i, name in enumerate(self._columns)}


def row_type(columns: Sequence[str]) -> Any:
    """The class of the rows with these columns: ``row.speed``, ``row["speed"]`` and ``row[0]``."""
    base = namedtuple("Row", columns, rename=True)  # type: ignore[misc]
    return type("Row", (_Named, base), {"__slots__": (), "_columns": tuple(columns)})


def values(column: pa.Array) -> list[Any]:
    """A column as Python objects, by the fastest way for its type."""
    kind = column.type
    if column.null_count == 0 and (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    ):
        plain: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return plain
    objects: list[Any] = column.to_pylist()
    return objects


class SortedBatch:
    """A sub-batch whose rows are looked at in the order of their keys."""

    __slots__ = ("_batch", "_names", "_order", "_row_type", "_rows", "_sorted")

    def __init__(self, batch: pa.RecordBatch, names: tuple[str, ...], row: Any, order: np.ndarray) -> None:
        self._batch = batch
        self._names = names
        self._row_type = row
        self._order = pa.array(order)
        self._rows: list[Any] | None = None
        self._sorted: dict[str, pa.Array] = {}

    def rows(self) -> list[Any]:
        """All rows as objects."""
        if self._rows is None:
            columns = [values(self.column(name)) for name in self._names]
            make = self._row_type._make
            self._rows = list(map(make, zip(*columns, strict=True))) if columns else []
        return self._rows

    def column(self, name: str) -> pa.Array:
        """One column, in the order of the keys."""
        found = self._sorted.get(name)
        if found is None:
            if name not in self._names:
                raise KeyError(f"no column {name!r}; there are: {', '.join(self._names)}")
            found = self._batch.column(self._names.index(name)).take(self._order)
            self._sorted[name] = found
        return found


class _Span(NamedTuple):
    batch: SortedBatch
    start: int
    stop: int


class Rows(_Span):
    """The rows of one key in one call of ``process``, in arrival order: a sequence, made into objects if looked at.

    A row is a named tuple: ``row.speed``, ``row["speed"]``, ``row[0]``, ``row.asDict()``. ``len(rows)`` and
    :meth:`column` make no objects.
    """

    # SUBTLE: it is a tuple underneath only because tuples are made without a Python-level call, and one of these is
    # made per key and sub-batch. Its length and items are those of the rows.

    __slots__ = ()

    def __len__(self) -> int:
        return self.stop - self.start

    def __bool__(self) -> bool:
        return self.stop > self.start

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batch.rows()[self.start : self.stop])

    def __reversed__(self) -> Iterator[Any]:
        return iter(self.batch.rows()[self.start : self.stop][::-1])

    def __contains__(self, row: object) -> bool:
        return row in self.batch.rows()[self.start : self.stop]

    def __getitem__(self, index: Any) -> Any:
        return self.batch.rows()[self.start : self.stop][index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def column(self, name: str) -> pa.Array:
        """One column of these rows as an Arrow array: no Python object per row."""
        return self.batch.column(name).slice(self.start, self.stop - self.start)

    def __repr__(self) -> str:
        return f"Rows({list(self)!r})"


def rows_of(batch: SortedBatch, bounds: list[int]) -> Iterator[Rows]:
    """The rows of each key, given where they begin and end."""
    return map(partial(tuple.__new__, Rows), zip(repeat(batch), bounds, bounds[1:], strict=False))
