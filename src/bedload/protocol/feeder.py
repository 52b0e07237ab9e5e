"""The feeder's side of an epoch, without I/O: what to send, and which outputs may leave.

A driver (the Spark task, the in-process cluster, the simulator) opens the epoch, makes a
:class:`FeederSession` from the answer, sends what its methods return, hands it what arrives, and takes
outputs from it.

Invariants:

- sub-batches are numbered from 0 in input order, the same on every attempt;
- outputs leave in the order (number, worker), then the sealed shares by worker, whatever the order of
  arrival, so that a chained operator sees the same rows on a repeat;
- a large share comes in parts: the next one is asked for when the one before has left, so a feeder never holds more
  than the first part of each worker and another one;
- while state is on its way, its old owner is told which of its keys each batch holds, before the batch goes to their
  new owners;
- there is no round trip per sub-batch: the driver may go on submitting while :attr:`in_flight` is
  below its window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bedload.core.errors import ProtocolError
from bedload.core.ids import OperatorName, WorkerId
from bedload.keys import groups_in, hash_columns, key_groups
from bedload.protocol.messages import (
    Applied,
    Apply,
    AskPart,
    Backlog,
    Body,
    Done,
    Finished,
    Join,
    Message,
    Opened,
    Part,
    Refused,
)
from bedload.protocol.split import Pins, pack, split


class Send(NamedTuple):
    """A message for a worker."""

    worker: WorkerId
    message: Message
    body: Body = None


class FeederSession:
    """One attempt of one feeder at one epoch."""

    def __init__(self, operator: OperatorName, opened: Opened, key: Sequence[int] = ()) -> None:
        """``key``: the positions of the key's columns, for the keys that do not live with their key group."""
        self.operator = operator
        self.turn = opened.turn
        self.feeder = opened.feeder
        assert opened.routes is not None, "the routes are those that the process was told before"
        routes = opened.routes
        self.workers = sorted(routes.addresses)
        self.key_groups = len(routes.owners)
        self._owners = np.array(routes.owners, dtype=np.uint16)
        self._key = tuple(key)
        self._pins = Pins(routes.pins, len(routes.owners)) if routes.pins else None
        self._backlog = {
            worker: (_flags(item.groups, len(routes.owners)), np.array(item.keys, np.int64))
            for worker, item in opened.backlog.items()
        }
        self._number = 0
        self._sent = dict.fromkeys(self.workers, 0)
        self._awaited: deque[tuple[int, WorkerId]] = deque()
        self._arrived: dict[tuple[int, WorkerId], Body] = {}
        self._finishing: dict[WorkerId, Body] = {}
        """What each worker said last at the end, until it has left."""
        self._more: dict[WorkerId, int] = {}
        """How many parts follow the first one of its share; every worker that has finished is there."""
        self._ended = 0
        """So many workers' shares have left, in their order."""
        self._part = 0
        """The part of the next worker's share that leaves next."""
        self._wanted = False
        """It has to be asked for."""
        self._done = False

    def join(self, schema: pa.Schema) -> list[Send]:
        """The first message to every worker, with the schema of the batches to come."""
        body = schema.serialize()
        return [Send(worker, Join(self.operator, self.turn, self.feeder), body) for worker in self.workers]

    def submit(self, batch: pa.RecordBatch, key: Sequence[int] | None = None) -> list[Send]:
        """Send an input batch, cut by owner; ``key``: where this one has the key's columns, if elsewhere."""
        number = self._number
        self._number += 1
        at = self._key if key is None else key
        sends = self._announce(batch, number, at) if self._backlog and batch.num_rows else []
        owner = None
        if self._pins is not None and batch.num_rows:
            owner = self._pins.owners(batch, self._owners, [batch.column(i) for i in at])
        for worker, part in split(batch, self._owners, owner):
            body, checksum = pack(part)
            sends.append(Send(worker, Apply(self.operator, self.turn, self.feeder, number, checksum), body))
            self._sent[worker] += 1
            self._awaited.append((number, worker))
        return sends

    def _announce(self, batch: pa.RecordBatch, number: int, key: Sequence[int]) -> list[Send]:
        """Tell old owners which of the keys that leave them are in a batch, the most frequent first."""
        groups = groups_in(batch)
        sends: list[Send] = []
        columns = [batch.column(i) for i in key]
        for worker, (leaving, keys) in self._backlog.items():
            rows = leaving[groups]
            if len(keys):
                rows = rows | np.isin(groups, key_groups(keys, len(leaving)))
            if not rows.any():
                continue
            mask = pa.array(rows)
            hashes, counts = np.unique(hash_columns([column.filter(mask) for column in columns]), return_counts=True)
            if len(keys):
                mine = leaving[key_groups(hashes, len(leaving))] | np.isin(hashes, keys)
                hashes, counts = hashes[mine], counts[mine]
            if len(hashes):
                first = hashes[np.argsort(-counts, kind="stable")]
                sends.append(Send(worker, Backlog(self.operator, self.turn, number), first.astype("<i8").tobytes()))
        return sends

    def finish(self) -> list[Send]:
        """The input is at its end: say so to every worker."""
        self._done = True
        return [
            Send(worker, Done(self.operator, self.turn, self.feeder, self._sent[worker])) for worker in self.workers
        ]

    def receive(self, worker: WorkerId, message: Message, body: Body) -> None:
        """Take an answer; raises the error that a refusal carries."""
        match message:
            case Applied(turn=self.turn, number=number):
                self._arrived[number, worker] = body
            case Finished(turn=self.turn, more=more):
                if worker not in self._more:
                    self._finishing[worker], self._more[worker] = body, more
            case Part(turn=self.turn, part=part):
                if not self.complete and worker == self.workers[self._ended] and part == self._part:
                    self._finishing[worker] = body
            case Refused(error=error):
                raise error.error()
            case _:
                raise ProtocolError(f"worker {worker} answered feeder {self.feeder} of {self.operator} with {message}")

    def outputs(self) -> Iterator[Body]:
        """Outputs that may leave now, in the fixed order; each is given once."""
        while self._awaited and self._awaited[0] in self._arrived:
            body = self._arrived.pop(self._awaited.popleft())
            if body is not None and len(body):
                yield body
        if not self._done or self._awaited or len(self._more) < len(self.workers):
            return
        while not self.complete and (worker := self.workers[self._ended]) in self._finishing:
            body = self._finishing.pop(worker)
            self._part += 1
            self._wanted = self._part <= self._more[worker]
            if not self._wanted:
                self._ended, self._part = self._ended + 1, 0
            if body is not None and len(body):
                yield body

    def wants(self) -> list[Send]:
        """What to ask for, when all outputs that are here have left."""
        if not self._wanted:
            return []
        self._wanted = False
        worker = self.workers[self._ended]
        return [Send(worker, AskPart(self.operator, self.turn, self.feeder, self._part))]

    @property
    def in_flight(self) -> int:
        """Sub-batches that were sent and whose outputs have not left."""
        return len(self._awaited)

    @property
    def complete(self) -> bool:
        """Everything sent was answered, the ends too, and all outputs have left."""
        return self._ended == len(self.workers)


def _flags(groups: Sequence[int], count: int) -> np.ndarray:
    flags = np.zeros(count, np.bool_)
    flags[list(groups)] = True
    return flags
