"""A checkpoint behind any fsspec filesystem: S3, Google Cloud Storage, Azure, HDFS, memory and others.

What a file system must give for the invariants of :mod:`bedload.checkpoint.storage`, and what is done with it:

==========================  ==============================  =================================================
file system                 a file appears whole            at most one create succeeds
==========================  ==============================  =================================================
s3, s3a, gs, gcs, az,       PUT, or the end of a multipart  the package's ``mode="create"`` (``If-None-Match``
abfs, abfss                                                 and the like), if a trial shows that it is
                                                            honoured; else as "others"
memory                      an assignment                   a lock of this process
hdfs, arrow_hdfs            temporary file, then rename     rename, which HDFS refuses if the name is taken
others (oci, oss, sftp,     PUT; or temporary file, then    marks
smb, webhdfs, dbfs, ...)    rename
==========================  ==============================  =================================================

A trial, because a server that does not know a condition ignores it without a word (some S3 look-alikes, and old
packages): before the first create of an attachment, a file is created twice, and the second time must be refused.

Marks, because others have no condition: whoever creates a file first leaves a mark beside it, under a name that nobody
else has, and then looks for others' marks. Of two, the one whose mark came later sees the other's and gives up; maybe
both do, but never do both believe that they created the file. This needs nothing but listings that show what was
written before. Marks are empty, begin with a dot, and stay.

Listings are never cached here, as others write too. A call that fails is tried again a few times, after longer and
longer pauses, unless that cannot help (no right, no such bucket, wrong option). S3's own client tries again as well, so
the answer to a create that succeeded can get lost below us: therefore a create that finds its own content has
succeeded.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from bedload.checkpoint.marks import create_by_marks
from bedload.checkpoint.storage import Buffers, failed, inside, joined, without_secrets
from bedload.core.errors import CheckpointError, DefinitionError

T = TypeVar("T")

_PACKAGES = {
    "s3": "bedload[s3]",
    "s3a": "bedload[s3]",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "oci": "ocifs",
    "oss": "ossfs",
    "tos": "tosfs",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "smb": "smbprotocol",
    "webhdfs": "requests",
}
_RENAMING = frozenset({"hdfs", "arrow_hdfs", "sftp", "ssh", "smb", "webhdfs", "dbfs", "ftp", "root", "webdav", "dir"})
_CONDITIONAL = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
"""Whose packages leave the condition to the server; others may look first and write second."""
_REFUSING = frozenset({"hdfs", "arrow_hdfs"})
"""Whose rename fails if the name is taken."""

_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_FINAL_TOO = (ValueError, TypeError, NotImplementedError, ImportError)
_MEMORY = threading.Lock()
"""All memory filesystems of a process share their files."""


@dataclass(frozen=True)
class Retries:
    """How often something is tried, and how long one waits in between: 0.1 s, 0.3 s, 0.9 s, ..."""

    tries: int = 4
    first_wait: float = 0.1
    factor: float = 3.0
    sleep: Callable[[float], None] = time.sleep


class FsspecStorage:
    """Files under the URL of an fsspec filesystem."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, retries: Retries | None = None) -> None:
        self.url = url.rstrip("/")
        self._retries = retries or Retries()
        self._scheme = url.partition("://")[0]
        self._fs, self._root = _filesystem(url, dict(options or {}))
        self._renames = self._scheme in _RENAMING
        self._honours: bool | None = None
        self._token = os.urandom(4).hex()
        self._count = itertools.count()

    def read(self, path: str) -> bytes:
        """The content of a file; ``FileNotFoundError`` if it is not there."""
        return bytes(self._try("read", path, lambda: self._fs.cat_file(self._full(path))))

    def write(self, path: str, data: Buffers) -> None:
        """Write a file, whole."""
        value = joined(data)
        self._try("write", path, lambda: self._put(path, value), absent=False)

    def create(self, path: str, data: Buffers) -> bool:
        """Write a file if there is none of that path. False: there is one, and it has other content."""
        value = joined(data)
        if self._scheme == "memory" or self._scheme in _REFUSING:
            return self._try("create", path, lambda: self._create_at_once(path, value), absent=False)
        return self._create(path, value)

    def copy(self, source: str, target: str) -> None:
        """Have the content of a file under another path, too; an object store does that by itself."""
        if self._scheme == "memory" or self._scheme in _CONDITIONAL:
            self._try("copy", source, lambda: self._fs.cp_file(self._full(source), self._full(target)))
        else:
            self.write(target, self.read(source))

    def exists(self, path: str) -> bool:
        """Whether there is a file of that path."""
        return self._try("look for", path, lambda: self._exists(path))

    def list(self, folder: str) -> list[str]:
        """The names of the files and folders directly in a folder, sorted; empty if it is not there."""
        return [name for name, _ in self._entries(folder)]

    def sizes(self, folder: str) -> dict[str, int]:
        """The files directly in a folder, with their sizes in bytes; empty if it is not there."""
        return {n: int(info["size"]) for n, info in self._entries(folder) if info["type"] == "file"}

    def size(self, path: str) -> int:
        """The size of a file in bytes; ``FileNotFoundError`` if it is not there."""
        return int(self._try("look at", path, lambda: self._fs.info(self._full(path)))["size"])

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are not there are fine."""
        if not paths:
            return
        full = [self._full(path) for path in paths]
        shown = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self._try("delete", shown, lambda: self._remove(full), absent=False)

    # --- steps ---

    def _full(self, path: str) -> str:
        return f"{self._root}/{inside(self.url, path)}"

    def _try(self, operation: str, path: str, step: Callable[[], T], absent: bool = True) -> T:
        """Take a step, again if that may help; ``absent``: that a file is not there is an answer."""
        wait = self._retries.first_wait
        for tries_left in reversed(range(self._retries.tries)):
            try:
                return step()
            except Exception as error:
                if absent and isinstance(error, FileNotFoundError):
                    raise
                if isinstance(error, CheckpointError):
                    raise
                if isinstance(error, _FINAL + _FINAL_TOO) or not tries_left:
                    raise failed(operation, self.url, path, error) from error
            self._retries.sleep(wait)
            wait *= self._retries.factor
        raise AssertionError("not reached: the last try returns or raises")

    def _put(self, path: str, value: bytes) -> None:
        full = self._full(path)
        if not self._renames:
            self._fs.pipe_file(full, value)
            return
        temporary = self._put_temporary(full, value)
        try:
            if self._scheme in _REFUSING and self._exists(path):
                self._fs.rm_file(full)
            self._fs.mv(temporary, full)
        except BaseException:
            self._remove([temporary])
            raise

    def _put_temporary(self, full: str, value: bytes) -> str:
        folder, _, name = full.rpartition("/")
        self._fs.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/.{name}.{self._token}-{os.getpid()}-{next(self._count)}"
        self._fs.pipe_file(temporary, value)
        return temporary

    def _create_at_once(self, path: str, value: bytes) -> bool:
        if self._scheme in _REFUSING:
            return self._create_by_rename(path, value)
        with _MEMORY:
            return self._create_after_a_look(path, value)

    def _create(self, path: str, value: bytes) -> bool:
        """Step by step, each tried again by itself: all of them can be made twice."""
        if self._try("create", path, self._honours_create, absent=False):
            created = self._try("create", path, lambda: self._put_new(path, value), absent=False)
            return created or self.read(path) == value
        return create_by_marks(self, path, value, self._names)

    def _put_new(self, path: str, value: bytes) -> bool:
        """Write a file on the condition that there is none; whether there was none."""
        try:
            self._fs.pipe_file(self._full(path), value, mode="create")
        except Exception as error:
            if isinstance(error, FileExistsError) or _is_taken(error):
                return False
            raise
        return True

    def _honours_create(self) -> bool:
        """Whether the store refuses to create what is there. Tried once."""
        if self._honours is None:
            self._honours = self._scheme in _CONDITIONAL and _has_create_mode(self._fs) and self._try_create()
        return self._honours

    def _try_create(self) -> bool:
        path = f".{os.urandom(8).hex()}.trial"
        try:
            self._put(path, b"first")
            return not self._put_new(path, b"second")
        finally:
            with contextlib.suppress(Exception):  # it does no harm
                self._remove([self._full(path)])

    def _names(self, folder: str) -> Iterator[str]:
        """All names in a folder, marks too."""
        listed = self._try("list", folder, lambda: self._listed(folder))
        return (str(info["name"]).rstrip("/").rpartition("/")[2] for info in listed)

    def _create_after_a_look(self, path: str, value: bytes) -> bool:
        if not self._exists(path):
            self._put(path, value)
        return self.read(path) == value

    def _create_by_rename(self, path: str, value: bytes) -> bool:
        full = self._full(path)
        if not self._exists(path):
            temporary = self._put_temporary(full, value)
            try:
                self._fs.mv(temporary, full)
            except Exception:
                # Arrow does not say why HDFS refused: whether the name is taken now, tells.
                if not self._exists(path):
                    raise
            finally:
                self._remove([temporary])
        return self.read(path) == value

    def _exists(self, path: str) -> bool:
        if self._scheme in ("s3", "s3a"):
            # One request. s3fs would list as well, to see whether it is a folder, and this is asked at every seal.
            bucket, key, _ = self._fs.split_path(self._full(path))
            try:
                self._fs.call_s3("head_object", self._fs.kwargs, Bucket=bucket, Key=key)
            except FileNotFoundError:
                return False
            return True
        # SUBTLE: not fsspec's exists(), which takes any failure for a no; this decides who is fenced off.
        try:
            return bool(self._fs.info(self._full(path))["type"] == "file")
        except FileNotFoundError:
            return False

    def _listed(self, folder: str) -> Sequence[dict[str, Any]]:
        listed: Sequence[dict[str, Any]] = self._fs.ls(self._full(folder).rstrip("/"), detail=True)
        return listed

    def _entries(self, folder: str) -> Sequence[tuple[str, dict[str, Any]]]:
        full = self._full(folder).rstrip("/")
        try:
            infos = self._try("list", folder, lambda: self._listed(folder))
        except FileNotFoundError:
            return []
        found: dict[str, dict[str, Any]] = {}
        for info in infos:
            name = str(info["name"]).rstrip("/")
            # A "folder" that is an empty object lists itself.
            if name.lstrip("/") == full.lstrip("/"):
                continue
            name = name.rpartition("/")[2]
            if not name.startswith("."):
                found[name] = info
        return sorted(found.items())

    def _remove(self, full: Sequence[str]) -> None:
        if isinstance(self._fs, AsyncFileSystem) and hasattr(self._fs, "_rm_file") and not self._fs.asynchronous:
            # SUBTLE: one request each, side by side. s3fs's bulk delete says nothing of what it could not delete.
            sync(self._fs.loop, _remove_all, self._fs, full)
            return
        for path in full:
            try:
                self._fs.rm_file(path)
            except FileNotFoundError:
                continue


async def _remove_all(fs: Any, full: Sequence[str]) -> None:
    from fsspec.asyn import _run_coros_in_chunks

    outcomes = await _run_coros_in_chunks(
        [fs._rm_file(path) for path in full], batch_size=32, nofiles=True, return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, FileNotFoundError):
            raise outcome


def _filesystem(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    shown = without_secrets(url)
    scheme = url.partition("://")[0]
    if "::" in url:
        raise DefinitionError(
            f"the checkpoint URL {shown} chains filesystems, of which one may cache what others have changed: "
            "give the last one alone"
        )
    try:
        # Not from the cache of instances: what we switch off must stay on for others in this process.
        fs, root = fsspec.core.url_to_fs(url, **{"skip_instance_cache": True, **options})
    except ImportError as error:
        package = _PACKAGES.get(scheme, "")
        how = f'run: pip install "{package}"' if package else f"{error}"
        raise DefinitionError(
            f"the checkpoint URL {shown} needs a package that is not installed here: {how} "
            "(on the driver and on every executor)"
        ) from error
    except (ValueError, TypeError) as error:
        raise DefinitionError(
            f"cannot use the checkpoint URL {shown} with options {sorted(options)}: {error}. Give a local path, or a "
            "URL of an fsspec filesystem such as s3://bucket/folder, gs://bucket/folder or hdfs://host/folder."
        ) from error
    except Exception as error:
        raise failed("open", url, "", error) from error
    # SUBTLE: a listing cached by one thread would hide from another that its generation is over.
    cache = getattr(fs, "dircache", None)
    if cache is not None:
        cache.use_listings_cache = False
        cache.clear()
    return fs, str(root).rstrip("/")


def _has_create_mode(fs: Any) -> bool:
    """Whether the filesystem's own class writes exclusively; the base class only looks first."""
    method = getattr(type(fs), "_pipe_file", None) if isinstance(fs, AsyncFileSystem) else None
    if method is None or method is AsyncFileSystem._pipe_file:
        return False
    return "mode" in inspect.signature(method).parameters


def _is_taken(error: BaseException) -> bool:
    """Whether the server refused because of the condition; packages wrap its answer in various ways."""
    found: BaseException | None = error
    while found is not None:
        response = getattr(found, "response", None)
        if isinstance(response, dict) and str(response.get("Error", {}).get("Code")) in ("PreconditionFailed", "412"):
            return True
        if getattr(found, "status_code", None) == 412 or getattr(found, "code", None) == 412:
            return True
        found = found.__cause__
    return type(error).__name__ == "ResourceExistsError"
