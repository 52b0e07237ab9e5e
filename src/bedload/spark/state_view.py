"""Live reads of a running operator's state.

A read goes straight to the worker that owns the key and sees the last committed epoch, even while the
next one is being applied: the worker reads through the before-images. Every answer says which epoch it
is from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from bedload.checkpoint.shapes import default_of, pack_value
from bedload.control.coordinator import Coordinator
from bedload.core.errors import BedloadError, Unanswered, UnknownOperator, WorkerUnreachable
from bedload.core.ids import Epoch, KeyHash, OperatorName, QueryId, WorkerId
from bedload.core.store_stats import StoreStats
from bedload.keys import RoutingTable, canonical_key, hash_key, key_group
from bedload.protocol import messages as m
from bedload.protocol.split import pack_whole, unpack_whole
from bedload.state import StateSpec, codec
from bedload.store.columns import ColumnSpec
from bedload.transport import Channel, ChannelPool, Credentials, Frame


class StateAnswer(Mapping[str, Any]):
    """The state of one key: a mapping from variable to value; ``key``, and the ``epoch`` and ``query`` it is from."""

    def __init__(self, key: Any, epoch: Epoch, query: QueryId, values: dict[str, Any]) -> None:
        self.key = key
        self.epoch = epoch
        self.query = query
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"StateAnswer(key={self.key!r}, epoch={self.epoch}, {inside})"


class Decoder(Protocol):
    """How a worker's answer becomes values."""

    @property
    def variables(self) -> dict[str, Any]:
        """The state variables, comparable."""
        ...

    def decode(self, body: memoryview) -> dict[str, Any]:
        """The values of one key."""
        ...


class RowDecoder:
    """State of an ``Operator``."""

    def __init__(self, specs: tuple[StateSpec, ...]) -> None:
        self._specs = specs

    @property
    def variables(self) -> dict[str, Any]:
        """The declared variables."""
        # Defaults encoded: NaN is not equal to itself, and arrays do not say whether they are equal.
        return {spec.name: (replace(spec, default=None), default_of(spec)) for spec in self._specs}

    def decode(self, body: memoryview) -> dict[str, Any]:
        """The values of one key."""
        return codec.decode(self._specs, unpack_whole(body))[0]


class ColumnDecoder:
    """State in columns."""

    def __init__(self, columns: tuple[ColumnSpec, ...]) -> None:
        self._columns = columns

    @property
    def variables(self) -> dict[str, Any]:
        """The columns."""
        return {it.name: (it.type, pack_value(it.initial, it.type)) for it in self._columns}

    def decode(self, body: memoryview) -> dict[str, Any]:
        """The values of one key."""
        (values,) = unpack_whole(body).to_pylist()
        return {column.name: values[column.name] for column in self._columns}


_LOSS_PAUSE_SECONDS = 0.1
_LOOK_SECONDS = 1.0
"""Without an answer for so long, see whether the key lives elsewhere by now."""
_CONNECT_SECONDS = 10.0
"""And the same without a connection."""
_PATIENCE_SECONDS = 120.0
"""How long a read waits unless it is told otherwise."""


class Whereabouts(NamedTuple):
    """Where an operator's keys live now."""

    routing: RoutingTable
    addresses: Mapping[WorkerId, str]
    told: dict[WorkerId, int]
    """How often each worker was told what is its own."""

    @classmethod
    def of(cls, coordinator: Coordinator, name: OperatorName) -> Whereabouts:
        """As the coordinator has it."""
        epochs = coordinator.operator(name)
        return cls(epochs.routing, coordinator.workers, dict(epochs.told))


