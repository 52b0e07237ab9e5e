"""Real workers whose store does not answer: whoever waits for the state or for a snapshot hears of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.checkpoint_states import ME, Writer, delta
from tests.patience import PATIENCE
from tests.real_cluster import shipped

import bedload as bl
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import compact
from bedload.checkpoint.local_storage import LocalStorage
from bedload.checkpoint.records import manifest_of
from bedload.control.inquiries import QueryFacts
from bedload.core.errors import StoreError
from bedload.core.ids import Epoch, OperatorName, QueryId
from bedload.spark.driver import Driver
from bedload.spark.hosts import ProcessHost
from bedload.spark.keeper import Keeper
from bedload.spark.state_view import OperatorState, RowDecoder, Whereabouts
from bedload.transport import Credentials
from bedload.worker.operator import state_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.state_schema import state_schema

NAME = OperatorName("Trip")
CREDENTIALS = Credentials.fresh(encrypted=False)
KEY = pa.int64()


class Trip(bl.Operator):
    """Counts."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        self.n += len(list(rows))


DEPLOYMENT = Deployment(NAME, Trip, (0,), ("car", "x"), pa.schema([("n", pa.int64())]), (KEY,))
SCHEMA = state_schema(DEPLOYMENT, ["car"], (KEY,), 8, state_of(Trip))


class NoPlans:
    """Spark is not there."""

    def running(self) -> frozenset[QueryId]:
        return frozenset()

    def location(self, query: QueryId) -> str:
        return ""

    def facts(self, query: QueryId, location: str = "", gap: tuple[Epoch, ...] = ()) -> QueryFacts:
        return QueryFacts(False, Epoch(2), frozenset(), "", log_read=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three epochs, the first of them in a snapshot."""
    storage = LocalStorage(tmp_path)
    checkpoint = Checkpoint.open(storage, ME)
    schema = checkpoint.add_schema(NAME, SCHEMA)
    writer = Writer(storage, schema, operator=NAME)
    for epoch in range(3):
        record = writer.turn(delta(schema, {car: {"n": epoch} for car in range(100)}))
        checkpoint.write_turn(NAME, record)
        if not epoch:
            checkpoint.write_manifest(NAME, manifest_of(record, schema, compact(storage, NAME, record.turn)))
    return tmp_path


@pytest.fixture
def driver(root: Path) -> Iterator[Driver]:
    host = ProcessHost()
    keeper = Keeper(str(root), {"deadline": 5.0})
    made = Driver("127.0.0.1", CREDENTIALS, NoPlans(), host, 2, keeper=keeper)  # type: ignore[arg-type]
    try:
        host.start(made.address, CREDENTIALS, 2, keeper.place)
        made.wait_for_workers(PATIENCE, host.check)
        part = next(root.glob("operators/*/snapshots/*/*/*.parquet"))
        part.unlink()
        os.mkfifo(part)  # who reads it waits for ever
        lineage = keeper.lineage(NAME, SCHEMA)
        made.deploy(NAME, 8, shipped(DEPLOYMENT), fresh=False, lineage=lineage)
        yield made
    finally:
        made.stop()
        host.stop()


def test_a_read_and_a_snapshot_end_in_the_errors_of_the_store(driver: Driver) -> None:
    def where() -> Whereabouts:
        return driver.call(lambda c: Whereabouts.of(c, NAME))

    state = OperatorState(NAME, RowDecoder(state_of(Trip)), (KEY,), where, CREDENTIALS)
    with ThreadPoolExecutor() as beside:
        snapshot = beside.submit(driver.checkpoint, [NAME])
        try:
            with pytest.raises(StoreError, match=r"cannot read .*parquet: TimeoutError: no answer within 5 seconds"):
                state.get(1)
        finally:
            state.close()
        with pytest.raises(StoreError, match="no answer within 5 seconds"):
            snapshot.result(PATIENCE)
