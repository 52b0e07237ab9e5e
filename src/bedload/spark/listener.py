"""Spark's progress events, told to the coordinator.

Without them everything works, but later: an epoch is committed when its progress event arrives, and not only when the
next epoch opens, so that live reads of a quiet stream see its last epoch.

Why not PySpark's own ``StreamingQueryListener`` alone: it takes an event apart with a call to the JVM per field,
dozens for each trigger, which cost both processes more than the rest of the coordinator's work. The event as one
JSON text is a single call.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from bedload.core.ids import Epoch, QueryId, RunId
from bedload.spark.driver import Driver
from bedload.spark.progress import read_progress

_log = logging.getLogger("bedload")
_FEWER_SOURCES = re.compile(r"There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\]")
_NO_BEAT = (
    "query %s: Spark counts its sources, and there are not as many as before. A beat is one: if an operator had "
    "timers, a TTL or beat=True when the query last ran, apply it with beat=True, or start the query anew, with "
    "another checkpoint location"
)


class ProgressListener(StreamingQueryListener):
    """Reports to one cluster's driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._proxy: Any = None

    @property
    def _jlistener(self) -> Any:
        if self._proxy is None:
            jvm: Any = SparkContext._jvm
            self._proxy = jvm.PythonStreamingQueryListenerWrapper(_Events(self))
        return self._proxy

    def progress(self, event: str) -> None:
        """Spark has committed an epoch; the event as JSON."""
        seen = read_progress(event)
        query, epoch = QueryId(seen.id), Epoch(seen.batch_id)
        if not seen.quiet and not seen.num_input_rows:
            self._driver.nothing_read(query, epoch)
        self._driver.progress(query, RunId(seen.run_id), epoch, quiet=seen.quiet)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to do: the first open tells more."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """The public way in; :class:`_Events` takes the short one."""
        self.progress(event.progress.json)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """A run is over."""
        if _FEWER_SOURCES.search(event.exception or ""):
            _log.error(_NO_BEAT, event.id)
        self._driver.query_ended(QueryId(str(event.id)), RunId(str(event.runId)))


class _Events(JStreamingQueryListener):
    """Called from the JVM."""

    pylistener: ProgressListener

    def onQueryStarted(self, jevent: Any) -> None:  # noqa: N802 - Spark's name
        """Left where it is: nobody needs it."""

    def onQueryIdle(self, jevent: Any) -> None:  # noqa: N802 - Spark's name
        """Left where it is: nobody needs it."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802 - Spark's name
        """One call for the whole event."""
        self.pylistener.progress(str(jevent.progress().json()))

    class Java:
        """Py4J reads the interface from here."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
