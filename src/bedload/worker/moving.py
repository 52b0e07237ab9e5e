"""The part of a worker's machine that moves state: the old owner's end, the new owner's end, and what they weigh.

Invariants: a move goes by the coordinator's word alone (``Copy``, ``Flip``, ``Release``); state that arrives is
installed as committed, whatever epoch is under way; rows that waited for it are applied before later ones of their key;
whatever raises here fails the move at the coordinator, and no more is sent, taken or confirmed of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bedload.core.errors import BedloadError, MoveFailed
from bedload.core.ids import KeyGroup, OperatorName, Turn, WorkerId
from bedload.keys import key_groups
from bedload.keys.lookup import Hashes, distinct
from bedload.migration.both_shelves import BothShelves
from bedload.migration.hash_set import pack, unpack
from bedload.migration.parking import AWAITED, Freed
from bedload.migration.receiver import Receiver, waits, whole_only
from bedload.migration.sender import Parcel, Sender
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.protocol.split import pack_whole, unpack_whole
from bedload.store.shelf import Shelf
from bedload.worker.hosted import COORDINATOR, Hosted, Out, Peer, Phase, as_ours, bug, state_hashes
from bedload.worker.restoring import Restoring

Mover = m.Ship | m.HandOver | m.Shipped | m.Fetch | m.Copy | m.Flip | m.Weigh


class Neighbour(NamedTuple):
    """Another worker, to be called."""

    worker: WorkerId
    address: str


class Moving(Restoring):
    """A base of :class:`~bedload.worker.machine.WorkerMachine`."""

    # --- doors ---

    def pump(self) -> tuple[list[Out], float | None]:
        """Send a little of what has to move; and in how many seconds to call again, None: after the next event."""
        out: list[Out] = []
        delay: float | None = None
        for hosted in self._hosted.values():
            sender = hosted.sender
            if sender is None or hosted.runtime is None or hosted.parking.left:
                continue
            if sender.move == hosted.failed_move:
                continue
            started = self._clock.monotonic()
            try:
                if hosted.active is None:
                    raise BedloadError("no version of its code runs here: setup failed in the last one")
                parcels, pause = sender.next()
                out += [self._out(hosted, parcel) for parcel in parcels]
            except Exception as error:
                out += self._move_failed(hosted, sender.move, "send", error)
                continue
            if sender.copied:
                out.append((COORDINATOR, m.Copied(self.worker, hosted.name, sender.move), None))
            if hosted.phase is Phase.OPEN:
                hosted.busy += self._clock.monotonic() - started
            if pause is not None:
                delay = pause if delay is None else min(delay, pause)
        return out, delay

    @property
    def moving(self) -> bool:
        """Whether there is something to send."""
        return any(hosted.sender is not None for hosted in self._hosted.values())

    def neighbour_gone(self, neighbour: Neighbour) -> list[Out]:
        """The connection to another worker broke: what was on it goes again."""
        out: list[Out] = []
        for hosted in self._hosted.values():
            if hosted.sender is not None:
                hosted.sender.broken(neighbour.worker)
            if hosted.receiver is not None and neighbour.worker in hosted.receiver.sources:
                out += self._fetch(hosted, hosted.parking.waiting_keys())
        return out

    def unsent(self, message: m.Message, error: Exception) -> list[Out]:
        """Something is too large to be sent to another worker."""
        assert isinstance(message, m.Ship | m.HandOver | m.Shipped | m.Fetch)
        return self._move_failed(self._at(message.operator), message.move, "send", error)

    def _from_mover(self, peer: Peer, message: Mover, body: Body) -> list[Out]:
        try:
            return self._moved(peer, message, body)
        except Exception as error:
            hosted = self._at(message.operator)
            if isinstance(message, m.Weigh):
                wire = m.WireError.of(self._failure(hosted, "weigh", error))
                news = m.WorkerFailed(self.worker, wire, message.operator, ticket=message.ticket)
                return [(COORDINATOR, news, None)]
            if isinstance(message, m.Flip):
                # SUBTLE: the next turn may begin before the move is given up. It must not meet key groups without their
                # state, nor drop what may have to come back.
                hosted.unsent = () if self._sender(hosted.name, message.move) is not None else message.leaving
                for lot in message.arriving:
                    hosted.parking.hand_over((*lot.groups, *lot.key_groups), AWAITED)
            taking = isinstance(message, m.Ship | m.HandOver) or (isinstance(message, m.Flip) and message.arriving)
            return self._move_failed(hosted, message.move, "take in" if taking else "send", error)

    def _move_failed(self, hosted: Hosted, move: int, what: str, error: Exception) -> list[Out]:
        """This worker cannot do its part: the coordinator decides what becomes of the move."""
        hosted.failed_move = move
        wire = m.WireError.of(self._failure(hosted, what, error))
        return [(COORDINATOR, m.WorkerFailed(self.worker, wire, hosted.name, move), None)]

    def _failure(self, hosted: Hosted, what: str, error: Exception) -> MoveFailed:
        cause = error.message if isinstance(error, BedloadError) else f"{type(error).__name__}: {error}"
        return MoveFailed(
            f"worker {self.worker} could not {what} state of operator {hosted.name}: {cause}",
            worker=self.worker,
            operator=hosted.name,
            traceback=bug(error).message,
        )

    def _moved(self, peer: Peer, message: Mover, body: Body) -> list[Out]:
        match message:
            case m.Ship() | m.HandOver():
                return self._from_owner(peer, message, body)
            case m.Shipped(operator=operator, move=move, target=target, number=number):
                sender = self._sender(operator, move)
                if sender is not None:
                    sender.taken(target, number)
            case m.Fetch(operator=operator, move=move, target=target):
                sender = self._sender(operator, move)
                if sender is not None:
                    sender.want(target, unpack(body))
            case m.Copy():
                return self._copy(message)
            case m.Flip():
                return self._flip(message)
            case m.Weigh():
                return [(COORDINATOR, self._weigh(message), None)]
        return []

    # --- the old owner's end ---

    def _sender(self, operator: OperatorName, move: int) -> Sender | None:
        hosted = self._hosted.get(operator)
        sender = None if hosted is None else hosted.sender
        return sender if sender is not None and sender.move == move else None

    def _copy(self, message: m.Copy) -> list[Out]:
        hosted = self._at(message.operator)
        if hosted.runtime is None:
            self._activate(hosted, message.deployment)
        hosted.neighbours.update(message.addresses)
        hosted.sender = self._make_sender(hosted, message.move, message.terms, message.lots)
        if hosted.phase is Phase.SEALED:
            hosted.sender.sealed(hosted.turn)  # what is copied of it may be taken back
        return []

    def _copy_sealed(self, hosted: Hosted) -> list[Out]:
        """What the sealed epoch has changed of what is copied ahead goes again. The epoch itself is not at stake."""
        sender = hosted.sender
        try:
            if sender is not None:
                sender.sealed(hosted.turn)
        except Exception as error:
            assert sender is not None
            return self._move_failed(hosted, sender.move, "send", error)
        return []

    def _make_sender(self, hosted: Hosted, move: int, terms: m.Terms, lots: tuple[m.Lot, ...]) -> Sender:
        return Sender(move, terms, lots, lambda lot: self._shelve(hosted, lot), self._clock)

    @staticmethod
    def _shelve(hosted: Hosted, lot: m.Lot) -> Shelf:
        """What leaves for one worker."""
        runtime = hosted.runtime
        assert runtime is not None
        stay = np.array(lot.stay, np.int64) if lot.stay else None
        whole = runtime.shelve(lot.groups, without=stay)
        if not lot.keys:
            return whole
        single = runtime.shelve(lot.key_groups, only=np.array(lot.keys, np.int64))
        return BothShelves(whole, single) if lot.groups else single

    def _flip(self, message: m.Flip) -> list[Out]:
        hosted = self._at(message.operator)
        hosted.told += 1
        if hosted.runtime is None:
            self._activate(hosted, message.deployment)
        hosted.neighbours.update(message.addresses)
        out: list[Out] = []
        if message.leaving:
            if hosted.sender is None or hosted.sender.move != message.move:
                hosted.sender = self._make_sender(hosted, message.move, message.terms, message.leaving)
            hosted.sender.flip(message.base)
        if message.arriving:
            receiver = self._receiver(hosted, message.move)
            hosted.committed, hosted.committed_query = message.epoch, message.query
            now = self._clock.monotonic()
            out += self._freed(hosted, lambda: receiver.flip(message.base, message.arriving, message.terms, now))
        # SUBTLE: what left is not ours from here on. It may come back before the next turn begins, which drops what
        # was owned in the last one and is not in this one.
        hosted.owned = hosted.owned - {group for lot in message.leaving for group in lot.groups}
        hosted.owned = hosted.owned | {group for lot in message.arriving for group in lot.groups}
        hosted.lodging = hosted.lodging | {group for lot in message.arriving for group in lot.key_groups}
        stay = {KeyGroup(key % hosted.key_groups) for lot in message.leaving for key in lot.stay}
        hosted.lodging = hosted.lodging | stay  # a pinned key whose group leaves is a guest from here on
        return [*out, *self._answer_reads(hosted)]

    def _backlog(self, hosted: Hosted, body: Body) -> list[Out]:
        sender = hosted.sender
        if sender is not None and sender.base is not None:
            try:
                sender.want_any(unpack(body), hosted.key_groups)
            except Exception as error:
                return self._move_failed(hosted, sender.move, "send", error)
        return []

    def _out(self, hosted: Hosted, parcel: Parcel) -> Out:
        assert hosted.sender is not None
        assert hosted.active is not None
        to = Neighbour(parcel.target, hosted.neighbours[parcel.target])
        move, name = hosted.sender.move, hosted.name
        if parcel.base is not None:
            said = m.HandOver(name, move, self.worker, parcel.number, parcel.base)
            return to, said, pack(parcel.hashes)
        # While copying ahead the new owner has no use for the hashes: it is told what is stale instead.
        nameless = parcel.ahead or whole_only(hosted.sender.terms)
        hashes = b"" if nameless else pack(parcel.hashes)
        ship = m.Ship(
            name, move, self.worker, parcel.number, hosted.active, hashes, parcel.groups, parcel.last, parcel.ahead
        )
        return to, ship, None if parcel.state is None else pack_whole(parcel.state)

    def _release(self, message: m.Release) -> list[Out]:
        hosted = self._hosted.get(message.operator)
        released = m.Released(self.worker, message.operator, message.move)
        if hosted is None:
            return [(COORDINATOR, released, None)]
        sender, receiver, runtime = hosted.sender, hosted.receiver, hosted.runtime
        if sender is not None and sender.move == message.move:
            if message.called_off:
                hosted.owned = hosted.owned | hosted.leaving
            else:
                for shelf in sender.shelves:
                    shelf.drop()
            hosted.sender = None
        hosted.moves_over = max(hosted.moves_over, message.move)
        if message.move == hosted.failed_move:
            unsent, hosted.unsent = hosted.unsent, ()
            for lot in unsent if runtime is not None and not message.called_off else ():
                self._shelve(hosted, lot).drop()
                hosted.owned -= frozenset(lot.groups)
            if message.called_off:
                hosted.parking.settle(self._clock.monotonic())
        if receiver is not None and receiver.move == message.move:
            if message.called_off:
                hosted.parking.settle(self._clock.monotonic())
                hosted.owned -= {group for lot in message.arriving for group in lot.groups}
                for lot in message.arriving if runtime is not None else ():
                    assert runtime is not None
                    stay = np.array(lot.stay, np.int64)
                    runtime.shelve(lot.groups, without=stay).drop()
                    runtime.shelve(lot.key_groups, only=np.array(lot.keys, np.int64)).drop()
            elif not receiver.complete:
                # The rest is read back before the next turn; until then nobody may look at it.
                hosted.parking.settle(self._clock.monotonic())
                hosted.parking.expect(sorted(receiver.awaited))
            hosted.receiver = None
        return [(COORDINATOR, released, None), *self._answer_reads(hosted)]

    # --- the new owner's end ---

    def _receiver(self, hosted: Hosted, move: int) -> Receiver:
        if hosted.receiver is None or hosted.receiver.move < move:
            hosted.receiver = Receiver(move, hosted.parking)
            hosted.parking.count_anew()
        return hosted.receiver

    def _from_owner(self, peer: Peer, message: m.Ship | m.HandOver, body: Body) -> list[Out]:
        """An old owner sends something: take it in, unless it is a repeat or of a move that is over."""
        hosted = self._at(message.operator)
        receipt: Out = (peer, m.Shipped(message.operator, message.move, self.worker, message.number), None)
        known = hosted.receiver
        if message.move == hosted.failed_move:
            return []  # nothing is confirmed any more
        if message.move <= hosted.moves_over or (known is not None and known.move > message.move):
            return [receipt]
        receiver = self._receiver(hosted, message.move)
        if receiver.is_repeat(message.source, message.number):
            return [receipt]
        if isinstance(message, m.Ship):
            return [receipt, *self._ship(hosted, receiver, message, body)]
        now, stale = self._clock.monotonic(), unpack(body)
        said = message.source, message.number, message.base, stale, now
        return [receipt, *self._freed(hosted, lambda: receiver.handed_over(*said))]

    def _ship(self, hosted: Hosted, receiver: Receiver, message: m.Ship, body: Body) -> list[Out]:
        if hosted.runtime is None:
            self._activate(hosted, message.deployment)
        runtime = hosted.runtime
        assert runtime is not None
        hashes = unpack(message.hashes)
        state = None if body is None else unpack_whole(body)

        def take() -> list[Freed]:
            wanted, settled = state, hashes
            if not receiver.takes_all(message.source):
                keep = receiver.wanted(message.source, hashes)
                settled = hashes if keep.all() else hashes[keep]
                # Some comes without hashes, as what was copied ahead.
                if wanted is not None and (len(settled) < len(hashes) or not len(hashes)):
                    keep = receiver.wanted(message.source, state_hashes(wanted))
                    wanted = wanted if keep.all() else wanted.filter(pa.array(keep))
            if wanted is not None and wanted.num_rows:
                runtime.take_in(wanted)
            return receiver.arrived(
                message.source,
                message.number,
                settled,
                wanted,
                message.groups,
                message.last,
                self._clock.monotonic(),
                ahead=message.ahead,
            )

        return self._freed(hosted, take)

    def _freed(self, hosted: Hosted, step: Callable[[], list[Freed]]) -> list[Out]:
        """Take a step of the receiver's, and apply the rows that can go on with it."""
        receiver = hosted.receiver
        assert receiver is not None
        was = receiver.complete
        freed = step()
        try:
            out = self._go_on(hosted, freed)
        except Exception as error:
            problem = as_ours(error)
            if hosted.phase is not Phase.OPEN:
                raise
            out = self._fail(hosted, problem)  # the rows have failed, not the move: what arrived is here
        if receiver.complete and not was:
            out += self._arrived(hosted, receiver)
        if hosted.phase is Phase.OPEN:
            out += self._settle(hosted)
        return [*out, *self._answer_reads(hosted)]

    def _arrived(self, hosted: Hosted, receiver: Receiver) -> list[Out]:
        parking = hosted.parking
        asked = len(distinct(np.concatenate(parking.asked))) if parking.asked else 0
        waited = waits(parking.waits).astype("<f8").tobytes()
        assert hosted.runtime is not None
        groups, single = receiver.handed
        keys = hosted.runtime.keys_in(groups) + single
        news = m.Arrived(self.worker, hosted.name, receiver.move, keys, receiver.bytes, asked, parking.rows)
        return [(COORDINATOR, news, waited)]

    def _fetch(self, hosted: Hosted, hashes: Hashes) -> list[Out]:
        """Ask the old owners for keys that somebody waits for, if that is how it goes."""
        receiver = hosted.receiver
        if receiver is None or receiver.base is None or not len(hashes):
            return []
        split = receiver.split(hashes, lambda some: key_groups(some, hosted.key_groups))
        return [
            (
                Neighbour(source, hosted.neighbours[source]),
                m.Fetch(hosted.name, receiver.move, self.worker),
                pack(keys),
            )
            for source, keys in split.items()
        ]

    def _restored_instead(self, hosted: Hosted, base: Turn, groups: tuple[KeyGroup, ...]) -> list[Out]:
        """Key groups are read back that were on their way, or the state of another turn than what leaves is of."""
        sender, receiver = hosted.sender, hosted.receiver
        if sender is not None and sender.base not in (None, base):
            # SUBTLE: a key that leaves alone was dropped with its group. The new owner may not know yet that it reads
            # it back, and would take it for one without state.
            sender.stop()
        if receiver is None or receiver.base is None or receiver.complete:
            return []
        receiver.superseded(groups, self._clock.monotonic())
        return self._arrived(hosted, receiver) if receiver.complete else []

    # --- what it weighs ---

    def _weigh(self, message: m.Weigh) -> m.Weighed:
        hosted = self._at(message.operator)
        runtime = hosted.runtime
        rows = {int(group): float(hosted.load[group]) for group in np.flatnonzero(hosted.load)}
        keys, size = (0, 0) if runtime is None else (runtime.keys, runtime.state_bytes())
        return m.Weighed(self.worker, message.operator, message.ticket, rows, keys, size, hosted.touched, hosted.took)
