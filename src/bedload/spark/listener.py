"""Spark's progress events, told to the coordinator.

They only make things earlier: an epoch is committed when its progress event arrives, instead of at the
next epoch's open, so that live reads of a quiet stream see its last epoch.
"""

from __future__ import annotations

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from bedload.core.ids import Epoch, QueryId, RunId
from bedload.spark.driver import Driver


class ProgressListener(StreamingQueryListener):
    """Reports to one cluster's driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to do: the first open tells more."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Spark has committed an epoch."""
        progress = event.progress
        quiet = any(source.startOffset == source.endOffset for source in progress.sources)
        self._driver.progress(
            QueryId(str(progress.id)), RunId(str(progress.runId)), Epoch(progress.batchId), quiet=quiet
        )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """A run is over."""
        self._driver.query_ended(QueryId(str(event.id)), RunId(str(event.runId)))
