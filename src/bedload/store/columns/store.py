"""One key group of a :class:`ColumnTable`, as the key-group store that every layout is.

All key groups of a table share their epochs: the runtime ends them together, on the table. This view of a single
group is for what is done by group: reads, snapshots, moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.ids import KeyGroup
from bedload.keys import canonical_key, freeze_keys
from bedload.store.base import Changes, Sizes
from bedload.store.columns.index import Slots
from bedload.store.columns.table import ColumnTable


class ColumnStore:
    """One key group of a table."""

    def __init__(self, group: KeyGroup, table: ColumnTable) -> None:
        self.group = group
        self.table = table

    def begin(self) -> None:
        """Check that the last epoch was ended."""
        self.table.check_idle()

    def seal(self) -> None:
        """Check that columns of objects hold what was declared."""
        self.table.seal()

    def commit(self) -> None:
        """Commit the whole table."""
        self.table.commit()

    def abort(self) -> None:
        """Abort the whole table."""
        self.table.abort()

    def changes(self) -> Changes:
        """The changed keys of this group, each with its whole row: that is the entry of a column store."""
        table = self.table
        changed = self._mine(table.changed())
        entries = dict(zip(self._keys(changed), table.current(changed).to_pylist(), strict=True))
        created = frozenset(self._keys(self._mine(table.created())))
        return Changes(self.group, entries, created, tuple(self._keys(self._mine(table.removed()))))

    def read(self, key: Any) -> dict[str, Any] | None:
        """The committed state of a key."""
        slots = self._find([key])
        if slots[0] < 0:
            return None
        found: dict[str, Any] = self.table.committed(slots).to_pylist()[0]
        return found

    def snapshot(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The committed state of every key."""
        slots = self.table.committed_slots(self.group)
        yield from zip(self._keys(slots), self.table.committed(slots).to_pylist(), strict=True)

    def extract(self, keys: Iterable[Any] | None = None) -> tuple[list[Any], pa.RecordBatch]:
        """The committed state of these keys, or of all, as Arrow."""
        if keys is None:
            slots = self.table.committed_slots(self.group)
        else:
            slots = self._find(list(keys))
            slots = slots[slots >= 0]
        return self._keys(slots), self.table.committed(slots)

    def install(self, keys: list[Any], state: pa.RecordBatch) -> None:
        """Put in what another store extracted."""
        if keys:
            self.table.install(self._columns(keys), self._groups(len(keys)), state)

    def discard(self, keys: Iterable[Any] | None = None) -> None:
        """Drop these keys, or all."""
        if keys is None:
            self.table.drop_group(self.group)
            return
        slots = self._find(list(keys))
        self.table.discard(slots[slots >= 0])

    def sizes(self) -> Sizes:
        """How much is there."""
        index = self.table.index
        return Sizes(index.count(self.group), len(self._mine(index.touched)))

    def _mine(self, slots: Slots) -> Slots:
        mine: Slots = slots[self.table.index.group_of(slots) == self.group]
        return mine

    def _keys(self, slots: Slots) -> list[Any]:
        return freeze_keys(self.table.keys(slots)) if len(slots) else []

    def _find(self, keys: list[Any]) -> Slots:
        if not keys:
            return np.empty(0, np.int64)
        return self.table.find(self._columns(keys), self._groups(len(keys)))

    def _columns(self, keys: list[Any]) -> list[pa.Array]:
        types = self.table.words.types
        plain = [canonical_key(key) for key in keys]
        parts: Any = zip(*plain, strict=True) if len(types) > 1 else [plain]
        return [pa.array(list(part), type=kind) for part, kind in zip(parts, types, strict=True)]

    def _groups(self, count: int) -> npt.NDArray[np.int16]:
        return np.full(count, self.group, np.int16)
