"""What the isolated runs of all systems share: a query under the open-loop load, watched from outside.

Invariants:
- A case is measured on a stream that has caught up with its own start; see `Watched.wait_until_caught_up`.
- Progress of all queries that a case started counts: a strategy may stop one and start another.
- Each result is written as soon as it is there, one JSON object a line, so that one failure, or the end of the process,
  does not take the others with it.
"""

import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from bench.isolate import NotAvailable, WrongAnswer
from bench.migrate_load import Schedule, row_of
from bench.migrate_measure import Beat, Epoch, aligned, beats_of, before, epochs_of, stabilise
from bench.migrate_plan import Case, Timing

WORKERS_BEFORE, WORKERS_AFTER = 2, 4
POLL_SECONDS = 0.1
CAUGHT_UP = 3.0
"""A stream has caught up when its oldest row is not older than this many epochs. At full speed it is two: it came due
when the epoch before began, at the latest."""


STEADY_EPOCHS = 5
"""At least so many before the request, however long they take."""


def wall() -> float:
    """The clock of the load: the source stamps its rows by it."""
    return time.time()  # noqa: TID251  measured against the stamps of other processes


class Watched:
    """The queries of one case, and the epochs they have committed."""

    def __init__(self, schedule: Schedule, timeout: float) -> None:
        self.schedule = schedule
        self.queries: list[StreamingQuery] = []
        self._timeout = timeout
        self._failure: Callable[[], BaseException | None] = self._of_the_last

    def started(self, query: StreamingQuery) -> StreamingQuery:
        """Watch this one, too."""
        self.queries.append(query)
        return query

    def fails_by(self, failure: Callable[[], BaseException | None]) -> None:
        """Ask this for a failure, instead of the last query: something else starts queries again."""
        self._failure = failure

    def _of_the_last(self) -> BaseException | None:
        return self.queries[-1].exception() if self.queries else None

    def epochs(self) -> list[Epoch]:
        """All epochs so far."""
        events = [event for query in list(self.queries) for event in query.recentProgress]
        return epochs_of(map(_as_dict, events), self.schedule.fill)

    def beats(self) -> list[Beat]:
        """The series so far."""
        return beats_of(self.epochs(), self.schedule)

    def last_batch(self) -> tuple[int, int]:
        """Number of the last batch that was committed, and the rows up to its end."""
        events = [_as_dict(event) for query in self.queries for event in query.recentProgress]
        with_rows = [event for event in events if row_of(event["sources"][0]["endOffset"]) is not None]
        last = max(with_rows, key=lambda event: int(event["batchId"]))
        end = row_of(last["sources"][0]["endOffset"])
        assert end is not None
        return int(last["batchId"]), end

    def wait(self, what: str, until: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait for something, as long as the query lives."""
        limit = self._timeout if seconds is None else seconds
        deadline = time.monotonic() + limit
        while not until():
            failure = self._failure()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not after {limit:.0f} s")
            time.sleep(POLL_SECONDS)

    def wait_until_caught_up(self) -> None:
        """Wait until the rows that came due while the query started are done with."""

        def caught_up() -> bool:
            latest = self.beats()[-3:]
            return len(latest) == 3 and all(beat.oldest < CAUGHT_UP * max(beat.seconds, 0.2) for beat in latest)

        self.wait("catching up with the load", caught_up)

    def run_steadily(self, seconds: float) -> float:
        """Go on for some time, and until there are epochs enough to compare with; how long that took."""
        began, since = time.monotonic(), wall()

        def enough() -> bool:
            whole = [beat for beat in self.beats() if beat.ended - beat.seconds >= since]
            return time.monotonic() - began >= seconds and len(whole) >= STEADY_EPOCHS

        self.wait("running steadily", enough, seconds + self._timeout)
        return time.monotonic() - began

    def wait_until_stable(self, requested: float, steady_s: float, timing: Timing) -> None:
        """Go on until the stream is stable after the move, or until patience ends: then the report has no figure."""
        steady = before(self.beats(), requested, steady_s)

        def stable() -> bool:
            return stabilise(self.beats(), steady, requested, timing.hold_s) is not None

        try:
            self.wait("becoming stable", stable, timing.hold_s + timing.patience_s)
        except TimeoutError:
            return

    def series(self, requested: float) -> list[tuple[float, float]]:
        """For a plot."""
        return aligned(self.beats(), requested)


def _as_dict(event: Any) -> dict[str, Any]:
    return {name: event[name] for name in ("batchId", "timestamp", "durationMs", "sources")}


def run_cases(
    cases: Sequence[Mapping[str, Any]],
    measure: Callable[[Case], dict[str, Any]],
    answers: Path,
    remove: Callable[[], None],
) -> int:
    """Measure one case after the other; how many there were. `remove` takes away what a case left.

    The first one is a warm-up: it has an answer, too, by which it is seen to have worked.
    """
    for said in cases:
        case = Case(**said)
        began = time.monotonic()
        try:
            found = {"figures": None, "series": [], **measure(case)}
        except Exception as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines()
            known = isinstance(error, NotAvailable | WrongAnswer)
            text = (lines[0] if lines else "") if known else f"{type(error).__name__}: {lines[0] if lines else ''}"
            found = {"kind": type(error).__name__, "error": text}
        finally:
            remove()
        found |= {"case": case.as_json(), "seconds": time.monotonic() - began}
        with answers.open("a", encoding="utf-8") as out:
            out.write(json.dumps(found) + "\n")
    return len(cases)
