"""Reading what a view means, by key group: state, or what each epoch changed in it.

A row of the change feed is a key that an epoch changed, with all its variables as they were after it. Deltas have only
the changes of a container, so the feed starts from the state after its first epoch, for the keys that the deltas name,
and goes on from epoch to epoch.

Invariants: each key group comes once, even if something was read twice; if garbage collection has deleted files in the
meantime, the state is read once more from a newer snapshot before that is an error; a damaged file is an error at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bedload.checkpoint.evolution import Evolution, path_between
from bedload.checkpoint.forms import StateForm, select
from bedload.checkpoint.merge import KeyFilter, merge_checked
from bedload.checkpoint.records import TurnRecord
from bedload.checkpoint.restore import Restore, load_delta
from bedload.checkpoint.storage import Storage, open_storage
from bedload.core.errors import CheckpointDamaged, DefinitionError
from bedload.keys import hash_columns, key_groups
from bedload.spark.source_columns import BATCH, CHANGE, DELETE, UPDATE
from bedload.spark.source_view import View, refreshed
from bedload.store.deltas import OP, PATCH, REMOVE

MAX_PARTITIONS = 64
"""A partition is what one worker wrote: few and large ones. More of them are read by fewer tasks."""

Found = Mapping[str, pa.Array]
"""Columns in state form; of a change feed with batch and kind of change."""


def key_columns_of(view: View) -> list[pa.Array] | None:
    """The keys that are wanted, as key columns; None: all."""
    keys, types = view.options.keys, view.schema.keys.types
    if keys is None:
        return None
    parts: list[Sequence[Any]] = [keys]
    if len(types) > 1:
        wrong = next((key for key in keys if not isinstance(key, tuple) or len(key) != len(types)), None)
        if wrong is not None:
            raise DefinitionError(
                f"option keys: the key has {len(types)} columns ({', '.join(view.schema.key_names)}), so {wrong!r} is "
                f"not a key: write a list of {len(types)} values for each key"
            )
        parts = list(zip(*keys, strict=True)) or [()] * len(types)
    columns = []
    for name, kind, part in zip(view.schema.key_names, types, parts, strict=True):
        try:
            # JSON has no dates, times and decimals: they come as text.
            text = any(isinstance(value, str) for value in part) and not pa.types.is_string(kind)
            columns.append(pa.array(part).cast(kind) if text else pa.array(part, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as bad:
            raise DefinitionError(
                f"option keys: {list(part)[:5]} are not values of the key column {name!r}, a {kind}: {bad}"
            ) from bad
    return columns


def partitions_of(view: View) -> list[list[int]]:
    """The key groups of each partition: those of one file together, so that it is read once."""
    wanted = set(range(view.schema.key_groups))
    if (keys := key_columns_of(view)) is not None:
        wanted &= set(key_groups(hash_columns(keys), view.schema.key_groups).tolist())
    units: dict[Any, list[int]] = {}
    if view.feed is None and view.plan.snapshot is not None:
        for number, part in enumerate(view.plan.snapshot.parts):
            if part.rows or view.plan.deltas:
                units[number] = sorted(wanted.intersection(part.groups))
    else:
        record = view.feed[-1] if view.feed else view.plan.deltas[-1]
        for group, owner in enumerate(record.owner_of_groups):
            if group in wanted:
                units.setdefault(owner, []).append(group)
    found = [unit for unit in units.values() if unit]
    step = max(1, -(-len(found) // MAX_PARTITIONS))
    return [sorted(itertools.chain(*found[at : at + step])) for at in range(0, len(found), step)]


def read(view: View, groups: Sequence[int], variables: Sequence[str]) -> Iterator[Found]:
    """What there is of these key groups, with these variables."""
    if view.feed is not None:
        yield from _changes_or_again(view, groups, variables)
        return
    done: set[int] = set()
    try:
        yield from _state(view, groups, variables, done)
    except CheckpointDamaged as bad:
        if not is_missing(bad):
            raise
        rest = [group for group in groups if group not in done]
        yield from _state(refreshed(view), rest, variables, done)


def _state(view: View, groups: Sequence[int], variables: Sequence[str], done: set[int]) -> Iterator[Found]:
    storage = open_storage(view.options.url, view.options.storage)
    restore = Restore(storage, view.operator, view.schema, view.plan, schemas=view.schemas)
    for chunk, batch in restore.chunks(groups, variables=variables, keys=key_columns_of(view)):
        if batch.num_rows:
            yield dict(zip(batch.schema.names, batch.columns, strict=True))
        done.update(chunk)


def is_missing(error: BaseException | None) -> bool:
    """Whether it is about a file that is not there."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            return True
        error = error.__cause__
    return False


# --- the change feed ---


