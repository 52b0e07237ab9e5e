"""Input rows as a feeder gets them from Spark: Arrow batches whose last column is the key group.

On Spark the JVM computes the key group; here :mod:`bedload.keys` does, which agrees with it bit for bit.

Invariant: a column has one type, from its declaration or from its first value that is not null. Rows that do not fit
are refused, never bent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from bedload.core.errors import DataError, KeyColumnError, NullKey, SchemaError
from bedload.core.ids import KeyGroup, KeyHash
from bedload.keys import canonical_key, check_key_type, hash_key, kept_type, key_group
from bedload.protocol.split import GROUP_FIELD, with_groups
from bedload.testing import ddl
from bedload.worker.fitting import NOT_FITTING, fitted
from bedload.worker.misfits import misfit
from bedload.worker.type_words import spelled


class StructType(Protocol):
    """One of Spark's struct types."""

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The type as plain data."""
        ...


class DataFrame(Protocol):
    """Rows of another library that gives them as Arrow, as pandas and Polars do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Columns: TypeAlias = str | StructType | pa.Schema | Mapping[str, pa.DataType]
"""Names and types: Spark's DDL (``"car string, n long"``) or struct type, as for ``cluster.apply``; or Arrow's."""
Rows: TypeAlias = Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]] | pa.Table | pa.RecordBatch | DataFrame
"""Input rows: dicts; tuples, if the columns are declared; Arrow data; a pandas or Polars DataFrame."""

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def as_schema(columns: Columns, what: str) -> pa.Schema:
    """An Arrow schema from all that may stand for one."""
    if isinstance(columns, pa.Schema):
        found = columns
    elif isinstance(columns, Mapping):
        found = pa.schema(list(columns.items()))
    elif isinstance(columns, str) or hasattr(columns, "jsonValue"):
        try:
            found = ddl.parse(columns) if isinstance(columns, str) else ddl.from_spark(columns.jsonValue())
        except ValueError as problem:  # of ours, or of Arrow's: there is no void that is not null
            raise SchemaError(
                f"{what}={columns!r} is not a DDL string such as 'car string, n long': {problem}"
            ) from None
    else:
        raise SchemaError(
            f"{what}={columns!r}: give a DDL string such as 'car string, n long', a pyarrow schema, or a mapping such "
            f"as {{'car': pa.string(), 'n': pa.int64()}}"
        )
    if not found.names:
        raise SchemaError(f"{what} has no columns")
    names = [name.lower() for name in found.names]
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise SchemaError(f"{what}={columns!r} has columns twice: {', '.join(doubles)}")
    return found


