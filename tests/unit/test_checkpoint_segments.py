"""A segment comes back as it was written, or the error says which file is damaged and how."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.checkpoint_states import COUNTS, delta, read_segment

from bedload.checkpoint.segments import MAGIC, TRAILER_BYTES, SegmentMeta, write_segment
from bedload.checkpoint.storage import Storage, open_storage
from bedload.core.errors import CheckpointDamaged, CheckpointVersion
from bedload.core.ids import OperatorName, QueryId, Turn, WorkerId

META = SegmentMeta(OperatorName("Trip"), Turn(4), WorkerId(1), 7, QueryId("q"))
BATCH = delta(COUNTS, {key: {"n": key * key} for key in range(5000)}, removed=[-1, -2])


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


@pytest.mark.parametrize("compression", ["lz4", None])
def test_a_segment_comes_back_with_its_meta(storage: Storage, compression: str | None) -> None:
    size = write_segment(storage, "deltas/a.arrow", BATCH, META, compression=compression)  # type: ignore[arg-type]
    assert size == storage.size("deltas/a.arrow")
    meta, batch = read_segment(storage, "deltas/a.arrow")
    assert meta == META
    assert batch.equals(BATCH)


def test_compression_makes_it_smaller(storage: Storage) -> None:
    assert write_segment(storage, "a", BATCH, META) < write_segment(storage, "b", BATCH, META, compression=None) / 1.5


def test_a_segment_of_no_changes_has_no_columns(storage: Storage) -> None:
    write_segment(storage, "a", None, META)
    meta, batch = read_segment(storage, "a")
    assert meta == META
    assert (batch.num_rows, batch.num_columns) == (0, 0)


def test_an_uncompressed_segment_is_read_in_place(storage: Storage) -> None:
    write_segment(storage, "a", BATCH, META, compression=None)
    before = pa.total_allocated_bytes()
    _, batch = read_segment(storage, "a")
    assert batch.num_rows == BATCH.num_rows
    assert pa.total_allocated_bytes() - before < BATCH.nbytes / 10


def test_a_segment_that_is_cut_off_anywhere_is_damaged(storage: Storage) -> None:
    write_segment(storage, "whole", BATCH.slice(0, 50), META)
    data = storage.read("whole")
    for length in [0, 1, TRAILER_BYTES - 1, TRAILER_BYTES, *range(30, len(data), 97), len(data) - 1]:
        storage.write("cut", data[:length])
        with pytest.raises(CheckpointDamaged, match=r"/cut is damaged: .*(cut off|trailer tells)"):
            read_segment(storage, "cut")


def test_every_flipped_bit_is_found(storage: Storage) -> None:
    write_segment(storage, "whole", BATCH.slice(0, 20), META)
    data = storage.read("whole")
    for at in range(0, len(data), 13):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        storage.write("flipped", bytes(flipped))
        with pytest.raises(CheckpointDamaged, match="/flipped is damaged"):
            read_segment(storage, "flipped")


def test_a_torn_segment_is_damaged_although_its_ends_are_there(storage: Storage) -> None:
    write_segment(storage, "whole", BATCH, META, compression=None)
    data = storage.read("whole")
    middle = len(data) // 2
    storage.write("zeros", data[:middle] + bytes(4096) + data[middle + 4096 :])
    with pytest.raises(CheckpointDamaged, match="checksum differs") as raised:
        read_segment(storage, "zeros")
    assert raised.value.path.endswith("/zeros")
    storage.write("gap", data[:middle] + data[middle + 4096 :])
    with pytest.raises(CheckpointDamaged, match=f"trailer tells of {len(data) - TRAILER_BYTES} bytes"):
        read_segment(storage, "gap")


def test_bytes_behind_the_segment_are_damage(storage: Storage) -> None:
    write_segment(storage, "a", BATCH, META)
    storage.write("a", storage.read("a") + b"\0")
    with pytest.raises(CheckpointDamaged, match=MAGIC.decode()):
        read_segment(storage, "a")


def test_a_segment_of_a_later_version_is_refused_as_such(storage: Storage) -> None:
    later = msgspec.structs.replace(META, version=2)
    write_segment(storage, "a", BATCH, later)
    with pytest.raises(CheckpointVersion, match="version 2"):
        read_segment(storage, "a")


def test_a_missing_segment_is_told_apart_from_a_damaged_one(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        read_segment(storage, "nowhere")
