"""The state that goes from one old owner to one new owner, and how far it has come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.ids import KeyGroup, Turn, WorkerId
from bedload.keys import key_groups as groups_of
from bedload.keys.lookup import Hashes
from bedload.migration.hash_set import NONE, HashSet, unique
from bedload.migration.pace import MOST_BYTES
from bedload.protocol.messages import Lot
from bedload.protocol.split import pack_whole
from bedload.store.shelf import Shelf

WINDOW = 4
"""Messages under way to one worker."""
ENOUGH_ROUNDS = 5
"""After so many rounds of copying what changed meanwhile, the rest changes faster than it is copied."""
_NEARLY = 0.75
_SOME = 8192
"""Hashes that somebody waits for are looked at so many at a time, or more."""


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
    span: tuple[int, int] | None = None
    """Of a shelf without names: its first entry, and how many there are."""
    expected: int = 0
    """With the first one: about how many keys there will be,"""
    of_groups: int = 0
    """and of how many key groups, unless single ones are among them."""
    first: bool = True
    more: bool = False
    """Of a ``HandOver``: whether stale keys are named for the first time, and whether more are to follow."""
    places: dict[KeyGroup, tuple[bytes, bytes]] | None = None
    """Where key groups are that stay in a remote store."""

    @property
    def body(self) -> bytes | None:
        """What of it grows with the number of keys or of key groups."""
        if self.places is not None:
            return msgspec.msgpack.encode(self.places)
        return None if self.state is None else pack_whole(self.state)


@dataclass
class Doubt:
    """Keys of which it is not certain what the new owner has."""

    tentative: list[Hashes] = field(default_factory=list)
    """What was noted since the epoch was sealed, until it is committed."""
    left_out: list[Hashes] = field(default_factory=list)
    """What was to be collected and the epoch under way has touched: it is looked at again after its seal or its end."""
    taken_back: list[Hashes] = field(default_factory=list)
    """What is about to be stale: it was left out, or its epoch was aborted."""
    noted: bool = False
    """Whether the last step was to note what an epoch touched;"""
    behind: bool = False
    """and whether that was not over when the next one was sealed."""
    placed: bool = False
    """Whether it was said where key groups are that stay in a remote store."""


@dataclass
class Rounds:
    """How often what was copied ahead was copied again, as it changed meanwhile."""

    done: int = 0
    """How often all was copied, or so much of it again as was stale when that began."""
    keys: int = 0
    """Those of the round under way,"""
    left: int = 0
    """and those of them that are not copied yet."""


@dataclass
class Lane:
    """All that goes to one worker.

    Invariant: a key that was sent is sent again only if its connection broke before the receipt came back.
    """

    lot: Lot
    shelf: Shelf
    end: int = 0
    """Entries of the shelf that the sweep is about: those of key groups that are listed to the end."""
    cursor: int = 0
    number: int = 0
    stale: HashSet = field(default_factory=HashSet)
    """With copying ahead: what the new owner has not got, or only in an older state."""
    doubt: Doubt = field(default_factory=Doubt)
    sent: HashSet = field(default_factory=HashSet)
    """What was handed over for good, as far as somebody may ask for it again."""
    wanted: deque[Hashes] = field(default_factory=deque)
    """What somebody waits for, but for what is in"""
    unlisted: dict[KeyGroup, list[Hashes]] = field(default_factory=dict)
    """key groups that are not listed: that comes back when they are. The one that was asked for first is the first."""
    again: deque[tuple[int, int]] = field(default_factory=deque)
    """Entries of a shelf without names that go once more."""
    unacked: dict[int, Parcel] = field(default_factory=dict)
    handed: Turn | None = None
    """The turn that the last hand-over named."""
    unsaid_stale: deque[Hashes] = field(default_factory=deque)
    """What is to be said before that one is complete."""
    unsaid: dict[KeyGroup, int] = field(default_factory=dict)
    """Key groups that are listed and were not said to be whole yet, and where their entries end."""
    given: int = 0
    """Keys that were handed over for good."""
    last_sent: bool = False
    rounds: Rounds = field(default_factory=Rounds)
    idle: float = 1.0
    """The share of its time that the new owner has to spare, as it said with its last receipt."""
    broken_until: float = 0.0

    @property
    def swept(self) -> bool:
        """Whether the sweep is over."""
        return self.cursor >= self.end and self.shelf.listed

    @property
    def unnoted(self) -> int:
        """How many keys may be stale, and are not known to be: before that is looked at, nothing is handed over."""
        return self.shelf.unnoted + sum(map(len, self.doubt.taken_back))

    def sealed(self) -> int:
        """An epoch is sealed: how many of the listed keys it has touched."""
        self.doubt.behind = self.unnoted > 0
        before = self.shelf.unnoted
        self.shelf.sealed()
        touched = self.shelf.unnoted - before
        self.take_back([])
        self.handed = None
        return touched

    def take_back(self, hashes: list[Hashes]) -> None:
        """These are stale, and so is what was left out."""
        self.doubt.taken_back += [*hashes, *self.doubt.left_out]
        self.doubt.left_out = []

    def note_some(self, keys: int, *, tentative: bool) -> Hashes:
        """Find out about so many of them; ``tentative``: an epoch is sealed, and may be aborted."""
        if back := self.doubt.taken_back:
            parts = []
            while back and keys:
                part = back.pop()
                if len(part) > keys:
                    back.append(part[keys:])
                parts.append(part[:keys])
                keys -= len(parts[-1])
            noted = np.concatenate(parts)
        else:
            noted = self.shelf.note_some(keys)
            if tentative:
                self.doubt.tentative.append(noted)
        self.stale.add(noted)
        return noted

    def list_some(self, keys: int, first: KeyGroup | None = None) -> Hashes:
        """List so many more keys; the hashes of those that the epoch under way has touched."""
        listed = self.shelf.list_some(keys, first)
        self.end = self.shelf.whole
        self.unsaid |= dict.fromkeys(set(listed.groups).intersection(self.lot.groups), self.end)
        for group in list(self.unlisted) if self.shelf.listed else listed.groups:
            if group in self.unlisted:
                self.wanted.appendleft(np.concatenate(self.unlisted.pop(group)))
        return listed.touched

    def wanted_now(self, limit: int, key_groups: int, *, copies: bool) -> tuple[Hashes, deque[Hashes]]:
        """So many keys that somebody waits for, and what is wanted beside them; ``copies``: those that are stale."""
        found: list[Hashes] = []
        count = looked = 0
        left, some = self.wanted.copy(), max(limit, _SOME)
        # SUBTLE: if all that was looked at is sent already, it goes on: nobody might ask again.
        while left and count < limit and (looked < 2 * some or not (count or self.unlisted)):
            hashes = left.popleft()
            if len(hashes) > some:
                left.appendleft(hashes[some:])
                hashes = hashes[:some]
            looked += len(hashes)
            if copies:
                hashes = hashes[self.stale.has(hashes)]
            hashes = hashes[~self.sent.has(hashes)]
            if not self.shelf.listed:
                hashes = self.put_aside(hashes, groups_of(hashes, key_groups))
            if count + len(hashes) > limit:
                left.appendleft(hashes[limit - count :])
                hashes = hashes[: limit - count]
            found.append(hashes)
            count += len(hashes)
        wanted = unique(np.concatenate([NONE, *found]))
        fits = self.shelf.fitting(wanted, MOST_BYTES)
        if fits < len(wanted):
            left.appendleft(wanted[fits:])
        return wanted[:fits], left

    def next_entries(self, limit: int, most_bytes: int = MOST_BYTES) -> int:
        """How many entries of the sweep go next."""
        return self.shelf.fitting_in_range(self.cursor, min(limit, self.end - self.cursor), most_bytes)

    def next_stale(self, limit: int) -> Hashes:
        """Which of the stale keys go next."""
        hashes = self.stale.first(limit)
        return hashes[: self.shelf.fitting(hashes, MOST_BYTES)]

    def put_aside(self, hashes: Hashes, groups: npt.NDArray[np.integer[Any]]) -> Hashes:
        """Those of listed key groups; the others are looked at again when theirs is."""
        listed = self.shelf.covers(groups)
        if not listed.all():
            rest, groups = hashes[~listed], groups[~listed]
            order = np.argsort(groups, kind="stable")
            numbers, firsts = np.unique(groups[order], return_index=True)
            parts = np.split(rest[order], firsts[1:])
            for at in np.argsort(order[firsts]).tolist():
                self.unlisted.setdefault(KeyGroup(int(numbers[at])), []).append(parts[at])
        return hashes[listed]

    def whole(self, cursor: int) -> tuple[KeyGroup, ...]:
        """Key groups that the sweep has passed when it is there, and that were not said to be whole."""
        return tuple(sorted(group for group, end in self.unsaid.items() if end <= cursor))

    def round_over(self, copied: int) -> None:
        """So many keys were copied. If nearly as many are stale by now, nothing is won by copying those, too."""
        changed = len(self.stale) + self.unnoted + sum(map(len, self.doubt.left_out))
        self.rounds.done = ENOUGH_ROUNDS if changed > _NEARLY * copied else self.rounds.done + 1

    def passed(self, span: tuple[int, int]) -> None:
        """These entries of a shelf without names were collected."""
        if self.again:
            self.again.popleft()
        else:
            self.cursor += span[1]
        self.given += span[1]

    def left(self, *, ahead: bool, flipped: bool) -> float:
        """Bytes that have to go still, about; ``ahead``: what is stale goes again, and not what was copied."""
        end = self.end if self.shelf.listed else max(self.end, self.shelf.expected)
        keys = end - self.cursor + len(self.stale) if ahead or not flipped else max(0, end - self.given)
        return keys * self.shelf.nbytes_hint

    def parcel(
        self,
        hashes: Hashes,
        state: pa.RecordBatch | None = None,
        groups: tuple[KeyGroup, ...] = (),
        *,
        ahead: bool,
        last: bool = False,
        base: Turn | None = None,
        span: tuple[int, int] | None = None,
        first: bool = True,
        more: bool = False,
    ) -> Parcel:
        """The next one, of which a receipt is to come."""
        self.number += 1
        expected = self.shelf.expected if self.number == 1 else 0
        of_groups = 0 if self.lot.keys or not expected else len(self.lot.groups)
        what = hashes, state, groups, last, ahead, base, span, expected, of_groups, first, more
        parcel = Parcel(self.lot.target, self.number, *what)
        self.unacked[self.number] = parcel._replace(state=None)
        return parcel

    def place(self) -> Parcel:
        """Where key groups are that stay in a remote store: before anything else of them is said."""
        places, groups = self.shelf.places(), tuple(sorted(self.shelf.by_place))
        parcel = self.parcel(NONE, groups=groups, ahead=False)._replace(places=places)
        self.unacked[self.number], self.doubt.placed = parcel, True
        return parcel

    def hand_over(self, base: Turn, most: int, *, ahead: bool) -> Parcel:
        """The word, or a part of it, that the copies are the state at a turn but for so many stale keys at most."""
        first = not self.unsaid_stale
        if first:
            self.unsaid_stale.extend(self.stale.parts(most) or [NONE])
        hashes = self.unsaid_stale.popleft()
        if not self.unsaid_stale:
            self.handed = base
        return self.parcel(hashes, ahead=ahead, base=base, first=first, more=bool(self.unsaid_stale))

    def broken(self, until: float, *, copies: bool, ahead: bool) -> None:
        """The connection broke: what was not taken in for certain goes again."""
        self.broken_until = until
        self.unsaid_stale.clear()
        parcels, self.unacked = self.unacked, {}
        for parcel in parcels.values():
            if parcel.base is not None:
                self.handed = None
                continue
            if parcel.places is not None:
                self.doubt.placed = False
                continue
            self.sent.remove(parcel.hashes)
            if parcel.span is not None:
                self.again.append(parcel.span)
            elif copies:
                self.stale.add(parcel.hashes)
            else:
                self.wanted.appendleft(parcel.hashes)
            self.unsaid |= dict.fromkeys(parcel.groups, 0)
            self.last_sent = self.last_sent and not parcel.last
        if ahead:
            self.handed = None

    def check(self) -> None:
        """Raise an AssertionError if this cannot be."""
        assert self.cursor <= self.end, f"the sweep is at {self.cursor} of {self.end}"
        aside = list(self.unlisted)
        assert not aside or not self.shelf.covers(np.array(aside)).any(), f"of {aside} some are listed, and wait still"
        assert not self.last_sent or self.swept, f"all is said to be sent at {self.cursor} of {self.end}"
        assert len(self.unacked) <= WINDOW, f"{len(self.unacked)} messages are under way"
        later = [number for number in self.unacked if number > self.number]
        assert not later, f"{later} are under way, and {self.number} was the last"
