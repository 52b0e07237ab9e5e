"""State on disk with far less memory than it takes, on real Spark: what comes out equals an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from bedload.core.errors import DefinitionError, OperatorNotShippable, StateTypeError
from tests.spark.apps import eventually
from tests.spark.conftest import Sink, committed, numbers, run
from tests.spark.faults import kill

pytestmark = pytest.mark.spark

KEYS, ROWS, LONG = 9_000, 3_000, 2_500
"""Keys, rows of an epoch, and characters of a key: 22 MB of text, and each of two workers has 12 for objects."""
SUMMED_KEYS, SUMMED_ROWS, SUMS = 240_000, 50_000, 20
"""Keys, rows of an epoch, and sums of a key: 50 MB, and each of two workers has 16 for columns."""


class Wide(bl.Operator):
    n: int = bl.value(0)
    text: str = bl.value("")

    def process(self, key: int, rows: bl.Rows, ctx: bl.Context) -> tuple[int, int, int]:
        self.n += len(rows)
        self.text = (str(self.n) + self.text)[:LONG].ljust(LONG, ".")
        return key, self.n, int(self.text[: len(str(self.n))])


def wide(cluster: bl.Cluster, spark: SparkSession, **more: Any) -> DataFrame:
    df = numbers(spark, ROWS, 1).selectExpr(f"value * 7919 % {KEYS} AS key")
    return cluster.apply(df, key="key", operator=Wide, schema="key long, n long, again long", **more)


def sums(cluster: bl.Cluster, spark: SparkSession, **more: Any) -> DataFrame:
    """A count, and twenty sums of as many columns, of which each is the count and its number."""
    columns = [f"1 + {number} AS v{number}" for number in range(SUMS)]
    df = numbers(spark, SUMMED_ROWS, 1).selectExpr(f"value * 7919 % {SUMMED_KEYS} AS key", *columns)
    aggregates = {f"s{number}": bl.agg.sum(f"v{number}") for number in range(SUMS)}
    out = cluster.aggregate(df, key="key", name="Wide", n=bl.agg.count(), **aggregates, **more)
    total = "+".join(f"s{number} div {number + 1}" for number in range(SUMS))
    return out.selectExpr("key", "n", f"({total}) div {SUMS} AS again")


class Case(NamedTuple):
    """An operator, whose outputs are a key and twice how many rows it had."""

    make: Callable[..., DataFrame]
    keys: int
    rows: int
    variable: str
    """The state variable that counts."""

    def check(self, sink: Sink, epochs: int) -> None:
        """Every output of every epoch."""
        counts: Counter[int] = Counter()
        for epoch in range(epochs):
            keys = [value * 7919 % self.keys for value in range(epoch * self.rows, (epoch + 1) * self.rows)]
            counts.update(keys)
            assert sorted(sink.epochs[epoch]) == sorted((key, counts[key], counts[key]) for key in set(keys))


CASES = {"rows": Case(wide, KEYS, ROWS, "n"), "columns": Case(sums, SUMMED_KEYS, SUMMED_ROWS, "count()")}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kills_moves_replays_and_restarts_with_little_memory(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    failed: list[int] = []
    place, local = tmp_path / "state", tmp_path / "local"
    local.mkdir()
    means: dict[str, Any] = {"checkpoint": place, "local_dir": local, "memory": "16m", "workers": 2}

    def fails_once(batch: DataFrame, epoch: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        if epoch == 7 and not failed:
            failed.append(epoch)
            raise RuntimeError("the sink fails when the epoch was sealed")
        sink.epochs[epoch] = rows

    sink = Sink(fails_once)
    with bl.attach(spark, store="disk", **means) as cluster:
        writer = case.make(cluster, spark).writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(processingTime="20 milliseconds")
        running = cluster.run(writer, first_pause=0.2)

        def upto(epoch: int) -> None:
            def there() -> bool:
                error = running.exception()
                assert error is None, f"the query ended: {error}"
                return max(cluster.committed("Wide").values(), default=-1) >= epoch

            eventually(there, f"epoch {epoch} is committed")

        try:
            upto(5)
            before = list(cluster.stores())
            kill(cluster.workers[0])
            upto(8)
            assert failed
            cluster.rescale(4).wait()
            upto(max(cluster.committed("Wide").values()) + 2)
            cluster.rescale(2).wait()
            kill(cluster.workers[1])
            upto(max(cluster.committed("Wide").values()) + 2)
            after = list(cluster.stores())
        finally:
            running.stop()
        assert [row["store"] for row in before] == ["disk", "disk"]
        assert sum(row["keys"] for row in after) == case.keys
        assert all(row["evictions"] for row in before), before
        assert all(row["memory_keys"] < row["keys"] and row["disk_bytes"] for row in before), before
        found = cluster.state("Wide").get(case.keys // 2)
        assert found is not None
        assert found[case.variable] > 0
    assert list(local.iterdir()) == [], "a worker leaves nothing, and removes what killed ones have left"
    done = len(sink.epochs)
    case.check(sink, done)
    for store in ("memory", "disk"):
        with bl.attach(spark, **means) as cluster:
            run(case.make(cluster, spark, store=store), sink, tmp_path / "spark", done + 2)
            committed(cluster, "Wide", done + 1)
            assert {row["store"] for row in cluster.stores()} == {store}
        done = len(sink.epochs)
        case.check(sink, done)


def test_what_is_wrong_with_a_store_says_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    for wrong, said in (
        ({"memory": "1m"}, "needs at least '16m'"),
        ({"memory": "a lot"}, "give a size such as '2g'"),
        ({"store": "tape"}, "use 'memory' or 'disk'"),
    ):
        with pytest.raises(DefinitionError, match=said):
            bl.attach(spark, **wrong)  # type: ignore[arg-type]
    with bl.attach(spark, store="disk", memory="16m", local_dir=tmp_path, workers=1) as cluster:
        df = numbers(spark, 10, 1).selectExpr("value AS key")
        texts = df.selectExpr("key", "string(key) AS s")
        with pytest.raises(DefinitionError, match=r"These are objects, which are in memory: .*max"):
            cluster.aggregate(texts, key="key", store="disk", largest=bl.agg.max("s"))
        run(cluster.aggregate(df, key="key", n=bl.agg.count()), Sink(), tmp_path / "first", 1)
        run(wide(cluster, spark), Sink(), tmp_path / "second", 1)
        with pytest.raises(StateTypeError, match="store: disk → memory"):
            wide(cluster, spark, store="memory")
        other = bl.attach(spark, local_dir=tmp_path, workers=1)
        with other, pytest.raises(OperatorNotShippable, match="in use by another attachment"):
            wide(other, spark, store="disk")
