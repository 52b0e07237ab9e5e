"""A growing set of key hashes that is asked about many at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NONE: Hashes = np.empty(0, np.int64)


class HashSet:
    """Sorted arrays of falling sizes: adding costs a sort of what is added and now and then a merge.

    A hash may be in several of them. Why not a Python set: that takes an object per hash.
    """

    def __init__(self) -> None:
        self._levels: list[Hashes] = []

    def add(self, hashes: Hashes) -> None:
        """Take these in."""
        if not len(hashes):
            return
        self._levels.append(np.sort(hashes))
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
        wanted, among = hashes[order], np.zeros(len(hashes), np.bool_)
        for level in self._levels:
            among |= is_in(level, wanted)
        found[order] = among
        return found

    def remove(self, hashes: Hashes) -> None:
        """Take these out; costs a pass over all."""
        if not self._levels or not len(hashes):
            return
        gone = np.sort(hashes)
        self._levels = [rest for level in self._levels if len(rest := level[~is_in(gone, level)])]

    def all(self) -> Hashes:
        """All of them, in ascending order."""
        return distinct(np.concatenate(self._levels)) if self._levels else NONE

    def __len__(self) -> int:
        return len(self.all())

    def __bool__(self) -> bool:
        return bool(self._levels)


def is_in(ordered: Hashes, hashes: Hashes) -> Flags:
    """Which of the hashes are among some in ascending order, of which there is one at least."""
    at = np.searchsorted(ordered, hashes)
    at[at == len(ordered)] = 0
    found: Flags = ordered[at] == hashes
    return found


def distinct(hashes: Hashes) -> Hashes:
    """Each of them once, in ascending order. NumPy's own goes by a hash table, which is many times slower."""
    if len(hashes) < 2:
        return hashes
    ordered = np.sort(hashes, kind="stable")
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def pack(hashes: Hashes) -> bytes:
    """For a message."""
    return np.ascontiguousarray(hashes, "<i8").tobytes()


def unpack(data: bytes) -> Hashes:
    """What :func:`pack` made."""
    return np.frombuffer(data, "<i8")
