"""Limits as a dependency: whoever keeps to one is given it, so that a simulation and a test can set their own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How much of something, and how long."""

    ship_keys: int = 1 << 17
    """Keys in one message of state that moves, at most."""
    install_rows: int = 1 << 16
    """Keys that are put in, in one step of reading state back, at most."""
    install_seconds: float = 0.002
    """About so long such a step takes: there are as many keys in it as that allows."""
    free_rows: int = 1 << 14
    """Rows that waited and are looked at together, about, when something has come."""
    output_bytes: int = 64 << 20
    """Recorded outputs of an epoch that stay in memory, of one operator at one worker; the others go to local files."""
    hold_seconds: float = 120.0
    """So long the epochs under way may take to end before a restart of all workers is given up."""


LIMITS = Limits()
"""Those of every cluster."""
