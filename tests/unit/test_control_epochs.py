"""One operator's epochs at the coordinator: which opens get in, which wait, which are refused and why."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bedload.control.attempt import StageFacts
from bedload.control.coordinator import Coordinator
from bedload.control.inquiries import QueryFacts
from bedload.control.instructions import (
    DeployResult,
    EpochEnded,
    InspectQuery,
    InspectStage,
    Instruction,
    Reply,
    ToWorker,
)
from bedload.control.members import workers_at
from bedload.control.standing import Phase
from bedload.core.epoch import EpochStats, EpochTime
from bedload.core.errors import BedloadError, NullKey, ProtocolError
from bedload.core.ids import (
    NO_EPOCH,
    NO_QUERY,
    NO_TURN,
    DeploymentId,
    Epoch,
    OperatorName,
    QueryId,
    RunId,
    Turn,
    WorkerId,
)
from bedload.protocol import messages as m

TIME = EpochTime(watermark=3, processing=5)
NAME = OperatorName("Count")
WORKERS = {WorkerId(0): "w0", WorkerId(1): "w1"}
ERROR = m.WireError.of(BedloadError("boom"))


class HandClock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.monotonic()


class Rig:
    """A coordinator, and what it said."""

    def __init__(self, *, fresh: bool = False) -> None:
        self.clock = HandClock()
        self.coordinator = Coordinator(workers_at(WORKERS), clock=self.clock)
        self.steps: list[Instruction] = []
        self._numbers = itertools.count()
        self.deploy(fresh=fresh)

    @property
    def epochs(self) -> Any:
        return self.coordinator.operator(NAME)

    def did(self, steps: list[Instruction]) -> list[Instruction]:
        self.steps += steps
        self.coordinator.check()
        return steps

    def deploy(self, **options: Any) -> list[Instruction]:
        deployment, steps = self.coordinator.deploy("user", NAME, 4, b"", **options)
        self.did(steps)
        for worker in WORKERS:
            if any(isinstance(step, ToWorker) and isinstance(step.message, m.Deploy) for step in steps):
                self.did(self.coordinator.from_worker(m.Deployed(worker, deployment, None)))
        return steps

    def ask(
        self, epoch: int, run: str = "r1", query: str = "q", *, stage: int = 1, partition: int = 0, **other: Any
    ) -> m.Open:
        number = next(self._numbers)
        attempt, nonce = other.get("attempt", number), other.get("nonce", f"n{number}")
        ids = QueryId(query), RunId(run), Epoch(epoch)
        deployment = DeploymentId(other.get("deployment", 0))
        return m.Open(NAME, deployment, *ids, stage, partition, attempt, nonce)

    def open(self, *arguments: Any, **other: Any) -> str:
        """Open, and say in one word what came of it."""
        ask = self.ask(*arguments, **other)
        return answers(self.did(self.coordinator.open(ask.nonce, ask))).get(ask.nonce, "parked")

    def inspected(self, stage: int = 1, feeders: int = 2, shape: int = 2) -> dict[str, str]:
        return answers(
            self.did(self.coordinator.stage_inspected(NAME, self.turn, stage, StageFacts(feeders, shape, TIME)))
        )

    def facts(
        self, *, active: bool = True, committed: int | None = None, quiet: tuple[int, ...] = (), query: str = "q"
    ) -> dict[str, str]:
        """Answer the last question about a query."""
        asked = [step for step in self.steps if isinstance(step, InspectQuery)][-1]
        assert asked.query == query
        known = QueryFacts(active, None if committed is None else Epoch(committed), frozenset(map(Epoch, quiet)))
        return answers(self.did(self.coordinator.query_inspected(NAME, asked.query, asked.turn, known)))

    def seal(self, *workers: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for worker in workers or (0, 1):
            sealed = m.Sealed(WorkerId(worker), NAME, self.turn, EpochStats(rows=1, keys=1))
            found |= answers(self.did(self.coordinator.from_worker(sealed)))
        return found

    def probed(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for worker in WORKERS:
            found |= answers(self.did(self.coordinator.from_worker(m.Probed(worker, NAME, self.turn))))
        return found

    def fail(self, turn: int | None = None) -> None:
        failed = m.Failed(WorkerId(0), NAME, self.turn if turn is None else Turn(turn), ERROR)
        self.did(self.coordinator.from_worker(failed))

    def progress(self, epoch: int, run: str = "r1", query: str = "q") -> None:
        self.did(self.coordinator.progress(QueryId(query), RunId(run), Epoch(epoch)))

    def whole(self, epoch: int, run: str = "r1", query: str = "q", *, stage: int = 1) -> None:
        """An epoch that is sealed."""
        assert self.open(epoch, run, query, stage=stage) == "Opened"
        self.inspected(stage)
        self.seal()

    @property
    def turn(self) -> Turn:
        return Turn(self.epochs.turn)

    @property
    def phase(self) -> Phase:
        return Phase(self.epochs.phase)

    def told(self, kind: type[m.Message]) -> list[tuple[int, Any]]:
        return [
            (int(step.worker), step.message)
            for step in self.steps
            if isinstance(step, ToWorker) and isinstance(step.message, kind)
        ]


def answers(steps: list[Instruction]) -> dict[str, str]:
    """Each asker's answer: ``Opened``, or the kind of error."""
    return {
        str(step.to): step.message.error.kind if isinstance(step.message, m.Refused) else type(step.message).__name__
        for step in steps
        if isinstance(step, Reply)
    }


