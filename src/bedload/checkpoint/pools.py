"""Threads as a dependency: whoever reads many files at a time is given a pool for it.

A simulation has one thread, and one order in which things happen; it gives a pool that does everything at once.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol


class Pools(Protocol):
    """Makes a pool of so many threads, of that name."""

    def __call__(self, threads: int, name: str, /) -> Executor:
        """One that ends when its ``with`` does."""
        ...


THREADS: Pools = ThreadPoolExecutor
"""Threads of this process."""
