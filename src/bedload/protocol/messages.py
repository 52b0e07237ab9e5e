"""The messages of the epoch protocol.

Each is a small frozen struct, encoded as MessagePack in a frame's header; Arrow data travels in the
frame's body. Nothing here is per row: the smallest unit is a sub-batch.

Every message about an epoch carries its operator and its *turn*. The coordinator hands out turns in
ascending order, one for each attempt at an epoch, whatever the run or the query. So one comparison
tells a message of a former run, of a former attempt or of a zombie task from one that counts.

Why one file: it is a list, in the order of who talks to whom, of which a reader looks up one or two. Those of moves
are apart, in :mod:`bedload.protocol.moving`.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from bedload.core.epoch import Due, EpochStats, EpochTime
from bedload.core.errors import ProtocolError
from bedload.core.ids import (
    LOCAL,
    NO_MOVE,
    NO_TURN,
    DeploymentId,
    Epoch,
    KeyGroup,
    KeyHash,
    MoveId,
    OperatorName,
    QueryId,
    RunId,
    Site,
    Ticket,
    Turn,
    WorkerId,
)
from bedload.core.store_stats import StoreStats
from bedload.protocol.base import (
    Backlogged,
    Body,
    FeederId,
    Lot,
    Message,
    Order,
    Packed,
    Routes,
    Terms,
    Version,
    WaitsFor,
    WireError,
)
from bedload.protocol.moving import (
    Arrived,
    AskDue,
    Backlog,
    Copied,
    Copy,
    DueKeys,
    Fetch,
    Flip,
    HandOver,
    Progressed,
    Release,
    Released,
    Ship,
    Shipped,
    Weigh,
    Weighed,
)

# --- feeder and coordinator -----------------------------------------------------------------------


class Open(Message, frozen=True):
    """A feeder asks to take part in an epoch."""

    operator: OperatorName
    deployment: DeploymentId
    query: QueryId
    run: RunId
    epoch: Epoch
    stage: int
    partition: int
    attempt: int
    """Spark's id of the task attempt."""
    nonce: str
    """Names this very open, so that a repeated message is not taken for a second feeder."""
    knows: Version = b""
    """The version of the routes that its process was told before, if any."""


class Opened(Message, frozen=True):
    """The epoch is open for this feeder."""

    turn: Turn
    feeder: FeederId
    version: Version
    """Of the routes."""
    routes: Routes | None
    """None: those that the feeder knows."""
    backlog: dict[WorkerId, Backlogged] = msgspec.field(default_factory=dict)
    """Old owners that want to know which keys their rows hold (:class:`Backlog`), if state is on its way."""


class Refused(Message, frozen=True):
    """No, and why. Ends the exchange that it answers."""

    error: WireError


class FeederFailed(Message, frozen=True):
    """A feeder met bad data: the epoch cannot succeed, whoever retries."""

    operator: OperatorName
    turn: Turn
    error: WireError


# --- feeder and worker ----------------------------------------------------------------------------


class Join(Message, frozen=True):
    """The first message of a feeder to each worker: it is there and has its Spark task slot.

    The body holds the Arrow schema of its batches.
    """

    operator: OperatorName
    turn: Turn
    feeder: FeederId


class Apply(Message, frozen=True):
    """Rows for keys of the receiving worker; the body is an Arrow record batch."""

    operator: OperatorName
    turn: Turn
    feeder: FeederId
    number: int
    """Counts the feeder's input batches; a batch without rows for this worker is not sent to it."""
    checksum: int


class Applied(Message, frozen=True):
    """Answers :class:`Apply`; the body holds the outputs, if there are any."""

    turn: Turn
    number: int


class Done(Message, frozen=True):
    """The feeder has sent everything: ``batches`` sub-batches to this worker."""

    operator: OperatorName
    turn: Turn
    feeder: FeederId
    batches: int


class Finished(Message, frozen=True):
    """Answers :class:`Done`; the body holds this feeder's share of the sealed outputs, if any, or the first part."""

    turn: Turn
    more: int = 0
    """So many more parts are to be asked for, one by one."""


class AskPart(Message, frozen=True):
    """The feeder has taken what it got, and asks for another part of its share."""

    operator: OperatorName
    turn: Turn
    feeder: FeederId
    part: int
    """From 1: the first one came with :class:`Finished`."""


class Part(Message, frozen=True):
    """Answers :class:`AskPart`; the body holds the outputs."""

    turn: Turn
    part: int


