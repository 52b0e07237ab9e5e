"""The part of a runtime that is the same for every layout: ends of epochs, state that comes and goes, what there is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa

from bedload.core.errors import DefinitionError, ProtocolError
from bedload.core.ids import KeyGroup, OperatorName, Turn
from bedload.core.store_stats import StoreStats
from bedload.protocol import messages as m
from bedload.state.kinds import Store
from bedload.store import Changes, StateTable
from bedload.store.columns import ColumnTable
from bedload.store.columns.paged_table import PagedTable
from bedload.store.disk_table import DiskTable
from bedload.store.remote_table import Moved, RemoteTable
from bedload.store.resting import RestingStore
from bedload.store.row_table import RowTable
from bedload.store.selection import Selection
from bedload.store.shelf import Shelf
from bedload.worker.allowance import Allow, Take
from bedload.worker.stores import Stores

Table = TypeVar("Table", bound=StateTable)
_T = TypeVar("_T")


def row_table(deployment: Any, stores: Stores | None) -> RowTable:
    """The table of an operator on rows."""
    name: OperatorName = deployment.name
    if deployment.store is Store.MEMORY:
        return RowTable(name, RestingStore)
    stores = _needed(deployment, stores)
    if deployment.store is Store.REDIS:
        return RemoteTable(name, stores.remotes.open(name, deployment.store_url), stores.cache)
    return DiskTable(name, stores.disks.open(name), stores.cache)


def column_table(deployment: Any, stores: Stores | None) -> ColumnTable:
    """The table of an operator on columns."""
    parts = deployment.key_types, deployment.state_columns, deployment.key_groups
    if deployment.store is Store.MEMORY:
        return ColumnTable(*parts)
    stores = _needed(deployment, stores)
    return PagedTable(*parts, stores.pager, partial(stores.disks.slabs, deployment.name))


def _needed(deployment: Any, stores: Stores | None) -> Stores:
    if stores is None:
        said = str(deployment.store)
        raise DefinitionError(f"operator {deployment.name}: store={said!r} needs a worker with a local disk")
    return stores


class TableRuntime(Generic[Table]):
    """The half of a :class:`~bedload.worker.runtime.Runtime` that runs no operator code."""

    allow: Allow | None = None
    take: Take | None = None
    late = 0
    _table: Table

    def _call(self, method: str, function: Callable[[], _T]) -> _T:
        """Run what may run user code, if only in a value's ``__eq__`` or in how it is pickled."""
        raise NotImplementedError

    # --- epochs ---

    def changes(self) -> Iterator[Changes]:
        """What the epoch changed, by key group; after the seal."""
        return self._table.changes()

    def delta(self) -> pa.RecordBatch | None:
        """What the epoch changed, in delta form; after the seal."""
        return self._call("seal", self._table.delta)

    def commit(self) -> None:
        """The epoch counts."""
        self._table.commit()

    def abort(self) -> None:
        """The epoch does not count."""
        self._table.abort()

    # --- state that comes and goes ---

    def install(
        self,
        groups: Collection[KeyGroup],
        state: pa.RecordBatch | None,
        more: Collection[KeyGroup] = (),
        expect: int = 0,
    ) -> None:
        """Put these key groups in with this committed state."""
        self._table.install(groups, state, more, expect)

    def drop(self, groups: Iterable[KeyGroup]) -> None:
        """Forget the state of these key groups; no epoch may have touched them."""
        self._table.drop(groups)

    def shelve(self, selection: Selection) -> Shelf:
        """The keys that are meant, to go elsewhere."""
        return self._table.shelve(selection)

    def foresee(self, keys: int, groups: int = 0) -> None:
        """About so many keys will be taken in, of so many key groups if that is known."""
        self._table.foresee(keys, groups)

    def take_in(self, state: pa.RecordBatch) -> None:
        """Put in what a shelf gave."""
        self._table.take_in(state)

    # --- what is not in memory ---

    @property
    def _remote(self) -> RemoteTable | None:
        """The table, if its state is in a remote store."""
        table: Any = self._table
        return table if isinstance(table, RemoteTable) else None

    def stand(self, turn: Turn, base: Turn, owned: Collection[KeyGroup]) -> None:
        """A turn begins, which builds upon that one; these key groups are the worker's own."""
        if self._remote is not None:
            self._remote.stand(turn, base, owned)

    def write(self, turn: Turn, whole: Callable[[KeyGroup], bool]) -> None:
        """Write what the epoch has changed to where its state is."""
        if self._remote is not None:
            self._remote.write(turn, whole)

    def find(self, told: m.Restore) -> Collection[KeyGroup]:
        """Those of the key groups to be read back whose state is where it was."""
        if self._remote is None:
            return ()
        return self._remote.find(set(told.groups).difference(told.mixed, told.hosts), told.base, told.latest)

    def adopt(self, places: Mapping[KeyGroup, tuple[bytes, bytes]]) -> None:
        """Another worker hands key groups over, which stay where they are."""
        if self._remote is None:
            raise ProtocolError("state in a remote store was handed over, and this worker has none")
        self._remote.adopt({group: Moved(*where) for group, where in places.items()})

    @property
    def _disk(self) -> DiskTable | PagedTable | None:
        """The table, if its state is on disk."""
        table: Any = self._table
        return table if isinstance(table, DiskTable | PagedTable) else None

    @property
    def untidy(self) -> bool:
        """Whether something should leave memory."""
        return self._disk is not None and self._disk.untidy

    def tidy(self) -> None:
        """Have a little of that leave."""
        if self._disk is not None:
            self._disk.tidy_disk()

    def give_up(self) -> None:
        """The state is nobody's any more."""
        if self._disk is not None:
            self._disk.give_up()

    @property
    def misses(self) -> int:
        """Keys that operator code wanted in the current epoch, and that were not in memory."""
        return 0 if self._disk is None else self._disk.misses

    def store_stats(self) -> StoreStats:
        """What is in memory, and what is not."""
        if self._disk is not None:
            return self._disk.stats()
        keys = self._table.sizes().keys
        return StoreStats(keys, memory_keys=keys, memory_bytes=self.state_bytes())

    # --- seeing it ---

    def read(self, group: KeyGroup, key: Any) -> dict[str, Any] | None:
        """The committed state of a key."""
        (state,) = self._call("read", lambda: self._table.read(group, [key]))
        return state

    def read_batch(self, group: KeyGroup, key: Any) -> pa.RecordBatch | None:
        """The committed state of a key, encoded."""
        state = self._call("read", lambda: self._table.read_encoded(group, [key]))
        return state if state.num_rows else None

    def snapshot(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The committed state of every key."""
        return self._table.snapshot()

    @property
    def keys(self) -> int:
        """The number of keys with state."""
        return self._table.sizes().keys

    @property
    def groups(self) -> int:
        """The number of key groups with state."""
        return self._table.sizes().groups

    @property
    def touched_keys(self) -> int:
        """The number of keys that the current epoch has touched."""
        return self._table.sizes().touched

    def held_bytes(self) -> int:
        """Roughly what is kept for the current epoch alone."""
        return self._table.image_bytes()

    def keys_in(self, groups: Collection[KeyGroup]) -> int:
        """The number of keys with state in these key groups."""
        return self._table.keys_in(groups)

    def state_bytes(self) -> int:
        """Roughly the size of all state when it is encoded."""
        return self._table.encoded_bytes()
