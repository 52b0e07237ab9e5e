"""Changes of a cluster at the coordinator: what becomes of them when a worker cannot do its part."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.unit.test_control_durable import FIRST, NAME, Rig, to_workers

from bedload.control.changes import MAX_PINS, MAX_STARTS, Stage, Wish
from bedload.control.coordinator import Coordinator
from bedload.control.instructions import ChangeResult, Instruction, ReplaceWorker, StartWorkers, ToWorker, WorkersLeft
from bedload.control.shipping import MOST_KEPT, Shipping
from bedload.control.standing import Phase
from bedload.core.errors import BedloadError, MoveFailed, MoveRefused, OperatorFailed, WorkerStartFailed
from bedload.core.ids import DeploymentId, KeyGroup, OperatorName, WorkerId
from bedload.migration import strategy_named
from bedload.protocol import messages as m
from bedload.transport.frames import encode_frame

CAUSE = m.WireError.of(MoveFailed("worker 0 could not send state of operator Count: ValueError: no"))
NO_SETUP = m.WireError.of(OperatorFailed("setup raised: too many connections"))


def wish(rig: Rig, kind: Any, strategy: str, **more: Any) -> None:
    _, steps = rig.coordinator.change("user", Wish(kind, strategy_named(strategy), **more))
    rig.did(steps)


def results(steps: list[Instruction]) -> list[ChangeResult]:
    return [step for step in steps if isinstance(step, ChangeResult)]


def started(steps: list[Instruction]) -> list[int]:
    return [int(worker) for step in steps if isinstance(step, StartWorkers) for worker in step.workers]


def weighed(rig: Rig) -> None:
    for worker, message in rig.told(m.Weigh):
        rig.did(rig.coordinator.from_worker(m.Weighed(WorkerId(worker), NAME, message.ticket, {}, 0, 0, 0.0, 0.0)))


def move(rig: Rig) -> int:
    """The number of the move that began last."""
    return int((rig.told(m.Flip) or rig.told(m.Copy))[-1][1].move)


def fail(rig: Rig, worker: int = 0, number: int | None = None) -> list[Instruction]:
    failed = m.WorkerFailed(WorkerId(worker), CAUSE, NAME, move(rig) if number is None else number)
    return rig.did(rig.coordinator.from_worker(failed))


def released(rig: Rig) -> None:
    for worker, message in rig.told(m.Release):
        rig.did(rig.coordinator.from_worker(m.Released(WorkerId(worker), NAME, message.move)))


def moving(strategy: str = "all_at_once", *, epoch: bool = True) -> Rig:
    """Key group 0 moves from worker 0 to worker 1."""
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    wish(rig, "move", strategy, worker=WorkerId(1), groups=(KeyGroup(0),))
    weighed(rig)
    if epoch:
        rig.stage += 1
        rig.open(1)
        rig.recorded()
    return rig


# --- a move that fails ---


def test_before_the_flip_a_failed_move_leaves_all_as_it_was() -> None:
    rig = moving("seamless", epoch=False)
    before = rig.epochs.routing
    fail(rig)
    assert {message.called_off for _, message in rig.told(m.Release)} == {True}
    released(rig)
    error = results(rig.steps)[-1].error
    assert isinstance(error, MoveFailed)
    assert error.message.endswith("Nothing has moved: the cluster is as it was")
    assert rig.epochs.routing == before
    assert rig.coordinator.changes.current is None


def test_after_the_flip_the_epoch_is_rolled_back_and_the_rest_is_read_from_the_checkpoint() -> None:
    rig = moving()
    assert rig.phase is Phase.OPEN
    fail(rig)
    assert rig.phase is Phase.SETTLING
    assert not rig.told(m.Release)
    rig.settled(1, sealed=False)
    assert rig.phase is Phase.ABORTED
    assert {message.called_off for _, message in rig.told(m.Release)} == {False}
    rig.forget_steps()
    rig.did(rig.coordinator.from_worker(m.Released(WorkerId(0), NAME, 0)))
    rig.did(rig.coordinator.from_worker(m.Released(WorkerId(1), NAME, 0)))
    assert [(worker, message.groups) for worker, message in rig.told(m.Restore)] == [(1, (0,))]
    rig.did(rig.coordinator.from_worker(m.Restored(WorkerId(1), NAME, FIRST, 1, 0, 1, 1)))
    error = results(rig.steps)[-1].error
    assert isinstance(error, MoveFailed)
    assert "1 key groups had new owners by then" in error.message
    assert "read from the checkpoint" in error.message


def test_an_epoch_that_all_have_sealed_is_not_rolled_back_by_a_failed_move() -> None:
    rig = moving()
    fail(rig)
    rig.settled(0, sealed=True)
    assert rig.phase is Phase.SETTLING
    rig.settled(1, sealed=True)
    assert rig.phase is Phase.SEALED
    rig.progress(1)
    assert rig.epochs.committed == {"q": 1}


def test_word_of_a_move_that_is_over_fails_nothing() -> None:
    rig = moving()
    rig.did(rig.coordinator.from_worker(m.Arrived(WorkerId(1), NAME, move(rig), 1, 1, 0, 0), np.zeros(1).tobytes()))
    fail(rig)
    assert rig.phase is Phase.OPEN
    rig.seal()
    rig.progress(1)
    released(rig)
    fail(rig)
    assert [result.error for result in results(rig.steps)] == [None]


# --- workers that come ---


def test_a_newcomer_that_cannot_run_the_operator_fails_the_change_with_its_last_words() -> None:
    rig = Rig()
    rig.whole(0)
    wish(rig, "rescale", "all_at_once", workers=3)
    assert started(rig.steps) == [2]
    steps = rig.did(rig.coordinator.worker_joined(WorkerId(2), "w2"))
    assert [message.start for _, message in to_workers(steps, m.Deploy)] == [True]
    rig.did(rig.coordinator.from_worker(m.WorkerFailed(WorkerId(2), NO_SETUP)))
    error = results(rig.lose(2))[0].error
    assert isinstance(error, WorkerStartFailed)
    assert "too many connections" in error.message
    assert rig.coordinator.changes.members == (0, 1)
    assert rig.coordinator.error is None


def test_a_replacement_that_never_gets_ready_is_started_some_times_and_then_left_out() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    rig.lose(1)
    for attempt in range(MAX_STARTS):
        rig.did(rig.coordinator.worker_joined(WorkerId(1), f"w1-{attempt}"))
        rig.did(rig.coordinator.from_worker(m.WorkerFailed(WorkerId(1), NO_SETUP)))
        rig.forget_steps()
        rig.lose(1)
        again = [step for step in rig.steps if isinstance(step, ReplaceWorker)]
        assert len(again) == (1 if attempt < MAX_STARTS - 1 else 0)
    assert rig.coordinator.error is None
    assert rig.coordinator.changes.members == (0,)
    assert rig.epochs.routing.groups_of(WorkerId(0)) == (0, 1, 2, 3)
    rig.stage += 1
    assert rig.open(1) == "Opened"


def test_the_last_worker_that_never_gets_ready_ends_the_cluster_with_its_last_words() -> None:
    rig = Rig(1)
    rig.lose(0)
    for _ in range(MAX_STARTS):
        rig.did(rig.coordinator.worker_joined(WorkerId(0), "w0"))
        rig.did(rig.coordinator.from_worker(m.WorkerFailed(WorkerId(0), NO_SETUP)))
        rig.lose(0)
    assert rig.coordinator.error is not None
    assert "too many connections" in rig.coordinator.error.message


def restarting() -> Rig:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    wish(rig, "rescale", "stop_restart", workers=3)
    assert started(rig.steps) == [0, 1, 2]
    assert rig.coordinator.changes.seen(0)[0] is Stage.RESTARTING
    rig.forget_steps()
    return rig


def test_when_all_start_anew_one_that_is_lost_is_started_again() -> None:
    rig = restarting()
    rig.did(rig.coordinator.worker_joined(WorkerId(1), "w1"))
    assert started(rig.lose(1)) == [1]
    assert rig.coordinator.error is None
    for worker in range(3):
        rig.join(worker)
    assert results(rig.steps)[0].error is None
    assert rig.coordinator.changes.members == (0, 1, 2)


def test_when_all_start_anew_one_that_never_comes_is_left_out_and_that_is_told() -> None:
    rig = restarting()
    rig.join(0)
    rig.join(2)
    for _ in range(MAX_STARTS):
        rig.did(rig.coordinator.worker_not_started(WorkerId(1), "no room"))
    error = results(rig.steps)[0].error
    assert isinstance(error, WorkerStartFailed)
    assert "no room" in error.message
    assert "2 workers" in error.message
    assert rig.coordinator.changes.members == (0, 2)
    assert set(rig.epochs.routing.owners) == {0, 2}
    rig.stage += 1
    assert rig.open(1) == "Opened"


def test_when_all_start_anew_and_none_comes_the_cluster_is_over() -> None:
    rig = restarting()
    for worker in range(3):
        for _ in range(MAX_STARTS):
            rig.did(rig.coordinator.worker_not_started(WorkerId(worker), "no room"))
    assert rig.coordinator.error is not None


# --- wishes that cannot be had any more ---


def test_a_move_to_a_worker_that_was_lost_and_not_replaced_says_so() -> None:
    rig = Rig(3)
    rig.whole(0)
    rig.progress(0)
    wish(rig, "move", "all_at_once", worker=WorkerId(2), groups=(KeyGroup(0),))
    rig.lose(2)
    rig.did(rig.coordinator.worker_not_replaced(WorkerId(2), "no room"))
    weighed(rig)
    error = results(rig.steps)[0].error
    assert isinstance(error, MoveRefused)
    assert "worker 2 was lost" in error.message


def test_more_pinned_keys_than_every_feeder_can_be_told_of_are_refused() -> None:
    rig = Rig()
    wish(rig, "pin", "all_at_once", worker=WorkerId(1), keys=tuple(range(MAX_PINS + 1)))
    error = results(rig.steps)[0].error
    assert isinstance(error, MoveRefused)
    assert "1,000,000" in error.message


# --- what is kept of an operator's code ---


def test_whoever_joins_gets_every_deployment_that_a_query_may_run_on() -> None:
    shipping = Shipping()
    for number in range(10):
        shipping.ship(number, NAME, shipping.number(), 4, b"code %d" % number, workers=[], newcomers=[])
    sent = [
        step.message for step in shipping.send_all(WorkerId(1), {NAME: DeploymentId(2)}) if isinstance(step, ToWorker)
    ]
    assert [it.deployment for it in sent if isinstance(it, m.Deploy)] == list(range(10))
    assert [it.deployment for it in sent if isinstance(it, m.Deploy) and it.start] == [2]


def test_what_runs_is_kept_however_often_the_operator_is_applied() -> None:
    shipping = Shipping()
    for number in range(3 * MOST_KEPT):
        active = DeploymentId(1) if number else None
        shipping.ship(number, NAME, shipping.number(), 4, b"%d" % number, workers=[], newcomers=[], active=active)
    assert shipping.knows(NAME, DeploymentId(1))
    assert shipping.knows(NAME, DeploymentId(3 * MOST_KEPT - 1))
    assert not shipping.knows(NAME, DeploymentId(0))
    assert len(shipping.send_all(WorkerId(1))) == MOST_KEPT


def test_a_query_on_code_that_is_not_kept_any_more_is_refused() -> None:
    rig = Rig()
    ask = msgspec.structs.replace(rig.ask(0), deployment=DeploymentId(77))
    steps: Any = rig.coordinator.open("x", ask)
    assert "not kept" in steps[0].message.error.message


def test_nine_million_stale_keys_fit_a_hand_over() -> None:
    body = np.zeros(9_000_000, np.int64).tobytes()
    head = m.encode(m.HandOver(OperatorName("x"), 1, WorkerId(0), 7, FIRST))
    assert encode_frame(head, [memoryview(body)])


@pytest.mark.parametrize("error", [BedloadError("x"), ValueError("y")])
def test_last_words_are_told_with_the_loss(error: Exception) -> None:
    coordinator = Coordinator({WorkerId(0): "a", WorkerId(1): "b"})
    coordinator.deploy("user", NAME, 4, b"")
    coordinator.from_worker(m.WorkerFailed(WorkerId(0), m.WireError.of(error)))
    assert coordinator.error is None
    steps = coordinator.worker_lost(WorkerId(0), "gone")
    assert not [step for step in steps if isinstance(step, WorkersLeft)]
    assert coordinator.error is not None
    assert "its last words: " in coordinator.error.message
