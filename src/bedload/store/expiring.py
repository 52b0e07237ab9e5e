"""What expires in the keys of one key group: which keys may have something due, and what becomes of them.

Who may have something due is a hint, as with timers (:mod:`bedload.store.due`): each key that has something that
expires is in the index, not after that. A key that comes up is looked at when operator code wants it, before that sees
it, or in the seal. So nobody ever sees what is due, and a key costs nothing until something of it is.

An object knows before when nothing of it is due, as far as the index has been told (:data:`ARMED`): what is written
again and again, and so expires later and later, does not fill the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.core.epoch import EpochTime
from bedload.state.alike import are_default
from bedload.state.expiries import ARMED, Expiries
from bedload.state.timers import TimerClock
from bedload.state.ttl import UNCOUNTED, reached
from bedload.store.due import NEVER, Due


class Expiring:
    """The index of one key group, and what the epoch has made of it."""

    __slots__ = ("_again", "_due", "_taken", "expiries", "overdue", "swept")

    def __init__(self, expiries: Expiries) -> None:
        self.expiries = expiries
        self._due = {clock: Due() for clock in expiries.clocks}
        self._taken: list[tuple[TimerClock, list[int], list[Any]]] = []
        """What the epoch took out of the index."""
        self._again: dict[Any, None] = {}
        """Keys that came up in the epoch, and were looked at."""
        self.overdue: dict[Any, None] = {}
        """Keys that came up, and were not looked at yet."""
        self.swept: set[int] = set()
        """The identities of objects that the epoch has touched for what expires of them alone."""

    def next(self, clock: TimerClock) -> int:
        """Nothing is due before that time. What is not counted yet is due with the first watermark."""
        return self._due[clock].next if clock in self._due else NEVER

    def may_be_due(self, time: EpochTime) -> list[Any]:
        """Keys that may have something due at a time, of which whoever asks may have heard before this worker."""
        found = dict(self.overdue)
        for clock, due in self._due.items():
            if (now := reached(clock, time)) is not None:
                found.update(dict.fromkeys(due.seen(now)))
        return list(found)

    def look(self) -> dict[Any, None]:
        """Take out of the index what has come up: it is overdue."""
        for clock, due in self._due.items():
            now = self.expiries.now(clock)
            if now is not None and due.next <= now:
                ats, keys = due.take(now)
                self._taken.append((clock, ats, keys))
                self.overdue.update(dict.fromkeys(keys))
        return self.overdue

    def looked_at(self, key: Any) -> None:
        """An overdue key has been looked at: its place in the index follows in the seal."""
        del self.overdue[key]
        self._again[key] = None

    def stamp(self, rows: Sequence[Any], absent: Any) -> None:
        """The code of the epoch ran: count what it has written in these objects."""
        for it in self.expiries.all:
            add, at = self._due[it.clock].add, it.at
            for row in it.stamp_all(rows, absent):
                add(at, row._bedload_key)

    def arm_again(self, current: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        """Give the keys that came up a place in the index; ``current``: their objects, or None."""
        keys, self._again = list(self._again), {}
        self._arm(keys, current(keys))

    def leave(self, key: Any, row: Any) -> None:
        """An overdue key has nothing due, or is not for this worker to look at: it is in the index again."""
        del self.overdue[key]
        self._arm([key], [row])

    def _arm(self, keys: Sequence[Any], rows: Sequence[Any]) -> None:
        for clock, due in self._due.items():
            slot, first, add = ARMED[clock], self.expiries.first_by(clock), due.add
            for key, row in zip(keys, rows, strict=True):
                if row is not None:
                    at = first(row)
                    setattr(row, slot, at)
                    if at != NEVER:
                        add(at, key)

    def arm(self, keys: Sequence[Any], values: Mapping[str, Sequence[Any]]) -> None:
        """These keys were put in."""
        for clock, due in self._due.items():
            firsts = self.expiries.firsts_of(clock, len(keys), values)
            for key, at in zip(keys, firsts, strict=True):
                if at != NEVER:
                    due.add(at, key)

    def rest(self, keys: Sequence[Any], state: pa.RecordBatch) -> None:
        """These keys were put in, encoded: all that they have are values."""
        for it in self.expiries.all:
            ats, here = state.column(it.expiry).to_numpy(), keys
            if it is not self.expiries.key:  # what is its default has nothing that expires, as most may have
                spec = it.variable.spec
                unset = (ats == UNCOUNTED) & are_default(spec.type, state.column(it.name), spec.fresh_default())
                ats, here = ats[~unset], [keys[i] for i in np.flatnonzero(~unset).tolist()]
            self._due[it.clock].extend(ats, here)

    def commit(self) -> None:
        """The epoch counts."""
        for due in self._due.values():
            due.extend([0] * len(self.overdue), list(self.overdue))
        self._end()

    def abort(self) -> None:
        """The epoch does not count: what it took is in the index again."""
        for clock, ats, keys in self._taken:
            self._due[clock].extend(ats, keys)
        self._end()

    def _end(self) -> None:
        self._taken, self._again, self.overdue = [], {}, {}
        self.swept.clear()
