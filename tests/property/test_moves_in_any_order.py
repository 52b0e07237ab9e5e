"""Moves there and back between two workers, in any order of messages that FIFO channels allow.

The coordinator is a script: epochs that are committed, rolled back and replayed; moves that are called off, or follow
one another at once; connections between the workers that break at any moment. What is drawn is when a message arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

import bedload as bl
from bedload.core.epoch import EpochTime
from bedload.core.errors import EpochAborted
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.core.limits import Limits
from bedload.keys import hash_columns, key_groups
from bedload.migration import STRATEGIES, Strategy
from bedload.protocol import messages as m
from bedload.protocol.split import pack
from bedload.worker.machine import COORDINATOR, WorkerMachine
from bedload.worker.peers import Neighbour
from bedload.worker.row_runtime import Deployment

NAME, QUERY, CODE = OperatorName("x"), QueryId("q"), DeploymentId(0)
GROUPS = tuple(KeyGroup(group) for group in range(4))
OUT = pa.schema([("k", pa.int64()), ("n", pa.int64())])
WORKERS = (WorkerId(0), WorkerId(1))
PLACES = {WorkerId(number): f"place {number}" for number in range(3)}
KEYS = 12
FEEDER = m.FeederId(0, 0)
COORDINATOR_LINK = -1


class Count(bl.Operator):
    """Counts the rows of a key."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.n += len(rows)
        return key, self.n


DEPLOYMENT = Deployment(NAME, Count, (0,), ("k",), OUT, (pa.int64(),))


LIMITS = Limits(ship_keys=2)


