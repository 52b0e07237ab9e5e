"""Values between a processor and its state, by the rules of Spark's state variables.

A value, an item of a list, a key and a value of a map: each is one struct, matched by position. In state it is a tuple,
and so is all that is nested in it, which can be shared since it cannot change: an array is a tuple of its items, a
map a tuple of its pairs. A timestamp is an aware datetime in UTC; the processor gets it back in the local zone.

As on Spark: integers wrap around, floats are cut to 32 bits where the column is a float, decimals are rounded to the
scale, and anything simple becomes a string in a string column. Other than on Spark, what does not fit is an error;
there it turns into a null without a word.

Why generated code: it runs for each access. A flat value of the right types costs the checks and nothing else: the
tuple that was given is the one that is kept, and the one that is got back.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import json
import math
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from bedload.core.errors import StateTypeError
from bedload.keys.canonical import NAN
from bedload.spark.drop_in.named_rows import row_class
from bedload.state.generated import function
from bedload.state.types import OptionalNode, ScalarNode, TupleNode, TypeNode

Convert = Callable[[Any], Any]

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_PLAIN: dict[type[DataType], type] = {
    DoubleType: float,
    BooleanType: bool,
    BinaryType: bytes,
    DateType: dt.date,
    StringType: str,
}
"""Types whose values are kept as they are, if they are of this class."""
_SIMPLE: dict[type[DataType], type] = {
    **_PLAIN,
    **dict.fromkeys(_BITS, int),
    FloatType: float,
    DecimalType: Decimal,
    TimestampType: dt.datetime,
    TimestampNTZType: dt.datetime,
    DayTimeIntervalType: dt.timedelta,
}


class Fields(NamedTuple):
    """What is needed for the values of one schema."""

    node: TypeNode
    """Their type in state."""
    take: Convert
    """From the processor into state; never gives None."""
    take_all: Callable[[Any], list[Any]]
    """The same for each of many."""
    give: Convert | None
    """From state to the processor; None: as it is."""
    row: Convert
    """The same, as a Row with the names of the fields."""


def fields_of(schema: StructType) -> Fields:
    """The conversions of a schema, made once."""
    return _fields(schema.json())


@lru_cache(maxsize=1024)
def _fields(text: str) -> Fields:
    schema = StructType.fromJson(json.loads(text))
    give = _give_struct(schema)
    made = row_class(schema.names)
    new, cls = tuple.__new__, made
    row = (lambda value: new(cls, value)) if give is None else (lambda value: new(cls, give(value)))
    take = _take_whole(schema)
    return Fields(_struct_node(schema), take, _take_each(schema, take), give, row)


# --- types ---


def _node(kind: DataType) -> TypeNode:
    simple = _SIMPLE.get(_base(kind))
    if simple is not None:
        return OptionalNode(ScalarNode(simple))
    if isinstance(kind, ArrayType):
        return OptionalNode(TupleNode((_node(kind.elementType),), repeated=True))
    if isinstance(kind, MapType):
        pair = TupleNode((_node(kind.keyType), _node(kind.valueType)))
        return OptionalNode(TupleNode((pair,), repeated=True))
    if isinstance(kind, StructType):
        return OptionalNode(_struct_node(kind))
    raise StateTypeError(
        f"state of the type {kind.simpleString()} cannot be kept: use numbers, strings, booleans, binary, dates, "
        f"timestamps, decimals, intervals, and arrays, maps and structs of them"
    )


def _struct_node(schema: StructType) -> TypeNode:
    names = tuple(schema.names) if are_plain(schema.names) else ()
    return TupleNode(tuple(_node(field.dataType) for field in schema.fields), names=names)


def are_plain(names: Sequence[str]) -> bool:
    """Whether fields keep their names in files. They are open to whoever reads them: some reader could stumble."""
    return len({name.lower() for name in names}) == len(names) and all(map(str.isidentifier, names))


def _base(kind: DataType) -> type[DataType]:
    return StringType if isinstance(kind, StringType) else type(kind)


# --- from the processor ---


def _take_whole(schema: StructType) -> Convert:
    """``take(value)`` for the values of a schema: generated, with the common case first."""
    names = [f"a{i}" for i in range(len(schema.fields))]
    scope: dict[str, Any] = {"date": dt.date, "slow": _take_slowly(schema), "nan": NAN}
    tests, exact = [], True
    for i, (name, field) in enumerate(zip(names, schema.fields, strict=True)):
        test = _fits(name, field.dataType)
        if test is None:
            exact = False
            scope[f"put{i}"] = _put(field.dataType, field.name)
            continue
        tests.append(f"({test} or {name} is None)")
    lines = [f"if type(value) is tuple and len(value) == {len(names)}:"]
    if names:
        lines.append(f"    {', '.join(names)}, = value")
    result = "value" if exact else f"({''.join(f'{_put_text(i, n, scope)}, ' for i, n in enumerate(names))})"
    lines += [f"    if {' and '.join(tests) or 'True'}:", f"        return {result}", "return slow(value)"]
    made: Convert = function("take(value)", lines, scope)
    return made


def _take_each(schema: StructType, take: Convert) -> Callable[[Any], list[Any]]:
    """``take_all(values)``: generated, so that what fits costs no call."""
    tests = [_fits(f"it[{i}]", field.dataType) for i, field in enumerate(schema.fields)]
    fits = [f"({test} or it[{i}] is None)" for i, test in enumerate(tests) if test is not None]
    if len(fits) < len(tests):
        return lambda values: [take(it) for it in values]
    whole = " and ".join([f"type(it) is tuple and len(it) == {len(tests)}", *fits])
    scope = {"date": dt.date, "take": take}
    made: Callable[[Any], list[Any]] = function(
        "take_all(values)", [f"return [it if {whole} else take(it) for it in values]"], scope
    )
    return made


def _put_text(i: int, name: str, scope: dict[str, Any]) -> str:
    return f"None if {name} is None else put{i}({name})" if f"put{i}" in scope else name


def _fits(name: str, kind: DataType) -> str | None:
    """A test that says yes to values that are kept as they are; None: there are none."""
    bits = _BITS.get(type(kind))
    if bits is not None:
        return f"type({name}) is int and {-(1 << (bits - 1))} <= {name} <= {(1 << (bits - 1)) - 1}"
    if isinstance(kind, DoubleType):
        return f"type({name}) is float and {name} == {name}"  # one NaN stands for all, or a map would not find it
    plain = _PLAIN.get(_base(kind))
    return None if plain is None else f"type({name}) is {plain.__name__}"


def _take_slowly(schema: StructType) -> Convert:
    puts = [_put(field.dataType, field.name) for field in schema.fields]

    def take(value: Any) -> tuple[Any, ...]:
        given = tuple(map(_plain, tuple(value)))
        if len(given) != len(puts):
            raise _wrong_length(len(puts), len(given))
        return tuple([None if it is None else put(it) for put, it in zip(puts, given, strict=True)])

    return take


def _wrong_length(wanted: int, given: int) -> PySparkRuntimeError:
    return PySparkRuntimeError(
        f"Error updating value state: [STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values "
        f"required by the schema. {wanted} fields are required while {given} values are provided. SQLSTATE: 2201E"
    )


def _plain(value: Any) -> Any:
    """A value of NumPy or pandas as Python's own."""
    if isinstance(value, np.generic):
        return value.tolist()
    if type(value).__name__ == "NAType":  # pandas' word for nothing
        return None
    for name in ("to_pydatetime", "to_pytimedelta"):
        if hasattr(value, name):
            return getattr(value, name)()
    return value


