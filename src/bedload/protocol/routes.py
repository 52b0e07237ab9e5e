"""Routes are told once: a process that feeds an operator hears where its keys live only when that has changed.

A feeder says with its open which version of the routes its process has. The coordinator sends them if the turn has
others. So the routing table and all addresses go to each process once for each change, and not to each partition in
each epoch.

Invariant: a version is a digest of what it names. Two routes of one version are the same, whichever coordinator told
them, so a process cannot take old ones for new ones.
"""

from __future__ import annotations

import hashlib

import msgspec

from bedload.core.errors import ProtocolError
from bedload.core.ids import OperatorName
from bedload.protocol.base import Routes, Version
from bedload.protocol.messages import Open, Opened

_MOST_KEPT = 64
"""Routes that a process keeps: as many as it feeds operators at a time, with some to spare."""


def version_of(routes: Routes) -> Version:
    """The version of these routes."""
    return hashlib.blake2b(msgspec.msgpack.encode(routes), digest_size=16).digest()


class Told:
    """The routes that the feeders of one process were told."""

    def __init__(self) -> None:
        self._routes: dict[Version, Routes] = {}
        """By version, the oldest first."""
        self._latest: dict[OperatorName, Version] = {}
        """The version that each operator had when a feeder opened last."""

    def asks(self, ask: Open) -> Open:
        """The open of a feeder, with what its process knows."""
        version = self._latest.get(ask.operator, b"")
        return msgspec.structs.replace(ask, knows=version) if version in self._routes else ask

    def answered(self, operator: OperatorName, answer: Opened) -> Opened:
        """The answer to an open, with the routes in it."""
        version = answer.version
        routes = self._routes.pop(version, None) if answer.routes is None else answer.routes
        if routes is None:
            raise ProtocolError(f"operator {operator}: this process was not told the routes of the epoch; try again")
        self._latest[operator] = version
        self._routes[version] = routes  # as the newest one
        while len(self._routes) > _MOST_KEPT:
            del self._routes[next(iter(self._routes))]
        return msgspec.structs.replace(answer, routes=routes)
