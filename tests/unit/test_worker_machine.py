"""The worker's state machine, message by message."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.epoch import EpochTime
from bedload.core.errors import BedloadError, OperatorFailed, StoreError
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.split import pack, unpack
from bedload.testing.input import InputFormat
from bedload.worker.durability import Durability, Load, Loaded, LoadFailed, Seal
from bedload.worker.machine import COORDINATOR, LOADER, Phase, WorkerMachine
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows

NAME = OperatorName("Sum")
OUTPUT = pa.schema([("key", pa.string()), ("total", pa.int64())])
FORM = InputFormat(pa.schema([("key", pa.string()), ("n", pa.int64())]), "key", 4)
GROUPS = tuple(KeyGroup(group) for group in range(4))


class Running(Operator):
    total: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for row in rows:
            if row.n < 0:
                raise ValueError("negative")
            self.total += row.n
        return key, self.total


class AtSeal(Operator):
    total: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.total += sum(row.n for row in rows)

    def result(self, key: Any, ctx: Context) -> Any:
        if self.total < 0:
            raise ValueError("negative")
        return key, self.total


class BrokenSetup(Running):
    def setup(self, ctx: Context) -> None:
        raise RuntimeError("no model here")


class FixedClock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 0.0

    def processor(self) -> float:
        return self.now


def feeder(partition: int) -> m.FeederId:
    return m.FeederId(partition, 0)


class Rig:
    """A machine, and what it said to whom."""

    def __init__(self, operator: type[Operator] = Running, durability: Durability | None = None) -> None:
        self.operators = [operator]
        self.clock = FixedClock()
        self.machine = WorkerMachine(WorkerId(0), self._load, self.clock, durability)
        self.said: list[tuple[Any, m.Message, Any]] = []
        self.deploy(0)

    def _load(self, payload: bytes) -> Deployment:
        return Deployment(NAME, self.operators[int(payload)], FORM.key, FORM.columns, OUTPUT)

    def tell(self, peer: Any, message: m.Message, body: Any = None) -> list[Any]:
        """Send a message; what the machine said to the same peer."""
        out = self.machine.handle(peer, message, body)
        self.machine.check()
        self.said += out
        return [answer for to, answer, _ in out if to == peer]

    def deploy(self, number: int) -> None:
        self.tell(COORDINATOR, m.Deploy(NAME, DeploymentId(number), 4), str(number).encode())

    def begin(self, turn: int, epoch: int = 0, deployment: int = 0) -> list[Any]:
        begin = m.Begin(NAME, Turn(turn), Epoch(epoch), QueryId("q"), DeploymentId(deployment), GROUPS)
        return [*self.tell(COORDINATOR, begin), *self.tell(COORDINATOR, m.Time(NAME, Turn(turn), EpochTime()))]

    def expect(self, turn: int, feeders: int) -> list[Any]:
        return self.tell(COORDINATOR, m.Expect(NAME, Turn(turn), feeders))

    def join(self, peer: Any, turn: int, partition: int, schema: pa.Schema | None = None) -> list[Any]:
        body = (FORM.batch([{"key": "a", "n": 1}]).schema if schema is None else schema).serialize()
        return self.tell(peer, m.Join(NAME, Turn(turn), feeder(partition)), body)

    def apply(self, peer: Any, turn: int, partition: int, number: int, **totals: int) -> list[Any]:
        body, checksum = pack(FORM.batch([{"key": key, "n": n} for key, n in totals.items()]))
        return self.tell(peer, m.Apply(NAME, Turn(turn), feeder(partition), number, checksum), body)

    def done(self, peer: Any, turn: int, partition: int, batches: int) -> list[Any]:
        return self.tell(peer, m.Done(NAME, Turn(turn), feeder(partition), batches))

    def abort(self, turn: int) -> list[Any]:
        error = m.WireError.of(BedloadError("the driver says so"))
        return self.tell(COORDINATOR, m.Abort(NAME, Turn(turn), error))

    def commit(self, turn: int) -> None:
        self.tell(COORDINATOR, m.Commit(NAME, Turn(turn)))

    def seal(self, turn: int, epoch: int = 0, **totals: int) -> None:
        """A whole epoch of one feeder."""
        self.begin(turn, epoch)
        self.expect(turn, 1)
        peer = f"seal-{turn}"
        self.join(peer, turn, 0)
        self.apply(peer, turn, 0, 0, **totals)
        assert self.done(peer, turn, 0, 1) == [m.Finished(Turn(turn))]

    def to(self, peer: Any) -> list[m.Message]:
        return [message for to, message, _ in self.said if to == peer]

    def rows_to(self, peer: Any) -> list[dict[str, Any]]:
        return [
            row
            for to, _, body in self.said
            if to == peer and body is not None
            for row in unpack(body, OUTPUT).to_pylist()
        ]

    @property
    def totals(self) -> dict[str, int]:
        runtime = self.machine.runtime(NAME)
        assert runtime is not None
        return {key: state["total"] for key, state in runtime.snapshot()}

    @property
    def phase(self) -> Phase:
        return self.machine.phase(NAME)


def kinds(answers: list[Any]) -> list[str]:
    return [answer.error.kind if isinstance(answer, m.Refused) else type(answer).__name__ for answer in answers]


@pytest.fixture
def rig() -> Rig:
    return Rig()


# --- phases ---


def test_an_epoch_goes_from_idle_to_open_to_sealed_to_idle(rig: Rig) -> None:
    rig.begin(0)
    assert rig.phase is Phase.OPEN
    rig.join("t", 0, 0)
    assert rig.apply("t", 0, 0, 0, a=1) == [m.Applied(Turn(0), 0)]
    rig.expect(0, 1)
    assert rig.done("t", 0, 0, 1) == [m.Finished(Turn(0))]
    assert rig.phase is Phase.SEALED
    assert rig.totals == {}
    rig.commit(0)
    assert rig.phase is Phase.IDLE
    assert rig.totals == {"a": 1}


def test_abort_of_an_open_turn_rolls_back_and_refuses_the_rest(rig: Rig) -> None:
    rig.seal(0, a=1)
    rig.commit(0)
    rig.begin(1, epoch=1)
    rig.join("t", 1, 0)
    rig.apply("t", 1, 0, 0, a=5, b=5)
    rig.abort(1)
    assert rig.phase is Phase.ABORTED
    assert rig.totals == {"a": 1}
    assert kinds(rig.apply("t", 1, 0, 1, a=1)) == ["BedloadError"]


def test_abort_of_a_sealed_turn_rolls_back_and_a_later_turn_starts_over(rig: Rig) -> None:
    rig.seal(0, a=1)
    rig.abort(0)
    assert rig.totals == {}
    rig.seal(1, a=2)
    rig.commit(1)
    assert rig.totals == {"a": 2}


def test_abort_answers_who_waits_for_the_seal(rig: Rig) -> None:
    rig.begin(0)
    rig.join("t", 0, 0)
    assert rig.done("t", 0, 0, 0) == []
    rig.abort(0)
    assert kinds(rig.to("t")) == ["BedloadError"]


def test_commit_and_abort_of_another_turn_change_nothing(rig: Rig) -> None:
    rig.seal(3, a=1)
    rig.commit(2)
    rig.abort(2)
    assert rig.phase is Phase.SEALED


def test_commit_before_the_seal_changes_nothing(rig: Rig) -> None:
    rig.begin(0)
    rig.commit(0)
    assert rig.phase is Phase.OPEN


def test_a_turn_cannot_begin_while_another_is_open(rig: Rig) -> None:
    rig.begin(0)
    with pytest.raises(BedloadError, match="while turn 0 is OPEN"):
        rig.begin(1)


def test_a_repeated_begin_changes_nothing(rig: Rig) -> None:
    rig.seal(0, a=1)
    rig.begin(0)
    assert rig.phase is Phase.SEALED


# --- time ---


class Clocked(Operator):
    total: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.total = ctx.now + ctx.watermark


class ClockedSetup(Running):
    def setup(self, ctx: Context) -> None:
        print(ctx.now)


def test_rows_wait_for_the_time_of_their_epoch() -> None:
    rig = Rig(Clocked)
    for turn in range(2):
        rig.tell(COORDINATOR, m.Begin(NAME, Turn(turn), Epoch(turn), QueryId("q"), DeploymentId(0), GROUPS))
        rig.join("t", turn, 0)
        assert rig.apply("t", turn, 0, 0, a=1) == []
        assert rig.done("t", turn, 0, 1) == []
        rig.tell(COORDINATOR, m.Time(NAME, Turn(turn), EpochTime(watermark=100, processing=turn)))
        rig.expect(turn, 1)
        assert rig.to("t")[-2:] == [m.Applied(Turn(turn), 0), m.Finished(Turn(turn))]
        rig.commit(turn)
        assert rig.totals == {"a": 100 + turn}


def test_rows_that_wait_for_the_time_of_a_turn_that_fails_are_refused(rig: Rig) -> None:
    rig.tell(COORDINATOR, m.Begin(NAME, Turn(0), Epoch(0), QueryId("q"), DeploymentId(0), GROUPS))
    rig.join("t", 0, 0)
    rig.apply("t", 0, 0, 0, a=1)
    rig.join("later", 1, 0)
    rig.abort(0)
    assert set(kinds(rig.to("t"))) == {"BedloadError"}
    assert rig.to("later") == []
    rig.seal(1, a=2)
    rig.commit(1)
    assert rig.totals == {"a": 2}


def test_the_time_of_a_former_turn_is_not_taken(rig: Rig) -> None:
    rig.begin(0)
    rig.abort(0)
    rig.tell(COORDINATOR, m.Begin(NAME, Turn(1), Epoch(0), QueryId("q"), DeploymentId(0), GROUPS))
    rig.tell(COORDINATOR, m.Time(NAME, Turn(0), EpochTime()))
    rig.join("t", 1, 0)
    assert rig.apply("t", 1, 0, 0, a=1) == []


def test_there_is_no_time_outside_of_an_epoch() -> None:
    rig = Rig(ClockedSetup)
    rig.begin(0)
    assert "ctx.now is for process and result" in str(rig.to(COORDINATOR)[-1])


# --- exactly once ---


def test_a_repeat_gets_the_recorded_output_and_is_not_applied(rig: Rig) -> None:
    rig.begin(0)
    rig.expect(0, 2)
    for peer in ("first", "retry"):
        rig.join(peer, 0, 0)
        assert rig.apply(peer, 0, 0, 0, a=1) == [m.Applied(Turn(0), 0)]
    assert rig.rows_to("first") == rig.rows_to("retry") == [{"key": "a", "total": 1}]


def test_a_repeat_after_the_seal_gets_outputs_and_shares_again() -> None:
    rig = Rig(AtSeal)
    rig.seal(0, a=1, b=2)
    rig.join("retry", 0, 0)
    rig.apply("retry", 0, 0, 0, a=1, b=2)
    assert rig.done("retry", 0, 0, 1) == [m.Finished(Turn(0))]
    assert sorted(row["key"] for row in rig.rows_to("retry")) == ["a", "b"]
    rig.commit(0)
    assert rig.totals == {"a": 1, "b": 2}


def test_a_repeat_with_other_rows_aborts_an_open_turn(rig: Rig) -> None:
    rig.begin(0)
    rig.join("first", 0, 0)
    rig.apply("first", 0, 0, 0, a=1)
    rig.join("retry", 0, 0)
    assert kinds(rig.apply("retry", 0, 0, 0, a=2)) == ["NotDeterministic"]
    assert rig.phase is Phase.ABORTED
    (failed,) = [message for message in rig.to(COORDINATOR) if isinstance(message, m.Failed)]
    assert failed.error.kind == "NotDeterministic"


def test_a_repeat_with_other_rows_cannot_roll_back_a_sealed_turn(rig: Rig) -> None:
    rig.seal(0, a=1)
    rig.join("zombie", 0, 0)
    assert kinds(rig.apply("zombie", 0, 0, 0, a=2)) == ["NotDeterministic"]
    assert kinds(rig.apply("zombie", 0, 0, 1, a=2)) == ["NotDeterministic"]
    assert kinds(rig.done("zombie", 0, 0, 2)) == ["NotDeterministic"]
    assert rig.phase is Phase.SEALED
    rig.commit(0)
    assert rig.totals == {"a": 1}


@pytest.mark.parametrize("batches", [0, 2])
def test_a_repeat_of_another_length_aborts_an_open_turn(rig: Rig, batches: int) -> None:
    rig.begin(0)
    rig.join("first", 0, 0)
    rig.apply("first", 0, 0, 0, a=1)
    rig.join("retry", 0, 0)
    assert kinds(rig.done("retry", 0, 0, batches)) == ["NotDeterministic"]
    assert rig.phase is Phase.ABORTED


def test_a_batch_that_the_first_attempt_did_not_have_aborts(rig: Rig) -> None:
    rig.begin(0)
    rig.join("first", 0, 0)
    rig.apply("first", 0, 0, 1, a=1)
    assert kinds(rig.apply("first", 0, 0, 0, a=1)) == ["NotDeterministic"]


def test_a_new_feeder_after_the_seal_is_refused_with_all_it_sent(rig: Rig) -> None:
    rig.seal(0, a=1)
    assert kinds(rig.join("late", 0, 7)) == ["NotDeterministic"]
    assert kinds(rig.apply("late", 0, 7, 0, a=1)) == ["NotDeterministic"]
    assert kinds(rig.done("late", 0, 7, 1)) == ["NotDeterministic"]
    assert rig.phase is Phase.SEALED


def test_more_feeders_than_the_plan_has_abort(rig: Rig) -> None:
    rig.begin(0)
    rig.join("t", 0, 0)
    rig.join("u", 0, 1)
    rig.expect(0, 1)
    assert rig.phase is Phase.ABORTED


def test_an_attempt_without_rows_does_not_fix_the_columns_of_the_next(rig: Rig) -> None:
    rig.begin(0)
    rig.expect(0, 1)
    rig.join("empty", 0, 0, pa.schema([]))
    rig.machine.gone("empty")
    rig.join("full", 0, 0)
    assert kinds(rig.apply("full", 0, 0, 0, a=1)) == ["Applied"]


# --- turns ---


def test_messages_of_a_former_turn_are_refused(rig: Rig) -> None:
    rig.seal(0, a=1)
    rig.commit(0)
    assert kinds(rig.join("zombie", 0, 0)) == ["StaleAttempt"]
    rig.begin(1, epoch=1)
    assert kinds(rig.apply("zombie", 0, 0, 0, a=1)) == ["StaleAttempt"]
    assert rig.phase is Phase.OPEN


def test_messages_that_come_before_begin_wait_for_it(rig: Rig) -> None:
    assert rig.join("t", 0, 0) == []
    assert rig.apply("t", 0, 0, 0, a=1) == []
    assert rig.done("t", 0, 0, 1) == []
    rig.begin(0)
    rig.expect(0, 1)
    assert kinds(rig.to("t")) == ["Applied", "Finished"]


def test_messages_of_the_turn_after_next_go_on_waiting(rig: Rig) -> None:
    rig.join("later", 1, 0)
    rig.begin(0)
    rig.abort(0)
    rig.begin(1)
    rig.expect(1, 1)
    assert rig.done("later", 1, 0, 0) == [m.Finished(Turn(1))]


def test_early_messages_of_a_task_that_is_gone_are_forgotten(rig: Rig) -> None:
    rig.join("crashed", 0, 0)
    rig.apply("crashed", 0, 0, 0, a=1)
    rig.machine.gone("crashed")
    rig.seal(0, b=1)
    rig.commit(0)
    assert rig.totals == {"b": 1}


# --- slots: who is answered when ---


def test_done_waits_until_the_number_of_feeders_is_known(rig: Rig) -> None:
    rig.begin(0)
    rig.join("t", 0, 0)
    assert rig.done("t", 0, 0, 0) == []
    rig.expect(0, 2)
    assert kinds(rig.to("t")) == ["Finished"]
    assert rig.phase is Phase.OPEN


def test_done_is_answered_before_the_seal_while_another_feeder_has_no_slot(rig: Rig) -> None:
    rig.begin(0)
    rig.expect(0, 2)
    rig.join("t", 0, 0)
    assert rig.done("t", 0, 0, 0) == [m.Finished(Turn(0))]


def test_done_waits_for_the_seal_when_all_have_their_slot(rig: Rig) -> None:
    rig.begin(0)
    rig.expect(0, 2)
    rig.join("t", 0, 0)
    rig.join("u", 0, 1)
    assert rig.done("t", 0, 0, 0) == []
    assert rig.done("u", 0, 1, 0) == [m.Finished(Turn(0))]
    assert kinds(rig.to("t")) == ["Finished"]


def test_a_crash_releases_who_waits_because_the_retry_may_need_the_slot(rig: Rig) -> None:
    rig.begin(0)
    rig.expect(0, 2)
    rig.join("t", 0, 0)
    rig.join("crashing", 0, 1)
    assert rig.done("t", 0, 0, 0) == []
    assert rig.machine.gone("crashing") == [("t", m.Finished(Turn(0)), None)]


def test_a_crash_of_one_of_two_attempts_releases_nobody(rig: Rig) -> None:
    rig.begin(0)
    rig.expect(0, 2)
    rig.join("t", 0, 0)
    rig.join("crashing", 0, 1)
    rig.join("speculative", 0, 1)
    rig.done("t", 0, 0, 0)
    assert rig.machine.gone("crashing") == []


def test_who_was_released_has_no_share_of_the_sealed_outputs() -> None:
    rig = Rig(AtSeal)
    rig.begin(0)
    rig.expect(0, 2)
    rig.join("t", 0, 0)
    rig.apply("t", 0, 0, 0, a=1, b=1)
    rig.done("t", 0, 0, 1)
    rig.join("u", 0, 1)
    rig.done("u", 0, 1, 0)
    rig.join("retry", 0, 0)
    rig.done("retry", 0, 0, 1)
    assert rig.rows_to("t") == rig.rows_to("retry") == []
    assert sorted(row["key"] for row in rig.rows_to("u")) == ["a", "b"]


def test_who_waits_shares_the_sealed_outputs() -> None:
    rig = Rig(AtSeal)
    rig.begin(0)
    rig.expect(0, 2)
    rig.join("t", 0, 0)
    rig.join("u", 0, 1)
    rig.apply("t", 0, 0, 0, a=1, b=1, c=1)
    rig.done("t", 0, 0, 1)
    rig.done("u", 0, 1, 0)
    assert [len(rig.rows_to(peer)) for peer in ("t", "u")] == [2, 1]
    assert {row["key"] for peer in ("t", "u") for row in rig.rows_to(peer)} == {"a", "b", "c"}


# --- failures ---


def test_user_code_that_raises_ends_the_turn_with_its_own_error(rig: Rig) -> None:
    rig.begin(0)
    rig.join("t", 0, 0)
    rig.apply("t", 0, 0, 0, a=1)
    (refused,) = rig.apply("t", 0, 0, 1, a=-1)
    error = refused.error.error()
    assert isinstance(error, OperatorFailed)
    assert "ValueError: negative" in error.message
    assert rig.phase is Phase.ABORTED
    assert rig.totals == {}


def test_result_that_raises_fails_the_seal_and_whoever_waits_for_it() -> None:
    rig = Rig(AtSeal)
    rig.begin(0)
    rig.expect(0, 1)
    rig.join("t", 0, 0)
    rig.apply("t", 0, 0, 0, a=-1)
    assert kinds(rig.done("t", 0, 0, 1)) == ["OperatorFailed"]
    assert rig.phase is Phase.ABORTED


def test_bad_data_at_a_feeder_fails_an_open_turn_but_not_a_sealed_one(rig: Rig) -> None:
    failed = m.FeederFailed(NAME, Turn(0), m.WireError.of(BedloadError("null key")))
    rig.seal(0, a=1)
    rig.tell(COORDINATOR, failed)
    assert rig.phase is Phase.SEALED
    rig.abort(0)
    rig.begin(1)
    rig.tell(COORDINATOR, failed)
    assert rig.phase is Phase.OPEN
    rig.tell(COORDINATOR, m.FeederFailed(NAME, Turn(1), failed.error))
    assert rig.phase is Phase.ABORTED


def test_a_setup_that_fails_ends_the_turn_and_the_former_code_still_runs(rig: Rig) -> None:
    rig.seal(0, a=1)
    rig.commit(0)
    rig.operators.append(BrokenSetup)
    rig.deploy(1)
    assert kinds([m.Refused(message.error) for message in rig.begin(1, 1, 1) if isinstance(message, m.Failed)]) == [
        "OperatorFailed"
    ]
    assert rig.phase is Phase.ABORTED
    rig.seal(2, 1, a=1)
    rig.commit(2)
    assert rig.totals == {"a": 2}


def test_a_deployment_that_was_never_shipped_fails_the_turn(rig: Rig) -> None:
    (failed,) = rig.begin(0, deployment=9)
    assert failed.error.kind == "ProtocolError"


def test_reset_drops_all_state(rig: Rig) -> None:
    rig.seal(0, a=1)
    rig.commit(0)
    rig.tell(COORDINATOR, m.Reset(NAME))
    rig.seal(1, a=5)
    rig.commit(1)
    assert rig.totals == {"a": 5}


def test_probe_is_answered_after_what_was_said_before(rig: Rig) -> None:
    rig.seal(0, a=1)
    rig.tell(COORDINATOR, m.Probe(NAME, Turn(0)))
    said = [type(message) for message in rig.to(COORDINATOR)]
    assert said.index(m.Sealed) < said.index(m.Probed)


def test_an_unknown_message_is_refused(rig: Rig) -> None:
    assert kinds(rig.tell("t", m.Stop())) == ["ProtocolError"]


def test_a_read_of_an_unknown_operator_is_refused(rig: Rig) -> None:
    assert kinds(rig.tell("r", m.Inspect(OperatorName("Other")))) == ["UnknownOperator"]


# --- reading state back ---


def state_of(**totals: int) -> pa.RecordBatch:
    """Committed totals in state form."""
    fed = FORM.batch([{"key": key, "n": 0} for key in totals])
    order = sorted(range(len(totals)), key=lambda i: fed.column(2)[i].as_py())
    groups, keys = fed.column(2).take(pa.array(order, pa.int64())), fed.column(0).take(pa.array(order, pa.int64()))
    values = pa.array([list(totals.values())[i] for i in order], pa.int64())
    return pa.RecordBatch.from_arrays([groups, keys, values], names=["bedload_group", "bedload_key_0", "total"])


def group_of(key: str) -> KeyGroup:
    return FORM.group(key)


def others(*keys: str) -> tuple[KeyGroup, ...]:
    """The key groups of no such key."""
    return tuple(group for group in GROUPS if group not in {group_of(key) for key in keys})


class Restoring(Rig):
    """A machine that is told to read state back."""

    def restore(
        self,
        base: int = 7,
        groups: tuple[KeyGroup, ...] = GROUPS,
        *,
        plan: bytes | None = b"plan",
        deployment: int = 0,
        whole: bool = True,
    ) -> list[Load]:
        message = m.Restore(NAME, Turn(base), DeploymentId(deployment), groups, Epoch(4), QueryId("q"), whole=whole)
        out = self.machine.handle(COORDINATOR, message, plan)
        self.said += [item for item in out if not isinstance(item[1], Load)]  # type: ignore[misc]
        return [order for to, order, _ in out if to == LOADER and isinstance(order, Load)]

    def loaded(self, order: Load, *groups: KeyGroup, **totals: int) -> None:
        self.said += self.machine.loaded(Loaded(NAME, order.ticket, groups or order.groups, state_of(**totals)))  # type: ignore[arg-type]
        while self.machine.moving:
            self.said += self.machine.pump()[0]  # type: ignore[arg-type]
            self.machine.check()

    def fails(self, order: Load) -> None:
        self.said += self.machine.loaded(LoadFailed(NAME, order.ticket, StoreError("the store is down")))  # type: ignore[arg-type]

    def news(self, kind: type[m.Message]) -> list[Any]:
        return [message for message in self.to(COORDINATOR) if isinstance(message, kind)]

    def read(self, peer: Any, key: str, told: int = 0) -> list[Any]:
        sink = pa.BufferOutputStream()
        one = pa.RecordBatch.from_arrays([pa.array([key])], names=["key"])
        with pa.ipc.new_stream(sink, one.schema) as writer:
            writer.write_batch(one)
        return self.tell(peer, m.Read(NAME, group_of(key), told), sink.getvalue())


@pytest.fixture
def fresh() -> Restoring:
    return Restoring()


def test_an_order_to_restore_goes_to_the_loader_with_its_plan(fresh: Restoring) -> None:
    (order,) = fresh.restore(base=7)
    assert (order.base, order.groups, order.plan) == (7, GROUPS, b"plan")
    assert fresh.totals == {}


def test_what_is_read_of_a_guests_key_group_stays_one_key_also_after_another_order(fresh: Restoring) -> None:
    guest = "a"
    other = next(key for key in map(str, range(100)) if group_of(key) == group_of(guest))
    hosted = (group_of(guest),)
    message = m.Restore(NAME, Turn(7), DeploymentId(0), GROUPS[:1] + hosted, Epoch(4), QueryId("q"))
    message = msgspec.structs.replace(message, guests=(FORM.hash(guest),), hosts=hosted)
    ((_, order, _),) = fresh.machine.handle(COORDINATOR, message, b"plan")
    assert isinstance(order, Load)
    more = next(group for group in GROUPS[1:] if group not in hosted)
    fresh.restore(groups=(more,))  # a worker was lost meanwhile, and its key group comes here
    fresh.loaded(order, *hosted, **{guest: 3, other: 4})
    assert fresh.totals == {guest: 3}


def test_without_a_plan_the_state_is_empty_and_nothing_is_read(fresh: Restoring) -> None:
    fresh.seal(0, a=1)
    fresh.commit(0)
    assert fresh.restore(base=-1, plan=None) == []
    assert fresh.totals == {}
    assert [(news.left, news.error) for news in fresh.news(m.Restored)] == [(0, None)]


def test_what_was_read_is_the_committed_state(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.loaded(order, a=3, b=4)
    assert fresh.totals == {"a": 3, "b": 4}
    (news,) = fresh.news(m.Restored)
    assert (news.base, news.groups, news.left, news.keys) == (7, 4, 0, 2)


def test_rows_wait_for_the_state_of_their_key_group_and_so_does_the_answer(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.begin(8)
    fresh.expect(8, 1)
    fresh.join("t", 8, 0)
    assert fresh.apply("t", 8, 0, 0, a=1) == []
    fresh.loaded(order, group_of("a"), a=10)
    assert kinds(fresh.to("t")) == ["Applied"]
    assert fresh.rows_to("t") == [{"key": "a", "total": 11}]


def test_rows_whose_state_is_here_are_applied_at_once_and_answered_with_the_rest(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.loaded(order, group_of("a"), a=10)
    fresh.begin(8)
    fresh.join("t", 8, 0)
    assert group_of("a") != group_of("b")
    assert fresh.apply("t", 8, 0, 0, a=1, b=2) == []
    fresh.loaded(order, *others("a"), b=20)
    assert fresh.rows_to("t") == [{"key": "a", "total": 11}, {"key": "b", "total": 22}]


def test_a_repeat_of_rows_that_wait_gets_the_same_answer_when_they_are_applied(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.begin(8)
    for peer in ("first", "retry"):
        fresh.join(peer, 8, 0)
        assert fresh.apply(peer, 8, 0, 0, a=1) == []
    fresh.loaded(order, a=10)
    assert fresh.rows_to("first") == fresh.rows_to("retry") == [{"key": "a", "total": 11}]


def test_who_went_away_is_not_answered_when_the_state_comes(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.begin(8)
    fresh.join("t", 8, 0)
    fresh.apply("t", 8, 0, 0, a=1)
    fresh.machine.gone("t")
    fresh.loaded(order, a=10)
    assert fresh.to("t") == []


def test_the_seal_waits_for_rows_that_wait(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.begin(8)
    fresh.expect(8, 1)
    fresh.join("t", 8, 0)
    fresh.apply("t", 8, 0, 0, a=1)
    assert fresh.done("t", 8, 0, 1) == []
    fresh.loaded(order, group_of("a"), a=10)
    assert fresh.phase is Phase.SEALED
    assert kinds(fresh.to("t")) == ["Applied", "Finished"]


def test_the_seal_does_not_wait_for_state_that_no_row_needs(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.loaded(order, group_of("a"), a=10)
    fresh.seal(8, a=1)
    fresh.commit(8)
    fresh.loaded(order, *others("a"), b=20)
    assert fresh.totals == {"a": 11, "b": 20}


def test_rows_that_waited_in_a_turn_that_was_rolled_back_are_forgotten(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.begin(8)
    fresh.join("t", 8, 0)
    fresh.apply("t", 8, 0, 0, a=1)
    fresh.abort(8)
    assert kinds(fresh.to("t")) == ["BedloadError"]
    fresh.begin(9)
    fresh.loaded(order, a=10)
    assert fresh.totals == {"a": 10}
    assert kinds(fresh.to("t")) == ["BedloadError"]


def test_state_that_arrives_in_a_turn_survives_its_abort(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.begin(8)
    fresh.join("t", 8, 0)
    fresh.apply("t", 8, 0, 0, a=1)
    fresh.loaded(order, a=10)
    fresh.abort(8)
    assert fresh.totals == {"a": 10}


def test_rows_that_waited_and_fail_cost_the_turn_and_not_the_state_that_was_read(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.begin(8)
    fresh.expect(8, 1)
    fresh.join("t", 8, 0)
    fresh.apply("t", 8, 0, 0, a=-1)
    fresh.loaded(order, group_of("a"), a=10)
    (failed,) = fresh.news(m.Failed)
    assert (failed.error.kind, failed.unrestored) == ("OperatorFailed", False)
    assert kinds(fresh.to("t")) == ["OperatorFailed"]
    fresh.loaded(order, *(group for group in GROUPS if group != group_of("a")), b=20)
    assert [(news.left, news.error) for news in fresh.news(m.Restored)] == [(3, None), (0, None)]
    assert fresh.totals == {"a": 10, "b": 20}
    fresh.begin(9)
    fresh.expect(9, 1)
    fresh.join("u", 9, 0)
    fresh.apply("u", 9, 0, 0, a=1)
    assert fresh.rows_to("u") == [{"key": "a", "total": 11}]


def test_answers_to_an_order_that_was_taken_back_are_not_installed(fresh: Restoring) -> None:
    (old,) = fresh.restore(base=7)
    (new,) = fresh.restore(base=5)
    fresh.loaded(old, a=99)
    assert fresh.totals == {}
    fresh.loaded(new, a=10)
    assert fresh.totals == {"a": 10}


def test_of_an_order_that_was_taken_back_in_part_the_rest_counts(fresh: Restoring) -> None:
    (old,) = fresh.restore(base=7)
    (new,) = fresh.restore(base=7, groups=(group_of("a"),))
    fresh.loaded(old, a=99, b=20)
    assert fresh.totals == {"b": 20}
    fresh.loaded(new, a=10)
    assert fresh.totals == {"a": 10, "b": 20}


def test_a_restore_forgets_what_was_there(fresh: Restoring) -> None:
    fresh.seal(0, a=1, b=2)
    fresh.commit(0)
    (order,) = fresh.restore(groups=(group_of("a"),))
    assert fresh.totals == {"b": 2}
    fresh.loaded(order, a=10)
    assert fresh.totals == {"a": 10, "b": 2}


def test_a_restore_within_a_turn_is_against_the_protocol(fresh: Restoring) -> None:
    fresh.begin(0)
    with pytest.raises(BedloadError, match="while turn 0 is OPEN"):
        fresh.restore()


def test_state_that_cannot_be_read_fails_the_open_turn_and_asks_for_another_restore(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.begin(8)
    fresh.join("t", 8, 0)
    fresh.apply("t", 8, 0, 0, a=1)
    fresh.fails(order)
    assert fresh.phase is Phase.ABORTED
    (failed,) = fresh.news(m.Failed)
    assert (failed.error.kind, failed.unrestored) == ("StoreError", True)
    assert kinds(fresh.to("t")) == ["StoreError"]
    assert fresh.news(m.Restored)[-1].error.kind == "StoreError"


def test_a_turn_cannot_begin_on_state_that_could_not_be_read(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.fails(order)
    assert [failed.unrestored for failed in fresh.begin(8) if isinstance(failed, m.Failed)] == [True]
    (again,) = fresh.restore()
    fresh.loaded(again, a=10)
    fresh.seal(9, a=1)
    fresh.commit(9)
    assert fresh.totals == {"a": 11}


def test_a_failed_read_after_the_seal_leaves_the_seal_as_it_is(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.loaded(order, group_of("a"), a=10)
    fresh.seal(8, a=1)
    fresh.fails(order)
    assert fresh.phase is Phase.SEALED
    assert fresh.news(m.Failed) == []
    assert fresh.news(m.Restored)[-1].error.kind == "StoreError"


def test_a_read_of_a_key_whose_state_is_on_its_way_waits_for_it(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    assert fresh.read("reader", "a") == []
    fresh.loaded(order, a=10)
    (answer,) = fresh.to("reader")
    assert answer == m.ReadAnswer(True, Epoch(4), QueryId("q"))


def test_a_read_that_came_before_the_word_of_what_is_the_worker_s_own_waits_for_it(fresh: Restoring) -> None:
    (first,) = fresh.restore(base=7)
    fresh.loaded(first, a=3)
    assert fresh.read("early", "a", told=2) == []
    (second,) = fresh.restore(base=8)
    assert fresh.to("early") == []
    fresh.loaded(second, a=5)
    (answer,) = fresh.to("early")
    assert answer.found


def test_a_read_that_waits_is_refused_when_the_state_cannot_be_read(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.read("reader", "a")
    fresh.fails(order)
    assert kinds(fresh.to("reader")) == ["StoreError"]
    assert kinds(fresh.read("another", "a")) == ["StoreError"]


def test_a_reader_that_went_away_is_not_answered(fresh: Restoring) -> None:
    (order,) = fresh.restore()
    fresh.read("reader", "a")
    fresh.machine.gone("reader")
    fresh.loaded(order, a=10)
    assert fresh.to("reader") == []


def test_key_groups_that_a_worker_has_no_more_are_dropped_when_a_turn_begins(fresh: Restoring) -> None:
    fresh.seal(0, a=1, b=2)
    fresh.commit(0)
    fresh.tell(COORDINATOR, m.Begin(NAME, Turn(1), Epoch(1), QueryId("q"), DeploymentId(0), others("b")))
    assert fresh.totals == {"a": 1}


# --- losing another worker ---


def settle(rig: Rig, turn: int) -> bool:
    error = m.WireError.of(BedloadError("worker 1 was lost"))
    (answer,) = rig.tell(COORDINATOR, m.Settle(NAME, Turn(turn), error))
    assert isinstance(answer, m.Settled)
    return answer.sealed


def test_settle_rolls_an_open_turn_back_and_says_so(rig: Rig) -> None:
    rig.begin(0)
    rig.join("t", 0, 0)
    rig.apply("t", 0, 0, 0, a=1)
    rig.done("t", 0, 0, 1)
    assert settle(rig, 0) is False
    assert rig.phase is Phase.ABORTED
    assert kinds(rig.to("t")) == ["Applied", "BedloadError"]


def test_after_a_no_the_turn_is_not_sealed_any_more(rig: Rig) -> None:
    rig.begin(0)
    rig.join("t", 0, 0)
    settle(rig, 0)
    rig.expect(0, 1)
    assert kinds(rig.done("t", 0, 0, 0)) == ["BedloadError"]
    assert [message for message in rig.to(COORDINATOR) if isinstance(message, m.Sealed)] == []


def test_settle_leaves_a_sealed_turn_as_it_is(rig: Rig) -> None:
    rig.seal(0, a=1)
    assert settle(rig, 0) is True
    assert rig.phase is Phase.SEALED
    rig.commit(0)
    assert rig.totals == {"a": 1}


def test_settle_of_a_turn_that_never_came_is_a_no(rig: Rig) -> None:
    assert settle(rig, 5) is False


# --- durability ---


class Files:
    """Durability that fails when it is told to."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.error: BedloadError | None = None

    def persist(self, seal: Seal) -> int:
        if self.error is not None:
            raise self.error
        self.written.append(seal.turn)
        return 123


