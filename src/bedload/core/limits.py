"""Limits as a dependency: whoever keeps to one is given it, so that a simulation and a test can set their own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How much of something, and how long."""

    ship_keys: int = 1 << 16
    """Keys in one message of state that moves, at most."""
    hold_seconds: float = 120.0
    """So long the epochs under way may take to end before a restart of all workers is given up."""


LIMITS = Limits()
"""Those of every cluster."""
