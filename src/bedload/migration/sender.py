"""The old owner's end of a move: what to send next, and to whom. Messages and time in, messages out.

Phases of a move at its old owner::

    copying ──all copied──▶ warm ──Flip──▶ handing over ──all taken──▶ done ──Release──▶ (dropped)

Without copying ahead it begins with the flip. Until then the keys are the old owner's own and change under the copy:
what an epoch touched is *stale* at the new owner, and goes again after the seal. What goes between a seal and its
commit is *tentative*: an abort makes it stale again.

Invariants:

- what is not stale, and was copied, is at the new owner as of the turn that the last ``HandOver`` names;
- what is noted as sent was collected: whatever raises leaves cursors and sets as they were;
- after the flip a key is sent once, unless a connection broke before its receipt came back;
- state that nobody waits for takes no more of the time and of the bandwidth than the terms allow, and never more than
  a few messages are under way, so that what somebody waits for does not queue up behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bedload.core.clock import Clock
from bedload.core.ids import KeyGroup, Turn, WorkerId
from bedload.keys import key_groups
from bedload.keys.lookup import Hashes
from bedload.migration.hash_set import NONE, HashSet
from bedload.protocol.messages import Lot, Terms
from bedload.store.shelf import Shelf

WINDOW = 4
"""Messages under way to one worker."""
_FIRST_CHUNK = 256
"""Keys in the first message: how long a key takes is not known yet."""
_CHUNK_SECONDS = 0.002
"""What making a message may take: rows of other keys wait that long."""
_MOST_KEYS = 1 << 16
_CHUNK_BYTES = 1 << 20
_RETRY_SECONDS = 0.05
_ENOUGH_ROUNDS = 5
"""After so many rounds of copying what changed meanwhile, the rest changes faster than it is copied."""


class Parcel(NamedTuple):
    """What to send: state, or the word that what was copied is the state at a turn."""

    target: WorkerId
    number: int
    hashes: Hashes
    state: pa.RecordBatch | None = None
    groups: tuple[KeyGroup, ...] = ()
    last: bool = False
    ahead: bool = False
    """It is a copy, made before the flip."""
    base: Turn | None = None
    """Set: it is a ``HandOver``, and the hashes are those of stale keys."""


@dataclass
class _Lane:
    """All that goes to one worker."""

    lot: Lot
    shelf: Shelf
    end: int
    """Entries of the shelf when the sweep began."""
    cursor: int = 0
    number: int = 0
    stale: HashSet = field(default_factory=HashSet)
    """With copying ahead: what the new owner has not got, or only in an older state."""
    tentative: Hashes = field(default_factory=lambda: NONE)
    """What the sealed epoch touched, until it is committed."""
    sent: HashSet = field(default_factory=HashSet)
    """What was handed over for good, as far as somebody may ask for it again."""
    wanted: deque[Hashes] = field(default_factory=deque)
    """What somebody waits for."""
    unacked: dict[int, Parcel] = field(default_factory=dict)
    handed: Turn | None = None
    """The turn that the last hand-over named."""
    unsaid: dict[KeyGroup, int] = field(default_factory=dict)
    """Key groups that were not said to be whole yet, and where their entries end."""
    last_sent: bool = False
    rounds: int = 0
    broken_until: float = 0.0

    @property
    def swept(self) -> bool:
        return self.cursor >= self.end


class Sender:
    """One move at one old owner."""

    def __init__(
        self, move: int, terms: Terms, lots: tuple[Lot, ...], shelve: Callable[[Lot], Shelf], clock: Clock
    ) -> None:
        self.move = move
        self.terms = terms
        self.base: Turn | None = None
        """Set at the flip."""
        self.groups = frozenset(group for lot in lots for group in lot.groups)
        """The key groups that leave as a whole."""
        self._clock = clock
        self._sealed: Turn | None = None
        self._stopped = False
        self._told = False
        self._lanes: dict[WorkerId, _Lane] = {}
        for lot in lots:
            shelf = shelve(lot)
            self._lanes[lot.target] = _Lane(lot, shelf, len(shelf.hashes), unsaid=_ends(lot, shelf))
        self._chunk = float(_FIRST_CHUNK)
        self._idle_until = 0.0
        self._turn = 0

    def handed_over(self, group: KeyGroup, hash_of: Callable[[], Hashes]) -> bool:
        """Whether a key has another owner since the flip."""
        if self.base is None:
            return False
        lots = [lane.lot for lane in self._lanes.values()]
        if group not in self.groups and not any(lot.keys for lot in lots):
            return False
        key = int(hash_of()[0])
        return any(key in lot.keys or (group in lot.groups and key not in lot.stay) for lot in lots)

    # --- what happens at the old owner ---

    def sealed(self, turn: Turn) -> None:
        """An epoch is sealed: what it touched is stale at the new owner. Before its commit."""
        if self.base is not None:
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
            if self.base is None:
                lane.handed = None

    def flip(self, base: Turn) -> None:
        """Ownership has passed on."""
        self.base = base
        self._idle_until = 0.0
        if self.terms.copy_ahead:
            for lane in self._lanes.values():
                lane.stale.add(lane.shelf.hashes[lane.cursor : lane.end])
                lane.cursor = lane.end

    def stop(self) -> None:
        """All state is read back as of another turn, here and at the new owners: nothing goes there any more."""
        self._stopped = True

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
        lane.broken_until = self._clock.monotonic() + _RETRY_SECONDS
        parcels, lane.unacked = lane.unacked, {}
        for parcel in parcels.values():
            if parcel.base is not None:
                lane.handed = None
                continue
            lane.sent.remove(parcel.hashes)
            if self.terms.copy_ahead:
                lane.stale.add(parcel.hashes)
            else:
                lane.wanted.appendleft(parcel.hashes)
            lane.unsaid |= dict.fromkeys(parcel.groups, 0)
            lane.last_sent = lane.last_sent and not parcel.last
        if self.base is None:
            lane.handed = None

    # --- what to do ---

    @property
    def copied(self) -> bool:
        """Whether all is copied but for what changes all the time. True once only."""
        if self._told or self.base is not None or not self.terms.copy_ahead:
            return False
        ready = all(lane.swept and (lane.rounds >= _ENOUGH_ROUNDS or not lane.stale) for lane in self._lanes.values())
        self._told = ready
        return ready

    @property
    def shelves(self) -> list[Shelf]:
        """All that leaves."""
        return [lane.shelf for lane in self._lanes.values()]

    def next(self) -> tuple[list[Parcel], float | None]:
        """What to send now, and in how many seconds to ask again; None: when something has happened."""
        now = self._clock.monotonic()
        delay: float | None = None
        lanes = [] if self._stopped else list(self._lanes.values())
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
                return [parcel], 0.0
        return [], delay

    # --- steps ---

    def _hand_over(self, lane: _Lane) -> Parcel | None:
        """The word that what was copied is the state at a turn, when there is one to be said."""
        if not self.terms.copy_ahead:
            return None
        if self.base is not None:
            return None if lane.handed == self.base else self._say(lane, self.base)
        if self._sealed is None or lane.handed == self._sealed or not lane.swept or lane.stale:
            return None
        return self._say(lane, self._sealed)

    def _say(self, lane: _Lane, base: Turn) -> Parcel:
        lane.handed = base
        return self._parcel(lane, lane.stale.all(), base=base)

    def _urgent(self, lane: _Lane) -> Parcel | None:
        """What somebody waits for."""
        if self.base is None:
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

    def _background(self, lane: _Lane) -> Parcel | None:
        """What nobody waits for."""
        limit = self._limit(lane)
        if self.base is None:
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
        return self._parcel(lane, NONE, last=True)

    def _copy(self, lane: _Lane, limit: int) -> Parcel | None:
        if not lane.swept:
            first, end = lane.cursor, min(lane.cursor + limit, lane.end)
            hashes = lane.shelf.hashes[first:end]
            state, left = self._timed(lane, lambda: lane.shelf.collect_range(first, len(hashes)))
            lane.cursor = end
            lane.stale.add(left)
            return self._parcel(lane, hashes, state)
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
        return self._parcel(lane, hashes, state)

    def _give(self, lane: _Lane, hashes: Hashes, groups: tuple[KeyGroup, ...] = (), first: int | None = None) -> Parcel:
        """Hand these keys over for good; ``first``: they are the entries from there on."""
        state = None
        if len(hashes):
            if first is None:
                state, _ = self._timed(lane, lambda: lane.shelf.collect(hashes))
            else:
                state, _ = self._timed(lane, lambda: lane.shelf.collect_range(first, len(hashes)))
            if self.terms.order != "any":  # else nobody asks for what was sent
                lane.sent.add(hashes)
        return self._parcel(lane, hashes, state, groups)

    def _whole(self, lane: _Lane, cursor: int) -> tuple[KeyGroup, ...]:
        """Key groups that the sweep has passed when it is there, if somebody waits for whole ones."""
        if self.terms.waits_for != "key group":
            return ()
        return tuple(sorted(group for group, end in lane.unsaid.items() if end <= cursor))

    def _parcel(
        self,
        lane: _Lane,
        hashes: Hashes,
        state: pa.RecordBatch | None = None,
        groups: tuple[KeyGroup, ...] = (),
        *,
        last: bool = False,
        base: Turn | None = None,
    ) -> Parcel:
        lane.number += 1
        parcel = Parcel(lane.lot.target, lane.number, hashes, state, groups, last, self.base is None, base)
        lane.unacked[lane.number] = parcel._replace(state=None)
        return parcel

    def _limit(self, lane: _Lane) -> int:
        by_size = _CHUNK_BYTES / max(1.0, lane.shelf.nbytes_hint)
        return max(1, int(min(self._chunk, by_size, _MOST_KEYS)))

    def _timed(
        self, lane: _Lane, collect: Callable[[], tuple[pa.RecordBatch | None, Hashes]]
    ) -> tuple[pa.RecordBatch | None, Hashes]:
        """Collect, and find out how many keys make a message of the right size."""
        limit = self._limit(lane)
        started = self._clock.monotonic()
        state, left = collect()
        took = self._clock.monotonic() - started
        if state is not None and state.num_rows * 2 > limit:
            fits = state.num_rows * _CHUNK_SECONDS / max(took, 1e-6)
            self._chunk = min(max(fits, self._chunk / 2, 16.0), self._chunk * 2, float(_MOST_KEYS))
        return state, left

    def _rest(self, started: float, parcel: Parcel) -> None:
        """After work that nobody waited for: leave time and bandwidth to others."""
        took = self._clock.monotonic() - started
        pause = took * (1 / self.terms.share - 1)
        if self.terms.bandwidth is not None and parcel.state is not None:
            pause = max(pause, parcel.state.nbytes / self.terms.bandwidth - took)
        self._idle_until = started + took + pause


def _ends(lot: Lot, shelf: Shelf) -> dict[KeyGroup, int]:
    """Where the entries of each key group end: they come one after another."""
    groups = shelf.groups
    cuts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    last = np.append(cuts, len(groups)) if len(groups) else cuts
    ends = {KeyGroup(int(groups[end - 1])): int(end) for end in last}
    return {group: ends.get(group, 0) for group in lot.groups}


def _unique(hashes: Hashes) -> Hashes:
    """Each once, in the order of first appearance."""
    _, first = np.unique(hashes, return_index=True)
    return hashes[np.sort(first)]


def _sooner(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)


__all__ = ["Parcel", "Sender"]
