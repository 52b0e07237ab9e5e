"""``cluster.run``: a query that starts again by itself when something was lost.

Spark ends a query when a task of it fails for good, and an epoch that lost a worker fails on purpose. When the query
is started again every row counts once: Spark replays the epoch, from the state before it. The supervisor starts it
again, with growing pauses and a limit.

Not every failure passes: bad data and errors of the operator's own code come back with the rows. Those end the run at
once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bedload.core.clock import Clock, SystemClock
from bedload.core.errors import BedloadError, ClusterStopped, DefinitionError
from bedload.spark.failures import first_line, is_final, ours

_log = logging.getLogger("bedload")

_POLL_SECONDS = 0.2
_STOP_SECONDS = 300.0


class Supervised:
    """A query that is kept running. Made by :meth:`Cluster.run`."""

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        down: Callable[[], BedloadError | None],
        *,
        restarts: int,
        first_pause: float,
        longest_pause: float,
        forget_after: float,
        clock: Clock | None = None,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        """``pause`` waits so many seconds, or less if the run is stopped: then it says so."""
        self._start = start
        self._down = down
        self._limit = restarts
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._forget_after = forget_after
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._pause = pause or self._stop.wait
        self._failure: BaseException | None = None
        self._last: BaseException | None = None
        """What the query was started again for."""
        self.restarts = 0
        """How often the query was started again."""
        self.query = start()
        """The running query, or the last one."""
        self._thread = threading.Thread(target=self._run, name="bedload-supervisor", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether the query runs, or is about to be started again."""
        return self._thread.is_alive()

    def exception(self) -> BaseException | None:
        """Why it ended, if it did so by itself: an error of ``bedload.errors``, or what Spark says if it is none."""
        return self._failure

    def await_termination(self, seconds: float | None = None) -> bool:
        """Wait for the end; whether it came. Raises what the query failed with for good, as :meth:`exception`."""
        self._thread.join(seconds)
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    awaitTermination = await_termination  # noqa: N815 - Spark's name for it

    def stop(self) -> None:
        """Stop the query, and do not start it again."""
        self._stop.set()
        self._stop_query()
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            raise ClusterStopped(f"Spark did not stop the query, or start it, within {_STOP_SECONDS:g} seconds")

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        query = self.query
        times = f", started again {self.restarts} time{'s' if self.restarts > 1 else ''}" if self.restarts else ""
        if self._failure is not None:
            state = f"failed{times}: {first_line(self._failure)}"
        elif self.active:
            last = f" (last for {first_line(self._last)})" if self._last is not None else ""
            state = f"{'stops' if self._stop.is_set() else 'runs'}{times}{last}"
        else:
            state = f"over{times}"
        return f"<query {query.name or query.id}: {state}>"

    # --- on its own thread ---

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # else it would look as if the query had ended well
            self._failure = error

    def _watch(self) -> None:
        pause, recent = self._first_pause, 0
        while True:
            started = self._clock.monotonic()
            error = self._wait()
            if self._clock.monotonic() - started > self._forget_after:
                pause, recent = self._first_pause, 0
            while error is not None:
                if self._stop.is_set() or self._is_over(error, recent):
                    return
                _log.warning("the query failed and starts again in %.1f s: %s", pause, first_line(error))
                if self._pause(pause):
                    return
                recent, self._last = recent + 1, error
                pause = min(2 * pause, self._longest_pause)
                self.restarts += 1
                error = self._start_again()
                if error is None:
                    break
            else:
                return  # it ended by itself, and well

    def _is_over(self, error: BaseException, recent: int) -> bool:
        """Whether the query is not started again, and then why."""
        down = self._down()
        if is_final(error) or down is not None:
            self._failure = down if down is not None and not is_final(error) else ours(error)
        elif recent >= self._limit:
            _log.error("the query failed %s times in a row and is given up: %s", recent + 1, first_line(error))
            self._failure = ours(error)
        return self._failure is not None

    def _start_again(self) -> BaseException | None:
        """Start the query; what stood in the way is a failure like any other, and may pass as well."""
        try:
            self.query = self._start()
        except Exception as error:
            return error
        return None

    def _wait(self) -> BaseException | None:
        """Wait for the end of the query; None if it was stopped."""
        query = self.query
        try:
            while query.isActive and not self._stop.wait(_POLL_SECONDS):
                pass
            if self._stop.is_set():
                self._stop_query()
                return None
            return query.exception()
        except (PySparkException, Py4JError, ConnectionError) as error:
            return ClusterStopped(f"the Spark session of the query is gone: {error!r}")

    def _stop_query(self) -> None:
        try:
            self.query.stop()
        except (PySparkException, Py4JError, ConnectionError) as error:
            _log.warning("the query could not be stopped: %r", error)


def starter(query: Any) -> Callable[[], StreamingQuery]:
    """What starts the query: the writer's own ``start``, or the user's function."""
    if isinstance(query, DataStreamWriter):
        return query.start
    if callable(query):
        return query  # type: ignore[no-any-return]
    raise DefinitionError(
        f"cluster.run takes a DataStreamWriter (out.writeStream...., without start) or a function that starts the "
        f"query and returns it, not {query!r}"
    )
