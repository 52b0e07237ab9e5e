"""A table of columns whose keys, values and index may lie on a local disk, as far as its worker's budget asks for it.

What an epoch has touched, its before-images, and how it ends are those of any table: the disk knows nothing of epochs.
What goes over many keys at once does so in parts, and after each it is looked how much has come to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.store_stats import StoreStats
from bedload.store.columns.column import ColumnSpec
from bedload.store.columns.index import BLOCK, Slots
from bedload.store.columns.paged import Backing, PagedMemory
from bedload.store.columns.pager import Pager
from bedload.store.columns.runs import Runs
from bedload.store.columns.slot_table import Groups
from bedload.store.columns.table import ColumnTable
from bedload.store.deltas import Installable


class PagedTable(ColumnTable):
    """The state of one operator on columns at one worker, larger than memory."""

    def __init__(
        self,
        key_types: Sequence[pa.DataType],
        columns: Sequence[ColumnSpec],
        key_groups: int,
        pager: Pager,
        make: Callable[[], Backing],
        *,
        block: int = BLOCK,
    ) -> None:
        """``make``: makes an empty file on the disk."""
        self._memory = PagedMemory(make, pager.slab)
        self._pager = pager
        super().__init__(key_types, columns, key_groups, block=block, memory=self._memory)
        pager.table(self._memory)

    # --- rows and state that come ---

    def batches(self, count: int) -> Iterator[slice]:
        """So many rows that come, in parts: room is made before each. Raises LocalDiskError."""
        begin = 0
        while begin < count:
            self._pager.make_room()
            end = min(begin + self._pager.rows, count)
            yield slice(begin, end)
            self._pager.look(self._memory, rows=True)
            begin = end

    def locate(self, keys: Sequence[pa.Array], groups: Groups) -> Slots:
        """The slots of these keys, new ones included, with before-images taken: they may be written now."""
        slots = super().locate(keys, groups)
        self._memory.warm(slots)
        return slots

    def put(self, keys: Sequence[pa.Array], groups: Groups, state: pa.RecordBatch) -> None:
        """Put keys in as committed state, over what they have. Raises LocalDiskError before anything has changed."""
        self._pager.make_room()
        super().put(keys, groups, state)
        self._pager.look(self._memory)

    def add(self, found: Installable, expect: int = 0) -> None:
        """Put keys in as committed state that are new. Raises LocalDiskError before anything has changed."""
        self._pager.make_room()
        super().add(found, expect)
        self._pager.look(self._memory)

    # --- many keys at once ---

    def parts(self, count: int) -> Iterator[slice]:
        """So many of something, in parts."""
        if not self._pager.any_laid:
            yield from super().parts(count)
            return
        step = self._pager.rows
        for begin in range(0, count, step):
            yield slice(begin, min(begin + step, count))
            self._pager.look(self._memory)

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The keys in these slots."""
        made = [super(PagedTable, self).keys(slots[part]) for part in self.parts(len(slots))]
        return [pa.concat_arrays(columns) for columns in zip(*made, strict=True)] if made else super().keys(slots)

    def _batch(self, slots: Slots, places: npt.NDArray[np.int32] | None) -> pa.RecordBatch:
        made = [
            super(PagedTable, self)._batch(slots[part], None if places is None else places[part])
            for part in self.parts(len(slots))
        ]
        return pa.concat_batches(made) if made else super()._batch(slots, places)

    def current_of(self, runs: Runs) -> tuple[list[pa.Array], dict[str, pa.Array]]:
        """The keys and the current values of runs."""
        found = super().current_of(runs)
        self._pager.look(self._memory)
        return found

    def delta(self) -> pa.RecordBatch | None:
        """What the epoch changed, in delta form. Raises LocalDiskError if that may be made of what was lost.

        SUBTLE: before it is written to the checkpoint. Who finds it there takes the epoch for sealed, though the worker
        has ended before it could say so.
        """
        made = super().delta()
        for array in self._memory.arrays:
            array.check()
        return made

    def commit(self) -> None:
        """The current state is the committed one."""
        super().commit()
        self._memory.cool()
        self._pager.epoch()

    # --- what is not in memory ---

    @property
    def untidy(self) -> bool:
        """Whether something should leave memory, or come back."""
        return self._pager.untidy

    @property
    def misses(self) -> int:
        """It is not known which keys were not in memory."""
        return 0

    def tidy_disk(self) -> None:
        """Do a little of that."""
        self._pager.tidy()

    def give_up(self) -> None:
        """All of it is forgotten, and so are its files."""
        self._pager.forget(self._memory)

    def stats(self) -> StoreStats:
        """What is there, and what was done; keys in memory are those whose slabs are, about."""
        memory = self._memory
        held, laid = memory.held_bytes, memory.laid_bytes
        keys = self.sizes().keys
        return StoreStats(
            keys=keys,
            store="disk",
            memory_keys=keys * held // max(held + laid, 1),
            memory_bytes=held,
            disk_bytes=memory.disk_bytes,
            read_bytes=memory.read_bytes,
            evictions=sum(array.laid_down for array in memory.arrays),
            written_bytes=sum(array.written_bytes for array in memory.arrays),
        )
