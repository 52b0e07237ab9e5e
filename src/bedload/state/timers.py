"""Timers as state: what a key has been set, as an immutable value of one hidden variable of an operator on rows.

A timer is known by its name and its clock, so that to set it again moves it. All timers of a key are one tuple of
:class:`Timer`, in the order in which they fire. It is replaced whenever one of them is set, deleted or fires: so the
before-image of a key holds its timers, and they are rolled back, backed up, moved and restored like any other value.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bedload.core.epoch import EpochTime

HIDDEN = "bedload_"
"""So begin the names of variables that hold when something is due. No variable of a user's does."""
VARIABLE = f"{HIDDEN}timers"
"""The variable that holds the timers of a key."""


class TimerClock(enum.StrEnum):
    """What a timer goes by."""

    EVENT = "event"
    """The watermark."""
    PROCESSING = "processing"
    """The time of the epoch."""

    def now(self, time: EpochTime) -> int:
        """What this clock says in an epoch."""
        return time.watermark if self is TimerClock.EVENT else time.processing


EXPIRIES = {TimerClock.PROCESSING: "bedload_ttl", TimerClock.EVENT: "bedload_event_ttl"}
"""The hidden variables of when a key with a TTL expires. An expiry by one clock means nothing by the other."""


class Timer(NamedTuple):
    """A timer of a key; it fires in the first epoch whose clock has reached ``at``."""

    at: int
    """Milliseconds since 1970."""
    name: str = ""
    clock: TimerClock = TimerClock.EVENT


Timers = tuple[Timer, ...]

ARROW = pa.list_(pa.struct([("at", pa.int64()), ("name", pa.string()), ("clock", pa.string())]))


def first_of(timers: Timers, clock: TimerClock) -> int | None:
    """When the first timer by a clock is due."""
    return next((timer.at for timer in timers if timer.clock == clock), None)


def in_order(timers: Timers, *, by_time: bool = False) -> Timers:
    """Timers that somebody else gave as they are kept; raises ValueError if they cannot be those of one key.

    ``by_time``: they are known by their times, as those of Spark's are, and not by their names.
    """
    if any(timer.at is None or timer.name is None for timer in timers):
        raise ValueError(f"a timer has no time, or null for a name: {timers}")
    if by_time:
        return tuple(sorted(set(timers)))
    if len({timer[1:] for timer in timers}) < len(timers):
        raise ValueError(f"two timers of a key have the same name and clock: {timers}")
    return tuple(sorted(timers))


def timers_column(values: Sequence[Timers]) -> pa.Array:
    """The timers of many keys as a column, without a call per key."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    found = list(chain.from_iterable(values))
    ats, names, clocks = zip(*found, strict=True) if found else ((), (), ())
    parts = [pa.array(ats, pa.int64()), _texts(names), _texts(clocks)]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(parts, fields=list(ARROW.value_type)))


def _texts(values: tuple[str, ...]) -> pa.Array:
    """Names or clocks, of which most operators have but one."""
    if values and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(str(values[0]), pa.string()), len(values))
    return pa.array(values, pa.string())


def first_in_column(column: pa.Array, clock: TimerClock) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """When the first timer by a clock is due, and of which row, for the rows that have one."""
    parents, timers = pc.list_parent_indices(column).to_numpy(), column.flatten()
    mine = pc.equal(timers.field("clock"), str(clock)).to_numpy(zero_copy_only=False).astype(np.bool_)
    rows, firsts = np.unique(parents[mine], return_index=True)
    return timers.field("at").to_numpy()[mine][firsts], rows


def timers_in_column(column: pa.Array) -> list[Timers]:
    """The timers of many keys from a column without nulls, without a dict for each."""
    found, ends = column.flatten(), column.offsets.to_numpy()
    clocks = map(_CLOCKS.__getitem__, found.field("clock").to_pylist())
    timers = list(map(Timer, found.field("at").to_numpy().tolist(), found.field("name").to_pylist(), clocks))
    return [tuple(timers[first:end]) for first, end in pairwise((ends - ends[0]).tolist())]


_CLOCKS = {str(clock): clock for clock in TimerClock}


def timers_of(value: Sequence[Any]) -> Timers:
    """The timers of a key from what Arrow gives."""
    return tuple(Timer(it["at"], it["name"], TimerClock(it["clock"])) for it in value)
