"""The JSON files of a checkpoint, as plain data.

Invariants: each file names its kind and the version of its layout, and can be read by itself. A file that is not whole,
or of another kind, is :class:`CheckpointDamaged` with its path; one of a later version is :class:`CheckpointVersion`.
Fields that this version does not know are ignored, so a later one may add some without breaking this one.

Binary values are base64 (as msgspec does), 64-bit checksums are hexadecimal text: JSON readers elsewhere
round large integers.

The last field of a file is ``xxh3``, the checksum of the bytes before it: a file with one wrong digit is still JSON,
and an epoch that is off by one is a wrong state. A file without it, say one that was formatted by hand, is read
unchecked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import xxhash

from bedload.checkpoint import paths
from bedload.checkpoint.shapes import Shape
from bedload.core.epoch import EpochTime
from bedload.core.errors import CheckpointDamaged, CheckpointError, CheckpointVersion
from bedload.core.ids import Epoch, Generation, OperatorName, QueryId, Turn, WorkerId
from bedload.keys import MAX_KEY_GROUPS
from bedload.state.kinds import Layout, VariableKind

FORMAT_NAME = "bedload-checkpoint"
VERSION = 2
"""Of the layout. It goes up when an older Bedload would misread what this one writes. 2 came with timestamps in the
place of datetimes, and with arrays."""

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""The owner of each key group, run-length encoded: (worker, how many groups in a row)."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """``bedload.json``: this folder is a checkpoint, of this layout."""

    id: str
    """Random; tells one checkpoint from another, wherever it is moved."""
    bedload: str = ""
    """The version of Bedload that made it."""
    format: str = FORMAT_NAME
    version: int = VERSION


class Claim(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="generation"):
    """An attachment took this generation."""

    generation: Generation
    token: str
    """Random: by it the one who claims knows its own claim again."""
    when: float
    """Seconds since 1970."""
    host: str
    pid: int
    bedload: str
    """The version of Bedload that claimed."""
    exported_from: str = ""
    """Not an attachment, but the number up to which an exported checkpoint has turns."""
    version: int = VERSION


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """One state variable."""

    name: str
    type: str
    """The declared type as text."""
    arrow: bytes
    """A serialized Arrow schema of one field: the variable's column in state form."""
    kind: VariableKind
    shape: Shape | None = None
    """What the declared type is made of; of a column that is told by its Arrow type."""
    default: bytes | None = None
    """What a new key starts with: an Arrow IPC stream of one column and one row."""
    renamed_from: str | None = None
    """As declared: the name that it had in older schemas."""

    @property
    def field(self) -> pa.Field:
        """The variable's column."""
        return pa.ipc.read_schema(pa.py_buffer(self.arrow)).field(0)


