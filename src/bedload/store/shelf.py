"""State on its way to another worker: the keys that go, and their current state, batch by batch.

A shelf names the keys of some key groups, or some of their keys by hash, while the query runs on. The state of a key
can be had from it at any time, and again after it changed, until the keys are dropped. All keys of one hash are one
unit.

::

    shelve ──▶ collect_range, collect_range, …          the sweep
               seal ──▶ note ──▶ collect(noted hashes)   at each epoch that changes the keys meanwhile
               drop                                      when they live elsewhere

Invariants:

- what is collected is the state as of the last commit, or as of the seal of a sealed epoch. Keys that an epoch before
  its seal has touched are left out, and named; the seal's :meth:`Shelf.note` names them again;
- a key that was on the shelf and has no state is a REMOVE row. So if an epoch was collected after its seal and
  aborted, the hashes that it noted, collected once more, put the copy right;
- a unit is never divided: not between what is given and what is left out, and not between two ranges;
- a batch shares nothing with live state.

Why the shelf and not the mover knows what has changed: touched keys are a list that every layout has anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.ids import KeyGroup
from bedload.keys.lookup import among
from bedload.store.entries import Entries, Hashes, Numbers

Flags = npt.NDArray[np.bool_]
Collected = tuple[pa.RecordBatch | None, Hashes]
"""State in delta form, PUT and REMOVE rows alone, and the hashes that were left out."""

NO_HASHES: Hashes = np.empty(0, np.int64)
_SAMPLE = 32
"""Keys to look at for a first estimate of their size."""
_GUESS = 64.0
"""Bytes per key when none can be looked at."""


class Shelf(Protocol):
    """Keys that go elsewhere. It is of one operator at one worker, and of no use after :meth:`drop`."""

    @property
    def hashes(self) -> Hashes:
        """The hash of each key that is or was on the shelf; the keys of a key group one after another at first."""
        ...

    @property
    def groups(self) -> npt.NDArray[np.int16]:
        """The key group of each."""
        ...

    @property
    def nbytes_hint(self) -> float:
        """Roughly the bytes per key of what is collected."""
        ...

    def note(self) -> Hashes:
        """The hashes of the keys that the epoch has touched; between its seal and its end. New ones join the shelf."""
        ...

    def collect(self, hashes: Hashes) -> Collected:
        """The current state of the keys with these hashes."""
        ...

    def collect_range(self, first: int, count: int) -> Collected:
        """The same for so many keys from the shelf's ``first`` on; of a unit, that of its first key counts."""
        ...

    def drop(self) -> None:
        """Forget the keys in the runtime, without before-images; no epoch may have touched them."""
        ...


class Selection:
    """Which keys a shelf is about."""

    def __init__(self, groups: Collection[KeyGroup], only: Hashes | None, without: Hashes | None) -> None:
        self.groups = sorted(set(groups))
        self._only = None if only is None else np.sort(only)
        self._without = None if without is None else np.sort(without)

    def admits(self, hashes: Hashes) -> Flags:
        """Which keys of the key groups are meant."""
        meant = np.ones(len(hashes), np.bool_)
        if self._only is not None:
            meant &= among(self._only, hashes)
        if self._without is not None:
            meant &= ~among(self._without, hashes)
        return meant


class AnyShelf:
    """What both layouts have in common. A layout knows which keys are held back, and makes the batches."""

    def __init__(self, selection: Selection, entries: Entries) -> None:
        self._selection = selection
        self._entries = entries
        self._rows, self._bytes = 0, 0

    @property
    def hashes(self) -> Hashes:
        """The hash of each key."""
        return self._entries.hashes

    @property
    def groups(self) -> npt.NDArray[np.int16]:
        """The key group of each key."""
        return self._entries.groups

    @property
    def nbytes_hint(self) -> float:
        """Bytes per key of the last batches; before the first one, of some keys."""
        if not self._rows and len(self._entries):
            self.collect_range(0, _SAMPLE)
        return self._bytes / self._rows if self._rows else _GUESS

    def collect(self, hashes: Hashes) -> Collected:
        """The current state of the keys with these hashes."""
        return self._collect(self._entries.find(hashes))

    def collect_range(self, first: int, count: int) -> Collected:
        """The current state of the keys of a range."""
        return self._collect(self._entries.span(first, count))

    def _collect(self, entries: Numbers) -> Collected:
        groups = self.groups[entries]
        if (groups[1:] < groups[:-1]).any():
            entries = entries[np.argsort(groups, kind="stable")]
        left = NO_HASHES
        held = self._held(entries)
        if held is not None and held.any():
            left = np.unique(self.hashes[entries[held]])
            if self._entries.any_shared:
                held = among(left, self.hashes[entries])
            entries = entries[~held]
        if not len(entries):
            return None, left
        batch = self._batch(entries)
        # The last batches count for more: what is swept now is like what is swept next.
        self._rows, self._bytes = self._rows // 2 + batch.num_rows, self._bytes // 2 + batch.nbytes
        return batch, left

    def _held(self, entries: Numbers) -> Flags | None:
        """Which of them, in the order of their key groups, an epoch has touched that is not sealed; None: not one."""
        raise NotImplementedError

    def _batch(self, entries: Numbers) -> pa.RecordBatch:
        """Their current state; they are in the order of their key groups."""
        raise NotImplementedError
