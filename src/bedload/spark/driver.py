"""The coordinator's edge in the Spark driver: its endpoint, and the carrying out of its instructions.

The coordinator runs on the endpoint's thread (:mod:`bedload.spark.coordinator_thread`), and nothing that waits runs
there. Looking into Spark's plans (:mod:`bedload.spark.inspector`) and work on files (:mod:`bedload.spark.keeper`) are
done on small pools of threads that report back to it; a host has a thread for each worker that comes or goes
(:mod:`bedload.spark.crew`).

Who the workers are and where they stand, the coordinator knows. The driver has their connections
(:mod:`bedload.spark.contacts`).
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

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
from bedload.control.liveness import Patience
from bedload.control.paperwork import FileStep
from bedload.control.seen import Seen
from bedload.control.wish import Wish
from bedload.core.clock import SystemClock
from bedload.core.errors import (
    BedloadError,
    ProtocolError,
    Timeout,
    WorkerStartFailed,
)
from bedload.core.ids import ChangeId, DeploymentId, Epoch, OperatorName, QueryId, RunId, WorkerId
from bedload.migration.record import MoveRecord
from bedload.protocol import messages as m
from bedload.spark.changes import WAIT_SECONDS
from bedload.spark.contacts import Contact, Contacts
from bedload.spark.coordinator_thread import CoordinatorThread
from bedload.spark.crew import Arrival, Crew
from bedload.spark.hosts import WorkerHost
from bedload.spark.inspector import Inspector
from bedload.spark.keeper import Keeper
from bedload.spark.moves import Moves
from bedload.spark.plan import Plans
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
        patience: Patience | None = None,
    ) -> None:
        self._plans = plans
        self._host = host
        self._expected = workers
        self._keeper = keeper
        self._retention = retention
        self._replace_seconds = replace_seconds
        self._endpoint = Endpoint(listen, credentials=credentials, handler=self)
        thread = self._thread = CoordinatorThread(self._endpoint, self._carry_out, self._stillborn)
        self._inspector = Inspector(plans, thread.tell)
        self._crew = Crew(
            host,
            not_started=lambda worker, why: thread.tell(lambda c: c.worker_not_started(worker, why)),
            not_replaced=lambda worker, why: thread.tell(lambda c: c.worker_not_replaced(worker, why)),
        )
        self._joined: Future[None] = Future()
        self._clock = SystemClock()
        self._contacts = Contacts(patience or Patience(), self._clock)
        self.ended: deque[EpochEnded] = deque(maxlen=1000)
        """The latest epochs, for whoever watches."""
        self.moves = Moves(keeper, self._clock, thread.note)
        thread.start()
        self._endpoint.call_later(self._contacts.patience.every, self._look)

    @property
    def address(self) -> str:
        """Where workers and feeders reach the coordinator."""
        return self._endpoint.address

    @property
    def coordinator(self) -> Coordinator | None:
        """There is one as soon as all workers have joined."""
        return self._thread.coordinator

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
                    f"{len(self._contacts)} of {self._expected} workers joined within {seconds:g} seconds. Workers "
                    f"must reach the driver at {self.address}"
                )

    def call(self, action: Callable[[Coordinator], _T]) -> _T:
        """Run something on the coordinator's thread and return what it gives."""
        return self._thread.call(action)

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
        deployment = self._thread.ask(
            lambda c: c.deploy(future, operator, key_groups, payload, running=running, fresh=fresh, lineage=lineage)
        )
        _result(future, f"applying operator {operator}", WAIT_SECONDS)
        return deployment

    def checkpoint(self, operators: Sequence[OperatorName], seconds: float = WAIT_SECONDS) -> None:
        """Return when all that is committed now is in snapshots; raises what stood in the way."""

        def ask(coordinator: Coordinator) -> list[Future[None]]:
            futures: list[Future[None]] = []
            for operator in operators:
                futures.append(Future())
                self._carry_out(coordinator.checkpoint(futures[-1], operator))
            return futures

        deadline = self._clock.monotonic() + seconds
        for name, future in zip(operators, self.call(ask), strict=True):
            left = max(0.0, deadline - self._clock.monotonic())
            _result(future, f"the snapshot of operator {name}", left)

    def change(self, wish: Wish) -> tuple[ChangeId, Future[tuple[MoveRecord, ...]]]:
        """Change the cluster while it runs: the number of the change, and what became of it."""
        future: Future[tuple[MoveRecord, ...]] = Future()
        return self._thread.ask(lambda c: c.change(future, wish)), future

    def members(self) -> tuple[int, bool]:
        """How many workers there are, those that are being replaced included, and whether a change is under way."""
        return self.call(lambda c: (len(c.members.owning), c.changes.current is not None))

    def cancel(self, number: ChangeId) -> bool:
        """Call a change off; whether that could still be done."""
        return self._thread.ask(lambda c: c.cancel(number))

    def seen(self, number: ChangeId) -> Seen:
        """Where a change is, how much of it is done, and what it waits for."""
        return self.call(lambda c: c.changes.seen(number))

    def progress(self, query: QueryId, run: RunId, epoch: Epoch, *, quiet: bool) -> None:
        """Spark committed an epoch, in which a source had no new data (``quiet``) or all had; thread-safe."""
        if quiet:
            self._inspector.quiet(query, epoch)
        self._thread.tell(lambda c: c.progress(query, run, epoch))

    def nothing_read(self, query: QueryId, epoch: Epoch) -> None:
        """Spark committed an epoch in which no row was read; thread-safe."""
        self._thread.look(self._inspector.nothing_read, query, epoch)

    def query_ended(self, query: QueryId, run: RunId) -> None:
        """A run of a query is over; thread-safe."""
        self._thread.tell(lambda c: c.query_ended(query, run))

    def stop(self) -> None:
        """Tell the workers to end, and end."""
        if self._thread.stopping:
            return
        if self.coordinator is not None:
            with contextlib.suppress(BedloadError):  # one that gives no answer is ended all the same
                self.call(lambda c: self._carry_out(c.stop()))
        self._thread.stop()
        self._crew.stop()
        self.moves.write_all()

    # --- Handler: on the coordinator's thread ---

    def on_frame(self, peer: Peer, header: bytes, body: memoryview | None) -> None:
        """A message of a worker or a feeder."""
        message = m.decode(header)
        if isinstance(message, m.Register):
            self._register(Contact(peer, message))
            return
        if isinstance(message, m.Beat):
            self._contacts.beat(message)
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
        lost = self._contacts.closed(peer)
        if lost is not None:
            with self._thread.guarded():
                self._lost(lost, f"process {lost.said.pid} ended: {peer.reason}")

    def _look(self) -> None:
        """Give up workers that hang."""
        with self._thread.guarded():
            for hung, why in self._contacts.hung():
                self._crew.kill(hung.said.worker, hung.said.task)
                self._lost(hung, f"process {hung.said.pid} was ended: {why}")
        self._endpoint.call_later(self._contacts.patience.every, self._look)

    def _lost(self, contact: Contact, how: str) -> None:
        """A worker is gone, or was given up."""
        worker, coordinator = contact.said.worker, self.coordinator
        if self._thread.stopping or coordinator is None or coordinator.error is not None:
            return
        if words := self._host.last_words(worker):
            how += f"; the end of its log:\n{words}\n"
        if coordinator.members.is_asked(worker):
            self._crew.let_go(worker)
        self._carry_out(coordinator.worker_lost(worker, how))
        replaced = " and is being replaced" if coordinator.members.is_missing(worker) else ""
        _log.error("%s", coordinator.error or f"worker {worker} was lost ({how}){replaced}")

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        """A caller without the secret, or a damaged frame: it concerns that peer. Anything else is a bug.

        The peer is closed either way: it waits for an answer that will not come.
        """
        if peer is not None and isinstance(error, BedloadError):
            _log.warning("%s: %s", peer, error)
        else:
            self._thread.broke(error)

    def _stillborn(self, problem: BedloadError) -> None:
        """Something failed before there was a coordinator."""
        if not self._joined.done():
            self._joined.set_exception(problem)

    def _register(self, contact: Contact) -> None:
        said = contact.said
        if self._contacts.get(said.worker) is not None:
            # SUBTLE: Spark made a copy of a task that runs. When the copy ends, Spark takes the task for done and
            # kills the one with the state, so the copy is left waiting. Or its host is gone and nobody has noticed
            # yet: then the copy is all that Spark will start, and takes its place when it counts as lost.
            _log.warning("a second worker %s (process %s) came and is left idle", said.worker, said.pid)
            self._contacts.waits(contact)
            return
        with self._thread.guarded():
            if self.coordinator is None:
                self._begins_with(contact)
            else:
                self._join(contact, self.coordinator)

    def _begins_with(self, contact: Contact) -> None:
        """One of the workers from the beginning is there; the coordinator is when all are."""
        self._contacts.came(contact)
        if len(self._contacts) == self._expected:
            self._thread.coordinator = Coordinator(
                [it.worker for it in self._contacts],
                durable=self._keeper is not None,
                retention=self._retention,
                takes_slots=self._host.takes_slots,
                clock=self._clock,
            )
            self._joined.set_result(None)

    def _join(self, contact: Contact, coordinator: Coordinator) -> None:
        said = contact.said
        arrival = self._crew.arrived(said.worker)
        if arrival is Arrival.UNASKED or coordinator.error is not None:
            contact.peer.send(m.encode(m.Stop()))  # a restarted Spark task: its state is gone, so it has no place
            return
        if arrival is Arrival.NEW and not coordinator.members.is_asked(said.worker):
            contact.peer.send(m.encode(m.Stop()))  # the change that asked for it was called off
            self._crew.let_go(said.worker)
            return
        self._contacts.came(contact)
        if arrival is Arrival.REPLACEMENT:
            _log.warning("worker %s is back as process %s", said.worker, said.pid)
        self._carry_out(coordinator.worker_joined(said.worker, said.address, said.pid, said.site))

    # --- instructions ---

    def _carry_out(self, steps: list[Instruction]) -> None:
        for step in steps:
            match step:
                case ToWorker(worker=worker, message=message, body=body):
                    contact = self._contacts.get(worker)
                    if contact is not None:
                        contact.peer.send(m.encode(message), () if body is None else (body,))
                case Reply(to=to, message=message):
                    assert isinstance(to, Peer)
                    to.send(m.encode(message))
                case InspectStage():
                    self._thread.look(self._inspector.stage, step)
                case InspectQuery(pause=pause):
                    self._endpoint.call_later(pause, partial(self._thread.look, self._inspector.query, step))
                case DeployResult(to=to, error=error):
                    assert isinstance(to, Future)
                    _resolve(to, None, error)
                case EpochEnded():
                    self.ended.append(step)
                    self.moves.epoch_ended(step)
                case ChangeResult(to=to, error=error, records=records):
                    assert isinstance(to, Future)
                    _resolve(to, self.moves.add(records, self.ended), error)
                case StartWorkers(workers=workers):
                    for worker in workers:
                        self._crew.add(worker, self._replace_seconds)
                case WorkersLeft(workers=workers):
                    for worker in workers:
                        # At once: the end of its connection is nobody's loss, and another may come under its number.
                        self._contacts.forget(worker)
                        self._crew.let_go(worker)
                case CheckpointResult(to=to, error=error):
                    assert isinstance(to, Future)
                    _resolve(to, None, error)
                case WriteTurn() | CheckTurn() | WriteManifest() | CollectGarbage():
                    self._file(step)
                case ReplaceWorker(worker=worker):
                    self._replace(worker)

    def _file(self, step: FileStep) -> None:
        assert self._keeper is not None
        assert self.coordinator is not None
        record = self.coordinator.record(step.operator, step.turn) if isinstance(step, CheckTurn) else None
        self._thread.file(self._keeper.carry_out, step, record, self._plans.location, self._thread.tell)

    def _replace(self, worker: WorkerId) -> None:
        spare = self._contacts.take_spare(worker)
        self._crew.replace(worker, self._replace_seconds, start=spare is None)
        if spare is not None:
            # Not at once: the coordinator is in the middle of saying what the loss means.
            self._endpoint.call_soon(partial(self._register, spare))


def _resolve(future: Future[Any], result: Any, error: BedloadError | None) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _result(future: Future[None], what: str, seconds: float) -> None:
    """Wait for the coordinator's word, and raise what it says."""
    try:
        future.result(seconds)
    except TimeoutError:
        raise Timeout(
            f"{what} is not over after {seconds:g} seconds; it goes on. See cluster.workers and cluster.restoring(), "
            f"and the workers' logs"
        ) from None
