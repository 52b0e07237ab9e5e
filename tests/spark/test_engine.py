"""Operators on real streaming queries: what users write, and what comes out."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import bedload as bl
from tests.patience import PATIENCE
from tests.spark.conftest import Sink, committed, numbers, run, start

pytestmark = pytest.mark.spark


class Running(bl.Operator):
    """Emits the running count of its key for each row."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        for row in rows:
            self.n += 1
            yield key, row.value, self.n


class Total(bl.Operator):
    n: int = bl.value(0)
    total: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        self.n += len(rows)
        self.total += sum(row.value for row in rows)

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, self.n, self.total


class Groups(bl.Operator):
    grouped = True
    calls: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        self.calls += 1
        return key, self.calls, len(rows), ctx.epoch


def test_process_runs_once_per_row_in_order_and_its_outputs_leave_in_the_same_epoch(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark, 100, 2).selectExpr("value % 7 as key", "value")
    out = cluster.apply(df, key="key", operator=Running, schema="key long, value long, n long")
    sink = Sink()
    run(out, sink, tmp_path, epochs=4)
    assert sorted(value for _, value, _ in sink.rows) == list(range(400))
    for key in range(7):
        counts = [n for k, _, n in sink.rows if k == key]
        assert sorted(counts) == list(range(1, len(counts) + 1))
    assert all(len(rows) == 100 for rows in sink.epochs.values())


def test_result_gives_one_row_per_changed_key_and_epoch(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark, 10, 3).selectExpr("value div 5 as key", "value")  # two keys an epoch, never seen again
    out = cluster.apply(df, key="key", operator=Total, schema="key long, n long, total long")
    sink = Sink()
    run(out, sink, tmp_path, epochs=3)
    assert {epoch: sorted(rows) for epoch, rows in sink.epochs.items()} == {
        e: [(k, 5, sum(range(5 * k, 5 * k + 5))) for k in (2 * e, 2 * e + 1)] for e in range(3)
    }


def test_grouped_process_is_called_once_per_key_and_epoch_with_all_its_rows(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark, 90, 3).selectExpr("value % 3 as key", "value")
    out = cluster.apply(df, key="key", operator=Groups, schema="key long, calls long, rows long, epoch long")
    sink = Sink()
    run(out, sink, tmp_path, epochs=3)
    assert {epoch: sorted(rows) for epoch, rows in sink.epochs.items()} == {
        e: [(k, e + 1, 30, e) for k in range(3)] for e in range(3)
    }


@dataclasses.dataclass
class Place:
    x: int = 0
    y: int = 0


class Everything(bl.Operator):
    """State of every type, nested too."""

    place: Place = bl.value(Place())
    last: list[int] = bl.list(maxlen=3)
    seen: set[int] = bl.set()
    words: Counter[str] = bl.counter()
    by_digit: dict[str, list[int]] = bl.map()

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        for row in rows:
            self.place.x += row.value
            self.last.append(row.value)
            self.seen.add(row.value % 4)
            self.words[f"w{row.value % 2}"] += 1
            self.by_digit.setdefault(str(row.value % 10), []).append(row.value)


