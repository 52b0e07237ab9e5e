"""What handlers may give back, the event time of the output, and late rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.spark.drop_in.cases import EVENT_TIME, OUTPUT, query
from tests.spark.drop_in.cases_call import Counts
from tests.spark.drop_in.engines import PANDAS, START, STEP, Program, apply

LATE = "Late rows"
AT = dt.datetime.fromtimestamp(START / 1000, dt.UTC)


def after(milliseconds: int) -> dt.datetime:
    return AT + dt.timedelta(milliseconds=milliseconds)


class Gives(StatefulProcessor):
    """Gives what a function says, once for each key and batch."""

    def __init__(self, code: Callable[[], Any]) -> None:
        self._code = code

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self._code()


def gives(code: Callable[[], Any], output: str, form: str = "rows") -> Program:
    return Program(Gives(code), [[("a", 1)]], output=output, form=form)


def rows_by_name() -> Iterator[Row]:
    yield Row(n=1, k="any order")
    yield Row(k="missing")
    yield Row(k="surplus", n=2, other="ignored")
    yield Row(k=None, n=None)
    yield Row("k", "n")("class", 3)


@query(
    OUTPUT,
    "Row form: a `Row` with names is taken by name; a missing field is null, a surplus one ignored",
)
def output_rows_by_name(place: Path) -> Program:
    return gives(rows_by_name, "k string, n int")


FULL_OUTPUT = (
    "k string, b boolean, i32 int, i64 long, f64 double, bin binary, d date, t timestamp, ntz timestamp_ntz, "
    "dec decimal(10,2), xs array<int>, m map<string,int>, st struct<x:int,y:string>, xst array<struct<x:int>>"
)


def rows_of_every_type() -> Iterator[Row]:
    naive = dt.datetime(2024, 7, 1, 12, 0, 0, 5)
    yield Row(
        k="a", b=True, i32=1, i64=2, f64=2.5, bin=b"b", d=dt.date(2024, 7, 1), t=AT, ntz=naive, dec=Decimal("1.5"),
        xs=[1, None], m={"x": 1}, st=Row(x=1, y="y"), xst=[Row(x=1), {"x": 2}],
    )  # fmt: skip
    yield Row(k="naive", t=naive, f64=1, st={"y": "by name", "x": 1}, m=[("x", 2)])
    yield Row(k="nulls")


@query(
    OUTPUT,
    "Row form: values of every type; nested structs are `Row`s or dicts; a naive time is UTC",
)
def output_rows_of_every_type(place: Path) -> Program:
    return gives(rows_of_every_type, FULL_OUTPUT)


def row_with_a_fraction() -> list[Row]:
    return [Row(k="a", n=1.5)]


@query(OUTPUT, "Row form: `1.5` for an int is cut to 1")
def output_row_with_a_fraction(place: Path) -> Program:
    return gives(row_with_a_fraction, "k string, n int")


def row_with_a_number_for_a_string() -> list[Row]:
    return [Row(k=5, n=1)]


@query(OUTPUT, "Row form: `5` for a string fails", fails="Expected bytes, got a 'int' object", equal=False)
def output_row_with_a_number_for_a_string(place: Path) -> Program:
    return gives(row_with_a_number_for_a_string, "k string, n int")


def row_that_is_too_large() -> list[Row]:
    return [Row(k="a", n=2**31)]


@query(OUTPUT, "Row form: what is too large for its type fails", fails="too large to fit", equal=False)
def output_row_that_is_too_large(place: Path) -> Program:
    return gives(row_that_is_too_large, "k string, n int")


def a_tuple() -> list[Any]:
    return [("a", 1)]


@query(OUTPUT, "Row form: a plain tuple fails", fails="asDict", equal=False)
def output_that_is_a_tuple(place: Path) -> Program:
    return gives(a_tuple, "k string, n int")


def frames() -> Iterator[Any]:
    import pandas as pd  # type: ignore[import-untyped]

    yield pd.DataFrame({"n": [1, 2], "k": ["any order", "of columns"]})
    yield pd.DataFrame({"k": ["surplus"], "n": [3], "other": [4]})
    yield pd.DataFrame()
    yield pd.DataFrame({"k": [None, "null"], "n": [5, None]})
    yield pd.DataFrame([["by position", 6]])
    yield pd.DataFrame({"k": ["str for int"], "n": ["7"]})
    yield pd.DataFrame({"k": ["float for int"], "n": [8.0]})
    yield pd.DataFrame({"k": ["bool for int"], "n": [True]})
    # Objects of several kinds in one column, each DataFrame with its own.
    yield pd.DataFrame({"k": ["object"], "n": [9]}, dtype=object)
    yield pd.DataFrame({"k": ["str as an object"], "n": ["10"]}, dtype=object)


@query(
    OUTPUT,
    "pandas form: a DataFrame is taken by name, or by position if no label is a string; surplus columns are ignored",
    "pandas form: an empty DataFrame is fine",
    'pandas form: `"1"` for an int works',
)
def output_frames(place: Path) -> Program:
    return gives(frames, "k string, n int", PANDAS)


def frames_of_every_type() -> Iterator[Any]:
    import pandas as pd

    naive = pd.Timestamp("2024-07-01 12:00:00.000005")
    yield pd.DataFrame({
        "k": ["a"], "b": [True], "i32": [1], "i64": [2], "f64": [2.5], "bin": [b"b"], "d": [dt.date(2024, 7, 1)],
        "t": [naive], "ntz": [naive], "dec": [Decimal("1.50")], "xs": [[1, None]], "m": [{"x": 1}],
        "st": [{"x": 1, "y": "y"}], "xst": [[{"x": 1}]],
    })  # fmt: skip
    aware = naive.tz_localize("Europe/Berlin")
    nothing = dict.fromkeys(it.split()[0] for it in FULL_OUTPUT.split(", "))
    yield pd.DataFrame({**{name: [None] for name in nothing}, "k": ["aware"], "t": [aware]})


@query(OUTPUT, "pandas form: values of every type; a naive time is in the session's zone")
def output_frames_of_every_type(place: Path) -> Program:
    return gives(frames_of_every_type, FULL_OUTPUT, PANDAS)


def frame_without_a_column() -> Iterator[Any]:
    import pandas as pd

    yield pd.DataFrame({"k": ["a"], "m": [1]})


@query(OUTPUT, "pandas form: a missing column fails", fails="KeyError", equal=False)
def output_frame_without_a_column(place: Path) -> Program:
    return gives(frame_without_a_column, "k string, n int", PANDAS)


def frame_with_a_fraction() -> Iterator[Any]:
    import pandas as pd

    yield pd.DataFrame({"k": ["a"], "n": [1.5]})


@query(OUTPUT, "pandas form: `1.5` for an int fails", fails="truncated", equal=False)
def output_frame_with_a_fraction(place: Path) -> Program:
    return gives(frame_with_a_fraction, "k string, n int", PANDAS)


def frame_with_a_number_for_a_string() -> Iterator[Any]:
    import pandas as pd

    yield pd.DataFrame({"k": [5], "n": [1]})


@query(OUTPUT, "pandas form: `5` for a string fails", fails="Expected a string or bytes", equal=False)
def output_frame_with_a_number_for_a_string(place: Path) -> Program:
    return gives(frame_with_a_number_for_a_string, "k string, n int", PANDAS)


def frame_with_an_int_for_a_decimal() -> Iterator[Any]:
    import pandas as pd

    yield pd.DataFrame({"k": ["a"], "n": [1]})


COERCE = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"


@query(OUTPUT, f"pandas form: an int for a decimal works with `{COERCE}`")
def output_frame_with_an_int_for_a_decimal(place: Path) -> Program:
    made = gives(frame_with_an_int_for_a_decimal, "k string, n decimal(10,2)", PANDAS)
    return Program(**{**vars(made), "conf": {COERCE: "true"}})


# --- late rows, and the event time of what comes out


class Passes(StatefulProcessor):
    """Gives its rows on, by their time, and a row for its timer."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = 0
        for row in rows:
            count += 1
            yield Row(k=key[0], at=row.ts, n=row.v)
        old = self._n.get()
        self._n.update((count + (0 if old is None else old[0]),))


