"""The operators of the golden checkpoints of version 2: those of version 1, with datetimes of one zone and arrays.

Nothing here may change once files of a version are there: it is what reads them.
"""

import datetime as dt
import zoneinfo
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import bedload as bl
from bedload.worker.row_runtime import Deployment
from tests.golden import operators as version_1

COLUMN_EPOCHS, COLUMN_KEYS, ROW_KEYS = version_1.COLUMN_EPOCHS, version_1.COLUMN_KEYS, version_1.ROW_KEYS
column_input, columns_deployment = version_1.column_input, version_1.columns_deployment
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


@dataclass
class Visit:
    at: dt.datetime
    note: str = ""


class Scripted(bl.Operator):
    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            SCRIPTS[row.step](self, ctx)


class Rows(Scripted):
    n: int = bl.value(0)
    utc: dt.datetime | None = bl.value()
    local: dt.datetime | None = bl.value()
    naive: dt.datetime = bl.value(dt.datetime(1970, 1, 1))
    mixed: dt.datetime | None = bl.value()
    later: dt.datetime | None = bl.value()
    never: dt.datetime | None = bl.value()
    visits: list[Visit] = bl.list()
    by_name: dict[str, dt.datetime] = bl.map()
    weights: np.ndarray = bl.array((2, 3), "float32", default=0.5)
    flags: np.ndarray = bl.array(3, "bool")
    counts: np.ndarray = bl.array(4, "uint8")


class Rows2(Scripted):
    n: int = bl.value(0)
    utc: dt.datetime | None = bl.value()
    here: dt.datetime | None = bl.value(renamed_from="local")
    mixed: dt.datetime | None = bl.value()
    later: dt.datetime | None = bl.value()
    visits: list[Visit] = bl.list()
    weights: np.ndarray = bl.array((2, 3), "float64", default=0.5)
    tallies: np.ndarray = bl.array(4, "int64", renamed_from="counts")
    since: dt.datetime = bl.value(dt.datetime(2024, 2, 29, tzinfo=dt.UTC))


def rows_deployment(version: int) -> Deployment:
    operator = (Rows, Rows2)[version - 1]
    return Deployment(version_1.NAME, operator, (0,), ("key", "step"), pa.schema([]), ROW_KEYS)


def _fill(op: Any, ctx: Any) -> None:
    op.utc = dt.datetime(2024, 5, 1, 12, 30, 15, 123456, dt.UTC)
    op.local = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN)
    op.naive = dt.datetime(1, 1, 1)
    op.mixed = dt.datetime(2024, 5, 1)
    op.visits.append(Visit(dt.datetime(9999, 12, 31, tzinfo=dt.UTC), "first"))
    op.by_name.update({"a": dt.datetime(2024, 5, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30)))})
    op.weights[1] += [1, 2, 3]
    op.flags[2] = True
    op.counts[:] = [0, 1, 254, 255]


def _change(op: Any, ctx: Any) -> None:
    op.local = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
    op.mixed = dt.datetime(2024, 5, 1, tzinfo=BERLIN)
    op.visits.append(Visit(dt.datetime(2024, 6, 1, tzinfo=dt.UTC)))
    op.visits[0].note = "changed"
    op.by_name["b"] = dt.datetime(2024, 6, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30)))
    op.weights *= 2
    np.negative(op.weights[0], out=op.weights[0])


def _count(op: Any, ctx: Any) -> None:
    op.n += 1


def _forget(op: Any, ctx: Any) -> None:
    ctx.forget()


def _later(op: Any, ctx: Any) -> None:
    op.n += 1
    op.later = dt.datetime(2024, 6, 1, 12, tzinfo=BERLIN)
    op.visits.append(Visit(dt.datetime(2024, 6, 1)))
    op.weights[0, 0] = 1e300 if op.weights.dtype == np.float64 else 1
    if hasattr(op, "tallies"):
        op.tallies -= 2**40


SCRIPTS = {0: _fill, 1: _change, 2: _count, 3: _forget, 4: _later}

ROW_EPOCHS: dict[int, list[list[tuple[str, int]]]] = {
    1: [[("a", 0), ("b", 2), ("c", 0), ("d", 2)], [("a", 1), ("b", 2), ("e", 0)], [("c", 1), ("d", 3), ("e", 4)]],
    2: [[("a", 4), ("f", 4)], [("a", 4), ("e", 4), ("b", 3)]],
}