def _put(kind: DataType, name: str) -> Convert:
    """Takes one value of a type that is not None; ``name`` is for errors."""

    def refuse(value: Any) -> StateTypeError:
        return StateTypeError(
            f"the field {name!r} is {_a(kind)}, and was given {value!r:.100} ({type(value).__name__}), which Spark "
            f"would make a null without a word. Give a value of that type, or change the variable's schema"
        )

    inner = _put_inner(kind, name, refuse)

    def put(value: Any) -> Any:
        value = _plain(value)
        return None if value is None else inner(value)

    return put


def _a(kind: DataType) -> str:
    text = kind.simpleString()
    return f"{'an' if text[0] in 'aeiou' else 'a'} {text}"


def _put_inner(kind: DataType, name: str, refuse: Callable[[Any], Exception]) -> Convert:
    if isinstance(kind, ArrayType):
        item = _put(kind.elementType, f"{name}.element")
        return lambda value: tuple([item(it) for it in _of(value, (list, tuple), refuse)])
    if isinstance(kind, MapType):
        key, entry = _put(kind.keyType, f"{name}.key"), _put(kind.valueType, f"{name}.value")
        return lambda value: tuple([(key(k), entry(v)) for k, v in _of(value, (dict,), refuse).items()])
    if isinstance(kind, StructType):
        return _put_struct(kind, name, refuse)
    return _put_simple(kind, refuse)


def _of(value: Any, classes: tuple[type, ...], refuse: Callable[[Any], Exception]) -> Any:
    if not isinstance(value, classes):
        raise refuse(value)
    return value


