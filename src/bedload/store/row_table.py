"""All key groups of an operator on rows at one worker: what is done for many of them at once.

Operator code and epochs work on the store of one key group at a time; state comes and goes in batches with keys of many
key groups. Whoever makes the table provides the stores. The table holds them by key group, and has no other state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from bedload.core.errors import ProtocolError, StateTypeError
from bedload.core.ids import KeyGroup, OperatorName
from bedload.keys import freeze_keys
from bedload.state import RecordLayout, codec
from bedload.state.settling import Settling
from bedload.store.base import Changes, KeyGroupStore, MakeStore, Plain, Sizes
from bedload.store.deltas import incoming, installable, key_arrays, plain_columns, rows_delta, spans
from bedload.store.resting import RestingStore, can_rest
from bedload.store.row_shelf import RowShelf, Waiting, check_untouched
from bedload.store.selection import Selection
from bedload.store.shelf import NO_HASHES
from bedload.store.small_delta import SmallDelta

Parts: TypeAlias = list[tuple[KeyGroupStore, list[Any]]]
"""Keys by key group."""

_SAMPLED_GROUPS, _SAMPLED_KEYS = 16, 8
"""How many keys are looked at to say how large all are."""
_GUESS = 64
"""Bytes per key if none could be looked at."""


class RowTable:
    """The stores by key group; :meth:`bind` it first."""

    slots: tuple[str, ...] = ()
    """What the objects of its stores have besides."""
    layout: RecordLayout
    _row: type
    _key_columns: int
    _key_types: tuple[pa.DataType, ...]

    def __init__(self, name: OperatorName, make_store: MakeStore) -> None:
        self._name = name
        self._make_store = make_store
        self.stores: dict[KeyGroup, KeyGroupStore] = {}
        self._delta: SmallDelta | None = None

    def bind(self, layout: RecordLayout, row: type, key_columns: int, key_types: Sequence[pa.DataType]) -> None:
        """New code for the same state, between epochs. Without the types of the key columns no state can leave."""
        if self.stores and set(layout.names) == set(self.layout.names):
            # SUBTLE: new code may declare the variables in another order, and stores have them in that of the old one.
            layout = RecordLayout(sorted(layout.specs, key=lambda spec: self.layout.names.index(spec.name)))
        self.layout, self._row = layout, row
        self._key_columns, self._key_types = key_columns, tuple(key_types)
        if layout.expiries is not None:
            layout.expiries.watch(row)
        for store in self.stores.values():
            store.rebind(row, layout)

    def ready(self, parts: Parts) -> Parts:
        """Operator code is going to touch these keys: have them here."""
        return parts

    # --- epochs ---

    def begin(self, groups: Iterable[KeyGroup]) -> None:
        """An epoch begins."""
        for group in groups:
            self._store(group)
        for store in self.stores.values():
            store.begin()

    def seal(self, results: Callable[[KeyGroupStore], None] | None = None, *, durable: bool = False) -> None:
        """Take in what operator code left. ``results`` is the rest of that code, to be run on each touched key group.

        ``durable`` says that a delta is asked for next: part of that is done on the way.
        """
        typed = len(self._key_types) == self._key_columns  # else the delta says what is wrong
        begun = durable and typed and self.layout.gather is not None
        self._delta = SmallDelta(self.layout, self._key_types) if begun else None
        touched = self._touched()
        # SUBTLE: also where a delta is written next. It leaves out what is equal to what was: 1.0 in place of 1.
        settling = Settling(self.layout)
        if results is not None and not self.layout.scalars_only:
            # SUBTLE: a result may change a container of another key that has rows. What is sealed must not change.
            for store in touched:
                results(store)
            results = None
        # All steps on one key group, then on the next: its objects are in the processor's cache by then.
        for store in touched:
            if results is not None:
                results(store)
            store.seal(settling)
            if self._delta is not None:
                self._delta.add(store.group, store.gather)
        settling.check()

    def changes(self) -> Iterator[Changes]:
        """What the epoch changed, by key group."""
        return (store.changes() for store in self._touched())

    def delta(self) -> pa.RecordBatch | None:
        """What the epoch changed, in delta form."""
        types = self._types("delta can be written")
        if self.layout.gather is None:
            written = [store.written() for store in sorted(self._touched(), key=lambda store: store.group)]
            return rows_delta(self.layout, written, types)
        made, self._delta = self._delta, None
        if made is None:
            made = SmallDelta(self.layout, types)
            for store in self._touched():
                made.add(store.group, store.gather)
        return made.batch()

    def commit(self) -> None:
        """The current state is the committed one."""
        for store in self.stores.values():
            store.commit()

    def abort(self) -> None:
        """Go back to the committed state."""
        self._delta = None
        for store in self.stores.values():
            store.abort()

    # --- state that comes and goes ---

    def install(
        self,
        groups: Collection[KeyGroup],
        state: pa.RecordBatch | None,
        more: Collection[KeyGroup] = (),
        expect: int = 0,
    ) -> None:
        """Put key groups in with this committed state, in state form: new keys, and all that they have but ``more``."""
        for group in groups:
            store = self.stores.get(group)
            if group not in more and store is not None and (store.sizes().keys or store.sizes().touched):
                raise ProtocolError(
                    f"operator {self._name}: key group {group} has state already; drop it before the install"
                )
        begun = {group: self.stores[group] for group in more if group in self.stores}
        new = (group for group in groups if group not in begun)
        stores = begun | {group: self._make_store(group, self.layout, self._row) for group in new}
        if state is not None and state.num_rows:
            found = installable(state, self._key_columns, groups)
            self._put(stores.__getitem__, found.spans, freeze_keys(found.keys), found.state)
        self.stores.update(stores)

    def foresee(self, keys: int, groups: int = 0) -> None:
        """About so many keys will be taken in: each gets its memory when it comes."""

    def take_in(self, state: pa.RecordBatch) -> None:
        """Put whole keys in, in delta form, over what they have; an epoch under way must not have touched them."""
        news = incoming(state, self._key_columns)
        keys, gone = freeze_keys(news.keys), freeze_keys(news.gone_keys)
        put, removed = spans(news.groups), spans(news.gone_groups)
        for parts, of in ((put, keys), (removed, gone)):
            for group, first, end in parts:
                if group in self.stores:
                    check_untouched(self.stores[group], of[first:end])
        self._put(self._store, put, keys, news.state)
        for group, first, end in removed:
            if group in self.stores:
                self.stores[group].discard(gone[first:end])

    def drop(self, groups: Iterable[KeyGroup]) -> None:
        """Forget key groups; an epoch under way must not have touched them."""
        groups = list(groups)
        for group in groups:
            if group in self.stores and self.stores[group].sizes().touched:
                raise ProtocolError(
                    f"operator {self._name}: key group {group} was to be dropped, but the epoch under way has touched "
                    "it; end it first"
                )
        for group in groups:
            self.stores.pop(group, None)

    def shelve(self, selection: Selection, waiting: Waiting = lambda groups: NO_HASHES) -> RowShelf:
        """The keys that are meant, to go elsewhere."""
        return RowShelf(self.stores, self.layout, self._types("key can be moved"), selection, waiting, self.drop)

    # --- seeing it ---

    def read(self, group: KeyGroup, keys: Sequence[Any]) -> list[Plain | None]:
        """The committed state of keys."""
        store = self.stores.get(group)
        return [None] * len(keys) if store is None else store.read(keys)

    def read_encoded(self, group: KeyGroup, keys: Sequence[Any]) -> pa.RecordBatch:
        """The committed state of keys, encoded."""
        return codec.encode(self.layout.specs, [state for state in self.read(group, keys) if state is not None])

    def snapshot(self) -> Iterator[tuple[Any, Plain]]:
        """The committed state of every key."""
        for store in self.stores.values():
            for keys in store.scan():
                yield from _pairs(store, keys)

    def sizes(self) -> Sizes:
        """How much is there."""
        found = [store.sizes() for store in self.stores.values()]
        return Sizes(sum(it.keys for it in found), sum(it.touched for it in found), len(found))

    def image_bytes(self) -> int:
        """Roughly the memory of the before-images."""
        return sum(store.image_bytes() for store in self._touched())

    def keys_in(self, groups: Iterable[KeyGroup]) -> int:
        """Keys with state in these key groups."""
        return sum(self.stores[group].sizes().keys for group in groups if group in self.stores)

    def encoded_bytes(self) -> int:
        """Roughly the encoded size of all state, from the committed state of some keys."""
        held = [store for store in self.stores.values() if store.sizes().keys]
        chosen = np.unique(np.linspace(0, len(held) - 1, _SAMPLED_GROUPS).astype(int)).tolist() if held else []
        seen = [pair for i in chosen for pair in _pairs(held[i], next(held[i].scan())[:_SAMPLED_KEYS])]
        size: float = _GUESS
        if seen:
            with suppress(StateTypeError):  # of what cannot be encoded there is no size
                columns = codec.encode(self.layout.specs, [state for _, state in seen]).columns
                columns += key_arrays([key for key, _ in seen], self._key_types) if self._key_types else []
                size = sum(column.nbytes for column in columns) / len(seen)
        return int(size * sum(store.sizes().keys for store in held))

    # --- steps ---

    def _store(self, group: KeyGroup) -> KeyGroupStore:
        """The store of a key group, made if need be."""
        found = self.stores.get(group)
        if found is None:
            found = self.stores[group] = self._make_store(group, self.layout, self._row)
        return found

    def _put(
        self,
        store_of: Callable[[KeyGroup], KeyGroupStore],
        parts: Sequence[tuple[KeyGroup, int, int]],
        keys: list[Any],
        state: pa.RecordBatch,
    ) -> None:
        """Put keys in by key group: encoded where that can be, else as objects. All that can fail comes first."""
        rests = can_rest(self.layout, state)
        values = {} if rests else plain_columns(self.layout.specs, state)
        for group, first, end in parts:
            store = store_of(group)
            if rests and isinstance(store, RestingStore):
                store.rest(keys[first:end], state.slice(first, end - first))
                continue
            values = values or plain_columns(self.layout.specs, state)
            store.put(keys[first:end], {name: column[first:end] for name, column in values.items()})

    def _touched(self) -> list[KeyGroupStore]:
        return [store for store in self.stores.values() if store.sizes().touched]

    def _types(self, what: str) -> tuple[pa.DataType, ...]:
        if len(self._key_types) != self._key_columns:
            raise ProtocolError(
                f"operator {self._name}: no {what}, because the deployment has {len(self._key_types)} key_types "
                f"for {self._key_columns} key columns; give it one for each"
            )
        return self._key_types


def _pairs(store: KeyGroupStore, keys: Sequence[Any]) -> list[tuple[Any, Plain]]:
    """Those of the keys that have committed state, with it."""
    return [(key, state) for key, state in zip(keys, store.read(keys), strict=True) if state is not None]
