"""Callers that have not proven yet that they know the secret: how many may wait, for how long, and which has to go.

A stranger needs no secret to open connections. So the number of such callers is bounded, and small enough that the
process keeps descriptors for its own files. When more call, the host with the most of them loses its oldest: a
stranger crowds out itself, and the honest, who prove themselves in a round trip, keep coming in.

Pure: peers and hosts are only names here.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

MOST_UNPROVEN = 64
_SHARE_OF_DESCRIPTORS = 8
"""At most one in so many of the process's descriptors is for callers that have proven nothing."""

_HURRY = 5.0
"""When half of the places are taken, callers get so many times less time."""

_TOLD = 20
_TOLD_SECONDS = 10.0
"""So many refusals in so many seconds are told one by one, the others counted: a log is not a stranger's to fill."""

_T = TypeVar("_T")


def places(descriptors: int) -> int:
    """How many unproven callers a process may have that can have so many descriptors."""
    return max(1, min(MOST_UNPROVEN, descriptors // _SHARE_OF_DESCRIPTORS))


class Door(Generic[_T]):
    """The unproven callers of an endpoint."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._waiting: dict[_T, str] = {}  # in the order in which they came
        self._window = float("-inf")
        self._told = 0
        self._untold = 0

    @property
    def seconds(self) -> float:
        """How long the next caller may take to prove itself."""
        return self._seconds / _HURRY if 2 * len(self._waiting) > self._most else self._seconds

    def came(self, caller: _T, host: str) -> _T | None:
        """A caller is here; whom to close for it, if the places are taken."""
        self._waiting[caller] = host
        return self.oldest() if len(self._waiting) > self._most else None

    def oldest(self) -> _T | None:
        """Who has waited longest, of the host that has the most waiting; None if nobody waits."""
        if not self._waiting:
            return None
        hosts = Counter(self._waiting.values())
        most = max(hosts.values())
        return next(caller for caller, host in self._waiting.items() if hosts[host] == most)

    def left(self, caller: _T) -> None:
        """A caller has proven itself, or is gone."""
        self._waiting.pop(caller, None)

    def tells(self, now: float) -> tuple[bool, int]:
        """Whether a refusal is to be told now, and how many were not told before it."""
        if now - self._window >= _TOLD_SECONDS:
            self._window, self._told = now, 0
        if self._told >= _TOLD:
            self._untold += 1
            return False, 0
        self._told += 1
        untold, self._untold = self._untold, 0
        return True, untold
