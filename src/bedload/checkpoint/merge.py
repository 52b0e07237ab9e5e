"""A state and the deltas that came after it, as one state.

For each key the last PUT or REMOVE of the deltas counts, or the state if there is neither. Later patches are applied to
that, variable by variable.

Invariants: the result is in state form, sorted by key group, each key once; keys that the deltas do not name keep their
order, and so do the entries of dicts; nothing of the user's code is needed.

How: the keys of the deltas are put into a key index (that of :mod:`bedload.store.columns`, so that keys are the same
here and in memory: NaN equals NaN, minus zero equals zero), and those of the state, which are many more, are looked up.
From there on it is row numbers: each column of the result is one gather from the columns of all inputs. Python objects
are made for patched variables alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.checkpoint.forms import Rows, StateForm, groups_of
from bedload.checkpoint.patches import apply_patches, decode_patch
from bedload.core.errors import CheckpointDamaged
from bedload.keys import hash_columns, key_groups
from bedload.store.columns.index import KeyIndex
from bedload.store.columns.key_words import KeyWords
from bedload.store.deltas import GROUP, OP, PATCH, PATCHES, PUT, REMOVE

NONE = -1
"""No row."""

_OP = pa.field(OP, pa.int8())


def check_delta(form: StateForm, delta: pa.RecordBatch, where: str) -> None:
    """Raise :class:`CheckpointDamaged` unless it is in delta form."""
    form.check(delta, _OP, where=where)
    ops = delta.column(OP)
    if ops.null_count or (len(ops) and not set(ops.unique().to_pylist()) <= {PUT, PATCH, REMOVE}):
        raise CheckpointDamaged(
            f"{where} has rows that are neither PUT nor PATCH nor REMOVE: {ops.unique().to_pylist()}"
        )


def merge_checked(form: StateForm, base: pa.RecordBatch, deltas: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The state after these deltas, oldest first; all of them are known to be in their forms."""
    deltas = [delta for delta in deltas if delta.num_rows]
    return _Merge(form, base, deltas).result() if deltas else base


@dataclass(frozen=True)
class _Patched:
    """Which keys have another value of one variable than in their row, by their place."""

    whole: dict[int, int]
    """To the row that has the new value."""
    patches: dict[int, list[list[Any]]]
    """To the patches of what that row, or else the key's, has."""