class InputFormat:
    """The columns of the input, its key, and the number of key groups."""

    def __init__(self, schema: pa.Schema, key: str | Sequence[str], key_groups: int, *, declared: bool = True) -> None:
        """Without ``declared`` the types are what the first rows have, and null where they have nothing else."""
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
        self.names = names
        """The key's columns."""
        self._declared = declared
        if len(names) == 1 and self._undecided(names):
            raise NullKey(f"all rows have null in the key column {names[0]!r}")
        self.require(names)
        for name in names:
            check_key_type(schema.field(name).type, name)
        self.key_types = tuple(kept_type(schema.field(index).type) for index in self.key)

    @classmethod
    def inferred(cls, rows: Rows, key: str | Sequence[str], key_groups: int) -> InputFormat:
        """The format of these rows; the types are those that Arrow finds."""
        given = _columns_of(rows, None)
        if not given:
            raise SchemaError("the columns of no rows are not known: give input=..., or feed some rows first")
        fields = []
        for name, values in given.items():
            try:
                fields.append((name, (values if isinstance(values, pa.Array) else pa.array(values)).type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise SchemaError(
                    f"column {name!r}: its values have no common type ({error}). Declare the columns with input=, as "
                    "in input='car string, speed double'",
                    column=name,
                ) from error
        return cls(pa.schema(fields), key, key_groups, declared=False)

    @property
    def fed(self) -> pa.Schema:
        """The columns that a feeder sends."""
        return self.schema.append(GROUP_FIELD)

    def require(self, names: Iterable[str]) -> None:
        """Raise unless the types of these columns are known."""
        undecided = self._undecided(names)
        if undecided:
            raise SchemaError(
                f"column {undecided[0]!r} has been null in all rows so far, so its type is not known. Declare the "
                f"columns with input=, as in input='car string, speed double', or feed a row first that has a value",
                column=undecided[0],
            )

    def _undecided(self, names: Iterable[str]) -> list[str]:
        """Those of these columns that have had no value yet."""
        known = self._declared
        return [] if known else [n for n in names if n in self.columns and pa.types.is_null(self.schema.field(n).type)]

    def batch(self, rows: Rows) -> pa.RecordBatch:
        """The rows as a feeder sends them."""
        return with_groups(self.rows(rows), self.key, self.key_groups)

    def rows(self, rows: Rows) -> pa.RecordBatch:
        """The rows as a feeder gets them."""
        given = _columns_of(rows, self.columns)
        unknown = [name for name in given if name not in self.columns]
        if unknown:
            known = "" if self._declared else ", by the first rows that were fed; declare more with input="
            raise SchemaError(
                f"there is no column {unknown[0]!r} in the input, which has: {', '.join(self.columns)}{known}",
                column=unknown[0],
            )
        columns = [self._array(field, given[field.name]) for field in self.schema]
        keys = [columns[index] for index in self.key]
        if len(keys) == 1 and keys[0].null_count:
            raise NullKey(f"{keys[0].null_count} rows have null in the key column {self.names[0]!r}")
        if self._undecided(self.columns):
            self.schema = pa.schema([(name, column.type) for name, column in zip(self.columns, columns, strict=True)])
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _array(self, field: pa.Field, values: pa.Array | list[Any]) -> pa.Array:
        try:
            if self._undecided([field.name]):
                return values if isinstance(values, pa.Array) else pa.array(values)
            array = _cast(values, field.type) if isinstance(values, pa.Array) else fitted(values, field.type)
        except NOT_FITTING as error:
            found = () if isinstance(values, pa.Array) else (misfit(value, field) for value in values)
            why = next((problem for problem in found if problem), str(error))
            known = "as declared" if self._declared else "by its first value; declare another type with input="
            raise DataError(
                f"column {field.name!r} ({spelled(field.type)}, {known}): {why}", column=field.name
            ) from error
        if array.null_count and not field.nullable:
            raise DataError(f"column {field.name!r} has null, but it is declared NOT NULL", column=field.name)
        return array

    def group(self, key: Any) -> KeyGroup:
        """The key group of a key, in the form in which the user has it."""
        return key_group(self.hash(key), self.key_groups)

    def hash(self, key: Any) -> KeyHash:
        """The hash of a key, by which it is moved."""
        return hash_key(canonical_key(key), self.key_types, self.names)


def _columns_of(rows: Rows, names: Sequence[str] | None) -> dict[str, pa.Array | list[Any]]:
    """Rows as columns; ``names`` are those of tuples, which have none of their own."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if hasattr(rows, "__arrow_c_stream__"):
        table = pa.table(rows)
        given = {name: _whole(table.column(at)) for at, name in enumerate(table.column_names)}
        given = {name: column for name, column in given.items() if not _PANDAS_INDEX.fullmatch(name)}
        missing = [name for name in names or () if name not in given]
        if missing:
            raise SchemaError(f"there is no column {missing[0]!r} in the rows, which have: {', '.join(given)}")
        return given
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)):
        raise SchemaError(f"{rows!r} is no list of rows: give a list of dicts or of tuples, or a table")
    named = [_as_dict(row, names) for row in rows]
    found = dict.fromkeys((*(names or ()), *(name for row in named for name in row)))
    return {name: [row.get(name) for row in named] for name in found}


def _as_dict(row: Any, names: Sequence[str] | None) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    if hasattr(row, "asDict"):  # Spark's rows, and ours
        fields: Mapping[str, Any] = row.asDict()
        return fields
    if not isinstance(row, (tuple, list)):
        raise SchemaError(f"{row!r} is no row: give dicts, tuples, or a table")
    if names is None:
        raise SchemaError(
            f"the row {row!r} has no names for its columns: declare them with input=, as in "
            "input='car string, speed double', or give dicts"
        )
    if len(row) != len(names):
        raise SchemaError(f"the row {row!r} has {len(row)} values for {len(names)} columns: {', '.join(names)}")
    return dict(zip(names, row, strict=True))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece, in a form that Spark has."""
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    if pa.types.is_timestamp(whole.type) and whole.type.unit == "ns":  # as pandas has them
        return whole.cast(pa.timestamp("us", whole.type.tz), safe=False)
    return whole


_FAMILIES = (
    (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    (pa.types.is_timestamp,),
    (pa.types.is_time,),
    (pa.types.is_date,),
    (pa.types.is_duration,),
    (pa.types.is_nested,),
    (pa.types.is_boolean,),
)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    # SUBTLE: Arrow would make a number of a text, a text of anything, and true of 5.
    if not pa.types.is_null(values.type) and _family(values.type) != _family(kind):
        raise TypeError(f"{values.type} is not {kind}")
    return values.cast(kind)


def _family(kind: pa.DataType) -> int | None:
    return next((at for at, tests in enumerate(_FAMILIES) if any(test(kind) for test in tests)), None)
