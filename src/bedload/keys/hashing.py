"""The key hash, equal bit for bit to Spark's ``xxhash64(column, ...)``, for columns and for one key.

Invariants:

- ``hash_columns`` and ``hash_key`` agree with each other and with Spark for every type that
  :mod:`bedload.keys.kinds` allows. ``tests/spark/test_keys_hash_spark.py`` holds all three together.
- Columns are chained: the hash of one is the seed of the next, and the first seed is 42. A null passes
  its seed on.
- Values that are one key to Spark have one hash: ``-0.0`` is hashed as ``0.0``, every NaN as one NaN.

Why Spark's own function and not a faster one: the split by key group can then be done on either side, in
the plan or in Python, and a user can compute a key's group in SQL.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from bedload.core.errors import KeyTypeError
from bedload.core.ids import KeyHash
from bedload.keys import xxh64
from bedload.keys.columns import bytes_of, floats_of, large_decimals_of, longs_of, numbers_of
from bedload.keys.kinds import KeyKind, kind_of, value_type

SEED = 42
"""The seed that Spark's ``xxhash64`` starts with; also the hash of a key that is all nulls."""

Key = object
"""A key: one scalar for one key column, a tuple of scalars for several."""

_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=datetime.UTC)
_EPOCH_DAY = _EPOCH.toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)
_NAN32 = struct.pack("<I", 0x7FC00000)
_NAN64 = struct.pack("<Q", 0x7FF8000000000000)


