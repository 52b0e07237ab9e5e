"""The simulator can fail over restores that fail, variables in another order and lost outputs: mistakes are caught."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario
from tests.simulator.faults import ALWAYS

from bedload.control.standing import Phase, Standing
from bedload.core.errors import LocalDiskError
from bedload.protocol import messages as m
from bedload.protocol.feeder import FeederSession
from bedload.store.row_table import RowTable
from bedload.worker import records
from bedload.worker.applying import Applying
from bedload.worker.hosted import Phase as WorkerPhase
from bedload.worker.machine import WorkerMachine
from bedload.worker.records import Records
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
SPILLED = Scenario(ALWAYS | {"full disk", "lost outputs"}, 0.3)
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


def damaged_outputs_are_taken_as_they_are(patch: Patch) -> None:
    patch.setattr(records, "xxhash", SimpleNamespace(xxh3_64_intdigest=lambda body: 0))


def lost_outputs_are_taken_for_none(patch: Patch) -> None:
    original = Records.body

    def body(self: Any, kept: Any) -> Any:
        try:
            return original(self, kept)
        except LocalDiskError:
            return None

    patch.setattr(Records, "body", body)


def lost_outputs_roll_a_sealed_epoch_back(patch: Patch) -> None:
    original = Applying.from_feeder

    def from_feeder(self: Any, hosted: Any, peer: Any, message: Any, body: Any) -> Any:
        out = original(self, hosted, peer, message, body)
        refused = [it.error.error() for _, it, _ in out if isinstance(it, m.Refused)]
        lost = [error for error in refused if isinstance(error, LocalDiskError)]
        return [*out, *self.fail(hosted, lost[0])] if lost and hosted.phase is WorkerPhase.SEALED else out

    patch.setattr(Applying, "from_feeder", from_feeder)


def repeated_parts_are_taken_for_the_next(patch: Patch) -> None:
    original = FeederSession.receive

    def receive(self: Any, worker: Any, message: Any, body: Any) -> None:
        if isinstance(message, m.Part) and not self.complete and worker == self.workers[self._ended]:
            message = msgspec.structs.replace(message, part=self._part)
        original(self, worker, message, body)

    patch.setattr(FeederSession, "receive", receive)


MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (a_part_of_the_state_passes_for_all_of_it, UNREAD, 25),
    (state_that_could_not_be_read_is_taken_for_here, UNREAD, 0),
    (state_leaves_those_who_could_not_read_it, UNREAD_AND_MOVED, 4),
    (new_code_brings_its_own_order_of_variables, REORDERED, 0),
    (damaged_outputs_are_taken_as_they_are, SPILLED, 15),
    (lost_outputs_are_taken_for_none, SPILLED, 0),
    (lost_outputs_roll_a_sealed_epoch_back, SPILLED, 0),
    (repeated_parts_are_taken_for_the_next, SPILLED, 85),
]


@pytest.mark.parametrize(("mutate", "scenario", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_mistake_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_failure(scenario, start) is not None, "no seed noticed"