class Ticking:
    """Time goes on by itself."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 0.01
        return self._now

    def wall(self) -> float:
        return self._now

    def processor(self) -> float:
        return self.monotonic()


class Pair:
    """Two workers, the channels between all, and a coordinator that waits for what it needs."""

    workers: tuple[WorkerId, ...] = WORKERS

    def __init__(self, draw: Callable[[int], int], deployment: Any = DEPLOYMENT, limits: Limits = LIMITS) -> None:
        self.draw = draw
        self.machines = {it: WorkerMachine(it, lambda _: deployment, Ticking(), limits=limits) for it in self.workers}
        self.links: dict[tuple[int, int], deque[tuple[Any, m.Message, Any]]] = {}
        self.said: list[m.Message] = []
        self.owner = WORKERS[0]
        self.turn, self.epoch, self.base = -1, 0, -1
        self.wanted: dict[int, int] = {}
        self.breaks = 3
        for worker in self.workers:
            self.tell(worker, m.Deploy(NAME, CODE, len(GROUPS)), b"")

    # --- channels ---

    def tell(self, worker: WorkerId, message: m.Message, body: Any = None) -> None:
        self.put(COORDINATOR_LINK, worker, COORDINATOR, message, body)

    def put(self, source: int, target: int, peer: Any, message: m.Message, body: Any) -> None:
        self.links.setdefault((source, target), deque()).append((peer, message, body))

    def step(self) -> None:
        """Something happens: a message arrives, a worker sends state, or a connection breaks."""
        ready: list[Any] = [link for link, queue in self.links.items() if queue]
        ready += [worker for worker in self.workers if self.machines[worker].moving]
        if self.breaks and self.draw(60) == 0:
            self.breaks -= 1
            self.tear()
            return
        assert ready, f"nothing can happen any more; the coordinator was told {self.said[-3:]}"
        choice = ready[self.draw(len(ready))]
        if isinstance(choice, tuple):
            source, target = choice
            peer, message, body = self.links[choice].popleft()
            self.take(WorkerId(target), self.machines[WorkerId(target)].handle(peer, message, body))
            assert source != target
        else:
            self.take(choice, self.machines[choice].pump()[0])

    def tear(self) -> None:
        """The connections between the workers break: what is under way is lost, and each end notices."""
        torn = self.workers[:2] if self.draw(2) else self.workers[-2:]
        for one, other in (torn, torn[::-1]):
            self.links.pop((one, other), None)
        for one, other in (torn, torn[::-1]):
            self.take(one, self.machines[one].gone(Neighbour(other, PLACES[other])))

    def take(self, worker: WorkerId, out: list[Any]) -> None:
        self.machines[worker].check()
        for to, message, body in out:
            if isinstance(to, Neighbour):
                self.put(worker, to.worker, Neighbour(worker, PLACES[worker]), message, body)
            elif to == COORDINATOR:
                assert not isinstance(message, m.WorkerFailed | m.Failed), message
                self.said.append(message)

    def wait(self, kind: type[m.Message], workers: tuple[WorkerId, ...], **wanted: Any) -> None:
        """Until these workers have said so."""

        def there(worker: WorkerId) -> bool:
            facts = {"worker": worker, **wanted}
            return any(
                isinstance(it, kind) and all(getattr(it, name) == value for name, value in facts.items())
                for it in self.said
            )

        for _ in range(20_000):
            if all(map(there, workers)):
                return
            self.step()
        raise AssertionError(f"{kind.__name__} does not come")

    def some_steps(self) -> None:
        for _ in range(self.draw(12)):
            if any(self.links.values()) or any(it.moving for it in self.machines.values()):
                self.step()

    # --- epochs ---

    def begin(self) -> None:
        self.turn += 1
        for worker in WORKERS:
            groups = GROUPS if worker == self.owner else ()
            self.tell(worker, m.Begin(NAME, Turn(self.turn), Epoch(self.epoch), QUERY, CODE, groups))
            self.tell(worker, m.Time(NAME, Turn(self.turn), EpochTime()))

    def feed(self, keys: list[int]) -> None:
        """A feeder's messages; they may come before the turn has begun."""
        column = pa.array(keys, pa.int64())
        groups = key_groups(hash_columns([column]), len(GROUPS)).astype(np.int16)
        rows = pa.RecordBatch.from_arrays([column, pa.array(groups)], names=["k", "g"])
        body, check = pack(rows)
        turn, feeder = Turn(self.turn), -2 - self.turn
        for worker in WORKERS:
            self.put(feeder, worker, feeder, m.Join(NAME, turn, FEEDER), rows.schema.serialize())
            if worker == self.owner:
                self.put(feeder, worker, feeder, m.Apply(NAME, turn, FEEDER, 0, check), body)
            self.put(feeder, worker, feeder, m.Done(NAME, turn, FEEDER, int(worker == self.owner)), None)
            self.tell(worker, m.Expect(NAME, turn, 1))

    def run_epoch(self) -> None:
        """Some attempts at an epoch, the last of which counts."""
        keys = [self.draw(KEYS) for _ in range(1 + self.draw(4))]
        for attempt in range(3):
            self.begin()
            self.feed(keys)
            fails = attempt < 2 and self.draw(3) == 0
            if not fails or self.draw(2):
                self.wait(m.Sealed, self.workers, turn=self.turn)
            self.some_steps()
            if not fails:
                break
            self.abort()
        for worker in self.workers:
            self.tell(worker, m.Commit(NAME, Turn(self.turn)))
        for key in keys:
            self.wanted[key] = self.wanted.get(key, 0) + 1
        self.base = self.turn
        self.epoch += 1

    def abort(self) -> None:
        for worker in self.workers:
            self.tell(worker, m.Abort(NAME, Turn(self.turn), m.WireError.of(EpochAborted("again"))))

    # --- moves ---

    def move(self, number: int, strategy: Strategy) -> None:
        source, target = self.owner, WORKERS[1 - WORKERS.index(self.owner)]
        lots, terms = (m.Lot(source, target, GROUPS),), strategy.terms
        if strategy.copy_ahead:
            self.tell(source, m.Copy(NAME, number, CODE, lots, PLACES, terms))
            for _ in range(self.draw(3)):
                self.run_epoch()
            if self.draw(6) == 0:
                self.release(number, lots, called_off=True)
                return
            if self.draw(3):
                self.wait(m.Copied, (source,), move=number)
            for _ in range(self.draw(2)):
                self.run_epoch()
            if self.draw(2):  # sealed, copied ahead, rolled back, and then ownership flips
                self.begin()
                self.feed([self.draw(KEYS), self.draw(KEYS)])
                self.wait(m.Sealed, WORKERS, turn=self.turn)
                self.some_steps()
                self.abort()
        for worker in WORKERS:
            leaving, arriving = (lots, ()) if worker == source else ((), lots)
            flip = m.Flip(
                NAME, number, Turn(self.base), CODE, leaving, arriving, PLACES, terms, Epoch(self.epoch - 1), QUERY
            )
            self.tell(worker, flip)
        self.owner = target
        for _ in range(self.draw(3)):
            self.run_epoch()
        self.wait(m.Arrived, (target,), move=number)
        self.run_epoch()
        self.release(number, lots, called_off=False)

    def release(self, number: int, lots: tuple[m.Lot, ...], *, called_off: bool) -> None:
        for worker in WORKERS:
            arriving = lots if lots[0].target == worker else ()
            self.tell(worker, m.Release(NAME, number, called_off, arriving))
        self.wait(m.Released, WORKERS, move=number)

    def check(self) -> None:
        while any(self.links.values()):
            self.step()
        for worker in WORKERS:
            runtime = self.machines[worker].runtime(NAME)
            state = {} if runtime is None else {key: value["n"] for key, value in runtime.snapshot()}
            assert state == (self.wanted if worker == self.owner else {})


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "stop_restart"])
@examples(25)
@given(random=st.randoms(use_true_random=False))
def test_every_row_counts_once_whatever_the_order_of_messages(strategy: str, random: Any) -> None:
    pair = Pair(random.randrange)
    pair.run_epoch()
    for number in range(3):
        pair.move(number, STRATEGIES[strategy].with_(share=1.0))
    pair.run_epoch()
    pair.check()
