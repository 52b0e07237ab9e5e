"""What a cluster tells about itself: rows of plain data, which are also a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession


class Table(list[dict[str, Any]]):
    """Rows as dicts, as they were when it was asked for: a list, and a DataFrame by :meth:`df`."""

    def __init__(self, spark: SparkSession, schema: str, rows: Iterable[dict[str, Any]]) -> None:
        """``schema``: the columns, as DDL."""
        super().__init__(rows)
        self._spark = spark
        self._schema = schema

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied, pickled or shipped it is a plain list: there is no session elsewhere."""
        return list, (list(self),)

    def df(self) -> DataFrame:
        """The same as a batch DataFrame."""
        return self._spark.createDataFrame([tuple(row.values()) for row in self], self._schema)

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Print the first rows, as ``DataFrame.show`` does."""
        self.df().show(n, truncate, vertical)
