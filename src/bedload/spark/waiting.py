"""``cluster.wait_for_epoch``: Spark reports a commit a moment after it, so a program has to wait for the report."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from bedload.core.clock import Clock, SystemClock
from bedload.core.errors import ClusterStopped, Timeout
from bedload.spark.failures import ours
from bedload.spark.supervisor import Supervised

_POLL_SECONDS = 0.02
_NEWS_SECONDS = 60.0
"""How long after a query's end the news of its last commit may take to come."""


def wait_for_epoch(
    query: StreamingQuery | Supervised,
    epoch: int,
    committed: Callable[[str], int],
    seconds: float,
    clock: Clock | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return when an epoch of a query is committed; ``committed`` gives the last one that is, by the query's id."""
    clock = clock or SystemClock()
    deadline = clock.monotonic() + seconds
    over = False
    while (last := committed(str(query.query.id if isinstance(query, Supervised) else query.id))) < epoch:
        if not over and not (query.active if isinstance(query, Supervised) else query.isActive):
            if (error := query.exception()) is not None:
                raise ours(error)
            over, deadline = True, min(deadline, clock.monotonic() + _NEWS_SECONDS)
        if clock.monotonic() >= deadline:
            known = f"the last one that is known to be committed is {last}" if last >= 0 else "none is committed yet"
            if over:
                raise ClusterStopped(f"the query was stopped before its epoch {epoch} was committed; {known}")
            raise Timeout(f"epoch {epoch} was not committed within {seconds:g} seconds; {known}")
        pause(_POLL_SECONDS)
