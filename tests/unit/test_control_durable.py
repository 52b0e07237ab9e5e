"""One operator's epochs at a coordinator with a checkpoint: losses, replacements, take-up, going back."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.checkpoint_states import schema_of
from tests.unit.transport_kit import HandClock

from bedload.checkpoint.history import CompactionSettings, History
from bedload.checkpoint.orders import decode_order
from bedload.checkpoint.records import Manifest, SnapshotPart, TurnRecord
from bedload.control.attempt import StageFacts
from bedload.control.compaction import Retention
from bedload.control.coordinator import Coordinator
from bedload.control.inquiries import QueryFacts
from bedload.control.instructions import (
    CheckpointResult,
    CheckTurn,
    CollectGarbage,
    DeployResult,
    EpochEnded,
    InspectQuery,
    InspectStage,
    Instruction,
    ReplaceWorker,
    Reply,
    ToWorker,
    WriteManifest,
    WriteTurn,
)
from bedload.control.lineage import Lineage
from bedload.control.members import workers_at
from bedload.control.standing import Phase
from bedload.control.wish import Kind, Wish
from bedload.core.epoch import EpochStats, EpochTime
from bedload.core.errors import BedloadError, Fenced, ProtocolError, StoreError
from bedload.core.ids import (
    NO_EPOCH,
    NO_QUERY,
    NO_TURN,
    DeploymentId,
    Epoch,
    Generation,
    KeyGroup,
    OperatorName,
    QueryId,
    RunId,
    Ticket,
    Turn,
    WorkerId,
    make_turn,
)
from bedload.migration import strategy_named
from bedload.protocol import messages as m

TIME = EpochTime(watermark=3, processing=5)
NAME = OperatorName("Count")
SCHEMA = schema_of({"key": pa.int64()}, {"n": pa.int64()}, groups=4)
ERROR = m.WireError.of(BedloadError("boom"))
FIRST = make_turn(Generation(1), 0)


class Rig:
    """A coordinator with a checkpoint, and what it said."""

    def __init__(
        self,
        workers: int = 2,
        *,
        generation: int = 1,
        history: History | None = None,
        max_turns: int = 500,
        slice_files: int = 256,
        takes_slots: bool = False,
    ) -> None:
        addresses = {WorkerId(number): f"w{number}" for number in range(workers)}
        retention = Retention(2, CompactionSettings(max_turns=max_turns), slice_files)
        self.clock = HandClock()
        self.coordinator = Coordinator(
            workers_at(addresses), durable=True, retention=retention, takes_slots=takes_slots, clock=self.clock
        )
        self.history = History(NAME) if history is None else history
        self.steps: list[Instruction] = []
        self._numbers = itertools.count()
        self.stage = 1
        lineage = Lineage(Generation(generation), self.history, {1: SCHEMA})
        _, steps = self.coordinator.deploy("user", NAME, 4, b"code", lineage=lineage)
        self.did(steps)
        for worker in addresses:
            self.did(self.coordinator.from_worker(m.Deployed(worker, DeploymentId(0), None)))

    @property
    def epochs(self) -> Any:
        return self.coordinator.operator(NAME)

    @property
    def turn(self) -> Turn:
        return Turn(self.epochs.turn)

    @property
    def phase(self) -> Phase:
        return Phase(self.epochs.phase)

    def did(self, steps: list[Instruction]) -> list[Instruction]:
        self.steps += steps
        self.coordinator.check()
        return steps

    # --- Spark ---

    def ask(self, epoch: int, run: str = "r1", query: str = "q", **other: Any) -> m.Open:
        number = next(self._numbers)
        ids = QueryId(query), RunId(run), Epoch(epoch)
        nonce = other.get("nonce", f"n{number}")
        return m.Open(NAME, DeploymentId(0), *ids, other.get("stage", self.stage), 0, number, nonce)

    def open(self, *arguments: Any, **other: Any) -> str:
        """Open, and say in one word what came of it."""
        ask = self.ask(*arguments, **other)
        return answers(self.did(self.coordinator.open(ask.nonce, ask))).get(ask.nonce, "waits")

    def inspected(self) -> None:
        """Answer the question about the stage of the current turn."""
        asked = [step for step in self.steps if isinstance(step, InspectStage)][-1]
        self.did(self.coordinator.stage_inspected(NAME, asked.turn, asked.stage, StageFacts(2, 2, TIME)))

    def facts(self, *, active: bool = False, committed: int | None = None, query: str = "q", **more: Any) -> list[str]:
        """Answer the last question about a query."""
        asked = [step for step in self.steps if isinstance(step, InspectQuery)][-1]
        assert asked.query == query
        quiet = frozenset(map(Epoch, more.pop("quiet", ())))
        known = QueryFacts(active, None if committed is None else Epoch(committed), quiet, **more)
        steps = self.did(self.coordinator.query_inspected(NAME, asked.query, asked.turn, known))
        return list(answers(steps).values())

    def progress(self, epoch: int, run: str = "r1", query: str = "q") -> list[Instruction]:
        return self.did(self.coordinator.progress(QueryId(query), RunId(run), Epoch(epoch)))

    # --- files ---

    def recorded(self, turn: Turn | None = None, location: str = "/q") -> None:
        self.did(self.coordinator.turn_written(NAME, self.turn if turn is None else turn, location))

    def checked(self, *, whole: bool) -> list[Instruction]:
        return self.did(self.coordinator.turn_checked(NAME, self.turn, whole))

    # --- workers ---

    def seal(self, *workers: int) -> None:
        for worker in workers or sorted(self.coordinator.workers):
            sealed = m.Sealed(WorkerId(worker), NAME, self.turn, EpochStats(rows=1, keys=1, bytes=10))
            self.did(self.coordinator.from_worker(sealed))

    def settled(self, worker: int, *, sealed: bool) -> list[Instruction]:
        return self.did(self.coordinator.from_worker(m.Settled(WorkerId(worker), NAME, self.turn, sealed)))

    def lose(self, worker: int) -> list[Instruction]:
        return self.did(self.coordinator.worker_lost(WorkerId(worker), "killed"))

    def join(self, worker: int) -> list[Instruction]:
        """A replacement comes and loads the code."""
        self.did(self.coordinator.worker_joined(WorkerId(worker), f"w{worker}'"))
        return self.did(self.coordinator.from_worker(m.Deployed(WorkerId(worker), DeploymentId(0), None)))

    def whole(self, epoch: int, run: str = "r1", query: str = "q") -> None:
        """An epoch that is sealed."""
        self.stage += 1
        assert self.open(epoch, run, query) == "Opened"
        self.inspected()
        self.recorded(location=f"/{query}")
        self.seal()
        assert self.phase is Phase.SEALED

    # --- what was said ---

    def told(self, kind: type[m.Message]) -> list[tuple[int, Any]]:
        return to_workers(self.steps, kind)

    def last_record(self) -> TurnRecord:
        record = self.coordinator.record(NAME, self.turn)
        assert record is not None
        return record

    def forget_steps(self) -> None:
        self.steps = []


def to_workers(steps: list[Instruction], kind: type[m.Message]) -> list[tuple[int, Any]]:
    found = [step for step in steps if isinstance(step, ToWorker) and isinstance(step.message, kind)]
    return [(int(step.worker), step.message) for step in found]


def answers(steps: list[Instruction]) -> dict[str, str]:
    return {
        str(step.to): step.message.error.kind if isinstance(step.message, m.Refused) else type(step.message).__name__
        for step in steps
        if isinstance(step, Reply)
    }


def left_behind(*epochs: tuple[str, int], sealed: bool = True) -> History:
    """What another driver left: a turn for each epoch; the last one may not be whole."""
    history = History(NAME)
    committed: dict[str, Epoch] = {}
    for number, (query, epoch) in enumerate(epochs):
        record = TurnRecord(
            turn=make_turn(Generation(1), number),
            parent=make_turn(Generation(1), number - 1) if number else None,
            generation=Generation(1),
            query=QueryId(query),
            run=f"{query}-run",
            epoch=Epoch(epoch),
            location=f"/{query}",
            schema=1,
            owners=((0, 2), (1, 2)),
            workers=(WorkerId(0), WorkerId(1)),
            committed=dict(committed),
        )
        history.add(record)
        committed[query] = Epoch(epoch)
        if sealed or number < len(epochs) - 1:
            history.sealed(record.turn, 10)
    return history


@pytest.fixture
def rig() -> Rig:
    return Rig()


# --- the record comes first ---


def test_turns_are_of_their_generation_and_go_up() -> None:
    rig = Rig(generation=3)
    rig.whole(0)
    assert rig.turn == make_turn(Generation(3), 0)
    rig.whole(1)
    assert rig.turn == make_turn(Generation(3), 1)


def test_workers_are_told_what_to_expect_only_when_the_turn_is_on_record(rig: Rig) -> None:
    rig.open(0)
    rig.inspected()
    assert rig.told(m.Expect) == []
    rig.recorded()
    assert [(worker, message.feeders) for worker, message in rig.told(m.Expect)] == [(0, 2), (1, 2)]


def test_the_time_of_an_epoch_is_told_and_put_on_record_once(rig: Rig) -> None:
    rig.open(0)
    assert not [step for step in rig.steps if isinstance(step, WriteTurn)]
    rig.inspected()
    assert [(worker, message.time) for worker, message in rig.told(m.Time)] == [(0, TIME), (1, TIME)]
    assert [step.record for step in rig.steps if isinstance(step, WriteTurn)] == [rig.last_record()]
    assert rig.last_record().time == TIME
    rig.forget_steps()
    rig.did(rig.coordinator.stage_inspected(NAME, rig.turn, 1, StageFacts(2, 2, EpochTime(7, 9))))
    assert rig.steps == []


def test_the_record_of_a_former_turn_does_not_stand_for_the_current_one(rig: Rig) -> None:
    rig.open(0)
    former = rig.turn
    rig.open(0, "r2", stage=2)
    rig.inspected()
    rig.recorded(former)
    assert rig.told(m.Expect) == []


def test_a_record_says_what_it_builds_upon(rig: Rig) -> None:
    rig.whole(0)
    first = rig.turn
    assert rig.last_record().parent is None
    rig.whole(1)
    record = rig.last_record()
    assert (record.parent, record.epoch, record.committed) == (first, 1, {"q": 0})
    assert record.workers == (0, 1)
    assert record.owner_of_groups == (0, 0, 1, 1)


def test_the_replay_of_a_sealed_epoch_builds_upon_the_same_state(rig: Rig) -> None:
    rig.whole(0)
    rig.whole(1)
    rig.whole(1, "r2")
    assert rig.last_record().parent == FIRST


def test_a_turn_that_cannot_be_put_on_record_is_rolled_back(rig: Rig) -> None:
    rig.open(0)
    rig.did(rig.coordinator.turn_unwritten(NAME, rig.turn, StoreError("down")))
    assert rig.phase is Phase.ABORTED
    assert rig.open(0) == "StoreError"


# --- settling ---


def test_the_loss_of_a_worker_asks_the_others_what_became_of_the_turn(rig: Rig) -> None:
    rig.open(0)
    steps = rig.lose(1)
    assert rig.phase is Phase.SETTLING
    assert [worker for worker, _ in to_workers(steps, m.Settle)] == [0]
    assert [step.worker for step in steps if isinstance(step, ReplaceWorker)] == [1]


def test_one_that_had_not_sealed_ends_the_turn(rig: Rig) -> None:
    rig.open(0)
    rig.lose(1)
    rig.settled(0, sealed=False)
    assert rig.phase is Phase.ABORTED
    assert not [step for step in rig.steps if isinstance(step, CheckTurn)]
    assert [worker for worker, _ in rig.told(m.Abort)] == [0]


@pytest.mark.parametrize(("whole", "phase"), [(True, Phase.SEALED), (False, Phase.ABORTED)])
def test_if_the_others_have_sealed_the_store_decides(rig: Rig, whole: bool, phase: Phase) -> None:
    rig.open(0)
    rig.recorded()
    rig.lose(1)
    steps = rig.settled(0, sealed=True)
    assert [step.turn for step in steps if isinstance(step, CheckTurn)] == [rig.turn]
    rig.checked(whole=whole)
    assert rig.phase is phase


def test_a_turn_that_spark_committed_meanwhile_is_committed_if_it_is_whole(rig: Rig) -> None:
    rig.open(0)
    rig.lose(1)
    rig.progress(0)
    rig.settled(0, sealed=True)
    rig.checked(whole=True)
    assert rig.phase is Phase.IDLE
    assert rig.epochs.committed == {"q": 0}


def test_a_second_loss_while_settling_is_not_waited_for() -> None:
    rig = Rig(3)
    rig.open(0)
    rig.lose(2)
    rig.settled(0, sealed=True)
    steps = rig.lose(1)
    assert [type(step) for step in steps] == [CheckTurn, ReplaceWorker]


def test_when_all_workers_are_lost_the_store_is_asked_at_once() -> None:
    rig = Rig(1)
    rig.open(0)
    assert CheckTurn in [type(step) for step in rig.lose(0)]


def test_word_of_a_former_turn_settles_nothing(rig: Rig) -> None:
    rig.open(0)
    rig.open(0, "r2", stage=2)
    rig.lose(1)
    rig.did(rig.coordinator.from_worker(m.Settled(WorkerId(0), NAME, FIRST, False)))
    rig.did(rig.coordinator.turn_checked(NAME, FIRST, False))
    assert rig.phase is Phase.SETTLING


def test_tasks_of_a_turn_that_is_settling_are_refused_and_those_of_the_next_wait(rig: Rig) -> None:
    rig.open(0)
    assert rig.open(0, stage=2) == "waits"
    assert list(answers(rig.lose(1)).values()) == ["WorkerLost"]
    assert rig.open(0) == "WorkerLost"
    assert rig.open(0, "r2", stage=3) == "waits"


def test_the_loss_of_a_worker_leaves_a_sealed_turn_as_it_is(rig: Rig) -> None:
    rig.whole(0)
    rig.lose(1)
    assert rig.phase is Phase.SEALED
    rig.progress(0)
    assert rig.epochs.committed == {"q": 0}


def test_the_outputs_of_a_lost_worker_cannot_be_repeated_in_a_sealed_turn(rig: Rig) -> None:
    rig.whole(0)
    first = rig.ask(0, nonce="again")
    assert answers(rig.did(rig.coordinator.open("again", first))) == {"again": "Opened"}
    rig.lose(1)
    assert rig.open(0, nonce="again") == "WorkerLost"
    rig.join(1)
    assert rig.open(0) == "WorkerLost"
    assert rig.open(0, "r2", stage=9) == "Opened"


# --- replacements ---


def test_opens_wait_until_the_replacement_has_the_code(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.lose(1)
    assert rig.open(1) == "waits"
    steps = rig.did(rig.coordinator.worker_joined(WorkerId(1), "w1'"))
    assert [(worker, message.deployment) for worker, message in to_workers(steps, m.Deploy)] == [(1, 0)]
    ready = rig.did(rig.coordinator.from_worker(m.Deployed(WorkerId(1), DeploymentId(0), None)))
    assert list(answers(ready).values()) == ["Opened"]


def test_nobody_waits_for_a_replacement_that_may_need_the_waiting_tasks_slot() -> None:
    rig = Rig(takes_slots=True)
    rig.whole(0)
    assert rig.open(1, "r2", query="other") == "waits"  # until somebody has looked at the first query
    assert list(answers(rig.lose(1)).values()) == ["WorkerLost"]
    assert rig.open(1, "r3") == "WorkerLost"
    rig.join(1)
    assert rig.open(1, "r3") == "Opened"


def test_a_replacement_reads_its_state_back_before_it_begins_and_the_others_keep_theirs(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.lose(1)
    rig.forget_steps()
    rig.join(1)
    rig.open(1)
    assert [(worker, message.base, message.groups) for worker, message in rig.told(m.Restore)] == [(1, FIRST, (2, 3))]
    to_one = [type(step.message) for step in rig.steps if isinstance(step, ToWorker) and step.worker == 1]
    assert to_one.index(m.Restore) < to_one.index(m.Begin)


def test_a_restore_carries_the_plan_to_the_turn(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.lose(1)
    rig.join(1)
    (body,) = [
        step.body
        for step in rig.steps
        if isinstance(step, ToWorker) and isinstance(step.message, m.Restore) and step.message.base == FIRST
    ]
    assert body is not None
    order = decode_order(body)
    assert [record.turn for record in order.plan.deltas] == [FIRST]
    assert order.schemas == {1: SCHEMA}


def test_a_replacement_that_came_while_a_turn_was_sealed_gets_the_state_with_it(rig: Rig) -> None:
    rig.whole(0)
    rig.lose(1)
    rig.join(1)
    rig.forget_steps()
    rig.progress(0)
    # At once, since nobody may come to begin another epoch, and people look at the state.
    assert [(worker, message.base) for worker, message in rig.told(m.Restore)] == [(1, FIRST)]
    rig.forget_steps()
    assert rig.open(1) == "Opened"
    assert rig.told(m.Restore) == []


def test_no_turn_begins_without_a_worker_that_is_missing_not_even_for_who_waited_for_something_else(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    assert rig.open(2) == "waits"  # epoch 1 is missing: it is found out why
    rig.lose(1)
    assert rig.facts(active=True, committed=1, quiet=(1,)) == []
    rig.join(1)
    assert rig.facts(active=True, committed=1, quiet=(1,)) == ["Opened"]


def test_a_replacement_that_dies_is_replaced_again(rig: Rig) -> None:
    rig.whole(0)
    rig.lose(1)
    rig.did(rig.coordinator.worker_joined(WorkerId(1), "w1'"))
    assert [step.worker for step in rig.lose(1) if isinstance(step, ReplaceWorker)] == [1]
    assert rig.open(1) == "waits"
    assert list(answers(rig.join(1)).values()) == ["Opened"]


def test_without_a_replacement_the_others_take_the_key_groups_over_and_read_them_back() -> None:
    rig = Rig(2)
    rig.whole(0)
    rig.progress(0)
    rig.lose(1)
    assert rig.open(1) == "waits"
    rig.forget_steps()
    steps = rig.did(rig.coordinator.worker_not_replaced(WorkerId(1), "no room"))
    assert list(answers(steps).values()) == ["Opened"]
    assert [(worker, message.groups) for worker, message in rig.told(m.Restore)] == [(0, (2, 3))]
    assert [message.groups for _, message in rig.told(m.Begin)] == [(0, 1, 2, 3)]
    assert rig.last_record().workers == (0,)


def test_key_groups_that_are_taken_over_in_a_sealed_turn_are_read_back_after_its_commit() -> None:
    rig = Rig(2)
    rig.whole(0)
    rig.lose(1)
    rig.forget_steps()
    rig.did(rig.coordinator.worker_not_replaced(WorkerId(1), "no room"))
    assert rig.told(m.Restore) == []
    rig.open(1)
    assert [(message.base, message.groups) for _, message in rig.told(m.Restore)] == [(FIRST, (2, 3))]


def test_one_that_comes_too_late_is_told_to_end_and_its_end_is_no_loss(rig: Rig) -> None:
    rig.lose(1)
    rig.did(rig.coordinator.worker_not_replaced(WorkerId(1), "no room"))
    steps = rig.did(rig.coordinator.worker_joined(WorkerId(1), "w1'"))
    assert [worker for worker, _ in to_workers(steps, m.Stop)] == [1]
    assert rig.lose(1) == []
    assert rig.open(0) == "Opened"


def test_one_that_comes_at_the_last_moment_counts(rig: Rig) -> None:
    rig.lose(1)
    rig.did(rig.coordinator.worker_joined(WorkerId(1), "w1'"))
    assert rig.did(rig.coordinator.worker_not_replaced(WorkerId(1), "no room")) == []
    assert rig.open(0) == "waits"
    rig.did(rig.coordinator.from_worker(m.Deployed(WorkerId(1), DeploymentId(0), None)))
    assert rig.epochs.routing.groups_of(WorkerId(1)) == (2, 3)


def test_when_no_worker_is_left_and_none_comes_the_cluster_is_over() -> None:
    rig = Rig(1)
    rig.lose(0)
    assert rig.open(0) == "waits"
    steps = rig.did(rig.coordinator.worker_not_replaced(WorkerId(0), "no room"))
    assert list(answers(steps).values()) == ["WorkerLost"]
    assert "no room" in str(rig.coordinator.error)


def test_an_operator_that_is_applied_while_no_worker_is_there_is_shipped_to_the_replacement() -> None:
    rig = Rig(1)
    rig.lose(0)
    _, steps = rig.coordinator.deploy("user", NAME, 4, b"new")
    assert [step.error for step in steps if isinstance(step, DeployResult)] == [None]
    shipped = to_workers(rig.coordinator.worker_joined(WorkerId(0), "w0'"), m.Deploy)
    assert [message.deployment for _, message in shipped] == [0, 1]


# --- restoring ---


def test_a_new_operator_starts_from_the_empty_state(rig: Rig) -> None:
    assert [(worker, message.base) for worker, message in rig.told(m.Restore)] == [(0, NO_TURN), (1, NO_TURN)]
    assert {step.body for step in rig.steps if isinstance(step, ToWorker) and isinstance(step.message, m.Restore)} == {
        None
    }


def test_workers_that_hold_the_state_are_not_told_to_read_it(rig: Rig) -> None:
    rig.forget_steps()
    rig.whole(0)
    rig.whole(1)
    assert rig.told(m.Restore) == []


def test_a_worker_that_has_not_got_its_state_fails_the_turn_and_is_told_again(rig: Rig) -> None:
    rig.whole(0)
    rig.whole(1)
    rig.stage += 1
    rig.open(2)
    failed = m.Failed(WorkerId(1), NAME, rig.turn, ERROR, unrestored=True)
    rig.did(rig.coordinator.from_worker(failed))
    assert rig.phase is Phase.ABORTED
    rig.forget_steps()
    rig.open(2, "r2", stage=9)
    assert [worker for worker, _ in rig.told(m.Restore)] == [1]


def test_a_worker_whose_reading_failed_between_turns_is_told_again(rig: Rig) -> None:
    problem = m.Restored(WorkerId(0), NAME, NO_TURN, 0, 2, 0, 0, ERROR, rig.epochs.told[WorkerId(0)])
    rig.did(rig.coordinator.from_worker(problem))
    rig.forget_steps()
    rig.open(0)
    assert [worker for worker, _ in rig.told(m.Restore)] == [0]


def test_a_worker_that_sealed_without_rows_while_it_read_in_vain_has_not_got_the_state(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.lose(1)
    rig.join(1)
    rig.stage += 1
    rig.open(1, "r2")
    rig.recorded()
    rig.seal()
    told = rig.epochs.told[WorkerId(1)]
    rig.did(rig.coordinator.from_worker(m.Restored(WorkerId(1), NAME, NO_TURN, 0, 0, 0, 0, ERROR, told)))
    rig.forget_steps()
    rig.stage += 1
    rig.open(2, "r2")
    assert rig.epochs.committed == {"q": 1}
    assert [(worker, message.groups) for worker, message in rig.told(m.Restore)] == [(1, (2, 3))]


def test_who_could_not_read_its_state_is_left_alone_and_keeps_nobody_else_from_being_told(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.lose(0)
    rig.join(0)
    told = rig.epochs.told[WorkerId(0)]
    rig.did(rig.coordinator.from_worker(m.Restored(WorkerId(0), NAME, NO_TURN, 0, 0, 0, 0, ERROR, told)))
    rig.forget_steps()
    assert rig.epochs.lineage is not None
    rig.epochs.lineage.take_over(WorkerId(1), [KeyGroup(2)])  # as a move that failed has it
    rig.progress(0)
    assert [(worker, message.groups) for worker, message in rig.told(m.Restore)] == [(1, (2,))]
    rig.progress(0)
    assert len(rig.told(m.Restore)) == 1


def test_no_epoch_begins_on_state_that_cannot_be_read_however_often_spark_asks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.lose(0)
    rig.lose(1)
    with monkeypatch.context() as damaged:
        damaged.setattr(rig.history, "_plan", lambda _: None)
        rig.join(0)
        rig.join(1)
        for run in ("r2", "r3", "r4"):
            rig.stage += 1
            assert rig.open(1, run) == "EpochNotRetained"
    assert rig.epochs.told == {}
    rig.stage += 1
    assert rig.open(1, "r5") == "Opened"
    assert [(worker, message.base) for worker, message in rig.told(m.Restore)][-2:] == [(0, FIRST), (1, FIRST)]


def test_how_far_the_workers_are_can_be_seen(rig: Rig) -> None:
    news = m.Restored(WorkerId(0), NAME, NO_TURN, 1, 1, 5, 100)
    rig.did(rig.coordinator.from_worker(news))
    assert rig.coordinator.restoring[NAME, WorkerId(0)] == news


# --- after another driver ---


def test_the_state_that_another_driver_left_is_read_before_anybody_asks() -> None:
    rig = Rig(generation=2, history=left_behind(("q", 0), ("q", 1)))
    assert rig.phase is Phase.SEALED
    assert {message.base for _, message in rig.told(m.Restore)} == {FIRST + 1}


def test_what_another_driver_sealed_is_committed_by_the_next_epoch_and_no_worker_is_told() -> None:
    rig = Rig(generation=2, history=left_behind(("q", 0), ("q", 1)))
    rig.forget_steps()
    assert rig.open(2, "r2") == "Opened"
    assert rig.epochs.committed == {"q": 1}
    assert rig.last_record().parent == FIRST + 1
    assert rig.told(m.Restore) == rig.told(m.Commit) == []
    assert not [step for step in rig.steps if isinstance(step, EpochEnded)]
    assert rig.turn == make_turn(Generation(2), 0)


def test_what_another_driver_sealed_and_spark_replays_is_left_out() -> None:
    rig = Rig(generation=2, history=left_behind(("q", 0), ("q", 1)))
    rig.forget_steps()
    assert rig.open(1, "r2") == "Opened"
    assert {message.base for _, message in rig.told(m.Restore)} == {FIRST}
    assert rig.last_record().parent == FIRST
    assert rig.told(m.Abort) == []


def test_a_turn_that_another_driver_left_unfinished_is_as_if_it_never_was() -> None:
    rig = Rig(generation=2, history=left_behind(("q", 0), ("q", 1), sealed=False))
    assert rig.open(1, "r2") == "Opened"
    assert rig.last_record().parent == FIRST


def test_a_loss_before_spark_asked_for_anything_leaves_what_was_taken_up() -> None:
    rig = Rig(generation=2, history=left_behind(("q", 0), ("q", 1)))
    rig.lose(1)
    rig.join(1)
    assert rig.phase is Phase.SEALED
    assert rig.open(2, "r2") == "Opened"
    assert rig.last_record().parent == FIRST + 1


@pytest.mark.parametrize(
    ("committed", "log_read", "parent"), [(0, True, FIRST), (None, True, None), (None, False, FIRST)]
)
def test_another_query_keeps_of_a_former_driver_what_spark_committed_or_may_have(
    committed: int | None, log_read: bool, parent: Turn | None
) -> None:
    rig = Rig(generation=2, history=left_behind(("q", 0)))
    assert rig.open(0, "b1", "b") == "waits"
    asked = [step for step in rig.steps if isinstance(step, InspectQuery)][-1]
    assert asked.location == "/q"
    rig.facts(committed=committed, log_read=log_read)
    if parent is not None:
        rig.facts(query="b", location="/b", log_read=True)
    assert rig.last_record().parent == parent


def test_the_first_turn_of_a_driver_is_after_those_of_all_former_ones() -> None:
    rig = Rig(generation=5, history=left_behind(("q", 0)))
    rig.open(1, "r2")
    assert rig.turn == make_turn(Generation(5), 0)


# --- going back ---


def test_spark_may_go_back_several_epochs(rig: Rig) -> None:
    for epoch in range(4):
        rig.whole(epoch)
    rig.forget_steps()
    assert rig.open(1, "r2", stage=99) == "Opened"
    assert {message.base for _, message in rig.told(m.Restore)} == {FIRST}
    assert [message.turn for _, message in rig.told(m.Abort)] == [FIRST + 3] * 2
    record = rig.last_record()
    assert (record.parent, record.committed) == (FIRST, {"q": 0})
    rig.recorded()
    rig.seal()
    assert rig.open(2, "r2", stage=100) == "Opened"


def test_spark_may_go_back_to_the_beginning(rig: Rig) -> None:
    rig.whole(0)
    rig.whole(1)
    rig.forget_steps()
    assert rig.open(0, "r2", stage=99) == "Opened"
    assert {message.base for _, message in rig.told(m.Restore)} == {NO_TURN}
    assert rig.last_record().parent is None


def test_spark_may_go_back_from_a_committed_a_sealed_and_an_aborted_epoch(rig: Rig) -> None:
    rig.whole(0)
    rig.whole(1)
    rig.progress(1)
    assert rig.open(1, "r2", stage=50) == "Opened"
    rig.did(rig.coordinator.from_worker(m.Failed(WorkerId(0), NAME, rig.turn, ERROR)))
    assert rig.phase is Phase.ABORTED
    assert rig.open(0, "r3", stage=60) == "Opened"


def test_going_back_takes_the_epochs_of_other_queries_after_it_along() -> None:
    rig = Rig(generation=2, history=left_behind(("q", 0), ("b", 0), ("q", 1)))
    assert rig.open(0, "r2") == "Opened"
    assert rig.last_record().committed == {}


def test_what_is_not_kept_any_more_is_refused_and_nothing_changes(rig: Rig) -> None:
    for epoch in range(5):
        rig.whole(epoch)
        rig.progress(epoch)
        if epoch == 2:
            rig.did(rig.coordinator.checkpoint("user", NAME))
            compacted(rig, 0)
            compacted(rig, 1)
            rig.did(rig.coordinator.snapshot_written(NAME, rig.turn, None))
    rig.history.forget(rig.history.garbage(1))
    turn = rig.turn
    assert rig.open(1, "r2", stage=99) == "EpochNotRetained"
    assert (rig.turn, rig.phase) == (turn, Phase.IDLE)
    assert rig.open(4, "r3", stage=100) == "Opened"


# --- another query, a deleted checkpoint ---


def test_a_query_that_starts_anew_where_another_had_its_checkpoint_is_refused(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.stage += 1
    assert rig.open(0, "n1", "new") == "waits"
    rig.facts(committed=0)
    assert rig.facts(query="new", active=True, location="/q") == ["CheckpointForeign"]
    assert rig.epochs.committed == {"q": 0}


def test_a_query_that_starts_anew_elsewhere_goes_on_with_the_state(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.stage += 1
    rig.open(0, "n1", "new")
    rig.facts(committed=0)
    assert rig.facts(query="new", active=True, location="/new") == ["Opened"]
    assert rig.last_record().parent == FIRST


def anew(rig: Rig) -> Rig:
    """A state that belongs to one query at a time; another one than its own asks for its first epoch."""
    rig.whole(0)
    rig.progress(0)
    rig.coordinator.each_query_anew(NAME)
    rig.stage += 1
    assert rig.open(0, "n1", "new") == "waits"
    return rig


def test_a_query_does_not_start_without_state_where_the_one_that_has_it_can_go_on(rig: Rig) -> None:
    assert anew(rig).facts(committed=0, location="/q", log_read=True) == ["OperatorBusy"]
    assert rig.epochs.committed == {"q": 0}
    rig.stage += 1
    assert rig.open(1, "r2") == "Opened"


UNNAMED = "0f2b8a1c-3d4e-4f5a-8b6c-7d8e9f0a1b2c"


@pytest.mark.parametrize(
    ("committed", "location"), [(None, "/q"), (0, f"file:/all/{UNNAMED}"), (0, f"file:/tmp/temporary-{UNNAMED}")]
)
def test_a_query_starts_without_state_where_the_one_that_had_it_is_over(
    rig: Rig, committed: int | None, location: str
) -> None:
    assert anew(rig).facts(committed=committed, location=location) == ["Opened"]
    assert rig.epochs.committed == {}
    assert rig.last_record().parent is None


def test_a_look_for_a_query_s_place_looks_into_its_gap_too(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.stage += 1
    assert rig.open(2, "r1", "other") == "waits"
    assert rig.facts(committed=0, log_read=True) == []
    assert [step.gap for step in rig.steps if isinstance(step, InspectQuery)] == [(), (0, 1)]
    assert rig.facts(active=True, committed=1, query="other", location="/other", quiet=(0, 1)) == ["Opened"]


def test_what_another_query_s_open_had_looked_at_before_does_not_explain_a_gap(rig: Rig) -> None:
    rig.whole(0)
    rig.stage += 1
    assert rig.open(0, "b1", "b") == "waits"  # somebody looks at q, whose epoch 1 is yet to come
    assert rig.open(2) == "waits"
    assert rig.facts(active=True, committed=0) == ["OperatorBusy"]
    assert rig.facts(active=True, committed=1, quiet=(1,)) == ["Opened"]


# --- fencing ---


@pytest.mark.parametrize("how", ["seal", "record", "check", "read"])
def test_a_cluster_whose_checkpoint_was_taken_over_is_over(rig: Rig, how: str) -> None:
    rig.open(0)
    error = Fenced("generation 2 has it")
    if how == "seal":
        steps = rig.coordinator.from_worker(m.Failed(WorkerId(0), NAME, rig.turn, m.WireError.of(error)))
    elif how == "record":
        steps = rig.coordinator.turn_unwritten(NAME, rig.turn, error)
    elif how == "read":
        unread = m.Restored(WorkerId(0), NAME, NO_TURN, 0, 2, 0, 0, m.WireError.of(error))
        steps = rig.coordinator.from_worker(unread)
    else:
        steps = rig.coordinator.failed(error)
    assert isinstance(rig.coordinator.error, Fenced)
    assert [worker for worker, _ in to_workers(steps, m.Abort)] == [0, 1]
    assert rig.open(0, "r2", stage=2) == "Fenced"


# --- snapshots ---


def compacted(rig: Rig, worker: int, error: m.WireError | None = None) -> list[Instruction]:
    groups = tuple(int(group) for group in rig.epochs.routing.groups_of(WorkerId(worker)))
    body = msgspec.msgpack.encode([SnapshotPart(groups=groups, rows=1, files={})])
    tickets = [message.ticket for told, message in rig.told(m.Compact) if told == worker]
    done = m.Compacted(WorkerId(worker), NAME, tickets[-1] if tickets else 0, error)
    return rig.did(rig.coordinator.from_worker(done, body))


@pytest.mark.parametrize("by", ["progress", "open"])
def test_a_snapshot_is_due_after_so_many_commits_however_they_come(by: str) -> None:
    rig = Rig(max_turns=1)
    rig.whole(0)
    rig.progress(0)
    rig.whole(1)
    assert rig.told(m.Compact) == []
    if by == "progress":
        rig.progress(1)
    else:
        rig.open(2, stage=9)
    assert [(worker, message.turn) for worker, message in rig.told(m.Compact)] == [(0, FIRST + 1), (1, FIRST + 1)]


def test_a_snapshot_counts_when_every_worker_has_written_its_part(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.did(rig.coordinator.checkpoint("user", NAME))
    assert compacted(rig, 0) == []
    (step,) = compacted(rig, 1)
    assert isinstance(step, WriteManifest)
    assert [part.groups for part in step.manifest.parts] == [(0, 1), (2, 3)]
    assert step.manifest.committed == {"q": 0}
    (result,) = rig.coordinator.snapshot_written(NAME, FIRST, None)
    assert isinstance(result, CheckpointResult)
    assert result.error is None
    (again,) = rig.coordinator.checkpoint("user", NAME)
    assert isinstance(again, CheckpointResult)


def test_the_snapshot_of_an_attempt_that_seemed_to_fail_is_the_one_that_is_known(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.did(rig.coordinator.checkpoint("user", NAME))
    compacted(rig, 0)
    (step,) = compacted(rig, 1)
    assert isinstance(step, WriteManifest)
    counts = msgspec.structs.replace(step.manifest, parts=step.manifest.parts[::-1])
    rig.did(rig.coordinator.snapshot_written(NAME, FIRST, None, counts))
    assert rig.history.manifest(FIRST) == counts


@pytest.mark.parametrize("why", ["error", "manifest"])
def test_a_snapshot_that_fails_is_told_and_can_be_asked_for_again(rig: Rig, why: str) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.did(rig.coordinator.checkpoint("user", NAME))
    if why == "error":
        steps = compacted(rig, 0, ERROR)
    else:
        compacted(rig, 0)
        compacted(rig, 1)
        steps = rig.coordinator.snapshot_written(NAME, FIRST, StoreError("down"))
    (result,) = [step for step in steps if isinstance(step, CheckpointResult)]
    assert result.error is not None
    again = rig.coordinator.checkpoint("user", NAME)
    assert [worker for worker, _ in to_workers(again, m.Compact)] == [0, 1]


def test_a_snapshot_begins_anew_when_a_lost_writer_is_back(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.did(rig.coordinator.checkpoint("user", NAME))
    before = len(rig.told(m.Compact))
    late = m.Compacted(WorkerId(0), NAME, rig.told(m.Compact)[0][1].ticket, None)
    rig.lose(1)
    assert len(rig.told(m.Compact)) == before
    rig.join(1)
    assert [worker for worker, _ in rig.told(m.Compact)[before:]] == [0, 1]
    assert rig.coordinator.from_worker(late, b"") == []  # of the first snapshot: it does not count for the second
    compacted(rig, 0)
    (step,) = compacted(rig, 1)
    assert isinstance(step, WriteManifest)
    results = rig.coordinator.snapshot_written(NAME, FIRST, None)
    assert [step.error for step in results if isinstance(step, CheckpointResult)] == [None]


def test_a_snapshot_begins_anew_when_a_writer_leaves(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.did(rig.coordinator.checkpoint("user", NAME))
    before = len(rig.told(m.Compact))
    strategy = strategy_named("all_at_once")
    rig.did(rig.coordinator.change("drain", Wish(Kind.DRAIN, strategy, worker=WorkerId(1)))[1])
    for worker in (0, 1):
        weighed = m.Weighed(WorkerId(worker), NAME, 0, {}, 0, 0, 0.0, 0.0)
        rig.did(rig.coordinator.from_worker(weighed))
    move = rig.told(m.Flip)[-1][1].move
    rig.did(rig.coordinator.from_worker(m.Arrived(WorkerId(0), NAME, move, 0, 0, 0, 0)))
    for worker in (0, 1):
        rig.did(rig.coordinator.from_worker(m.Released(WorkerId(worker), NAME, move)))
    assert list(rig.coordinator.workers) == [0]
    assert [(worker, message.groups) for worker, message in rig.told(m.Compact)[before:]] == [(0, (0, 1, 2, 3))]
    (step,) = compacted(rig, 0)
    assert isinstance(step, WriteManifest)
    results = rig.coordinator.snapshot_written(NAME, FIRST, None)
    assert [step.error for step in results if isinstance(step, CheckpointResult)] == [None]


def test_whoever_asked_before_spark_went_back_gets_a_snapshot_of_the_state_there_is(rig: Rig) -> None:
    for epoch in range(3):
        rig.whole(epoch)
        rig.progress(epoch)
    rig.did(rig.coordinator.checkpoint("first", NAME))
    rig.whole(3)
    rig.progress(3)
    rig.did(rig.coordinator.checkpoint("second", NAME))
    rig.open(1, "r2", stage=99)  # the state is that of epoch 0 again
    for _ in range(2):
        compacted(rig, 0)
        written = compacted(rig, 1)
        (step,) = [it for it in written if isinstance(it, WriteManifest)]
        results = rig.did(rig.coordinator.snapshot_written(NAME, step.manifest.turn, None))
    assert [step.to for step in results if isinstance(step, CheckpointResult)] == ["second"]
    assert [it for it in results if isinstance(it, ToWorker) and isinstance(it.message, m.Compact)] == []


def test_whoever_asked_before_spark_went_back_to_state_that_was_given_is_answered() -> None:
    given = make_turn(Generation(1), 0)
    parts = tuple(SnapshotPart(groups=groups, rows=1, files={}) for groups in ((0, 1), (2, 3)))
    alone = Manifest(turn=given, schema=1, query=NO_QUERY, epoch=NO_EPOCH, parts=parts, bytes=0, rows=2, committed={})
    rig = Rig(generation=2, history=History(NAME, manifests=[alone]))  # a snapshot without the record of a turn
    rig.whole(0)
    rig.progress(0)
    rig.did(rig.coordinator.checkpoint("first", NAME))
    rig.whole(1)
    rig.progress(1)
    rig.did(rig.coordinator.checkpoint("second", NAME))  # waits for the one before
    rig.open(0, "r2", stage=99)  # the query was set back
    assert rig.epochs.base == given
    compacted(rig, 0)
    [step] = [it for it in compacted(rig, 1) if isinstance(it, WriteManifest)]
    rig.did(rig.coordinator.snapshot_written(NAME, step.manifest.turn, None))
    answered = {step.to: step.error for step in rig.steps if isinstance(step, CheckpointResult)}
    assert answered == {"first": None, "second": None}


def test_nobody_waits_for_a_snapshot_of_state_that_was_given_up(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.did(rig.coordinator.checkpoint("user", NAME))
    rig.lose(1)
    lineage = Lineage(Generation(1), History(NAME), {1: SCHEMA})
    rig.did(rig.coordinator.deploy("again", NAME, 4, b"code", lineage=lineage, fresh=True)[1])
    rig.join(1)
    rig.did(rig.coordinator.from_worker(m.Deployed(WorkerId(1), DeploymentId(1), None)))
    assert [(step.to, step.error) for step in rig.steps if isinstance(step, CheckpointResult)] == [("user", None)]


def test_parts_that_do_not_cover_every_key_group_never_count(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    rig.did(rig.coordinator.checkpoint("user", NAME))
    compacted(rig, 0)
    ticket = rig.told(m.Compact)[-1][1].ticket
    body = msgspec.msgpack.encode([SnapshotPart(groups=(2,), rows=1, files={})])
    (result,) = rig.coordinator.from_worker(m.Compacted(WorkerId(1), NAME, ticket, None), body)
    assert isinstance(result, CheckpointResult)
    assert isinstance(result.error, ProtocolError)


def test_garbage_is_collected_after_a_snapshot_and_not_twice_at_a_time() -> None:
    rig = Rig(max_turns=1)

    def snapshot() -> list[Instruction]:
        compacted(rig, 0)
        compacted(rig, 1)
        return rig.did(rig.coordinator.snapshot_written(NAME, rig.turn, None))

    collected = []
    for epoch in range(8):
        rig.whole(epoch)
        rig.progress(epoch)
        collected.append(sum(isinstance(step, CollectGarbage) for step in snapshot()))
    assert sum(collected) == 1
    rig.did(rig.coordinator.garbage_collected(NAME))
    for epoch in range(8, 12):
        rig.whole(epoch)
        rig.progress(epoch)
        collected.append(sum(isinstance(step, CollectGarbage) for step in snapshot()))
    assert sum(collected) == 2


def test_garbage_is_deleted_slice_by_slice_promises_first() -> None:
    rig = Rig(max_turns=1, slice_files=2)
    steps: list[Instruction] = []
    epochs = itertools.count()
    while not (found := [step for step in steps if isinstance(step, CollectGarbage)]):
        rig.whole(epoch := next(epochs))
        rig.progress(epoch)
        compacted(rig, 0)
        compacted(rig, 1)
        steps = rig.did(rig.coordinator.snapshot_written(NAME, rig.turn, None))
    pieces = []
    while found:
        (step,) = found
        pieces.append(step.garbage)
        found = rig.did(rig.coordinator.garbage_collected(NAME))  # type: ignore[assignment]
    assert len(pieces) > 1
    assert max(len(piece.paths) for piece in pieces) == 2
    kinds = [path.endswith(".json") for piece in pieces for path in piece.paths]
    assert kinds == sorted(kinds, reverse=True), "promises first"
    assert [piece.floor is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_where_a_promise_could_not_be_deleted_its_files_stay() -> None:
    rig = Rig(max_turns=1, slice_files=1)
    steps: list[Instruction] = []
    epochs = itertools.count()

    def snapshot() -> list[Instruction]:
        rig.whole(epoch := next(epochs))
        rig.progress(epoch)
        compacted(rig, 0)
        compacted(rig, 1)
        return rig.did(rig.coordinator.snapshot_written(NAME, rig.turn, None))

    while not (found := [step for step in steps if isinstance(step, CollectGarbage)]):
        steps = snapshot()
    assert found[0].garbage.promises
    assert rig.did(rig.coordinator.garbage_collected(NAME, StoreError("the store is out of order"))) == []
    while not [step for step in steps if isinstance(step, CollectGarbage)]:
        steps = snapshot()  # what is garbage later is deleted, as before


def test_how_far_a_snapshot_is_can_be_seen_while_it_is_under_way(rig: Rig) -> None:
    rig.whole(0)
    rig.progress(0)
    assert rig.coordinator.checkpointing == []
    rig.did(rig.coordinator.checkpoint("user", NAME))
    asked = [message for _, message in rig.told(m.Compact)]
    assert [message.asked for message in asked] == [True, True]

    def seen() -> list[tuple[int, int, int, int, int]]:
        found = rig.coordinator.checkpointing
        assert {(item.operator, item.epoch, item.asked) for item in found} == {(NAME, 0, True)}
        return [(item.worker, item.written, item.left, item.keys, item.bytes) for item in found]

    assert seen() == [(0, 0, 2, 0, 0), (1, 0, 2, 0, 0)]
    rig.did(rig.coordinator.from_worker(m.Compacting(WorkerId(1), NAME, asked[1].ticket, 1, 5, 99)))
    rig.did(rig.coordinator.from_worker(m.Compacting(WorkerId(0), NAME, Ticket(asked[0].ticket - 1), 1, 5, 99)))
    assert seen() == [(0, 0, 2, 0, 0), (1, 1, 1, 5, 99)], "one of an attempt before this one does not count"
    compacted(rig, 1)
    rig.did(rig.coordinator.from_worker(m.Compacting(WorkerId(1), NAME, asked[1].ticket, 1, 5, 99)))
    assert seen() == [(0, 0, 2, 0, 0), (1, 2, 0, 1, 99)]
    compacted(rig, 0)
    rig.did(rig.coordinator.snapshot_written(NAME, rig.turn, None))
    assert rig.coordinator.checkpointing == []


def test_a_snapshot_that_is_due_is_one_that_nobody_waits_for() -> None:
    rig = Rig(max_turns=1)
    for epoch in range(2):
        rig.whole(epoch)
        rig.progress(epoch)
    assert [message.asked for _, message in rig.told(m.Compact)] == [False, False]
    assert not any(item.asked for item in rig.coordinator.checkpointing)
    rig.did(rig.coordinator.checkpoint("user", NAME))
    assert all(item.asked for item in rig.coordinator.checkpointing), "somebody waits for it by now"


def test_nothing_is_collected_while_a_worker_reads_state_by_a_plan_that_may_need_it() -> None:
    rig = Rig(max_turns=1)

    def run(epochs: range) -> int:
        found = 0
        for epoch in epochs:
            rig.whole(epoch)
            rig.progress(epoch)
            compacted(rig, 0)
            compacted(rig, 1)
            steps = rig.did(rig.coordinator.snapshot_written(NAME, rig.turn, None))
            found += sum(isinstance(step, CollectGarbage) for step in steps)
        return found

    rig.whole(0)
    rig.progress(0)
    rig.lose(1)
    rig.join(1)
    assert run(range(1, 8)) == 0
    half = m.Restored(WorkerId(1), NAME, FIRST, 1, 1, 0, 0)
    rig.did(rig.coordinator.from_worker(half))
    assert run(range(8, 10)) == 0
    told = rig.epochs.told[WorkerId(1)]
    rig.did(rig.coordinator.from_worker(m.Restored(WorkerId(1), NAME, FIRST, 2, 0, 0, 0, told=told)))
    assert run(range(10, 12)) == 1
