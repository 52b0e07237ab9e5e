"""The feeder: the function that Spark runs on each source partition of a micro-batch (``mapInArrow``).

It streams the partition's rows to the workers that own their keys and yields the workers' outputs back
into the plan. Several sub-batches are under way at a time; there is no round trip for each.

SUBTLE: this runs in Spark's Python worker processes, which are reused between epochs. Connections are
kept in a pool per process; a feeder takes what it needs and gives back only what is clean, so a task
that was killed half way leaves no answers behind for the next one.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from bedload.core.errors import (
    BedloadError,
    ClusterStopped,
    DataError,
    DefinitionError,
    EpochAborted,
    NullKey,
    Unanswered,
    WorkerLost,
    WorkerUnreachable,
)
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.combining import Combiner, Combining
from bedload.protocol.feeder import FeederSession, Send
from bedload.protocol.routes import Told
from bedload.protocol.split import unpack
from bedload.transport import Channel, Credentials, wait

WINDOW = 8
"""Sub-batches under way per feeder, over all workers: enough to keep them busy while the next batch is
cut, few enough to bound what a slow worker makes us hold."""

_LOSS_TRIES, _LOSS_PAUSE_SECONDS = 20, 0.1
_ASK_SECONDS = 10.0
"""After so long without a word from the workers, the coordinator is asked whether the epoch still goes on."""
_ANSWER_SECONDS = 600.0
"""How long the coordinator may take to let a feeder in: workers may have to be replaced, and state to be read."""

_pool: dict[tuple[str, Credentials], list[Channel]] = {}
_told = Told()
_opens = itertools.count()
_fed = itertools.count()
_FREEZES = 3
"""The first feeder of a process imports, the next may still compile a kernel that the first had no use for."""


@dataclass(frozen=True)
class FeederSpec:
    """What a feeder knows of its operator; shipped with the plan."""

    operator: OperatorName
    deployment: DeploymentId
    coordinator: str
    credentials: Credentials
    key: tuple[tuple[int, str], ...]
    """Position and name of the key's columns."""
    output: pa.Schema
    connect_seconds: float
    combiner: Combiner | None = None
    """Aggregates rows by key before they are sent, where that pays."""
    null_keys: bool = False
    """Whether null is a key like others, also where the key is a single column."""


