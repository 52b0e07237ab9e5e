"""Keys whose state is on its way, and the rows that wait for it.

A key group is *here*; or all of it is *awaited*; or it is *arriving*: the keys that have arrived are here; or it is
*patchy*: all of it is here but for the keys that are missing, until they arrive.

Invariants: rows of a key that is not here are never applied; those of one key are applied in the order in which they
came, the parked ones first; a row is parked or given out, never both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.ids import KeyGroup
from bedload.keys import groups_in
from bedload.keys.lookup import Hashes, distinct
from bedload.migration.hash_set import NONE, Flags, HashSet

HERE, AWAITED, ARRIVING, PATCHY = 0, 1, 2, 3


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
    """The keys of one operator that are not here yet."""

    def __init__(self) -> None:
        self._absent: Flags = np.zeros(0, np.bool_)
        """Key groups that are being read back."""
        self.left = 0
        """How many of these there are."""
        self._kinds: npt.NDArray[np.int8] = np.zeros(0, np.int8)
        """Key groups that another worker hands over."""
        self._moving = False
        self._arrived = HashSet()
        self._missing = HashSet()
        self._parked: list[Parked] = []
        self.waits: list[tuple[Hashes, float]] = []
        """Keys that waited for a hand-over, and for how long; oldest rows first."""
        self.asked: list[Hashes] = []
        """Keys of key groups on their way that had rows."""
        self.rows = 0
        """Rows that waited for a hand-over."""

    # --- being read back ---

    def expect(self, groups: Iterable[KeyGroup]) -> None:
        """These key groups are being read back, whatever else was said of them."""
        named = self._set(groups, True)
        self._kinds[named] = HERE
        self._look()

    def forget(self) -> None:
        """Nothing is being read back any more."""
        self._absent[:] = False
        self.left = 0

    def arrive(self, groups: Iterable[KeyGroup], now: float = 0.0) -> list[Freed]:
        """Key groups were read back: the rows that waited for them."""
        self._set(groups, False)
        return self._free(now)

    # --- handed over by another worker ---

    def count_anew(self) -> None:
        """A move begins: who waits for it counts from here on."""
        self.waits, self.asked, self.rows = [], [], 0

    def hand_over(self, groups: Iterable[KeyGroup], kind: int, now: float = 0.0) -> list[Freed]:
        """This is how it is with these key groups."""
        named = np.fromiter(groups, np.int64)
        self._room(int(named.max(initial=-1)))
        self._kinds[named] = kind
        self._look()
        return self._free(now) if kind != AWAITED else []

    def miss(self, hashes: Hashes) -> None:
        """These keys of patchy key groups are missing."""
        self._missing.add(hashes)

    def arrive_keys(self, hashes: Hashes, now: float) -> list[Freed]:
        """These keys are here."""
        self._arrived.add(hashes)
        return self._free(now, hashes)

    def settle(self, now: float) -> list[Freed]:
        """All that was handed over is here."""
        self._kinds[:] = HERE
        self._moving = False
        self._arrived, self._missing = HashSet(), HashSet()
        return self._free(now)

    def waiting_keys(self) -> Hashes:
        """Keys with rows that wait for a hand-over."""
        found = [parked.hashes[self._moving_wait(parked.rows, parked.hashes)] for parked in self._parked]
        return distinct(np.concatenate(found)) if found else NONE

    # --- rows ---

    def absent(self, group: KeyGroup, hash_of: Callable[[], Hashes] | None = None) -> bool:
        """Whether a key's state is on its way; without a hash, whether any of its key group may be."""
        if group < len(self._absent) and self._absent[group]:
            return True
        if not self._moving or group >= len(self._kinds) or self._kinds[group] == HERE:
            return False
        if hash_of is None or self._kinds[group] == AWAITED:
            return True
        return bool(self._waits(np.array([self._kinds[group]]), hash_of())[0])

    def cut(
        self, owner: Any, batch: pa.RecordBatch, hashes: Callable[[pa.RecordBatch], Hashes], now: float = 0.0
    ) -> tuple[pa.RecordBatch | None, Hashes | None]:
        """The rows that can be applied now, if there are any; and the keys of those that wait, None if none does."""
        if not self.left and not self._moving:
            return batch, None
        found = NONE
        waiting = self._being_read(batch)
        if self._moving:
            kinds = self._kinds_of(batch)
            if kinds.any():
                found = hashes(batch)
                handed = self._waits(kinds, found)
                self.rows += int(handed.sum())
                self.asked.append(distinct(found[kinds != HERE]))
                waiting |= handed
        if not waiting.any():
            return batch, None
        held = found[waiting] if len(found) else found
        self._parked.append(Parked(owner, batch.filter(pa.array(waiting)), held, now))
        return (None if waiting.all() else batch.filter(pa.array(~waiting))), held

    def clear(self) -> None:
        """The turn is over: nobody wants the parked rows any more. State stays on its way."""
        self._parked = []

    @property
    def empty(self) -> bool:
        """Whether no row waits."""
        return not self._parked

    # --- steps ---

    def _free(self, now: float, only: Hashes | None = None) -> list[Freed]:
        freed: list[Freed] = []
        still: list[Parked] = []
        for parked in self._parked:
            owner, rows, hashes, since = parked
            if only is not None and not np.isin(hashes, only).any():
                still.append(parked)
                continue
            waiting = self._being_read(rows)
            if len(hashes):
                waiting |= self._moving_wait(rows, hashes)
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

    def _moving_wait(self, rows: pa.RecordBatch, hashes: Hashes) -> Flags:
        if not self._moving or not len(hashes):
            return np.zeros(rows.num_rows, np.bool_)
        return self._waits(self._kinds_of(rows), hashes)

    def _waits(self, kinds: npt.NDArray[np.int8], hashes: Hashes) -> Flags:
        waiting: Flags = kinds == AWAITED
        open_ = kinds >= ARRIVING
        if open_.any():
            some, of = hashes[open_], kinds[open_]
            gone = np.where(of == ARRIVING, True, self._missing.has(some))
            waiting[open_] = gone & ~self._arrived.has(some)
        return waiting

    def _being_read(self, batch: pa.RecordBatch) -> Flags:
        if not self.left:
            return np.zeros(batch.num_rows, np.bool_)
        groups = self._groups(batch)
        waiting: Flags = self._absent[groups]
        return waiting

    def _kinds_of(self, batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
        groups = self._groups(batch)  # which makes room
        kinds: npt.NDArray[np.int8] = self._kinds[groups]
        return kinds

    def _groups(self, batch: pa.RecordBatch) -> npt.NDArray[np.int16]:
        groups = groups_in(batch)
        self._room(int(groups.max(initial=-1)))
        return groups

    def _set(self, groups: Iterable[KeyGroup], absent: bool) -> npt.NDArray[np.int64]:
        named = np.fromiter(groups, np.int64)
        self._room(int(named.max(initial=-1)))
        self._absent[named] = absent
        self.left = int(self._absent.sum())
        return named

    def _look(self) -> None:
        self._moving = bool((self._kinds != HERE).any())

    def _room(self, group: int) -> None:
        more = group + 1 - len(self._absent)
        if more > 0:
            self._absent = np.concatenate([self._absent, np.zeros(more, np.bool_)])
            self._kinds = np.concatenate([self._kinds, np.zeros(more, np.int8)])
