"""The coordinator's edge in the Spark driver: its endpoint, and the carrying out of its instructions.

The coordinator runs on the endpoint's thread, and nothing that waits runs there. Looking into Spark's plans
(:mod:`bedload.spark.inspector`) and work on files (:mod:`bedload.spark.keeper`) are done on small pools of threads that
report back to that thread; a host has a thread for each worker that comes or goes (:mod:`bedload.spark.crew`).

Invariants:
- An exception that nobody expected, on whichever thread, ends the cluster with that error: it is never only logged.
- Whoever waits for the coordinator waits for a limited time.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from bedload.control.liveness import Liveness, Patience
from bedload.control.members import Worker
from bedload.control.paperwork import FileStep
from bedload.control.phases import ChangePhase
from bedload.control.wish import Wish
from bedload.core.clock import SystemClock
from bedload.core.errors import (
    BedloadError,
    ClusterStopped,
    ProtocolError,
    Timeout,
    WorkerStartFailed,
)
from bedload.core.ids import ChangeId, DeploymentId, Epoch, OperatorName, QueryId, RunId, WorkerId
from bedload.migration.record import MoveRecord
from bedload.protocol import messages as m
from bedload.spark.changes import WAIT_SECONDS
from bedload.spark.crew import Arrival, Crew
from bedload.spark.hosts import WorkerHost
from bedload.spark.inspector import Inspector
from bedload.spark.keeper import Keeper
from bedload.spark.moves import Moves
from bedload.spark.plan import Plans
from bedload.transport import Credentials, Endpoint, Handler, Peer

_log = logging.getLogger("bedload")
_T = TypeVar("_T")
_ANSWER_SECONDS = 120.0
"""How long the coordinator may take for an answer that waits for nothing."""


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
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bedload-plan")
        # Apart from the plans': a slow store must not keep an epoch from being counted, nor the other way round.
        self._files = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bedload-files")
        self._inspector = Inspector(plans, self._soon)
        self._crew = Crew(
            host,
            not_started=lambda worker, why: self._soon(lambda c: c.worker_not_started(worker, why)),
            not_replaced=lambda worker, why: self._soon(lambda c: c.worker_not_replaced(worker, why)),
        )
        self._peers: dict[WorkerId, Peer] = {}
        self._names: dict[Peer, WorkerId] = {}
        self._addresses: dict[WorkerId, str] = {}
        self.pids: dict[WorkerId, int] = {}
        self._tasks: dict[WorkerId, int] = {}
        self._spares: list[tuple[Peer, m.Register]] = []
        """Copies of workers that are there: one takes over when the worker is lost."""
        self._joined: Future[None] = Future()
        self._stopping = False
        self._clock = SystemClock()
        self._patience = patience or Patience()
        self._liveness = Liveness(self._patience, self._clock.monotonic())
        self.coordinator: Coordinator | None = None
        self.ended: deque[EpochEnded] = deque(maxlen=1000)
        """The latest epochs, for whoever watches."""
        self.moves = Moves(keeper, self._clock, self._files.submit)
        self._thread = threading.Thread(target=self._endpoint.run, name="bedload-coordinator", daemon=True)
        self._thread.start()
        self._endpoint.call_later(self._patience.every, self._look)

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
        with contextlib.suppress(TimeoutError):
            return future.result(_ANSWER_SECONDS)
        stack = sys._current_frames().get(self._thread.ident or 0)
        raise ProtocolError(
            f"the coordinator gave no answer within {_ANSWER_SECONDS:g} seconds. Report this, with where it is:\n"
            + ("it has ended" if stack is None else "".join(traceback.format_stack(stack)))
        )

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

        def ask(coordinator: Coordinator) -> ChangeId:
            number, steps = coordinator.change(future, wish)
            self._carry_out(steps)
            return number

        return self.call(ask), future

    def members(self) -> tuple[int, bool]:
        """How many workers there are, those that are being replaced included, and whether a change is under way."""
        return self.call(lambda c: (len(c.members.owning), c.changes.current is not None))

    def cancel(self, number: ChangeId) -> bool:
        """Call a change off; whether that could still be done."""

        def ask(coordinator: Coordinator) -> bool:
            could, steps = coordinator.cancel(number)
            self._carry_out(steps)
            return could

        return self.call(ask)

    def seen(self, number: ChangeId) -> tuple[ChangePhase, float]:
        """Where a change is, and how much of it is done."""
        return self.call(lambda c: c.changes.seen(number))

    def progress(self, query: QueryId, run: RunId, epoch: Epoch, *, quiet: bool) -> None:
        """Spark committed an epoch, in which a source had no new data (``quiet``) or all had; thread-safe."""
        if quiet:
            self._inspector.quiet(query, epoch)
        self._soon(lambda c: c.progress(query, run, epoch))

    def nothing_read(self, query: QueryId, epoch: Epoch) -> None:
        """Spark committed an epoch in which no row was read; thread-safe."""
        self._submit(self._pool, self._inspector.nothing_read, query, epoch)

    def query_ended(self, query: QueryId, run: RunId) -> None:
        """A run of a query is over; thread-safe."""
        self._soon(lambda c: c.query_ended(query, run))

    def stop(self) -> None:
        """Tell the workers to end, and end."""
        if self._stopping:
            return
        if self.coordinator is not None:
            with contextlib.suppress(BedloadError):  # one that gives no answer is ended all the same
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
        if isinstance(message, m.Beat):
            if self._addresses.get(message.worker) == message.address:
                self._liveness.beat(message.worker, message.busy, message.where, self._clock.monotonic())
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
        self._spares = [spare for spare in self._spares if spare[0] is not peer]
        worker = self._names.pop(peer, None)
        if worker is not None:
            with self._guarded():
                self._lost(worker, f"process {self.pids.get(worker)} ended: {peer.reason}")

    def _lost(self, worker: WorkerId, how: str) -> None:
        """A worker is gone, or was given up."""
        del self._peers[worker]
        self._liveness.gone(worker)
        if self._stopping or self.coordinator is None or self.coordinator.error is not None:
            return
        if words := self._host.last_words(worker):
            how += f"; the end of its log:\n{words}\n"
        if self.coordinator.members.is_asked(worker):
            self._crew.let_go(worker)
        self._carry_out(self.coordinator.worker_lost(worker, how))
        replaced = " and is being replaced" if self._crew.is_replacing(worker) else ""
        _log.error("%s", self.coordinator.error or f"worker {worker} was lost ({how}){replaced}")

    def _look(self) -> None:
        """Give up workers that hang."""
        with self._guarded():
            for worker, why in self._liveness.look(self._clock.monotonic()).items():
                peer = self._peers.get(worker)
                if peer is None:
                    continue  # it has left by the loss of one before it, and is ended by that
                del self._names[peer]
                peer.abort()
                self._crew.kill(worker, self._tasks[worker])
                self._lost(worker, f"process {self.pids[worker]} was ended: {why}")
        self._endpoint.call_later(self._patience.every, self._look)

    def on_error(self, peer: Peer | None, error: BaseException) -> None:
        """A caller without the secret, or a damaged frame: it concerns that peer. Anything else is a bug.

        The peer is closed either way: it waits for an answer that will not come.
        """
        if peer is not None and isinstance(error, BedloadError):
            _log.warning("%s: %s", peer, error)
        else:
            self._broke(error)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever goes wrong in here concerns all."""
        try:
            yield
        except Exception as error:
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        """Something failed that must not: the cluster ends, and everybody who waits hears why."""
        if self._stopping:
            return
        _log.error("the coordinator failed: %s", error, exc_info=error)
        problem = ProtocolError(
            "the coordinator failed, and the cluster has ended. Epochs that Spark committed are in the checkpoint, if "
            f"there is one: attach again. Report this:\n{''.join(traceback.format_exception(error))}"
        )
        if self.coordinator is None:
            if not self._joined.done():
                self._joined.set_exception(problem)
            return
        try:
            self._carry_out(self.coordinator.failed(problem))
        except Exception:
            _log.exception("and could not be ended in order: all connections are closed")
            self._endpoint.stop()  # whoever waits sees that

    def _register(self, peer: Peer, message: m.Register) -> None:
        if message.worker in self._peers:
            # SUBTLE: Spark made a copy of a task that runs. When the copy ends, Spark takes the task for done and
            # kills the one with the state, so the copy is left waiting. Or its host is gone and nobody has noticed
            # yet: then the copy is all that Spark will start, and takes its place when it counts as lost.
            _log.warning("a second worker %s (process %s) came and is left idle", message.worker, message.pid)
            self._spares.append((peer, message))
            return
        with self._guarded():
            self._join(peer, message)

    def _join(self, peer: Peer, message: m.Register) -> None:
        arrival = Arrival.UNASKED
        if self.coordinator is not None:
            arrival = self._crew.arrived(message.worker)
            if arrival is Arrival.UNASKED or self.coordinator.error is not None:
                peer.send(m.encode(m.Stop()))  # a restarted Spark task: its state is gone, so it has no place
                return
            if arrival is Arrival.NEW and not self.coordinator.members.is_asked(message.worker):
                peer.send(m.encode(m.Stop()))  # the change that asked for it was called off
                self._crew.let_go(message.worker)
                return
        self._peers[message.worker] = peer
        self._names[peer] = message.worker
        self._addresses[message.worker] = message.address
        self.pids[message.worker] = message.pid
        self._tasks[message.worker] = message.task
        self._liveness.came(message.worker, self._clock.monotonic())
        peer.send(m.encode(m.Watch(self._patience.every)))
        if self.coordinator is not None:
            if arrival is Arrival.REPLACEMENT:
                _log.warning("worker %s is back as process %s", message.worker, message.pid)
            self._carry_out(self.coordinator.worker_joined(message.worker, message.address, message.pid))
        elif len(self._peers) == self._expected:
            self.coordinator = Coordinator(
                [Worker(worker, address, self.pids[worker]) for worker, address in self._addresses.items()],
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
                    self._submit(self._pool, self._inspector.stage, step)
                case InspectQuery(pause=pause):
                    look = partial(self._submit, self._pool, self._inspector.query, step)
                    self._endpoint.call_later(pause, look)
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
                        left = self._peers.pop(worker, None)
                        if left is not None:
                            del self._names[left]
                        self._liveness.gone(worker)
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
        self._submit(self._files, self._keeper.carry_out, step, record, self._plans.location, self._soon)

    def _replace(self, worker: WorkerId) -> None:
        spare = next((spare for spare in self._spares if spare[1].worker == worker), None)
        self._crew.replace(worker, self._replace_seconds, start=spare is None)
        if spare is not None:
            self._spares.remove(spare)
            # Not at once: the coordinator is in the middle of saying what the loss means.
            self._endpoint.call_soon(lambda: self.on_frame(spare[0], m.encode(spare[1]), None))

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[..., None], *arguments: Any) -> None:
        """Do something on another thread; it reports by itself, unless it fails as nobody thought it could."""

        def over(future: Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                with contextlib.suppress(ClusterStopped):
                    self._endpoint.call_soon(partial(self._broke, error))

        if not self._stopping:
            pool.submit(work, *arguments).add_done_callback(over)

    def _soon(self, event: Callable[[Coordinator], list[Instruction]]) -> None:
        def run() -> None:
            if self.coordinator is not None:
                with self._guarded():
                    self._carry_out(event(self.coordinator))

        if not self._stopping:
            with contextlib.suppress(ClusterStopped):
                self._endpoint.call_soon(run)


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
