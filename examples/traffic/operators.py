"""The demo's operator: the trip of one car, with one state variable of most kinds.

Each report changes plain Python objects; none is assigned back to be noticed. ``result`` gives one row
per car that changed in an epoch, so the sink gets upserts: the row with the largest ``n`` is a car's latest.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, deque

import bedload as bl

OUTPUT = "car string, n long, mean double, top double, segment string, visited long"
"""The schema of what :meth:`Trip.result` returns."""

RECENT = 20
"""How many of the latest speeds a car keeps."""

ROUTE = 6
"""How many of the latest segments a car keeps."""


class Trip(bl.Operator):
    """Speeds and places of one car."""

    count: int = bl.value(0)
    total: float = bl.value(0.0)
    top: float = bl.value(0.0)
    seen: dt.datetime | None = bl.value(None)
    recent: list[float] = bl.list(maxlen=RECENT)
    segments: dict[str, int] = bl.map()
    bands: Counter[str] = bl.counter()
    route: deque[str] = bl.deque(maxlen=ROUTE)

    def process(self, key: str, rows: bl.Rows, ctx: bl.Context) -> None:
        """Take the next reports of a car."""
        for row in rows:
            self.count += 1
            self.total += row.speed
            self.top = max(self.top, row.speed)
            self.seen = row.ts
            self.recent.append(row.speed)
            self.segments[row.segment] = self.segments.get(row.segment, 0) + 1
            self.bands["slow" if row.speed < 50 else "city" if row.speed < 80 else "fast"] += 1
            if not self.route or self.route[-1] != row.segment:
                self.route.append(row.segment)

    def result(self, key: str, ctx: bl.Context) -> tuple[str, int, float, float, str, int]:
        """The car as it is at the end of the epoch."""
        return key, self.count, self.total / self.count, self.top, self.route[-1], len(self.segments)
