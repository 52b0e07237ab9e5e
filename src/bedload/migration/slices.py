"""How long the steps of a move took a worker: rows of other keys wait for a step, and for no longer.

By the time of a processor: on a machine with more to do than it has cores, any step may wait for one of them, whatever
it does.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from bedload.core.clock import Clock

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Step(enum.StrEnum):
    """What a worker does for a move at a time."""

    BEGIN = "begin"
    LIST = "list"
    COLLECT = "collect"
    NOTE = "note"
    """What a sealed epoch touched."""
    SEAL = "seal"
    """To remember what that is."""
    FLIP = "flip"
    WANT = "want"
    """What somebody waits for, and what of it goes once more."""
    SEND = "send"
    """To find out what goes next and to pack it: with what is listed, noted or collected on the way."""
    TAKE_IN = "take in"
    COUNT = "count"
    """What has arrived."""
    RELEASE = "release"
    DROP = "drop"


class Slices:
    """The longest step of each kind, in seconds."""

    def __init__(self, clock: Clock) -> None:
        self.longest: dict[str, float] = {}
        self.last = 0.0
        """The last one, of any kind."""
        self._clock = clock

    @contextmanager
    def timing(self, step: Step) -> Iterator[None]:
        """Around a step."""
        started = self._clock.processor()
        try:
            yield
        finally:
            self.last = self._clock.processor() - started
            self.longest[step] = max(self.longest.get(step, 0.0), self.last)

    def taken(self) -> dict[str, float]:
        """What there was so far; the next move begins anew."""
        longest, self.longest = self.longest, {}
        return longest


class _Timed(Protocol):
    """Whoever has steps."""

    slices: Slices


_Self = TypeVar("_Self", bound=_Timed)


def timed(step: Step) -> Callable[[Callable[Concatenate[_Self, _P], _T]], Callable[Concatenate[_Self, _P], _T]]:
    """For a method that is a step."""

    def decorate(method: Callable[Concatenate[_Self, _P], _T]) -> Callable[Concatenate[_Self, _P], _T]:
        @functools.wraps(method)
        def run(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
            with self.slices.timing(step):
                return method(self, *args, **kwargs)

        return run

    return decorate