class OperatorSchema(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="schema"):
    """The shape of an operator's state."""

    number: int
    layout: Layout
    key_names: tuple[str, ...]
    key_types: bytes
    """A serialized Arrow schema of the key columns."""
    key_groups: int
    variables: tuple[Variable, ...]
    base: int | None = None
    """The schema that the state had when this one took its place; None: it began with none."""
    together: dict[str, tuple[str, ...]] = {}
    """Variables that count the same rows, by what is computed from them: none of them may be younger than another."""
    version: int = VERSION

    @property
    def keys(self) -> pa.Schema:
        """The key columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.key_types))


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="turn"):
    """One attempt at one epoch, written before any worker may say that it has sealed it.

    It counts when the segment of each of its workers exists. With no workers it counts at once: so is the
    state set back to its parent.
    """

    turn: Turn
    parent: Turn | None
    """The turn whose state it builds upon; None: the empty state."""
    generation: Generation
    query: QueryId
    run: str
    epoch: Epoch
    location: str
    """The query's Spark checkpoint location, or empty."""
    schema: int
    owners: Runs
    workers: tuple[WorkerId, ...]
    """Whose segments make it complete."""
    committed: dict[str, Epoch]
    """The last epoch of each query as of the parent."""
    guests: tuple[tuple[int, WorkerId], ...] | msgspec.UnsetType = msgspec.UNSET
    """Key groups of which other workers hold single keys, with these workers; absent if there are none."""
    operator: OperatorName | msgspec.UnsetType = msgspec.UNSET
    """Whose it is; absent in older files."""
    time: EpochTime | msgspec.UnsetType = msgspec.UNSET
    """The time of the epoch; absent in older files."""
    parameters: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """The parameters of the operator in it, as texts; absent if it has none, and in older files."""
    store: str | msgspec.UnsetType = msgspec.UNSET
    """Where the workers had the state beside the checkpoint, without a password; absent if in memory alone."""
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.parent is not None and self.parent >= self.turn:
            raise ValueError(f"turn {self.turn} cannot build upon {self.parent}, which is not before it")
        if min((count for _, count in self.owners), default=1) < 1 or self._groups > MAX_KEY_GROUPS:
            raise ValueError(f"turn {self.turn} has no owners of from 1 to {MAX_KEY_GROUPS} key groups")

    @property
    def _groups(self) -> int:
        return sum(count for _, count in self.owners)

    @property
    def last_epochs(self) -> dict[str, Epoch]:
        """The last epoch of each query as of this turn."""
        return {**self.committed, self.query: self.epoch}

    @property
    def owner_of_groups(self) -> tuple[WorkerId, ...]:
        """The owner of each key group."""
        return tuple(WorkerId(owner) for owner, count in self.owners for _ in range(count))

    def writers(self, groups: Iterable[int]) -> list[WorkerId]:
        """The workers whose segments may have rows of these key groups."""
        if not self.workers:
            return []
        owners, wanted = self.owner_of_groups, set(groups)
        if wanted and max(wanted) >= len(owners):
            raise CheckpointDamaged(
                f"the record of turn {self.turn} tells the owners of {len(owners)} key groups, and not of group "
                f"{max(wanted)}. Put the file back from a copy of the checkpoint"
            )
        needed = {owners[group] for group in wanted}
        if self.guests is not msgspec.UNSET:
            needed |= {worker for group, worker in self.guests if group in wanted}
        return [worker for worker in self.workers if worker in needed]


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a snapshot."""

    path: str
    """Relative to the snapshot's folder."""
    bytes: int
    xxh3: str
    """XXH3-64 of the file, 16 hexadecimal digits."""
    zone: str | msgspec.UnsetType = msgspec.UNSET
    """Of a variable with datetimes: they are timestamps of this zone, or structs (``NO_STAMP`` in
    :mod:`bedload.checkpoint.timestamps`). Older files have structs."""
    zones: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """And the zones that there are."""

    def __post_init__(self) -> None:
        # What is read or deleted by it must lie in the snapshot's folder, whoever wrote the manifest.
        if not paths.is_part(self.path):
            raise ValueError(f"path {self.path!r} is not that of a file in a snapshot's folder")


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True):
    """The state of some key groups: a file per variable, the same keys in the same order in each."""

    groups: tuple[int, ...]
    rows: int
    files: dict[str, FileInfo]
    """By the variable's name."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="snapshot"):
    """The state at a turn, whole. Written last: it makes the snapshot count."""

    turn: Turn
    schema: int
    query: QueryId
    epoch: Epoch
    parts: tuple[SnapshotPart, ...]
    bytes: int
    rows: int
    committed: dict[str, Epoch]
    """The last epoch of each query as of this turn, itself included."""
    operator: OperatorName | msgspec.UnsetType = msgspec.UNSET
    """Whose it is; absent in older files."""
    generation: Generation | msgspec.UnsetType = msgspec.UNSET
    """The attachment that made it; absent in older files."""
    parameters: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Those of the turn."""
    version: int = VERSION


Record: TypeAlias = Format | Claim | OperatorSchema | TurnRecord | Manifest
R = TypeVar("R", Format, Claim, OperatorSchema, TurnRecord, Manifest)

