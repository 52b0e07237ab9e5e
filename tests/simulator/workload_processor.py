"""The simulated processor of Spark's, and what its state and outputs must be.

Rows of different sources come in any order, those of one in theirs. So the processor looks at them source by source,
and all that it does can be said beforehand. The model beside it does the same with a few plain values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import cloudpickle
import pyarrow as pa
from pyspark.sql import Row as SparkRow
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructType

from bedload.core.epoch import EpochTime
from bedload.core.ids import OperatorName
from bedload.spark.drop_in.declaring import declared_by
from bedload.spark.drop_in.runtime import ProcessorDeployment, TimeMode
from bedload.state.timers import TimerClock
from tests.simulator.workload import INPUT, OUTPUT, Harm, Poison, Row, SimulatedFailure

FORGET_AT = 7
"""A key of which so many timers have fired has nothing any more."""
RECENT = 4
_MOD = 1_000_003
_poisons: WeakValueDictionary[int, Poison] = WeakValueDictionary()
_numbers = itertools.count()


def _longs(*names: str) -> StructType:
    made = StructType()
    for name in names:
        made = made.add(name, LongType())
    return made


def _set_at(row: Any, watermark: int) -> int:
    return int(watermark + 1000 * (row.seq % 4))


class _Processor(StatefulProcessor):
    """A value, a list, a map and event-time timers."""

    def __init__(self, poison: int, changed: bool) -> None:
        self._poison = poison
        self._changed = changed

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", _longs("count", "digest"))
        self.fired = handle.getValueState("fired", _longs("fires", "digest"))
        self.seen = handle.getMapState("seen", _longs("source"), _longs("rows", "last"))
        self.recent = handle.getListState("recent", _longs("source", "seq"))
        self.touched = handle.getValueState("touched", _longs("times")) if self._changed else None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[SparkRow]:
        poison, number = _poisons.get(self._poison), 0
        for row in sorted(rows, key=lambda it: it.source):
            number += 1
            count, digest = self.total.get() or (0, 0)
            found = self.seen.getValue((row.source,))
            place = found.rows if found else 0
            self.seen.updateValue((row.source,), (place + 1, row.seq))
            self.total.update((count + 1, digest + (place + 1) * (row.source * 1000 + row.seq)))
            self.recent.appendValue((row.source, row.seq))
            self.handle.registerTimer(_set_at(row, timerValues.getCurrentWatermarkInMs()))
            if row.seq % 5 == 4:
                self.handle.deleteTimer(timerValues.getCurrentWatermarkInMs() + 1000)
            if self.touched is not None:
                self.touched.update(((self.touched.get() or (0,))[0] + 1,))
            match poison.touch(row.source, row.seq) if poison is not None else None:
                case Harm.FORGET:
                    self._forget()
                    raise SimulatedFailure("the key is forgotten, and then this")
                case Harm.MISFIT:
                    self.total.update(("not a number", 0))
                case _:
                    pass
        kept = list(self.recent.get())
        if len(kept) > RECENT:
            self.recent.put(kept[-RECENT:])
        yield SparkRow(count=self.total.get()[0], key=key[0], source=0, seq=number)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[SparkRow]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        assert at <= timerValues.getCurrentWatermarkInMs(), f"{at} is early"
        fires, digest = self.fired.get() or (0, 0)
        fires += 1
        self.fired.update((fires, (digest * 31 + at) % _MOD))
        if fires % 3 == 0:
            self.handle.registerTimer(at + 1500)
        elif fires % 3 == 1:
            self.handle.registerTimer(at)  # the one that fires is deleted after this
            self.handle.registerTimer(at - 1)  # has passed: the next epoch
        yield SparkRow(key=key.key, source=1, seq=at, count=fires)
        if fires >= FORGET_AT:
            self._forget()

    def _forget(self) -> None:
        for state in (self.total, self.fired, self.seen, self.recent, *([self.touched] if self.touched else [])):
            state.clear()
        for at in list(self.handle.listTimers()):
            self.handle.deleteTimer(at)


def processor_deployment(poison: Poison, name: OperatorName, *, changed: bool) -> ProcessorDeployment:
    """A processor of a simulation; ``changed``: with a variable more. Its poison is not copied with it."""
    number = next((it for it, known in _poisons.items() if known is poison), None)
    if number is None:
        number = next(_numbers)
        _poisons[number] = poison
    processor = _Processor(number, changed)
    return ProcessorDeployment(
        name,
        cloudpickle.dumps(processor),
        declared_by(_Processor(number, changed), "EventTime", lambda text: StructType()),
        TimeMode.EVENT,
        (0,),
        ("key",),
        tuple(INPUT.names),
        OUTPUT,
        from_arrow_schema(OUTPUT),
        (pa.string(),),
    )


@dataclass
class ProcessorState:
    """What a key's state must be."""

    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    recent: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    digest: int = 0
    fires: int = 0
    fired: int = 0
    timers: set[int] = field(default_factory=set)
    rows: list[Row] = field(default_factory=list)
    """Of the epoch."""

    def copy(self) -> ProcessorState:
        """Another one that is equal."""
        return ProcessorState(
            dict(self.seen), list(self.recent), self.count, self.digest, self.fires, self.fired, set(self.timers)
        )

    def take(self, row: Row, time: EpochTime) -> None:
        """A row of the key."""
        self.rows.append(row)

    def end(self, key: str, time: EpochTime) -> tuple[list[tuple[str, int, int, int]], bool]:
        """The epoch ends: what comes out, and whether the key has nothing any more."""
        outputs = []
        for row in sorted(self.rows, key=lambda it: it.source):
            place, _ = self.seen.get(row.source, (0, 0))
            self.seen[row.source] = place + 1, row.seq
            self.count += 1
            self.digest += (place + 1) * (row.source * 1000 + row.seq)
            self.recent.append((row.source, row.seq))
            self.timers.add(_set_at(row, time.watermark))
            if row.seq % 5 == 4:
                self.timers.discard(time.watermark + 1000)
        if self.rows:
            del self.recent[:-RECENT]
            outputs.append((key, 0, len(self.rows), self.count))
        self.rows = []
        for at in sorted(at for at in self.timers if at <= time.watermark):
            outputs.append((key, 1, at, self._fire(at)))
            self.timers.discard(at)
        return outputs, not (self.count or self.fires or self.timers)

    def _fire(self, at: int) -> int:
        self.fires += 1
        fires = self.fires
        self.fired = (self.fired * 31 + at) % _MOD
        if fires % 3 == 0:
            self.timers.add(at + 1500)
        elif fires % 3 == 1:
            self.timers.add(at - 1)
        if fires >= FORGET_AT:
            self.seen, self.recent, self.timers = {}, [], set()
            self.count = self.digest = self.fires = self.fired = 0
        return fires

    def ends(self) -> Iterator[tuple[TimerClock, int]]:
        """When something of it is due, by which clock."""
        return ((TimerClock.EVENT, at) for at in self.timers)

    def misfit(self, actual: dict[str, Any]) -> str | None:
        """What is wrong with an actual state, if anything is."""
        found = (
            actual["total"] or (0, 0),
            actual["fired"] or (0, 0),
            {source: value for (source,), value in actual["seen"].items()},
            list(actual["recent"]),
            {timer.at for timer in actual["bedload_timers"]},
        )
        wanted = (self.count, self.digest), (self.fires, self.fired), self.seen, self.recent, self.timers
        if found != wanted:
            return f"{found}, not {wanted}"
        touched = (actual.get("touched") or (0,))[0]
        return None if 0 <= touched <= self.count else f"touched {touched} times, with {self.count} rows"
