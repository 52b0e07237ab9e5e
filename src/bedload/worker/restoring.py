"""Reading the state of one operator back: orders, and what arrives of them.

Invariants: what arrives is installed only if it is still wanted; if state could not be read, the worker refuses the
turn and the reads that need it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bedload.core.errors import BedloadError
from bedload.core.ids import NO_TURN, KeyGroup, OperatorName, Ticket, Turn, WorkerId
from bedload.migration.hash_set import state_hashes
from bedload.migration.holdings import Holdings
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.store.deltas import GROUP
from bedload.worker.durability import Load, Loaded
from bedload.worker.peers import COORDINATOR, Out
from bedload.worker.runtime import Runtime


class Restoring:
    """The part of a worker's machine that reads back what it should hold of an operator."""

    def __init__(self, worker: WorkerId, name: OperatorName, holdings: Holdings) -> None:
        self._worker = worker
        self._name = name
        self._holdings = holdings
        self._base: Turn = NO_TURN
        """The state that was last read back."""
        self.error: BedloadError | None = None
        """Why the state that should be here is not."""
        self.orders: dict[Ticket, tuple[m.Restore, set[KeyGroup]]] = {}
        """What is being read, by ticket: what was asked for, and what of it is not here yet."""
        self._ticket = Ticket(0)
        self._restored = 0

    def order(self, message: m.Restore, plan: Body) -> Load | None:
        """These key groups are to be read; None: they are empty, and so here."""
        self._base = message.base
        for _, wanted in self.orders.values():
            wanted.difference_update(message.groups)
        self.orders = {ticket: order for ticket, order in self.orders.items() if order[1]}
        if not self.orders:
            self._restored = 0
        self._holdings.read_back(message.groups, message.hosts)
        if plan is None or not message.groups:
            self._holdings.arrive(message.groups)
            return None
        self._ticket = Ticket(self._ticket + 1)
        self.orders[self._ticket] = message, set(message.groups)
        return Load(self._name, self._ticket, message.base, message.groups, bytes(plan))

    def install(self, news: Loaded, runtime: Runtime) -> None:
        """Some of an order is here."""
        message, wanted = self.orders[news.ticket]
        groups = [group for group in news.groups if group in wanted]
        state = of_groups(news.state, groups, len(news.groups))
        runtime.install(groups, own_keys(state, message))
        self._restored += len(groups)
        wanted.difference_update(groups)
        if not wanted:
            del self.orders[news.ticket]
        self._holdings.arrive(groups)

    def fail(self, error: BedloadError) -> None:
        """The state cannot be had."""
        self.error = error
        self.orders = {}
        self._base = NO_TURN
        self._holdings.forget()

    def clear(self) -> None:
        """Nothing is to be read any more, and what could not be read is not wanted."""
        self._base, self.error, self.orders = NO_TURN, None, {}

    def check(self) -> None:
        """Raise an AssertionError if this cannot be."""
        assert self.error is None or not self.orders, f"{self.orders} are read, after {self.error!r}"
        here = [group for _, wanted in self.orders.values() for group in wanted if not self._holdings.absent(group)]
        assert not here, f"{sorted(here)} are read, and taken for here"

    def progress(self, runtime: Runtime | None, read: int = 0) -> Out:
        """What to tell the coordinator."""
        keys, holdings = 0 if runtime is None else runtime.keys, self._holdings
        error = None if self.error is None else m.WireError.of(self.error)
        told = holdings.told
        news = m.Restored(self._worker, self._name, self._base, self._restored, holdings.left, keys, read, error, told)
        return COORDINATOR, news, None


def of_groups(state: pa.RecordBatch | None, groups: list[KeyGroup], there: int) -> pa.RecordBatch | None:
    """The part of a state that is still wanted."""
    if state is None or len(groups) == there:
        return state
    return state.filter(pa.array(np.isin(state.column(GROUP).to_numpy(zero_copy_only=False), groups)))


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
