"""State in columns: one table for all key groups of an operator at a worker, updated by whole batches.

::

    key columns ──KeyWords──▶ words ──KeyIndex──▶ slots ──▶ rows of typed arrays (ColumnTable)
                     │                   │
                  Interner           HashTables            (both find by compiled kernels)

A slot is a row of the table. Slots come in blocks, and a block belongs to one key group (PAX: columns inside a
block, the block moves as a unit), so what belongs to a key group is a list of slices of each array. Why so, and
what it costs, is in ADR 6.
"""

from bedload.store.columns.column import ColumnSpec
from bedload.store.columns.table import ColumnTable
from bedload.store.columns.warming import warm_up

__all__ = ["ColumnSpec", "ColumnTable", "warm_up"]
