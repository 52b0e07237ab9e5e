"""A growing set of key hashes that is asked about many at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bedload.keys.lookup import Hashes, among, distinct

Flags = npt.NDArray[np.bool_]

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

    def take(self, count: int) -> Hashes:
        """Take out so many at most, whichever costs least."""
        if not self._levels:
            return NONE
        last = self._levels[-1]
        if len(last) <= count:
            return self._levels.pop()
        self._levels[-1] = last[count:]
        return last[:count]

    def remove(self, hashes: Hashes) -> None:
        """Take these out; costs a pass over all."""
        gone = np.sort(hashes)
        self._levels = [rest for level in self._levels if len(rest := level[~among(gone, level)])]

    def all(self) -> Hashes:
        """All of them, in ascending order."""
        return np.sort(np.concatenate(self._levels), kind="stable") if self._levels else NONE

    def __len__(self) -> int:
        return sum(map(len, self._levels))


def pack(hashes: Hashes) -> bytes:
    """For a message."""
    return np.ascontiguousarray(hashes, "<i8").tobytes()


def unpack(data: bytes) -> Hashes:
    """What :func:`pack` made."""
    return np.frombuffer(data, "<i8")
