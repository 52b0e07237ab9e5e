"""The simulated operator on rows of which entries and whole keys expire, and what its state and outputs must be.

Rows of different sources may reach a key in any order. So what they do to one another's entries is the same in any
order: within an epoch all that is written has one expiry. The model beside it holds each entry with its expiry.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from bedload import state as bl
from bedload.core.epoch import EpochTime
from bedload.core.ids import OperatorName
from bedload.state.timers import EXPIRIES, TimerClock
from bedload.state.ttl import Ttl
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows
from tests.simulator.workload import INPUT, OUTPUT, Harm, Poison, Row, SimulatedFailure, check_time

FORGET_AT = 9
"""A key with so many rows is forgotten."""
KEY = Ttl(2900)
TOTAL, SEEN, MARKS, TALLY, ITEMS, LOOKED = 900, 1800, 1500, 2500, 1700, 1600
"""How long entries live; an epoch takes a second of both clocks."""
SESSIONS = frozenset("bdfhjo")
"""Keys that write nothing but ``count``. So what of them is due first lives for long, and is put off by each epoch that
has rows of them: it comes up in one that has none, and is not due yet. Other keys have something due in each epoch.
"""
PROCESSING, EVENT = TimerClock.PROCESSING, TimerClock.EVENT


class _Lasting(Operator):
    poison: ClassVar[Poison] = Poison()
    changed: ClassVar[bool] = False

    count: int = bl.value(0)
    total: int = bl.value(0, ttl=f"{TOTAL} milliseconds")
    seen: dict[int, int] = bl.map(ttl=f"{SEEN} milliseconds")
    """The last row of each source."""
    marks: set[int] = bl.set(ttl=f"{MARKS} milliseconds", clock="event")
    items: bl.Heap[int] = bl.heap(ttl=f"{ITEMS} milliseconds")
    looked: dict[int, int] = bl.map(ttl=f"{LOOKED} milliseconds", refresh="read")
    """Of each source a row, which is put in, read and taken out in turn."""

    def tallied(self) -> Counter[int]:
        """The rows of each source. The state variable has one name or another."""
        raise NotImplementedError

    def setup(self, ctx: Context) -> None:
        self.poison.setup()

    def close(self) -> None:
        self.poison.close()

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        check_time(ctx)
        for row in rows:
            self.count += 1
            if key not in SESSIONS:
                self._write(row)
            if self.changed:
                self.touched += 1  # type: ignore[attr-defined]
            match self.poison.touch(row.source, row.seq):
                case Harm.FORGET:
                    ctx.forget()
                    raise SimulatedFailure("the key is forgotten, and then this")
                case Harm.MISFIT:
                    # Where no output shows it: a key that is forgotten then is not looked at.
                    kept: dict[int, Any] = self.looked if key in SESSIONS else self.seen
                    kept[row.source] = "not a number"
                case _:
                    pass

    def _write(self, row: Any) -> None:
        # A read of what is gone, or should be, would show.
        self.total = self.total + row.seq if row.seq % 3 else self.total
        self.seen[row.source] = row.seq
        self.marks.add(row.seq % 4)
        self.items.push(row.source * 1000 + row.seq)
        self.tallied()[row.source] += row.seq % 2
        if row.seq % 3 == 0:
            self.looked[row.source] = row.seq
        elif row.seq % 3 == 1:
            self.looked.get(row.source)
        else:
            self.looked.pop(row.source, None)

    def result(self, key: Any, ctx: Context) -> Iterable[Any] | None:
        if self.count >= FORGET_AT:
            ctx.forget()
        return key, len(self.seen) * 100 + len(self.marks) * 10 + len(self.items), self.total, self.count


_TALLY: Any = {"ttl": f"{TALLY} milliseconds", "clock": "event"}
_AS_IT_WAS = {
    "__annotations__": {"tally": Counter[int]},
    "tally": bl.counter(renamed_from="totals", **_TALLY),
    "tallied": lambda self: self.tally,
}
_CHANGED = {
    "__annotations__": {"totals": Counter[int], "touched": int},
    "totals": bl.counter(renamed_from="tally", **_TALLY),
    "touched": bl.value(0),
    "tallied": lambda self: self.totals,
    "changed": True,
}


def lasting_deployment(poison: Poison, name: OperatorName, *, changed: bool) -> Deployment:
    """An operator of a simulation; ``changed``: with a variable more, and another name for one."""
    members: dict[str, Any] = {"poison": poison, **(_CHANGED if changed else _AS_IT_WAS)}
    operator = types.new_class("_Lasting", (_Lasting,), exec_body=lambda body: body.update(members))
    assert issubclass(operator, Operator)
    return Deployment(name, operator, (0,), tuple(INPUT.names), OUTPUT, (pa.string(),), ttl=KEY)


def _at(length: int, clock: TimerClock, time: EpochTime) -> int:
    """When what is written in an epoch expires."""
    return clock.now(time) + length if clock is PROCESSING or time.watermark > 0 else 0


@dataclass
class LastingState:
    """What a key's state must be: each entry with its expiry, 0 if that is not counted."""

    count: int = 0
    expires: int = 0
    total: tuple[int, int] = (0, 0)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    tally: dict[int, tuple[int, int]] = field(default_factory=dict)
    items: dict[int, int] = field(default_factory=dict)
    looked: dict[int, tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> LastingState:
        """Another one that is equal."""
        seen, tally, looked = dict(self.seen), dict(self.tally), dict(self.looked)
        return LastingState(
            self.count, self.expires, self.total, seen, dict(self.marks), tally, dict(self.items), looked
        )

    def begin(self, time: EpochTime) -> bool:
        """An epoch begins: what is due is gone, and what was not counted counts; whether the key is there still."""
        now = time.processing
        if 0 < self.expires <= now:
            return False
        self.expires = self.expires or _at(KEY.milliseconds, PROCESSING, time)
        if 0 < self.total[1] <= now:
            self.total = 0, 0
        self.seen = {source: it for source, it in self.seen.items() if it[1] > now}
        self.items = {item: at for item, at in self.items.items() if at > now}
        self.looked = {source: it for source, it in self.looked.items() if it[1] > now}
        if time.watermark > 0:
            fresh = [_at(length, EVENT, time) for length in (MARKS, TALLY)]
            marks = {mark: at or fresh[0] for mark, at in self.marks.items()}
            self.marks = {mark: at for mark, at in marks.items() if at > time.watermark}
            tally = {source: (n, at or fresh[1]) for source, (n, at) in self.tally.items()}
            self.tally = {source: it for source, it in tally.items() if it[1] > time.watermark}
        return True

    def take(self, row: Row, time: EpochTime) -> None:
        """A row of the key."""
        self.count += 1
        self.expires = _at(KEY.milliseconds, PROCESSING, time)
        if row.key in SESSIONS:
            return
        self.total = self.total[0] + (row.seq if row.seq % 3 else 0), _at(TOTAL, PROCESSING, time)
        self.seen[row.source] = row.seq, _at(SEEN, PROCESSING, time)
        self.marks[row.seq % 4] = _at(MARKS, EVENT, time)
        self.items[row.source * 1000 + row.seq] = _at(ITEMS, PROCESSING, time)
        if row.seq % 3 == 2:
            self.looked.pop(row.source, None)
        elif row.seq % 3 == 0 or row.source in self.looked:
            seq = row.seq if row.seq % 3 == 0 else self.looked[row.source][0]
            self.looked[row.source] = seq, _at(LOOKED, PROCESSING, time)
        n = self.tally.get(row.source, (0, 0))[0] + row.seq % 2
        self.tally[row.source] = n, _at(TALLY, EVENT, time)

    def ends(self) -> Iterator[tuple[TimerClock, int]]:
        """When something of it is due, by which clock; 0: that is not counted."""
        pairs = (*self.seen.values(), *self.looked.values(), self.total)
        yield from ((PROCESSING, at) for at in (self.expires, *self.items.values(), *(at for _, at in pairs)))
        yield from ((EVENT, at) for at in (*self.marks.values(), *(at for _, at in self.tally.values())))

    def output(self, key: str) -> tuple[str, int, int, int]:
        """What comes out if it had rows."""
        return key, len(self.seen) * 100 + len(self.marks) * 10 + len(self.items), self.total[0], self.count

    def misfit(self, actual: dict[str, Any]) -> str | None:
        """What is wrong with an actual state, if anything is."""
        name = "tally" if "tally" in actual else "totals"
        own, event = EXPIRIES[PROCESSING], EXPIRIES[EVENT]
        items = dict(zip(map(int, actual["items"]), map(int, actual[f"{own}_items"]), strict=True))
        found = {
            "count": int(np.int64(actual["count"])),
            "expires": actual[own],
            "total": (actual["total"], actual[f"{own}_total"]),
            "seen": _entries(actual["seen"], actual[f"{own}_seen"]),
            "marks": {mark: actual[f"{event}_marks"].get(mark, 0) for mark in actual["marks"]},
            "tally": _entries(actual[name], actual[f"{event}_{name}"]),
            "items": items,
            "looked": _entries(actual["looked"], actual[f"{own}_looked"]),
        }
        wanted = {key: getattr(self, key) for key in found}
        if found != wanted:
            return f"{found}, not {wanted}"
        if not 0 <= actual.get("touched", 0) <= self.count:
            return f"touched {actual['touched']} times, with {self.count} rows"
        return None


def _entries(values: Any, expiries: Any) -> dict[int, tuple[int, int]]:
    return {key: (value, expiries.get(key, 0)) for key, value in values.items()}
