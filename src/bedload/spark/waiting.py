"""``cluster.wait_for_epoch``: Spark reports a commit a moment after it, so a program has to wait for the report.

A sink that runs no action on its batches is noticed meanwhile: Spark commits batch after batch, and no operator sees
one of them. Such a batch is told from one without rows by its plan, which has partitions for an operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from bedload.core.clock import Clock, SystemClock
from bedload.core.errors import ClusterStopped, EpochIncomplete, Timeout
from bedload.spark.failures import ours
from bedload.spark.supervisor import Supervised

_POLL_SECONDS = 0.02
_LOOK_SECONDS = 1.0
_NEWS_SECONDS = 60.0
"""How long after a query's end the news of its last commit may take to come."""


def wait_for_epoch(
    query: StreamingQuery | Supervised,
    epoch: int,
    committed: Callable[[str], int],
    seconds: float,
    clock: Clock | None = None,
    pause: Callable[[float], None] = time.sleep,
    *,
    reached: Callable[[str], int],
    last_batch: Callable[[StreamingQuery], tuple[int, bool]],
) -> None:
    """Return when an epoch of a query is committed; ``committed`` gives the last one that is, by the query's id.

    ``reached`` gives the last one that an operator has seen, and ``last_batch`` what Spark has committed, and whether
    that had partitions for an operator, for sure.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + seconds
    over, look_at, missed = False, clock.monotonic() + _LOOK_SECONDS, _Missed(epoch, reached, last_batch)
    while (last := committed(str(_now(query).id))) < epoch:
        if not over and not (query.active if isinstance(query, Supervised) else query.isActive):
            if (error := query.exception()) is not None:
                raise ours(error)
            over, deadline = True, min(deadline, clock.monotonic() + _NEWS_SECONDS)
            missed.look(_now(query), over=True)
        if clock.monotonic() >= deadline:
            known = f"the last one that is known to be committed is {last}" if last >= 0 else "none is committed yet"
            known += missed.said(_now(query))
            if over:
                raise ClusterStopped(f"the query was stopped before its epoch {epoch} was committed; {known}")
            raise Timeout(f"epoch {epoch} was not committed within {seconds:g} seconds; {known}")
        if not over and clock.monotonic() >= look_at:
            look_at = clock.monotonic() + _LOOK_SECONDS
            missed.look(_now(query))
        pause(_POLL_SECONDS)


class _Missed:
    """Batches that Spark has committed and that no operator has seen."""

    def __init__(
        self, epoch: int, reached: Callable[[str], int], last_batch: Callable[[StreamingQuery], tuple[int, bool]]
    ) -> None:
        self._epoch = epoch
        self._reached = reached
        self._last_batch = last_batch
        self._first: int | None = None
        """One with partitions for an operator."""

    def look(self, query: StreamingQuery, *, over: bool = False) -> None:
        """Raise if it is sure that the epoch will not come."""
        batch, fed = self._beyond(query)
        if batch is None or not fed:
            return
        # SUBTLE: one such batch proves nothing while the query runs. Sinks that are idempotent by the batch's number
        # skip the one that they have already when a query starts again.
        if not over and self._first in (None, batch):
            self._first = batch
            return
        raise EpochIncomplete(f"epoch {self._epoch} will not be committed: {_unseen(batch)}")

    def said(self, query: StreamingQuery) -> str:
        """The same for whoever gives up, sure or not."""
        batch, _ = self._beyond(query)
        return "" if batch is None else f". But {_unseen(batch)}, unless they had no rows"

    def _beyond(self, query: StreamingQuery) -> tuple[int | None, bool]:
        """The last batch that Spark has committed, if no operator has seen it or the epoch."""
        batch, fed = self._last_batch(query)
        # SUBTLE: asked for afterwards, as tasks open an epoch before Spark commits it.
        unseen = batch >= self._epoch and self._reached(str(query.id)) < self._epoch
        return (batch, fed) if unseen else (None, False)


def _unseen(batch: int) -> str:
    return (
        f"Spark has committed batches of this query up to {batch}, and their rows never reached an operator of this "
        f"cluster. A sink has to read the whole batch: a foreachBatch function has to run an action on it, such as a "
        f"write (see docs/how-to/use-foreach-batch.md)"
    )


def _now(query: StreamingQuery | Supervised) -> StreamingQuery:
    return query.query if isinstance(query, Supervised) else query
