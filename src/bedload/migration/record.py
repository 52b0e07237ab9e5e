"""What is remembered of a move, and how it showed in the latency of epochs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bedload.core.ids import ChangeId

STEADY_EPOCHS = 50
"""So many epochs before a move say what is normal."""
CALM_EPOCHS = 10
"""After so many epochs in a row under the limit the latency is taken for stable."""
LIMIT = 1.1
"""Of the longest epoch before the move: under it the latency is stable again."""


DONE = "done"
CALLED_OFF = "called off"
"""The outcomes of a move; any other is what went wrong, in words."""


class EpochSpan(NamedTuple):
    """When an epoch began and how long it took, on one clock."""

    began: float
    seconds: float


class MoveRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One operator's part in a change of the cluster."""

    number: ChangeId
    kind: str
    """``rescale``, ``move``, ``drain``, ``rebalance``, ``pin`` or ``unpin``."""
    operator: str
    strategy: str
    why: str = ""
    """Why that strategy, if it was chosen for the user."""
    outcome: str = DONE
    """``done``, ``called off``, or what went wrong."""
    requested: float = 0.0
    """Seconds since 1970."""
    began: float = 0.0
    """On the coordinator's clock."""
    duration_s: float = 0.0
    workers_before: int = 0
    workers_after: int = 0
    moved_groups: int = 0
    moved_keys: int = 0
    moved_bytes: int = 0
    single_keys: int = 0
    """Keys that were moved by themselves, with state or without."""
    flips: int = 0
    copy_s: float = 0.0
    """Of the duration: state was copied ahead."""
    handover_s: float = 0.0
    """Of the duration: from the change of ownership until all state was with its new owners."""
    from_checkpoint: bool = False
    """A worker was lost on the way, and the rest was read from the checkpoint."""
    asked_keys: int = 0
    """Keys on their way that had rows."""
    waited_keys: int = 0
    """Those of them whose rows had to wait."""
    rows_parked: int = 0
    slice_ms_longest: float = 0.0
    """The longest step that it took at a worker: for so long rows of other keys had to wait for it."""
    slices_ms: dict[str, float] = {}
    """The longest one of each kind."""
    stoppage_ms_p50: float = 0.0
    """Of the keys that had rows while they were on their way; those that did not wait count as 0."""
    stoppage_ms_p99: float = 0.0
    stoppage_ms_max: float = 0.0
    epoch_s_median: float | None = None
    """Of the epochs before; None: there was none."""
    epoch_s_longest: float | None = None
    """While it went on; None: no epoch ran meanwhile."""
    spike: float | None = None
    """The one over the other."""
    stabilise_s: float | None = None
    """From the request until latency stayed under 1.1 times the longest epoch before; None: it is not known yet."""


def stoppages(waited: npt.NDArray[np.float64], asked: int) -> dict[str, float]:
    """Percentiles of how long keys that had rows were stopped, in milliseconds."""
    if not max(asked, len(waited)):
        return {"stoppage_ms_p50": 0.0, "stoppage_ms_p99": 0.0, "stoppage_ms_max": 0.0}
    every = np.concatenate([waited, np.zeros(max(0, asked - len(waited)))]) * 1000
    p50, p99 = np.percentile(every, [50, 99])
    return {"stoppage_ms_p50": float(p50), "stoppage_ms_p99": float(p99), "stoppage_ms_max": float(every.max())}


def with_latency(record: MoveRecord, epochs: Sequence[EpochSpan]) -> MoveRecord:
    """The record with what the epochs around it say, as far as they have gone."""
    before = [it for it in epochs if it.began + it.seconds <= record.began][-STEADY_EPOCHS:]
    end = record.began + record.duration_s
    during = [it.seconds for it in epochs if it.began + it.seconds > record.began and it.began <= end]
    longest = max(during, default=None)
    if not before:
        return msgspec.structs.replace(record, epoch_s_longest=longest)
    median = float(np.median([it.seconds for it in before]))
    limit = LIMIT * max(it.seconds for it in before)
    spike = longest / median if longest is not None and median else None
    stable: float | None = record.began
    calm = 0
    for it in epochs:
        if it.began + it.seconds <= record.began:
            continue
        calm = calm + 1 if it.seconds <= limit else 0
        if not calm:
            stable = it.began + it.seconds
    known = stable is not None and calm >= CALM_EPOCHS
    return msgspec.structs.replace(
        record,
        epoch_s_median=median,
        epoch_s_longest=longest,
        spike=spike,
        stabilise_s=stable - record.began if known and stable is not None else None,
    )
