"""Time as a dependency: whoever needs the time is given a clock, so that a simulation can own it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970."""
        ...

    def processor(self) -> float:
        """Seconds that the calling thread has had a processor: others on the machine do not count."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()  # noqa: TID251 - the one place that reads it

    def processor(self) -> float:
        """Seconds that the calling thread has had a processor."""
        return time.thread_time()
