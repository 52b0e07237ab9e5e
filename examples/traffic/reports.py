"""The demo's traffic: which car reports what, as a pure function of a seed and row numbers.

Invariants: the same seed, partition and range of row numbers give the same rows, in any process and
however often; two adjacent ranges give what the range over both gives; a car belongs to one partition,
so its rows have one order.

Why: a streaming source must be able to replay a batch, and the oracle must know the whole input without
having stored it. So nothing is drawn from a random generator with a position of its own: each row is a
hash of its own number.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import DefinitionError

SCHEMA = "car string, segment string, speed double, ts timestamp"
"""The columns, for Spark."""

ARROW_SCHEMA = pa.schema(
    [("car", pa.string()), ("segment", pa.string()), ("speed", pa.float64()), ("ts", pa.timestamp("us", "UTC"))]
)
"""The same columns, for Arrow."""

FIRST_TS = 1_767_225_600_000_000
"""The event time of row 0 in microseconds: 2026-01-01 00:00 UTC. Fixed, so that replays are equal."""

MAX_SEGMENTS = 260
"""A segment's name is a letter and a digit."""

REPORTS_PER_SEGMENT = 8
"""About how many reports a car of average activity sends from one segment before it is in the next."""

Unsigned = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Reports(NamedTuple):
    """Rows as columns of numbers."""

    car: Integers
    segment: Integers
    speed: Floats
    ts: Integers
    """Microseconds since 1970."""

    def pick(self, rows: Integers | slice) -> Reports:
        """Some of the rows, or all of them in another order."""
        return Reports(self.car[rows], self.segment[rows], self.speed[rows], self.ts[rows])


@dataclass(frozen=True)
class Traffic:
    """All the traffic there will be."""

    cars: int = 5000
    segments: int = 40
    rate: int = 20_000
    """Rows per second: of the source by the wall clock, and of the data in event time."""
    total: int = 900_000
    """The number of rows after which there are no more."""
    partitions: int = 2
    seed: int = 7

    def __post_init__(self) -> None:
        for name in ("cars", "segments", "rate", "total", "partitions"):
            if getattr(self, name) < 1:
                raise DefinitionError(f"traffic: {name}={getattr(self, name)} must be at least 1")
        if self.segments > MAX_SEGMENTS:
            raise DefinitionError(f"traffic: segments={self.segments} must be at most {MAX_SEGMENTS}")
        if self.partitions > self.cars:
            raise DefinitionError(
                f"traffic: partitions={self.partitions} must be at most the number of cars, {self.cars}: a car "
                f"belongs to one partition"
            )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Traffic:
        """Read what :meth:`options` wrote; what is missing has its default."""
        given: dict[str, int] = {}
        for field in fields(cls):
            text = options.get(field.name)
            if text is None:
                continue
            try:
                given[field.name] = int(text)
            except ValueError:
                raise DefinitionError(f"traffic: option {field.name}={text!r} is not a whole number") from None
        return cls(**given)

    def options(self) -> dict[str, str]:
        """This traffic as options of a Spark source."""
        return {name: str(number) for name, number in asdict(self).items()}

    def cars_of(self, partition: int) -> range:
        """The cars of a partition; together the partitions have all cars, in order."""
        return range(self.cars * partition // self.partitions, self.cars * (partition + 1) // self.partitions)

    def local(self, rows: int, partition: int) -> int:
        """How many of the first ``rows`` rows are a partition's: they are dealt out in turn."""
        return (rows - partition + self.partitions - 1) // self.partitions

    def draw(self, partition: int, start: int, stop: int) -> Reports:
        """The rows ``start`` to ``stop`` of one partition, numbered from 0 in each partition."""
        row = np.arange(start, stop, dtype=np.uint64) * np.uint64(self.partitions) + np.uint64(partition)
        bits = _hash(row + _hash(np.full(1, self.seed, dtype=np.uint64)))
        own = self.cars_of(partition)
        # The square makes some cars report far more often than others, as taxis do.
        car = own.start + (_unit(bits) ** 2 * len(own)).astype(np.int64)
        nature = _hash(car.astype(np.uint64) * np.uint64(2) + np.uint64(self.seed))
        segment = self._segment(row, nature)
        wobble = _unit(_hash(bits)) + _unit(_hash(bits + np.uint64(1))) - 1.0
        speed = 30.0 + 70.0 * _unit(nature) + 30.0 * wobble
        # Half a km/h is as exact as the sensor is. Sums of such numbers are exact in any order.
        speed = np.round(speed * 2.0) / 2.0
        ts = FIRST_TS + row.astype(np.int64) * 1_000_000 // self.rate
        return Reports(car, segment, speed, ts)

    def batch(self, partition: int, start: int, stop: int) -> pa.RecordBatch:
        """The same rows as an Arrow batch, with names for cars and segments."""
        rows = self.draw(partition, start, stop)
        own = self.cars_of(partition)
        columns = [
            _car_names(own.start, own.stop).take(pa.array(rows.car - own.start)),
            _segment_names(self.segments).take(pa.array(rows.segment)),
            pa.array(rows.speed),
            pa.array(rows.ts).cast(ARROW_SCHEMA.field("ts").type),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)

    def _segment(self, row: Unsigned, nature: Unsigned) -> Integers:
        step = (row // np.uint64(self.cars * REPORTS_PER_SEGMENT)).astype(np.int64)
        home = (nature % np.uint64(self.segments)).astype(np.int64)
        direction: Integers = np.where(nature >> np.uint64(63), 1, -1).astype(np.int64)
        place: Integers = (home + direction * step) % self.segments
        return place


def car_name(car: int) -> str:
    """How a car is called in the data."""
    return f"car-{car}"


def segment_name(segment: int) -> str:
    """How a segment of the road is called in the data: A-0 to A-9, then B-0, and so on."""
    return f"{chr(ord('A') + segment // 10)}-{segment % 10}"


@functools.lru_cache(maxsize=64)
def _car_names(start: int, stop: int) -> pa.Array:
    return pa.array([car_name(car) for car in range(start, stop)], type=pa.string())


@functools.lru_cache(maxsize=8)
def _segment_names(segments: int) -> pa.Array:
    return pa.array([segment_name(segment) for segment in range(segments)], type=pa.string())


def _hash(x: Unsigned) -> Unsigned:
    """The finaliser of SplitMix64: nearby numbers give unrelated ones. Arrays wrap around silently."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _unit(bits: Unsigned) -> Floats:
    """Uniform in [0, 1), from the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
