"""The place where durability plugs in: called at the seal, before the last feeder is answered.

Spark commits its sink only after its tasks ended, and the last task ends only after the seal. So what
:meth:`Durability.persist` has written when it returns is durable before Spark can commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from bedload.core.ids import Epoch, OperatorName, QueryId, Turn, WorkerId
from bedload.store import Changes


class Durability(Protocol):
    """Makes the changed entries of an epoch survive the worker."""

    def persist(
        self,
        worker: WorkerId,
        operator: OperatorName,
        query: QueryId,
        epoch: Epoch,
        turn: Turn,
        changes: Iterable[Changes],
    ) -> None:
        """Write the changed entries in one write; an error aborts the epoch.

        ``changes`` is lazy: who does not consume it pays nothing.
        """
        ...


class InMemoryOnly:
    """No durability: state lives and dies with its worker."""

    def persist(
        self,
        worker: WorkerId,
        operator: OperatorName,
        query: QueryId,
        epoch: Epoch,
        turn: Turn,
        changes: Iterable[Changes],
    ) -> None:
        """Keep nothing."""
