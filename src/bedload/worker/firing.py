"""The timers that are due at the end of an epoch: which they are, and the calls of ``on_timer``.

They fire in the seal, when all rows of the epoch are applied, in the order of their time and then of their keys,
whichever keys had rows. One that a call sets and that is due already fires in the same seal. Nothing of it depends on
anything but the state and the time of the epoch: a replay fires the same ones in the same order.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError
from bedload.core.ids import KeyGroup
from bedload.keys import hash_columns
from bedload.keys.lookup import Hashes
from bedload.state.timers import Timer, first_due, take_out, timers_on
from bedload.store import KeyGroupStore
from bedload.store.deltas import key_arrays
from bedload.worker.timers import CurrentKey

Owns = Callable[[npt.NDArray[np.integer[Any]], Hashes], npt.NDArray[np.bool_]]
"""Which keys, given their key groups and their hashes, are the worker's own in this epoch."""

Call = Callable[[Any, Any, Timer, KeyGroupStore], None]
"""Calls ``on_timer`` with an object, its key and a timer, and takes what it returns."""

MOST = 100_000
"""Timers of one key that fire in one epoch. A key that catches up with a year of days has 365."""


class _Entry(NamedTuple):
    """The next timer of a key. No two entries are equal in what comes before ``number``'s end."""

    at: int
    rank: Any
    timer: Timer
    number: int
    key: Any
    item: Any
    store: KeyGroupStore
    fired: int
    """Timers of the key that have fired in this epoch."""


class Firing:
    """The due timers of one operator at one worker, in one epoch.

    There is one entry for each key, of the timer that it fires next: only calls for the key change its timers.
    """

    def __init__(
        self,
        current: CurrentKey,
        time: EpochTime,
        key_types: Collection[pa.DataType],
        met: Callable[[int], None] = lambda keys: None,
    ) -> None:
        """``met`` is told how many keys have been touched now."""
        self._current = current
        self._met = met
        self._time = time
        self._types = tuple(key_types)
        self._sorted: list[_Entry] = []
        """Of keys that have not fired, the last first: to sort many once is cheaper than a heap."""
        self._heap: list[_Entry] = []
        """Of keys that have, and fire again."""
        self._collected: list[tuple[KeyGroupStore, list[Any]]] = []
        self._number = 0

    def collect(self, stores: Collection[KeyGroupStore], owns: Owns | None) -> None:
        """Take what is due out of the stores, whose key groups are the worker's own, at least in part."""
        for store in stores:
            keys = store.take_due(self._time)
            if not keys:
                continue
            mine = set(keys if owns is None else owned(store.group, keys, owns, self._types))
            rows = zip(keys, store.current(keys), strict=True)
            due = [key for key, row in rows if row is not None and key in mine and self._next(row) is not None]
            fires = set(due)
            store.arm_again([key for key in keys if key not in fires])
            found = (self._entry(key, item, store, _rank(key)) for key, item in zip(due, store.touch(due), strict=True))
            self._sorted += filter(None, found)
            self._collected.append((store, due))
            self._met(len(due))
        self._sorted.sort(key=_in_order, reverse=True)  # plain tuples are compared in half the time

    def fixed(self) -> list[_Entry]:
        """What is due now, all timers of each key, in order: what calls do then changes nothing of it."""
        due = [
            entry._replace(at=timer.at, timer=timer)
            for entry in self._sorted
            for timer in timers_on(entry.item)
            if timer.at <= timer.clock.now(self._time)
        ]
        return sorted(due, key=itemgetter(0, 1))

    def run(self, call: Call) -> None:
        """Call for each in order, and have those keys armed again that keep timers."""
        current, waiting, again = self._current, self._sorted, self._heap
        try:
            while waiting or again:
                entry = heappop(again) if not waiting or (again and again[0] < waiting[-1]) else waiting.pop()
                _, rank, timer, _, key, item, store, fired = entry
                if fired == MOST:
                    raise self._endless(key, timer)
                take_out(item, timer)
                current.item = item
                call(item, key, timer, store)
                if (after := self._entry(key, item, store, rank, fired + 1)) is not None:
                    heappush(again, after)
        finally:
            current.item = None
            current.armed.clear()
        for store, keys in self._collected:
            store.arm_again(keys)

    def _entry(self, key: Any, item: Any, store: KeyGroupStore, rank: Any, fired: int = 0) -> _Entry | None:
        """What a key fires next; None: nothing is due."""
        timer = self._next(item)
        if timer is None:
            return None
        self._number += 1
        return _Entry(timer.at, rank, timer, self._number, key, item, store, fired)

    def _next(self, item: Any) -> Timer | None:
        """The first of its timers that is due; they are in order."""
        return first_due(item, self._time.watermark, self._time.processing)

    def _endless(self, key: Any, timer: Timer) -> DefinitionError:
        return DefinitionError(
            f"on_timer was called {MOST:,} times for key {key!r} in one epoch (now {self._time.processing}, "
            f"watermark {self._time.watermark}), the last time for {timer.at}: it sets timers that are due already. "
            f"Set the next one after ctx.now or ctx.watermark",
            key=key,
        )


def owned(group: KeyGroup, keys: list[Any], owns: Owns, key_types: Collection[pa.DataType]) -> list[Any]:
    """Those of the keys of a key group that are the worker's own."""
    hashes = hash_columns(key_arrays(keys, tuple(key_types)))
    flags = owns(np.full(len(keys), group), hashes).tolist()
    return [key for key, flag in zip(keys, flags, strict=True) if flag]


_in_order = itemgetter(0, 1, 2, 3)


def _rank(key: Any) -> Any:
    """Something that keys can be put in order by: None first, NaN last."""
    if type(key) is int or type(key) is str:
        return (1, key)
    if isinstance(key, tuple):
        return tuple(map(_rank, key))
    if key is None:
        return (0, 0)
    if isinstance(key, float) and key != key:
        return (2, 0)
    if isinstance(key, datetime.datetime) and key.tzinfo is not None:
        return (1, key.timestamp())
    return (1, key)
