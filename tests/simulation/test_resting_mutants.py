"""The simulator can fail over rows at rest and shelves without names: each of these mistakes is caught by some seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario
from tests.simulator.faults import ALWAYS

from bedload.migration.lane import Lane
from bedload.store.resting import RestingStore
from bedload.store.rows import RowStore

MOVES = Scenario(ALWAYS, 0.3, moves=3)
TORN = Scenario(ALWAYS | {"broken neighbour"}, 0.3, moves=3, strategies=("all_at_once",))


def touched_rows_do_not_wake(patch: Patch) -> None:
    patch.setattr(RestingStore, "touch", RowStore.touch)


def rows_that_wake_stay_at_rest_too(patch: Patch) -> None:
    patch.setattr(RestingStore, "_leave", lambda self, keys: None)


def rows_at_rest_do_not_move_on(patch: Patch) -> None:
    patch.setattr(RestingStore, "scan", RowStore.scan)


def rows_at_rest_move_on_as_removed(patch: Patch) -> None:
    patch.setattr(RestingStore, "asleep", lambda self, keys: [False] * len(keys))
    patch.setattr(RestingStore, "current", RowStore.current)


def reads_miss_rows_at_rest(patch: Patch) -> None:
    patch.setattr(RestingStore, "read", RowStore.read)


def dropped_rows_stay_at_rest(patch: Patch) -> None:
    patch.setattr(RestingStore, "discard", RowStore.discard)


def torn_ranges_are_not_sent_again(patch: Patch) -> None:
    original = Lane.broken

    def broken(self: Any, until: float, **how: bool) -> None:
        original(self, until, **how)
        self.again.clear()

    patch.setattr(Lane, "broken", broken)


MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (touched_rows_do_not_wake, MOVES, 0),
    (rows_that_wake_stay_at_rest_too, MOVES, 0),
    (rows_at_rest_do_not_move_on, MOVES, 0),
    (rows_at_rest_move_on_as_removed, MOVES, 0),
    (reads_miss_rows_at_rest, MOVES, 0),
    (dropped_rows_stay_at_rest, Scenario(ALWAYS, 0.3, moves=3, strategies=("hybrid", "seamless")), 0),
    (torn_ranges_are_not_sent_again, TORN, 0),
]


@pytest.mark.parametrize(("mutate", "scenario", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_mistake_with_rows_at_rest_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_failure(scenario, start) is not None, "no seed noticed"
