"""Values of every type in arrays and back, and in tables over commits, aborts and moves."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload.store.columns import ColumnSpec, ColumnTable
from bedload.store.columns.distinct import distinct
from bedload.store.columns.layout import WIDE, array_of, arrow_of, layout_of


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**precision - 1
    numbers = st.integers(-largest, largest) | st.sampled_from([-largest, -1, 0, 1, largest])
    return numbers.map(lambda unscaled: Decimal(f"{unscaled}E-{scale}"))


DAY = datetime.timedelta(days=1)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
    pa.time32("s"): st.times().map(lambda t: t.replace(microsecond=0)),
    pa.time64("us"): st.times(),
    pa.duration("us"): st.timedeltas(-1000 * DAY, 1000 * DAY),
    pa.decimal128(1, 0): _decimals(1, 0),
    pa.decimal128(18, 4): _decimals(18, 4),
    pa.decimal128(19, 19): _decimals(19, 19),
    pa.decimal128(38, 10): _decimals(38, 10),
}
FIXED = sorted(VALUES, key=str)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind = draw(st.sampled_from(FIXED))
    return kind, draw(st.lists(st.none() | VALUES[kind], max_size=20))


@given(columns(), st.integers(0, 9))
def test_a_column_comes_back_from_its_array_as_it_was(case: tuple[pa.DataType, list[Any]], skip: int) -> None:
    kind, values = case
    column = pa.array(values, kind).slice(skip)
    valid = column.is_valid().to_numpy(zero_copy_only=False) if len(column) else None
    array = array_of(column)
    assert array.dtype == layout_of(kind)
    back = arrow_of(array, valid, kind)
    back.validate(full=True)
    assert back.equals(column)


@pytest.mark.parametrize("kind", FIXED, ids=str)
def test_state_of_every_type_is_kept_over_commits_aborts_and_moves(kind: pa.DataType) -> None:
    spec = ColumnSpec("x", kind)
    assert spec.fixed

    @given(st.lists(st.none() | VALUES[kind], min_size=3, max_size=3), st.lists(VALUES[kind], min_size=3, max_size=3))
    def check(first: list[Any], second: list[Any]) -> None:
        table = ColumnTable([pa.int64()], [spec], 2, block=4)
        keys, groups = [pa.array([1, 2, 3])], np.zeros(3, np.int16)
        kept, other = pa.array(first, kind), pa.array(second, kind)
        table.write_column(table.locate(keys, groups), "x", kept)
        table.commit()
        table.write_column(table.locate(keys, groups), "x", other)
        slots = table.find(keys, groups)
        assert table.committed(slots).column(0).equals(kept)
        assert table.current(slots).column(0).equals(other)
        differs = [_bits(old, kind) != _bits(new, kind) for old, new in zip(first, second, strict=True)]
        assert np.isin(slots, table.changed()).tolist() == differs
        table.abort()
        moved = ColumnTable([pa.int64()], [spec], 2, block=4)
        moved.put(keys, groups, table.extract(slots))
        assert moved.committed(moved.find(keys, groups)).column(0).equals(kept)
        table.check()

    check()


def _bits(value: Any, kind: pa.DataType) -> Any:
    """Minus zero is another number than zero to a table."""
    return np.float64(value).tobytes() if pa.types.is_floating(kind) and value is not None else value


@pytest.mark.parametrize("kind", FIXED, ids=str)
def test_a_new_key_starts_with_what_was_declared(kind: pa.DataType) -> None:
    @given(VALUES[kind])
    def check(initial: Any) -> None:
        table = ColumnTable([pa.int64()], [ColumnSpec("x", kind, initial)], 1, block=4)
        slots = table.locate([pa.array([1])], np.zeros(1, np.int16))
        assert table.current(slots).column(0).equals(pa.array([initial], kind))

    check()


def test_dates_times_and_decimals_take_words_and_not_objects() -> None:
    sizes = {
        pa.date32(): 4,
        pa.timestamp("us"): 8,
        pa.timestamp("us", "UTC"): 8,
        pa.decimal128(18, 2): 8,
        pa.decimal128(19, 2): 16,
    }
    for kind, size in sizes.items():
        layout = layout_of(kind)
        assert layout is not None
        assert layout.itemsize == size
    assert layout_of(pa.string()) is None


def test_wide_decimals_share_arrows_memory() -> None:
    column = pa.array([Decimal(1), Decimal(-1)], pa.decimal128(38, 0))
    array = array_of(column)
    assert array.dtype == WIDE
    assert not array.flags.owndata
    assert arrow_of(array, None, column.type).buffers()[1].address == column.buffers()[1].address


@given(st.lists(st.integers(0, 2**40) | st.integers(0, 5), max_size=50))
def test_distinct_slots_come_in_the_order_of_first_appearance(slots: list[int]) -> None:
    found, numbers = distinct(np.array(slots, np.int64))
    assert found.tolist() == list(dict.fromkeys(slots))
    assert found[numbers].tolist() == slots
