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

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup
from bedload.keys import hash_columns
from bedload.keys.lookup import among
from bedload.state import RecordLayout
from bedload.store.deltas import key_arrays, rows_state, spans
from bedload.store.entries import Entries, Hashes, Numbers
from bedload.store.rows import RowStore

Flags = npt.NDArray[np.bool_]
Collected = tuple[pa.RecordBatch | None, Hashes]
"""State in delta form, PUT and REMOVE rows alone, and the hashes that were left out."""

NO_HASHES: Hashes = np.empty(0, np.int64)
_SAMPLE = 32
"""Keys to look at for a first estimate of their size."""
_GUESS = 64.0
"""Bytes per key when none can be looked at."""


def key_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """The hash of each key, by which keys are named."""
    return hash_columns(columns)


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


_Keys = tuple[list[Any], Hashes, npt.NDArray[np.int16]]
"""Keys, their hashes, their key groups."""


class RowShelf(AnyShelf):
    """Keys of an operator on rows. ``waiting`` gives the hashes of rows that the seal will run."""

    def __init__(
        self,
        stores: Mapping[KeyGroup, RowStore],
        layout: RecordLayout,
        key_types: Sequence[pa.DataType],
        selection: Selection,
        waiting: Callable[[Collection[KeyGroup]], Hashes],
    ) -> None:
        super().__init__(selection, Entries())
        self._stores = stores
        self._layout = layout
        self._types = tuple(key_types)
        self._waiting = waiting
        self._keys: list[Any] = []
        self._add(*self._meant([(group, stores[group].all_keys()) for group in selection.groups if group in stores]))

    def note(self) -> Hashes:
        """The hashes of the touched keys; new ones join the shelf."""
        touched = [
            (group, store.touched_keys())
            for group in self._selection.groups
            if (store := self._stores.get(group)) is not None and store.sizes().touched
        ]
        keys, hashes, groups = self._meant(touched)
        known = set(self._keys_of(self._entries.find(hashes)))
        if not known.issuperset(keys):
            new = np.fromiter((key not in known for key in keys), np.bool_, len(keys))
            self._add(list(compress(keys, new)), hashes[new], groups[new])
        return np.unique(hashes) if self._entries.any_shared else hashes

    def drop(self) -> None:
        """Forget the keys in the stores."""
        entries = np.argsort(self.groups, kind="stable")
        keys = self._keys_of(entries)
        parts = [
            (store, keys[first:end])
            for group, first, end in spans(self.groups[entries])
            if (store := self._stores.get(group)) is not None
        ]
        for store, part in parts:
            store.check_untouched(part)
        waiting = self._waiting(self._selection.groups)
        if len(self._entries.find(waiting)):
            raise ProtocolError("keys were dropped while rows of them wait for the end of the epoch; end it first")
        for store, part in parts:
            store.discard(part)
        self._keys, self._entries = [], Entries()

    def _held(self, entries: Numbers) -> Flags | None:
        open_groups = {
            group for group in self._selection.groups if (store := self._stores.get(group)) is not None and store.open
        }
        if not open_groups:
            return None
        held = np.zeros(len(entries), np.bool_)
        for group, first, end in spans(self.groups[entries]):
            if group in open_groups:
                held[first:end] = self._stores[group].touched_among(self._keys_of(entries[first:end]))
        return held

    def _batch(self, entries: Numbers) -> pa.RecordBatch:
        rows: list[Any] = []
        keys, groups = self._keys_of(entries), self.groups[entries]
        for group, first, end in spans(groups):
            store = self._stores.get(group)
            rows += [None] * (end - first) if store is None else store.rows_of(keys[first:end])
        return rows_state(self._layout, rows, keys, groups, self._types)

    def _keys_of(self, entries: Numbers) -> list[Any]:
        if len(entries) and entries[-1] - entries[0] == len(entries) - 1 and (np.diff(entries) == 1).all():
            return self._keys[int(entries[0]) : int(entries[-1]) + 1]
        return list(map(self._keys.__getitem__, entries.tolist()))

    def _meant(self, parts: Sequence[tuple[KeyGroup, Sequence[Any]]]) -> _Keys:
        keys = [key for _, part in parts for key in part]
        groups = np.repeat(
            np.array([group for group, _ in parts], np.int16), np.array([len(part) for _, part in parts], np.int64)
        )
        hashes = key_hashes(key_arrays(keys, self._types)) if keys else NO_HASHES
        meant = self._selection.admits(hashes)
        return (keys, hashes, groups) if meant.all() else (list(compress(keys, meant)), hashes[meant], groups[meant])

    def _add(self, keys: list[Any], hashes: Hashes, groups: npt.NDArray[np.int16]) -> None:
        self._keys += keys
        self._entries.add(hashes, groups)
