"""The simulator can fail over what expires on rows: each of these mistakes is caught by some seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario, simulation
from tests.simulator.faults import ALWAYS
from tests.simulator.workload import Kind, drawn_kind

from bedload.state import expiries
from bedload.state.tracked_map import MapLog
from bedload.store.expiring import Expiring
from bedload.store.rows import RowStore
from bedload.worker.row_runtime import OperatorRuntime

MOVES = Scenario(ALWAYS, 0.3, moves=3)


def an_entry_that_is_gone_comes_back_with_a_restore(patch: Patch) -> None:
    original = RowStore.written

    def written(self: Any) -> Any:
        found = original(self)
        kept = [i for i, row in enumerate(found.changed) if id(row) not in self._expiring.swept]
        known, images, masks = ([them[i] for i in kept] for them in (found.changed, found.images, found.masks))
        return found._replace(changed=known, images=images, masks=masks)

    patch.setattr(RowStore, "written", written)


def what_is_gone_cannot_be_put_back(patch: Patch) -> None:
    def expire(self: Any, row: Any, journal: Any) -> None:
        value, when = getattr(row, self.name), getattr(row, self.expiry)
        take = dict.pop if isinstance(value, dict) else lambda them, key, _: set.discard(them, key)
        for key in [key for key, at in when.items() if at <= self.now]:
            take(value, key, None)  # past its log: neither rolled back nor written

    patch.setattr(expiries._Entries, "expire", expire)


def a_replay_does_not_find_what_was_due(patch: Patch) -> None:
    original = Expiring.abort

    def abort(self: Any) -> None:
        self._taken = []
        original(self)

    patch.setattr(Expiring, "abort", abort)


def a_refresh_of_an_aborted_epoch_stays(patch: Patch) -> None:
    original = RowStore.abort

    def abort(self: Any) -> None:
        rows = [row for row in self._touched if row._bedload_image and hasattr(row, "bedload_ttl_total")]
        later = [(row, row.bedload_ttl_total) for row in rows]
        original(self)
        for row, at in later:
            row.bedload_ttl_total = at

    patch.setattr(RowStore, "abort", abort)


def expiries_that_come_with_state_are_not_looked_for(patch: Patch) -> None:
    patch.setattr(Expiring, "arm", lambda self, keys, values: None)


def what_is_read_does_not_live_on(patch: Patch) -> None:
    original = expiries.Expiries.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        self.watches_code = False

    patch.setattr(expiries.Expiries, "__init__", init)


def what_looks_for_itself_has_read(patch: Patch) -> None:
    original = MapLog.removing

    def removing(self: Any, current: Any, key: Any) -> None:
        if hasattr(current, "_bl_drop") and type(current).get is not dict.get:
            current._bl_renew(list(dict.keys(current)))
        original(self, current, key)

    patch.setattr(MapLog, "removing", removing)


def it_is_gone_an_epoch_early(patch: Patch) -> None:
    original = expiries._Lasting.begin

    def begin(self: Any, time: Any) -> None:
        original(self, time)
        self.now += 1000 * self.begun

    patch.setattr(expiries._Lasting, "begin", begin)


def what_is_written_again_keeps_its_expiry(patch: Patch) -> None:
    original = expiries._Entries.stamp

    def stamp(self: Any, row: Any, before: Any) -> bool:
        old = dict(getattr(row, self.expiry))
        found = original(self, row, before)
        getattr(row, self.expiry).update({k: at for k, at in old.items() if k in getattr(row, self.name)})
        return found

    patch.setattr(expiries._Entries, "stamp", stamp)
    patch.setattr(expiries, "count_puts", lambda rows, *_: ([], list(rows)))  # all the long way


def keys_on_their_way_are_not_waited_for(patch: Patch) -> None:
    patch.setattr(OperatorRuntime, "timed", False)


def copies_expire_before_they_are_owned(patch: Patch) -> None:
    patch.setattr(RowStore, "sweep", _sweeping_all(RowStore.sweep))


def _sweeping_all(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    return lambda self, keys: original(self, self.overdue())


def what_is_not_due_yet_is_not_looked_for_again(patch: Patch) -> None:
    def leave(self: Any, key: Any, row: Any) -> None:
        del self.overdue[key]

    patch.setattr(Expiring, "leave", leave)


def a_key_outlives_its_end(patch: Patch) -> None:
    patch.setattr(expiries._Key, "first_of", lambda self, value, expiry: expiries.NEVER)


def what_is_due_next_is_not_told(patch: Patch) -> None:
    patch.setattr(Expiring, "next", lambda self, clock: expiries.NEVER)


LAZY = Scenario(ALWAYS, 0.3, moves=3, strategies=("lazy", "progressive"))
DURABLE = Scenario(ALWAYS, 0.3, durable=True, moves=1)
LONG = Scenario(ALWAYS, 0.1, moves=1, epochs=10)
"""Long enough for a key that comes up, is not due yet, and is due later."""
MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (an_entry_that_is_gone_comes_back_with_a_restore, DURABLE, 0),
    (what_is_gone_cannot_be_put_back, MOVES, 0),
    (a_replay_does_not_find_what_was_due, MOVES, 0),
    (a_refresh_of_an_aborted_epoch_stays, MOVES, 0),
    (expiries_that_come_with_state_are_not_looked_for, MOVES, 0),
    (it_is_gone_an_epoch_early, MOVES, 0),
    (what_is_written_again_keeps_its_expiry, MOVES, 0),
    (keys_on_their_way_are_not_waited_for, LAZY, 0),
    (copies_expire_before_they_are_owned, MOVES, 0),
    (what_is_not_due_yet_is_not_looked_for_again, LONG, 0),
    (a_key_outlives_its_end, MOVES, 0),
    (what_is_read_does_not_live_on, MOVES, 0),
    (what_looks_for_itself_has_read, MOVES, 0),
    (what_is_due_next_is_not_told, MOVES, 0),
]


@pytest.mark.parametrize(("mutate", "scenario", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_mistake_with_what_expires_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    monkeypatch.setattr(simulation, "drawn_kind", lambda chance, apart: (drawn_kind(chance, apart), Kind.LASTING)[1])
    assert first_failure(scenario, start) is not None, "no seed noticed"
