"""One value column of a table: what it holds, its array by slot, and the old values of the touched slots.

Numbers, times and decimals are arrays of their :mod:`~bedload.store.columns.layout`, with a mask if they are nullable.
Everything else (strings, lists) is an array of Python objects, which are taken as immutable: to change one, assign
another.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import StateTypeError
from bedload.store.columns import kernels as k
from bedload.store.columns.compiling import read_only
from bedload.store.columns.index import Flags, Slots
from bedload.store.columns.layout import WIDE, array_of, arrow_of, layout_of
from bedload.store.columns.memory import GrowingArray


@dataclass(frozen=True)
class ColumnSpec:
    """A value column: its name, its Arrow type, and what a new key starts with (None: null)."""

    name: str
    type: pa.DataType
    initial: Any = None

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
        return self.fixed and self.initial is None

    def start(self) -> Any:
        """What a new key holds, in the layout: nothing but zeros if that is null."""
        if not self.fixed:
            return self.initial
        if self.initial is None:
            return np.zeros((), self.dtype)
        return array_of(pa.array([self.initial], self.type))[0]


class Values:
    """An array by slot, and the old values of the touched slots by their place."""

    __slots__ = ("_before", "_initial", "_live")

    def __init__(self, dtype: np.dtype[Any], initial: Any) -> None:
        make = Objects if dtype.kind == "O" else GrowingArray
        self._live: GrowingArray | Objects = make(dtype)
        self._before: GrowingArray | Objects = make(dtype)
        self._initial = np.empty((), dtype)
        self._initial[()] = initial

    @property
    def live(self) -> npt.NDArray[Any]:
        """The current values, by slot."""
        return self._live.array

    @property
    def before(self) -> npt.NDArray[Any]:
        """The old values, by place."""
        return self._before.array

    @property
    def nbytes(self) -> int:
        """Memory of both."""
        return self._live.nbytes + self._before.nbytes

    def room(self, slots: int) -> None:
        """Have room for this many slots, and not more."""
        self._live.resize(slots)

    def foresee(self, slots: int) -> None:
        """There will be so many slots."""
        if isinstance(self._live, GrowingArray):
            self._live.foresee(slots)

    def start(self, slots: Slots) -> None:
        """Give slots the value that a new key has."""
        self.live[slots] = self._initial

    def save(self, slots: Slots, at: int) -> None:
        """Keep the values of slots, from this place on."""
        self._before.at_least(at + len(slots))
        np.take(self.live, slots, out=self.before[at : at + len(slots)], mode="clip")

    def restore(self, slots: Slots, places: Flags) -> None:
        """Put the values of some places back."""
        self.live[slots] = self.before[: len(places)][places]

    def let_go(self, places: int) -> None:
        """Forget old values, and the room of all but so many."""
        if isinstance(self._before, Objects):
            self._before.resize(0)
        elif len(self._before) > places:
            self._before.resize(places)

    def differs(self, slots: Slots) -> Flags:
        """For each touched slot, whether its value is another one than before."""
        now, then = self.live[slots], self.before[: len(slots)]
        if now.dtype == WIDE:
            return np.asarray((now["low"] != then["low"]) | (now["high"] != then["high"]), np.bool_)
        if now.dtype.kind == "f":
            # By their bits: a NaN is no change of itself, and minus zero is one of zero.
            bits = f"i{now.dtype.itemsize}"
            now, then = now.view(bits), then.view(bits)
        return np.asarray(now != then, np.bool_)

    def take(self, slots: Slots, runs: Runs | None, places: npt.NDArray[np.integer[Any]] | None) -> npt.NDArray[Any]:
        """A copy of the current values of slots, or the old ones of those with a place (from 1 on; 0 is none)."""
        live = self.live
        taken: npt.NDArray[Any] = live[slots] if runs is None or live.dtype.kind == "O" else runs.take(live)
        if places is not None:
            marked = np.flatnonzero(places)
            taken[marked] = self.before[places[marked] - 1]
        return taken


class Objects:
    """A growing array of Python objects. Those cannot live in reserved memory, so growing copies pointers."""

    __slots__ = ("array",)

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.array: npt.NDArray[Any] = np.empty(0, dtype)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def nbytes(self) -> int:
        """Bytes of the pointers."""
        return self.array.nbytes

    def resize(self, length: int) -> None:
        """Make it this long; new places hold None."""
        if length != len(self.array):
            made = np.empty(length, object)
            kept = min(length, len(self.array))
            made[:kept] = self.array[:kept]
            self.array = made

    def at_least(self, length: int) -> None:
        """Make room for this many, and for some more."""
        if length > len(self.array):
            self.resize(length + length // 2)


Prepared = tuple[npt.NDArray[Any], Flags | None]
"""Values in their layout, and which of them are no nulls (None: all)."""


class Column:
    """The values of one column, and their mask if there is one."""

    __slots__ = ("mask", "spec", "values")

    def __init__(self, spec: ColumnSpec) -> None:
        self.spec = spec
        self.values = Values(spec.dtype, spec.start())
        self.mask = Values(np.dtype(np.bool_), False) if spec.nullable else None

    @property
    def arrays(self) -> tuple[Values, ...]:
        """The array of values, and that of the mask."""
        return (self.values,) if self.mask is None else (self.values, self.mask)

    def differs(self, slots: Slots) -> Flags:
        """For each touched slot, whether it changed. What stands under a null does not count."""
        changed = self.values.differs(slots)
        if self.mask is not None:
            changed &= self.mask.live[slots]
            changed |= self.mask.differs(slots)
        return changed

    def binary_bytes(self, touched: Slots) -> int:
        """Bytes of binary values, and of those before-images that are other ones."""
        if not (pa.types.is_binary(self.spec.type) or pa.types.is_large_binary(self.spec.type)):
            return 0
        live = self.values.live
        pairs = zip(self.values.before[: len(touched)], live[touched], strict=True)
        total = sum(sys.getsizeof(value) for value in live if value is not None)
        return total + sum(sys.getsizeof(then) for then, now in pairs if then is not None and then is not now)

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
        if self.mask is None:
            raise StateTypeError(f"state column {spec.name!r} is not nullable, but a null was given")
        valid: Flags = values.is_valid().to_numpy(zero_copy_only=False)
        numbers = numbers.copy()
        numbers[~valid] = np.zeros((), spec.dtype)
        return numbers, valid

    def put(self, slots: Slots, prepared: Prepared, runs: Runs | None = None) -> None:
        """Overwrite slots with what was prepared; ``runs`` are the slots as :func:`as_runs` gives them."""
        numbers, valid = prepared
        _fill(self.values.live, slots, numbers, runs)
        if self.mask is not None:
            _fill(self.mask.live, slots, True if valid is None else valid, runs)

    def read(self, slots: Slots, places: npt.NDArray[np.integer[Any]] | None, runs: Runs | None = None) -> pa.Array:
        """The current values as Arrow, or the old ones of slots with a place; ``runs`` as with :meth:`put`."""
        spec, values = self.spec, self.values.take(slots, runs, places)
        if spec.fixed:
            return arrow_of(values, None if self.mask is None else self.mask.take(slots, runs, places), spec.type)
        try:
            return pa.array(values.tolist(), type=spec.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise StateTypeError(
                f"state column {spec.name!r} holds what is not of its type {spec.type} ({error}): "
                "write values of the declared type"
            ) from error


class Runs(NamedTuple):
    """Slots as runs of neighbours: where each begins, which of all slots is its first, and how many they are."""

    slots: Slots
    places: Slots
    lengths: Slots
    total: int

    def take(self, live: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A copy of the values in these slots."""
        made = np.empty(self.total, live.dtype)
        k.copy_runs(_bytes(live), self.slots, made.view(np.uint8), self.places, self.lengths, live.itemsize)
        return made

    def put(self, live: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Write the values to these slots."""
        values = np.ascontiguousarray(values, live.dtype)
        k.copy_runs(_bytes(values), self.places, live.view(np.uint8), self.slots, self.lengths, live.itemsize)


def _bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return read_only(values.view(np.uint8), np.uint8)


_SHORT_RUN = 8


def as_runs(slots: Slots) -> Runs | None:
    """Slots as runs of neighbours; None if these are so short that they are better taken one by one."""
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    if (len(cuts) + 1) * _SHORT_RUN > len(slots):
        return None
    begins = np.concatenate(([0], cuts))
    parts = slots[begins], begins, np.diff(begins, append=len(slots))
    runs, places, lengths = (read_only(part, np.int64) for part in parts)
    return Runs(runs, places, lengths, len(slots))


def _fill(live: npt.NDArray[Any], slots: Slots, values: npt.NDArray[Any] | bool, runs: Runs | None) -> None:
    if runs is None or live.dtype.kind == "O":
        live[slots] = values
    else:
        runs.put(live, np.full(runs.total, values) if isinstance(values, bool) else values)
