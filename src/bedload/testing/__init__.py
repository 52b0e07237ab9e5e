"""The public testing kit.

- :class:`OperatorHarness`: one operator, no Spark, for unit tests of its logic.
- :class:`InProcessCluster`: workers and coordinator in one process, for retries, second actions, restarts.
"""

from bedload.testing.harness import OperatorHarness
from bedload.testing.inprocess import InProcessCluster

__all__ = ["InProcessCluster", "OperatorHarness"]
