"""The key hash: known answers of Spark's, layouts of Arrow, and what is refused."""

import datetime
import decimal
import zoneinfo

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.errors import KeyTypeError
from bedload.keys import hash_columns, hash_key

D = decimal.Decimal
UTC = datetime.UTC
NEW_YORK = zoneinfo.ZoneInfo("America/New_York")
US = pa.timestamp("us", tz="UTC")
NTZ = pa.timestamp("us")

# What `SELECT xxhash64(...)` of Spark 4.3 answers.
SPARK = [
    (True, pa.bool_(), -6698625589789238999),
    (False, pa.bool_(), 3614696996920510707),
    (-1, pa.int8(), 2017008487422258757),
    (1, pa.int32(), -6698625589789238999),
    (1, pa.int64(), -7001672635703045582),
    (-0.0, pa.float64(), -5252525462095825812),
    (float("nan"), pa.float64(), -3127944061524951246),
    (1.5, pa.float32(), 6163473420726370430),
    ("", pa.string(), -7444071767201028348),
    ("Spark", pa.string(), -4294468057691064905),
    ("日本語 and more than thirty-two bytes", pa.string(), -2078014919544737368),
    (b"\x00\xff", pa.binary(), 879945414100663330),
    (datetime.date(1969, 12, 31), pa.date32(), 2017008487422258757),
    (datetime.datetime(2024, 2, 29, 12, 30, 0, 1, UTC), US, -6102993318467816810),
    (datetime.datetime(1900, 1, 1), NTZ, 155858819934112402),
    (D("-12.34"), pa.decimal128(10, 2), -1614697014534150208),
    (D("-12.34"), pa.decimal128(38, 2), -5902959860576184235),
    (D(10) ** 37, pa.decimal128(38, 0), -5413593087337273940),
]


@pytest.mark.parametrize(("value", "data_type", "expected"), SPARK)
def test_known_answers_of_spark(value: object, data_type: pa.DataType, expected: int) -> None:
    assert hash_key(value, [data_type]) == expected
    assert hash_columns([pa.array([value], data_type)]).tolist() == [expected]


def test_columns_are_chained_and_nulls_pass_their_seed_on() -> None:
    types = [pa.int32(), pa.string()]
    columns = [pa.array([1, 1, None, None], pa.int32()), pa.array(["a", None, "a", None])]
    expected = [8205864924878002737, -6698625589789238999, -8582455328737087284, 42]
    assert hash_columns(columns).tolist() == expected
    assert [hash_key(key, types) for key in [(1, "a"), (1, None), (None, "a"), (None, None)]] == expected


def test_order_of_the_key_columns_matters() -> None:
    types = [pa.int64(), pa.int64()]
    assert hash_key((1, 2), types) != hash_key((2, 1), types)


