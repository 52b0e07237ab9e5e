"""``bl.patch_pyspark()``: whole code bases move without a changed line."""

from __future__ import annotations

from typing import Any

from pyspark.sql import GroupedData

from bedload.spark.drop_in import call

_SPARKS = {"transformWithState": call._ROWS, "transformWithStateInPandas": call._PANDAS}
_OURS = {name: getattr(call, name) for name in _SPARKS}


def patch_pyspark() -> None:
    """Have ``df.groupBy(...).transformWithState(...)`` and ``...InPandas(...)`` of this process run on Bedload."""
    _set(_OURS)


def unpatch_pyspark() -> None:
    """Have them run on Spark again. What runs already stays where it is."""
    _set(_SPARKS)


def _set(methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        setattr(GroupedData, name, method)
