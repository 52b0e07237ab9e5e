"""Snapshots: the state of key groups as Parquet, readable by any program that reads Parquet.

A *part* has some key groups, and a file for each variable: ``bedload_group``, the key columns under the user's names,
and the variable. Row *i* of all files of a part is the same key. A key group is one row group, so that a filter on
``bedload_group`` skips the others, here and in Spark or DuckDB.

Invariants: a file is what the manifest tells by its size and checksum, or :class:`CheckpointDamaged` names it; key
groups without keys belong to a part but have no row group; a part without keys has no files.

Datetimes are timestamps where all of a file have one zone (:mod:`bedload.checkpoint.timestamps`). Parts are written by
many at once, who do not know of each other's zones; that the files of a variable are all alike in the end is seen to by
:mod:`bedload.checkpoint.uniform`. The manifest has the zone.

A file's name ends in its checksum, so two attempts at a snapshot never write the same file with different content,
however late one of them comes. What an attempt leaves behind, :mod:`bedload.checkpoint.strays` finds.

ZSTD at its lowest level, and no dictionaries but for the key group: measured on a million int64 keys and counts
(18 MB), that writes 7.8 MB in 67 ms; Snappy writes 10.7 MB in 59 ms. With strings ZSTD's files are 0.6 of Snappy's.
With ZSTD, dictionaries made no file smaller, and took 37 to 52 % longer. A row group per key group costs 30 ms of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from bedload.checkpoint import paths
from bedload.checkpoint.forms import StateForm, groups_of
from bedload.checkpoint.parquet_types import stored_type
from bedload.checkpoint.records import FileInfo, OperatorSchema, SnapshotPart
from bedload.checkpoint.storage import Storage, without_secrets
from bedload.checkpoint.timestamps import NO_STAMP, is_dated, stamped, stamped_type, unstamped, zone_for, zones_of
from bedload.core.errors import CheckpointDamaged
from bedload.store.deltas import GROUP, spans

TARGET_BYTES = 16 * 1024 * 1024
"""Of a part, in memory. A part is what a restore holds at a time, what a lost read costs, and what the next snapshot
takes over or writes anew as a whole. 10 M small keys are 16 parts."""

KEYS_ONLY = "bedload_keys"
"""Stands for a variable if an operator has none: its keys are state, too."""


def write_part(
    storage: Storage,
    folder: str,
    schema: OperatorSchema,
    batch: pa.RecordBatch,
    groups: Sequence[int] | None = None,
    *,
    zones: Mapping[str, str] = MappingProxyType({}),
    only: Sequence[str] | None = None,
) -> SnapshotPart:
    """Write the files of some key groups; ``groups`` names them if some may have no keys.

    ``zones`` says what zone the datetimes of a variable had before, or have to have now. ``only`` names the variables.
    """
    there = spans(groups_of(batch))
    held = tuple(group for group, _, _ in there)
    covered = held if groups is None else tuple(sorted(groups))
    files: dict[str, FileInfo] = {}
    if batch.num_rows:
        form = StateForm.of(schema, only)
        form.check(batch, where="a snapshot to be written")
        dated = {variable.name for variable in schema.variables if is_dated(variable)}
        for variable in form.variables or [KEYS_ONLY]:
            column = batch.column(variable) if form.variables else None
            zone, found = (None, set()) if variable not in dated else _zone(column, zones.get(variable))
            if zone not in (None, NO_STAMP):
                column = stamped(column, zone)
            table = _table(schema, form, batch, variable, column)
            data = _parquet(table, [(first, end) for _, first, end in there])
            digest = xxhash.xxh3_64_hexdigest(data)
            path = paths.part(variable, covered[0], digest)
            storage.write(f"{folder}/{path}", data)
            info = FileInfo(path=path, bytes=int(data.size), xxh3=digest)
            told = {} if zone is None else {"zone": zone, "zones": tuple(sorted(found))}
            files[variable] = msgspec.structs.replace(info, **told)
    return SnapshotPart(groups=covered, rows=batch.num_rows, files=files)


def write_parts(
    storage: Storage,
    folder: str,
    schema: OperatorSchema,
    chunks: Iterable[tuple[Sequence[int], pa.RecordBatch]],
    *,
    target_bytes: int = TARGET_BYTES,
    zones: Mapping[str, str] = MappingProxyType({}),
) -> list[SnapshotPart]:
    """Write key groups as they come, in parts of about this size. A key group is in one part, however large it is.

    ``zones``: as for :func:`write_part`.
    """
    written: list[SnapshotPart] = []
    pending: list[pa.RecordBatch] = []
    covered: list[int] = []
    size = 0

    def flush() -> None:
        nonlocal size
        table = pa.Table.from_batches(pending)
        if not (len(pending) == 1 or _ascending(pending)):
            table = table.sort_by(GROUP)
        batches = table.combine_chunks().to_batches()
        batch = batches[0] if batches else StateForm.of(schema).empty()
        written.append(write_part(storage, folder, schema, batch, covered, zones=zones))
        pending.clear()
        covered.clear()
        size = 0

    for groups, batch in _cut(chunks, target_bytes):
        if pending and size + batch.nbytes > target_bytes:
            flush()
        pending.append(batch)
        covered += groups
        size += batch.nbytes
    if pending:
        flush()
    return written


class PartReader:
    """Reads key groups of one part. Each file is read and checked once, when first needed. Thread-safe."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        schema: OperatorSchema,
        part: SnapshotPart,
        variables: Sequence[str] | None = None,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._schema = schema
        self._part = part
        self._form = StateForm.of(schema, variables)
        self._lock = Lock()
        self._files: list[_File] | None = None

    def read(self, groups: Sequence[int]) -> pa.RecordBatch:
        """The rows of these key groups, in state form."""
        if not self._part.rows:
            return self._form.empty()
        files = self._open()
        first, key_names = files[0], _key_names(self._schema, files[0].variable)
        keyed = first.read(groups, [*key_names, *_own(first, self._form)])
        columns = {GROUP: first.groups(groups)}
        for name, stored in zip(self._form.key_columns, key_names, strict=True):
            columns[name] = keyed.column(stored)
        for file in files:
            if file.variable in self._form.variables:
                table = keyed if file is first else file.read(groups, [file.variable])
                if table.num_rows != keyed.num_rows:
                    raise file.damaged(f"it has {table.num_rows} rows where {first.where} has {keyed.num_rows}")
                columns[file.variable] = table.column(file.variable)
        zones = {file.variable: file.zone for file in files if file.zone is not None}
        return _in_form(self._form, columns, first, zones)

    def _open(self) -> list[_File]:
        with self._lock:
            if self._files is None:
                # To read the keys, any file will do.
                wanted = list(self._form.variables) or sorted(self._part.files)[:1]
                self._files = [self._file(variable) for variable in wanted]
            return self._files

    def _file(self, variable: str) -> _File:
        info = self._part.files.get(variable)
        if info is None:
            raise CheckpointDamaged(
                f"the snapshot {without_secrets(self._storage.url)}/{self._folder} has no file of variable "
                f"{variable!r} for key groups {self._part.groups[0]} to {self._part.groups[-1]}: it was written for "
                "another schema of the operator"
            )
        return _File(self._storage, f"{self._folder}/{info.path}", variable, info)


