"""A simulated task attempt: runs feeders of its partitions, one after another, as a Spark task does.

It does what :mod:`bedload.spark.feeder` does: opens, joins, keeps a few sub-batches under way, says that it
is done, takes outputs in their fixed order. Where operators are chained, a partition has a feeder for each, and the
outputs of one are the input of the next. Its fate is decided when it is launched: it may crash after so
many steps, stop early because its consumer has enough, or go on after its query died (a zombie).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from bedload.core.errors import BedloadError, DataError, NullKey, WorkerLost
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.combining import Combining
from bedload.protocol.feeder import FeederSession, Send
from bedload.protocol.routes import Told
from bedload.protocol.split import unpack
from tests.simulator.cluster import SimulatedDriver
from tests.simulator.network import Body, Connection, Network
from tests.simulator.workload import FORM, OUTPUT, fed

_ASK_SECONDS = 20.0
"""After so long without a word from the workers, the coordinator is asked whether the epoch still goes on."""
_ASKS = 30
"""It does not wake up for ever: a simulation that comes to nothing is to end."""


class TaskCrashed(Exception):
    """The executor lost the task."""


class Ending(enum.Enum):
    """How an attempt ended."""

    FINISHED = "all outputs are there"
    STOPPED = "its consumer had enough"
    FAILED = "it raised"
    KILLED = "Spark killed it"


@dataclass
class Fate:
    """What is going to happen to an attempt."""

    crash_after: int | None = None
    stop_after: int | None = None
    window: int = 2
    copies: float = 0.0
    """How likely a message is sent twice."""
    bad_data: bool = False
    """It finds a null key before its last batch."""


@dataclass(frozen=True)
class Input:
    """One partition of a task."""

    chain: tuple[tuple[OperatorName, DeploymentId], ...]
    """The operators that its rows go through."""
    batches: tuple[pa.RecordBatch, ...]


@dataclass(frozen=True)
class TaskSpec:
    """What an attempt knows of itself."""

    query: QueryId
    run: RunId
    epoch: Epoch
    stage: int
    partition: int
    attempt: int
    inputs: tuple[Input, ...]
    """The partitions that this task runs."""


@dataclass(eq=False)
class _Feeder:
    """One operator's part in a partition."""

    operator: OperatorName
    deployment: DeploymentId
    left: list[pa.RecordBatch]
    more: bool
    """Whether a feeder before it goes on giving it batches."""
    coordinator: Connection | None = None
    session: FeederSession | None = None
    workers: dict[WorkerId, Connection] = field(default_factory=dict)
    joined: bool = False
    finishing: bool = False

    @property
    def complete(self) -> bool:
        return self.session is not None and self.session.complete


