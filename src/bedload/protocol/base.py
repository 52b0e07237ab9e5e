"""What all messages are made of."""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import msgspec

from bedload.core.errors import BedloadError, from_wire, to_wire
from bedload.core.ids import KeyGroup, KeyHash, WorkerId

Body: TypeAlias = Any
"""What travels beside a message: anything with the buffer protocol (Arrow has no types to say so), or None."""


Packed: TypeAlias = bytes
"""Many numbers as bytes."""


Version: TypeAlias = bytes
"""The name of some :class:`Routes`: a digest of them."""


class Order(enum.Enum):
    """What an old owner sends next. The values travel."""

    ANY = "any"
    """Whatever comes."""
    DEMAND = "demand"
    """What the new owner asks for."""
    BACKLOG = "backlog"
    """What the feeders say is needed."""


class WaitsFor(enum.Enum):
    """What a row of a moved key waits for. The values travel."""

    EVERYTHING = "everything"
    KEY_GROUP = "key group"
    KEY = "key"


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The base of all messages; the tag on the wire is the class's name."""


class Backlogged(msgspec.Struct, frozen=True, array_like=True):
    """What an old owner has not handed over yet: whole key groups, and single keys by their hash."""

    groups: tuple[KeyGroup, ...]
    keys: tuple[KeyHash, ...] = ()


class Routes(msgspec.Struct, frozen=True, array_like=True):
    """Where the keys of an operator live, for its feeders: the same for all of them in a turn."""

    owners: tuple[WorkerId, ...]
    """The owner of each key group."""
    addresses: dict[WorkerId, str]
    """Of all that have a part in the turn."""
    pins: dict[KeyHash, WorkerId] = msgspec.field(default_factory=dict)
    """Single keys, by their hash, that do not live with their key group."""


class Lot(msgspec.Struct, frozen=True, array_like=True):
    """What passes from one worker to another: whole key groups, and single keys by their hash."""

    source: WorkerId
    target: WorkerId
    groups: tuple[KeyGroup, ...]
    keys: tuple[KeyHash, ...] = ()
    stay: tuple[KeyHash, ...] = ()
    """Keys of these key groups that do not go along: they are pinned, before or after."""
    key_groups: tuple[KeyGroup, ...] = ()
    """The key groups of ``keys``, in the same order."""


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """How a move is carried out: a strategy, as far as the workers need to know it."""

    copy_ahead: bool
    order: Order
    waits_for: WaitsFor
    share: float
    """Of its time an old owner gives to state that nobody waits for, so much however busy it is."""
    bandwidth: float | None
    """Bytes per second of state that nobody waits for, at most; None: no limit."""
    most_share: float
    """And at most so much, if it and the new owner have the time."""


class FeederId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A source partition of an epoch, the same for every attempt at it.

    ``partition`` is the Spark task's partition; ``ordinal`` counts the feeders that the task opened
    before this one (after a downstream ``coalesce`` one task runs several partitions in turn).
    """

    partition: int
    ordinal: int


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """An error as plain data."""

    kind: str
    message: str
    details: dict[str, str]

    @classmethod
    def of(cls, error: BaseException) -> WireError:
        """Take an error apart."""
        return cls(*to_wire(error))

    def error(self) -> BedloadError:
        """Put the error together again."""
        return from_wire(self.kind, self.message, self.details)
