"""How much memory there is for the workers of this machine."""

from __future__ import annotations

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""What a container may use, in both of the kernel's ways to say so."""

_SHARE = 4
"""One part in so many is for what an epoch needs beside the state: most of the rest is the state's, and Spark's."""

_WORKERS = 2
"""So many are thought to be on a machine at least, where nobody knows."""


def machine_bytes() -> int:
    """The memory of this machine, or of the container that it is."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        try:
            found.append(int(Path(path).read_text()))
        except (OSError, ValueError):
            continue  # there is none, or it says "max"
    return min(found)


def epoch_share(workers: int = 1) -> int:
    """What each of so many workers on this machine may use for an epoch, unless it was told otherwise."""
    return machine_bytes() // _SHARE // workers


def store_share(workers: int = 1) -> int:
    """What state on disk may take in memory at each of so many workers, unless it was told otherwise."""
    return machine_bytes() // _SHARE // max(workers, _WORKERS)
