"""Snapshots come back exactly, other programs read them as plain Parquet, and damage is named."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from tests.checkpoint_states import COUNTS, groups_of_keys, read_part, rows_of, schema_of, state

from bedload.checkpoint.parquet_types import stored_type
from bedload.checkpoint.records import FileInfo, OperatorSchema, SnapshotPart
from bedload.checkpoint.snapshots import PartReader, write_part, write_parts
from bedload.checkpoint.storage import Storage, open_storage
from bedload.checkpoint.strays import stray_files
from bedload.core.errors import CheckpointDamaged, StateTypeError
from bedload.store.deltas import GROUP

FOLDER = "operators/Trip/snapshots/x"
TRIPS = schema_of(
    {"car": pa.string()}, {"n": pa.int64(), "seen": pa.map_(pa.string(), pa.list_(pa.duration("us")))}, groups=16
)
ROWS: dict[Any, Any] = {
    f"car-{i}": {"n": i, "seen": [(f"s{j}", [dt.timedelta(seconds=j)]) for j in range(i % 3)]} for i in range(300)
}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def file_of(storage: Storage, part: SnapshotPart, variable: str) -> str:
    return f"{storage.url.removeprefix('file://')}/{FOLDER}/{part.files[variable].path}"


def test_a_part_comes_back_whole_and_by_key_group(storage: Storage) -> None:
    batch = state(TRIPS, ROWS)
    part = write_part(storage, FOLDER, TRIPS, batch)
    assert part.rows == 300
    assert read_part(storage, FOLDER, TRIPS, part, range(16)).equals(batch)
    some = read_part(storage, FOLDER, TRIPS, part, [3, 11])
    assert rows_of(some) == {key: row for key, row in ROWS.items() if groups_of_keys(TRIPS, [key])[0] in (3, 11)}


def test_only_the_files_of_the_variables_asked_for_are_read(storage: Storage) -> None:
    part = write_part(storage, FOLDER, TRIPS, state(TRIPS, ROWS))
    storage.delete([f"{FOLDER}/{part.files['seen'].path}"])
    assert rows_of(read_part(storage, FOLDER, TRIPS, part, range(16), ["n"])) == {
        key: {"n": row["n"]} for key, row in ROWS.items()
    }
    assert rows_of(read_part(storage, FOLDER, TRIPS, part, range(16), [])) == {key: {} for key in ROWS}


def test_a_file_is_read_once_however_many_groups_are_asked_for(storage: Storage) -> None:
    part = write_part(storage, FOLDER, TRIPS, state(TRIPS, ROWS))
    reader = PartReader(storage, FOLDER, TRIPS, part)
    first = reader.read([0])
    storage.delete([f"{FOLDER}/{info.path}" for info in part.files.values()])
    rest = reader.read(range(1, 16))
    assert first.num_rows + rest.num_rows == 300


def test_key_groups_without_keys_belong_to_the_part(storage: Storage) -> None:
    one = {"car-1": ROWS["car-1"]}
    part = write_part(storage, FOLDER, TRIPS, state(TRIPS, one), range(16))
    assert part.groups == tuple(range(16))
    assert rows_of(read_part(storage, FOLDER, TRIPS, part, range(16))) == one


def test_a_part_without_keys_has_no_files(storage: Storage) -> None:
    part = write_part(storage, FOLDER, TRIPS, state(TRIPS, {}), [1, 2])
    assert part == SnapshotPart(groups=(1, 2), rows=0, files={})
    assert read_part(storage, FOLDER, TRIPS, part, [1]).num_rows == 0


def test_an_operator_without_variables_keeps_its_keys(storage: Storage) -> None:
    schema = schema_of({"k": pa.int64()}, {})
    part = write_part(storage, FOLDER, schema, state(schema, {1: {}, 2: {}}))
    assert rows_of(read_part(storage, FOLDER, schema, part, range(8))) == {1: {}, 2: {}}


def test_a_key_group_is_a_row_group_that_filters_can_skip(storage: Storage) -> None:
    part = write_part(storage, FOLDER, TRIPS, state(TRIPS, ROWS))
    metadata = pq.read_metadata(file_of(storage, part, "n"))
    assert metadata.num_row_groups == len(part.groups)
    for i, group in enumerate(part.groups):
        statistics = metadata.row_group(i).column(0).statistics
        assert (statistics.min, statistics.max) == (group, group)


def test_pandas_and_duckdb_read_typed_columns_under_the_users_names(storage: Storage) -> None:
    part = write_part(storage, FOLDER, TRIPS, state(TRIPS, ROWS))
    frame = pd.read_parquet(file_of(storage, part, "n"))
    assert list(frame.columns) == [GROUP, "car", "n"]
    assert dict(zip(frame["car"], frame["n"], strict=True)) == {key: row["n"] for key, row in ROWS.items()}
    folder = Path(file_of(storage, part, "n")).parent
    query = f"select sum(n), count(*), any_value(typeof(car)) from '{folder}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(sum(range(300)), 300, "VARCHAR")]
    seen = file_of(storage, part, "seen")
    (found,) = duckdb.sql(f"select seen['s1'] from '{seen}' where car = 'car-2'").fetchall()
    assert found == ([1_000_000],)


def test_pages_have_checksums(storage: Storage) -> None:
    part = write_part(storage, FOLDER, COUNTS, state(COUNTS, {key: {"n": key} for key in range(1000)}))
    path = file_of(storage, part, "n")
    data = bytearray(Path(path).read_bytes())
    values = pq.read_metadata(path).row_group(0).column(2)
    data[values.data_page_offset + values.total_compressed_size - 1] ^= 0xFF
    Path(path).write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, page_checksum_verification=True)


@pytest.mark.parametrize(
    ("names", "variable", "expected"),
    [
        (("n", "m"), "n", ["key_n", "m", "n"]),
        (("N", "key_N"), "n", ["key_key_N", "key_N", "n"]),
        (("bedload_group",), "x", ["key_bedload_group", "x"]),
    ],
)
def test_a_key_named_as_the_variable_gets_a_prefix(
    storage: Storage, names: tuple[str, ...], variable: str, expected: list[str]
) -> None:
    schema = schema_of(dict.fromkeys(names, pa.int64()), {variable: pa.int64()})
    key = (1, 2)[: len(names)] if len(names) > 1 else 1
    batch = state(schema, {key: {variable: 3}})
    part = write_part(storage, FOLDER, schema, batch)
    assert pq.read_schema(file_of(storage, part, variable)).names == [GROUP, *expected]
    assert read_part(storage, FOLDER, schema, part, range(8)).equals(batch)


TYPES: list[tuple[pa.DataType, Any]] = [
    (pa.struct([]), {}),
    (pa.list_(pa.struct([])), [{}, {}]),
    (pa.float16(), 1.5),
    (pa.list_(pa.float16()), [0.5]),
    (pa.timestamp("s"), dt.datetime(2020, 1, 1)),
    (pa.timestamp("ns", "UTC"), None),
    (pa.date64(), dt.date(2020, 1, 1)),
    (pa.duration("ns"), None),
    (pa.duration("us"), dt.timedelta(microseconds=-1)),
    (pa.decimal256(60, 3), Decimal(10**50)),
    (pa.decimal128(38, 3), Decimal("1.500")),
    (pa.dictionary(pa.int8(), pa.string()), "a"),
    (pa.large_list(pa.large_string()), ["a", None]),
    (pa.list_(pa.int8(), 2), [1, 2]),
    (pa.time64("us"), dt.time(1, 2, 3)),
    (pa.list_(pa.time32("s")), [dt.time(1, 2, 3)]),
    (pa.uint64(), 2**64 - 1),
    (pa.binary(), b"\0"),
    (pa.map_(pa.struct([("a", pa.timestamp("us"))]), pa.map_(pa.int64(), pa.struct([]))), [({"a": None}, [(1, {})])]),
]


@pytest.mark.parametrize(("kind", "value"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_types_that_parquet_or_spark_does_not_have_come_back(storage: Storage, kind: pa.DataType, value: Any) -> None:
    schema = schema_of({"k": pa.int64()}, {"x": kind})
    batch = state(schema, {1: {"x": value}, 2: {"x": None}, 3: {"x": value}})
    part = write_part(storage, FOLDER, schema, batch)
    back = read_part(storage, FOLDER, schema, part, range(8))
    assert back.equals(batch)
    assert str(back.schema.field("x").type) == str(kind)


def test_nanoseconds_come_back_from_numbers(storage: Storage) -> None:
    schema = schema_of({"k": pa.int64()}, {"x": pa.timestamp("ns")})
    batch = state(schema, {1: {}}).set_column(2, "x", pa.array([1_600_000_000_000_000_001], pa.timestamp("ns")))
    part = write_part(storage, FOLDER, schema, batch)
    assert pq.read_schema(file_of(storage, part, "x")).field("x").type == pa.int64()
    assert read_part(storage, FOLDER, schema, part, range(8)).equals(batch)


@pytest.mark.parametrize(
    "kind",
    [pa.null(), pa.string_view(), pa.dense_union([pa.field("a", pa.int64())]), pa.list_(pa.month_day_nano_interval())],
)
def test_a_type_that_nobody_else_could_read_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(StateTypeError, match="cannot be stored in Parquet"):
        stored_type(kind)


def test_damaged_files_are_named(storage: Storage) -> None:
    part = write_part(storage, FOLDER, COUNTS, state(COUNTS, {key: {"n": key} for key in range(100)}))
    path = f"{FOLDER}/{part.files['n'].path}"
    data = storage.read(path)

    def read() -> None:
        read_part(storage, FOLDER, COUNTS, part, range(8))

    storage.write(path, data[:-1])
    with pytest.raises(CheckpointDamaged, match=rf"part-00000-.*{len(data) - 1} bytes, and {len(data)} were written"):
        read()
    for at in (0, len(data) // 2, len(data) - 1):
        storage.write(path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CheckpointDamaged, match="checksum differs"):
            read()
    storage.delete([path])
    with pytest.raises(CheckpointDamaged, match="it is not there"):
        read()


def test_a_row_group_of_two_key_groups_is_damage(storage: Storage) -> None:
    part = write_part(storage, FOLDER, COUNTS, state(COUNTS, {key: {"n": key} for key in range(100)}))
    sink = pa.BufferOutputStream()
    path = part.files["n"].path
    pq.write_table(pq.read_table(pa.BufferReader(storage.read(f"{FOLDER}/{path}"))), sink)
    data = sink.getvalue()
    storage.write(f"{FOLDER}/{path}", data)
    other = FileInfo(path=path, bytes=data.size, xxh3=xxhash.xxh3_64_hexdigest(data))
    with pytest.raises(CheckpointDamaged, match="row group 0 has the key groups 0 to 7"):
        read_part(storage, FOLDER, COUNTS, msgspec.structs.replace(part, files={"n": other}), range(8))


def test_a_snapshot_of_another_schema_is_refused(storage: Storage) -> None:
    part = write_part(storage, FOLDER, COUNTS, state(COUNTS, {1: {"n": 1}}))
    more = schema_of({"car": pa.int64()}, {"n": pa.int64(), "m": pa.int64()})
    with pytest.raises(CheckpointDamaged, match="no file of variable 'm'"):
        read_part(storage, FOLDER, more, part, range(8))
    other = schema_of({"car": pa.int64()}, {"n": pa.list_(pa.int64())})
    with pytest.raises(CheckpointDamaged, match="'n' is int64, and not list"):
        read_part(storage, FOLDER, other, part, range(8))


def chunks_of(schema: OperatorSchema, batch: pa.RecordBatch, groups: list[list[int]]) -> Any:
    for some in groups:
        mask = [group in some for group in batch.column(GROUP).to_pylist()]
        yield tuple(some), batch.filter(pa.array(mask))


def test_parts_are_cut_by_size_and_never_within_a_key_group(storage: Storage) -> None:
    schema = schema_of({"k": pa.int64()}, {"x": pa.string()}, groups=8)
    rows = {key: {"x": "x" * 100} for key in range(800)}
    batch = state(schema, rows)
    chunks = chunks_of(schema, batch, [[0, 1, 2, 3], [4], [7, 6, 5]])
    parts = write_parts(storage, FOLDER, schema, chunks, target_bytes=batch.nbytes // 4)
    assert len(parts) > 3
    assert sorted(group for part in parts for group in part.groups) == list(range(8))
    found: dict[Any, Any] = {}
    for part in parts:
        found |= rows_of(read_part(storage, FOLDER, schema, part, part.groups))
    assert found == rows


def test_small_chunks_share_a_part(storage: Storage) -> None:
    batch = state(COUNTS, {key: {"n": key} for key in range(100)})
    chunks = chunks_of(COUNTS, batch, [[4, 5], [0, 1], [2, 3, 6, 7]])
    (part,) = write_parts(storage, FOLDER, COUNTS, chunks)
    assert part.groups == tuple(range(8))
    assert rows_of(read_part(storage, FOLDER, COUNTS, part, range(8))) == {key: {"n": key} for key in range(100)}


def test_no_keys_at_all_still_make_a_part_that_covers_the_groups(storage: Storage) -> None:
    (part,) = write_parts(storage, FOLDER, COUNTS, [((0, 1), state(COUNTS, {})), ((2,), state(COUNTS, {}))])
    assert part == SnapshotPart(groups=(0, 1, 2), rows=0, files={})


def test_another_attempt_never_overwrites_and_what_it_left_is_found(storage: Storage) -> None:
    first = write_part(storage, FOLDER, COUNTS, state(COUNTS, {1: {"n": 1}, 2: {"n": 2}}), range(8))
    again = write_part(storage, FOLDER, COUNTS, state(COUNTS, {1: {"n": 1}}), range(8))
    assert rows_of(read_part(storage, FOLDER, COUNTS, first, range(8))) == {1: {"n": 1}, 2: {"n": 2}}
    assert stray_files(storage, FOLDER, [first]) == [f"{FOLDER}/{again.files['n'].path}"]
    assert stray_files(storage, FOLDER, [first, again]) == []
