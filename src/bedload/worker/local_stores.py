"""Where a real worker has the state that is not in memory: a folder on the local disk, with a RocksDB per operator.

Invariants: a folder is of one process, which holds a lock on it; it is removed when that ends, or by whoever comes
next. What is in it is a cache of what the checkpoint has. So there is no write-ahead log, and nothing is ever synced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bedload.core.clock import SystemClock
from bedload.core.errors import BedloadError, DefinitionError, LocalDiskError
from bedload.core.ids import WorkerId
from bedload.state.kinds import Layout
from bedload.store.cache import Cache
from bedload.store.columns.pager import Pager
from bedload.store.disk import Disk, Disks
from bedload.worker.local_slabs import FileBacking, check_system, file_pages, no_room, not_there
from bedload.worker.redis_remote import RedisServers

LEAST = 16 << 20
"""Bytes of memory: with less, RocksDB's own buffers would leave nothing for objects."""
_OBJECTS, _BLOCKS, _BUFFERS = 0.75, 0.125, 0.125
"""What of the memory is for objects, for blocks of files, and for what RocksDB has not written yet."""
_FOLDER = re.compile(r"bedload-state-([0-9a-f]+)-(\d+)-(\d+)")
_LOCK = "lock"
_OPEN_FILES = 500
_FOLDERS: set[Path] = set()
"""Those of this process."""


