"""A whole cluster in one process, without Spark and without a network.

A :class:`~bedload.control.coordinator.Coordinator`, :class:`~bedload.worker.machine.WorkerMachine` and
:class:`~bedload.protocol.feeder.FeederSession` wired by direct calls: the code of a real cluster with the
sockets left out. Use it to test an operator over several workers and partitions, and what retries, second
actions, restarts and a lost worker do to its state and outputs.

Workers may come and go, and state move between them, at any time: :meth:`InProcessCluster.rescale` and its like.
Ownership flips at the next epoch boundary.

Invariant: every message is carried to its end before the next is made, so a test has no interleavings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bedload.control.attempt import StageFacts
from bedload.control.coordinator import Coordinator
from bedload.control.inquiries import QueryFacts
from bedload.control.instructions import (
    ChangeResult,
    DeployResult,
    EpochEnded,
    InspectQuery,
    InspectStage,
    Instruction,
    Reply,
    StartWorkers,
    ToWorker,
    WorkersLeft,
)
from bedload.control.members import workers_at
from bedload.core.clock import Clock, SystemClock
from bedload.core.durations import Duration
from bedload.core.epoch import EpochTime
from bedload.core.errors import BedloadError, EpochError, WorkerLost, WorkerStartFailed
from bedload.core.ids import DeploymentId, Epoch, QueryId, RunId, WorkerId
from bedload.core.limits import LIMITS, Limits
from bedload.keys import DEFAULT_KEY_GROUPS, canonical_key, check_key_groups
from bedload.migration.record import MoveRecord
from bedload.protocol import messages as m
from bedload.protocol.combining import Combining
from bedload.protocol.feeder import FeederSession, Send
from bedload.protocol.split import unpack
from bedload.state.ttl import Clock as TtlClock
from bedload.testing.applied import AnyOperator, Subject, an_aggregate, an_operator
from bedload.testing.attempt import TaskAttempt
from bedload.testing.changing import Changing
from bedload.testing.committed import CommittedState
from bedload.testing.harness import Output, as_rows
from bedload.testing.input import Columns, InputFormat, Rows, as_schema
from bedload.testing.passing_time import PassingTime
from bedload.worker.durability import Hurry, Load
from bedload.worker.machine import COORDINATOR, Out, WorkerMachine
from bedload.worker.peers import Neighbour

if TYPE_CHECKING:
    from bedload.operators.aggregates import Function

_ADDRESS = "in-process"


@dataclass
class _Numbers:
    """What Spark has numbered so far."""

    run: int = 0
    attempt: int = 0
    stage: int = 0


class InProcessCluster(Changing, PassingTime):
    """Workers and a coordinator in this process, running one operator for one query.

    ``operator``, ``schema``, ``key``, ``input`` (which is needed here) and ``key_groups`` are as for
    :class:`~bedload.testing.harness.OperatorHarness`, and :meth:`aggregate` is for aggregates. ``run_epoch`` takes one
    list of rows per source partition and gives all outputs; the epoch is committed as Spark does it, when the next one
    opens or when its progress event comes (``progress=True``).
    ``now`` and ``watermark`` are what ``ctx.now`` and ``ctx.watermark`` say in the next epoch that begins; a replay has
    what its epoch had. ``advance_time``, ``advance_watermark`` and ``timers`` are as for a harness; ``ttl`` and
    ``ttl_clock`` are ``ttl`` and ``clock`` of ``apply``.
    """

    query = QueryId("query")

    def __init__(
        self,
        operator: AnyOperator,
        *,
        schema: Columns,
        key: str | Sequence[str],
        input: Columns,  # noqa: A002 - the user's word for it
        workers: int = 2,
        key_groups: int = DEFAULT_KEY_GROUPS,
        clock: Clock | None = None,
        limits: Limits = LIMITS,
        ttl: Duration | None = None,
        ttl_clock: TtlClock | None = None,
    ) -> None:
        subject = an_operator(operator, schema, ttl, ttl_clock)
        self._start(subject, key, input, workers, key_groups, clock or SystemClock(), limits)

    @classmethod
    def aggregate(
        cls,
        *,
        key: str | Sequence[str],
        input: Columns,  # noqa: A002 - the user's word for it
        workers: int = 2,
        key_groups: int = DEFAULT_KEY_GROUPS,
        ttl: Duration | None = None,
        clock: TtlClock | None = None,
        **aggregates: Function,
    ) -> InProcessCluster:
        """A cluster that runs aggregates, named as for :meth:`bedload.Cluster.aggregate`."""
        made = cls.__new__(cls)
        made._start(an_aggregate(aggregates, ttl, clock), key, input, workers, key_groups, SystemClock(), LIMITS)
        return made

    def _start(
        self,
        subject: Subject,
        key: str | Sequence[str],
        columns: Columns,
        workers: int,
        key_groups: int,
        clock: Clock,
        limits: Limits,
    ) -> None:
        check_key_groups(key_groups)
        self._format = InputFormat(as_schema(columns, "input"), key, key_groups)
        applied = self._applied = subject.apply(self._format)
        self.name = subject.name
        ids = [WorkerId(number) for number in range(workers)]
        self._make: Callable[[WorkerId], WorkerMachine] = lambda worker: WorkerMachine(
            worker, lambda _: applied.deployment, clock, limits=limits
        )
        self.workers = {worker: self._make(worker) for worker in ids}
        self.coordinator = Coordinator(workers_at(dict.fromkeys(ids, _ADDRESS)), clock=clock, limits=limits)
        self.run = RunId("run-0")
        self.epoch = Epoch(0)
        self._start_time()
        self._times: dict[Epoch, EpochTime] = {}
        self.ended: list[EpochEnded] = []
        self.moves: list[MoveRecord] = []
        """What became of the changes that are over."""
        self._batches: list[list[pa.RecordBatch]] = []
        self._numbers = _Numbers()
        self._answers: dict[int, deque[tuple[WorkerId, m.Message, Any]]] = {}
        self._replies: dict[int, m.Message] = {}
        self._deployed: BedloadError | None = None
        self._later: list[InspectQuery] = []
        """What the coordinator wants to look at after a while."""
        self._deployment = self._deploy(key_groups)

    @property
    def key(self) -> tuple[int, ...]:
        """The positions of the key's columns."""
        return self._format.key

    # --- what Spark does ---

    def run_epoch(self, partitions: Sequence[Rows | list[Rows]] = ([],), *, progress: bool = True) -> list[Output]:
        """Run the next epoch: for each source partition its rows, or a list of batches of rows; else it has none."""
        self._batches = [self._as_batches(rows) for rows in partitions]
        outputs = self.action()
        self.commit(progress=progress)
        return outputs

    def _run_quiet_epoch(self) -> list[Output]:
        return self.run_epoch()

    def _check_between_epochs(self) -> None:
        if self.epoch in self._times:
            raise EpochError(f"epoch {self.epoch} has begun, and has its time: have it end, and commit() it first")

    def begin_epoch(self, partitions: Sequence[Rows | list[Rows]]) -> None:
        """Have the next epoch's rows ready for :meth:`action` and :meth:`attempt`."""
        self._batches = [self._as_batches(rows) for rows in partitions]
        self._numbers.stage += 1

    def action(self) -> list[Output]:
        """One action on the epoch's batch: every partition once. Call it again for a second action."""
        self._numbers.stage += 1
        feeders = [TaskAttempt(self, index, batches) for index, batches in enumerate(self._batches)]
        for feeder in feeders:
            feeder.open()
        for feeder in feeders:
            feeder.send()
        for feeder in feeders:
            feeder.finish()
        return [row for feeder in feeders for row in feeder.outputs()]

    def attempt(self, partition: int, *, batches: int | None = None) -> list[Output]:
        """One task attempt at a partition of the epoch; with ``batches`` it crashes after so many."""
        feeder = TaskAttempt(self, partition, self._batches[partition])
        feeder.open()
        feeder.send(batches)
        if batches is None:
            feeder.finish()
            return feeder.outputs()
        feeder.crash()
        return []

    def commit(self, *, progress: bool = True) -> None:
        """Spark commits the epoch; the workers hear of it now, or (``progress=False``) at the next open."""
        committed = self.epoch
        self.epoch = Epoch(self.epoch + 1)
        if progress:
            self._carry_out(self.coordinator.progress(self.query, self.run, committed))

    def restart(self) -> None:
        """The query fails and starts again: a new run, which replays the epoch that is not committed."""
        self._carry_out(self.coordinator.query_ended(self.query, self.run))
        self._numbers.run += 1
        self.run = RunId(f"run-{self._numbers.run}")

    def kill(self, worker: int) -> None:
        """A worker dies, and its state with it."""
        del self.workers[WorkerId(worker)]
        self._carry_out(self.coordinator.worker_lost(WorkerId(worker), "killed by the test"))

    # --- seeing it ---

    @property
    def state(self) -> CommittedState:
        """The committed state by key: ``state["a"]``; ``state("a")`` is None if the key has none."""
        return CommittedState(self._read, self.snapshot)

    def _read(self, key: Any) -> dict[str, Any] | None:
        group = self._format.group(key)
        owner = self.coordinator.operator(self.name).routing.owner_of_key(self._format.hash(key))
        if owner not in self.workers:
            raise WorkerLost(f"worker {owner}, which had the state of key {key!r}, was lost", worker=owner)
        runtime = self.workers[owner].runtime(self.name)
        return None if runtime is None else runtime.read(group, canonical_key(key))

    def snapshot(self) -> dict[Any, dict[str, Any]]:
        """The committed state of every key of the workers that are there."""
        runtimes = [machine.runtime(self.name) for machine in self.workers.values()]
        return {key: state for runtime in runtimes if runtime is not None for key, state in runtime.snapshot()}

    # --- wiring ---

    def _as_batches(self, rows: Rows | list[Rows]) -> list[pa.RecordBatch]:
        if isinstance(rows, list) and rows and not _is_row(rows[0]):
            return [self._format.rows(part) for part in rows]
        return [self._format.rows(rows)]

    def _deploy(self, key_groups: int) -> DeploymentId:
        deployment, steps = self.coordinator.deploy("deploy", self.name, key_groups, b"")
        self._carry_out(steps)
        if self._deployed is not None:
            raise self._deployed
        return deployment

    def _carry_out(self, steps: list[Instruction]) -> None:
        later, self._later = self._later, []
        waiting = deque((*(replace(step, pause=0.0) for step in later), *steps))
        failed: BedloadError | None = None
        while waiting or (waiting := deque(self._pump())):
            step = waiting.popleft()
            match step:
                case ToWorker(worker=worker, message=message, body=body):
                    if worker in self.workers and not isinstance(message, m.Stop):
                        waiting += self._tell(worker, message, body)
                case Reply(to=to, message=message):
                    assert isinstance(to, int)
                    self._replies[to] = message
                case InspectStage(operator=operator, turn=turn, stage=stage):
                    count = len(self._batches)
                    if self.epoch not in self._times:
                        self._times[self.epoch] = self._begin_time()
                    facts = StageFacts(count, count, self._times[self.epoch])
                    waiting += self.coordinator.stage_inspected(operator, turn, stage, facts)
                case InspectQuery(pause=pause) if pause:
                    self._later.append(step)  # nothing happens until the test does something
                case InspectQuery(operator=operator, query=query, turn=turn):
                    found = QueryFacts(True, Epoch(self.epoch - 1), frozenset())
                    waiting += self.coordinator.query_inspected(operator, query, turn, found)
                case DeployResult(error=error):
                    self._deployed = error
                case StartWorkers(workers=workers):
                    for worker in workers:
                        self.workers[worker] = self._make(worker)
                        waiting += self.coordinator.worker_joined(worker, _ADDRESS)
                case WorkersLeft(workers=workers):
                    for worker in workers:
                        self.workers.pop(worker).close()
                case ChangeResult(error=problem, records=records):
                    self.moves += records
                    failed = failed or problem
                case EpochEnded():
                    self.ended.append(step)
        if failed is not None:
            raise failed

    def _tell(self, worker: WorkerId, message: m.Message, body: bytes | None) -> list[Instruction]:
        try:
            return self._route(worker, self.workers[worker].handle(COORDINATOR, message, body))
        except WorkerStartFailed as error:  # it says why, and ends
            _, words, _ = self.workers.pop(worker).last_words(error)
            assert isinstance(words, m.WorkerFailed)
            return [*self.coordinator.from_worker(words), *self.coordinator.worker_lost(worker, "it ended")]

    def _pump(self) -> list[Instruction]:
        """Let state that is on its way go on; what there is to do then, if anything."""
        steps: list[Instruction] = []
        more = True
        while more and not steps:
            more = False
            for worker, machine in list(self.workers.items()):
                out, delay = machine.pump() if machine.moving else ([], None)
                more |= bool(out) or delay is not None
                steps += self._route(worker, out)
        return steps

    def _route(self, worker: WorkerId, out: list[Out]) -> list[Instruction]:
        steps: list[Instruction] = []
        for to, message, body in out:
            assert not isinstance(message, Load | Hurry), "state is in memory only: there is nothing to read"
            if to == COORDINATOR:
                steps += self.coordinator.from_worker(message, body)
            elif isinstance(to, Neighbour):
                other = self.workers[to.worker].handle(Neighbour(worker, _ADDRESS), message, body)
                steps += self._route(to.worker, other)
            else:
                assert isinstance(to, int)
                self._answers.setdefault(to, deque()).append((worker, message, body))
        return steps

    def ask_open(self, attempt: int, partition: int) -> m.Opened:
        """Open the current epoch for a task attempt."""
        ask = m.Open(
            self.name,
            self._deployment,
            self.query,
            self.run,
            self.epoch,
            self._numbers.stage,
            partition,
            attempt,
            f"attempt-{attempt}",
        )
        self._carry_out(self.coordinator.open(attempt, ask))
        answer = self._replies.pop(attempt)
        if isinstance(answer, m.Refused):
            raise answer.error.error()
        assert isinstance(answer, m.Opened)
        return answer

    def send(self, attempt: int, sends: list[Send]) -> None:
        """Carry a feeder's messages to the workers."""
        for worker, message, body in sends:
            self._carry_out(self._route(worker, self.workers[worker].handle(attempt, message, body)))

    def disconnect(self, attempt: int) -> None:
        """Close a task attempt's connections."""
        for worker, machine in self.workers.items():
            self._carry_out(self._route(worker, machine.gone(attempt)))

    def answers(self, attempt: int) -> deque[tuple[WorkerId, m.Message, Any]]:
        """What the workers have answered to a task attempt."""
        return self._answers.setdefault(attempt, deque())

    def combining(self) -> Combining:
        """What a feeder does to its rows before it sends them."""
        return self._applied.combining()

    def next_attempt(self) -> int:
        """The id of a new task attempt."""
        self._numbers.attempt += 1
        return self._numbers.attempt

    def feeder_failed(self, session: FeederSession, error: BedloadError) -> None:
        """A feeder gives up on bad data."""
        failed = m.FeederFailed(self.name, session.turn, m.WireError.of(error))
        self._carry_out(self.coordinator.feeder_failed(failed))

    def output_rows(self, body: Any) -> list[Output]:
        """An answer's body as rows."""
        return as_rows(unpack(body, self._applied.output))


def _is_row(item: Any) -> bool:
    """Whether it is a row, and not a batch of rows."""
    if isinstance(item, list):
        return bool(item) and not isinstance(item[0], (Mapping, tuple, list))
    return isinstance(item, (Mapping, tuple))
