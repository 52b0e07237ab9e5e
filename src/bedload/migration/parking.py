"""The rows that wait for state which is not here. :class:`~bedload.migration.holdings.Holdings` knows what is here.

What has come is looked for among them some rows at a time (:meth:`Parking.free`, :meth:`Parking.free_some`), in their
order, and from the beginning whenever something has come.

Invariants: rows of a key that is not here are never applied; those of one key are applied in the order in which they
came, the parked ones first; a row is parked or given out, never both. So a row waits, too, while rows of its key group
do that have not been looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bedload.core.limits import LIMITS, Limits
from bedload.keys import groups_in
from bedload.keys.lookup import Hashes, distinct
from bedload.migration.hash_set import NONE, HashSet
from bedload.migration.holdings import Holdings


class Parked(NamedTuple):
    """Rows that wait, and whose they are."""

    owner: Any
    rows: pa.RecordBatch
    hashes: Hashes
    """Of the rows' keys; empty if only key groups are on their way."""
    since: float
    groups: frozenset[int]
    """The rows' key groups."""


Freed = tuple[Any, pa.RecordBatch, bool]
"""Whose rows can go on, the rows, and whether that is all of their owner's."""


class Parking:
    """The rows of one operator that wait."""

    def __init__(self, holdings: Holdings, limits: Limits = LIMITS) -> None:
        self.holdings = holdings
        self._limits = limits
        self._parked: list[Parked] = []
        self._seen = 0
        """So many of them were looked at since something came."""
        self.count_anew()

    def count_anew(self) -> None:
        """A move begins: who waits for it counts from here on."""
        self._waits: list[tuple[Hashes, float]] = []
        """Keys that waited for a hand-over, and for how long; oldest rows first."""
        self.asked = HashSet()
        """Keys of key groups on their way that had rows."""
        self.rows = 0
        """Rows that waited for a hand-over."""

    def cut(
        self, owner: Any, batch: pa.RecordBatch, hashes: Callable[[pa.RecordBatch], Hashes], now: float
    ) -> tuple[pa.RecordBatch | None, Hashes | None]:
        """The rows that can be applied now, if there are any; and the keys of those that wait, None if none does."""
        holdings, due = self.holdings, self.due
        if holdings.whole and not due:
            return batch, None
        groups, found = groups_in(batch), NONE
        waiting, moving = holdings.being_read(groups), holdings.moving(groups)
        if moving.any():
            found = hashes(batch)
            handed = holdings.on_its_way(groups, found)
            self.rows += int(handed.sum())
            self.asked.add(found[moving])
            waiting |= handed
        if due:
            waiting |= np.isin(groups, list(frozenset().union(*(it.groups for it in self._parked[self._seen :]))))
        if not waiting.any():
            return batch, None
        holdings.ask(groups)
        held = found[waiting] if len(found) else found
        self._parked.append(_parked(owner, batch.filter(pa.array(waiting)), held, now))
        self._seen += not due
        return (None if waiting.all() else batch.filter(pa.array(~waiting))), held

    def free(self, now: float, only: Hashes | None = None) -> list[Freed]:
        """Something has come: the first rows whose state is here by now. ``only``: just these keys have come."""
        self._seen, only = 0, None if self.due else only
        return self.free_some(now, only)

    @property
    def due(self) -> bool:
        """Whether some have not been looked at since something came."""
        return self._seen < len(self._parked)

    def free_some(self, now: float, only: Hashes | None = None) -> list[Freed]:
        """The next rows whose state is here by now."""
        freed: list[Freed] = []
        still: list[Parked] = []
        end, looked = self._seen, 0
        while end < len(self._parked) and looked < self._limits.free_rows:
            parked = self._parked[end]
            looked += parked.rows.num_rows
            end += 1
            if only is None or np.isin(parked.hashes, only).any():
                still += self._free(parked, now, freed)
            else:
                still.append(parked)
        self._parked[self._seen : end] = still
        self._seen += len(still)
        return freed

    def _free(self, parked: Parked, now: float, freed: list[Freed]) -> list[Parked]:
        """Look at rows; what goes on waiting."""
        owner, rows, hashes, since, _ = parked
        groups = groups_in(rows)
        waiting = self.holdings.being_read(groups) | self.holdings.on_its_way(groups, hashes)
        if waiting.all():
            return [parked]
        if len(hashes):
            self._waits.append((distinct(hashes[~waiting]), now - since))
        last = not waiting.any()
        freed.append((owner, rows if last else rows.filter(pa.array(~waiting)), last))
        return [] if last else [_parked(owner, rows.filter(pa.array(waiting)), hashes[waiting[: len(hashes)]], since)]

    def waits(self, now: float) -> list[tuple[Hashes, float]]:
        """Keys that waited for a hand-over, and for how long; those that come out next have waited up to now."""
        rest = [(distinct(it.hashes), now - it.since) for it in self._parked[self._seen :] if len(it.hashes)]
        return [*self._waits, *rest]

    def waiting_keys(self) -> Hashes:
        """Keys with rows that wait for a hand-over."""
        on_its_way = self.holdings.on_its_way
        # Rows that wait for key groups alone have no hashes.
        found = [it.hashes[on_its_way(groups_in(it.rows), it.hashes)] for it in self._parked if len(it.hashes)]
        return distinct(np.concatenate(found)) if found else NONE

    def clear(self) -> None:
        """The turn is over: nobody wants the parked rows any more. State stays on its way."""
        self._parked, self._seen = [], 0

    @property
    def empty(self) -> bool:
        """Whether no row waits."""
        return not self._parked


def _parked(owner: Any, rows: pa.RecordBatch, hashes: Hashes, since: float) -> Parked:
    return Parked(owner, rows, hashes, since, frozenset(np.unique(groups_in(rows)).tolist()))
