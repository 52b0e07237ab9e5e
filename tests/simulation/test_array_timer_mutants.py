"""The simulator can fail over timers of columns and over keys that expire: each of these mistakes is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario, simulation
from tests.simulator.faults import ALWAYS
from tests.simulator.workload import Kind, drawn_kind

from bedload.store.columns import ColumnTable
from bedload.store.columns.column import Column
from bedload.store.columns.times import Times
from bedload.store.columns.values import Values
from bedload.store.due import NEVER
from bedload.worker import column_runtime
from bedload.worker.column_runtime import ColumnRuntime
from bedload.worker.expiry import KeyTtl, VariableTtl
from bedload.worker.in_transit import InTransit

MOVES = Scenario(ALWAYS, 0.3, moves=3)
DURABLE = Scenario(ALWAYS, 0.3, durable=True, moves=1)
LAZY = Scenario(ALWAYS, 0.3, moves=3, strategies=("lazy", "progressive"))


def times_that_come_with_state_are_not_looked_for(patch: Patch) -> None:
    def put(self: Any, slots: Any, prepared: Any, runs: Any = None) -> None:
        numbers, valid = prepared
        Values.put(self.values, slots, numbers, runs)
        if self.mask is not None:
            Values.put(self.mask, slots, True if valid is None else valid, runs)

    patch.setattr(Column, "put", put)


def a_replay_does_not_find_what_was_taken(patch: Patch) -> None:
    patch.setattr(Times, "restore", Values.restore)


def a_place_that_is_used_again_has_the_times_of_the_key_before(patch: Patch) -> None:
    patch.setattr(Times, "leave", lambda self, slots: None)
    patch.setattr(Times, "start", lambda self, slots: None)


def a_key_that_is_gone_is_due(patch: Patch) -> None:
    patch.setattr(Times, "clear", lambda self, slots: None)


def bounds_are_raised_before_it_is_due(patch: Patch) -> None:
    original = Times.tighten

    def tighten(self: Any, now: int) -> None:
        original(self, now + 1000)
        self._bounds.array[:] = np.maximum(self._bounds.array, now + 1000)

    patch.setattr(Times, "tighten", tighten)


def what_is_on_its_way_is_not_waited_for(patch: Patch) -> None:
    patch.setattr(InTransit, "waits", lambda self, turn, time: None)


def nobody_is_told_what_is_due(patch: Patch) -> None:
    patch.setattr(ColumnRuntime, "due_hashes", lambda self, groups, time: np.empty(0, np.int64))


def copies_fire_before_they_are_owned(patch: Patch) -> None:
    patch.setattr(column_runtime, "owned", lambda table, slots, owns: slots)


def a_row_finds_what_has_expired(patch: Patch) -> None:
    patch.setattr(ColumnTable, "renew", lambda self, slots: None)


def a_row_does_not_refresh(patch: Patch) -> None:
    original = KeyTtl.renew

    def refresh(self: Any, table: Any, slots: Any, time: Any) -> None:
        original(self, table, slots[table.times(self.column).live[slots] == 0], time)

    patch.setattr(KeyTtl, "renew", refresh)


def what_has_expired_stays_without_a_row(patch: Patch) -> None:
    patch.setattr(KeyTtl, "expire", lambda self, table, due, time: None)


def what_has_expired_is_still_seen(patch: Patch) -> None:
    patch.setattr(VariableTtl, "renew", lambda self, table, slots, time: None)


def a_value_is_taken_out_only_if_there_are_rows(patch: Patch) -> None:
    patch.setattr(VariableTtl, "expire", lambda self, table, due, time: None)


def what_is_written_does_not_live_on(patch: Patch) -> None:
    patch.setattr(VariableTtl, "written", lambda self, table, slots, time: None)


def what_is_read_does_not_live_on(patch: Patch) -> None:
    patch.setattr(VariableTtl, "handed_out", lambda self, table, slots, time: None)


def a_value_that_expires_is_not_written_to_the_checkpoint(patch: Patch) -> None:
    original = ColumnTable.reset

    def reset(self: Any, slots: Any, name: str) -> None:
        original(self, slots, name)
        values, places = self._columns[name].values, self.index.mark[slots] - 1
        values.before[places] = values.live[slots]

    patch.setattr(ColumnTable, "reset", reset)


def a_timer_that_fired_comes_back_with_a_restore(patch: Patch) -> None:
    original = ColumnTable.delta

    def delta(self: Any) -> Any:
        fresh, fired = self.index.fresh, {}
        known = self.index.touched[~fresh]
        for name, times in self._times.items():
            if name.startswith("bedload_timer_"):
                gone = times.live[known] == NEVER
                fired[name] = known[gone]
                times.live[known[gone]] = times.before[: len(fresh)][~fresh][gone]
        written = original(self)
        for name, slots in fired.items():
            self._times[name].live[slots] = NEVER
        return written

    patch.setattr(ColumnTable, "delta", delta)


def what_is_due_next_is_not_told(patch: Patch) -> None:
    patch.setattr(ColumnTable, "next_due", lambda self, names, groups: dict.fromkeys(names, NEVER))


def what_is_kept_of_other_workers_is_told_as_due(patch: Patch) -> None:
    patch.setattr(ColumnTable, "next_due", lambda self, names, groups: {it: self.times(it).next for it in names})


TIMERS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (times_that_come_with_state_are_not_looked_for, MOVES, 0),
    (a_replay_does_not_find_what_was_taken, MOVES, 0),
    (a_place_that_is_used_again_has_the_times_of_the_key_before, MOVES, 0),
    (a_key_that_is_gone_is_due, MOVES, 0),
    (bounds_are_raised_before_it_is_due, MOVES, 0),
    (what_is_on_its_way_is_not_waited_for, LAZY, 0),
    (nobody_is_told_what_is_due, LAZY, 0),
    (copies_fire_before_they_are_owned, MOVES, 0),
    (a_timer_that_fired_comes_back_with_a_restore, DURABLE, 0),
    (what_has_expired_is_still_seen, MOVES, 0),
    (a_value_is_taken_out_only_if_there_are_rows, MOVES, 0),
    (what_is_written_does_not_live_on, MOVES, 0),
    (what_is_read_does_not_live_on, MOVES, 0),
    (a_value_that_expires_is_not_written_to_the_checkpoint, MOVES, 0),
    (what_is_due_next_is_not_told, MOVES, 0),
    (what_is_kept_of_other_workers_is_told_as_due, MOVES, 0),
]
EXPIRY: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (times_that_come_with_state_are_not_looked_for, MOVES, 0),
    (a_replay_does_not_find_what_was_taken, MOVES, 0),
    (what_is_on_its_way_is_not_waited_for, LAZY, 0),
    (a_row_finds_what_has_expired, MOVES, 0),
    (a_row_does_not_refresh, MOVES, 0),
    (what_has_expired_stays_without_a_row, MOVES, 0),
    (what_is_due_next_is_not_told, MOVES, 0),
]
MUTANTS = [*((Kind.ARRAYS, *mutant) for mutant in TIMERS), *((Kind.EXPIRING, *mutant) for mutant in EXPIRY)]


@pytest.mark.parametrize(
    ("kind", "mutate", "scenario", "start"), MUTANTS, ids=[f"{kind.name}-{it.__name__}" for kind, it, _, _ in MUTANTS]
)
def test_a_mistake_with_times_of_columns_is_caught(
    kind: Kind, mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    monkeypatch.setattr(simulation, "drawn_kind", lambda chance, apart: (drawn_kind(chance, apart), kind)[1])
    assert first_failure(scenario, start) is not None, "no seed noticed"
