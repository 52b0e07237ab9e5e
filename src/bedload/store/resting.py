"""Rows at rest: keys that came encoded stay so until they are touched.

To make an object of a key costs several times as much as all else that is done when its state comes. Most keys that
move, or that are read back, are not touched soon; many move on as they came.

A key at rest has a place: the batch that it came with, and its row there. :meth:`RestingStore.touch` makes objects of
those that it is asked for; reads decode what they need and leave it where it is.

Invariants: a key is at rest or an object, never both; what is at rest is committed state; no key that an epoch under
way has touched is at rest. The batches of a key group have at most four times as many rows as are at rest, or few
(:data:`FEW`): else those are copied out of them. A batch that came for several key groups is there until all have done
so.

Only for layouts of small values (``RecordLayout.gather``): decoding these cannot fail, so state that does not fit is
refused when it comes, and nothing of it shares anything with an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.core.ids import KeyGroup
from bedload.state import RecordLayout, StateSpec
from bedload.state.arrow import arrow_type, decoded_column
from bedload.state.timers import VARIABLE, first_in_column
from bedload.store.base import SLICE, Plain, Sizes
from bedload.store.deltas import joined
from bedload.store.rows import RowStore

FEW = 32
"""So many rows of a key group are not copied, however few of them are at rest."""
_SHARE = 4
"""Else one of so many is at rest. So all copying together is a third of what came, at most."""
_MANY = 64
"""So many keys are decoded column by column, and fewer value by value."""
_ROW = (1 << 32) - 1
_Get = Callable[[int], Any]


def can_rest(layout: RecordLayout, state: pa.RecordBatch) -> bool:
    """Whether the rows of a batch can be kept as they are: small values, all there, of the declared types."""
    return layout.gather is not None and all(
        spec.name in state.schema.names and state.schema.field(spec.name).type.equals(arrow_type(spec.type))
        for spec in layout.specs
    )


class RestingStore(RowStore):
    """One key group, of which some keys are at rest."""

    __slots__ = ("_batches", "_getters", "_kept", "_left", "_places")

    def __init__(self, group: KeyGroup, layout: RecordLayout, row: type) -> None:
        super().__init__(group, layout, row)
        self._places: dict[Any, int] = {}
        """The keys at rest: the number of the batch, and below it 32 bits for the row."""
        self._batches: dict[int, pa.RecordBatch] = {}
        self._kept = 0
        """Rows of all batches."""
        self._left: dict[int, int] = {}
        """By batch, how many of its keys are at rest."""
        self._getters: dict[int, list[_Get]] = {}
        """Of batches that were looked into, what gives the value of a row, by variable."""

    # --- keys that come, wake and go ---

    def rest(self, keys: Sequence[Any], state: pa.RecordBatch) -> None:
        """The same as :meth:`put`, for rows of which :func:`can_rest` says yes."""
        self.discard(keys)
        self._keep(keys, state.select(list(self._layout.names)))
        for clock, due in self._due.items():
            ats, rows = first_in_column(state.column(VARIABLE), clock)
            due.extend(ats, [keys[row] for row in rows.tolist()])
        if self._expiring is not None:
            self._expiring.rest(keys, state)

    def _keep(self, keys: Sequence[Any], state: pa.RecordBatch) -> None:
        number = max(self._batches, default=-1) + 1
        self._places.update(zip(keys, range(number << 32, (number << 32) + len(keys)), strict=True))
        self._batches[number], self._left[number] = state, len(keys)
        self._kept += state.num_rows

    def touch(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The live objects of these keys: those at rest wake."""
        if self._places:
            asleep = list(dict.fromkeys(filter(self._places.__contains__, keys)))
            if asleep:
                self._make_objects(asleep, self._values(asleep))  # if that raises, they are at rest still
                self._leave(asleep)
        return super().touch(keys)

    def put(self, keys: Sequence[Any], values: Mapping[str, Sequence[Any]]) -> None:
        """Put keys in as objects."""
        self._leave(keys)
        super().put(keys, values)

    def discard(self, keys: Sequence[Any]) -> None:
        """Drop these keys."""
        self._leave(keys)
        if self._rows:
            super().discard(keys)

    def _leave(self, keys: Iterable[Any]) -> None:
        """These keys are at rest no longer."""
        if not self._places:
            return
        for key in keys:
            place = self._places.pop(key, None)
            if place is None:
                continue
            number = place >> 32
            self._left[number] -= 1
            if not self._left[number]:
                self._kept -= self._batches[number].num_rows
                del self._batches[number], self._left[number]
                self._getters.pop(number, None)
        if self._kept > max(FEW, _SHARE * len(self._places)):
            self._copy_out()

    def _copy_out(self) -> None:
        """Keep what is at rest, and no more."""
        keys = list(self._places)
        state = self.encoded(keys)
        if state.num_columns:  # what are neighbours may come as a part of a batch, which would keep all of it
            state = state.take(pa.array(np.arange(len(keys))))
        self._places, self._batches, self._left, self._getters, self._kept = {}, {}, {}, {}, 0
        self._keep(keys, state)

    # --- keys on their way elsewhere ---

    def asleep(self, keys: Sequence[Any]) -> list[bool]:
        """For each key, whether it is at rest."""
        return list(map(self._places.__contains__, keys)) if self._places else [False] * len(keys)

    def encoded(self, keys: Sequence[Any]) -> pa.RecordBatch:
        """The variables of these keys, which are at rest, as they came."""
        places = np.fromiter(map(self._places.__getitem__, keys), np.int64, len(keys))
        cuts = np.flatnonzero(np.diff(places) != 1) + 1
        if len(cuts) * 16 < len(places):
            runs = np.split(places, cuts) if len(cuts) else [places]
            parts = [self._batches[run[0] >> 32].slice(run[0] & _ROW, len(run)) for run in runs]
        else:
            order = np.argsort(places >> 32, kind="stable")
            numbers = places[order] >> 32
            split = np.split(places[order] & _ROW, np.flatnonzero(np.diff(numbers)) + 1)
            taken = [self._batches[n].take(pa.array(rows)) for n, rows in zip(np.unique(numbers), split, strict=True)]
            back = np.empty(len(places), np.int64)
            back[order] = np.arange(len(places))
            parts = [joined(taken).take(pa.array(back))]
        return joined(parts)

    def current(self, keys: Sequence[Any]) -> list[Any]:
        """Objects with the current state of these keys; those at rest stay so."""
        rows = super().current(keys)
        if not self._places:
            return rows
        asleep = [i for i, key in enumerate(keys) if rows[i] is None and key in self._places]
        made = list(map(self._row.__new__, repeat(self._row, len(asleep))))
        if made:
            if self._expiring is not None:
                for row in made:
                    self._expiring.expiries.fresh(row)
            self._layout.load_columns(made, self._values([keys[i] for i in asleep]), self._journal)
        for i, row in zip(asleep, made, strict=True):
            rows[i] = row
        return rows

    # --- seeing it ---

    def scan(self) -> Iterator[list[Any]]:
        """Keys with committed or current state, slice by slice."""
        yield from super().scan()
        keys = iter(self._places)
        while part := list(islice(keys, SLICE)):
            yield part

    def read(self, keys: Iterable[Any]) -> list[Plain | None]:
        """The committed state of these keys."""
        return [self._at_rest(key) if key in self._places else self._read(key) for key in keys]

    def sizes(self) -> Sizes:
        """How much is there."""
        return Sizes(len(self._rows) + len(self._places), len(self._touched))

    def _at_rest(self, key: Any) -> Plain:
        return {name: value for name, (value,) in self._values([key]).items()}

    def _values(self, keys: Sequence[Any]) -> dict[str, list[Any]]:
        """The plain values of keys at rest, by variable."""
        if len(keys) >= _MANY and self._layout.specs:
            columns = zip(self._layout.specs, self.encoded(keys).columns, strict=True)
            return {spec.name: decoded_column(spec.type, column) for spec, column in columns}
        places = [self._places[key] for key in keys]
        found = [(self._get(place >> 32), place & _ROW) for place in places]
        return {name: [get[i](row) for get, row in found] for i, name in enumerate(self._layout.names)}

    def _get(self, number: int) -> list[_Get]:
        found = self._getters.get(number)
        if found is None:
            batch = self._batches[number]
            pairs = zip(self._layout.specs, batch.columns, strict=True)
            found = self._getters[number] = [_getter(spec, column) for spec, column in pairs]
        return found


def _getter(spec: StateSpec, column: pa.Array) -> _Get:
    numbers = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if numbers and not column.null_count:
        item: _Get = column.to_numpy().item
        return item
    return lambda row: decoded_column(spec.type, column.slice(row, 1))[0]
