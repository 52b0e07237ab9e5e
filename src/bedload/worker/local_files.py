"""Local files of a worker, for what it may lose.

They have no name: nobody else sees them, and the operating system takes them away with the process, however it ends.
So there is nothing to remove, neither at the start of a worker nor at its end.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable

import msgspec

from bedload.protocol.messages import Body


class Local(msgspec.Struct, frozen=True):
    """What a worker may have of its machine."""

    folder: str | None = None
    """For local files; None: the system's temporary one."""
    memory: int | None = None
    """Bytes for state that can also be on disk; None: what the worker finds right."""


LOCAL = Local()


class LocalFile:
    """One file without a name."""

    def __init__(self, folder: str) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is closed when its turn is over
        self._end = 0

    def append(self, parts: Iterable[Body]) -> int:
        """Write these at its end; where the first begins."""
        at = self._end
        for part in parts:
            self._end += self._file.write(part)
        self._file.flush()
        return at

    def read(self, at: int, size: int) -> Body:
        """So many bytes from there; fewer, if it ends before."""
        found, done = bytearray(size), 0
        while done < size and (some := os.preadv(self._file.fileno(), [memoryview(found)[done:]], at + done)):
            done += some
        return memoryview(found)[:done]

    def close(self) -> None:
        """Give the room back."""
        with contextlib.suppress(OSError):  # what could not be written is tried once more
            self._file.close()


class LocalFiles:
    """Files in one folder."""

    def __init__(self, folder: str | None = None) -> None:
        """``folder``: None for the system's temporary one."""
        self._folder = folder

    def file(self) -> LocalFile:
        """A new one."""
        return LocalFile(tempfile.gettempdir() if self._folder is None else self._folder)
