"""State in columns as every layout has it: keys and values that come, go and are seen, over the slots of a table.

How operator code reaches the slots is in :class:`~bedload.store.columns.slot_table.SlotTable`. All key groups share
their epochs, and an entry of the changes is a whole row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup
from bedload.keys import canonical_key, freeze_keys
from bedload.store.base import SLICE, Changes, Plain, Sizes
from bedload.store.columns.bare_shelf import BareShelf
from bedload.store.columns.index import Flags, Slots
from bedload.store.columns.shelf import ColumnShelf
from bedload.store.columns.slot_table import SlotTable
from bedload.store.columns.times import Times
from bedload.store.deltas import PUT, REMOVE, Installable, delta_batch, incoming, installable
from bedload.store.selection import Selection

_SAMPLED_GROUPS, _SAMPLED_KEYS, _SAMPLED_PLACES = 4, 64, 1024
"""How many keys are looked at to say how large all are."""


class ColumnTable(SlotTable):
    """The state of one operator on columns at one worker."""

    # --- times at which something is due ---

    def touch(self, slots: Slots) -> None:
        """Take the before-images of keys that are there, each once: they may be written now."""
        known = len(self.index.touched)
        self.sealed = False
        self.index.touch(slots)
        self._take_images(known)

    def renew(self, slots: Slots) -> None:
        """Have located keys start again, as new ones."""
        if len(slots):
            self.delete(slots)
            self._revive(slots)

    def reset(self, slots: Slots, name: str) -> None:
        """Have one column of located slots hold what a new key does."""
        for array in self._columns[name].arrays:
            array.start(slots)

    def times(self, name: str) -> Times:
        """A column of times at which something is due. Those of located slots may be written with ``put``."""
        return self._times[name]

    def next_due(self, names: Iterable[str], groups: Collection[KeyGroup]) -> dict[str, int]:
        """Before when nothing in these columns of times is due, of the keys of these key groups."""
        used = self.index.used_groups()
        if np.isin(used, list(groups)).all():
            return {name: self._times[name].next for name in names}
        blocks = np.isin(self.index.group_of(np.arange(0, self.index.capacity, self.index.block)), list(groups))
        return {name: self._times[name].next_of(blocks) for name in names}

    # --- epochs ---

    def begin(self, groups: Iterable[KeyGroup]) -> None:
        """Check that the last epoch was ended; key groups need no place of their own."""
        if len(self.index.touched):
            raise ProtocolError("the columns of an epoch that has not ended cannot be replaced")

    def changes(self) -> Iterator[Changes]:
        """The changed keys by key group, each with its whole row."""
        changed, created, removed = self.changed(), self.created(), self.removed()
        for group in np.unique(self.index.group_of(self.index.touched)).tolist():
            mine, made, gone = (it[self.index.group_of(it) == group] for it in (changed, created, removed))
            entries = dict(zip(self._frozen(mine), self.current(mine).to_pylist(), strict=True))
            yield Changes(KeyGroup(group), entries, frozenset(self._frozen(made)), tuple(self._frozen(gone)))

    def delta(self) -> pa.RecordBatch | None:
        """What the epoch changed, in delta form; None if nothing."""
        changed, removed = self.changed(), self.removed()
        slots = np.concatenate((changed, removed)) if len(removed) else changed
        if not len(slots):
            return None
        groups = self.index.group_of(slots).astype(np.int16)
        order = np.argsort(groups, kind="stable")
        slots, groups = slots[order], groups[order]
        ops = np.full(len(slots), PUT, np.int8)
        if len(removed):
            gone = order >= len(changed)
            ops[gone] = REMOVE
            state = self.current(slots[~gone]).take(pa.array(np.cumsum(~gone) - 1, mask=gone))
        else:
            state = self.current(slots)
        return delta_batch(groups, ops, self.keys(slots), dict(zip(self._columns, state.columns, strict=True)))

    def created(self) -> Slots:
        """Slots of the keys that exist and that this epoch made, or deleted and made again."""
        index, count = self.index, len(self.index.touched)
        made: Flags = index.fresh | self._remade.array[:count]
        made &= ~self._deleted.array[:count]
        return index.touched[made]

    def removed(self) -> Slots:
        """Slots of the committed keys that this epoch deleted."""
        touched, fresh = self.index.touched, self.index.fresh
        return touched[self._deleted.array[: len(touched)] & ~fresh]

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
            if self.index.count(group) and group not in more:
                raise ProtocolError(f"key group {group} has state already; drop it before the install")
        if state is not None and state.num_rows:
            found = installable(state, len(self.words.types), groups)
            self.add(found, expect)

    def add(self, found: Installable, expect: int = 0) -> None:
        """Put keys in as committed state that are new: less work than :meth:`put`, and if it raises, none is there.

        Live arrays may be replaced.
        """
        prepared, words = self._prepared(found.state), self.words.encode(found.keys)
        try:
            slots = self.index.insert(words, np.array(found.spans, np.int64), expect)
            if slots is None:
                raise ProtocolError("a key was put in that is there already, or twice")
        except BaseException:
            self.words.gone(len(words))
            raise
        finally:
            self._make_room()
        self._fill(slots, prepared)

    def foresee(self, keys: int, groups: int = 0) -> None:
        """About so many keys will be taken in: their memory will be of huge pages, if there are any.

        If it is known of how many key groups they are, a key group will have room for all of its keys when it comes.
        """
        self.index.foresee(keys, groups)
        self.words.foresee(keys)
        for array in self._values:
            array.foresee(self.index.capacity + keys)

    def take_in(self, state: pa.RecordBatch) -> None:
        """Put whole keys in, in delta form, over what they have; an epoch under way must not have touched them.

        Live arrays may be replaced.
        """
        news = incoming(state, len(self.words.types))
        gone = self.find_any(news.gone_keys, news.gone_groups)
        gone = gone[gone >= 0]
        self.check_untouched(gone)
        if len(news.groups):
            self.put(news.keys, news.groups, news.state)
        self.discard(gone)

    def shelve(self, selection: Selection) -> ColumnShelf | BareShelf:
        """The keys that are meant, to go elsewhere."""
        return ColumnShelf(self, selection) if selection.named else BareShelf(self, selection)

    # --- seeing it ---

    def read(self, group: KeyGroup, keys: Sequence[Any]) -> list[Plain | None]:
        """The committed state of keys."""
        slots = self._find(group, keys)
        found = iter(self.committed(slots[slots >= 0]).to_pylist())
        return [next(found) if slot >= 0 else None for slot in slots.tolist()]

    def read_encoded(self, group: KeyGroup, keys: Sequence[Any]) -> pa.RecordBatch:
        """The committed state of keys, encoded."""
        slots = self._find(group, keys)
        return self.committed(slots[slots >= 0])

    def snapshot(self) -> Iterator[tuple[Any, Plain]]:
        """The committed state of every key."""
        slots = self.committed_slots()
        for at in range(0, len(slots), SLICE):
            part = slots[at : at + SLICE]
            yield from zip(self._frozen(part), self.committed(part).to_pylist(), strict=True)

    def sizes(self) -> Sizes:
        """How much is there."""
        keys = self.index.live - len(self._gone())
        return Sizes(keys, len(self.index.touched), len(self.index.used_groups()))

    def image_bytes(self) -> int:
        """Memory of the before-images; objects count as pointers."""
        return len(self.index.touched) * sum(array.live.itemsize for array in self._values)

    def keys_in(self, groups: Iterable[KeyGroup]) -> int:
        """Keys with state in these key groups."""
        groups = list(groups)
        gone = np.isin(self.index.group_of(self._gone()), np.array(groups, np.int64))
        return sum(map(self.index.count, groups)) - int(np.count_nonzero(gone))

    def encoded_bytes(self) -> int:
        """Roughly the encoded size of all state, from the committed state of some keys."""
        held = self.index.used_groups()
        chosen = held[np.unique(np.linspace(0, len(held) - 1, _SAMPLED_GROUPS).astype(int))] if len(held) else held
        parts = [self._some_committed(KeyGroup(group)) for group in chosen.tolist()]
        slots = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return self.extract(slots).nbytes * self.index.live // len(slots) if len(slots) else 0

    def extract(self, slots: Slots) -> pa.RecordBatch:
        """The keys and the committed values in these slots: the key columns (``key0``, …), then the value columns.

        It is a copy: what happens to the table afterwards does not show in it.
        """
        keys, values = self.keys(slots), self.committed(slots)
        names = [*(f"key{i}" for i in range(len(keys))), *values.schema.names]
        return pa.RecordBatch.from_arrays([*keys, *values.columns], names=names)

    # --- steps ---

    def _some_committed(self, group: KeyGroup) -> Slots:
        """Slots of some keys with committed state, if there are any: not all are looked at, unless most have none."""
        places, whole, slots = _SAMPLED_PLACES, False, np.empty(0, np.int64)
        while len(slots) < _SAMPLED_KEYS and not whole:
            slots, whole = self.index.some_slots(group, places)
            slots, places = slots[self._is_committed(slots)], 4 * places
        return slots[:_SAMPLED_KEYS]

    def _gone(self) -> Slots:
        """The slots of keys that the epoch has deleted."""
        touched = self.index.touched
        return touched[self._deleted.array[: len(touched)]] if self._any_deleted else touched[:0]

    def _frozen(self, slots: Slots) -> list[Any]:
        return freeze_keys(self.keys(slots)) if len(slots) else []

    def _find(self, group: KeyGroup, keys: Sequence[Any]) -> Slots:
        types = self.words.types
        plain = [canonical_key(key) for key in keys]
        parts: Any = [plain] if len(types) == 1 else zip(*plain, strict=True)
        columns = [pa.array(list(part), type=kind) for part, kind in zip(parts, types, strict=True)]
        return self.find(columns, np.full(len(keys), group, np.int16))
