"""What a key is, as Spark has it: another one under the same name, time zones, collations, and a name used twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bedload as bl
from bedload import errors

from .conftest import Sink, committed, numbers, run

pytestmark = pytest.mark.spark

ROWS = 20


class Count(bl.Operator):
    """Counts the rows of a key."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.n += len(list(rows))
        yield str(key), self.n


def stream(spark: SparkSession) -> DataFrame:
    value = F.col("value")
    return numbers(spark, ROWS).select(
        "value",
        F.concat(F.lit("k"), value % 5).alias("s"),
        (value % 5).alias("i"),
        F.timestamp_seconds(1000 * (value % 2)).alias("t"),
    )


def apply(cluster: bl.Cluster, spark: SparkSession, key: Any, name: str = "Count", **more: Any) -> DataFrame:
    return cluster.apply(stream(spark), key=key, operator=Count, schema="k string, n long", name=name, **more)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return (tmp_path / "bedload").as_uri()


def test_another_key_under_the_same_name_is_refused_and_with_fresh_state_it_is_durable(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        run(apply(cluster, spark, "s"), Sink(), tmp_path / "a", 2)
        committed(cluster, "Count", 1)
        with pytest.raises(errors.SchemaChanged, match="key: s string → i int64"):
            apply(cluster, spark, "i")
        with pytest.raises(errors.SchemaChanged, match="key: s string → s string, i int64"):
            apply(cluster, spark, ["s", "i"])
        with pytest.raises(errors.KeyGroupsChanged):
            apply(cluster, spark, "s", key_groups=16)
        with pytest.raises(errors.SchemaChanged, match="layout: rows → columns"):
            cluster.aggregate(stream(spark), key="s", name="Count", n=bl.agg.count())
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        with pytest.raises(errors.SchemaChanged, match="key: s string → i int64"):
            apply(cluster, spark, "i")
        run(apply(cluster, spark, "s"), Sink(), tmp_path / "a", 3)
        committed(cluster, "Count", 2)
        found = cluster.state("Count").get("k1")
        assert found is not None
        assert found["n"] == 3 * ROWS / 5
        run(apply(cluster, spark, "i", key_groups=16, fresh=True), Sink(), tmp_path / "b", 2)
        committed(cluster, "Count", 1)
        found = cluster.state("Count").get(1)
        assert found is not None
        assert found["n"] == 2 * ROWS / 5
    with bl.attach(spark, workers=2, checkpoint=root) as cluster:
        apply(cluster, spark, "i", key_groups=16)
        found = cluster.state("Count").get(1)
        assert found is not None
        assert found["n"] == 2 * ROWS / 5
        with pytest.raises(errors.SchemaChanged, match="key: i int64 → s string"):
            apply(cluster, spark, "s", key_groups=16)
    rows = spark.read.format("bedload").option("operatorName", "Count").load(root).collect()
    assert {(row["i"], row["n"]) for row in rows} == {(i, 2 * ROWS // 5) for i in range(5)}


def test_another_key_under_the_same_name_is_refused_without_a_checkpoint_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    with bl.attach(spark, workers=2) as cluster:
        run(apply(cluster, spark, "s"), Sink(), tmp_path / "a", 1)
        with pytest.raises(errors.StateTypeError, match="key: s string → i int64"):
            apply(cluster, spark, "i")
        run(apply(cluster, spark, "i", fresh=True), Sink(), tmp_path / "b", 1)
        committed(cluster, "Count", 0)
        assert cluster.state("Count").count() == 5


def test_a_timestamp_is_the_same_key_in_another_time_zone(spark: SparkSession, root: str, tmp_path: Path) -> None:
    def aggregate(cluster: bl.Cluster) -> DataFrame:
        return cluster.aggregate(stream(spark), key="t", name="sums", n=bl.agg.count(), last=bl.agg.max("t"))

    try:
        for zone, epochs in (("America/New_York", 2), ("UTC", 3), ("Asia/Tokyo", 4)):
            spark.conf.set("spark.sql.session.timeZone", zone)
            with bl.attach(spark, workers=2, checkpoint=root) as cluster:
                rows, sums = Sink(), Sink()
                run(apply(cluster, spark, "t", name="rows"), rows, tmp_path / "rows", epochs)
                run(aggregate(cluster), sums, tmp_path / "sums", epochs)
                counted = ROWS // 2 * epochs
                assert sorted(n for _, n in rows.epochs[epochs - 1]) == [counted, counted]
                last = sums.epochs[epochs - 1]
                assert sorted((int(t.timestamp()), n) for t, n, _ in last) == [(0, counted), (1000, counted)]
                assert all(t == latest for t, _, latest in last)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_keys_by_which_spark_compares_otherwise_are_refused(spark: SparkSession, cluster: bl.Cluster) -> None:
    df = stream(spark)
    lower = df.withColumn("s", F.expr("collate(s, 'UTF8_LCASE')"))
    with pytest.raises(errors.KeyTypeError, match=r"collation UTF8_LCASE.*collate\(s, 'UTF8_BINARY'\)"):
        cluster.apply(lower, key="s", operator=Count, schema="k string, n long", name="collated")
    trimmed = df.withColumn("s", F.expr("collate(s, 'UTF8_BINARY_RTRIM')"))
    with pytest.raises(errors.KeyTypeError, match="collation UTF8_BINARY_RTRIM"):
        cluster.aggregate(trimmed, key="s", name="trimmed", n=bl.agg.count())
    cluster.apply(
        lower.withColumn("s", F.expr("lower(collate(s, 'UTF8_BINARY'))")),
        key="s",
        operator=Count,
        schema="k string, n long",
        name="spelled",
    )
    refused = {
        "variant": "parse_json('{}')",
        "map": "map('a', 1)",
        "struct": "struct(value)",
        "interval": "make_dt_interval(1)",
        "months": "make_ym_interval(1)",
        "nothing": "null",
    }
    for name, expression in refused.items():
        with pytest.raises(errors.KeyTypeError):
            cluster.apply(
                df.withColumn("k", F.expr(expression)),
                key="k",
                operator=Count,
                schema="k string, n long",
                name=name,
            )


def test_numbers_that_spark_groups_together_are_one_key(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    kinds = {
        "zeros": "if(value % 2 = 0, 0.0D, -0.0D)",
        "nans": "if(value % 2 = 0, double('NaN'), -double('NaN'))",
        "bytes": "if(value % 2 = 0, x'00ff', unhex('00FF'))",
        "padded": "cast('ab' as char(4))",
        "decimals": "cast(1.50 as decimal(30, 4))",
    }
    for name, expression in kinds.items():
        sink = Sink()
        df = stream(spark).withColumn("k", F.expr(expression))
        out = cluster.apply(df, key="k", operator=Count, schema="k string, n long", name=name)
        run(out, sink, tmp_path / name, 1)
        assert max(n for _, n in sink.epochs[0]) == ROWS, name
        assert cluster.state(name).count() == 1, name


def test_a_name_that_is_applied_twice_in_one_query_is_said_to_be_so(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    once, again = (apply(cluster, spark, "s", name="twice") for _ in range(2))
    query = once.union(again).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="the name was applied twice in query"):
        query.awaitTermination(120)
