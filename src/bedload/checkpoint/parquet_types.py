"""What an Arrow type is stored as in Parquet, where Parquet, Spark, DuckDB or pandas cannot read it as it is.

====================================  ==================================================================
Arrow                                 in Parquet
====================================  ==================================================================
struct without fields                 struct of one field ``_empty``
float16                               float32
timestamp[ns]                         int64, as Spark reads no nanoseconds: they count from 1970
timestamp[s], date64                  timestamp[ms], date32
time32, time64                        int32, int64, as Spark reads no times of day
duration                              int64; pandas and pyarrow see the duration, others the number
decimal256                            string: Spark's decimals end at 38 digits
dictionary                            what it stands for
sets, tuples, opaque values, …        lists, structs, binary: see :mod:`bedload.state.arrow`
====================================  ==================================================================

Everything else is stored as it is. Unions, intervals, run-end encoding, views and the type of nulls are refused.

Invariants: ``array.cast(stored_type(t)).cast(t)`` is the array; both casts are free where the types are the same.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from bedload.core.errors import StateTypeError

_PLAIN: dict[pa.DataType, pa.DataType] = {
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}

_REFUSED = (pa.null(), pa.string_view(), pa.binary_view())


@cache
def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type to cast to before writing. Raises :class:`StateTypeError` if there is none."""
    types = pa.types
    if types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if types.is_timestamp(kind):
        return pa.int64() if kind.unit == "ns" else pa.timestamp("ms", kind.tz) if kind.unit == "s" else kind
    if types.is_time(kind):
        return pa.int32() if types.is_time32(kind) else pa.int64()
    if types.is_decimal256(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([_field(field) for field in kind] or [("_empty", pa.bool_())])
    if types.is_map(kind):
        return pa.map_(stored_type(kind.key_type), _field(kind.item_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    if types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if types.is_nested(kind) or types.is_interval(kind) or kind in _REFUSED or isinstance(kind, pa.BaseExtensionType):
        raise StateTypeError(
            f"the Arrow type {kind} cannot be stored in Parquet so that other programs read it: use a number, a "
            "string, binary, a date, a time, or lists, maps and structs of them"
        )
    return _PLAIN.get(kind, kind)


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(stored_type(field.type))
