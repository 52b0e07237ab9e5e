"""What the driver remembers of every change of the cluster: what moved, and how it showed in the latency of epochs.

Invariants: a record exists as soon as its change is over, even if the change failed. It is written to the checkpoint
then, and again when it is known how long latency took to be stable, or when the cluster stops. Threads for files write
it; the coordinator's thread only takes notes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from bedload.control.instructions import EpochEnded
from bedload.core.clock import Clock
from bedload.migration.record import CALM_EPOCHS, DONE, STEADY_EPOCHS, EpochSpan, MoveRecord, with_latency
from bedload.spark.keeper import Keeper

_log = logging.getLogger("bedload")

_FOLLOWED_EPOCHS = 500
"""Latency that is not stable after so many epochs has other reasons than the move."""
_LOOK_EVERY = 5
"""Of so many epochs, one is the occasion to look whether latency is stable."""


@dataclass
class _Noted:
    record: MoveRecord
    times: list[EpochSpan]
    """The epochs around it."""
    later: int = 0
    """How many of them came after it was over."""
    followed: bool = True
    written: MoveRecord | None = None
    writing: threading.Lock = field(default_factory=threading.Lock)


class Moves:
    """The moves of one attachment, and those that its checkpoint remembers."""

    def __init__(self, keeper: Keeper | None, clock: Clock, submit: Callable[..., Any]) -> None:
        self._keeper = keeper
        self._clock = clock
        self._submit = submit
        self._noted: list[_Noted] = []

    # --- on the coordinator's thread ---

    def add(self, records: tuple[MoveRecord, ...], epochs: Iterable[EpochEnded]) -> tuple[MoveRecord, ...]:
        """A change is over; its records as they are kept."""
        lag = self._clock.wall() - self._clock.monotonic()
        kept = []
        for record in records:
            every = [EpochSpan(it.began, it.seconds) for it in epochs if _of(record, it)]
            before = [it for it in every if it.began + it.seconds <= record.began]
            times = [*before[-STEADY_EPOCHS:], *every[len(before) :]]
            dated = msgspec.structs.replace(record, requested=lag + record.began)
            noted = _Noted(with_latency(dated, times), times, followed=record.outcome == DONE)
            self._noted.append(noted)
            kept.append(noted.record)
            self._submit(self._write, noted)
        return tuple(kept)

    def epoch_ended(self, epoch: EpochEnded) -> None:
        """An epoch is over: some moves may have waited for it to say whether latency is stable."""
        for noted in self._noted:
            if not noted.followed or not _of(noted.record, epoch):
                continue
            noted.times.append(EpochSpan(epoch.began, epoch.seconds))
            noted.later += 1
            if noted.later >= _FOLLOWED_EPOCHS:
                noted.followed = False
            elif noted.later >= CALM_EPOCHS and noted.later % _LOOK_EVERY == 0:
                self._submit(self._look, noted)

    # --- on any thread ---

    def rows(self) -> list[dict[str, Any]]:
        """All moves, those first that were asked for first, as plain data."""
        former = [] if self._keeper is None else self._keeper.moves()
        rows = [_row(int(generation), record) for generation, record in former]
        own = None if self._keeper is None else int(self._keeper.generation)
        # One that was called off in line is over before those that were asked for earlier.
        mine = sorted(self._noted, key=lambda noted: noted.record.number)
        return [*rows, *(_row(own, self._measured(noted)) for noted in mine)]

    def write_all(self) -> None:
        """Write what is not written yet: the cluster stops."""
        for noted in list(self._noted):
            self._measured(noted)
            self._write(noted)

    def _measured(self, noted: _Noted) -> MoveRecord:
        if noted.followed:
            noted.record = with_latency(noted.record, list(noted.times))
        return noted.record

    # --- on the files' threads ---

    def _look(self, noted: _Noted) -> None:
        if self._measured(noted).stabilise_s is not None:
            noted.followed = False
            self._write(noted)

    def _write(self, noted: _Noted) -> None:
        if self._keeper is None:
            return
        with noted.writing:
            record = noted.record
            if record == noted.written:
                return
            try:
                self._keeper.write_move(record)
            except Exception as error:
                # Nothing depends on it: a store that is away must not stop the query.
                _log.warning("operator %s: a move could not be put on record: %s", record.operator, error)
            else:
                noted.written = record


def _of(record: MoveRecord, epoch: EpochEnded) -> bool:
    return epoch.committed and epoch.operator == record.operator


# --- as a table ---

_TYPES = {
    "ChangeId": "bigint",
    "int": "bigint",
    "float": "double",
    "float | None": "double",
    "dict[str, float]": "map<string,double>",
    "bool": "boolean",
    "str": "string",
}
MAIN_COLUMNS = (
    "number",
    "kind",
    "operator",
    "outcome",
    "workers_after",
    "moved_keys",
    "moved_bytes",
    "duration_s",
    "stoppage_ms_p99",
)
"""Those of the history that are printed."""
_ATTACHMENT = "attachment"
_LEFT_OUT = frozenset({"began"})
"""It is on a clock that nobody else has."""


def table_schema() -> str:
    """The columns of the history, as DDL."""
    columns = {_ATTACHMENT: "bigint"} | {name: _TYPES[kind] for name, kind in MoveRecord.__annotations__.items()}
    columns["requested"] = "timestamp_ltz"  # whatever spark.sql.timestampType says
    return ", ".join(f"{name} {kind}" for name, kind in columns.items() if name not in _LEFT_OUT)


def _row(attachment: int | None, record: MoveRecord) -> dict[str, Any]:
    row = {_ATTACHMENT: attachment, **msgspec.structs.asdict(record)}
    row["requested"] = datetime.fromtimestamp(record.requested, UTC)
    return {name: value for name, value in row.items() if name not in _LEFT_OUT}
