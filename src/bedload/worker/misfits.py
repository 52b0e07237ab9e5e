"""Why a value does not fit its column, in words: looked for one by one, once :mod:`bedload.worker.fitting` has refused.

Invariant: a value has a reason here exactly if it is refused there.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from bedload.worker.fitting import NOT_FITTING, WHOLE, fields_of, fitted, is_list, nanoseconds, plain_lists, takes
from bedload.worker.type_words import a, is_any_list


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
    if is_any_list(kind) and is_list(type(value)) and getattr(value, "ndim", None) != 0:
        field = kind.value_field
        (plain,) = plain_lists([value], kind)
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
            items = fields_of(value, [f.name for f in fields]) if not _strange(value, kind) else ()
            yield from (
                (item, field.type, field.nullable, f".{field.name}") for item, field in zip(items, fields, strict=False)
            )


def _strange(value: Any, kind: pa.DataType) -> list[str]:
    """Fields that a struct does not have."""
    return sorted(map(str, value.keys() - {field.name for field in kind})) if isinstance(value, Mapping) else []


def _reason(value: Any, kind: pa.DataType, error: Exception) -> str:
    """The end of a sentence that begins with the value."""
    none = f"is not {a(kind)}"
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
    if not takes(kind, type(value)):
        return none
    if pa.types.is_integer(kind):
        whole = isinstance(value, WHOLE) or (math.isfinite(value) and value == int(value))
        return f"is too large for {a(kind)}" if whole else none
    if pa.types.is_floating(kind):
        may = f"may have more digits than {a(kind)} keeps: use float(x)"
        return may if isinstance(value, WHOLE) else f"is too large for {a(kind)}"
    if pa.types.is_decimal(kind):
        return f"has other digits than {a(kind)} can have"
    if getattr(value, "tzinfo", None) is not None and getattr(kind, "tz", None) is None:
        return f"has a time zone, and {a(kind)} has none"
    if pa.types.is_temporal(kind) and nanoseconds(value):
        return f"has nanoseconds, and {a(kind)} has none"
    if isinstance(error, (UnicodeError, OverflowError)) or pa.types.is_temporal(kind):
        return f"does not fit {a(kind)}"
    return none


__all__ = ["misfit"]
