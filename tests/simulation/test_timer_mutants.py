"""The simulator can fail over timers: each of these mistakes is caught by some seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario, simulation
from tests.simulator.faults import ALWAYS
from tests.simulator.workload import Kind, drawn_kind

from bedload.state.timers import VARIABLE
from bedload.store import resting
from bedload.store.due import NEVER
from bedload.store.rows import RowStore
from bedload.worker import firing
from bedload.worker.in_transit import InTransit

MOVES = Scenario(ALWAYS, 0.3, moves=3)
DURABLE = Scenario(ALWAYS, 0.3, durable=True, moves=1)


def a_replay_does_not_find_what_was_taken(patch: Patch) -> None:
    original = RowStore.abort

    def abort(self: Any) -> None:
        self._taken = []
        original(self)

    patch.setattr(RowStore, "abort", abort)


def timers_that_come_with_state_are_not_looked_for(patch: Patch) -> None:
    patch.setattr(RowStore, "_arm_first", lambda self, timers: None)


def timers_of_rows_at_rest_are_not_looked_for(patch: Patch) -> None:
    none = np.empty(0, np.int64)
    patch.setattr(resting, "first_in_column", lambda column, clock: (none, none))


def timers_on_their_way_are_not_waited_for(patch: Patch) -> None:
    patch.setattr(InTransit, "waits", lambda self, turn, time: None)


def copies_fire_before_they_are_owned(patch: Patch) -> None:
    original = firing.Firing.collect

    def collect(self: Any, stores: Any, owns: Any) -> None:
        original(self, stores, None)

    patch.setattr(firing.Firing, "collect", collect)


def a_timer_that_fired_stays(patch: Patch) -> None:
    patch.setattr(firing, "take_out", lambda item, timer: None)


def a_timer_that_fired_comes_back_with_a_restore(patch: Patch) -> None:
    original = RowStore.gather

    def gather(self: Any, *args: Any) -> Any:
        at = self._layout.names.index(VARIABLE)
        known = [row for row in self._live() if isinstance(row._bedload_image, tuple)]
        fired = [row for row in known if row._bedload_image[at] and not row.bedload_timers]
        for row in fired:
            row.bedload_timers = row._bedload_image[at]
        written = original(self, *args)
        for row in fired:
            row.bedload_timers = ()
        return written

    patch.setattr(RowStore, "gather", gather)


def what_is_due_next_is_not_told(patch: Patch) -> None:
    patch.setattr(RowStore, "next_due", lambda self, clock: NEVER)


MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (a_replay_does_not_find_what_was_taken, MOVES, 0),
    (timers_that_come_with_state_are_not_looked_for, MOVES, 0),
    (timers_of_rows_at_rest_are_not_looked_for, MOVES, 0),
    (timers_on_their_way_are_not_waited_for, Scenario(ALWAYS, 0.3, moves=3, strategies=("lazy", "progressive")), 0),
    (copies_fire_before_they_are_owned, MOVES, 0),
    (a_timer_that_fired_stays, MOVES, 0),
    (a_timer_that_fired_comes_back_with_a_restore, DURABLE, 0),
    (what_is_due_next_is_not_told, MOVES, 0),
]


@pytest.mark.parametrize(("mutate", "scenario", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_mistake_with_timers_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    monkeypatch.setattr(simulation, "drawn_kind", lambda chance, apart: (drawn_kind(chance, apart), Kind.TIMED)[1])
    monkeypatch.setattr(firing, "MOST", 1000)
    assert first_failure(scenario, start) is not None, "no seed noticed"
