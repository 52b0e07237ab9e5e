"""Two workers' machines and a move between them, in orders of messages that FIFO channels allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import bedload as bl
from bedload.core.clock import SystemClock
from bedload.core.epoch import EpochTime
from bedload.core.errors import EpochAborted, StoreError
from bedload.core.ids import NO_EPOCH, NO_TURN, DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.keys import hash_columns, key_groups
from bedload.migration import strategy_named
from bedload.protocol import messages as m
from bedload.protocol.split import pack, pack_whole, unpack
from bedload.worker.machine import COORDINATOR, WorkerMachine
from bedload.worker.moving import Moving
from bedload.worker.peers import Neighbour
from bedload.worker.row_runtime import Deployment

NAME, QUERY, CODE = OperatorName("x"), QueryId("q"), DeploymentId(0)
GROUPS = tuple(KeyGroup(group) for group in range(4))
OUT = pa.schema([("k", pa.int64()), ("n", pa.int64())])
OLD, NEW = WorkerId(0), WorkerId(1)
PLACES = {OLD: "a", NEW: "b"}
LOT = m.Lot(OLD, NEW, GROUPS)


class Count(bl.Operator):
    """Counts the rows of a key."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.n += len(rows)
        return key, self.n


DEPLOYMENT = Deployment(NAME, Count, (0,), ("k",), OUT, (pa.int64(),))


def batch(keys: list[int]) -> pa.RecordBatch:
    column = pa.array(keys, pa.int64())
    groups = key_groups(hash_columns([column]), len(GROUPS)).astype(np.int16)
    return pa.RecordBatch.from_arrays([column, pa.array(groups)], names=["k", "g"])


class Pair:
    """An old owner and a new one. What one sends to the other is held until it is carried."""

    def __init__(self, strategy: str) -> None:
        self.terms = strategy_named(strategy).with_(share=1.0).terms
        self.machines = {it: WorkerMachine(it, lambda _: DEPLOYMENT, SystemClock()) for it in PLACES}
        self.lane: list[tuple[m.Message, Any]] = []
        self.told: list[m.Message] = []
        """What the coordinator was told."""
        for machine in self.machines.values():
            machine.handle(COORDINATOR, m.Deploy(NAME, CODE, len(GROUPS)), b"")

    def tell(self, worker: WorkerId, message: m.Message) -> None:
        self._take(worker, self.machines[worker].handle(COORDINATOR, message))

    def begin(self, worker: WorkerId, turn: int, epoch: int) -> None:
        self.tell(worker, m.Begin(NAME, Turn(turn), Epoch(epoch), QUERY, CODE, GROUPS))
        self.tell(worker, m.Time(NAME, Turn(turn), EpochTime()))

    def run(self, worker: WorkerId, turn: int, keys: list[int]) -> list[Any]:
        """All of an epoch but its commit; its outputs."""
        feeder, rows, machine = m.FeederId(0, 0), batch(keys), self.machines[worker]
        body, check = pack(rows)
        self.tell(worker, m.Expect(NAME, Turn(turn), 1))
        machine.handle("f", m.Join(NAME, Turn(turn), feeder), rows.schema.serialize())
        out = machine.handle("f", m.Apply(NAME, Turn(turn), feeder, 0, check), body)
        self._take(worker, machine.handle("f", m.Done(NAME, Turn(turn), feeder, 1)))
        return unpack(out[0][2], OUT).to_pylist()

    def abort(self, worker: WorkerId, turn: int) -> None:
        self.tell(worker, m.Abort(NAME, Turn(turn), m.WireError.of(EpochAborted("another worker failed"))))

    def flip(self, worker: WorkerId, base: int) -> None:
        leaving, arriving = ((LOT,), ()) if worker == OLD else ((), (LOT,))
        self.tell(worker, m.Flip(NAME, 1, Turn(base), CODE, leaving, arriving, PLACES, self.terms, Epoch(base), QUERY))

    def pump(self) -> None:
        """Until something is sent or there is nothing to do: listing and forgetting keys are steps of their own."""
        for machine in self.machines:
            pause: float | None = 0.0
            while pause == 0.0:
                out, pause = self.machines[machine].pump()
                self._take(machine, out)
                if out:
                    break

    def carry(self) -> None:
        """The new owner gets what was sent, and its answers come back."""
        lane, self.lane = self.lane, []
        for message, body in lane:
            for to, answer, data in self.machines[NEW].handle(Neighbour(OLD, "a"), message, body):
                if isinstance(to, Neighbour):
                    self.machines[OLD].handle(Neighbour(NEW, "b"), answer, data)  # type: ignore[arg-type]
                else:
                    self._take(NEW, [(to, answer, data)])

    def exchange(self) -> None:
        for _ in range(50):
            self.pump()
            self.carry()

    def state(self, worker: WorkerId) -> dict[Any, Any]:
        runtime = self.machines[worker].runtime(NAME)
        return {} if runtime is None else dict(runtime.snapshot())

    def _take(self, worker: WorkerId, out: list[Any]) -> None:
        for machine in self.machines.values():
            machine.check()
        for to, message, body in out:
            if isinstance(to, Neighbour):
                self.lane.append((message, body))
            elif to == COORDINATOR:
                self.told.append(message)


