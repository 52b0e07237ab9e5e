"""Arrow's types in Spark's words, as users declare them."""

from __future__ import annotations

import pyarrow as pa

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


def is_any_list(kind: pa.DataType) -> bool:
    """Whether it is one of Arrow's types for Spark's arrays."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def spelled(kind: pa.DataType) -> str:
    """A type in Spark's words, as it was declared."""
    if is_any_list(kind):
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


def a(kind: pa.DataType) -> str:
    """The same with its article."""
    word = spelled(kind)
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


__all__ = ["a", "is_any_list", "spelled"]
