"""The call itself: its arguments, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.spark.drop_in.cases import CALL, call, query
from tests.spark.drop_in.engines import Program

SHAPE = StructType([StructField("k", StringType(), False), StructField("n", LongType(), False)])


class Counts(StatefulProcessor):
    """The count of rows of a key."""

    def init(self, handle: Any) -> None:
        self._n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        old = self._n.get()
        self._n.update(((0 if old is None else old[0]) + sum(1 for _ in rows),))
        yield Row(k=str(key[0]), text=str(self._n.get()[0]))


@call(CALL, "all arguments by position: `statefulProcessor`, `outputStructType`, `outputMode`, `timeMode`, "
      "`initialState`, `eventTimeColumnName`", gives=["k", "n"])  # fmt: skip
def by_position(door: Any) -> Any:
    return door(Counts(), SHAPE, "Update", "None", None, "").columns


@call(CALL, "all arguments by name", gives=["k", "n"])
def by_name(door: Any) -> Any:
    return door(
        statefulProcessor=Counts(),
        outputStructType="k string, n long",
        outputMode="Append",
        timeMode="EventTime",
        initialState=None,
        eventTimeColumnName="",
    ).columns


@call(CALL, "`outputStructType` is a `StructType` or DDL; the columns of the output may be null",
      gives=["struct<k:string,n:bigint>", "struct<k:string,n:bigint>", [True, True]])  # fmt: skip
def output_type(door: Any) -> Any:
    made = [door(Counts(), it, "Update", "None").schema for it in (SHAPE, "k string, n long")]
    return [*(it.simpleString() for it in made), [field.nullable for field in made[0].fields]]


@call(CALL, "`outputStructType` that is no DDL is refused", gives=("ParseException", "PARSE_SYNTAX_ERROR"))
def output_type_that_is_none(door: Any) -> Any:
    return door(Counts(), "k string n", "Update", "None")


@call(CALL, "`outputMode` is Append, Update or Complete, in any case; it is not enforced", gives=[True] * 5)
def output_modes(door: Any) -> Any:
    modes = ("Append", "Update", "Complete", "append", "UPDATE")
    return [door(Counts(), SHAPE, mode, "None").isStreaming for mode in modes]


@call(CALL, "another `outputMode` is refused", gives=("IllegalArgumentException", "STREAMING_OUTPUT_MODE.INVALID"))
def output_mode_that_is_none(door: Any) -> Any:
    return door(Counts(), SHAPE, "Sometimes", "None")


@call(CALL, "`timeMode` is None, ProcessingTime or EventTime, in any case", gives=[True] * 5)
def time_modes(door: Any) -> Any:
    modes = ("None", "ProcessingTime", "EventTime", "none", "EVENTTIME")
    return [door(Counts(), SHAPE, "Update", mode).isStreaming for mode in modes]


@call(CALL, "another `timeMode` is refused",
      gives=("IllegalArgumentException", "STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE"))  # fmt: skip
def time_mode_that_is_none(door: Any) -> Any:
    return door(Counts(), SHAPE, "Update", "Sometimes")


@call(CALL, "keys are names, columns, or fields of structs", gives=[True] * 4)
def keys_of_all_kinds(door: Any) -> Any:
    keys = (("k", "v"), (F.col("k"),), (door.df.k, "v"), ("st.p",))
    return [door(Counts(), SHAPE, "Update", "None", by=by).isStreaming for by in keys]


@call(CALL, "an expression as a key is refused", gives=("AnalysisException", "UNRESOLVED_COLUMN.WITH_SUGGESTION"))
def keys_that_are_expressions(door: Any) -> Any:
    return door(Counts(), SHAPE, "Update", "None", by=(F.upper("k"),))


@call(CALL, "so is an alias", gives=("AnalysisException", "UNRESOLVED_COLUMN.WITH_SUGGESTION"))
def keys_that_are_aliases(door: Any) -> Any:
    return door(Counts(), SHAPE, "Update", "None", by=(F.col("k").alias("other"),))


@call(CALL, "an `initialState` that is no `GroupedData` is refused", gives=("AssertionError", None))
def initial_state_that_is_not_grouped(door: Any) -> Any:
    return door(Counts(), SHAPE, "Update", "None", door.df)


@call(CALL, "`eventTimeColumnName` needs a watermark in the input",
      gives=("AnalysisException", "CANNOT_ASSIGN_EVENT_TIME_COLUMN_WITHOUT_WATERMARK"))  # fmt: skip
def event_time_without_watermark(door: Any) -> Any:
    return door(Counts(), "k string, ts timestamp", "Update", "EventTime", None, "ts")


@call(CALL, "`eventTimeColumnName` is a column of the output",
      gives=("AnalysisException", "UNRESOLVED_COLUMN.WITH_SUGGESTION"))  # fmt: skip
def event_time_of_no_column(door: Any) -> Any:
    return door(Counts(), "k string, ts timestamp", "Update", "EventTime", None, "other", watermark=True).columns


@query(
    CALL,
    "no key at all is refused",
    fails="should not be Nil",
    bedload_fails="needs a key",
    equal=False,
    why="Spark fails when the query runs, Bedload at the call, and says why",
)
def no_key(place: Any) -> Program:
    return Program(Counts(), [[("a", 1)]], by=())


@query(
    CALL,
    "a column that is there twice among the keys",
    fails="Duplicate field",
    bedload_fails="",
    equal=False,
    why="Spark fails when the query runs; in Bedload it is there twice in the key, too",
)
def key_twice(place: Any) -> Program:
    return Program(Counts(), [[("a", 1)]], by=("k", "k"))


@query(
    CALL,
    "the state store has to be RocksDB's",
    fails="STORE_BACKEND_NOT_SUPPORTED_FOR_TWS",
    bedload_fails="",
    equal=False,
    why="Bedload keeps the state itself; Spark's default needs no change",
)
def other_state_store(place: Any) -> Program:
    provider = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    return Program(Counts(), [[("a", 1)]], conf={"spark.sql.streaming.stateStore.providerClass": provider})
