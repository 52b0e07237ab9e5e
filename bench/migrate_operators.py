"""The operators whose state is moved: a count per key, beside what the state weighs.

`Kept` has one value of many bytes; `KeptFields` and `KeptColumns` have the same fifteen numbers, as an object per key
and as columns. Rows change the count alone, so all of the rest is state that a move has to carry and nobody touches.
"""

from typing import Any

import numpy as np

import bedload as bl
from bench.migrate_load import value_expression
from bench.migrate_plan import COLUMNS, FIELD_COUNT, FIELDS, ROWS

SCHEMA = "key long, n long"


class Kept(bl.Operator):
    """A count and a value of many bytes."""

    n: int = bl.value(0)
    kept: bytes = bl.value(b"")

    def process(self, key: int, rows: Any, ctx: Any) -> None:
        self.n += len(rows)

    def result(self, key: int, ctx: Any) -> tuple[int, int]:
        return key, self.n


class KeptFields(bl.Operator):
    """A count and fifteen numbers, as an object per key."""

    n: int = bl.value(0)
    x00: float = bl.value(0.0)
    x01: float = bl.value(0.0)
    x02: float = bl.value(0.0)
    x03: float = bl.value(0.0)
    x04: float = bl.value(0.0)
    x05: float = bl.value(0.0)
    x06: float = bl.value(0.0)
    x07: float = bl.value(0.0)
    x08: float = bl.value(0.0)
    x09: float = bl.value(0.0)
    x10: float = bl.value(0.0)
    x11: float = bl.value(0.0)
    x12: float = bl.value(0.0)
    x13: float = bl.value(0.0)
    x14: float = bl.value(0.0)

    def process(self, key: int, rows: Any, ctx: Any) -> None:
        self.n += len(rows)

    def result(self, key: int, ctx: Any) -> tuple[int, int]:
        return key, self.n


class KeptColumns(bl.VectorOperator):
    """The same, as columns."""

    n: int = bl.value(0)
    x00: float = bl.value(0.0)
    x01: float = bl.value(0.0)
    x02: float = bl.value(0.0)
    x03: float = bl.value(0.0)
    x04: float = bl.value(0.0)
    x05: float = bl.value(0.0)
    x06: float = bl.value(0.0)
    x07: float = bl.value(0.0)
    x08: float = bl.value(0.0)
    x09: float = bl.value(0.0)
    x10: float = bl.value(0.0)
    x11: float = bl.value(0.0)
    x12: float = bl.value(0.0)
    x13: float = bl.value(0.0)
    x14: float = bl.value(0.0)

    def process(self, batch: Any, state: Any, ctx: Any) -> dict[str, Any]:
        return {"n": state["n"] + np.bincount(batch.index, minlength=len(state["n"]))}

    def result(self, keys: Any, state: Any, ctx: Any) -> dict[str, Any]:
        return {"key": keys, "n": state["n"]}


OPERATORS: dict[str, type[bl.Operator] | type[bl.VectorOperator]] = {
    ROWS: Kept,
    FIELDS: KeptFields,
    COLUMNS: KeptColumns,
}


def initial_columns(layout: str, value_bytes: int) -> list[str]:
    """The state of every key at the start, as SQL expressions of its number `id`."""
    columns = ["id AS key", "0L AS n"]
    if layout == ROWS:
        return [*columns, f"{value_expression(value_bytes, 'id')} AS kept"]
    return columns + [f"xxhash64(id, {i}) / 1e9D AS x{i:02}" for i in range(FIELD_COUNT)]