class TaskAttempt:
    """One attempt of one task."""

    def __init__(
        self,
        network: Network,
        driver: SimulatedDriver,
        spec: TaskSpec,
        fate: Fate,
        ended: Callable[[TaskAttempt], None],
        told: Told,
    ) -> None:
        """``told``: what the Python process that runs it knows of the routes."""
        self.name = f"task {spec.partition} (attempt {spec.attempt}, {spec.run}, epoch {spec.epoch})"
        self.spec = spec
        self.ending: Ending | None = None
        self.error: Exception | None = None
        self.outputs: list[tuple[OperatorName, dict[str, Any]]] = []
        """What came out of each operator, also of one before another."""
        self.turns: set[tuple[OperatorName, int]] = set()
        self.zombie = False
        self._network = network
        self._driver = driver
        self._fate = fate
        self._told = told
        self._ended = ended
        self._steps = 0
        self._ordinal = 0
        self._feeders: list[_Feeder] = []
        """Those of the partition that runs, in the order in which rows go through them."""
        self._waking = False
        self._heard = network.time.now
        self._asked = 0
        network.after(network.delay(), self._begin_partition)
        network.after(_ASK_SECONDS, self._check_goes_on)

    # --- events ---

    def on_message(self, connection: Connection, message: m.Message, body: Body) -> None:
        """An answer arrived."""
        if self.ending is not None:
            return
        self._heard = self._network.time.now
        for feeder in self._feeders:
            if connection is feeder.coordinator:
                self._opened(feeder, message)
                return
            worker = next((w for w, link in feeder.workers.items() if link is connection), None)
            if worker is None or feeder.session is None:
                continue
            try:
                feeder.session.receive(worker, message, body)
            except BedloadError as error:
                self._fail(error)
                return
            self._wake()
            return

    def on_close(self, connection: Connection) -> None:
        """A worker died."""
        mine = any(connection in feeder.workers.values() for feeder in self._feeders)
        if mine and self.ending is None:
            self._fail(WorkerLost("the connection to a worker broke"))

    def kill(self) -> None:
        """Spark kills the attempt."""
        if self.ending is None:
            self._end(Ending.KILLED)

    # --- steps ---

    def _begin_partition(self) -> None:
        if self.ending is not None:
            return
        given = self.spec.inputs[self._ordinal]
        self._feeders = [
            _Feeder(operator, deployment, [] if place else list(given.batches), bool(place))
            for place, (operator, deployment) in enumerate(given.chain)
        ]
        self._open(self._feeders[-1])  # whoever takes rows opens before it asks for them

    def _open(self, feeder: _Feeder) -> None:
        feeder.coordinator = self._network.connect(self, self._driver)
        feeder.coordinator.send(self, self._opening(feeder), copies=self._copies())

    def _opening(self, feeder: _Feeder) -> m.Open:
        """However often it says so, it is let in once."""
        spec = self.spec
        ask = m.Open(
            feeder.operator,
            feeder.deployment,
            spec.query,
            spec.run,
            spec.epoch,
            spec.stage,
            spec.partition,
            spec.attempt,
            f"{spec.attempt}-{self._ordinal}",
        )
        return self._told.asks(ask)

    def _check_goes_on(self) -> None:
        """Nothing was heard for a while: a worker that hangs does not say that the epoch is over."""
        if self.ending is not None or self._asked == _ASKS:
            return
        self._asked += 1
        silent = self._network.time.now - self._heard >= _ASK_SECONDS
        for feeder in self._feeders if silent else ():
            if feeder.session is not None and feeder.coordinator is not None:
                feeder.coordinator.send(self, self._opening(feeder))
        self._network.after(_ASK_SECONDS, self._check_goes_on)

    def _opened(self, feeder: _Feeder, answer: m.Message) -> None:
        if isinstance(answer, m.Refused):
            self._fail(answer.error.error())
            return
        assert isinstance(answer, m.Opened)
        if feeder.session is not None:
            return  # the answer to a copy of the question
        self.turns.add((feeder.operator, answer.turn))
        answer = self._told.answered(feeder.operator, answer)
        assert answer.routes is not None
        feeder.session = FeederSession(feeder.operator, answer, FORM.key)
        for worker, address in answer.routes.addresses.items():
            target = self._driver.places[address]
            if not target.alive:
                self._fail(WorkerLost(f"no connection to worker {worker}", worker=worker))
                return
            feeder.workers[worker] = target.accept(self)
        place = self._feeders.index(feeder)
        if place:
            self._open(self._feeders[place - 1])
        self._wake()

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._network.after(self._network.delay() / 4, self._advance)

    def _advance(self) -> None:
        """Do the next thing that a feeder does."""
        self._waking = False
        if self.ending is not None or not self._feeders or self._feeders[0].session is None:
            return
        self._steps += 1
        if self._steps == self._fate.crash_after:
            self._fail(TaskCrashed(self.name))
            return
        for feeder in self._feeders:
            self._take_outputs(feeder)
        last = self._feeders[-1]
        taken = sum(operator == last.operator for operator, _ in self.outputs)
        if self._fate.stop_after is not None and taken >= self._fate.stop_after and self._feeders[0].joined:
            self._end(Ending.STOPPED)
        elif last.complete:
            self._next_partition()
        else:
            for feeder in reversed(self._feeders):
                if self._advance_one(feeder) or self.ending is not None:
                    break

    def _advance_one(self, feeder: _Feeder) -> bool:
        """The next thing of one feeder; whether there was one."""
        session = feeder.session
        if session is None:
            return False
        if not feeder.joined and (feeder.left or not feeder.more):
            feeder.joined = True
            self._send(feeder, session.join(FORM.fed if feeder.left else pa.schema([])))
            self._wake()
        elif feeder.left and session.in_flight <= self._fate.window:
            if self._fate.bad_data and len(feeder.left) == 1:
                self._fail(NullKey("a row's key is null"))
                return True
            rows = Combining(None, FORM.key, session.key_groups).rows(feeder.left.pop(0))
            self._send(feeder, session.submit(rows))
            self._wake()
        elif feeder.joined and not feeder.left and not feeder.more and not feeder.finishing:
            feeder.finishing = True
            self._send(feeder, session.finish())
        else:
            return False
        return True

    def _next_partition(self) -> None:
        self._ordinal += 1
        self._close()
        if self._ordinal == len(self.spec.inputs):
            self._end(Ending.FINISHED)
        else:
            self._begin_partition()

    def _take_outputs(self, feeder: _Feeder) -> None:
        """What came out; the next operator, if there is one, takes it in."""
        if feeder.session is None:
            return
        place = self._feeders.index(feeder)
        after = self._feeders[place + 1] if place + 1 < len(self._feeders) else None
        for body in feeder.session.outputs():
            rows = unpack(body, OUTPUT).to_pylist()
            self.outputs += [(feeder.operator, row) for row in rows]
            if after is not None and rows:
                after.left.append(fed(rows))
        self._send(feeder, feeder.session.wants())
        if after is not None and feeder.complete:
            after.more = False

    def _send(self, feeder: _Feeder, sends: list[Send]) -> None:
        for worker, message, body in sends:
            feeder.workers[worker].send(self, message, body, copies=self._copies())

    def _copies(self) -> int:
        return 2 if self._network.chance.happens(self._fate.copies) else 1

    def _fail(self, error: Exception) -> None:
        for feeder in self._feeders:
            if isinstance(error, DataError) and feeder.session is not None and feeder.coordinator is not None:
                failed = m.FeederFailed(feeder.operator, feeder.session.turn, m.WireError.of(error))
                feeder.coordinator.send(self, failed)
        self.error = error
        self._end(Ending.FAILED)

    def _end(self, ending: Ending) -> None:
        self._network.note(f"{self.name}: {ending.name} {self.error or ''}"[:300])
        self.ending = ending
        self._close()
        self._ended(self)

    def _close(self) -> None:
        for feeder in self._feeders:
            for connection in feeder.workers.values():
                connection.close(self)
            if feeder.coordinator is not None:
                feeder.coordinator.close(self)
        self._feeders = []
