"""``spark.read.format("bedload")``: the state in a checkpoint as a table.

The state is chosen when the table is loaded, in the driver's Python: everything that is done with the DataFrame later
sees that one, though the operator goes on. Executors read the files of their key groups, straight from the storage.

Invariants: importing this module is cheap, as Spark does it in every application that has Bedload installed; nothing is
written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bedload.core.errors import CheckpointDamaged

if TYPE_CHECKING:
    import pyarrow as pa

    from bedload.spark.source_columns import Columns
    from bedload.spark.source_view import View


class BedloadSource(DataSource):
    """State in a checkpoint; see docs/how-to/read-state.md."""

    _view: View | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "bedload"

    def schema(self) -> StructType:
        """The columns of the table; from here on it is clear which state is read."""
        from bedload.spark.source_zones import zones_shown

        try:
            zones = zones_shown(self._resolved())
        except CheckpointDamaged as bad:
            zones = zones_shown(self._again(bad))
        return self._columns(zones).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the columns of a schema: all, or those that the user wrote down."""
        from bedload.spark.source_columns import zones_in

        view = self._resolved()
        return StateReader(view, self._columns(zones_in(view.schema, schema)).select(schema))

    def _resolved(self) -> View:
        from bedload.spark.source_options import parse_options
        from bedload.spark.source_view import resolve

        if self._view is None:
            self._view = resolve(parse_options(self.options))
        return self._view

    def _again(self, error: CheckpointDamaged) -> View:
        """The same state, if files of it were replaced since it was looked for."""
        from bedload.spark.source_read import is_missing
        from bedload.spark.source_view import refreshed

        if not is_missing(error):
            raise error
        self._view = refreshed(self._resolved())
        return self._view

    def _columns(self, zones: dict[str, str]) -> Columns:
        from bedload.spark.source_columns import columns_of

        view = self._resolved()
        if (timers := view.timers) is not None:
            return timers.columns
        return columns_of(view.schema, view.variables, changes=view.feed is not None, zones=zones)


@dataclass
class KeyGroups(InputPartition):
    """The key groups of one task."""

    groups: list[int]


class StateReader(DataSourceReader):
    """Reads a view of the state."""

    # SUBTLE: there is no pushFilters here. Spark 4.3 keeps what it was told after a filter was pushed, and reads no
    # more than that for whatever else is done with the DataFrame: the count of all keys after a look at one of them
    # was 1. Whoever wants single keys names them by an option.

    def __init__(self, view: View, columns: Columns) -> None:
        self._view = view
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """The key groups of each task."""
        from bedload.spark.source_read import partitions_of

        found = partitions_of(self._view)
        return [KeyGroups(groups) for groups in found] or [KeyGroups([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs on an executor."""
        from bedload.spark.source_read import read

        assert isinstance(partition, KeyGroups)
        timers = self._view.timers
        names = {variable.name for variable in self._view.schema.variables}
        variables = (
            [source for source in self._columns.sources if source in names] if timers is None else timers.variables
        )
        for found in read(self._view, partition.groups, variables) if partition.groups else ():
            yield self._columns.batch(found if timers is None else timers.rows(found))
