"""The simulator can fail over state on disk: mistakes with what has left memory, and with what is dead, are caught."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario
from tests.simulator.faults import ALWAYS

from bedload.store.columns.paged_table import PagedTable
from bedload.store.disk_rows import DiskStore, Place
from bedload.store.disk_table import DiskTable
from bedload.worker.local_slabs import FileBacking

ON_DISK = Scenario(ALWAYS | {"state on disk", "full store"}, 0.2)
MOVED = Scenario(ALWAYS | {"state on disk"}, 0.2, moves=4)


def what_changed_leaves_without_a_write(patch: Patch) -> None:
    original = Place.put_away

    def put_away(self: Any, going: Any) -> None:
        for store, rows in going:
            names = [store.name(row._bedload_key) for row in rows]
            for row, there in zip(rows, self.disk.get(names), strict=True):
                row._bedload_stored = row._bedload_stored or there is not None
        original(self, going)

    patch.setattr(Place, "put_away", put_away)


def what_leaves_in_an_epoch_is_what_the_epoch_made_of_it(patch: Patch) -> None:
    original = DiskTable.abort

    def abort(self: Any) -> None:
        for store in self.stores.values():
            live = [row for row in store._live() if row._bedload_weight]
            names = [store.name(row._bedload_key) for row in live]
            self.place.write(list(zip(names, self.place.packing.of_rows(live), strict=True)))
        original(self)

    patch.setattr(DiskTable, "abort", abort, raising=False)


def what_was_removed_stays_on_the_disk(patch: Patch) -> None:
    original = DiskStore.commit

    def commit(self: Any) -> None:
        buried = set(self._buried)
        original(self)
        self._buried = buried

    patch.setattr(DiskStore, "commit", commit)


def what_moved_away_stays_on_the_disk(patch: Patch) -> None:
    patch.setattr(Place, "prefix", lambda self, group: int(group).to_bytes(7, "big"))
    original = DiskStore.give_up

    def give_up(self: Any) -> None:
        drop, self.place.disk.drop = self.place.disk.drop, lambda prefix: None
        original(self)
        self.place.disk.drop = drop

    patch.setattr(DiskStore, "give_up", give_up)


def a_slab_is_not_written(patch: Patch) -> None:
    original = FileBacking.lay_down

    def lay_down(self: Any, address: int, size: int, at: int) -> None:
        """It is there already, as it was when it was written first."""
        there = self.size()
        with pytest.MonkeyPatch.context() as some:
            if there:
                some.setattr(os, "pwrite", lambda fd, part, at: len(part))
            original(self, address, size, at)

    patch.setattr(FileBacking, "lay_down", lay_down)


def a_slab_that_comes_back_is_empty(patch: Patch) -> None:
    patch.setattr(FileBacking, "take_up", lambda self, address, size, at: self._fresh(address, size))


def the_last_part_is_left_out(patch: Patch) -> None:
    original = PagedTable.parts

    def parts(self: Any, count: int) -> Any:
        found = list(original(self, count))
        return found[:-1] if len(found) > 1 else found

    patch.setattr(PagedTable, "parts", parts)


MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (what_changed_leaves_without_a_write, ON_DISK, 0),
    (what_leaves_in_an_epoch_is_what_the_epoch_made_of_it, ON_DISK, 0),
    (what_was_removed_stays_on_the_disk, ON_DISK, 20),
    (what_moved_away_stays_on_the_disk, MOVED, 10),
    (a_slab_is_not_written, ON_DISK, 0),
    (a_slab_that_comes_back_is_empty, ON_DISK, 0),
    (the_last_part_is_left_out, ON_DISK, 0),
]


@pytest.mark.parametrize(("mutate", "scenario", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_mistake_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_failure(scenario, start) is not None, "no seed noticed"
