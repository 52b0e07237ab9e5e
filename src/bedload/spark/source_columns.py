"""State as columns of a table: their names, and their types as Spark has them.

The key's columns come first under the user's names, then the state variables, then the key group; in a change feed
``batch_id`` and ``change_type`` come before all. A key column that has the name of a variable is called ``key_`` and
that name, as in the Parquet files of a snapshot.

Invariants: no two columns have one name, whatever the case; a batch that :meth:`Columns.arrow` gives has, field by
field, the Arrow schema that Spark expects of its own types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from bedload.checkpoint.parquet_types import stored_type
from bedload.checkpoint.records import OperatorSchema, Variable
from bedload.checkpoint.timestamps import NAIVE, NO_STAMP, UTC, is_dated, stamped, stamped_type, zone_shown, zones_of
from bedload.core.errors import SchemaError, StateTypeError
from bedload.store.deltas import GROUP, key_column

KEY_GROUP = "key_group"
BATCH = "batch_id"
CHANGE = "change_type"
UPDATE, DELETE = "update", "delete"
"""As the change feed of Spark's own state reader has them."""

_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and which column of the state each of them is."""

    schema: StructType
    sources: tuple[str, ...]
    """Names in state form, or ``batch_id`` and ``change_type``."""
    zones: dict[str, str]
    """Of variables whose datetimes are timestamps, by name."""

    @cached_property
    def arrow(self) -> pa.Schema:
        """What Spark expects."""
        return to_arrow_schema(self.schema, timezone="UTC")

    def batch(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """The table's columns out of those of the state."""
        arrays = []
        for source, field in zip(self.sources, self.arrow, strict=True):
            column, zone = columns[source], self.zones.get(source)
            if zone is not None:
                column = stamped(_checked(source, column, zone), zone)
            arrays.append(column.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def select(self, wanted: StructType) -> Columns:
        """Some of them, as the user wrote them down: the others are not read."""
        known = {field.name.lower(): i for i, field in enumerate(self.schema.fields)}
        at = []
        for field in wanted.fields:
            i = known.get(field.name.lower())
            if i is None:
                raise SchemaError(
                    f"the state has no column {field.name!r}; it has {', '.join(self.schema.fieldNames())}"
                )
            has = self.schema.fields[i].dataType.simpleString()
            if field.dataType.simpleString() != has:
                raise SchemaError(
                    f"column {field.name!r} of the state is {has}, not {field.dataType.simpleString()}: leave the "
                    "schema out, or read it as it is and cast it"
                )
            at.append(i)
        return Columns(wanted, tuple(self.sources[i] for i in at), self.zones)


def columns_of(
    schema: OperatorSchema,
    variables: Iterable[str] | None = None,
    *,
    changes: bool = False,
    zones: Mapping[str, str] = MappingProxyType({}),
) -> Columns:
    """The table of an operator's state with all variables or with some, or of what changed in it.

    ``zones`` says of which variables the datetimes are timestamps, and of what zone.
    """
    chosen = None if variables is None else set(variables)
    wanted = [variable for variable in schema.variables if chosen is None or variable.name in chosen]
    names = [variable.name for variable in wanted]
    keys, group, first = _names(schema.key_names, names, (BATCH, CHANGE) if changes else ())
    fields: list[tuple[str, str, pa.DataType]] = []
    if changes:
        fields += [(first[0], BATCH, pa.int64()), (first[1], CHANGE, pa.string())]
    fields += [(name, key_column(i), kind) for i, (name, kind) in enumerate(zip(keys, schema.keys.types, strict=True))]
    stamps = {name: zone for name, zone in zones.items() if zone != NO_STAMP}
    fields += [(variable.name, variable.name, _kind(variable, stamps)) for variable in wanted]
    fields.append((group, GROUP, pa.int32()))
    readable_schema = pa.schema([pa.field(name, _readable_as(name, kind)) for name, _, kind in fields])
    return Columns(from_arrow_schema(readable_schema), tuple(source for _, source, _ in fields), stamps)


def zones_in(schema: OperatorSchema, table: StructType) -> dict[str, str]:
    """The zones by which the columns of a table have the types that they have."""
    kinds = {field.name.lower(): field.dataType.simpleString() for field in table.fields}
    found = {}
    for variable in filter(is_dated, schema.variables):
        for zone in (UTC, NAIVE, NO_STAMP):
            kind = from_arrow_type(readable(_kind(variable, {variable.name: zone}))).simpleString()
            if variable.name not in found or kind == kinds.get(variable.name.lower()):
                found[variable.name] = zone
    return found


def _kind(variable: Variable, zones: Mapping[str, str]) -> pa.DataType:
    kind, zone = variable.field.type, zones.get(variable.name, NO_STAMP)
    return kind if zone == NO_STAMP else stamped_type(kind, zone)


def _checked(name: str, column: pa.Array, zone: str) -> pa.Array:
    """The datetimes of a column, all of which are naive, or all aware."""
    there = zones_of(column, exact=False)
    if there and zone_shown(there) != zone:
        wanted = "without a zone" if zone == NAIVE else "of a zone"
        raise SchemaError(
            f"state variable {name!r} was to be read as timestamps {wanted}, and holds datetimes of another kind: "
            "leave the schema out, and it is read as it is"
        )
    return column


def _names(
    keys: Sequence[str], variables: Sequence[str], added: Sequence[str]
) -> tuple[list[str], str, tuple[str, ...]]:
    """The names of the key columns, of the key group, and of what is added; variables keep theirs."""
    taken = {name.lower() for name in variables}
    made_keys = []
    others = {name.lower() for name in keys}
    for name in keys:
        made = name
        while made.lower() in taken or (made != name and made.lower() in others):
            made = f"key_{made}"
        taken.add(made.lower())
        made_keys.append(made)
    made_added = []
    for name in (*added, KEY_GROUP):
        made = name
        while made.lower() in taken:
            made = f"bedload_{made}"
        taken.add(made.lower())
        made_added.append(made)
    return made_keys, made_added[-1], tuple(made_added[:-1])


def _readable_as(name: str, kind: pa.DataType) -> pa.DataType:
    try:
        return readable(kind)
    except StateTypeError as bad:
        raise StateTypeError(f"state variable {name!r} cannot be read by Spark: {bad.message}") from None


@cache
def readable(kind: pa.DataType) -> pa.DataType:
    """The Arrow type nearest to a type of the state that is one of Spark's."""
    types = pa.types
    kind = stored_type(kind)
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_string(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_map(kind):
        return pa.map_(readable(kind.key_type), readable(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, readable(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(readable(kind.value_type))
    return _UNSIGNED.get(kind, kind)