def test_the_seal_is_said_after_the_changes_were_written_and_tells_how_much() -> None:
    files = Files()
    rig = Rig(durability=files)
    rig.seal(0, a=1)
    assert files.written == [0]
    assert [message.stats.bytes for message in rig.to(COORDINATOR) if isinstance(message, m.Sealed)] == [123]


def test_the_seal_tells_how_long_writing_the_changes_took() -> None:
    class Slow(Files):
        def persist(self, seal: Seal) -> int:
            clock.now += 0.5
            return super().persist(seal)

    rig = Rig(durability=Slow())
    clock = rig.clock
    rig.seal(0, a=1)
    (sealed,) = [message for message in rig.to(COORDINATOR) if isinstance(message, m.Sealed)]
    assert (sealed.stats.sealing, sealed.stats.busy) == (0.5, 0.5)


def test_changes_that_cannot_be_written_roll_the_turn_back() -> None:
    files = Files()
    files.error = StoreError("the store is down")
    rig = Rig(durability=files)
    rig.begin(0)
    rig.expect(0, 1)
    rig.join("t", 0, 0)
    rig.apply("t", 0, 0, 0, a=1)
    assert kinds(rig.done("t", 0, 0, 1)) == ["StoreError"]
    assert rig.phase is Phase.ABORTED
    (failed,) = [message for message in rig.to(COORDINATOR) if isinstance(message, m.Failed)]
    assert (failed.error.kind, failed.unrestored) == ("StoreError", False)
    assert rig.totals == {}


