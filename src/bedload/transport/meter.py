"""How much of its time a loop waits for something to do."""

from __future__ import annotations

import selectors
from typing import Any

from bedload.core.clock import Clock

_WINDOW = 0.1
"""Seconds that a look covers: epochs are longer, and the pauses between them should show."""


class Meter:
    """The idle share of the last windows, the latest of which count most."""

    def __init__(self, clock: Clock) -> None:
        self.idle = 1.0
        """From 0, it never waits, to 1, it has nothing to do."""
        self._clock = clock
        self._since = clock.monotonic()
        self._waited = 0.0
        self._apart = 0.0

    def waited(self, seconds: float) -> None:
        """Nothing was to be done for so long."""
        self._waited += seconds
        now = self._clock.monotonic()
        if now - self._since < _WINDOW:
            return
        counted = now - self._since - self._apart
        fresh = min(1.0, max(0.0, self._waited / counted)) if counted > 0 else 0.0
        self.idle = (self.idle + fresh) / 2
        self._since, self._waited, self._apart = now, 0.0, 0.0

    def apart(self, seconds: float) -> None:
        """So long something was done that counts as neither: what is only done because there is time for it."""
        self._apart += seconds


class MeteredSelector(selectors.DefaultSelector):
    """A selector that knows how much of the time it is waited in."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.meter = Meter(clock)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        """What is ready."""
        started = self._clock.monotonic()
        ready = super().select(timeout)
        self.meter.waited(self._clock.monotonic() - started)
        return ready
