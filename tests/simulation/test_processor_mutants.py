"""The simulator can fail over processors of Spark's: each of these mistakes is caught by some seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario, simulation
from tests.simulator.faults import ALWAYS
from tests.simulator.workload import Kind, drawn_kind

from bedload.spark.drop_in import runtime
from bedload.store.rows import RowStore
from bedload.worker.firing import Firing

PLAIN, MOVES = Scenario(ALWAYS, 0.3), Scenario(ALWAYS, 0.3, moves=3)


def a_timer_that_fired_stays(patch: Patch) -> None:
    patch.setattr(runtime, "put_timers", lambda item, timers: None)


def a_key_without_anything_stays(patch: Patch) -> None:
    patch.setattr(runtime._Epoch, "forget", lambda self: None)


def a_registered_timer_is_not_looked_for(patch: Patch) -> None:
    patch.setattr(RowStore, "arm", lambda self, clock, at, key: None)


def timers_that_come_with_state_are_not_looked_for(patch: Patch) -> None:
    patch.setattr(RowStore, "_arm_first", lambda self, timers: None)


def copies_fire_before_they_are_owned(patch: Patch) -> None:
    original = Firing.collect
    patch.setattr(Firing, "collect", lambda self, stores, owns: original(self, stores, None))


def rows_wait_for_the_epoch_after_a_rollback(patch: Patch) -> None:
    original = runtime.ProcessorRuntime.begin

    def begin(self: Any, *args: Any) -> None:
        waiting = self._waiting
        original(self, *args)
        self._waiting = waiting

    patch.setattr(runtime.ProcessorRuntime, "begin", begin)
    patch.setattr(runtime.ProcessorRuntime, "abort", lambda self: self._table.abort())


MUTANTS: list[tuple[Callable[[Patch], None], Scenario]] = [
    (a_timer_that_fired_stays, PLAIN),
    (a_key_without_anything_stays, PLAIN),
    (a_registered_timer_is_not_looked_for, PLAIN),
    (timers_that_come_with_state_are_not_looked_for, MOVES),
    (copies_fire_before_they_are_owned, MOVES),
    (rows_wait_for_the_epoch_after_a_rollback, PLAIN),
]


@pytest.mark.parametrize(("mutate", "scenario"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_mistake_with_processors_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    monkeypatch.setattr(simulation, "drawn_kind", lambda chance, apart: (drawn_kind(chance, apart), Kind.PROCESSOR)[1])
    assert first_failure(scenario) is not None, "no seed noticed"
