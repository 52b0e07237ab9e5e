"""How much of a move is a step: it follows the time that steps take, and never so far that a move comes to no end."""

from __future__ import annotations

from typing import Any

import numpy as np

from bedload.core.ids import KeyGroup
from bedload.keys.lookup import Hashes
from bedload.migration import STRATEGIES
from bedload.migration.hash_set import NONE
from bedload.migration.pace import Pace
from bedload.migration.slices import Slices
from bedload.store.entries import Entries
from bedload.store.selection import Selection
from bedload.store.shelf import AnyShelf


class Time:
    """Stands still unless something takes a while. A processor's time and the clock's begin elsewhere."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now + 1e6

    def wall(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.now


def test_steps_that_take_long_whatever_their_size_do_not_become_ever_smaller() -> None:
    time = Time()
    pace = Pace(STRATEGIES["seamless"].terms, time, 1 << 16, Slices(time))
    asked: list[int] = []

    def list_some(keys: int) -> Hashes:
        asked.append(keys)
        time.now += 0.01  # the machine is busy with something else
        return NONE

    for _ in range(50):
        pace.list_some(list_some)
    assert asked[-1] >= 1000


def test_keys_that_take_long_are_listed_fewer_at_a_time() -> None:
    time = Time()
    pace = Pace(STRATEGIES["seamless"].terms, time, 1 << 16, Slices(time))
    asked: list[int] = []

    def list_some(keys: int) -> Hashes:
        asked.append(keys)
        time.now += keys * 1e-6
        return NONE

    for _ in range(50):
        pace.list_some(list_some)
    assert 1900 <= asked[-1] <= 2100


def test_keys_that_take_long_are_noted_fewer_at_a_time() -> None:
    time = Time()
    pace = Pace(STRATEGIES["seamless"].terms, time, 1 << 16, Slices(time))
    asked: list[int] = []

    def note_some(keys: int) -> Hashes:
        asked.append(keys)
        time.now += keys * 1e-6
        return NONE

    for _ in range(50):
        pace.note_some(1 << 20, note_some)
    assert 1900 <= asked[-1] <= 2100


def _share(touched: int, *, flipped: bool = False) -> float:
    """Of a busy owner's time, where an epoch of a second touches so many keys, and to copy one takes 10 us."""
    time = Time()
    pace = Pace(STRATEGIES["seamless"].terms, time, 1 << 16, Slices(time))
    for _ in range(3):
        started = time.monotonic()
        time.now += 0.01
        pace.copied(1000)
        pace.worked(started, 0, idle=0.0)
        time.now += 0.99
        pace.sealed(touched // 2, known=0.5)
    if flipped:
        pace.flip()
    started = time.monotonic()
    time.now += 0.01
    pace.copied(1000)
    pace.worked(started, 0, idle=0.0)
    return 0.01 / (0.01 + pace.rests())


def test_copying_ahead_outruns_what_changes() -> None:
    assert round(_share(0), 3) == 0.05, "nothing changes, so nothing hurries"
    assert round(_share(1000), 3) == 0.05, "a hundredth of the time copies as many as change"
    assert round(_share(10_000), 3) == 0.3
    assert round(_share(1_000_000), 3) == 0.8, "never more than the ceiling"


def test_after_the_flip_what_is_left_comes_soon() -> None:
    assert round(_share(0, flipped=True), 3) == 0.25


class _Counted(list[Any]):
    """A list that knows how many of its items were copied."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        got = super().__getitem__(at)
        if isinstance(at, slice):
            _Counted.copied += len(got)
            return _Counted(got)
        return got


class _Shelf(AnyShelf[list[Any]]):
    """One key group."""

    def _held_in(self, group: KeyGroup) -> list[Any]:
        return _Counted(range(5000))

    def _put(self, some: list[Any], group: KeyGroup) -> Hashes:
        self._entries.add(np.array(some, np.int64), np.full(len(some), group))
        return NONE


def test_listing_a_part_of_a_key_group_does_not_copy_the_rest() -> None:
    _Counted.copied = 0
    shelf = _Shelf(Selection([KeyGroup(0)]), Entries(5000), 1, 5000, _Counted())
    while not shelf.listed:
        shelf.list_some(50)
    assert shelf.hashes.tolist() == list(range(5000))
    assert _Counted.copied == 5000
