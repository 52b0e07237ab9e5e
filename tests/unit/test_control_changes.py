"""Changes of a cluster at the coordinator: what becomes of them when a worker cannot do its part."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.unit.test_control_durable import FIRST, NAME, SCHEMA, Rig, left_behind, to_workers
from tests.unit.transport_kit import HandClock

from bedload.checkpoint.history import History
from bedload.control.changes import MAX_STARTS
from bedload.control.coordinator import Coordinator
from bedload.control.inquiries import MOST_LOOKS
from bedload.control.instructions import (
    ChangeResult,
    InspectQuery,
    Instruction,
    ReplaceWorker,
    StartWorkers,
    ToWorker,
    WorkersLeft,
)
from bedload.control.lineage import Lineage
from bedload.control.members import Members, Worker, workers_at
from bedload.control.phases import ChangePhase
from bedload.control.recovery import MOST_READS
from bedload.control.rollout import MOST_KEPT, Rollout
from bedload.control.standing import Phase
from bedload.control.wish import MAX_PINS, Kind, Wish, target_of
from bedload.core.epoch import EpochStats
from bedload.core.errors import BedloadError, MoveFailed, MoveRefused, OperatorFailed, StoreError, WorkerStartFailed
from bedload.core.ids import (
    DeploymentId,
    Epoch,
    Generation,
    KeyGroup,
    OperatorName,
    QueryId,
    RunId,
    Turn,
    WorkerId,
)
from bedload.migration import strategy_named
from bedload.protocol import messages as m
from bedload.transport.frames import encode_frame

CAUSE = m.WireError.of(MoveFailed("worker 0 could not send state of operator Count: ValueError: no"))
NO_SETUP = m.WireError.of(OperatorFailed("setup raised: too many connections"))


def wish(rig: Rig, kind: Any, strategy: str, **more: Any) -> None:
    _, steps = rig.coordinator.change("user", Wish(Kind(kind), strategy_named(strategy), **more))
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


def restored(rig: Rig, worker: int, base: Turn, groups: int) -> m.Restored:
    """A worker has read all that it was told to."""
    told = rig.epochs.told.get(WorkerId(worker), 0)
    return m.Restored(WorkerId(worker), NAME, base, groups, 0, 1, 1, told=told)


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


# --- what is put on record ---


@pytest.mark.parametrize("strategy", ["auto", "lazy"])
def test_a_change_that_is_called_off_before_it_moves_names_the_strategy_that_was_asked_for(strategy: str) -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    number, steps = rig.coordinator.change(
        "user", Wish(Kind.MOVE, strategy_named(strategy), worker=WorkerId(1), groups=(KeyGroup(0),))
    )
    rig.did(steps)
    could, steps = rig.coordinator.cancel(number)
    assert could
    (over,) = results(rig.did(steps))
    assert [(it.number, it.kind, it.strategy, it.outcome) for it in over.records] == [
        (number, "move", strategy, "called off")
    ]
    assert type(over.records[0].kind) is str


def test_a_newcomer_that_loads_code_is_not_started_again_by_the_next_change() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    number, steps = rig.coordinator.change("user", Wish(Kind.RESCALE, strategy_named("lazy"), workers=3))
    started = [step for step in rig.did(steps) if isinstance(step, StartWorkers)]
    (new,) = started[0].workers
    rig.did(rig.coordinator.worker_joined(new, "127.0.0.1:7"))
    assert new in rig.coordinator.members.loading
    could, steps = rig.coordinator.cancel(number)
    assert could
    rig.did(steps)
    _, steps = rig.coordinator.change("user", Wish(Kind.RESCALE, strategy_named("lazy"), workers=4))
    (again,) = [step for step in rig.did(steps) if isinstance(step, StartWorkers)]
    assert new not in again.workers, "a host would kill the one that is there"
    assert len(again.workers) == 1
    assert rig.coordinator.members.is_asked(new)


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
    rig.forget_steps()
    rig.settled(1, sealed=False)
    assert rig.phase is Phase.ABORTED
    assert {message.called_off for _, message in rig.told(m.Release)} == {False}
    rig.did(rig.coordinator.from_worker(m.Released(WorkerId(0), NAME, 0)))
    rig.did(rig.coordinator.from_worker(m.Released(WorkerId(1), NAME, 0)))
    assert [(worker, message.groups) for worker, message in rig.told(m.Restore)] == [(1, (0,))]
    rig.did(rig.coordinator.from_worker(restored(rig, 1, FIRST, 1)))
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


def test_a_failed_move_ends_though_nobody_says_what_became_of_the_epoch_that_was_sealed_meanwhile() -> None:
    rig = moving()
    fail(rig)
    rig.settled(0, sealed=True)
    rig.settled(1, sealed=True)
    released(rig)
    stop(rig)
    assert not results(rig.steps), "what has not arrived is read back when the epoch is committed"
    for _ in range(MOST_LOOKS):
        rig.facts(active=False, committed=0, log_read=True)
    assert isinstance(results(rig.steps)[-1].error, MoveFailed)
    assert rig.phase is Phase.SEALED
    rig.forget_steps()
    rig.stage += 1
    assert rig.open(2, "r2") == "Opened"
    assert [(worker, message.groups) for worker, message in rig.told(m.Restore)] == [(1, (0,))]


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
    assert rig.coordinator.members.owning == (0, 1)
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
    assert rig.coordinator.members.owning == (0,)
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
    assert rig.coordinator.changes.seen(0).phase is ChangePhase.RESTARTING
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
    assert rig.coordinator.members.owning == (0, 1, 2)


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
    assert rig.coordinator.members.owning == (0, 2)
    assert set(rig.epochs.routing.owners) == {0, 2}
    rig.stage += 1
    assert rig.open(1) == "Opened"


def test_whoever_had_read_its_share_reads_what_it_gets_of_one_that_is_left_out() -> None:
    rig = restarting()
    rig.join(0)
    rig.join(2)
    number, steps = rig.coordinator.deploy("again", NAME, 4, b"code")
    rig.did(steps)
    for worker in (0, 2):
        rig.did(rig.coordinator.from_worker(m.Deployed(WorkerId(worker), number, None)))
    assert rig.told(m.Restore)
    for _ in range(MAX_STARTS):
        rig.did(rig.coordinator.worker_not_started(WorkerId(1), "no room"))
    for worker in (0, 2):
        told = {group for to, message in rig.told(m.Restore) if to == worker for group in message.groups}
        assert told == set(rig.epochs.routing.groups_of(WorkerId(worker)))


def test_when_all_start_anew_nothing_waits_for_what_one_that_is_left_out_has_not_read() -> None:
    rig = restarting()
    rig.join(0)
    for worker in (1, 2):  # the first one's share goes to the second one, too
        for _ in range(MAX_STARTS):
            rig.did(rig.coordinator.worker_not_started(WorkerId(worker), "no room"))
    assert rig.coordinator.members.owning == (0,)
    rig.did(rig.coordinator.from_worker(restored(rig, 0, FIRST, 4)))
    assert rig.epochs.at_rest


def test_when_all_start_anew_and_none_comes_the_cluster_is_over() -> None:
    rig = restarting()
    for worker in range(3):
        for _ in range(MAX_STARTS):
            rig.did(rig.coordinator.worker_not_started(WorkerId(worker), "no room"))
    assert rig.coordinator.error is not None


def test_a_restart_looks_again_at_a_query_that_could_not_be_looked_at() -> None:
    rig = Rig()
    rig.whole(0)
    wish(rig, "rescale", "stop_restart", workers=3)
    assert looks(rig) == [(2.0, ())]
    rig.did(rig.coordinator.query_unknown(NAME, BedloadError("no answer")))
    assert looks(rig) == [(2.0, ()), (2.0, ())]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_restart_does_not_wait_for_an_epoch_whose_query_has_ended_in_it(sealed: bool) -> None:
    rig = Rig()
    rig.open(0)
    rig.recorded()
    wish(rig, "rescale", "stop_restart", workers=3)
    rig.facts(active=False, committed=0 if sealed else None, log_read=True)
    assert rig.coordinator.changes.seen(0).phase is ChangePhase.HOLDING
    if sealed:
        rig.seal()
        rig.facts(active=False, committed=0, log_read=True)
    for worker, message in rig.told(m.Probe):
        rig.did(rig.coordinator.from_worker(m.Probed(WorkerId(worker), NAME, message.turn)))
    assert rig.coordinator.changes.seen(0).phase is ChangePhase.RESTARTING
    assert rig.phase is (Phase.IDLE if sealed else Phase.ABORTED)


def test_a_look_for_a_restart_does_not_explain_a_gap() -> None:
    rig = Rig()
    rig.whole(0)
    wish(rig, "rescale", "stop_restart", workers=3)
    rig.stage += 1
    assert rig.open(2) == "waits"
    assert rig.facts(active=True, committed=1, log_read=True) == []
    assert looks(rig)[-1] == (0.0, (1,))
    for worker in range(3):
        rig.join(worker)
    assert rig.facts(active=True, committed=1, log_read=True, quiet=(1,)) == ["Opened"]


def looks(rig: Rig) -> list[tuple[float, tuple[int, ...]]]:
    return [(step.pause, step.gap) for step in rig.steps if isinstance(step, InspectQuery)]


def test_word_that_a_worker_does_not_come_harms_no_replacement_of_it() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    wish(rig, "rescale", "all_at_once", workers=4)
    rig.join(2)
    rig.lose(2)
    rig.did(rig.coordinator.worker_joined(WorkerId(2), "w2'"))
    rig.did(rig.coordinator.worker_not_started(WorkerId(2), "too slow"))
    rig.did(rig.coordinator.from_worker(m.Deployed(WorkerId(2), DeploymentId(0), None)))
    rig.stage += 1
    assert rig.open(1) == "Opened"


# --- a query that does not come back ---


def stop(rig: Rig, run: str = "r1") -> None:
    rig.did(rig.coordinator.query_ended(QueryId("q"), RunId(run)))


def second_epoch(*, sealed: bool) -> Rig:
    """An epoch is committed, and another one is open or sealed."""
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    rig.stage += 1
    rig.open(1)
    rig.recorded()
    if sealed:
        rig.seal()
    return rig


def probed(rig: Rig) -> None:
    for worker, message in rig.told(m.Probe):
        rig.did(rig.coordinator.from_worker(m.Probed(WorkerId(worker), NAME, message.turn)))


def moved(rig: Rig) -> bool:
    """Whether key group 0 moves to worker 1 to the end, without another epoch."""
    if not rig.told(m.Flip):
        return False
    rig.did(rig.coordinator.from_worker(m.Arrived(WorkerId(1), NAME, move(rig), 1, 1, 0, 0), np.zeros(1).tobytes()))
    released(rig)
    return [result.error for result in results(rig.steps)] == [None]


def ask_for_a_move(rig: Rig) -> None:
    wish(rig, "move", "all_at_once", worker=WorkerId(1), groups=(KeyGroup(0),))
    weighed(rig)


@pytest.mark.parametrize("asked_first", [False, True])
def test_state_moves_after_an_epoch_that_was_rolled_back_and_is_not_replayed(asked_first: bool) -> None:
    rig = second_epoch(sealed=False)
    if asked_first:
        ask_for_a_move(rig)
    rig.did(rig.coordinator.from_worker(m.Failed(WorkerId(0), NAME, rig.turn, NO_SETUP)))
    stop(rig)
    if not asked_first:
        ask_for_a_move(rig)
    assert {message.base for _, message in rig.told(m.Flip)} == {FIRST}
    assert moved(rig)
    assert rig.open(1) == "OperatorFailed"
    rig.stage += 1
    assert rig.open(1, "r2") == "Opened"


def test_word_of_a_flip_comes_after_word_that_the_epoch_was_rolled_back() -> None:
    rig = second_epoch(sealed=False)
    ask_for_a_move(rig)
    rig.did(rig.coordinator.from_worker(m.Failed(WorkerId(0), NAME, rig.turn, NO_SETUP)))
    for worker in (0, 1):
        kinds = [type(step.message) for step in rig.steps if isinstance(step, ToWorker) and step.worker == worker]
        assert kinds.index(m.Abort) < kinds.index(m.Flip)


def test_state_moves_when_the_query_was_stopped_in_an_open_epoch() -> None:
    rig = second_epoch(sealed=False)
    stop(rig)
    ask_for_a_move(rig)
    rig.facts(active=False, committed=0, log_read=True)
    probed(rig)
    assert rig.phase is Phase.ABORTED
    assert moved(rig)


def test_state_moves_when_the_commit_log_says_that_the_last_epoch_is_committed() -> None:
    rig = second_epoch(sealed=True)
    stop(rig)
    ask_for_a_move(rig)
    assert not rig.told(m.Flip)
    rig.facts(active=False, committed=1, log_read=True)
    assert rig.phase is Phase.IDLE
    assert moved(rig)
    rig.stage += 1
    assert rig.open(2, "r2") == "Opened"


@pytest.mark.parametrize(
    "facts",
    [{"committed": 0}, {"log_read": True}, {"committed": 0, "log_read": True}],
    ids=["unread", "older than the state", "not there"],
)
def test_a_sealed_epoch_that_is_not_in_the_log_stays_and_fails_the_change(facts: dict[str, Any]) -> None:
    rig = second_epoch(sealed=True)
    before = rig.epochs.routing
    stop(rig)
    ask_for_a_move(rig)
    for _ in range(MOST_LOOKS):
        assert not results(rig.steps)
        rig.facts(active=False, **facts)
    released(rig)
    error = results(rig.steps)[-1].error
    assert isinstance(error, MoveFailed)
    assert "query q does not run" in error.message
    assert "its last epoch, 1," in error.message
    assert rig.phase is Phase.SEALED
    assert rig.epochs.routing == before
    rig.stage += 1
    # A sink that has the epoch already skips its replay: then this is the first that is heard of the next run.
    assert rig.open(2, "r2") == "Opened"
    assert rig.epochs.committed == {"q": 1}


def test_a_sealed_epoch_of_a_query_that_runs_again_waits_for_it() -> None:
    rig = second_epoch(sealed=True)
    stop(rig)
    ask_for_a_move(rig)
    for _ in range(MOST_LOOKS + 1):
        rig.facts(active=True, committed=0, log_read=True)
    assert rig.phase is Phase.SEALED
    assert not results(rig.steps)


def test_what_another_driver_left_behind_is_not_rolled_back_by_the_commit_log() -> None:
    rig = Rig(generation=2, history=left_behind(("q", 0), ("q", 1)))
    for worker in (0, 1):
        rig.did(rig.coordinator.from_worker(restored(rig, worker, rig.turn, 2)))
    ask_for_a_move(rig)
    for _ in range(MOST_LOOKS):
        rig.facts(active=False, committed=0, log_read=True)
    assert rig.phase is Phase.SEALED
    assert isinstance(results(rig.steps)[-1].error, MoveFailed)


def test_what_another_driver_left_behind_moves_when_it_is_in_the_commit_log() -> None:
    rig = Rig(generation=2, history=left_behind(("q", 0), ("q", 1)))
    for worker in (0, 1):
        rig.did(rig.coordinator.from_worker(restored(rig, worker, rig.turn, 2)))
    ask_for_a_move(rig)
    rig.facts(active=False, committed=1, log_read=True)
    assert moved(rig)


def test_whoever_leaves_does_not_wait_for_ever_for_an_epoch_of_a_run_that_is_over() -> None:
    rig = second_epoch(sealed=True)
    wish(rig, "drain", "all_at_once", worker=WorkerId(0))
    weighed(rig)
    rig.stage += 1
    rig.open(2)
    rig.recorded()
    rig.did(rig.coordinator.from_worker(m.Arrived(WorkerId(1), NAME, move(rig), 1, 1, 0, 0), np.zeros(1).tobytes()))
    rig.seal()
    assert not results(rig.steps)
    for _ in range(MOST_LOOKS + 1):  # the first look began in the epoch before
        assert not results(rig.steps)
        rig.facts(active=False, committed=1, log_read=True)
    released(rig)
    error = results(rig.steps)[-1].error
    assert isinstance(error, MoveFailed)
    assert "2 key groups had new owners by then and have stayed with them" in error.message
    assert set(rig.coordinator.workers) == {1}


def test_state_that_cannot_be_read_back_is_tried_again_and_fails_the_change() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    stop(rig)
    rig.lose(1)
    rig.join(1)
    error = m.WireError.of(StoreError("no answer"))

    def unread() -> m.Restored:
        return m.Restored(WorkerId(1), NAME, FIRST, 0, 2, 0, 0, error, rig.epochs.told[WorkerId(1)])

    rig.did(rig.coordinator.from_worker(unread()))
    rig.forget_steps()
    ask_for_a_move(rig)
    assert [worker for worker, _ in rig.told(m.Restore)] == [1]
    assert not results(rig.steps)
    for tried in range(1, MOST_READS + 1):
        released(rig)  # what had begun is called off while state is read back
        rig.did(rig.coordinator.from_worker(unread()))
        assert not results(rig.steps)
        assert len(rig.told(m.Restore)) == tried, "a store that fails is not asked all the time"
        rig.clock.now += 5.0
        rig.facts(active=False, committed=0, log_read=True)
        assert len(rig.told(m.Restore)) == tried + 1
    rig.did(rig.coordinator.from_worker(unread()))
    for _ in range(2):  # once because state is read back, once because it cannot be
        released(rig)
    error = results(rig.steps)[-1].error
    assert isinstance(error, MoveFailed)
    assert "no answer" in error.message


# --- what is applied in the middle of a change that fails ---

OTHER = OperatorName("Other")
GROUPS = tuple(KeyGroup(group) for group in range(4))


@pytest.mark.parametrize("name", [NAME, OTHER])
def test_what_is_applied_while_a_change_goes_on_has_owners_when_that_is_called_off(name: OperatorName) -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    wish(rig, "rescale", "seamless", workers=3)
    rig.join(2)
    weighed(rig)
    lineage = Lineage(Generation(1), History(name), {1: SCHEMA})
    number, steps = rig.coordinator.deploy("another", name, 4, b"code", lineage=lineage, fresh=True)
    rig.did(steps)
    for worker in range(3):
        rig.did(rig.coordinator.from_worker(m.Deployed(WorkerId(worker), number, None)))
    assert 2 in rig.coordinator.operator(name).routing.owners
    if name == NAME:  # what was to move is given up, so all is done
        assert [result.error for result in results(rig.steps)] == [None]
        assert set(rig.coordinator.workers) == {0, 1, 2}
        return
    called_off(rig)
    assert set(rig.coordinator.workers) == {0, 1}
    assert set(rig.coordinator.operator(name).routing.owners) == {0, 1}
    told = {group for _, message in rig.told(m.Restore) for group in message.groups if message.operator == name}
    assert told == set(range(4))
    assert not rig.coordinator._operators[name].recovery.left_unread


def test_nothing_moves_before_all_workers_have_the_code_to_take_it_in() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    number, steps = rig.coordinator.deploy("again", NAME, 4, b"code")
    rig.did(steps)
    rig.did(rig.coordinator.from_worker(m.Deployed(WorkerId(0), number, None)))
    ask_for_a_move(rig)
    assert not rig.told(m.Flip)
    rig.did(rig.coordinator.from_worker(m.Deployed(WorkerId(1), number, None)))
    assert moved(rig)


def test_what_was_applied_while_a_worker_came_moves_there_too() -> None:
    rig = Rig()
    rig.whole(0)
    rig.progress(0)
    name = OperatorName("Another")
    wish(rig, "rescale", "all_at_once", workers=3)
    lineage = Lineage(Generation(1), History(name), {1: SCHEMA})
    number, steps = rig.coordinator.deploy("another", name, 4, b"code", lineage=lineage)
    rig.did(steps)
    for worker in range(2):
        rig.did(rig.coordinator.from_worker(m.Deployed(WorkerId(worker), number, None)))
    assert 2 not in rig.coordinator.operator(name).routing.workers
    wanted = Wish(Kind.MOVE, worker=WorkerId(2), groups=(KeyGroup(0),))
    target = target_of(wanted, rig.coordinator.operator(name).routing, (0, 1, 2), {})
    assert target.owners[0] == 2


def test_word_of_an_earlier_order_to_read_state_back_does_not_count_for_the_last_one() -> None:
    rig = Rig(3)
    rig.open(0)
    rig.recorded()
    rig.seal(0, 1, 2)
    rig.progress(0)
    rig.lose(1)
    rig.join(1)
    early = restored(rig, 1, FIRST, 1)
    rig.lose(2)
    rig.did(rig.coordinator.worker_not_replaced(WorkerId(2), "no room"))
    assert len([worker for worker, _ in rig.told(m.Restore) if worker == 1]) > 1
    rig.did(rig.coordinator.from_worker(early))
    assert not rig.epochs.at_rest, "it has not read what it got of worker 2"
    for worker in (0, 1):
        rig.did(rig.coordinator.from_worker(restored(rig, worker, FIRST, 2)))
    assert rig.epochs.at_rest


def test_workers_that_forget_the_state_are_told_which_move_was_of_it() -> None:
    rig = moving("seamless", epoch=False)
    lineage = Lineage(Generation(1), History(NAME), {1: SCHEMA})
    rig.did(rig.coordinator.deploy("again", NAME, 4, b"code", lineage=lineage, fresh=True)[1])
    assert [(worker, message.move) for worker, message in rig.told(m.Reset)] == [(0, move(rig)), (1, move(rig))]


def test_whoever_has_the_only_state_of_an_operator_stays_when_a_change_is_called_off() -> None:
    coordinator = Coordinator(workers_at({WorkerId(0): "w0"}), clock=HandClock())
    _, steps = coordinator.deploy("user", NAME, 4, b"code")
    coordinator.from_worker(m.Deployed(WorkerId(0), DeploymentId(0), None))
    epoch_in_memory(coordinator, NAME, 0, [0])
    coordinator.change("user", Wish(Kind.RESCALE, strategy_named("seamless"), workers=2))
    coordinator.worker_joined(WorkerId(1), "w1")
    steps = coordinator.from_worker(m.Deployed(WorkerId(1), DeploymentId(0), None))
    for worker, message in to_workers(steps, m.Weigh):
        coordinator.from_worker(m.Weighed(WorkerId(worker), NAME, message.ticket, {}, 0, 0, 0.0, 0.0))
    coordinator.deploy("user", OTHER, 4, b"code")
    for worker in range(2):
        coordinator.from_worker(m.Deployed(WorkerId(worker), DeploymentId(1), None))
    epoch_in_memory(coordinator, OTHER, 1, [0, 1])
    could, steps = coordinator.cancel(0)
    assert could
    for worker, message in to_workers(steps, m.Release):
        steps += coordinator.from_worker(m.Released(WorkerId(worker), NAME, message.move))
    assert results(steps)
    assert set(coordinator.workers) == {0, 1}
    assert set(coordinator.operator(NAME).routing.owners) == {0}


def test_a_worker_that_owned_nothing_and_is_lost_while_it_is_weighed_is_not_waited_for() -> None:
    coordinator = Coordinator(workers_at({WorkerId(0): "w0", WorkerId(1): "w1"}), clock=HandClock())
    coordinator.deploy("user", NAME, 4, b"code")
    for worker in range(2):
        coordinator.from_worker(m.Deployed(WorkerId(worker), DeploymentId(0), None))
    coordinator.change("user", Wish(Kind.MOVE, strategy_named("all_at_once"), worker=WorkerId(0), groups=GROUPS))
    for worker in range(2):
        coordinator.from_worker(m.Weighed(WorkerId(worker), NAME, 0, {}, 0, 0, 0.0, 0.0))
    assert set(coordinator.operator(NAME).routing.owners) == {0}
    epoch_in_memory(coordinator, NAME, 0, [0, 1])
    number, _ = coordinator.change("user", Wish(Kind.DRAIN, strategy_named("all_at_once"), worker=WorkerId(1)))
    coordinator.from_worker(m.Weighed(WorkerId(0), NAME, number, {}, 0, 0, 0.0, 0.0))
    steps = coordinator.worker_lost(WorkerId(1), "killed")
    assert [result.error for result in results(steps)] == [None]
    assert coordinator.members.owning == (0,)


def epoch_in_memory(coordinator: Coordinator, name: OperatorName, deployment: int, workers: list[int]) -> None:
    query, run = QueryId(f"of {name}"), RunId(f"run of {name}")
    coordinator.open("task", m.Open(name, DeploymentId(deployment), query, run, Epoch(0), 1, 0, 0, "n"))
    for worker in workers:
        turn = coordinator.operator(name).turn
        coordinator.from_worker(m.Sealed(WorkerId(worker), name, turn, EpochStats(rows=1, keys=1)))
    coordinator.progress(query, run, Epoch(0))
    assert coordinator.operator(name).phase is Phase.IDLE


def called_off(rig: Rig) -> None:
    could, steps = rig.coordinator.cancel(0)
    assert could
    rig.did(steps)
    released(rig)
    assert results(rig.steps)


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
    rollout = Rollout(Members([]))
    for number in range(10):
        rollout.roll_out(number, NAME, rollout.number(), 4, b"code %d" % number)
    sent = [
        step.message
        for step in rollout.send_all(Worker(WorkerId(1)), {NAME: DeploymentId(2)})
        if isinstance(step, ToWorker)
    ]
    assert [it.deployment for it in sent if isinstance(it, m.Deploy)] == list(range(10))
    assert [it.deployment for it in sent if isinstance(it, m.Deploy) and it.start] == [2]


def test_what_runs_is_kept_however_often_the_operator_is_applied() -> None:
    rollout = Rollout(Members([]))
    for number in range(3 * MOST_KEPT):
        active = DeploymentId(1) if number else None
        rollout.roll_out(number, NAME, rollout.number(), 4, b"%d" % number, active=active)
    assert rollout.knows(NAME, DeploymentId(1))
    assert rollout.knows(NAME, DeploymentId(3 * MOST_KEPT - 1))
    assert not rollout.knows(NAME, DeploymentId(0))
    assert len(rollout.send_all(Worker(WorkerId(1)))) == MOST_KEPT


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
    coordinator = Coordinator(workers_at({WorkerId(0): "a", WorkerId(1): "b"}), clock=HandClock())
    coordinator.deploy("user", NAME, 4, b"")
    coordinator.from_worker(m.WorkerFailed(WorkerId(0), m.WireError.of(error)))
    assert coordinator.error is None
    steps = coordinator.worker_lost(WorkerId(0), "gone")
    assert not [step for step in steps if isinstance(step, WorkersLeft)]
    assert coordinator.error is not None
    assert "its last words: " in coordinator.error.message


def test_the_record_of_a_change_has_every_change_of_ownership() -> None:
    rig = moving()
    rig.seal()
    rig.did(rig.coordinator.from_worker(m.Arrived(WorkerId(1), NAME, move(rig), 1, 1, 0, 0)))
    rig.progress(1)
    released(rig)
    (result,) = results(rig.steps)
    assert result.routings == ((NAME, f"move {move(rig)} flips"),)


def test_a_move_that_has_flipped_whole_is_done_though_nobody_says_what_became_of_the_sealed_epoch() -> None:
    rig = moving()
    rig.inspected()
    rig.seal()  # worker 1 had no rows of what is on its way
    rig.lose(0)
    rig.join(0)
    released(rig)
    for worker, message in rig.told(m.Restore):
        if worker == 0:
            rig.did(rig.coordinator.from_worker(restored(rig, 0, FIRST, len(message.groups))))
    stop(rig)
    assert not results(rig.steps)
    for _ in range(MOST_LOOKS):
        rig.facts(active=False, committed=0, log_read=True)
    (result,) = results(rig.steps)
    assert result.error is None
