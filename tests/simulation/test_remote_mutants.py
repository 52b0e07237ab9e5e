"""The simulator can fail over state in a remote store: mistakes with turns, owners and places are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.remotes import MemoryServer
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario
from tests.simulator.faults import ALWAYS

from bedload.migration.sender import Sender
from bedload.store import remote_rows
from bedload.store.remote import NO_STAMP, Head
from bedload.store.remote_rows import RemoteStore
from bedload.store.remote_table import RemoteTable

IN_REDIS = Scenario(ALWAYS | {"state in redis", "slow redis"}, 0.2, durable=True)
LOSSES = {"lost worker", "killed in the seal", "lost driver", "paused cluster"}
LOST = Scenario(ALWAYS | {"state in redis"} | LOSSES, 0.25, durable=True)
FORGETS = Scenario(ALWAYS | {"state in redis", "old redis", "wiped redis"}, 0.3, durable=True)
MOVED_AND_LOST = Scenario(ALWAYS | {"state in redis", "lost source", "lost target"} | LOSSES, 0.25, True, moves=4)
MOVED = Scenario(ALWAYS | {"state in redis"}, 0.2, durable=True, moves=4)


def what_does_not_count_is_not_undone(patch: Patch) -> None:
    original = RemoteStore.abort

    def abort(self: Any) -> None:
        original(self)
        self.undoes, self.back = False, None

    patch.setattr(RemoteStore, "abort", abort)


def a_write_is_lost(patch: Patch) -> None:
    original = remote_rows._parts

    def parts(puts: Any, gone: Any) -> Any:
        return original(puts[:-1] if len(puts) > 2 else puts, gone)

    patch.setattr(remote_rows, "_parts", parts)


def what_was_removed_stays(patch: Patch) -> None:
    original = remote_rows._parts
    patch.setattr(remote_rows, "_parts", lambda puts, gone: original(puts, []))


def any_state_is_taken_for_the_one_that_is_wanted(patch: Patch) -> None:
    """Nobody looks whose state it is, or of which turn, and who is given up writes on."""
    original, find = MemoryServer._seal, MemoryServer._find

    def seal(self: Any, place: bytes, *said: Any) -> Any:
        head = self.head(place)
        if head is not None:
            said = (*said[:3], head.owner, head.stamp if said[9] else said[4], *said[5:])
            self.put_head(place, head._replace(partial=not said[9]))
        return original(self, place, *said)

    def found(self: Any, index: bytes, field: bytes, owner: bytes, base: bytes, latest: bytes, *more: Any) -> Any:
        place = self.data.get(index, {}).get(field)
        head = None if place is None else self.head(place)
        if head is not None:
            self.put_head(place, Head(base, NO_STAMP, True, False, owner, NO_STAMP, 0, head.shape))
        return find(self, index, field, owner, base, b"9", *more)

    patch.setattr(MemoryServer, "_seal", seal)
    patch.setattr(MemoryServer, "_find", found)
    patch.setattr(RemoteStore, "check", lambda self, head: None)


def what_is_not_there_is_taken_for_new(patch: Patch) -> None:
    original = RemoteStore.check
    patch.setattr(RemoteStore, "check", lambda self, head: None if head is None else original(self, head))


def state_counts_as_here_before_it_is_said_where_it_is(patch: Patch) -> None:
    patch.setattr(Sender, "_place", lambda self, lane: None)


def a_key_group_counts_as_whole_before_it_is(patch: Patch) -> None:
    original = RemoteTable.write
    patch.setattr(RemoteTable, "write", lambda self, turn, whole: original(self, turn, lambda group: True))


def a_place_of_which_keys_went_away_counts_as_whole(patch: Patch) -> None:
    original = MemoryServer._put

    def put(self: Any, place: bytes, *said: Any) -> Any:
        before = self.head(place)
        answer = original(self, place, *said)
        if before is not None and before.whole:
            self.put_head(place, self.head(place)._replace(whole=True))
        return answer

    patch.setattr(MemoryServer, "_put", put)


MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (what_does_not_count_is_not_undone, IN_REDIS, 0),
    (a_write_is_lost, IN_REDIS, 0),
    (what_was_removed_stays, IN_REDIS, 8),
    (any_state_is_taken_for_the_one_that_is_wanted, LOST, 3),
    (what_is_not_there_is_taken_for_new, FORGETS, 3),
    (state_counts_as_here_before_it_is_said_where_it_is, MOVED, 0),
    (a_key_group_counts_as_whole_before_it_is, MOVED_AND_LOST, 190),
    (a_place_of_which_keys_went_away_counts_as_whole, MOVED_AND_LOST, 137),
]


@pytest.mark.parametrize(("mutate", "scenario", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_mistake_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_failure(scenario, start) is not None, "no seed noticed"
