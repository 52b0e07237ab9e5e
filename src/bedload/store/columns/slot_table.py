"""The slots of a table: key columns by slot, typed value columns, and the before-images of the current epoch.

Columns are arrays that are changed in place. Before a batch changes a slot for the first time in an epoch, its
old values are copied beside (:meth:`SlotTable.locate` does that), so the log is a list of touched slots and one
array of old values per column: abort scatters them back, a read of the committed state looks there first, and
what changed is found by comparing two arrays.

Invariants (:meth:`SlotTable.check`): every column has room for the index's slots; values of free slots mean
nothing, except that they hold no Python objects; a deleted key keeps its slot, flagged, until the epoch ends.

Why one file: every method is a step of an epoch, or of keys that come and go, over the same arrays.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import KeyGroup
from bedload.store.columns.column import Column, ColumnSpec, Prepared
from bedload.store.columns.index import BLOCK, MAX_SLOTS, Flags, KeyIndex, Slots
from bedload.store.columns.key_words import KeyWords
from bedload.store.columns.memory import PLAIN, GrowingArray, Memory
from bedload.store.columns.runs import Runs, as_runs, spans_of
from bedload.store.columns.times import Times
from bedload.store.columns.values import Values

Groups = npt.NDArray[np.integer[Any]]

_TIDIED = 16384
"""Values that are looked at, at the end of an epoch, for bytes that no key has any more: a millisecond or two."""
_TIDIED_PER_KEY = 10
"""And for each key that goes: so a sweep is over before the next one is due."""


class Watcher(Protocol):
    """Who remembers slots, and so must know when they are free for other keys."""

    def freed(self, slots: Slots) -> None:
        """The keys in these slots go; they are still there."""
        ...


class SlotTable:
    """Slots with keys and values, over all key groups."""

    def __init__(
        self,
        key_types: Sequence[pa.DataType],
        columns: Sequence[ColumnSpec],
        key_groups: int,
        *,
        block: int = BLOCK,
        max_slots: int = MAX_SLOTS,
        memory: Memory = PLAIN,
    ) -> None:
        self.columns = tuple(columns)
        self.words = KeyWords(key_types, memory)
        self.index = KeyIndex(key_groups, self.words.width, block=block, max_slots=max_slots, memory=memory)
        self._columns = {spec.name: Column(spec, block, memory) for spec in columns}
        self._values: list[Values] = [array for column in self._columns.values() for array in column.arrays]
        self._times = {name: it.values for name, it in self._columns.items() if isinstance(it.values, Times)}
        self._deleted = GrowingArray(np.bool_)
        """By place: deleted in this epoch, and not made again."""
        self._remade = GrowingArray(np.bool_)
        """By place: deleted in this epoch, and made again."""
        self._any_deleted = False
        self.sealed = False
        """Whether the epoch under way is sealed: current values are fit to be seen."""
        self.watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self._make_room()

    def rebind(self, columns: Sequence[ColumnSpec]) -> None:
        """New code for the same state, between epochs: new keys start as it says."""
        for spec in columns:
            self._columns[spec.name].rebind(spec)

    # --- the current epoch ---

    def batches(self, count: int) -> Iterator[slice]:
        """So many rows that come, in parts that are to be taken one after the other."""
        yield slice(0, count)

    def locate(self, keys: Sequence[pa.Array], groups: Groups) -> Slots:
        """The slots of these keys, new ones included, with before-images taken: they may be written now."""
        known = len(self.index.touched)
        self.sealed = False
        words = self.words.encode(keys)
        try:
            slots = self.index.locate(words, groups)
        finally:
            # Also if it failed half way: the abort that follows needs the images of what was touched.
            self._take_images(known)
        if self._any_deleted:
            self._revive(slots)
        return slots

    def values(self, name: str) -> npt.NDArray[Any]:
        """The live array of a column, by slot. It may be replaced by the next :meth:`locate` or :meth:`install`."""
        return self._columns[name].values.live

    def valid(self, name: str) -> npt.NDArray[np.bool_]:
        """The live mask of a nullable column: False is null."""
        mask = self._columns[name].mask
        if mask is None:
            raise ProtocolError(f"state column {name!r} is not nullable: it has no mask")
        return mask.live

    def write_column(self, slots: Slots, name: str, values: pa.Array) -> None:
        """Overwrite one column of located slots."""
        self._columns[name].write(slots, values)

    def delete(self, slots: Slots) -> None:
        """Remove located keys in this epoch."""
        if not len(slots):
            return
        places = self.index.mark[slots]
        if not places.all():
            raise ProtocolError("a key was deleted that the epoch has not located")
        self._deleted.array[places - 1] = True
        self._any_deleted = True
        for times in self._times.values():
            times.clear(slots)

    def changed(self, but: Collection[str] = ()) -> Slots:
        """Slots of the keys that exist and differ from the committed state, in any column but some.

        They are in the order of first touch.
        """
        touched = self.index.touched
        differs: Flags = self.index.fresh.copy()
        for part in self.parts(len(touched)):
            for name, column in self._columns.items():
                if name not in but:
                    # Most often the first column says it of nearly all.
                    some = differs[part]
                    alike = part.start + np.flatnonzero(~some) if some.any() else part
                    differs[alike] = column.differs(touched[alike], alike)
        if self._any_deleted:
            differs |= self._remade.array[: len(touched)]
            differs &= ~self._deleted.array[: len(touched)]
        return touched[differs]

    def deleted(self, slots: Slots) -> Flags:
        """For each slot, whether the epoch has deleted its key."""
        if not self._any_deleted:
            return np.zeros(len(slots), np.bool_)
        places = self.index.mark[slots]
        gone: Flags = places > 0
        gone[gone] = self._deleted.array[places[gone] - 1]
        return gone

    def seal(self) -> None:
        """Raise :class:`StateTypeError` if a column of objects holds what is not of its type; before the commit."""
        if any(not spec.fixed for spec in self.columns):
            changed = self.changed()
            for column in self._columns.values():
                if not column.spec.fixed:
                    column.read(changed, None)
        self.sealed = True

    def commit(self) -> None:
        """The current state is the committed one."""
        touched = self.index.touched
        self._end(touched[self._deleted.array[: len(touched)]])

    def abort(self) -> None:
        """Go back to the state as of the last commit."""
        touched, fresh = self.index.touched, self.index.fresh
        if not fresh.all():
            for part in self.parts(len(touched)):
                kept = np.flatnonzero(~fresh[part]) + part.start
                for array in self._values:
                    array.restore(touched[kept], kept)
        self._end(touched[fresh])

    # --- the committed state ---

    def find(self, keys: Sequence[pa.Array], groups: Groups) -> Slots:
        """Slots of keys with committed state, -1 for the others."""
        slots = self.find_any(keys, groups)
        return np.where(self._is_committed(slots), slots, -1)

    def find_any(self, keys: Sequence[pa.Array], groups: Groups) -> Slots:
        """Slots of keys with committed or current state, -1 for the others."""
        slots = self.index.find(self.words.encode(keys, intern=False), groups)
        none = self.words.no_keys(keys)
        if none is not None:
            slots[none] = -1
        return slots

    def committed_slots(self, group: KeyGroup | None = None) -> Slots:
        """Slots of all keys with committed state, of one key group or of all."""
        slots = self.index.all_slots() if group is None else self.index.slots_of(group)
        return slots[self._is_committed(slots)]

    def committed(self, slots: Slots) -> pa.RecordBatch:
        """The committed values in these slots."""
        return self._batch(slots, self._places(slots))

    def current(self, slots: Slots) -> pa.RecordBatch:
        """The current values in these slots."""
        return self._batch(slots, None)

    def current_of(self, runs: Runs) -> tuple[list[pa.Array], dict[str, pa.Array]]:
        """The keys and the current values of runs."""
        values = {name: column.read_runs(runs) for name, column in self._columns.items()}
        return self.words.decode(runs.take(self.index.keys)), values

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The keys in these slots."""
        return self.words.decode(self.index.keys[slots])

    @property
    def most_each(self) -> float:
        """No key has more bytes, with its state; infinite if that is not known without a look at them."""
        if not all(spec.fixed for spec in self.columns):
            return math.inf
        return self.words.longest + self._width

    def weight(self, slots: Slots) -> int:
        """About the bytes of the keys in these slots and of their current values."""
        values = sum(column.weight(slots) for column in self._columns.values())
        return values + self._width * len(slots) + self.words.weight(self.index.keys[slots])

    @property
    def _width(self) -> int:
        """Bytes of a key and its values that all have."""
        return 8 * int(self.words.width) + sum(1 + spec.dtype.itemsize for spec in self.columns)

    # --- moving keys ---

    def put(self, keys: Sequence[pa.Array], groups: Groups, state: pa.RecordBatch) -> None:
        """Put keys in as committed state, over what they have; an epoch under way must not have touched them.

        A column that the state does not have starts as for a new key. Live arrays may be replaced, as by
        :meth:`locate`.
        """
        # All that can fail comes before the first value is written.
        prepared, words = self._prepared(state), self.words.encode(keys)
        places: Slots | Runs | None = None
        if (groups[1:] >= groups[:-1]).all():
            try:
                places = self.index.insert(words, spans_of(groups))
            finally:
                self._make_room()
        if places is None:
            places = self._put_over(words, groups, len(self.index.touched))
        self._fill(places, prepared)

    def _put_over(self, words: npt.NDArray[np.int64], groups: Groups, known: int) -> Slots:
        """The slots of keys of which some are there, untouched; ``known``: so many slots were touched before."""
        try:
            slots = self.index.locate(words, groups)
            self._make_room()
            if (self.index.mark[slots] <= known).any():
                raise ProtocolError("keys were taken in within an epoch that has touched some of them already")
        except BaseException:
            self._take_out(known)
            raise
        self.index.untouch(known)
        return slots

    def discard(self, slots: Slots) -> None:
        """Drop keys without a before-image; an epoch under way must not have touched them."""
        self.check_untouched(slots)
        self._free(np.unique(slots))

    def drop(self, groups: Iterable[KeyGroup]) -> None:
        """Drop all keys of key groups; an epoch under way must not have touched any."""
        groups = list(groups)
        met = np.intersect1d(self.index.group_of(self.index.touched), np.fromiter(groups, np.int64, len(groups)))
        if len(met):
            raise ProtocolError(
                f"key group {int(met[0])} was to be dropped, but the epoch under way has touched it; end it first"
            )
        if self.dear:
            for group in groups:
                self._leave(self.index.slots_of(group))
        self.words.gone(sum(map(self.index.count, groups)))
        self.index.drop(*groups)
        self._tidy()

    @property
    def dear(self) -> bool:
        """Whether something has to be done for each key that goes."""
        return bool(len(self.watchers)) or any(spec.times or not spec.fixed for spec in self.columns)

    def tidy(self, work: int) -> bool:
        """Forget bytes that no key has any more, some at a time; whether there is nothing left to do."""
        return self.words.tidy(self.index, work)

    def check_untouched(self, slots: Slots) -> None:
        """Raise if an epoch under way has touched one of these slots."""
        if self.index.mark[slots].any():
            raise ProtocolError(
                f"{np.count_nonzero(self.index.mark[slots])} keys were to be replaced or dropped that the epoch under "
                "way has touched; end it first"
            )

    # --- seeing it ---

    @property
    def nbytes(self) -> int:
        """Memory, exact for numbers and for binary, of which every value is looked at; other objects are pointers."""
        arrays = sum(array.nbytes for array in self._values) + self._deleted.nbytes + self._remade.nbytes
        binary = sum(column.binary_bytes(self.index.touched) for column in self._columns.values())
        return self.index.nbytes + self.words.nbytes + arrays + binary

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. It looks at everything: for tests."""
        self.index.check()
        slots = self.index.all_slots()
        self.words.check(self.index.keys[slots])
        free = np.setdiff1d(np.arange(self.index.capacity), slots)
        for array in self._values:
            assert len(array.live) == self.index.capacity
            if array.live.dtype.kind == "O":
                assert all(value is None for value in array.live[free]), "a free slot holds on to an object"
            if isinstance(array, Times):
                array.check(free)
        count = len(self.index.touched)
        assert not self._deleted.array[count:].any(), "a place is flagged that no slot has"
        assert not self._remade.array[count:].any(), "a place is flagged that no slot has"
        assert self._any_deleted or not (self._deleted.array.any() or self._remade.array.any())

    # --- steps ---

    def parts(self, count: int) -> Iterator[slice]:
        """So many of something, in parts that are looked at one after the other."""
        if count:
            yield slice(0, count)

    def _take_images(self, known: int) -> None:
        index = self.index
        self._make_room()
        touched = index.touched[known:]
        if not len(touched):
            return
        self._deleted.at_least(len(index.touched))
        self._remade.at_least(len(index.touched))
        fresh = index.fresh[known:]
        made = touched[fresh] if fresh.any() else None
        for array in self._values:
            if made is not None:
                array.start(made)
            array.save(touched, known)

    def _take_out(self, known: int) -> None:
        """Remove the keys that were made from a place on, and forget the places."""
        self._make_room()
        made = self.index.touched[known:][self.index.fresh[known:]]
        self.index.untouch(known)
        self._free(made)

    def _prepared(self, state: pa.RecordBatch) -> dict[str, Prepared]:
        given = (name for name in self._columns if name in state.schema.names)
        return {name: self._columns[name].prepared(state.column(name)) for name in given}

    def _fill(self, slots: Slots | Runs, prepared: dict[str, Prepared]) -> None:
        for name, column in self._columns.items():
            if name in prepared:
                column.put(slots, prepared[name])
            else:
                for array in column.arrays:
                    array.start(slots)
        # A sweep that is under way goes on as fast as values come, or the end of the epoch would wait for all of it.
        self.tidy(0)

    def _make_room(self) -> None:
        capacity = self.index.capacity
        for array in self._values:
            if len(array.live) != capacity:
                array.room(capacity)

    def _revive(self, slots: Slots) -> None:
        places = self.index.mark[slots] - 1
        places = np.unique(places[self._deleted.array[places]])
        if len(places):
            again = self.index.touched[places]
            for array in self._values:
                array.start(again)
            self._deleted.array[places] = False
            self._remade.array[places] = True

    def _is_committed(self, slots: Slots) -> Flags:
        there = slots >= 0
        if len(self.index.touched):
            places = self.index.mark[np.maximum(slots, 0)]
            marked = there & (places > 0)
            there[marked] = ~self.index.fresh[places[marked] - 1]
        return there

    def _places(self, slots: Slots) -> npt.NDArray[np.int32] | None:
        if not len(self.index.touched):
            return None
        places: npt.NDArray[np.int32] = self.index.mark[slots]
        return places if places.any() else None

    def _batch(self, slots: Slots, places: npt.NDArray[np.int32] | None) -> pa.RecordBatch:
        runs = as_runs(slots)
        made = [column.read(slots, places, runs) for column in self._columns.values()]
        schema = pa.schema([(spec.name, spec.type) for spec in self.columns])
        return pa.RecordBatch.from_arrays(made, schema=schema)

    def _free(self, slots: Slots) -> None:
        if len(slots):
            self._leave(slots)
            self.words.gone(len(slots))
            self.index.remove(slots)
            self._tidy(len(slots))

    def _leave(self, slots: Slots) -> None:
        """The keys of these slots are about to go."""
        for watcher in self.watchers:
            watcher.freed(slots)
        for array in self._values:
            array.leave(slots)

    def _tidy(self, gone: int = 0) -> None:
        """Follow the index if it gave blocks back, and forget some bytes that no key has any more."""
        self._make_room()
        self.tidy(_TIDIED + gone * _TIDIED_PER_KEY)

    def _end(self, gone: Slots) -> None:
        count = len(self.index.touched)
        self.sealed = False
        if self._any_deleted:
            self._deleted.array[:count] = False
            self._remade.array[:count] = False
            self._any_deleted = False
        for part in self.parts(count):
            self.index.untouch(count - part.stop)  # the last ones first
        kept = self.index.kept_places
        for array in self._values:
            array.let_go(kept)
        for flags in (self._deleted, self._remade):
            if len(flags) > kept:
                flags.resize(kept)
        self._free(gone)
        if not len(gone):
            self._tidy()