STREAM = "k string, v long, ts timestamp"
PASSED = "k string, at timestamp, n long"
LATE_BATCHES = [
    [("a", 1, after(10 * STEP)), ("b", 2, after(0))],
    [("a", 3, after(10 * STEP)), ("b", 4, after(10 * STEP + 1)), ("c", 5, after(0))],
    [("a", 6, after(10 * STEP)), ("b", 7, after(20 * STEP)), ("c", 8, after(10 * STEP + 1)), ("d", 81, None)],
    [("a", 9, after(10 * STEP)), ("b", 10, after(20 * STEP)), ("c", 11, after(20 * STEP + 1))],
    [("a", 12, after(20 * STEP)), ("c", 13, after(20 * STEP + 1))],
]


def _late(mode: str, watermark: bool = True) -> Program:
    return Program(
        Passes(),
        LATE_BATCHES,
        STREAM,
        output=PASSED,
        time_mode=mode,
        watermark=("ts", "0 seconds") if watermark else None,
    )


@query(
    LATE,
    "in mode EventTime rows whose time is not after the watermark of the batch before are dropped",
)
def late_rows_by_event_time(place: Path) -> Program:
    return _late("EventTime")


@query(LATE, "so they are in a batch that is replayed, and after a restart")
def late_rows_replayed(place: Path) -> Program:
    return Program(**{**vars(_late("EventTime")), "fails": frozenset({2}), "stops": frozenset({4})})


