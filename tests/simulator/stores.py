"""The local disk of a simulated worker: it is full now and then, and may lose what is on it. The remote store of all.

The simulation looks at all state all the time. What it reads for that goes past the faults: only while the worker's own
machine works does something go wrong. Memory is so small that hardly anything stays there, or nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from bedload.core.errors import BedloadError, LocalDiskError, RemoteStoreError
from bedload.store.cache import Cache
from bedload.store.columns.pager import Pager
from bedload.store.remote import Answer
from tests.disks import PAGE, MemoryDisk, Slabs
from tests.remotes import MemoryRemote, MemoryServer
from tests.simulator.chance import Chance
from tests.simulator.faults import Faults


class SimulatedStores:
    """What the operators of a worker share."""

    def __init__(self, name: str, faults: Faults, redis: SimulatedRedis, pause: Callable[[], None]) -> None:
        """``pause``: time goes by at a call of the remote store."""
        self.name, self._redis, self._pause = name, redis, pause
        self.lost: BedloadError | None = None
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

    @property
    def remotes(self) -> SimulatedRemotes:
        """The remote store, which all workers share."""
        return SimulatedRemotes(self)

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


class SimulatedRedis(MemoryServer):
    """It is wiped now and then, or started again with what it had before."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults
        self._before: dict[bytes, dict[bytes, bytes]] = {}
        self._calls = 0

    def may_forget(self) -> None:
        """What is there may be gone, or older."""
        self._calls += 1
        if self.faults.strikes("wiped redis", 0.02):
            self.data = {}
        elif self._before and self.faults.strikes("old redis", 0.02):
            self.data = copy.deepcopy(self._before)
        elif self._calls % 31 == 0 and self.faults.on("old redis"):
            self._before = copy.deepcopy(self.data)


class SimulatedRemotes:
    """The remote store as one worker sees it."""

    def __init__(self, stores: SimulatedStores) -> None:
        self._stores = stores

    def open(self, operator: str, url: str) -> SimulatedRemote:
        """The names of an operator."""
        return SimulatedRemote(self._stores, operator)

    @property
    def lost(self) -> RemoteStoreError | None:
        """The stores of the worker say so."""
        return None


class SimulatedRemote(MemoryRemote):
    """Calls take time, and fail before or after they were followed."""

    def __init__(self, stores: SimulatedStores, operator: str) -> None:
        super().__init__(stores._redis, operator)
        self._stores = stores

    def _one(self, order: list[Any]) -> Answer:
        stores = self._stores
        if not stores._works:
            return super()._one(order)
        stores._redis.may_forget()
        self._may_fail()
        if order[0] == b"seal" and stores.faults.strikes("slow redis", 0.3):
            stores._pause()
        answer = super()._one(order)
        self._may_fail()
        return answer

    def read(self, asks: Any) -> list[list[bytes | None]]:
        if self._stores._works:
            self._stores._redis.may_forget()
            self._may_fail()
        return super().read(asks)

    def lose(self, why: str) -> RemoteStoreError:
        error = RemoteStoreError(why)
        if self._stores._works:
            self._stores.lost = self._stores.lost or error
        return error

    def _may_fail(self) -> None:
        if self._stores.faults.strikes("cut redis", 0.05):
            raise RemoteStoreError("the simulation's store does not answer")


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
