"""Entries of a shelf that are found by one compiled loop over a hash table.

Why compiled: a shelf of a million keys is made, and looked into, between two batches of a running query. Each search in
sorted hashes costs several times as much.
"""

from __future__ import annotations

import numpy as np

from bedload.store.columns import entry_kernels as kernels
from bedload.store.entries import Entries, Hashes, Numbers, with_room

_FIRST = 256
"""Places of the smallest table. A table is at most half full."""


class CompiledEntries(Entries):
    """The same as :class:`~bedload.store.entries.Entries`, faster."""

    def __init__(self, expected: int = 0) -> None:
        """``expected``: room for so many, and half as many again. It costs no memory before it is used.

        SUBTLE: a table that grows is made anew, which nobody may have to wait for.
        """
        super().__init__(expected)
        self._seen = np.zeros(expected, np.bool_)
        places = _FIRST
        while places < 3 * expected:
            places *= 2
        self._table = np.zeros(places, np.int64)

    def find(self, hashes: Hashes) -> Numbers:
        """The entries with these hashes."""
        found = np.empty(min(self._count, len(hashes) + self._twins), np.int64)
        wanted = kernels.read_only(hashes, np.int64)
        count = kernels.find(wanted, self._hashes, self._table, self._seen, self.any_shared, found)
        return found[:count]

    def _index(self, begin: int, end: int) -> None:
        self._seen = with_room(self._seen, end)
        places = len(self._table)
        while 2 * end > places:
            places *= 2
        if places > len(self._table):
            self._table = np.zeros(places, np.int64)
            kernels.insert(self._hashes, 0, begin, self._table, self._shared)
        self._twins += kernels.insert(self._hashes, begin, end, self._table, self._shared)


def warm_up() -> None:
    """Compile what a shelf needs, or load it if a process has done so before."""
    entries = CompiledEntries()
    entries.add(np.zeros(1, np.int64), np.zeros(1, np.int16))
    entries.find(np.zeros(1, np.int64))
