"""Entries of a shelf that are found by one compiled loop over a hash table.

Why compiled: a shelf of a million keys is made, and looked into, between two batches of a running query. Each search in
sorted hashes costs several times as much.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bedload.store.columns import entry_kernels as kernels
from bedload.store.columns.memory import give_back, scattered
from bedload.store.entries import Entries, Hashes, Numbers, with_room

_FIRST = 256
"""Places of the smallest table. A table is at most half full."""
_FEW = 8
"""Keys more of each key group, for those that come meanwhile."""


class CompiledEntries(Entries):
    """The same as :class:`~bedload.store.entries.Entries`, faster.

    Each key group has a part of the table: keys are listed by key group, and memory is first written to piece by piece.
    """

    def __init__(self, expected: int = 0, counts: npt.NDArray[np.int64] | None = None) -> None:
        """``expected``: room for so many, and half as many again. It costs no memory before it is used.

        ``counts``: how many of each key group. SUBTLE: a table that grows is made anew, which nobody may have to wait
        for.
        """
        super().__init__(expected)
        self._seen = np.zeros(expected, np.bool_)
        self._kept = 0
        """Places of the table that have their memory."""
        places = _FIRST
        while places < 3 * expected:
            places *= 2
        self._make(places, np.zeros(1, np.int64) if counts is None else counts)

    def find(self, hashes: Hashes, groups: npt.NDArray[np.integer[Any]] | None = None) -> Numbers:
        """The entries with these hashes."""
        if not self._count:
            return np.empty(0, np.int64)  # kernels check no bounds, and look at the first entry whatever is wanted
        found = np.empty(min(self._count, len(hashes) + self._twins), np.int64)
        wanted = kernels.read_only(hashes, np.int64)
        count = kernels.find(wanted, self._hashes, self._homes, self._table, self._seen, self.any_shared, found)
        return found[:count]

    def let_go(self, keys: int) -> bool:
        """Give back what the table takes for so many keys; whether that was all."""
        begin = max(0, self._kept - 3 * keys)
        give_back(self._table, begin, self._kept)
        self._kept = begin
        return not begin

    def _index(self, begin: int, end: int) -> None:
        self._seen = with_room(self._seen, end)
        self._seen[begin:end] = False  # or the first that looks for some would wait for its pages, here and there
        places = len(self._table)
        while 2 * end > places:
            places *= 2
        if places > len(self._table):
            groups = len(self._homes) - 1
            self._make(places, np.bincount(self._hashes[:end] % groups, minlength=groups))
            kernels.insert(self._hashes, 0, begin, self._homes, self._table, self._shared)
        self._twins += kernels.insert(self._hashes, begin, end, self._homes, self._table, self._shared)

    def _make(self, places: int, counts: npt.NDArray[np.int64]) -> None:
        self._table, self._kept = scattered(places, np.int64), places
        ends = np.cumsum(counts + _FEW)
        self._homes = np.concatenate((np.zeros(1, np.int64), ends * places // ends[-1]))
        """By key group, where its part of the table begins; and where the last one ends."""


def warm_up() -> None:
    """Compile what a shelf needs, or load it if a process has done so before."""
    entries = CompiledEntries()
    entries.add(np.zeros(1, np.int64), np.zeros(1, np.int16))
    entries.find(np.zeros(1, np.int64))
