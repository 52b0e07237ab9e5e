"""The simulated driver: the coordinator on the virtual network, and its workers.

It does what :mod:`bedload.spark.driver` does: hands messages to the coordinator and carries out its instructions.

Invariant that it checks between any two events: the coordinator believes an epoch sealed only if every worker that
takes part in it and is there has sealed it; no worker is ahead of the coordinator; what it takes for the earliest
instant at which something is due is that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bedload.checkpoint.records import TurnRecord
from bedload.control.compaction import Retention
from bedload.control.coordinator import Coordinator
from bedload.control.instructions import (
    ChangeResult,
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
    StartWorkers,
    Token,
    ToWorker,
    WorkersLeft,
    WriteManifest,
    WriteTurn,
)
from bedload.control.lull import Lull
from bedload.control.members import workers_at
from bedload.control.paperwork import Event, FileStep
from bedload.control.phases import TransferPhase
from bedload.control.standing import Phase as ControlPhase
from bedload.core.errors import BedloadError
from bedload.core.ids import NO_TURN, OperatorName, Turn, WorkerId
from bedload.core.limits import Limits
from bedload.protocol import messages as m
from bedload.worker.machine import Phase
from bedload.worker.runtime import Startable
from tests.simulator.desk import Desk
from tests.simulator.faults import Faults
from tests.simulator.network import Body, Connection, Network
from tests.simulator.reader import Reader
from tests.simulator.watcher import Watcher
from tests.simulator.wishes import Wishes
from tests.simulator.worker import SimulatedWorker
from tests.simulator.workload import HASH_OF, time_of


class Inspector(Protocol):
    """Answers the coordinator's questions about Spark."""

    def inspect_stage(self, step: InspectStage) -> None:
        """Answer with ``stage_inspected`` or ``stage_unknown``."""
        ...

    def inspect_query(self, step: InspectQuery) -> None:
        """Answer with ``query_inspected``."""
        ...


