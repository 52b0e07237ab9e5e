"""How much of its time a loop waits for something to do, and how much of theirs the machine's processors do.

A loop that waits for work may wait for others of its machine that have no core left: what it did meanwhile, it would
take from them. So a loop has no more time to spare than its machine.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bedload.core.clock import Clock

_WINDOW = 0.1
"""Seconds that a look covers: epochs are longer, and the pauses between them should show."""


Processors = tuple[float, float]
"""Seconds of all processors since the machine started: idle ones, and all."""


def machine_processors() -> Processors:
    """As Linux counts them; elsewhere the processors are taken for idle."""
    with suppress(OSError, ValueError):
        with Path("/proc/stat").open() as file:
            ticks = list(map(int, file.readline().split()[1:9]))  # the guests' are in the users'
        second = os.sysconf("SC_CLK_TCK")
        return (ticks[3] + ticks[4]) / second, sum(ticks) / second
    return 0.0, 0.0


class Meter:
    """The idle share of the last windows, the latest of which count most."""

    def __init__(self, clock: Clock, processors: Callable[[], Processors] = machine_processors) -> None:
        self.idle = 1.0
        """From 0, it never waits or its machine is busy, to 1, there is nothing to do."""
        self._clock = clock
        self._processors = processors
        self._counted = processors()
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
        self.idle = (self.idle + min(fresh, self._machine())) / 2
        self._since, self._waited, self._apart = now, 0.0, 0.0

    def _machine(self) -> float:
        """The share of their time that the machine's processors had to spare since the last look."""
        before, self._counted = self._counted, self._processors()
        idle, all_ = (now - then for now, then in zip(self._counted, before, strict=True))
        return min(1.0, max(0.0, (idle + self._apart) / all_)) if all_ > 0 else 1.0

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
