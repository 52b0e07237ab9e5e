"""What Spark and the cluster report about the run, gathered into one frozen snapshot.

Invariants: an epoch counts once, however often it is reported; a snapshot does not change and refers to
nothing that does. Why apart from the view: what is shown can be tested without a terminal, and the numbers
without a picture.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

HISTORY = 48
"""Epochs that the history of the throughput holds."""

RECENT = 4
"""Epochs that "now" means."""


@dataclass(frozen=True)
class Latency:
    """Seconds that Spark's triggers took, from the first look at the source to the commit.

    The first epoch also starts Python and compiles the plan: it is told apart, and is part of the other
    figures only while there is no other.
    """

    first: float
    last: float
    median: float
    p99: float
    max: float


@dataclass(frozen=True)
class WorkerLoad:
    """One worker."""

    worker: int
    keys: int
    busy: float
    """The share of the time in which it worked, between 0 and 1."""


@dataclass(frozen=True)
class CarState:
    """One car's live state, and the committed epoch that it is from."""

    name: str
    epoch: int
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """The run at one moment."""

    rows: int
    total: int
    target: int
    """Rows per second that the source offers."""
    throughput: float
    """Rows per second now."""
    history: tuple[float, ...]
    """Rows per second of each of the latest epochs, oldest first."""
    epochs: int
    latency: Latency | None
    workers: tuple[WorkerLoad, ...]
    car: CarState | None = None
    event: str = ""
    """The latest thing that happened."""


@dataclass(frozen=True)
class Overall:
    """The whole run."""

    rows: int
    epochs: int
    seconds: float
    rows_per_second: float
    """After the first epoch."""
    latency: Latency
    workers: tuple[WorkerLoad, ...]
    """Their share of work, too, is after the first epoch."""


@dataclass(frozen=True)
class _Trigger:
    rows: int
    began: float
    seconds: float

    @property
    def ended(self) -> float:
        return self.began + self.seconds


class Monitor:
    """Takes reports, gives snapshots."""

    def __init__(self, total: int, target: int, workers: Iterable[int]) -> None:
        self._total = total
        self._target = target
        self._workers = sorted(workers)
        self._triggers: dict[int, _Trigger] = {}
        self._keys: dict[int, dict[int, int]] = {}
        self._held: dict[int, int] | None = None
        self._busy: dict[int, dict[int, float]] = {}
        self.events: list[str] = []
        """What happened besides epochs, oldest first."""

    def take_workers(self, workers: Iterable[int]) -> None:
        """The workers that are there now."""
        self._workers = sorted(workers)

    @property
    def rows(self) -> int:
        """Rows of all epochs so far."""
        return sum(trigger.rows for trigger in self._triggers.values())

    @property
    def last_epoch(self) -> int:
        """The latest epoch that Spark reported; -1 before the first."""
        return max(self._triggers, default=-1)

    def take_progress(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Spark's progress reports: ``query.recentProgress``, or any part of it."""
        for report in reports:
            took = report["durationMs"]
            if "addBatch" not in took:  # an idle trigger reports too, but it ran no epoch
                continue
            began = dt.datetime.fromisoformat(report["timestamp"]).timestamp()
            self._triggers[int(report["batchId"])] = _Trigger(
                int(report["numInputRows"]), began, took["triggerExecution"] / 1000
            )

    def take_epochs(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """The cluster's reports: ``cluster.epochs()``, or any part of it."""
        for report in reports:
            if report["committed"]:
                self._keys[report["epoch"]] = report["keys"]
                self._busy[report["epoch"]] = report["busy"]

    def take_keys(self, held: Mapping[int, int]) -> None:
        """How many keys the workers have now: after the last epoch they may have moved."""
        self._held = dict(held)

    def snapshot(self, car: CarState | None = None) -> Snapshot:
        """The run as far as it has been reported."""
        triggers = [self._triggers[epoch] for epoch in sorted(self._triggers)]
        return Snapshot(
            rows=self.rows,
            total=self._total,
            target=self._target,
            throughput=_throughput(triggers[-RECENT - 1 :]),
            history=tuple(_throughput(triggers[max(i - 1, 0) : i + 1]) for i in range(len(triggers)))[-HISTORY:],
            epochs=len(self._keys),
            latency=_latency(triggers),
            workers=self._loads(RECENT),
            car=car,
            event=self.events[-1] if self.events else "",
        )

    def overall(self) -> Overall:
        """The whole run, after it; there must have been an epoch."""
        triggers = [self._triggers[epoch] for epoch in sorted(self._triggers)]
        latency = _latency(triggers)
        if latency is None:
            raise ValueError("no epoch was reported")
        seconds = triggers[-1].ended - triggers[0].began
        workers = self._loads(max(len(triggers) - 1, 1))
        return Overall(self.rows, len(triggers), seconds, _throughput(triggers), latency, workers)

    def _loads(self, latest: int) -> tuple[WorkerLoad, ...]:
        both = sorted(self._triggers.keys() & self._busy.keys())[-latest:]
        span = self._triggers[both[-1]].ended - self._triggers[both[0]].began if both else 0.0
        latest_keys = self._keys[max(self._keys)] if self._keys else {}
        keys = latest_keys if self._held is None else self._held
        loads = []
        for worker in self._workers:
            busy = sum(self._busy[epoch].get(worker, 0.0) for epoch in both)
            loads.append(WorkerLoad(worker, keys.get(worker, 0), min(busy / span, 1.0) if span else 0.0))
        return tuple(loads)


def _throughput(triggers: Sequence[_Trigger]) -> float:
    """Rows per second between the end of the first trigger and the end of the last.

    Of a single trigger: over its own time.
    """
    if not triggers:
        return 0.0
    if len(triggers) == 1:
        return triggers[0].rows / max(triggers[0].seconds, 0.001)
    return sum(t.rows for t in triggers[1:]) / max(triggers[-1].ended - triggers[0].ended, 0.001)


def _latency(triggers: Sequence[_Trigger]) -> Latency | None:
    if not triggers:
        return None
    first, rest = triggers[0].seconds, [trigger.seconds for trigger in triggers[1:]]
    seconds = rest or [first]
    return Latency(first, seconds[-1], median(seconds), float(np.percentile(seconds, 99)), max(seconds))
