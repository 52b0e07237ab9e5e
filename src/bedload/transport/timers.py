"""Calls that are due at some time, in the order in which they are.

The clock is handed in, so a test owns the time. Only the thread of the loop may use :class:`Timers`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from bedload.core.clock import Clock


class Timer:
    """A call that is due at some time."""

    def __init__(self, due: float, fn: Callable[[], None]) -> None:
        self.due = due
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        """Do not make the call, if it has not been made."""
        self.fn = None


class Timers:
    """All that wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, timer: Timer) -> None:
        """One more."""
        heapq.heappush(self._heap, (timer.due, next(self._numbers), timer))

    def patience(self) -> float | None:
        """Seconds until the first one is due; None: there is none."""
        while self._heap and self._heap[0][2].fn is None:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._heap else None

    def run_due(self, run: Callable[[Callable[[], None]], None]) -> None:
        """Have the calls made that are due."""
        now = self._clock.monotonic()
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        for timer in due:  # a timer may cancel one that is due after it
            if timer.fn is not None:
                run(timer.fn)
