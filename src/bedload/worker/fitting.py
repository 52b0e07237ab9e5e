"""Python values as Arrow columns of a declared type, without changing any of them.

Asked for a type, Arrow bends values to it: 1.5 becomes the integer 1, "abc" a list of letters, an aware datetime
another wall clock, and a field that is not declared vanishes. So what could be bent is looked at first. That is done
for whole columns, by the set of their Python types. Nested types are taken apart, and so their items are columns, too.

Invariant: :func:`fitted` gives every value as it is, or raises. Which value it was, and why, is found by
:func:`misfit`, one by one.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from decimal import Decimal
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NOT_FITTING = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What :func:`fitted` raises."""

_TEXTS = (str, bytes, bytearray, memoryview)
_WHOLE = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)
_TAKES: list[tuple[Any, tuple[type, ...], tuple[type, ...]]] = [
    (pa.types.is_integer, _NUMBERS, (bool,)),
    (pa.types.is_floating, _NUMBERS, (bool,)),
    (pa.types.is_decimal, (Decimal, int), (bool,)),
    (pa.types.is_binary, (bytes, bytearray, memoryview), ()),
    (pa.types.is_large_binary, (bytes, bytearray, memoryview), ()),
    (pa.types.is_fixed_size_binary, (bytes, bytearray, memoryview), ()),
    (pa.types.is_date, (dt.date,), (dt.datetime,)),
    (pa.types.is_timestamp, (dt.datetime,), ()),
    (pa.types.is_time, (dt.time,), ()),
    (pa.types.is_duration, (dt.timedelta,), ()),
]
"""Which classes a scalar type takes, and which of their subclasses it does not; of the others Arrow bends none."""


