"""What a worker knows of one operator and its feeders, and who it talks to: the data of its machine.

Nothing here decides anything; :mod:`bedload.worker.machine` does, and draws the phases.
"""

from __future__ import annotations

import enum
import traceback
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import BedloadError, NotDeterministic, ProtocolError
from bedload.core.ids import (
    NO_EPOCH,
    NO_QUERY,
    NO_TURN,
    DeploymentId,
    Epoch,
    KeyGroup,
    OperatorName,
    QueryId,
    Turn,
    WorkerId,
)
from bedload.keys import freeze_keys, hash_columns
from bedload.migration.holdings import Holdings
from bedload.migration.parking import Parking
from bedload.migration.receiver import Receiver
from bedload.migration.sender import Sender
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.protocol.split import unpack_whole
from bedload.store.deltas import GROUP
from bedload.worker.durability import Load
from bedload.worker.room import Room
from bedload.worker.runtime import Runtime, Startable

Counts = npt.NDArray[np.float64]
KEY = "bedload_key_"

Peer = Hashable
"""Whoever sent a message: a connection, or the simulator's name for one."""

COORDINATOR: Peer = "coordinator"
"""The peer for messages to and from the coordinator."""

LOADER: Peer = "loader"
"""The peer for orders to read state back."""

Out = tuple[Peer, m.Message | Load, Body]
TurnMessage = m.Join | m.Apply | m.Done | m.Backlog


class Phase(enum.Enum):
    """Where an operator is at a worker."""

    IDLE = "no epoch"
    OPEN = "applying sub-batches"
    SEALED = "all applied and durable, outputs fixed, waiting for Spark's commit"
    ABORTED = "rolled back, waiting for another turn"


@dataclass
class Applied:
    """A sub-batch that was applied, or is being applied as its state arrives."""

    checksum: int
    output: Body
    outputs: list[pa.RecordBatch] = field(default_factory=list)
    """The outputs so far, while rows of it wait for their state."""
    waiting: list[Peer] | None = None
    """Who waits for the answer; None: it is there."""


@dataclass
class Feeder:
    """What this worker knows of one feeder in the current turn, over all of its attempts."""

    schema: pa.Schema | None = None
    applied: dict[int, Applied] = field(default_factory=dict)
    last: int = -1
    batches: int | None = None
    """Set when it is done: how many sub-batches it sent."""
    released: bool = False
    """It was answered before the seal."""
    share: Body = None
    waiting: list[Peer] = field(default_factory=list)
    peers: set[Peer] = field(default_factory=set)
    """Its attempts that are connected: while there is one, it has its Spark task slot."""


@dataclass
class Hosted:
    """One operator at this worker."""

    name: OperatorName
    deployments: dict[DeploymentId, Startable] = field(default_factory=dict)
    unloaded: dict[DeploymentId, BedloadError] = field(default_factory=dict)
    """Why code that was shipped could not be loaded."""
    active: DeploymentId | None = None
    runtime: Runtime | None = None
    phase: Phase = Phase.IDLE
    turn: Turn = NO_TURN
    epoch: Epoch = NO_EPOCH
    query: QueryId = NO_QUERY
    committed: Epoch = NO_EPOCH
    committed_query: QueryId = NO_QUERY
    expected: int | None = None
    feeders: dict[m.FeederId, Feeder] = field(default_factory=dict)
    error: BedloadError | None = None
    early: list[tuple[Peer, TurnMessage, Body]] = field(default_factory=list)
    busy: float = 0.0
    holdings: Holdings = field(default_factory=Holdings)
    parking: Parking = field(init=False)
    base: Turn = NO_TURN
    """The state that was last read back."""
    orders: dict[int, tuple[m.Restore, set[KeyGroup]]] = field(default_factory=dict)
    """What is being read, by ticket: what was asked for, and what of it is not here yet."""
    tickets: int = 0
    restored: int = 0
    unrestored: BedloadError | None = None
    """Why the state that should be here is not."""
    reads: list[tuple[Peer, m.Read, Body]] = field(default_factory=list)
    """Reads of key groups that are on their way."""
    key_groups: int = 0
    """How many there are."""
    room: Room | None = None
    """What the current epoch takes beside the state."""
    # --- a move ---
    sender: Sender | None = None
    receiver: Receiver | None = None
    neighbours: dict[WorkerId, str] = field(default_factory=dict)
    failed_move: int = -1
    """A move whose part here failed: nothing more is sent or taken of it."""
    moves_over: int = -1
    """The last move that came to its end here."""
    # --- what it weighs ---
    counts: Counts = field(default_factory=lambda: np.zeros(0))
    """Rows of each key group in this epoch, estimated."""
    load: Counts = field(default_factory=lambda: np.zeros(0))
    """The same over the last epochs, older ones counting less."""
    touched: float = 0.0
    took: float = 0.0

    def __post_init__(self) -> None:
        self.parking = Parking(self.holdings)

    def count(self, groups: npt.NDArray[np.int16]) -> None:
        """Take a sample of the rows that came."""
        if len(self.counts) < self.key_groups:
            self.counts, self.load = np.zeros(self.key_groups), np.zeros(self.key_groups)
        self.counts += np.bincount(groups[::_SAMPLE], minlength=len(self.counts))

    def counted(self, touched: int) -> None:
        """An epoch is over."""
        if len(self.counts):
            self.load = _OLD * self.load + self.counts * _SAMPLE
            self.counts = np.zeros(len(self.counts))
        self.touched = _OLD * self.touched + (1 - _OLD) * touched
        self.took = _OLD * self.took + (1 - _OLD) * self.busy


