"""Keys as Python objects: equal where Spark's are, different where they are not."""

import datetime
import decimal
import math
import zoneinfo

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.errors import DataError, KeyTypeError
from bedload.keys import NAN, canonical_key, check_key_type, freeze_keys

UTC = datetime.UTC
NEW_YORK = zoneinfo.ZoneInfo("America/New_York")
US = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64()])
def test_every_nan_is_the_one_nan_and_minus_zero_is_zero(data_type: pa.DataType) -> None:
    word, bits = (np.uint32, 0x7F800000) if data_type == pa.float32() else (np.uint64, 0x7FF0000000000000)
    nans = np.array([bits + 1, bits + (bits & -bits) // 2], word).view(data_type.to_pandas_dtype())
    frozen = freeze_keys([pa.concat_arrays([pa.array(nans), pa.array([-0.0, None, 1.5], data_type)])])
    assert frozen[0] is NAN
    assert frozen[1] is NAN
    assert math.copysign(1, frozen[2]) == 1
    assert frozen[3:] == [None, 1.5]


def test_composite_keys_with_nan_are_found_in_a_dict() -> None:
    columns = [pa.array([float("nan"), 1.0]), pa.array(["a", None])]
    index = {key: i for i, key in enumerate(freeze_keys(columns))}
    assert [index[key] for key in freeze_keys(columns)] == [0, 1]
    assert index[canonical_key((float("nan"), "a"))] == 0


def test_one_column_gives_scalars_and_several_give_tuples() -> None:
    column = pa.array(["a", None])
    assert freeze_keys([column]) == ["a", None]
    assert freeze_keys([column, column]) == [("a", "a"), (None, None)]


def test_integers_with_nulls_keep_all_their_digits() -> None:
    assert freeze_keys([pa.array([2**63 - 1, None, -(2**63)])]) == [2**63 - 1, None, -(2**63)]


def test_keys_are_python_objects_not_numpy_ones() -> None:
    columns = {pa.bool_(): True, pa.int8(): 1, pa.int64(): 1, pa.float32(): 0.5}
    for data_type, value in columns.items():
        (key,) = freeze_keys([pa.array([value], data_type)])
        assert type(key) is type(value)


def test_dictionary_encoded_keys_are_the_plain_ones() -> None:
    plain = pa.array(["a", "b", None, "a"])
    assert freeze_keys([plain.dictionary_encode()]) == plain.to_pylist()
    with_null = pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array(["x", None]))
    assert freeze_keys([with_null]) == [None, "x", None]
    large = pa.DictionaryArray.from_arrays(pa.array([1]), pa.array(["x", "y", "z"]))
    assert freeze_keys([large]) == ["y"]


def test_instants_of_a_repeated_hour_stay_two_keys() -> None:
    instants = [datetime.datetime(2024, 11, 3, hour, 30, tzinfo=UTC) for hour in (5, 6)]
    column = pa.array(instants, US).cast(pa.timestamp("us", tz="America/New_York"))
    assert len(set(freeze_keys([column]))) == 2
    given = [instant.astimezone(NEW_YORK) for instant in instants]
    assert [canonical_key(key) for key in given] == freeze_keys([column])


def test_key_given_in_another_zone_finds_the_frozen_one() -> None:
    (key,) = freeze_keys([pa.array([datetime.datetime(2024, 7, 1, 16, tzinfo=UTC)], US)])
    assert {key: "found"}[canonical_key(datetime.datetime(2024, 7, 1, 12, tzinfo=NEW_YORK))] == "found"


@pytest.mark.parametrize(
    ("data_type", "edges"),
    [
        (pa.date32(), [datetime.date.min, datetime.date.max]),
        (pa.timestamp("us"), [datetime.datetime.min, datetime.datetime.max]),
        (US, [datetime.datetime.min.replace(tzinfo=UTC), datetime.datetime.max.replace(tzinfo=UTC)]),
    ],
)
def test_first_and_last_instant_of_python_are_keys_and_what_is_beyond_is_refused(
    data_type: pa.DataType, edges: list[object]
) -> None:
    column = pa.array(edges, data_type)
    assert freeze_keys([column]) == edges
    raw = pa.int32() if data_type == pa.date32() else pa.int64()
    low, high = column.view(raw).to_pylist()
    for outside in (low - 1, high + 1):
        with pytest.raises(DataError, match=f"holds {outside}, which is not between"):
            freeze_keys([pa.array([0, outside], raw).view(data_type)])


def test_what_stands_under_a_null_does_not_matter() -> None:
    validity = pa.py_buffer(b"\x01")
    data = pa.py_buffer(np.array([0, 2**62], np.int64))
    for data_type in (US, pa.timestamp("us")):
        column = pa.Array.from_buffers(data_type, 2, [validity, data])
        first, second = freeze_keys([column])
        assert isinstance(first, datetime.datetime)
        assert second is None


def test_string_that_is_not_utf8_is_refused() -> None:
    offsets, data = pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")
    with pytest.raises(DataError, match="not valid UTF-8"):
        freeze_keys([pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])])


