"""Input rows as a feeder gets them from Spark: Arrow batches whose last column is the key group.

On Spark the JVM computes the key group; here :mod:`bedload.keys` does, which agrees with it bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from bedload.core.errors import KeyColumnError, NullKey, SchemaError
from bedload.core.ids import KeyGroup, KeyHash
from bedload.keys import canonical_key, check_key_type, hash_columns, hash_key, key_group, key_groups
from bedload.protocol.split import GROUP_COLUMN

Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.Table | pa.RecordBatch
"""Input rows: dicts, or Arrow data."""


def as_schema(schema: pa.Schema | Mapping[str, pa.DataType], what: str) -> pa.Schema:
    """A schema from a schema or from a mapping of names to Arrow types."""
    if isinstance(schema, pa.Schema):
        found = schema
    elif isinstance(schema, Mapping):
        found = pa.schema(list(schema.items()))
    else:
        raise SchemaError(
            f"{what}={schema!r}: give a pyarrow schema, or a mapping such as {{'car': pa.string(), 'n': pa.int64()}}; "
            f"Spark's DDL strings need Spark"
        )
    if not found.names:
        raise SchemaError(f"{what} has no columns")
    return found


class InputFormat:
    """The columns of the input, its key, and the number of key groups."""

    def __init__(self, schema: pa.Schema, key: str | Sequence[str], key_groups: int) -> None:
        names = [key] if isinstance(key, str) else list(key)
        missing = [name for name in names if name not in schema.names]
        if missing or not names:
            raise KeyColumnError(
                f"key={key!r} names a column that is not there; the input has: {', '.join(schema.names)}"
            )
        self.schema = schema
        self.columns = tuple(schema.names)
        self.key_groups = key_groups
        self.key = tuple(schema.names.index(name) for name in names)
        self.key_types = tuple(schema.field(index).type for index in self.key)
        for name, kind in zip(names, self.key_types, strict=True):
            check_key_type(kind, name)
        self._names = names
        self.fed = schema.append(pa.field(GROUP_COLUMN, pa.int16()))
        """The columns that a feeder gets."""

    @classmethod
    def inferred(cls, rows: Rows, key: str | Sequence[str], key_groups: int) -> InputFormat:
        """The format of these rows; the types are those that Arrow finds."""
        if isinstance(rows, pa.Table | pa.RecordBatch):
            return cls(rows.schema, key, key_groups)
        if not rows:
            raise SchemaError("the columns of no rows are not known: give input=..., or feed some rows first")
        return cls(pa.Table.from_pylist([dict(row) for row in rows]).schema, key, key_groups)

    def batch(self, rows: Rows) -> pa.RecordBatch:
        """The rows as one feeder batch."""
        if isinstance(rows, pa.Table | pa.RecordBatch):
            columns = [_whole(rows.column(name), self.schema.field(name).type) for name in self.columns]
        else:
            columns = [pa.array([row.get(field.name) for row in rows], type=field.type) for field in self.schema]
        keys = [columns[index] for index in self.key]
        if len(keys) == 1 and keys[0].null_count:
            raise NullKey(f"{keys[0].null_count} rows have null in the key column {self._names[0]!r}")
        groups = pa.array(key_groups(hash_columns(keys), self.key_groups), pa.int16())
        return pa.RecordBatch.from_arrays([*columns, groups], schema=self.fed)

    def group(self, key: Any) -> KeyGroup:
        """The key group of a key, in the form in which the user has it."""
        return key_group(self.hash(key), self.key_groups)

    def hash(self, key: Any) -> KeyHash:
        """The hash of a key, by which it is moved."""
        return hash_key(canonical_key(key), self.key_types, self._names)


def _whole(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column.cast(kind)
