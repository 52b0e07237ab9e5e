"""The key hash against Spark itself: every key type, its edge values, and composite keys with nulls.

Each case is one DataFrame of seeded random rows. For every row, Spark's ``xxhash64`` and ``pmod`` must equal
``hash_columns`` and ``key_groups`` (whole columns), and ``hash_key`` and ``key_group`` (one key).
"""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from bedload.keys import freeze_keys, hash_columns, hash_key, key_group, key_groups

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

ROWS = 400
DAY = 86_400_000_000


def _ints(bits: int, rng: np.random.Generator) -> pa.Array:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    edges = [low, low + 1, -1, 0, 1, high - 1, high, None]
    return pa.array([*edges, *rng.integers(low, high, ROWS, endpoint=True).tolist()], f"int{bits}")


def _bools(rng: np.random.Generator) -> pa.Array:
    return pa.array([None, *rng.integers(0, 2, ROWS).astype(bool).tolist()], pa.bool_())


def _floats(bits: int, rng: np.random.Generator) -> pa.Array:
    dtype, word = (np.float32, np.uint32) if bits == 32 else (np.float64, np.uint64)
    info = np.finfo(dtype)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, info.max, info.min, info.tiny]
    edges += [info.smallest_subnormal, -info.smallest_subnormal]
    anything = rng.integers(0, 2**bits, ROWS, dtype=word).view(dtype)  # with NaNs of many payloads
    exponent = (2**8 - 1) << 23 if bits == 32 else (2**11 - 1) << 52
    nans = np.array([exponent + 1, exponent + (1 << (bits - 1)) + 7], word).view(dtype)
    values = np.concatenate([np.array(edges, dtype), nans, anything])
    return pa.concat_arrays([pa.array(values), pa.nulls(1, pa.array(values).type)])


def _texts(rng: np.random.Generator, rows: int = 3000) -> list[str | None]:
    edges = ["", "\0", "a", "é", "日本語", "🚗🚗", "e\u0301", "x" * 31, "x" * 32, "x" * 33, "ü" * 500, None]
    alphabet = np.array(list("abcXYZ019 -_éß日本🚗"))
    lengths = rng.integers(0, 60, rows)
    same = [f"car-{i:06d}" for i in rng.integers(0, 10**6, 1000)]
    return [*edges, *same, *("".join(rng.choice(alphabet, n)) for n in lengths)]


def _binaries(rng: np.random.Generator) -> list[bytes | None]:
    lengths = [0, 1, 3, 4, 7, 8, 9, 12, 15, 16, 31, 32, 33, 63, 64, 65, 95, 96, 97, 1000]
    return [None, *(rng.bytes(n) for n in lengths for _ in range(3)), *(rng.bytes(40) for _ in range(1000))]


def _dates(rng: np.random.Generator) -> pa.Array:
    edges = [datetime.date.min, datetime.date.max, datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), None]
    days = rng.integers(-700_000, 2_900_000, ROWS).astype(np.int32)
    return pa.concat_arrays([pa.array(edges, pa.date32()), pa.array(days).cast(pa.date32())])


def _timestamps(tz: str | None, rng: np.random.Generator) -> pa.Array:
    edges = [-719_162 * DAY, -DAY, -1, 0, 1, 2_932_897 * DAY - 1, None]
    micros = [*edges, *rng.integers(-719_162 * DAY, 2_932_897 * DAY, ROWS).tolist()]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz=tz))


def _decimals(precision: int, scale: int, rng: np.random.Generator) -> pa.Array:
    largest = 10**precision - 1
    unscaled = [0, 1, -1, 127, 128, -128, -129, 255, 256, -(2**15), 2**31, -(2**31), largest, -largest]
    unscaled += [u for u in (2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 2**119, -(2**119)) if abs(u) <= largest]
    for _ in range(ROWS):
        digits = "".join(map(str, rng.integers(0, 10, rng.integers(1, precision + 1))))
        unscaled.append(int(digits) * int(rng.choice([-1, 1])))
    with decimal.localcontext(prec=60):
        values = [decimal.Decimal(u).scaleb(-scale) for u in unscaled]
    return pa.array([*values, None], pa.decimal128(precision, scale))


def _single(kind: str, rng: np.random.Generator) -> pa.Array:
    match kind.split(" "):
        case ["boolean"]:
            return _bools(rng)
        case ["byte" | "short" | "int" | "long"]:
            return _ints({"byte": 8, "short": 16, "int": 32, "long": 64}[kind], rng)
        case ["float" | "double"]:
            return _floats(32 if kind == "float" else 64, rng)
        case ["string"]:
            return pa.array(_texts(rng), pa.string())
        case ["binary"]:
            return pa.array(_binaries(rng), pa.binary())
        case ["date"]:
            return _dates(rng)
        case ["timestamp"]:
            return _timestamps("UTC", rng)
        case ["timestamp_ntz"]:
            return _timestamps(None, rng)
        case ["decimal", precision, scale]:
            return _decimals(int(precision), int(scale), rng)
    raise AssertionError(kind)


