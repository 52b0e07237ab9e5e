"""Keys of every type that Spark can group by, in a column table: one slot per key, found again, decoded as given."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from bedload.core.ids import KeyGroup
from bedload.keys import freeze_keys, hash_columns, key_groups
from bedload.store.columns import ColumnSpec, ColumnTable, interner, memory

GROUPS = 4


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    largest = 10**precision - 1
    return st.integers(-largest, largest).map(lambda unscaled: decimal.Decimal(f"{unscaled}E-{scale}"))


def _texts() -> st.SearchStrategy[str]:
    # Lengths around the eight bytes that are read at once, and values that share all but the last byte.
    return st.text(st.characters(codec="utf-8")) | st.integers(0, 20).flatmap(
        lambda n: st.sampled_from(["a" * n, "a" * n + "b", "a" * n + "\0"])
    )


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32) | st.sampled_from([0.0, -0.0, float("nan")]),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, float("nan")]),
    pa.string(): _texts(),
    pa.large_string(): _texts(),
    pa.dictionary(pa.int32(), pa.string()): st.text("abé", max_size=2),
    pa.binary(): st.binary(max_size=40),
    pa.large_binary(): st.binary(max_size=40),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
    pa.timestamp("us", tz="Europe/Berlin"): st.datetimes(
        datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC)
    ),
    pa.decimal128(10, 2): _decimals(10, 2),
    pa.decimal128(18, 0): _decimals(18, 0),
    pa.decimal128(19, 3): _decimals(19, 3),
    pa.decimal128(38, 10): _decimals(38, 10),
}

Batches = tuple[list[pa.DataType], list[list[pa.Array]]]


@pytest.fixture(autouse=True)
def _sweep_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interner, "_SWEPT_FROM", 2)


@st.composite
def batches(draw: st.DrawFn) -> Batches:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    # A few values for each column, so that keys come again.
    pools = [draw(st.lists(VALUES[kind], min_size=1, max_size=5)) for kind in types]
    made = []
    for _ in range(draw(st.integers(1, 3))):
        rows, skipped = draw(st.integers(0, 12)), draw(st.integers(0, 9))
        columns = []
        for kind, pool in zip(types, pools, strict=True):
            choice = st.sampled_from(pool) if len(types) == 1 else st.none() | st.sampled_from(pool)
            values = draw(st.lists(choice, min_size=rows + skipped, max_size=rows + skipped))
            # A slice out of the middle, so that offsets are not zero.
            columns.append(pa.array(values, kind).slice(skipped))
        made.append(columns)
    return types, made


def _groups(columns: list[pa.Array]) -> np.ndarray:
    return key_groups(hash_columns(columns), GROUPS)


def _table(types: list[pa.DataType]) -> ColumnTable:
    return ColumnTable(types, [ColumnSpec("n", pa.int64(), 0)], GROUPS, block=2)


@examples(150)
@given(batches())
def test_equal_keys_have_one_slot_and_other_keys_another(given_batches: Batches) -> None:
    types, all_columns = given_batches
    table = _table(types)
    slot_of: dict[object, int] = {}
    for columns in all_columns:
        groups, keys = _groups(columns), freeze_keys(columns)
        before = table.index.find(table.words.encode(columns, intern=False), groups).tolist()
        assert before == [slot_of.get(key, -1) for key in keys]
        slots = table.locate(columns, groups)
        for key, slot in zip(keys, slots.tolist(), strict=True):
            assert slot_of.setdefault(key, slot) == slot
        table.check()
        table.commit()
        assert table.find(columns, groups).tolist() == slots.tolist()
        assert freeze_keys(table.keys(slots)) == keys
        assert [column.type for column in table.keys(slots)] == list(table.words.types)
    assert len(set(slot_of.values())) == len(slot_of) == table.index.live


@examples(80)
@given(batches(), st.booleans())
def test_keys_move_to_another_table_as_arrow(given_batches: Batches, plain_memory: bool) -> None:
    types, all_columns = given_batches
    with pytest.MonkeyPatch.context() as patch:
        if plain_memory:
            patch.setattr(memory, "_reserve", lambda size: None)
        patch.setattr(memory, "_SMALL", 0)
        table, other = _table(types), _table(types)
        counts: dict[object, int] = {}
        for columns in all_columns:
            slots = table.locate(columns, _groups(columns))
            np.add.at(table.values("n"), slots, 1)
            for key in freeze_keys(columns):
                counts[key] = counts.get(key, 0) + 1
            table.commit()
        for group in range(GROUPS):
            batch = table.extract(table.committed_slots(KeyGroup(group)))
            batch.validate(full=True)
            other.put(batch.columns[: len(types)], np.full(batch.num_rows, group), batch)
            table.drop([KeyGroup(group)])
            table.check()
            other.check()
        slots = other.committed_slots()
        found = freeze_keys(other.keys(slots))
        assert dict(zip(found, other.values("n")[slots].tolist(), strict=True)) == counts
        assert table.index.live == 0
