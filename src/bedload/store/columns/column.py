"""One value column of a table: what it holds, its array by slot, and the old values of the touched slots.

Numbers, times and decimals are arrays of their :mod:`~bedload.store.columns.layout`, with a mask if they are nullable.
Everything else (strings, lists) is an array of Python objects, which are taken as immutable: to change one, assign
another.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import StateTypeError
from bedload.state.weight import has_width, weight_of
from bedload.store.columns.index import BLOCK, Flags, Slots
from bedload.store.columns.layout import array_of, arrow_of, layout_of
from bedload.store.columns.memory import PLAIN, Memory
from bedload.store.columns.runs import Runs
from bedload.store.columns.times import Times
from bedload.store.columns.values import Values
from bedload.store.due import NEVER

_ITEM = 8


@dataclass(frozen=True)
class ColumnSpec:
    """A value column: its name, its Arrow type, and what a new key starts with (None: null)."""

    name: str
    type: pa.DataType
    initial: Any = None
    times: bool = False
    """Whether things are due at these times, in milliseconds: a number that starts as null has no mask then."""

    @cached_property
    def fixed(self) -> bool:
        """Whether it is an array of numbers, rather than of Python objects."""
        return layout_of(self.type) is not None

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of its array."""
        layout = layout_of(self.type)
        return np.dtype(object) if layout is None else layout

    @cached_property
    def nullable(self) -> bool:
        """Whether it has a mask: a number that starts as null."""
        return self.fixed and self.initial is None and not self.times

    @property
    def null(self) -> Any:
        """What stands in the array where there is null."""
        return np.int64(NEVER) if self.times else np.zeros((), self.dtype)

    def start(self) -> Any:
        """What a new key holds, in the layout: what stands for null if that is it."""
        if not self.fixed:
            return self.initial
        if self.initial is None:
            return self.null
        return array_of(pa.array([self.initial], self.type))[0]


Prepared = tuple[npt.NDArray[Any], Flags | None]
"""Values in their layout, and which of them are no nulls (None: all)."""


class Column:
    """The values of one column, and their mask if there is one."""

    __slots__ = ("mask", "spec", "values")

    def __init__(self, spec: ColumnSpec, block: int = BLOCK, memory: Memory = PLAIN) -> None:
        self.spec = spec
        start = spec.start()
        self.values = Times(start, block, memory) if spec.times else Values(spec.dtype, start, memory)
        self.mask = Values(np.dtype(np.bool_), False, memory) if spec.nullable else None

    @property
    def arrays(self) -> tuple[Values, ...]:
        """The array of values, and that of the mask."""
        return (self.values,) if self.mask is None else (self.values, self.mask)

    def rebind(self, spec: ColumnSpec) -> None:
        """New keys start as this says; all else is as it was."""
        if (spec.type, spec.nullable) != (self.spec.type, self.spec.nullable):
            raise StateTypeError(f"state column {spec.name!r} is {self.spec}, and cannot become {spec} in memory")
        self.spec = spec
        self.values.begin_with(spec.start())

    def differs(self, slots: Slots, places: Slots | slice) -> Flags:
        """For each touched slot and its place, whether it changed. What stands under a null does not count."""
        changed = self.values.differs(slots, places)
        if self.mask is not None:
            changed &= self.mask.live[slots]
            changed |= self.mask.differs(slots, places)
        return changed

    def binary_bytes(self, touched: Slots) -> int:
        """Bytes of binary values, and of those before-images that are other ones."""
        if not (pa.types.is_binary(self.spec.type) or pa.types.is_large_binary(self.spec.type)):
            return 0
        live = self.values.live
        pairs = zip(self.values.before[: len(touched)], live[touched], strict=True)
        total = sum(sys.getsizeof(value) for value in live if value is not None)
        return total + sum(sys.getsizeof(then) for then, now in pairs if then is not None and then is not now)

    def weight(self, slots: Slots) -> int:
        """About the bytes of the current values, if they differ in their size."""
        if self.spec.fixed:
            return 0
        kind, values = self.spec.type, self.values.live[slots].tolist()
        try:
            if pa.types.is_list(kind) and has_width(kind.value_type):
                return _ITEM * sum(map(len, filter(None, values)))
            if not pa.types.is_nested(kind):
                return sum(map(len, filter(None, values)))
        except TypeError:  # they are of another type, which is said when they are encoded
            pass
        return weight_of(values)

    def write(self, slots: Slots, values: pa.Array) -> None:
        """Overwrite slots with an Arrow array."""
        self.put(slots, self.prepared(values))

    def prepared(self, values: pa.Array) -> Prepared:
        """An Arrow array as :meth:`put` takes it; raises :class:`StateTypeError` if it does not fit."""
        spec = self.spec
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if values.type != spec.type:
            try:
                values = values.cast(spec.type)
            except pa.ArrowInvalid as error:
                raise StateTypeError(
                    f"state column {spec.name!r} has type {spec.type}, but {values.type} was given: {error}"
                ) from error
        if not spec.fixed:
            return np.fromiter(values.to_pylist(), object, len(values)), None
        numbers = array_of(values, spec.dtype)
        if not values.null_count:
            return numbers, None
        if self.mask is None and not spec.times:
            raise StateTypeError(f"state column {spec.name!r} is not nullable, but a null was given")
        valid: Flags = values.is_valid().to_numpy(zero_copy_only=False)
        numbers = numbers.copy()
        numbers[~valid] = spec.null
        return numbers, valid

    def put(self, slots: Slots | Runs, prepared: Prepared) -> None:
        """Overwrite slots with what was prepared."""
        numbers, valid = prepared
        self.values.put(slots, numbers)
        if self.mask is not None:
            self.mask.put(slots, True if valid is None else valid)

    def read(self, slots: Slots, places: npt.NDArray[np.integer[Any]] | None, runs: Runs | None = None) -> pa.Array:
        """The current values as Arrow, or the old ones of slots with a place; ``runs`` are the slots as runs."""
        mask = self.mask
        valid = None if mask is None else mask.take(slots, runs, places)
        return self._arrow(self.values.take(slots, runs, places), valid)

    def read_runs(self, runs: Runs) -> pa.Array:
        """The current values as Arrow."""
        return self._arrow(runs.take(self.values.live), None if self.mask is None else runs.take(self.mask.live))

    def _arrow(self, values: npt.NDArray[Any], valid: Flags | None) -> pa.Array:
        spec = self.spec
        if spec.times:
            valid = values != NEVER
        if spec.fixed:
            return arrow_of(values, valid, spec.type)
        try:
            return pa.array(values.tolist(), type=spec.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise StateTypeError(
                f"state column {spec.name!r} holds what is not of its type {spec.type} ({error}): "
                "write values of the declared type"
            ) from error
