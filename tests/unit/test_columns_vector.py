"""Vector operators over a table: which keys a batch has, and how dates come and go."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload import VectorOperator, value
from bedload.core.ids import WorkerId
from bedload.store.columns import ColumnTable
from bedload.worker.batch_context import BatchContext
from bedload.worker.vector import VectorLogic
from bedload.worker.vector_batch import VectorBatch

CTX = BatchContext("Seen", WorkerId(0))
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


def batch_of(keys: list[int], values: list[float | None]) -> VectorBatch:
    """Keys in the order of their first row, as a worker numbers them."""
    different = list(dict.fromkeys(keys))
    index = np.array([different.index(key) for key in keys], np.int64)
    rows = pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.float64())], names=["key", "value"])
    return VectorBatch(rows, index, [pa.array(different, pa.int64())])


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-9, 9)), min_size=1, max_size=60))
def test_rows_by_key_are_those_of_each_key_in_arrival_order(rows: list[tuple[int, float]]) -> None:
    batch = batch_of([key for key, _ in rows], [value for _, value in rows])
    by_key = batch.by_key
    values = by_key.numpy("value")
    assert len(by_key) == len(rows)
    assert by_key.keys is batch.keys
    assert by_key.offsets[0] == 0
    assert by_key.offsets[-1] == len(rows)
    for i, key in enumerate(batch.keys.to_pylist()):
        mine = slice(by_key.offsets[i], by_key.offsets[i + 1])
        assert values[mine].tolist() == [value for found, value in rows if found == key]
        assert set(by_key["key"][mine.start : mine.stop].to_pylist()) == {key}
        assert by_key.order[mine].tolist() == [at for at, (found, _) in enumerate(rows) if found == key]
    tops = np.maximum.reduceat(values, by_key.offsets[:-1]).tolist()
    assert tops == [max(value for found, value in rows if found == key) for key in batch.keys.to_pylist()]


def test_rows_by_key_are_sorted_once_and_only_if_somebody_looks() -> None:
    batch = batch_of([1, 2, 1], [0.5, None, 2.5])
    assert "by_key" not in vars(batch)
    assert batch.by_key is batch.by_key
    assert batch.by_key["value"] is batch.by_key["value"]
    assert batch.by_key["value"].to_pylist() == [0.5, 2.5, None]
    with pytest.raises(KeyError, match="no column 'x'; there are: key, value"):
        batch.by_key["x"]


def test_a_key_of_several_columns_has_no_single_one() -> None:
    rows = pa.record_batch({"a": [1], "b": [2]})
    batch = VectorBatch(rows, np.zeros(1, np.int64), [rows.column(0), rows.column(1)])
    for view in (batch, batch.by_key):
        assert [column.to_pylist() for column in view.key_columns] == [[1], [2]]
        with pytest.raises(AttributeError, match="the key has several columns: use key_columns"):
            view.keys  # noqa: B018


def test_more_keys_than_sixteen_bits_can_number_are_sorted_too() -> None:
    count = (1 << 16) + 3
    index = np.concatenate([np.arange(count), np.arange(count)[::-1]])
    rows = pa.record_batch([pa.array(np.arange(2 * count))], names=["at"])
    by_key = VectorBatch(rows, index, [pa.array(np.arange(count))]).by_key
    assert (np.diff(by_key.offsets) == 2).all()
    assert (by_key.numpy("at")[0::2] == np.arange(count)).all()
    assert (by_key.numpy("at")[1::2] == 2 * count - 1 - np.arange(count)).all()
