"""Input rows of one key, made into Python objects only when somebody looks.

A sub-batch is sorted by key once; the rows of a key are a slice of it. An operator that only asks for
``len(rows)`` or ``rows.column("speed")`` never pays for row objects; the first one that iterates turns
the whole sub-batch into tuples, column by column, which costs a fraction of doing it per key.
"""

from __future__ import annotations

import datetime as dt
from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import index as as_index
from operator import itemgetter
from typing import Any, NoReturn

import msgspec
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

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no column {name!r}; there are: {', '.join(self._columns)}", name=name, obj=self)

    def asDict(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The row as a dict, as of a Spark row."""
        return {name: self[i] for i, name in enumerate(self._columns)}

    _asdict = asDict

    def _replace(self, **values: Any) -> Any:
        """The row with other values in some columns."""
        if unknown := [name for name in values if name not in self._columns]:
            raise ValueError(f"no column {unknown[0]!r}; there are: {', '.join(self._columns)}")
        return type(self)(*(self.asDict() | values).values())

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.asDict().items())})"


def row_type(columns: Sequence[str]) -> Any:
    """The class of the rows with these columns: ``row.speed``, ``row["speed"]`` and ``row[0]``."""
    base = namedtuple("Row", columns, rename=True)  # type: ignore[misc]
    # SUBTLE: a named tuple calls what it cannot name by position: `_1` would be the second column, while Spark calls
    # the first one that. So these get their own names again, and what is a name of the tuple itself is left to it.
    own = {*dir(_Named), *dir(tuple), "_make", "_fields", "_field_defaults"}
    named = {
        name: property(itemgetter(at))
        for at, name in enumerate(columns)
        if base._fields[at] != name and name not in own
    }
    return type("Row", (_Named, base), {"__slots__": (), "_columns": tuple(columns), **named})


def values(column: pa.Array) -> list[Any]:
    """A column as Python objects, by the fastest way for its type."""
    kind = column.type
    if column.null_count == 0 and (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    ):
        plain: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return plain
    if column.null_count == 0 and _has_zone(kind):
        found = _moments(column)
        if found is not None:
            return found
    objects: list[Any] = column.to_pylist()
    return objects


def _moments(column: pa.Array) -> list[Any] | None:
    """Timestamps with a zone, in a fraction of the time that Arrow takes; None: there is one that Python has not."""
    numbers = column.cast(pa.int64()).to_numpy()
    if not len(numbers) or numbers.min() < _FIRST or numbers.max() > _LAST:
        return None
    zone = pa.lib.string_to_tzinfo(column.type.tz)
    if column.type.tz == "UTC":
        epoch = dt.datetime(1970, 1, 1, tzinfo=zone)
        return [epoch + since for since in numbers.astype("m8[us]").tolist()]
    of_utc = zone.fromutc
    return [of_utc(moment.replace(tzinfo=zone)) for moment in numbers.astype("M8[us]").tolist()]


def _has_zone(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit == "us")


_DAY = 86_400_000_000
_FIRST, _LAST = (dt.date.min.toordinal() - 719_163 + 2) * _DAY, (dt.date.max.toordinal() - 719_163 - 2) * _DAY
"""Inside of what Python has in every zone."""


class SortedBatch:
    """A sub-batch whose rows are looked at in the order of their keys."""

    __slots__ = ("_batch", "_names", "_order", "_row_type", "_rows", "_sorted", "_table")

    def __init__(self, batch: pa.RecordBatch, names: tuple[str, ...], row: Any, order: np.ndarray) -> None:
        self._batch = batch
        self._names = names
        self._row_type = row
        self._order = pa.array(order)
        self._rows: list[Any] | None = None
        self._sorted: dict[int, pa.Array] = {}
        self._table: pa.RecordBatch | None = None

    @property
    def made(self) -> bool:
        """Whether somebody has looked at the rows as objects."""
        return self._rows is not None

    def rows(self) -> list[Any]:
        """All rows as objects."""
        if self._rows is None:
            columns = [values(self._column(at)) for at in range(len(self._names))]
            make = partial(tuple.__new__, self._row_type)  # what `_make` does, without Python code per row
            self._rows = list(map(make, zip(*columns, strict=True))) if columns else []
        return self._rows

    def column(self, name: str) -> pa.Array:
        """One column, in the order of the keys."""
        if name not in self._names:
            raise KeyError(f"no column {name!r}; there are: {', '.join(self._names)}")
        return self._column(self._names.index(name))

    def table(self) -> pa.RecordBatch:
        """All columns, in the order of the keys."""
        if self._table is None:
            places = range(len(self._names))
            schema = pa.schema([self._batch.schema.field(at) for at in places])
            self._table = pa.RecordBatch.from_arrays([self._column(at) for at in places], schema=schema)
        return self._table

    def _column(self, at: int) -> pa.Array:
        found = self._sorted.get(at)
        if found is None:
            found = self._sorted[at] = self._batch.column(at).take(self._order)
        return found


class Rows(msgspec.Struct, eq=False):
    """The rows of one key in one call of ``process``, in arrival order.

    They are read like a list: ``for row in rows``, ``len(rows)``, ``rows[0]``, ``rows[-10:]`` (which is a list). A row
    has its values by name (``row.speed``, ``row["speed"]``) and by position (``row[0]``). :meth:`column` and
    :meth:`to_arrow` give them as Arrow, without a Python object per row.

    They are there for the call that got them. What is to stay belongs into state.
    """

    # One is made for each key of each sub-batch. A struct is made in C, in less than half the time of an ``__init__``.
    _batch: SortedBatch
    _start: int
    _stop: int

    def __len__(self) -> int:
        return self._stop - self._start

    def __bool__(self) -> bool:
        return self._stop > self._start

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batch.rows()[self._start : self._stop])  # as _list(), but a call less: it is the hot one

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._list()[::-1])

    def __contains__(self, row: object) -> bool:
        return row in self._list()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._list()[index]
        try:
            at, count = as_index(index), len(self)
        except TypeError:
            raise TypeError(
                f"rows[{index!r}]: rows are indexed by position, as in rows[0]; rows.column(name) gives a column"
            ) from None
        if not -count <= at < count:
            raise IndexError(f"row {at} of {count} rows")
        return self._batch.rows()[at + (self._start if at >= 0 else self._stop)]

    def __eq__(self, other: object) -> bool:
        return self._list() == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def count(self, row: Any) -> int:
        """How many of the rows are equal to this one, which may be a tuple; ``len(rows)`` counts them all."""
        return self._list().count(row)

    def index(self, row: Any, start: int = 0, stop: int | None = None) -> int:
        """The position of the first row that is equal to this one, which may be a tuple; a ValueError if none is."""
        return self._list().index(row, start, len(self) if stop is None else stop)

    def column(self, name: str) -> pa.Array:
        """One column of these rows as an Arrow array: no Python object per row."""
        return self._batch.column(name).slice(self._start, self._stop - self._start)

    def to_arrow(self) -> pa.RecordBatch:
        """All columns of these rows as an Arrow batch: no Python object per row, and no copy per key."""
        return self._batch.table().slice(self._start, self._stop - self._start)

    def _list(self) -> list[Any]:
        return self._batch.rows()[self._start : self._stop]

    def __reduce__(self) -> NoReturn:
        raise TypeError("rows are there for one call of process: keep list(rows) or rows.to_arrow() of them")

    __copy__ = __reduce__

    def __repr__(self) -> str:
        return f"Rows({self._list()!r})"


Sequence.register(Rows)


def rows_of(batch: SortedBatch, bounds: list[int]) -> Iterator[Rows]:
    """The rows of each key, given where they begin and end."""
    return map(Rows, repeat(batch), bounds, bounds[1:])
