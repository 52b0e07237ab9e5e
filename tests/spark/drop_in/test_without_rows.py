"""Timers by processing time fire when nothing comes in: here batches without data are on, as they are by default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import bedload as bl
from tests.spark.apps import eventually
from tests.spark.conftest import Sink, start
from tests.spark.drop_in.engines import BEDLOAD, ENGINES, TEXT, apply

pytestmark = pytest.mark.spark

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"


class Rings(StatefulProcessor):
    """Rings twice, some time after a row."""

    def init(self, handle: Any) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 300)
        yield Row(k=key[0], text="row")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        now, at = timerValues.getCurrentProcessingTimeInMs(), expiredTimerInfo.getExpiryTimeInMs()
        assert now >= at
        if not list(self._handle.listTimers())[1:]:
            self._handle.registerTimer(now + 300)
        yield Row(k=key[0], text="rings")


@pytest.mark.parametrize("engine", ENGINES)
def test_timers_fire_without_rows(engine: str, session: SparkSession, bedload: bl.Cluster, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "1.json").write_text('{"k": "a"}\n{"k": "b"}\n')
    session.conf.set(NO_DATA, "true")
    try:
        rows = session.readStream.schema("k string").json(str(source))
        name = "Rings" if engine == BEDLOAD else None
        out = apply(engine, rows.groupBy("k"), "rows", Rings(), TEXT, "Update", "ProcessingTime", name=name)
        sink = Sink()
        query = start(out, sink, tmp_path / "checkpoint")
        try:
            eventually(lambda: all(sink.rows.count((k, "rings")) >= 2 for k in "ab"), "each key has rung twice")
        finally:
            query.stop()
    finally:
        session.conf.set(NO_DATA, "false")
    assert sorted(sink.epochs[0]) == [("a", "row"), ("b", "row")]