def test_decimals_and_binary_are_what_python_calls_them() -> None:
    assert freeze_keys([pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2))]) == [
        decimal.Decimal("1.5"),
        None,
    ]
    assert freeze_keys([pa.array([b"\x00", None])]) == [b"\x00", None]
    assert freeze_keys([pa.array([b"ab"], pa.binary(2))]) == [b"ab"]


def test_canonical_key_makes_mutable_bytes_hashable_and_numpy_scalars_plain() -> None:
    assert canonical_key(bytearray(b"ab")) == b"ab"
    assert canonical_key(memoryview(b"ab")) == b"ab"
    assert type(canonical_key(np.int64(3))) is int
    assert canonical_key(np.float64("nan")) is NAN
    assert math.copysign(1, canonical_key(-0.0)) == 1  # type: ignore[arg-type]
    assert canonical_key(None) is None


def test_canonical_key_refuses_an_instant_that_utc_cannot_hold() -> None:
    east = datetime.timezone(datetime.timedelta(hours=5))
    with pytest.raises(KeyTypeError, match="out of the range"):
        canonical_key(datetime.datetime.min.replace(tzinfo=east))


def test_keys_without_columns_are_refused() -> None:
    with pytest.raises(KeyTypeError, match="at least one column"):
        freeze_keys([])


@pytest.mark.parametrize(
    ("data_type", "advice"),
    [
        (pa.map_(pa.string(), pa.int64()), "does not group by maps"),
        (pa.struct([("a", pa.int64())]), "fields of the struct"),
        (pa.list_(pa.int64()), "elements"),
        (pa.list_(pa.int64(), 2), "elements"),
        (pa.uint32(), "unsigned"),
        (pa.timestamp("ns"), r"timestamp\[us\]"),
        (pa.timestamp("ms", tz="UTC"), r"timestamp\[us\]"),
        (pa.date64(), "date32"),
        (pa.float16(), "cast it"),
        (pa.null(), "cast it"),
        (pa.duration("us"), "cast it"),
        (pa.time64("us"), "cast it"),
        (pa.decimal128(5, -2), "cast it"),
        (pa.decimal256(50, 2), "cast it"),
        (pa.dictionary(pa.int32(), pa.uint8()), "unsigned"),
    ],
)
def test_type_that_cannot_be_a_key_is_refused_by_name_with_advice(data_type: pa.DataType, advice: str) -> None:
    with pytest.raises(KeyTypeError, match=advice) as caught:
        check_key_type(data_type, "car")
    assert "'car'" in caught.value.message
    assert caught.value.column == "car"
    assert caught.value.type in caught.value.message


@pytest.mark.parametrize(
    "data_type",
    [pa.bool_(), pa.int8(), pa.string(), pa.large_binary(), pa.binary(4), pa.date32(), US, pa.decimal128(38, 38)],
)
def test_type_that_can_be_a_key_is_let_through(data_type: pa.DataType) -> None:
    check_key_type(data_type)
    check_key_type(pa.dictionary(pa.int32(), data_type))
