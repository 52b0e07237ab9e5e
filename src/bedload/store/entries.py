"""The keys on a shelf by number, and the way from a key's hash to its number.

A number is an entry. Hashes and key groups are arrays by entry. Entries are only ever added.

Invariants: an entry is found by its hash from the moment it is there; ``shared`` marks just those entries whose hash
another entry has as well; what is found names an entry once, however often its hash is asked for.

Here entries are found in runs of sorted hashes. A run is merged with a later one that is half as long at least, until
it is full: so it costs little to add few, however many there are, and runs are few. That is fast enough for rows, and
needs no compiled code, which takes a second to load.
Columns have :class:`~bedload.store.columns.compiled_entries.CompiledEntries`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bedload.keys.lookup import distinct

Hashes: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.int64]

_RUN = 1 << 17
"""Entries of a full run."""
_TINY = 256
"""A run of so many is merged with any later one."""


def with_room(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """The array, or a longer copy, in which the new places are zero."""
    if length <= len(array):
        return array
    made = np.zeros(max(length, len(array) + len(array) // 2), array.dtype)
    made[: len(array)] = array
    return made


class _Run(NamedTuple):
    """Hashes in ascending order with their entries, and the key groups that they are of."""

    hashes: Hashes
    entries: Numbers
    groups: frozenset[int]
    of: npt.NDArray[np.bool_]
    """The same by key group; the last place is of none."""

    @classmethod
    def made(cls, hashes: Hashes, entries: Numbers, groups: frozenset[int]) -> _Run:
        """Of hashes in any order."""
        order = np.argsort(hashes, kind="stable")
        of = np.zeros(max(groups) + 2, np.bool_)
        of[list(groups)] = True
        return cls(hashes[order], entries[order], groups, of)


class Entries:
    """Hashes and key groups by entry."""

    def __init__(self, expected: int = 0) -> None:
        self._count = 0
        self._hashes = np.zeros(expected, np.int64)
        self._groups = np.zeros(expected, np.int16)
        self._shared = np.zeros(expected, np.bool_)
        self._twins = 0
        self._runs: list[_Run] = []

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

    def find(self, hashes: Hashes, groups: npt.NDArray[np.integer[Any]] | None = None) -> Numbers:
        """The entries with these hashes; with their key groups, only runs are looked into that have keys of those."""
        if groups is None:
            wanted = distinct(hashes)
            found = [_between(run, wanted) for run in self._runs]
        else:
            order = np.argsort(hashes)
            wanted, of = hashes[order], groups[order]
            first = np.append(True, wanted[1:] != wanted[:-1])[: len(wanted)]
            wanted, of = wanted[first], of[first]
            found = [_between(run, wanted[run.of.take(of, mode="clip")]) for run in self._runs]
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
        hashes, entries = self._hashes[begin:end], np.arange(begin, end)
        groups = frozenset(np.unique(self._groups[begin:end]).tolist())
        wanted = distinct(hashes)
        while self._runs and len(self._runs[-1].hashes) <= min(max(2 * len(hashes), _TINY), _RUN):
            last = self._runs.pop()
            hashes, entries = np.concatenate((last.hashes, hashes)), np.concatenate((last.entries, entries))
            groups |= last.groups
        run = _Run.made(hashes, entries, groups)
        same = run.hashes[1:] == run.hashes[:-1]
        twins = [run.entries[1:][same], run.entries[:-1][same]]
        for other in self._runs:
            # Keys of one hash are of one key group.
            if not other.groups.isdisjoint(groups):
                alike = _between(other, wanted)
                twins += [alike, _between(run, distinct(self._hashes[alike]))]
        self._runs.append(run)
        marked = np.concatenate(twins)
        if len(marked):
            marked = distinct(marked)
            self._twins += int(np.count_nonzero(~self._shared[marked]))
            self._shared[marked] = True


class Unnamed(Entries):
    """Entries without hashes: they are had by their number alone."""

    def add(self, hashes: Hashes, groups: npt.NDArray[np.integer[Any]]) -> Numbers:
        """Make an entry for each of the key groups."""
        begin, end = self._count, self._count + len(groups)
        self._groups = with_room(self._groups, end)
        self._groups[begin:end] = groups
        self._count = end
        return np.arange(begin, end)

    @property
    def hashes(self) -> Hashes:
        """There are none."""
        return self._hashes[:0]


def _between(run: _Run, wanted: Hashes) -> Numbers:
    """The entries whose hashes are among the wanted ones, which are in ascending order, each once."""
    ordered, entries, *_ = run
    first, last = np.searchsorted(ordered, wanted, "left"), np.searchsorted(ordered, wanted, "right")
    counts = last - first
    if not len(counts) or counts.max() <= 1:
        there: Numbers = entries[first[counts > 0]]
        return there
    starts = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    every: Numbers = entries[starts + np.arange(len(starts))]
    return every