def fitted(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as an array of this type; raises if one of them does not fit as it is."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Asked for texts, Arrow would take bytes, too. What it takes for texts unasked is one; that costs nothing.
        found = pa.array(column)
        return found if found.type == kind else recast(found, kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(column, kind)
    if pa.types.is_fixed_size_list(kind):
        return _lists(column, pa.list_(kind.value_field)).cast(kind)
    if pa.types.is_map(kind):
        return _maps(column, kind)
    if pa.types.is_struct(kind):
        return _structs(column, kind)
    return _scalars(column, kind)


# --- scalars ---


def _scalars(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    classes = set(map(type, column))
    classes.discard(NoneType)
    if not all(_takes(kind, cls) for cls in classes):
        raise TypeError(f"not all values are {_a(kind)}")
    if pa.types.is_integer(kind) and not all(issubclass(cls, _WHOLE) for cls in classes):
        column = [_whole(value) for value in column]
    elif pa.types.is_temporal(kind):
        return _moments(column, classes, kind)
    made = pa.array(column, type=kind)
    if pa.types.is_floating(kind) and kind.bit_width < 64:
        endless = np.flatnonzero(np.isinf(made.to_numpy(zero_copy_only=False)))
        if not all(math.isinf(column[at]) for at in endless.tolist()):
            raise OverflowError(f"a number is too large for {_a(kind)}")
    return made


def _takes(kind: pa.DataType, cls: type) -> bool:
    for is_it, classes, but in _TAKES:
        if is_it(kind):
            return issubclass(cls, classes) and not issubclass(cls, but)
    return True


def _whole(value: Any) -> Any:
    if value is None or isinstance(value, _WHOLE):
        return value
    if value != int(value):  # raises for NaN and infinity
        raise ValueError(f"{value!r} is not whole")
    return int(value)


def _moments(column: Sequence[Any], classes: set[type], kind: pa.DataType) -> pa.Array:
    local = pa.types.is_time(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    if local and any(value.tzinfo is not None for value in column if value is not None):
        raise ValueError(f"{_a(kind)} has no time zone")
    if not classes <= {dt.datetime, dt.timedelta, dt.date, dt.time} and any(map(_nanoseconds, column)):
        raise ValueError(f"{_a(kind)} has no nanoseconds")
    fine = kind
    if getattr(kind, "unit", None) in ("s", "ms"):  # Arrow would cut microseconds, but a cast refuses to
        if pa.types.is_timestamp(kind):
            fine = pa.timestamp("us", kind.tz)
        else:
            fine = pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")
    made = pa.array(column, type=fine)
    return made if fine is kind else made.cast(kind)


def _nanoseconds(value: Any) -> int:
    """What pandas has beside microseconds."""
    return getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)


# --- nested types ---


def _lists(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if _is_flat(column):
        return _cut(recast(pa.array(np.concatenate(column)), kind.value_type), column, kind)
    column = _plain(column, kind)
    items = list(chain.from_iterable(value for value in column if value is not None))
    return _cut(fitted(items, kind.value_type), column, kind)


def _is_flat(column: Sequence[Any]) -> bool:
    """Whether these are plain NumPy arrays of one type of numbers, whose items need not be Python's."""
    if set(map(type, column)) != {np.ndarray}:
        return False
    return column[0].dtype.kind in "biuf" and {(array.ndim, array.dtype) for array in column} == {(1, column[0].dtype)}


def _plain(column: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Lists, and other containers of items, of a column that is to have nothing else."""
    classes = set(map(type, column))
    if not all(cls is NoneType or _is_list(cls) for cls in classes):
        raise TypeError(f"not all values are {_a(kind)}")
    if any(issubclass(cls, np.ndarray) for cls in classes):
        column = [value.tolist() if isinstance(value, np.ndarray) else value for value in column]
    if any(issubclass(cls, pa.Array) for cls in classes):
        column = [value.to_pylist() if isinstance(value, pa.Array) else value for value in column]
    return column


def _is_list(cls: type) -> bool:
    return issubclass(cls, Iterable) and issubclass(cls, Sized) and not issubclass(cls, (*_TEXTS, Mapping))


def _cut(items: pa.Array, column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The lists of a column, of their items in one array."""
    if items.null_count and not kind.value_field.nullable:
        raise ValueError(f"null in {_a(kind)}, whose items are declared NOT NULL")
    large = pa.types.is_large_list(kind)
    made = pa.LargeListArray if large else pa.ListArray
    return made.from_arrays(
        _offsets(column, pa.int64() if large else pa.int32()), items, type=kind, mask=_nulls(column)
    )


def _maps(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    column = _plain([value.items() if isinstance(value, Mapping) else value for value in column], kind)
    pairs = list(chain.from_iterable(value for value in column if value is not None))
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise TypeError("a map is a dict or a list of pairs")
    keys = fitted([key for key, _ in pairs], kind.key_type)
    values = fitted([value for _, value in pairs], kind.item_type)
    if keys.null_count or (values.null_count and not kind.item_field.nullable):
        raise ValueError(f"null in {_a(kind)}, whose keys or values are declared NOT NULL")
    return pa.MapArray.from_arrays(_offsets(column, pa.int32()), keys, values, type=kind, mask=_nulls(column))


def _offsets(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    lengths = np.fromiter((0 if value is None else len(value) for value in column), np.int64, len(column))
    return pa.array(np.concatenate(([0], np.cumsum(lengths))), type=kind)


def _nulls(column: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in column], type=pa.bool_())


def _structs(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    fields = list(kind)
    names = [field.name for field in fields]
    classes = set(map(type, column)) - {NoneType}
    there = [value for value in column if value is not None]
    if all(issubclass(cls, Mapping) for cls in classes):
        unknown = set(chain.from_iterable(there)) - set(names)
        if unknown:
            raise ValueError(f"unknown fields {sorted(map(str, unknown))}")
        parts: Any = ([None if value is None else value.get(name) for value in column] for name in names)
    else:
        rows = [_fields_of(value, names) for value in column]
        parts = ([row[at] for row in rows] for at in range(len(names)))
    arrays = [fitted(part, field.type) for part, field in zip(parts, fields, strict=True)]
    absent = len(column) - len(there)
    if any(array.null_count > absent and not field.nullable for array, field in zip(arrays, fields, strict=True)):
        raise ValueError("null in a field that is declared NOT NULL")
    if not fields:
        return pa.array([None if value is None else {} for value in column], type=kind)
    return pa.StructArray.from_arrays(arrays, type=kind, mask=_nulls(column))


def _fields_of(value: Any, names: Collection[str]) -> Sequence[Any]:
    if value is None:
        return [None] * len(names)
    if isinstance(value, Mapping):
        if value.keys() - set(names):
            raise ValueError(f"unknown fields {sorted(map(str, value.keys() - set(names)))}")
        return [value.get(name) for name in names]
    if not isinstance(value, tuple):
        raise TypeError("a struct is a dict or a tuple")
    if len(value) != len(names):
        raise ValueError(f"{len(value)} values for {len(names)} fields")
    return value


# --- from Arrow to Arrow ---


def recast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array with another type; raises if that has not the same values."""
    if array.type == kind:
        return array
    if not _becomes(array.type, kind):
        raise TypeError(f"{spelled(array.type)} is not {spelled(kind)}")
    made = array.cast(kind)
    if _infinite(made) > _infinite(array):  # of floats that become smaller ones, no cast says that they are too large
        raise OverflowError(f"a number is too large for {_a(kind)}")
    return made


def _becomes(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a safe cast keeps the values or fails. Of some types no cast is: it parses texts, and cuts timestamps."""
    if given == kind or pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given):
        return _becomes(given.value_type, kind)
    if _any_list(given):
        return _any_list(kind) and _becomes(given.value_type, kind.value_type)
    if pa.types.is_map(given):
        inner = ((given.key_type, kind.key_type), (given.item_type, kind.item_type)) if pa.types.is_map(kind) else None
        return inner is not None and all(_becomes(*both) for both in inner)
    if pa.types.is_struct(given):
        wanted = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
        return all(field.name in wanted and _becomes(field.type, wanted[field.name]) for field in given)
    if pa.types.is_timestamp(given):
        return bool(pa.types.is_timestamp(kind) and (given.tz is None or kind.tz is not None))
    if pa.types.is_decimal(kind):
        return bool(pa.types.is_decimal(given) or pa.types.is_integer(given))
    return _family(given) == _family(kind)


def _any_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _family(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    for name in ("string", "binary", "date", "time", "duration"):
        if str(kind).removeprefix("large_").removeprefix("fixed_size_").startswith(name):
            return name
    return str(kind)


def _infinite(array: pa.Array) -> int:
    """How many infinite numbers there are, at any depth."""
    if pa.types.is_floating(array.type):
        return int(pc.sum(pc.is_inf(array)).as_py() or 0)
    if pa.types.is_map(array.type):
        return _infinite(array.keys) + _infinite(array.items)
    if _any_list(array.type):
        return _infinite(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(map(_infinite, array.flatten()))
    return 0


# --- in words ---


def misfit(value: Any, field: pa.Field) -> str | None:
    """Why a value does not fit a column; None if it does."""
    return _misfit(value, field.type, field.nullable, field.name, "")


def _misfit(value: Any, kind: pa.DataType, nullable: bool, column: str, path: str) -> str | None:
    at = f" at {column}{path}" if path else ""
    if value is None:
        it = f"{column}{path}" if path else "it"
        declared = "it" if path else "the column"
        return None if nullable else f"{it} is null, but {declared} is declared NOT NULL"
    try:
        fitted([value], kind)
    except NOT_FITTING as error:
        for inner in _inside(value, kind):
            said = _misfit(*inner[:3], column, path + inner[3])
            if said:
                return said
        return f"{value!r} ({type(value).__name__}){at} {_reason(value, kind, error)}"
    return None


def _inside(value: Any, kind: pa.DataType) -> Iterable[tuple[Any, pa.DataType, bool, str]]:
    """The items of a value of a nested type: each with its type, whether it may be null, and where it is."""
    if _any_list(kind) and _is_list(type(value)):
        field = kind.value_field
        (plain,) = _plain([value], kind)
        yield from ((item, field.type, field.nullable, f"[{i}]") for i, item in enumerate(plain))
    elif pa.types.is_map(kind) and isinstance(value, (Mapping, list, tuple)):
        pairs = value.items() if isinstance(value, Mapping) else value
        for pair in pairs:
            if isinstance(pair, (tuple, list)) and len(pair) == 2:
                yield pair[0], kind.key_type, False, ".key"
                yield pair[1], kind.item_type, kind.item_field.nullable, f"[{pair[0]!r}]"
    elif pa.types.is_struct(kind) and isinstance(value, (Mapping, tuple)):
        fields = list(kind)
        if isinstance(value, Mapping) or len(value) == len(fields):
            items = _fields_of(value, [f.name for f in fields]) if not _strange(value, kind) else ()
            yield from (
                (item, field.type, field.nullable, f".{field.name}") for item, field in zip(items, fields, strict=False)
            )


def _strange(value: Any, kind: pa.DataType) -> list[str]:
    """Fields that a struct does not have."""
    return sorted(map(str, value.keys() - {field.name for field in kind})) if isinstance(value, Mapping) else []


def _reason(value: Any, kind: pa.DataType, error: Exception) -> str:
    """The end of a sentence that begins with the value."""
    none = f"is not {_a(kind)}"
    if pa.types.is_struct(kind):
        names = ", ".join(field.name for field in kind)
        if _strange(value, kind):
            return f"has the unknown fields {', '.join(_strange(value, kind))}; there are: {names}"
        if isinstance(value, tuple):
            return f"has {len(value)} values for {kind.num_fields} fields: {names}"
        return f"{none}: use a dict or a tuple"
    if pa.types.is_map(kind):
        return f"{none}: use a dict or a list of pairs"
    if isinstance(value, dt.datetime) and pa.types.is_date(kind):
        return f"{none}: use .date()"
    if not _takes(kind, type(value)):
        return none
    if pa.types.is_integer(kind):
        whole = isinstance(value, _WHOLE) or (math.isfinite(value) and value == int(value))
        return f"is too large for {_a(kind)}" if whole else none
    if pa.types.is_floating(kind):
        may = f"may have more digits than {_a(kind)} keeps: use float(x)"
        return may if isinstance(value, _WHOLE) else f"is too large for {_a(kind)}"
    if pa.types.is_decimal(kind):
        return f"has other digits than {_a(kind)} can have"
    if getattr(value, "tzinfo", None) is not None and getattr(kind, "tz", None) is None:
        return f"has a time zone, and {_a(kind)} has none"
    if pa.types.is_temporal(kind) and _nanoseconds(value):
        return f"has nanoseconds, and {_a(kind)} has none"
    if isinstance(error, (UnicodeError, OverflowError)) or pa.types.is_temporal(kind):
        return f"does not fit {_a(kind)}"
    return none


_WORDS = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "large_string": "string",
    "large_binary": "binary",
    "date32[day]": "date",
    "timestamp[us]": "timestamp_ntz",
    "time64[ns]": "time",
    "duration[us]": "interval day to second",
    "null": "void",
}


def spelled(kind: pa.DataType) -> str:
    """A type in Spark's words, as it was declared."""
    if _any_list(kind):
        return f"array<{spelled(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{spelled(kind.key_type)}, {spelled(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {spelled(field.type)}' for field in kind)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return "timestamp"
    return _WORDS.get(str(kind), str(kind))


def _a(kind: pa.DataType) -> str:
    word = spelled(kind)
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


__all__ = ["NOT_FITTING", "fitted", "misfit", "recast", "spelled"]
