"""Timers as state: what a key has been set, as an immutable value of one hidden variable of an operator on rows.

A timer is known by its name and its clock, so that to set it again moves it. All timers of a key are one tuple of
:class:`Timer`, in the order in which they fire. It is replaced whenever one of them is set, deleted or fires: so the
before-image of a key holds its timers, and they are rolled back, backed up, moved and restored like any other value.

On the object of a key they are in *short form*: where a key has one timer, and that has no name, as most have, a number
in place of the tuple. An operator on rows pays for each object that hangs on a key with every epoch that touches it,
whatever it does with its timers. Of the same timers there is one short form, so that it can be compared.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeAlias

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
ShortTimers: TypeAlias = "int | Timers"
"""Timers as they are on an object: :func:`short` of them. Nobody but this module knows what a number means."""

_CODES = {TimerClock.EVENT: 1, TimerClock.PROCESSING: 2}
_BY_CODE = {code: clock for clock, code in _CODES.items()}
_BITS, _CODE = 2, 3
"""A number is the time, and below it two bits for the clock, which are never zero: so neither is a number."""
_WIDEST = 1 << 60
"""Times beyond that would not be numbers of 64 bits."""

ARROW = pa.list_(pa.struct([("at", pa.int64()), ("name", pa.string()), ("clock", pa.string())]))


def short(timers: Timers) -> ShortTimers:
    """The short form of timers."""
    if len(timers) == 1:
        ((at, name, clock),) = timers
        if not name and -_WIDEST < at < _WIDEST:
            return at << _BITS | _CODES[clock]
    return timers


def in_full(timers: ShortTimers) -> Timers:
    """Timers from their short form."""
    return (Timer(timers >> _BITS, "", _BY_CODE[timers & _CODE]),) if isinstance(timers, int) else timers


def timers_on(item: Any) -> Timers:
    """The timers of the key that an object is of."""
    return in_full(getattr(item, VARIABLE))


def put_timers(item: Any, timers: Timers) -> None:
    """Give the key that an object is of these timers."""
    setattr(item, VARIABLE, short(timers))


def set_alone(item: Any, at: int, clock: TimerClock) -> bool | None:
    """Set the timer without a name of a key that has no other; whether it is earlier than before. None: it has."""
    number, before = at << _BITS | _CODES[clock], getattr(item, VARIABLE)
    if before and (type(before) is not int or (before ^ number) & _CODE):
        return None
    setattr(item, VARIABLE, number)
    return not before or number < before


def first_due(item: Any, watermark: int, processing: int) -> Timer | None:
    """Of the timers of a key those that are due come first: the first of them."""
    timers = getattr(item, VARIABLE)
    if type(timers) is int:
        at, clock = timers >> _BITS, _BY_CODE[timers & _CODE]
        return Timer(at, "", clock) if at <= (watermark if clock is TimerClock.EVENT else processing) else None
    for timer in timers:
        if timer.at <= (watermark if timer.clock is TimerClock.EVENT else processing):
            found: Timer = timer
            return found
    return None


def take_out(item: Any, timer: Timer) -> None:
    """Take out a timer that the key has."""
    timers = timers_on(item)
    place = timers.index(timer)
    put_timers(item, timers[:place] + timers[place + 1 :])


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


def timers_column(values: Sequence[ShortTimers]) -> pa.Array:
    """The timers of many keys as a column, without a call per key."""
    if set(map(type, values)) == {int}:
        return _numbers_column(np.fromiter(values, np.int64, len(values)))
    full = list(map(in_full, values))
    offsets = np.zeros(len(full) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, full), np.int32, len(full)), out=offsets[1:])
    found = list(chain.from_iterable(full))
    ats, names, clocks = zip(*found, strict=True) if found else ((), (), ())
    return _lists(offsets, pa.array(ats, pa.int64()), _texts(names), _texts(clocks))


def _numbers_column(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """The same where all are numbers."""
    codes, count = numbers & _CODE, len(numbers)
    if (codes == codes[0]).all():
        clocks = pa.repeat(pa.scalar(str(_BY_CODE[int(codes[0])]), pa.string()), count)
    else:
        names = pa.array([str(_BY_CODE.get(code, "")) for code in range(_CODE + 1)], pa.string())
        clocks = names.take(pa.array(codes))
    unnamed = pa.repeat(pa.scalar("", pa.string()), count)
    return _lists(np.arange(count + 1, dtype=np.int32), pa.array(numbers >> _BITS), unnamed, clocks)


def _lists(offsets: npt.NDArray[np.int32], *parts: pa.Array) -> pa.Array:
    found = pa.StructArray.from_arrays(parts, fields=list(ARROW.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), found)


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
