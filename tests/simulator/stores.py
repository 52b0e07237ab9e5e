"""The local disk of a simulated worker: it is full now and then, and may lose what is on it.

The simulation looks at all state all the time. What it reads for that goes past the faults: only while the worker's own
machine works does something go wrong. Memory is so small that hardly anything stays there, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count

from bedload.core.errors import LocalDiskError
from bedload.store.cache import Cache
from bedload.store.columns.pager import Pager
from tests.disks import PAGE, MemoryDisk, Slabs
from tests.simulator.chance import Chance
from tests.simulator.faults import Faults


class SimulatedStores:
    """What the operators of a worker share."""

    def __init__(self, name: str, faults: Faults) -> None:
        self.lost: LocalDiskError | None = None
        self.cache = Cache(Chance(f"{name} has memory").pick([0, 0, 700, 2000]))
        # Each time it looks there are more pages than it may have, so that they go as often as can be.
        room = Cache(Chance(f"{name} has slabs").pick([0, 0, 12, 30]) * PAGE)
        self.pager = Pager(room, count(0, 1 << 30).__next__, PAGE)
        self.pager.rows = 2
        self.faults = faults
        self._works = False

    @property
    def disks(self) -> SimulatedStores:
        """Itself."""
        return self

    def open(self, operator: str) -> MemoryDisk:
        """An empty disk."""
        return SimulatedDisk(self)

    def slabs(self, operator: str) -> Slabs:
        """An empty file."""
        self.may_refuse()
        return SimulatedSlabs(self)

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


class SimulatedSlabs(Slabs):
    """A file of one array of columns."""

    def __init__(self, stores: SimulatedStores) -> None:
        super().__init__()
        self._stores = stores

    def lay_down(self, address: int, size: int, at: int) -> None:
        self._stores.may_lose()
        self._stores.may_refuse()
        super().lay_down(address, size, at)

    def take_up(self, address: int, size: int, at: int) -> None:
        self._stores.may_lose()
        super().take_up(address, size, at)
