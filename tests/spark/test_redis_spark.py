"""State in a real Redis, on real Spark: what comes out equals an oracle, whatever happens to workers and store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from bedload.core.errors import DefinitionError, OperatorNotShippable
from tests.redis_server import RedisProcess, needs_redis
from tests.spark.apps import eventually
from tests.spark.conftest import Sink, committed, numbers, run
from tests.spark.faults import kill

pytestmark = [pytest.mark.spark, needs_redis]

KEYS, ROWS, GROUPS = 3_000, 1_000, 32


class Tally(bl.Operator):
    n: int = bl.value(0)
    seen: list[int] = bl.list(maxlen=3)

    def process(self, key: int, rows: bl.Rows, ctx: bl.Context) -> tuple[int, int, int]:
        self.n += len(rows)
        self.seen.append(self.n)
        return key, self.n, self.seen[-1]


@pytest.fixture
def redis() -> Iterator[RedisProcess]:
    process = RedisProcess("--requirepass", "pw")
    yield process
    process.close()


def tally(cluster: bl.Cluster, spark: SparkSession, **more: Any) -> DataFrame:
    df = numbers(spark, ROWS, 1).selectExpr(f"value * 7919 % {KEYS} AS key")
    return cluster.apply(df, key="key", operator=Tally, schema="key long, n long, again long", **more)


def check(sink: Sink, epochs: int) -> None:
    """Every output of every epoch."""
    counts: Counter[int] = Counter()
    for epoch in range(epochs):
        keys = [value * 7919 % KEYS for value in range(epoch * ROWS, (epoch + 1) * ROWS)]
        counts.update(keys)
        assert sorted(sink.epochs[epoch]) == sorted((key, counts[key], counts[key]) for key in set(keys))


def test_kills_moves_replays_stops_and_restarts(spark: SparkSession, tmp_path: Path, redis: RedisProcess) -> None:
    failed: list[int] = []
    means: dict[str, Any] = {"checkpoint": tmp_path / "state", "memory": "16m", "workers": 2, "key_groups": GROUPS}
    url = redis.url.replace("//", "//:pw@") + "?deadline=2"

    def fails_once(batch: DataFrame, epoch: int) -> None:
        rows = [tuple(row) for row in batch.collect()]
        if epoch == 7 and not failed:
            failed.append(epoch)
            raise RuntimeError("the sink fails when the epoch was sealed")
        sink.epochs[epoch] = rows

    sink = Sink(fails_once)
    with bl.attach(spark, store=url, **means) as cluster:
        writer = tally(cluster, spark).writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(processingTime="20 milliseconds")
        running = cluster.run(writer, first_pause=0.2, restarts=50)

        def upto(epoch: int) -> None:
            def there() -> bool:
                error = running.exception()
                assert error is None, f"the query ended: {error}"
                return max(cluster.committed("Tally").values(), default=-1) >= epoch

            eventually(there, f"epoch {epoch} is committed")

        def more(epochs: int) -> None:
            upto(max(cluster.committed("Tally").values()) + epochs)

        try:
            upto(4)
            kill(cluster.workers[0])
            upto(8)
            assert failed
            cluster.rescale(4).wait()
            (moved,) = cluster.history()
            assert moved["moved_keys"] > KEYS // 3
            assert moved["moved_bytes"] < 100 * GROUPS, "where each key group is, and no key"
            more(2)
            cluster.rescale(2).wait()
            kill(cluster.workers[1])
            more(2)
            before = running.restarts
            redis.pause()
            eventually(lambda: running.restarts > before, "the query fails over a store that does not answer")
            redis.go_on()
            more(2)
            redis.stop()
            redis.start()  # with nothing
            more(3)
            stores = list(cluster.stores())
        finally:
            redis.go_on()
            running.stop()
        assert sum(row["keys"] for row in stores) == KEYS
        assert {row["store"] for row in stores} == {"redis"}
        found = cluster.state("Tally").get(KEYS // 2)
        assert found is not None
        assert found["n"] > 0
    done = len(sink.epochs)
    check(sink, done)
    for store in ("memory", url, url):
        with bl.attach(spark, **means) as cluster:
            run(tally(cluster, spark, store=store), sink, tmp_path / "spark", done + 2)
            committed(cluster, "Tally", done + 1)
        done = len(sink.epochs)
        check(sink, done)


def test_what_is_wrong_with_a_store_says_what_to_do(spark: SparkSession, tmp_path: Path, redis: RedisProcess) -> None:
    url = redis.url.replace("//", "//:pw@")
    with pytest.raises(DefinitionError, match="needs a checkpoint"):
        bl.attach(spark, store=url)
    with pytest.raises(DefinitionError, match="give the address of a Redis server"):
        bl.attach(spark, store="redis://", checkpoint=tmp_path)
    cluster = bl.attach(spark, checkpoint=tmp_path, workers=1)
    with cluster, pytest.raises(OperatorNotShippable, match="refuses the user or the password"):
        tally(cluster, spark, store=redis.url)
