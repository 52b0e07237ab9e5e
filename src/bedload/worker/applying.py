"""One turn of an operator at a worker: its rows, the seal, and the commit or the roll-back.

The phases and invariants are those of :mod:`bedload.worker.machine`.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from bedload.core.clock import Clock
from bedload.core.epoch import EpochStats
from bedload.core.errors import BedloadError, NotDeterministic, ProtocolError, StaleAttempt
from bedload.core.ids import WorkerId
from bedload.keys import groups_in
from bedload.keys.lookup import Hashes
from bedload.migration.hash_set import unpack as unpack_hashes
from bedload.migration.parking import Freed
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.protocol.split import unpack
from bedload.worker.durability import Durability, Seal
from bedload.worker.failures import as_ours
from bedload.worker.hosted import Applied, Feeder, Hosted, Phase, TurnMessage
from bedload.worker.peers import COORDINATOR, Out, Peer
from bedload.worker.records import Records

Word = m.Time | m.Expect | m.Commit | m.Abort | m.FeederFailed | m.Settle


class Applying:
    """The turns of all operators of one worker, once they have begun."""

    def __init__(self, worker: WorkerId, clock: Clock, durability: Durability) -> None:
        self._worker = worker
        self._clock = clock
        self._durability = durability

    def from_coordinator(self, hosted: Hosted, message: Word) -> list[Out]:
        """What becomes of a turn, if it is the current one."""
        current = hosted.turn == message.turn
        is_open, is_sealed = current and hosted.phase is Phase.OPEN, current and hosted.phase is Phase.SEALED
        match message:
            case m.Time() if is_open and hosted.runtime is not None:
                hosted.time = message.time
                hosted.runtime.set_time(message.time)
                return self.flush(hosted)
            case m.Expect() if is_open:
                hosted.ends.expected = message.feeders
                return self.seal_if_done(hosted)
            case m.Commit() if is_sealed:
                self._commit(hosted)
            case m.Abort() if current:
                return self.roll_back(hosted, message.error.error())
            case m.FeederFailed() if is_open:
                # SUBTLE: not in SEALED. If every worker is sealed Spark may have committed, thanks to another attempt
                # of that feeder. If one is not, it rolls back here and now, and Spark cannot commit any more.
                return self.fail(hosted, message.error.error())
            case m.Settle():
                # SUBTLE: a sealed turn may be whole, by what the lost worker wrote before it went, and committed by
                # Spark.
                out = self.roll_back(hosted, message.error.error()) if is_open else []
                settled = m.Settled(self._worker, hosted.name, message.turn, is_sealed)
                return [*out, (COORDINATOR, settled, None)]
        return []

    def _commit(self, hosted: Hosted) -> None:
        assert hosted.runtime is not None
        hosted.runtime.commit()
        hosted.phase = Phase.IDLE
        hosted.moving.committed()
        hosted.committed = hosted.epoch, hosted.query
        hosted.no_feeders()

    # --- from feeders ---

    def from_feeder(self, hosted: Hosted, peer: Peer, message: TurnMessage, body: Body) -> list[Out]:
        """Take rows, or word of them."""
        if isinstance(message, m.Backlog) and message.turn <= hosted.turn:
            return hosted.moving.backlog(unpack_hashes(body)) if message.turn == hosted.turn else []
        if message.turn > hosted.turn or (message.turn == hosted.turn and hosted.waits_for_time):
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
                case m.AskPart():
                    return self._part(hosted, peer, message)
                case _:
                    return []
        except Exception as raised:
            problem = as_ours(raised)
            refusal: list[Out] = [(peer, m.Refused(m.WireError.of(problem)), None)]
            # SUBTLE: a sealed epoch may be committed by Spark at any moment, so a zombie task must not be
            # able to roll it back. Refusing is enough: if the query fails over it, the replay rolls back.
            return refusal if hosted.phase is Phase.SEALED else [*self.fail(hosted, problem), *refusal]
        finally:
            hosted.weight.busy += self._clock.monotonic() - started

    def flush(self, hosted: Hosted) -> list[Out]:
        """Take what came before its turn, or before the time of it."""
        early, hosted.early = hosted.early, []
        return [step for peer, message, body in early for step in self.from_feeder(hosted, peer, message, body)]

    def _join(self, hosted: Hosted, peer: Peer, message: m.Join, body: Body) -> list[Out]:
        feeder = hosted.feeders.get(message.feeder)
        if feeder is None:
            if hosted.phase is Phase.SEALED:
                raise _different(hosted, f"feeder {message.feeder} came after all {hosted.ends.expected} were done")
            feeder = hosted.feeders[message.feeder] = Feeder(place=len(hosted.feeders))
            hosted.ends.undone += 1
        feeder.peers.add(peer)
        hosted.ends.unplaced.discard(feeder.place)
        if not feeder.applied:
            # The latest: an attempt without rows has no columns either, and the next one may have some.
            feeder.schema = pa.ipc.read_schema(pa.py_buffer(body or b""))
        return []

    def _joined(self, hosted: Hosted, feeder: m.FeederId) -> Feeder:
        found = hosted.feeders.get(feeder)
        if found is None:
            # Its Join was refused, and this was under way already.
            raise _different(hosted, f"feeder {feeder} is not one of the {hosted.ends.expected} that were done")
        return found

    def _apply(self, hosted: Hosted, peer: Peer, message: m.Apply, body: Body) -> list[Out]:
        feeder = self._joined(hosted, message.feeder)
        known = feeder.applied.get(message.number)
        out: list[Out] = []
        if known is None:
            known, wanted = self._apply_first(hosted, feeder, message, body)
            if wanted is not None and hosted.moving.on_demand:
                out = hosted.moving.ask(wanted)
        elif known.checksum != message.checksum:
            raise _different(hosted, f"batch {message.number} of feeder {message.feeder} has other rows")
        if known.waiting is not None:
            known.waiting.append(peer)
            return out
        return [(peer, m.Applied(message.turn, message.number), hosted.records.body(known.output))]

    def _apply_first(
        self, hosted: Hosted, feeder: Feeder, message: m.Apply, body: Body
    ) -> tuple[Applied, Hashes | None]:
        if hosted.phase is Phase.SEALED or feeder.batches is not None or message.number <= feeder.last:
            raise _different(hosted, f"batch {message.number} of feeder {message.feeder} was not there before")
        assert hosted.runtime is not None
        assert body is not None
        batch = unpack(body, feeder.schema)
        hosted.weight.count(groups_in(batch), hosted.holdings.key_groups)
        rows, parked = hosted.parking.cut(
            (message.feeder, message.number), batch, hosted.runtime.hashes, self._clock.monotonic()
        )
        applied = Applied(message.checksum, None, waiting=None if parked is None else [])
        output = None if rows is None else hosted.runtime.apply(rows)
        if output is not None:
            if parked is not None:
                applied.outputs.append(output)
                hosted.records.wait(output)
            else:
                applied.output = hosted.records.keep(output)
        _hold(hosted)
        feeder.last = message.number
        feeder.applied[message.number] = applied
        return applied, parked

    def _done(self, hosted: Hosted, peer: Peer, message: m.Done) -> list[Out]:
        feeder = self._joined(hosted, message.feeder)
        known = len(feeder.applied) if feeder.batches is None else feeder.batches
        if known != message.batches:
            raise _different(hosted, f"feeder {message.feeder} sent {message.batches} batches, not {known}")
        if feeder.batches is None:
            hosted.ends.undone -= 1
            hosted.ends.unplaced.discard(feeder.place)
            hosted.ends.held[feeder.place] = feeder
        feeder.batches = message.batches
        if hosted.phase is Phase.SEALED or feeder.released:
            return [(peer, *_finished(hosted, feeder))]
        feeder.waiting.append(peer)
        return self.seal_if_done(hosted)

    def _part(self, hosted: Hosted, peer: Peer, message: m.AskPart) -> list[Out]:
        share = self._joined(hosted, message.feeder).share
        if not 0 < message.part < len(share):
            raise ProtocolError(f"{message}: it has a share of {len(share)} parts")
        return [(peer, m.Part(hosted.turn, message.part), hosted.records.body(share[message.part]))]

    def gone(self, hosted: Hosted, peer: Peer) -> list[Out]:
        """A connection closed: nobody waits there for an answer, and a retry may need a Spark task slot."""
        hosted.early = [item for item in hosted.early if item[0] != peer]
        hosted.reads = [item for item in hosted.reads if item[0] != peer]
        for feeder in hosted.feeders.values():
            feeder.gone(peer)
            if feeder.batches is None and not feeder.peers:
                hosted.ends.unplaced.add(feeder.place)
        return self.seal_if_done(hosted)

    # --- to the end ---

    def resume(self, hosted: Hosted, freed: list[Freed]) -> list[Out]:
        """Apply rows that waited. If they fail, the turn does: what they waited for is here."""
        try:
            return [
                answer for (name, number), rows, last in freed for answer in _resume(hosted, name, number, rows, last)
            ]
        except Exception as error:
            if hosted.phase is not Phase.OPEN:
                raise
            return self.fail(hosted, as_ours(error))

    def seal_if_done(self, hosted: Hosted) -> list[Out]:
        """Seal if all feeders are done; else release those whose task slot may be needed."""
        if hosted.phase is not Phase.OPEN or hosted.ends.expected is None:
            return []
        feeders = hosted.feeders
        if len(feeders) > hosted.ends.expected:
            error = _different(hosted, f"{len(feeders)} feeders came, but the plan has {hosted.ends.expected}")
            return self.fail(hosted, error)
        all_came = len(feeders) == hosted.ends.expected
        if all_came and not hosted.ends.undone:
            if not hosted.parking.empty:
                return []  # the last state to arrive comes back here
            try:
                if (steps := _waits_for_timers(hosted)) is not None:
                    return steps  # so does the last that has something due
                return self._seal(hosted)
            except Exception as error:
                return self.fail(hosted, as_ours(error))
        # SUBTLE: a feeder that came and whose task crashed has lost its slot to whichever task was next.
        if all_came and not hosted.ends.unplaced:
            return []  # all have their slot: waiting takes it from nobody
        out: list[Out] = []
        for _, feeder in sorted(hosted.ends.held.items()):
            feeder.released = True
            out += [(peer, m.Finished(hosted.turn), None) for peer in feeder.waiting]
            feeder.waiting = []
        hosted.ends.held = {}
        return out

    def _seal(self, hosted: Hosted) -> list[Out]:
        runtime = hosted.runtime
        assert runtime is not None
        started = self._clock.monotonic()
        if (allowance := hosted.records.allowance) is not None:
            runtime.allow = partial(allowance.check, hosted.epoch, runtime)
        sharing = [hosted.feeders[name] for name in sorted(hosted.feeders) if not hosted.feeders[name].released]
        runtime.take = hosted.records.dealing([feeder.share for feeder in sharing])
        output = runtime.seal(None if hosted.holdings.by_groups else hosted.holdings.here)
        if output is not None:
            _share_out(hosted.records, output, sharing)
            del output
        _hold(hosted)
        # Before it counts as sealed: they may be in a file, which may be lost.
        shares = [_finished(hosted, feeder) if feeder.waiting else None for feeder in sharing]
        # Before it counts: a turn that does is in a remote store as a whole.
        runtime.write(hosted.turn, lambda group: not hosted.holdings.absent(group))
        written = self._durability.persist(
            Seal(self._worker, hosted.name, hosted.query, hosted.epoch, hosted.turn, runtime.delta)
        )
        hosted.phase = Phase.SEALED
        copies = hosted.moving.sealed(hosted.turn)
        hosted.weight.counted(runtime.touched_keys)
        sealing = self._clock.monotonic() - started
        busy = hosted.weight.busy + sealing
        stats = EpochStats(runtime.rows, runtime.late, runtime.keys, busy, sealing, written, runtime.misses)
        # Of what is on its way nobody here knows when it is due.
        due = runtime.next_due() if hosted.holdings.whole else None
        sealed = m.Sealed(self._worker, hosted.name, hosted.turn, stats, due)
        out: list[Out] = [(COORDINATOR, sealed, None), *copies]
        for feeder, share in zip(sharing, shares, strict=True):
            out += [(peer, *share) for peer in feeder.waiting if share is not None]
            feeder.waiting = []
        return out

    def fail(self, hosted: Hosted, error: BedloadError) -> list[Out]:
        """The turn cannot succeed: roll back here, and have the coordinator do so everywhere."""
        unrestored = hosted.restoring.error is not None
        failed = m.Failed(self._worker, hosted.name, hosted.turn, m.WireError.of(error), unrestored)
        return [(COORDINATOR, failed, None), *self.roll_back(hosted, error)]

    def roll_back(self, hosted: Hosted, error: BedloadError) -> list[Out]:
        """The turn does not count."""
        if hosted.phase in (Phase.OPEN, Phase.SEALED) and hosted.runtime is not None:
            hosted.runtime.abort()
            hosted.moving.aborted()
        hosted.phase, hosted.error = Phase.ABORTED, error
        refusal = m.Refused(m.WireError.of(error))
        waiting = {peer: None for feeder in hosted.feeders.values() for peer in feeder.all_waiting}
        hosted.no_feeders()
        hosted.parking.clear()
        return [*((peer, refusal, None) for peer in waiting), *self.flush(hosted)]


def _resume(hosted: Hosted, name: m.FeederId, number: int, rows: pa.RecordBatch, last: bool) -> list[Out]:
    """Apply rows of a sub-batch that waited; the answers, if these were the last."""
    assert hosted.runtime is not None
    applied = hosted.feeders[name].applied[number]
    output = hosted.runtime.apply(rows)
    if output is not None:
        applied.outputs.append(output)
        hosted.records.wait(output)
    if last:
        applied.output, applied.outputs = hosted.records.join(applied.outputs), []
    _hold(hosted)
    if not last:
        return []
    peers, applied.waiting = applied.waiting or [], None
    body = hosted.records.body(applied.output)
    return [(peer, m.Applied(hosted.turn, number), body) for peer in peers]


def _waits_for_timers(hosted: Hosted) -> list[Out] | None:
    """What to send while keys on their way may have something due; None: the epoch may be sealed."""
    if hosted.runtime is None or not hosted.runtime.timed or hosted.time is None:
        return None
    return hosted.moving.in_transit.waits(hosted.turn, hosted.time)


def _finished(hosted: Hosted, feeder: Feeder) -> tuple[m.Finished, Body]:
    """The answer to the end of a feeder."""
    share = feeder.share
    return m.Finished(hosted.turn, max(len(share) - 1, 0)), hosted.records.body(share[0] if share else None)


def _hold(hosted: Hosted) -> None:
    """Count what the epoch keeps; raise if that is too much."""
    if hosted.runtime is not None:
        hosted.records.check(hosted.epoch, hosted.runtime)


def _share_out(records: Records, output: pa.RecordBatch, feeders: list[Feeder]) -> None:
    """Cut the sealed outputs into equal parts, one for each feeder that waits."""
    size, rest = divmod(output.num_rows, len(feeders))
    start = 0
    for index, feeder in enumerate(feeders):
        length = size + (index < rest)
        if length:
            feeder.share += records.keep_parts(output.slice(start, length))
        start += length


def _different(hosted: Hosted, what: str) -> NotDeterministic:
    """The error for a repeat that is not one."""
    return NotDeterministic(
        f"operator {hosted.name}, epoch {hosted.epoch}: a repeat of the input differed from what had been "
        f"applied: {what}. The repeat was refused. The plan before the operator is not deterministic, or "
        f"foreachBatch used the batch in two actions of different shape: call persist() on a batch that is "
        f"used twice, and keep rand(), current_timestamp() and the like out of the plan before the operator",
        operator=hosted.name,
        epoch=hosted.epoch,
    )
