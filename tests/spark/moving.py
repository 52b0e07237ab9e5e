"""Two queries on one cluster that is changed while they run: operators on objects and on columns.

What comes out follows from the number of the epoch alone (see :mod:`tests.spark.tally`), so it is compared with what a
cluster that was left alone would have given: every row of every epoch, and the state of every key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import bedload as bl
from tests.spark.apps import eventually
from tests.spark.conftest import Sink
from tests.spark.tally import KINDS, applied, check_epochs, check_states, states, stream


class Live:
    """Both queries, and what they gave."""

    def __init__(self, spark: SparkSession, cluster: bl.Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.sinks = {kind: Sink() for kind in KINDS}
        self.queries: dict[str, StreamingQuery] = {}
        self._spark = spark
        self._folder = folder

    def start(self) -> None:
        for kind in KINDS:
            writer = applied(self.cluster, stream(self._spark), kind).writeStream.foreachBatch(self.sinks[kind])
            writer = writer.option("checkpointLocation", str(self._folder / kind)).trigger(processingTime="0 seconds")
            self.queries[kind] = writer.start()

    def stop(self) -> None:
        for query in self.queries.values():
            query.stop()

    def go_on(self, epochs: int = 1) -> None:
        """Wait until both have seen so many epochs more."""
        wanted = {kind: len(sink.epochs) + epochs for kind, sink in self.sinks.items()}

        def there() -> bool:
            for kind, query in self.queries.items():
                assert query.isActive, f"the query of {kind} ended: {query.exception()}"
            return all(len(self.sinks[kind].epochs) >= count for kind, count in wanted.items())

        eventually(there, f"{epochs} epochs more")

    def check(self) -> None:
        """All that came out since the first epoch is right; to be called when the queries have stopped."""
        for kind, sink in self.sinks.items():
            # A query that is stopped may have applied an epoch that its sink did not get.
            check_epochs(kind, sink.epochs)
            seen = check_states(kind, states(self.cluster, kind))
            assert seen in (len(sink.epochs) - 1, len(sink.epochs) - 2)


@contextlib.contextmanager
def live(spark: SparkSession, cluster: bl.Cluster, folder: Path) -> Iterator[Live]:
    """Two queries that run meanwhile; afterwards everything is compared."""
    found = Live(spark, cluster, folder)
    try:
        found.start()
        found.go_on(2)
        yield found
        found.go_on()
    finally:
        found.stop()
    found.check()
