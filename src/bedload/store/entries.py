"""The keys on a shelf by number, and the way from a key's hash to its number.

A number is an entry. Hashes and key groups are arrays by entry. Entries are only ever added.

Invariants: an entry is found by its hash from the moment it is there; ``shared`` marks just those entries whose hash
another entry has as well; what is found names an entry once, however often its hash is asked for.

Here entries are found in sorted hashes, with what was added since in a sorted tail of its own. That is fast enough for
rows, and needs no compiled code, which takes a second to load. Columns have
:class:`~bedload.store.columns.compiled_entries.CompiledEntries`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.int64]

_TAIL = 1024
"""The tail is sorted in when it is longer, and an eighth of all."""


def with_room(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """The array, or a longer copy, in which the new places are zero."""
    if length <= len(array):
        return array
    made = np.zeros(max(length, len(array) + len(array) // 2), array.dtype)
    made[: len(array)] = array
    return made


class Entries:
    """Hashes and key groups by entry."""

    def __init__(self) -> None:
        self._count = 0
        self._hashes = np.empty(0, np.int64)
        self._groups = np.empty(0, np.int16)
        self._shared = np.zeros(0, np.bool_)
        self._twins = 0
        self._sorted: list[tuple[Hashes, Numbers]] = []
        """Hashes in ascending order with their entries: most of them, then the tail."""

    def __len__(self) -> int:
        return self._count

    @property
    def hashes(self) -> Hashes:
        """The hash of each entry."""
        return self._hashes[: self._count]

    @property
    def groups(self) -> npt.NDArray[np.int16]:
        """The key group of each entry."""
        return self._groups[: self._count]

    @property
    def any_shared(self) -> bool:
        """Whether some entries have the same hash."""
        return self._twins > 0

    def add(self, hashes: Hashes, groups: npt.NDArray[np.integer[Any]]) -> Numbers:
        """Make an entry of each; their numbers."""
        begin, end = self._count, self._count + len(hashes)
        self._hashes, self._groups = with_room(self._hashes, end), with_room(self._groups, end)
        self._shared = with_room(self._shared, end)
        self._hashes[begin:end], self._groups[begin:end] = hashes, groups
        self._count = end
        self._index(begin, end)
        return np.arange(begin, end)

    def find(self, hashes: Hashes) -> Numbers:
        """The entries with these hashes."""
        wanted = np.unique(hashes)
        found = [_between(ordered, entries, wanted) for ordered, entries in self._sorted]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def span(self, first: int, count: int) -> Numbers:
        """The entries of a range; those that share a hash come all together, with the first of them."""
        begin, end = max(0, first), min(first + count, self._count)
        entries = np.arange(begin, max(begin, end))
        if not self._twins:
            return entries
        alone = ~self._shared[entries]
        if alone.all():
            return entries
        twins = np.sort(self.find(self._hashes[entries[~alone]]))
        _, at, unit = np.unique(self._hashes[twins], return_index=True, return_inverse=True)
        starts = twins[at]
        mine = (starts >= begin) & (starts < end)
        return np.concatenate((entries[alone], twins[mine[unit]]))

    def _index(self, begin: int, end: int) -> None:
        """Make entries findable, and mark those with a hash that is there already."""
        if begin == end:
            return
        known = len(self._sorted[0][0]) if self._sorted else 0
        if end - known > max(_TAIL, known // 8):
            known, self._sorted = 0, []
        order = known + np.argsort(self._hashes[known:end], kind="stable")
        del self._sorted[1:]
        self._sorted.append((self._hashes[order], order))
        twins = [self._alike(self._hashes[begin:end])]
        for ordered, entries in self._sorted:
            same = ordered[1:] == ordered[:-1]
            twins += [entries[1:][same], entries[:-1][same]]
        marked = np.concatenate(twins)
        self._shared[marked] = True
        self._twins = int(self._shared[:end].sum()) if len(marked) else self._twins

    def _alike(self, hashes: Hashes) -> Numbers:
        """The entries of hashes that both parts have."""
        if len(self._sorted) < 2:
            return np.empty(0, np.int64)
        found = [_between(ordered, entries, np.unique(hashes)) for ordered, entries in self._sorted]
        both = np.intersect1d(self._hashes[found[0]], self._hashes[found[1]])
        return np.concatenate([entries[np.isin(self._hashes[entries], both)] for entries in found])


def _between(ordered: Hashes, entries: Numbers, wanted: Hashes) -> Numbers:
    """The entries whose hashes are among the wanted ones; both are in ascending order, the wanted ones each once."""
    first, last = np.searchsorted(ordered, wanted, "left"), np.searchsorted(ordered, wanted, "right")
    counts = last - first
    if not len(counts) or counts.max() <= 1:
        there: Numbers = entries[first[counts > 0]]
        return there
    starts = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    every: Numbers = entries[starts + np.arange(len(starts))]
    return every
