"""The simulated ends of the protocol that are ours: the coordinator's edge and the workers.

They do what :mod:`bedload.spark.driver` and :mod:`bedload.worker.server` do, on the virtual network: hand
messages to the same machines, and carry out what the machines say. After every step of a worker the
:class:`Watcher` compares its state with the oracle's.

Invariants that the watcher keeps:

- a worker's committed state is the oracle's after the epochs that it committed, at every moment;
- at the seal, the backup (all changes so far, applied to nothing) is the oracle's state with the epoch;
- the epochs that workers commit are those that the coordinator committed, in that order; those are in
  Spark's commit log, each once, without a gap;
- the coordinator believes an epoch sealed only if every worker has sealed it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from bedload.control.coordinator import Coordinator
from bedload.control.coordinator import Phase as ControlPhase
from bedload.control.instructions import (
    DeployResult,
    EpochEnded,
    InspectQuery,
    InspectStage,
    Instruction,
    Reply,
    ToWorker,
)
from bedload.core.errors import BedloadError
from bedload.core.ids import Epoch, OperatorName, QueryId, Turn, WorkerId
from bedload.protocol import messages as m
from bedload.state import apply_changes
from bedload.store import Changes
from bedload.testing.network import Body, Connection, End, Network
from bedload.testing.oracle import History, Oracle
from bedload.testing.workload import NAME
from bedload.worker.machine import COORDINATOR, Out, Phase, WorkerMachine
from bedload.worker.runtime import Startable

Plain = dict[str, dict[str, Any]]


class Inspector(Protocol):
    """Answers the coordinator's questions about Spark."""

    def inspect_stage(self, step: InspectStage) -> None:
        """Answer with ``stage_inspected`` or ``stage_unknown``."""
        ...

    def inspect_query(self, step: InspectQuery) -> None:
        """Answer with ``query_inspected``."""
        ...


class Watcher:
    """Compares what the machines do with what is right."""

    def __init__(self, oracle: Oracle, committed_by_spark: Callable[[QueryId, Epoch], bool]) -> None:
        self._oracle = oracle
        self._committed_by_spark = committed_by_spark
        self.history: History = ()
        self.base: dict[Turn, History] = {}
        """What each turn began on."""
        self.aborted = 0

    def ended(self, event: EpochEnded) -> None:
        """The coordinator ended an epoch."""
        if not event.committed:
            self.aborted += 1
            return
        epoch = event.query, event.epoch
        assert self._committed_by_spark(*epoch), f"{epoch} was committed, but not by Spark"
        assert epoch not in self.history, f"{epoch} was committed twice"
        later = [other for other in self.history if other[0] == event.query and other[1] > event.epoch]
        assert not later, f"{epoch} was committed after {later}"
        self.history = (*self.history, epoch)

    def check_worker(self, worker: SimulatedWorker) -> None:
        """A worker's committed state is right."""
        where = worker.name
        done = worker.history
        assert done == self.history[: len(done)], f"{where} committed {done}, the coordinator {self.history}"
        runtime = worker.machine.runtime(NAME)
        actual = {} if runtime is None else dict(runtime.snapshot())
        self._oracle.check_state(done, actual, worker.keys, where)
        assert worker.backup.keys() == actual.keys(), f"{where}: the backup has other keys"

    def check_seal(self, worker: SimulatedWorker, epoch: tuple[QueryId, Epoch], backup: Plain) -> None:
        """What a worker seals is right."""
        self._oracle.check_state((*worker.history, epoch), backup, worker.keys, f"{worker.name} at the seal")


