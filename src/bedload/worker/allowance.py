"""What an epoch may take at a worker beside its state: outputs that wait for Spark's commit, and before-images.

Outputs are kept to repeat them if Spark asks again, before-images to roll back; both end with the epoch. An epoch that
is larger than the worker's memory must fail with an error. Otherwise the operating system kills the worker, and the
state of all keys is gone.

Both are counted after each batch and after the seal: the bytes of outputs exactly, those of before-images as the
runtime estimates them. What a seal puts out, and which keys without rows it touches, is looked at while it goes on: any
number of timers and expiries may be due in one. Outputs in a local file (:mod:`bedload.worker.records`) do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import pyarrow as pa

from bedload.core.errors import TooLarge
from bedload.core.ids import Epoch, OperatorName, WorkerId

_MB = 1_000_000

Allow = Callable[[int], None]
"""Told how many bytes of outputs there are that were not taken yet; raises if they are too many."""


class Take(NamedTuple):
    """Who takes outputs of a seal while others are made."""

    enough: int
    """So many bytes at a time."""
    give: Callable[[pa.RecordBatch], None]


class Holding(Protocol):
    """Who keeps something for the epoch under way."""

    @property
    def timed(self) -> bool:
        """Whether it has timers, or something of it expires."""
        ...

    def held_bytes(self) -> int:
        """Roughly how much."""
        ...


_FIRST_LOOK = 4096
"""Rows of an epoch before anybody looks how large its before-images are."""


class Images:
    """The bytes of an epoch's before-images: to know them, all that was touched has to be looked at.

    That is done each time there is twice as much: so all looks together cost no more than the last one does twice.
    """

    __slots__ = ("_at", "_bytes", "others")

    def __init__(self) -> None:
        self._bytes, self._at = 0, _FIRST_LOOK
        self.others = 0
        """Keys that were touched without a row."""

    def bytes(self, rows: int, measure: Callable[[], int]) -> int:
        """Roughly how many there are after so many rows."""
        met = rows + self.others
        if met >= self._at:
            self._at = 2 * met
            self._bytes = measure()
        return self._bytes

    def look_again(self) -> None:
        """Look the next time, however few rows have come since."""
        self._at = 0


class Allowance:
    """The bytes of one operator's epoch at one worker; a limit of None: as many as it takes."""

    __slots__ = ("_name", "_outputs", "_worker", "limit")

    def __init__(self, name: OperatorName, worker: WorkerId, limit: int | None = None) -> None:
        self._name = name
        self._worker = worker
        self._outputs = 0
        self.limit = limit

    def begin(self) -> None:
        """An epoch begins."""
        self._outputs = 0

    def take(self, epoch: Epoch, runtime: Holding, output: pa.RecordBatch | None) -> None:
        """Count an output that has to be kept; raise if the epoch has become too large."""
        self.hold(epoch, runtime, self._outputs + (0 if output is None else output.nbytes))

    def hold(self, epoch: Epoch, runtime: Holding, outputs: int) -> None:
        """So many bytes of outputs are kept in memory; raise if the epoch has become too large."""
        self._outputs = outputs
        self.check(epoch, runtime)

    def check(self, epoch: Epoch, runtime: Holding, more: int = 0) -> None:
        """Raise if the epoch is too large with so many bytes of outputs that will have to be kept."""
        if self.limit is None:
            return
        images, outputs = runtime.held_bytes(), self._outputs + more
        if outputs + images > self.limit:
            timers = (
                "have fewer timers due at the same time, and less that expires together (it goes in one epoch), "
                if runtime.timed
                else ""
            )
            raise TooLarge(
                f"operator {self._name}, epoch {epoch}, worker {self._worker}: the epoch is too large for a worker. "
                f"Its outputs take {outputs / _MB:,.1f} MB, rows and before-images about {images / _MB:,.1f} "
                f"MB, and {self.limit / _MB:,.1f} MB is the limit. Make the triggers smaller (maxFilesPerTrigger, "
                f"maxOffsetsPerTrigger), {timers}use more workers, or attach with a larger epoch_bytes",
                operator=self._name,
                epoch=epoch,
                worker=self._worker,
                bytes=outputs + images,
                limit=self.limit,
            )
