"""Python values as Arrow columns of a declared type, without changing any of them.

Asked for a type, Arrow bends values to it: 1.5 becomes the integer 1, "abc" a list of letters, an aware datetime
another wall clock, and a field that is not declared vanishes. So what could be bent is looked at first. That is done
for whole columns, by the set of their Python types. Nested types are taken apart, and so their items are columns, too.

Invariant: :func:`fitted` gives every value as it is, or raises. Which value it was, and why, is found by
:func:`~bedload.worker.misfits.misfit`, one by one.
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

from bedload.worker.type_words import a, is_any_list, spelled

NOT_FITTING = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What :func:`fitted` raises."""

_TEXTS = (str, bytes, bytearray, memoryview)
WHOLE = (int, np.integer)
"""The classes of integers."""
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
    if not all(takes(kind, cls) for cls in classes):
        raise TypeError(f"not all values are {a(kind)}")
    if pa.types.is_integer(kind) and not all(issubclass(cls, WHOLE) for cls in classes):
        column = [_whole(value) for value in column]
    elif pa.types.is_temporal(kind):
        return _moments(column, classes, kind)
    made = pa.array(column, type=kind)
    if pa.types.is_floating(kind) and kind.bit_width < 64:
        endless = np.flatnonzero(np.isinf(made.to_numpy(zero_copy_only=False)))
        if not all(math.isinf(column[at]) for at in endless.tolist()):
            raise OverflowError(f"a number is too large for {a(kind)}")
    return made


def takes(kind: pa.DataType, cls: type) -> bool:
    """Whether a scalar type has values of this class."""
    for is_it, classes, but in _TAKES:
        if is_it(kind):
            return issubclass(cls, classes) and not issubclass(cls, but)
    return True


def _whole(value: Any) -> Any:
    if value is None or isinstance(value, WHOLE):
        return value
    if value != int(value):  # raises for NaN and infinity
        raise ValueError(f"{value!r} is not whole")
    return int(value)


def _moments(column: Sequence[Any], classes: set[type], kind: pa.DataType) -> pa.Array:
    local = pa.types.is_time(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    if local and any(value.tzinfo is not None for value in column if value is not None):
        raise ValueError(f"{a(kind)} has no time zone")
    if not classes <= {dt.datetime, dt.timedelta, dt.date, dt.time} and any(map(nanoseconds, column)):
        raise ValueError(f"{a(kind)} has no nanoseconds")
    fine = kind
    if getattr(kind, "unit", None) in ("s", "ms"):  # Arrow would cut microseconds, but a cast refuses to
        if pa.types.is_timestamp(kind):
            fine = pa.timestamp("us", kind.tz)
        else:
            fine = pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")
    made = pa.array(column, type=fine)
    return made if fine is kind else made.cast(kind)


def nanoseconds(value: Any) -> int:
    """What pandas has beside microseconds."""
    return getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)


# --- nested types ---


def _lists(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if _is_flat(column):
        return _cut(recast(pa.array(np.concatenate(column)), kind.value_type), column, kind)
    column = plain_lists(column, kind)
    items = list(chain.from_iterable(value for value in column if value is not None))
    return _cut(fitted(items, kind.value_type), column, kind)


def _is_flat(column: Sequence[Any]) -> bool:
    """Whether these are plain NumPy arrays of one type of numbers, whose items need not be Python's."""
    if set(map(type, column)) != {np.ndarray}:
        return False
    return column[0].dtype.kind in "biuf" and {(array.ndim, array.dtype) for array in column} == {(1, column[0].dtype)}


def plain_lists(column: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Lists, and other containers of items, of a column that is to have nothing else."""
    classes = set(map(type, column))
    if not all(cls is NoneType or is_list(cls) for cls in classes):
        raise TypeError(f"not all values are {a(kind)}")
    if any(issubclass(cls, np.ndarray) for cls in classes):
        column = [list(value.tolist()) if isinstance(value, np.ndarray) else value for value in column]
    if any(issubclass(cls, pa.Array) for cls in classes):
        column = [value.to_pylist() if isinstance(value, pa.Array) else value for value in column]
    return column


def is_list(cls: type) -> bool:
    """Whether objects of this class count as arrays."""
    return issubclass(cls, Iterable) and issubclass(cls, Sized) and not issubclass(cls, (*_TEXTS, Mapping))


def _cut(items: pa.Array, column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The lists of a column, of their items in one array."""
    if items.null_count and not kind.value_field.nullable:
        raise ValueError(f"null in {a(kind)}, whose items are declared NOT NULL")
    large = pa.types.is_large_list(kind)
    made = pa.LargeListArray if large else pa.ListArray
    return made.from_arrays(
        _offsets(column, pa.int64() if large else pa.int32()), items, type=kind, mask=_nulls(column)
    )


def _maps(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    mappings = {cls for cls in set(map(type, column)) if issubclass(cls, Mapping)}
    column = plain_lists([value.items() if type(value) in mappings else value for value in column], kind)
    pairs = list(chain.from_iterable(value for value in column if value is not None))
    are_pairs = all(issubclass(cls, (tuple, list)) for cls in set(map(type, pairs))) and set(map(len, pairs)) <= {2}
    if not are_pairs:
        raise TypeError("a map is a dict or a list of pairs")
    keys = fitted([key for key, _ in pairs], kind.key_type)
    values = fitted([value for _, value in pairs], kind.item_type)
    if keys.null_count or (values.null_count and not kind.item_field.nullable):
        raise ValueError(f"null in {a(kind)}, whose keys or values are declared NOT NULL")
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
        rows = [fields_of(value, names) for value in column]
        parts = ([row[at] for row in rows] for at in range(len(names)))
    arrays = [fitted(part, field.type) for part, field in zip(parts, fields, strict=True)]
    absent = len(column) - len(there)
    if any(array.null_count > absent and not field.nullable for array, field in zip(arrays, fields, strict=True)):
        raise ValueError("null in a field that is declared NOT NULL")
    if not fields:
        return pa.array([None if value is None else {} for value in column], type=kind)
    return pa.StructArray.from_arrays(arrays, type=kind, mask=_nulls(column))


def fields_of(value: Any, names: Collection[str]) -> Sequence[Any]:
    """The fields of a struct, in the declared order."""
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
        raise OverflowError(f"a number is too large for {a(kind)}")
    return made


def _becomes(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a safe cast keeps the values or fails. Of some types no cast is: it parses texts, and cuts timestamps."""
    if given == kind or pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given):
        return _becomes(given.value_type, kind)
    if is_any_list(given):
        return is_any_list(kind) and _becomes(given.value_type, kind.value_type)
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
    if is_any_list(array.type):
        return _infinite(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(map(_infinite, array.flatten()))
    return 0


__all__ = ["NOT_FITTING", "WHOLE", "fields_of", "fitted", "is_list", "nanoseconds", "plain_lists", "recast", "takes"]
