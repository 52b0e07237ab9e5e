"""Files for slabs of columns, as a real worker has them: in its folder, without a name, mapped in place of memory.

Invariant: a slab has room in its file, and its bytes are there, before the file takes its place in memory. Whoever
writes to a page of a file that has no room on the disk is ended by a signal; so that is found out before, with an
error.

A page that the disk does not give back ends the process by a signal, too: that is a loss of the worker as any other.
What the system could not write is said by nobody but the file itself, to those who ask. So that is asked before
anything is said that builds upon it (:meth:`FileBacking.check`): since the page may have been dropped, and read again
as it was before.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import tempfile
import weakref
from functools import cache
from pathlib import Path
from typing import Any

from bedload.core.errors import DefinitionError, LocalDiskError

_WRITTEN = 1 << 14
"""Bytes that are written at a time: the system keeps them together, and brings them together."""
_FIXED, _NO_RESERVE = 0x10, 0x4000
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_WAIT_BEFORE = 1
_RANDOM, _DONT_NEED, _HUGE_PAGES, _NO_HUGE_PAGES = 1, 4, 14, 15
_NOTHING = 1 << 50
"""A place in a file behind all that is there."""
_FAILED = ctypes.c_void_p(-1).value
_MB = 1_000_000
_STATM = Path("/proc/self/statm")


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_uint]
    return libc


def file_pages() -> int:
    """The bytes of files that are in the memory of this process."""
    return int(_STATM.read_bytes().split()[2]) * mmap.PAGESIZE


def check_system() -> None:
    """Raise if this system has not what it takes."""
    if sys.platform != "linux":
        raise DefinitionError("store='disk' for columns needs Linux where the workers run: use store='memory'")


def no_room(where: str, path: str | Path, error: Exception, size: int) -> LocalDiskError:
    """State could not be written."""
    return LocalDiskError(
        f"{where}: {size / _MB:,.1f} MB of state could not be written to {path}: {error}. Nothing is lost. Make room "
        f"there, or attach with local_dir= on another disk; then start the query again"
    )


def not_there(where: str, path: str | Path, error: Exception) -> LocalDiskError:
    """State cannot be read."""
    return LocalDiskError(
        f"{where}: state on the local disk was lost ({path}): {error}. With a checkpoint it is read back by another "
        f"worker when the query is started again; if it comes back, attach with local_dir= on another disk"
    )


class FileBacking:
    """One file."""

    def __init__(self, folder: str, where: str) -> None:
        self.lost: LocalDiskError | None = None
        """Why what was there is not any more."""
        self.closed = False
        self._folder, self._where = folder, where
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                self._fd = os.dup(file.fileno())
        except OSError as error:
            raise no_room(where, folder, error, 0) from error
        self._end = weakref.finalize(self, os.close, self._fd)

    def lay_down(self, address: int, size: int, at: int) -> None:
        """Write this memory to the file, and have it be the file."""
        data = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        try:
            os.posix_fallocate(self._fd, at, size)
            for begin in range(0, size, _WRITTEN):
                part = data[begin : begin + _WRITTEN]
                if os.pwrite(self._fd, part, at + begin) < len(part):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._map(address, size, mmap.MAP_SHARED, self._fd, at)
        except OSError as error:
            raise no_room(self._where, self._folder, error, size) from error
        # Only what is touched is wanted, and not what lies beside.
        _libc().madvise(address, size, _RANDOM)
        _libc().madvise(address, size, _NO_HUGE_PAGES)

    def take_up(self, address: int, size: int, at: int) -> None:
        """Have it be memory again."""
        found = bytearray(size)
        view, done = memoryview(found), 0
        try:
            while done < size and (some := os.preadv(self._fd, [view[done:]], at + done)):
                done += some
            if done < size:
                raise OSError(errno.EIO, "the file is shorter than it was")
        except OSError as error:
            raise self._gone(error) from error
        try:
            self._fresh(address, size)
        except OSError as error:
            raise no_room(self._where, self._folder, error, size) from error
        _libc().madvise(address, size, _HUGE_PAGES)
        ctypes.memmove(address, (ctypes.c_char * size).from_buffer(found), size)

    def let_go(self, address: int, size: int) -> None:
        """What was laid down need not be in memory."""
        _libc().madvise(address, size, _DONT_NEED)

    def clear(self, address: int, size: int, at: int) -> None:
        """Have it be new memory, and give the place in the file back."""
        self._fresh(address, size)
        _libc().fallocate(self._fd, _PUNCH_HOLE | _KEEP_SIZE, at, size)  # if that fails, it is given back at the end

    def size(self) -> int:
        """The bytes that it takes on the disk."""
        return os.fstat(self._fd).st_blocks * 512

    def check(self) -> None:
        """Find out whether the system could not write something."""
        if self.lost is not None or self.closed:
            return
        if _libc().sync_file_range(self._fd, _NOTHING, mmap.PAGESIZE, _WAIT_BEFORE) < 0:
            error = ctypes.get_errno()
            if error in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                self._gone(OSError(error, os.strerror(error)))

    def close(self) -> None:
        """Nobody needs it any more; what is mapped of it stays until its memory is given back."""
        self.closed = True
        self._end()

    def _fresh(self, address: int, size: int) -> None:
        self._map(address, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1, 0)

    def _map(self, address: int, size: int, flags: int, fd: int, at: int) -> None:
        """Have something else in this place."""
        flags |= _FIXED
        if _libc().mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, at) in (None, _FAILED):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def _gone(self, error: Exception) -> LocalDiskError:
        self.lost = self.lost or not_there(self._where, self._folder, error)
        return self.lost
