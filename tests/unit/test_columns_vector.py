"""Vector operators over a table: which keys a batch has, and how dates come and go."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from bedload import VectorOperator, value
from bedload.core.ids import Epoch, WorkerId
from bedload.store.columns import ColumnTable
from bedload.worker.operator import Context
from bedload.worker.vector import VectorLogic

CTX = Context("Seen", WorkerId(0), Epoch(0))
NEW_YEAR = datetime.date(2024, 1, 1)


class Seen(VectorOperator):
    """The last day of each key, and the day before that."""

    day: datetime.date = value(NEW_YEAR)
    before: datetime.date | None = value(None)

    def process(self, batch: Any, state: Any, ctx: Any) -> Any:
        last = np.zeros(len(state["day"]), "datetime64[D]")
        last[batch.index] = batch.numpy("day")
        return {"day": last, "before": state["day"]}, {
            "key": batch.keys,
            "day": state["day"],
            "before": state["before"],
        }


def test_dates_are_arrays_of_days_with_nulls_as_nat() -> None:
    schema = pa.schema([("key", pa.int64()), ("day", pa.date32())])
    logic = VectorLogic(Seen, pa.schema([("key", pa.int64()), ("day", pa.date32()), ("before", pa.date32())]))
    table = ColumnTable([pa.int64()], logic.columns, 1)
    days = [datetime.date(2024, 1, day) for day in range(1, 5)]
    outputs = []
    for keys, chosen in (([7, 5, 7], days[:3]), ([5, 3], days[2:])):
        batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(chosen)], schema=schema)
        slots = table.locate([batch.column(0)], np.zeros(len(keys), np.int16))
        made = logic.update(table, slots, batch, CTX)
        assert made is not None
        outputs.append(made.to_pylist())
    assert outputs[0] == [{"key": key, "day": NEW_YEAR, "before": None} for key in (7, 5)]
    assert outputs[1] == [
        {"key": 5, "day": days[1], "before": NEW_YEAR},
        {"key": 3, "day": NEW_YEAR, "before": None},
    ]
    table.commit()
    assert table.values("day").dtype == np.int32
    assert table.committed(table.find([pa.array([5, 7])], np.zeros(2, np.int16))).to_pylist() == [
        {"day": days[2], "before": days[1]},
        {"day": days[2], "before": NEW_YEAR},
    ]