@pytest.mark.parametrize("data_type", [pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_layout_of_strings_does_not_change_their_hash(data_type: pa.DataType) -> None:
    values = ["a", None, "", "car-17", "a", "é" * 40]
    plain, other = pa.array(values, pa.string()), pa.array(values, pa.string()).cast(data_type)
    np.testing.assert_array_equal(hash_columns([other]), hash_columns([plain]))
    np.testing.assert_array_equal(hash_columns([plain, other]), hash_columns([plain, plain]))
    assert hash_key("car-17", [data_type]) == hash_key("car-17", [pa.string()])


def test_null_inside_a_dictionary_passes_the_seed_on() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    assert hash_columns([column]).tolist() == [hash_key("a", [pa.string()]), 42, 42]


def test_dictionary_larger_than_the_column_is_hashed_right() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([2]), pa.array(["a", "b", "c"]))
    assert hash_columns([column]).tolist() == [hash_key("c", [pa.string()])]


def test_fixed_size_binary_is_hashed_as_binary() -> None:
    column = pa.array([b"abcd", None, b"wxyz"], pa.binary(4)).slice(1)
    assert hash_columns([column]).tolist() == [42, hash_key(b"wxyz", [pa.binary()])]
    assert hash_key(b"wxyz", [pa.binary(4)]) == hash_key(b"wxyz", [pa.binary()])


@pytest.mark.parametrize(
    "data_type",
    [pa.bool_(), pa.int64(), pa.float32(), pa.string(), pa.binary(3), pa.decimal128(38, 2), pa.decimal128(9, 2), US],
)
def test_no_rows_have_no_hashes(data_type: pa.DataType) -> None:
    hashes = hash_columns([pa.array([], data_type), pa.array([], pa.string())])
    assert hashes.dtype == np.int64
    assert len(hashes) == 0


def test_column_of_nulls_without_buffers_hashes_to_the_seed() -> None:
    for data_type in (pa.string(), pa.int64(), pa.bool_(), pa.float64(), pa.decimal128(38, 0), pa.decimal128(3, 0)):
        assert hash_columns([pa.nulls(3, data_type)]).tolist() == [42, 42, 42]


def test_one_instant_has_one_hash_in_every_time_zone() -> None:
    instant = datetime.datetime(2024, 7, 1, 16, tzinfo=UTC)
    assert hash_key(instant.astimezone(NEW_YORK), [US]) == hash_key(instant, [US])
    column = pa.array([instant], US).cast(pa.timestamp("us", tz="America/New_York"))
    assert hash_columns([column]).tolist() == [hash_key(instant, [US])]


def test_both_passes_of_a_repeated_hour_are_hashed_apart() -> None:
    early = datetime.datetime(2024, 11, 3, 1, 30, tzinfo=NEW_YORK, fold=0)
    late = early.replace(fold=1)
    assert hash_key(early, [US]) == hash_key(datetime.datetime(2024, 11, 3, 5, 30, tzinfo=UTC), [US])
    assert hash_key(late, [US]) == hash_key(datetime.datetime(2024, 11, 3, 6, 30, tzinfo=UTC), [US])


def test_decimals_are_exact_whatever_the_callers_context_is() -> None:
    value, data_type = D("12345678901234567890.1234567890"), pa.decimal128(38, 10)
    expected = hash_columns([pa.array([value], data_type)]).tolist()
    with decimal.localcontext(prec=3):
        assert [hash_key(value, [data_type])] == expected


@pytest.mark.parametrize(
    ("value", "same"), [(D("1.50"), D("1.5")), (D("2"), 2), (D("3E+2"), 300), (D("-0.00"), 0), (D("0E+99999999"), 0)]
)
def test_equal_decimals_have_one_hash(value: object, same: object) -> None:
    for data_type in (pa.decimal128(10, 2), pa.decimal128(30, 2)):
        assert hash_key(value, [data_type]) == hash_key(same, [data_type])


def test_numpy_scalars_are_taken_as_their_values() -> None:
    assert hash_key(np.int16(-7), [pa.int64()]) == hash_key(-7, [pa.int64()])
    assert hash_key(np.float32(0.1), [pa.float32()]) == hash_columns([pa.array([0.1], pa.float32())])[0]
    assert hash_key(np.bool_(True), [pa.bool_()]) == hash_key(True, [pa.bool_()])
    assert hash_key(np.str_("a"), [pa.string()]) == hash_key("a", [pa.string()])


REFUSED = [
    (1, pa.bool_()),
    (True, pa.int32()),
    (1.0, pa.int64()),
    ("1", pa.int64()),
    (128, pa.int8()),
    (-(2**63) - 1, pa.int64()),
    (True, pa.float64()),
    (2**53 + 1, pa.float64()),
    (10**400, pa.float64()),
    (0.1, pa.float32()),
    (1e300, pa.float32()),
    (b"a", pa.string()),
    ("\ud800", pa.string()),
    ("a", pa.binary()),
    (b"abc", pa.binary(2)),
    (datetime.datetime(2024, 1, 1), pa.date32()),
    ("2024-01-01", pa.date32()),
    (datetime.datetime(2024, 1, 1), US),
    (datetime.date(2024, 1, 1), US),
    (datetime.datetime(2024, 1, 1, tzinfo=UTC), NTZ),
    (1.5, pa.decimal128(10, 2)),
    (True, pa.decimal128(10, 2)),
    (D("1.234"), pa.decimal128(10, 2)),
    (D("0.001"), pa.decimal128(10, 2)),
    (D("1E+8"), pa.decimal128(10, 2)),
    (10**10, pa.decimal128(10, 2)),
    (D("1E+99999999"), pa.decimal128(38, 2)),
    (D("1E-99999999"), pa.decimal128(38, 2)),
    (D("NaN"), pa.decimal128(10, 2)),
    (("a",), pa.string()),
]


@pytest.mark.parametrize(("value", "data_type"), REFUSED)
def test_value_that_its_column_cannot_hold_is_refused(value: object, data_type: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match="is not a value of key column #0") as caught:
        hash_key(value, [data_type])
    assert str(data_type) in caught.value.message
    assert "give " in caught.value.message


@pytest.mark.parametrize("key", ["a", ("a",), ("a", "b", "c"), ["a", "b"], None])
def test_composite_key_must_be_a_tuple_of_all_its_columns(key: object) -> None:
    with pytest.raises(KeyTypeError, match="tuple of 2 values"):
        hash_key(key, [pa.string(), pa.string()])


def test_refusal_names_the_column_of_a_composite_key() -> None:
    with pytest.raises(KeyTypeError, match="#1"):
        hash_key((1, 2), [pa.int64(), pa.string()])


def test_a_refusal_names_the_column_if_its_name_is_known() -> None:
    with pytest.raises(
        KeyTypeError, match=r"2 \(int\) is not a value of key column 'lane', which has type string"
    ) as it:
        hash_key((1, 2), [pa.int64(), pa.string()], ["car", "lane"])
    assert it.value.column == "lane"
    with pytest.raises(KeyTypeError, match=r"the key has 2 columns \(car int64, lane string\)"):
        hash_key(1, [pa.int64(), pa.string()], ["car", "lane"])


def test_key_without_columns_is_refused() -> None:
    with pytest.raises(KeyTypeError, match="at least one column"):
        hash_columns([])
    with pytest.raises(KeyTypeError, match="at least one column"):
        hash_key((), [])


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(KeyTypeError, match="differ in length"):
        hash_columns([pa.array([1]), pa.array([1, 2])])


def test_column_that_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(KeyTypeError, match=r"'#1'.*list<"):
        hash_columns([pa.array([1]), pa.array([[1]])])
    with pytest.raises(KeyTypeError, match=r"'#0'.*list<"):
        hash_key([1], [pa.list_(pa.int64())])