def feed(spec: FeederSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``."""

    def feeder(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from _Feed(spec).run(batches)
        except BedloadError:
            # What it says has the user's own lines; Spark would put its frames and ours around them.
            # SUBTLE: Spark looks at this when it writes the error down, and ends the process then: no other is hidden.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return feeder


class _Feed:
    """One feeder of one epoch, over sockets."""

    def __init__(self, spec: FeederSpec) -> None:
        self._spec = spec
        try:
            self._coordinator = _take(spec.coordinator, spec)
        except WorkerUnreachable as error:
            raise ClusterStopped(
                f"operator {spec.operator}: the cluster that it was applied on was stopped, or its driver cannot be "
                f"reached ({error.message}). Attach again with bedload.attach(...) and apply the operator anew"
            ) from error
        self._workers: dict[WorkerId, Channel] = {}
        self._names: dict[int, WorkerId] = {}
        self._opening = _told.asks(self._make_opening())

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        session = self._open()
        try:
            combining = Combining(self._spec.combiner, [at for at, _ in self._spec.key], session.key_groups)
            first = True
            for batch in batches:
                self._check_keys(batch)
                rows = combining.rows(batch)
                if first:
                    self._join(session, rows.schema)
                    first = False
                self._send(session.submit(rows, combining.key))
                yield from self._outputs(session, WINDOW)
            if first:
                self._join(session, pa.schema([]))
            self._send(session.finish())
            while not session.complete:
                yield from self._outputs(session, 0, once=True)
                self._send(session.wants())
        except DataError as error:
            self._tell(session, error)
            raise
        _spare_the_collector()
        # Not reached when the consumer stopped early: then the connections are dropped with their answers.
        for channel in (self._coordinator, *self._workers.values()):
            _give(channel, self._spec)

    def _open(self) -> FeederSession:
        answer = self._ask_to_open()
        if isinstance(answer, m.Refused):
            raise answer.error.error()
        assert isinstance(answer, m.Opened)
        answer = _told.answered(self._spec.operator, answer)
        assert answer.routes is not None
        for worker, address in answer.routes.addresses.items():
            self._workers[worker] = _take(address, self._spec)
            self._names[self._workers[worker].fileno()] = worker
        return FeederSession(self._spec.operator, answer, [position for position, _ in self._spec.key])

    def _make_opening(self) -> m.Open:
        """What this feeder is: however often it says so, it is let in once."""
        task = TaskContext.get()
        assert task is not None
        epoch = task.getLocalProperty("streaming.sql.batchId")
        query = task.getLocalProperty("sql.streaming.queryId")
        run = task.getLocalProperty("spark.jobGroup.id")
        if epoch is None or query is None or run is None:
            raise DefinitionError(
                f"operator {self._spec.operator} runs outside of a streaming query; apply it to a streaming "
                f"DataFrame (spark.readStream) and start it with writeStream"
            )
        return m.Open(
            self._spec.operator,
            self._spec.deployment,
            QueryId(query),
            RunId(run),
            Epoch(int(epoch)),
            task.stageId(),
            task.partitionId(),
            task.taskAttemptId(),
            f"{os.getpid()}-{next(_opens)}-{task.taskAttemptId()}",
        )

    def _ask_to_open(self) -> m.Message:
        try:
            self._coordinator.send(m.encode(self._opening), timeout=_ANSWER_SECONDS)
            return m.decode(self._coordinator.recv(_ANSWER_SECONDS).header)
        except Unanswered as error:
            raise EpochAborted(
                f"operator {self._spec.operator}, epoch {self._opening.epoch}: the coordinator did not let a task in "
                f"within {_ANSWER_SECONDS:g} seconds. Look at cluster.workers and cluster.restoring(), then start the "
                f"query again, or let cluster.run(...) do so"
            ) from error

    def _check_goes_on(self) -> None:
        """Raise if the epoch is over: a worker that hangs does not say so, and may hold its connections for ever."""
        answer = self._ask_to_open()
        if isinstance(answer, m.Refused):
            raise answer.error.error()

    def _join(self, session: FeederSession, schema: pa.Schema) -> None:
        self._send(session.join(schema))

    def _check_keys(self, batch: pa.RecordBatch) -> None:
        """A single key column has no nulls; in a composite key they are values like others."""
        if len(self._spec.key) > 1 or self._spec.null_keys:
            return
        index, name = self._spec.key[0]
        nulls = batch.column(index).null_count
        if nulls:
            raise NullKey(
                f"operator {self._spec.operator}: {nulls} of {batch.num_rows} rows have null in the key column "
                f"{name!r}. Filter them before the operator: df.where(F.col({name!r}).isNotNull())",
                operator=self._spec.operator,
                column=name,
            )

    def _send(self, sends: list[Send]) -> None:
        for worker, message, body in sends:
            try:
                self._workers[worker].send(
                    m.encode(message), () if body is None else (body,), _ASK_SECONDS, blocked=self._check_goes_on
                )
            except WorkerUnreachable as error:
                raise self._lost(worker, error) from error

    def _outputs(self, session: FeederSession, window: int, *, once: bool = False) -> Iterator[pa.RecordBatch]:
        """Take what has arrived; wait while more than ``window`` sub-batches are under way."""
        channels = list(self._workers.values())
        while True:
            full = session.in_flight > window or once
            ready = wait(channels, _ASK_SECONDS if full else 0)
            if full and not ready:
                self._check_goes_on()
                continue
            for channel in ready:
                worker = self._names[channel.fileno()]
                try:
                    frame = channel.recv(_ASK_SECONDS)
                except Unanswered:  # in the middle of a frame
                    self._check_goes_on()
                    continue
                except WorkerUnreachable as error:
                    raise self._lost(worker, error) from error
                session.receive(worker, m.decode(frame.header), frame.body)
            for body in session.outputs():
                yield unpack(body, self._spec.output)
            if once or not ready:
                return

    def _lost(self, worker: WorkerId, error: BedloadError) -> BedloadError:
        """What the coordinator says about the loss: it knows what it means, a moment after us."""
        for _ in range(_LOSS_TRIES):
            answer = self._ask_to_open()
            if isinstance(answer, m.Refused):
                return answer.error.error()
            time.sleep(_LOSS_PAUSE_SECONDS)
        return WorkerLost(
            f"operator {self._spec.operator}: the connection to worker {worker} broke ({error.message}), but the "
            f"worker is there; the task is tried again",
            worker=worker,
        )

    def _tell(self, session: FeederSession, error: BedloadError) -> None:
        """Bad data found here: no retry can help, so the coordinator ends the epoch everywhere."""
        message = m.FeederFailed(self._spec.operator, session.turn, m.WireError.of(error))
        self._coordinator.send(m.encode(message), timeout=_ANSWER_SECONDS)


def _spare_the_collector() -> None:
    """Keep what the first feeders of a process imported and compiled out of its garbage collections.

    SUBTLE: Spark's daemon runs a full collection after every task. With our compiled kernels in the process that took
    50 ms and more of each trigger, three times as long as all the rest of a feeder. What is loaded once stays loaded,
    so there is nothing to collect in it.
    """
    if next(_fed) < _FREEZES:
        gc.freeze()


def _take(address: str, spec: FeederSpec) -> Channel:
    idle = _pool.get((address, spec.credentials))
    while idle:
        channel = idle.pop()
        if not channel.poll():  # readable while idle means that it was closed
            return channel
        channel.close()
    return Channel.connect(address, spec.credentials, spec.connect_seconds)


def _give(channel: Channel, spec: FeederSpec) -> None:
    _pool.setdefault((channel.address, spec.credentials), []).append(channel)