@pytest.fixture
def rig() -> Rig:
    return Rig()


# --- opening ---


def test_the_first_open_begins_a_turn_on_every_worker_and_inspects_the_stage(rig: Rig) -> None:
    assert rig.open(0) == "Opened"
    assert [worker for worker, _ in rig.told(m.Begin)] == [0, 1]
    assert [step.stage for step in rig.steps if isinstance(step, InspectStage)] == [1]
    assert rig.phase is Phase.OPEN


def test_the_first_stage_s_inspection_tells_the_workers_how_many_feeders_to_expect(rig: Rig) -> None:
    rig.open(0)
    rig.inspected(feeders=3)
    assert [(worker, message.feeders) for worker, message in rig.told(m.Expect)] == [(0, 3), (1, 3)]


def test_feeders_of_one_attempt_are_counted_and_a_repeated_message_is_not(rig: Rig) -> None:
    asks = [rig.ask(0, attempt=7, nonce=nonce) for nonce in ("a", "a", "b")]
    feeders = []
    for ask in asks:
        steps = rig.coordinator.open(ask.nonce, ask)
        feeders += [step.message.feeder for step in steps if isinstance(step, Reply)]  # type: ignore[attr-defined]
    assert feeders == [m.FeederId(0, 0), m.FeederId(0, 0), m.FeederId(0, 1)]


def test_the_retry_of_a_task_is_the_same_feeder(rig: Rig) -> None:
    rig.open(0, partition=3, attempt=1)
    ask = rig.ask(0, partition=3, attempt=2)
    (reply,) = rig.coordinator.open("retry", ask)
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, m.Opened)
    assert reply.message.feeder == m.FeederId(3, 0)


def test_an_epoch_is_sealed_when_every_worker_has_sealed_it(rig: Rig) -> None:
    rig.open(0)
    rig.seal(0)
    assert rig.phase is Phase.OPEN
    rig.seal(1)
    assert rig.phase is Phase.SEALED


def test_a_seal_of_a_former_turn_does_not_count(rig: Rig) -> None:
    rig.open(0)
    rig.open(0, "r2", stage=2)
    rig.did(rig.coordinator.from_worker(m.Sealed(WorkerId(0), NAME, Turn(0), EpochStats(rows=1, keys=1))))
    rig.seal(1)
    assert rig.phase is Phase.OPEN


# --- committing ---


def test_the_next_epoch_s_open_commits_the_sealed_one(rig: Rig) -> None:
    rig.whole(0)
    assert rig.told(m.Commit) == []
    assert rig.open(1, stage=2) == "Opened"
    assert [message.turn for _, message in rig.told(m.Commit)] == [0, 0]
    assert rig.epochs.committed == {"q": 0}


