"""The simulated operator on arrays with timers: it does what the one on rows does (:mod:`.workload_timed`).

Beside that it has two variables that expire. What a call returns, or gets, lives on for all keys of the call, and which
keys come together is chance. So rows always write the one, and timers the other.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from bedload import state as bl
from bedload.core.epoch import EpochTime
from bedload.core.ids import OperatorName
from bedload.state.timers import TimerClock
from bedload.store.due import NEVER
from bedload.worker.batch_context import BatchContext
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.vector import VectorLogic, VectorOperator
from bedload.worker.vector_batch import VectorBatch
from bedload.worker.vector_timers import BatchTimer
from tests.simulator.workload import KEY_GROUPS, OUTPUT, Poison, Row, SimulatedFailure, check_time
from tests.simulator.workload_small import shift_of
from tests.simulator.workload_timed import AGAIN, FORGET_AT, TimedState, mixed, named

_NAMES = tuple("0123")


class _Arrays(VectorOperator):
    poison: ClassVar[Poison] = Poison()
    timers = (*_NAMES, *(name + AGAIN for name in _NAMES))
    processing_timers = _NAMES

    count: int = bl.value(0)
    digest: int = bl.value(0)
    places: int = bl.value(0)
    fires: int = bl.value(0)
    fired: int = bl.value(0)
    lately: int = bl.value(0, ttl="1500 milliseconds")
    """Rows, each of which has it live on."""
    alarms: int = bl.value(0, ttl="2500 milliseconds", clock="event", refresh="read")
    """Timers that fired. It lives on with rows, too."""

    def setup(self, ctx: BatchContext) -> None:
        self.poison.setup()

    def close(self) -> None:
        self.poison.close()

    def process(self, batch: VectorBatch, state: Any, ctx: BatchContext) -> Any:
        check_time(ctx)
        new = {name: values.copy() for name, values in state.items() if name != "alarms"}
        rows = zip(batch.index.tolist(), batch.numpy("source").tolist(), batch.numpy("seq").tolist(), strict=True)
        for key, source, seq in rows:
            place = new["places"][key] >> shift_of(source) & 31
            new["places"][key] += 1 << shift_of(source)
            new["digest"][key] += (place + 1) * (source * 1000 + seq)
            new["count"][key] += 1
            new["lately"][key] += 1
            if "touched" in new:
                new["touched"][key] += 1
            if seq % 5 == 4:
                ctx.timers.delete(named(source), [key])
            else:
                ctx.timers.set(ctx.watermark + 1000 * (seq % 4), named(source), [key])
            if seq % 3 == 0:
                ctx.timers.processing.set(ctx.now + 700 * (seq % 5), named(source), [key])
            if self.poison.touch(source, seq) is not None:
                ctx.forget()
                raise SimulatedFailure("nothing else is wrong with arrays")
        return new

    def on_timer(self, keys: Any, timer: BatchTimer, state: Any, ctx: BatchContext) -> Any:
        check_time(ctx)
        assert (timer.at <= timer.clock.now(EpochTime(ctx.watermark, ctx.now))).all(), f"{timer} is early"
        order = list(zip(timer.at.tolist(), keys.to_pylist(), strict=True))
        assert order == sorted(order), f"{timer} of {keys} is out of order"
        fires, fired = state["fires"] + 1, mixed(state["fired"], timer.at, timer.name, timer.clock)
        if timer.clock is TimerClock.EVENT:
            if not timer.name.endswith(AGAIN):
                ctx.timers.set(timer.at, timer.name + AGAIN)  # it is due
            else:
                ctx.timers.set(timer.at + 1500, timer.name[:-1], fires % 4 != 0)
        ctx.forget(fires >= FORGET_AT)
        names = np.full(len(keys), len(timer.name))
        new = {"fires": fires, "fired": fired, "alarms": state["alarms"] + 1}
        return new, {"key": keys, "source": names, "seq": timer.at, "count": fires}


def arrays_deployment(poison: Poison, name: OperatorName, *, changed: bool) -> ColumnDeployment:
    """An operator of a simulation; ``changed``: with a variable more."""
    more = {"__annotations__": {"touched": int}, "touched": bl.value(0)} if changed else {}
    members: dict[str, Any] = {"poison": poison, **more}
    operator = types.new_class("_Arrays", (_Arrays,), exec_body=lambda body: body.update(members))
    assert issubclass(operator, VectorOperator)
    return ColumnDeployment(name, VectorLogic(operator, OUTPUT), (0,), (pa.string(),), KEY_GROUPS)


def timers_in(state: dict[str, Any]) -> dict[tuple[str, TimerClock], int]:
    """The timers of a key, as the model has them."""
    found = {}
    for variable, at in state.items():
        if variable.startswith("bedload_timer_") and at is not None:
            clock, name = variable.removeprefix("bedload_timer_").split("_", 1)
            assert at != NEVER
            found[name, TimerClock(clock)] = at
    return found


@dataclass
class ArrayState(TimedState):
    """What a key's state must be, with the variables that expire."""

    lately: int = 0
    lately_until: int | None = 0
    """0: not counted yet; None: there is nothing to expire."""
    alarms: int = 0
    alarms_until: int | None = 0

    def copy(self) -> ArrayState:
        """Another one that is equal."""
        return replace(self, seen={source: list(seqs) for source, seqs in self.seen.items()}, timers=dict(self.timers))

    def take(self, row: Row, time: EpochTime) -> None:
        """A row of the key."""
        self._expire(time)
        super().take(row, time)
        self.lately, self.lately_until = self.lately + 1, time.processing + 1500
        self._read(time)

    def end(self, key: str, time: EpochTime) -> tuple[list[tuple[str, int, int, int]], bool]:
        """The epoch ends."""
        self._expire(time)
        if self.alarms_until == 0:
            self._read(time)
        outputs, forgotten = super().end(key, time)
        if outputs:
            self.alarms, self.alarms_until = self.alarms + len(outputs), _alarms_until(time)
        return outputs, forgotten

    def ends(self) -> Iterator[tuple[TimerClock, int]]:
        """When something of it is due, by which clock; 0: that is not counted."""
        yield from super().ends()
        yield TimerClock.PROCESSING, self.lately_until or 0
        yield TimerClock.EVENT, self.alarms_until or 0

    def misfit(self, actual: dict[str, Any]) -> str | None:
        """What is wrong with an actual state, if anything is."""
        found = [actual[name] for name in ("lately", "bedload_ttl_lately", "alarms", "bedload_event_ttl_alarms")]
        wanted = [self.lately, self.lately_until, self.alarms, self.alarms_until]
        return super().misfit(actual) if found == wanted else f"what expires is {found}, not {wanted}"

    def _expire(self, time: EpochTime) -> None:
        if self.lately_until and self.lately_until <= time.processing:
            self.lately, self.lately_until = 0, None
        if self.alarms_until and self.alarms_until <= time.watermark:
            self.alarms, self.alarms_until = 0, None

    def _read(self, time: EpochTime) -> None:
        if self.alarms_until is not None:
            self.alarms_until = _alarms_until(time)


def _alarms_until(time: EpochTime) -> int:
    return time.watermark + 2500 if time.watermark else 0