SINGLE = [
    *("boolean", "byte", "short", "int", "long", "float", "double", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz"),
    *("decimal 10 2", "decimal 18 0", "decimal 18 18", "decimal 19 0", "decimal 38 10", "decimal 38 0"),
]
COMPOSITE = [
    "int,string",
    "string,long",
    "string,string",
    "boolean,byte,short",
    "float,double",
    "date,timestamp,timestamp_ntz",
    "decimal 10 2,decimal 38 10",
    "binary,decimal 38 10,string",
]


def _case(kinds: str, seed: int) -> list[pa.Array]:
    rng = np.random.default_rng(seed)
    columns = [_single(kind, rng) for kind in kinds.split(",")]
    if len(columns) == 1:
        return columns
    # Rows of a composite key draw each part, and now and then a null, on their own.
    n = 2000
    drawn = [column.take(pa.array(rng.integers(0, len(column), n))) for column in columns]
    nulls = rng.random((len(columns), n)) < 0.1
    nulls[:, 0] = True
    everything = np.arange(n)
    return [column.take(pa.array(everything, mask=mask)) for column, mask in zip(drawn, nulls, strict=True)]


def _ddl(kind: str) -> str:
    name, *arguments = kind.split(" ")
    return f"{name}({','.join(arguments)})" if arguments else name


def _hash_in_spark(spark: SparkSession, kinds: str, columns: list[pa.Array], groups: int) -> tuple[np.ndarray, ...]:
    names = [f"k{i}" for i in range(len(columns))]
    table = pa.table({"row": pa.array(np.arange(len(columns[0]))), **dict(zip(names, columns, strict=True))})
    fields = [f"{name} {_ddl(kind)}" for name, kind in zip(names, kinds.split(","), strict=True)]
    frame = spark.createDataFrame(table, StructType.fromDDL(", ".join(["row long", *fields])))
    hashed = frame.select("row", F.xxhash64(*names).alias("hash"))
    result = hashed.withColumn("kg", F.pmod("hash", F.lit(groups))).toArrow().sort_by("row")
    return result["hash"].to_numpy(), result["kg"].to_numpy()


@pytest.mark.parametrize("kinds", [*SINGLE, *COMPOSITE])
def test_hash_of_columns_and_of_single_keys_equals_sparks(spark: SparkSession, kinds: str) -> None:
    groups = 100
    columns = _case(kinds, seed=len(kinds))
    hashes, kgs = _hash_in_spark(spark, kinds, columns, groups)

    np.testing.assert_array_equal(hash_columns(columns), hashes)
    np.testing.assert_array_equal(key_groups(hash_columns(columns), groups), kgs)

    types = [column.type for column in columns]
    lists = [column.to_pylist() for column in columns]
    plain = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
    for keys in (plain, freeze_keys(columns)):
        one_by_one = [hash_key(key, types) for key in keys]
        np.testing.assert_array_equal(one_by_one, hashes)
        np.testing.assert_array_equal([key_group(h, groups) for h in one_by_one], kgs)


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_instants_that_python_cannot_hold_are_hashed_as_spark_does(spark: SparkSession, kind: str) -> None:
    if kind == "date":
        column = pa.array([-(2**31), -800_000, 3_000_000, 2**31 - 1], pa.int32()).cast(pa.date32())
    else:
        tz = "UTC" if kind == "timestamp" else None
        column = pa.array([-(2**62), -800_000 * DAY, 3_000_000 * DAY, 2**62]).cast(pa.timestamp("us", tz=tz))
    hashes, _ = _hash_in_spark(spark, kind, [column], 256)
    np.testing.assert_array_equal(hash_columns([column]), hashes)


@pytest.mark.parametrize("groups", [1, 2, 7, 256, 32768])
def test_key_groups_equal_sparks_pmod_for_every_number_of_groups(spark: SparkSession, groups: int) -> None:
    column = _ints(64, np.random.default_rng(groups))
    hashes, kgs = _hash_in_spark(spark, "long", [column], groups)
    np.testing.assert_array_equal(key_groups(hashes, groups), kgs)


def test_rows_that_spark_groups_together_are_one_frozen_key(spark: SparkSession) -> None:
    rng = np.random.default_rng(7)
    floats, texts = _floats(64, rng), _single("string", rng)
    n = len(floats)
    columns = [floats.take(pa.array(rng.integers(0, 20, n))), texts.take(pa.array(rng.integers(0, 3, n)))]
    frame = spark.createDataFrame(pa.table(dict(zip("ab", columns, strict=True))))
    assert frame.groupBy("a", "b").count().count() == len(set(freeze_keys(columns)))
