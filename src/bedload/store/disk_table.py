"""All key groups of an operator on rows at one worker, whose state is on a local disk but for what was touched of late.

What is done for many keys at once is done with one call of the disk: keys of a batch are read before operator code
runs, and state that comes is written as it came, if it comes from another worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pyarrow as pa

from bedload.core.errors import LocalDiskError
from bedload.core.ids import KeyGroup, OperatorName
from bedload.core.store_stats import StoreStats
from bedload.state import RecordLayout
from bedload.store.base import KeyGroupStore, MakeStore
from bedload.store.cache import Cache
from bedload.store.deltas import plain_columns
from bedload.store.disk import PACKED, Disk
from bedload.store.disk_rows import DISK_SLOTS, DiskStore, Place
from bedload.store.disk_shelf import DiskShelf
from bedload.store.row_shelf import Waiting
from bedload.store.row_table import Parts, RowTable
from bedload.store.selection import Selection
from bedload.store.shelf import NO_HASHES

_READ = 2048
"""Keys that are read with one call."""


class DiskTable(RowTable):
    """The stores by key group; they share a disk, and with all others of the worker a cache."""

    slots = DISK_SLOTS
    kind = "disk"

    def __init__(self, name: OperatorName, disk: Disk, cache: Cache) -> None:
        place = Place(disk, cache)
        self._set_up(name, place, partial(DiskStore, place=place))

    def _set_up(self, name: OperatorName, place: Place, make: MakeStore) -> None:
        self.place = place
        super().__init__(name, make)
        self._missed = 0
        self._graves: list[DiskStore] = []
        """Stores with many dead keys."""

    def bind(self, layout: RecordLayout, row: type, key_columns: int, key_types: Sequence[pa.DataType]) -> None:
        """New code for the same state, between epochs."""
        super().bind(layout, row, key_columns, key_types)
        self.place.bind(self.layout)

    # --- what operator code runs on ---

    def ready(self, parts: Parts) -> Parts:
        """Operator code is going to touch these keys: make room, and read those that are on the disk."""
        place, cache = self.place, self.place.cache
        wanted = sum(len(keys) for _, keys in parts)
        cache.leave(wanted)  # as much again as may come now, so that it does get less
        asked = [(store, keys) for store, keys in ((_on_disk(it), it_keys) for it, it_keys in parts)]
        unknown = [(store, found) for store, keys in asked if (found := store.unknown(keys))]
        missed = sum(len(keys) for _, keys in unknown)
        place.figures.hits += wanted - missed
        place.figures.misses += missed
        for (store, keys), packed in zip(unknown, self._look_up(unknown), strict=True):
            store.rise(keys, packed)
        return parts

    def _look_up(self, unknown: Sequence[tuple[DiskStore, list[Any]]]) -> Iterator[list[bytes | None]]:
        """What lies there for these keys."""
        names = [store.name(key) for store, keys in unknown for key in keys]
        packed: list[bytes | None] = []
        for start in range(0, len(names), _READ):
            packed += self.place.get(names[start : start + _READ])
        first = 0
        for _, keys in unknown:
            yield packed[first : first + len(keys)]
            first += len(keys)

    # --- epochs ---

    def commit(self) -> None:
        """The current state is the committed one."""
        self.place.cache.now += 1
        super().commit()
        self._graves = [store for store in map(_on_disk, self.stores.values()) if store.overgrown]
        self.place.cache.tidy()

    def begin(self, groups: Iterable[KeyGroup]) -> None:
        """An epoch begins."""
        super().begin(groups)
        self._missed = self.place.figures.misses

    @property
    def misses(self) -> int:
        """Keys that operator code wanted since the epoch began, and that were not in memory."""
        return self.place.figures.misses - self._missed

    @property
    def untidy(self) -> bool:
        """Whether objects should leave memory, dead keys the disk, or what is gone the lists."""
        cache = self.place.cache
        return bool(self._graves) or cache.littered or (cache.over and not cache.stuck)

    def tidy_disk(self) -> None:
        """Do a little of that. What cannot be written stays for now."""
        with suppress(LocalDiskError):
            if self._graves:
                store = self._graves.pop()
                dead = store.dead()
                self.place.write([], map(store.name, dead))
                store.cleared(dead)
                if store.overgrown:
                    self._graves.append(store)
            elif self.place.cache.littered:
                self.place.cache.clear_some()
            else:
                self.place.cache.make_room(1)

    # --- state that comes and goes ---

    def install(
        self,
        groups: Collection[KeyGroup],
        state: pa.RecordBatch | None,
        more: Collection[KeyGroup] = (),
        expect: int = 0,
    ) -> None:
        """Put key groups in with this committed state."""
        before = [self.stores[group] for group in groups if group in self.stores and group not in more]
        super().install(groups, state, more, expect)
        _give_up(before)

    def drop(self, groups: Iterable[KeyGroup]) -> None:
        """Forget key groups; an epoch under way must not have touched them."""
        groups = list(groups)
        going = [self.stores[group] for group in groups if group in self.stores]
        super().drop(groups)
        _give_up(going)

    def give_up(self) -> None:
        """All of it is forgotten, and the disk is nobody's."""
        _give_up(self.stores.values())
        self.stores.clear()
        self.place.disk.close()

    def shelve(self, selection: Selection, waiting: Waiting = lambda groups: NO_HASHES) -> DiskShelf:
        """The keys that are meant, to go elsewhere."""
        return DiskShelf(self.stores, self.layout, self._types("key can be moved"), selection, waiting, self.drop)

    def _put(
        self,
        store_of: Callable[[KeyGroup], KeyGroupStore],
        parts: Sequence[tuple[KeyGroup, int, int]],
        keys: list[Any],
        state: pa.RecordBatch,
    ) -> None:
        """Put keys in by key group: all on the disk at once. All that can fail comes first."""
        place, values = self.place, dict[str, list[Any]]()
        indexed = self.layout.timed or self.layout.expiries is not None
        if PACKED in state.schema.names:
            packed = state.column(PACKED).to_pylist()
            if indexed:
                values = place.packing.values(packed)
        else:
            values = plain_columns(self.layout.specs, state)
            if self.layout.expiries is not None:
                self.layout.expiries.pair(values)
            packed = place.packing.of_columns(values, state.num_rows)
        found = [(_on_disk(store_of(group)), first, end) for group, first, end in parts]
        self._lay([(store, keys[first:end], packed[first:end]) for store, first, end in found])
        if indexed:
            for store, first, end in found:
                store.point(keys[first:end], {name: column[first:end] for name, column in values.items()})

    def _lay(self, found: Sequence[tuple[DiskStore, list[Any], list[bytes]]]) -> None:
        """Put keys there as committed state."""
        before = [len(store.existing(keys)) for store, keys, _ in found]
        names = [(store.name(key), data) for store, keys, some in found for key, data in zip(keys, some, strict=True)]
        self.place.write(names)
        for (store, keys, _), there in zip(found, before, strict=True):
            store.laid(keys, there)

    # --- seeing it ---

    def stats(self) -> StoreStats:
        """What is there, and what was done."""
        it, place = self.place.figures, self.place
        return StoreStats(
            keys=self.sizes().keys,
            store=self.kind,
            memory_keys=sum(len(store.rows) for store in map(_on_disk, self.stores.values())),
            memory_bytes=place.memory,
            disk_bytes=self._size(),
            hits=it.hits,
            misses=it.misses,
            reads=it.read,
            read_bytes=it.read_bytes,
            evictions=it.evicted,
            writes=it.written,
            written_bytes=it.written_bytes,
        )

    def _size(self) -> int:
        """About the bytes that are not in memory."""
        return self.place.disk.size()


def _on_disk(store: KeyGroupStore) -> DiskStore:
    return cast(DiskStore, store)


def _give_up(stores: Iterable[KeyGroupStore]) -> None:
    for store in map(_on_disk, stores):
        with suppress(LocalDiskError):  # what is left under its prefix is nobody's
            store.give_up()