@query(LATE, "in mode ProcessingTime they stay")
def late_rows_by_processing_time(place: Path) -> Program:
    return _late("ProcessingTime")


@query(LATE, "in mode None they stay")
def late_rows_without_time(place: Path) -> Program:
    return _late("None")


@query(LATE, "in mode EventTime without a watermark they stay, and the watermark is 0")
def late_rows_without_watermark(place: Path) -> Program:
    return _late("EventTime", watermark=False)


def minutely(engine: str, out: DataFrame) -> DataFrame:
    window = F.window("at", "5 seconds")
    return out.groupBy(window).agg(F.count("*").alias("c")).select(F.col("window.start").cast("string"), "c")


CHAIN = [[("a", n, after(at * STEP)), ("b", n, after(at * STEP + 1))] for n, at in enumerate((2, 9, 17, 18, 40, 41))]


@query(
    EVENT_TIME,
    "`eventTimeColumnName` names the output's column that has the watermark: an append aggregate by it works, with "
    "the same windows in the same batches",
)
def chained_by_event_time(place: Path) -> Program:
    return Program(
        Passes(),
        CHAIN,
        STREAM,
        output=PASSED,
        time_mode="EventTime",
        watermark=("ts", "2 seconds"),
        event_time_column="at",
        output_mode="Append",
        sink_mode="append",
        chain=minutely,
    )


@query(
    EVENT_TIME,
    "without it such an aggregate is refused",
    fails="STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION",
    equal=False,
)
def chained_without_event_time(place: Path) -> Program:
    return Program(
        Passes(),
        CHAIN[:1],
        STREAM,
        output=PASSED,
        time_mode="EventTime",
        watermark=("ts", "2 seconds"),
        output_mode="Append",
        sink_mode="append",
        chain=minutely,
    )


class Closes(StatefulProcessor):
    """Behind another operator: counts, and closes a key five seconds after its last row."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        times = [row.at for row in rows]
        old = self._n.get()
        self._n.update(((0 if old is None else old[0]) + len(times),))
        for at in self._handle.listTimers():
            self._handle.deleteTimer(at)
        self._handle.registerTimer(int(max(times).timestamp() * 1000) + 5 * STEP)
        yield Row(k=key[0], text=f"rows {len(times)} {timerValues.getCurrentWatermarkInMs()}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], text=f"closed {self._n.get()} {expiredTimerInfo.getExpiryTimeInMs()}")
        self._n.clear()


def closed(engine: str, out: DataFrame) -> DataFrame:
    return apply(engine, out.groupBy("k"), "rows", Closes(), "k string, text string", "Append", "EventTime")


@query(EVENT_TIME, "another `transformWithState` may come after it, with timers by that time")
def chained_with_another(place: Path) -> Program:
    return Program(
        Passes(),
        CHAIN,
        STREAM,
        output=PASSED,
        time_mode="EventTime",
        watermark=("ts", "2 seconds"),
        event_time_column="at",
        output_mode="Append",
        sink_mode="append",
        chain=closed,
    )


class TooOld(Passes):
    """From batch 3 on, rows as old as the first."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=key[0], at=row.ts if row.v < 3 else AT, n=row.v)


@query(
    EVENT_TIME,
    "a row that is not after the watermark of the batch before ends the query",
    fails="EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED",
)
def emitting_old_rows(place: Path) -> Program:
    return Program(
        TooOld(),
        CHAIN[:4],
        STREAM,
        output=PASSED,
        time_mode="EventTime",
        watermark=("ts", "2 seconds"),
        event_time_column="at",
        output_mode="Append",
        sink_mode="append",
    )


def counted(engine: str, out: DataFrame) -> DataFrame:
    return out.groupBy("k").count().select("k", F.col("count").cast("string"))


@query(OUTPUT, "a native stateful operator of Spark's may come after it, in update mode")
def chained_with_an_aggregate(place: Path) -> Program:
    return Program(Counts(), [[("a", 1), ("b", 1)], [("a", 2)]], chain=counted)
