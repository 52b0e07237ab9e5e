"""A shelf of keys of an operator on rows: entries are keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup
from bedload.keys import hash_columns
from bedload.state import RecordLayout
from bedload.store.base import KeyGroupStore
from bedload.store.deltas import GROUP, delta_batch, joined, key_arrays, rows_state, sorted_by_group, spans
from bedload.store.entries import Entries, Hashes, Numbers, Unnamed
from bedload.store.resting import RestingStore
from bedload.store.shelf import NO_HASHES, AnyShelf, Flags, Selection

Waiting = Callable[[Collection[KeyGroup]], Hashes]
"""The hashes of the keys in these key groups that have rows which the seal will run."""

_Keys = tuple[list[Any], Hashes, npt.NDArray[np.int16]]
"""Keys, their hashes, their key groups."""


class RowShelf(AnyShelf[list[Any]]):
    """Keys of an operator on rows."""

    def __init__(
        self,
        stores: Mapping[KeyGroup, KeyGroupStore],
        layout: RecordLayout,
        key_types: Sequence[pa.DataType],
        selection: Selection,
        waiting: Waiting,
        drop: Callable[[Iterable[KeyGroup]], None],
    ) -> None:
        expected = sum(stores[group].sizes().keys for group in selection.groups if group in stores)
        entries = Entries(expected) if selection.named else Unnamed(expected)
        super().__init__(selection, entries, max(selection.groups, default=-1) + 1, expected, [])
        self._stores = stores
        self._layout = layout
        self._types = tuple(key_types)
        self._waiting = waiting
        self._drop = drop
        self._keys: list[Any] = []

    def note(self) -> Hashes:
        """The hashes of the touched keys; new ones join the shelf."""
        touched = [
            (group, store.touched_keys())
            for group in self._selection.groups
            if self._begun[group] and (store := self._stores.get(group)) is not None and store.sizes().touched
        ]
        keys, hashes, groups = self._meant(touched)
        known = set(self._keys_of(self._entries.find(hashes)))
        if not known.issuperset(keys):
            new = np.fromiter((key not in known for key in keys), np.bool_, len(keys))
            self._add(list(compress(keys, new)), hashes[new], groups[new])
            self._noted = True
        return np.unique(hashes) if self._entries.any_shared else hashes

    def _held_in(self, group: KeyGroup) -> list[Any]:
        store = self._stores.get(group)
        return [] if store is None else [key for keys in store.scan() for key in keys]

    def _put(self, some: list[Any], group: KeyGroup) -> Hashes:
        if not self.named:
            self._add(some, NO_HASHES, np.full(len(some), group, np.int16))
            return NO_HASHES
        keys, hashes, groups = self._meant([(group, some)])
        # Keys that an epoch made or touched meanwhile may have been noted.
        if self._noted and (known := set(self._keys_of(self._entries.find(hashes)))):
            new = np.fromiter((key not in known for key in keys), np.bool_, len(keys))
            keys, hashes, groups = list(compress(keys, new)), hashes[new], groups[new]
        self._add(keys, hashes, groups)
        store = self._stores.get(group)
        if store is None or not store.sizes().touched:
            return NO_HASHES
        return hashes[np.array(store.touched_among(keys), np.bool_)]

    def _count(self, group: KeyGroup) -> int:
        store = self._stores.get(group)
        return 0 if store is None else store.sizes().keys

    def _forget(self, groups: list[KeyGroup]) -> None:
        groups = [group for group in groups if group in self._stores]
        if len(self._waiting(groups)) and any(map(self._wait, groups)):
            raise ProtocolError("keys were dropped while rows of them wait for the end of the epoch; end it first")
        self._drop(group for group in groups if self._selection.admits_all(group))
        for group in groups:
            if not self._selection.admits_all(group):
                keys, _, _ = self._meant([(group, self._held_in(group))])
                check_untouched(self._stores[group], keys)
                self._stores[group].discard(keys)

    def _wait(self, group: KeyGroup) -> bool:
        """Whether rows of keys that are meant wait for the seal."""
        hashes = self._waiting([group])
        return bool(self._selection.admits(hashes, np.full(len(hashes), group)).any())

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
        resting: list[pa.RecordBatch] = []
        asleep = np.zeros(len(keys), np.bool_)
        for group, first, end in spans(groups):
            store, some = self._stores.get(group), keys[first:end]
            if isinstance(store, RestingStore) and any(flags := store.asleep(some)):
                asleep[first:end] = flags
                resting.append(store.encoded(list(compress(some, flags))))
                some = list(compress(some, (not flag for flag in flags)))
            rows += [None] * len(some) if store is None else store.current(some)
        if not resting:
            return rows_state(self._layout, rows, keys, groups, self._types)
        ops = np.zeros(np.count_nonzero(asleep), np.int8)
        states = joined(resting)
        columns = dict(zip(self._layout.names, states.columns, strict=True))
        batch = delta_batch(groups[asleep], ops, key_arrays(list(compress(keys, asleep)), self._types), columns)
        if not rows:
            return batch
        live = rows_state(self._layout, rows, list(compress(keys, ~asleep)), groups[~asleep], self._types)
        both = joined([batch, live])
        return sorted_by_group(both, both.column(GROUP).to_numpy())

    def _keys_of(self, entries: Numbers) -> list[Any]:
        if len(entries) and entries[-1] - entries[0] == len(entries) - 1 and (np.diff(entries) == 1).all():
            return self._keys[int(entries[0]) : int(entries[-1]) + 1]
        return list(map(self._keys.__getitem__, entries.tolist()))

    def _meant(self, parts: Sequence[tuple[KeyGroup, Sequence[Any]]]) -> _Keys:
        keys = [key for _, part in parts for key in part]
        groups = np.repeat(
            np.array([group for group, _ in parts], np.int16), np.array([len(part) for _, part in parts], np.int64)
        )
        hashes = hash_columns(key_arrays(keys, self._types)) if keys else NO_HASHES
        meant = self._selection.admits(hashes, groups)
        return (keys, hashes, groups) if meant.all() else (list(compress(keys, meant)), hashes[meant], groups[meant])

    def _add(self, keys: Iterable[Any], hashes: Hashes, groups: npt.NDArray[np.int16]) -> None:
        self._keys += keys
        self._entries.add(hashes, groups)


def check_untouched(store: KeyGroupStore, keys: Sequence[Any]) -> None:
    """Raise if an epoch under way has touched one of these keys."""
    if store.sizes().touched and (touched := list(compress(keys, store.touched_among(keys)))):
        raise ProtocolError(
            f"key group {store.group}: {len(touched)} keys were to be replaced or dropped that the epoch under way "
            f"has touched, such as {touched[0]!r}; end the epoch first"
        )
