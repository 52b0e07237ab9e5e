"""A growing set of key hashes, to look many up at once; and the hashes of keys in messages and in state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.keys import hash_columns
from bedload.keys.lookup import Hashes, among, distinct
from bedload.protocol.base import Body

Flags = npt.NDArray[np.bool_]

KEY = "bedload_key_"
NONE: Hashes = np.empty(0, np.int64)


class HashSet:
    """Sorted arrays of falling sizes: adding costs a sort of what is added and now and then a merge.

    Invariant: a hash is in one of them at most. Why not a Python set: that takes an object per hash.
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
        while len(self._levels) > 1 and len(self._levels[-1]) * 2 >= len(self._levels[-2]):
            last = self._levels.pop()
            # SUBTLE: NumPy's stable sort of 64-bit integers merges runs, so this is linear.
            self._levels[-1] = np.sort(np.concatenate((self._levels[-1], last)), kind="stable")

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
        """Take these out; costs a pass over all."""
        gone = np.sort(hashes)
        self._levels = [rest for level in self._levels if len(rest := level[~among(gone, level)])]

    def all(self) -> Hashes:
        """All of them, in ascending order."""
        return np.sort(np.concatenate(self._levels), kind="stable") if self._levels else NONE

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