_WHAT = {
    Format: "the format file",
    Claim: "a generation's claim",
    OperatorSchema: "an operator's schema",
    TurnRecord: "a turn's record",
    Manifest: "a snapshot's manifest",
}
_ENCODER = msgspec.json.Encoder(order="deterministic")
_CHECKSUM = re.compile(rb',\n "xxh3": "([0-9a-f]{16})"\n}\s*')


class _Head(msgspec.Struct):
    """What is looked at first: a later version may have changed all the rest."""

    version: int
    bedload: str = ""


def is_of(record: TurnRecord | Manifest, operator: OperatorName, turn: Turn) -> bool:
    """Whether a record is in its own place, as far as it says whose it is."""
    return record.turn == turn and record.operator in (operator, msgspec.UNSET)


def manifest_of(record: TurnRecord, schema: OperatorSchema, parts: Sequence[SnapshotPart]) -> Manifest:
    """The manifest of a snapshot, from the parts that the workers wrote."""
    times = Counter(group for part in parts for group in part.groups)
    wrong = [group for group in range(schema.key_groups) if times[group] != 1]
    if wrong or len(times) != schema.key_groups:
        raise CheckpointError(
            f"the snapshot of turn {record.turn} does not have each of the {schema.key_groups} key groups once: "
            f"{', '.join(f'{group} {times[group]} times' for group in wrong[:5])}. Compact it again"
        )
    return Manifest(
        turn=record.turn,
        schema=schema.number,
        query=record.query,
        epoch=record.epoch,
        parts=tuple(sorted(parts, key=lambda part: part.groups[0])),
        bytes=sum(info.bytes for part in parts for info in part.files.values()),
        rows=sum(part.rows for part in parts),
        committed=record.last_epochs,
        parameters=record.parameters,
    )


def pack_owners(owners: Iterable[int]) -> Runs:
    """The owner of each key group as runs."""
    runs: list[tuple[int, int]] = []
    for owner in owners:
        if runs and runs[-1][0] == owner:
            runs[-1] = (owner, runs[-1][1] + 1)
        else:
            runs.append((int(owner), 1))
    return tuple(runs)


def pack_schema(schema: pa.Schema) -> bytes:
    """An Arrow schema as the bytes that records carry."""
    return bytes(schema.serialize())


def encode(record: Record) -> bytes:
    """The record as the content of its file."""
    text = msgspec.json.format(_ENCODER.encode(record), indent=1).removesuffix(b"\n}")
    return text + b',\n "xxh3": "%s"\n}' % xxhash.xxh3_64_hexdigest(text).encode()


def decode(kind: type[R], data: Any, path: str) -> R:
    """The record in a file's content; ``path`` names the file in what is raised."""
    try:
        _check(data)
        head = msgspec.json.decode(data, type=_Head)
        if head.version > VERSION:
            wanted = f"bedload>={head.bedload}" if head.bedload else "bedload"
            raise CheckpointVersion(
                f"{path} has layout version {head.version}; the Bedload installed here reads up to {VERSION}. "
                f'Install the one that wrote it, or a newer one: pip install -U "{wanted}"',
                path=path,
                version=head.version,
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointDamaged(
            f"{path} is not {_WHAT[kind]} as it was written: {error}. Put the file back from a copy of the "
            "checkpoint, or go on from a copy or an export of it.",
            path=path,
        ) from error


def _check(data: Any) -> None:
    """Raise if a checksum is there and differs."""
    text = data.encode() if isinstance(data, str) else bytes(data)
    end = _CHECKSUM.search(text, max(0, len(text) - _CHECKSUM_BYTES))
    if end is None or end.end() != len(text):
        return
    if end[1] != xxhash.xxh3_64_hexdigest(text[: end.start()]).encode():
        raise msgspec.DecodeError("its checksum differs: bytes in it have changed")


_CHECKSUM_BYTES = 64
"""The checksum is found in so many bytes at the end."""
