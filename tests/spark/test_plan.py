"""The one module that reads Spark's internals: right for every shape of plan that it claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from bedload.core.errors import DefinitionError, EpochAborted
from bedload.core.ids import DeploymentId, Epoch, QueryId
from bedload.spark.plan import Plans, mark
from tests.patience import PATIENCE
from tests.spark.conftest import numbers

pytestmark = pytest.mark.spark

NAME = mark(DeploymentId(3), "my operator")


def marked(df: DataFrame, name: str = NAME) -> DataFrame:
    def feeder(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    feeder.__name__ = name
    return df.mapInArrow(feeder, df.schema)


def inspect(spark: SparkSession, df: DataFrame, checkpoint: Path) -> Any:
    """What the adapter says while the batch runs."""
    plans = Plans(spark)
    said: list[Any] = []

    def look(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        query = QueryId(str(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")))
        try:
            said.append(plans.stage(query, Epoch(epoch), NAME, 0).feeders)
        except DefinitionError as error:
            said.append(error)
        assert plans.running() >= {query}
        assert plans.facts(query).active
        raise RuntimeError("seen enough")

    query = df.writeStream.foreachBatch(look).option("checkpointLocation", str(checkpoint)).start()
    with pytest.raises(Exception, match="seen enough"):
        query.awaitTermination(PATIENCE)
    facts = plans.facts(QueryId(str(query.id)))
    assert not facts.active
    return said[0]


def test_partitions_of_plans_of_every_shape(spark: SparkSession, tmp_path: Path) -> None:
    four = numbers(spark, 20, 4)
    shapes = {
        "plain": (marked(four), 4),
        "coalesced after": (marked(four).coalesce(1), 4),
        "coalesced before": (marked(four.coalesce(2)), 2),
        "union before": (marked(four.union(numbers(spark, 20, 3))), 7),
        "union after": (marked(four).union(four), 4),
        "shuffled before": (marked(four.repartition(5)), 5),
        "shuffled after": (marked(four).repartition(5), 4),
        "chained": (marked(marked(marked(four, "other").coalesce(3)), "another"), 3),
        "joined with a table": (marked(four).join(spark.range(5).withColumnRenamed("id", "value"), "value"), 4),
    }
    found = {label: inspect(spark, df, tmp_path / label) for label, (df, _) in shapes.items()}
    assert found == {label: expected for label, (_, expected) in shapes.items()}


def test_an_operator_that_is_missing_or_doubled_is_told(spark: SparkSession, tmp_path: Path) -> None:
    four = numbers(spark, 20, 4)
    assert "does not contain" in str(inspect(spark, four, tmp_path / "none"))
    once = marked(four)
    assert "2 times" in str(inspect(spark, once.union(once), tmp_path / "two"))


def test_what_is_not_running_is_told(spark: SparkSession) -> None:
    plans = Plans(spark)
    nobody = QueryId("00000000-0000-0000-0000-000000000000")
    for look in (lambda: plans.stage(nobody, Epoch(0), NAME, 0), lambda: plans.location(nobody)):
        with pytest.raises(EpochAborted, match=r"was stopped, or has ended.* when the query is started again") as found:
            look()
        assert found.value.retryable
    assert not plans.facts(nobody).active
    assert plans._shape(1_000_000) == -1


def test_what_a_query_had_committed_and_which_epochs_were_quiet_is_read_from_its_logs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The driver that ran the query is gone: nothing but the files is left."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        (folder / "0.csv").write_text("1\n")
    one, other = (spark.readStream.schema("n long").csv(str(folder)) for folder in folders)
    query = (
        one.union(other).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )
    try:
        query.processAllAvailable()
        (folders[0] / "1.csv").write_text("2\n")
        query.processAllAvailable()
    finally:
        query.stop()
    plans = Plans(spark)
    facts = plans.facts(QueryId(str(query.id)), str(tmp_path / "checkpoint"))
    assert (facts.active, facts.committed, facts.log_read) == (False, 1, True)
    stranger = QueryId("00000000-0000-0000-0000-000000000001")
    facts = plans.facts(stranger, str(tmp_path / "checkpoint"))
    assert (facts.committed, facts.log_read) == (None, False), "the log is another query's"
    assert plans._quiet_at(str(tmp_path / "checkpoint")) == {1}
    assert not plans.facts(stranger, str(tmp_path / "not there")).log_read
    assert plans._quiet_at(str(tmp_path / "not there")) == frozenset()