class SimulatedWorker:
    """A worker machine on the virtual network; also its own backup."""

    def __init__(
        self, network: Network, worker: WorkerId, deployment: Startable, keys: set[str], watcher: Watcher
    ) -> None:
        self.name = f"worker {worker}"
        self.worker = worker
        self.keys = keys
        self.history: History = ()
        self.backup: Plain = {}
        self.alive = True
        self.machine = WorkerMachine(worker, lambda _: deployment, network.time, self)
        self._network = network
        self._watcher = watcher
        self._driver: Connection | None = None
        self._connections: dict[Connection, None] = {}
        self._sealing: tuple[Turn, tuple[QueryId, Epoch], Plain] | None = None

    def attach(self, driver: Connection) -> None:
        """This is the connection to the coordinator."""
        self._driver = driver
        self._connections[driver] = None

    def accept(self, feeder: End) -> Connection:
        """A feeder connects."""
        connection = self._network.connect(feeder, self)
        self._connections[connection] = None
        return connection

    def on_message(self, connection: Connection, message: m.Message, body: Body) -> None:
        """Hand a message to the machine and send what it says."""
        peer = COORDINATOR if connection is self._driver else connection
        was = self.machine.phase(NAME) if self.machine.runtime(NAME) is not None else None
        out = self.machine.handle(peer, message, body)
        if isinstance(message, m.Commit) and was is Phase.SEALED:
            self._commit(message.turn)
        self._send(out)

    def on_close(self, connection: Connection) -> None:
        """A feeder is gone."""
        self._connections.pop(connection, None)
        if connection is not self._driver:
            self._send(self.machine.gone(connection))

    def _send(self, out: list[Out]) -> None:
        for to, answer, data in out:
            target = self._driver if to == COORDINATOR else to
            assert isinstance(target, Connection)
            target.send(self, answer, data)
        self._watcher.check_worker(self)

    def kill(self) -> None:
        """The process ends."""
        self._network.note(f"{self.name} dies")
        self.alive = False
        for connection in self._connections:
            connection.close(self)

    def persist(
        self,
        worker: WorkerId,
        operator: OperatorName,
        query: QueryId,
        epoch: Epoch,
        turn: Turn,
        changes: Iterable[Changes],
    ) -> None:
        """The machine seals: back up, and look whether the backup is right."""
        backup = dict(self.backup)
        for change in changes:
            for key in change.removed:
                del backup[key]
            for key, entries in change.entries.items():
                state = {} if key in change.created else copy.deepcopy(backup[key])
                for name, entry in entries.items():
                    state[name] = apply_changes(state[name], entry) if name in state else entry
                backup[key] = state
        self._watcher.check_seal(self, (query, epoch), backup)
        self._sealing = turn, (query, epoch), backup

    def _commit(self, turn: Turn) -> None:
        assert self._sealing is not None
        assert self._sealing[0] == turn, f"{self.name} committed turn {turn}, but sealed {self._sealing[0]}"
        _, epoch, self.backup = self._sealing
        self.history = (*self.history, epoch)


class SimulatedDriver:
    """The coordinator on the virtual network."""

    name = "coordinator"

    def __init__(self, network: Network, workers: list[SimulatedWorker], watcher: Watcher) -> None:
        self.coordinator = Coordinator({worker.worker: worker.name for worker in workers})
        self.workers = {worker.worker: worker for worker in workers}
        self._network = network
        self._watcher = watcher
        self._links = {worker.worker: network.connect(self, worker) for worker in workers}
        self._names = {link: worker for worker, link in self._links.items()}
        self.inspector: Inspector | None = None
        self.deployed: list[BedloadError | None] = []
        for worker in workers:
            worker.attach(self._links[worker.worker])

    def carry_out(self, steps: list[Instruction]) -> None:
        """Do what the coordinator says."""
        for step in steps:
            match step:
                case ToWorker(worker=worker, message=message, body=body):
                    if isinstance(message, m.Begin):
                        self._watcher.base[message.turn] = self._watcher.history
                    if worker in self._links:
                        self._links[worker].send(self, message, body)
                case Reply(to=to, message=message):
                    assert isinstance(to, Connection)
                    to.send(self, message)
                case InspectStage():
                    assert self.inspector is not None
                    self.inspector.inspect_stage(step)
                case InspectQuery():
                    assert self.inspector is not None
                    self.inspector.inspect_query(step)
                case DeployResult(error=error):
                    self.deployed.append(error)
                case EpochEnded():
                    self._network.note(f"coordinator: {step}")
                    self._watcher.ended(step)
        self.check()

    def on_message(self, connection: Connection, message: m.Message, body: Body) -> None:
        """A message of a worker or a feeder."""
        match message:
            case m.Open():
                self.carry_out(self.coordinator.open(connection, message))
            case m.FeederFailed():
                self.carry_out(self.coordinator.feeder_failed(message))
            case _:
                self.carry_out(self.coordinator.from_worker(message))

    def on_close(self, connection: Connection) -> None:
        """A worker is gone; a feeder's connection ends without meaning."""
        worker = self._names.pop(connection, None)
        if worker is not None:
            del self._links[worker]
            self.carry_out(self.coordinator.worker_lost(worker, "killed by the simulation"))

    def check(self) -> None:
        """The coordinator's phase and the workers' phases fit."""
        epochs = self.coordinator.operator(NAME)
        for worker in self.workers.values():
            hosted = worker.machine._hosted.get(NAME)
            if hosted is None or not worker.alive:
                continue
            assert hosted.turn <= epochs.turn, f"{worker.name} is at turn {hosted.turn}, ahead of {epochs.turn}"
            if epochs.phase is ControlPhase.SEALED:
                same = hosted.turn == epochs.turn and hosted.phase is Phase.SEALED
                assert same, f"turn {epochs.turn} counts as sealed, but {worker.name} is {hosted.phase.name}"
            if epochs.phase is ControlPhase.IDLE and hosted.turn == epochs.turn and epochs.turn >= 0:
                committed = hosted.phase in (Phase.SEALED, Phase.IDLE)
                assert committed, f"turn {epochs.turn} is committed, but {worker.name} is {hosted.phase.name}"
