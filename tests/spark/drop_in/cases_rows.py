"""The rows and keys that a processor gets."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.spark.drop_in.cases import ROWS_AND_KEYS, query
from tests.spark.drop_in.cases_call import Counts
from tests.spark.drop_in.engines import PANDAS, START, Program, Seen

AT = dt.datetime.fromtimestamp(START / 1000, dt.UTC)

TYPES = (
    "k string, b boolean, i8 byte, i16 short, i32 int, i64 long, f32 float, f64 double, bin binary, d date, "
    "t timestamp, ntz timestamp_ntz, dec decimal(10,2), xs array<int>, m map<string,int>, st struct<x:int,y:string>"
)
FULL = (
    "full", True, 1, 2, 3, 4, 1.5, 2.5, b"b", dt.date(2024, 7, 1), AT, dt.datetime(2024, 7, 1, 12, 0, 0, 5),
    Decimal("1.50"), [1, None], [("x", 1)], {"x": 1, "y": None},
)  # fmt: skip
NULLS = ("nulls", *(None,) * 15)


def plain(value: Any) -> str:
    """A value as text, zones by their name."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return f"{value.replace(tzinfo=None)!r} {value.utcoffset()}"
    return f"{type(value).__name__} {value!r}"


LARGEST = "spark.sql.execution.arrow.maxRecordsPerBatch"


class SaysRows(Counts):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(
                k=key[0], text=f"{list(row.__fields__)} {isinstance(row, Row)} {len(row)} {row[0]} {row['k']} {row.k}"
            )
            for name, value in row.asDict().items():
                yield Row(k=key[0], text=f"{name} {plain(value)}")


class SaysFrames(Counts):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        import pandas as pd  # type: ignore[import-untyped]

        for frame in rows:
            columns = [f"{name} {frame[name].dtype} {[plain(it) for it in frame[name]]}" for name in frame.columns]
            said = [f"{list(frame.columns)} {type(frame.index).__name__} {list(frame.index)}", *columns]
            yield pd.DataFrame({"k": key[0], "text": said})


@query(
    ROWS_AND_KEYS,
    "Row form: rows are `Row` objects with all columns, keys too, in the DataFrame's order",
    "Row form: each type as it is in Spark: timestamps aware in the session's zone, maps lists of pairs, structs dicts",
    "Row form: a null is `None`",
)
def rows_of_all_types(place: Path) -> Program:
    return Program(SaysRows(), [[FULL, NULLS]], schema=TYPES)


@query(
    ROWS_AND_KEYS,
    "pandas form: frames of all columns, keys too, with index 0, 1, ...",
    "pandas form: each type as it is in Spark: whole numbers int64, timestamps naive in the session's zone",
    "pandas form: a null makes a key's whole numbers floats",
)
def frames_of_all_types(place: Path) -> Program:
    two = ("two", *FULL[1:])
    return Program(SaysFrames(), [[FULL, NULLS, two, ("two", *(None,) * 15), two]], schema=TYPES, form=PANDAS)


@query(
    ROWS_AND_KEYS,
    "Row form: columns whose names are no identifiers keep their names",
)
def names_of_columns(place: Path) -> Program:
    return Program(SaysRows(), [[("a", 1, 2)]], schema="k string, `a b` long, `1x` long")


@query(
    ROWS_AND_KEYS,
    "pandas form: columns whose names are no identifiers become `_1`, `_2`, ...; a field of a struct as a key counts, "
    "but is in no DataFrame",
    f"pandas form: with `{LARGEST}` of 0 or less a key's rows come in one DataFrame",
)
def names_of_columns_in_frames(place: Path) -> Program:
    batch = [({"p": "a"}, 1, 2), ({"p": "a"}, 3, 4)]
    schema, conf = "st struct<p:string>, `a b` long, `1x` long", {LARGEST: "-1"}
    return Program(SaysFrames(), [batch], schema, ("st.p",), form=PANDAS, conf=conf)


NULLABLE = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"


@query(ROWS_AND_KEYS, f"pandas form: with `{NULLABLE}` a null leaves whole numbers whole, and is `pd.NA`")
def frames_with_nullable_integers(place: Path) -> Program:
    batch = [("a", 2**53 + 1), ("a", 2), ("b", None), ("b", 3), ("c", None)]
    return Program(SaysFrames(), [batch], form=PANDAS, conf={NULLABLE: "true", "spark.sql.shuffle.partitions": "1"})


