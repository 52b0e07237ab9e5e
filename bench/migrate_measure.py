"""What a move did to a stream: figures from the epochs before, during and after it. Pure.

Invariants:
- An epoch lasts from the commit before it to its own commit, so that time in which nothing ran, because a query was
  stopped, is in the first epoch after it. No strategy can hide a gap between two epochs.
- The latency of a row is the time of its epoch's commit minus the time at which it was due. All rows count, also those
  that came due while nothing ran: there is no coordinated omission.
- What is said about steady running comes from before the request alone.

The rule of stability: the stream is stable again from the first moment at which the latency of every epoch in the next
`HOLD_SECONDS` is at most 1.1 times the highest latency before the request (the rule of DRRS, with a shorter hold).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from bench.migrate_load import Schedule, row_of

HOLD_SECONDS = 5.0
STABLE_FACTOR = 1.1
_POINTS = 16
"""Rows of an epoch are due at even distances: so many points stand for them."""


class NotSteady(Exception):
    """There is too little before the request to compare with."""


@dataclass(frozen=True)
class Epoch:
    """One committed micro-batch: the rows [first, end), and when its trigger began and ended, in Unix seconds."""

    first: int
    end: int
    began: float
    ended: float


@dataclass(frozen=True)
class Beat:
    """An epoch with its place in the series."""

    ended: float
    seconds: float
    """Since the commit before it."""
    oldest: float
    """Latency of its oldest row, seconds."""
    newest: float
    rows: int


def epochs_of(events: Iterable[Mapping[str, Any]], fill: int = 0) -> list[Epoch]:
    """The epochs in Spark's progress events, of one or several runs of a query, in order; none without rows."""
    found: dict[int, Epoch] = {}
    for event in events:
        (source,) = event["sources"]
        end = row_of(source["endOffset"])
        first = row_of(source["startOffset"])
        first = -fill if first is None else first
        if end is None or end <= first:
            continue
        began = datetime.fromisoformat(event["timestamp"]).timestamp()
        ended = began + event["durationMs"]["triggerExecution"] / 1000
        # An epoch that ran again replaces what was said of its first attempt.
        found[first] = Epoch(first, end, began, ended)
    return sorted(found.values(), key=lambda epoch: epoch.ended)


def beats_of(epochs: Sequence[Epoch], schedule: Schedule) -> list[Beat]:
    """The series of epochs whose rows have due times. The first one has nothing before it, and is left out."""
    timed = [epoch for epoch in epochs if epoch.first >= 0]
    return [
        Beat(
            one.ended,
            one.ended - last.ended,
            one.ended - schedule.due(one.first),
            one.ended - schedule.due(one.end - 1),
            one.end - one.first,
        )
        for last, one in pairwise(timed)
    ]


def row_latencies(beats: Sequence[Beat], qs: Sequence[float]) -> list[float]:
    """Percentiles of latency over all rows of some epochs, in seconds."""
    values = np.concatenate([np.linspace(beat.oldest, beat.newest, _POINTS) for beat in beats])
    weights = np.concatenate([np.full(_POINTS, beat.rows / _POINTS) for beat in beats])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    at = np.minimum(np.searchsorted(reached, np.asarray(qs) / 100 - 1e-9), len(values) - 1)
    return [float(value) for value in values[order][at]]


def before(beats: Sequence[Beat], requested: float, seconds: float) -> list[Beat]:
    """The steady epochs: those that lie wholly within so many seconds before the request."""
    found = [b for b in beats if b.ended <= requested and b.ended - b.seconds >= requested - seconds]
    if len(found) < 3:
        raise NotSteady(f"{len(found)} epochs in the {seconds:g} s before the request; at least 3 are needed")
    return found


def during(beats: Sequence[Beat], requested: float, done: float) -> list[Beat]:
    """The epochs of which some part lies within the move. If it ended before the next commit, the epoch of that."""
    found = [b for b in beats if b.ended > requested and b.ended - b.seconds < done]
    return found or [b for b in beats if b.ended > requested][:1]


def spike(steady: Sequence[Beat], moving: Sequence[Beat]) -> float:
    """The longest epoch of the move over the median of the steady ones."""
    return max(b.seconds for b in moving) / median(b.seconds for b in steady)


def stabilise(
    beats: Sequence[Beat], steady: Sequence[Beat], requested: float, hold: float = HOLD_SECONDS
) -> float | None:
    """Seconds from the request until the stream is stable; None if that was not seen. See the module."""
    limit = STABLE_FACTOR * max(b.oldest for b in steady)
    after = [b for b in beats if b.ended > requested]
    if not after:
        return None
    since = requested
    for beat in after:
        if beat.oldest > limit:
            since = beat.ended
        elif beat.ended - since >= hold:
            break
    return since - requested if after[-1].ended - since >= hold else None


def longest_gap(moving: Sequence[Beat]) -> float:
    """The longest time without a commit around the move, in seconds."""
    return max(b.seconds for b in moving)


def stream_figures(
    beats: Sequence[Beat], requested: float, done: float, steady_seconds: float, hold: float = HOLD_SECONDS
) -> dict[str, float]:
    """What the stream itself shows of a move, whatever the system. What was not reached is left out."""
    steady = before(beats, requested, steady_seconds)
    moving = during(beats, requested, done)
    if not moving:
        raise NotSteady("no epoch was committed after the request")
    stable = stabilise(beats, steady, requested, hold)
    until = max(done, requested + (stable or 0.0), moving[-1].ended)
    p50, p99, worst = row_latencies([b for b in beats if requested < b.ended <= until], (50, 99, 100))
    figures = {
        "steady_epoch_ms": median(b.seconds for b in steady) * 1000,
        "steady_latency_ms_p99": row_latencies(steady, (99,))[0] * 1000,
        "latency_ms_p50": p50 * 1000,
        "latency_ms_p99": p99 * 1000,
        "latency_ms_max": worst * 1000,
        "spike": spike(steady, moving),
        "gap_s": longest_gap(moving),
    }
    return figures if stable is None else {**figures, "stabilise_s": stable}


def aligned(beats: Sequence[Beat], requested: float) -> list[tuple[float, float]]:
    """For a plot: seconds since the request, and the latency of the oldest row in milliseconds."""
    return [(round(b.ended - requested, 3), round(b.oldest * 1000, 1)) for b in beats]
