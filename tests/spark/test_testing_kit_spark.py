"""The testing kit gives what real Spark gives, for the same rows: any types, several epochs, every kind of operator."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import bedload as bl
from bedload.testing import InProcessCluster, OperatorHarness
from tests.spark.conftest import Sink, numbers, run

pytestmark = pytest.mark.spark

ROWS, EPOCHS = 60, 3
COLUMNS = {
    "string": "concat('k', pmod(hash(value, {0}), 9))",
    "long": "if(pmod(hash(value, {0}), 5) = 0, null, cast(pmod(hash(value, {0}), 100) as long))",
    "byte": "cast(pmod(hash(value, {0}), 100) as byte)",
    "double": "if(pmod(hash(value, {0}), 7) = 0, null, pmod(hash(value, {0}), 100) / 2)",
    "float": "cast(pmod(hash(value, {0}), 100) / 2 as float)",
    "decimal(9,2)": "if(pmod(hash(value, {0}), 4) = 0, null, cast(pmod(hash(value, {0}), 100) / 4 as decimal(9,2)))",
    "date": "date_add(date'2024-01-01', pmod(hash(value, {0}), 50))",
    "timestamp": "timestamp_micros(cast(pmod(hash(value, {0}), 1000) as long) * 1000001)",
    "boolean": "pmod(hash(value, {0}), 2) = 0",
}
KEYS = [("string",), ("long", "string"), ("date", "boolean"), ("decimal(9,2)", "byte")]


class Largest(bl.VectorOperator):
    """Counts rows, and keeps the largest value of each key."""

    n: int = bl.value(0)
    top: float | None = bl.value(None)

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        rows = batch.by_key
        top = np.fmax.reduceat(rows.numpy("d"), rows.offsets[:-1])
        return {"n": state["n"] + np.diff(rows.offsets), "top": np.fmax(state["top"].astype(float), top)}

    def result(self, keys: Any, state: Any, ctx: bl.BatchContext) -> Any:
        keys = keys if isinstance(keys, list) else [keys]
        return {"key": [repr([k.as_py() for k in ks]) for ks in zip(*keys, strict=True)], **state}


def columns_of(key: tuple[str, ...]) -> list[str]:
    kinds = [*key, "double", "long", "decimal(9,2)", "date", "timestamp", "float"]
    names = [*(f"k{at}" for at in range(len(key))), "d", "l", "c", "t", "s", "f"]
    return [f"{COLUMNS[kind].format(at)} as {name}" for at, (kind, name) in enumerate(zip(kinds, names, strict=True))]


def epochs_of(spark: SparkSession, columns: list[str]) -> list[Any]:
    spans = [spark.range(ROWS * at, ROWS * (at + 1)).withColumnRenamed("id", "value") for at in range(EPOCHS)]
    return [span.selectExpr(*columns).toArrow() for span in spans]


def told(rows: list[Any]) -> list[str]:
    """Rows in an order of their own; what Spark collects has no zone."""
    return sorted(repr([v.astimezone(dt.UTC) if isinstance(v, dt.datetime) else v for v in row]) for row in rows)


@pytest.mark.parametrize("key", KEYS, ids="-".join)
def test_the_kit_gives_what_spark_gives(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path, key: tuple[str, ...]
) -> None:
    columns, name = columns_of(key), "-".join(key).replace("(", "").replace(")", "").replace(",", "")
    df = numbers(spark, ROWS, 2).selectExpr(*columns)
    names = [f"k{at}" for at in range(len(key))]
    aggregates = {
        "n": bl.agg.count(),
        "m": bl.agg.count("d"),
        "sd": bl.agg.sum("d"),
        "sl": bl.agg.sum("l"),
        "sc": bl.agg.sum("c"),
        "md": bl.agg.mean("d"),
        "ml": bl.agg.min("l"),
        "mt": bl.agg.max("t"),
        "ms": bl.agg.max("s"),
        "mf": bl.agg.min("f"),
    }
    schema = "key string, n long, top double"
    wanted = {}
    for what, out in {
        "aggregate": cluster.aggregate(df, key=names, name=f"a-{name}", **aggregates),
        "vector": cluster.apply(df, key=names, operator=Largest, schema=schema, name=f"v-{name}"),
    }.items():
        sink = Sink()
        run(out, sink, tmp_path / what, EPOCHS)
        wanted[what] = [told(sink.epochs[at]) for at in range(EPOCHS)]
    tables = epochs_of(spark, columns)
    declared = df.schema
    for input_ in (None, declared):
        kits = {
            "aggregate": OperatorHarness.aggregate(key=names, input=input_, **aggregates),
            "vector": OperatorHarness(Largest, schema=schema, key=names, input=input_),
        }
        for what, kit in kits.items():
            assert [told([r.values() for r in kit.run_epoch(table)]) for table in tables] == wanted[what]
    clusters = {
        "aggregate": InProcessCluster.aggregate(key=names, input=declared, **aggregates),
        "vector": InProcessCluster(Largest, schema=schema, key=names, input=declared),
    }
    for what, one in clusters.items():
        got = [one.run_epoch([table.slice(0, 20), table.slice(20)]) for table in tables]
        assert [told([r.values() for r in rows]) for rows in got] == wanted[what]
