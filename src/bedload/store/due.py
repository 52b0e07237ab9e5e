"""When something is due, for many things: an index that is added to all the time and taken from at the end of epochs.

What was added last lies in two plain lists; when they are looked at they become a sorted run. Runs are merged as they
grow, so that there are few. Nothing is ever looked for in it: an entry is only a hint that its item may be due, and
whoever takes it asks the state. So an entry that is out of date costs a look, and no more.

Invariants: of each item that was put in, an entry is here that is not later, until it is taken; there are at most twice
as many entries as there were items when they were last counted, or few (:data:`_LOOSE`): of several of an item, the
first one says all. So a timer that is deleted and set again with every row takes no more room each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NEVER = 2**63 - 1

_Run = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]
_LOOSE = 1 << 12
"""Entries that may lie unsorted."""


class Due:
    """Times in milliseconds, and whose they are. ``dtype`` is that of the items."""

    __slots__ = ("_ats", "_dtype", "_items", "_most", "_runs", "next")

    def __init__(self, dtype: Any = object) -> None:
        self.next = NEVER
        """Nothing is due before."""
        self._dtype = dtype
        self._ats: list[int] = []
        self._items: list[Any] = []
        self._runs: list[_Run] = []
        self._most = 2 * _LOOSE
        """With more entries than that, those that say nothing new are looked for."""

    def __len__(self) -> int:
        return len(self._ats) + sum(len(ats) for ats, _ in self._runs)

    def add(self, at: int, item: Any) -> None:
        """This item may be due at that time."""
        self._ats.append(at)
        self._items.append(item)
        if at < self.next:
            self.next = at
        if len(self._ats) >= _LOOSE:
            self._sort()

    def extend(self, ats: Iterable[int] | npt.NDArray[np.int64], items: Sequence[Any] | npt.NDArray[Any]) -> None:
        """The same for many."""
        times = np.fromiter(ats, np.int64) if not isinstance(ats, np.ndarray) else ats
        if not len(times):
            return
        self.next = min(self.next, int(times.min()))
        if len(times) < _LOOSE:
            self._ats += times.tolist()
            self._items += items.tolist() if isinstance(items, np.ndarray) else items
            if len(self._ats) >= _LOOSE:
                self._sort()
        else:
            self._run(times, self._array(items))

    def seen(self, now: int) -> list[Any]:
        """Items that may be due by now; they stay."""
        if now < self.next:
            return []
        self._sort()
        return [item for ats, items in self._runs for item in items[: np.searchsorted(ats, now, "right")].tolist()]

    def take(self, now: int) -> tuple[list[int], list[Any]]:
        """Times and items that may be due by now: they are taken out."""
        if now < self.next:
            return [], []
        self._sort()
        taken_ats: list[int] = []
        taken: list[Any] = []
        left: list[_Run] = []
        for ats, items in self._runs:
            end = int(np.searchsorted(ats, now, "right"))
            taken_ats += ats[:end].tolist()
            taken += items[:end].tolist()
            if end < len(ats):
                left.append((ats[end:], items[end:]))
        self._runs = left
        self.next = min((int(ats[0]) for ats, _ in left), default=NEVER)
        return taken_ats, taken

    def _sort(self) -> None:
        if self._ats:
            ats, items = np.array(self._ats, np.int64), self._array(self._items)
            self._ats, self._items = [], []
            self._run(ats, items)

    def _run(self, ats: npt.NDArray[np.int64], items: npt.NDArray[Any]) -> None:
        runs = self._runs
        # Each run is at least twice as long as the next: so an entry is merged but a few times.
        while runs and len(runs[-1][0]) < 2 * len(ats):
            before_ats, before_items = runs.pop()
            ats, items = np.concatenate((before_ats, ats)), np.concatenate((before_items, items))
        order = np.argsort(ats, kind="stable")
        runs.append((ats[order], items[order]))
        if sum(len(ats) for ats, _ in runs) > self._most:
            self._keep_first()

    def _keep_first(self) -> None:
        """Keep the first entry of each item, in a single run."""
        ats, items = (np.concatenate(parts) for parts in zip(*self._runs, strict=True))
        order = np.argsort(ats, kind="stable")
        ats, items = ats[order], items[order]
        backwards = range(len(items) - 1, -1, -1)
        places = np.array(sorted(dict(zip(items[::-1].tolist(), backwards, strict=True)).values()), np.int64)
        self._runs = [(ats[places], items[places])]
        self._most = 2 * max(len(places), _LOOSE)

    def _array(self, items: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any]:
        if isinstance(items, np.ndarray) and items.dtype == self._dtype:
            return items
        made = np.empty(len(items), self._dtype)
        made[:] = items if self._dtype is not object else [*items]
        return made