class SimulatedDriver:
    """A cluster: the coordinator and the workers that it has, or had."""

    name = "coordinator"

    def __init__(
        self,
        network: Network,
        watchers: Mapping[OperatorName, Watcher],
        faults: Faults,
        inspector: Inspector,
        workers: list[WorkerId],
        make: Callable[[WorkerId], SimulatedWorker],
        *,
        desk: Desk | None = None,
        retention: Retention | None = None,
        limits: Limits,
    ) -> None:
        self.workers: dict[WorkerId, SimulatedWorker] = {}
        """The latest process of each worker."""
        self.places: dict[str, SimulatedWorker] = {}
        """All processes there ever were, by address."""
        self.alive = True
        self.live = True
        """Whether its program is the one that counts."""
        self.on_deployed: dict[Token, Callable[[BedloadError | None], None]] = {}
        """Who waits for a deployment."""
        self.on_over: Callable[[BedloadError], None] = lambda _: None
        self.on_phase: Callable[[OperatorName, TransferPhase], None] = lambda *_: None
        """A move has come to another phase."""
        self.wishes = Wishes(network, faults)
        self.readers: list[Reader] = []
        self._over = False
        self._phases: dict[OperatorName, TransferPhase | None] = {}
        self._dues: dict[OperatorName, Turn] = {}
        """The turns whose end was looked at for what is due after them."""
        self._network = network
        self._watchers = watchers
        self._faults = faults
        self._inspector = inspector
        self._make = make
        self._desk = desk
        self._links: dict[WorkerId, Connection] = {}
        self._names: dict[Connection, WorkerId] = {}
        self._awaited: dict[WorkerId, SimulatedWorker] = {}
        """Lost workers in whose place nobody comes, and nobody has said so."""
        self._spares: set[WorkerId] = set()
        """Workers of which a second one waits for the first to be lost."""
        addresses = {worker: self._connect(worker) for worker in workers}
        self.coordinator = Coordinator(
            workers_at(addresses), durable=desk is not None, retention=retention, clock=network.time, limits=limits
        )
        if desk is not None:
            desk.report = self.tell

    def tell(self, event: Event) -> None:
        """Something happened that the coordinator should know."""
        if self.alive:
            self.carry_out(event(self.coordinator))

    def kill(self) -> None:
        """The driver's process ends. The workers notice it sooner or later."""
        self._network.note("the driver dies")
        self.alive = False
        for link in self._links.values():
            link.close(self)

    def carry_out(self, steps: list[Instruction]) -> None:
        """Do what the coordinator says."""
        self._check_owners(steps)
        for step in steps:
            match step:
                case ToWorker(worker=worker, message=message, body=body):
                    self._to_worker(worker, message, body)
                case Reply(to=to, message=message):
                    assert isinstance(to, Connection)
                    to.send(self, message)
                case InspectStage():
                    self._inspector.inspect_stage(step)
                case InspectQuery():
                    self._inspector.inspect_query(step)
                case DeployResult(to=to, error=error):
                    self.on_deployed.pop(to)(error)
                case CheckpointResult(to=to, error=error):
                    assert isinstance(to, int)
                    self.wishes.snapshot_over(to, error, self)
                case EpochEnded():
                    self._network.note(f"coordinator: {step}")
                    self._watchers[step.operator].ended(step)
                case ReplaceWorker(worker=worker):
                    self._replace(worker)
                case StartWorkers(workers=workers):
                    there = [worker for worker in workers if worker in self._links]
                    assert not there, f"workers {there} are there, and would be killed for others of their numbers"
                    for worker in workers:
                        self._start(worker)
                case WorkersLeft(workers=workers):
                    left = [worker for worker in workers if worker in self._links]
                    assert not left, f"workers {left} left and were not told to stop"
                case ChangeResult():
                    self.wishes.ended(step, self.coordinator)
                case WriteTurn() | CheckTurn() | WriteManifest() | CollectGarbage():
                    self._on_files(step)
        self.check()
        self._look_at_phase()
        if self.coordinator.error is not None and not self._over:
            self._over = True
            self.on_over(self.coordinator.error)

    def _look_at_phase(self) -> None:
        for name, epochs in self.coordinator._operators.items():
            transfer = epochs.standing.transfer
            phase = None if transfer is None else transfer.phase
            if phase is not self._phases.get(name):
                self._phases[name] = phase
                if phase is not None:
                    self.on_phase(name, phase)

    def _check_owners(self, steps: list[Instruction]) -> None:
        begins: dict[tuple[OperatorName, Turn], dict[WorkerId, m.Begin]] = {}
        for step in steps:
            if isinstance(step, ToWorker) and isinstance(step.message, m.Begin):
                begins.setdefault((step.message.operator, step.message.turn), {})[step.worker] = step.message
        for (name, turn), told in begins.items():
            pins = [pin.key for pin in self.coordinator.operator(name).routing.pins]
            self._watchers[name].owned(turn, told, pins)

    def _to_worker(self, worker: WorkerId, message: m.Message, body: Body) -> None:
        if isinstance(message, m.Begin) and message.turn not in self._watchers[message.operator].base:
            watcher, base = self._watchers[message.operator], self._watchers[message.operator].history
            if (record := self.coordinator.record(message.operator, message.turn)) is not None:
                base = watcher.histories[NO_TURN if record.parent is None else record.parent]
            watcher.begun(message.turn, message.query, message.epoch, base, live=self.live)
        link = self._links.get(worker)
        if link is not None:
            link.send(self, message, body)
            if isinstance(message, m.Stop):  # another one of that number may come
                del self._links[worker], self._names[link]

    def _on_files(self, step: FileStep) -> None:
        assert self._desk is not None, f"{step} without a checkpoint"
        known: TurnRecord | None = None
        match step:
            case WriteTurn(record=record):
                assert record.time == time_of(record.epoch), f"turn {record.turn}: {record.time}"
            case CheckTurn(operator=operator, turn=turn):
                known = self.coordinator.record(operator, turn)
                assert known is not None
        self._desk.do(step, known)

    def on_message(self, connection: Connection, message: m.Message, body: Body) -> None:
        """A message of a worker or a feeder."""
        match message:
            case m.Open():
                self.tell(lambda c: c.open(connection, message))
            case m.FeederFailed():
                self.tell(lambda c: c.feeder_failed(message))
            case _:
                self.tell(lambda c: c.from_worker(message, body))

    def on_close(self, connection: Connection) -> None:
        """A worker is gone; a feeder's connection ends without meaning."""
        self._lost(connection, "killed by the simulation")

    def _lost(self, connection: Connection, how: str) -> None:
        worker = self._names.pop(connection, None)
        if worker is not None:
            del self._links[worker]
            self.tell(lambda c: c.worker_lost(worker, how))
            if worker in self._spares:
                self._spares.remove(worker)
                self._joins(worker)

    # --- workers ---

    def read(self, deployments: Mapping[OperatorName, Startable]) -> None:
        """Somebody reads a key."""
        names = [name for name in self.coordinator.operators if self.live]
        if names:
            name, key = self._network.chance.pick(names), self._network.chance.pick(list(HASH_OF))
            reader = Reader(self._network, self, deployments[name], self._watchers[name], key)
            self.readers.append(reader)

    def give_up(self, process: SimulatedWorker, *, kill: bool) -> None:
        """A worker has said nothing for too long: it is as good as lost, whether it can be ended or not."""
        link = self._links.get(process.worker)
        if not self.alive or link is None or self.workers[process.worker] is not process:
            return
        self._network.note(f"{process.name} is given up")
        link.close(self)
        if kill:
            self._network.after(self._network.chance.delay(4), process.kill)
        self._lost(link, "it said nothing for too long")

    def comes_again(self, process: SimulatedWorker) -> None:
        """Somebody started a worker anew, and it is here before it is known that the one before is gone."""
        if process.worker in self._links and self.workers[process.worker] is process:
            self._spares.add(process.worker)

    def _connect(self, worker: WorkerId) -> str:
        process = self._make(worker)
        self.workers[worker] = self.places[process.name] = process
        process.places = self.places
        link = self._links[worker] = self._network.connect(self, process)
        self._names[link] = worker
        process.attach(link)
        return process.name

    def _replace(self, worker: WorkerId) -> None:
        chance = self._network.chance
        comes = not self._faults.strikes("no replacement", 3)
        if not comes:
            self._awaited[worker] = process = self.workers[worker]
            scale = 60 if self._faults.on("failed restore") else 10  # a restore may fail before it is known
            self._network.after(chance.delay(scale), lambda: self._not_replaced(worker, process))
            comes = chance.happens(0.3)  # too late, or at the last moment
        if comes:
            self._network.after(chance.delay(6), lambda: self._joins(worker))

    def _not_replaced(self, worker: WorkerId, process: SimulatedWorker) -> None:
        if self._awaited.get(worker) is process:
            del self._awaited[worker]
            self.tell(lambda c: c.worker_not_replaced(worker, "the simulation starts none"))

    def nobody_comes(self) -> None:
        """It is known at this moment that nobody comes in place of lost workers: the others own more."""
        for worker, process in [*self._awaited.items()]:
            self._not_replaced(worker, process)

    def _start(self, worker: WorkerId) -> None:
        """A worker that is new."""
        chance = self._network.chance
        comes = not self._faults.strikes("no newcomer", 2)
        if not comes:
            why = "the simulation starts none"
            self._network.after(chance.delay(10), lambda: self.tell(lambda c: c.worker_not_started(worker, why)))
            comes = chance.happens(0.3)
        if comes:
            self._network.after(chance.delay(4), lambda: self._joins(worker, "dead newcomer"))

    def _joins(self, worker: WorkerId, fault: str = "dead replacement") -> None:
        if not self.alive or worker in self._links or self.coordinator.error is not None:
            return
        address = self._connect(worker)
        self._network.note(f"{address} joins")
        if self._faults.strikes(fault, 3):
            self._network.after(self._network.chance.delay(5), self.workers[worker].kill)
        self.tell(lambda c: c.worker_joined(worker, address))

    def check(self) -> None:
        """The coordinator's phase and the workers' phases fit."""
        # Called after every event: it looks up what it needs once, and says little while all is well.
        if not self.alive:
            return
        self.coordinator.check()
        durable, links = self._desk is not None, self._links
        for operator in self.coordinator.operators:
            at = self.coordinator.operator(operator)
            turn, phase, members = at.turn, at.phase, at.current.workers
            for name, worker in self.workers.items():
                hosted = worker.machine._hosted.get(operator)
                if hosted is None or not worker.alive or name not in links:
                    continue
                assert hosted.turn <= turn, f"{worker.name} is at turn {hosted.turn}, ahead of {turn}"
                if name not in members or (hosted.turn < turn and (durable or hosted.turn < 0)):
                    continue  # it came later, and gets its state when it is needed
                if phase is ControlPhase.SEALED:
                    same = hosted.turn == turn and hosted.phase is Phase.SEALED
                    assert same, f"turn {turn} counts as sealed, but {worker.name} is {hosted.phase.name}"
                given_up = at.run is None  # the last turn was rolled back with all state before it
                if phase is ControlPhase.IDLE and hosted.turn == turn and turn >= 0 and not given_up:
                    committed = hosted.phase in (Phase.SEALED, Phase.IDLE)
                    assert committed, f"turn {turn} is committed, but {worker.name} is {hosted.phase.name}"
            if phase in (ControlPhase.SEALED, ControlPhase.IDLE) and self._dues.get(operator) != turn:
                lull = Lull.of(at)
                if lull.due is not None:
                    self._dues[operator] = turn
                    # Of single keys that moved, copies are kept for a while, and may be due.
                    parts = [worker.machine._hosted.get(operator) for worker in self.workers.values()]
                    copies = any(it is not None and len(it.holdings._away) for it in parts)
                    self._watchers[operator].check_due(turn, lull.time, lull.due, exact=not copies)
