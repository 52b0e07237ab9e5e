"""The simulator can fail over moving state: each of these broken protocols is caught by some seed.

As in ``test_mutants``: a mutant changes one decision, and one that survives would mean that the simulator does not look
at what the decision is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.shelves import drop
from tests.simulation.mutants import Patch, first_failure
from tests.simulator import Scenario
from tests.simulator.faults import ALWAYS
from tests.simulator.simulation import simulate

from bedload.control import attempt
from bedload.control.changes import Changes
from bedload.control.inquiries import Inquiries
from bedload.control.lineage import Lineage
from bedload.control.recovery import Recovery
from bedload.control.standing import Phase, Standing
from bedload.control.transfer import Transfer
from bedload.control.turns import Turns
from bedload.core.errors import EpochAborted
from bedload.migration.holdings import Holdings
from bedload.migration.lane import Lane
from bedload.migration.parking import Parking
from bedload.migration.receiver import Receiver
from bedload.migration.sender import Sender
from bedload.protocol.feeder import FeederSession
from bedload.protocol.routes import version_of
from bedload.worker import restoring
from bedload.worker.machine import WorkerMachine
from bedload.worker.moving import Moving

COPYING = ("hybrid", "seamless")


def scenario(*faults: str, durable: bool = False, strategies: tuple[str, ...] = (), wishes: Any = ()) -> Scenario:
    return Scenario(ALWAYS | {*faults}, 0.3, durable, 3, strategies, wishes)


MEMORY = scenario()
DURABLE = scenario(durable=True)
LOSSES = scenario("lost source", "lost target", durable=True)
PINS = scenario(wishes=("pin", "unpin"))


# --- where keys live ---


def feeders_keep_the_routes_that_they_know(patch: Patch) -> None:
    patch.setattr(attempt, "version_of", lambda routes: b"the only one")


def pins_make_no_new_routes(patch: Patch) -> None:
    patch.setattr(attempt, "version_of", lambda routes: version_of(msgspec.structs.replace(routes, pins={})))


# --- copying ahead ---


def copies_count_whatever_turn_they_are_of(patch: Patch) -> None:
    original = Receiver._copied

    def copied(self: Any, incoming: Any, now: Any) -> Any:
        if incoming.handed is None and incoming.number:
            incoming.handed = self.base
        return original(self, incoming, now)

    patch.setattr(Receiver, "_copied", copied)


def base_of_a_hand_over_is_ignored(patch: Patch) -> None:
    original = Receiver._copied

    def copied(self: Any, incoming: Any, now: Any) -> Any:
        if incoming.handed is not None:
            incoming.handed = self.base
        return original(self, incoming, now)

    patch.setattr(Receiver, "_copied", copied)


def copies_of_a_rolled_back_epoch_count(patch: Patch) -> None:
    def aborted(self: Any) -> None:
        self._sealed = None
        for lane in self._lanes.values():
            lane.doubt.tentative = []

    patch.setattr(Sender, "aborted", aborted)


def copies_that_begin_after_the_seal_are_for_good(patch: Patch) -> None:
    original = Moving.copy
    patch.setattr(Moving, "copy", lambda self, message, runtime, sealed: original(self, message, runtime, None))


def changes_under_a_copy_are_not_noted(patch: Patch) -> None:
    def sealed(self: Any, turn: Any) -> None:
        if not self.flipped:
            self._sealed = turn

    patch.setattr(Sender, "sealed", sealed)


def copies_are_handed_over_before_all_is_noted(patch: Patch) -> None:
    original = Lane.unnoted.fget
    assert original is not None
    patch.setattr(Lane, "unnoted", property(lambda self: 0 if self.handed is None else original(self)))


def noting_is_slow(patch: Patch) -> None:
    """No mistake: an old owner that copies and notes in turns, and has other things to do once it has said much."""
    sealed, following = Sender.sealed, Sender.next

    def always_behind(self: Any, turn: Any) -> None:
        sealed(self, turn)
        for lane in self._lanes.values():
            lane.doubt.behind = True

    def busy(self: Any, idle: float) -> Any:
        said = [lane for lane in self._lanes.values() if lane.handed == self._sealed and lane.unnoted]
        return ([], 1.0) if said and self._sealed is not None and not self.flipped else following(self, idle)

    patch.setattr(Sender, "sealed", always_behind)
    patch.setattr(Sender, "next", busy)


def copies_are_handed_over_ahead_while_keys_are_not_noted(patch: Patch) -> None:
    noting_is_slow(patch)
    original = Sender._hand_over

    def hand_over(self: Any, lane: Any) -> Any:
        if self.base is None and self._sealed is not None and lane.handed != self._sealed:
            return lane.hand_over(self._sealed, self._most_keys, ahead=True) if lane.swept and not lane.stale else None
        return original(self, lane)

    patch.setattr(Sender, "_hand_over", hand_over)


def what_was_left_out_of_a_copy_is_forgotten(patch: Patch) -> None:
    original = Lane.take_back

    def take_back(self: Any, hashes: Any) -> None:
        self.doubt.left_out = []
        original(self, hashes)

    patch.setattr(Lane, "take_back", take_back)


def copies_count_before_all_stale_keys_are_named(patch: Patch) -> None:
    original = Receiver.handed_over
    patch.setattr(Receiver, "handed_over", lambda self, *said, first, more: original(self, *said, first=first))


def copies_are_kept_after_a_call_off(patch: Patch) -> None:
    original = WorkerMachine._release

    def release(self: Any, message: Any) -> Any:
        return original(self, msgspec.structs.replace(message, arriving=()) if message.called_off else message)

    patch.setattr(WorkerMachine, "_release", release)


def copies_outlive_a_restore(patch: Patch) -> None:
    patch.setattr(Transfer, "superseded", lambda self: [])


# --- handing over ---


def old_owner_drops_at_the_flip(patch: Patch) -> None:
    original = Sender.flip

    def flip(self: Any, base: Any) -> None:
        original(self, base)
        for lane in self._lanes.values():
            drop(lane.shelf)

    patch.setattr(Sender, "flip", flip)


def old_owner_drops_before_the_commit(patch: Patch) -> None:
    original = Sender.taken

    def taken(self: Any, target: Any, number: Any, idle: float) -> None:
        original(self, target, number, idle)
        if all(lane.last_sent and not lane.unacked for lane in self._lanes.values()):
            for shelf in self.shelves:
                drop(shelf)

    patch.setattr(Sender, "taken", taken)


def old_owner_never_drops(patch: Patch) -> None:
    patch.setattr(Sender, "shelves", property(lambda self: []))


def copies_after_a_hand_over_count(patch: Patch) -> None:
    original = Receiver.arrived
    patch.setattr(Receiver, "arrived", lambda self, *news, ahead=False: original(self, *news))


def what_is_here_is_overwritten(patch: Patch) -> None:
    patch.setattr(Receiver, "wanted", lambda self, source, hashes: np.ones(len(hashes), np.bool_))


def repeats_are_taken_in(patch: Patch) -> None:
    patch.setattr(Receiver, "is_repeat", lambda self, source, number: False)


def what_was_on_a_broken_connection_is_not_sent_again(patch: Patch) -> None:
    def broken(self: Any, target: Any) -> None:
        if target in self._lanes:
            self._lanes[target].unacked = {}

    patch.setattr(Sender, "broken", broken)


def rows_do_not_wait_for_their_keys(patch: Patch) -> None:
    patch.setattr(Holdings, "_waits", lambda self, presence, hashes: np.zeros(len(hashes), np.bool_))


def parked_rows_come_after_later_ones(patch: Patch) -> None:
    original = Parking.free_some
    patch.setattr(Parking, "free_some", lambda self, *news: original(self, *news)[::-1])


def feeders_ignore_pins(patch: Patch) -> None:
    original = FeederSession.submit

    def submit(self: Any, batch: Any, key: Any = None) -> Any:
        self._pins = None
        return original(self, batch, key)

    patch.setattr(FeederSession, "submit", submit)


def pinned_keys_are_read_back_everywhere(patch: Patch) -> None:
    patch.setattr(restoring, "own_keys", lambda state, told: state)


# --- when, and what after a loss ---


def ownership_flips_in_the_middle_of_an_epoch(patch: Patch) -> None:
    patch.setattr(Standing, "between_epochs", property(lambda self: self.at_rest))


def workers_leave_in_the_middle_of_an_epoch(patch: Patch) -> None:
    patch.setattr(Standing, "needs", lambda self, worker: False)
    patch.setattr(Standing, "taking_part", lambda self: list(self.addresses))


def ownership_flips_before_all_is_read_back(patch: Patch) -> None:
    patch.setattr(Standing, "reads_back", property(lambda self: False))
    patch.setattr(Lineage, "all_hold_head", lambda self, routing: True)


def rest_of_a_lost_owner_is_not_read_back(patch: Patch) -> None:
    patch.setattr(Transfer, "_from_checkpoint", lambda self, lost: self._end(called_off=False))


def loss_of_a_newcomer_is_always_an_abort(patch: Patch) -> None:
    original = Turns.lost

    def lost(self: Any, worker: Any, error: Any) -> Any:
        if self.standing.lineage is None and worker in self.standing.current.workers:
            return self.failed(self.standing.turn, error)
        return original(self, worker, error)

    patch.setattr(Turns, "lost", lost)


def failed_moves_are_for_the_log_alone(patch: Patch) -> None:
    patch.setattr(Moving, "fail", lambda self, move, what, error: [])


def epochs_go_on_after_a_failed_move(patch: Patch) -> None:
    patch.setattr(Turns, "doubt", lambda self, error: [])
    patch.setattr(Standing, "undecided", property(lambda self: False))


def sealed_epochs_are_rolled_back_by_a_failed_move(patch: Patch) -> None:
    patch.setattr(Turns, "doubt", lambda self, error: self.failed(self.standing.turn, error))


def failed_moves_without_a_checkpoint_are_always_given_back(patch: Patch) -> None:
    original = Transfer.give_up

    def give_up(self: Any) -> Any:
        self._uncommitted = True
        return original(self)

    patch.setattr(Transfer, "give_up", give_up)


def missing_workers_are_handed_state(patch: Patch) -> None:
    patch.setattr(Transfer, "missing", property(lambda self: []))


def moves_wait_for_the_replay_of_an_epoch(patch: Patch) -> None:
    original = Standing.between_epochs.fget
    assert original is not None
    patch.setattr(Standing, "between_epochs", property(lambda self: self.phase is Phase.IDLE and original(self)))


def nobody_looks_for_the_end_of_an_epoch(patch: Patch) -> None:
    patch.setattr(Changes, "_look_for_ends", lambda self, change: [])


def sealed_epochs_end_with_their_run(patch: Patch) -> None:
    original = Inquiries.learn

    def learn(self: Any, facts: Any) -> Any:
        if self.standing.phase is Phase.SEALED and not facts.active:
            return self._turns.abort(EpochAborted("its run is over"))
        return original(self, facts)

    patch.setattr(Inquiries, "learn", learn)


def sealed_epochs_whose_run_is_over_are_committed(patch: Patch) -> None:
    original = Inquiries.learn

    def learn(self: Any, facts: Any) -> Any:
        if self.standing.phase is Phase.SEALED and not facts.active:
            return self._turns.commit()
        return original(self, facts)

    patch.setattr(Inquiries, "learn", learn)


def sealed_epochs_that_are_not_in_the_log_are_rolled_back(patch: Patch) -> None:
    original = Inquiries.learn

    def learn(self: Any, facts: Any) -> Any:
        last = -1 if facts.committed is None else facts.committed
        if self.standing.phase is Phase.SEALED and not facts.active and facts.log_read and last < self.standing.epoch:
            return self._turns.abort(EpochAborted("its run is over, and Spark has not committed it"))
        return original(self, facts)

    patch.setattr(Inquiries, "learn", learn)


# The third is the seed to begin with: those before it notice nothing.
def replacements_read_back_when_an_epoch_begins_only(patch: Patch) -> None:
    patch.setattr(Recovery, "left_unread", False)


def pinned_keys_leave_with_their_group(patch: Patch) -> None:
    original = Holdings.flip

    def flip(self: Any, leaving: Any, arriving: Any) -> None:
        original(self, tuple(msgspec.structs.replace(lot, stay=()) for lot in leaving), arriving)

    patch.setattr(Holdings, "flip", flip)


MUTANTS: list[tuple[Callable[[Patch], None], Scenario, int]] = [
    (feeders_keep_the_routes_that_they_know, MEMORY, 0),
    (pins_make_no_new_routes, PINS, 0),
    (copies_count_whatever_turn_they_are_of, scenario(strategies=COPYING), 0),
    (base_of_a_hand_over_is_ignored, scenario(strategies=COPYING), 0),
    (copies_of_a_rolled_back_epoch_count, scenario(strategies=COPYING), 0),
    (copies_after_a_hand_over_count, Scenario(frozenset({"late copy", "failed copy"}), 0.4, False, 3, COPYING), 17),
    (copies_that_begin_after_the_seal_are_for_good, scenario(strategies=COPYING), 0),
    (changes_under_a_copy_are_not_noted, scenario(strategies=COPYING), 0),
    (copies_are_handed_over_before_all_is_noted, scenario(strategies=COPYING), 0),
    (copies_are_handed_over_ahead_while_keys_are_not_noted, scenario(strategies=COPYING), 0),
    (what_was_left_out_of_a_copy_is_forgotten, scenario(strategies=COPYING), 299),
    (copies_count_before_all_stale_keys_are_named, scenario(strategies=COPYING), 0),
    (copies_are_kept_after_a_call_off, scenario("cancel", strategies=COPYING), 0),
    (copies_outlive_a_restore, scenario("set back", durable=True, strategies=COPYING), 31),
    (old_owner_drops_at_the_flip, MEMORY, 0),
    (old_owner_drops_before_the_commit, scenario("lost newcomer", wishes=("rescale",)), 17),
    (old_owner_never_drops, MEMORY, 0),
    (what_is_here_is_overwritten, scenario("broken neighbour", "repeated shipment"), 90),
    (repeats_are_taken_in, scenario("broken neighbour", "repeated shipment", strategies=COPYING), 306),
    (what_was_on_a_broken_connection_is_not_sent_again, scenario("broken neighbour"), 0),
    (rows_do_not_wait_for_their_keys, MEMORY, 0),
    (parked_rows_come_after_later_ones, scenario(strategies=("all_at_once", "progressive")), 10),
    (feeders_ignore_pins, PINS, 0),
    (pinned_keys_are_read_back_everywhere, scenario("lost worker", durable=True, wishes=("pin", "unpin")), 12),
    (ownership_flips_in_the_middle_of_an_epoch, MEMORY, 0),
    (workers_leave_in_the_middle_of_an_epoch, MEMORY, 13),
    (ownership_flips_before_all_is_read_back, LOSSES, 12),
    (rest_of_a_lost_owner_is_not_read_back, LOSSES, 38),
    (loss_of_a_newcomer_is_always_an_abort, Scenario(frozenset({"lost newcomer"}), 0.3, moves=3), 690),
    (replacements_read_back_when_an_epoch_begins_only, scenario("lost worker", "stopped for good", durable=True), 177),
    (moves_wait_for_the_replay_of_an_epoch, scenario("stopped for good"), 20),
    (nobody_looks_for_the_end_of_an_epoch, scenario("stopped for good"), 0),
    (sealed_epochs_end_with_their_run, scenario("stopped for good"), 0),
    (sealed_epochs_whose_run_is_over_are_committed, scenario("stopped for good"), 0),
    (sealed_epochs_that_are_not_in_the_log_are_rolled_back, scenario("skipped replay"), 0),
    (pinned_keys_leave_with_their_group, scenario("stopped for good", durable=True, wishes=("pin", "rescale")), 30),
    (failed_moves_are_for_the_log_alone, scenario("failing move"), 0),
    (epochs_go_on_after_a_failed_move, scenario("failing move", durable=True), 10),
    (sealed_epochs_are_rolled_back_by_a_failed_move, scenario("failing move"), 122),
    (failed_moves_without_a_checkpoint_are_always_given_back, scenario("failing move"), 1300),
    (missing_workers_are_handed_state, scenario("dead newcomer", "lost target", durable=True), 0),
]


@pytest.mark.parametrize(("mutate", "scenario", "start"), MUTANTS, ids=[mutant[0].__name__ for mutant in MUTANTS])
def test_a_broken_move_is_caught(
    mutate: Callable[[Patch], None], scenario: Scenario, start: int, monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_failure(scenario, start) is not None, "no seed noticed"


def test_slow_noting_is_no_mistake(monkeypatch: Patch) -> None:
    noting_is_slow(monkeypatch)
    for seed in range(15):
        simulate(seed, scenario(strategies=COPYING))
