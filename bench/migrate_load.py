"""An open-loop source: rows come due by the clock, whether or not the query takes them.

Invariants:
- Row `v` is due at `start + v / rate`. That depends on nothing that the system under test does, so rows that came due
  while a query was stopped, or an epoch was long, are all in the next epoch.
- An offset is the number of rows so far. The epochs of a run are therefore ranges of row numbers, and the latency of
  each row follows from the range and the time of the commit: nothing has to travel with the rows.
- Rows below zero fill the state, each key once, as fast as they are taken. They have no due time.
- The key of a row depends on its number, the number of keys and the skew alone.

Why not Spark's own: `rate` hands out whole seconds, which is longer than an epoch; `rate-micro-batch` gives the same
rows to every trigger, however late it is, so a query that stands still has nothing to catch up on.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from bench.source import PARTITIONS, SCATTER, SEED

FORMAT = "bench-open-loop"
FILL_ROWS = 100_000
"""Filling rows in one epoch."""
_PIECE = 16_384
"""Rows that one array holds between the source and `explode`."""
_CIPHER_BYTES = 28
"""What AES in GCM mode adds: 12 bytes before, 16 after."""
NEVER = math.inf


@dataclass(frozen=True)
class Schedule:
    """When rows are due."""

    start: float
    """Unix seconds of row 0; `NEVER`: filling rows alone."""
    rate: float
    """Rows per second."""
    fill: int = 0
    """Rows before row 0."""

    def due(self, row: float) -> float:
        """When a row is due."""
        return self.start + row / self.rate

    def latest(self, offset: int, now: float) -> int:
        """Where an epoch ends that begins at `offset` now: all rows that are due, or some that fill the state."""
        if offset < 0:
            return min(offset + FILL_ROWS, 0)
        if now <= self.start:
            return offset
        return max(offset, math.floor((now - self.start) * self.rate) + 1)


def cut(first: int, end: int, parts: int) -> list[tuple[int, int]]:
    """A range in at most so many parts of nearly the same size, none of them empty."""
    edges = [first + (end - first) * i // parts for i in range(parts + 1)]
    return [(a, b) for a, b in pairwise(edges) if a < b]


# --- keys


def key_expression(keys: int, skew: float, row: str = "value") -> str:
    """The SQL expression for the key of row number `row`: every key once while it fills, then by the skew.

    Skew 0 is uniform. Otherwise the rank of the key is drawn from Zipf's law with that exponent, by the inverse of the
    distribution of its continuous form on [1/2, keys + 1/2], rounded; ranks are then scattered over the keys.
    """
    filling = f"pmod(({row} + {keys}L) * {SCATTER}L, {keys}L)"
    if skew == 0:
        drawn = f"pmod(xxhash64({row}, {SEED}), {keys}L)"
    else:
        drawn = f"pmod(least(cast(round({_position(keys, skew, row)}) as bigint), {keys}L) * {SCATTER}L, {keys}L)"
    return f"CASE WHEN {row} < 0 THEN {filling} ELSE {drawn} END"


def _position(keys: int, skew: float, row: str) -> str:
    u = f"(pmod(xxhash64({row}, {SEED}), {1 << 52}L) / {float(1 << 52)!r}D)"
    return zipf_position(keys, skew).format(u=u)


def zipf_position(keys: int, skew: float) -> str:
    """The inverse of the distribution, as an expression of `{u}` in [0, 1) that SQL and Python both read."""
    low, high = 0.5, keys + 0.5
    if skew == 1:
        return f"({low!r} * exp({{u}} * {math.log(high / low)!r}))"
    power = 1 - skew
    return f"power({low**power!r} + {{u}} * ({(high**power - low**power)!r}), {1 / power!r})"


def value_expression(value_bytes: int, row: str = "value") -> str:
    """So many bytes that depend on the row alone and do not compress: what a cipher makes of a constant."""
    plain = max(value_bytes - _CIPHER_BYTES, 1)
    secret = f"lpad(cast({row} as string), 16, '0')"
    return f"aes_encrypt(repeat('x', {plain}), {secret}, 'GCM', 'DEFAULT', unhex('{'00' * 12}'))"


# --- the source


@dataclass
class Rows(InputPartition):
    """The rows of one task."""

    first: int
    end: int


class OpenLoopReader(DataSourceStreamReader):
    """Hands out what is due."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The first row that fills the state."""
        return {"row": -self._schedule.fill}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """All that is due: an open loop has no limit."""
        return {"row": self._schedule.latest(int(start["row"]), time.time())}  # noqa: TID251  the load's own clock

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One part for each core."""
        return [Rows(first, last) for first, last in cut(int(start["row"]), int(end["row"]), PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        """Ranges of row numbers; the JVM makes rows of them."""
        assert isinstance(partition, Rows)
        for first in range(partition.first, partition.end, _PIECE):
            yield first, min(first + _PIECE, partition.end) - 1

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept."""

    def stop(self) -> None:
        """Nothing is held."""


class OpenLoop(DataSource):
    """The source for Spark; its options are those of a `Schedule`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Ranges, both ends included."""
        return "first long, last long"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """A reader for the schedule that the options describe."""
        options = {name.lower(): value for name, value in self.options.items()}
        schedule = Schedule(float(options["start"]), float(options["rate"]), int(options["fill"]))
        return OpenLoopReader(schedule)


def open_loop(spark: SparkSession, schedule: Schedule) -> DataFrame:
    """A streaming DataFrame of one column, `value long`: the numbers of the rows that are due."""
    spark.dataSource.register(OpenLoop)
    source = spark.readStream.format(FORMAT).option("start", repr(schedule.start))
    ranges = source.option("rate", repr(schedule.rate)).option("fill", schedule.fill).load()
    return ranges.selectExpr("explode(sequence(first, last)) AS value")


def row_of(offset: str | dict[str, Any] | None) -> int | None:
    """The row number in an offset of a progress event; None if there is none yet."""
    if offset is None:
        return None
    said = json.loads(offset) if isinstance(offset, str) else offset
    return None if said is None else int(said["row"])
