"""The local disk of a simulated worker: it is full now and then, and may lose what is on it.

The simulation looks at all state all the time. What it reads for that goes past the faults: only while the worker's own
machine works does something go wrong. Memory is so small that hardly anything stays there, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from bedload.core.errors import LocalDiskError
from bedload.store.cache import Cache
from tests.disks import MemoryDisk
from tests.simulator.chance import Chance
from tests.simulator.faults import Faults


class SimulatedStores:
    """What the operators of a worker share."""

    def __init__(self, name: str, faults: Faults) -> None:
        self.lost: LocalDiskError | None = None
        self.cache = Cache(Chance(f"{name} has memory").pick([0, 0, 700, 2000]))
        self.faults = faults
        self._works = False

    @property
    def disks(self) -> SimulatedStores:
        """Itself."""
        return self

    def open(self, operator: str) -> MemoryDisk:
        """An empty disk."""
        return SimulatedDisk(self)

    @contextmanager
    def working(self) -> Iterator[None]:
        """The machine works."""
        before, self._works = self._works, True
        try:
            yield
        finally:
            self._works = before

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The simulation looks."""
        before, self._works = self._works, False
        try:
            yield
        finally:
            self._works = before

    def may_lose(self) -> None:
        """What was on the disk may be gone, for good."""
        if self._works and self.lost is None and self.faults.strikes("lost store", 0.1):
            self.lost = LocalDiskError("the simulation has lost the state on disk")
        if self._works and self.lost is not None:
            raise self.lost

    def may_refuse(self) -> None:
        """There may be no room."""
        if self._works and self.faults.strikes("full store", 0.3):
            raise LocalDiskError("the simulation has no room for state")


class SimulatedDisk(MemoryDisk):
    """One of an operator."""

    def __init__(self, stores: SimulatedStores) -> None:
        super().__init__()
        self._stores = stores

    def get(self, names: list[bytes]) -> list[bytes | None]:
        self._stores.may_lose()
        return super().get(names)

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> int:
        self._stores.may_lose()
        self._stores.may_refuse()
        return super().write(puts, deletes)

    def drop(self, prefix: bytes) -> None:
        self._stores.may_refuse()
        super().drop(prefix)
