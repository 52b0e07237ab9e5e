"""Errors as a user meets them: when applying, and in the failed query."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import bedload as bl
from bedload import errors
from tests.patience import PATIENCE
from tests.spark.conftest import Sink, fail, numbers, run

pytestmark = pytest.mark.spark


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        self.n += len(rows)
        return key, self.n


def test_what_is_wrong_with_an_application_is_said_at_once(spark: SparkSession, cluster: bl.Cluster) -> None:
    df = numbers(spark).selectExpr("value as key", "map('a', value) as m", "struct(value) as s", "value")
    schema = "key long, n long"

    def apply(**changes: Any) -> None:
        cluster.apply(**{"df": df, "key": "key", "operator": Count, "schema": schema, **changes})

    with pytest.raises(errors.KeyColumnError, match=r"'car' is not there; the input has: key, m, s, value"):
        apply(key="car")
    with pytest.raises(errors.KeyColumnError, match="names a column twice"):
        apply(key=["key", "key"])
    with pytest.raises(errors.KeyColumnError, match="one column, or a list"):
        apply(key=[])
    with pytest.raises(errors.KeyTypeError, match="'m'"):
        apply(key="m")
    with pytest.raises(errors.KeyTypeError, match="'s'"):
        apply(key=["key", "s"])
    with pytest.raises(errors.SchemaError, match="DDL"):
        apply(schema="not a schema at all")
    with pytest.raises(errors.SchemaError, match="twice"):
        apply(schema="a long, A long")
    with pytest.raises(errors.DefinitionError, match="subclass"):
        apply(operator=int)
    with pytest.raises(errors.DefinitionError, match="readStream"):
        apply(df=spark.range(3).selectExpr("id as key"))
    with pytest.raises(errors.DefinitionError, match="key groups"):
        apply(key_groups=0)
    with pytest.raises(errors.SchemaError, match=r"is a dict; give .* 'car string, n long', or as a StructType"):
        apply(schema={"key": "long", "n": "long"})
    with pytest.raises(errors.SchemaError, match="schema=None is a NoneType; give"):
        apply(schema=None)
    with pytest.raises(errors.DefinitionError, match=r"Count: None is not a DataFrame; .* spark\.readStream"):
        apply(df=None)
    with pytest.raises(errors.DefinitionError, match=r"initial_state=\[1\] is not a DataFrame"):
        apply(initial_state=[1])


def test_what_is_wrong_with_an_aggregate_is_said_at_once(spark: SparkSession, cluster: bl.Cluster) -> None:
    df = numbers(spark).selectExpr("value as key", "value as v")
    for given, shown in ((bl.agg.count, r"bl\.agg\.count"), ("count", "'count'"), (F.count, "<function count.*>")):
        wanted = rf"^aggregate n={shown} is not .*: write n=bl\.agg\.count\(\)"
        with pytest.raises(errors.DefinitionError, match=wanted):
            cluster.aggregate(df, key="key", n=given)  # type: ignore[arg-type]
    with pytest.raises(errors.DefinitionError, match=r"^aggregate n=Column<'count\(v\)'> is not .*bl\.agg\.count\(\)"):
        cluster.aggregate(df, key="key", n=F.count("v"))  # type: ignore[arg-type]
    with pytest.raises(errors.DefinitionError, match=r"^aggregate without aggregates: name at least one"):
        cluster.aggregate(df, key="key")
    with pytest.raises(errors.SchemaError, match=r"^aggregate n=sum\('w'\): the column 'w' is not .* has: key, v$"):
        cluster.aggregate(df, key="key", n=bl.agg.sum("w"))
    with pytest.raises(errors.DefinitionError, match="None is not a DataFrame"):
        cluster.aggregate(None, key="key", n=bl.agg.count())  # type: ignore[arg-type]


def test_a_key_may_be_a_plain_column_and_no_expression(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark).selectExpr("value % 2 as key", "value", "struct(value) as s")
    for number, key in enumerate((F.col("key"), df.key, df["key"], F.col("`key`"), [F.col("key"), "value"])):
        name = f"Columns{number}"
        out = cluster.apply(df, key=key, operator=Count, schema="key string, n long", name=name)
        assert out.isStreaming
    assert cluster.state("Columns4")._key_names == ["key", "value"]
    for expression in (
        F.lit("key"),
        F.col("key") + 1,
        F.upper("key"),
        F.col("key").alias("value"),
        F.col("s.value"),
        [F.lit("key")],
    ):
        with pytest.raises(errors.KeyColumnError, match=r"is an expression.*withColumn\('key', \.\.\.\)"):
            cluster.apply(df, key=expression, operator=Count, schema="key long, n long")
    with pytest.raises(errors.KeyColumnError, match=r"'nope' is not there; the input has: key, value, s"):
        cluster.apply(df, key=F.col("nope"), operator=Count, schema="key long, n long")
    for nothing in (None, 5, [None]):
        with pytest.raises(errors.KeyColumnError, match="must name one column, or a list of columns: key='car'"):
            cluster.apply(df, key=nothing, operator=Count, schema="key long, n long")  # type: ignore[arg-type]


def test_an_operator_that_cannot_be_shipped_is_refused_with_the_reason(
    spark: SparkSession, cluster: bl.Cluster
) -> None:
    lock = threading.Lock()

    class Holds(Count):
        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            with lock:
                return super().process(key, rows, ctx)

    df = numbers(spark).selectExpr("value as key")
    with pytest.raises(errors.OperatorNotShippable, match=r"cannot be pickled.* Holds\.process refers to lock .*setup"):
        cluster.apply(df, key="key", operator=Holds, schema="key long, n long")

    table = spark.range(3)

    def look_up(key: Any) -> Any:
        return table.where(F.col("id") == key).count()

    class Asks(Count):
        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            return key, look_up(key)

    class Context(Count):
        def setup(self, ctx: bl.Context) -> None:
            self.wide = spark.sparkContext.broadcast(1)

    for operator, where in (
        (Asks, r"look_up refers to table, a \w*DataFrame"),
        (Context, "setup refers to spark, a Sp"),
    ):
        with pytest.raises(errors.OperatorNotShippable, match=rf"(?s){where}.*workers have no Spark session") as told:
            cluster.apply(df, key="key", operator=operator, schema="key long, n long")
        assert "setup()" not in str(told.value)

    class Bomb:
        def __reduce__(self) -> Any:
            return _explode, ()

    class Loads(Count):
        bomb = Bomb()

    with pytest.raises(errors.OperatorNotShippable, match="could not load"):
        cluster.apply(df, key="key", operator=Loads, schema="key long, n long")


def _explode() -> None:
    raise RuntimeError("not here")


def test_the_number_of_key_groups_is_fixed_with_the_state(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark).selectExpr("value % 3 as key")
    out = cluster.apply(df, key="key", operator=Count, schema="key long, n long", name="Fixed", key_groups=16)
    run(out, Sink(), tmp_path, 1)
    with pytest.raises(errors.KeyGroupsChanged, match="16 key groups, but 32"):
        cluster.apply(df, key="key", operator=Count, schema="key long, n long", name="Fixed", key_groups=32)


def test_other_state_variables_under_the_same_name_are_refused(spark: SparkSession, cluster: bl.Cluster) -> None:
    class Other(bl.Operator):
        n: float = bl.value(0.0)
        extra: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None: ...

    df = numbers(spark).selectExpr("value as key")
    for operator, fresh in ((Count, False), (Other, True), (Count, True)):
        cluster.apply(df, key="key", operator=operator, schema="key long, n long", name="Evolves", fresh=fresh)
    with pytest.raises(errors.StateTypeError, match="extra, n differ"):
        cluster.apply(df, key="key", operator=Other, schema="key long, n long", name="Evolves")


@pytest.mark.parametrize(
    ("select", "operator", "says"),
    [
        ("case when value = 50 then null else value end as key", Count, ["NullKey", "'key'", "isNotNull"]),
        ("value as key", "wrong output", ["OutputError", "operator Broken", "key 5", "column 'n'", "'five'"]),
        ("value as key", "assigns", ["OperatorFailed", "bl.value(0)", "key "]),
        ("value as key", "setup", ["OperatorFailed", "setup of operator Broken", "no model"]),
    ],
)
def test_what_goes_wrong_in_a_query_reaches_the_driver(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, select: str, operator: Any, says: list[str]
) -> None:
    class Broken(bl.Operator):
        n: int = bl.value(0)

        def setup(self, ctx: bl.Context) -> None:
            if operator == "setup":
                raise RuntimeError("no model")

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            if operator == "assigns":
                self.other = 1
            return key, "five" if operator == "wrong output" and key == 5 else self.n

    used = Count if operator is Count else Broken
    out = cluster.apply(
        numbers(spark).selectExpr(select),
        key="key",
        operator=used,
        schema="key long, n long",
        name="Broken",
        fresh=True,
    )
    error = fail(out, Sink(), tmp_path)
    for text in says:
        assert text in error


class Divides(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        return key, 1 // self.n


def test_of_a_failed_query_the_users_own_lines_are_easy_to_find(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    out = cluster.apply(
        numbers(spark).selectExpr("value as key"), key="key", operator=Divides, schema="key long, n long"
    )
    writer = out.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException) as whole:
        writer.start().awaitTermination(PATIENCE)
    lines = str(whole.value).splitlines()
    first = next(i for i, line in enumerate(lines) if "errors.OperatorFailed: process of operator Divides" in line)
    assert first <= 2, "they come first"
    assert lines[first + 1] == "Traceback (most recent call last):"
    assert lines[first + 2].startswith(f'  File "{__file__}"')
    assert lines[first + 3].strip() == "return key, 1 // self.n"
    assert not [line for line in lines if "bedload/" in line or "pyspark/" in line], "no frame of ours or PySpark's"

    kept = cluster.run(writer)
    with pytest.raises(errors.OperatorFailed) as caught:
        kept.await_termination(PATIENCE)
    told = caught.value.message.splitlines()
    assert told[0].endswith(" raised ZeroDivisionError: integer division or modulo by zero")
    assert told[1:3] == lines[first + 1 : first + 3]
    assert told[-1] == "ZeroDivisionError: integer division or modulo by zero"
    assert len(told) == 6, "nothing but the user's own lines"
    assert "failed: OperatorFailed: process of operator Divides" in repr(kept)
    with pytest.raises(errors.OperatorFailed):
        cluster.wait_for_epoch(kept)


def test_in_a_function_that_spark_calls_for_each_batch_our_error_is_still_found(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark).selectExpr("value as key")
    out = cluster.apply(df, key="key", operator=Divides, schema="key long, n long", name="InEachBatch")
    with (
        cluster.run(out.writeStream.foreachBatch(Sink()).option("checkpointLocation", str(tmp_path))) as kept,
        pytest.raises(errors.OperatorFailed) as caught,
    ):
        kept.await_termination(PATIENCE)
    assert len(caught.value.message.splitlines()) == 6


def test_an_error_in_a_function_of_the_users_keeps_its_frames(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark).select(F.udf(lambda value: 1 // (value - value), "long")("value").alias("key"))
    out = cluster.apply(df, key="key", operator=Count, schema="key long, n long", name="BehindAFunction")
    error = fail(out, Sink(), tmp_path)
    assert "in <lambda>" in error
    assert "ZeroDivisionError" in error


def test_a_session_that_was_stopped_is_told_so() -> None:
    code = (
        "import bedload as bl\nfrom pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "spark.stop()\n"
        "try:\n    bl.attach(spark)\nexcept bl.errors.DefinitionError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "attach(spark): the Spark session was stopped; make one with SparkSession.builder" in done.stdout


def test_unknown_names_are_told_with_the_known_ones(cluster: bl.Cluster) -> None:
    with pytest.raises(errors.UnknownOperator, match="there are: "):
        cluster.state("Nobody")


def test_after_stop_everything_says_so(spark: SparkSession, tmp_path: Path) -> None:
    stopped = bl.attach(spark, workers=1)
    df = numbers(spark).selectExpr("value as key")
    out = stopped.apply(df, key="key", operator=Count, schema="key long, n long")
    run(out, Sink(), tmp_path / "a", 1)
    stopped.stop()
    for call in (
        lambda: stopped.state("Count"),
        lambda: stopped.apply(df, key="key", operator=Count, schema="key long, n long"),
    ):
        with pytest.raises(errors.ClusterStopped, match="attach again"):
            call()
    error = fail(out, Sink(), tmp_path / "b")
    assert "ClusterStopped" in error


def test_attach_checks_its_arguments(spark: SparkSession) -> None:
    with pytest.raises(errors.DefinitionError, match="at least one worker"):
        bl.attach(spark, workers=0)
    with pytest.raises(errors.DefinitionError, match="host"):
        bl.attach(spark, host="cloud")
    with pytest.raises(errors.DefinitionError, match="lives in one process"):
        bl.attach(spark, checkpoint="memory://state")
    with pytest.raises(errors.DefinitionError, match="checkpoint"):
        bl.attach(spark, storage_options={"key": "value"})
    with pytest.raises(errors.DefinitionError, match="retain_epochs"):
        bl.attach(spark, retain_epochs=0)
