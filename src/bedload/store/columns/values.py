"""The array of a column by slot, and the old values of the touched slots by their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bedload.store.columns.index import Flags, Slots
from bedload.store.columns.layout import WIDE
from bedload.store.columns.memory import PLAIN, GrowingArray, Memory
from bedload.store.columns.runs import Runs


class Values:
    """An array by slot, and the old values of the touched slots by their place."""

    __slots__ = ("_before", "_initial", "_live")

    def __init__(self, dtype: np.dtype[Any], initial: Any, memory: Memory = PLAIN) -> None:
        objects = dtype.kind == "O"
        self._live: GrowingArray | Objects = Objects(dtype) if objects else memory.by_slot(dtype)
        self._before: GrowingArray | Objects = Objects(dtype) if objects else GrowingArray(dtype)
        self._initial = np.empty((), dtype)
        self.begin_with(initial)

    def begin_with(self, initial: Any) -> None:
        """What a new key holds from now on."""
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

    def start(self, slots: Slots | Runs) -> None:
        """Give slots the value that a new key has."""
        _fill(self.live, slots, self._initial)

    def put(self, slots: Slots | Runs, values: npt.NDArray[Any] | bool | int) -> None:
        """Overwrite slots, with a value for each or with one for all."""
        _fill(self.live, slots, values)

    def leave(self, slots: Slots) -> None:
        """The keys of these slots go: hold on to no object of theirs."""
        if self.live.dtype.kind == "O":
            self.live[slots] = None

    def save(self, slots: Slots, at: int) -> None:
        """Keep the values of slots, from this place on."""
        self._before.at_least(at + len(slots))
        np.take(self.live, slots, out=self.before[at : at + len(slots)], mode="clip")

    def restore(self, slots: Slots, places: Slots) -> None:
        """Put the values of some places back."""
        self.live[slots] = self.before[places]

    def let_go(self, places: int) -> None:
        """Forget old values, and the room of all but so many."""
        if isinstance(self._before, Objects):
            self._before.resize(0)
        elif len(self._before) > places:
            self._before.resize(places)

    def differs(self, slots: Slots, places: Slots | slice) -> Flags:
        """For each touched slot and its place, whether its value is another one than before."""
        now, then = self.live[slots], self.before[places]
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
        taken: npt.NDArray[Any] = live[slots] if runs is None else runs.take(live)
        if places is not None:
            marked = np.flatnonzero(places)
            taken[marked] = self.before[places[marked] - 1]
        return taken


class Objects:
    """A growing array of Python objects. Those cannot live in reserved memory, so it is the system that makes room.

    A large array is moved by its pages, without a look at the objects. If somebody else has it, it is copied.
    """

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
        kept = min(length, len(self.array))
        if length == len(self.array):
            return
        try:
            self.array[kept:] = None
            self.array.resize(length)
            self.array[kept:] = None  # NumPy has zeros there
        except ValueError:  # a view of it is in use
            made = np.empty(length, object)
            made[:kept] = self.array[:kept]
            self.array = made

    def at_least(self, length: int) -> None:
        """Make room for this many, and for some more."""
        if length > len(self.array):
            self.resize(length + length // 2)


def _fill(live: npt.NDArray[Any], slots: Slots | Runs, values: npt.NDArray[Any] | bool | int) -> None:
    """``values``: one for each slot, or one for all."""
    if isinstance(slots, Runs):
        slots.put(live, values)
    else:
        live[slots] = values