def test_state_of_every_type_is_kept_and_read_live(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    df = numbers(spark, 50, 1).selectExpr("cast(value % 2 as string) as key", "value")
    out = cluster.apply(df, key="key", operator=Everything, schema="x long")
    run(out, Sink(), tmp_path, epochs=2)
    committed(cluster, "Everything", 1)
    answer = cluster.state(Everything).get("1")
    assert answer is not None
    odd = list(range(1, 100, 2))
    assert answer["place"] == Place(sum(odd), 0)
    assert answer["last"] == [95, 97, 99]
    assert answer["seen"] == {1, 3}
    assert answer["words"] == Counter(w1=50)
    assert answer["by_digit"] == {str(d): [v for v in odd if v % 10 == d] for d in (1, 3, 5, 7, 9)}
    assert answer.epoch == 1
    assert cluster.state("Everything").get("no such key") is None
    assert cluster.state("Everything").count() == 2


def test_a_live_read_sees_the_committed_epoch_while_the_next_one_is_applied(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark, 10, 1).selectExpr("0L as key", "value")
    out = cluster.apply(df, key="key", operator=Total, schema="key long, n long, total long", name="Watched")
    seen: list[tuple[int, Any]] = []

    def look(batch: Any, epoch: int) -> None:
        batch.collect()  # all of the epoch is applied and sealed, and Spark has not committed it
        answer = cluster.state("Watched").get(0)
        seen.append((epoch, None if answer is None else (answer.epoch, answer["n"])))

    run(out, Sink(look), tmp_path, epochs=3)
    assert seen == [(0, None), (1, (0, 10)), (2, (1, 20))]


def test_composite_keys_may_hold_nulls(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    df = numbers(spark, 60, 2).selectExpr(
        "case when value % 3 = 0 then null else value % 3 end as a", "cast(value % 2 as string) as b", "value"
    )
    schema = StructType([StructField("n", LongType())])

    class Pairs(bl.Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
            assert isinstance(key, tuple)
            self.n += len(rows)

    out = cluster.apply(df, key=["a", "b"], operator=Pairs, schema=schema)
    run(out, Sink(), tmp_path, epochs=1)
    committed(cluster, "Pairs", 0)
    state = cluster.state("Pairs")
    found = {(a, b): state.get((a, b)) for a in (None, 1, 2) for b in ("0", "1")}
    assert {key: answer and answer["n"] for key, answer in found.items()} == dict.fromkeys(found, 10)


def test_every_kind_of_key_finds_its_state_again(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    kinds = {
        "boolean": "value % 2 = 0",
        "tinyint": "cast(value % 5 as tinyint)",
        "int": "cast(value % 5 as int)",
        "float": "cast(case when value % 3 = 0 then 'NaN' when value % 3 = 1 then '-0.0' else '0.0' end as float)",
        "double": "cast(case when value % 3 = 0 then 'NaN' else '1.5' end as double)",
        "string": "concat('key-', value % 5)",
        "binary": "cast(cast(value % 5 as string) as binary)",
        "date": "date_add(date'1969-12-28', cast(value % 5 as int))",
        "timestamp": "timestamp_micros(value % 5 - 2)",
        "decimal": "cast(value % 5 as decimal(20, 3)) / 4",
    }
    for kind, expression in kinds.items():
        df = numbers(spark, 40, 2).selectExpr(f"{expression} as key", "value")
        sink = Sink()

        class Keyed(bl.Operator):
            n: int = bl.value(0)

            def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
                self.n += len(rows)

            def result(self, key: Any, ctx: bl.Context) -> Any:
                return (self.n,)

        out = cluster.apply(df, key="key", operator=Keyed, schema="n long", name=f"Key_{kind}")
        run(out, sink, tmp_path / kind, epochs=2)
        expected = Counter(
            row.key
            for row in spark.range(80)
            .selectExpr("id as value")
            .selectExpr(f"{expression} as key")
            .groupBy("key")
            .count()
            .selectExpr("count as key")
            .collect()
        )
        assert Counter(n for (n,) in sink.epochs[1]) == expected, kind


def test_operators_chain_and_each_keeps_its_own_state(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    df = numbers(spark, 100, 2).selectExpr("value % 10 as key", "value")
    first = cluster.apply(df, key="key", operator=Running, schema="key long, value long, n long", name="First")
    second = cluster.apply(
        first.selectExpr("key % 2 as key", "n as value"),
        key="key",
        operator=Total,
        schema="key long, n long, total long",
        name="Second",
    )
    sink = Sink()
    run(second, sink, tmp_path, epochs=3)
    per_key = sum(range(1, 31))
    assert sorted(sink.epochs[2]) == [(0, 150, 5 * per_key), (1, 150, 5 * per_key)]


def test_several_queries_run_on_one_cluster_at_once(spark: SparkSession, cluster: bl.Cluster, tmp_path: Path) -> None:
    sinks = [Sink() for _ in range(3)]
    queries = []
    for i, sink in enumerate(sinks):
        df = numbers(spark, 20 * (i + 1), 1).selectExpr("value % 4 as key", "value")
        out = cluster.apply(df, key="key", operator=Total, schema="key long, n long, total long", name=f"Query{i}")
        queries.append(start(out, sink, tmp_path / str(i)))
    while any(len(sink.epochs) < 3 and query.isActive for sink, query in zip(sinks, queries, strict=True)):
        queries[0].awaitTermination(0.1)
    for query in queries:
        query.stop()
        assert query.exception() is None
    for i, sink in enumerate(sinks):
        assert sorted((k, n) for k, n, _ in sink.epochs[2]) == [(k, 15 * (i + 1)) for k in range(4)]


def test_an_operator_goes_on_with_its_state_in_a_restarted_query_and_in_a_new_one(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    df = numbers(spark, 10, 1).selectExpr("0L as key", "value")

    def applied() -> Any:
        return cluster.apply(df, key="key", operator=Total, schema="key long, n long, total long", name="Goes")

    sink = Sink()
    run(applied(), sink, tmp_path / "one", epochs=2)
    run(applied(), sink, tmp_path / "one", epochs=4)
    assert {epoch: rows[0][1] for epoch, rows in sink.epochs.items()} == {0: 10, 1: 20, 2: 30, 3: 40}
    other = Sink()
    run(applied(), other, tmp_path / "two", epochs=1)
    assert other.epochs[0][0][1] == 50


def test_setup_makes_what_keys_share_and_forget_removes_a_key(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    class Shared(bl.Operator):
        n: int = bl.value(0)

        def setup(self, ctx: bl.Context) -> None:
            self.limit = 25
            self.made = ctx.operator

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            self.n += len(rows)
            if self.n >= self.limit:
                yield key, self.made, self.n
                ctx.forget()

    df = numbers(spark, 10, 1).selectExpr("0L as key", "value")
    out = cluster.apply(df, key="key", operator=Shared, schema="key long, who string, n long")
    sink = Sink()
    run(out, sink, tmp_path, epochs=4)
    assert sink.epochs == {0: [], 1: [], 2: [(0, "Shared", 30)], 3: []}
    committed(cluster, "Shared", 3)
    answer = cluster.state("Shared").get(0)
    assert answer is not None
    assert answer["n"] == 10


def test_an_operator_defined_in_a_script_runs(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            import bedload as bl
            from helper_beside import DOUBLE
            from pyspark.sql import SparkSession

            @dataclass
            class Stats:
                n: int = 0

            class Count(bl.Operator):
                stats: Stats = bl.value(Stats())

                def process(self, key, rows, ctx):
                    self.stats.n += DOUBLE * len(rows)

                def result(self, key, ctx):
                    return key, self.stats.n

            spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
                     .config("spark.driver.host", "127.0.0.1").getOrCreate())
            spark.sparkContext.setLogLevel("OFF")
            df = (spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
                  .selectExpr("value % 2 as key"))
            with bl.attach(spark, workers=1) as cluster:
                out = cluster.apply(df, key="key", operator=Count, schema="key long, n long")
                query = out.writeStream.format("memory").queryName("t").outputMode("append").start()
                while spark.table("t").count() < 4:
                    query.awaitTermination(0.2)
                query.stop()
                print("state", cluster.state(Count).get(0)["stats"].n >= 20)
            """
        )
    )
    (tmp_path / "helper_beside.py").write_text("DOUBLE = 2\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert "state True" in done.stdout, done.stderr[-3000:]
