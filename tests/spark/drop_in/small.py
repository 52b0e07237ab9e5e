"""Behaviours of the handle, many in one query: each has keys and state variables of its own.

A case is a function that is called for each key and batch with its state variables, and yields whatever it saw. What it
yields is compared as text, so that a tuple is no ``Row`` and ``1`` no ``1.0``. An exception is what it saw, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.spark.drop_in.engines import PANDAS, START, STEP, Program

NONE, PROCESSING, EVENT = "None", "ProcessingTime", "EventTime"
SCHEMA = "case string, k string, v long, ts timestamp"
OUTPUT = "case string, k string, text string"


@dataclass(frozen=True)
class Declared:
    """A state variable: the method of the handle, and its arguments without the name."""

    method: str
    arguments: tuple[Any, ...]


def value(schema: Any, ttl: int | None = None) -> Declared:
    return Declared("getValueState", (schema, ttl))


def items(schema: Any, ttl: int | None = None) -> Declared:
    return Declared("getListState", (schema, ttl))


def pairs(keys: Any, values: Any, ttl: int | None = None) -> Declared:
    return Declared("getMapState", (keys, values, ttl))


class Text(str):
    """Stands for itself in what is expected, where a value has no repr that could be written."""

    __slots__ = ()


def raises(name: str) -> Text:
    """What is seen of an exception of this class, whatever its message."""
    return Text(f"raises {name}")


@dataclass(frozen=True)
class Now:
    """What a call has beside its state variables."""

    handle: Any
    batch: int
    key: str
    rows: list[Any]
    times: Any
    """Spark's ``TimerValues``."""
    fired: int | None = None
    """The time of the timer that fires, by the clock below."""
    mode: str = NONE

    @property
    def now(self) -> int:
        return int(self.times.getCurrentProcessingTimeInMs())

    @property
    def clock(self) -> int:
        """The clock of the time mode, from where it is in batch 1; in batch 0 there is no watermark yet."""
        if self.mode == EVENT:
            return int(self.times.getCurrentWatermarkInMs()) - START
        return self.now - START - STEP

    @property
    def base(self) -> int:
        """Where the clock is 0."""
        return START if self.mode == EVENT else START + STEP

    def timers(self) -> list[int]:
        """The key's timers by their time on the clock."""
        return sorted(at - self.base for at in self.handle.listTimers())

    def register(self, at: int) -> None:
        self.handle.registerTimer(self.base + at)

    def delete(self, at: int) -> None:
        self.handle.deleteTimer(self.base + at)


def attempt(code: Callable[[], Any]) -> Any:
    """What a call gives, or the class of what it raises."""
    try:
        return code()
    except Exception as error:
        return Text(f"raises {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Small:
    """One behaviour."""

    section: str
    what: str
    mode: str
    declared: tuple[Declared, ...]
    code: Callable[..., Any]
    expected: dict[str, list[list[str]]]
    """By key and batch, what it sees on Spark."""
    bedload: dict[str, list[list[str]]]
    """The same on Bedload."""
    why: str
    """Why these differ."""
    silent: frozenset[int]
    """Batches without rows of it."""

    @property
    def name(self) -> str:
        return self.code.__name__

    @property
    def id(self) -> str:
        return f"{self.name}-{self.mode}"

    @property
    def batches(self) -> int:
        return max(map(len, (*self.expected.values(), *self.bedload.values())))


SMALL: list[Small] = []


def small(
    section: str,
    what: str,
    *declared: Declared,
    sees: Any,
    mode: str = NONE,
    bedload: Any = None,
    why: str = "",
    silent: Sequence[int] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a behaviour; ``sees`` has a list for each batch, of key ``a`` unless it is a dict of keys."""
    assert (bedload is None) == (not why), "what differs has a reason"

    def register(code: Callable[..., Any]) -> Callable[..., Any]:
        spark = _texts(sees)
        assert (code.__name__, mode) not in {(it.name, it.mode) for it in SMALL}, code.__name__
        here = spark if bedload is None else _texts(bedload)
        SMALL.append(Small(section, what, mode, declared, code, spark, here, why, frozenset(silent)))
        return code

    return register


def _texts(sees: Any) -> dict[str, list[list[str]]]:
    by_key = sees if isinstance(sees, dict) else {"a": sees}
    return {
        key: [[str(it) if isinstance(it, Text) else repr(it) for it in batch] for batch in batches]
        for key, batches in by_key.items()
    }


class Many(StatefulProcessor):
    """Runs all cases of one time mode."""

    def __init__(self, cases: Sequence[Small], form: str) -> None:
        self._cases = {case.name: case for case in cases}
        self._form = form

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._states = {
            name: [getattr(handle, it.method)(f"{name}_{at}", *it.arguments) for at, it in enumerate(case.declared)]
            for name, case in self._cases.items()
        }

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if self._form == PANDAS:
            rows = [row for frame in rows for row in frame.itertuples(index=False)]
        rows = list(rows)
        yield from self._call(key, rows[0].v, rows, timerValues, None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield from self._call(key, -1, [], timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def _call(self, key: Any, batch: int, rows: list[Any], times: Any, fired: int | None) -> Iterator[Any]:
        case = self._cases[key[0]]
        now = Now(self._handle, int(batch), key[1], rows, times, fired, case.mode)
        if fired is not None:
            now = replace(now, fired=fired - now.base)
        seen: list[str] = []
        try:
            found = case.code(*self._states[case.name], now) or ()
            seen.extend(it if isinstance(it, Text) else repr(it) for it in found)
        except Exception as error:
            seen.append(f"raises {type(error).__name__}: {error}"[:300])
        if self._form == PANDAS:
            import pandas as pd  # type: ignore[import-untyped]

            yield pd.DataFrame({"case": key[0], "k": key[1], "text": seen}, dtype=object)
        else:
            for text in seen:
                yield Row(case=key[0], k=key[1], text=str(text))


def program(cases: Sequence[Small], mode: str, form: str) -> Program:
    """One query for all cases of a time mode."""
    wanted = [case for case in cases if case.mode == mode]
    length = max(case.batches for case in wanted)
    batches = [
        [
            (case.name, key, batch, datetime.fromtimestamp(START / 1000, UTC) + timedelta(milliseconds=batch * STEP))
            for case in wanted
            for key, seen in case.expected.items()
            if batch < len(seen) and batch not in case.silent
        ]
        for batch in range(length)
    ]
    return Program(
        Many(wanted, form),
        batches,
        schema=SCHEMA,
        by=("case", "k"),
        output=OUTPUT,
        form=form,
        time_mode=mode,
        watermark=("ts", "0 seconds"),
    )
