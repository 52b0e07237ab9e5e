"""Who attaches to a checkpoint: what its claims say of it, and where its ids and its time come from."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from bedload.core.clock import Clock


@dataclass(frozen=True)
class Claimant:
    """Handed in, so that a simulation has the same claims whichever process it runs in."""

    host: str
    pid: int
    clock: Clock
    new_id: Callable[[], str]
    """A name that nobody else has."""


def this_process(clock: Clock) -> Claimant:
    """The process that calls."""
    return Claimant(socket.gethostname(), os.getpid(), clock, lambda: secrets.token_hex(16))
