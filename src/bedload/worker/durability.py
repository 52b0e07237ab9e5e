"""The places where durability plugs into a worker: writing at the seal, and reading state back.

Writing is a call: Spark commits its sink only after its tasks ended, and the last task ends only after the
seal, so what :meth:`Durability.persist` has written when it returns is durable before Spark can commit.

Reading is an event, since it takes long: the machine says :class:`Load`, the edge reads in the background and comes
back with :class:`Loaded` for some key groups at a time, or with :class:`LoadFailed`. Meanwhile the machine may say
:class:`Hurry`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from bedload.core.errors import BedloadError
from bedload.core.ids import Epoch, KeyGroup, OperatorName, QueryId, Ticket, Turn, WorkerId


@dataclass(frozen=True)
class Seal:
    """What a worker seals of an epoch."""

    worker: WorkerId
    operator: OperatorName
    query: QueryId
    epoch: Epoch
    turn: Turn
    delta: Callable[[], pa.RecordBatch | None]
    """Makes the changed entries: who does not call it pays nothing."""


class Durability(Protocol):
    """Makes the changed entries of an epoch survive the worker."""

    def persist(self, seal: Seal) -> int:
        """Write the changed entries in one write; how many bytes. An error aborts the epoch."""
        ...


class InMemoryOnly:
    """No durability: state lives and dies with its worker."""

    def persist(self, seal: Seal) -> int:
        """Keep nothing."""
        return 0


@dataclass(frozen=True)
class Load:
    """Read the state of these key groups, by the plan."""

    operator: OperatorName
    ticket: Ticket
    """Comes back with the answers: those to an earlier order are out of date."""
    base: Turn
    groups: tuple[KeyGroup, ...]
    plan: bytes


@dataclass(frozen=True)
class Hurry:
    """Somebody waits for these key groups of an order: they come first."""

    operator: OperatorName
    ticket: Ticket
    groups: tuple[KeyGroup, ...]


@dataclass(frozen=True)
class Loaded:
    """The state of some key groups is here."""

    operator: OperatorName
    ticket: Ticket
    groups: tuple[KeyGroup, ...]
    state: pa.RecordBatch | None
    """In state form; None: they are empty."""
    bytes: int = 0
    """What has been read so far."""
    expected: int = 0
    """With the first of an order: about how many keys there will be."""


@dataclass(frozen=True)
class LoadFailed:
    """The state could not be read."""

    operator: OperatorName
    ticket: Ticket
    error: BedloadError