# --- coordinator and worker -----------------------------------------------------------------------


class Register(Message, frozen=True):
    """A new worker introduces itself."""

    worker: WorkerId
    address: str
    pid: int
    task: int = -1
    """The attempt of the Spark task that it runs in, if it does."""
    site: Site = LOCAL
    """Where it runs."""


class Watch(Message, frozen=True):
    """Answers :class:`Register`: beat so often, in seconds."""

    every: float


class Beat(Message, frozen=True):
    """A worker's process lives; on a connection of its own."""

    worker: WorkerId
    address: str
    """That of :class:`Register`: there may be two of one number."""
    busy: float
    """For so many seconds its loop has given no answer."""
    where: str
    """Where the loop is, if that is long."""


class Deploy(Message, frozen=True):
    """Load this version of an operator; the body holds the pickled deployment."""

    operator: OperatorName
    deployment: DeploymentId
    key_groups: int
    start: bool = False
    """Run its ``setup``, too: whoever joins shows that it can run all operators before it takes part in anything."""


class Deployed(Message, frozen=True):
    """Answers :class:`Deploy`."""

    worker: WorkerId
    deployment: DeploymentId
    error: WireError | None


class Begin(Message, frozen=True):
    """A turn begins: this is the epoch, the code, and the key groups that the worker owns in it."""

    operator: OperatorName
    turn: Turn
    epoch: Epoch
    query: QueryId
    deployment: DeploymentId
    groups: tuple[KeyGroup, ...]
    guests: tuple[KeyHash, ...] = ()
    """Single keys of other key groups that it owns, by their hash."""
    away: tuple[KeyHash, ...] = ()
    """Single keys of these key groups that others own."""
    base: Turn = NO_TURN
    """The turn whose state it builds upon."""


class Time(Message, frozen=True):
    """The time of the epoch, as soon as it is known: rows are applied from here on."""

    operator: OperatorName
    turn: Turn
    time: EpochTime


class Expect(Message, frozen=True):
    """The number of feeders of this turn."""

    operator: OperatorName
    turn: Turn
    feeders: int


class Sealed(Message, frozen=True):
    """The worker has applied all of the epoch and made it durable."""

    worker: WorkerId
    operator: OperatorName
    turn: Turn
    stats: EpochStats
    due: Due | None = None
    """When there is something to do next without rows; None: it does not say."""


class Failed(Message, frozen=True):
    """The worker cannot go on with this turn."""

    worker: WorkerId
    operator: OperatorName
    turn: Turn
    error: WireError
    unrestored: bool = False
    """It has not got the state that the turn builds upon, and needs another :class:`Restore`."""


class WorkerFailed(Message, frozen=True):
    """Code of the worker's own raised where nobody waits for an answer.

    With a move or a ticket it has failed that part of a change, and goes on. Without, these are its last words: it
    cannot say what its memory holds, so it ends.
    """

    worker: WorkerId
    error: WireError
    operator: OperatorName | None = None
    move: MoveId | None = None
    ticket: Ticket | None = None
    """Of the :class:`Weigh` that it cannot answer."""


class Commit(Message, frozen=True):
    """Spark has committed the epoch: drop its before-images."""

    operator: OperatorName
    turn: Turn


class Abort(Message, frozen=True):
    """The epoch does not count: put the before-images back."""

    operator: OperatorName
    turn: Turn
    error: WireError


class Reset(Message, frozen=True):
    """Drop all state of an operator: the user gave it up."""

    operator: OperatorName
    move: MoveId = NO_MOVE
    """The operator's last move: what is still on its way by this or an earlier one belongs to the state given up."""


class Restore(Message, frozen=True):
    """Forget what you have of these key groups, and read their state back; the body holds the plan for it.

    Rows that come for them meanwhile wait. Without a plan their state is empty.
    """

    operator: OperatorName
    base: Turn
    """The turn whose state it is."""
    deployment: DeploymentId
    groups: tuple[KeyGroup, ...]
    epoch: Epoch
    query: QueryId
    guests: tuple[KeyHash, ...] = ()
    """Single keys that the worker owns beside its key groups, by their hash."""
    hosts: tuple[KeyGroup, ...] = ()
    """Those of the key groups of which it owns the guests only."""
    away: tuple[KeyHash, ...] = ()
    """Single keys of its key groups that live elsewhere, by their hash."""
    whole: bool = True
    """Whether these are all that the worker should have; if not, it has the others already."""
    latest: Turn = NO_TURN
    """No later turn has begun: what a remote store has of one is of a worker that was given up."""
    mixed: tuple[KeyGroup, ...] = ()
    """Key groups of which single keys live apart, or did at that turn: no remote store has these as a whole."""


