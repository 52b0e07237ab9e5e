"""The simulated operator on columns: the same counts and sequences as the others, in a number and a string per key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from bedload.core.ids import OperatorName
from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.index import Slots
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.expiry import KeyTtl
from bedload.worker.operator import Context
from tests.simulator.expiring import ttl_of
from tests.simulator.workload import FORGET_AT, KEY_GROUPS, OUTPUT, RECENT, Poison, SimulatedFailure, check_time


class ColumnLogic:
    """Counts rows and writes down source and number of each; forgets a key with many rows at the end of the epoch."""

    def __init__(self, poison: Poison, *, changed: bool) -> None:
        self._poison = poison
        self.columns: tuple[ColumnSpec, ...] = (ColumnSpec("count", pa.int64(), 0), ColumnSpec("log", pa.string(), ""))
        """The state columns."""
        if changed:
            self.columns += (ColumnSpec("touched", pa.int64(), 0),)

    def setup(self, ctx: Context) -> None:
        """Nothing is shared."""
        self._poison.setup()

    def close(self) -> None:
        """Nothing is held."""
        self._poison.close()

    def update(self, table: ColumnTable, slots: Slots, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch | None:
        """Take rows in order; a poisoned one fails after its change, so that there is something to roll back."""
        check_time(ctx)
        counts, logs = table.values("count"), table.values("log")
        touched = table.values("touched") if len(self.columns) > 2 else None
        for slot, row in zip(slots.tolist(), batch.to_pylist(), strict=True):
            counts[slot] += 1
            if touched is not None:
                touched[slot] += 1
            logs[slot] = f"{logs[slot]}{row['source']}:{row['seq']} "
            if self._poison.touch(row["source"], row["seq"]) is not None:
                raise SimulatedFailure("nothing else is wrong with columns")
        return None

    def result(self, table: ColumnTable, slots: Slots, ctx: Context) -> pa.RecordBatch | None:
        """One row per changed key."""
        counts = table.values("count")[slots]
        sources = [len({item.split(":")[0] for item in log.split()}) for log in table.values("log")[slots]]
        made = [*table.keys(slots), pa.array(sources, pa.int64()), pa.array(counts), pa.array(counts)]
        table.delete(slots[counts >= FORGET_AT])
        return pa.RecordBatch.from_arrays(made, schema=OUTPUT)


def column_deployment(poison: Poison, name: OperatorName, *, changed: bool, expiring: bool = False) -> ColumnDeployment:
    """An operator of a simulation; ``changed``: with a column more."""
    logic, ttl = ColumnLogic(poison, changed=changed), None
    if expiring:
        ttl = KeyTtl(*ttl_of(name))
    return ColumnDeployment(name, logic, (0,), (pa.string(),), KEY_GROUPS, ttl=ttl)


def as_rows(state: dict[str, Any]) -> dict[str, Any]:
    """A key's columns as the variables that the operators on rows have."""
    items = [tuple(map(int, item.split(":"))) for item in state["log"].split()]
    seen: dict[int, list[int]] = {}
    for source, seq in items:
        seen.setdefault(source, []).append(seq)
    return {
        "count": int(np.int64(state["count"])),
        "seen": seen,
        "tally": {source: len(seqs) for source, seqs in seen.items()},
        "recent": [source * 1000 + seq for source, seq in items[-RECENT:]],
        "touched": int(np.int64(state.get("touched", 0))),
    }
