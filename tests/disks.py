"""A disk in memory, for tests of what lies on disks."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from bedload.core.errors import LocalDiskError
from bedload.store.cache import Cache
from bedload.store.columns.pager import Pager
from bedload.store.disk import Disk
from bedload.worker.local_slabs import FileBacking
from tests.remotes import MemoryRemotes

PAGE = mmap.PAGESIZE
"""A slab of tests: as small as can be."""


class MemoryDisk:
    """Names and what lies under them. ``full``: it takes nothing for now."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.full = False
        self.closed = False
        self.gets = 0

    def get(self, names: list[bytes]) -> list[bytes | None]:
        self._check()
        self.gets += 1
        return [self.data.get(name) for name in names]

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> int:
        self._check()
        if self.full:
            raise LocalDiskError("the disk is full")
        new = dict(puts)
        self.data.update(new)
        for name in deletes:
            self.data.pop(name, None)
        return sum(map(len, new.values()))

    def drop(self, prefix: bytes) -> None:
        self._check()
        if self.full:
            raise LocalDiskError("the disk is full")
        for name in list(self.data):
            if name.startswith(prefix):
                del self.data[name]

    def names(self, prefix: bytes) -> Iterator[bytes]:
        self._check()
        return iter(sorted(name for name in self.data if name.startswith(prefix)))

    def size(self) -> int:
        return sum(map(len, self.data.values()))

    def close(self) -> None:
        self.closed = True
        self.data.clear()

    def _check(self) -> None:
        assert not self.closed, "it was closed, and a real one would be lost"


class MemoryDisks:
    """Disks in memory, and a cache of so many bytes."""

    lost: LocalDiskError | None = None

    def __init__(self, memory: int = 0) -> None:
        self.cache = Cache(memory)
        self.pager = Pager(self.cache, slab=PAGE)
        self.made: list[MemoryDisk] = []

    @property
    def disks(self) -> MemoryDisks:
        return self

    @property
    def remotes(self) -> MemoryRemotes:
        return MemoryRemotes()

    def open(self, operator: str) -> Disk:
        self.made.append(MemoryDisk())
        return self.made[-1]

    def slabs(self, operator: str) -> Slabs:
        return Slabs()


class Slabs(FileBacking):
    """A file for slabs of columns, in memory. ``full``: it takes nothing for now."""

    def __init__(self) -> None:
        super().__init__("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir(), "a test")
        self.full = False

    def lay_down(self, address: int, size: int, at: int) -> None:
        if self.full:
            raise LocalDiskError("the disk is full")
        super().lay_down(address, size, at)
