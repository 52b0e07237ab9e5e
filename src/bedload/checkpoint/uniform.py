"""The files of one variable in a snapshot all alike, so that a folder of them is one table.

Datetimes are timestamps where all of them have one zone, and structs where not. Those who write the parts of a snapshot
decide that each for itself. They begin with what the snapshot before it had (:func:`zones_before`), so most of the time
they agree. Where they do not, because a zone is new, files are written once more.

Invariants: what a snapshot's files are in the end depends on the state and on the snapshot before it, and not on who
wrote which part; a file is never written over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bedload.checkpoint import paths
from bedload.checkpoint.records import FileInfo, Manifest, OperatorSchema, SnapshotPart
from bedload.checkpoint.snapshots import PartReader, write_part
from bedload.checkpoint.storage import Storage
from bedload.checkpoint.timestamps import zone_for
from bedload.core.ids import OperatorName


def zones_before(manifest: Manifest | None) -> dict[str, str]:
    """By variable, the zone that its datetimes are to be stored with, as far as a snapshot tells."""
    found = {} if manifest is None else zones_by_variable(manifest.parts)
    return {name: zone_for(zones) for name, zones in found.items() if zones}


def zones_by_variable(parts: Iterable[SnapshotPart]) -> dict[str, set[str]]:
    """The zones of a variable's datetimes, of those variables whose files all tell them."""
    found: dict[str, set[str]] = {}
    silent: set[str] = set()
    for part in parts:
        for name, info in part.files.items():
            if isinstance(info.zones, msgspec.UnsetType):
                silent.add(name)
            else:
                found.setdefault(name, set()).update(info.zones)
    return {name: zones for name, zones in found.items() if name not in silent}


def is_uniform(manifest: Manifest) -> bool:
    """Whether the files of each variable are alike."""
    return not _uneven(manifest.parts)


def uniform(storage: Storage, operator: OperatorName, schema: OperatorSchema, manifest: Manifest) -> Manifest:
    """The manifest, with files that are alike in the place of those that are not."""
    parts: Sequence[SnapshotPart] = manifest.parts
    folder = paths.snapshot(operator, manifest.turn)
    for name, zone in _uneven(parts).items():
        parts = [_rewritten(storage, folder, schema, part, name, zone) for part in parts]
    return msgspec.structs.replace(manifest, parts=tuple(parts), bytes=sum(info.bytes for info in _files(parts)))


def _uneven(parts: Sequence[SnapshotPart]) -> dict[str, str]:
    """The variables whose files are not alike, each with the zone that they are to have."""
    return {
        name: zone_for(zones)
        for name, zones in zones_by_variable(parts).items()
        if len({part.files[name].zone for part in parts if name in part.files}) > 1
    }


def _rewritten(
    storage: Storage, folder: str, schema: OperatorSchema, part: SnapshotPart, name: str, zone: str
) -> SnapshotPart:
    info = part.files.get(name)
    if info is None or info.zone == zone:
        return part
    batch = PartReader(storage, folder, schema, part, [name]).read(part.groups)
    made = write_part(storage, folder, schema, batch, part.groups, zones={name: zone}, only=[name])
    return msgspec.structs.replace(part, files={**part.files, **made.files})


def _files(parts: Sequence[SnapshotPart]) -> list[FileInfo]:
    return [info for part in parts for info in part.files.values()]
