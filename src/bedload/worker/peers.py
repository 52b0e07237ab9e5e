"""Whom a worker's machine talks to, and what it says."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from bedload.core.ids import WorkerId
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.worker.durability import Hurry, Load

Peer = Hashable
"""Whoever sent a message: a connection, or the simulator's name for one."""

COORDINATOR: Peer = "coordinator"
"""The peer for messages to and from the coordinator."""

LOADER: Peer = "loader"
"""The peer for orders to read state back."""


class Neighbour(NamedTuple):
    """Another worker, to be called."""

    worker: WorkerId
    address: str


Out = tuple[Peer, m.Message | Load | Hurry, Body]
