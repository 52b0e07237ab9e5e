"""Bedload on Spark: feeders, worker hosts, the driver's endpoint. The only package that imports pyspark.

Nothing is imported here: a feeder in one of Spark's Python processes needs :mod:`bedload.spark.feeder` alone.
"""
