"""Two workers' machines and a move between them, in orders of messages that FIFO channels allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import bedload as bl
from bedload.core.clock import SystemClock
from bedload.core.errors import EpochAborted
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.keys import hash_columns, key_groups
from bedload.migration import strategy_named
from bedload.protocol import messages as m
from bedload.protocol.split import pack, unpack
from bedload.worker.machine import COORDINATOR, WorkerMachine
from bedload.worker.moving import Neighbour
from bedload.worker.runtime import Deployment

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
        self._take(OLD, self.machines[OLD].pump()[0])

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
