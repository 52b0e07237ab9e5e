"""What failed attempts at a snapshot left in its folder.

Invariant: only files that a snapshot could have are named, so files that somebody else put there are never deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from bedload.checkpoint import paths
from bedload.checkpoint.records import SnapshotPart
from bedload.checkpoint.storage import Storage


def stray_files(storage: Storage, folder: str, parts: Iterable[SnapshotPart]) -> list[str]:
    """Parquet files in a snapshot's folder that none of its parts names."""
    named = {info.path for part in parts for info in part.files.values()}
    there = [
        f"{variable}/{name}"
        for variable in storage.list(folder)
        if paths.unescape(variable) is not None
        for name in storage.list(f"{folder}/{variable}")
    ]
    return [f"{folder}/{path}" for path in there if paths.is_part(path) and path not in named]
