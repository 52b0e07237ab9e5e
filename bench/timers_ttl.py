"""The operators of the benchmark of time whose state has a TTL.

How long it lives is such that about 1 % of it expires in each epoch: what an epoch does not write is a known share.
"""

from collections.abc import Iterator
from typing import Any

import bedload as bl
from bench.timers_operators import STEP, Arrays, Count

ENTRIES = 20
"""Of each map."""
MAP_STEPS, KEY_STEPS = 13, 8
"""For how many epochs an entry of a map lives that is not written, and a key or its variable."""


class Visits(bl.Operator):
    """Counts by key and entry."""

    seen: dict[int, int] = bl.map()

    def process(self, key: int, rows: Any, ctx: bl.Context) -> Iterator[Any]:
        seen = self.seen
        for row in rows:
            seen[row.entry] = seen.get(row.entry, 0) + 1
        yield key, len(rows), False


class VisitsTtl(Visits):
    """The same, of entries that are forgotten."""

    seen: dict[int, int] = bl.map(ttl=f"{MAP_STEPS * STEP} milliseconds")


class ArraysTtl(Arrays):
    """The count on arrays, forgotten."""

    n: int = bl.value(0, ttl=f"{KEY_STEPS * STEP} milliseconds")


class CountTtl(Count):
    """The count on rows, forgotten after an hour: nothing is, but its time is kept."""

    n: int = bl.value(0, ttl="1 hour")


class ArraysHour(Arrays):
    """The count on arrays, forgotten after an hour."""

    n: int = bl.value(0, ttl="1 hour")
