"""The timers of keys on columns that are due at the end of an epoch: which they are, and the calls of ``on_timer``.

They fire in the seal, in rounds. In each round a key fires the earliest of its due timers, and those of equal time in
the order of name and clock; there is one call for each name and clock, with its keys in the order of their time and
then of the keys. A timer that a call sets and that is due already fires in a later round of the same seal. So each key
sees its timers in the order of time, as an operator on rows does, and nothing of it depends on anything but the state
and the time of the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError
from bedload.core.ids import KeyGroup
from bedload.keys import hash_columns
from bedload.state.timers import TimerClock
from bedload.store.columns import ColumnTable
from bedload.store.columns.index import Flags, Slots
from bedload.store.due import NEVER
from bedload.worker.firing import Owns
from bedload.worker.vector_timers import BatchTimer, TimerColumn

Call = Callable[[Slots, BatchTimer], None]
"""Calls ``on_timer`` for these keys, whose timers are gone already."""

MOST = 10_000
"""Timers of one key that fire in one epoch. A key that catches up with a year of hours has 8,760."""


def due_slots(
    table: ColumnTable, columns: Collection[tuple[str, TimerClock]], time: EpochTime, groups: Iterable[KeyGroup]
) -> Slots:
    """The keys of these key groups that have something due, each once."""
    found = [table.times(column).due(clock.now(time)) for column, clock in columns]
    slots = found[0] if len(found) == 1 else np.unique(np.concatenate(found))
    if not len(slots):
        return slots
    mine: Flags = np.zeros(table.index.key_groups, np.bool_)
    mine[list(groups)] = True
    return slots[mine[table.index.group_of(slots)]]


def owned(table: ColumnTable, slots: Slots, owns: Owns | None) -> Slots:
    """Those of the keys that are the worker's own."""
    if owns is None or not len(slots):
        return slots
    return slots[owns(table.index.group_of(slots), hash_columns(table.keys(slots)))]


def fire(table: ColumnTable, timers: Sequence[TimerColumn], due: Slots, time: EpochTime, call: Call) -> None:
    """Call for each timer that is due of these keys, in order, and for those that are set meanwhile."""
    columns = [table.times(timer.column) for timer in timers]
    nows = [timer.clock.now(time) for timer in timers]
    slots, rounds = due, 0
    while len(slots):
        # The first of equal times wins, and timers are in the order of name and clock.
        times = np.stack(
            [np.where(it.live[slots] <= now, it.live[slots], NEVER) for it, now in zip(columns, nows, strict=True)]
        )
        first, at = times.argmin(axis=0), times.min(axis=0)
        fires = at != NEVER
        slots, first, at = slots[fires], first[fires], at[fires]
        rounds += 1
        if len(slots) and rounds > MOST:
            raise _endless(table, slots[0], at[0], time)
        table.touch(slots)
        for number, (timer, column) in enumerate(zip(timers, columns, strict=True)):
            mine = np.flatnonzero(first == number)
            if len(mine):
                mine = mine[_in_order(at[mine], table.keys(slots[mine]))]
                column.clear(slots[mine])
                call(slots[mine], BatchTimer(at[mine], timer.name, timer.clock))
    for column, now in zip(columns, nows, strict=True):
        column.tighten(now)


def _in_order(at: npt.NDArray[np.int64], keys: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Positions in the order of time, then of key, nulls last."""
    names = ["at", *(f"key{i}" for i in range(len(keys)))]
    batch = pa.RecordBatch.from_arrays([pa.array(at), *keys], names=names)
    order: npt.NDArray[np.int64] = pc.sort_indices(batch, [(name, "ascending") for name in names]).to_numpy()
    return order.astype(np.int64)


def _endless(table: ColumnTable, slot: int, at: int, time: EpochTime) -> DefinitionError:
    key = tuple(column[0].as_py() for column in table.keys(np.array([slot])))
    said = key[0] if len(key) == 1 else key
    return DefinitionError(
        f"on_timer was called {MOST:,} times for key {said!r} in one epoch (now {time.processing}, watermark "
        f"{time.watermark}), the last time for {at}: it sets timers that are due already. Set the next one after "
        f"ctx.now or ctx.watermark",
        key=said,
    )
