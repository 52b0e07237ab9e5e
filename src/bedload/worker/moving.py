"""Moving the state of one operator: the old owner's end, the new owner's end, and whom they talk to.

Invariants: a move goes by the coordinator's word alone (``Copy``, ``Flip``, ``Release``); state that arrives is
installed as committed, whatever epoch is under way; once a move failed here, no more is sent, taken or confirmed of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from bedload.core.clock import Clock
from bedload.core.errors import BedloadError, MoveFailed
from bedload.core.ids import NO_MOVE, DeploymentId, KeyGroup, MoveId, OperatorName, Turn, WorkerId
from bedload.core.limits import LIMITS, Limits
from bedload.keys import key_groups
from bedload.keys.lookup import Hashes
from bedload.migration.hash_set import pack, state_hashes, unpack
from bedload.migration.holdings import Presence, groups_of
from bedload.migration.lane import Parcel
from bedload.migration.lots import MovedKeys, shelve
from bedload.migration.parking import Freed, Parking
from bedload.migration.receiver import Receiver, Receiving, waits, whole_only
from bedload.migration.sender import Sender
from bedload.migration.slices import Slices, Step, timed
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.protocol.split import unpack_whole
from bedload.store.shelf import Shelf
from bedload.worker.failures import bug
from bedload.worker.in_transit import InTransit
from bedload.worker.peers import COORDINATOR, Neighbour, Out
from bedload.worker.runtime import Runtime

_DROP_KEYS = 1 << 14
"""Keys to forget in a step, about."""


class Moving:
    """The part of a worker's machine that moves an operator's state."""

    def __init__(
        self, worker: WorkerId, name: OperatorName, parking: Parking, clock: Clock, limits: Limits = LIMITS
    ) -> None:
        self.sender: Sender | None = None
        self.receiver: Receiver | None = None
        self.failed = NO_MOVE
        """A move whose part here failed."""
        self._over = NO_MOVE
        """The last move that came to its end here."""
        self.slices = Slices(clock)
        self._dropping: list[Shelf] = []
        """What lives elsewhere since a move is over, and has to be forgotten here."""
        self._released: list[MoveId] = []
        """Moves whose end is told when that is done."""
        self._unneeded: list[Shelf] = []
        """Of moves that were called off."""
        self._uncounted: MovedKeys | None = None
        """What has arrived and is being counted."""
        self._addresses: dict[WorkerId, str] = {}
        self._worker, self._name, self._clock, self._limits = worker, name, clock, limits
        self._parking, self._holdings = parking, parking.holdings
        self.in_transit = InTransit(worker, name, self._holdings, self)

    # --- both ends ---

    @timed(Step.FLIP)
    def flip(self, message: m.Flip, runtime: Runtime) -> list[Freed]:
        """Ownership passes on."""
        freed: list[Freed] = []
        self._addresses.update(message.addresses)
        if message.leaving:
            if self.sender is None or self.sender.move != message.move:
                self.sender = self._make_sender(message.move, message.terms, message.leaving, runtime)
            self.sender.flip(message.base)
        if message.arriving:
            receiver = self._receive(message.move)
            freed = receiver.flip(message.base, message.arriving, message.terms, self._clock.monotonic())
        self._holdings.flip(message.leaving, message.arriving)
        return freed

    def flip_failed(self, message: m.Flip) -> None:
        """It could not be noted that ownership passes on."""
        # SUBTLE: the next turn may begin before the move is given up. It must not meet key groups without their
        # state, nor drop what may have to come back.
        if self._sends(message.move) is None:
            self._holdings.keep(message.move, message.leaving)
        for lot in message.arriving:
            self._holdings.hand_over((*lot.groups, *lot.key_groups), Presence.AWAITED)

    def fail(self, move: MoveId, what: str, error: Exception) -> list[Out]:
        """This worker cannot do its part: the coordinator decides what becomes of the move."""
        self.failed = move
        wire = m.WireError.of(self.failure(what, error))
        return [(COORDINATOR, m.WorkerFailed(self._worker, wire, self._name, move), None)]

    def failure(self, what: str, error: Exception) -> MoveFailed:
        """The error for whatever raised."""
        cause = error.message if isinstance(error, BedloadError) else f"{type(error).__name__}: {error}"
        return MoveFailed(
            f"worker {self._worker} could not {what} state of operator {self._name}: {cause}",
            worker=self._worker,
            operator=self._name,
            traceback=bug(error).message,
        )

    @timed(Step.WANT)
    def neighbour_gone(self, neighbour: Neighbour) -> list[Out]:
        """The connection to another worker broke: what was on it goes again."""
        if self.sender is not None:
            self.sender.broken(neighbour.worker)
        if self.receiver is None or neighbour.worker not in self.receiver.sources:
            return []
        return [*self.ask(self._parking.waiting_keys()), *self.in_transit.neighbour_gone(neighbour)]

    def superseded(self, base: Turn, groups: tuple[KeyGroup, ...], runtime: Runtime) -> list[Out]:
        """Key groups are read back that were on their way, or the state of another turn than what leaves is of."""
        sender, receiver = self.sender, self.receiver
        if sender is not None and sender.flipped and sender.base != base:
            # SUBTLE: a key that leaves alone was dropped with its group. The new owner may not know yet that it reads
            # it back, and would take it for one without state.
            sender.stop()
        if receiver is None or receiver.phase is not Receiving.ARRIVING:
            return []
        receiver.superseded(groups, self._clock.monotonic())
        return self.arrived(runtime)

    @timed(Step.RELEASE)
    def release(self, message: m.Release, runtime: Runtime | None) -> list[Out]:
        """The move is over. The coordinator hears of it when nothing is left of what lives elsewhere."""
        holdings, receiver = self._holdings, self.receiver
        kept = holdings.let_go(message.move)
        sender = self._sends(message.move)
        if sender is not None:
            if message.called_off:
                holdings.take_back(kept)
                self._unneeded += sender.shelves
            else:
                self._dropping += sender.shelves
            self.sender = None
        elif runtime is not None and not message.called_off:
            self._dropping += [shelve(runtime, lot) for lot in kept]
            holdings.owned -= groups_of(kept)
        self._over = max(self._over, message.move)
        if message.move == self.failed and message.called_off:
            holdings.all_here()
        if receiver is not None and receiver.move == message.move:
            if message.called_off:
                holdings.called_off(message.arriving)
                if runtime is not None:
                    self._dropping += [shelve(runtime, lot) for lot in message.arriving]
            else:
                holdings.taken_over()
                if not receiver.complete:
                    # The rest is read back before the next turn; until then nobody may look at it.
                    holdings.all_here()
                    holdings.expect(sorted(receiver.awaited))
            self.receiver = None
        self._released.append(message.move)
        return [] if self._dropping else self._told_released()

    @property
    def drops(self) -> bool:
        """Whether something has to be forgotten."""
        return bool(self._dropping or self._unneeded)

    def drop_some(self) -> list[Out]:
        """Forget a little of what lives elsewhere; if that was the last of it, the word for the coordinator."""
        with self.slices.timing(Step.DROP):
            if self._dropping:
                if self._dropping[-1].drop_some(_DROP_KEYS):
                    self._dropping.pop()
            elif self._unneeded and self._unneeded[-1].let_go(_DROP_KEYS):
                self._unneeded.pop()
        return [] if self._dropping else self._told_released()

    def drop_all(self) -> list[Out]:
        """The same at once: something else is about to come into its place."""
        out: list[Out] = []
        while self._dropping:
            out += self.drop_some()
        return out

    def _told_released(self) -> list[Out]:
        moves, self._released = self._released, []
        slices = self.slices.taken() if moves else {}
        return [(COORDINATOR, m.Released(self._worker, self._name, move, slices), None) for move in moves]

    def reset(self, move: MoveId) -> None:
        """The state was given up: up to that move all are over."""
        self._over = max(self._over, move)

    def clear(self) -> list[Out]:
        """There is no state: nothing to move, and nothing to forget."""
        self.sender, self.receiver, self._dropping = None, None, []
        return self._told_released()

    def check(self) -> None:
        """Raise an AssertionError if this cannot be."""
        sender, receiver = self.sender, self.receiver
        if sender is not None:
            sender.check()
            assert sender.move > self._over, f"move {sender.move} is sent, and {self._over} is over"
            lost = sender.groups - self._holdings.leaving
            assert not lost, f"{sorted(lost)} leave with move {sender.move}, and are not kept"
        if receiver is not None and receiver.move != self.failed:
            receiver.check()
            assert receiver.move > self._over, f"move {receiver.move} arrives, and {self._over} is over"

    # --- the old owner's end ---

    def _sends(self, move: MoveId) -> Sender | None:
        return self.sender if self.sender is not None and self.sender.move == move else None

    def _make_sender(self, move: MoveId, terms: m.Terms, lots: tuple[m.Lot, ...], runtime: Runtime) -> Sender:
        groups = self._holdings.key_groups
        shelves = partial(shelve, runtime, named=not whole_only(terms), key_groups=groups)
        sender = Sender(move, terms, lots, shelves, groups, self._clock, self._limits, self.slices)
        self._holdings.keep(move, lots)
        return sender

    @timed(Step.BEGIN)
    def copy(self, message: m.Copy, runtime: Runtime, sealed: Turn | None) -> None:
        """Begin to copy ahead; a turn may be sealed, and be taken back."""
        self._addresses.update(message.addresses)
        self.sender = self._make_sender(message.move, message.terms, message.lots, runtime)
        if sealed is not None:
            self.sender.sealed(sealed)

    def sealed(self, turn: Turn) -> list[Out]:
        """What the sealed epoch has changed of what is copied ahead goes again. The epoch itself is not at stake."""
        sender = self.sender
        if sender is None or sender.move == self.failed:
            return []
        try:
            with self.slices.timing(Step.SEAL):
                sender.sealed(turn)
        except Exception as error:
            return self.fail(sender.move, "send", error)
        return []

    def committed(self) -> None:
        """The sealed epoch counts."""
        if self.sender is not None:
            self.sender.committed()

    def aborted(self) -> None:
        """The epoch does not count."""
        if self.sender is not None:
            self.sender.aborted()

    @timed(Step.WANT)
    def backlog(self, hashes: Hashes) -> list[Out]:
        """Feeders have rows of these keys."""
        sender = self.sender
        if sender is not None and sender.flipped:
            try:
                sender.want_any(hashes, self._holdings.key_groups)
            except Exception as error:
                return self.fail(sender.move, "send", error)
        return []

    @timed(Step.WANT)
    def heard(self, message: m.Shipped | m.Fetch, body: Body) -> None:
        """A new owner has something, or waits for it."""
        sender = self._sends(message.move)
        if sender is None:
            return
        if isinstance(message, m.Shipped):
            sender.taken(message.target, message.number, message.idle)
        else:
            sender.want(message.target, unpack(body))

    def handed_over(self, group: KeyGroup, hash_of: Callable[[], Hashes]) -> bool:
        """Whether a key that is here has another owner since the flip."""
        if self.sender is not None and self.sender.handed_over(group, hash_of):
            return True
        return any(shelf.means(group, hash_of) for shelf in self._dropping)

    @property
    def may_send(self) -> bool:
        """Whether there is something to send, and all of it is here."""
        return self.sender is not None and not self._holdings.left and self.sender.move != self.failed

    @timed(Step.SEND)
    def send(self, deployment: DeploymentId, idle: float) -> tuple[list[Out], float | None]:
        """A little of what has to go; and in how many seconds to go on, None: when something has happened."""
        sender = self.sender
        assert sender is not None
        parcels, pause = sender.next(idle)
        out = [self._out(sender, parcel, deployment) for parcel in parcels]
        if (news := sender.news()) is not None:
            out.append((COORDINATOR, m.Progressed(self._worker, self._name, sender.move, *news), None))
        if sender.becomes_copied():
            out.append((COORDINATOR, m.Copied(self._worker, self._name, sender.move), None))
        return out, pause

    def _out(self, sender: Sender, parcel: Parcel, deployment: DeploymentId) -> Out:
        to, said = self.neighbour(parcel.target), (self._name, sender.move, self._worker, parcel.number)
        if parcel.base is not None:
            return to, m.HandOver(*said, parcel.base, parcel.first, parcel.more), pack(parcel.hashes)
        # While copying ahead the new owner has no use for the hashes: it is told what is stale instead.
        nameless = parcel.ahead or whole_only(sender.terms)
        hashes = b"" if nameless else pack(parcel.hashes)
        more = parcel.expected, parcel.of_groups, parcel.places is not None
        return to, m.Ship(*said, deployment, hashes, parcel.groups, parcel.last, parcel.ahead, *more), parcel.body

    def neighbour(self, worker: WorkerId) -> Neighbour:
        """Another worker of the move."""
        return Neighbour(worker, self._addresses[worker])

    # --- the new owner's end ---

    def _receive(self, move: MoveId) -> Receiver:
        if self.receiver is None or self.receiver.move < move:
            self.receiver = Receiver(move, self._parking)
            self._parking.count_anew()
        return self.receiver

    def wants(self, message: m.Ship | m.HandOver) -> bool:
        """Whether something is neither a repeat nor of a move that is over."""
        known = self.receiver
        if message.move <= self._over or (known is not None and known.move > message.move):
            return False
        return not self._receive(message.move).is_repeat(message.source, message.number)

    @timed(Step.TAKE_IN)
    def take(self, message: m.Ship | m.HandOver, body: Body, runtime: Runtime | None) -> list[Freed]:
        """Take in what an old owner sends: rows that can go on."""
        assert self.receiver is not None
        if isinstance(message, m.HandOver):
            said = message.source, message.number, message.base, unpack(body), self._clock.monotonic()
            return self.receiver.handed_over(*said, first=message.first, more=message.more)
        assert runtime is not None
        return self._ship(self.receiver, message, body, runtime)

    def _ship(self, receiver: Receiver, message: m.Ship, body: Body, runtime: Runtime) -> list[Freed]:
        hashes = unpack(message.hashes)
        if message.places and body is not None:
            runtime.adopt(receiver.places(message.source, body))
        state = None if body is None or message.places else unpack_whole(body)
        settled = hashes
        if not receiver.takes_all(message.source):
            keep = receiver.wanted(message.source, hashes)
            settled = hashes if keep.all() else hashes[keep]
            # Some comes without hashes, as what was copied ahead.
            if state is not None and (len(settled) < len(hashes) or not len(hashes)):
                keep = receiver.wanted(message.source, state_hashes(state))
                state = state if keep.all() else state.filter(pa.array(keep))
        if message.expected:
            runtime.foresee(message.expected, message.of_groups)
        if state is not None and state.num_rows:
            runtime.take_in(state)
        now = self._clock.monotonic()
        news = message.source, message.number, settled, state, message.groups, message.last, now
        return receiver.arrived(*news, ahead=message.ahead)

    def arrived(self, runtime: Runtime | None) -> list[Out]:
        """If all is here by now: the word for the coordinator."""
        if self.receiver is None or not self.receiver.becomes_complete():
            return []
        assert runtime is not None
        self._uncounted = MovedKeys(runtime, self.receiver.handed)
        return self.count_some()

    @property
    def counts(self) -> bool:
        """Whether it is to be counted what has arrived."""
        return self._uncounted is not None

    @timed(Step.COUNT)
    def count_some(self) -> list[Out]:
        """Count a little of what has arrived; if that was the last of it, the word for the coordinator."""
        receiver, parking = self.receiver, self._parking
        if self._uncounted is None or receiver is None or not receiver.complete:
            self._uncounted = None  # the move is over
            return []
        if (keys := self._uncounted.count_some()) is None:
            return []
        self._uncounted = None
        waited = waits(parking.waits(self._clock.monotonic())).astype("<f8").tobytes()
        told = keys, receiver.bytes, len(parking.asked), parking.rows
        news = m.Arrived(self._worker, self._name, receiver.move, *told)
        return [(COORDINATOR, news, waited)]

    @property
    def on_demand(self) -> bool:
        """Whether the old owners want to be asked for what rows wait for."""
        return self.receiver is not None and self.receiver.on_demand

    def ask(self, hashes: Hashes) -> list[Out]:
        """Ask the old owners for keys that somebody waits for, if that is how it goes."""
        receiver = self.receiver
        if receiver is None or receiver.phase is Receiving.EARLY or not len(hashes):
            return []
        split = receiver.split(hashes, lambda some: key_groups(some, self._holdings.key_groups))
        fetch = m.Fetch(self._name, receiver.move, self._worker)
        return [(self.neighbour(source), fetch, pack(keys)) for source, keys in split.items()]
