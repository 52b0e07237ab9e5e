"""The seeded simulator: whole clusters in virtual time, with the very code that runs in production.

``python -m tests.simulator --help`` (or ``make simulate``) runs seeds; :func:`simulate` runs one.
"""

from tests.simulator.faults import Scenario
from tests.simulator.simulation import Report, simulate

__all__ = ["Report", "Scenario", "simulate"]