class OperatorState:
    """The state of one operator, over all workers.

    Any number of threads may read at once: each read has a connection to the worker for itself, of a few that are kept
    open. Every read has an end: an answer, or an error that says what is missing.
    """

    def __init__(
        self,
        name: OperatorName,
        decoder: Decoder,
        key_types: tuple[pa.DataType, ...],
        where: Callable[[], Whereabouts],
        credentials: Credentials,
        key_names: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.decoder = decoder
        self._key_types, self._key_names = key_types, key_names
        self._where = where
        self._pool = ChannelPool(credentials)

    def get(self, key: Any, *, timeout: float = _PATIENCE_SECONDS) -> StateAnswer | None:
        """The state of a key at the last committed epoch; None if it has none.

        A composite key is a tuple, in the order of the key's columns. Threads may call this at the same time. While the
        key's state is read back or on its way to another worker, the read waits for it, at most ``timeout`` seconds;
        then :class:`WorkerUnreachable` is raised.
        """
        key = canonical_key(key)
        parts = key if len(self._key_types) > 1 else (key,)
        hashed = self.hash_of(key)
        names = [f"key{i}" for i in range(len(self._key_types))]
        batch = pa.RecordBatch.from_arrays(
            [pa.array([part], type=kind) for part, kind in zip(parts, self._key_types, strict=True)],
            names=names,
        )
        answer, body = self._ask_owner(hashed, pack_whole(batch), Deadline(timeout))
        if not answer.found or body is None:
            return None
        return StateAnswer(key, answer.epoch, answer.query, self.decoder.decode(body))

    def hash_of(self, key: Any) -> KeyHash:
        """The hash of a key; raises :class:`KeyTypeError` if it is none that the key's columns can hold."""
        return hash_key(canonical_key(key), self._key_types, self._key_names)

    def owner_of(self, key: Any) -> int:
        """The worker that a key lives with now, whether it has state or not."""
        return int(self._where().routing.owner_of_key(self.hash_of(key)))

    def count(self, *, timeout: float = _PATIENCE_SECONDS) -> int:
        """The number of keys with state, the current epoch's new ones included; while keys move, about that many."""
        deadline = Deadline(timeout)
        while True:
            try:
                return sum(self._count_at(address, deadline) for address in self._where().addresses.values())
            except (WorkerUnreachable, UnknownOperator):
                # A worker has left, or came a moment ago: those that are there now have its keys.
                if deadline.over:
                    raise
                time.sleep(_LOSS_PAUSE_SECONDS)

    def stores(self, *, timeout: float = _PATIENCE_SECONDS) -> dict[WorkerId, StoreStats]:
        """Where its state is, by worker; of those that are there, and can be asked."""
        deadline, found = Deadline(timeout), dict[WorkerId, StoreStats]()
        for worker, address in sorted(self._where().addresses.items()):
            with suppress(WorkerUnreachable, UnknownOperator):
                found[worker] = self._inspect(address, deadline).store
        return found

    def _count_at(self, address: str, deadline: Deadline) -> int:
        return self._inspect(address, deadline).keys

    def _inspect(self, address: str, deadline: Deadline) -> m.Inspected:
        found = self._ask(address, m.Inspect(self.name), None, deadline)
        assert found is not None
        assert isinstance(found[0], m.Inspected)
        return found[0]

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _ask_owner(
        self, hashed: KeyHash, body: pa.Buffer, deadline: Deadline
    ) -> tuple[m.ReadAnswer, memoryview | None]:
        """Ask the owner of a key; if it was lost, whoever comes in its place; if the key moved, its new owner."""
        routing, addresses, told = self._where()
        while True:
            owner = routing.owner_of_key(hashed)
            address = addresses.get(owner)
            found: tuple[m.Message, memoryview | None] | None = None
            lost = address is None
            if address is not None:
                message = m.Read(self.name, key_group(hashed, routing.key_groups), told.get(owner, 0))
                try:
                    found = self._ask(address, message, body, deadline, partial(self._has_left, hashed, owner, address))
                except (WorkerUnreachable, UnknownOperator):
                    # SUBTLE: not answering a call is no last word. One that hangs may be given up, and replaced.
                    if deadline.over:
                        raise
                    lost = True
            if found is not None:
                answer = found[0]
                assert isinstance(answer, m.ReadAnswer)
                # SUBTLE: one that has nothing may have had it a moment ago, and handed it over.
                if answer.found or not self._has_left(hashed, owner, address):
                    return answer, found[1]
            if deadline.over:
                raise WorkerUnreachable(
                    f"operator {self.name}: worker {owner} was lost, and no other came in its place within "
                    f"{deadline.seconds:g} seconds; try again, or look at the driver's log",
                    worker=owner,
                )
            if lost:
                time.sleep(_LOSS_PAUSE_SECONDS)
            routing, addresses, told = self._where()  # raises if the cluster cannot go on

    def _has_left(self, hashed: KeyHash, owner: WorkerId, address: str | None) -> bool:
        """Whether a key lives elsewhere by now: with another worker, or with one that came in its place."""
        routing, addresses, _ = self._where()
        return routing.owner_of_key(hashed) != owner or addresses.get(owner) != address

    def _ask(
        self,
        address: str,
        message: m.Message,
        body: pa.Buffer | None,
        deadline: Deadline,
        in_vain: Callable[[], bool] = lambda: False,
    ) -> tuple[m.Message, memoryview | None] | None:
        """What is answered; None if it was asked in vain, which is looked at when there is no answer for a while."""
        try:
            with self._pool.lend(address, min(_CONNECT_SECONDS, deadline.left)) as channel:
                channel.send(m.encode(message), () if body is None else (body,), deadline.left)
                frame = self._answer(channel, deadline, in_vain)
                if frame is None:
                    channel.close()  # what is answered after all must not be taken for another answer
                    return None
        except WorkerUnreachable as error:
            raise type(error)(f"operator {self.name}: {error.message}", **error.details) from error
        answer = m.decode(frame.header)
        if isinstance(answer, m.Refused):
            problem: BedloadError = answer.error.error()
            raise problem
        return answer, frame.body

    def _answer(self, channel: Channel, deadline: Deadline, in_vain: Callable[[], bool]) -> Frame | None:
        while True:
            try:
                return channel.recv(min(_LOOK_SECONDS, deadline.left))
            except Unanswered:
                pass
            if deadline.over:
                raise Unanswered(
                    f"there is no answer from {channel.address} within {deadline.seconds:g} seconds: the state is "
                    "being read back or on its way from another worker, or the worker is busy; look at "
                    "cluster.restoring(), and try again"
                )
            if in_vain():
                return None

    def __repr__(self) -> str:
        names = ", ".join(self.decoder.variables)
        return f"OperatorState({self.name!r}: {names})"


class Deadline:
    """When a read has to be over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds to go; none once it is over."""
        return max(0.0, self._at - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.left <= 0