class _File:
    """One Parquet file, in memory and checked."""

    def __init__(self, storage: Storage, path: str, variable: str, info: FileInfo) -> None:
        self.variable = variable
        self.zone = None if info.zone in (msgspec.UNSET, NO_STAMP) else info.zone
        """Of the timestamps in it that are datetimes."""
        self.where = f"{without_secrets(storage.url)}/{path}"
        try:
            data = pa.py_buffer(storage.read(path))
        except FileNotFoundError as missing:
            raise self.damaged("it is not there") from missing
        if data.size != info.bytes:
            raise self.damaged(f"it has {data.size} bytes, and {info.bytes} were written")
        if xxhash.xxh3_64_hexdigest(data) != info.xxh3:
            raise self.damaged("its checksum differs: bytes in it have changed")
        self._data = data
        try:
            self._metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
            self._row_groups = self._by_group()
        except (pa.ArrowException, OSError, ValueError) as bad:
            raise self.damaged(f"its checksum is right, but it is not Parquet ({bad})") from bad

    def read(self, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Some columns of some key groups, sorted by group."""
        numbers = [number for number, _ in self._numbers(groups)]
        try:
            # A reader of its own for each call: they are not thread-safe.
            file = pq.ParquetFile(pa.BufferReader(self._data), metadata=self._metadata)
            return file.read_row_groups(numbers, columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError, KeyError) as bad:
            raise self.damaged(f"its checksum is right, but it cannot be read ({bad})") from bad

    def groups(self, groups: Sequence[int]) -> pa.ChunkedArray:
        """The key group of each of these rows: that is known without reading it."""
        numbers = self._numbers(groups)
        rows = [self._metadata.row_group(number).num_rows for number, _ in numbers]
        return pa.chunked_array([np.repeat(np.array([group for _, group in numbers], np.int16), rows)])

    def damaged(self, what: str) -> CheckpointDamaged:
        """The error that names this file."""
        return CheckpointDamaged(
            f"the snapshot file {self.where} is damaged: {what}. Put the file back from a copy of the checkpoint, or "
            "restore an epoch that does not need it",
            path=self.where,
            what=what,
        )

    def _numbers(self, groups: Sequence[int]) -> list[tuple[int, int]]:
        """The row groups of these key groups in their order, each with its key group."""
        return sorted((self._row_groups[group], group) for group in groups if group in self._row_groups)

    def _by_group(self) -> dict[int, int]:
        found = {}
        for i in range(self._metadata.num_row_groups):
            held = self._metadata.row_group(i).column(0).statistics
            if held.min != held.max:
                raise ValueError(f"row group {i} has the key groups {held.min} to {held.max}")
            found[held.min] = i
        return found


# --- steps ---


def _zone(column: pa.Array, before: str | None) -> tuple[str, set[str]]:
    """As what the datetimes of a file are stored, and the zones that they have.

    It goes on as it was where it can, so that all who write parts do the same.
    """
    zones = zones_of(column)
    if before is not None and (before == NO_STAMP or zones <= {before}):
        return before, zones
    return zone_for(zones), zones


def _table(
    schema: OperatorSchema, form: StateForm, batch: pa.RecordBatch, variable: str, column: pa.Array | None
) -> pa.Table:
    columns = [batch.column(GROUP), *(_stored(batch.column(name)) for name in form.key_columns)]
    names = [GROUP, *_key_names(schema, variable)]
    if column is not None:
        columns.append(_stored(column))
        names.append(variable)
    return pa.Table.from_arrays(columns, names=names)


def _stored(column: pa.Array) -> pa.Array:
    return column.cast(stored_type(column.type))


def _key_names(schema: OperatorSchema, variable: str) -> list[str]:
    """The names of the key columns beside a variable. Spark does not tell upper from lower case, so neither do we."""
    taken = {GROUP, variable.lower()} | {name.lower() for name in schema.key_names}
    names = []
    for name in schema.key_names:
        made = name
        if name.lower() in (variable.lower(), GROUP):
            while made.lower() in taken:
                made = f"key_{made}"
            taken.add(made.lower())
        names.append(made)
    return names


def _parquet(table: pa.Table, row_groups: Iterable[tuple[int, int]]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[GROUP],
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(0)],
    ) as writer:
        for first, end in row_groups:
            writer.write_table(table.slice(first, end - first), row_group_size=end - first)
    return sink.getvalue()


def _own(file: _File, form: StateForm) -> list[str]:
    return [file.variable] if file.variable in form.variables else []


def _in_form(
    form: StateForm, columns: Mapping[str, pa.ChunkedArray], file: _File, zones: Mapping[str, str]
) -> pa.RecordBatch:
    arrays = []
    for field in form.schema:
        column: Any = columns[field.name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
        zone = zones.get(field.name)
        try:
            if zone is None:
                arrays.append(column.cast(field.type))
            else:
                arrays.append(unstamped(column.cast(stamped_type(field.type, zone)), field.type, zone))
        except pa.ArrowException as bad:
            raise file.damaged(f"its column {field.name!r} is {column.type}, and not {field.type} ({bad})") from bad
    return pa.RecordBatch.from_arrays(arrays, schema=form.schema)


def _ascending(batches: Sequence[pa.RecordBatch]) -> bool:
    last = -1
    for batch in batches:
        if batch.num_rows:
            groups = groups_of(batch)
            if groups[0] <= last:
                return False
            last = int(groups[-1])
    return True


def _cut(
    chunks: Iterable[tuple[Sequence[int], pa.RecordBatch]], target_bytes: int
) -> Iterable[tuple[Sequence[int], pa.RecordBatch]]:
    """Chunks that are too large, by key group."""
    for groups, batch in chunks:
        if batch.nbytes <= target_bytes or len(groups) == 1:
            yield groups, batch
        else:
            rows = {int(group): (first, end) for group, first, end in spans(groups_of(batch))}
            for group in groups:
                first, end = rows.get(group, (0, 0))
                yield [group], batch.slice(first, end - first)