# --- an operator that does not close ---


class Unclosable(Running):
    def close(self) -> None:
        raise SystemExit("connection lost")


def test_a_close_that_raises_does_not_block_a_redeploy(capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig(Unclosable)
    rig.seal(0, a=1)
    rig.commit(0)
    rig.operators.append(Running)
    rig.deploy(1)
    assert rig.begin(1, epoch=1, deployment=1) == []
    assert rig.machine.phase(NAME) is Phase.OPEN
    assert rig.totals == {"a": 1}
    assert "close of operator Sum" in capsys.readouterr().err


def test_a_close_that_raises_does_not_block_a_reset_nor_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig(Unclosable)
    rig.seal(0, a=1)
    rig.commit(0)
    rig.tell(COORDINATOR, m.Reset(NAME))
    assert rig.machine.runtime(NAME) is None
    rig.seal(1, epoch=0, a=5)
    rig.commit(1)
    rig.machine.close()
    assert rig.totals == {"a": 5}
    assert capsys.readouterr().err.count("connection lost") >= 2


def test_a_setup_that_failed_is_tried_again_and_the_former_code_is_closed_once() -> None:
    closed: list[str] = []

    class Old(Running):
        def close(self) -> None:
            closed.append("old")

    class New(Running):
        tries = 0

        def setup(self, ctx: Context) -> None:
            New.tries += 1
            if New.tries == 1:
                raise RuntimeError("not yet")

        def close(self) -> None:
            closed.append("new")

    rig = Rig(Old)
    rig.seal(0, a=1)
    rig.commit(0)
    rig.operators.append(New)
    rig.deploy(1)
    (failed,) = rig.begin(1, epoch=1, deployment=1)
    assert isinstance(failed, m.Failed)
    assert rig.begin(2, epoch=1, deployment=1) == []
    assert rig.machine.phase(NAME) is Phase.OPEN
    assert closed == ["old"]
    assert rig.totals == {"a": 1}


def test_a_read_that_fails_is_answered_with_its_error() -> None:
    rig = Rig()
    rig.begin(1)
    (answer,) = rig.tell("reader", m.Read(NAME, KeyGroup(0)), b"this is no key")
    assert isinstance(answer, m.Refused)


def test_what_came_before_a_restore_failed_is_gone_with_the_next_one(fresh: Restoring) -> None:
    """Others may own it by then; if it came back to this worker, keys that they removed would be here again."""
    (order,) = fresh.restore()
    fresh.loaded(order, group_of("a"), a=1)
    fresh.fails(order)
    assert [key for key, _ in fresh.machine.runtime(NAME).snapshot()] == ["a"]  # type: ignore[union-attr]
    (order,) = fresh.restore(8, others("a"))
    fresh.loaded(order)
    assert list(fresh.machine.runtime(NAME).snapshot()) == []  # type: ignore[union-attr]


def test_a_worker_that_could_not_read_says_so_again_to_whoever_had_not_heard_of_it(fresh: Restoring) -> None:
    """A part of what it should have would pass for all of it: rows would meet key groups that are empty by mistake."""
    (order,) = fresh.restore(groups=(group_of("a"),))
    fresh.fails(order)
    assert fresh.restore(groups=others("a"), whole=False) == []
    last = fresh.news(m.Restored)[-1]
    assert last.error is not None
    assert last.told == 2
    (order,) = fresh.restore()
    fresh.loaded(order, a=1)
    assert fresh.news(m.Restored)[-1].error is None
    assert fresh.totals == {"a": 1}