def hash_columns(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """The hash of each row of the key columns, all of the same length."""
    if not columns:
        raise KeyTypeError("a key needs at least one column: name the key columns")
    if len({len(column) for column in columns}) > 1:
        raise KeyTypeError(f"key columns differ in length: {[len(column) for column in columns]}")
    seeds = np.array([SEED], np.uint64)
    for i, column in enumerate(columns):
        seeds = _hash_column(column, seeds, kind_of(column.type, f"#{i}"))
    return seeds.view(np.int64)


def hash_key(key: Key, types: Sequence[pa.DataType], names: Sequence[str] = ()) -> KeyHash:
    """The hash of one key, whose columns have the given types; ``names``: those of the columns, for errors.

    Raises :class:`KeyTypeError` if a value is not one that its column can hold: a look-up with it could
    only miss.
    """
    if not types:
        raise KeyTypeError("a key needs at least one column: name the key columns")
    values: tuple[object, ...]
    if len(types) == 1:
        values = (key,)
    elif isinstance(key, tuple) and len(key) == len(types):
        values = key
    else:
        raise KeyTypeError(
            f"the key has {len(types)} columns ({', '.join(_named(types, names))}), so it must be given as a tuple "
            f"of {len(types)} values, not as {key!r}"
        )
    seed = SEED
    for i, (value, data_type) in enumerate(zip(values, types, strict=True)):
        name = names[i] if names else f"#{i}"
        kind = kind_of(data_type, name)
        if value is None:
            continue
        if isinstance(value, np.bool_ | np.integer | np.floating):
            value = value.item()
        encoded = _ENCODERS[kind](value, value_type(data_type))
        if encoded is None:
            raise KeyTypeError(
                f"{value!r} ({type(value).__name__}) is not a value of key column {repr(name) if names else name}, "
                f"which has type {data_type}: give {_WANTED[kind]}",
                column=name,
                type=str(data_type),
            )
        seed = xxhash.xxh64_intdigest(encoded, seed)
    return KeyHash(seed - 2**64 if seed >= 2**63 else seed)


def _named(types: Sequence[pa.DataType], names: Sequence[str]) -> list[str]:
    return [f"{name} {kind}" for name, kind in zip(names, types, strict=True)] if names else list(map(str, types))


# --- columns -----------------------------------------------------------------------------------------


def _hash_column(column: pa.Array, seeds: xxh64.U64, kind: KeyKind) -> xxh64.U64:
    if isinstance(column, pa.DictionaryArray):
        if len(seeds) == 1 and len(column.dictionary) <= len(column):
            return _hash_dictionary(column, seeds, kind)
        column = column.dictionary_decode()
    hashes = _hash_values(column, seeds, kind)
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        hashes = np.where(nulls, seeds, hashes)
    return hashes


def _hash_dictionary(column: pa.DictionaryArray, seeds: xxh64.U64, kind: KeyKind) -> xxh64.U64:
    # The hash of a null goes last, where index -1 finds it. The dictionary may hold nulls as well.
    hashes = np.append(_hash_column(column.dictionary, seeds, kind), seeds)
    indices = column.indices.cast(pa.int64()).fill_null(-1)
    taken: xxh64.U64 = hashes[indices.to_numpy()]
    return taken


def _hash_values(column: pa.Array, seeds: xxh64.U64, kind: KeyKind) -> xxh64.U64:
    match kind:
        case KeyKind.BOOL | KeyKind.INT | KeyKind.DATE:
            return xxh64.hash_ints(numbers_of(column).astype(np.int32, copy=False), seeds)
        case KeyKind.LONG | KeyKind.TIMESTAMP | KeyKind.TIMESTAMP_NTZ:
            return xxh64.hash_longs(numbers_of(column), seeds)
        case KeyKind.FLOAT | KeyKind.DOUBLE:
            values = floats_of(column)
            if kind is KeyKind.FLOAT:
                return xxh64.hash_ints(values.view(np.int32), seeds)
            return xxh64.hash_longs(values.view(np.int64), seeds)
        case KeyKind.SMALL_DECIMAL:
            return xxh64.hash_longs(longs_of(column), seeds)
        case KeyKind.LARGE_DECIMAL:
            return xxh64.hash_bytes(*large_decimals_of(column), seeds)
        case KeyKind.STRING | KeyKind.BINARY | KeyKind.FIXED_BINARY:
            return xxh64.hash_bytes(*bytes_of(column), seeds)


# --- one value: the bytes that are hashed, or None if it is no value of the type ---------------------------

_Encoder = Callable[[object, pa.DataType], bytes | None]


def _bool(value: object, _: pa.DataType) -> bytes | None:
    return struct.pack("<i", value) if isinstance(value, bool) else None


def _integer(value: object, data_type: pa.DataType) -> bytes | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    limit = 1 << (data_type.bit_width - 1)
    if not -limit <= value < limit:
        return None
    return value.to_bytes(max(4, data_type.bit_width // 8), "little", signed=True)


def _float(value: object, _: pa.DataType) -> bytes | None:
    number = _exact_double(value)
    if number is None:
        return None
    if math.isnan(number):
        return _NAN32
    try:
        packed = struct.pack("<f", number + 0.0)
    except OverflowError:
        return None
    # A double between two floats equals no key that such a column can hold.
    return packed if struct.unpack("<f", packed)[0] == number else None


def _double(value: object, _: pa.DataType) -> bytes | None:
    number = _exact_double(value)
    if number is None:
        return None
    return _NAN64 if math.isnan(number) else struct.pack("<d", number + 0.0)


def _exact_double(value: object) -> float | None:
    if isinstance(value, float):
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number == value else None


def _string(value: object, _: pa.DataType) -> bytes | None:
    if not isinstance(value, str):
        return None
    try:
        return value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None


def _binary(value: object, data_type: pa.DataType) -> bytes | None:
    if not isinstance(value, bytes | bytearray | memoryview):
        return None
    encoded = bytes(value)
    fits = not pa.types.is_fixed_size_binary(data_type) or len(encoded) == data_type.byte_width
    return encoded if fits else None


def _date(value: object, _: pa.DataType) -> bytes | None:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        return None
    return struct.pack("<i", value.toordinal() - _EPOCH_DAY)


def _timestamp(value: object, _: pa.DataType) -> bytes | None:
    if not isinstance(value, datetime.datetime) or value.utcoffset() is None:
        return None
    return struct.pack("<q", (value - _EPOCH_UTC) // _MICROSECOND)


def _timestamp_ntz(value: object, _: pa.DataType) -> bytes | None:
    if not isinstance(value, datetime.datetime) or value.tzinfo is not None:
        return None
    return struct.pack("<q", (value - _EPOCH) // _MICROSECOND)


def _small_decimal(value: object, data_type: pa.DataType) -> bytes | None:
    unscaled = _unscaled(value, data_type)
    return None if unscaled is None else struct.pack("<q", unscaled)


def _large_decimal(value: object, data_type: pa.DataType) -> bytes | None:
    unscaled = _unscaled(value, data_type)
    if unscaled is None:
        return None
    # The shortest two's complement form, as Java's BigInteger.toByteArray gives it.
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _unscaled(value: object, data_type: pa.DataType) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 10**data_type.precision:
            return None
        value = decimal.Decimal(value)
    if not isinstance(value, decimal.Decimal) or not value.is_finite():
        return None
    if value.is_zero():
        return 0
    # By hand, as the arithmetic of Decimal rounds to the precision of the caller's context.
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + data_type.scale
    if len(digits) + shift > data_type.precision or len(digits) + shift <= 0:
        return None
    unscaled = int("".join(map(str, digits)))
    if shift >= 0:
        unscaled *= int(10**shift)
    else:
        unscaled, lost = divmod(unscaled, int(10**-shift))
        if lost:
            return None
    return -unscaled if sign else unscaled


_ENCODERS: dict[KeyKind, _Encoder] = {
    KeyKind.BOOL: _bool,
    KeyKind.INT: _integer,
    KeyKind.LONG: _integer,
    KeyKind.FLOAT: _float,
    KeyKind.DOUBLE: _double,
    KeyKind.STRING: _string,
    KeyKind.BINARY: _binary,
    KeyKind.FIXED_BINARY: _binary,
    KeyKind.DATE: _date,
    KeyKind.TIMESTAMP: _timestamp,
    KeyKind.TIMESTAMP_NTZ: _timestamp_ntz,
    KeyKind.SMALL_DECIMAL: _small_decimal,
    KeyKind.LARGE_DECIMAL: _large_decimal,
}

_WANTED: dict[KeyKind, str] = {
    KeyKind.BOOL: "a bool",
    KeyKind.INT: "an int in the range of the type",
    KeyKind.LONG: "an int in the range of the type",
    KeyKind.FLOAT: "a float that the type holds exactly, such as float(numpy.float32(x))",
    KeyKind.DOUBLE: "a float",
    KeyKind.STRING: "a str that can be encoded as UTF-8",
    KeyKind.BINARY: "bytes",
    KeyKind.FIXED_BINARY: "bytes of the length of the type",
    KeyKind.DATE: "a datetime.date",
    KeyKind.TIMESTAMP: "a datetime.datetime with a time zone",
    KeyKind.TIMESTAMP_NTZ: "a datetime.datetime without a time zone",
    KeyKind.SMALL_DECIMAL: "a decimal.Decimal that the precision and scale of the type hold exactly",
    KeyKind.LARGE_DECIMAL: "a decimal.Decimal that the precision and scale of the type hold exactly",
}
