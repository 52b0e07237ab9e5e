"""What may be put into state, and what comes back."""

from __future__ import annotations

import datetime as dt
import math
from collections import namedtuple
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from tests.spark.drop_in.small import Now, Text, attempt, items, pairs, raises, small, value

VALUES = "Values in state"
STRUCT = StructType([
    StructField("n", IntegerType()), StructField("xs", ArrayType(LongType())), StructField("s", StringType())
])  # fmt: skip

WHY_MISFITS = "it is an error, which says what does not fit"


@small(VALUES, "a schema is a DDL string of columns or a `StructType`", value(STRUCT), items(STRUCT),
       pairs(StructType([StructField("k", StringType())]), STRUCT),
       sees=[[], [(1, [1, 2], "x"), [(1, None, None)], [(("k",), (2, [], ""))]]])  # fmt: skip
def schema_as_a_type(n: Any, xs: Any, m: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        n.update((1, [1, 2], "x"))
        xs.put([(1, None, None)])
        m.updateValue(("k",), (2, [], ""))
    else:
        yield n.get()
        yield list(xs.get())
        yield list(m.iterator())


@small(VALUES, "a tuple, list, generator, namedtuple or `Row` goes in by position", value("n int, s string"),
       sees=[[(1, "x"), (2, "x"), (3, "x"), (4, "x"), (5, "x"), (6, "x")]])  # fmt: skip
def forms_of_a_value(n: Any, now: Now) -> Iterator[Any]:
    for it in (
        (1, "x"),
        [2, "x"],
        (it for it in (3, "x")),
        namedtuple("Other", "s n")(4, "x"),
        Row(s=5, n="x"),
        Row(6, "x"),
    ):
        n.update(it)
        yield n.get()


@small(VALUES, "a dict gives its keys, a string its letters", value("s string, t string"),
       sees=[[("s", "t"), ("x", "y")]])  # fmt: skip
def forms_that_are_iterables(n: Any, now: Now) -> Iterator[Any]:
    n.update({"s": "1", "t": "2"})
    yield n.get()
    n.update("xy")
    yield n.get()


@small(VALUES, "a scalar or `None` is a `TypeError`; the state is as it was", value("n int"), items("n int"),
       pairs("n int", "n int"),
       sees=[[raises("TypeError"), raises("TypeError"), raises("TypeError"), raises("TypeError"),
              raises("TypeError"), raises("TypeError"), (1,)]])  # fmt: skip
def forms_that_do_not_fit(n: Any, xs: Any, m: Any, now: Now) -> Iterator[Any]:
    n.update((1,))
    yield attempt(lambda: n.update(5))
    yield attempt(lambda: n.update(None))
    yield attempt(lambda: xs.appendValue(5))
    yield attempt(lambda: m.updateValue(5, (1,)))
    yield attempt(lambda: m.updateValue((5,), 1))
    yield attempt(lambda: m.getValue(5))
    yield n.get()


UTC_NOON = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
ALL = (
    "b boolean, i8 byte, i16 short, i32 int, i64 long, f32 float, f64 double, s string, bin binary, d date, "
    "t timestamp, ntz timestamp_ntz, dec decimal(10,2), xs array<int>, m map<string,int>, st struct<x:int,y:string>"
)


FULL = (
    True, 1, 2, 3, 4, 1.5, 2.5, "s", b"b", dt.date(2024, 7, 1), dt.datetime(2024, 7, 1, 12, 0, 0, 123456),
    dt.datetime(2024, 7, 1, 12), Decimal("1.50"), [1, None, 3], {"x": 1, "y": None}, Row(x=1, y="y"),
)  # fmt: skip


@small(VALUES, "every type comes back as it was put in: binary as bytes, arrays as lists, maps as dicts, structs as "
       "`Row`",
       value(ALL), items(ALL), pairs("k int", ALL), sees=[[FULL, True, True, True]] * 2)  # fmt: skip
def every_type(n: Any, xs: Any, m: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        n.update(FULL)
        xs.put([FULL, (None,) * 16])
        xs.appendValue(FULL)
        m.updateValue((1,), FULL)
    found = n.get()
    yield found
    yield list(xs.get()) == [found, (None,) * 16, found]
    yield tuple(m.getValue((1,))) == found
    yield [(tuple(k), tuple(v)) for k, v in m.iterator()] == [((1,), found)]


@small(VALUES, "all fields may be null", value(ALL), sees=[[], [(None,) * 16]])
def every_type_as_null(n: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        n.update((None,) * 16)
    else:
        yield n.get()


@small(VALUES, "NumPy's scalars and pandas' `Timestamp` are converted",
       value("a long, b double, c boolean, d int, t timestamp"),
       sees=[[(1, 1.5, True, 2, dt.datetime(2024, 7, 1, 12))]])  # fmt: skip
def numpy_scalars(n: Any, now: Now) -> Iterator[Any]:
    n.update((np.int64(1), np.float64(1.5), np.bool_(True), np.int32(2), pd.Timestamp("2024-07-01 12:00:00")))
    yield n.get()


@small(VALUES, "timestamps come back naive, in the zone of the worker; aware ones are converted", value("t timestamp"),
       sees=[[(dt.datetime(2024, 7, 1, 12),), True, True, (dt.datetime(2024, 1, 1, microsecond=1),)]])  # fmt: skip
def timestamps(n: Any, now: Now) -> Iterator[Any]:
    zone = dt.timezone(dt.timedelta(hours=5))
    for it in (
        dt.datetime(2024, 7, 1, 12),
        UTC_NOON,
        UTC_NOON.astimezone(zone),
        dt.datetime(2024, 1, 1, microsecond=1),
    ):
        n.update((it,))
        yield n.get() if it.tzinfo is None else n.get() == (it.astimezone().replace(tzinfo=None),)


@small(VALUES, "nested structs take a tuple, a `Row`, or a dict by name", value("st struct<x:int,y:string>"),
       items("xs array<struct<x:int,y:string>>"),
       sees=[[(Row(x=1, y="t"),), (Row(x=2, y="r"),), (Row(x=3, y="d"),), (None,),
              [([Row(x=1, y="t"), Row(x=3, y="d")],)]]])  # fmt: skip
def nested_structs(n: Any, xs: Any, now: Now) -> Iterator[Any]:
    for it in ((1, "t"), Row(x=2, y="r"), {"y": "d", "x": 3}, None):
        n.update((it,))
        yield n.get()
    xs.appendValue(([(1, "t"), {"y": "d", "x": 3}],))
    yield list(xs.get())


@small(VALUES, "deep nesting", value("m map<string,array<struct<x:int,m:map<string,string>>>>, xs array<array<int>>"),
       sees=[[({"a": [Row(x=1, m={"p": "x"}), Row(x=2, m={})], "b": []}, [[1, 2], [], [3]])]] * 2)  # fmt: skip
def nested_deeply(n: Any, now: Now) -> Iterator[Any]:
    if now.batch == 0:
        n.update(({"a": [(1, {"p": "x"}), (2, {})], "b": []}, [[1, 2], [], [3]]))
    yield n.get()


@small(VALUES, "what comes back is new: to change it changes no state", value("xs array<int>"), items("xs array<int>"),
       sees=[[([1],), ([1],), [([1],)], [([1],)]], [([1],)]])  # fmt: skip
def values_are_new_objects(n: Any, xs: Any, now: Now) -> Iterator[Any]:
    if now.batch == 1:
        yield n.get()
        return
    mine = [1]
    n.update((mine,))
    xs.appendValue((mine,))
    mine.append(2)
    yield n.get()
    n.get()[0].append(3)
    yield n.get()
    yield list(xs.get())
    next(iter(xs.get()))[0].append(3)
    yield list(xs.get())


@small(
    VALUES,
    "what `MapState.getValue` gives is a `Row`",
    pairs("k int", "n int, s string"),
    sees=[[Text("Row(n=1, s='x')")]],
)
def map_value_is_a_row(m: Any, now: Now) -> Iterator[Any]:
    m.updateValue((1,), (1, "x"))
    yield m.getValue((1,))


# --- what does not fit


NO = [raises("StateTypeError"), None]


def misfit(name: str, schema: str, given: Any, seen: Any, bedload: Any = None, why: str = WHY_MISFITS) -> None:
    def code(n: Any, now: Now) -> Iterator[Any]:
        yield attempt(lambda: n.update((given,)))
        yield attempt(n.get)

    code.__name__ = name
    here = {} if bedload is None else {"bedload": [bedload], "why": why}
    became = "is an error" if isinstance(seen[0], Text) else f"becomes `{seen[1][0]!r}`"
    small(VALUES, f"`{given!r}` for `{schema}` {became}", value(f"v {schema}"), sees=[seen], **here)(code)


misfit(
    "misfit_int_for_double",
    "double",
    1,
    [None, (None,)],
    [None, (1.0,)],
    "it becomes the number that it is",
)
misfit("misfit_float_for_int", "int", 1.5, [None, (None,)], NO)
misfit("misfit_bool_for_int", "int", True, [None, (None,)], NO)
misfit("misfit_str_for_int", "int", "1", [None, (None,)], NO)
misfit("misfit_int_too_large", "int", 2**31, [None, (-(2**31),)])
misfit("misfit_long_too_large", "long", 2**63, [None, (None,)], NO)
misfit("misfit_int_for_string", "string", 5, [None, ("5",)])
misfit("misfit_double_for_float", "float", 0.1, [None, (0.10000000149011612,)])
misfit("misfit_decimal_scale", "decimal(10,2)", Decimal("1.235"), [None, (Decimal("1.24"),)])
misfit("misfit_int_for_decimal", "decimal(10,2)", 5, [None, (None,)], [None, (Decimal("5.00"),)],
       "it becomes the number that it is")  # fmt: skip
misfit(
    "misfit_str_for_date",
    "date",
    "2024-01-01",
    [raises("AttributeError"), None],
    NO,
    "another error, which says what does not fit",
)
misfit("misfit_int_for_boolean", "boolean", 1, [None, (None,)], NO)
misfit("misfit_list_of_str_for_ints", "array<int>", ["1", 2], [None, ([None, 2],)], NO)
misfit("misfit_tuple_for_array", "array<int>", (1, 2), [None, ([1, 2],)])
misfit("misfit_nan_for_int", "int", math.nan, [None, (None,)])
misfit("misfit_na_for_int", "int", pd.NA, [None, (None,)])
misfit("misfit_double_for_string", "string", 1e7, [None, ("1.0E7",)])
misfit("misfit_small_double_for_string", "string", -0.00025, [None, ("-2.5E-4",)])
misfit("misfit_str_for_binary", "binary", "\u00e9", [None, (b"\xc3\xa9",)])