@query(
    ROWS_AND_KEYS,
    "pandas form: a null makes the whole numbers of other keys of its Arrow batch floats",
    equal=False,
    why="those of its own key only",
)
def nulls_of_another_key(place: Path) -> Program:
    conf = {"spark.sql.shuffle.partitions": "1"}
    return Program(SaysFrames(), [[("a", 1), ("b", None), ("c", 3)]], form=PANDAS, conf=conf)


class SaysSizes(Counts):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        import pandas as pd

        yield pd.DataFrame({"k": key[0], "text": [str([len(frame) for frame in rows])]})


def check_sizes(seen: Seen) -> None:
    for _, text in seen.epochs[0]:
        sizes = [int(it) for it in text.strip("[]").split(",")]
        assert sum(sizes) == 7
        assert max(sizes) <= 3


@query(
    ROWS_AND_KEYS,
    f"pandas form: a key's rows come in DataFrames of at most `{LARGEST}` rows",
    equal=False,
    check=check_sizes,
)
def frames_in_chunks(place: Path) -> Program:
    return Program(SaysSizes(), [[(key, n) for n in range(7) for key in "ab"]], form=PANDAS, conf={LARGEST: "3"})


BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@query(
    ROWS_AND_KEYS, f"pandas form: a DataFrame ends with the row that has it reach `{BYTES}`, by the mean of all rows"
)
def frames_of_a_size(place: Path) -> Program:
    rows = [(key, "x" * 90) for _ in range(7) for key in "ab"]
    conf = {BYTES: "250b", "spark.sql.shuffle.partitions": "1"}
    return Program(SaysSizes(), [rows], "k string, v string", form=PANDAS, conf=conf)


class SaysKeys(StatefulProcessor):
    """How keys come, in either form."""

    def __init__(self, form: str) -> None:
        self._form = form

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._n = handle.getValueState("n", "n long")

    def _said(self, key: Any, text: str) -> Any:
        if self._form != PANDAS:
            return Row(k=repr(key[0]), text=text)
        import pandas as pd  # type: ignore[import-untyped]

        return pd.DataFrame({"k": [repr(key[0])], "text": [text]})

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        count = sum(len(it) if self._form == PANDAS else 1 for it in rows)
        old = self._n.get()
        self._n.update((count + (0 if old is None else old[0]),))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
        yield self._said(key, f"rows {type(key) is tuple} {[plain(it) for it in key]} {self._n.get()}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield self._said(key, f"timer {isinstance(key, Row)} {key!r} {key == tuple(key)} {self._n.get()}")


KEYS_OF_ALL_TYPES = (
    "s string, b boolean, i8 byte, i16 short, i32 int, i64 long, f32 float, f64 double, bin binary, d date, "
    "t timestamp, ntz timestamp_ntz, dec decimal(10,2)"
)
KEY_VALUES = (
    "s", True, 1, 2, 3, 4, 1.5, 2.5, b"b", dt.date(2024, 7, 1), AT, dt.datetime(2024, 7, 1, 12), Decimal("1.50"),
)  # fmt: skip


def _keys_of_all_types(form: str) -> Program:
    by = tuple(it.split()[0] for it in KEYS_OF_ALL_TYPES.split(", "))
    batch = [KEY_VALUES, ("other", *KEY_VALUES[1:]), KEY_VALUES]
    return Program(SaysKeys(form), [batch, batch[:2]], KEYS_OF_ALL_TYPES, by, form=form, time_mode="ProcessingTime")


@query(
    ROWS_AND_KEYS,
    "Row form: a key is a plain tuple in `handleInputRows`, a `Row` in `handleExpiredTimer`; keys of every type, of "
    "many columns",
)
def keys_of_all_types(place: Path) -> Program:
    return _keys_of_all_types("rows")


@query(ROWS_AND_KEYS, "pandas form: the same")
def keys_of_all_types_in_frames(place: Path) -> Program:
    return _keys_of_all_types(PANDAS)


def _null_keys(form: str, schema: str, values: list[Any]) -> Program:
    batch = [(value, n) for n in range(2) for value in values]
    return Program(SaysKeys(form), [batch, batch], f"n {schema}, v long", ("n",), form=form, time_mode="ProcessingTime")


@query(ROWS_AND_KEYS, "null as a key: `None`, of strings")
def null_keys_of_strings(place: Path) -> Program:
    return _null_keys("rows", "string", ["a", None, "b"])


@query(ROWS_AND_KEYS, "null as a key: `None`, of numbers, Row form")
def null_keys_of_numbers(place: Path) -> Program:
    return _null_keys("rows", "long", [1, None, 2])


def check_nan_keys(seen: Seen) -> None:
    last = [text for _, text in seen.epochs[1] if "nan" in text]
    assert last[-1].endswith("(4,)"), "one state"


@query(
    ROWS_AND_KEYS,
    "NaN as a key is one key",
    equal=False,
    check=check_nan_keys,
    why="in Spark `handleInputRows` is called for each of its rows, in Bedload once, as for other keys",
)
def nan_keys(place: Path) -> Program:
    return _null_keys("rows", "double", [1.0, math.nan])


def check_zero_keys(seen: Seen) -> None:
    assert len(seen.epochs) == 2


@query(
    ROWS_AND_KEYS,
    "0.0 and -0.0 as keys",
    equal=False,
    check=check_zero_keys,
    why="in Spark a batch that has both calls for one of them, and each has a state; in Bedload they are one key, as "
    "they are in a `groupBy` of Spark's",
)
def zero_keys(place: Path) -> Program:
    return _null_keys("rows", "double", [0.0, -0.0])


def check_null_keys(seen: Seen) -> None:
    assert len(seen.epochs) == 2


@query(
    ROWS_AND_KEYS,
    "null as a key of numbers, pandas form",
    equal=False,
    check=check_null_keys,
    why="in Spark all keys of that Arrow batch become floats, and the states of different keys are mixed; in Bedload "
    "a null key is `None`, the others stay whole numbers",
)
def null_keys_of_numbers_in_frames(place: Path) -> Program:
    return _null_keys(PANDAS, "long", [1, None, 2])


class SaysFields(Counts):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=str(key[0]), text=f"{key} {row.asDict()}")


