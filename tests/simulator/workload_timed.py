"""The simulated operator with timers, and what its state and outputs must be.

Timers are named by the source whose rows set them: so what a key has been set at the end of an epoch does not depend on
the order in which rows of different sources came. The model beside it does the same with a dict.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from bedload import state as bl
from bedload.core.epoch import EpochTime
from bedload.core.ids import OperatorName
from bedload.state.timers import Timer, TimerClock
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows
from tests.simulator.workload import INPUT, OUTPUT, Poison, Row, check_time
from tests.simulator.workload_small import _AS_IT_WAS, _CHANGED, _Small, digest_of

FORGET_AT = 9
"""A key of which so many timers have fired is forgotten."""
AGAIN = "_"
"""At the end of the name of a timer that was set as another one fired."""
_MOD = 1_000_003


def named(source: int) -> str:
    """The timer that rows of a source set. Sources that feed one operator at a time have different ones."""
    return str(source % 10 % 5)


def mixed(before: Any, at: Any, name: str, clock: TimerClock) -> Any:
    """A number for the timers that fired, which depends on their order."""
    return (before * 31 + at + len(name) * 7 + (clock is TimerClock.EVENT)) % _MOD


class _Timed(_Small):
    fires: int = bl.value(0)
    """Timers that fired."""
    fired: int = bl.value(0)
    """Which, and in which order."""

    result = Operator.result

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        super().process(key, rows, ctx)
        for row in rows:
            name = named(row.source)
            if row.seq % 5 == 4:
                ctx.timers.delete(name)
            else:
                ctx.timers.set(ctx.watermark + 1000 * (row.seq % 4), name)
            if row.seq % 3 == 0:
                ctx.timers.processing.set(ctx.now + 700 * (row.seq % 5), name)

    def on_timer(self, key: Any, timer: Timer, ctx: Context) -> Iterable[Any]:
        check_time(ctx)
        assert timer.at <= timer.clock.now(EpochTime(ctx.watermark, ctx.now)), f"{timer} is early at {ctx.watermark}"
        self.fires += 1
        self.fired = mixed(self.fired, *timer)
        if timer.clock is TimerClock.EVENT:
            if not timer.name.endswith(AGAIN):
                ctx.timers.set(timer.at, timer.name + AGAIN)  # it is due
            elif self.fires % 4:
                ctx.timers.set(timer.at + 1500, timer.name[:-1])
        yield key, len(timer.name), timer.at, self.fires
        if self.fires >= FORGET_AT:
            ctx.forget()


def timed_deployment(poison: Poison, name: OperatorName, *, changed: bool) -> Deployment:
    """An operator of a simulation; ``changed``: with a variable more, and another name for one."""
    members: dict[str, Any] = {"poison": poison, **(_CHANGED if changed else _AS_IT_WAS)}
    operator = types.new_class("_Timed", (_Timed,), exec_body=lambda body: body.update(members))
    assert issubclass(operator, Operator)
    return Deployment(name, operator, (0,), tuple(INPUT.names), OUTPUT, (pa.string(),))


def timers_of(state: dict[str, Any]) -> dict[tuple[str, TimerClock], int]:
    """The timers in the state of a key, on rows or on arrays."""
    if "bedload_timers" in state:
        return {(it.name, it.clock): it.at for it in state["bedload_timers"]}
    from tests.simulator.workload_arrays import timers_in  # compiled code: only who needs it waits

    return timers_in(state)


@dataclass
class TimedState:
    """What a key's state must be."""

    seen: dict[int, list[int]] = field(default_factory=dict)
    timers: dict[tuple[str, TimerClock], int] = field(default_factory=dict)
    fires: int = 0
    fired: int = 0

    @property
    def count(self) -> int:
        """Its rows."""
        return sum(map(len, self.seen.values()))

    def copy(self) -> TimedState:
        """Another one that is equal."""
        seen = {source: list(seqs) for source, seqs in self.seen.items()}
        return TimedState(seen, dict(self.timers), self.fires, self.fired)

    def take(self, row: Row, time: EpochTime) -> None:
        """A row of the key."""
        self.seen.setdefault(row.source, []).append(row.seq)
        name = named(row.source)
        if row.seq % 5 == 4:
            self.timers.pop((name, TimerClock.EVENT), None)
        else:
            self.timers[name, TimerClock.EVENT] = time.watermark + 1000 * (row.seq % 4)
        if row.seq % 3 == 0:
            self.timers[name, TimerClock.PROCESSING] = time.processing + 700 * (row.seq % 5)

    def end(self, key: str, time: EpochTime) -> tuple[list[tuple[str, int, int, int]], bool]:
        """The epoch ends: what comes out, and whether the key is forgotten."""
        outputs = []
        now = {TimerClock.EVENT: time.watermark, TimerClock.PROCESSING: time.processing}
        while due := sorted((at, *which) for which, at in self.timers.items() if at <= now[which[1]]):
            at, name, clock = due[0]
            del self.timers[name, clock]
            self.fires += 1
            self.fired = mixed(self.fired, at, name, clock)
            if clock is TimerClock.EVENT:
                if not name.endswith(AGAIN):
                    self.timers[name + AGAIN, clock] = at
                elif self.fires % 4:
                    self.timers[name[:-1], clock] = at + 1500
            outputs.append((key, len(name), at, self.fires))
            if self.fires >= FORGET_AT:
                return outputs, True
        return outputs, False

    def ends(self) -> Iterator[tuple[TimerClock, int]]:
        """When something of it is due, by which clock; 0: that is not counted."""
        return ((clock, at) for (_, clock), at in self.timers.items())

    def misfit(self, actual: dict[str, Any]) -> str | None:
        """What is wrong with an actual state, if anything is."""
        timers = timers_of(actual)
        found = actual["count"], actual["digest"], actual["fires"], actual["fired"], timers
        wanted = self.count, digest_of(self.seen), self.fires, self.fired, self.timers
        if found != wanted:
            return f"{found}, not {wanted}"
        if not 0 <= actual.get("touched", 0) <= self.count:
            return f"touched {actual['touched']} times, with {self.count} rows"
        return None