def _put_struct(kind: StructType, name: str, refuse: Callable[[Any], Exception]) -> Convert:
    puts = [_put(field.dataType, f"{name}.{field.name}") for field in kind.fields]

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            value = tuple(value.get(field) for field in kind.names)
        given = _of(value, (tuple, list), refuse)
        if len(given) != len(puts):
            raise _wrong_length(len(puts), len(given))
        return tuple([each(it) for each, it in zip(puts, given, strict=True)])

    return put


def _put_simple(kind: DataType, refuse: Callable[[Any], Exception]) -> Convert:
    bits = _BITS.get(type(kind))
    if bits is not None:
        half, whole = 1 << (bits - 1), 1 << bits

        def put_int(value: Any) -> int | None:
            if isinstance(value, float) and value != value:  # NaN stands for null where pandas has whole numbers
                return None
            if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
                raise refuse(value)
            return (value + half) % whole - half

        return put_int
    if isinstance(kind, (DoubleType, FloatType)):
        cut = isinstance(kind, FloatType)

        def put_float(value: Any) -> float:
            if type(value) is int and -(1 << 53) <= value <= 1 << 53:
                value = float(value)
            if not isinstance(value, float):
                raise refuse(value)
            if value != value:
                return NAN
            return ctypes.c_float(value).value if cut else float(value)

        return put_float
    if isinstance(kind, StringType):
        return lambda value: _text(value, refuse)
    if isinstance(kind, BinaryType):
        return lambda value: value.encode() if isinstance(value, str) else bytes(_of(value, (bytes, bytearray), refuse))
    if isinstance(kind, BooleanType):
        return lambda value: _of(value, (bool,), refuse)
    if isinstance(kind, DateType):
        return lambda value: dt.date.fromordinal(_of(value, (dt.date,), refuse).toordinal())
    if isinstance(kind, TimestampType):
        return lambda value: _of(value, (dt.datetime,), refuse).astimezone(dt.UTC)
    if isinstance(kind, TimestampNTZType):
        return lambda value: _of(value, (dt.datetime,), refuse).replace(tzinfo=None, fold=0)
    if isinstance(kind, DayTimeIntervalType):
        return lambda value: _of(value, (dt.timedelta,), refuse)
    assert isinstance(kind, DecimalType)
    return _put_decimal(kind, refuse)


def _put_decimal(kind: DecimalType, refuse: Callable[[Any], Exception]) -> Convert:
    unit, context = Decimal(1).scaleb(-kind.scale), Context(prec=kind.precision, rounding=ROUND_HALF_UP)

    def put(value: Any) -> Decimal:
        if type(value) is int:
            value = Decimal(value)
        try:
            return Decimal.quantize(_of(value, (Decimal,), refuse), unit, context=context)
        except InvalidOperation:
            raise refuse(value) from None

    return put


def _text(value: Any, refuse: Callable[[Any], Exception]) -> str:
    """A value in a string column, as Java spells it."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java(value)
    if isinstance(value, (int, Decimal)):
        return str(value)
    raise refuse(value)


def _java(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    if not math.isfinite(value):
        return repr(value).replace("nan", "NaN").replace("inf", "Infinity")
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{rest}E{len(digits) - 1 + int(exponent)}"


# --- to the processor ---


def _give_struct(schema: StructType) -> Convert | None:
    """``give(value)`` for the tuples of a schema; None: they are given as they are."""
    gives = {i: give for i, field in enumerate(schema.fields) if (give := _give(field.dataType)) is not None}
    if not gives:
        return None
    names = [f"a{i}" for i in range(len(schema.fields))]
    items = [f"None if {n} is None else give{i}({n})" if i in gives else n for i, n in enumerate(names)]
    lines = [f"{', '.join(names)}, = value", f"return ({''.join(f'{item}, ' for item in items)})"]
    made: Convert = function("give(value)", lines, {f"give{i}": give for i, give in gives.items()})
    return made


def _give(kind: DataType) -> Convert | None:
    """Gives one value of a type that is not None; None: as it is."""
    if isinstance(kind, TimestampType):
        return lambda value: value.astimezone().replace(tzinfo=None)
    if isinstance(kind, ArrayType):
        return _give_array(_give(kind.elementType))
    if isinstance(kind, MapType):
        key, item = _give(kind.keyType) or _same, _give(kind.valueType) or _same
        return lambda value: {key(k): None if v is None else item(v) for k, v in value}
    if isinstance(kind, StructType):
        made, give = row_class(kind.names), _give_struct(kind) or _same
        return lambda value: tuple.__new__(made, give(value))
    return None


def _give_array(item: Convert | None) -> Convert:
    if item is None:
        return list
    return lambda value: [None if it is None else item(it) for it in value]


def _same(value: Any) -> Any:
    return value
