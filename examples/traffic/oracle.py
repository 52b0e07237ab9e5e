"""What the demo must end with, worked out from the traffic with NumPy and plain Python alone.

Invariants: nothing here imports the operator, Spark or the engine, and the arithmetic is written anew, over
whole columns instead of row by row. A mistake in the operator or the engine does not repeat itself here.

Why an order of rows is right at all: a car belongs to one partition, and a partition keeps its order.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from examples.traffic.reports import Reports, Traffic, car_name, segment_name

KEPT_SPEEDS = 20
KEPT_SEGMENTS = 6


class Output(NamedTuple):
    """One row of the sink."""

    car: str
    n: int
    mean: float
    top: float
    segment: str
    visited: int


class Oracle:
    """The whole traffic, by car."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        # Partitions hold ranges of cars in order, so a stable sort of each of them sorts all by car.
        parts = [
            traffic.draw(partition, 0, traffic.local(traffic.total, partition))
            for partition in range(traffic.partitions)
        ]
        parts = [part.pick(np.argsort(part.car, kind="stable")) for part in parts]
        self._rows = Reports(
            np.concatenate([part.car for part in parts]),
            np.concatenate([part.segment for part in parts]),
            np.concatenate([part.speed for part in parts]),
            np.concatenate([part.ts for part in parts]),
        )
        self._bounds = np.searchsorted(self._rows.car, np.arange(traffic.cars + 1))
        self._sums = np.concatenate(([0.0], np.cumsum(self._rows.speed)))

    def seen(self) -> list[int]:
        """The cars that report at least once."""
        found: list[int] = np.flatnonzero(np.diff(self._bounds)).tolist()
        return found

    def count(self, car: int) -> int:
        """How often a car reports."""
        return int(self._bounds[car + 1] - self._bounds[car])

    def mean(self, car: int, n: int) -> float:
        """The mean of a car's first ``n`` speeds: what any output with this ``n`` must say."""
        first = self._bounds[car]
        return float(self._sums[first + n] - self._sums[first]) / n

    def state(self, car: int) -> dict[str, Any] | None:
        """A car's final state, None if it never reports."""
        rows = self._of(car)
        if not len(rows.car):
            return None
        speeds = rows.speed.tolist()
        names = [segment_name(segment) for segment in rows.segment.tolist()]
        return {
            "count": len(speeds),
            "total": sum(speeds),
            "top": max(speeds),
            "seen": dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=int(rows.ts[-1])),
            "recent": speeds[-KEPT_SPEEDS:],
            "segments": dict(Counter(names)),
            "bands": {
                band: times
                for band, times in (
                    ("slow", int(np.sum(rows.speed < 50))),
                    ("city", int(np.sum((rows.speed >= 50) & (rows.speed < 80)))),
                    ("fast", int(np.sum(rows.speed >= 80))),
                )
                if times
            },
            "route": [name for name, _ in groupby(names)][-KEPT_SEGMENTS:],
        }

    def output(self, car: int) -> Output:
        """The last row that the sink must have of a car that reports."""
        rows = self._of(car)
        n = len(rows.car)
        segment = segment_name(int(rows.segment[-1]))
        visited = len(np.unique(rows.segment))
        return Output(car_name(car), n, float(np.sum(rows.speed)) / n, float(rows.speed.max()), segment, visited)

    def _of(self, car: int) -> Reports:
        return self._rows.pick(slice(int(self._bounds[car]), int(self._bounds[car + 1])))
