"""Creating a file that at most one writer gets, on a store that has no exclusive create (ADR 12).

Invariant: at most one create of a path succeeds. Whoever creates leaves a mark first and looks for those of others
second; whoever sees another's gives up. So two may both lose, and never both win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import xxhash

from bedload.checkpoint.storage import Storage


def create_by_marks(storage: Storage, path: str, value: bytes, names: Callable[[str], Iterable[str]]) -> bool:
    """Write a file if there is none of that path; ``names`` gives all names in a folder, those with a dot too.

    Step by step: all of them can be made twice.
    """
    if storage.exists(path):
        # SUBTLE: its own content may have come over another's, when a try failed whose answer was lost.
        return storage.read(path) == value and not _is_contested(storage, path, value, names)
    if _is_contested(storage, path, value, names):
        return False
    storage.write(path, value)
    return storage.read(path) == value


def _is_contested(storage: Storage, path: str, value: bytes, names: Callable[[str], Iterable[str]]) -> bool:
    """Leave a mark, and see whether somebody else has left one."""
    folder, _, name = path.rpartition("/")
    # By its content, which is unique where it matters: so a try that is made again has the same mark.
    mine = f".{name}.{xxhash.xxh3_128_hexdigest(value)}.mark"
    storage.write(f"{folder}/{mine}" if folder else mine, b"")
    return any(n != mine and n.startswith(f".{name}.") and n.endswith(".mark") for n in names(folder))
