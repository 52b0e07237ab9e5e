"""RocksDB (by `rocksdict`) as a layout of the state study: what state larger than memory would cost.

How it keeps epochs: what an epoch touches is read, decoded and changed as objects, and written in one batch when it
commits. So an abort forgets the objects, and a read of committed state goes to the database.

Keys are the key group and the key, big-endian, so a key group is a range. Values are MessagePack by msgspec. The
write-ahead log is off: that state survives a crash is the business of a checkpoint, in every layout alike.
"""

import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from bedload.worker.grouping import group_rows
from bench.isolate import NotAvailable
from bench.state_inputs import Batch, Keys, Shape
from bench.state_layouts import Plain, change

try:
    from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteOptions
except ImportError as error:
    raise NotAvailable("pip install rocksdict") from error

CACHE_BYTES = 256 << 20
"""Of blocks, so that nothing is measured but RocksDB: no reads from the disk."""

_KEY = struct.Struct(">HQ")
_GROUP = struct.Struct(">H")


class RocksLayout:
    """A database of its own directory, with the epoch's objects beside it."""

    epochs: ClassVar[bool] = True

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._place = Path(tempfile.mkdtemp(prefix="bedload-rocksdb-"))
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        blocks = BlockBasedOptions()
        blocks.set_block_cache(Cache(CACHE_BYTES))
        blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        self._db: Any = Rdict(str(self._place / "db"), options)
        write: Any = WriteOptions()  # its stub takes the property for a method
        write.disable_wal = True
        self._write = write
        self._db.set_write_options(self._write)
        self._live: dict[bytes, Plain] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_type_of(shape)).decode

    def fill(self, keys: Keys, states: list[Any]) -> None:
        batch = WriteBatch(raw_mode=True)
        for (group, key), state in zip(keys.pairs(), states, strict=True):
            batch.put(_KEY.pack(group, key), self._encode(state))
        self._db.write(batch, self._write)

    def update(self, batch: Batch) -> None:
        grouped = group_rows([batch.keys.column], batch.keys.groups)
        live, pack = self._live, _KEY.pack
        keys = [pack(group, key) for group, start, stop in grouped.groups for key in grouped.keys[start:stop]]
        missing = [key for key in keys if key not in live]
        if missing:
            decode = self._decode
            for key, data in zip(missing, self._db.get(missing), strict=True):
                live[key] = Plain(decode(data))
        change(self._shape, [live[key] for key in keys], grouped, batch, bounded=False)

    def touched(self) -> int:
        return len(self._live)

    def commit(self) -> None:
        batch, encode = WriteBatch(raw_mode=True), self._encode
        for key, item in self._live.items():
            batch.put(key, encode(item.state))
        self._db.write(batch, self._write)
        self._live = {}

    def abort(self) -> None:
        self._live = {}

    def read(self, group: int, key: int) -> Any:
        data = self._db.get(_KEY.pack(group, key))
        return None if data is None else self._decode(data)

    def read_many(self, keys: Keys) -> Sequence[Any]:
        wanted = [_KEY.pack(group, key) for group, key in keys.pairs()]
        return [self._decode(data) for data in self._db.get(wanted)]

    def scan(self) -> int:
        decode = self._decode
        return len([(key, decode(data)) for key, data in self._db.items()])

    def state(self) -> dict[int, Any]:
        return {_KEY.unpack(key)[1]: self._decode(data) for key, data in self._db.items()}

    def extract(self, groups: Iterable[int]) -> Any:
        return [list(self._of_group(group)) for group in groups]

    def install(self, payload: Any) -> None:
        for pairs in payload:
            batch = WriteBatch(raw_mode=True)
            for key, data in pairs:
                batch.put(key, data)
            self._db.write(batch, self._write)

    def discard(self, groups: Iterable[int]) -> None:
        for group in groups:
            self._db.delete_range(_GROUP.pack(group), _GROUP.pack(group + 1))

    def fresh(self) -> "RocksLayout":
        return RocksLayout(self._shape)

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def disk_bytes(self) -> int:
        """What is on the disk, once memory is flushed."""
        self._db.flush()
        return sum(file.stat().st_size for file in self._place.rglob("*") if file.is_file())

    def _of_group(self, group: int) -> Iterator[tuple[bytes, bytes]]:
        prefix = _GROUP.pack(group)
        for key, data in self._db.items(from_key=prefix):
            if not key.startswith(prefix):
                return
            yield key, data


def _type_of(shape: Shape) -> Any:
    item: Any = bytes if shape.large else int
    return {"value": item, "list": list[item], "map": dict[str, item], "nested": dict[str, list[item]]}[shape.kind]
