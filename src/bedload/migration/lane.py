"""The state that goes from one old owner to one new owner, and how far it has come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.ids import KeyGroup, Turn, WorkerId
from bedload.keys.lookup import Hashes
from bedload.migration.hash_set import NONE, HashSet
from bedload.protocol.messages import Lot
from bedload.store.shelf import Shelf

WINDOW = 4
"""Messages under way to one worker."""


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
    """With the first one: about how many keys there will be."""


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
    tentative: Hashes = field(default_factory=lambda: NONE)
    """What the sealed epoch touched, until it is committed."""
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
    unsaid: dict[KeyGroup, int] = field(default_factory=dict)
    """Key groups that are listed and were not said to be whole yet, and where their entries end."""
    given: int = 0
    """Keys that were handed over for good."""
    last_sent: bool = False
    rounds: int = 0
    idle: float = 1.0
    """The share of its time that the new owner has to spare, as it said with its last receipt."""
    broken_until: float = 0.0

    @property
    def swept(self) -> bool:
        """Whether the sweep is over."""
        return self.cursor >= self.end and self.shelf.listed

    def list_some(self, keys: int, first: KeyGroup | None = None) -> Hashes:
        """List so many more keys; the hashes of those that the epoch under way has touched."""
        listed = self.shelf.list_some(keys, first)
        self.end = self.shelf.whole
        self.unsaid |= dict.fromkeys(set(listed.groups).intersection(self.lot.groups), self.end)
        for group in list(self.unlisted) if self.shelf.listed else listed.groups:
            if group in self.unlisted:
                self.wanted.appendleft(np.concatenate(self.unlisted.pop(group)))
        return listed.touched

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
    ) -> Parcel:
        """The next one, of which a receipt is to come."""
        self.number += 1
        expected = self.shelf.expected if self.number == 1 else 0
        parcel = Parcel(self.lot.target, self.number, hashes, state, groups, last, ahead, base, span, expected)
        self.unacked[self.number] = parcel._replace(state=None)
        return parcel

    def broken(self, until: float, *, copies: bool, ahead: bool) -> None:
        """The connection broke: what was not taken in for certain goes again."""
        self.broken_until = until
        parcels, self.unacked = self.unacked, {}
        for parcel in parcels.values():
            if parcel.base is not None:
                self.handed = None
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
