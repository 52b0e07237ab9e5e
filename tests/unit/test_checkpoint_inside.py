"""Nothing that a file says leads out of the checkpoint, and a file that is put in another one's place is found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.checkpoint_states import COUNTS, ME, OPERATOR, Writer, collect_garbage, delta, rows_of

from bedload.checkpoint import paths
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import compact, restore_at
from bedload.checkpoint.intact import newest_intact
from bedload.checkpoint.local_storage import LocalStorage
from bedload.checkpoint.records import FileInfo, Manifest, SnapshotPart, TurnRecord, decode, encode, manifest_of
from bedload.checkpoint.storage import Storage, open_storage
from bedload.checkpoint.strays import stray_files
from bedload.core.errors import CheckpointDamaged
from bedload.core.ids import OperatorName, Turn, WorkerId

OUTSIDE = [
    "../../../../../victim.txt",
    "/etc/passwd",
    "n/../../../../../../victim.parquet",
    "n/part-0/../../../victim.parquet",
    "n\\..\\part-1.parquet",
    "../0000000001-0000000002/n/part-00000.parquet",
    "./part-0.parquet",
    "part-0.parquet",
    "n//part-0.parquet",
    "n/part-0.parquet\0",
    "n/.part-0.parquet",
    "manifest.json",
    "",
]
OTHER = OperatorName("Other")


class Stored:
    """An operator of six epochs, with a snapshot of the fourth, beside a file that is nobody's business."""

    def __init__(self, tmp: Path, operator: OperatorName = OPERATOR, factor: int = 1) -> None:
        self.victim = tmp / "victim.txt"
        self.victim.write_text("precious")
        self.root = tmp / "checkpoint"
        self.storage = LocalStorage(self.root)
        self.checkpoint = Checkpoint.open(self.storage, ME)
        if self.checkpoint.newest_generation() is None:
            self.checkpoint.claim()
        self.checkpoint.add_schema(operator, COUNTS)
        self.writer = Writer(self.storage, COUNTS, operator=operator)
        self.operator = operator
        for epoch in range(6):
            record = self.writer.turn(delta(COUNTS, {car: {"n": epoch * factor} for car in range(10)}))
            self.checkpoint.write_turn(operator, record)
            if epoch == 3:
                self.snapshot(record)

    def snapshot(self, record: TurnRecord) -> Manifest:
        made = manifest_of(record, COUNTS, compact(self.storage, self.operator, record.turn))
        self.checkpoint.write_manifest(self.operator, made)
        return made

    def turn(self, epoch: int) -> Turn:
        return self.writer.records[epoch].turn

    def path(self, epoch: int) -> Path:
        return self.root / paths.turn(self.operator, self.turn(epoch))

    def manifest(self) -> Path:
        return self.root / paths.manifest(self.operator, self.turn(3))


def tampered(data: bytes, before: str, after: str) -> bytes:
    """A record as somebody who knows the format writes it: with the checksum that it needs."""
    plain: dict[str, Any] = msgspec.json.decode(data)
    plain.pop("xxh3")
    text = msgspec.json.encode(plain).decode()
    assert before in text
    return text.replace(before, after).encode()


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_file_of_a_snapshot_lies_in_its_folder(path: str) -> None:
    with pytest.raises(ValueError, match="not that of a file in a snapshot's folder"):
        FileInfo(path=path, bytes=1, xxh3="0" * 16)


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_manifest_that_names_a_file_elsewhere_is_damaged_and_nothing_is_deleted(tmp_path: Path, path: str) -> None:
    stored = Stored(tmp_path)
    data = stored.manifest().read_bytes()
    name = next(iter(decode(Manifest, data, "").parts[0].files.values())).path
    bad = msgspec.json.encode(path).decode()[1:-1]
    stored.manifest().write_bytes(tampered(data, name, bad))
    reader = Checkpoint.open(stored.storage, ME)
    with pytest.raises(CheckpointDamaged, match="snapshot's folder"):
        reader.load_history(OPERATOR)
    with pytest.raises(CheckpointDamaged):
        restore_at(reader, OPERATOR, stored.turn(5))
    with pytest.raises(CheckpointDamaged):
        reader.export(open_storage(str(tmp_path / "export")))
    assert newest_intact(stored.storage, OPERATOR) is not None
    assert stored.victim.read_text() == "precious"


@pytest.mark.parametrize("path", ["../victim.txt", "/victim.txt", "a/../../victim.txt", "..", "a\\..\\..\\victim.txt"])
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_no_storage_reads_writes_or_deletes_outside_of_its_root(tmp_path: Path, kind: str, path: str) -> None:
    (tmp_path / "victim.txt").write_text("precious")
    storage = open_storage(str(tmp_path / "root") if kind == "local" else f"memory://{tmp_path.name}/root")
    calls: list[Any] = [
        lambda: storage.read(path),
        lambda: storage.write(path, b"x"),
        lambda: storage.create(path, b"x"),
        lambda: storage.exists(path),
        lambda: storage.list(path),
        lambda: storage.sizes(path),
        lambda: storage.size(path),
        lambda: storage.delete(["fine", path]),
    ]
    for call in calls:
        with pytest.raises(CheckpointDamaged, match="leads out of"):
            call()
    assert (tmp_path / "victim.txt").read_text() == "precious"


