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
- state that nobody waits for takes no more of the time and of the bandwidth than the terms allow, and never more than
  a few messages are under way, so that what somebody waits for does not queue up behind it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from bedload.core.clock import Clock
from bedload.core.ids import KeyGroup, KeyHash, MoveId, Turn, WorkerId
from bedload.core.limits import LIMITS, Limits
from bedload.keys import key_groups
from bedload.keys.lookup import Hashes
from bedload.migration.hash_set import NONE
from bedload.migration.lane import WINDOW, Lane, Parcel
from bedload.protocol.messages import Lot, Order, Terms, WaitsFor
from bedload.store.shelf import Shelf

_FIRST_CHUNK = 256
"""Keys in the first message: how long a key takes is not known yet."""
_CHUNK_SECONDS = 0.002
"""What making a message may take: rows of other keys wait that long."""
_CHUNK_BYTES = 1 << 20
_RETRY_SECONDS = 0.05
_TELL_BYTES = 1 << 20
"""After so many bytes it is said how far the move is: a smaller one is over before anybody asks."""
_TELL_SHARE = 0.01
"""And after so much of all of them: so it is not said too often."""
_ENOUGH_ROUNDS = 5
"""After so many rounds of copying what changed meanwhile, the rest changes faster than it is copied."""


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
        clock: Clock,
        limits: Limits = LIMITS,
    ) -> None:
        self.move = move
        self.terms = terms
        self.phase = Sending.COPYING
        self.base: Turn | None = None
        """Set at the flip."""
        self.groups = frozenset(group for lot in lots for group in lot.groups)
        """The key groups that leave as a whole."""
        self._clock = clock
        self._most_keys = limits.ship_keys
        self._sealed: Turn | None = None
        self._lanes = {lot.target: Lane.of(lot, shelve(lot)) for lot in lots}
        self._chunk = float(_FIRST_CHUNK)
        self._idle_until = 0.0
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
        """An epoch is sealed: what it touched is stale at the new owner. Before its commit."""
        if self.flipped:
            return
        self._sealed = turn
        for lane in self._lanes.values():
            lane.tentative = lane.shelf.note()
            lane.stale.add(lane.tentative)
            lane.handed = None

    def committed(self) -> None:
        """The sealed epoch counts."""
        self._sealed = None
        for lane in self._lanes.values():
            lane.tentative = NONE

    def aborted(self) -> None:
        """The epoch does not count: what was sent of it is stale."""
        self._sealed = None
        for lane in self._lanes.values():
            lane.stale.add(lane.tentative)
            lane.tentative = NONE
            if not self.flipped:
                lane.handed = None

    def flip(self, base: Turn) -> None:
        """Ownership has passed on."""
        self.phase, self.base = Sending.HANDING_OVER, base
        self._idle_until = 0.0
        if self.terms.copy_ahead:
            for lane in self._lanes.values():
                lane.stale.add(lane.shelf.hashes[lane.cursor : lane.end])
                lane.cursor = lane.end

    def stop(self) -> None:
        """All state is read back as of another turn, here and at the new owners: nothing goes there any more."""
        self.phase = Sending.STOPPED

    # --- what others say ---

    def want(self, target: WorkerId, hashes: Hashes) -> None:
        """Somebody waits for these keys, the first ones first."""
        lane = self._lanes.get(target)
        if lane is not None and len(hashes):
            lane.wanted.append(hashes)

    def want_any(self, hashes: Hashes, count: int) -> None:
        """The same for keys that leave to several workers; ``count`` key groups there are."""
        owners = np.full(count, -1, np.int64)
        for target, lane in self._lanes.items():
            owners[list(lane.lot.groups)] = target
        targets = owners[key_groups(hashes, count)]
        for target, lane in self._lanes.items():
            single = np.isin(hashes, np.array(lane.lot.keys, np.int64))
            # SUBTLE: a key that lives elsewhere than its group may go to the same worker. What is said of it here would
            # be taken for its state there, and that of its owner for a repeat.
            elsewhere = np.isin(hashes, np.array(lane.lot.stay, np.int64))
            self.want(target, hashes[single | ((targets == target) & ~elsewhere)])

    def taken(self, target: WorkerId, number: int) -> None:
        """A new owner has taken all up to this number in."""
        lane = self._lanes.get(target)
        if lane is not None:
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
        ready = all(lane.swept and (lane.rounds >= _ENOUGH_ROUNDS or not lane.stale) for lane in self._lanes.values())
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

    def next(self) -> tuple[list[Parcel], float | None]:
        """What to send now, and in how many seconds to ask again; None: when something has happened."""
        now = self._clock.monotonic()
        delay: float | None = None
        lanes = [] if self.phase is Sending.STOPPED else list(self._lanes.values())
        self._turn += 1
        for i in range(len(lanes)):
            lane = lanes[(self._turn + i) % len(lanes)]
            if now < lane.broken_until:
                delay = _sooner(delay, lane.broken_until - now)
                continue
            if len(lane.unacked) >= WINDOW:
                continue
            parcel = self._hand_over(lane) or self._urgent(lane)
            if parcel is None:
                # Between a seal and the next epoch there is nothing to disturb, and the flip may come next.
                hurries = lane.swept and self._sealed is not None and self.terms.bandwidth is None
                if now < self._idle_until and not hurries:
                    delay = _sooner(delay, self._idle_until - now)
                    continue
                parcel = self._background(lane)
                if parcel is not None and not hurries:
                    self._rest(now, parcel)
            if parcel is not None:
                self._sent += 0 if parcel.state is None else parcel.state.nbytes
                return [parcel], 0.0
        return [], delay

    def check(self) -> None:
        """Raise an AssertionError if this cannot be."""
        assert self.flipped == (self.base is not None), f"move {self.move} is {self.phase.name}, its base {self.base}"
        assert not self.flipped or self._sealed is None, f"move {self.move} copies turn {self._sealed} after the flip"
        for lane in self._lanes.values():
            lane.check()
            tentative = self._sealed is None and len(lane.tentative)
            assert not tentative, f"move {self.move}: {tentative} keys of no sealed turn may be taken back"
            assert not lane.last_sent or self.flipped, f"move {self.move} is {self.phase.name}, and all is sent"

    # --- steps ---

    def _hand_over(self, lane: Lane) -> Parcel | None:
        """The word that what was copied is the state at a turn, when there is one to be said."""
        if not self.terms.copy_ahead:
            return None
        if self.base is not None:
            return None if lane.handed == self.base else self._say(lane, self.base)
        if self._sealed is None or lane.handed == self._sealed or not lane.swept or lane.stale:
            return None
        return self._say(lane, self._sealed)

    def _say(self, lane: Lane, base: Turn) -> Parcel:
        lane.handed = base
        return lane.parcel(lane.stale.all(), ahead=not self.flipped, base=base)

    def _urgent(self, lane: Lane) -> Parcel | None:
        """What somebody waits for."""
        if not self.flipped:
            return None
        limit = self._limit(lane)
        wanted: list[Hashes] = []
        count = 0
        left = lane.wanted.copy()
        while left and count < limit:
            hashes = left.popleft()
            if self.terms.copy_ahead:
                hashes = hashes[lane.stale.has(hashes)]
            hashes = hashes[~lane.sent.has(hashes)]
            if count + len(hashes) > limit:
                left.appendleft(hashes[limit - count :])
                hashes = hashes[: limit - count]
            wanted.append(hashes)
            count += len(hashes)
        parcel = self._give(lane, _unique(np.concatenate(wanted))) if count else None
        lane.wanted = left
        return parcel

    def _background(self, lane: Lane) -> Parcel | None:
        """What nobody waits for."""
        limit = self._limit(lane)
        if not self.flipped:
            return self._copy(lane, limit)
        if self.terms.copy_ahead:
            while len(hashes := lane.stale.first(limit)):
                rest = hashes[~lane.sent.has(hashes)]
                parcel = self._give(lane, rest) if len(rest) else None
                lane.stale.drop(limit)
                if parcel is not None:
                    return parcel
        else:
            while not lane.swept:
                first, end = lane.cursor, min(lane.cursor + limit, lane.end)
                hashes = lane.shelf.hashes[first:end]
                rest = hashes[~lane.sent.has(hashes)]
                whole = self._whole(lane, end)
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

    def _copy(self, lane: Lane, limit: int) -> Parcel | None:
        if not lane.swept:
            first, end = lane.cursor, min(lane.cursor + limit, lane.end)
            hashes = lane.shelf.hashes[first:end]
            state, left = self._timed(lane, lambda: lane.shelf.collect_range(first, len(hashes)))
            lane.cursor = end
            lane.stale.add(left)
            return lane.parcel(hashes, state, ahead=True)
        if not lane.stale or (self._sealed is None and lane.rounds >= _ENOUGH_ROUNDS):
            return None
        hashes = lane.stale.first(limit)
        state, left = self._timed(lane, lambda: lane.shelf.collect(hashes))
        lane.stale.drop(limit)
        if not lane.stale:
            lane.rounds += 1
        lane.stale.add(left)
        if state is None and len(left) == len(hashes):
            return None
        return lane.parcel(hashes, state, ahead=True)

    def _give(self, lane: Lane, hashes: Hashes, groups: tuple[KeyGroup, ...] = (), first: int | None = None) -> Parcel:
        """Hand these keys over for good; ``first``: they are the entries from there on."""
        state = None
        if len(hashes):
            if first is None:
                state, _ = self._timed(lane, lambda: lane.shelf.collect(hashes))
            else:
                state, _ = self._timed(lane, lambda: lane.shelf.collect_range(first, len(hashes)))
            lane.given += len(hashes)
            if self.terms.order is not Order.ANY:  # else nobody asks for what was sent
                lane.sent.add(hashes)
        return lane.parcel(hashes, state, groups, ahead=False)

    def _whole(self, lane: Lane, cursor: int) -> tuple[KeyGroup, ...]:
        """Key groups that the sweep has passed when it is there, if somebody waits for whole ones."""
        if self.terms.waits_for is not WaitsFor.KEY_GROUP:
            return ()
        return tuple(sorted(group for group, end in lane.unsaid.items() if end <= cursor))

    def _limit(self, lane: Lane) -> int:
        by_size = _CHUNK_BYTES / max(1.0, lane.shelf.nbytes_hint)
        return max(1, int(min(self._chunk, by_size, self._most_keys)))

    def _timed(
        self, lane: Lane, collect: Callable[[], tuple[pa.RecordBatch | None, Hashes]]
    ) -> tuple[pa.RecordBatch | None, Hashes]:
        """Collect, and find out how many keys make a message of the right size."""
        limit = self._limit(lane)
        started = self._clock.monotonic()
        state, left = collect()
        took = self._clock.monotonic() - started
        if state is not None and state.num_rows * 2 > limit:
            fits = state.num_rows * _CHUNK_SECONDS / max(took, 1e-6)
            self._chunk = min(max(fits, self._chunk / 2, 16.0), self._chunk * 2, float(self._most_keys))
        return state, left

    def _rest(self, started: float, parcel: Parcel) -> None:
        """After work that nobody waited for: leave time and bandwidth to others."""
        took = self._clock.monotonic() - started
        pause = took * (1 / self.terms.share - 1)
        if self.terms.bandwidth is not None and parcel.state is not None:
            pause = max(pause, parcel.state.nbytes / self.terms.bandwidth - took)
        self._idle_until = started + took + pause


def _unique(hashes: Hashes) -> Hashes:
    """Each once, in the order of first appearance."""
    _, first = np.unique(hashes, return_index=True)
    return hashes[np.sort(first)]


def _sooner(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)
