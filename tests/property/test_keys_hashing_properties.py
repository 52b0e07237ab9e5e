"""Hashing and freezing agree for all keys: by column and one by one, in every layout of Arrow."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from bedload.keys import canonical_key, freeze_keys, hash_columns, hash_key, xxh64


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    largest = 10**precision - 1
    return st.integers(-largest, largest).map(lambda unscaled: decimal.Decimal(f"{unscaled}E-{scale}"))


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(st.characters(codec="utf-8")),
    pa.large_string(): st.text(st.characters(codec="utf-8")),
    pa.dictionary(pa.int32(), pa.string()): st.text("abé", max_size=2),
    pa.binary(): st.binary(max_size=80),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
    pa.decimal128(10, 2): _decimals(10, 2),
    pa.decimal128(18, 0): _decimals(18, 0),
    pa.decimal128(38, 10): _decimals(38, 10),
}


@st.composite
def key_columns(draw: st.DrawFn) -> list[pa.Array]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    rows = draw(st.integers(0, 12))
    # A slice out of the middle, so that offsets are not zero.
    skipped = draw(st.integers(0, 9))
    columns = []
    for data_type in types:
        values = draw(st.lists(st.none() | VALUES[data_type], min_size=rows + skipped, max_size=rows + skipped))
        columns.append(pa.array(values, data_type).slice(skipped))
    return columns


@examples(120)
@given(key_columns())
def test_columns_and_single_keys_have_the_same_hash(columns: list[pa.Array]) -> None:
    types = [column.type for column in columns]
    keys = freeze_keys(columns)
    assert hash_columns(columns).tolist() == [hash_key(key, types) for key in keys]


@examples(120)
@given(key_columns())
def test_frozen_keys_are_the_canonical_form_of_the_values(columns: list[pa.Array]) -> None:
    lists = [column.to_pylist() for column in columns]
    given_keys = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
    frozen = freeze_keys(columns)
    assert [canonical_key(key) for key in given_keys] == frozen
    found = {key: i for i, key in enumerate(frozen)}
    for key in given_keys:
        assert canonical_key(key) in found


@examples(120)
@given(key_columns())
def test_rows_with_one_frozen_key_have_one_hash(columns: list[pa.Array]) -> None:
    hashes: dict[object, int] = {}
    for key, key_hash in zip(freeze_keys(columns), hash_columns(columns).tolist(), strict=True):
        assert hashes.setdefault(key, key_hash) == key_hash


@examples(60)
@given(
    lengths=st.lists(st.integers(0, 100), min_size=1, max_size=4),
    copies=st.integers(1, 2000),
    seed=st.integers(0, 2**32 - 1),
)
def test_bytes_of_every_length_hash_as_the_c_library_does(lengths: list[int], copies: int, seed: int) -> None:
    # Enough rows of one length take the vectorised way, few of them the loop; both must agree with the library.
    rng = np.random.default_rng(seed)
    size = np.repeat(np.array(lengths, np.int64), copies)
    rng.shuffle(size)
    ends = np.cumsum(size)
    data = rng.integers(0, 256, int(ends[-1]), dtype=np.uint8)
    seeds = rng.integers(0, 2**64, len(size), dtype=np.uint64)
    raw = data.tobytes()
    expected = [
        xxhash.xxh64_intdigest(raw[end - n : end], row_seed)
        for end, n, row_seed in zip(ends.tolist(), size.tolist(), seeds.tolist(), strict=True)
    ]
    assert xxh64.hash_bytes(data, ends - size, size, seeds).tolist() == expected
