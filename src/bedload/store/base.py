"""What every layout of a key group's state can do.

The interface is what the engine needs of state, and no more: epochs, reads at the committed epoch,
the changed entries, and keys going in and out as Arrow. How operator code reaches the current state is
the layout's own business (rows: one object per key; columns: slots of arrays), because that is where
the layouts differ and where speed is won.

Invariants, kept by the contract suite for every layout:

- between ``begin`` and ``commit``/``abort``, reads give the state as of ``begin``;
- ``abort`` leaves exactly the state as of ``begin``; ``commit`` leaves the current one;
- ``changes`` lists just the keys whose state differs from the state as of ``begin``;
- a key that was installed is committed state, whatever becomes of an epoch that is under way.

What makes epochs durable goes by all key groups of an operator at once: see :mod:`bedload.store.deltas`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from bedload.core.ids import KeyGroup


class Sizes(NamedTuple):
    """How much a store holds."""

    keys: int
    """Keys with committed or current state."""
    touched: int
    """Keys with a before-image in the current epoch."""


class Changes(NamedTuple):
    """What an epoch changed in one key group, as plain values: to look at."""

    group: KeyGroup
    entries: dict[Any, dict[str, Any]]
    """For each changed key, the changed entries of each changed variable."""
    created: frozenset[Any]
    """Keys that had no state before: their entries are whole values."""
    removed: tuple[Any, ...]
    """Keys whose state is gone."""


class KeyGroupStore(Protocol):
    """The state of one key group."""

    group: KeyGroup

    def begin(self) -> None:
        """An epoch begins; what changes from here on keeps its before-image."""
        ...

    def seal(self) -> None:
        """All operator code of the epoch ran: take in what it left; an error must abort the epoch."""
        ...

    def commit(self) -> None:
        """The current state is the committed one; after :meth:`seal`."""
        ...

    def abort(self) -> None:
        """Go back to the state as of :meth:`begin`."""
        ...

    def changes(self) -> Changes:
        """The changed entries of the current epoch."""
        ...

    def read(self, key: Any) -> dict[str, Any] | None:
        """The committed state of a key, as plain values; None if it has none."""
        ...

    def snapshot(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The committed state of every key."""
        ...

    def extract(self, keys: Iterable[Any] | None = None) -> tuple[list[Any], pa.RecordBatch]:
        """The committed state of these keys (or of all) as Arrow; keys without state are left out."""
        ...

    def install(self, keys: list[Any], state: pa.RecordBatch) -> None:
        """Put in what another store extracted; if an epoch is under way, none of the keys may be there."""
        ...

    def discard(self, keys: Iterable[Any] | None = None) -> None:
        """Drop these keys (or all) without a before-image: they live elsewhere now.

        If an epoch is under way, it must not have touched them.
        """
        ...

    def sizes(self) -> Sizes:
        """How much is there."""
        ...
