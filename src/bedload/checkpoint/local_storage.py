"""A checkpoint in a folder of this machine, or of a file system that is mounted here.

Invariants: a file is written under another name in its own folder, and gets its name when it is whole
(``rename``; for :meth:`LocalStorage.create` a hard link, which fails if the name is taken). A copy is a hard link, as
no file is ever changed. Temporary
names begin with a dot, and listings leave out what begins with a dot; a crash may leave one behind, which
does no harm. The root may be a link; nothing is deleted behind a link below it.

Plain system calls instead of fsspec: an epoch writes one file per worker, and waits for it. A folder is made
once and remembered; it is made again if somebody removed it.

Without ``fsync`` a write survives the crash of every process, but not that of the machine: the operating
system writes to the disk within seconds. With it, file and folder are on the disk when a write returns.
Where hard links are not possible (some network and FUSE file systems) a create opens the file exclusively:
still only one succeeds, but a crash at that very moment may leave half a file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from bedload.checkpoint.storage import Buffers, buffers, failed, inside, joined
from bedload.core.errors import CheckpointDamaged

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
_TRIES = 3
"""To write into a folder that others remove as empty at the same time."""


class LocalStorage:
    """Files under a local folder, which need not be there yet."""

    def __init__(self, root: str | Path, *, fsync: bool = False) -> None:
        self._root = str(Path(root).expanduser().absolute())
        self._fsync = fsync
        self._folders: set[str] = set()
        # Unique over hosts that share the folder; the process is added when a name is made, for forks.
        self._token = os.urandom(4).hex()
        self._count = itertools.count()
        self.url = f"file://{self._root}"

    def read(self, path: str) -> bytes:
        """The content of a file; ``FileNotFoundError`` if it is not there."""
        try:
            with open(self._full(path), "rb", buffering=0) as file:  # noqa: PTH123 - a hot path
                return file.readall()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failed("read", self.url, path, error) from error

    def write(self, path: str, data: Buffers) -> None:
        """Write a file, whole."""
        try:
            folder, temporary = self._write_temporary(path, data)
            try:
                os.replace(temporary, self._full(path))  # noqa: PTH105
            except BaseException:
                _unlink(temporary)
                raise
            self._sync_folder(folder)
        except OSError as error:
            raise failed("write", self.url, path, error) from error

    def create(self, path: str, data: Buffers) -> bool:
        """Write a file if there is none of that path. False: there is one, and it has other content."""
        try:
            folder, temporary = self._write_temporary(path, data)
            try:
                os.link(temporary, self._full(path))
            except FileExistsError:
                return self.read(path) == joined(data)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if not self._create_exclusively(path, data):
                    return self.read(path) == joined(data)
            finally:
                _unlink(temporary)
            self._sync_folder(folder)
        except OSError as error:
            raise failed("create", self.url, path, error) from error
        return True

    def copy(self, source: str, target: str) -> None:
        """Have the content of a file under another path, too; ``FileNotFoundError`` if it is not there."""
        try:
            folder, temporary = self._link_temporary(source, target)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise failed("copy", self.url, source, error) from error
            self.write(target, self.read(source))
            return
        try:
            os.replace(temporary, self._full(target))  # noqa: PTH105
            self._sync_folder(folder)
        except OSError as error:
            raise failed("copy", self.url, source, error) from error
        finally:
            _unlink(temporary)  # SUBTLE: if the target is the same file already, the system renames nothing

    def exists(self, path: str) -> bool:
        """Whether there is a file of that path."""
        try:
            return stat.S_ISREG(os.stat(self._full(path)).st_mode)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise failed("look for", self.url, path, error) from error

    def list(self, folder: str) -> list[str]:
        """The names of the files and folders directly in a folder, sorted; empty if it is not there."""
        try:
            return sorted(name for name in os.listdir(self._full(folder)) if not name.startswith("."))  # noqa: PTH208
        except FileNotFoundError:
            return []
        except OSError as error:
            raise failed("list", self.url, folder, error) from error

    def sizes(self, folder: str) -> dict[str, int]:
        """The files directly in a folder, with their sizes in bytes; empty if it is not there."""
        found: dict[str, int] = {}
        try:
            with os.scandir(self._full(folder)) as entries:
                for entry in entries:
                    if not entry.name.startswith(".") and entry.is_file():
                        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                            found[entry.name] = entry.stat().st_size
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise failed("list", self.url, folder, error) from error
        return dict(sorted(found.items()))

    def size(self, path: str) -> int:
        """The size of a file in bytes; ``FileNotFoundError`` if it is not there."""
        try:
            return os.stat(self._full(path)).st_size  # noqa: PTH116
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failed("look at", self.url, path, error) from error

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are not there are fine. Folders that become empty go too."""
        self._check_links({os.path.dirname(inside(self.url, path)) for path in paths})  # noqa: PTH120
        folders: set[str] = set()
        for path in paths:
            try:
                os.unlink(self._full(path))  # noqa: PTH108
            except FileNotFoundError:
                continue
            except OSError as error:
                raise failed("delete", self.url, path, error) from error
            folders.add(os.path.dirname(path))  # noqa: PTH120
        for folder in folders:
            self._remove_if_empty(folder)

    # --- steps ---

    def _full(self, path: str) -> str:
        return f"{self._root}/{inside(self.url, path)}"

    def _check_links(self, folders: Iterable[str]) -> None:
        """Refuse to delete behind a link: what is there belongs to somebody else, or to another part of this."""
        root = os.path.realpath(self._root)
        for folder in folders:
            found = os.path.realpath(self._full(folder))
            if found != (f"{root}/{folder}" if folder else root):
                raise CheckpointDamaged(
                    f"{self.url}/{folder} is, or is behind, a link to {found}: nothing is deleted there. Put a folder "
                    "in place of the link",
                    path=folder,
                )

    def _write_temporary(self, path: str, data: Buffers) -> tuple[str, str]:
        """Write the data beside its place; gives the folder and the temporary file."""
        folder, temporary = self._beside(path)
        for tries_left in reversed(range(_TRIES)):
            self._make_folder(folder)
            try:
                with open(temporary, "xb") as file:  # noqa: PTH123 - a hot path
                    for part in buffers(data):
                        file.write(part)
                    if self._fsync:
                        file.flush()
                        os.fsync(file.fileno())
                break
            except FileNotFoundError:
                self._folders.discard(folder)
                if not tries_left:
                    raise
            except BaseException:
                _unlink(temporary)
                raise
        return folder, temporary

    def _link_temporary(self, source: str, target: str) -> tuple[str, str]:
        """Link a file beside its place; gives the folder and the temporary file."""
        folder, temporary = self._beside(target)
        for tries_left in reversed(range(_TRIES)):
            self._make_folder(folder)
            try:
                os.link(self._full(source), temporary)
                break
            except FileNotFoundError:
                self._folders.discard(folder)
                if not (tries_left and os.path.exists(self._full(source))):  # noqa: PTH110
                    raise
        return folder, temporary

    def _beside(self, path: str) -> tuple[str, str]:
        """The folder of a file, and a name in it that nobody else has."""
        folder, _, name = self._full(path).rpartition("/")
        return folder, f"{folder}/.{name}.{self._token}-{os.getpid()}-{next(self._count)}"

    def _create_exclusively(self, path: str, data: Buffers) -> bool:
        final = self._full(path)
        try:
            with open(final, "xb") as file:  # noqa: PTH123
                for part in buffers(data):
                    file.write(part)
                file.flush()
                if self._fsync:
                    os.fsync(file.fileno())
        except FileExistsError:
            return False
        except BaseException:
            _unlink(final)
            raise
        return True

    def _make_folder(self, folder: str) -> None:
        if folder in self._folders:
            return
        made = folder
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        # A new folder is an entry of its parent: without this, a crash could lose it with all that is in it.
        while self._fsync and len(made) > len(self._root):
            made = os.path.dirname(made)  # noqa: PTH120
            self._sync_folder(made)
        self._folders.add(folder)

    def _sync_folder(self, folder: str) -> None:
        if not self._fsync:
            return
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def _remove_if_empty(self, folder: str) -> None:
        """SUBTLE: a write into it at this moment finds its folder gone, and makes it again."""
        while folder:
            full = self._full(folder)
            self._folders.discard(full)
            try:
                os.rmdir(full)  # noqa: PTH106
            except OSError:
                return
            folder = os.path.dirname(folder)  # noqa: PTH120


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108
