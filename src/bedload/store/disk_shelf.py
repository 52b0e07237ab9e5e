"""A shelf of keys whose state is on a local disk: it goes as it lies there, and is not decoded on the way.

A batch is in delta form, but in place of the variables it has one column of bytes (:data:`~bedload.store.disk.PACKED`).
Objects that are in memory are encoded alike.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup
from bedload.store.deltas import PUT, REMOVE, delta_batch, key_arrays, spans
from bedload.store.disk import PACKED
from bedload.store.disk_rows import DiskStore
from bedload.store.entries import Numbers
from bedload.store.row_shelf import RowShelf

_BESIDE = 64
"""Bytes of a key beside its state."""


class _Coming(list[Any]):
    """Keys that are read from the disk as they are asked for: slices, one after the other."""

    def __init__(self, keys: Iterator[Any]) -> None:
        super().__init__()
        self._keys = keys
        self._given = 0
        self._ahead = list(islice(keys, 1))

    def __len__(self) -> int:
        """How many have been given; and one more, if there is one."""
        return self._given + len(self._ahead)

    def __iter__(self) -> Iterator[Any]:
        """Those that were not given yet."""
        return chain(self._ahead, self._keys)

    def __getitem__(self, where: Any) -> Any:
        found = [*self._ahead, *islice(self._keys, len(range(*where.indices(sys.maxsize))) - len(self._ahead))]
        self._given += len(found)
        self._ahead = list(islice(self._keys, 1))
        return found


class DiskShelf(RowShelf):
    """Keys of an operator on rows that are on disk."""

    def _held_in(self, group: KeyGroup) -> list[Any]:
        store = self._store_of(group)
        return [] if store is None else _Coming(store.listing())

    def _count(self, group: KeyGroup) -> int:
        # What is on the disk is dropped all at once, under one prefix.
        store = self._store_of(group)
        return 0 if store is None else len(store.rows) if self._selection.admits_all(group) else store.sizes().keys

    def _forget(self, groups: list[KeyGroup], keys: int) -> int:
        for done, group in enumerate(groups):
            if not self._selection.admits_all(group):
                return done + super()._forget(groups[done:], keys)
            if len(self._waiting([group])) and self._wait(group):
                raise ProtocolError("keys were dropped while rows of them wait for the end of the epoch; end it first")
            self._drop([group])
        return len(groups)

    def _weight(self, entries: Numbers) -> int:
        sizes = (len(data) for _, part in self._packed(entries) for data in part if data is not None)
        return sum(sizes) + _BESIDE * len(entries)

    def _batch(self, entries: Numbers) -> pa.RecordBatch:
        packed: list[bytes | None] = []
        for _, part in self._packed(entries):
            packed += part
        ops = np.array([REMOVE if data is None else PUT for data in packed], np.int8)
        keys = key_arrays(self._keys_of(entries), self._types)
        return delta_batch(self.groups[entries], ops, keys, {PACKED: pa.array(packed, pa.binary())})

    def _packed(self, entries: Numbers) -> Iterator[tuple[KeyGroup, list[bytes | None]]]:
        keys = self._keys_of(entries)
        for group, first, end in spans(self.groups[entries]):
            store = self._store_of(group)
            some: list[Any] = keys[first:end]
            yield group, [None] * len(some) if store is None else store.packed(some)

    def _store_of(self, group: KeyGroup) -> DiskStore | None:
        return cast(DiskStore | None, self._stores.get(group))