class _Merge:
    """One merge. A *row* counts through the state and then the deltas, a *place* the keys that the deltas name."""

    def __init__(self, form: StateForm, base: pa.RecordBatch, deltas: Sequence[pa.RecordBatch]) -> None:
        self._form = form
        self._inputs = [base, *deltas]
        self._deltas = deltas
        self._known = base.num_rows
        self._groups = np.concatenate([groups_of(batch) for batch in self._inputs])
        self._ops = np.concatenate([delta.column(OP).to_numpy(False) for delta in deltas])
        self._place, self._old = self._find_keys()

    def result(self) -> pa.RecordBatch:
        start = self._start()
        patched = self._read_patches(start)
        source, result_row = self._order(start)
        names = [GROUP, *self._form.key_columns]
        keys = [self._gather(name, source) for name in names]
        values = [self._variable(name, source, start, result_row, patched.get(name)) for name in self._form.variables]
        return pa.RecordBatch.from_arrays([*keys, *values], schema=self._form.schema)

    def _find_keys(self) -> tuple[Rows, Rows]:
        """The place of each delta row, and for each place the row that the state has of that key."""
        form, known = self._form, self._known
        nullable = any(batch.column(name).null_count for batch in self._inputs for name in form.key_columns)
        words = KeyWords(form.key_types, nullable=nullable)
        index = KeyIndex(form.key_groups, words.width)
        changed = [pa.concat_arrays([delta.column(name) for delta in self._deltas]) for name in form.key_columns]
        slots = index.locate(words.encode(changed), self._groups[known:])
        place = index.mark[slots].astype(np.int64) - 1
        old = np.full(len(index.touched), NONE, np.int64)
        if known:
            keys = [self._inputs[0].column(name) for name in form.key_columns]
            found = index.find(words.encode(keys, intern=False), self._groups[:known])
            rows = np.flatnonzero(found >= 0)
            old[index.mark[found[rows]] - 1] = rows
        return place, old

    def _start(self) -> Rows:
        """For each place the row that its state starts from: the last whole one, before it is patched."""
        rows = np.flatnonzero(self._ops != PATCH)
        last = np.full(len(self._old), NONE, np.int64)
        last[self._place[rows]] = rows  # of a key's rows the last one stays
        start = np.where(last >= 0, last + self._known, self._old)
        start[last >= 0] = np.where(self._ops[last[last >= 0]] == REMOVE, NONE, start[last >= 0])
        self._last = last
        return start

    def _read_patches(self, start: Rows) -> dict[str, _Patched]:
        rows = np.flatnonzero(self._ops == PATCH)
        rows = rows[rows > self._last[self._place[rows]]]
        places = self._place[rows]
        orphans = rows[start[places] == NONE]
        if len(orphans):
            raise CheckpointDamaged(
                f"{len(orphans)} keys were patched that have no state, among them {self._key(int(orphans[0]))}: a "
                "delta before this one is missing"
            )
        found: dict[str, _Patched] = {name: _Patched({}, {}) for name in self._form.variables}
        if not len(rows):
            return {}
        for row, place, data in zip(rows.tolist(), places.tolist(), self._patch_data(rows), strict=True):
            for name, patch in decode_patch(data).items():
                of_variable = found.get(name)
                if of_variable is None:  # not asked for
                    continue
                if patch is None:
                    of_variable.whole[place] = row + self._known
                    of_variable.patches.pop(place, None)
                else:
                    of_variable.patches.setdefault(place, []).append(patch)
        return found

    def _patch_data(self, rows: Rows) -> list[bytes]:
        none = pa.nulls
        columns = [
            delta.column(PATCHES) if PATCHES in delta.schema.names else none(delta.num_rows, pa.binary())
            for delta in self._deltas
        ]
        taken = pa.concat_arrays(columns).take(pa.array(rows))
        if taken.null_count:
            raise CheckpointDamaged(f"{taken.null_count} patched keys of a delta have no patch")
        data: list[bytes] = taken.to_pylist()
        return data

    def _order(self, start: Rows) -> tuple[Rows, Rows]:
        """The row that each row of the result comes from, and for each place its row in the result."""
        known, old = self._known, self._old
        there = np.flatnonzero(old >= 0)
        source = np.arange(known)
        source[old[there]] = start[there]
        place_of = np.full(known, NONE, np.int64)
        place_of[old[there]] = there
        new = np.flatnonzero((old < 0) & (start >= 0))
        kept = source >= 0
        source = np.concatenate((source[kept], start[new]))
        place_of = np.concatenate((place_of[kept], new))
        if len(new):
            order = np.argsort(self._groups[source], kind="stable")
            source, place_of = source[order], place_of[order]
        result_row = np.full(len(old), NONE, np.int64)
        placed = np.flatnonzero(place_of >= 0)
        result_row[place_of[placed]] = placed
        return source, result_row

    def _variable(self, name: str, source: Rows, start: Rows, result_row: Rows, patched: _Patched | None) -> pa.Array:
        if patched is None or not (patched.whole or patched.patches):
            return self._gather(name, source)
        kind = self._form.variables[name]
        at = start.copy()
        for place, row in patched.whole.items():
            at[place] = row
        values = self._column(name)
        places = np.fromiter(patched.patches, np.int64, len(patched.patches))
        olds = values.take(pa.array(at[places])).to_pylist()
        news = [apply_patches(kind, old, patches) for old, patches in zip(olds, patched.patches.values(), strict=True)]
        at[places] = len(values) + np.arange(len(places))
        touched = np.concatenate((places, np.fromiter(patched.whole, np.int64, len(patched.whole))))
        source = source.copy()
        source[result_row[touched]] = at[touched]
        try:
            made = pa.array(news, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as bad:
            raise CheckpointDamaged(f"the patches of variable {name!r} give values that are not {kind}: {bad}") from bad
        return pa.concat_arrays([values, made]).take(pa.array(source))

    def _column(self, name: str) -> pa.Array:
        return pa.concat_arrays([batch.column(name) for batch in self._inputs])

    def _gather(self, name: str, source: Rows) -> pa.Array:
        return self._column(name).take(pa.array(source))

    def _key(self, delta_row: int) -> Any:
        row = pa.array([delta_row + self._known])
        key = tuple(self._column(name).take(row)[0].as_py() for name in self._form.key_columns)
        return repr(key[0] if len(key) == 1 else key)


class KeyFilter:
    """Some keys, to leave all others out. Safe to use from many threads."""

    def __init__(self, form: StateForm, keys: Sequence[pa.Array]) -> None:
        self._columns = form.key_columns
        self._words = KeyWords(form.key_types, nullable=any(column.null_count for column in keys))
        of_group = key_groups(hash_columns(keys), form.key_groups)
        self.groups = frozenset(np.unique(of_group).tolist())
        """The key groups that the keys are in."""
        self._index = KeyIndex(form.key_groups, self._words.width)
        self._index.locate(self._words.encode(keys), of_group)

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have one of the keys."""
        columns = [batch.column(name) for name in self._columns]
        found = self._index.find(self._words.encode(columns, intern=False), groups_of(batch)) >= 0
        if (none := self._words.no_keys(columns)) is not None:
            found &= ~none
        return batch.filter(pa.array(found))
