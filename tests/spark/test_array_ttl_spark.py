"""TTL on columns: state that is there goes on with it, on Spark."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import bedload as bl
from tests.spark.conftest import Sink, committed, numbers, run

pytestmark = pytest.mark.spark

DAY = 86_400_000
SCHEMA = "key long, n long"


class Lately(bl.VectorOperator):
    """Counts rows, and those of the last day."""

    n: int = bl.value(0)
    lately: int = bl.value(0, ttl="1 day")

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        count = np.bincount(batch.index, minlength=len(state["n"]))
        return {"n": state["n"] + count, "lately": state["lately"] + count}


def test_a_variable_that_expires_may_have_another_name_later(spark: SparkSession, tmp_path: Path) -> None:
    rows = numbers(spark).selectExpr("value % 10 AS key")
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(rows, key="key", operator=Lately, schema=SCHEMA, name="counts")
        run(out, Sink(), tmp_path / "spark", 2)
        committed(cluster, "counts", 1)
        before = cluster.state("counts").get(3)
    assert before is not None
    assert (before["n"], before["lately"]) == (20, 20)

    class Renamed(bl.VectorOperator):
        n: int = bl.value(0)
        recently: int = bl.value(0, ttl="1 day", renamed_from="lately")

        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
            return None

    with warnings.catch_warnings(), bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        warnings.simplefilter("error", bl.errors.StateDropped)
        cluster.apply(rows, key="key", operator=Renamed, schema=SCHEMA, name="counts")
        after = cluster.state("counts").get(3)
    assert after is not None
    assert (after["n"], after["recently"]) == (20, 20)
    assert after["bedload_ttl_recently"] == before["bedload_ttl_lately"] > DAY


def test_initial_state_counts_from_the_first_epoch(spark: SparkSession, tmp_path: Path) -> None:
    rows = numbers(spark).selectExpr("value % 10 AS key")
    given = spark.createDataFrame([(3, 100), (77, 5)], "key long, n long")
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        cluster.apply(
            rows, key="key", operator=Lately, schema=SCHEMA, name="arrays", ttl="1 day", initial_state=given, beat=False
        )
        out = cluster.aggregate(rows, key="key", n=bl.agg.count(), ttl="1 day", initial_state=given)
        assert cluster.state("arrays").get(77) == {
            "n": 5,
            "lately": 0,
            "bedload_ttl_lately": 0,
            "bedload_ttl": 0,
        }
        run(out, Sink(), tmp_path / "spark", 2)
        committed(cluster, "aggregate", 1)
        here, silent = (cluster.state("aggregate").get(key) for key in (3, 77))
    assert here is not None
    assert silent is not None
    assert (here["count()"], silent["count()"]) == (120, 5)
    assert here["bedload_ttl"] > silent["bedload_ttl"] > DAY
