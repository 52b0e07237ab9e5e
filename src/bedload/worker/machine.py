"""The worker's side of the epoch protocol: messages in, messages out, no I/O.

Phases of an operator at a worker::

    IDLE ──Begin──▶ OPEN ──all feeders done──▶ SEALED ──Commit──▶ IDLE
                     │  error or Abort            │ Abort
                     └────────▶ ABORTED ◀─────────┘      (Begin of a later turn leaves it)

Invariants:

- a (feeder, number) is applied once in a turn; a repeat gets the recorded output, and one whose
  checksum differs is refused, which aborts a turn that is not sealed;
- in SEALED nothing is applied and nothing a feeder says rolls back: the outputs of the epoch are fixed;
- a message of an earlier turn is refused; one of a later turn waits for its ``Begin``, which travels on
  another connection and may come after it;
- a row is applied when the state of its key group is here; until then it waits, and so does the answer;
- a feeder's ``Done`` is answered after the seal, or at once if another feeder of the epoch may still
  need its Spark task slot. Then the feeder has no share of the sealed outputs, now and on any repeat.
"""

from __future__ import annotations

import enum
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.core.clock import Clock
from bedload.core.errors import (
    BedloadError,
    NotDeterministic,
    ProtocolError,
    StaleAttempt,
    UnknownOperator,
)
from bedload.core.ids import (
    NO_EPOCH,
    NO_QUERY,
    NO_TURN,
    DeploymentId,
    Epoch,
    KeyGroup,
    OperatorName,
    QueryId,
    Turn,
    WorkerId,
)
from bedload.keys import freeze_keys
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.protocol.split import unpack
from bedload.worker.durability import Durability, InMemoryOnly, Load, Loaded, LoadFailed
from bedload.worker.parking import Parking
from bedload.worker.runtime import Runtime, Startable

Peer = Hashable
"""Whoever sent a message: a connection, or the simulator's name for one."""

COORDINATOR: Peer = "coordinator"
"""The peer for messages to and from the coordinator."""

LOADER: Peer = "loader"
"""The peer for orders to read state back."""

Out = tuple[Peer, m.Message | Load, Body]
TurnMessage = m.Join | m.Apply | m.Done


class Phase(enum.Enum):
    """Where an operator is at a worker."""

    IDLE = "no epoch"
    OPEN = "applying sub-batches"
    SEALED = "all applied and durable, outputs fixed, waiting for Spark's commit"
    ABORTED = "rolled back, waiting for another turn"


@dataclass
class _Applied:
    checksum: int
    output: Body
    outputs: list[pa.RecordBatch] = field(default_factory=list)
    """The outputs so far, while rows of it wait for their state."""
    waiting: list[Peer] | None = None
    """Who waits for the answer; None: it is there."""


@dataclass
class _Feeder:
    """What this worker knows of one feeder in the current turn, over all of its attempts."""

    schema: pa.Schema | None = None
    applied: dict[int, _Applied] = field(default_factory=dict)
    last: int = -1
    batches: int | None = None
    """Set when it is done: how many sub-batches it sent."""
    released: bool = False
    """It was answered before the seal."""
    share: Body = None
    waiting: list[Peer] = field(default_factory=list)
    peers: set[Peer] = field(default_factory=set)
    """Its attempts that are connected: while there is one, it has its Spark task slot."""


@dataclass
class _Hosted:
    """One operator at this worker."""

    name: OperatorName
    deployments: dict[DeploymentId, Startable] = field(default_factory=dict)
    active: DeploymentId | None = None
    runtime: Runtime | None = None
    phase: Phase = Phase.IDLE
    turn: Turn = NO_TURN
    epoch: Epoch = NO_EPOCH
    query: QueryId = NO_QUERY
    committed: Epoch = NO_EPOCH
    committed_query: QueryId = NO_QUERY
    expected: int | None = None
    feeders: dict[m.FeederId, _Feeder] = field(default_factory=dict)
    error: BedloadError | None = None
    early: list[tuple[Peer, TurnMessage, Body]] = field(default_factory=list)
    busy: float = 0.0
    owned: frozenset[KeyGroup] = frozenset()
    """The key groups of the last turn."""
    parking: Parking = field(default_factory=Parking)
    base: Turn = NO_TURN
    """The state that was last read back."""
    orders: dict[int, set[KeyGroup]] = field(default_factory=dict)
    """What is being read, by ticket."""
    tickets: int = 0
    restored: int = 0
    unrestored: BedloadError | None = None
    """Why the state that should be here is not."""
    reads: list[tuple[Peer, m.Read, Body]] = field(default_factory=list)
    """Reads of key groups that are on their way."""


