"""The public testing kit.

- :class:`OperatorHarness`: one operator, no Spark, for unit tests of its logic.
- :class:`InProcessCluster`: workers and coordinator in one process, for retries, second actions, restarts.
- :func:`simulate`: the whole protocol under a seed, for whoever changes the protocol.
"""

from bedload.testing.faults import Scenario
from bedload.testing.harness import OperatorHarness
from bedload.testing.inprocess import InProcessCluster
from bedload.testing.simulator import Report, simulate

__all__ = ["InProcessCluster", "OperatorHarness", "Report", "Scenario", "simulate"]
