"""The two Arrow forms of state, as read from a checkpoint: checked against the operator's schema, and cut by key group.

What the forms are is in :mod:`bedload.store.deltas`. Here is what a reader needs that has no operator and no store, but
an :class:`~bedload.checkpoint.records.OperatorSchema`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.checkpoint.records import OperatorSchema
from bedload.core.errors import CheckpointDamaged, DefinitionError
from bedload.store.deltas import GROUP, OP, key_column

Rows: TypeAlias = npt.NDArray[np.int64]
GroupColumn: TypeAlias = npt.NDArray[np.int16]


@dataclass(frozen=True)
class StateForm:
    """Names and types of an operator's state form."""

    key_types: tuple[pa.DataType, ...]
    variables: dict[str, pa.DataType]
    key_groups: int

    @classmethod
    def of(cls, schema: OperatorSchema, variables: Iterable[str] | None = None) -> StateForm:
        """The form of a schema, with all variables or with just some."""
        every = {variable.name: variable.field.type for variable in schema.variables}
        wanted = tuple(every) if variables is None else tuple(variables)
        unknown = [name for name in wanted if name not in every]
        if unknown:
            raise DefinitionError(
                f"no state variable {', '.join(map(repr, unknown))}: there are {', '.join(map(repr, every)) or 'none'}"
            )
        return cls(tuple(schema.keys.types), {name: every[name] for name in every if name in wanted}, schema.key_groups)

    @cached_property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(key_column(i) for i in range(len(self.key_types)))

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the state form."""
        keys = zip(self.key_columns, self.key_types, strict=True)
        return pa.schema([(GROUP, pa.int16()), *keys, *self.variables.items()])

    def empty(self) -> pa.RecordBatch:
        """No keys."""
        return pa.RecordBatch.from_pylist([], self.schema)

    def empty_delta(self) -> pa.RecordBatch:
        """No changes."""
        return pa.RecordBatch.from_pylist([], self.schema.insert(1, pa.field(OP, pa.int8())))

    def check(self, batch: pa.RecordBatch, *more: pa.Field, where: str) -> None:
        """Raise :class:`CheckpointDamaged` unless the batch has the columns of the form, and these."""
        for field in (*self.schema, *more):
            at = batch.schema.get_field_index(field.name)
            if at < 0:
                raise CheckpointDamaged(
                    f"{where} has no column {field.name!r}; it has {', '.join(batch.schema.names)}. It was written for "
                    "another schema of the operator, or is damaged"
                )
            if batch.schema.field(at).type != field.type:
                raise CheckpointDamaged(
                    f"{where}: column {field.name!r} has type {batch.schema.field(at).type}, but the operator's schema "
                    f"says {field.type}. It was written for another schema of the operator, or is damaged"
                )


def groups_of(batch: pa.RecordBatch | pa.Table) -> GroupColumn:
    """The key group of each row."""
    column = batch.column(GROUP)
    values: GroupColumn = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(False)
    return values


def select(batch: pa.RecordBatch, groups: Sequence[int] | npt.NDArray[Any], key_groups: int) -> pa.RecordBatch:
    """The rows of these key groups: a slice if they lie together."""
    wanted = np.zeros(key_groups, np.bool_)
    wanted[np.asarray(groups, np.int64)] = True
    column = groups_of(batch)
    if len(column) and not 0 <= int(column.min()) <= int(column.max()) < key_groups:
        raise CheckpointDamaged(f"there are {key_groups} key groups, but rows of group {int(column.max())}")
    mask = wanted[column]
    rows = np.flatnonzero(mask)
    if len(rows) == len(column):
        return batch
    if not len(rows):
        return batch.slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return batch.slice(first, len(rows))
    return batch.filter(pa.array(mask))
