"""The simulator can fail over durable state, too: each of these broken protocols is caught by some seed.

As in ``test_mutants``: a mutant changes one decision, and one that survives would mean that the simulator does not look
at what the decision is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario
from tests.simulator.application import Application
from tests.simulator.desk import Desk
from tests.simulator.faults import ALWAYS
from tests.simulator.inline import Inline
from tests.simulator.storage import MemoryStorage, SlowStorage
from tests.simulator.workload import NAME

from bedload.checkpoint import paths, resting
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.filing import Filing
from bedload.checkpoint.history import Base, Garbage, History
from bedload.control.attempt import Attempt
from bedload.control.compaction import Compaction
from bedload.control.epochs import OperatorEpochs
from bedload.control.lineage import Lineage
from bedload.control.standing import Phase, Standing
from bedload.control.turns import Turns
from bedload.core.errors import StoreError
from bedload.migration.parking import Parking
from bedload.worker import durable
from bedload.worker.durable import CheckpointDurability
from bedload.worker.machine import WorkerMachine
from bedload.worker.restoring import Restoring, _Chunk
from bedload.worker.row_runtime import OperatorRuntime


def scenario(*faults: str) -> Scenario:
    return Scenario(ALWAYS | {*faults}, 0.3, durable=True)


LOSSES = scenario("lost worker", "cut off worker", "killed in the seal", "cut off in the seal")
RESTORES = scenario("lost worker", "lost workers", "lost driver")
ZOMBIES = scenario("paused cluster", "lost driver")
BACK = scenario("set back", "lost driver")


# --- writing ---


def fence_is_not_checked(patch: Patch) -> None:
    patch.setattr(durable, "check_fence", lambda storage, generation: None)


def fence_is_checked_before_the_write(patch: Patch) -> None:
    original, check = CheckpointDurability.persist, durable.check_fence

    def persist(self: Any, *arguments: Any) -> Any:
        check(self._storage, self._generation)
        return original(self, *arguments)

    patch.setattr(CheckpointDurability, "persist", persist)
    patch.setattr(durable, "check_fence", lambda storage, generation: None)


def abandoned_mark_is_not_checked(patch: Patch) -> None:
    original = SlowStorage.exists

    def exists(self: Any, path: str) -> bool:
        return not path.endswith(".abandoned") and original(self, path)

    patch.setattr(SlowStorage, "exists", exists)


def turn_is_given_up_without_a_mark(patch: Patch) -> None:
    # Looks, and leaves no mark: a seal that comes after it is acknowledged and passed over.
    patch.setattr(Filing, "abandon", lambda self, operator, turn: None)


def expect_comes_before_the_record(patch: Patch) -> None:
    original = OperatorEpochs._begin

    def begin(self: Any, token: Any, ask: Any) -> Any:
        out = original(self, token, ask)
        self.standing.current.recorded = True
        return out

    patch.setattr(OperatorEpochs, "_begin", begin)


def segment_is_written_after_the_acknowledgement(patch: Patch) -> None:
    original = durable.write_segment
    late: list[Any] = []

    def write_segment(storage: Any, path: str, batch: Any, meta: Any) -> int:
        for arguments in late:
            original(*arguments)
        late[:] = [(storage._inner, path, batch, meta)]
        return 1

    patch.setattr(durable, "write_segment", write_segment)


def claim_comes_after_the_look(patch: Patch) -> None:
    looked: dict[Any, Any] = {}
    claim, lineage = Application._claim, Desk.lineage

    def look_first(self: Any) -> None:
        storage = self._world.storage
        try:
            history = Checkpoint.open(storage, pools=Inline).load_history(NAME)
            looked[self._network] = history, storage.list(paths.deltas(NAME))
        except StoreError as error:
            self._over(error)
        else:
            self._network.after(30, lambda: claim(self))

    def look_no_more(self: Any, deployment: Any) -> Any:
        found = lineage(self, deployment)
        history, seen = looked[self._network]
        self._watchers[NAME].attached(self.generation, seen)
        return Lineage(self.generation, history, found.schemas)

    patch.setattr(Application, "_claim", look_first)
    patch.setattr(Desk, "lineage", look_no_more)


# --- losing a worker ---


def settling_is_always_an_abort(patch: Patch) -> None:
    original = Turns.turn_checked
    patch.setattr(Turns, "turn_checked", lambda self, turn, whole: original(self, turn, False))


def settling_is_always_a_seal(patch: Patch) -> None:
    original = Turns.turn_checked
    patch.setattr(Turns, "turn_checked", lambda self, turn, whole: original(self, turn, True))


def loss_of_a_worker_is_not_remembered(patch: Patch) -> None:
    patch.setattr(Lineage, "lost", lambda self, worker: None)


def key_groups_of_a_lost_worker_are_not_read_back(patch: Patch) -> None:
    patch.setattr(Lineage, "take_over", lambda self, worker, groups: None)


def outputs_of_a_lost_worker_can_be_repeated(patch: Patch) -> None:
    original = OperatorEpochs._join

    def join(self: Any, token: Any, ask: Any) -> Any:
        self.standing.current.gone = None
        return original(self, token, ask)

    patch.setattr(OperatorEpochs, "_join", join)


def turn_begins_without_the_missing(patch: Patch) -> None:
    patch.setattr(Standing, "lacks_workers", False)


# --- restoring ---


def restore_is_of_the_head_instead_of_the_parent(patch: Patch) -> None:
    def base_for(self: Any, query: Any, epoch: Any, tip: Any = None) -> Any:
        return Base(self.turn_of(query, epoch, tip))

    patch.setattr(History, "base_for", base_for)


def what_another_driver_sealed_is_dropped(patch: Patch) -> None:
    original = OperatorEpochs._take_up

    def take_up(self: Any, lineage: Any, head: Any) -> None:
        original(self, lineage, head)
        if self.standing.current.taken_up:
            self.standing.phase, self.standing.current = Phase.IDLE, Attempt()

    patch.setattr(OperatorEpochs, "_take_up", take_up)


def parked_rows_are_applied_twice(patch: Patch) -> None:
    original = Parking.free_some

    def free_some(self: Any, *news: Any) -> Any:
        freed = original(self, *news)
        return [item for owner, rows, last in freed for item in ((owner, rows, False), (owner, rows, last))]

    patch.setattr(Parking, "free_some", free_some)


def parked_rows_are_dropped(patch: Patch) -> None:
    original = Parking.free_some

    def free_some(self: Any, *news: Any) -> Any:
        return [(owner, rows.slice(0, 0), last) for owner, rows, last in original(self, *news)]

    patch.setattr(Parking, "free_some", free_some)


def rows_are_applied_before_their_state_is_there(patch: Patch) -> None:
    patch.setattr(Parking, "cut", lambda self, owner, batch, hashes, now: (batch, None))
    original = OperatorRuntime.install

    def install(self: Any, groups: Any, state: Any, more: Any, expect: Any) -> None:
        for group in set(groups) - set(more):
            self._table.stores.pop(group, None)
        original(self, groups, state, more, expect)

    patch.setattr(OperatorRuntime, "install", install)


def seal_does_not_wait_for_parked_rows(patch: Patch) -> None:
    patch.setattr(Parking, "empty", property(lambda self: True))


def parked_rows_outlive_their_turn(patch: Patch) -> None:
    patch.setattr(Parking, "clear", lambda self: None)


def orders_that_were_taken_back_are_installed(patch: Patch) -> None:
    original = WorkerMachine._restore

    def restore(self: Any, message: Any, plan: Any) -> Any:
        hosted = self._hosted.get(message.operator)
        before = {} if hosted is None else dict(hosted.restoring.orders)
        out = original(self, message, plan)
        if hosted is not None:
            restoring = hosted.restoring
            old = {ticket: (told, set(message.groups)) for ticket, (told, _) in before.items()}
            restoring.orders = {**old, **restoring.orders}
        return out

    patch.setattr(WorkerMachine, "_restore", restore)


def an_order_that_is_half_put_in_goes_on_after_a_newer_one(patch: Patch) -> None:
    original = Restoring.order

    def order(self: Any, message: Any, plan: Any) -> Any:
        chunks = list(self._chunks)
        orders = {chunk.news.ticket: self.orders[chunk.news.ticket] for chunk in chunks}
        before = {ticket: (told, set(wanted)) for ticket, (told, wanted) in orders.items()}
        out = original(self, message, plan)
        self.orders, self._chunks = {**self.orders, **before}, chunks
        return out

    patch.setattr(Restoring, "order", order)


def a_part_of_a_key_group_counts_as_all_of_it(patch: Patch) -> None:
    original = Restoring._install_some

    def install_some(self: Any, chunk: Any, runtime: Any) -> None:
        original(self, chunk, runtime)
        self._holdings.arrive(chunk.news.groups)

    patch.setattr(Restoring, "_install_some", install_some)
    patch.setattr(Restoring, "check", lambda self: None)


def what_follows_the_first_step_is_not_put_in(patch: Patch) -> None:
    patch.setattr(_Chunk, "over", True)


# --- compaction and garbage ---


def manifest_does_not_wait_for_all_parts(patch: Patch) -> None:
    original = Compaction.compacted

    def compacted(self: Any, message: Any, parts: Any) -> Any:
        if self._running is not None and message.turn == self._running.turn:
            self._running.waiting &= {message.worker}
        return original(self, message, parts)

    patch.setattr(Compaction, "compacted", compacted)


def garbage_is_what_is_needed(patch: Patch) -> None:
    original = History._plan

    def garbage(self: Any, retain: int, keep: Any = ()) -> Any:
        patch.setattr(History, "_plan", lambda self, turn: None)
        try:
            return collect(self, retain, ())
        finally:
            patch.setattr(History, "_plan", original)

    collect = History.garbage
    patch.setattr(History, "garbage", garbage)


def own_manifests_are_blamed_on_another_attachment(patch: Patch) -> None:
    original = Checkpoint.write_manifest
    patch.setattr(
        Checkpoint, "write_manifest", lambda self, operator, manifest, again: original(self, operator, manifest)
    )


def manifests_of_attempts_that_seemed_to_fail_are_not_known(patch: Patch) -> None:
    original = Compaction.written
    patch.setattr(Compaction, "written", lambda self, turn, error, counts=None: original(self, turn, error))


def parts_that_changed_are_taken_over(patch: Patch) -> None:
    patch.setattr(resting, "_changed", lambda *_: set())


def parts_are_taken_away_from_the_snapshot_before(patch: Patch) -> None:
    # A rename in the place of a link: the snapshot before is still the one that counts, or is retained.
    original = MemoryStorage.copy

    def copy(self: Any, source: str, target: str) -> None:
        original(self, source, target)
        self.delete([source])

    patch.setattr(MemoryStorage, "copy", copy)


def files_go_before_what_promises_them(patch: Patch) -> None:
    original = Garbage.slices

    def slices(self: Any, most: int) -> Any:
        pieces = original(self, most)[::-1]
        return [*(replace(piece, floor=None) for piece in pieces[:-1]), replace(pieces[-1], floor=self.floor)]

    patch.setattr(Garbage, "slices", slices)


SNAPSHOTS = Scenario(frozenset({"store failure", "snapshot"}), 0.5, True)
SNAPSHOTS_SET_BACK = Scenario(frozenset({"set back", "snapshot", "store failure"}), 0.5, True)

# The third is the seed to begin with: those before it notice nothing.
MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (fence_is_not_checked, ZOMBIES, 0),
    (fence_is_checked_before_the_write, ZOMBIES, 59),
    (abandoned_mark_is_not_checked, LOSSES, 24),
    (turn_is_given_up_without_a_mark, LOSSES, 24),
    (expect_comes_before_the_record, LOSSES, 0),
    (segment_is_written_after_the_acknowledgement, LOSSES, 0),
    (claim_comes_after_the_look, ZOMBIES, 119),
    (settling_is_always_an_abort, LOSSES, 21),
    (settling_is_always_a_seal, scenario("stop early", "lost worker", "killed in the seal"), 0),
    (loss_of_a_worker_is_not_remembered, LOSSES, 0),
    (key_groups_of_a_lost_worker_are_not_read_back, scenario("lost worker", "no replacement"), 0),
    (outputs_of_a_lost_worker_can_be_repeated, LOSSES, 6),
    (turn_begins_without_the_missing, scenario("lost worker", "second query"), 73),
    (restore_is_of_the_head_instead_of_the_parent, BACK, 8),
    (what_another_driver_sealed_is_dropped, scenario("lost driver"), 0),
    (parked_rows_are_applied_twice, RESTORES, 0),
    (parked_rows_are_dropped, RESTORES, 0),
    (rows_are_applied_before_their_state_is_there, RESTORES, 0),
    (seal_does_not_wait_for_parked_rows, RESTORES, 0),
    (parked_rows_outlive_their_turn, scenario("lost driver", "lost workers", "poison", "bad data"), 100),
    (orders_that_were_taken_back_are_installed, BACK, 0),
    (an_order_that_is_half_put_in_goes_on_after_a_newer_one, BACK, 155),
    (a_part_of_a_key_group_counts_as_all_of_it, RESTORES, 0),
    (what_follows_the_first_step_is_not_put_in, RESTORES, 0),
    (manifest_does_not_wait_for_all_parts, RESTORES, 0),
    (garbage_is_what_is_needed, BACK, 22),
    (own_manifests_are_blamed_on_another_attachment, SNAPSHOTS, 120),
    (manifests_of_attempts_that_seemed_to_fail_are_not_known, SNAPSHOTS, 650),
    (parts_that_changed_are_taken_over, SNAPSHOTS, 0),
    (parts_are_taken_away_from_the_snapshot_before, SNAPSHOTS, 0),
    (files_go_before_what_promises_them, SNAPSHOTS_SET_BACK, 100),
]


@pytest.mark.parametrize(("mutate", "scenario", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_broken_protocol_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_failure(scenario, start) is not None, "no seed noticed"