class Restored(Message, frozen=True):
    """The worker has read this many of the key groups that it was told to restore."""

    worker: WorkerId
    operator: OperatorName
    base: Turn
    groups: int
    left: int
    keys: int
    bytes: int
    error: WireError | None = None
    told: int = 0
    """How often it had been told what it owns; so the coordinator knows which orders this is about."""
    slice: float = 0.0
    """The longest step on its thread so far, in seconds."""


class Settle(Message, frozen=True):
    """A worker was lost: roll this turn back unless you have sealed it, and say which."""

    operator: OperatorName
    turn: Turn
    error: WireError


class Settled(Message, frozen=True):
    """Answers :class:`Settle`. After a "no" the worker will not seal the turn any more."""

    worker: WorkerId
    operator: OperatorName
    turn: Turn
    sealed: bool


class Compact(Message, frozen=True):
    """Write the state of these key groups at a turn as a snapshot, beside the work."""

    operator: OperatorName
    turn: Turn
    groups: tuple[KeyGroup, ...]
    ticket: Ticket
    """Comes back with the answer: the same turn may be asked for again, with other key groups."""
    asked: bool = False
    """Somebody waits for it."""


class Compacting(Message, frozen=True):
    """How far a worker is with what :class:`Compact` told it."""

    worker: WorkerId
    operator: OperatorName
    ticket: Ticket
    groups: int
    """Key groups that are written."""
    keys: int
    bytes: int
    """Read for it."""


class Compacted(Message, frozen=True):
    """Answers :class:`Compact`; the body holds the parts that were written."""

    worker: WorkerId
    operator: OperatorName
    ticket: Ticket
    error: WireError | None


class Probe(Message, frozen=True):
    """Answer this when everything that you said before has been sent."""

    operator: OperatorName
    turn: Turn


class Probed(Message, frozen=True):
    """Answers :class:`Probe`. Channels are FIFO, so a seal said earlier has arrived before this."""

    worker: WorkerId
    operator: OperatorName
    turn: Turn


class Stop(Message, frozen=True):
    """End the worker."""


# --- reader and worker ----------------------------------------------------------------------------


class Read(Message, frozen=True):
    """A live read of one key; the body holds the key as a one-row record batch."""

    operator: OperatorName
    group: KeyGroup
    told: int = 0
    """How often the worker had been told what it owns when the reader asked where the key lives: a read may come
    before the message that makes the worker the key's owner."""


class ReadAnswer(Message, frozen=True):
    """The key's state at the last committed epoch; the body holds it, if the key has state."""

    found: bool
    epoch: Epoch
    query: QueryId


class Inspect(Message, frozen=True):
    """Asks how much state there is."""

    operator: OperatorName


class Inspected(Message, frozen=True):
    """Answers :class:`Inspect`."""

    keys: int
    groups: int
    store: StoreStats = StoreStats()


def _leaves(root: type[Message]) -> list[type[Message]]:
    return [leaf for child in root.__subclasses__() for leaf in (_leaves(child) or [child])]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    Union[tuple(_leaves(Message))]  # noqa: UP007 - the alternatives are known only at run time
)


def encode(message: Message) -> bytes:
    """The message as a frame's header."""
    return _ENCODER.encode(message)


def decode(header: bytes | memoryview) -> Message:
    """A frame's header as a message; :class:`ProtocolError` for anything else."""
    try:
        message: Message = _DECODER.decode(header)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a frame's header is not a message of this protocol: {error}") from error
    return message


__all__ = [
    "Arrived",
    "AskDue",
    "Backlog",
    "Backlogged",
    "Body",
    "Copied",
    "Copy",
    "DueKeys",
    "FeederId",
    "Fetch",
    "Flip",
    "HandOver",
    "Lot",
    "Message",
    "Order",
    "Packed",
    "Progressed",
    "Release",
    "Released",
    "Routes",
    "Ship",
    "Shipped",
    "Terms",
    "Version",
    "WaitsFor",
    "Weigh",
    "Weighed",
    "WireError",
]
