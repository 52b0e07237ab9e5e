"""Decimals in state: sums that leave their range, means that are rounded, and what a key's decimals take."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.errors import DataError
from bedload.core.ids import Epoch, WorkerId
from bedload.operators import aggregates as agg
from bedload.operators.aggregates import decimals
from bedload.store.columns import ColumnTable
from bedload.worker.operator import Context

CTX = Context("Trip", WorkerId(0), Epoch(0))
OVERFLOW = "ARITHMETIC_OVERFLOW"


class Running:
    """Aggregates of one column of decimals, and their table."""

    def __init__(self, kind: pa.DataType, **functions: agg.Function) -> None:
        self.schema = pa.schema([("key", pa.string()), ("x", kind)])
        self.logic = agg.Aggregates(functions, self.schema, [0], ["key"])
        self.table = ColumnTable([pa.string()], self.logic.columns, 1)

    def take(self, *rows: tuple[str, int | None]) -> Running:
        """Rows of key and unscaled value."""
        kind = self.schema.field("x").type
        values = [None if x is None else Decimal(f"{x}E-{kind.scale}") for _, x in rows]
        batch = pa.RecordBatch.from_arrays(
            [pa.array([key for key, _ in rows]), pa.array(values, kind)], schema=self.schema
        )
        self.logic.update(self.table, self._slots(batch), batch, CTX)
        return self

    def take_partial(self, *rows: tuple[str, int]) -> Running:
        """Partial sums, as from feeders: a key may come more than once."""
        schema = self.logic.partial_schema
        sums = [Decimal(f"{x}E-{schema.field(1).type.scale}") for _, x in rows]
        columns = [pa.array([key for key, _ in rows]), pa.array(sums, schema.field(1).type)]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        self.logic.update_partial(self.table, self._slots(batch), batch, CTX)
        return self

    def results(self) -> dict[str, Any]:
        found = self.logic.result(self.table, self.table.index.all_slots(), CTX)
        assert found is not None
        found.validate(full=True)
        return {row["key"]: tuple(row.values())[1:] for row in found.to_pylist()}

    def _slots(self, batch: pa.RecordBatch) -> Any:
        return self.table.locate([batch.column(0)], np.zeros(batch.num_rows, np.int16))


# --- sums ---


@pytest.mark.parametrize("digits", [8, 9, 18, 28, 38])
def test_a_sum_may_leave_its_range_within_a_batch_and_come_back(digits: int) -> None:
    limit = 10 ** min(digits + 10, 38)
    largest, running = 10**digits - 1, Running(pa.decimal128(digits, 0), s=agg.sum("x"))
    running.take_partial(("a", limit - 1), ("b", 1 - limit))
    running.take(("a", largest), ("b", -largest), ("a", -largest), ("b", largest))
    assert running.results() == {"a": (Decimal(limit - 1),), "b": (Decimal(1 - limit),)}
    with pytest.raises(DataError, match=OVERFLOW):
        running.take(("a", 1))
    with pytest.raises(DataError, match=f"key 'b'.*decimal128.*{OVERFLOW}"):
        running.take(("b", -1))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_128_bits_that_wraps_around_to_what_would_fit_is_found(sign: int) -> None:
    running = Running(pa.decimal128(38, 0), s=agg.sum("x")).take(("a", 7), ("b", 7))
    with pytest.raises(DataError, match=f"key 'b'.*{OVERFLOW}"):
        running.take(("a", 1), *[("b", sign * 2**126)] * 4)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_64_bits_that_wraps_around_to_what_would_fit_is_found(sign: int) -> None:
    running = Running(pa.decimal128(8, 0), s=agg.sum("x")).take(("a", 7), ("b", 7))
    with pytest.raises(DataError, match=f"key 'b'.*{OVERFLOW}"):
        running.take_partial(("a", 1), *[("b", sign * 2**59)] * 32)


@pytest.mark.parametrize(("digits", "size", "times"), [(8, 2**59, 20), (38, 2**126, 3)], ids=["64 bits", "128 bits"])
def test_a_sum_that_wraps_around_and_back_is_the_sum(digits: int, size: int, times: int) -> None:
    running = Running(pa.decimal128(digits, 0), s=agg.sum("x")).take(("a", 5), ("b", 6))
    there, back = [("a", size), ("b", -size)] * times, [("b", size), ("a", -size)] * times
    assert running.take_partial(*there, *back).results() == {"a": (Decimal(5),), "b": (Decimal(6),)}


def test_the_key_of_a_sum_that_does_not_fit_is_the_first_one() -> None:
    largest = 10**38 - 1
    running = Running(pa.decimal128(38, 0), s=agg.sum("x")).take(("a", 1), ("b", largest), ("c", largest))
    with pytest.raises(DataError, match="key 'c'"):
        running.take(("a", 1), ("c", None), ("c", 1), ("b", 1))


def test_state_of_decimals_is_read_as_decimals() -> None:
    running = Running(pa.decimal128(8, 2), s=agg.sum("x"), m=agg.max("x"), first=agg.first("x")).take(("a", 123))
    running.table.commit()
    (row,) = running.table.committed(running.table.committed_slots()).to_pylist()
    assert row == {
        "sum(x)": Decimal("1.23"),
        "max(x)": Decimal("1.23"),
        "first(x)": Decimal("1.23"),
        "first(x).seen": True,
    }


@pytest.mark.parametrize(("digits", "size"), [(8, 8), (9, 16), (38, 16)])
def test_a_sum_of_decimals_takes_one_word_or_two(digits: int, size: int) -> None:
    running = Running(pa.decimal128(digits, 2), s=agg.sum("x")).take(("a", 1))
    assert running.table.values("sum(x)").itemsize == size


# --- means ---


def test_means_of_large_and_negative_sums_are_rounded_half_up() -> None:
    running = Running(pa.decimal128(34, 0), m=agg.mean("x"))
    running.take(("a", -(10**34 - 1)), ("a", -(10**34 - 2)), ("b", -2), ("b", 0), ("b", 0), ("c", None))
    half = Decimal("-9999999999999999999999999999999998.5000")
    assert running.results() == {"a": (half,), "b": (Decimal("-0.6667"),), "c": (None,)}


def test_a_mean_over_more_rows_than_32_bits_count_is_exact() -> None:
    kind = pa.decimal128(38, 4)
    totals = np.zeros(3, decimals.WIDE)
    count = 2**32 + 1
    for i, total in enumerate((3 * count, -3 * count, 10**34 + 7)):
        totals[i] = (total & (2**64 - 1), total >> 64)
    means, row = decimals.divide(totals, np.full(3, count), 4, kind)
    assert row == -1
    numbers = [(int(mean["high"]) << 64) | int(mean["low"]) for mean in means]
    exact = (2 * (10**34 + 7) * 10**4 + count) // (2 * count)
    assert numbers == [30000, -30000, exact]


def test_the_mean_that_does_not_fit_is_said() -> None:
    running = Running(pa.decimal128(38, 0), m=agg.mean("x")).take(("a", 5), ("b", 1 - 10**38))
    with pytest.raises(DataError, match=rf"the mean -{10**38 - 1}\.0000 does not fit decimal128\(38, 4\)"):
        running.results()
