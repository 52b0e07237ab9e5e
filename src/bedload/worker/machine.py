"""The worker's side of the epoch protocol: messages in, messages out, no I/O.

Phases of an operator at a worker::

    IDLE ──Begin──▶ OPEN ──all feeders done──▶ SEALED ──Commit──▶ IDLE
                     │  error or Abort            │ Abort
                     └────────▶ ABORTED ◀─────────┘      (Begin of a later turn leaves it)

Invariants:

- a (feeder, number) is applied once in a turn; a repeat gets the recorded output, and one whose
  checksum differs is refused, which aborts a turn that is not sealed;
- in SEALED nothing is applied, and no feeder can cause a rollback: the outputs of the epoch are fixed;
- a message of an earlier turn is refused; one of a later turn waits for its ``Begin``, which travels on
  another connection and may come after it, and one of this turn for the ``Time`` of its epoch;
- a row is applied when the state of its key is here; until then it waits, and so does the answer; rows that waited are
  applied before later ones of their key;
- a feeder's ``Done`` is answered after the seal, or at once if another feeder of the epoch may still
  need its Spark task slot. Then the feeder has no share of the sealed outputs, now and on any repeat;
- whatever raises in a move fails the move at the coordinator, not the turn.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bedload.core.clock import Clock
from bedload.core.errors import BedloadError, ProtocolError, WorkerStartFailed
from bedload.core.ids import DeploymentId, KeyGroup, OperatorName, WorkerId
from bedload.core.limits import LIMITS, Limits
from bedload.migration.parking import Freed
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.worker.applying import Applying
from bedload.worker.durability import Durability, InMemoryOnly, Loaded, LoadFailed
from bedload.worker.failures import as_ours
from bedload.worker.hosted import Hosted, Phase
from bedload.worker.peers import COORDINATOR, LOADER, Neighbour, Out, Peer
from bedload.worker.reads import find
from bedload.worker.records import Scratch
from bedload.worker.runtime import Runtime, Startable
from bedload.worker.stores import Stores

Mover = m.Ship | m.HandOver | m.Shipped | m.Fetch | m.AskDue | m.DueKeys | m.Copy | m.Flip | m.Weigh


class WorkerMachine:
    """All operators of one worker. ``load`` unpickles a shipped deployment."""

    def __init__(
        self,
        worker: WorkerId,
        load: Callable[[bytes], Startable],
        clock: Clock,
        durability: Durability | None = None,
        epoch_bytes: int | None = None,
        limits: Limits = LIMITS,
        idle: Callable[[], float] = lambda: 1.0,
        scratch: Scratch | None = None,
        stores: Stores | None = None,
    ) -> None:
        """``idle``: the share of its time to spare. ``scratch``: for large epochs. ``stores``: for state on disk."""
        self.worker, self._durable, self._epoch_bytes = worker, durability is not None, epoch_bytes
        self._idle, self._load, self._clock, self._limits, self._scratch = idle, load, clock, limits, scratch
        self._applying, self._stores = Applying(worker, clock, durability or InMemoryOnly()), stores
        self._hosted: dict[OperatorName, Hosted] = {}

    # --- doors ---

    def handle(self, peer: Peer, message: m.Message, body: Body = None) -> list[Out]:
        """Take a message; what to send, in order."""
        match message:
            case m.Join() | m.Apply() | m.Done() | m.AskPart() | m.Backlog():
                return self._applying.from_feeder(self._at(message.operator), peer, message, body)
            case _ if isinstance(message, Mover):
                return self._from_mover(peer, message, body)
            case m.Release():
                return self._release(message)
            case m.Begin():
                return self._begin(message)
            case m.Time() | m.Expect() | m.Commit() | m.Abort() | m.FeederFailed() | m.Settle():
                return self._applying.from_coordinator(self._at(message.operator), message)
            case m.Reset():
                return self._reset(message)
            case m.Restore():
                return self._restore(message, body)
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
        """A connection closed: whatever was under way on it has to be thought of again."""
        if isinstance(peer, Neighbour):
            return [step for hosted in self._hosted.values() for step in hosted.moving.neighbour_gone(peer)]
        return [step for hosted in self._hosted.values() for step in self._applying.gone(hosted, peer)]

    def pump(self) -> tuple[list[Out], float | None]:
        """Do a little of what is to be done; and in how many seconds to call again, None: after the next event."""
        out, pauses = list[Out](), list[float]()
        for hosted in self._hosted.values():
            moving, active = hosted.moving, hosted.code.active
            if hosted.parking.due:
                out += self._resume(hosted, hosted.parking.free_some(self._clock.monotonic()))
                pauses.append(0.0)
            if hosted.restoring.busy:
                out += [*hosted.restoring.hurry(), *self._install(hosted)]
                pauses.append(0.0)
            if moving.drops:
                started = self._clock.monotonic()
                if released := moving.drop_some():
                    out += [*released, *self._answer_reads(hosted)]
                pauses.append(self._clock.monotonic() - started)  # as long for others
            if moving.counts:
                out += moving.count_some()
                pauses.append(0.0)
            pauses += hosted.tidy()
            if hosted.runtime is None or not moving.may_send:
                continue
            assert moving.sender is not None
            started = self._clock.monotonic()
            try:
                if active is None:
                    raise BedloadError("no version of its code runs here: setup failed in the last one")
                out += hosted.moving.in_transit.answers(hosted.runtime)
                sent, pause = moving.send(active, self._idle())
            except Exception as error:
                out += moving.fail(moving.sender.move, "send", error)
                continue
            out += sent
            if hosted.phase is Phase.OPEN:
                hosted.weight.busy += self._clock.monotonic() - started
            if pause is not None:
                pauses.append(pause)
        return out, min(pauses, default=None)

    @property
    def moving(self) -> bool:
        """Whether there is something to send, to forget, to put in or to give out."""
        return any(hosted.unfinished for hosted in self._hosted.values())

    def unsent(self, message: m.Message, error: Exception) -> list[Out]:
        """Something is too large to be sent to another worker."""
        assert isinstance(message, m.Ship | m.HandOver | m.Shipped | m.Fetch | m.AskDue | m.DueKeys)
        return self._at(message.operator).moving.fail(message.move, "send", error)

    def last_words(self, error: BaseException) -> Out:
        """For what raised where nobody waits for an answer: the worker says this to the coordinator, and ends."""
        problem = as_ours(error) if isinstance(error, Exception) else error
        return COORDINATOR, m.WorkerFailed(self.worker, m.WireError.of(problem)), None

    def close(self) -> None:
        """The worker ends: let operators release what they hold."""
        for hosted in self._hosted.values():
            hosted.close()

    def runtime(self, operator: OperatorName) -> Runtime | None:
        """The running operator, for reads and tests."""
        hosted = self._hosted.get(operator)
        return None if hosted is None else hosted.runtime

    def phase(self, operator: OperatorName) -> Phase:
        """Where the operator is."""
        return self._hosted[operator].phase

    def check(self) -> None:
        """Raise an AssertionError if this cannot be: for tests, after every event."""
        for hosted in self._hosted.values():
            hosted.check()

    # --- operators and their code ---

    def _at(self, operator: OperatorName) -> Hosted:
        """An operator here, which the worker may hear of for the first time."""
        if operator not in self._hosted:
            self._hosted[operator] = self._host(operator)
        return self._hosted[operator]

    def _host(self, operator: OperatorName) -> Hosted:
        return Hosted.at(self.worker, operator, self._clock, self._limits)

    def _deploy(self, message: m.Deploy, body: Body) -> list[Out]:
        hosted = self._at(message.operator)
        hosted.holdings.key_groups = message.key_groups
        error = None
        try:
            if message.deployment not in hosted.code.shipped:
                hosted.code.shipped[message.deployment] = self._load(bytes(body or b""))
            if message.start:
                self._activate(hosted, message.deployment)
        except Exception as problem:
            cause = as_ours(problem)
            if message.start:
                why = f"worker {self.worker} cannot run operator {hosted.name}: {cause.message}"
                raise WorkerStartFailed(why, worker=self.worker) from problem
            hosted.code.unloaded[message.deployment] = cause
            error = m.WireError.of(cause)
        return [(COORDINATOR, m.Deployed(self.worker, message.deployment, error), None)]

    def _activate(self, hosted: Hosted, deployment: DeploymentId) -> Runtime:
        """Run this version of the code."""
        if hosted.code.active != deployment:
            shipped = hosted.code.get(hosted.name, deployment)
            hosted.code.active = None
            if hosted.runtime is None:
                hosted.runtime = shipped.start(self.worker, self._stores)
                hosted.runtime.durable = self._durable
            else:
                hosted.runtime.redeploy(shipped)
            hosted.code.active = deployment
        assert hosted.runtime is not None
        return hosted.runtime

    def _running(self, hosted: Hosted, deployment: DeploymentId) -> Runtime:
        """Whatever runs; this version if nothing does."""
        return self._activate(hosted, deployment) if hosted.runtime is None else hosted.runtime

    # --- turns ---

    def _begin(self, message: m.Begin) -> list[Out]:
        hosted = self._at(message.operator)
        if message.turn <= hosted.turn:
            return []
        if hosted.phase in (Phase.OPEN, Phase.SEALED):
            # SUBTLE: the coordinator always ends a turn before it begins another on this FIFO channel.
            raise ProtocolError(f"{message} while turn {hosted.turn} is {hosted.phase.name}")
        hosted.turn, hosted.epoch, hosted.query = message.turn, message.epoch, message.query
        hosted.phase, hosted.error, hosted.time, hosted.weight.busy = Phase.OPEN, None, None, 0.0
        hosted.no_feeders()
        out: list[Out] = []
        try:
            runtime = self._activate(hosted, message.deployment)
            if not message.groups and not message.guests:
                hosted.restoring.error = None  # it needs nothing, so it is told to read nothing
            if hosted.restoring.error is not None:
                raise hosted.restoring.error
            if gone := hosted.holdings.begin(message.groups, message.guests, message.away):
                runtime.drop(gone)
            runtime.stand(message.turn, message.base, hosted.holdings.owned)
            limit = hosted.code.shipped[message.deployment].epoch_bytes
            hosted.allow(self.worker, self._epoch_bytes if limit is None else limit, self._scratch, self._limits)
            runtime.begin(message.epoch, (*message.groups, *sorted(hosted.holdings.guests)))
        except Exception as error:
            out = self._applying.fail(hosted, as_ours(error))
        return [*out, *self._applying.flush(hosted), *self._answer_reads(hosted)]

    def _reset(self, message: m.Reset) -> list[Out]:
        hosted, out = self._at(message.operator), list[Out]()
        hosted.moving.reset(message.move)
        if hosted.runtime is not None:
            hosted.give_up()
            hosted.holdings.clear()
            hosted.parking.clear()
            hosted.restoring.clear()
            out = hosted.moving.clear()
        return [*out, *self._answer_reads(hosted)]

    # --- reading state back ---

    def _restore(self, message: m.Restore, plan: Body) -> list[Out]:
        hosted = self._at(message.operator)
        if hosted.phase in (Phase.OPEN, Phase.SEALED):
            raise ProtocolError(f"{message} while turn {hosted.turn} is {hosted.phase.name}")
        hosted.holdings.told += 1
        failed = hosted.restoring.error
        if failed is not None and not message.whole:  # whoever sent it had not heard that more is missing
            return [hosted.restoring.progress(hosted.runtime)]
        hosted.restoring.error, released = None, hosted.moving.drop_all()
        try:
            runtime = self._activate(hosted, message.deployment)
            # What came before a restore failed counts as here no longer, and others may own it by now.
            runtime.drop(message.groups if failed is None else map(KeyGroup, range(hosted.holdings.key_groups)))
            found = () if plan is None else runtime.find(message)
        except Exception as error:
            return [*released, *self._not_restored(hosted, as_ours(error))]
        hosted.committed = message.epoch, message.query
        order = hosted.restoring.order(message, plan, found)
        instead = hosted.moving.superseded(message.base, message.groups, runtime)
        if order is None:
            return [*released, *instead, hosted.restoring.progress(runtime), *self._answer_reads(hosted)]
        return [*released, *instead, (LOADER, order, None)]

    def loaded(self, news: Loaded | LoadFailed) -> list[Out]:
        """Some of the state that was to be read is here, or cannot be read."""
        hosted = self._hosted[news.operator]
        if news.ticket not in hosted.restoring.orders:
            return []  # an order that was taken back
        if isinstance(news, LoadFailed):
            return self._not_restored(hosted, news.error)
        hosted.restoring.take(news)  # the pump puts it in
        return []

    def _install(self, hosted: Hosted) -> list[Out]:
        """Put a little in of what was read."""
        assert hosted.runtime is not None
        try:
            if (news := hosted.restoring.step(hosted.runtime)) is None:
                return []
            freed = hosted.parking.free(self._clock.monotonic())
        except Exception as error:
            return self._not_restored(hosted, as_ours(error))
        out = self._applying.resume(hosted, freed)
        out.append(hosted.restoring.progress(hosted.runtime, news.bytes))
        return [*out, *self._applying.seal_if_done(hosted), *self._answer_reads(hosted)]

    def _not_restored(self, hosted: Hosted, error: BedloadError) -> list[Out]:
        hosted.restoring.fail(error)
        refusal = m.Refused(m.WireError.of(error))
        out: list[Out] = [(peer, refusal, None) for peer, _, _ in hosted.reads]
        hosted.reads = []
        if hosted.phase is Phase.OPEN:
            out += self._applying.fail(hosted, error)
        return [*out, hosted.restoring.progress(hosted.runtime)]

    # --- moving state ---

    def _from_mover(self, peer: Peer, message: Mover, body: Body) -> list[Out]:
        hosted = self._at(message.operator)
        moving = hosted.moving
        try:
            return self._moved(hosted, peer, message, body)
        except Exception as error:
            if isinstance(message, m.Weigh):
                wire = m.WireError.of(moving.failure("weigh", error))
                return [(COORDINATOR, m.WorkerFailed(self.worker, wire, message.operator, ticket=message.ticket), None)]
            if isinstance(message, m.Flip):
                moving.flip_failed(message)
            taking = isinstance(message, m.Ship | m.HandOver) or (isinstance(message, m.Flip) and message.arriving)
            return moving.fail(message.move, "take in" if taking else "send", error)

    def _moved(self, hosted: Hosted, peer: Peer, message: Mover, body: Body) -> list[Out]:
        match message:
            case m.Ship() | m.HandOver():
                return self._from_owner(hosted, peer, message, body)
            case m.Shipped() | m.Fetch():
                hosted.moving.heard(message, body)
            case m.AskDue() | m.DueKeys():
                return [*hosted.moving.in_transit.heard(message, body), *self._applying.seal_if_done(hosted)]
            case m.Copy():
                runtime = self._running(hosted, message.deployment)
                hosted.moving.copy(message, runtime, hosted.turn if hosted.phase is Phase.SEALED else None)
            case m.Flip():
                return self._flip(hosted, message)
            case m.Weigh():
                return [(COORDINATOR, hosted.weigh(self.worker, message), None)]
        return []

    def _from_owner(self, hosted: Hosted, peer: Peer, message: m.Ship | m.HandOver, body: Body) -> list[Out]:
        """An old owner sends something: take it in, unless it is a repeat or of a move that is over."""
        if message.move == hosted.moving.failed:
            return []  # nothing is confirmed any more
        receipt = m.Shipped(message.operator, message.move, self.worker, message.number, self._idle())
        if not hosted.moving.wants(message):
            return [(peer, receipt, None)]
        if isinstance(message, m.Ship):
            self._running(hosted, message.deployment)
        freed = hosted.moving.take(message, body, hosted.runtime)
        receipt = msgspec.structs.replace(receipt, took=hosted.moving.slices.last)
        return [(peer, receipt, None), *self._resume(hosted, freed)]

    def _flip(self, hosted: Hosted, message: m.Flip) -> list[Out]:
        hosted.holdings.told += 1
        runtime = self._running(hosted, message.deployment)
        if message.arriving:
            hosted.committed = message.epoch, message.query
        return self._resume(hosted, hosted.moving.flip(message, runtime))

    def _resume(self, hosted: Hosted, freed: list[Freed]) -> list[Out]:
        """State was handed over: whoever waited for it goes on."""
        out = self._applying.resume(hosted, freed)
        out += hosted.moving.arrived(hosted.runtime)
        return [*out, *self._applying.seal_if_done(hosted), *self._answer_reads(hosted)]

    def _release(self, message: m.Release) -> list[Out]:
        hosted = self._hosted.get(message.operator)
        if hosted is None:
            return [(COORDINATOR, m.Released(self.worker, message.operator, message.move), None)]
        return [*hosted.moving.release(message, hosted.runtime), *self._answer_reads(hosted)]

    # --- reads ---

    def _look(self, peer: Peer, message: m.Read | m.Inspect, body: Body) -> list[Out]:
        try:
            return find(self.worker, self._hosted.get(message.operator), peer, message, body, durable=self._durable)
        except Exception as error:  # of state that cannot be encoded, say: whoever asks has to hear of it
            return [(peer, m.Refused(m.WireError.of(as_ours(error))), None)]

    def _answer_reads(self, hosted: Hosted) -> list[Out]:
        reads, hosted.reads = hosted.reads, []
        return [step for read in reads for step in self._look(*read)]


__all__ = ["COORDINATOR", "LOADER", "Out", "Peer", "Phase", "WorkerMachine"]
