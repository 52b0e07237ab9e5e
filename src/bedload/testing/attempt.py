"""One Spark task attempt of an in-process cluster: it opens the epoch, sends its rows and takes the outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from bedload.core.errors import DataError
from bedload.protocol.feeder import FeederSession
from bedload.testing.harness import Output

if TYPE_CHECKING:
    from bedload.testing.inprocess import InProcessCluster


class TaskAttempt:
    """One task attempt."""

    def __init__(self, cluster: InProcessCluster, partition: int, batches: list[pa.RecordBatch]) -> None:
        self._cluster = cluster
        self._partition = partition
        self._batches = batches
        self._id = cluster.next_attempt()
        self._rows: list[Output] = []

    def open(self) -> None:
        """Open the epoch and join at the workers."""
        opened = self._cluster.ask_open(self._id, self._partition)
        self._session = FeederSession(self._cluster.name, opened, self._cluster.key)
        combining = self._cluster.combining()
        try:
            self._batches = [combining.rows(batch) for batch in self._batches]
        except DataError as error:
            self._cluster.feeder_failed(self._session, error)
            raise
        self._key = combining.key
        self._cluster.send(self._id, self._session.join(self._batches[0].schema))

    def send(self, count: int | None = None) -> None:
        """Send all batches, or the first few."""
        for batch in self._batches[:count]:
            self._cluster.send(self._id, self._session.submit(batch, self._key))
            self._receive()

    def finish(self) -> None:
        """Say that this is the end."""
        self._cluster.send(self._id, self._session.finish())

    def outputs(self) -> list[Output]:
        """All outputs; raises what the workers say against it."""
        self._receive()
        while wanted := self._session.wants():
            self._cluster.send(self._id, wanted)
            self._receive()
        assert self._session.complete, f"partition {self._partition} waits for partitions that did not run"
        return self._rows

    def crash(self) -> None:
        """The task dies: its connections close."""
        self._cluster.disconnect(self._id)

    def _receive(self) -> None:
        answers = self._cluster.answers(self._id)
        try:
            while answers:
                self._session.receive(*answers.popleft())
        except DataError as error:
            self._cluster.feeder_failed(self._session, error)
            raise
        for body in self._session.outputs():
            self._rows += self._cluster.output_rows(body)
