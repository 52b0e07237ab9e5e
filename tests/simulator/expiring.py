"""When keys of the simulated operator with a TTL expire: the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bedload.core.epoch import EpochTime
from bedload.core.ids import OperatorName
from bedload.state.timers import TimerClock
from tests.simulator.workload import NAME


def ttl_of(name: OperatorName) -> tuple[int, TimerClock]:
    """How long a key lives, and by which clock: an epoch takes a second of both."""
    return (2000, TimerClock.PROCESSING) if name == NAME else (1500, TimerClock.EVENT)


def living(expiries: Mapping[str, int], name: OperatorName, time: EpochTime) -> set[str]:
    """The keys that are not gone in an epoch, whether they have rows in it or not."""
    _, clock = ttl_of(name)
    return {key for key, at in expiries.items() if not at or at > clock.now(time)}


def expiries_after(
    expiries: Mapping[str, int], touched: Collection[str], name: OperatorName, time: EpochTime
) -> dict[str, int]:
    """When keys expire after an epoch, of those that are there then."""
    ttl, clock = ttl_of(name)
    begun = clock is TimerClock.PROCESSING or time.watermark > 0
    fresh = clock.now(time) + ttl if begun else 0
    return {key: fresh if key in touched or not at else at for key, at in expiries.items()}
