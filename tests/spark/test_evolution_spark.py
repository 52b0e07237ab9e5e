"""An operator that was changed between attachments goes on with its state, or is refused before a row is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bedload as bl
from bedload import errors

from .conftest import Sink, committed, numbers, run

pytestmark = pytest.mark.spark

KEYS = 7
ROWS = 100


@dataclass
class Last:
    value: int = -1


@dataclass
class Latest:
    number: float = field(default=-1.0, metadata={"renamed_from": "value"})
    seen: list[int] = field(default_factory=lambda: [0])


class Trip(bl.Operator):
    n: int = bl.value(0)
    last: dict[str, Last] = bl.map()
    unused: str = bl.value("x")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.n += 1
            self.last.setdefault("any", Last()).value = row.value
        yield key, float(self.n)


class Trip2(bl.Operator):
    count: float = bl.value(0.0, renamed_from="n")
    last: dict[str, Latest] = bl.map()
    calls: int = bl.value(10)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.calls += 1
        for row in rows:
            self.count += 1.0
            latest = self.last["any"]
            latest.number = float(row.value)
            latest.seen.append(row.value)
        yield key, self.count


class Trip3(bl.Operator):
    n: str = bl.value("")
    last: dict[str, Last] = bl.map()

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        raise AssertionError("no row may come here")


def stream(spark: SparkSession) -> DataFrame:
    return numbers(spark, ROWS).withColumn("key", F.col("value") % KEYS)


def expected(epochs: int) -> Counter[int]:
    return Counter(value % KEYS for value in range(ROWS * epochs))


def apply(cluster: bl.Cluster, spark: SparkSession, operator: Any, **more: Any) -> DataFrame:
    return cluster.apply(stream(spark), key="key", operator=operator, schema="key long, n double", name="Trip", **more)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return (tmp_path / "bedload").as_uri()


def test_a_changed_operator_goes_on_with_its_state(spark: SparkSession, root: str, tmp_path: Path) -> None:
    place = tmp_path / "spark"
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        # The last epoch is sealed, and the sink fails: the changed operator runs it again, from the state before it.
        run(apply(cluster, spark, Trip), Sink(), place, 3)
    with bl.attach(spark, workers=3, checkpoint=root) as cluster:
        with pytest.warns(errors.StateDropped, match="the stored state has unused, and the class") as warned:
            out = apply(cluster, spark, Trip2)
        assert [(it.filename, it.category) for it in warned] == [(__file__, errors.StateDropped)]
        sink = Sink()
        cluster.checkpoint()  # of a turn that was written by the former definition
        run(out, sink, place, 5)
        committed(cluster, "Trip", 4)
        state = cluster.state("Trip")
        for key, count in expected(5).items():
            found = state.get(key)
            assert found is not None
            assert found["count"] == float(count)
            assert found["calls"] > 10
            values = [value for value in range(ROWS * 3, ROWS * 5) if value % KEYS == key]
            assert sorted(found["last"]["any"].seen) == [0, *values]
            assert set(found) == {"count", "last", "calls"}
        assert cluster.checkpoint()
    with bl.attach(spark, workers=1, checkpoint=root) as cluster:
        run(apply(cluster, spark, Trip2), Sink(), place, 6)
        committed(cluster, "Trip", 5)
        found = cluster.state("Trip").get(1)
        assert found is not None
        assert found["count"] == float(expected(6)[1])


def test_a_change_that_loses_something_is_refused_at_apply(spark: SparkSession, root: str, tmp_path: Path) -> None:
    place = tmp_path / "spark"
    with bl.attach(spark, workers=1, checkpoint=root) as cluster:
        run(apply(cluster, spark, Trip), Sink(), place, 2)
    with bl.attach(spark, workers=1, checkpoint=root) as cluster:
        with pytest.raises(
            errors.SchemaChanged, match=r"(?s)operator Trip: .*\n  n: int → str: int does not become str"
        ):
            apply(cluster, spark, Trip3)
        with pytest.raises(errors.SchemaChanged, match="layout: rows → columns"):
            cluster.aggregate(stream(spark), key="key", name="Trip", n=bl.agg.count())
        text = stream(spark).withColumn("text", F.col("key").cast("string"))
        with pytest.raises(errors.SchemaChanged, match="key: key int64 → text string"):
            cluster.apply(text, key="text", operator=Trip, schema="key string, n double", name="Trip")
        with pytest.raises(errors.KeyGroupsChanged):
            apply(cluster, spark, Trip, key_groups=16)
        run(apply(cluster, spark, Trip), Sink(), place, 3)
        committed(cluster, "Trip", 2)
        found = cluster.state("Trip").get(0)
        assert found is not None
        assert found["n"] == expected(3)[0], "what was refused left no trace"


def test_on_the_same_cluster_a_change_is_refused_and_fresh_state_may_have_any_shape(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        run(apply(cluster, spark, Trip), Sink(), tmp_path / "one", 2)
        with pytest.raises(errors.SchemaChanged, match="stop the cluster, and attach again"):
            apply(cluster, spark, Trip2)
        with pytest.raises(errors.SchemaChanged, match="n: int → str"):
            apply(cluster, spark, Trip3)
        other = cluster.aggregate(stream(spark), key="key", name="Trip", n=bl.agg.count(), fresh=True)
        run(other, Sink(), tmp_path / "two", 2)
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        out = cluster.aggregate(stream(spark), key="key", name="Trip", n=bl.agg.count())
        run(out, Sink(), tmp_path / "two", 3)
        committed(cluster, "Trip", 2)
        found = cluster.state("Trip").get(3)
        assert found is not None
        assert found["count()"] == expected(3)[3]


def test_aggregates_come_go_and_widen(spark: SparkSession, root: str, tmp_path: Path) -> None:
    place = tmp_path / "spark"
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        out = cluster.aggregate(
            stream(spark), key="key", n=bl.agg.count(), s=bl.agg.sum("value"), top=bl.agg.max("value")
        )
        run(out, Sink(), place, 2)
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        changed = stream(spark).withColumn("value", F.col("value").cast("double"))
        with pytest.raises(errors.SchemaChanged, match=r"new, but .* is stored"):
            cluster.aggregate(changed, key="key", m=bl.agg.mean("value"))
        wanted: dict[str, Any] = {"n": bl.agg.count(), "s": bl.agg.sum("value"), "low": bl.agg.min("value")}
        with pytest.warns(errors.StateDropped, match=r"max\(value\).*cluster\.aggregate\(\.\.\., drop="):
            cluster.aggregate(changed, key="key", **wanted)
        out = cluster.aggregate(changed, key="key", **wanted)  # not again: it has been said
        run(out, Sink(), place, 4)
        committed(cluster, "aggregate", 3)
        found = cluster.state("aggregate").get(2)
        assert found is not None
        assert found["count()"] == expected(4)[2]
        assert found["sum(value)"] == float(sum(value for value in range(ROWS * 4) if value % KEYS == 2))
        assert found["min(value)"] == float(min(value for value in range(ROWS * 2, ROWS * 4) if value % KEYS == 2))
