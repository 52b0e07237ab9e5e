"""Time to live on columns: a key that had no row for a while is gone, and a variable that nobody wrote has its default.

When a key expires is a hidden state column. It is set when an epoch has the first row of the key, from the time of the
epoch: so it is the same for all rows of an epoch. A key is gone from the epoch on whose time has reached it: a row in
that epoch finds nothing, and starts a new key that lives on; if there is none, the key is deleted in the seal.

A variable of an operator on arrays has such a column, too. It is set when a call returns the variable, or gets it if
reading counts. From the epoch on whose time has reached it the variable is the default: before the first call about the
key in that epoch, or in the seal.

0 stands for what is not counted yet: it was there before the TTL, or before there was a watermark. It counts as if it
had a row, or had been written, in the first epoch that has both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from bedload.core.epoch import EpochTime
from bedload.state import StateSpec
from bedload.state.expiries import hidden_name
from bedload.state.timers import EXPIRIES
from bedload.state.ttl import UNCOUNTED, Ttl
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.index import Slots
from bedload.store.due import NEVER


@dataclass(frozen=True, slots=True)
class KeyTtl(Ttl):
    """How long a key lives without a row, and by which clock."""

    @classmethod
    def on_columns(cls, ttl: Ttl | None) -> KeyTtl | None:
        """The same for keys whose state is columns."""
        return None if ttl is None else cls(ttl.milliseconds, ttl.clock)

    @property
    def column(self) -> str:
        """The name of the column."""
        return EXPIRIES[self.clock]

    @property
    def spec(self) -> ColumnSpec:
        """The column."""
        return ColumnSpec(self.column, pa.int64(), UNCOUNTED, times=True)

    def renew(self, table: ColumnTable, slots: Slots, time: EpochTime) -> None:
        """These keys, just touched, have a row: they live on, and those that are gone start again."""
        times = table.times(self.column)
        at = times.live[slots]
        table.renew(slots[(at != UNCOUNTED) & (at <= self.clock.now(time))])
        times.put(slots, self.expiry(time))

    def expire(self, table: ColumnTable, due: Slots, time: EpochTime) -> None:
        """Of these keys, which have been touched, delete those that are gone, and begin to count the others."""
        times = table.times(self.column)
        at = times.live[due]
        table.delete(due[(at != UNCOUNTED) & (at <= self.clock.now(time))])
        times.put(due[at == UNCOUNTED], self.expiry(time))
        times.tighten(self.clock.now(time))


@dataclass(frozen=True, slots=True)
class VariableTtl(Ttl):
    """How long a variable of an operator on arrays lives."""

    variable: str = ""

    @classmethod
    def of_variables(cls, specs: Iterable[StateSpec]) -> tuple[VariableTtl, ...]:
        """Those of the variables that have one."""
        return tuple(
            cls(spec.ttl.milliseconds, spec.ttl.clock, spec.ttl.refresh, spec.name)
            for spec in specs
            if spec.ttl is not None
        )

    @property
    def column(self) -> str:
        """The name of the column."""
        return hidden_name(self.variable, self.clock)

    @property
    def spec(self) -> ColumnSpec:
        """The column; null: the variable has its default, and nothing is to expire."""
        return ColumnSpec(self.column, pa.int64(), UNCOUNTED, times=True)

    def written(self, table: ColumnTable, slots: Slots, time: EpochTime) -> None:
        """A call has returned the variable of these keys, which have been touched."""
        table.times(self.column).put(slots, self.expiry(time))

    def handed_out(self, table: ColumnTable, slots: Slots, time: EpochTime) -> None:
        """A call gets the variable of these keys, which have been touched: if reading counts, it lives on."""
        if self.refresh == "read":
            times = table.times(self.column)
            times.put(slots[times.live[slots] != NEVER], self.expiry(time))

    def renew(self, table: ColumnTable, slots: Slots, time: EpochTime) -> None:
        """These keys, just touched, are for operator code to see: what has expired has its default."""
        times = table.times(self.column)
        at = times.live[slots]
        gone = slots[(at != UNCOUNTED) & (at <= self.clock.now(time))]
        table.reset(gone, self.variable)
        times.clear(gone)

    def expire(self, table: ColumnTable, due: Slots, time: EpochTime) -> None:
        """Of these keys, which have been touched, reset what has expired, and begin to count what is not counted."""
        self.renew(table, due, time)
        times = table.times(self.column)
        times.put(due[times.live[due] == UNCOUNTED], self.expiry(time))
        times.tighten(self.clock.now(time))
