"""What the demo does to its own cluster while the traffic goes on: more workers, a hot car by itself, fewer workers.

One thing at a time, each when so much of the traffic has gone through and the one before it is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bedload.spark.changes import Change
from bedload.spark.cluster import Cluster

FINISH_SECONDS = 60.0

_SHOWN = (
    "kind",
    "strategy",
    "workers_before",
    "workers_after",
    "duration_s",
    "moved_keys",
    "moved_bytes",
    "asked_keys",
    "waited_keys",
    "stoppage_ms_p99",
    "stoppage_ms_max",
    "epoch_s_median",
    "epoch_s_longest",
    "spike",
    "stabilise_s",
)


@dataclass(frozen=True)
class _Act:
    rows: int
    begin: Callable[[], Change]


class Moves:
    """Asks for changes, and tells what came of them."""

    def __init__(self, cluster: Cluster, workers: int, car: str, total: int) -> None:
        self._cluster = cluster
        self._car = car
        self._acts = deque(
            [
                _Act(int(total * 0.25), lambda: cluster.rescale(workers + 2)),
                _Act(int(total * 0.45), self._move_car),
                _Act(int(total * 0.80), lambda: cluster.rescale(workers)),
            ]
        )
        self._now: Change | None = None
        self.events: list[str] = []

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return self._now is not None

    def look(self, rows: int, *, hold: bool = False) -> None:
        """Begin what is due, unless it shall wait; notice what is over."""
        if self._now is not None:
            if not self._now.done:
                return
            self._tell(self._now)
            self._now = None
        if self._acts and rows >= self._acts[0].rows and not hold:
            self._now = self._acts.popleft().begin()

    def finish(self) -> None:
        """Wait for the one that is under way."""
        if self._now is not None:
            self._now.wait(FINISH_SECONDS)
            self._tell(self._now)
            self._now = None

    def report(self) -> list[dict[str, Any]]:
        """The moves with what they did to the latency of epochs."""
        return [{name: row[name] for name in _SHOWN} for row in self._cluster.history()]

    def _move_car(self) -> Change:
        """The watched car goes to the worker after the one that it is with."""
        workers = sorted(self._cluster.workers)
        here = workers.index(self._cluster.state("Trip").owner_of(self._car))
        return self._cluster.pin(self._car, workers[(here + 1) % len(workers)])

    def _tell(self, change: Change) -> None:
        result = change.wait()
        self.events.append(
            f"{result.what}: {result.duration_s:.1f} s, {result.moved_keys:,} keys, {result.moved_bytes / 1e6:.1f} MB, "
            f"stoppage p99 {result.stoppage_ms_p99:.1f} ms"
        )


def latency_table(moves: list[dict[str, Any]]) -> str:
    """What happened to latency while state moved, in plain lines."""
    lines = ["moves     what      workers      keys     MB   took   stopped p99   epochs: median before, longest while"]
    for it in moves:
        workers = f"{it['workers_before']} -> {it['workers_after']}"
        spike = "no epoch meanwhile"
        if it["spike"] is not None:
            spike = f"{it['epoch_s_median']:.2f} s, {it['epoch_s_longest']:.2f} s ({it['spike']:.1f}x)"
        lines.append(
            f"          {it['kind']:<9} {workers:<9} {it['moved_keys']:>7,} {it['moved_bytes'] / 1e6:>6.1f} "
            f"{it['duration_s']:>4.1f} s {it['stoppage_ms_p99']:>10.1f} ms   {spike}"
        )
    return "\n".join(lines)
