"""A transfer by itself: every phase of a step, and what may happen in each."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.transport_kit import HandClock

from bedload.control.instructions import Instruction, ToWorker
from bedload.control.members import Members, workers_at
from bedload.control.phases import TransferPhase
from bedload.control.recovery import Recovery
from bedload.control.room import WaitingRoom
from bedload.control.standing import Phase, Standing
from bedload.control.transfer import Transfer
from bedload.control.turns import Turns
from bedload.core.errors import MoveFailed
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.keys import RoutingTable
from bedload.migration import strategy_named
from bedload.migration.plan import place
from bedload.protocol import messages as m

NAME = OperatorName("Count")
W0, W1 = WorkerId(0), WorkerId(1)
BOOM = MoveFailed("worker 0 could not send state")


class Rig:
    """Key groups 0 and 1 of worker 0 go to worker 1; without a checkpoint, and with state unless told otherwise."""

    def __init__(self, strategy: str = "all_at_once", *, state: bool = True, **options: Any) -> None:
        self.clock = HandClock()
        self.before = RoutingTable.initial(4, [W0, W1])
        self.target = place(self.before, [KeyGroup(0), KeyGroup(1)], W1)
        self.members = Members(workers_at({W0: "w0", W1: "w1"}))
        self.at = Standing(NAME, self.before, self.members, None, self.clock)
        if state:
            self.at.in_memory = Turn(0), Epoch(0), QueryId("q")
        turns = Turns(self.at, WaitingRoom(), Recovery(self.at), list)
        chosen = replace(strategy_named(strategy), **options)
        self.it = self.at.transfer = Transfer(turns, self.target, chosen, DeploymentId(0), itertools.count())
        self.steps: list[Instruction] = []

    def did(self, steps: list[Instruction] | None) -> None:
        """Note what was said; the invariants hold after every event."""
        self.steps += steps or []
        self.it.check()

    def go_on(self) -> None:
        self.did(self.it.go_on())

    def told(self, kind: type[Any]) -> list[tuple[int, Any]]:
        steps = [step for step in self.steps if isinstance(step, ToWorker)]
        return [(step.worker, step.message) for step in steps if isinstance(step.message, kind)]

    @property
    def move(self) -> int:
        return int((self.told(m.Flip) or self.told(m.Copy))[-1][1].move)

    def copied(self, move: int | None = None) -> None:
        self.did(self.it.from_worker(m.Copied(W0, NAME, self.move if move is None else move)))

    def arrived(self, move: int | None = None) -> None:
        number = self.move if move is None else move
        self.did(self.it.from_worker(m.Arrived(W1, NAME, number, 3, 30, 2, 5), np.array([0.5]).tobytes()))

    def released(self) -> None:
        for worker in (W0, W1):
            self.did(self.it.from_worker(m.Released(worker, NAME, self.it._move)))

    @property
    def phase(self) -> TransferPhase:
        return self.it.phase


def flipped(**options: Any) -> Rig:
    """All is on its way, and an epoch that uses it has begun."""
    rig = Rig(**options)
    rig.go_on()
    rig.at.phase, rig.at.turn = Phase.OPEN, Turn(1)
    return rig


def test_between_epochs_ownership_flips_at_once_if_nothing_is_copied_ahead() -> None:
    rig = Rig()
    assert rig.phase is TransferPhase.WAITING
    rig.go_on()
    assert rig.phase is TransferPhase.FLIPPED
    assert [worker for worker, _ in rig.told(m.Flip)] == [0, 1]
    assert rig.at.routing == rig.target
    rig.clock.now += 4.0
    rig.arrived()
    assert rig.phase is TransferPhase.ENDING, "no epoch needs the old owner"
    assert {message.called_off for _, message in rig.told(m.Release)} == {False}
    rig.released()
    assert (rig.phase, rig.it.progress) == (TransferPhase.DONE, 1.0)
    facts = rig.it.tally.facts()
    assert (facts["moved_groups"], facts["moved_keys"], facts["flips"], facts["handover_s"]) == (2, 3, 1, 4.0)
    assert (facts["asked_keys"], facts["waited_keys"], facts["rows_parked"]) == (2, 1, 5)


def test_what_is_copied_ahead_flips_when_all_is_copied() -> None:
    rig = Rig("seamless")
    rig.go_on()
    assert rig.phase is TransferPhase.COPYING
    assert [worker for worker, _ in rig.told(m.Copy)] == [0]
    assert rig.at.routing == rig.before
    rig.copied()
    assert rig.phase is TransferPhase.FLIPPED


def test_in_the_middle_of_an_epoch_the_flip_is_due_and_waits() -> None:
    rig = Rig()
    rig.at.phase = Phase.OPEN
    rig.go_on()
    assert rig.phase is TransferPhase.DUE
    assert not rig.told(m.Flip)
    rig.did(rig.it.flip())
    assert rig.phase is TransferPhase.FLIPPED


def test_the_old_owner_keeps_what_arrived_until_the_epoch_is_committed() -> None:
    rig = flipped()
    rig.arrived()
    assert rig.phase is TransferPhase.ARRIVED
    assert rig.it.needed == {W0, W1}
    rig.go_on()
    assert not rig.told(m.Release)
    rig.did(rig.it.committed())
    assert rig.phase is TransferPhase.ENDING


def test_without_state_ownership_changes_and_nobody_is_told() -> None:
    rig = Rig(state=False)
    rig.go_on()
    assert (rig.phase, rig.steps) == (TransferPhase.DONE, [])
    assert rig.at.routing == rig.target
    assert not rig.it.flipped


def test_without_state_a_transfer_that_is_called_off_leaves_the_owners_as_they_were() -> None:
    rig = Rig(state=False)
    rig.go_on()
    rig.did(rig.it.called_off())
    assert rig.at.routing == rig.before


def test_step_by_step_each_step_flips_by_itself() -> None:
    rig = Rig("progressive", groups_per_flip=1)
    for number in (1, 2):
        rig.go_on()
        assert (rig.phase, rig.it.tally.flips) == (TransferPhase.FLIPPED, number)
        rig.arrived()
        rig.released()
    assert rig.phase is TransferPhase.DONE
    assert rig.at.routing == rig.target


@pytest.mark.parametrize("missing", [W0, W1])
def test_a_step_waits_for_a_worker_that_is_missing(missing: WorkerId) -> None:
    rig = Rig()
    rig.members.gone(missing)
    rig.members.missed(missing, BOOM)
    rig.go_on()
    assert rig.phase is TransferPhase.WAITING
    rig.members.ready(rig.members.came(missing, "again", 1))
    rig.go_on()
    assert rig.phase is TransferPhase.FLIPPED


def test_words_of_a_former_move_or_out_of_phase_change_nothing() -> None:
    rig = Rig("seamless")
    rig.go_on()
    rig.copied(77)
    rig.arrived()
    assert rig.phase is TransferPhase.COPYING
    rig.copied()
    rig.arrived(77)
    assert rig.phase is TransferPhase.FLIPPED
    assert rig.it.tally.keys == 0


def test_before_the_flip_a_failure_calls_it_off() -> None:
    rig = Rig("seamless")
    rig.go_on()
    rig.did(rig.it.failed(rig.move, BOOM))
    assert {message.called_off for _, message in rig.told(m.Release)} == {True}
    rig.released()
    assert rig.phase is TransferPhase.DONE
    assert rig.at.routing == rig.before


def test_a_failure_of_a_former_move_concerns_nobody() -> None:
    rig = Rig("seamless")
    rig.go_on()
    assert rig.it.failed(77, BOOM) is None


def test_after_the_flip_a_failure_gives_back_what_no_epoch_has_used() -> None:
    rig = Rig()
    rig.go_on()
    rig.did(rig.it.failed(rig.move, BOOM))
    assert rig.at.routing == rig.before
    assert (rig.it.tally.flips, rig.it.tally.groups) == (0, 0)
    rig.released()
    assert rig.phase is TransferPhase.DONE


def test_a_failure_waits_until_it_is_known_what_became_of_the_epoch_under_way() -> None:
    rig = flipped()
    rig.at.current.workers = frozenset({W0, W1})
    rig.did(rig.it.failed(rig.move, BOOM))
    assert [worker for worker, _ in rig.told(m.Settle)] == [0, 1]
    assert rig.at.routing == rig.target
    rig.at.phase = Phase.ABORTED
    rig.go_on()
    assert rig.at.routing == rig.before


def test_after_a_commit_a_failure_without_a_checkpoint_cannot_be_made_good() -> None:
    rig = Rig()
    rig.go_on()
    rig.did(rig.it.committed())
    rig.it.failed(rig.move, BOOM)
    assert rig.it.doom is BOOM


def test_a_new_owner_that_is_lost_before_the_commit_costs_nothing() -> None:
    rig = flipped()
    rig.at.phase = Phase.ABORTED
    rig.members.gone(W1)
    rig.did(rig.it.reverts(W1))
    assert rig.at.routing == rig.before
    assert not rig.it.flipped


@pytest.mark.parametrize("committed", [True, False])
def test_a_new_owner_that_is_lost_with_what_counts_costs_it(committed: bool) -> None:
    rig = flipped()
    if committed:
        rig.did(rig.it.committed())
    else:
        rig.at.phase = Phase.SEALED
    assert rig.it.reverts(W1) is None


def test_feeders_tell_the_old_owner_of_their_backlog_until_all_has_arrived() -> None:
    rig = Rig("adaptive")
    assert rig.it.backlog() == {}
    rig.go_on()
    assert rig.it.backlog() == {W0: m.Backlogged((KeyGroup(0), KeyGroup(1)))}
    rig.at.phase = Phase.OPEN
    rig.arrived()
    assert rig.it.backlog() == {}


def test_a_loss_while_state_is_copied_starts_the_step_anew() -> None:
    rig = Rig("seamless")
    rig.go_on()
    first = rig.move
    rig.did(rig.it.superseded())
    rig.released()
    assert rig.phase is TransferPhase.COPYING
    assert rig.move > first


def test_state_that_is_given_up_ends_the_transfer() -> None:
    rig = flipped()
    assert rig.it.reset() == rig.move
    rig.it.check()
    assert rig.phase is TransferPhase.DONE


def test_a_cluster_that_ends_calls_off_what_is_under_way() -> None:
    assert Rig().it.ended() == []
    rig = flipped()
    rig.did(rig.it.ended())
    assert {message.called_off for _, message in rig.told(m.Release)} == {True}
