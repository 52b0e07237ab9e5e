"""Bedload on Spark: feeders, worker hosts, the driver's endpoint. The only package that imports pyspark."""

from bedload.spark.cluster import Cluster, attach
from bedload.spark.state_view import OperatorState, StateAnswer

__all__ = ["Cluster", "OperatorState", "StateAnswer", "attach"]
