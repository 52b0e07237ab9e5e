"""Time to live, as users give it: how long something lives, by which clock, and what has it live on.

Invariants: a :class:`Ttl` is valid once it exists; the error says of what it was to be (``Trip.seen``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from bedload.core.durations import Duration, milliseconds
from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError
from bedload.state.timers import EXPIRIES, TimerClock

Clock: TypeAlias = Literal["processing", "event"]
Refresh: TypeAlias = Literal["write", "read"]

UNCOUNTED = 0
"""The expiry of what is not counted yet: it was there before the TTL, or before there was a watermark."""


def variable_of(name: str) -> str | None:
    """The variable whose expiries a hidden one has: "" stands for whole keys, None: they are of none."""
    for own in EXPIRIES.values():
        if name == own or name.startswith(f"{own}_"):
            return name[len(own) + 1 :]
    return None


def is_expiry(name: str) -> bool:
    """Whether a variable is one of expiries."""
    return variable_of(name) is not None


def reached(clock: TimerClock, time: EpochTime) -> int | None:
    """What a clock says at a time; None: nothing yet."""
    now = clock.now(time)
    return now if clock is TimerClock.PROCESSING or now > 0 else None


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long something lives, by which clock, and what has it live on."""

    milliseconds: int
    clock: TimerClock = TimerClock.PROCESSING
    refresh: Refresh = "write"

    @classmethod
    def of(cls, ttl: Duration | None, clock: Any = None, refresh: Any = None, where: str = "") -> Ttl | None:
        """As users give it, or None; raises for what is none. ``where``: what is to have it, as the errors say it."""
        where = f"{where}: " if where else ""
        if ttl is None:
            for name, given in (("clock", clock), ("refresh", refresh)):
                if given is not None:
                    raise DefinitionError(f"{where}{name} without a ttl; say how long it lives: ttl='1 hour'")
            return None
        if clock not in (None, "processing", "event"):
            raise DefinitionError(
                f"{where}clock={clock!r:.100}: use 'processing', the time of the epochs, or 'event', the watermark"
            )
        if refresh not in (None, "write", "read"):
            raise DefinitionError(
                f"{where}refresh={refresh!r:.100}: use 'write', or 'read', with which reading counts, too"
            )
        length = milliseconds(ttl, f"{where}ttl")
        return cls(length, TimerClock(clock or "processing"), "read" if refresh == "read" else "write")

    def begun(self, time: EpochTime) -> bool:
        """Whether its clock says anything yet."""
        return reached(self.clock, time) is not None

    def expiry(self, time: EpochTime) -> int:
        """When what is written in this epoch expires."""
        return self.clock.now(time) + self.milliseconds if self.begun(time) else UNCOUNTED


class _Code:
    """Whether operator code runs. What it reads and assigns counts; what is done around it does not."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs = False


CODE: Final = _Code()
"""SUBTLE: one for the process, as operator code runs on one thread. It is set for operators that need it alone."""
