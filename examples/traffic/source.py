"""The traffic as a Spark streaming source, in PySpark's own Python data source API.

Invariants: an offset is the number of rows so far, over all partitions, so a batch is a pair of numbers
and its rows are a pure function of them; an offset never passes ``total``, nor what the rate allows by
the clock; Spark can restart from any offset.

Why the rate is kept here and not by a sleeping sender: a source that is behind catches up in larger
batches, as a log would, and the size of a batch stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from bedload.core.clock import Clock, SystemClock
from examples.traffic.reports import SCHEMA, Traffic

BATCH_SECONDS = 2
"""A batch holds at most this many seconds of traffic, however far behind the query is."""

FIRST_FRACTION = 4
"""The first batch holds a second's traffic divided by this, and the second one as much when it can start."""

ARROW_ROWS = 65_536
"""Rows per Arrow batch."""


class Offset(TypedDict):
    """What Spark logs: the number of rows so far, over all partitions."""

    rows: int


@dataclass
class TrafficPartition(InputPartition):
    """Rows ``start`` to ``stop`` of one partition."""

    partition: int
    start: int
    stop: int


class TrafficSource(DataSource):
    """``spark.readStream.format("traffic")``. Its options are the fields of :class:`Traffic`."""

    @classmethod
    def name(cls) -> str:
        """The name to use as a format."""
        return "traffic"

    def schema(self) -> str:
        """The columns."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> TrafficReader:  # noqa: N802 - Spark's name
        """A reader on the machine's clock."""
        return TrafficReader(Traffic.from_options(self.options), SystemClock())


class TrafficReader(DataSourceStreamReader):
    """Offers as many rows as the clock allows, and draws them in the tasks."""

    def __init__(self, traffic: Traffic, clock: Clock) -> None:
        self._traffic = traffic
        self._clock = clock
        self._slice = traffic.rate // FIRST_FRACTION + 1
        # SUBTLE: both are of this run: a restarted query counts from where it is, or it would owe all the
        # time in between.
        self._first: int | None = None
        self._began: tuple[float, int] | None = None

    def initialOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802 - Spark's name
        """No rows."""
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The bound on one batch."""
        return ReadMaxRows(self._traffic.rate * BATCH_SECONDS)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override]  # noqa: N802
        """Where the next batch ends: what is due by the clock, within the limit and the total."""
        if self._first is None:
            # Spark's first batch takes seconds, for it starts Python and compiles the plan. Traffic that
            # went on meanwhile would only show a query that catches up, so the clock starts after it.
            self._first = start["rows"]
            due = self._first + self._slice
        else:
            now = self._clock.monotonic()
            if self._began is None:
                self._began = (now, start["rows"] + self._slice)
            since, rows = self._began
            due = rows + int((now - since) * self._traffic.rate)
        due = min(due, self._traffic.total)
        if isinstance(limit, ReadMaxRows):
            due = min(due, start["rows"] + limit.max_rows)
        return {"rows": max(due, start["rows"])}

    def partitions(self, start: Offset, end: Offset) -> Sequence[TrafficPartition]:  # type: ignore[override]
        """The share of each partition; none at all if nothing is new."""
        if start == end:
            return []
        local = self._traffic.local
        return [
            TrafficPartition(p, local(start["rows"], p), local(end["rows"], p)) for p in range(self._traffic.partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in order."""
        assert isinstance(partition, TrafficPartition)
        for start in range(partition.start, partition.stop, ARROW_ROWS):
            yield self._traffic.batch(partition.partition, start, min(start + ARROW_ROWS, partition.stop))

    def commit(self, end: Offset) -> None:  # type: ignore[override]
        """Nothing is kept, so nothing is released."""
