"""Which clusters run, by Spark application: what is called without a cluster finds the one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bedload.spark.cluster import Cluster

_running: WeakSet[Any] = WeakSet()


def remember(cluster: Cluster) -> None:
    """A cluster has started."""
    _running.add(cluster)


def attached_to(spark: SparkSession) -> Cluster | None:
    """A cluster that runs for the Spark application of a session; of several the one that was attached last."""
    context = spark.sparkContext
    found = [it for it in _running if it._spark.sparkContext is context and it.running]
    return max(found, key=lambda it: it.number, default=None)
