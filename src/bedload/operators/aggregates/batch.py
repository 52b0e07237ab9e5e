"""One batch as the parts of aggregates see it: slots, and columns as arrays, each converted once.

Invariant: every array handed out is read-only and as long as the batch. Kernels rely on it: to Numba a writable array
is another type, and each kernel would be compiled twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import DataError
from bedload.keys.columns import bytes_of
from bedload.operators.aggregates import kernels as k
from bedload.operators.aggregates.carriers import is_decimal
from bedload.store.columns.compiling import read_only
from bedload.store.columns.distinct import distinct
from bedload.store.columns.index import Flags, Slots
from bedload.store.columns.layout import array_of


class Overflowed(Exception):
    """A sum does not fit its type any more, at a row of the batch; never leaves the package."""

    def __init__(self, part: Any, row: int) -> None:
        super().__init__(part, row)
        self.part = part
        self.row = row


class Batch:
    """Some rows and the slots of their keys."""

    def __init__(self, slots: Slots, columns: Sequence[pa.Array], names: Sequence[str]) -> None:
        self.slots = slots
        self._columns = columns
        self._names = names
        self._numbers: dict[tuple[int, np.dtype[Any]], npt.NDArray[Any]] = {}
        self._valid: dict[int, Flags] = {}
        self._everything: Flags | None = None
        self._groups: tuple[Slots, npt.NDArray[np.int32]] | None = None

    def column(self, at: int) -> pa.Array:
        """A column."""
        return self._columns[at]

    def numbers(self, at: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A column of numbers in a carrier's type. What stands under a null is arbitrary."""
        wanted = np.dtype(dtype)
        found = self._numbers.get((at, wanted))
        if found is None:
            column = self._columns[at]
            if not is_decimal(column.type):
                found = array_of(column)
            elif wanted.kind == "f":
                found = array_of(column.cast(pa.float64()))
            else:
                found = array_of(column, wanted)
            found = self._numbers[at, wanted] = read_only(found, wanted)
        return found

    def valid(self, at: int) -> Flags:
        """Where a column is not null."""
        column = self._columns[at]
        if not column.null_count:
            return self.everything
        found = self._valid.get(at)
        if found is None:
            found = self._valid[at] = read_only(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        return found

    @property
    def everything(self) -> Flags:
        """True for every row."""
        if self._everything is None:
            self._everything = read_only(np.ones(len(self.slots), bool), np.bool_)
        return self._everything

    @property
    def groups(self) -> tuple[Slots, npt.NDArray[np.int32]]:
        """The different slots, in order of first appearance, and for each row the number of its slot in them."""
        if self._groups is None:
            slots, groups = distinct(self.slots)
            self._groups = slots, read_only(groups, np.int32)
        return self._groups

    def last_best_rows(self, at: int, largest: bool) -> npt.NDArray[np.int64]:
        """For each group the last one of the rows in which a column is best; no row for a group that has but nulls.

        The column is one of strings or binary.
        """
        slots, groups = self.groups
        rows = np.full(len(slots), -1, np.int64)
        data, starts, lengths = bytes_of(self._columns[at])
        arrays = read_only(data, np.uint8), read_only(starts, np.int64), read_only(lengths, np.int64)
        k.last_best_bytes(groups, *arrays, self.valid(at), largest, rows)
        return rows[rows >= 0]

    def objects(self, at: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The values of some rows as Python objects."""
        try:
            values = self._columns[at].take(pa.array(rows)).to_pylist()
        except UnicodeDecodeError as error:
            raise DataError(
                f"column {self._names[at]!r} holds a string that is not valid UTF-8 ({error}): clean it upstream, or "
                f"aggregate the column as binary",
                column=self._names[at],
            ) from None
        return np.fromiter(values, object, len(values))
