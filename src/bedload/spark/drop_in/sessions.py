"""The cluster of a session, and the names of the states of processors on it."""

from __future__ import annotations

import atexit
import itertools
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from bedload.core.errors import BedloadWarning, warn_user
from bedload.core.ids import OperatorName
from bedload.spark.attaching import attach
from bedload.spark.registry import attached_to

if TYPE_CHECKING:
    from bedload.spark.cluster import Cluster

_LOCATION = "spark.sql.streaming.checkpointLocation"
_FOLDER = "_bedload"


def cluster_of(spark: SparkSession) -> Cluster:
    """The cluster that is attached to a session; if there is none, one is attached with what the session says."""
    found = attached_to(spark)
    if found is not None:
        return found
    location = spark.conf.get(_LOCATION, None)
    if not location:
        warn_user(
            f"no Bedload cluster is attached to this Spark session, and {_LOCATION} is not set: state is kept in the "
            f"memory of the workers, and ends with them. Call bedload.attach(spark, checkpoint=...) before, or set it",
            BedloadWarning,
        )
    made = attach(spark, checkpoint=f"{_qualified(spark, location)}/{_FOLDER}" if location else None)
    atexit.register(made.stop)
    return made


def _qualified(spark: SparkSession, location: str) -> str:
    """A folder as Spark understands it: a path without a scheme is one of its default file system."""
    jvm: Any = spark._jvm
    session: Any = spark
    path = jvm.org.apache.hadoop.fs.Path(location)
    system = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    return str(system.makeQualified(path).toString())


def name_for(cluster: Cluster, wanted: str, given: bool) -> OperatorName:
    """The name of a processor's state: as wanted, with a number if it belongs to another query."""
    if given:
        return OperatorName(wanted)
    for number in itertools.count(1):
        name = OperatorName(wanted if number == 1 else f"{wanted}-{number}")
        if not _is_taken(cluster, name):
            return name
    raise AssertionError


def _is_taken(cluster: Cluster, name: OperatorName) -> bool:
    running = cluster._plans.running()

    def look(coordinator: Any) -> bool:
        if name not in coordinator.operators:
            return False
        query = coordinator.operator(name).query
        return query is None or query in running

    return cluster._driver.call(look)
