"""A worker that the demo kills half way, and what becomes of it."""

from __future__ import annotations

import os
import signal

from bedload.core.clock import Clock
from bedload.spark.cluster import Cluster


class Victim:
    """Kills a worker after so many rows, and watches until its replacement has read the state back."""

    def __init__(self, cluster: Cluster, rows: int, clock: Clock) -> None:
        self._cluster = cluster
        self._rows = rows
        self._clock = clock
        self._killed: tuple[int, int] | None = None
        self._at = 0.0
        self.events: list[str] = []
        """What has happened so far."""
        self._back = False

    @property
    def busy(self) -> bool:
        """Whether its replacement is awaited."""
        return self._killed is not None and not self._back

    def look(self, rows: int) -> None:
        """Kill it when it is time; notice when its replacement is there."""
        if self._killed is None and rows >= self._rows:
            worker, pid = max(self._cluster.workers.items())
            os.kill(pid, signal.SIGKILL)
            self._killed, self._at = (worker, pid), self._clock.monotonic()
            self.events.append(f"worker {worker} killed (kill -9 of process {pid})")
        elif self._killed is not None and not self._back:
            self._watch(*self._killed)

    def _watch(self, worker: int, pid: int) -> None:
        now = self._cluster.workers.get(worker, pid)
        read = [item for item in self._cluster.restoring() if item["worker"] == worker]
        if now == pid or not read or any(item["left"] for item in read) or not any(item["read"] for item in read):
            return
        self._back = True
        keys, size = sum(item["keys"] for item in read), sum(item["bytes"] for item in read)
        seconds = self._clock.monotonic() - self._at
        self.events.append(
            f"worker {worker} is back as process {now} after {seconds:.1f} s: {keys:,} keys read back "
            f"({size / 1e6:.1f} MB)"
        )
