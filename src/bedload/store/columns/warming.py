"""Compiling every kernel before the first batch comes.

A worker calls it when an operator is deployed. Arguments of kernels have one type each, whatever the keys and columns
are, so a small table that uses every kernel once is enough.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bedload.core.ids import KeyGroup
from bedload.store.columns import compiled_entries
from bedload.store.columns.column import ColumnSpec
from bedload.store.columns.interner import Interner
from bedload.store.columns.table import ColumnTable


def warm_up() -> None:
    """Compile the kernels, or load them if a process has done so before."""
    table = ColumnTable([pa.string(), pa.int64()], [ColumnSpec("n", pa.int64(), 0)], 2)
    keys = [pa.array(["a", "b"]), pa.array([1, 2])]
    groups = np.zeros(2, np.int32)
    table.delete(table.locate(keys, groups)[:1])
    table.commit()
    table.find(keys, groups)
    some = table.extract(table.committed_slots(KeyGroup(0)))
    table.put(some.columns[:2], groups[:1], some)  # over what is there
    many = [pa.array(["c"] * 16), pa.array(range(16))]
    table.put(many, np.ones(16, np.int32), pa.record_batch({"n": range(16)}))
    table.committed(table.committed_slots(KeyGroup(1)))
    interner = Interner(pa.string())
    interner.encode(keys[0], add=True)
    interner.gone(2**20)
    interner.tidy(0, 1, lambda _: [np.zeros(1, np.int64)], 2**20)
    compiled_entries.warm_up()
