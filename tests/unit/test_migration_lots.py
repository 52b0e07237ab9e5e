"""What has arrived is counted some keys at a time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.unit.test_shelf_moves import EVERY, Worker, group_of, hashes_of, put

from bedload.core.ids import KeyGroup, KeyHash, WorkerId
from bedload.migration import lots
from bedload.migration.lots import MovedKeys
from bedload.protocol.messages import Lot

KEYS = [("a", number) for number in range(100)]


class State:
    """A worker's state, whose shelves say how much they were asked to list."""

    def __init__(self, worker: Worker) -> None:
        self._runtime = worker.runtime
        self.listed: list[int] = []

    def shelve(self, selection: Any) -> Any:
        shelf = self._runtime.shelve(selection)
        list_some = shelf.list_some

        def watched(keys: int, first: Any = None) -> Any:
            self.listed.append(keys)
            return list_some(keys, first)

        shelf.list_some = watched  # type: ignore[method-assign]
        return shelf

    def keys_in(self, groups: Collection[KeyGroup]) -> int:
        return self._runtime.keys_in(groups)


def test_single_keys_are_looked_for_some_at_a_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(lots, "_SOME", 7)
    worker = Worker("small")
    worker.epoch(put(*KEYS))
    single = [key for key in KEYS if group_of(key) == EVERY[1]][:3]
    hashes = tuple(KeyHash(it) for it in hashes_of(*single, ("nobody", 1)).tolist())
    lot = Lot(WorkerId(0), WorkerId(1), (EVERY[0],), hashes, key_groups=(EVERY[1], group_of(("nobody", 1))))
    state = State(worker)
    moved = MovedKeys(state, [lot])
    steps = 1
    while (count := moved.count_some()) is None:
        steps += 1
    assert count == sum(group_of(key) == EVERY[0] for key in KEYS) + len(single)
    assert steps == len(state.listed) > 2
    assert set(state.listed) == {7}


def test_key_groups_alone_are_counted_at_once() -> None:
    worker = Worker("columns")
    worker.epoch(put(*KEYS))
    moved = MovedKeys(State(worker), [Lot(WorkerId(0), WorkerId(1), (EVERY[0], EVERY[2]))])
    assert moved.count_some() == sum(group_of(key) in (EVERY[0], EVERY[2]) for key in KEYS)
