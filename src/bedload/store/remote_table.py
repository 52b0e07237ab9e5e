"""All key groups of an operator on rows at one worker, whose state is in a remote store.

What is done for many key groups is done with few calls: keys of a batch are read together before operator code runs,
and a seal writes what the epoch has changed in all key groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

import pyarrow as pa

from bedload.core.errors import ProtocolError, RemoteStoreError
from bedload.core.ids import KeyGroup, OperatorName, Turn
from bedload.state import RecordLayout
from bedload.store import remote
from bedload.store.base import KeyGroupStore
from bedload.store.cache import Cache
from bedload.store.disk_rows import DiskStore
from bedload.store.disk_table import DiskTable
from bedload.store.remote import Remote, Stamp, stamp_of
from bedload.store.remote_rows import RemotePlace, RemoteStore, lay, look_up_all, settle
from bedload.store.remote_shelf import RemoteShelf
from bedload.store.row_shelf import Waiting
from bedload.store.row_table import Parts
from bedload.store.selection import Selection
from bedload.store.shelf import NO_HASHES

_TOGETHER = 1 << 22
"""About the bytes of what is written together."""
_DROPPED = 64
"""Places that are dropped together."""


class Moved(NamedTuple):
    """Where the state of a key group is that passes on to another worker."""

    place: bytes
    stamp: Stamp


class RemoteTable(DiskTable):
    """The stores by key group; they share a connection, and with all others of the worker a cache."""

    kind = "redis"
    place: RemotePlace

    def __init__(self, name: OperatorName, there: Remote, cache: Cache) -> None:
        place = RemotePlace(there, cache)
        self._set_up(name, place, partial(RemoteStore, place=place))
        self._running: frozenset[KeyGroup] = frozenset()
        """Those of the epoch under way."""
        self._litter: list[tuple[bytes, KeyGroup]] = []
        """Places that nobody needs."""

    def bind(self, layout: RecordLayout, row: type, key_columns: int, key_types: Sequence[pa.DataType]) -> None:
        """New code for the same state, between epochs."""
        super().bind(layout, row, key_columns, key_types)
        self.place.bind(self.layout, key_types)

    # --- turns ---

    def stand(self, turn: Turn, base: Turn, owned: Collection[KeyGroup]) -> None:
        """A turn begins, which builds upon that one; these key groups are the worker's own."""
        self.place.latest = max(self.place.latest, stamp_of(turn))
        self.place.base, self.place.owned = stamp_of(base), owned

    def begin(self, groups: Iterable[KeyGroup]) -> None:
        """An epoch begins."""
        self._running = frozenset(groups)
        super().begin(self._running)

    def ready(self, parts: Parts) -> Parts:
        """Operator code is going to touch these keys: make room, and read those that are not in memory."""
        settle(_remote(store) for store, _ in parts)
        return super().ready(parts)

    def _look_up(self, unknown: Sequence[tuple[DiskStore, list[Any]]]) -> Iterator[list[bytes | None]]:
        yield from look_up_all([(_remote(store), keys) for store, keys in unknown])

    def write(self, turn: Turn, whole: Callable[[KeyGroup], bool]) -> None:
        """Write what the epoch under way has changed; after the seal. ``whole``: of which key groups all is here.

        Raises RemoteStoreError: abort then. All key groups of the worker stand at that turn then, changed or not.
        """
        stores = [_remote(self.stores[group]) for group in sorted(self._running) if group in self.stores]
        settle(stores)
        sealed, orders, of, size = list[RemoteStore](), list[list[Any]](), list[RemoteStore](), 0
        at, before = stamp_of(turn), self.place.base
        for store in stores:
            complete = whole(store.group)
            if not (complete or store.sizes().touched):
                continue
            sealed.append(store)
            for order in store.seals(at, before, whole=complete):
                orders.append(order)
                of.append(store)
                size += sum(map(len, order[-2]))
                if size >= _TOGETHER:
                    self._written(orders, of)
                    orders, of, size = [], [], 0
        self._written(orders, of)
        for store in sealed:
            store.expected = at

    def _written(self, orders: list[list[Any]], of: list[RemoteStore]) -> None:
        for store, answer in zip(of, self.place.follow(orders), strict=True):
            if answer[0] != b"ok":
                raise self.place.refused(store, answer)

    def commit(self) -> None:
        """The current state is the committed one."""
        for store in self.stores.values():
            if store.sizes().touched and _remote(store).back is None:
                raise ProtocolError(f"operator {self._name}: key group {store.group} was not written, and committed")
        super().commit()

    # --- state that comes and goes ---

    def find(self, groups: Collection[KeyGroup], base: Turn, latest: Turn) -> list[KeyGroup]:
        """Take over what is there of these key groups as of a turn; which ones. ``latest``: no later turn counts."""
        place = self.place
        groups = groups if self.by_place else ()
        place.base, place.latest = stamp_of(base), max(place.latest, stamp_of(latest))
        waiting, found = sorted(groups), list[KeyGroup]()
        while waiting:
            orders = [
                remote.find(
                    place.whose(group, owned=True), place.remote.owner, place.base, stamp_of(latest), place.shape
                )
                for group in waiting
            ]
            left = []
            for group, answer in zip(waiting, place.follow(orders), strict=True):
                if answer[0] == b"more":
                    left.append(group)
                elif answer[0] == b"ok":
                    self._moved_in(group, answer[1], place.base, answer[2])
                    found.append(group)
            waiting = left
        return found

    @property
    def by_place(self) -> bool:
        """Whether key groups can pass on where they are. What has times has an index of them in memory."""
        return not (self.layout.timed or self.layout.expiries is not None)

    def places(self, groups: Iterable[KeyGroup]) -> dict[KeyGroup, Moved]:
        """Where the state of key groups is, for whoever owns them next: it is forgotten here. Between epochs."""
        stores = [_remote(self.stores[group]) for group in groups if group in self.stores]
        settle(stores)
        found = {store.group: Moved(store.at, store.expected) for store in stores if store.at is not None}
        for store in stores:
            store.owned = True  # by somebody
        self.drop(store.group for store in stores)
        return found

    def adopt(self, places: Mapping[KeyGroup, Moved]) -> None:
        """Another worker has handed these over."""
        new = {group: moved for group, moved in places.items() if not self._has(group, moved)}
        # SUBTLE: a key that lived here as a guest of its key group is here already.
        mixed = {group for group in new if group in self.stores and not _remote(self.stores[group]).empty()}
        orders = [remote.take(moved.place, self.place.remote.owner, moved.stamp) for moved in new.values()]
        answers = self.place.follow(orders)
        for group, answer in zip(new, answers, strict=True):
            if answer[0] != b"ok":
                raise RemoteStoreError(
                    f"operator {self._name}: the state of key group {group} is not there as it was handed over "
                    f"({answer[0].decode()})"
                )
        for (group, moved), answer in zip(new.items(), answers, strict=True):
            if group in mixed:
                self._pour(group, moved)
            else:
                self._moved_in(group, moved.place, moved.stamp, answer[1])

    def _has(self, group: KeyGroup, moved: Moved) -> bool:
        """Whether it was said before: it is said again after a connection broke."""
        store = self.stores.get(group)
        return store is not None and _remote(store).at == moved.place

    def _pour(self, group: KeyGroup, moved: Moved) -> None:
        """Put what is in a place to the keys of the key group that are here."""
        store, there = _remote(self.stores[group]), cast(RemoteStore, self._make_store(group, self.layout, self._row))
        there.moved_in(moved.place, moved.stamp, 1)
        here = set(store.listing())
        keys = [key for key in there.listing() if key not in here]
        found = zip(keys, there.look_up(keys), strict=True)
        state = {key: data for key, data in found if data is not None}
        lay([(store, list(state), list(state.values()))])

    def _moved_in(self, group: KeyGroup, at: bytes, stamp: Stamp, keys: int) -> None:
        store = self.stores[group] = cast(RemoteStore, self._make_store(group, self.layout, self._row))
        store.moved_in(at, stamp, keys)

    def drop(self, groups: Iterable[KeyGroup]) -> None:
        """Forget key groups; what is there stays, unless nobody else can know of it."""
        groups = list(groups)
        going = [_remote(self.stores[group]) for group in groups if group in self.stores]
        super().drop(groups)
        self._litter += [(store.at, store.group) for store in going if store.at is not None and not store.owned]

    def give_up(self) -> None:
        """All of it is forgotten."""
        for store in self.stores.values():
            _remote(store).give_up()
        self.stores.clear()
        self.place.remote.close()

    def shelve(self, selection: Selection, waiting: Waiting = lambda groups: NO_HASHES) -> RemoteShelf:
        """The keys that are meant, to go elsewhere."""
        return RemoteShelf(self, self._types("key can be moved"), selection, waiting)

    def _lay(self, found: Sequence[tuple[DiskStore, list[Any], list[bytes]]]) -> None:
        lay([(_remote(store), keys, packed) for store, keys, packed in found])

    # --- in between ---

    @property
    def untidy(self) -> bool:
        """Whether objects should leave memory, or places the store."""
        return bool(self._litter) or super().untidy

    def tidy_disk(self) -> None:
        """Do a little of that. What cannot be dropped stays."""
        if not self._litter:
            super().tidy_disk()
            return
        some, self._litter = self._litter[:_DROPPED], self._litter[_DROPPED:]
        place = self.place
        with suppress(RemoteStoreError):
            place.follow([remote.drop(at, place.whose(group, owned=False), place.remote.owner) for at, group in some])

    def _size(self) -> int:
        try:
            return self.place.remote.size()
        except RemoteStoreError:
            return 0


def _remote(store: KeyGroupStore) -> RemoteStore:
    return cast(RemoteStore, store)
