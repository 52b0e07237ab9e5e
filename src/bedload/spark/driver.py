"""The coordinator's edge in the Spark driver: its endpoint, and the carrying out of its instructions.

The coordinator runs on the endpoint's thread, and nothing that waits does. Looking into Spark's plans takes
milliseconds and goes through the JVM, so it is done on a small pool of threads that report back to that thread. So is
work on files (:mod:`bedload.spark.desk`); a host has a thread for each worker that comes or goes
(:mod:`bedload.spark.crew`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from bedload.control.changes import Stage, Wish
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
    ToWorker,
    WorkersLeft,
    WriteManifest,
    WriteTurn,
)
from bedload.control.lineage import Lineage
from bedload.core.clock import SystemClock
from bedload.core.errors import (
    BedloadError,
    ClusterStopped,
    ProtocolError,
    WorkerStartFailed,
)
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId, WorkerId
from bedload.migration.record import MoveRecord
from bedload.protocol import messages as m
from bedload.spark.crew import Arrival, Crew
from bedload.spark.desk import Desk
from bedload.spark.hosts import WorkerHost
from bedload.spark.keeper import Keeper
from bedload.spark.moves import Moves
from bedload.spark.plan import Plans, mark
from bedload.transport import Credentials, Endpoint, Handler, Peer

_log = logging.getLogger("bedload")
_T = TypeVar("_T")


class Driver(Handler):
    """Serves feeders and workers in the driver process."""

    def __init__(
        self,
        listen: str,
        credentials: Credentials,
        plans: Plans,
        host: WorkerHost,
        workers: int,
        *,
        keeper: Keeper | None = None,
        retention: Retention | None = None,
        replace_seconds: float = 60.0,
    ) -> None:
        self._plans = plans
        self._host = host
        self._expected = workers
        self._keeper = keeper
        self._retention = retention
        self._replace_seconds = replace_seconds
        self._endpoint = Endpoint(listen, credentials=credentials, handler=self)
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bedload-plan")
        # Apart from the plans': a slow store must not keep an epoch from being counted, nor the other way round.
        self._files = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bedload-files")
        self._desk = Desk(keeper, plans.location, self._soon)
        self._crew = Crew(
            host,
            not_started=lambda worker, why: self._soon(lambda c: c.worker_not_started(worker, why)),
            not_replaced=lambda worker, why: self._soon(lambda c: c.worker_not_replaced(worker, why)),
        )
        self._peers: dict[WorkerId, Peer] = {}
        self._names: dict[Peer, WorkerId] = {}
        self._addresses: dict[WorkerId, str] = {}
        self.pids: dict[WorkerId, int] = {}
        self._joined: Future[None] = Future()
        self._quiet: dict[QueryId, set[Epoch]] = {}
        self._stopping = False
        self._clock = SystemClock()
        self.coordinator: Coordinator | None = None
        self.ended: deque[EpochEnded] = deque(maxlen=1000)
        """The latest epochs, for whoever watches."""
        self.moves = Moves(keeper, self._clock, self._files.submit)
        self._thread = threading.Thread(target=self._endpoint.run, name="bedload-coordinator", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where workers and feeders reach the coordinator."""
        return self._endpoint.address

    # --- from other threads ---

    def wait_for_workers(self, seconds: float, check: Callable[[], None]) -> None:
        """Return when all workers have joined; ``check`` raises if that cannot happen any more."""
        waited = 0.0
        while True:
            try:
                return self._joined.result(timeout=0.1)
            except TimeoutError:
                waited += 0.1
            check()
            if waited >= seconds:
                raise WorkerStartFailed(
                    f"{len(self._names)} of {self._expected} workers joined within {seconds:g} seconds. Workers must "
                    f"reach the driver at {self.address}"
                )

    def call(self, action: Callable[[Coordinator], _T]) -> _T:
        """Run something on the coordinator's thread and return what it gives."""
        future: Future[_T] = Future()

        def run() -> None:
            assert self.coordinator is not None
            try:
                future.set_result(action(self.coordinator))
            except BaseException as error:
                future.set_exception(error)

        if self._stopping:
            raise ClusterStopped("the cluster was stopped; attach again with bedload.attach(...)")
        self._endpoint.call_soon(run)
        return future.result()

    def deploy(
        self,
        operator: OperatorName,
        key_groups: int,
        payload: bytes,
        *,
        fresh: bool,
        lineage: Lineage | None = None,
    ) -> DeploymentId:
        """Ship an operator to all workers; raises what one of them says against it."""
        running = self._plans.running()
        future: Future[None] = Future()

        def ask(coordinator: Coordinator) -> DeploymentId:
            deployment, steps = coordinator.deploy(
                future, operator, key_groups, payload, running=running, fresh=fresh, lineage=lineage
            )
            self._carry_out(steps)
            return deployment

        deployment = self.call(ask)
        future.result()
        return deployment

    def checkpoint(self, operators: Sequence[OperatorName]) -> None:
        """Return when all that is committed now is in snapshots; raises what stood in the way."""

        def ask(coordinator: Coordinator) -> list[Future[None]]:
            futures: list[Future[None]] = []
            for operator in operators:
                futures.append(Future())
                self._carry_out(coordinator.checkpoint(futures[-1], operator))
            return futures

        for future in self.call(ask):
            future.result()

    def change(self, wish: Wish) -> tuple[int, Future[tuple[MoveRecord, ...]]]:
        """Change the cluster while it runs: the number of the change, and what became of it."""
        future: Future[tuple[MoveRecord, ...]] = Future()

        def ask(coordinator: Coordinator) -> int:
            number, steps = coordinator.change(future, wish)
            self._carry_out(steps)
            return number

        return self.call(ask), future

    def members(self) -> tuple[int, bool]:
        """How many workers there are, those that are being replaced included, and whether a change is under way."""
        return self.call(lambda c: (len(c.changes.members), c.changes.current is not None))

    def cancel(self, number: int) -> bool:
        """Call a change off; whether that could still be done."""

        def ask(coordinator: Coordinator) -> bool:
            could, steps = coordinator.cancel(number)
            self._carry_out(steps)
            return could

        return self.call(ask)

    def seen(self, number: int) -> tuple[Stage, float]:
        """Where a change is, and how much of it is done."""
        return self.call(lambda c: c.changes.seen(number))

    def progress(self, query: QueryId, run: RunId, epoch: Epoch, *, quiet: bool) -> None:
        """Spark committed an epoch, in which a source had no new data (``quiet``) or all had; thread-safe."""
        if quiet:
            # Spark itself forgets it when the query restarts.
            self._quiet.setdefault(query, set()).add(epoch)
        self._soon(lambda c: c.progress(query, run, epoch))

    def query_ended(self, query: QueryId, run: RunId) -> None:
        """A run of a query is over; thread-safe."""
        self._soon(lambda c: c.query_ended(query, run))

    def stop(self) -> None:
        """Tell the workers to end, and end."""
        if self._stopping:
            return
        if self.coordinator is not None:
            self.call(lambda c: self._carry_out(c.stop()))
        self._stopping = True
        self._endpoint.stop()
        self._thread.join(timeout=10)
        self._endpoint.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._files.shutdown(wait=False, cancel_futures=True)
        self._crew.stop()
        self.moves.write_all()

    # --- Handler: on the coordinator's thread ---

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        """A message of a worker or a feeder."""
        message = m.decode(header)
        if isinstance(message, m.Register):
            self._register(peer, message)
            return
        if self.coordinator is None:
            raise ProtocolError(f"{message} came before the workers were there")
        match message:
            case m.Open():
                self._carry_out(self.coordinator.open(peer, message))
            case m.FeederFailed():
                self._carry_out(self.coordinator.feeder_failed(message))
            case _:
                self._carry_out(self.coordinator.from_worker(message, None if body is None else bytes(body)))

    def on_close(self, peer: Peer) -> None:
        """A feeder's connection ends without meaning; a worker's means that the worker is gone."""
        worker = self._names.pop(peer, None)
        if worker is None or self._stopping:
            return
        del self._peers[worker]
        if self.coordinator is not None and self.coordinator.error is None:
            how = f"process {self.pids.get(worker)} ended: {peer.reason}"
            if words := self._host.last_words(worker):
                how += f"; the end of its log:\n{words}\n"
            if worker in self.coordinator.changes.starting:
                self._crew.let_go(worker)
            self._carry_out(self.coordinator.worker_lost(worker, how))
            replaced = " and is being replaced" if self._crew.is_replacing(worker) else ""
            _log.error("%s", self.coordinator.error or f"worker {worker} was lost ({how}){replaced}")

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        """A caller without the secret, or a bug."""
        if isinstance(error, BedloadError):
            _log.warning("%s: %s", peer or "coordinator", error)
        else:
            _log.error("%s: %s", peer or "coordinator", error, exc_info=error)

    def _register(self, peer: Peer, message: m.Register) -> None:
        if message.worker in self._peers:
            # SUBTLE: Spark made a copy of a task that runs. When the copy ends, Spark takes the task for done and
            # kills the one with the state, so the copy is left waiting until the cluster ends.
            _log.warning("a second worker %s (process %s) came and is left idle", message.worker, message.pid)
            return
        arrival = Arrival.UNASKED
        if self.coordinator is not None:
            arrival = self._crew.arrived(message.worker)
            if arrival is Arrival.UNASKED or self.coordinator.error is not None:
                peer.send(m.encode(m.Stop()))  # a restarted Spark task: its state is gone, so it has no place
                return
            if arrival is Arrival.NEW and message.worker not in self.coordinator.changes.starting:
                peer.send(m.encode(m.Stop()))  # the change that asked for it was called off
                self._crew.let_go(message.worker)
                return
        self._peers[message.worker] = peer
        self._names[peer] = message.worker
        self._addresses[message.worker] = message.address
        self.pids[message.worker] = message.pid
        if self.coordinator is not None:
            if arrival is Arrival.REPLACEMENT:
                _log.warning("worker %s is back as process %s", message.worker, message.pid)
            self._carry_out(self.coordinator.worker_joined(message.worker, message.address))
        elif len(self._peers) == self._expected:
            self.coordinator = Coordinator(
                self._addresses,
                durable=self._keeper is not None,
                retention=self._retention,
                takes_slots=self._host.takes_slots,
                clock=self._clock,
            )
            self._joined.set_result(None)

    # --- instructions ---

    def _carry_out(self, steps: list[Instruction]) -> None:
        for step in steps:
            match step:
                case ToWorker(worker=worker, message=message, body=body):
                    peer = self._peers.get(worker)
                    if peer is not None:
                        peer.send(m.encode(message), () if body is None else (body,))
                case Reply(to=to, message=message):
                    assert isinstance(to, Peer)
                    to.send(m.encode(message))
                case InspectStage():
                    self._pool.submit(self._inspect_stage, step)
                case InspectQuery():
                    self._pool.submit(self._inspect_query, step)
                case DeployResult(to=to, error=error):
                    assert isinstance(to, Future)
                    if error is None:
                        to.set_result(None)
                    else:
                        to.set_exception(error)
                case EpochEnded():
                    self.ended.append(step)
                    self.moves.epoch_ended(step)
                case ChangeResult(to=to, error=error, records=records):
                    assert isinstance(to, Future)
                    records = self.moves.add(records, self.ended)
                    if error is None:
                        to.set_result(records)
                    else:
                        to.set_exception(error)
                case StartWorkers(workers=workers):
                    for worker in workers:
                        self._crew.add(worker, self._replace_seconds)
                case WorkersLeft(workers=workers):
                    for worker in workers:
                        # At once: the end of its connection is nobody's loss, and another may come under its number.
                        left = self._peers.pop(worker, None)
                        if left is not None:
                            del self._names[left]
                        self._crew.let_go(worker)
                case CheckpointResult(to=to, error=error):
                    assert isinstance(to, Future)
                    if error is None:
                        to.set_result(None)
                    else:
                        to.set_exception(error)
                case WriteTurn():
                    self._files.submit(self._desk.write_turn, step)
                case CheckTurn(operator=operator, turn=turn):
                    assert self.coordinator is not None
                    self._files.submit(self._desk.check_turn, step, self.coordinator.record(operator, turn))
                case WriteManifest():
                    self._files.submit(self._desk.write_manifest, step)
                case CollectGarbage():
                    self._files.submit(self._desk.collect, step)
                case ReplaceWorker(worker=worker):
                    self._crew.replace(worker, self._replace_seconds)

    # --- looking into Spark: on threads of their own ---

    def _inspect_stage(self, step: InspectStage) -> None:
        try:
            feeders = self._plans.feeders(step.query, step.epoch, mark(step.deployment, step.operator))
            shape = self._plans.shape(step.stage)
        except Exception as error:
            problem = error if isinstance(error, BedloadError) else ProtocolError(f"{step}: {error!r}")
            self._soon(lambda c: c.stage_unknown(step.operator, step.turn, problem))
            return
        self._soon(lambda c: c.stage_inspected(step.operator, step.turn, step.stage, feeders, shape))

    def _inspect_query(self, step: InspectQuery) -> None:
        try:
            facts = self._plans.facts(step.query, step.location)
        except Exception as error:
            problem = error if isinstance(error, BedloadError) else ProtocolError(f"{step}: {error!r}")
            self._soon(lambda c: c.query_unknown(step.operator, problem))
            return
        known = replace(facts, without_data=facts.without_data | self._quiet.get(step.query, set()))
        self._soon(lambda c: c.query_inspected(step.operator, step.query, step.turn, known))

    def _soon(self, event: Callable[[Coordinator], list[Instruction]]) -> None:
        def run() -> None:
            if self.coordinator is not None:
                self._carry_out(event(self.coordinator))

        if not self._stopping:
            self._endpoint.call_soon(run)