class WorkerMachine:
    """All operators of one worker. ``load`` unpickles a shipped deployment."""

    def __init__(
        self,
        worker: WorkerId,
        load: Callable[[bytes], Startable],
        clock: Clock,
        durability: Durability | None = None,
    ) -> None:
        self.worker = worker
        self._load = load
        self._clock = clock
        self._durable = durability is not None
        self._durability = durability or InMemoryOnly()
        self._hosted: dict[OperatorName, _Hosted] = {}

    # --- doors ---

    def handle(self, peer: Peer, message: m.Message, body: Body = None) -> list[Out]:
        """Take a message; what to send, in order."""
        match message:
            case m.Join() | m.Apply() | m.Done():
                return self._from_feeder(peer, message, body)
            case m.Begin():
                return self._begin(message)
            case m.Expect():
                return self._expect(message)
            case m.Commit():
                return self._commit(message)
            case m.Abort():
                return self._abort(message)
            case m.FeederFailed():
                return self._feeder_failed(message)
            case m.Reset(operator=operator):
                return self._reset(operator)
            case m.Restore():
                return self._restore(message, body)
            case m.Settle():
                return self._settle_loss(message)
            case m.Probe(operator=operator, turn=turn):
                return [(COORDINATOR, m.Probed(self.worker, operator, turn), None)]
            case m.Deploy():
                return self._deploy(message, body)
            case m.Read() | m.Inspect():
                return self._look(peer, message, body)
            case _:
                error = ProtocolError(f"worker {self.worker} does not take {type(message).__name__}")
                return [(peer, m.Refused(m.WireError.of(error)), None)]

    def gone(self, peer: Peer) -> list[Out]:
        """A connection closed: nobody waits there for an answer, and a retry may need a Spark task slot."""
        out: list[Out] = []
        for hosted in self._hosted.values():
            hosted.early = [item for item in hosted.early if item[0] != peer]
            hosted.reads = [item for item in hosted.reads if item[0] != peer]
            for feeder in hosted.feeders.values():
                feeder.peers.discard(peer)
                feeder.waiting = [waiting for waiting in feeder.waiting if waiting != peer]
                for applied in feeder.applied.values():
                    if applied.waiting is not None and peer in applied.waiting:
                        applied.waiting.remove(peer)
            if hosted.phase is Phase.OPEN:
                out += self._settle(hosted)
        return out

    def close(self) -> None:
        """The worker ends: let operators release what they hold."""
        for hosted in self._hosted.values():
            if hosted.runtime is not None:
                hosted.runtime.close()

    def runtime(self, operator: OperatorName) -> Runtime | None:
        """The running operator, for reads and tests."""
        hosted = self._hosted.get(operator)
        return None if hosted is None else hosted.runtime

    def phase(self, operator: OperatorName) -> Phase:
        """Where the operator is."""
        return self._hosted[operator].phase

    # --- from the coordinator ---

    def _deploy(self, message: m.Deploy, body: Body) -> list[Out]:
        hosted = self._hosted.setdefault(message.operator, _Hosted(message.operator))
        error = None
        try:
            if message.deployment not in hosted.deployments:
                hosted.deployments[message.deployment] = self._load(bytes(body or b""))
        except BedloadError as problem:
            error = m.WireError.of(problem)
        return [(COORDINATOR, m.Deployed(self.worker, message.deployment, error), None)]

    def _begin(self, message: m.Begin) -> list[Out]:
        hosted = self._hosted.setdefault(message.operator, _Hosted(message.operator))
        if message.turn <= hosted.turn:
            return []
        if hosted.phase in (Phase.OPEN, Phase.SEALED):
            # SUBTLE: the coordinator always ends a turn before it begins another on this FIFO channel.
            raise ProtocolError(f"{message} while turn {hosted.turn} is {hosted.phase.name}")
        hosted.turn, hosted.epoch, hosted.query = message.turn, message.epoch, message.query
        hosted.phase, hosted.error, hosted.expected = Phase.OPEN, None, None
        hosted.feeders, hosted.busy = {}, 0.0
        early, hosted.early = hosted.early, []
        try:
            self._activate(hosted, message.deployment)
            assert hosted.runtime is not None
            if hosted.unrestored is not None:
                raise hosted.unrestored
            groups = frozenset(message.groups)
            if gone := hosted.owned - groups:
                hosted.runtime.drop(sorted(gone))
            hosted.owned = groups
            hosted.runtime.begin(message.epoch, message.groups)
        except Exception as error:
            out = self._fail(hosted, error if isinstance(error, BedloadError) else _bug(error))
        else:
            out = []
        for peer, waiting, body in early:
            out += self._from_feeder(peer, waiting, body)
        return [*out, *self._answer_reads(hosted)]

    def _activate(self, hosted: _Hosted, deployment: DeploymentId) -> None:
        if hosted.active == deployment:
            return
        shipped = hosted.deployments.get(deployment)
        if shipped is None:
            raise ProtocolError(f"operator {hosted.name}: deployment {deployment} was never shipped")
        hosted.active = None
        if hosted.runtime is None:
            hosted.runtime = shipped.start(self.worker)
            hosted.runtime.durable = self._durable
        else:
            hosted.runtime.redeploy(shipped)
        hosted.active = deployment

    def _expect(self, message: m.Expect) -> list[Out]:
        hosted = self._hosted.get(message.operator)
        if hosted is None or hosted.turn != message.turn or hosted.phase is not Phase.OPEN:
            return []
        hosted.expected = message.feeders
        return self._settle(hosted)

    def _commit(self, message: m.Commit) -> list[Out]:
        hosted = self._hosted[message.operator]
        if hosted.turn == message.turn and hosted.phase is Phase.SEALED:
            assert hosted.runtime is not None
            hosted.runtime.commit()
            hosted.phase = Phase.IDLE
            hosted.committed, hosted.committed_query = hosted.epoch, hosted.query
            hosted.feeders = {}
        return []

    def _abort(self, message: m.Abort) -> list[Out]:
        hosted = self._hosted.get(message.operator)
        if hosted is None or hosted.turn != message.turn:
            return []
        return self._roll_back(hosted, message.error.error())

    def _feeder_failed(self, message: m.FeederFailed) -> list[Out]:
        # SUBTLE: not in SEALED. If every worker is sealed Spark may have committed, thanks to another attempt
        # of that feeder. If one is not, it rolls back here and now, and Spark cannot commit any more.
        hosted = self._hosted.get(message.operator)
        if hosted is None or hosted.turn != message.turn or hosted.phase is not Phase.OPEN:
            return []
        return self._fail(hosted, message.error.error())

    def _reset(self, operator: OperatorName) -> list[Out]:
        hosted = self._hosted.get(operator)
        if hosted is not None and hosted.runtime is not None:
            hosted.runtime.close()
            hosted.runtime, hosted.active = None, None
            hosted.committed, hosted.committed_query = NO_EPOCH, NO_QUERY
            hosted.parking, hosted.owned, hosted.base, hosted.unrestored = Parking(), frozenset(), NO_TURN, None
            hosted.orders = {}
        return []

    def _roll_back(self, hosted: _Hosted, error: BedloadError) -> list[Out]:
        if hosted.phase in (Phase.OPEN, Phase.SEALED) and hosted.runtime is not None:
            hosted.runtime.abort()
        hosted.phase, hosted.error = Phase.ABORTED, error
        refusal = m.Refused(m.WireError.of(error))
        waiting = {peer: None for feeder in hosted.feeders.values() for peer in _waiting(feeder)}
        hosted.feeders = {}
        hosted.parking.clear()
        return [(peer, refusal, None) for peer in waiting]

    def _fail(self, hosted: _Hosted, error: BedloadError) -> list[Out]:
        """The turn cannot succeed: roll back here, and have the coordinator do so everywhere."""
        unrestored = hosted.unrestored is not None
        failed = m.Failed(self.worker, hosted.name, hosted.turn, m.WireError.of(error), unrestored)
        return [(COORDINATOR, failed, None), *self._roll_back(hosted, error)]

    # --- reading state back ---

    def _restore(self, message: m.Restore, plan: Body) -> list[Out]:
        hosted = self._hosted.setdefault(message.operator, _Hosted(message.operator))
        if hosted.phase in (Phase.OPEN, Phase.SEALED):
            raise ProtocolError(f"{message} while turn {hosted.turn} is {hosted.phase.name}")
        hosted.unrestored = None
        try:
            self._activate(hosted, message.deployment)
            assert hosted.runtime is not None
            hosted.runtime.drop(message.groups)
        except Exception as error:
            return self._not_restored(hosted, error if isinstance(error, BedloadError) else _bug(error))
        hosted.base = message.base
        hosted.committed, hosted.committed_query = message.epoch, message.query
        hosted.owned |= frozenset(message.groups)
        for wanted in hosted.orders.values():
            wanted.difference_update(message.groups)
        hosted.orders = {ticket: wanted for ticket, wanted in hosted.orders.items() if wanted}
        if not hosted.orders:
            hosted.restored = 0
        if plan is None or not message.groups:
            hosted.parking.arrive(message.groups)
            return [*self._progress(hosted, 0), *self._answer_reads(hosted)]
        hosted.parking.expect(message.groups)
        hosted.tickets += 1
        hosted.orders[hosted.tickets] = set(message.groups)
        variables = hosted.deployments[message.deployment].variables
        order = Load(hosted.name, hosted.tickets, message.base, message.groups, bytes(plan), variables)
        return [(LOADER, order, None)]

    def loaded(self, news: Loaded | LoadFailed) -> list[Out]:
        """Some of the state that was to be read is here, or cannot be read."""
        hosted = self._hosted[news.operator]
        wanted = hosted.orders.get(news.ticket)
        if wanted is None:
            return []  # an order that was taken back
        if isinstance(news, LoadFailed):
            return self._not_restored(hosted, news.error)
        assert hosted.runtime is not None
        groups = [group for group in news.groups if group in wanted]
        try:
            hosted.runtime.install(groups, _of_groups(news.state, groups, len(news.groups)))
            hosted.restored += len(groups)
            wanted.difference_update(groups)
            if not wanted:
                del hosted.orders[news.ticket]
            out = self._go_on(hosted, hosted.parking.arrive(groups))
        except Exception as error:
            return self._not_restored(hosted, error if isinstance(error, BedloadError) else _bug(error))
        out += self._progress(hosted, news.bytes)
        if hosted.phase is Phase.OPEN:
            out += self._settle(hosted)
        return [*out, *self._answer_reads(hosted)]

    def _go_on(self, hosted: _Hosted, freed: list[tuple[Any, pa.RecordBatch, bool]]) -> list[Out]:
        """Apply rows that waited."""
        out: list[Out] = []
        for (name, number), rows, last in freed:
            assert hosted.runtime is not None
            applied = hosted.feeders[name].applied[number]
            output = hosted.runtime.apply(rows)
            if output is not None:
                applied.outputs.append(output)
            if last:
                applied.output = _joined(applied.outputs)
                applied.outputs = []
                peers, applied.waiting = applied.waiting or [], None
                out += [(peer, m.Applied(hosted.turn, number), applied.output) for peer in peers]
        return out

    def _not_restored(self, hosted: _Hosted, error: BedloadError) -> list[Out]:
        hosted.unrestored = error
        hosted.orders = {}
        hosted.base = NO_TURN
        hosted.parking.forget()
        refusal = m.Refused(m.WireError.of(error))
        out: list[Out] = [(peer, refusal, None) for peer, _, _ in hosted.reads]
        hosted.reads = []
        if hosted.phase is Phase.OPEN:
            out += self._fail(hosted, error)
        return [*out, *self._progress(hosted, 0, error)]

    def _progress(self, hosted: _Hosted, read: int, error: BedloadError | None = None) -> list[Out]:
        keys = 0 if hosted.runtime is None else hosted.runtime.keys
        wire = None if error is None else m.WireError.of(error)
        left = hosted.parking.left
        news = m.Restored(self.worker, hosted.name, hosted.base, hosted.restored, left, keys, read, wire)
        return [(COORDINATOR, news, None)]

    def _answer_reads(self, hosted: _Hosted) -> list[Out]:
        reads, hosted.reads = hosted.reads, []
        return [step for read in reads for step in self._look(*read)]

    def _settle_loss(self, message: m.Settle) -> list[Out]:
        # SUBTLE: a sealed turn may be whole, by what the lost worker wrote before it went, and committed by Spark.
        hosted = self._hosted.get(message.operator)
        sealed = hosted is not None and hosted.turn == message.turn and hosted.phase is Phase.SEALED
        out: list[Out] = []
        if hosted is not None and hosted.turn == message.turn and hosted.phase is Phase.OPEN:
            out = self._roll_back(hosted, message.error.error())
        return [*out, (COORDINATOR, m.Settled(self.worker, message.operator, message.turn, sealed), None)]

    # --- from feeders ---

    def _from_feeder(self, peer: Peer, message: TurnMessage, body: Body) -> list[Out]:
        hosted = self._hosted.setdefault(message.operator, _Hosted(message.operator))
        if message.turn > hosted.turn:
            hosted.early.append((peer, message, body))
            return []
        error = hosted.error
        if message.turn < hosted.turn or hosted.phase is Phase.IDLE:
            error = StaleAttempt(
                f"operator {hosted.name}: a task of a former attempt (turn {message.turn}, the current one "
                f"is {hosted.turn}) sent rows; they were refused",
                operator=hosted.name,
            )
        if error is not None:
            return [(peer, m.Refused(m.WireError.of(error)), None)]
        started = self._clock.monotonic()
        try:
            match message:
                case m.Join():
                    return self._join(hosted, peer, message, body)
                case m.Apply():
                    return self._apply(hosted, peer, message, body)
                case m.Done():
                    return self._done(hosted, peer, message)
        except Exception as raised:
            problem = raised if isinstance(raised, BedloadError) else _bug(raised)
            refusal: list[Out] = [(peer, m.Refused(m.WireError.of(problem)), None)]
            # SUBTLE: a sealed epoch may be committed by Spark at any moment, so a zombie task must not be
            # able to roll it back. Refusing is enough: if the query fails over it, the replay rolls back.
            return refusal if hosted.phase is Phase.SEALED else [*self._fail(hosted, problem), *refusal]
        finally:
            hosted.busy += self._clock.monotonic() - started

    def _join(self, hosted: _Hosted, peer: Peer, message: m.Join, body: Body) -> list[Out]:
        feeder = hosted.feeders.get(message.feeder)
        if feeder is None:
            if hosted.phase is Phase.SEALED:
                raise _different(hosted, f"feeder {message.feeder} came after all {hosted.expected} were done")
            feeder = hosted.feeders[message.feeder] = _Feeder()
        feeder.peers.add(peer)
        if not feeder.applied:
            # The latest: an attempt without rows has no columns either, and the next one may have some.
            feeder.schema = pa.ipc.read_schema(pa.py_buffer(body or b""))
        return []

    def _joined(self, hosted: _Hosted, feeder: m.FeederId) -> _Feeder:
        found = hosted.feeders.get(feeder)
        if found is None:
            # Its Join was refused, and this was under way already.
            raise _different(hosted, f"feeder {feeder} is not one of the {hosted.expected} that were done")
        return found

    def _apply(self, hosted: _Hosted, peer: Peer, message: m.Apply, body: Body) -> list[Out]:
        feeder = self._joined(hosted, message.feeder)
        known = feeder.applied.get(message.number)
        if known is None:
            known = self._apply_first(hosted, feeder, message, body)
        elif known.checksum != message.checksum:
            raise _different(hosted, f"batch {message.number} of feeder {message.feeder} has other rows")
        if known.waiting is not None:
            known.waiting.append(peer)
            return []
        return [(peer, m.Applied(message.turn, message.number), known.output)]

    def _apply_first(self, hosted: _Hosted, feeder: _Feeder, message: m.Apply, body: Body) -> _Applied:
        if hosted.phase is Phase.SEALED or feeder.batches is not None or message.number <= feeder.last:
            raise _different(hosted, f"batch {message.number} of feeder {message.feeder} was not there")
        assert hosted.runtime is not None
        assert body is not None
        rows, parked = hosted.parking.cut((message.feeder, message.number), unpack(body, feeder.schema))
        applied = _Applied(message.checksum, None, waiting=[] if parked else None)
        output = None if rows is None else hosted.runtime.apply(rows)
        if output is not None:
            if parked:
                applied.outputs.append(output)
            else:
                applied.output = output.serialize()
        feeder.last = message.number
        feeder.applied[message.number] = applied
        return applied

    def _done(self, hosted: _Hosted, peer: Peer, message: m.Done) -> list[Out]:
        feeder = self._joined(hosted, message.feeder)
        if feeder.batches is None:
            if len(feeder.applied) != message.batches:
                raise _different(
                    hosted,
                    f"feeder {message.feeder} sent {message.batches} batches, not {len(feeder.applied)}",
                )
            feeder.batches = message.batches
        elif feeder.batches != message.batches:
            raise _different(hosted, f"feeder {message.feeder} sent {message.batches} batches, not {feeder.batches}")
        if hosted.phase is Phase.SEALED or feeder.released:
            return [(peer, m.Finished(hosted.turn), feeder.share)]
        feeder.waiting.append(peer)
        return self._settle(hosted)

    def _settle(self, hosted: _Hosted) -> list[Out]:
        """Seal if all feeders are done; else release those whose task slot may be needed."""
        if hosted.expected is None:
            return []
        feeders = hosted.feeders
        if len(feeders) > hosted.expected:
            error = _different(hosted, f"{len(feeders)} feeders came, but the plan has {hosted.expected}")
            return self._fail(hosted, error)
        done = [feeder for feeder in feeders.values() if feeder.batches is not None]
        if len(done) == hosted.expected:
            if not hosted.parking.empty:
                return []  # the last state to arrive comes back here
            try:
                return self._seal(hosted)
            except Exception as error:
                return self._fail(hosted, error if isinstance(error, BedloadError) else _bug(error))
        # SUBTLE: a feeder that came and whose task crashed has lost its slot to whichever task was next.
        placed = all(feeder.peers or feeder.batches is not None for feeder in feeders.values())
        if len(feeders) == hosted.expected and placed:
            return []  # all have their slot: waiting takes it from nobody
        out: list[Out] = []
        for feeder in done:
            if not feeder.released:
                feeder.released = True
                out += [(peer, m.Finished(hosted.turn), None) for peer in feeder.waiting]
                feeder.waiting = []
        return out

    def _seal(self, hosted: _Hosted) -> list[Out]:
        runtime = hosted.runtime
        assert runtime is not None
        started = self._clock.monotonic()
        output = runtime.seal()
        written = self._durability.persist(
            self.worker, hosted.name, hosted.query, hosted.epoch, hosted.turn, runtime.delta
        )
        hosted.phase = Phase.SEALED
        sharing = [hosted.feeders[name] for name in sorted(hosted.feeders) if not hosted.feeders[name].released]
        if output is not None:
            _share(output, sharing)
        busy = hosted.busy + self._clock.monotonic() - started
        sealed = m.Sealed(self.worker, hosted.name, hosted.turn, runtime.rows, runtime.keys, busy, written)
        out: list[Out] = [(COORDINATOR, sealed, None)]
        for feeder in sharing:
            out += [(peer, m.Finished(hosted.turn), feeder.share) for peer in feeder.waiting]
            feeder.waiting = []
        return out

    # --- reads ---

    def _look(self, peer: Peer, message: m.Read | m.Inspect, body: Body) -> list[Out]:
        hosted = self._hosted.get(message.operator)
        runtime = None if hosted is None else hosted.runtime
        if hosted is None or (runtime is None and not hosted.deployments):
            error = UnknownOperator(f"worker {self.worker} has no operator {message.operator!r}")
            return [(peer, m.Refused(m.WireError.of(error)), None)]
        if isinstance(message, m.Inspect):
            keys, groups = (runtime.keys, runtime.groups) if runtime is not None else (0, 0)
            return [(peer, m.Inspected(keys, groups), None)]
        # SUBTLE: a replacement that was not told yet what it owns has no state to look for a key in.
        unknown = self._durable and message.group not in hosted.owned
        if unknown or hosted.parking.absent(message.group):
            hosted.reads.append((peer, message, None if body is None else bytes(body)))
            return []
        if hosted.unrestored is not None:
            return [(peer, m.Refused(m.WireError.of(hosted.unrestored)), None)]
        state = None
        if runtime is not None and body is not None:
            state = runtime.read_batch(message.group, _one_key(body))
        answer = m.ReadAnswer(state is not None, hosted.committed, hosted.committed_query)
        if state is None:
            return [(peer, answer, None)]
        return [(peer, answer, state.serialize())]