def remove_folders() -> None:
    """Remove what this process has on the disk: it ends at once, whatever it is doing. From any thread."""
    for folder in list(_FOLDERS):
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder of this process, in which a RocksDB may be about to make files."""
    gone = folder.with_name(f"{folder.name}0")
    with contextlib.suppress(OSError):
        folder.rename(gone)  # so that it makes none any more
    shutil.rmtree(gone, ignore_errors=True)


class LocalStores:
    """Those of a real worker. Nothing is there before the first operator needs it."""

    def __init__(
        self, worker: WorkerId, attachment: str, memory: int, local_dir: str | None = None, checkpoint: str = ""
    ) -> None:
        """``local_dir``: None for the system's temporary folder, which all attachments share."""
        self._worker = worker
        self._attachment = attachment
        self._memory = memory
        self._parent = Path(tempfile.gettempdir() if local_dir is None else local_dir)
        self._shared = local_dir is None
        self._folder: Path | None = None
        self._lock = -1
        self._blocks: Any = None
        self._buffers: Any = None
        self._open: dict[str, RocksDisk] = {}
        self._slabs: list[FileBacking] = []
        self._made = 0
        self.cache = Cache(memory, SystemClock().processor)
        self.pager = Pager(self.cache, file_pages)
        self.remotes = RedisServers(worker, checkpoint)

    @property
    def disks(self) -> Disks:
        """Itself."""
        return self

    @property
    def lost(self) -> BedloadError | None:
        """Why the state of an operator is not there any more."""
        for file in self._slabs:
            file.check()
        places: Iterable[RocksDisk | FileBacking] = chain(self._open.values(), self._slabs)
        return next((it.lost for it in places if it.lost is not None), self.remotes.lost)

    def prepare(self, layout: Layout = Layout.ROWS) -> None:
        """Make the folder, and remove what others have left. Raises what is wrong with it."""
        if layout is Layout.ROWS:
            _rocksdict()
        else:
            check_system()
        if self._folder is not None:
            return
        try:
            for found in self._parent.iterdir():
                if (match := _FOLDER.fullmatch(found.name)) is not None:
                    self._look_at(found, match[1])
            name = f"bedload-state-{self._attachment}-{self._worker}-{os.getpid()}"
            folder = self._parent / name
            shutil.rmtree(folder, ignore_errors=True)  # of a process that had this number before
            # SUBTLE: it gets its name when it is locked. Whoever finds one that is not removes it.
            new = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=self._parent))
            self._lock = os.open(new / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(folder)
        except OSError as error:
            raise LocalDiskError(
                f"worker {self._worker}: no folder for state could be made in {self._parent}: {error}. Make room "
                f"there, or attach with local_dir= on another disk"
            ) from error
        self._folder = folder
        _FOLDERS.add(folder)

    def _look_at(self, folder: Path, attachment: str) -> None:
        """Remove the folder of a process that has ended; refuse that of another attachment."""
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            return  # somebody has just made it, or is removing it
        except PermissionError:
            lock = -1
        try:
            if lock >= 0:
                # Not for itself alone: workers that start together find the same folders, and none is an owner.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                return
        except BlockingIOError:
            pass
        finally:
            if lock >= 0:
                os.close(lock)
        if attachment != self._attachment and not self._shared:
            raise LocalDiskError(
                f"worker {self._worker}: local_dir {self._parent} is in use by another attachment ({folder.name}): "
                f"stop that one, or give each attachment a local_dir of its own"
            )

    def open(self, operator: str) -> Disk:
        """A RocksDB, empty."""
        self.prepare()
        assert self._folder is not None
        before = self._open.pop(operator, None)
        if before is not None:
            before.close()
        if self._blocks is None:
            rocks, buffers = _rocksdict(), int(self._memory * _BUFFERS)
            self._blocks = rocks.Cache(int(self._memory * _BLOCKS))
            # One for all: each would have its own otherwise, and so many times the share.
            self._buffers = rocks.WriteBufferManager(buffers, False)
            self.cache.most = int(self._memory * _OBJECTS)
        self._made += 1
        path, shared = self._folder / str(self._made), Shared(self._blocks, self._buffers, int(self._memory * _BUFFERS))
        disk = self._open[operator] = RocksDisk(path, shared, self._where(operator))
        return disk

    def slabs(self, operator: str) -> FileBacking:
        """A file for an array of columns."""
        self.prepare(Layout.COLUMNS)
        assert self._folder is not None
        self._slabs = [file for file in self._slabs if not file.closed]
        file = FileBacking(str(self._folder), self._where(operator))
        self._slabs.append(file)
        return file

    def _where(self, operator: str) -> str:
        return f"operator {operator}, worker {self._worker}"

    def close(self) -> None:
        """The worker ends."""
        if self._folder is not None:
            _remove(self._folder)
        for disk in self._open.values():
            disk.close()
        for file in self._slabs:
            file.close()
        self._open, self._slabs = {}, []
        self.remotes.close()
        if self._folder is not None:
            _FOLDERS.discard(self._folder)
            os.close(self._lock)
            self._folder = None


class Shared(NamedTuple):
    """What all RocksDBs of a worker share."""

    blocks: Any
    buffers: Any
    size: int
    """Bytes of the buffers."""


class RocksDisk:
    """One RocksDB."""

    def __init__(self, path: Path, shared: Shared, where: str) -> None:
        self.lost: LocalDiskError | None = None
        """Why what was there is not any more."""
        self._path = path
        self._where = where
        rocks = _rocksdict()
        table = rocks.BlockBasedOptions()
        table.set_block_cache(shared.blocks)
        table.set_bloom_filter(10, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(shared.buffers)
        options.set_write_buffer_size(max(shared.size // 3, 1 << 20))
        options.set_max_write_buffer_number(3)
        options.set_compression_type(rocks.DBCompressionType.lz4())
        options.set_max_open_files(_OPEN_FILES)
        options.set_max_background_jobs(2)
        # The worker's thread must not wait for compactions.
        options.set_level_zero_slowdown_writes_trigger(40)
        options.set_level_zero_stop_writes_trigger(80)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(1 << 20)
        try:
            self._db: Any = rocks.Rdict(str(path), options)
            no_log = rocks.WriteOptions()
            no_log.disable_wal = True
            self._db.set_write_options(no_log)
        except Exception as error:
            raise self._full(error, 0) from error
        self._no_log = no_log
        self._batch = rocks.WriteBatch

    def get(self, names: list[bytes]) -> list[bytes | None]:
        """What lies under these names."""
        try:
            found: list[bytes | None] = self._db.get(names)
        except Exception as error:
            raise self._gone(error) from error
        return found

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> int:
        """Put these, take those away."""
        batch = self._batch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for name, data in puts:
            put(name, data)
        for name in deletes:
            delete(name)
        size: int = batch.size_in_bytes()
        try:
            self._db.write(batch, self._no_log)
        except Exception as error:
            if "No space" in str(error) or "Disk quota" in str(error):
                raise self._full(error, size) from error
            raise self._gone(error) from error
        return size

    def drop(self, prefix: bytes) -> None:
        """Take away all names that begin like this."""
        try:
            self._db.delete_range(prefix, _after(prefix), self._no_log)
        except Exception as error:
            raise self._full(error, 0) from error

    def names(self, prefix: bytes) -> Iterator[bytes]:
        """All names that begin like this."""
        try:
            # SUBTLE: without an upper bound. That is in the options, which the iterator does not keep alive.
            found = self._db.iter()  # they are as of now from here on
            found.seek(prefix)
        except Exception as error:
            raise self._gone(error) from error
        return self._each(prefix, found)

    def _each(self, prefix: bytes, names: Any) -> Iterator[bytes]:
        valid, key, advance = names.valid, names.key, names.next
        try:
            while valid() and (name := key()).startswith(prefix):
                yield name
                advance()
            names.status()  # SUBTLE: what cannot be read looks like the end, also to the iterators over keys or items
        except Exception as error:
            raise self._gone(error) from error

    def size(self) -> int:
        """The bytes of its files, and of what is not in one yet."""
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def close(self) -> None:
        """Close it, and remove its files."""
        with contextlib.suppress(Exception):  # what it could not write is not wanted
            self._db.close()
        shutil.rmtree(self._path, ignore_errors=True)

    def _full(self, error: Exception, size: int) -> LocalDiskError:
        return no_room(self._where, self._path, error, size)

    def _gone(self, error: Exception) -> LocalDiskError:
        self.lost = self.lost or not_there(self._where, self._path, error)
        return self.lost


def _after(prefix: bytes) -> bytes:
    """The first name that does not begin like this."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def _rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise DefinitionError(
            "store='disk' needs the package rocksdict, which is not installed where the workers run: "
            "pip install 'bedload[disk]'"
        ) from error
    return rocksdict
