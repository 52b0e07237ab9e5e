"""A shelf of keys of an operator on rows: entries are keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup
from bedload.keys import hash_columns
from bedload.keys.lookup import distinct
from bedload.state import RecordLayout
from bedload.state.arrays import ArrayNode
from bedload.state.number_columns import NumberColumns
from bedload.state.patches import is_small
from bedload.state.weight import has_width, weigher, weight_of
from bedload.store.base import KeyGroupStore
from bedload.store.deltas import GROUP, delta_batch, joined, key_arrays, rows_state, sorted_by_group, spans
from bedload.store.entries import Entries, Hashes, Numbers, Unnamed
from bedload.store.resting import RestingStore
from bedload.store.selection import Flags, Selection
from bedload.store.shelf import NO_HASHES, AnyShelf

Waiting = Callable[[Collection[KeyGroup]], Hashes]
"""The hashes of the keys in these key groups that have rows which the seal will run."""

_key_of = attrgetter("_bedload_key")
_FIXED = 16
"""Bytes of a small value."""

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
        self._numbers = NumberColumns(layout.specs)
        self._types = tuple(key_types)
        self._long_keys = not all(map(has_width, self._types))
        large = [it for it in layout.specs if not (is_small(it.type) or isinstance(it.type, ArrayNode))]
        self._weighers = [(attrgetter(spec.name), weigher(spec.type)) for spec in large]
        self._each_bytes = _FIXED * (1 + len(self._types) + len(layout.specs)) + layout.array_bytes
        self._waiting = waiting
        self._drop = drop
        self._keys: list[Any] = []
        self._unnoted: list[tuple[KeyGroup, list[Any]]] = []
        """Objects that sealed epochs have touched, by key group."""
        self._undiscarded: list[Any] = []
        """Keys of the key group that is being dropped, where that takes several steps."""

    def sealed(self) -> None:
        """An epoch is sealed: what it touched has to be noted."""
        for group in self._selection.groups:
            store = self._stores.get(group)
            if self._begun[group] and store is not None and store.sizes().touched:
                self._unnoted.append((group, store.touched()))

    @property
    def unnoted(self) -> int:
        """So many objects have to be looked at."""
        return sum(len(objs) for _, objs in self._unnoted)

    def note_some(self, keys: int) -> Hashes:
        """The hashes of so many touched keys; new ones join the shelf."""
        parts: list[tuple[KeyGroup, list[Any]]] = []
        while self._unnoted and keys > 0:
            group, objs = self._unnoted[-1]
            parts.append((group, list(map(_key_of, objs[-keys:]))))
            del objs[-keys:]
            keys -= len(parts[-1][1])
            if not objs:
                self._unnoted.pop()
        touched, hashes, groups = self._meant(parts)
        known = set(self._keys_of(self._entries.find(hashes, groups)))
        if not known.issuperset(touched):
            # SUBTLE: a key may be named twice, as one that was removed and made again, or of two epochs.
            new = {key: i for i, key in enumerate(touched) if key not in known}
            places = np.fromiter(new.values(), np.int64, len(new))
            self._add(new, hashes[places], groups[places])
            self._noted = True
        return distinct(hashes) if self._entries.any_shared else hashes

    def _held_in(self, group: KeyGroup) -> list[Any]:
        store = self._stores.get(group)
        return [] if store is None else list(chain.from_iterable(store.scan()))

    def _put(self, some: list[Any], group: KeyGroup) -> Hashes:
        if not self.named:
            self._add(some, NO_HASHES, np.full(len(some), group, np.int16))
            return NO_HASHES
        keys, hashes, groups = self._meant([(group, some)])
        # Keys that an epoch made or touched meanwhile may have been noted.
        if self._noted and (known := set(self._keys_of(self._entries.find(hashes, groups)))):
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

    def let_go(self, keys: int) -> bool:
        """Give back what it takes for so many keys; whether that was all."""
        del self._keys[-keys:]
        return not self._keys

    def _forget(self, groups: list[KeyGroup], keys: int) -> int:
        groups_here = [group for group in groups if group in self._stores]
        if len(self._waiting(groups_here)) and any(map(self._wait, groups_here)):
            raise ProtocolError("keys were dropped while rows of them wait for the end of the epoch; end it first")
        for done, group in enumerate(groups):
            store, whole = self._stores.get(group), self._selection.admits_all(group)
            if store is None:
                continue
            if not whole or store.sizes().keys > keys:
                if not self._undiscarded:
                    self._undiscarded = [*self._held_in(group)]
                some = self._undiscarded[-keys:]
                if not whole:
                    some, _, _ = self._meant([(group, some)])
                check_untouched(store, some)
                store.discard(some)
                del self._undiscarded[-keys:]
                if self._undiscarded:
                    return done
            if whole:
                self._drop([group])
                self._undiscarded = []  # SUBTLE: a group that was large is dropped at once when few keys are left of it
        return len(groups)

    def _wait(self, group: KeyGroup) -> bool:
        """Whether rows of keys that are meant wait for the seal."""
        hashes = self._waiting([group])
        return bool(self._selection.admits(hashes, np.full(len(hashes), group)).any())

    @property
    def _most_each(self) -> float:
        return math.inf if self._long_keys or self._weighers else self._each_bytes

    def _weight(self, entries: Numbers) -> int:
        keys = self._keys_of(entries)
        total = self._each_bytes * len(keys)
        if self._long_keys:
            total += weight_of(keys)
        if self._weighers:
            for group, first, end in spans(self.groups[entries]):
                store = self._stores.get(group)
                rows = [] if store is None else [row for row in store.current(keys[first:end]) if row is not None]
                total += sum(weigh(list(map(get, rows))) for get, weigh in self._weighers)
        return total

    def _key(self, entries: Numbers) -> Any:
        return self._keys[int(entries[0])]

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
            return rows_state(self._layout, self._numbers, rows, keys, groups, self._types)
        ops = np.zeros(np.count_nonzero(asleep), np.int8)
        states = joined(resting)
        columns = dict(zip(self._layout.names, states.columns, strict=True))
        batch = delta_batch(groups[asleep], ops, key_arrays(list(compress(keys, asleep)), self._types), columns)
        if not rows:
            return batch
        live = rows_state(
            self._layout, self._numbers, rows, list(compress(keys, ~asleep)), groups[~asleep], self._types
        )
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
