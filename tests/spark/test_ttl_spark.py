"""Entries and keys that expire, on Spark: state and outputs are what the recorded times of the epochs say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bedload as bl
from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError
from tests.spark.conftest import Sink
from tests.spark.faults import kill
from tests.spark.test_recovery_spark import supervised, upto
from tests.spark.test_time_spark import logged

pytestmark = pytest.mark.spark

START = 1_700_000_000_000
STEP = 10_000
"""Milliseconds between the rows of one batch and those of the next."""
ROWS = 60
KEYS = 30
SEEN, RECENT, KEY = 25_000, 900, 85_000
"""How long they live: the first and the last by event time, the other by the time of the epochs."""
SCHEMA = "key long, n long, seen long, recent long"


class Visits(bl.Operator):
    """What a key was seen with of late."""

    n: int = bl.value(0)
    seen: dict[int, int] = bl.map(ttl=f"{SEEN} milliseconds", clock="event")
    recent: Counter[int] = bl.counter(ttl=f"{RECENT} milliseconds")

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        for row in rows:
            self.n += 1
            self.seen[row.what] = self.seen.get(row.what, 0) + 1
            self.recent[row.what] += 1

    def result(self, key: Any, ctx: bl.Context) -> Iterable[Any]:
        return key, self.n, sum(self.seen.values()), self.recent.total()


def visits(values: DataFrame) -> DataFrame:
    """A key is silent for some batches, and then is not; some are for long."""
    batch = F.expr(f"value div {ROWS}")
    of_key = F.col("value") % KEYS
    heard = (batch + of_key) % F.when(of_key % 5 == 0, 18).otherwise(9) < 3
    key, what = (F.col("value") % KEYS).alias("key"), (F.col("value") % 7 + batch % 3).alias("what")
    return values.where(heard).select(key, what, F.col("timestamp"))


def rows_of(epoch: int) -> list[tuple[int, int]]:
    """The rows of an epoch: keys, and what they were seen with."""
    values = range(epoch * ROWS, (epoch + 1) * ROWS)
    return [(v % KEYS, v % 7 + epoch % 3) for v in values if (epoch + v % KEYS) % (9 if v % KEYS % 5 else 18) < 3]


class Wanted:
    """What a key has: each entry with its expiry."""

    def __init__(self) -> None:
        self.n, self.ends = 0, 0
        self.seen: dict[int, list[int]] = {}
        self.recent: dict[int, list[int]] = {}

    def begin(self, time: EpochTime) -> bool:
        self.recent = {what: it for what, it in self.recent.items() if it[1] > time.processing}
        if not time.watermark:
            return True
        self.ends = self.ends or time.watermark + KEY
        self.seen = {what: [n, at or time.watermark + SEEN] for what, (n, at) in self.seen.items()}
        self.seen = {what: it for what, it in self.seen.items() if it[1] > time.watermark}
        return self.ends > time.watermark

    def take(self, what: int, time: EpochTime) -> None:
        self.n += 1
        self.ends = time.watermark and time.watermark + KEY
        self.seen[what] = [self.seen.get(what, [0])[0] + 1, time.watermark and time.watermark + SEEN]
        self.recent[what] = [self.recent.get(what, [0])[0] + 1, time.processing + RECENT]


def history(times: dict[int, EpochTime], last: int) -> tuple[dict[int, set[tuple[int, ...]]], dict[int, Wanted]]:
    """The outputs of each epoch, and the state after the last one."""
    state, outputs = dict[int, Wanted](), {}
    for epoch in range(last + 1):
        time, touched = times[epoch], set()
        state = {key: it for key, it in state.items() if it.begin(time)}
        for key, what in rows_of(epoch):
            state.setdefault(key, Wanted()).take(what, time)
            touched.add(key)
        sums = {
            key: [sum(n for n, _ in them.values()) for them in (state[key].seen, state[key].recent)] for key in touched
        }
        outputs[epoch] = {(key, state[key].n, *sums[key]) for key in touched}
    return outputs, state


def test_what_expires_does_so_exactly_through_kills_replays_and_moves(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS, numPartitions=2, startTimestamp=START, advanceMillisPerBatch=STEP
    )
    rows, sink = visits(source.load().withWatermark("timestamp", "1 second")), Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(
            rows, key="key", operator=Visits, schema=SCHEMA, ttl=f"{KEY} milliseconds", clock="event", beat=False
        )
        with supervised(cluster, out, sink, tmp_path / "spark") as running:
            upto(cluster, running, "Visits", 6)
            kill(cluster.workers[0])
            reached = upto(cluster, running, "Visits", 9)
            cluster.rescale(3, strategy="lazy").wait()
            reached = upto(cluster, running, "Visits", reached + 3)
            cluster.move(keys=[1, 2], to=0, strategy="progressive").wait()
            cluster.rescale(2).wait()
            kill(cluster.workers[1])
            last = upto(cluster, running, "Visits", reached + 8)
        cluster.checkpoint()
        epoch = max(cluster.committed("Visits").values())
        found = {key: state for key in range(KEYS) if (state := cluster.state("Visits").get(key)) is not None}
    times = logged(tmp_path / "spark")
    outputs, state = history(times, epoch)
    for number in range(last + 1):
        assert sorted(sink.epochs[number]) == sorted(outputs[number]), f"epoch {number}, {times[number]}"
    check(found, state)
    table = spark.read.format("bedload").option("batchId", epoch).load(str(tmp_path / "bedload"))
    check({row["key"]: row.asDict() for row in table.collect()}, state)
    made = [row for rows_ in outputs.values() for row in rows_]
    assert any(n > seen for _, n, seen, _ in made), "no entry expired by event time"
    assert any(n > recent for _, n, _, recent in made), "no entry expired by the time of the epochs"
    starts = Counter(key for key, n, _, _ in made if n == ROWS // KEYS)
    assert max(starts.values()) > 1, "no key expired and came again"


def check(found: dict[int, dict[str, Any]], wanted: dict[int, Wanted]) -> None:
    assert found.keys() == wanted.keys()
    for key, it in found.items():
        want = wanted[key]
        seen = {what: [n, it["bedload_event_ttl_seen"].get(what, 0)] for what, n in it["seen"].items()}
        recent = {what: [n, it["bedload_ttl_recent"][what]] for what, n in it["recent"].items()}
        assert (it["n"], it["bedload_event_ttl"], seen, recent) == (want.n, want.ends, want.seen, want.recent), key


class Brief(bl.Operator):
    n: int = bl.value(0, ttl="500 milliseconds")
    total: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        self.n += len(rows)
        self.total += len(rows)


def test_what_is_due_goes_while_the_source_is_quiet(spark: SparkSession, tmp_path: Path) -> None:
    from tests.spark.conftest import eventually

    (tmp_path / "in").mkdir()
    spark.range(10).selectExpr("id % 4 as key").write.mode("append").parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("key long").parquet(str(tmp_path / "in"))
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(rows, key="key", operator=Brief, schema="key long", beat="200 milliseconds")
        with supervised(cluster, out, Sink(), tmp_path / "spark") as running:
            upto(cluster, running, "Brief", 1)
            state = cluster.state("Brief")
            eventually(lambda: all(state.get(key)["n"] == 0 for key in range(4)), "the values are gone")
            assert sum(state.get(key)["total"] for key in range(4)) == 10


def test_event_time_without_a_watermark_is_refused(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load()
    late = rows.withWatermark("timestamp", "1 second").selectExpr("value as key")
    with bl.attach(spark, workers=1) as cluster:
        with pytest.raises(DefinitionError, match=r"operator Visits: seen is to expire by event time.*withWatermark"):
            cluster.apply(rows.selectExpr("value as key", "value as what"), key="key", operator=Visits, schema=SCHEMA)
        with pytest.raises(DefinitionError, match=r"operator Brief: ttl= is to expire by event time"):
            cluster.apply(
                rows.selectExpr("value as key"),
                key="key",
                operator=Brief,
                schema="key long",
                ttl="1 hour",
                clock="event",
            )
        cluster.apply(late, key="key", operator=Brief, schema="key long", ttl="1 hour", clock="event")
