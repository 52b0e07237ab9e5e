"""The timers of the key that operator code runs for: ``ctx.timers``.

What is set goes straight into the key's state (:mod:`bedload.state.timers`). The store has to hear of it only where a
key may have something due earlier than before (:attr:`Armed`): when an entry comes up, the state is asked what is due.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bedload.core.epoch import Due
from bedload.core.errors import DefinitionError
from bedload.state.timers import Timer, TimerClock, first_of, put_timers, set_alone, timers_on
from bedload.store.due import NEVER

LATEST = 253_402_300_800_000
"""The year 10000: what is later is a mistake, of microseconds say, and would never fire."""


class Armed(NamedTuple):
    """A key may have something due at a time."""

    key: Any
    clock: TimerClock
    at: int


class TimersOfClock:
    """The timers of the current key by one clock."""

    __slots__ = ("_clock", "_key")

    def __init__(self, key: CurrentKey, clock: TimerClock) -> None:
        self._key = key
        self._clock = clock

    def set(self, at: int, name: str = "") -> None:
        """Call ``on_timer`` when the clock has reached ``at``, in milliseconds since 1970.

        A timer is known by its name: to set it again moves it. One in the past fires at the end of this epoch.
        """
        item = self._key.of("set")
        if type(at) is not int:
            at = self._milliseconds(at)
        if not -LATEST < at < LATEST:
            raise DefinitionError(
                f"ctx.timers.set({at}): that is no time in milliseconds since 1970, but beyond the year 9999; of "
                f"microseconds: at // 1000"
            )
        if not _is_text(name):
            raise _no_name(f"set({at}, {name!r:.100})")
        earlier = None if name else set_alone(item, at, self._clock)
        if earlier is None:
            current, timer = timers_on(item), Timer(at, name, self._clock)
            if timer in current:
                return
            first = first_of(current, self._clock)
            kept = (it for it in current if it.name != name or it.clock != self._clock)
            put_timers(item, tuple(sorted((*kept, timer))))
            earlier = first is None or at < first
        if earlier:
            self._key.armed.append(Armed(item._bedload_key, self._clock, at))

    def delete(self, name: str = "") -> None:
        """Forget the timer of this name; if there is none, nothing happens."""
        item = self._key.of("delete")
        if not _is_text(name):
            raise _no_name(f"delete({name!r:.100})")
        current = timers_on(item)
        kept = tuple(it for it in current if it.name != name or it.clock != self._clock)
        if len(kept) < len(current):
            put_timers(item, kept)

    def list(self) -> list[Timer]:
        """The timers of the key by this clock, the one that fires next first."""
        return [timer for timer in timers_on(self._key.of("list")) if timer.clock == self._clock]

    def _milliseconds(self, at: Any) -> int:
        try:
            if isinstance(at, bool):
                raise TypeError
            return operator.index(at)
        except TypeError:
            raise DefinitionError(
                f"ctx.timers.set({at!r}): give milliseconds since 1970 as an int, as in ctx.watermark + 60_000 "
                f"(a datetime: int(moment.timestamp() * 1000))"
            ) from None


class OperatorTimers(TimersOfClock):
    """``ctx.timers``: by event time, the watermark; and ``ctx.timers.processing``, by the time of the epoch."""

    __slots__ = ("processing",)

    def __init__(self, key: CurrentKey) -> None:
        super().__init__(key, TimerClock.EVENT)
        self.processing = TimersOfClock(key, TimerClock.PROCESSING)


class CurrentKey:
    """The key that operator code runs for, as its timers see it."""

    __slots__ = ("armed", "item", "operator")

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.item: Any = None
        """The object of the key; None: there is no current one."""
        self.armed: list[Armed] = []

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """The same objects: while one is worked on, it is the current one. Whoever asks ends that (:attr:`item`).

        SUBTLE: nothing is done at the end here. An error keeps a generator that it left alive, and when that comes to
        its end, another call may be under way.
        """
        for self.item in items:
            yield self.item

    def of(self, what: str) -> Any:
        """The object of the key, for a call that works on its timers."""
        if self.item is None:
            raise DefinitionError(
                f"operator {self.operator}: ctx.timers.{what}() is for process and on_timer: timers are of the key "
                f"that the call is about"
            )
        return self.item


def _is_text(name: Any) -> bool:
    """Whether it can be stored as the name of a timer."""
    try:
        return isinstance(name, str) and (name.isascii() or bool(name.encode()))
    except UnicodeEncodeError:
        return False


def _no_name(call: str) -> DefinitionError:
    return DefinitionError(f"ctx.timers.{call}: the name of a timer is a str, without surrogates")


def due_at(times: Mapping[TimerClock, int]) -> Due:
    """When something may be due next, by each clock."""
    event, processing = (times.get(clock, NEVER) for clock in (TimerClock.EVENT, TimerClock.PROCESSING))
    return Due(None if event == NEVER else event, None if processing == NEVER else processing)
