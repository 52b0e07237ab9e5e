"""Local files of a simulated worker, on a disk that is full now and then, and loses what is on it.

What is lost stays lost, however often it is asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from tests.simulator.chance import Chance
from tests.simulator.faults import Faults
from tests.simulator.network import Body


class SimulatedFile:
    """One file."""

    def __init__(self, faults: Faults, chance: Chance) -> None:
        self._faults = faults
        self._chance = chance
        self._data = bytearray()
        self._lost: dict[int, int] = {}
        """What was lost, by its place, and how."""

    def append(self, parts: Iterable[Body]) -> int:
        """Write at the end; some of it, if there is no room for all."""
        at = len(self._data)
        self._data += b"".join(map(bytes, parts))
        if self._faults.strikes("full disk"):
            del self._data[self._chance.number(at, len(self._data)) :]
            raise OSError(errno.ENOSPC, "the simulation has no room")
        return at

    def read(self, at: int, size: int) -> Body:
        """What is there, as far as it was not lost."""
        how = self._lost.get(at)
        if how is None and self._faults.strikes("lost outputs", 2):
            how = self._lost[at] = self._chance.number(0, 2)
        if how == 0:
            raise OSError(errno.EIO, "the simulation has lost it")
        found = bytearray(self._data[at : at + size])
        if how == 1:
            found[-8] ^= 1
        return memoryview(found)[: size // 2 if how == 2 else size]

    def close(self) -> None:
        """Forget it."""
        self._data.clear()


class SimulatedScratch:
    """Room for local files."""

    def __init__(self, faults: Faults, chance: Chance) -> None:
        self._faults = faults
        self._chance = chance

    def file(self) -> SimulatedFile:
        """A new one."""
        return SimulatedFile(self._faults, self._chance)
