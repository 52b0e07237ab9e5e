"""The time of an epoch on real Spark: what Spark's offset log has, whatever is killed, replayed or moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bedload as bl
from bedload.core.epoch import EpochTime
from tests.spark.conftest import Sink
from tests.spark.faults import kill
from tests.spark.test_recovery_spark import supervised, upto

pytestmark = pytest.mark.spark

START = 1_700_000_000_000
STEP = 10_000
KEYS = 20


class Clocked(bl.Operator):
    times: dict[int, list[int]] = bl.map()
    """The time of every epoch."""

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        self.times[ctx.epoch] = [ctx.watermark, ctx.now]

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, ctx.epoch, ctx.watermark, ctx.now


def logged(location: Path) -> dict[int, EpochTime]:
    """What Spark's offset log has, by epoch."""
    found = {}
    for path in (location / "offsets").iterdir():
        if path.name.isdigit():
            line = json.loads(path.read_text().splitlines()[1])
            found[int(path.name)] = EpochTime(line["batchWatermarkMs"], line["batchTimestampMs"])
    return found


def test_the_time_of_an_epoch_is_the_logged_one_through_kills_replays_and_moves(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=100, numPartitions=2, startTimestamp=START, advanceMillisPerBatch=STEP)
        .load()
        .withWatermark("timestamp", "1 second")
        .selectExpr(f"value % {KEYS} AS key", "timestamp")
    )
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = cluster.apply(
            rows, key="key", operator=Clocked, schema="key long, epoch long, watermark long, now long", name="Clocked"
        )
        with supervised(cluster, out, sink, tmp_path / "spark") as running:
            upto(cluster, running, "Clocked", 2)
            kill(cluster.workers[0])
            reached = upto(cluster, running, "Clocked", 4)
            cluster.rescale(3).wait()
            last = upto(cluster, running, "Clocked", reached + 3)
        spans = {row["epoch"]: row for row in cluster.epochs() if row["committed"]}
        states = [cluster.state("Clocked").get(key) for key in range(KEYS)]

    log = logged(tmp_path / "spark")
    assert log[last].watermark >= START, "the watermark has moved"
    for epoch, made in sink.epochs.items():
        assert {row[1:] for row in made} == {(epoch, log[epoch].watermark, log[epoch].processing)}
    for state in states:
        assert state is not None
        assert len(state["times"]) > last
        for epoch, (watermark, processing) in state["times"].items():
            assert EpochTime(watermark, processing) == log[epoch]
    assert EpochTime(spans[last]["watermark"], spans[last]["processing"]) == log[last]
    records = [json.loads(path.read_text()) for path in (tmp_path / "bedload").rglob("*.json")]
    turns = [record for record in records if record.get("kind") == "turn"]
    assert len(turns) > last
    for turn in turns:
        assert turn["time"] == {
            "watermark": log[turn["epoch"]].watermark,
            "processing": log[turn["epoch"]].processing,
            "late": log[turn["epoch"] - 1].watermark if turn["epoch"] else 0,
        }