@pytest.mark.parametrize("strategy", ["seamless", "hybrid"])
@pytest.mark.parametrize("late", [False, True], ids=["copied before the flip", "copied after the flip"])
def test_an_epoch_that_was_copied_and_rolled_back_after_the_hand_over_is_not_in_the_state(
    strategy: str, late: bool
) -> None:
    pair = Pair(strategy)
    pair.begin(OLD, 0, 0)
    pair.tell(OLD, m.Copy(NAME, 1, CODE, (LOT,), PLACES, pair.terms))
    pair.run(OLD, 0, [7, 8])
    pair.exchange()  # copied, and handed over
    pair.tell(OLD, m.Commit(NAME, Turn(0)))
    pair.begin(OLD, 1, 1)
    pair.run(OLD, 1, [7])
    pair.pump()  # the sealed epoch goes ahead of its commit
    assert [type(message) for message, _ in pair.lane] == [m.Ship]
    if not late:
        pair.carry()
    pair.abort(OLD, 1)
    pair.flip(NEW, 0)
    pair.flip(OLD, 0)
    pair.exchange()
    assert pair.state(NEW) == {7: {"n": 1}, 8: {"n": 1}}
    pair.begin(NEW, 2, 1)
    assert pair.run(NEW, 2, [7]) == [{"k": 7, "n": 2}]


def test_an_old_owner_that_reads_another_state_back_sends_nothing_more_of_what_left() -> None:
    pair = Pair("all_at_once")
    pair.begin(OLD, 0, 0)
    pair.run(OLD, 0, [7])
    pair.tell(OLD, m.Commit(NAME, Turn(0)))
    key = int(hash_columns([pa.array([7], pa.int64())])[0])
    group = KeyGroup(key % len(GROUPS))
    pin = m.Lot(OLD, NEW, (), (key,), (), (group,))
    pair.tell(OLD, m.Flip(NAME, 1, Turn(0), CODE, (pin,), (), PLACES, pair.terms, Epoch(0), QUERY))
    pair.tell(OLD, m.Restore(NAME, NO_TURN, CODE, GROUPS, NO_EPOCH, QUERY, away=(key,)))
    pair.pump()
    assert not pair.lane, "the key would arrive as one without state, at a worker that does not know better yet"


def test_a_worker_that_owns_nothing_any_more_needs_no_state_that_it_could_not_read() -> None:
    pair = Pair("all_at_once")
    hosted = pair.machines[NEW]._at(NAME)
    hosted.restoring.error = StoreError("down")
    pair.begin(NEW, 0, 0)
    assert isinstance(pair.told[-1], m.Failed)
    pair.told.clear()
    pair.tell(NEW, m.Begin(NAME, Turn(1), Epoch(0), QUERY, CODE, ()))
    assert pair.told == []


def test_a_move_fails_if_the_code_of_its_operator_does_not_run_at_the_old_owner() -> None:
    pair = Pair("all_at_once")
    pair.begin(OLD, 0, 0)
    pair.run(OLD, 0, [7, 8])
    pair.tell(OLD, m.Commit(NAME, Turn(0)))
    pair.flip(OLD, 0)
    pair.machines[OLD]._hosted[NAME].code.active = None  # as after a setup that failed
    pair.pump()
    said = pair.told[-1]
    assert isinstance(said, m.WorkerFailed)
    assert "no version of its code runs here" in said.error.message
    assert pair.lane == []


