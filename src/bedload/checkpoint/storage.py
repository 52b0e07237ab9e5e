"""Files under one root, as a checkpoint needs them: each appears whole, and at most one writer creates it.

Invariants, of every :class:`Storage`:

- A file appears whole or not at all: a reader never sees half of one, a crash never leaves half of one.
- What was written is seen by everyone at once: a read, a look or a listing that begins after a write
  returned sees the file. Fencing rests on this.
- Of several :meth:`Storage.create` of one path with different content, at most one succeeds, for ever. If several are
  made at once, maybe none succeeds, and maybe no file is there then. A create of the very content that is there already
  succeeds too, so that a create whose answer was lost can be tried again. So content that tells who was first must be
  unique.
- A path never leads out of the root: one that is absolute or goes up is :class:`CheckpointDamaged`, because the content
  of a file must not decide what is read or deleted elsewhere.
- Every failure is a :class:`StoreError` that names operation, place, cause and what to do. Only the absence
  of a file is a plain ``FileNotFoundError``.

There is no append, no rename and no lock, as object stores have none.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from bedload.core.errors import CheckpointDamaged, DefinitionError, StoreError

Data: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
Buffers: TypeAlias = Data | Sequence[Data]
"""What is written: one buffer, or several that follow each other (which a local storage does not copy)."""


class Storage(Protocol):
    """Files under a root. All paths are relative to it, with ``/``. Safe to use from many threads."""

    url: str
    """Where the root is: absolute, and good for :func:`open_storage` in another process."""

    def read(self, path: str) -> bytes:
        """The content of a file; ``FileNotFoundError`` if it is not there."""
        ...

    def write(self, path: str, data: Buffers) -> None:
        """Write a file, whole. One of that path is replaced."""
        ...

    def create(self, path: str, data: Buffers) -> bool:
        """Write a file if there is none of that path. False: there is one of other content, or somebody makes one."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Have the content of a file under another path, too; ``FileNotFoundError`` if it is not there."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file of that path."""
        ...

    def list(self, folder: str) -> list[str]:
        """The names of the files and folders directly in a folder, sorted; empty if it is not there."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """The files directly in a folder, with their sizes in bytes; empty if it is not there."""
        ...

    def size(self, path: str) -> int:
        """The size of a file in bytes; ``FileNotFoundError`` if it is not there."""
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are not there are fine. Folders that become empty go too."""
        ...


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """The storage at a URL: a plain path or ``file://`` by the system's own calls, all else by fsspec.

    ``options`` of all: ``deadline``, in how many seconds the store has to answer (60; see
    :mod:`bedload.checkpoint.deadlines`). Of a local one: ``fsync`` (see
    :class:`~bedload.checkpoint.local_storage.LocalStorage`). Those of all others go to the fsspec filesystem:
    credentials, ``endpoint_url`` and the like.
    """
    from bedload.checkpoint.deadlines import Deadline, DeadlineStorage

    options = dict(options or {})
    deadline = Deadline(url, _deadline(url, options))
    return DeadlineStorage(deadline.call("open", "", lambda: _open(url, options)), deadline)


def _open(url: str, options: dict[str, Any]) -> Storage:
    local = local_path(url)
    if local is None:
        from bedload.checkpoint.fsspec_storage import FsspecStorage

        return FsspecStorage(url, options)
    from bedload.checkpoint.local_storage import LocalStorage

    fsync = options.pop("fsync", False)
    if options:
        raise DefinitionError(
            f"the checkpoint at {url} is a local folder, which has no option {', '.join(sorted(options))}: there are "
            "fsync and deadline. Leave the others out, or correct the URL."
        )
    return LocalStorage(local, fsync=bool(fsync))


def _deadline(url: str, options: dict[str, Any]) -> float:
    from bedload.checkpoint.deadlines import DEFAULT_SECONDS

    given = options.pop("deadline", DEFAULT_SECONDS)
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0.0 < seconds < threading.TIMEOUT_MAX:
        raise DefinitionError(
            f"storage option deadline={given!r} of {without_secrets(url)} is no number of seconds: give one above 0"
        )
    return seconds


def local_path(url: str) -> Path | None:
    """The folder that a URL means, if it is one of the local file system."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        if match := re.match(r"(file|local):(/.*)", url):
            return Path(match[2])
        return Path(url).expanduser().absolute()
    if scheme not in ("file", "local"):
        return None
    if not rest.startswith("/"):
        raise DefinitionError(
            f"{url} names a host or a relative path: write file:// and an absolute path, with three slashes "
            "(file:///data/checkpoint), or a plain path"
        )
    return Path(rest)


def inside(url: str, path: str) -> str:
    """The path, if it is one below the root."""
    if path.startswith("/") or "\0" in path or (".." in path and ".." in re.split(r"[/\\\\]", path)):
        raise CheckpointDamaged(
            f"{path!r} leads out of {without_secrets(url)}, so it is no file of the checkpoint, and is left alone. Put "
            "the file that names it back from a copy of the checkpoint",
            path=path,
        )
    return path


def buffers(data: Buffers) -> list[memoryview]:
    """The parts of what is to be written."""
    parts: Sequence[Any] = [data] if isinstance(data, bytes | bytearray | memoryview | pa.Buffer) else data
    return [memoryview(part) for part in parts]


def joined(data: Buffers) -> bytes:
    """What is to be written, as one."""
    if isinstance(data, bytes):
        return data
    return b"".join(buffers(data))


def read_if_there(storage: Storage, path: str) -> bytes | None:
    """The content of a file; None if there is none."""
    try:
        return storage.read(path)
    except FileNotFoundError:
        return None


def without_secrets(url: str) -> str:
    """The URL as it may be shown: names and passwords before an ``@`` are left out."""
    return re.sub(r"://[^/@]*@", "://***@", url)


def failed(operation: str, url: str, path: str, cause: BaseException) -> StoreError:
    """What is raised when the store did not do it."""
    where = f"{without_secrets(url).rstrip('/')}/{path}" if path else without_secrets(url)
    said = str(cause) or type(cause).__name__
    return StoreError(
        f"cannot {operation} {where}: {type(cause).__name__}: {said}. {_advice(cause, url)}",
        operation=operation,
        path=where,
        cause=f"{type(cause).__name__}: {said}",
    )


def _advice(cause: BaseException, url: str) -> str:
    number = cause.errno if isinstance(cause, OSError) else None
    folder = url.removeprefix("file://") if url.startswith("file://") else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space, or keep fewer epochs."
    if number == errno.EROFS:
        return "The file system is read-only: choose another place."
    if isinstance(cause, NotADirectoryError | IsADirectoryError | FileExistsError):
        return "Something else has that name: give the checkpoint a folder of its own."
    if isinstance(cause, TimeoutError):
        return (
            "See that the store is up and reachable from here; if it is only slow, raise the storage option deadline."
        )
    if folder is not None and isinstance(cause, PermissionError | FileNotFoundError):
        return (
            f"The checkpoint is the local folder {folder}, which this process cannot make, read or write: give it the "
            f"right to, or choose another folder (a bucket is named by a URL, such as s3://bucket/path)."
        )
    if isinstance(cause, PermissionError) or "Credential" in type(cause).__name__:
        return "Give the driver and the workers the right to read and write there (credentials are storage options)."
    if isinstance(cause, FileNotFoundError):
        return "See that the bucket or the host in the URL is there and spelled right."
    return "See that the store is up and reachable from here, then start the query again."