_SAMPLE = 16
"""Of so many rows one is counted: counting all would cost a twentieth of the fastest operators."""
_OLD = 0.8
"""What the epochs before the last one count."""


def different(hosted: Hosted, what: str) -> NotDeterministic:
    """The error for a repeat that is not one."""
    return NotDeterministic(
        f"operator {hosted.name}, epoch {hosted.epoch}: a repeat of the input differed from what had been "
        f"applied: {what}. The repeat was refused. The plan before the operator is not deterministic, or "
        f"foreachBatch used the batch in two actions of different shape: call persist() on a batch that is "
        f"used twice, and keep rand(), current_timestamp() and the like out of the plan before the operator",
        operator=hosted.name,
        epoch=hosted.epoch,
    )


def as_ours(error: Exception) -> BedloadError:
    """What was raised, as an error of ours: whatever else goes wrong ends the turn as well, and is not swallowed."""
    return error if isinstance(error, BedloadError) else bug(error)


def bug(error: Exception) -> ProtocolError:
    """An error that is not ours, with where it was raised."""
    return ProtocolError("".join(traceback.format_exception(error)))


def waiting_for(feeder: Feeder) -> list[Peer]:
    """Whoever waits for an answer to something of a feeder."""
    return [*feeder.waiting, *(peer for applied in feeder.applied.values() for peer in applied.waiting or ())]


def of_groups(state: pa.RecordBatch | None, groups: list[KeyGroup], there: int) -> pa.RecordBatch | None:
    """The part of a state that is still wanted."""
    if state is None or len(groups) == there:
        return state
    return state.filter(pa.array(np.isin(state.column(0).to_numpy(zero_copy_only=False), groups)))


def one_output(outputs: list[pa.RecordBatch]) -> Body:
    """Several outputs as one."""
    if not outputs:
        return None
    if len(outputs) == 1:
        return outputs[0].serialize()
    return pa.concat_batches(outputs).serialize()


def share_out(output: pa.RecordBatch, feeders: list[Feeder]) -> None:
    """Cut the sealed outputs into equal parts, one for each feeder that waits."""
    size, rest = divmod(output.num_rows, len(feeders))
    start = 0
    for index, feeder in enumerate(feeders):
        length = size + (index < rest)
        if length:
            feeder.share = output.slice(start, length).serialize()
        start += length


def one_key(body: Any) -> Any:
    """The key in the body of a read."""
    return freeze_keys(unpack_whole(body).columns)[0]


def hash_of_key(body: Body) -> npt.NDArray[np.int64]:
    """The hash of the key that a read names."""
    return hash_columns(unpack_whole(body).columns)


def state_hashes(state: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The hashes of the keys of a batch in state or delta form."""
    names = [name for name in state.schema.names if name.startswith(KEY)]
    return hash_columns([state.column(name) for name in names])


def own_keys(state: pa.RecordBatch | None, told: m.Restore) -> pa.RecordBatch | None:
    """What is left of state that was read back without the single keys that live with another worker."""
    if state is None or not (told.guests or told.away or told.hosts):
        return state
    hashes = state_hashes(state)
    groups = state.column(GROUP).to_numpy(zero_copy_only=False)
    keep = ~np.isin(hashes, np.array(told.away, np.int64))
    hosts = np.isin(groups, np.array(told.hosts, np.int64))
    keep &= ~hosts | np.isin(hashes, np.array(told.guests, np.int64))
    return state.filter(pa.array(keep))
