"""Makes ``spark.read.format("bedload")`` known to Spark.

Spark looks for modules whose names start with ``pyspark_`` and registers their ``DefaultSource``. It does so in every
application that has this package installed, when any Python data source is used first: so this import is cheap, and
what reads a checkpoint is imported when one is read.
"""

from bedload.spark.source import BedloadSource as DefaultSource

__all__ = ["DefaultSource"]
