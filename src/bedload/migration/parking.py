"""The rows that wait for state which is not here. :class:`~bedload.migration.holdings.Holdings` knows what is here.

Invariants: rows of a key that is not here are never applied; those of one key are applied in the order in which they
came, the parked ones first; a row is parked or given out, never both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bedload.keys import groups_in
from bedload.keys.lookup import Hashes, distinct
from bedload.migration.hash_set import NONE
from bedload.migration.holdings import Holdings


class Parked(NamedTuple):
    """Rows that wait, and whose they are."""

    owner: Any
    rows: pa.RecordBatch
    hashes: Hashes
    """Of the rows' keys; empty if only key groups are on their way."""
    since: float


Freed = tuple[Any, pa.RecordBatch, bool]
"""Whose rows can go on, the rows, and whether that is all of their owner's."""


class Parking:
    """The rows of one operator that wait."""

    def __init__(self, holdings: Holdings) -> None:
        self.holdings = holdings
        self._parked: list[Parked] = []
        self.count_anew()

    def count_anew(self) -> None:
        """A move begins: who waits for it counts from here on."""
        self.waits: list[tuple[Hashes, float]] = []
        """Keys that waited for a hand-over, and for how long; oldest rows first."""
        self.asked: list[Hashes] = []
        """Keys of key groups on their way that had rows."""
        self.rows = 0
        """Rows that waited for a hand-over."""

    def cut(
        self, owner: Any, batch: pa.RecordBatch, hashes: Callable[[pa.RecordBatch], Hashes], now: float
    ) -> tuple[pa.RecordBatch | None, Hashes | None]:
        """The rows that can be applied now, if there are any; and the keys of those that wait, None if none does."""
        holdings = self.holdings
        if holdings.whole:
            return batch, None
        groups, found = groups_in(batch), NONE
        waiting, moving = holdings.being_read(groups), holdings.moving(groups)
        if moving.any():
            found = hashes(batch)
            handed = holdings.on_its_way(groups, found)
            self.rows += int(handed.sum())
            self.asked.append(distinct(found[moving]))
            waiting |= handed
        if not waiting.any():
            return batch, None
        holdings.ask(groups)
        held = found[waiting] if len(found) else found
        self._parked.append(Parked(owner, batch.filter(pa.array(waiting)), held, now))
        return (None if waiting.all() else batch.filter(pa.array(~waiting))), held

    def free(self, now: float, only: Hashes | None = None) -> list[Freed]:
        """The rows whose state is here by now; ``only``: just these keys have come."""
        freed: list[Freed] = []
        still: list[Parked] = []
        for parked in self._parked:
            owner, rows, hashes, since = parked
            if only is not None and not np.isin(hashes, only).any():
                still.append(parked)
                continue
            groups = groups_in(rows)
            waiting = self.holdings.being_read(groups) | self.holdings.on_its_way(groups, hashes)
            if waiting.all():
                still.append(parked)
                continue
            if len(hashes):
                self.waits.append((distinct(hashes[~waiting]), now - since))
            last = not waiting.any()
            freed.append((owner, rows if last else rows.filter(pa.array(~waiting)), last))
            if not last:
                held = hashes[waiting] if len(hashes) else hashes
                still.append(Parked(owner, rows.filter(pa.array(waiting)), held, since))
        self._parked = still
        return freed

    def waiting_keys(self) -> Hashes:
        """Keys with rows that wait for a hand-over."""
        on_its_way = self.holdings.on_its_way
        # Rows that wait for key groups alone have no hashes.
        found = [it.hashes[on_its_way(groups_in(it.rows), it.hashes)] for it in self._parked if len(it.hashes)]
        return distinct(np.concatenate(found)) if found else NONE

    def clear(self) -> None:
        """The turn is over: nobody wants the parked rows any more. State stays on its way."""
        self._parked = []

    @property
    def empty(self) -> bool:
        """Whether no row waits."""
        return not self._parked