def _different(hosted: _Hosted, what: str) -> NotDeterministic:
    return NotDeterministic(
        f"operator {hosted.name}, epoch {hosted.epoch}: a repeat of the input differed from what had been "
        f"applied: {what}. The repeat was refused. The plan before the operator is not deterministic, or "
        f"foreachBatch used the batch in two actions of different shape: call persist() on a batch that is "
        f"used twice, and keep rand(), current_timestamp() and the like out of the plan before the operator",
        operator=hosted.name,
        epoch=hosted.epoch,
    )


def _bug(error: Exception) -> ProtocolError:
    """Whatever else goes wrong ends the turn as well, and is not swallowed."""
    return ProtocolError("".join(traceback.format_exception(error)))


def _waiting(feeder: _Feeder) -> list[Peer]:
    """Whoever waits for an answer to something of a feeder."""
    return [*feeder.waiting, *(peer for applied in feeder.applied.values() for peer in applied.waiting or ())]


def _of_groups(state: pa.RecordBatch | None, groups: list[KeyGroup], there: int) -> pa.RecordBatch | None:
    """The part of a state that is still wanted."""
    if state is None or len(groups) == there:
        return state
    return state.filter(pa.array(np.isin(state.column(0).to_numpy(zero_copy_only=False), groups)))


def _joined(outputs: list[pa.RecordBatch]) -> Body:
    """Several outputs as one."""
    if not outputs:
        return None
    if len(outputs) == 1:
        return outputs[0].serialize()
    return pa.concat_batches(outputs).serialize()


def _share(output: pa.RecordBatch, feeders: list[_Feeder]) -> None:
    """Cut the sealed outputs into equal parts, one for each feeder that waits."""
    size, rest = divmod(output.num_rows, len(feeders))
    start = 0
    for index, feeder in enumerate(feeders):
        length = size + (index < rest)
        if length:
            feeder.share = output.slice(start, length).serialize()
        start += length


def _one_key(body: Any) -> Any:
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        batch = reader.read_next_batch()
    return freeze_keys(batch.columns)[0]
