"""Reading the state of one operator back: orders, and what arrives of them.

What arrives is put in a little at a time (:meth:`Restoring.step`), so that rows of other key groups never wait long. A
chunk that somebody waits for goes before all others.

Invariants: what arrives is installed only if it is still wanted; a key group counts as here when all of it is; if state
could not be read, the worker refuses the turn and the reads that need it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bedload.core.clock import Clock
from bedload.core.errors import BedloadError
from bedload.core.ids import NO_TURN, KeyGroup, OperatorName, Ticket, Turn, WorkerId
from bedload.core.limits import LIMITS, Limits
from bedload.migration.hash_set import state_hashes
from bedload.migration.holdings import Holdings
from bedload.protocol import messages as m
from bedload.protocol.messages import Body
from bedload.store.deltas import GROUP, sorted_by_group
from bedload.worker.durability import Hurry, Load, Loaded
from bedload.worker.peers import COORDINATOR, LOADER, Out
from bedload.worker.runtime import Runtime

_FEWEST = 256
"""Keys in a step: with fewer, what a step costs by itself would be most of it."""


@dataclass
class _Chunk:
    """Some of an order that is here, and how much of it was put in."""

    news: Loaded
    state: pa.RecordBatch | None
    """None: there are no keys."""
    groups: list[KeyGroup]
    ends: list[int]
    """By key group, in ascending order: the row after its last."""
    row: int = 0

    @classmethod
    def of(cls, news: Loaded) -> _Chunk:
        groups, state = sorted(news.groups), news.state
        if state is None or not state.num_rows:
            return cls(news, None, groups, [0] * len(groups))
        state = sorted_by_group(state, state.column(GROUP).to_numpy(zero_copy_only=False))
        column = state.column(GROUP).to_numpy(zero_copy_only=False)
        return cls(news, state, groups, np.searchsorted(column, np.array(groups, column.dtype), "right").tolist())

    def cut(self, rows: int) -> tuple[list[KeyGroup], pa.RecordBatch | None, set[KeyGroup], int]:
        """The next rows: their key groups, they themselves, which of these were begun, and what follows of the last."""
        row, everything = self.row, 0 if self.state is None else self.state.num_rows
        end = self.row = min(everything, row + rows)
        # Key groups without keys come with those before them, or with the first ones.
        first = bisect_right(self.ends, row) if row else 0
        last = max(bisect_left(self.ends, end), bisect_right(self.ends, end) - 1)
        groups = self.groups[first : last + 1]
        begun = {groups[0]} if row and row > (self.ends[first - 1] if first else 0) else set[KeyGroup]()
        state = None if self.state is None else self.state.slice(row, end - row)
        return groups, state, begun, self.ends[last] - end

    @property
    def over(self) -> bool:
        """Whether nothing is left of it."""
        return self.row == (0 if self.state is None else self.state.num_rows)


class Restoring:
    """The part of a worker's machine that reads back what it should hold of an operator."""

    def __init__(
        self, worker: WorkerId, name: OperatorName, holdings: Holdings, clock: Clock, limits: Limits = LIMITS
    ) -> None:
        self._worker = worker
        self._name = name
        self._holdings = holdings
        self._clock = clock
        self._limits = limits
        self._base: Turn = NO_TURN
        """The state that was last read back."""
        self.error: BedloadError | None = None
        """Why the state that should be here is not."""
        self.orders: dict[Ticket, tuple[m.Restore, set[KeyGroup]]] = {}
        """What is being read, by ticket: what was asked for, and what of it is not here yet."""
        self._ticket = Ticket(0)
        self._restored = 0
        self._chunks: list[_Chunk] = []
        """What is here and not all put in, in the order in which it came."""
        self._rows = min(_FEWEST, limits.install_rows)
        """Of the next step."""
        self._longest = 0.0
        """Seconds of the longest step since nothing was to be read."""
        self._hurried: set[KeyGroup] = set()
        """Key groups whose readers know that somebody waits."""

    def order(self, message: m.Restore, plan: Body, found: Collection[KeyGroup] = ()) -> Load | None:
        """These key groups are to be read; None: they are empty, or were all ``found`` elsewhere, and so here."""
        self._base = message.base
        for _, wanted in self.orders.values():
            wanted.difference_update(message.groups)
        self.orders = {ticket: order for ticket, order in self.orders.items() if order[1]}
        self._chunks = [chunk for chunk in self._chunks if self._wants(chunk)]
        self._hurried.difference_update(message.groups)
        if not self.orders:
            self._restored, self._longest = 0, 0.0
        self._holdings.read_back(message.groups, message.hosts)
        rest = () if plan is None else tuple(group for group in message.groups if group not in found)
        self._restored += len(found)
        if plan is None or not rest:
            self._holdings.arrive(message.groups)
            return None
        self._holdings.arrive(found)
        self._ticket = Ticket(self._ticket + 1)
        self.orders[self._ticket] = message, set(rest)
        return Load(self._name, self._ticket, message.base, rest, bytes(plan))

    # --- what arrives ---

    def take(self, news: Loaded) -> None:
        """Some of an order is here: it is put in by and by."""
        chunk = _Chunk.of(news)
        if self._wants(chunk):
            self._chunks.append(chunk)

    @property
    def busy(self) -> bool:
        """Whether there is something to put in, or to say to the reader."""
        return bool(self._chunks) or not self._holdings.asked <= self._hurried

    def hurry(self) -> list[Out]:
        """Tell the readers what somebody has begun to wait for."""
        new = self._holdings.asked - self._hurried
        self._hurried |= new
        said = [(ticket, tuple(sorted(new & wanted))) for ticket, (_, wanted) in self.orders.items()] if new else []
        return [(LOADER, Hurry(self._name, ticket, groups), None) for ticket, groups in said if groups]

    def step(self, runtime: Runtime) -> Loaded | None:
        """Put a little in of what is here; what is all put in now, and so counts as here."""
        if not self._chunks:
            return None
        started = self._clock.processor()
        asked = self._holdings.asked
        chunk = next((it for it in self._chunks if not asked.isdisjoint(it.news.groups)), self._chunks[0])
        self._install_some(chunk, runtime)
        if chunk.over:
            self._arrive(chunk)
        took = self._clock.processor() - started
        self._longest = max(self._longest, took)
        most = self._limits.install_rows
        fitting = most if took <= 0 else int(self._rows * self._limits.install_seconds / took)
        self._rows = min(most, max(fitting, _FEWEST), 2 * self._rows)
        return chunk.news if chunk.over else None

    def _wants(self, chunk: _Chunk) -> bool:
        """Whether some of it is still wanted. What is not must not wait here: its order may be over before its turn."""
        order = self.orders.get(chunk.news.ticket)
        return order is not None and not order[1].isdisjoint(chunk.news.groups)

    def _install_some(self, chunk: _Chunk, runtime: Runtime) -> None:
        message, wanted = self.orders[chunk.news.ticket]
        if chunk.news.expected and not chunk.row:
            runtime.foresee(chunk.news.expected)
        groups, state, begun, expect = chunk.cut(self._rows)
        still = [group for group in groups if group in wanted]
        if state is not None and len(still) < len(groups):
            state = state.filter(pa.array(np.isin(state.column(GROUP).to_numpy(zero_copy_only=False), still)))
        runtime.install(still, own_keys(state, message), begun, expect)

    def _arrive(self, chunk: _Chunk) -> None:
        self._chunks.remove(chunk)
        _, wanted = self.orders[chunk.news.ticket]
        groups = [group for group in chunk.news.groups if group in wanted]
        self._restored += len(groups)
        wanted.difference_update(groups)
        if not wanted:
            del self.orders[chunk.news.ticket]
        self._hurried.difference_update(groups)
        self._holdings.arrive(groups)

    # --- what else can become of it ---

    def fail(self, error: BedloadError) -> None:
        """The state cannot be had."""
        self.clear()
        self.error = error
        self._holdings.forget()

    def clear(self) -> None:
        """Nothing is to be read any more, and what could not be read is not wanted."""
        self._base, self.error, self.orders, self._chunks, self._hurried = NO_TURN, None, {}, [], set()

    def check(self) -> None:
        """Raise an AssertionError if this cannot be."""
        assert self.error is None or not self.orders, f"{self.orders} are read, after {self.error!r}"
        here = [group for _, wanted in self.orders.values() for group in wanted if not self._holdings.absent(group)]
        assert not here, f"{sorted(here)} are read, and taken for here"
        lost = [chunk.news.groups for chunk in self._chunks if not self._wants(chunk)]
        assert not lost, f"{lost} are to be put in, which were taken back"

    def progress(self, runtime: Runtime | None, read: int = 0) -> Out:
        """What to tell the coordinator."""
        holdings = self._holdings
        news = m.Restored(
            self._worker,
            self._name,
            self._base,
            self._restored,
            holdings.left,
            0 if runtime is None else runtime.keys,
            read,
            None if self.error is None else m.WireError.of(self.error),
            holdings.told,
            self._longest,
        )
        return COORDINATOR, news, None


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
