"""A growing set of key hashes, to look many up at once; and the hashes of keys in messages and in state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.keys import hash_columns
from bedload.keys.lookup import Hashes, among, distinct, places_in
from bedload.protocol.base import Body

Flags = npt.NDArray[np.bool_]

KEY = "bedload_key_"
NONE: Hashes = np.empty(0, np.int64)


FULL = 1 << 19
"""Two arrays of fewer hashes are merged in some milliseconds; of so many they stay as they are."""


class HashSet:
    """Sorted arrays of falling sizes: adding costs a sort of what is added and now and then a merge.

    Why not a Python set: that takes an object per hash. Why arrays become full: a merge of all would be a long step.
    """

    def __init__(self) -> None:
        self._levels: list[Hashes] = []

    def add(self, hashes: Hashes) -> None:
        """Take these in."""
        new = distinct(hashes)
        for level in self._levels:
            new = new[~among(level, new)]
        if not len(new):
            return
        self._levels.append(new)
        while len(self._levels) > 1 and len(self._levels[-1]) * 2 >= len(self._levels[-2]) < FULL:
            last = self._levels.pop()
            self._levels[-1] = distinct(np.concatenate((self._levels[-1], last)))

    def has(self, hashes: Hashes) -> Flags:
        """Which of these are in it."""
        found = np.zeros(len(hashes), np.bool_)
        if not self._levels or not len(hashes):
            return found
        # In order, because neighbours are then found in memory that was just looked at.
        order = np.argsort(hashes)
        wanted, inside = hashes[order], np.zeros(len(hashes), np.bool_)
        for level in self._levels:
            inside |= among(level, wanted)
        found[order] = inside
        return found

    def first(self, count: int) -> Hashes:
        """So many at most, whichever costs least: those that :meth:`drop` takes out."""
        return self._levels[-1][:count] if self._levels else NONE

    def drop(self, count: int) -> None:
        """Take out the :meth:`first` so many."""
        if self._levels:
            rest = self._levels.pop()[count:]
            if len(rest):
                self._levels.append(rest)

    def remove(self, hashes: Hashes) -> None:
        """Take these out; costs a copy of what they are in."""
        for i, level in enumerate(self._levels):
            places, there = places_in(level, hashes)
            if there.any():
                self._levels[i] = np.delete(level, places[there])
        self._levels = [level for level in self._levels if len(level)]

    def take_over(self, other: HashSet) -> None:
        """Take in all that another one has; both share it, as arrays are not written to."""
        self._levels = sorted((*self._levels, *other._levels), key=len, reverse=True)

    def parts(self, most: int) -> list[Hashes]:
        """All of them, so many at a time."""
        return [level[first : first + most] for level in self._levels for first in range(0, len(level), most)]

    def __len__(self) -> int:
        return sum(map(len, self._levels))


def unique(hashes: Hashes) -> Hashes:
    """Each once, in the order of first appearance."""
    _, first = np.unique(hashes, return_index=True)
    return hashes[np.sort(first)]


def pack(hashes: Hashes) -> bytes:
    """For a message."""
    return np.ascontiguousarray(hashes, "<i8").tobytes()


def unpack(data: Body) -> Hashes:
    """What :func:`pack` made."""
    return NONE if data is None else np.frombuffer(data, "<i8")


def state_hashes(state: pa.RecordBatch) -> Hashes:
    """The hashes of the keys of a batch in state or delta form."""
    names = [name for name in state.schema.names if name.startswith(KEY)]
    return hash_columns([state.column(name) for name in names])
