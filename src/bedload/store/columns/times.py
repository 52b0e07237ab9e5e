"""A column of times at which something is due, and which slots are due at a time.

For each run of neighbouring slots (the blocks of the table) there is a lower bound of its times. To find what is due is
to look at these bounds, and then at the slots of the blocks that may have something. So there is no entry per time that
could be lost, out of date, or of a key that is gone: what is asked is the column itself.

Invariants: no time of a block is below its bound; a slot without a key holds :data:`NEVER`. So whatever writes a time
lowers the bound: operator code, state that comes in, and an abort that puts old times back. Bounds are raised only by
:meth:`Times.tighten`, to what is there.

Why no index of entries: with eight bytes of bounds for a block of 64 times, to find one that is due costs a look at 64
neighbours at most; to add or to move one costs nothing but its bound. Sorted runs would cost twelve bytes for each time
that was ever set until it is reached, and their merging.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bedload.store.columns.index import Flags, Slots
from bedload.store.columns.memory import PLAIN, GrowingArray, Memory
from bedload.store.columns.runs import Runs
from bedload.store.columns.values import Values
from bedload.store.due import NEVER

_STEP = 4096
"""Blocks that are looked at together: a few megabytes of times."""


class Times(Values):
    """Times in milliseconds by slot; :data:`NEVER` is none."""

    __slots__ = ("_block", "_bounds", "next")

    def __init__(self, initial: Any, block: int, memory: Memory = PLAIN) -> None:
        super().__init__(np.dtype(np.int64), initial, memory)
        self._block = block
        self._bounds = GrowingArray(np.int64)
        self.next = NEVER
        """Nothing is due before."""

    @property
    def nbytes(self) -> int:
        """Memory of the times, of the old ones, and of the bounds."""
        return super().nbytes + self._bounds.nbytes

    # --- what is due ---

    def due(self, now: int) -> Slots:
        """The slots whose time has come, in ascending order."""
        if now < self.next:
            return np.empty(0, np.int64)
        found = []
        for blocks in self._parts(now):
            places = np.flatnonzero(self._rows(blocks).ravel() <= now)
            found.append(blocks[places // self._block] * self._block + places % self._block)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def next_of(self, blocks: Flags) -> int:
        """Nothing of these blocks is due before."""
        return int(self._bounds.array[blocks].min(initial=NEVER))

    def tighten(self, now: int) -> None:
        """Have the bounds that a time has reached follow the times: call it when what was due has fired."""
        if now < self.next:
            return
        bounds = self._bounds.array
        for blocks in self._parts(now):
            bounds[blocks] = self._rows(blocks).min(axis=1)
        self.next = int(bounds.min()) if len(bounds) else NEVER

    def clear(self, slots: Slots) -> None:
        """Have no time in these slots."""
        self.live[slots] = NEVER

    def _parts(self, now: int) -> list[Slots]:
        blocks = np.flatnonzero(self._bounds.array <= now)
        return [blocks[at : at + _STEP] for at in range(0, len(blocks), _STEP)]

    def _rows(self, blocks: Slots) -> npt.NDArray[np.int64]:
        """The times of blocks, a block per row."""
        rows: npt.NDArray[np.int64] = self.live.reshape(-1, self._block)[blocks]
        return rows

    # --- what writes times ---

    def room(self, slots: int) -> None:
        """Have room for this many slots, and not more."""
        before = len(self.live)
        super().room(slots)
        self.live[before:] = NEVER
        blocks, known = slots // self._block, len(self._bounds)
        self._bounds.resize(blocks)
        self._bounds.array[known:] = NEVER

    def start(self, slots: Slots | Runs) -> None:
        """Give slots the value that a new key has."""
        super().start(slots)
        if self._initial[()] != NEVER:
            self._lower(slots)

    def put(self, slots: Slots | Runs, values: npt.NDArray[Any] | bool | int) -> None:
        """Overwrite slots."""
        super().put(slots, values)
        if isinstance(values, int):
            self._lower_to(slots, values)
        else:
            self._lower(slots)

    def restore(self, slots: Slots, places: Slots) -> None:
        """Put the values of some places back."""
        super().restore(slots, places)
        self._lower(slots)

    def leave(self, slots: Slots) -> None:
        """The keys of these slots go: what is there is of nobody."""
        self.clear(slots)

    def _lower(self, slots: Slots | Runs) -> None:
        slots = slots.slots if isinstance(slots, Runs) else slots
        if not len(slots):
            return
        times, blocks = self.live[slots], slots // self._block
        low = times < self._bounds.array[blocks]
        if low.any():
            times = times[low]
            np.minimum.at(self._bounds.array, blocks[low], times)
            self.next = min(self.next, int(times.min()))

    def _lower_to(self, slots: Slots | Runs, time: int) -> None:
        """The same for slots that have one time."""
        blocks = (slots.slots if isinstance(slots, Runs) else slots) // self._block
        low = blocks[self._bounds.array[blocks] > time]
        if len(low):
            self._bounds.array[low] = time
            self.next = min(self.next, time)

    def check(self, free: Slots) -> None:
        """Raise AssertionError unless the invariants hold, with these slots free. It looks at everything: for tests."""
        assert (self.live[free] == NEVER).all(), "a free slot holds a time"
        lowest = self.live.reshape(-1, self._block).min(axis=1) if len(self.live) else self.live
        assert (self._bounds.array <= lowest).all(), "a block has an earlier time than its bound"
        assert not len(lowest) or self.next <= self._bounds.array.min(), "a bound is earlier than the next time"
