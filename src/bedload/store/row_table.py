"""All key groups of an operator on rows at one worker: what is done by many groups at once.

It is a dict of :class:`~bedload.store.rows.RowStore`, the counterpart of a
:class:`~bedload.store.columns.table.ColumnTable`. Operator code and epochs go by key group; state that comes or goes
does so by batches that have keys of many.

Invariant: state that comes in is committed state, whatever becomes of an epoch under way; if it does not fit, nothing
of it has come in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from bedload.core.errors import ProtocolError, StateTypeError
from bedload.core.ids import KeyGroup, OperatorName
from bedload.keys import freeze_keys
from bedload.state import RecordLayout, codec
from bedload.store.deltas import incoming, installable, key_arrays, plain_columns, spans
from bedload.store.entries import Hashes
from bedload.store.rows import RowStore
from bedload.store.shelf import RowShelf, Selection

_SAMPLED_GROUPS, _SAMPLED_KEYS = 16, 8
"""How many keys are looked at to say how large all are."""
_GUESS = 64
"""Bytes per key if none could be looked at."""


class RowTable(dict[KeyGroup, RowStore]):
    """The stores by key group."""

    layout: RecordLayout
    _row: type

    def __init__(self, name: OperatorName) -> None:
        super().__init__()
        self._name = name

    def bind(self, layout: RecordLayout, row: type) -> None:
        """New code for the same state, between epochs."""
        self.layout, self._row = layout, row
        for store in self.values():
            store.rebind(row)

    def store(self, group: KeyGroup) -> RowStore:
        """The store of a key group, made if need be."""
        found = self.get(group)
        if found is None:
            found = self[group] = RowStore(group, self.layout, self._row)
        return found

    # --- state that comes and goes ---

    def install(self, groups: Collection[KeyGroup], state: pa.RecordBatch | None, key_columns: int) -> None:
        """Put key groups in with this committed state, in state form. They must have none yet."""
        for group in groups:
            store = self.get(group)
            if store is not None and any(store.sizes()):
                raise ProtocolError(
                    f"operator {self._name}: key group {group} has state already; drop it before the install"
                )
        stores = {group: RowStore(group, self.layout, self._row) for group in groups}
        if state is not None and state.num_rows:
            found = installable(state, key_columns, groups)
            keys, values = freeze_keys(found.keys), plain_columns(self.layout.specs, found.state)
            for group, first, end in spans(found.groups):
                stores[group].load(keys[first:end], {name: column[first:end] for name, column in values.items()})
        self.update(stores)

    def take_in(self, state: pa.RecordBatch, key_columns: int) -> None:
        """Put whole keys in, in delta form, over what they have; an epoch under way must not have touched them."""
        news = incoming(state, key_columns)
        keys, gone = freeze_keys(news.keys), freeze_keys(news.gone_keys)
        values = plain_columns(self.layout.specs, news.state)
        put, removed = spans(news.groups), spans(news.gone_groups)
        for parts, of in ((put, keys), (removed, gone)):
            for group, first, end in parts:
                if group in self:
                    self[group].check_untouched(of[first:end])
        for group, first, end in put:
            self.store(group).put(keys[first:end], {name: column[first:end] for name, column in values.items()})
        for group, first, end in removed:
            if group in self:
                self[group].discard(gone[first:end])

    def drop(self, groups: Iterable[KeyGroup]) -> None:
        """Forget key groups; an epoch under way must not have touched them."""
        groups = list(groups)
        for group in groups:
            if group in self and self[group].sizes().touched:
                raise ProtocolError(
                    f"operator {self._name}: key group {group} was to be dropped, but the epoch under way has touched "
                    "it; end it first"
                )
        for group in groups:
            self.pop(group, None)

    def shelve(
        self,
        selection: Selection,
        key_types: Sequence[pa.DataType],
        waiting: Callable[[Collection[KeyGroup]], Hashes],
    ) -> RowShelf:
        """The keys that are meant, to go elsewhere."""
        return RowShelf(self, self.layout, key_types, selection, waiting)

    # --- seeing it ---

    @property
    def touched(self) -> int:
        """Keys that the epoch has touched."""
        return sum(store.sizes().touched for store in self.values())

    def image_bytes(self) -> int:
        """Roughly the memory of the before-images."""
        return sum(store.image_bytes() for store in self.values() if store.sizes().touched)

    def keys_in(self, groups: Iterable[KeyGroup]) -> int:
        """Keys with state in these key groups."""
        return sum(self[group].sizes().keys for group in groups if group in self)

    def nbytes(self, key_types: Sequence[pa.DataType]) -> int:
        """Roughly the encoded size of all state, from the committed state of some keys."""
        held = [store for store in self.values() if store.sizes().keys]
        chosen = np.unique(np.linspace(0, len(held) - 1, _SAMPLED_GROUPS).astype(int)).tolist() if held else []
        seen = [pair for i in chosen for pair in held[i].sample(_SAMPLED_KEYS)]
        size: float = _GUESS
        if seen:
            with suppress(StateTypeError):  # of what cannot be encoded there is no size
                columns = codec.encode(self.layout.specs, [state for _, state in seen]).columns
                columns += key_arrays([key for key, _ in seen], key_types) if key_types else []
                size = sum(column.nbytes for column in columns) / len(seen)
        return int(size * sum(store.sizes().keys for store in held))
