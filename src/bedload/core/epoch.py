"""What there is of an epoch beside its rows: its time, and the figures that a worker gives of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from bedload.core.ids import WorkerId


class EpochTime(msgspec.Struct, frozen=True):
    """The time of an epoch in milliseconds since 1970, as Spark logged it for the batch.

    A replay, a retry and a restored run have the very same. It is the only clock that operator code needs.
    """

    watermark: int = 0
    """Spark's event-time watermark for this batch; 0 if the query has none, or none yet."""
    processing: int = 0
    """When Spark first planned the batch."""
    late: int = 0
    """The watermark of the batch before, up to which Spark takes rows for too late; 0 if there was none."""


class Due(msgspec.Struct, frozen=True):
    """The earliest instants at which there is something to do without rows, by either clock; None: there is nothing."""

    watermark: int | None = None
    processing: int | None = None

    @classmethod
    def first(cls, several: Iterable[Due | None]) -> Due | None:
        """The earliest of several workers; None if one of them did not say."""
        said = list(several)
        known = [it for it in said if it is not None]
        if not known or len(known) < len(said):
            return None
        watermarks = [it.watermark for it in known if it.watermark is not None]
        instants = [it.processing for it in known if it.processing is not None]
        return cls(min(watermarks, default=None), min(instants, default=None))


class Over(Enum):
    """What becomes of the figures of several workers."""

    SUM = "added up"
    EACH = "one for each worker"


class EpochStats(msgspec.Struct, frozen=True):
    """What an epoch was at one worker. A figure that is added here is a column of ``Cluster.epochs()``."""

    rows: Annotated[int, Over.SUM] = 0
    """As they reach the worker: those that a feeder combined by key count as one."""
    late: Annotated[int, Over.SUM] = 0
    """Of those: dropped by an operator that takes no late rows."""
    keys: Annotated[int, Over.EACH] = 0
    """With state, after it."""
    busy: Annotated[float, Over.EACH] = 0.0
    """Seconds spent in applying and sealing."""
    sealing: Annotated[float, Over.EACH] = 0.0
    """Of those: in sealing, which makes outputs and writes what changed."""
    bytes: Annotated[int, Over.SUM] = 0
    """What was written to make it durable."""
    misses: Annotated[int, Over.SUM] = 0
    """Keys that were wanted and not in memory: they were looked for on a local disk."""

    @classmethod
    def columns(cls) -> str:
        """The columns of :meth:`table`, as DDL."""
        return ", ".join(
            f"{name} {_DDL[kind]}" if over is Over.SUM else f"{name} map<int, {_DDL[kind]}>"
            for name, (kind, over) in _figures().items()
        )

    @classmethod
    def table(cls, workers: Mapping[WorkerId, EpochStats]) -> dict[str, Any]:
        """The figures of all workers together."""
        return {
            name: sum(getattr(it, name) for it in workers.values())
            if over is Over.SUM
            else {int(worker): getattr(it, name) for worker, it in workers.items()}
            for name, (_, over) in _figures().items()
        }


_DDL = {int: "bigint", float: "double"}


def _figures() -> dict[str, tuple[type, Over]]:
    """The type of each figure, and what becomes of several."""
    hints = get_type_hints(EpochStats, include_extras=True)
    return {name: get_args(hint) for name, hint in hints.items()}