def failed_flip(pair: Pair, worker: WorkerId, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Epoch 0 is committed at the old owner; ownership flips, and a worker cannot do its part in that."""
    pair.begin(OLD, 0, 0)
    pair.run(OLD, 0, [7, 8])
    pair.tell(OLD, m.Commit(NAME, Turn(0)))

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as failing:
        failing.setattr(Moving, where, fail)
        pair.flip(worker, 0)
    assert isinstance(pair.told[-1], m.WorkerFailed)
    pair.told.clear()


def test_a_new_owner_that_failed_to_note_the_flip_applies_no_row_without_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair("all_at_once")
    failed_flip(pair, NEW, monkeypatch, "_receive")
    pair.begin(NEW, 1, 1)
    machine, rows, feeder = pair.machines[NEW], batch([7]), m.FeederId(0, 0)
    body, check = pack(rows)
    pair.tell(NEW, m.Expect(NAME, Turn(1), 1))
    machine.handle("f", m.Join(NAME, Turn(1), feeder), rows.schema.serialize())
    assert machine.handle("f", m.Apply(NAME, Turn(1), feeder, 0, check), body) == []
    pair._take(NEW, machine.handle("f", m.Done(NAME, Turn(1), feeder, 1)))
    pair.tell(NEW, m.Settle(NAME, Turn(1), m.WireError.of(EpochAborted("a move failed"))))
    assert [it.sealed for it in pair.told if isinstance(it, m.Settled)] == [False]
    pair.tell(NEW, m.Release(NAME, 1, True, (LOT,)))
    pair.begin(NEW, 2, 1)
    assert pair.run(NEW, 2, [7]) == [{"k": 7, "n": 1}]  # whatever it owns next, nothing waits for the move any more


@pytest.mark.parametrize("called_off", [True, False])
def test_an_old_owner_that_failed_to_note_the_flip_keeps_the_state_until_the_move_is_over(
    called_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair("all_at_once")
    failed_flip(pair, OLD, monkeypatch, "_make_sender")
    nothing = m.Begin(NAME, Turn(1), Epoch(1), QUERY, CODE, ())
    pair.tell(OLD, nothing)
    assert pair.state(OLD) == {7: {"n": 1}, 8: {"n": 1}}
    pair.abort(OLD, 1)
    pair.tell(OLD, m.Release(NAME, 1, called_off, ()))
    if called_off:
        pair.begin(OLD, 2, 1)
        assert pair.run(OLD, 2, [7]) == [{"k": 7, "n": 2}]
    else:
        pair.tell(OLD, m.Begin(NAME, Turn(2), Epoch(1), QUERY, CODE, ()))
        pair.exchange()
        assert pair.state(OLD) == {}


@pytest.mark.parametrize("strategy", ["all_at_once", "seamless"])
@pytest.mark.parametrize("met", [False, True], ids=["some came before", "none came before"])
def test_what_arrives_after_the_state_was_given_up_is_not_taken_in(strategy: str, met: bool) -> None:
    pair = Pair(strategy)
    pair.begin(OLD, 0, 0)
    pair.run(OLD, 0, [7, 8])
    pair.tell(OLD, m.Commit(NAME, Turn(0)))
    if strategy == "seamless":
        pair.tell(OLD, m.Copy(NAME, 1, CODE, (LOT,), PLACES, pair.terms))
    else:
        pair.flip(OLD, 0)
        if met:
            pair.flip(NEW, 0)
    pair.pump()
    pair.tell(NEW, m.Reset(NAME, 1))
    pair.tell(OLD, m.Reset(NAME, 1))
    pair.begin(NEW, 1, 0)
    assert pair.lane
    pair.carry()
    assert pair.state(NEW) == {}
    assert pair.run(NEW, 1, [7]) == [{"k": 7, "n": 1}]


@pytest.mark.parametrize("called_off", [False, True])
@pytest.mark.parametrize("lot", [LOT, m.Lot(OLD, NEW, (), (int(hash_columns([pa.array([7])])[0]),), (), GROUPS)])
def test_an_old_owner_does_not_answer_for_what_it_has_handed_over(lot: m.Lot, called_off: bool) -> None:
    pair = Pair("all_at_once")
    pair.begin(OLD, 0, 0)
    pair.run(OLD, 0, [7, 8])
    pair.tell(OLD, m.Commit(NAME, Turn(0)))
    pair.tell(OLD, m.Flip(NAME, 1, Turn(0), CODE, (lot,), (), PLACES, pair.terms, Epoch(0), QUERY))
    if not called_off:
        pair.tell(OLD, m.Begin(NAME, Turn(1), Epoch(1), QUERY, CODE, () if lot is LOT else GROUPS))
        pair.tell(OLD, m.Time(NAME, Turn(1), EpochTime()))
        pair.tell(OLD, m.Expect(NAME, Turn(1), 1))
        pair.machines[OLD].handle("f", m.Join(NAME, Turn(1), m.FeederId(0, 0)), batch([]).schema.serialize())
        pair.machines[OLD].handle("f", m.Done(NAME, Turn(1), m.FeederId(0, 0), 0))
        pair.tell(OLD, m.Commit(NAME, Turn(1)))
    key = pa.RecordBatch.from_arrays([pa.array([7])], names=["k"])
    group = KeyGroup(int(key_groups(hash_columns(key.columns), len(GROUPS))[0]))
    assert pair.machines[OLD].handle("reader", m.Read(NAME, group), pack_whole(key)) == []
    out = pair.machines[OLD].handle(COORDINATOR, m.Release(NAME, 1, called_off, ()))
    for _ in range(10):
        out += pair.machines[OLD].pump()[0]
    answers = [message for to, message, _ in out if to == "reader"]
    assert answers == [m.ReadAnswer(called_off, Epoch(0 if called_off else 1), QUERY)]
