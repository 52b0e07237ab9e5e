"""Somebody who reads the live state of a key while all goes on, as :mod:`bedload.spark.state_view` does.

Invariants: an answer is the state at the epoch that it names, wherever the key is at that moment; and one comes, unless
the cluster is over.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from bedload.control.coordinator import Coordinator
from bedload.core.errors import UnknownOperator
from bedload.core.ids import KeyGroup, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.split import pack_whole, unpack_whole
from bedload.worker.runtime import Startable
from tests.simulator.network import Body, Connection, Network
from tests.simulator.watcher import Watcher
from tests.simulator.worker import SimulatedWorker
from tests.simulator.workload import GROUP_OF, HASH_OF

_LOOK_SECONDS = 10.0
"""Without an answer for so long, see whether the key lives elsewhere by now; each time twice as long."""
_LONGEST_SECONDS = 1e6
"""State that is read back takes long in some simulations, and none takes so long."""


class Cluster(Protocol):
    """Where workers are found."""

    alive: bool
    live: bool
    coordinator: Coordinator
    places: dict[str, SimulatedWorker]


class Reader:
    """One read of one key."""

    def __init__(self, network: Network, cluster: Cluster, deployment: Startable, watcher: Watcher, key: str) -> None:
        self.name = f"reader of {key}"
        self.done = False
        self._network = network
        self._cluster = cluster
        self._watcher = watcher
        self._key = key
        self._owner = WorkerId(-1)
        self._connection: Connection | None = None
        self._pause = 1.0
        self._ask()
        network.after(_LOOK_SECONDS, lambda: self._look(_LOOK_SECONDS))

    @property
    def waits(self) -> bool:
        """Whether an answer is due."""
        cluster = self._cluster
        return not self.done and cluster.alive and cluster.live and cluster.coordinator.error is None

    def on_message(self, connection: Connection, message: m.Message, body: Body) -> None:
        """An answer."""
        if connection is not self._connection or self.done:
            return
        if isinstance(message, m.Refused):
            if isinstance(message.error.error(), UnknownOperator):
                self._again()
            else:
                self._end()
            return
        assert isinstance(message, m.ReadAnswer)
        if not message.found and self._owner_now() != self._owner:
            self._again()  # it may have had it a moment ago, and handed it over
            return
        state = unpack_whole(body).to_pylist()[0] if message.found else None
        self._check(message, state)
        self._end()

    def on_close(self, connection: Connection) -> None:
        """The worker is gone."""
        if connection is self._connection and not self.done:
            self._again()

    def _check(self, answer: m.ReadAnswer, state: dict[str, Any] | None) -> None:
        at = answer.query, answer.epoch
        where = f"{self._key} of {self._watcher.name}, read at {at}"
        found = None if state is None else _count(state)
        known = self._watcher.counts_at(self._key, at)
        assert found in known, f"{where}: count is {found}, and was {known}"

    def _owner_now(self) -> WorkerId:
        return self._cluster.coordinator.operator(self._watcher.name).routing.owner_of_key(HASH_OF[self._key])

    def _ask(self) -> None:
        if not self.waits:
            return
        self._owner = self._owner_now()
        address = self._cluster.coordinator.workers.get(self._owner)
        worker = None if address is None else self._cluster.places[address]
        if worker is None or not worker.alive:
            self._again()
            return
        self._connection = worker.accept(self)
        body = pack_whole(pa.RecordBatch.from_arrays([pa.array([self._key])], names=["key0"]))
        told = self._cluster.coordinator.operator(self._watcher.name).told.get(self._owner, 0)
        self._connection.send(self, m.Read(self._watcher.name, KeyGroup(GROUP_OF[self._key]), told), body)

    def _again(self) -> None:
        self._hang_up()
        if self._pause < _LONGEST_SECONDS:
            self._pause *= 1.5
            self._network.after(self._pause + self._network.delay(), self._ask)

    def _look(self, waited: float) -> None:
        """Without an answer, see whether it is waited for in vain."""
        if not self.waits or waited > _LONGEST_SECONDS:
            return
        if self._connection is not None and self._owner_now() != self._owner:
            self._again()
        self._network.after(2 * waited, lambda: self._look(2 * waited))

    def _end(self) -> None:
        self.done = True
        self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close(self)
            self._connection = None


def _count(state: dict[str, Any]) -> int:
    """How many rows a key had; of a processor of Spark's it is a field of a value, and that may be gone."""
    return int(state["count"] if "count" in state else (state["total"] or {"count": 0})["count"])
