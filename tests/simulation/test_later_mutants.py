"""The simulator can fail over restores that fail and over variables in another order: each mistake is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario
from tests.simulator.faults import ALWAYS

from bedload.control.standing import Phase, Standing
from bedload.store.row_table import RowTable
from bedload.worker.machine import WorkerMachine
from bedload.worker.restoring import Restoring

UNREAD = Scenario(ALWAYS | {"failed restore", "lost workers", "no replacement"}, 0.3, durable=True)
UNREAD_AND_MOVED = Scenario(
    ALWAYS | {"failed restore", "lost worker", "lost workers", "lost driver"},
    0.3,
    True,
    3,
    (),
    ("rescale", "drain", "move"),
)
REORDERED = Scenario(ALWAYS | {"another order", "redeploy"}, 0.3, moves=3)


def a_part_of_the_state_passes_for_all_of_it(patch: Patch) -> None:
    original = WorkerMachine._restore
    patch.setattr(
        WorkerMachine,
        "_restore",
        lambda self, message, plan: original(self, msgspec.structs.replace(message, whole=True), plan),
    )


def state_that_could_not_be_read_is_taken_for_here(patch: Patch) -> None:
    original = Restoring.fail

    def fail(self: Any, error: Any) -> None:
        original(self, error)
        self.error = None

    patch.setattr(Restoring, "fail", fail)


def state_leaves_those_who_could_not_read_it(patch: Patch) -> None:
    between = property(lambda self: self.phase in (Phase.IDLE, Phase.ABORTED) and self.at_rest)
    patch.setattr(Standing, "between_epochs", between)


def new_code_brings_its_own_order_of_variables(patch: Patch) -> None:
    def bind(self: Any, layout: Any, row: type, key_columns: int, key_types: Any) -> None:
        self.layout, self._row = layout, row
        self._key_columns, self._key_types = key_columns, tuple(key_types)
        for store in self.stores.values():
            store.rebind(row, layout)

    patch.setattr(RowTable, "bind", bind)


MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (a_part_of_the_state_passes_for_all_of_it, UNREAD, 25),
    (state_that_could_not_be_read_is_taken_for_here, UNREAD, 0),
    (state_leaves_those_who_could_not_read_it, UNREAD_AND_MOVED, 4),
    (new_code_brings_its_own_order_of_variables, REORDERED, 0),
]


@pytest.mark.parametrize(("mutate", "scenario", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_mistake_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_failure(scenario, start) is not None, "no seed noticed"
