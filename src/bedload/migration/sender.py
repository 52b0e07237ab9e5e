"""The old owner's end of a move: what to send next, and to whom. Messages and time in, messages out.

Phases of a move at its old owner::

    COPYING ──all is copied──▶ COPIED ──Flip──▶ HANDING_OVER ──another state is read back──▶ STOPPED
       └───────────────Flip─────────────────────────▲

``Release`` ends it in any phase. Without copying ahead it begins with the flip. Until then the keys are the old owner's
own and change under the copy: what an epoch touched is *stale* at the new owner, and goes again after the seal. What
goes between a seal and its commit is *tentative*: an abort makes it stale again.

Invariants:

- a copy that is not stale is at the new owner as of the turn that the last ``HandOver`` names;
- only what was collected is noted as sent: an exception leaves cursors and sets as they were;
- after the flip a key is sent once, unless a connection broke before its receipt came back;
- a step takes a few milliseconds, whatever the number of keys: those that leave are listed some at a time, too;
- a parcel is bounded in bytes before it is made, wherever large keys come after small ones: a larger one has one key;
- state that nobody waits for takes no more of the time and of the bandwidth than the terms allow, and never more than
  a few messages are under way, so that what somebody waits for does not queue up behind it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial

import numpy as np

from bedload.core.clock import Clock
from bedload.core.ids import KeyGroup, KeyHash, MoveId, Turn, WorkerId
from bedload.core.limits import LIMITS, Limits
from bedload.keys import key_groups
from bedload.keys.lookup import Hashes, among
from bedload.migration.hash_set import NONE
from bedload.migration.lane import ENOUGH_ROUNDS, WINDOW, Lane, Parcel
from bedload.migration.pace import MOST_BYTES, Pace
from bedload.migration.slices import Slices
from bedload.protocol.messages import Lot, Order, Terms, WaitsFor
from bedload.store.shelf import Collected, Shelf

_MANY = 1 << 20
_RETRY_SECONDS = 0.05
_LARGER = 2  # so many times as many bytes go at a time where nobody waits for some of them
_TELL_BYTES = 1 << 20
"""After so many bytes it is said how far the move is: a smaller one is over before anybody asks."""
_TELL_SHARE = 0.01
"""And after so much of all of them: so it is not said too often."""


class Sending(enum.Enum):
    """Where a move is at its old owner."""

    COPYING = "what is copied, the old owner works on"
    COPIED = "all was copied once, but for what changes all the time; the coordinator is told so"
    HANDING_OVER = "ownership has passed on, and what the new owners lack goes"
    STOPPED = "ownership has passed on, and nothing goes any more"


class Sender:
    """One move at one old owner."""

    def __init__(
        self,
        move: MoveId,
        terms: Terms,
        lots: tuple[Lot, ...],
        shelve: Callable[[Lot], Shelf],
        key_groups: int,
        clock: Clock,
        limits: Limits = LIMITS,
        slices: Slices | None = None,
    ) -> None:
        self.move = move
        self.terms = terms
        self.phase = Sending.COPYING
        self.base: Turn | None = None
        """Set at the flip."""
        self.groups = frozenset(group for lot in lots for group in lot.groups)
        """The key groups that leave as a whole."""
        self._clock = clock
        self._key_groups = key_groups
        self._most_keys = limits.ship_keys
        self._pace = Pace(terms, clock, limits.ship_keys, slices or Slices(clock))
        self._sealed: Turn | None = None
        self._lanes = {lot.target: Lane(lot, shelve(lot)) for lot in lots}
        self._has_worked = False
        """Whether the step under way has done something, though there may be nothing to send."""
        self._turn = 0
        self._sent, self._told = 0, 0
        """Bytes of state that were sent, and of which it was said."""

    @property
    def flipped(self) -> bool:
        """Whether ownership has passed on."""
        return self.phase in (Sending.HANDING_OVER, Sending.STOPPED)

    def handed_over(self, group: KeyGroup, hash_of: Callable[[], Hashes]) -> bool:
        """Whether a key has another owner since the flip."""
        if not self.flipped:
            return False
        lots = [lane.lot for lane in self._lanes.values()]
        if group not in self.groups and not any(lot.keys for lot in lots):
            return False
        key = KeyHash(int(hash_of()[0]))
        return any(key in lot.keys or (group in lot.groups and key not in lot.stay) for lot in lots)

    # --- what happens at the old owner ---

    def sealed(self, turn: Turn) -> None:
        """An epoch is sealed: what it touched is stale at the new owner, once that is noted. Before its commit."""
        if self.flipped:
            return
        self._sealed = turn
        touched = sum(lane.sealed() for lane in self._lanes.values())
        lanes = self._lanes.values()
        self._pace.sealed(touched, sum(it.end for it in lanes) / max(1, sum(it.shelf.expected for it in lanes)))

    def committed(self) -> None:
        """The sealed epoch counts."""
        self._sealed = None
        for lane in self._lanes.values():
            lane.doubt.tentative = []

    def aborted(self) -> None:
        """The epoch does not count: what was sent of it is stale."""
        self._sealed = None
        for lane in self._lanes.values():
            lane.take_back(lane.doubt.tentative)
            lane.doubt.tentative = []
            if not self.flipped:
                lane.handed = None

    def flip(self, base: Turn) -> None:
        """Ownership has passed on."""
        self.phase, self.base = Sending.HANDING_OVER, base
        self._pace.flip()
        if self.terms.copy_ahead:
            for lane in self._lanes.values():
                while not lane.shelf.listed:  # the flip is said to come when all was copied
                    lane.list_some(_MANY)
                lane.take_back([])
                lane.stale.add(lane.shelf.hashes[lane.cursor : lane.end])
                lane.cursor = lane.end

    def stop(self) -> None:
        """All state is read back as of another turn, here and at the new owners: nothing goes there any more."""
        self.phase = Sending.STOPPED

    # --- what others say ---

    def want(self, target: WorkerId, hashes: Hashes) -> None:
        """Somebody waits for these keys, the first ones first."""
        lane = self._lanes.get(target)
        if lane is not None and len(hashes) and lane.shelf.named:
            lane.wanted.append(hashes)

    def want_any(self, hashes: Hashes, count: int) -> None:
        """The same for keys that leave to several workers; ``count`` key groups there are."""
        owners = np.full(count, -1, np.int64)
        for target, lane in self._lanes.items():
            owners[list(lane.lot.groups)] = target
        targets = owners[key_groups(hashes, count)]
        for target, lane in self._lanes.items():
            single = among(np.array(sorted(lane.lot.keys), np.int64), hashes)
            # SUBTLE: a key that lives elsewhere than its group may go to the same worker. What is said of it here would
            # be taken for its state there, and that of its owner for a repeat.
            elsewhere = among(np.array(sorted(lane.lot.stay), np.int64), hashes)
            self.want(target, hashes[single | ((targets == target) & ~elsewhere)])

    def taken(self, target: WorkerId, number: int, idle: float) -> None:
        """A new owner has taken all up to this number in; ``idle``: so much of its time it has to spare."""
        lane = self._lanes.get(target)
        if lane is not None:
            lane.idle = idle
            lane.unacked = {key: parcel for key, parcel in lane.unacked.items() if key > number}

    def broken(self, target: WorkerId) -> None:
        """The connection broke: what was not taken in for certain goes again."""
        lane = self._lanes.get(target)
        if lane is None:
            return
        lane.broken(self._clock.monotonic() + _RETRY_SECONDS, copies=self.terms.copy_ahead, ahead=not self.flipped)

    # --- what to do ---

    def becomes_copied(self) -> bool:
        """Whether all is copied by now, but for what changes all the time. True once only."""
        if self.phase is not Sending.COPYING or not self.terms.copy_ahead:
            return False
        lanes = self._lanes.values()
        ready = all(it.swept and (it.rounds.done >= ENOUGH_ROUNDS or not (it.stale or it.unnoted)) for it in lanes)
        if ready:
            self.phase = Sending.COPIED
        return ready

    def news(self) -> tuple[int, int] | None:
        """Bytes that were sent, and that are left, about; None: much the same as was said before."""
        if self._sent - self._told < _TELL_BYTES:
            return None
        left = int(sum(lane.left(ahead=self.terms.copy_ahead, flipped=self.flipped) for lane in self._lanes.values()))
        if self._sent - self._told < _TELL_SHARE * (self._sent + left):
            return None
        self._told = self._sent
        return self._sent, left

    @property
    def shelves(self) -> list[Shelf]:
        """All that leaves."""
        return [lane.shelf for lane in self._lanes.values()]

    def next(self, idle: float) -> tuple[list[Parcel], float | None]:
        """What to send now, and in how many seconds to ask again; None: when something has happened.

        ``idle``: so much of its time the old owner has to spare.
        """
        now = self._clock.monotonic()
        delay: float | None = None
        lanes = [] if self.phase is Sending.STOPPED else list(self._lanes.values())
        self._turn += 1
        for i in range(len(lanes)):
            lane = lanes[(self._turn + i) % len(lanes)]
            # SUBTLE: in turns with copying, if keys change faster than they are noted: else that would never go on.
            doubt = lane.doubt
            doubt.noted = bool(lane.unnoted) and (self.flipped or not doubt.behind or not doubt.noted)
            if doubt.noted:
                self._pace.note_some(lane.unnoted, partial(lane.note_some, tentative=self._sealed is not None))
                return [], 0.0
            if now < lane.broken_until:
                delay = _sooner(delay, lane.broken_until - now)
                continue
            if len(lane.unacked) >= WINDOW:
                continue
            self._has_worked = False
            parcel = self._place(lane) or self._hand_over(lane) or self._urgent(lane)
            if parcel is None and not self._has_worked:
                # Between a seal and the next epoch there is nothing to disturb, and the flip may come next.
                hurries = lane.swept and self._sealed is not None and self.terms.bandwidth is None
                if not hurries and (rests := self._pace.rests()):
                    delay = _sooner(delay, rests)
                    continue
                parcel = self._background(lane)
                if (parcel is not None or self._has_worked) and not hurries:
                    size = 0 if parcel is None or parcel.state is None else parcel.state.nbytes
                    self._pace.worked(now, size, min(idle, lane.idle))
            if parcel is not None:
                self._sent += 0 if parcel.state is None else parcel.state.nbytes
                return [parcel], 0.0
            if self._has_worked:
                return [], 0.0
        return [], 0.0 if any(lane.unnoted for lane in lanes) else delay

    def check(self) -> None:
        """Raise an AssertionError if this cannot be."""
        assert self.flipped == (self.base is not None), f"move {self.move} is {self.phase.name}, its base {self.base}"
        assert not self.flipped or self._sealed is None, f"move {self.move} copies turn {self._sealed} after the flip"
        for lane in self._lanes.values():
            lane.check()
            kept = self._sealed is not None or not lane.doubt.tentative
            assert kept, f"move {self.move}: keys of no sealed turn may be taken back"
            assert not lane.last_sent or self.flipped, f"move {self.move} is {self.phase.name}, and all is sent"

    # --- steps ---

    def _hand_over(self, lane: Lane) -> Parcel | None:
        """The word that what was copied is the state at a turn, when there is one to be said."""
        if not self.terms.copy_ahead:
            return None
        if self.base is not None:
            return None if lane.handed == self.base else lane.hand_over(self.base, self._most_keys, ahead=False)
        # SUBTLE: with what stays in a remote store, nothing counts before it is said where that is.
        if self._sealed is None or lane.handed == self._sealed or lane.shelf.by_place:
            return None
        if not lane.swept or lane.stale or lane.unnoted:
            return None
        return lane.hand_over(self._sealed, self._most_keys, ahead=True)

    def _place(self, lane: Lane) -> Parcel | None:
        """Where key groups are that stay in a remote store."""
        return lane.place() if self.flipped and lane.shelf.by_place and not lane.doubt.placed else None

    def _urgent(self, lane: Lane) -> Parcel | None:
        """What somebody waits for."""
        if not self.flipped:
            return None
        limit = self._pace.keys(lane.shelf.nbytes_hint)
        hashes, left = lane.wanted_now(limit, self._key_groups, copies=self.terms.copy_ahead)
        parcel = self._give(lane, hashes) if len(hashes) else None
        lane.wanted = left
        if lane.unlisted and parcel is None:
            self._list(lane, next(iter(lane.unlisted)))
        return parcel

    def _background(self, lane: Lane) -> Parcel | None:
        """What nobody waits for."""
        limit = self._pace.keys(lane.shelf.nbytes_hint)
        if not self.flipped:
            return self._copy(lane, limit)
        if self.terms.copy_ahead:
            while len(hashes := lane.next_stale(limit)):
                rest = hashes[~lane.sent.has(hashes)]
                parcel = self._give(lane, rest) if len(rest) else None
                lane.stale.drop(len(hashes))
                if parcel is not None:
                    return parcel
        elif not lane.shelf.named:
            if (parcel := self._sweep(lane)) is not None or not lane.swept:
                return parcel
        else:
            while not lane.swept:
                if lane.cursor == lane.end:
                    self._list(lane)
                    return None
                first, end = lane.cursor, lane.cursor + lane.next_entries(limit)
                hashes = lane.shelf.hashes[first:end]
                rest = hashes[~lane.sent.has(hashes)]
                whole = lane.whole(end) if self.terms.waits_for is WaitsFor.KEY_GROUP else ()
                parcel = None
                if len(rest) or whole:
                    parcel = self._give(lane, rest, whole, first if len(rest) == len(hashes) else None)
                lane.cursor = end
                for group in whole:
                    del lane.unsaid[group]
                if parcel is not None:
                    return parcel
        if lane.last_sent or lane.wanted:
            return None
        lane.last_sent = True
        return lane.parcel(NONE, ahead=False, last=True)

    def _sweep(self, lane: Lane) -> Parcel | None:
        """The next entries of a shelf without names. Nobody waits for some of them, so they go in large pieces."""
        if not lane.again and lane.cursor == lane.end:
            if not lane.swept:
                self._list(lane)
            return None
        limit = self._pace.keys(lane.shelf.nbytes_hint / _LARGER)
        span = lane.again[0] if lane.again else (lane.cursor, lane.next_entries(limit, 2 * MOST_BYTES))
        state, _ = self._pace.collect(lane.shelf.nbytes_hint / _LARGER, lambda: lane.shelf.collect_range(*span))
        lane.passed(span)
        return lane.parcel(NONE, state, ahead=False, span=span)

    def _copy(self, lane: Lane, limit: int) -> Parcel | None:
        if not lane.swept:
            if lane.cursor == lane.end:
                self._list(lane)
                return None
            first, end = lane.cursor, lane.cursor + lane.next_entries(limit)
            hashes = lane.shelf.hashes[first:end]
            state, left = self._collect(lane, lambda: lane.shelf.collect_range(first, len(hashes)))
            lane.cursor = end
            lane.doubt.left_out.append(left)
            self._pace.copied(len(hashes))
            if end == lane.end and lane.shelf.listed:
                lane.round_over(end)
            return lane.parcel(hashes, state, ahead=True)
        if not lane.stale or (self._sealed is None and lane.rounds.done >= ENOUGH_ROUNDS):
            return None
        if not lane.rounds.left:
            lane.rounds.keys = lane.rounds.left = len(lane.stale)
        hashes = lane.next_stale(limit)
        state, left = self._collect(lane, lambda: lane.shelf.collect(hashes))
        lane.stale.drop(len(hashes))
        lane.doubt.left_out.append(left)
        self._pace.copied(len(hashes))
        lane.rounds.left = max(0, lane.rounds.left - len(hashes))
        if not lane.rounds.left:
            lane.round_over(lane.rounds.keys)
        if state is None and len(left) == len(hashes):
            self._has_worked = True
            return None
        return lane.parcel(hashes, state, ahead=True)

    def _list(self, lane: Lane, first: KeyGroup | None = None) -> None:
        """List some more keys of a lane."""
        self._has_worked = True
        touched = self._pace.list_some(lambda keys: lane.list_some(keys, first))
        if self._sealed is not None:
            # SUBTLE: what is copied of these is of the sealed epoch, which may be taken back.
            lane.doubt.tentative.append(touched)

    def _give(self, lane: Lane, hashes: Hashes, groups: tuple[KeyGroup, ...] = (), first: int | None = None) -> Parcel:
        """Hand these keys over for good; ``first``: they are the entries from there on."""
        state = None
        if len(hashes):
            by_range = None if first is None else lambda: lane.shelf.collect_range(first, len(hashes))
            state, _ = self._collect(lane, by_range or (lambda: lane.shelf.collect(hashes)))
            lane.given += len(hashes)
            if self.terms.order is not Order.ANY:  # else nobody asks for what was sent
                lane.sent.add(hashes)
        return lane.parcel(hashes, state, groups, ahead=False)

    def _collect(self, lane: Lane, collect: Callable[[], Collected]) -> Collected:
        return self._pace.collect(lane.shelf.nbytes_hint, collect)


def _sooner(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)
