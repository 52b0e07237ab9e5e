"""A simulated task attempt: runs feeders of its partitions, one after another, as a Spark task does.

It does what :mod:`bedload.spark.feeder` does: opens, joins, keeps a few sub-batches under way, says that it
is done, takes outputs in their fixed order. Its fate is decided when it is launched: it may crash after so
many steps, stop early because its consumer has enough, or go on after its query died (a zombie).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bedload.core.errors import BedloadError, DataError, NullKey, WorkerLost
from bedload.core.ids import DeploymentId, Epoch, QueryId, RunId, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.feeder import FeederSession, Send
from bedload.protocol.split import unpack
from bedload.testing.network import Body, Connection, Network
from bedload.testing.simulated_cluster import SimulatedDriver
from bedload.testing.workload import FORM, NAME, OUTPUT


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
class TaskSpec:
    """What an attempt knows of itself."""

    deployment: DeploymentId
    query: QueryId
    run: RunId
    epoch: Epoch
    stage: int
    partition: int
    attempt: int
    inputs: tuple[tuple[pa.RecordBatch, ...], ...]
    """The batches of each of the operator's partitions that this task runs."""


class TaskAttempt:
    """One attempt of one task."""

    def __init__(
        self,
        network: Network,
        driver: SimulatedDriver,
        spec: TaskSpec,
        fate: Fate,
        ended: Callable[[TaskAttempt], None],
    ) -> None:
        self.name = f"task {spec.partition} (attempt {spec.attempt}, {spec.run}, epoch {spec.epoch})"
        self.spec = spec
        self.ending: Ending | None = None
        self.error: Exception | None = None
        self.outputs: list[dict[str, Any]] = []
        self.turns: set[int] = set()
        self.zombie = False
        self._network = network
        self._driver = driver
        self._fate = fate
        self._ended = ended
        self._steps = 0
        self._ordinal = 0
        self._coordinator: Connection | None = None
        self._session: FeederSession | None = None
        self._workers: dict[WorkerId, Connection] = {}
        self._left: list[pa.RecordBatch] = []
        self._joined = False
        self._finishing = False
        self._waking = False
        network.after(network.delay(), self._open)

    # --- events ---

    def on_message(self, connection: Connection, message: m.Message, body: Body) -> None:
        """An answer arrived."""
        if self.ending is not None:
            return
        if connection is self._coordinator:
            self._opened(message)
            return
        worker = next((w for w, link in self._workers.items() if link is connection), None)
        if worker is None or self._session is None:
            return  # of a feeder that this task has finished
        try:
            self._session.receive(worker, message, body)
        except BedloadError as error:
            self._fail(error)
            return
        self._wake()

    def on_close(self, connection: Connection) -> None:
        """A worker died."""
        if connection in self._workers.values() and self.ending is None:
            self._fail(WorkerLost("the connection to a worker broke"))

    def kill(self) -> None:
        """Spark kills the attempt."""
        if self.ending is None:
            self._end(Ending.KILLED)

    # --- steps ---

    def _open(self) -> None:
        if self.ending is not None:
            return
        spec = self.spec
        nonce = f"{spec.attempt}-{self._ordinal}"
        self._coordinator = self._network.connect(self, self._driver)
        ask = m.Open(
            NAME, spec.deployment, spec.query, spec.run, spec.epoch, spec.stage, spec.partition, spec.attempt, nonce
        )
        self._coordinator.send(self, ask, copies=self._copies())

    def _opened(self, answer: m.Message) -> None:
        if isinstance(answer, m.Refused):
            self._fail(answer.error.error())
            return
        assert isinstance(answer, m.Opened)
        if self._session is not None:
            return  # the answer to a copy of the question
        self.turns.add(answer.turn)
        self._session = FeederSession(NAME, answer, FORM.key)
        for worker, address in answer.addresses.items():
            target = self._driver.places[address]
            if not target.alive:
                self._fail(WorkerLost(f"no connection to worker {worker}", worker=worker))
                return
            self._workers[worker] = target.accept(self)
        self._left = list(self.spec.inputs[self._ordinal])
        self._joined = self._finishing = False
        self._wake()

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._network.after(self._network.delay() / 4, self._advance)

    def _advance(self) -> None:
        """Do the next thing that a feeder does."""
        self._waking = False
        session = self._session
        if self.ending is not None or session is None:
            return
        self._steps += 1
        if self._steps == self._fate.crash_after:
            self._fail(TaskCrashed(self.name))
            return
        self._take_outputs(session)
        if self._fate.stop_after is not None and len(self.outputs) >= self._fate.stop_after and self._joined:
            self._end(Ending.STOPPED)
        elif not self._joined:
            self._joined = True
            self._send(session.join(self._left[0].schema if self._left else pa.schema([])))
            self._wake()
        elif self._left and session.in_flight <= self._fate.window:
            if self._fate.bad_data and len(self._left) == 1:
                self._fail(NullKey("a row's key is null"))
                return
            self._send(session.submit(self._left.pop(0)))
            self._wake()
        elif not self._left and not self._finishing:
            self._finishing = True
            self._send(session.finish())
        elif session.complete:
            self._next_feeder()

    def _next_feeder(self) -> None:
        self._ordinal += 1
        self._close()
        self._session = None
        if self._ordinal == len(self.spec.inputs):
            self._end(Ending.FINISHED)
        else:
            self._open()

    def _take_outputs(self, session: FeederSession) -> None:
        for body in session.outputs():
            self.outputs += unpack(body, OUTPUT).to_pylist()

    def _send(self, sends: list[Send]) -> None:
        for worker, message, body in sends:
            self._workers[worker].send(self, message, body, copies=self._copies())

    def _copies(self) -> int:
        return 2 if self._network.chance.happens(self._fate.copies) else 1

    def _fail(self, error: Exception) -> None:
        if isinstance(error, DataError) and self._session is not None and self._coordinator is not None:
            failed = m.FeederFailed(NAME, self._session.turn, m.WireError.of(error))
            self._coordinator.send(self, failed)
        self.error = error
        self._end(Ending.FAILED)

    def _end(self, ending: Ending) -> None:
        self._network.note(f"{self.name}: {ending.name} {self.error or ''}"[:300])
        self.ending = ending
        self._close()
        self._ended(self)

    def _close(self) -> None:
        for connection in self._workers.values():
            connection.close(self)
        self._workers = {}
        if self._coordinator is not None:
            self._coordinator.close(self)
            self._coordinator = None
