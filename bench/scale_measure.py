"""Figures of the scale benchmark from what Spark and the cluster tell. Pure.

Invariants:
- An epoch lasts from the commit before it to its own commit: nothing can hide between two triggers.
- A move is compared with as many epochs as it lasted: the longest of many is longer than the longest of few.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from bench.isolate import WrongAnswer


@dataclass(frozen=True)
class Beat:
    """One committed epoch."""

    batch: int
    ended: float
    """Unix seconds of its commit."""
    seconds: float
    """Since the commit before it."""


def beats_of(events: Iterable[Mapping[str, Any]]) -> list[Beat]:
    """The epochs in the progress events of one run of a query; the first one has nothing before it."""
    ended = {
        int(event["batchId"]): datetime.fromisoformat(event["timestamp"]).timestamp()
        + event["durationMs"]["triggerExecution"] / 1000
        for event in events
    }
    return [Beat(now, ended[now], ended[now] - ended[last]) for last, now in pairwise(sorted(ended))]


def stream_figures(beats: Sequence[Beat], rows_per_epoch: int) -> dict[str, float]:
    """What steady epochs say."""
    seconds = [beat.seconds for beat in beats]
    p50, p99 = np.percentile(seconds, [50, 99])
    return {
        "rows_per_s": rows_per_epoch * len(seconds) / sum(seconds),
        "epoch_ms_p50": float(p50) * 1000,
        "epoch_ms_p99": float(p99) * 1000,
    }


def worker_figures(epochs: Iterable[Mapping[str, Any]], batches: Sequence[int]) -> dict[str, float]:
    """What the workers say of these batches: the slowest worker's seal and time, and what all of them wrote."""
    found = {int(row["epoch"]): row for row in epochs if row["committed"] and int(row["epoch"]) in set(batches)}
    if len(found) != len(set(batches)):
        raise WrongAnswer(f"the cluster knows {len(found)} of {len(set(batches))} epochs")
    return {
        "seal_ms": median(max(row["sealing"].values()) for row in found.values()) * 1000,
        "bytes_per_epoch": median(row["bytes"] for row in found.values()),
        "worker_ms": median(max(row["busy"].values()) for row in found.values()) * 1000,
    }


def keys_at(epochs: Iterable[Mapping[str, Any]], batch: int) -> int:
    """How many keys the workers had after a batch; the attempt at an epoch that was given up says nothing of it."""
    (row,) = [row for row in epochs if row["committed"] and int(row["epoch"]) == batch]
    return sum(row["keys"].values())


def during(beats: Sequence[Beat], began: float, ended: float) -> list[Beat]:
    """The epochs of which some part lies within a span; if none was committed after it began, none."""
    return [beat for beat in beats if beat.ended > began and beat.ended - beat.seconds < ended]


def longest_of(steady: Sequence[Beat], epochs: int) -> float:
    """The longest of so many steady epochs in a row, in seconds: the median over all such rows."""
    seconds = [beat.seconds for beat in steady]
    width = min(max(epochs, 1), len(seconds))
    return median(max(seconds[at : at + width]) for at in range(len(seconds) - width + 1))


def move_figures(move: Mapping[str, Any], steady: Sequence[Beat], moving: Sequence[Beat]) -> dict[str, float]:
    """What a move took, and did to the stream. Raises if it was not one."""
    if move["outcome"] != "done":
        raise WrongAnswer(f"the move ended as {move['outcome']!r}")
    if move["from_checkpoint"]:
        raise WrongAnswer("a worker was lost on the way, and state was read from the checkpoint instead of moved")
    if not move["moved_keys"]:
        raise WrongAnswer("no key was moved")
    if not moving:
        raise WrongAnswer("no epoch was committed after the move was asked for")
    longest, usual = max(beat.seconds for beat in moving), longest_of(steady, len(moving))
    return {
        "move_s": move["duration_s"],
        "moved_keys": move["moved_keys"],
        "moved_mb": move["moved_bytes"] / 1e6,
        "move_epochs": len(moving),
        "move_epoch_ms_longest": longest * 1000,
        "no_move_epoch_ms_longest": usual * 1000,
        "move_vs_no_move": longest / usual,
        "slice_ms_longest": move["slice_ms_longest"],
        **{f"slice_ms_{kind}": value for kind, value in sorted(move["slices_ms"].items())},
    }


def restore_figures(seconds: float, read_bytes: float, raw_bytes: int, raw_seconds: float) -> dict[str, float]:
    """A restore beside the plain read of as many bytes of the same files."""
    raw = raw_seconds * read_bytes / raw_bytes
    return {"restore_s": seconds, "raw_read_s": raw, "restore_mb": read_bytes / 1e6, "restore_vs_raw": seconds / raw}