def _changes_or_again(view: View, groups: Sequence[int], variables: Sequence[str]) -> Iterator[Found]:
    try:
        # All files are read before the first row is given.
        epochs = _Epochs(view, groups, variables)
    except CheckpointDamaged as bad:
        if not is_missing(bad):
            raise
        epochs = _Epochs(refreshed(view), groups, variables)
    yield from epochs.changes()


class _Epochs:
    """The deltas of a feed's turns, of some key groups, and the state after the first one as far as it is needed.

    Each turn is taken as it was written, in the shape that the state had then; what is shown is in the view's.
    """

    def __init__(self, view: View, groups: Sequence[int], variables: Sequence[str]) -> None:
        assert view.feed is not None
        storage = open_storage(view.options.url, view.options.storage)
        self._view = view
        self._variables = tuple(variables)
        self._groups = list(groups)
        # To make a variable of a later shape, others of an earlier one may be needed.
        reshaped = any(record.schema != view.schema.number for record in view.feed)
        self._forms = {
            record.schema: StateForm.of(view.schemas[record.schema], None if reshaped else variables)
            for record in view.feed
        }
        keys = key_columns_of(view)
        only = None if keys is None else KeyFilter(StateForm.of(view.schema), keys)
        self._deltas = [(record, self._load(storage, record, only)) for record in view.feed]
        self._state: pa.RecordBatch | None = None
        if any(PATCH in delta.column(OP).unique().to_pylist() for _, deltas in self._deltas for delta in deltas):
            self._state = self._first(storage, view.feed[0])

    def changes(self) -> Iterator[Found]:
        """What each epoch that is shown changed."""
        state, shape = self._state, self._deltas[0][0].schema
        for number, (record, deltas) in enumerate(self._deltas):
            if state is not None and record.schema != shape:
                state, shape = self._reshaped(state, shape, record.schema), record.schema
            if state is not None and number:
                state = merge_checked(self._forms[record.schema], state, deltas)
            if record.turn in self._view.shown:
                for delta in deltas:
                    yield from self._rows(record, delta, state)

    def _load(self, storage: Storage, record: TurnRecord, only: KeyFilter | None) -> list[pa.RecordBatch]:
        form = self._forms[record.schema]
        found = []
        for worker in record.writers(self._groups):
            delta, _ = load_delta(storage, self._view.operator, form, record, worker)
            delta = select(delta, self._groups, form.key_groups)
            found.append(delta if only is None else only.keep(delta))
        return [delta for delta in found if delta.num_rows]

    def _first(self, storage: Storage, record: TurnRecord) -> pa.RecordBatch:
        """The state after the first turn, of all keys that the feed names."""
        view, form = self._view, self._forms[record.schema]
        named = [delta for _, deltas in self._deltas for delta in deltas]
        keys = [pa.concat_arrays([delta.column(name) for delta in named]) for name in form.key_columns]
        restore = Restore(storage, view.operator, view.schemas[record.schema], view.plan, schemas=view.schemas)
        table = restore.table(self._groups, variables=tuple(form.variables), keys=keys)
        return (table.combine_chunks().to_batches() or [form.empty()])[0]

    def _rows(self, record: TurnRecord, delta: pa.RecordBatch, state: pa.RecordBatch | None) -> Iterator[Found]:
        form = self._forms[record.schema]
        removed = delta.column(OP).to_numpy() == REMOVE
        there, gone = delta.filter(pa.array(~removed)), delta.filter(pa.array(removed))
        if there.num_rows:
            if state is not None:
                there = KeyFilter(form, [there.column(name) for name in form.key_columns]).keep(state)
            shown = self._reshaped(there.select(form.schema.names), record.schema, self._view.schema.number)
            yield _change(record, shown, UPDATE)
        if gone.num_rows:
            ends = StateForm.of(self._view.schema, self._variables)
            nulls = [pa.nulls(gone.num_rows, kind) for kind in ends.variables.values()]
            keys = [gone.column(name) for name in ends.schema.names[: len(ends.schema) - len(nulls)]]
            yield _change(record, pa.RecordBatch.from_arrays([*keys, *nulls], schema=ends.schema), DELETE)

    def _reshaped(self, batch: pa.RecordBatch, shape: int, wanted: int) -> pa.RecordBatch:
        if shape == wanted:
            return batch
        path = path_between(self._view.schemas, shape, wanted)
        return Evolution(path, self._view.operator).apply(batch)


def _change(record: TurnRecord, batch: pa.RecordBatch, kind: str) -> Found:
    told = {
        BATCH: pa.array(np.full(batch.num_rows, record.epoch, np.int64)),
        CHANGE: pa.array([kind]).take(pa.array(np.zeros(batch.num_rows, np.int64))),
    }
    return told | dict(zip(batch.schema.names, batch.columns, strict=True))
