"""Timers of many keys at once: ``ctx.timers`` of an operator on arrays, and the columns that hold them.

Each timer that an operator declares is a state column of times, one for each name and clock, so that what a key has
been set is written, rolled back, stored and moved like any other number. There is no object per timer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import DefinitionError
from bedload.state.timers import TimerClock
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.index import Slots
from bedload.store.due import NEVER
from bedload.worker.timers import LATEST

_COLUMN = "bedload_timer_"
"""How the name of a column that holds timers begins."""

Where = npt.NDArray[Any] | Collection[int] | Collection[bool] | None


class BatchTimer(NamedTuple):
    """A timer that fires for many keys: ``at[i]`` is when it was due for the i-th of them."""

    at: npt.NDArray[np.int64]
    """Milliseconds since 1970."""
    name: str = ""
    clock: TimerClock = TimerClock.EVENT


class TimerColumn(NamedTuple):
    """A timer that an operator declares. They are in the order in which timers of the same time fire."""

    name: str
    clock: TimerClock

    @property
    def spec(self) -> ColumnSpec:
        """The hidden column that holds it; null: the key has none."""
        return ColumnSpec(self.column, pa.int64(), times=True)

    @property
    def column(self) -> str:
        """The name of that column."""
        return f"{_COLUMN}{self.clock}" + (f"_{self.name}" if self.name else "")

    @classmethod
    def of(cls, column: str) -> TimerColumn | None:
        """The timer that a state column holds; None: it holds another thing."""
        if not column.startswith(_COLUMN):
            return None
        clock, _, name = column.removeprefix(_COLUMN).partition("_")
        return cls(name, TimerClock(clock))


def timer_columns(operator: str, event: Any, processing: Any) -> tuple[TimerColumn, ...]:
    """The timers with these names, by clock; raises for names that are none."""
    found = []
    for clock, names, attribute in (
        (TimerClock.EVENT, event, "timers"),
        (TimerClock.PROCESSING, processing, "processing_timers"),
    ):
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise DefinitionError(
                f'operator {operator}: {attribute} = {names!r:.100}: give a tuple of names, as in ("", "idle")'
            )
        for name in names:
            if not f"_{name}".isidentifier():
                raise DefinitionError(
                    f"operator {operator}: {attribute} names {name!r}; a name is made of letters, digits and "
                    "underscores, or is empty"
                )
        found += [TimerColumn(name, clock) for name in dict.fromkeys(names)]
    return tuple(sorted(found))


class CurrentKeys:
    """The keys that a call of operator code is about."""

    def __init__(self, operator: str, timers: Collection[TimerColumn]) -> None:
        self.operator = operator
        self.timers = frozenset(timers)
        self.table: ColumnTable | None = None
        """None: no call is under way that is about keys."""
        self.slots: Slots = np.empty(0, np.int64)
        self.may_set = False
        """Whether it may set timers."""
        self.forgotten: list[Slots] = []

    @contextmanager
    def about(self, table: ColumnTable, slots: Slots, *, may_set: bool) -> Iterator[None]:
        """A call about these keys, which have been located; what it asks to forget goes when it has returned."""
        self.table, self.slots, self.may_set, self.forgotten = table, slots, may_set, []
        try:
            yield
            if self.forgotten:
                table.delete(np.unique(np.concatenate(self.forgotten)))
        finally:
            self.table = None

    def chosen(self, where: Where, what: str) -> Any:
        """Positions of keys, as an index of arrays that have one item for each key."""
        count = len(self.slots)
        if where is None:
            return slice(None)
        found = np.asarray(where)
        if found.dtype.kind == "b" and found.shape == (count,):
            return found
        if found.size == 0 and found.ndim == 1 and found.dtype.kind != "b":
            return np.empty(0, np.int64)
        if found.dtype.kind in "iu" and found.ndim == 1 and found.min() >= 0 and found.max() < count:
            return found
        raise DefinitionError(
            f"operator {self.operator}: {what}(where=...): give a boolean for each of the {count} keys, or positions "
            f"from 0 to {count - 1}; not {found.dtype} of shape {found.shape}"
        )

    def forget(self, where: Where) -> None:
        """Have these keys forgotten when the call returns."""
        if self.table is None:
            raise DefinitionError(
                f"operator {self.operator}: ctx.forget() is for process, on_timer and result, which are about keys"
            )
        self.forgotten.append(self.slots[self.chosen(where, "ctx.forget")])


class VectorTimersOfClock:
    """The timers of the keys that a call of an operator on arrays is about, by event time.

    ``ctx.timers.processing`` are those by the epochs' own time, with the same methods.
    """

    NEVER = NEVER
    """Stands for no timer: later than any time."""

    def __init__(self, keys: CurrentKeys, clock: TimerClock) -> None:
        self._keys = keys
        self._clock = clock

    def set(self, at: Any, name: str = "", where: Where = None) -> None:
        """Call ``on_timer`` when the clock has reached ``at``: milliseconds since 1970, one for all keys or for each.

        An array has one number for each key of the call, in their order; ``ctx.timers.NEVER`` is none. ``where``:
        for these keys alone, by a boolean for each key, or by their positions. To set a timer of the same name again
        moves it. One in the past fires at the end of this epoch.
        """
        table, column = self._column(name, "set")
        times, chosen = self._times(at), self._keys.chosen(where, "ctx.timers.set")
        table.times(column).put(self._keys.slots[chosen], times if times.ndim == 0 else times[chosen])

    def delete(self, name: str = "", where: Where = None) -> None:
        """Forget the timers of this name, of all keys or of some; where there is none, nothing happens."""
        table, column = self._column(name, "delete")
        table.times(column).clear(self._keys.slots[self._keys.chosen(where, "ctx.timers.delete")])

    def at(self, name: str = "") -> npt.NDArray[np.int64]:
        """When the timer of this name is due, for each key; ``ctx.timers.NEVER`` where there is none."""
        table, column = self._column(name, "at")
        times: npt.NDArray[np.int64] = table.times(column).live[self._keys.slots]
        return times

    def _column(self, name: str, what: str) -> tuple[ColumnTable, str]:
        keys, wanted = self._keys, TimerColumn(name, self._clock)
        if wanted not in keys.timers:
            attribute = "timers" if self._clock is TimerClock.EVENT else "processing_timers"
            declared = tuple(sorted(it.name for it in keys.timers if it.clock == self._clock))
            raise DefinitionError(
                f"operator {keys.operator}: there is no timer {name!r} by {self._clock} time: declare it on the class, "
                f"as in {attribute} = {(*declared, name)!r}"
            )
        if keys.table is None or not keys.may_set:
            raise DefinitionError(
                f"operator {keys.operator}: ctx.timers.{what}() is for process and on_timer: timers are of the keys "
                f"that the call is about"
            )
        return keys.table, wanted.column

    def _times(self, at: Any) -> npt.NDArray[np.int64]:
        found, count = np.asarray(at), len(self._keys.slots)
        if found.dtype.kind not in "iu":
            raise DefinitionError(
                f"ctx.timers.set() was given {found.dtype}: give milliseconds since 1970 as integers (of datetime64: "
                f'at.astype("datetime64[ms]").astype("int64"))'
            )
        if found.shape not in ((), (count,)):
            raise DefinitionError(
                f"ctx.timers.set() was given an array of shape {found.shape}: give one time for each of the {count} "
                f"keys (and choose among them with where=), or one for all"
            )
        if found.size and not (found.min() > -LATEST and ((found < LATEST) | (found == NEVER)).all()):
            raise DefinitionError(
                "ctx.timers.set() was given what is no time in milliseconds since 1970, but beyond the year 9999; of "
                "microseconds: at // 1000"
            )
        return found.astype(np.int64)


class VectorTimers(VectorTimersOfClock):
    """``ctx.timers`` of an operator on arrays: by event time; and ``ctx.timers.processing``, by the epochs' own."""

    def __init__(self, keys: CurrentKeys) -> None:
        super().__init__(keys, TimerClock.EVENT)
        self.processing = VectorTimersOfClock(keys, TimerClock.PROCESSING)
