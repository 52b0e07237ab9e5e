"""A shelf of keys whose state is in a remote store: key groups that go as a whole stay where they are.

The new owner is told their places (:meth:`RemoteShelf.places`), and nothing of them is listed. Single keys, and those
of operators with times, go as they lie there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bedload.core.ids import KeyGroup
from bedload.store.disk_shelf import DiskShelf
from bedload.store.row_shelf import Waiting
from bedload.store.selection import Selection

if TYPE_CHECKING:
    from bedload.store.remote_table import RemoteTable


class RemoteShelf(DiskShelf):
    """Keys of an operator on rows that are in a remote store."""

    def __init__(
        self, table: RemoteTable, key_types: Sequence[pa.DataType], selection: Selection, waiting: Waiting
    ) -> None:
        super().__init__(table.stores, table.layout, key_types, selection, waiting, table.drop)
        self._table = table
        self._places: dict[KeyGroup, tuple[bytes, bytes]] | None = None
        if table.by_place:
            self.by_place = frozenset(group for group in selection.groups if selection.admits_all(group))
            self.expected -= sum(table.stores[group].sizes().keys for group in self.by_place if group in table.stores)

    def places(self) -> dict[KeyGroup, tuple[bytes, bytes]]:
        """Where the state of key groups is that stay there."""
        if self._places is None:
            found = self._table.places(sorted(self.by_place)).items()
            self._places = {group: (moved.place, moved.stamp) for group, moved in found}
        return self._places

    def sealed(self) -> None:
        """An epoch is sealed: what it touched of listed keys has to be noted."""
        super().sealed()
        self._unnoted = [(group, objs) for group, objs in self._unnoted if group not in self.by_place]

    def _held_in(self, group: KeyGroup) -> list[Any]:
        return [] if group in self.by_place else super()._held_in(group)