def test_names_with_dots_in_them_are_names(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("a..b/c..", b"x")
    assert storage.read("a..b/c..") == b"x"


# --- links ---


def test_nothing_is_deleted_behind_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept = elsewhere / "part-00000.parquet"
    kept.write_text("precious")
    root = tmp_path / "root"
    storage: Storage = LocalStorage(root)
    storage.write("folder/file", b"x")
    (root / "folder" / "n").symlink_to(elsewhere)
    with pytest.raises(CheckpointDamaged, match="a link to"):
        storage.delete(["folder/file", "folder/n/part-00000.parquet"])
    assert kept.read_text() == "precious"
    assert storage.exists("folder/file"), "nothing is deleted before all is known to be inside"
    (root / "other").symlink_to(root / "folder")
    with pytest.raises(CheckpointDamaged, match="a link to"):
        storage.delete(["other/file"])


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    storage = LocalStorage(tmp_path / "root")
    storage.write("folder/file", b"x")
    storage.delete(["folder/file"])
    assert not storage.exists("folder/file")


def test_a_link_that_is_a_file_goes_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    storage = LocalStorage(tmp_path / "root")
    storage.write("file", b"x")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "victim")
    storage.delete(["link"])
    assert (tmp_path / "victim").read_text() == "precious"
    assert storage.list("") == ["file"]


def test_of_an_unfinished_snapshot_only_what_a_snapshot_has_is_swept(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    folder = paths.snapshot(OPERATOR, stored.turn(0))
    stored.storage.write(f"{folder}/n/part-00000-x.parquet", b"left behind")
    stored.storage.write(f"{folder}/n/notes.txt", b"somebody's")
    stored.storage.write(f"{folder}/deep/er/part-00000-x.parquet", b"somebody's")
    assert stray_files(stored.storage, folder, ()) == [f"{folder}/n/part-00000-x.parquet"]
    stored.snapshot(stored.writer.records[4])
    history = stored.checkpoint.load_history(OPERATOR)
    collect_garbage(stored.checkpoint, OPERATOR, history, 1)
    assert not stored.storage.exists(f"{folder}/n/part-00000-x.parquet")
    assert stored.storage.exists(f"{folder}/n/notes.txt")
    assert stored.storage.exists(f"{folder}/deep/er/part-00000-x.parquet")


# --- files in each other's place ---


def state(stored: Stored, operator: OperatorName) -> dict[Any, Any]:
    restore, _ = restore_at(Checkpoint.open(stored.storage, ME), operator, stored.turn(5))
    return {car: row["n"] for car, row in rows_of(restore.table()).items()}


SWAPPED = {
    "turn records of two operators": lambda a, b: (a.path(4), b.path(4)),
    "turn records of two epochs": lambda a, b: (a.path(4), a.path(5)),
    "manifests of two operators": lambda a, b: (a.manifest(), b.manifest()),
    "snapshots of two operators": lambda a, b: (a.manifest().parent, b.manifest().parent),
    "segments of two operators": lambda a, b: tuple(
        x.root / paths.delta(x.operator, x.turn(4), WorkerId(0)) for x in (a, b)
    ),
    "segments of two workers": lambda a, b: tuple(
        a.root / paths.delta(OPERATOR, a.turn(5), WorkerId(worker)) for worker in (0, 1)
    ),
}


@pytest.mark.parametrize("what", SWAPPED)
def test_files_that_changed_places_are_found(tmp_path: Path, what: str) -> None:
    ours, others = Stored(tmp_path), Stored(tmp_path, OTHER, factor=100)
    assert state(ours, OPERATOR) == dict.fromkeys(range(10), 5)
    assert state(others, OTHER) == dict.fromkeys(range(10), 500)
    one, two = SWAPPED[what](ours, others)
    aside = tmp_path / "aside"
    shutil.move(one, aside)
    shutil.move(two, one)
    shutil.move(aside, two)
    with pytest.raises(CheckpointDamaged):
        state(ours, OPERATOR)


def test_a_schema_in_the_place_of_another_is_found(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    first = stored.storage.read(paths.schema(OPERATOR, 1))
    stored.storage.write(paths.schema(OPERATOR, 2), first)
    with pytest.raises(CheckpointDamaged, match="is schema 1"):
        Checkpoint.open(stored.storage).schemas(OPERATOR)


# --- records that say what cannot be ---


def test_owners_that_cannot_be_are_damage(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    record = stored.writer.records[5]
    plain: dict[str, Any] = msgspec.json.decode(encode(record))
    plain.pop("xxh3")
    for owners in ([[0, 10**12]], [[0, -1]], [[0, 8], [1, 0]]):
        stored.path(5).write_bytes(msgspec.json.encode(plain | {"owners": owners}))
        with pytest.raises(CheckpointDamaged, match="key groups"):
            Checkpoint.open(stored.storage).load_history(OPERATOR)
    stored.path(5).write_bytes(msgspec.json.encode(plain | {"owners": [[0, 2]]}))
    with pytest.raises(CheckpointDamaged, match="owners of 2 key groups"):
        state(stored, OPERATOR)


@pytest.mark.parametrize("groups", [(), (0, 1, 2), (0, 0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 4, 5, 6, 7, 8)])
def test_a_snapshot_that_does_not_have_each_key_group_once_is_damaged(tmp_path: Path, groups: tuple[int, ...]) -> None:
    stored = Stored(tmp_path)
    found = decode(Manifest, stored.manifest().read_bytes(), "")
    part = found.parts[0]
    parts = (SnapshotPart(groups=groups, rows=part.rows, files=part.files),) if groups else ()
    stored.manifest().write_bytes(encode(msgspec.structs.replace(found, parts=parts)))
    with pytest.raises(CheckpointDamaged, match="key groups"):
        state(stored, OPERATOR)
