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

from collections.abc import Callable

import pyarrow as pa

from bedload.core.clock import Clock
from bedload.core.errors import (
    BedloadError,
    ProtocolError,
    StaleAttempt,
    UnknownOperator,
    WorkerStartFailed,
)
from bedload.core.ids import (
    NO_EPOCH,
    NO_QUERY,
    NO_TURN,
    DeploymentId,
    KeyGroup,
    OperatorName,
    WorkerId,
)
from bedload.keys import groups_in
from bedload.keys.lookup import Hashes
from bedload.migration.parking import Parking
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.protocol.split import unpack
from bedload.worker.durability import Durability, InMemoryOnly
from bedload.worker.failures import report
from bedload.worker.hosted import (
    COORDINATOR,
    LOADER,
    Applied,
    Feeder,
    Hosted,
    Out,
    Peer,
    Phase,
    TurnMessage,
    as_ours,
    different,
    hash_of_key,
    one_key,
    share_out,
    waiting_for,
)
from bedload.worker.moving import Moving, Neighbour
from bedload.worker.room import Room
from bedload.worker.runtime import Runtime, Startable


class WorkerMachine(Moving):
    """All operators of one worker. ``load`` unpickles a shipped deployment."""

    def __init__(
        self,
        worker: WorkerId,
        load: Callable[[bytes], Startable],
        clock: Clock,
        durability: Durability | None = None,
        epoch_bytes: int | None = None,
    ) -> None:
        self.worker = worker
        self._load = load
        self._clock = clock
        self._durable = durability is not None
        self._durability = durability or InMemoryOnly()
        self._epoch_bytes = epoch_bytes
        self._hosted: dict[OperatorName, Hosted] = {}

    # --- doors ---

    def handle(self, peer: Peer, message: m.Message, body: Body = None) -> list[Out]:
        """Take a message; what to send, in order."""
        match message:
            case m.Join() | m.Apply() | m.Done() | m.Backlog():
                return self._from_feeder(peer, message, body)
            case m.Ship() | m.HandOver() | m.Shipped() | m.Fetch() | m.Copy() | m.Flip() | m.Weigh():
                return self._from_mover(peer, message, body)
            case m.Release():
                return self._release(message)
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
            case m.Reset():
                return self._reset(message)
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
        if isinstance(peer, Neighbour):
            return self.neighbour_gone(peer)
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

    def last_words(self, error: BaseException) -> Out:
        """For what raised where nobody waits for an answer: the worker says this to the coordinator, and ends."""
        problem = as_ours(error) if isinstance(error, Exception) else error
        return COORDINATOR, m.WorkerFailed(self.worker, m.WireError.of(problem)), None

    def close(self) -> None:
        """The worker ends: let operators release what they hold."""
        for hosted in self._hosted.values():
            if hosted.runtime is not None:
                report(hosted.runtime.close())

    def runtime(self, operator: OperatorName) -> Runtime | None:
        """The running operator, for reads and tests."""
        hosted = self._hosted.get(operator)
        return None if hosted is None else hosted.runtime

    def phase(self, operator: OperatorName) -> Phase:
        """Where the operator is."""
        return self._hosted[operator].phase

    # --- from the coordinator ---

    def _deploy(self, message: m.Deploy, body: Body) -> list[Out]:
        hosted = self._at(message.operator)
        hosted.key_groups = message.key_groups
        error = None
        try:
            if message.deployment not in hosted.deployments:
                hosted.deployments[message.deployment] = self._load(bytes(body or b""))
            if message.start:
                self._activate(hosted, message.deployment)
        except Exception as problem:
            cause = as_ours(problem)
            if message.start:
                why = f"worker {self.worker} cannot run operator {hosted.name}: {cause.message}"
                raise WorkerStartFailed(why, worker=self.worker) from problem
            hosted.unloaded[message.deployment] = cause
            error = m.WireError.of(cause)
        return [(COORDINATOR, m.Deployed(self.worker, message.deployment, error), None)]

    def _begin(self, message: m.Begin) -> list[Out]:
        hosted = self._at(message.operator)
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
            if not message.groups and not message.guests:
                hosted.unrestored = None  # it needs nothing, so it is told to read nothing
            if hosted.unrestored is not None:
                raise hosted.unrestored
            guests = {KeyGroup(guest % hosted.key_groups) for guest in message.guests}
            if gone := hosted.holdings.begin(message.groups, guests):
                hosted.runtime.drop(gone)
            limit = hosted.deployments[message.deployment].epoch_bytes
            hosted.room = Room(hosted.name, self.worker, self._epoch_bytes if limit is None else limit)
            hosted.runtime.begin(message.epoch, (*message.groups, *sorted(hosted.holdings.guests)))
        except Exception as error:
            out = self._fail(hosted, as_ours(error))
        else:
            out = []
        for peer, waiting, body in early:
            out += self._from_feeder(peer, waiting, body)
        return [*out, *self._answer_reads(hosted)]

    def _activate(self, hosted: Hosted, deployment: DeploymentId) -> None:
        if hosted.active == deployment:
            return
        shipped = hosted.deployments.get(deployment)
        if shipped is None and deployment in hosted.unloaded:
            raise hosted.unloaded[deployment]
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
            if hosted.sender is not None:
                hosted.sender.committed()
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

    def _reset(self, message: m.Reset) -> list[Out]:
        hosted = self._at(message.operator)
        hosted.moves_over = max(hosted.moves_over, message.move)
        if hosted.runtime is not None:
            report(hosted.runtime.close())
            hosted.runtime, hosted.active = None, None
            hosted.committed, hosted.committed_query = NO_EPOCH, NO_QUERY
            hosted.holdings.clear()
            hosted.parking = Parking(hosted.holdings)
            hosted.base, hosted.unrestored, hosted.orders = NO_TURN, None, {}
            hosted.sender, hosted.receiver = None, None
        return self._answer_reads(hosted)

    def _roll_back(self, hosted: Hosted, error: BedloadError) -> list[Out]:
        if hosted.phase in (Phase.OPEN, Phase.SEALED) and hosted.runtime is not None:
            hosted.runtime.abort()
            if hosted.sender is not None:
                hosted.sender.aborted()
        hosted.phase, hosted.error = Phase.ABORTED, error
        refusal = m.Refused(m.WireError.of(error))
        waiting = {peer: None for feeder in hosted.feeders.values() for peer in waiting_for(feeder)}
        hosted.feeders = {}
        hosted.parking.clear()
        return [(peer, refusal, None) for peer in waiting]

    def _fail(self, hosted: Hosted, error: BedloadError) -> list[Out]:
        """The turn cannot succeed: roll back here, and have the coordinator do so everywhere."""
        unrestored = hosted.unrestored is not None
        failed = m.Failed(self.worker, hosted.name, hosted.turn, m.WireError.of(error), unrestored)
        return [(COORDINATOR, failed, None), *self._roll_back(hosted, error)]

    def _hold(self, hosted: Hosted, output: pa.RecordBatch | None) -> None:
        """Count what the epoch keeps; raise if that is too much."""
        if hosted.room is not None and hosted.runtime is not None:
            hosted.room.take(hosted.epoch, hosted.runtime, output)

    # --- from feeders ---

    def _from_feeder(self, peer: Peer, message: TurnMessage, body: Body) -> list[Out]:
        hosted = self._at(message.operator)
        if isinstance(message, m.Backlog) and message.turn <= hosted.turn:
            return self._backlog(hosted, body) if message.turn == hosted.turn else []
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
                case _:
                    return []
        except Exception as raised:
            problem = as_ours(raised)
            refusal: list[Out] = [(peer, m.Refused(m.WireError.of(problem)), None)]
            # SUBTLE: a sealed epoch may be committed by Spark at any moment, so a zombie task must not be
            # able to roll it back. Refusing is enough: if the query fails over it, the replay rolls back.
            return refusal if hosted.phase is Phase.SEALED else [*self._fail(hosted, problem), *refusal]
        finally:
            hosted.busy += self._clock.monotonic() - started

    def _join(self, hosted: Hosted, peer: Peer, message: m.Join, body: Body) -> list[Out]:
        feeder = hosted.feeders.get(message.feeder)
        if feeder is None:
            if hosted.phase is Phase.SEALED:
                raise different(hosted, f"feeder {message.feeder} came after all {hosted.expected} were done")
            feeder = hosted.feeders[message.feeder] = Feeder()
        feeder.peers.add(peer)
        if not feeder.applied:
            # The latest: an attempt without rows has no columns either, and the next one may have some.
            feeder.schema = pa.ipc.read_schema(pa.py_buffer(body or b""))
        return []

    def _joined(self, hosted: Hosted, feeder: m.FeederId) -> Feeder:
        found = hosted.feeders.get(feeder)
        if found is None:
            # Its Join was refused, and this was under way already.
            raise different(hosted, f"feeder {feeder} is not one of the {hosted.expected} that were done")
        return found

    def _apply(self, hosted: Hosted, peer: Peer, message: m.Apply, body: Body) -> list[Out]:
        feeder = self._joined(hosted, message.feeder)
        known = feeder.applied.get(message.number)
        out: list[Out] = []
        if known is None:
            known, wanted = self._apply_first(hosted, feeder, message, body)
            if wanted is not None and hosted.receiver is not None and hosted.receiver.on_demand:
                out = self._fetch(hosted, wanted)
        elif known.checksum != message.checksum:
            raise different(hosted, f"batch {message.number} of feeder {message.feeder} has other rows")
        if known.waiting is not None:
            known.waiting.append(peer)
            return out
        return [(peer, m.Applied(message.turn, message.number), known.output)]

    def _apply_first(
        self, hosted: Hosted, feeder: Feeder, message: m.Apply, body: Body
    ) -> tuple[Applied, Hashes | None]:
        if hosted.phase is Phase.SEALED or feeder.batches is not None or message.number <= feeder.last:
            raise different(hosted, f"batch {message.number} of feeder {message.feeder} was not there")
        assert hosted.runtime is not None
        assert body is not None
        batch = unpack(body, feeder.schema)
        hosted.count(groups_in(batch))
        rows, parked = hosted.parking.cut(
            (message.feeder, message.number), batch, hosted.runtime.hashes, self._clock.monotonic()
        )
        applied = Applied(message.checksum, None, waiting=None if parked is None else [])
        output = None if rows is None else hosted.runtime.apply(rows)
        self._hold(hosted, output)
        if output is not None:
            if parked is not None:
                applied.outputs.append(output)
            else:
                applied.output = output.serialize()
        feeder.last = message.number
        feeder.applied[message.number] = applied
        return applied, parked

    def _done(self, hosted: Hosted, peer: Peer, message: m.Done) -> list[Out]:
        feeder = self._joined(hosted, message.feeder)
        if feeder.batches is None:
            if len(feeder.applied) != message.batches:
                raise different(
                    hosted,
                    f"feeder {message.feeder} sent {message.batches} batches, not {len(feeder.applied)}",
                )
            feeder.batches = message.batches
        elif feeder.batches != message.batches:
            raise different(hosted, f"feeder {message.feeder} sent {message.batches} batches, not {feeder.batches}")
        if hosted.phase is Phase.SEALED or feeder.released:
            return [(peer, m.Finished(hosted.turn), feeder.share)]
        feeder.waiting.append(peer)
        return self._settle(hosted)

    def _settle(self, hosted: Hosted) -> list[Out]:
        """Seal if all feeders are done; else release those whose task slot may be needed."""
        if hosted.expected is None:
            return []
        feeders = hosted.feeders
        if len(feeders) > hosted.expected:
            error = different(hosted, f"{len(feeders)} feeders came, but the plan has {hosted.expected}")
            return self._fail(hosted, error)
        done = [feeder for feeder in feeders.values() if feeder.batches is not None]
        if len(done) == hosted.expected:
            if not hosted.parking.empty:
                return []  # the last state to arrive comes back here
            try:
                return self._seal(hosted)
            except Exception as error:
                return self._fail(hosted, as_ours(error))
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

    def _seal(self, hosted: Hosted) -> list[Out]:
        runtime = hosted.runtime
        assert runtime is not None
        started = self._clock.monotonic()
        output = runtime.seal()
        self._hold(hosted, output)
        written = self._durability.persist(
            self.worker, hosted.name, hosted.query, hosted.epoch, hosted.turn, runtime.delta
        )
        hosted.phase = Phase.SEALED
        copies = self._copy_sealed(hosted)
        hosted.counted(runtime.touched_keys)
        sharing = [hosted.feeders[name] for name in sorted(hosted.feeders) if not hosted.feeders[name].released]
        if output is not None:
            share_out(output, sharing)
        busy = hosted.busy + self._clock.monotonic() - started
        sealed = m.Sealed(self.worker, hosted.name, hosted.turn, runtime.rows, runtime.keys, busy, written)
        out: list[Out] = [(COORDINATOR, sealed, None), *copies]
        for feeder in sharing:
            out += [(peer, m.Finished(hosted.turn), feeder.share) for peer in feeder.waiting]
            feeder.waiting = []
        return out

    # --- reads ---

    def _look(self, peer: Peer, message: m.Read | m.Inspect, body: Body) -> list[Out]:
        try:
            return self._find(peer, message, body)
        except Exception as error:  # of state that cannot be encoded, say: whoever asks has to hear of it
            problem = as_ours(error)
            return [(peer, m.Refused(m.WireError.of(problem)), None)]

    def _find(self, peer: Peer, message: m.Read | m.Inspect, body: Body) -> list[Out]:
        hosted = self._hosted.get(message.operator)
        runtime = None if hosted is None else hosted.runtime
        if hosted is None or (runtime is None and not hosted.deployments):
            error = UnknownOperator(f"worker {self.worker} has no operator {message.operator!r}")
            return [(peer, m.Refused(m.WireError.of(error)), None)]
        if isinstance(message, m.Inspect):
            keys, groups = (runtime.keys, runtime.groups) if runtime is not None else (0, 0)
            return [(peer, m.Inspected(keys, groups), None)]
        if hosted.unrestored is not None:
            return [(peer, m.Refused(m.WireError.of(hosted.unrestored)), None)]
        # SUBTLE: one that was not told yet what it owns has no state to look for a key in: a replacement, or one that
        # the word of a flip is on its way to.
        unowned = self._durable and not hosted.holdings.knows(message.group)
        unknown = unowned or hosted.holdings.told < message.told
        # SUBTLE: nor is what was handed over for anybody to see. Epochs that its new owner takes in are committed here.
        unknown = unknown or (
            hosted.sender is not None and hosted.sender.handed_over(message.group, lambda: hash_of_key(body))
        )
        if unknown or hosted.holdings.absent(message.group, lambda: hash_of_key(body)):
            hosted.reads.append((peer, message, None if body is None else bytes(body)))
            return [] if unknown or body is None else self._fetch(hosted, hash_of_key(body))
        state = None
        if runtime is not None and body is not None:
            state = runtime.read_batch(message.group, one_key(body))
        answer = m.ReadAnswer(state is not None, hosted.committed, hosted.committed_query)
        if state is None:
            return [(peer, answer, None)]
        return [(peer, answer, state.serialize())]


__all__ = ["COORDINATOR", "LOADER", "Out", "Peer", "Phase", "WorkerMachine"]
