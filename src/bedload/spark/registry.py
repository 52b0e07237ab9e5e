"""Which clusters run, by Spark application: what is called without a cluster finds the one that is there.

A cluster runs until it is stopped, also where nobody holds what ``attach`` gave. So it is held here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bedload.spark.cluster import Cluster

_running: set[Any] = set()


def remember(cluster: Cluster) -> None:
    """A cluster has started."""
    _running.add(cluster)


def forget(cluster: Cluster) -> None:
    """A cluster was stopped."""
    _running.discard(cluster)


def attached_to(spark: SparkSession) -> Cluster | None:
    """A cluster that runs for the Spark application of a session; of several the one that was attached last."""
    context = spark.sparkContext
    found = [it for it in tuple(_running) if it._spark.sparkContext is context and it.running]
    return max(found, key=lambda it: it.number, default=None)
