"""Slots as runs of neighbours: most keys of a key group lie side by side, and so do those that came together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bedload.store.columns import kernels as k
from bedload.store.columns.compiling import read_only

Slots = npt.NDArray[np.int64]
Spans = npt.NDArray[np.int64]
"""Rows by key group: in each line a key group, its first row, and the row after its last."""

_SHORT_RUN = 8


class Runs(NamedTuple):
    """Where each run begins, which of all slots is its first, and how many they are."""

    begins: Slots
    places: Slots
    lengths: Slots
    total: int

    @classmethod
    def of(cls, begins: Slots, places: Slots, lengths: Slots, total: int) -> Runs:
        """As kernels take them."""
        begins, places, lengths = (read_only(part, np.int64) for part in (begins, places, lengths))
        return cls(begins, places, lengths, total)

    @property
    def slots(self) -> Slots:
        """All slots."""
        return np.repeat(self.begins - self.places, self.lengths) + np.arange(self.total)

    def take(self, live: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A copy of the values in these slots."""
        if live.dtype.kind == "O":
            return live[self.slots]
        made = np.empty((self.total, *live.shape[1:]), live.dtype)
        size = live.itemsize * (live.shape[1] if live.ndim > 1 else 1)
        k.copy_runs(_bytes(live), self.begins, made.reshape(-1).view(np.uint8), self.places, self.lengths, size)
        return made

    def put(self, live: npt.NDArray[Any], values: npt.NDArray[Any] | bool | int) -> None:
        """Write the values to these slots, or one to all of them."""
        if isinstance(values, np.ndarray) and values.ndim and live.dtype.kind != "O":
            values = np.ascontiguousarray(values, live.dtype)
            k.copy_runs(_bytes(values), self.places, live.view(np.uint8), self.begins, self.lengths, live.itemsize)
            return
        every = np.broadcast_to(values, self.total)
        for begin, place, length in zip(*map(np.ndarray.tolist, self[:3]), strict=True):
            live[begin : begin + length] = every[place : place + length]


def spans_of(groups: npt.NDArray[np.integer[Any]]) -> Spans:
    """The spans of a sorted column of key groups."""
    cuts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    firsts = np.concatenate(([0], cuts)) if len(groups) else cuts
    return np.stack((groups[firsts].astype(np.int64), firsts, np.append(firsts[1:], len(groups))[: len(firsts)]), 1)


def runs_in(numbers: Slots) -> tuple[Slots, Slots]:
    """Numbers in ascending order as runs: where each begins, and how long it is."""
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    begins = np.concatenate(([0], cuts)) if len(numbers) else cuts
    return numbers[begins], np.diff(begins, append=len(numbers))


def as_runs(slots: Slots) -> Runs | None:
    """Slots as runs of neighbours; None if these are so short that they are better taken one by one."""
    begins, lengths = runs_in(slots)
    if len(begins) * _SHORT_RUN > len(slots):
        return None
    return Runs.of(begins, np.cumsum(lengths) - lengths, lengths, len(slots))


def _bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return read_only(values.reshape(-1).view(np.uint8), np.uint8)
