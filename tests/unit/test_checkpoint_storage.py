"""What every storage must do, on each of them; and what is particular to one."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry as _REGISTRY

from bedload.checkpoint.fsspec_storage import FsspecStorage, Retries, _remove_all
from bedload.checkpoint.local_storage import LocalStorage
from bedload.checkpoint.storage import Storage, failed, local_path, open_storage, without_secrets
from bedload.core.errors import DefinitionError, StoreError

_NUMBERS = itertools.count()


class RenamingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Like a remote file system: no atomic put, and a rename that replaces."""

    protocol = "webdav"
    renamed: list[str]

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        super().mv(path1, path2, **kwargs)
        type(self).renamed.append(path2)


class RefusingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Like HDFS: a rename is refused if the name is taken, and no reason is given."""

    protocol = "hdfs"
    lock = threading.Lock()

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        with self.lock:
            if self.exists(path2):
                raise OSError(errno.EIO, "rename failed")
            super().mv(path1, path2, **kwargs)


@pytest.fixture
def other_filesystems(monkeypatch: pytest.MonkeyPatch) -> None:
    RenamingFileSystem.renamed = []
    monkeypatch.setitem(_REGISTRY, "webdav", RenamingFileSystem)
    monkeypatch.setitem(_REGISTRY, "hdfs", RefusingFileSystem)


@pytest.fixture(params=["plain", "fsync", "file", "memory", "webdav", "hdfs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, other_filesystems: None) -> Storage:
    match request.param:
        case "plain":
            return open_storage(str(tmp_path / "root"))
        case "fsync":
            return open_storage(str(tmp_path / "root"), {"fsync": True})
        case "file":
            return open_storage(f"file://{tmp_path}/root")
        case scheme:
            return open_storage(f"{scheme}://test-{next(_NUMBERS)}/root")


def test_what_is_written_is_read(storage: Storage) -> None:
    storage.write("a/b.bin", b"one")
    assert bytes(storage.read("a/b.bin")) == b"one"
    assert storage.size("a/b.bin") == 3
    assert storage.exists("a/b.bin")


def test_a_write_replaces(storage: Storage) -> None:
    storage.write("a", b"one")
    storage.write("a", b"two!")
    assert storage.read("a") == b"two!"


def test_several_buffers_follow_each_other(storage: Storage) -> None:
    storage.write("a", [b"one", pa.py_buffer(b"two"), memoryview(b"three"), bytearray(b"4")])
    assert storage.read("a") == b"onetwothree4"
    storage.write("b", pa.py_buffer(b"two"))
    assert storage.read("b") == b"two"
    storage.write("c", [])
    assert storage.read("c") == b""


def test_what_is_not_there_is_not_found(storage: Storage) -> None:
    storage.write("a/b", b"")
    assert not storage.exists("a/c")
    assert not storage.exists("x/y/z")
    assert not storage.exists("a"), "a folder is no file"
    with pytest.raises(FileNotFoundError):
        storage.read("a/c")
    with pytest.raises(FileNotFoundError):
        storage.size("a/c")


def test_a_listing_has_the_names_directly_in_the_folder_sorted(storage: Storage) -> None:
    for path in ("f/b", "f/a", "f/sub/x", "f/sub/y", "other"):
        storage.write(path, b"12")
    assert storage.list("f") == ["a", "b", "sub"]
    assert storage.list("") == ["f", "other"]
    assert storage.sizes("f") == {"a": 2, "b": 2}
    assert storage.list("nothing") == []
    assert storage.sizes("nothing") == {}


def test_a_listing_of_an_empty_root_is_empty(storage: Storage) -> None:
    assert storage.list("") == []


def test_a_listing_sees_what_another_storage_of_the_same_root_did_since(storage: Storage) -> None:
    other = open_storage(storage.url)
    storage.write("f/a", b"")
    assert other.list("f") == ["a"]
    storage.write("f/b", b"")
    assert other.list("f") == ["a", "b"]
    assert other.exists("f/b")
    storage.delete(["f/a"])
    assert other.list("f") == ["b"]
    assert not other.exists("f/a")


def test_files_are_deleted_and_missing_ones_are_fine(storage: Storage) -> None:
    for path in ("f/a", "f/b", "f/c"):
        storage.write(path, b"")
    storage.delete(["f/a", "f/nothing", "no/folder", "f/c"])
    assert storage.list("f") == ["b"]
    storage.delete([])


def test_a_folder_emptied_by_deletion_can_be_written_into_again(storage: Storage) -> None:
    storage.write("f/g/a", b"")
    storage.delete(["f/g/a"])
    storage.write("f/g/b", b"x")
    assert storage.list("f/g") == ["b"]


def test_a_create_succeeds_once(storage: Storage) -> None:
    assert storage.create("f/a", b"mine")
    assert not storage.create("f/a", b"yours")
    assert storage.read("f/a") == b"mine"
    assert storage.list("f") == ["a"]


def test_a_create_whose_answer_was_lost_can_be_made_again(storage: Storage) -> None:
    assert storage.create("f/a", b"mine")
    assert storage.create("f/a", [b"mi", b"ne"])


def test_a_copy_has_the_content_and_outlives_its_source(storage: Storage) -> None:
    storage.write("a/source", b"content")
    for _ in range(2):
        storage.copy("a/source", "b/copy")
    storage.write("a/source", b"other")
    assert storage.read("b/copy") == b"content"
    storage.copy("a/source", "b/copy")
    storage.delete(["a/source"])
    assert storage.read("b/copy") == b"other"
    assert storage.list("b") == ["copy"]
    with pytest.raises(FileNotFoundError):
        storage.copy("a/source", "c/copy")
    assert not storage.exists("c/copy")


def test_a_name_with_percent_signs_is_taken_as_it_is(storage: Storage) -> None:
    storage.write("a%20b/c%2F", b"x")
    assert storage.list("") == ["a%20b"]
    assert storage.list("a%20b") == ["c%2F"]
    assert storage.read("a%20b/c%2F") == b"x"


def _race(storages: list[Storage], path: str) -> list[bool]:
    barrier = threading.Barrier(len(storages))

    def create(number: int) -> bool:
        barrier.wait()
        return storages[number].create(path, f"mine {number}".encode())

    with ThreadPoolExecutor(len(storages)) as pool:
        return list(pool.map(create, range(len(storages))))


def test_of_many_creates_at_once_one_succeeds_and_its_content_stays(storage: Storage) -> None:
    if storage.url.startswith("webdav"):
        pytest.skip("documented as weaker: a look, then a write")
    for attempt in range(20):
        won = _race([open_storage(storage.url) for _ in range(4)], f"claims/{attempt}")
        assert sum(won) == 1
        assert storage.read(f"claims/{attempt}") == f"mine {won.index(True)}".encode()


def test_in_memory_nobody_comes_between_the_look_and_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    put = FsspecStorage._put

    def slow(self: FsspecStorage, path: str, value: bytes) -> None:
        time.sleep(0.02)
        put(self, path, value)

    monkeypatch.setattr(FsspecStorage, "_put", slow)
    url = f"memory://test-{next(_NUMBERS)}"
    assert sum(_race([open_storage(url) for _ in range(4)], "claim")) == 1


def test_a_reader_never_sees_half_a_file(storage: Storage) -> None:
    contents = {bytes([n]) * 100_000 for n in range(8)}
    storage.write("a", next(iter(contents)))
    if storage.url.startswith(("hdfs", "webdav")):
        pytest.skip("the stand-in's rename is not atomic")
    seen: set[bytes] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(bytes(storage.read("a")))

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for content in list(contents) * 5:
            storage.write("a", content)
        stop.set()
        reading.result()
    assert seen <= contents


def test_temporary_files_are_not_left_behind(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("f/a", b"1")
    storage.create("f/b", b"1")
    storage.create("f/b", b"2")
    assert _names(tmp_path / "f") == ["a", "b"]


def test_a_temporary_file_of_a_crash_is_in_no_listing(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("f/a", b"1")
    (tmp_path / "f" / ".b.1234-5-6").write_bytes(b"half")
    assert storage.list("f") == ["a"]
    assert storage.sizes("f") == {"a": 1}


def test_a_folder_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    storage, other = LocalStorage(tmp_path), LocalStorage(tmp_path)
    storage.write("f/a", b"")
    other.delete(["f/a"])
    assert not (tmp_path / "f").exists()
    storage.write("f/b", b"x")
    assert other.read("f/b") == b"x"


def test_without_hard_links_a_create_still_succeeds_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    storage = LocalStorage(tmp_path)
    assert storage.create("f/a", b"mine")
    assert not storage.create("f/a", b"yours")
    assert storage.read("f/a") == b"mine"
    assert _names(tmp_path / "f") == ["a"]


def test_without_hard_links_a_copy_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    storage = LocalStorage(tmp_path)
    storage.write("a", b"content")
    storage.copy("a", "b/copy")
    assert storage.read("b/copy") == b"content"
    assert (tmp_path / "a").stat().st_ino != (tmp_path / "b" / "copy").stat().st_ino


def test_a_copy_leaves_no_temporary_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("a", b"content")
    for _ in range(2):
        storage.copy("a", "b/copy")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["copy"]


def test_what_cannot_be_written_says_where_why_and_what_to_do(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("f", b"a file where a folder is wanted")
    for act in (lambda: storage.write("f/a", b""), lambda: storage.create("f/a", b""), lambda: storage.list("f")):
        with pytest.raises(StoreError, match=r"cannot (write|create|list) file://.*/f.*folder of its own"):
            act()


def test_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="keep fewer epochs"):
        LocalStorage(tmp_path).write("f/a", b"x")
    assert _names(tmp_path / "f") == []


def test_the_url_of_a_relative_path_is_good_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = open_storage("here")
    storage.write("a", b"x")
    monkeypatch.chdir("/")
    assert open_storage(storage.url).read("a") == b"x"
    storage.write("b", b"x")
    assert (tmp_path / "here" / "b").exists()


@pytest.mark.parametrize(
    ("url", "path"),
    [("/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("file:/a/b", "/a/b"), ("s3://a/b", None), ("memory://a", None)],
)
def test_local_urls_are_told_from_others(url: str, path: str | None) -> None:
    assert local_path(url) == (None if path is None else Path(path))


def test_a_file_url_with_a_host_is_refused() -> None:
    with pytest.raises(DefinitionError, match="three slashes"):
        open_storage("file://data/checkpoint")


def test_an_option_that_a_local_folder_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="endpoint_url"):
        open_storage(str(tmp_path), {"endpoint_url": "http://x"})


def test_an_unknown_protocol_is_a_clear_error() -> None:
    with pytest.raises(DefinitionError, match=r"nosuch://x.*s3://bucket"):
        open_storage("nosuch://x/y")


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(DefinitionError, match=r'pip install "bedload\[s3\]"'):
        open_storage("s3://bucket/x")


def test_a_chain_of_filesystems_is_refused() -> None:
    with pytest.raises(DefinitionError, match="chains"):
        open_storage("simplecache::memory://x")


def test_secrets_in_a_url_are_not_shown() -> None:
    assert without_secrets("s3://key:secret@bucket/x") == "s3://***@bucket/x"
    assert without_secrets("s3://bucket/a@b") == "s3://bucket/a@b"


def _names(folder: Path) -> list[str]:
    """All of them, hidden ones too."""
    return sorted(path.name for path in folder.iterdir())


class _Flaky:
    """Fails some times, then passes on."""

    def __init__(self, inner: Callable[..., Any], failures: list[Exception], after: bool = False) -> None:
        self.inner, self.failures, self.after, self.calls = inner, failures, after, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if not self.failures:
            return self.inner(*args, **kwargs)
        if self.after:
            self.inner(*args, **kwargs)
        raise self.failures.pop(0)


def _remote(waits: list[float]) -> FsspecStorage:
    return FsspecStorage(f"memory://test-{next(_NUMBERS)}", retries=Retries(sleep=waits.append))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_cannot_be_made_is_called_a_folder(scheme: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_storage(f"{scheme}/proc/nowhere/state").write("a", b"")
    assert caught.value.message == (
        "cannot write file:///proc/nowhere/state/a: FileNotFoundError: [Errno 2] No such file or directory: "
        "'/proc/nowhere'. The checkpoint is the local folder /proc/nowhere/state, which this process cannot make, read "
        "or write: give it the right to, or choose another folder (a bucket is named by a URL, such as "
        "s3://bucket/path)."
    )


def test_a_folder_without_the_right_to_it_is_called_a_folder_too() -> None:
    error = failed("write", "file:///data/state", "a", PermissionError(errno.EACCES, "Permission denied", "/data"))
    assert "[Errno 13] Permission denied: '/data'. The checkpoint is the local folder /data/state, " in error.message
    assert "credentials" not in error.message
    missing = failed("write", "s3://bucket/state", "a", FileNotFoundError("no such bucket"))
    assert "See that the bucket or the host in the URL is there" in missing.message


def test_what_fails_for_a_while_is_tried_again_longer_and_longer_apart() -> None:
    waits: list[float] = []
    storage = _remote(waits)
    storage._fs.pipe_file = _Flaky(storage._fs.pipe_file, [TimeoutError(), ConnectionResetError()])
    storage.write("a", b"x")
    assert storage.read("a") == b"x"
    assert waits == pytest.approx([0.1, 0.3])


def test_what_fails_for_good_is_a_store_error_after_some_tries() -> None:
    waits: list[float] = []
    storage = _remote(waits)
    storage._fs.cat_file = _Flaky(storage._fs.cat_file, [TimeoutError("slow")] * 99)
    with pytest.raises(
        StoreError, match=r"cannot read memory://.*/a: TimeoutError: slow\. See that the store is up"
    ) as it:
        storage.read("a")
    assert len(waits) == 3
    assert it.value.operation == "read"


def test_what_trying_again_cannot_help_is_not_tried_again() -> None:
    waits: list[float] = []
    storage = _remote(waits)
    storage._fs.pipe_file = _Flaky(storage._fs.pipe_file, [PermissionError("no")] * 9)
    with pytest.raises(StoreError, match="right to read and write"):
        storage.write("a", b"x")
    assert storage._fs.pipe_file.calls == 1
    assert waits == []


def test_a_look_that_fails_is_not_taken_for_a_no() -> None:
    """Whether a newer generation exists is asked this way: a no that is none would let two attachments write."""
    storage = _remote([])
    storage.write("a", b"x")
    storage._fs.info = _Flaky(storage._fs.info, [TimeoutError()])
    assert storage.exists("a")
    storage._fs.info = _Flaky(storage._fs.info, [TimeoutError()] * 99)
    with pytest.raises(StoreError, match="cannot look for"):
        storage.exists("a")


def test_a_create_that_succeeded_but_seemed_to_fail_is_ours() -> None:
    storage = _remote([])
    storage._fs.pipe_file = _Flaky(storage._fs.pipe_file, [TimeoutError()], after=True)
    assert storage.create("a", b"mine")
    assert not storage.create("a", b"yours")


@pytest.mark.parametrize("every", [3, 4, 5, 6, 7])
def test_a_create_gets_through_a_store_of_which_every_few_calls_fail(every: int, other_filesystems: None) -> None:
    """Each of its steps is tried again by itself."""
    storage = open_storage(f"webdav://test-{next(_NUMBERS)}/root")
    inner: Any = storage.inner  # type: ignore[attr-defined]
    inner._retries = Retries(sleep=lambda _: None)
    calls = itertools.count(1)

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            if next(calls) % every == 0:
                raise ConnectionResetError
            return call(*args, **kwargs)

        return made

    for name in ("pipe_file", "cat_file", "info", "ls", "mv"):
        setattr(inner._fs, name, failing(getattr(inner._fs, name)))
    for number in range(5):
        assert storage.create(f"f/{number}", b"mine")
        assert not storage.create(f"f/{number}", b"yours")
        assert storage.read(f"f/{number}") == b"mine"


class _AsyncRemoval:
    async def _rm_file(self, path: str) -> None:
        raise {"missing": FileNotFoundError, "forbidden": PermissionError}[path](path)


def test_of_removals_side_by_side_only_those_that_failed_are_an_error() -> None:
    asyncio.run(_remove_all(_AsyncRemoval(), ["missing", "missing"]))
    with pytest.raises(PermissionError):
        asyncio.run(_remove_all(_AsyncRemoval(), ["missing", "forbidden"]))


def test_one_that_renames_writes_beside_and_renames(other_filesystems: None) -> None:
    storage = open_storage(f"webdav://test-{next(_NUMBERS)}/root")
    storage.write("f/a", b"x")
    assert [path.rpartition("/")[2] for path in RenamingFileSystem.renamed] == ["a"]
    assert storage.list("f") == ["a"]
