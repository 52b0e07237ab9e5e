"""The messages of a move: between the coordinator, the old owners, the new owners and the feeders.

Whatever grows with the number of keys travels in the body: a header has no room for it.
"""

from __future__ import annotations

import msgspec

from bedload.core.epoch import EpochTime
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, MoveId, OperatorName, QueryId, Ticket, Turn, WorkerId
from bedload.protocol.base import Lot, Message, Packed, Terms


class Weigh(Message, frozen=True):
    """Asks a worker what its key groups weigh."""

    operator: OperatorName
    ticket: Ticket


class Weighed(Message, frozen=True):
    """Answers :class:`Weigh`."""

    worker: WorkerId
    operator: OperatorName
    ticket: Ticket
    rows: dict[KeyGroup, float]
    """Rows per key group of late, older ones counting less."""
    keys: int
    bytes: int
    touched: float
    """Keys that an epoch touches of late."""
    busy: float
    """Seconds that an epoch takes of late."""


class Copy(Message, frozen=True):
    """Begin to copy state ahead: it stays yours for now."""

    operator: OperatorName
    move: MoveId
    deployment: DeploymentId
    lots: tuple[Lot, ...]
    addresses: dict[WorkerId, str]
    terms: Terms


class Copied(Message, frozen=True):
    """Answers :class:`Copy`: all is copied but for what changes all the time."""

    worker: WorkerId
    operator: OperatorName
    move: MoveId


class Progressed(Message, frozen=True):
    """How far an old owner is with a move that takes a while. Nothing depends on it."""

    worker: WorkerId
    operator: OperatorName
    move: MoveId
    sent: int
    """Bytes that it has sent."""
    left: int
    """Bytes that it still has to send, about."""


class Flip(Message, frozen=True):
    """Ownership changes now, between two epochs; state follows."""

    operator: OperatorName
    move: MoveId
    base: Turn
    """The turn whose state is handed over."""
    deployment: DeploymentId
    leaving: tuple[Lot, ...]
    arriving: tuple[Lot, ...]
    addresses: dict[WorkerId, str]
    terms: Terms
    epoch: Epoch
    """The epoch of that state, and its query: for reads before the new owner has taken part in one."""
    query: QueryId


class Ship(Message, frozen=True):
    """State on its way to its new owner, many keys at once; the body holds it in delta form."""

    operator: OperatorName
    move: MoveId
    source: WorkerId
    number: int
    """Ascending; what comes with a lower one than was seen is a repeat."""
    deployment: DeploymentId
    hashes: Packed
    """Of the keys that this settles, with or without state (64-bit integers); none where nobody asks which."""
    groups: tuple[KeyGroup, ...] = ()
    """Key groups that are whole with this."""
    last: bool = False
    """All is whole with this."""
    ahead: bool = False
    """It was copied before the flip: it may be of an epoch that does not count. The next :class:`HandOver` says."""
    expected: int = 0
    """With the first one: about how many keys there will be,"""
    of_groups: int = 0
    """and of how many key groups, if that is known."""
    places: bool = False
    """The body says where the state of key groups is in a remote store: all of it stays there."""


class HandOver(Message, frozen=True):
    """What was copied ahead is the state at a turn, but for the keys that the body names by their hashes."""

    operator: OperatorName
    move: MoveId
    source: WorkerId
    number: int
    base: Turn
    first: bool = True
    """There may be many such keys. It begins anew with this message, whatever was said before;"""
    more: bool = False
    """and more of them are to follow before any of it counts."""


class Shipped(Message, frozen=True):
    """Answers :class:`Ship` and :class:`HandOver`."""

    operator: OperatorName
    move: MoveId
    target: WorkerId
    number: int
    idle: float = 1.0
    """The share of its time that the new owner has to spare."""
    took: float = 0.0
    """Seconds that taking it in took."""


class Fetch(Message, frozen=True):
    """A new owner has rows for these keys: send them next. The body holds their hashes."""

    operator: OperatorName
    move: MoveId
    target: WorkerId


class AskDue(Message, frozen=True):
    """A new owner is ready to seal, and asks which keys on their way have timers that are due."""

    operator: OperatorName
    move: MoveId
    target: WorkerId
    turn: Turn
    time: EpochTime


class DueKeys(Message, frozen=True):
    """Answers :class:`AskDue`: these may have, and go next. The body holds their hashes."""

    operator: OperatorName
    move: MoveId
    source: WorkerId
    turn: Turn


class Backlog(Message, frozen=True):
    """A feeder tells an old owner which of the keys that leave it are in a batch that it just sent.

    The body holds their hashes, the most frequent first.
    """

    operator: OperatorName
    turn: Turn
    number: int
    """Of the batch."""


class Arrived(Message, frozen=True):
    """The worker has all that was on its way to it.

    The body holds the seconds that each key waited that had to (64-bit floats).
    """

    worker: WorkerId
    operator: OperatorName
    move: MoveId
    keys: int
    bytes: int
    asked: int
    """Keys on their way that had rows."""
    rows: int
    """Rows that waited."""


class Release(Message, frozen=True):
    """The move is over: drop what was handed over; if it was called off, drop what was copied."""

    operator: OperatorName
    move: MoveId
    called_off: bool = False
    arriving: tuple[Lot, ...] = ()
    """What was on its way to the receiving worker."""


class Released(Message, frozen=True):
    """Answers :class:`Release`, when nothing is left here of what lives elsewhere."""

    worker: WorkerId
    operator: OperatorName
    move: MoveId
    slices: dict[str, float] = msgspec.field(default_factory=dict)
    """The longest step of each kind that the move took, in seconds."""