@query(ROWS_AND_KEYS, "a field of a struct as a key, Row form: rows have it as a first column more")
def key_in_a_struct(place: Path) -> Program:
    batch = [({"p": "a", "q": 1}, 1), ({"p": "b", "q": 1}, 2)]
    return Program(SaysFields(), [batch], "st struct<p:string,q:int>, v long", ("st.p",))


def _structs_as_keys(form: str) -> Program:
    one, other, none = {"p": "a", "q": {"x": 1}}, {"p": "a", "q": {"x": None}}, {"p": "a", "q": None}
    window = {"start": AT, "end": AT + dt.timedelta(minutes=1)}
    batch = [(st, window, n) for n in range(2) for st in (one, other, none, {"p": None, "q": None}, None)]
    return Program(
        SaysKeys(form),
        [batch, batch[:5]],
        "st struct<p:string,q:struct<x:int>>, window struct<start:timestamp,end:timestamp>, v long",
        ("st", "window"),
        form=form,
        time_mode="ProcessingTime",
    )


@query(
    ROWS_AND_KEYS,
    "a struct as a key, Row form: a dict in `handleInputRows`, a `Row` in `handleExpiredTimer`; one that is null, has "
    "null fields, or others inside",
)
def structs_as_keys(place: Path) -> Program:
    return _structs_as_keys("rows")


@query(ROWS_AND_KEYS, "a struct as a key, pandas form: the same")
def structs_as_keys_in_frames(place: Path) -> Program:
    return _structs_as_keys(PANDAS)


@query(
    ROWS_AND_KEYS,
    "an array as a key fails",
    equal=False,
    fails="STREAM_FAILED",
    bedload_fails="cannot be a key",
    why="it is refused at the call, which says why",
)
def array_as_a_key(place: Path) -> Program:
    return Program(SaysKeys("rows"), [[(["a"], 1)]], "xs array<string>, v long", ("xs",), time_mode="ProcessingTime")
