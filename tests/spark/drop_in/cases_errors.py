"""Errors, and batch DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.spark.drop_in.cases import BATCH, ERRORS, MEANS, query
from tests.spark.drop_in.cases_call import Counts
from tests.spark.drop_in.cases_life import Begins
from tests.spark.drop_in.cases_output import PASSED, STREAM, Passes, after
from tests.spark.drop_in.engines import PANDAS, START, STEP, Program

INVALID_MODE = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE"
INVALID_STATE = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE"
HIDDEN = "exited unexpectedly"
WHY_EARLY = "Spark says so when the query runs, Bedload at the call"
WHY_HIDDEN = "Spark ends the query and hides the cause in a log; Bedload raises it at the call"


class Does(StatefulProcessor):
    """Does something in ``init`` with the handle, or in ``handleInputRows`` with handle and state."""

    def __init__(
        self,
        init: Callable[[Any], Any] | None = None,
        rows: Callable[[Any, Any], Any] | None = None,
        state: Callable[[Any], Any] | None = None,
    ) -> None:
        self._init, self._rows, self._make = init, rows, state

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._state = self._make(handle) if self._make is not None else None
        if self._init is not None:
            self._init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        said = self._rows(self._handle, self._state) if self._rows is not None else None
        yield Row(k=key[0], text=repr(said))


def in_init(code: Callable[[Any], Any], mode: str = "None") -> Program:
    return Program(Does(init=code), [[("a", 1)]], time_mode=mode)


def in_rows(code: Callable[[Any, Any], Any], state: Callable[[Any], Any] | None = None, mode: str = "None") -> Program:
    return Program(Does(rows=code, state=state), [[("a", 1)]], time_mode=mode)


def a_value(handle: Any) -> Any:
    return handle.getValueState("n", "n int")


def a_decimal(handle: Any) -> Any:
    return handle.getValueState("n", "n decimal(4,2)")


def a_list(handle: Any) -> Any:
    return handle.getListState("n", "n int")


# --- in init


def boom(*_: Any) -> None:
    raise ValueError("boom")


@query(ERRORS, "an exception in `init`", fails=HIDDEN, bedload_fails="boom", why=WHY_HIDDEN, equal=False)
def raising_in_init(place: Path) -> Program:
    return in_init(boom)


class RaisesInClose(Counts):
    def close(self) -> None:
        raise ValueError("boom")


@query(ERRORS, "an exception in `close`", fails=HIDDEN, bedload_fails="boom", why=WHY_HIDDEN, equal=False)
def raising_in_close(place: Path) -> Program:
    return Program(RaisesInClose(), [[("a", 1)]])


@query(
    ERRORS,
    "a name that is there twice",
    fails=HIDDEN,
    bedload_fails="has already been defined",
    why=WHY_HIDDEN,
    equal=False,
)
def two_of_a_name(place: Path) -> Program:
    return in_init(lambda handle: (a_value(handle), a_value(handle)))


@query(
    ERRORS,
    "a name that is there twice, caught",
)
def two_of_a_name_caught(place: Path) -> Program:
    def code(handle: Any) -> None:
        a_value(handle)
        try:
            a_value(handle)
        except Exception as error:
            if type(error).__name__ != "PySparkRuntimeError":
                raise

    return in_init(code)


@query(ERRORS, "a schema that is no list of columns (`int`)", fails=HIDDEN, bedload_fails="has no columns",
       why=WHY_HIDDEN, equal=False)  # fmt: skip
def schema_that_is_none(place: Path) -> Program:
    return in_init(lambda handle: handle.getValueState("n", "int"))


@query(ERRORS, "an empty name", fails="STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME", equal=False,
       bedload_fails="INVALID_NAME", why=WHY_EARLY)  # fmt: skip
def name_that_is_empty(place: Path) -> Program:
    return in_init(lambda handle: handle.getValueState("", "n int"))


@query(ERRORS, "a timer in `init`", fails=HIDDEN, bedload_fails="INVALID_HANDLE_STATE", why=WHY_HIDDEN, equal=False)
def timer_in_init(place: Path) -> Program:
    return in_init(lambda handle: handle.registerTimer(1), "ProcessingTime")


@query(
    ERRORS, "access to state in `init`", fails=HIDDEN, bedload_fails="INVALID_HANDLE_STATE", why=WHY_HIDDEN, equal=False
)
def state_in_init(place: Path) -> Program:
    return in_init(lambda handle: a_value(handle).get())


@query(ERRORS, "a negative TTL", fails="STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE", equal=False,
       why=WHY_EARLY)  # fmt: skip
def negative_ttl(place: Path) -> Program:
    return in_init(lambda handle: handle.getValueState("n", "n int", -1), "ProcessingTime")


@query(ERRORS, "a TTL in another mode than ProcessingTime",
       fails="STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL", equal=False, why=WHY_EARLY)  # fmt: skip
def ttl_without_processing_time(place: Path) -> Program:
    return in_init(lambda handle: handle.getValueState("n", "n int", 1000), "EventTime")


# --- in a handler


@query(ERRORS, "an exception in a handler ends the query, with its traceback", fails="ValueError: boom", equal=False)
def raising_in_a_handler(place: Path) -> Program:
    return in_rows(boom)


@query(ERRORS, "an empty list for `put`", fails="ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE", equal=False)
def list_put_empty(place: Path) -> Program:
    return in_rows(lambda handle, xs: xs.put([]), a_list)


@query(ERRORS, "an empty list for `appendList`", fails="ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE", equal=False)
def list_append_empty(place: Path) -> Program:
    return in_rows(lambda handle, xs: xs.appendList([]), a_list)


@query(ERRORS, "too few fields", fails="STRUCT_ARRAY_LENGTH_MISMATCH", equal=False)
def value_with_too_few_fields(place: Path) -> Program:
    return in_rows(lambda handle, n: n.update(()), a_value)


@query(ERRORS, "too many fields", fails="STRUCT_ARRAY_LENGTH_MISMATCH", equal=False)
def value_with_too_many_fields(place: Path) -> Program:
    return in_rows(lambda handle, n: n.update((1, 2)), a_value)


@query(ERRORS, "a decimal that is too large for its type ends the query", fails="An exception was thrown", equal=False)
def value_of_a_large_decimal(place: Path) -> Program:
    return in_rows(lambda handle, n: n.update((Decimal("123.45"),)), a_decimal)


@query(ERRORS, "`registerTimer` in mode None",
       fails=f"Error register timer: [{INVALID_MODE}]", equal=False)  # fmt: skip
def timer_without_time(place: Path) -> Program:
    return in_rows(lambda handle, _: handle.registerTimer(1))


@query(ERRORS, "`deleteTimer` in mode None",
       fails=f"Error deleting timer: [{INVALID_MODE}]", equal=False)  # fmt: skip
def timer_deleted_without_time(place: Path) -> Program:
    return in_rows(lambda handle, _: handle.deleteTimer(1))


@query(
    ERRORS,
    "`listTimers` in mode None gives nothing, and the next access to state fails",
    fails="An exception was thrown",
    bedload_fails=INVALID_MODE,
    equal=False,
    why="it fails at once, as `registerTimer` does",
)
def timers_listed_without_time(place: Path) -> Program:
    return in_rows(lambda handle, n: (list(handle.listTimers()), n.get()), a_value)


@query(ERRORS, "`getValueState` outside of `init`", fails=f"Error initializing value state: [{INVALID_STATE}]",
       equal=False)  # fmt: skip
def state_declared_late(place: Path) -> Program:
    return in_rows(lambda handle, _: handle.getValueState("late", "n int"))


@query(ERRORS, "`deleteIfExists` outside of `init`", fails=f"Error deleting state: [{INVALID_STATE}]", equal=False)
def state_deleted_late(place: Path) -> Program:
    return in_rows(lambda handle, _: handle.deleteIfExists("n"), a_value)


@query(ERRORS, "a map by others than strings in a value ends the query", fails="Unexpected type MapType", equal=False,
       bedload_fails="", why="it is a type like others")  # fmt: skip
def value_with_a_map_by_numbers(place: Path) -> Program:
    def code(handle: Any, m: Any) -> Any:
        m.update(({1: "a"},))
        return m.get()

    return in_rows(code, lambda handle: handle.getValueState("m", "m map<int,string>"))


def empty_then_more(handle: Any, xs: Any) -> Any:
    try:
        xs.put([])
    except Exception as error:
        said = type(error).__name__
    xs.appendValue((1,))
    return said, list(xs.get())


@query(
    ERRORS,
    "an error of a state call that is caught",
    fails="An exception was thrown",
    bedload_fails="",
    equal=False,
    why="after it nothing works in Spark; in Bedload the handler goes on",
)
def going_on_after_an_error(place: Path) -> Program:
    return in_rows(empty_then_more, a_list)


class LooksUp(Counts):
    """Uses a broadcast variable."""

    def __init__(self, names: Any) -> None:
        self._names = names

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], text=self._names.value[key[0]])


@query(MEANS, "a broadcast variable fails", fails="driver_worker", bedload_fails="", equal=False,
       why="it works: its value goes along with the processor")  # fmt: skip
def broadcast_variable(place: Path) -> Program:
    return Program(LooksUp(SparkContext.getOrCreate().broadcast({"a": "Ann"})), [[("a", 1)]])


# --- batch DataFrames


class Batched(Begins):
    """Says what it sees in a batch, and sets a timer that is due."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self._kept = handle.getValueState("kept", "n long", 1_000_000)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        rows = initialState.itertuples() if self._form == PANDAS else [initialState]
        old = self._n.get()
        self._n.update((sum(int(row.n) for row in rows) + (0 if old is None else old[0]),))
        if timerValues.getCurrentProcessingTimeInMs() > START:
            self._handle.registerTimer(START - 1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        now = timerValues.getCurrentProcessingTimeInMs()
        self._handle.registerTimer(now - START)
        self._handle.registerTimer(now + 1_000_000)
        self._kept.update((1,))
        total = sum(len(it) if self._form == PANDAS else 1 for it in rows)
        old = self._n.get()
        watermark = timerValues.getCurrentWatermarkInMs()
        yield self._said(key, f"{total} {old} {self._kept.get()} {now > START} {watermark}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        times = timerValues.getCurrentProcessingTimeInMs() > START, timerValues.getCurrentWatermarkInMs()
        yield self._said(key, f"timer {self._n.get()} {self._kept.get()} {times}")


def _batched(form: str) -> Program:
    rows = [("a", n) for n in range(3)]  # of one partition; the other one has an initial state
    initial = ("k string, n long", [("a", 10), ("a", 20), *((key, 7) for key in "bcdefgh")], ("k",))
    return Program(Batched(form), [rows], form=form, time_mode="ProcessingTime", initial=initial)


@query(
    BATCH,
    "Row form: one batch whose state is thrown away; the watermark is -1; timers that are due fire; initial state "
    "and TTL work, also where there are no rows",
    batch=True,
)
def batch_rows(place: Path) -> Program:
    return _batched("rows")


@query(BATCH, "pandas form: the same", batch=True)
def batch_frames(place: Path) -> Program:
    return _batched(PANDAS)


@query(BATCH, "in mode EventTime no row is late, and timers wait for a watermark that does not come", batch=True)
def batch_by_event_time(place: Path) -> Program:
    rows = [("a", 1, after(0)), ("a", 2, after(STEP)), ("b", 3, after(-STEP))]
    return Program(Passes(), [rows], STREAM, output=PASSED, time_mode="EventTime", watermark=("ts", "0 seconds"))
