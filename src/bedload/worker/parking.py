"""Key groups whose state is on its way, and the rows that wait for it.

Invariants: rows of a key group that is not here are never applied; those of one key group are applied in the order
in which they came, the parked ones first; a row is parked or given out, never both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.ids import KeyGroup

Flags = npt.NDArray[np.bool_]


class Parked(NamedTuple):
    """Rows that wait, and whose they are."""

    owner: Any
    rows: pa.RecordBatch


class Parking:
    """The key groups of one operator that are not here yet."""

    def __init__(self) -> None:
        self._absent: Flags = np.zeros(0, np.bool_)
        self.left = 0
        """How many key groups are on their way."""
        self._parked: list[Parked] = []

    def expect(self, groups: Iterable[KeyGroup]) -> None:
        """These key groups are on their way."""
        self._set(groups, True)

    def forget(self) -> None:
        """Nothing is on its way any more."""
        self._absent[:] = False
        self.left = 0

    def absent(self, group: KeyGroup) -> bool:
        """Whether a key group is on its way."""
        return group < len(self._absent) and bool(self._absent[group])

    def cut(self, owner: Any, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, bool]:
        """The rows that can be applied now, if there are any, and whether others have to wait."""
        if not self.left:
            return batch, False
        waiting = self._waiting(batch)
        if not waiting.any():
            return batch, False
        self._parked.append(Parked(owner, batch.filter(pa.array(waiting))))
        return (None if waiting.all() else batch.filter(pa.array(~waiting))), True

    def arrive(self, groups: Iterable[KeyGroup]) -> list[tuple[Any, pa.RecordBatch, bool]]:
        """Key groups are here: the rows that waited for them, and whether that is all of their owner's."""
        self._set(groups, False)
        freed: list[tuple[Any, pa.RecordBatch, bool]] = []
        still: list[Parked] = []
        for owner, rows in self._parked:
            waiting = self._waiting(rows)
            if waiting.all():
                still.append(Parked(owner, rows))
                continue
            last = not waiting.any()
            freed.append((owner, rows if last else rows.filter(pa.array(~waiting)), last))
            if not last:
                still.append(Parked(owner, rows.filter(pa.array(waiting))))
        self._parked = still
        return freed

    def clear(self) -> None:
        """The turn is over: nobody wants the parked rows any more. Key groups stay on their way."""
        self._parked = []

    @property
    def empty(self) -> bool:
        """Whether no row waits."""
        return not self._parked

    def _set(self, groups: Iterable[KeyGroup], absent: bool) -> None:
        named = np.fromiter(groups, np.int64)
        self._room(int(named.max(initial=-1)))
        self._absent[named] = absent
        self.left = int(self._absent.sum())

    def _room(self, group: int) -> None:
        more = group + 1 - len(self._absent)
        if more > 0:
            self._absent = np.concatenate([self._absent, np.zeros(more, np.bool_)])

    def _waiting(self, batch: pa.RecordBatch) -> Flags:
        groups = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
        self._room(int(groups.max(initial=-1)))
        waiting: Flags = self._absent[groups]
        return waiting