def test_a_progress_event_commits_the_sealed_epoch(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    assert rig.phase is Phase.IDLE
    (ended,) = [step for step in rig.steps if isinstance(step, EpochEnded)]
    assert (ended.epoch, ended.committed, ended.time) == (0, True, TIME)
    assert ended.stats == {WorkerId(worker): EpochStats(rows=1, keys=1) for worker in (0, 1)}


@pytest.mark.parametrize(("epoch", "run", "query"), [(1, "r1", "q"), (0, "r0", "q"), (0, "r1", "other")])
def test_a_progress_event_of_something_else_commits_nothing(rig: Rig, epoch: int, run: str, query: str) -> None:
    rig.whole(0)
    rig.progress(epoch, run, query)
    assert rig.phase is Phase.SEALED


def test_a_progress_event_that_overtakes_the_seal_commits_at_the_seal(rig: Rig) -> None:
    rig.open(0)
    rig.progress(0)
    assert rig.phase is Phase.OPEN
    rig.seal()
    assert rig.phase is Phase.IDLE


def test_a_seal_that_the_next_open_overtook_is_waited_for(rig: Rig) -> None:
    rig.open(0)
    rig.seal(0)
    assert rig.open(1, stage=2) == "parked"
    assert [worker for worker, _ in rig.told(m.Probe)] == [0, 1]
    assert list(rig.seal(1).values()) == ["Opened"]
    assert rig.epochs.committed == {"q": 0}


def test_the_end_of_a_run_leaves_a_sealed_epoch_as_it_is(rig: Rig) -> None:
    rig.whole(0)
    rig.did(rig.coordinator.query_ended(QueryId("q"), RunId("r1")))
    assert rig.phase is Phase.SEALED


# --- replays and zombies ---


@pytest.mark.parametrize("sealed", [False, True])
def test_a_replay_in_a_new_run_rolls_back_and_begins_again(rig: Rig, sealed: bool) -> None:
    rig.open(0)
    if sealed:
        rig.seal()
    assert rig.open(0, "r2", stage=2) == "Opened"
    assert [message.turn for _, message in rig.told(m.Abort)] == [0, 0]
    assert rig.turn == 1


def test_a_replay_of_an_aborted_epoch_begins_again(rig: Rig) -> None:
    rig.open(0)
    rig.fail()
    assert rig.open(0, "r2", stage=2) == "Opened"


def test_a_retry_in_an_aborted_turn_is_refused_with_the_cause(rig: Rig) -> None:
    rig.open(0)
    rig.fail()
    assert rig.open(0) == "BedloadError"


def test_tasks_of_a_former_run_are_refused(rig: Rig) -> None:
    rig.open(0)
    rig.open(0, "r2", stage=2)
    assert rig.open(0, "r1") == "StaleAttempt"


def test_tasks_of_a_run_that_ended_are_refused(rig: Rig) -> None:
    rig.did(rig.coordinator.query_ended(QueryId("q"), RunId("r0")))
    assert rig.open(0, "r0") == "StaleAttempt"


def test_a_zombie_of_a_run_that_never_opened_anything_is_known_by_its_stage(rig: Rig) -> None:
    rig.whole(0, "r2", stage=9)
    assert rig.open(0, "r1", stage=4) == "StaleAttempt"
    assert rig.phase is Phase.SEALED


def test_a_task_of_a_former_epoch_of_this_run_is_refused(rig: Rig) -> None:
    rig.whole(0)
    rig.open(1, stage=2)
    assert rig.open(0) == "StaleAttempt"
    rig.seal()
    rig.progress(1)
    assert rig.open(1, stage=2) == "StaleAttempt"


def test_an_older_epoch_than_the_committed_one_is_refused(rig: Rig) -> None:
    for epoch in range(3):
        rig.whole(epoch, stage=epoch)
    rig.progress(2)
    assert rig.open(1, "r2", stage=9) == "EpochMismatch"


def test_an_older_epoch_than_the_sealed_one_is_refused_and_does_not_commit_it(rig: Rig) -> None:
    for epoch in range(3):
        rig.whole(epoch, stage=epoch)
    assert rig.open(1, "r2", stage=9) == "EpochMismatch"
    assert rig.phase is Phase.SEALED
    assert rig.open(2, "r3", stage=10) == "Opened"


def test_a_failure_of_a_former_turn_changes_nothing(rig: Rig) -> None:
    rig.open(0)
    rig.open(0, "r2", stage=2)
    rig.fail(turn=0)
    assert rig.phase is Phase.OPEN


def test_a_failure_after_the_seal_changes_nothing(rig: Rig) -> None:
    rig.whole(0)
    rig.fail()
    assert rig.phase is Phase.SEALED


def test_bad_data_at_a_feeder_is_left_to_the_workers_to_judge(rig: Rig) -> None:
    rig.open(0)
    failed = m.FeederFailed(NAME, Turn(0), m.WireError.of(NullKey("null")))
    rig.did(rig.coordinator.feeder_failed(failed))
    assert [worker for worker, _ in rig.told(m.FeederFailed)] == [0, 1]
    assert rig.phase is Phase.OPEN


# --- incomplete epochs and gaps ---


def test_an_epoch_that_was_never_whole_stops_the_query_for_good(rig: Rig) -> None:
    rig.open(0)
    assert rig.open(1, stage=2) == "parked"
    assert list(rig.probed().values()) == ["EpochIncomplete"]
    assert rig.open(1, stage=2) == "EpochIncomplete"
    assert rig.open(1, "r2", stage=3) == "EpochIncomplete"
    assert rig.epochs.committed == {}


def test_an_aborted_epoch_that_spark_committed_anyway_stops_the_query(rig: Rig) -> None:
    rig.open(0)
    rig.fail()
    assert rig.open(1, stage=2) == "EpochIncomplete"


def test_a_failure_while_the_next_epoch_waits_refuses_it(rig: Rig) -> None:
    rig.open(0)
    rig.open(1, stage=2)
    steps = rig.coordinator.from_worker(m.Failed(WorkerId(0), NAME, rig.turn, ERROR))
    assert list(answers(steps).values()) == ["EpochIncomplete"]


def test_epochs_without_data_may_be_skipped_by_all_feeders_that_wait(rig: Rig) -> None:
    rig.whole(0)
    assert [rig.open(3, stage=2, partition=p) for p in range(3)] == ["parked"] * 3
    assert list(rig.facts(committed=2, quiet=(1, 2)).values()) == ["Opened"] * 3
    assert rig.epochs.epoch == 3


def test_one_look_at_a_query_serves_all_feeders_that_wait(rig: Rig) -> None:
    rig.whole(0)
    for partition in range(5):
        rig.open(3, stage=2, partition=partition)
    (asked,) = [step for step in rig.steps if isinstance(step, InspectQuery)]
    assert asked.gap == (1, 2)


def test_a_commit_log_that_stays_behind_is_looked_at_now_and_then_and_not_for_ever(rig: Rig) -> None:
    rig.whole(0)
    rig.open(3, stage=2, partition=0)
    rig.open(3, stage=2, partition=1)
    for _ in range(20):
        assert rig.facts(committed=0) == {}
        rig.clock.now += 1
    looks = [step.pause for step in rig.steps if isinstance(step, InspectQuery)]
    assert looks[0] == 0
    assert len(looks) == 21
    assert min(looks[1:]) > 0
    rig.clock.now += 60
    assert list(rig.facts(committed=0).values()) == ["EpochMismatch"] * 2
    assert len([step for step in rig.steps if isinstance(step, InspectQuery)]) == 21
    assert rig.open(3, "r2", stage=3) == "parked"  # it may have come by the next run
    assert list(rig.facts(committed=2, quiet=(1, 2)).values()) == ["Opened"]


def test_an_epoch_with_data_that_nobody_opened_stops_the_query(rig: Rig) -> None:
    rig.whole(0)
    rig.open(3, stage=2)
    assert list(rig.facts(committed=2, quiet=(1,)).values()) == ["EpochIncomplete"]


def test_a_query_that_goes_on_where_there_is_no_state_is_refused(rig: Rig) -> None:
    rig.open(5)
    assert list(rig.facts(committed=4).values()) == ["EpochMismatch"]


def test_a_fresh_operator_takes_a_query_at_any_epoch() -> None:
    rig = Rig(fresh=True)
    assert rig.open(5) == "Opened"
    rig.seal()
    assert rig.open(9, stage=2) == "parked"


def test_reset_starts_empty_and_keeps_the_former_run_out(rig: Rig) -> None:
    rig.whole(0)
    rig.did(rig.coordinator.query_ended(QueryId("q"), RunId("other")))
    rig.deploy(fresh=True)
    assert [worker for worker, _ in rig.told(m.Abort)] == [0, 1]
    assert [worker for worker, _ in rig.told(m.Reset)] == [0, 1]
    assert rig.open(0, "r1") == "StaleAttempt"
    assert rig.open(7, "r2", stage=3) == "Opened"


def test_state_that_was_given_up_is_built_upon_by_nobody(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    assert rig.epochs.base == 0
    rig.deploy(fresh=True)
    # Whoever is handed keys now is handed none, and would say that epoch 0 is in them.
    assert rig.epochs.base == NO_TURN
    assert rig.epochs.base_epoch == (NO_EPOCH, NO_QUERY)
    assert rig.epochs.nobody_has_state


def test_whoever_waits_for_state_that_is_given_up_begins_with_its_new_owners(rig: Rig) -> None:
    rig.whole(0)
    assert rig.open(5, "p1", "p", stage=2) == "parked"
    _, steps = rig.coordinator.deploy("user", NAME, 8, b"", fresh=True)
    rig.did(steps)
    groups = sorted(group for _, message in rig.told(m.Begin) if message.query == "p" for group in message.groups)
    assert groups == list(range(8))
    assert rig.epochs.routing.key_groups == 8


def test_reset_answers_who_waits(rig: Rig) -> None:
    rig.open(0)
    assert rig.open(1, stage=2) == "parked"
    assert list(answers(rig.deploy(fresh=True)).values()) == ["StaleAttempt"]


# --- second actions ---


def test_a_second_action_of_the_same_shape_joins(rig: Rig) -> None:
    rig.open(0, stage=1)
    rig.inspected(stage=1, shape=2)
    rig.seal()
    assert rig.open(0, stage=2) == "parked"
    assert list(rig.inspected(stage=2, shape=2).values()) == ["Opened"]


def test_a_second_action_of_another_shape_is_refused(rig: Rig) -> None:
    rig.open(0, stage=1)
    rig.inspected(stage=1, shape=2)
    rig.open(0, stage=2)
    assert list(rig.inspected(stage=2, shape=1).values()) == ["NotDeterministic"]


def test_a_name_that_is_twice_in_one_query_is_said_to_be_so(rig: Rig) -> None:
    rig.deploy()
    assert rig.open(0, deployment=0) == "Opened"
    assert rig.open(0, deployment=1) == "DefinitionError"
    assert rig.open(0, deployment=0, partition=1) == "Opened"
    assert rig.open(0, run="r2", deployment=1) == "Opened", "another run has another plan"


def test_a_second_action_waits_for_both_shapes(rig: Rig) -> None:
    rig.open(0, stage=1)
    rig.open(0, stage=2)
    assert rig.inspected(stage=2) == {}
    assert list(rig.inspected(stage=1).values()) == ["Opened"]


def test_a_stage_that_cannot_be_inspected_fails_an_open_turn(rig: Rig) -> None:
    rig.open(0)
    rig.did(rig.coordinator.stage_unknown(NAME, rig.turn, ProtocolError("no plan")))
    assert rig.phase is Phase.ABORTED


def test_a_second_action_whose_stage_cannot_be_inspected_is_refused_and_the_seal_stays(rig: Rig) -> None:
    rig.open(0)
    rig.inspected()
    rig.seal()
    rig.open(0, stage=2)
    steps = rig.coordinator.stage_unknown(NAME, rig.turn, ProtocolError("no plan"))
    assert list(answers(steps).values()) == ["ProtocolError"]
    assert rig.phase is Phase.SEALED


def test_a_second_action_whose_stage_cannot_be_inspected_does_not_end_a_turn_that_may_be_sealed(rig: Rig) -> None:
    rig.open(0)
    rig.inspected()  # the workers know how many feeders there are: one of them may have sealed it by now
    rig.open(0, stage=2)
    steps = rig.coordinator.stage_unknown(NAME, rig.turn, ProtocolError("no plan"))
    assert list(answers(steps).values()) == ["ProtocolError"]
    assert rig.phase is Phase.OPEN


def test_inspections_of_a_former_turn_are_ignored(rig: Rig) -> None:
    rig.open(0)
    rig.open(0, "r2", stage=2)
    assert rig.coordinator.stage_inspected(NAME, Turn(0), 1, StageFacts(2, 2, TIME)) == []
    assert rig.coordinator.stage_unknown(NAME, Turn(0), ProtocolError("gone")) == []
    assert rig.phase is Phase.OPEN


# --- another query ---


def test_another_query_is_refused_while_the_first_runs(rig: Rig) -> None:
    rig.open(0)
    assert rig.open(0, "b1", "b", stage=2) == "parked"
    assert list(rig.facts(active=True).values()) == ["OperatorBusy"]
    assert rig.phase is Phase.OPEN


def test_the_first_query_s_own_opens_are_not_refused_for_being_looked_at(rig: Rig) -> None:
    rig.open(0, stage=1)
    rig.inspected(stage=1)
    rig.seal()
    second = rig.ask(0, stage=2)
    rig.did(rig.coordinator.open(second.nonce, second))
    rig.open(0, "b1", "b", stage=3)
    assert list(rig.facts(active=True).values()) == ["OperatorBusy"]
    assert rig.inspected(stage=2) == {second.nonce: "Opened"}


@pytest.mark.parametrize(("committed", "kept"), [(0, True), (None, False)])
def test_a_query_takes_over_when_the_first_is_over(rig: Rig, committed: int | None, kept: bool) -> None:
    rig.whole(0)
    rig.open(0, "b1", "b", stage=2)
    assert list(rig.facts(active=False, committed=committed).values()) == ["Opened"]
    assert bool(rig.told(m.Commit)) is kept
    assert bool(rig.told(m.Abort)) is not kept
    assert rig.epochs.query == "b"


def test_a_query_that_starts_anew_starts_without_state_where_state_is_of_a_query(rig: Rig) -> None:
    rig.coordinator.each_query_anew(NAME)
    rig.whole(0)
    rig.open(1)
    rig.fail()
    assert not rig.told(m.Reset)
    rig.open(0, "b1", "b", stage=2)
    assert list(rig.facts(active=False, committed=0).values()) == ["OperatorBusy"], "the first one can go on"
    rig.open(0, "b1", "b", stage=2)
    assert not rig.told(m.Reset)
    assert list(rig.facts(active=False, committed=None).values()) == ["Opened"]
    assert len(rig.told(m.Reset)) == len(WORKERS)
    assert rig.epochs.committed == {}
    rig.fail()
    assert rig.open(0, "b2", "b", stage=3) == "Opened"
    assert len(rig.told(m.Reset)) == len(WORKERS), "a replay is no new start"


def test_a_take_over_waits_for_the_word_of_a_seal_that_spark_relied_on(rig: Rig) -> None:
    rig.open(0)
    rig.seal(0)
    rig.open(0, "b1", "b", stage=2)
    assert rig.facts(active=False, committed=0) == {}
    rig.seal(1)
    assert list(rig.facts(active=False, committed=0).values()) == ["Opened"]
    assert rig.epochs.committed == {"q": 0}


def test_a_take_over_rolls_back_an_epoch_that_was_never_whole(rig: Rig) -> None:
    rig.open(0)
    rig.open(0, "b1", "b", stage=2)
    rig.facts(active=False, committed=0)
    rig.probed()
    assert list(rig.facts(active=False, committed=0).values()) == ["Opened"]
    assert rig.epochs.committed == {}


def test_what_was_seen_of_a_query_before_it_started_again_does_not_count(rig: Rig) -> None:
    rig.open(0)
    rig.fail()
    rig.open(0, "b1", "b", stage=2)
    (asked,) = [step for step in rig.steps if isinstance(step, InspectQuery)]
    assert rig.open(0, "r2", stage=3) == "Opened"
    old = QueryFacts(False, None, frozenset())
    assert answers(rig.did(rig.coordinator.query_inspected(NAME, QueryId("q"), asked.turn, old))) == {}
    assert rig.phase is Phase.OPEN
    assert list(rig.facts(active=True).values()) == ["OperatorBusy"]


def test_the_first_query_comes_back_after_the_second_is_over(rig: Rig) -> None:
    rig.whole(0)
    rig.open(0, "b1", "b", stage=2)
    rig.facts(active=False, committed=0)
    rig.seal()
    assert rig.open(1, "r2", stage=3) == "parked"
    assert list(rig.facts(query="b", active=False, committed=0).values()) == ["Opened"]
    assert rig.epochs.committed == {"q": 0, "b": 0}


# --- losing a worker ---


def test_the_loss_of_a_worker_rolls_back_answers_who_waits_and_refuses_the_rest(rig: Rig) -> None:
    rig.whole(0)
    rig.open(0, stage=2)
    steps = rig.coordinator.worker_lost(WorkerId(1), "killed")
    assert list(answers(steps).values()) == ["WorkerLost"]
    rig.did(steps)
    assert [worker for worker, _ in rig.told(m.Abort)] == [0]
    assert rig.open(0, "r2", stage=3) == "WorkerLost"
    assert rig.coordinator.workers == {0: "w0"}
    (result,) = [step for step in rig.deploy() if isinstance(step, DeployResult)]
    assert type(result.error).__name__ == "WorkerLost"
