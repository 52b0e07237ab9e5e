"""Folders of workers on a local disk: locks, what is left behind, and a RocksDB that is damaged or not installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from tests.patience import PATIENCE

from bedload.core.errors import DefinitionError, LocalDiskError
from bedload.core.ids import WorkerId
from bedload.worker.local_stores import LEAST, LocalStores, RocksDisk, remove_folders
from bedload.worker.memory import store_share


def stores(folder: Path, attachment: str = "aaaa", worker: int = 0) -> LocalStores:
    return LocalStores(WorkerId(worker), attachment, LEAST, str(folder))


def opened(made: LocalStores, operator: str = "op") -> RocksDisk:
    disk = made.open(operator)
    assert isinstance(disk, RocksDisk)
    return disk


def test_a_disk_gives_back_what_was_put_there(tmp_path: Path) -> None:
    made = stores(tmp_path)
    disk = opened(made)
    assert disk.write([(b"ga1", b"x"), (b"ga2", b"y"), (b"gb1", b"z")]) > 0
    assert disk.get([b"ga2", b"none", b"ga1"]) == [b"y", None, b"x"]
    assert list(disk.names(b"ga")) == [b"ga1", b"ga2"]
    disk.write([(b"ga3", b"w")], [b"ga1"])
    assert list(disk.names(b"ga")) == [b"ga2", b"ga3"]
    disk.drop(b"ga")
    assert disk.get([b"ga2", b"gb1"]) == [None, b"z"]
    assert disk.size() > 0
    again = opened(made)
    assert again.get([b"gb1"]) == [None], "what is opened again is empty"
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_operators_share_what_is_for_buffers(tmp_path: Path) -> None:
    made = stores(tmp_path)
    assert made.cache.most == LEAST, "columns need none"
    disks = [opened(made, f"op{number}") for number in range(3)]
    assert made.cache.most < LEAST
    for begin in range(0, 6000, 100):
        for disk in disks:
            disk.write((b"%06d" % number, bytes(1000)) for number in range(begin, begin + 100))
    assert made._buffers.get_buffer_size() == LEAST // 8
    limit = time.monotonic() + PATIENCE  # what is full is written beside this
    while made._buffers.get_usage() >= 3 * LEAST // 8:
        assert time.monotonic() < limit, "what is full was not written"
        time.sleep(0.01)
    made.close()


def test_nothing_is_there_before_somebody_needs_it(tmp_path: Path) -> None:
    made = stores(tmp_path)
    assert made.lost is None
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_process_has_left_is_removed_and_what_one_has_is_not(tmp_path: Path) -> None:
    dead = tmp_path / "bedload-state-bbbb-3-1"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "rubbish").write_text("x")
    theirs = tmp_path / "something else"
    theirs.mkdir()
    one, two = stores(tmp_path, worker=0), stores(tmp_path, worker=1)
    one.prepare()
    two.prepare()
    assert not dead.exists()
    assert theirs.exists()
    assert len(list(tmp_path.glob("bedload-state-aaaa-*"))) == 2
    one.close()
    assert len(list(tmp_path.glob("bedload-state-aaaa-*"))) == 1
    two.close()


def test_a_folder_that_another_attachment_uses_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "bedload-state-bbbb-0-1"
    other.mkdir()
    lock = os.open(other / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(LocalDiskError, match="in use by another attachment"):
        stores(tmp_path).prepare()
    shared = LocalStores(WorkerId(0), "aaaa", LEAST)
    shared._parent = tmp_path  # the system's temporary folder is everybody's
    shared.prepare()
    shared.close()
    os.close(lock)
    stores(tmp_path).prepare()
    assert not other.exists()


def test_workers_that_start_together_remove_what_an_attachment_before_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = tmp_path / "bedload-state-bbbb-3-1"
    dead.mkdir()
    (dead / "lock").touch()
    one, two = stores(tmp_path, worker=0), stores(tmp_path, worker=1)
    remove = shutil.rmtree

    def slowly(folder: Path, ignore_errors: bool = False) -> None:
        if folder == dead:
            monkeypatch.setattr(shutil, "rmtree", remove)
            two.prepare()
        remove(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    one.prepare()
    assert {folder.name.split("-")[3] for folder in tmp_path.iterdir()} == {"0", "1"}
    one.close()
    two.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(LocalDiskError, match="no folder for state could be made"):
        stores(tmp_path / "nowhere").prepare()


def test_what_cannot_be_read_is_lost_for_good(tmp_path: Path) -> None:
    made = stores(tmp_path)
    disk = opened(made)
    disk.write((b"%06d" % number, os.urandom(200)) for number in range(5000))
    disk._db.flush()
    for file in tmp_path.rglob("*.sst"):
        with file.open("r+b") as damaged:
            damaged.write(os.urandom(file.stat().st_size // 2))
    with pytest.raises(LocalDiskError, match="was lost"):
        disk.get([b"%06d" % number for number in range(0, 5000, 7)])
    assert made.lost is not None
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_listing_of_what_cannot_be_read_does_not_end_as_if_that_were_all(tmp_path: Path) -> None:
    made = stores(tmp_path)
    disk = opened(made)
    disk.write((b"%06d" % number, os.urandom(200)) for number in range(5000))
    disk._db.flush()
    names = disk.names(b"00")
    for file in tmp_path.rglob("*.sst"):
        with file.open("r+b") as damaged:
            damaged.seek(file.stat().st_size // 2)
            damaged.write(bytes(file.stat().st_size // 4))
    with pytest.raises(LocalDiskError, match="was lost"):
        list(names)
    assert made.lost is not None
    made.close()


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(DefinitionError, match=r"pip install 'bedload\[disk\]'"):
        stores(tmp_path).prepare()


def test_a_share_of_the_machine_is_enough() -> None:
    assert store_share(1) == store_share(2) > store_share(8)


def test_a_process_that_ends_at_once_leaves_nothing(tmp_path: Path) -> None:
    disk = opened(stores(tmp_path))
    disk.write([(b"a", b"b")])
    remove_folders()
    disk.close()  # which writes what it has in memory
    assert list(tmp_path.iterdir()) == []
