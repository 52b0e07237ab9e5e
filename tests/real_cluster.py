"""A real cluster without Spark: a real driver, real worker processes, real sockets.

Only Spark's side is stood in for: the plans that it would tell of, and the tasks that it would run.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import cloudpickle
import psutil
import pyarrow as pa

import bedload as bl
from bedload.control.attempt import StageFacts
from bedload.control.compaction import Retention
from bedload.control.inquiries import QueryFacts
from bedload.control.liveness import Patience
from bedload.control.wish import Kind, Wish
from bedload.core.epoch import EpochTime
from bedload.core.ids import Epoch, OperatorName, QueryId, RunId, WorkerId
from bedload.migration import strategy_named
from bedload.protocol import messages as m
from bedload.spark import feeder
from bedload.spark.driver import Driver
from bedload.spark.hosts import ProcessHost
from bedload.spark.keeper import Keeper
from bedload.spark.state_view import OperatorState, RowDecoder, Whereabouts
from bedload.transport import Credentials
from bedload.worker.operator import state_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.state_schema import state_schema
from tests.patience import PATIENCE

_GROUPS = 16
_START_SECONDS = 60.0


class _Plans:
    """Every query is new, and each of its epochs has one feeder."""

    def running(self) -> frozenset[QueryId]:
        return frozenset()

    def stage(self, query: QueryId, epoch: Epoch, name: str, stage: int) -> StageFacts:
        return StageFacts(feeders=1, shape=1, time=EpochTime(watermark=0, processing=epoch))

    def location(self, query: QueryId) -> str:
        return ""

    def facts(self, query: QueryId, location: str = "", gap: tuple[Epoch, ...] = ()) -> QueryFacts:
        return QueryFacts(True, None, frozenset(), "", log_read=True)


class RealCluster:
    """One operator on rows of an integer key ``k`` and a value ``x``; its outputs are ``k`` and ``n``."""

    def __init__(
        self,
        operator: type[bl.Operator],
        *,
        workers: int = 2,
        checkpoint: str | None = None,
        encrypted: bool = False,
        patience: Patience | None = None,
        epoch_bytes: int | None = None,
    ) -> None:
        self._epoch_bytes = epoch_bytes
        self.credentials = Credentials.fresh(encrypted=encrypted)
        self.host = ProcessHost()
        self.keeper = None if checkpoint is None else Keeper(checkpoint, None)
        self.driver = Driver(
            "127.0.0.1",
            self.credentials,
            _Plans(),  # type: ignore[arg-type]
            self.host,
            workers,
            keeper=self.keeper,
            retention=Retention(100),
            replace_seconds=_START_SECONDS,
            patience=patience,
        )
        self.name = OperatorName("op")
        self._out = pa.schema([("k", pa.int64()), ("n", pa.int64())])
        self._query, self._run, self._epoch = QueryId("query"), RunId("run"), 0
        self._stages, self._attempts = itertools.count(1), itertools.count()
        try:
            place = None if self.keeper is None else self.keeper.place
            self.host.start(self.driver.address, self.credentials, workers, place)
            self.driver.wait_for_workers(_START_SECONDS, self.host.check)
            self._deploy(operator)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.state.close()
        self._end()

    def epoch(self, rows: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
        """Feed one epoch, and commit it."""
        return self.epoch_of([rows])

    def epoch_of(self, batches: Iterable[Iterable[tuple[int, int]]]) -> list[dict[str, Any]]:
        """The same in several batches."""
        outputs = self._feed([self._batch(list(rows)) for rows in batches])
        self.driver.progress(self._query, self._run, Epoch(self._epoch), quiet=False)
        self._epoch += 1
        self.driver.call(lambda coordinator: None)
        return outputs

    def restart(self) -> None:
        """The query starts again, after a failure."""
        self.driver.query_ended(self._query, self._run)
        self._run = RunId(f"{self._run} again")

    def change(self, kind: str, strategy: str = "seamless", **more: Any) -> Any:
        """Ask for a change of the cluster; a future of its records."""
        return self.driver.change(Wish(Kind(kind), strategy_named(strategy), **more))[1]

    def pids(self) -> dict[WorkerId, int]:
        """The processes of the workers that are here."""
        return self.driver.call(lambda c: c.members.pids)

    def let_patience_end(self, worker: WorkerId, pid: int) -> None:
        """Have a process that is stopped be given up, as if it had said nothing for as long as that takes."""
        stopped = psutil.Process(pid)
        silent = self.driver._contacts.patience.silent

        def pass_time(_: object) -> bool:
            contacts = self.driver._contacts
            contact, pulse = contacts.get(worker), contacts._liveness._pulses.get(worker)
            if contact is None or pulse is None or contact.said.pid != pid:
                return True
            pulse.heard -= silent
            return False

        deadline = time.monotonic() + PATIENCE
        while stopped.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        while not self.driver.call(pass_time):
            assert time.monotonic() < deadline
            time.sleep(0.05)  # what it said last may be under way

    # --- inside ---

    def _end(self) -> None:
        self.driver.stop()
        self.host.stop()

    def _deploy(self, operator: type[bl.Operator]) -> None:
        key = (pa.int64(),)
        deployment = Deployment(self.name, operator, (0,), ("k", "x"), self._out, key, self._epoch_bytes)
        lineage = None
        if self.keeper is not None:
            schema = state_schema(deployment, ["k"], key, _GROUPS, state_of(operator))
            lineage = self.keeper.lineage(self.name, schema)
        self._number = self.driver.deploy(self.name, _GROUPS, shipped(deployment), fresh=False, lineage=lineage)

        def where() -> Whereabouts:
            return self.driver.call(lambda c: Whereabouts.of(c, self.name))

        self.state = OperatorState(self.name, RowDecoder(state_of(operator)), key, where, self.credentials)

    def _batch(self, rows: Sequence[tuple[int, int]]) -> pa.RecordBatch:
        keys = pa.array([key for key, _ in rows], pa.int64())
        values = pa.array([value for _, value in rows], pa.int64())
        return pa.RecordBatch.from_arrays([keys, values], names=["k", "x"])

    def _feed(self, batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
        spec = feeder.FeederSpec(
            self.name, self._number, self.driver.address, self.credentials, ((0, "k"),), self._out, _START_SECONDS
        )
        stage, attempt = next(self._stages), next(self._attempts)
        opening = m.Open(
            self.name,
            self._number,
            self._query,
            self._run,
            Epoch(self._epoch),
            stage,
            0,
            attempt,
            f"{os.getpid()}-{attempt}",
        )

        class Feed(feeder._Feed):
            def _make_opening(self) -> m.Open:
                return opening

        outputs: Iterator[pa.RecordBatch] = Feed(spec).run(iter(batches))
        return [row for batch in outputs for row in batch.to_pylist()]


def shipped(deployment: Deployment) -> bytes:
    """Ship the operator as it is: workers need not import its module, which imports pytest and half of Spark."""
    module = sys.modules[deployment.operator.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(deployment)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
