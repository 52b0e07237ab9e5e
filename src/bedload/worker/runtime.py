"""An operator at a worker, as the worker's protocol sees it, and what is shipped to start one.

A runtime knows nothing of feeders, turns or messages: :mod:`bedload.worker.machine` decides *whether* a sub-batch is
applied. There is one for each layout: :mod:`bedload.worker.row_runtime`, :mod:`bedload.worker.column_runtime`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.epoch import Due, EpochTime
from bedload.core.errors import OperatorFailed
from bedload.core.ids import Epoch, KeyGroup, OperatorName, Turn, WorkerId
from bedload.core.store_stats import StoreStats
from bedload.keys.lookup import Hashes
from bedload.protocol import messages as m
from bedload.state.kinds import Layout, Store
from bedload.store import Changes
from bedload.store.deltas import StateVariable
from bedload.store.selection import Selection
from bedload.store.shelf import Shelf
from bedload.worker.allowance import Allow, Take
from bedload.worker.firing import Owns
from bedload.worker.stores import Stores


class Runtime(Protocol):
    """An operator at a worker, whatever its layout: what the worker's protocol needs of it."""

    rows: int
    """Input rows of the current epoch."""
    late: int
    """Of those, the ones that were dropped because they came too late; after the seal."""
    durable: bool
    """Set it if every seal is followed by a :meth:`delta`: then part of the work is done on the way."""
    allow: Allow | None
    """Set it to be asked while a seal makes outputs."""
    take: Take | None
    """Set it to be given outputs of a seal as they are made; what :meth:`seal` gives then comes after them."""

    @property
    def timed(self) -> bool:
        """Whether its keys have timers."""
        ...

    def due_hashes(self, groups: Iterable[KeyGroup], time: EpochTime) -> Hashes:
        """Keys of these key groups that may have timers which are due."""
        ...

    def next_due(self) -> Due | None:
        """The earliest that something of what is here may be due; None: it has nothing that ever is."""
        ...

    def redeploy(self, deployment: Any) -> None:
        """New code for the same state, between epochs."""
        ...

    def close(self) -> OperatorFailed | None:
        """The operator's own clean-up, at most once; what it raised, for whoever wants to know."""
        ...

    def begin(self, epoch: Epoch, groups: Iterable[KeyGroup]) -> None:
        """An epoch begins, in which the worker owns these key groups."""
        ...

    def set_time(self, time: EpochTime) -> None:
        """The time of the epoch that has begun: once, and before its first row."""
        ...

    def hashes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The hash of the key of each row of a sub-batch."""
        ...

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take a sub-batch; the outputs that leave at once."""
        ...

    def seal(self, owns: Owns | None = None) -> pa.RecordBatch | None:
        """All rows of the epoch are here; the outputs that leave now. ``owns``: which keys' timers may fire."""
        ...

    def changes(self) -> Iterator[Changes]:
        """What the epoch changed, by key group; after the seal."""
        ...

    def delta(self) -> pa.RecordBatch | None:
        """What the epoch changed, in delta form (:mod:`bedload.store.deltas`); None if nothing. After the seal."""
        ...

    def install(
        self,
        groups: Collection[KeyGroup],
        state: pa.RecordBatch | None,
        more: Collection[KeyGroup] = (),
        expect: int = 0,
    ) -> None:
        """Put these key groups in with this committed state, in state form; None or no rows: they are empty.

        An epoch may be under way, as long as it has not met these key groups. They must have no state yet, but those
        of ``more``, which have other keys already. A variable that the state does not have gets its default.
        ``expect``: so many more keys of the last key group are to follow.
        """
        ...

    def drop(self, groups: Iterable[KeyGroup]) -> None:
        """Forget the state of these key groups: they live elsewhere now. No epoch may have touched them."""
        ...

    def shelve(self, selection: Selection) -> Shelf:
        """The keys with state that are meant, to go elsewhere. At any time, whether an epoch is under way or not."""
        ...

    def foresee(self, keys: int, groups: int = 0) -> None:
        """About so many keys will be taken in, of so many key groups if that is known.

        Make ready for them what costs no memory before they come.
        """
        ...

    def take_in(self, state: pa.RecordBatch) -> None:
        """Put in what a shelf gave, as committed state, over what the keys have; a REMOVE row takes its key out.

        At any time, but an epoch under way must not have touched any of the keys.
        """
        ...

    @property
    def untidy(self) -> bool:
        """Whether something should leave memory: :meth:`tidy`, between other things."""
        ...

    def tidy(self) -> None:
        """Have a little of that leave. Raises nothing: what the disk does not take stays."""
        ...

    def give_up(self) -> None:
        """The state is nobody's any more: nothing comes after that."""
        ...

    @property
    def misses(self) -> int:
        """Keys that operator code wanted in the current epoch, and that were not in memory."""
        ...

    def store_stats(self) -> StoreStats:
        """What is in memory, and what is not."""
        ...

    def stand(self, turn: Turn, base: Turn, owned: Collection[KeyGroup]) -> None:
        """A turn begins, which builds upon that one; these key groups are the worker's own as a whole."""
        ...

    def write(self, turn: Turn, whole: Callable[[KeyGroup], bool]) -> None:
        """Write what the epoch has changed to where its state is, if that is a remote store; after the seal.

        ``whole``: whether all keys of a key group are here. What raises has written nothing that counts.
        """
        ...

    def find(self, told: m.Restore) -> Collection[KeyGroup]:
        """Take over those key groups that a remote store has at that turn; the others have to be read back."""
        ...

    def adopt(self, places: Mapping[KeyGroup, tuple[bytes, bytes]]) -> None:
        """Take over key groups that another worker hands over and that stay where they are."""
        ...

    def commit(self) -> None:
        """The epoch counts."""
        ...

    def abort(self) -> None:
        """The epoch does not count."""
        ...

    def read(self, group: KeyGroup, key: Any) -> dict[str, Any] | None:
        """The committed state of a key."""
        ...

    def read_batch(self, group: KeyGroup, key: Any) -> pa.RecordBatch | None:
        """The committed state of a key, encoded."""
        ...

    def snapshot(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """The committed state of every key."""
        ...

    @property
    def keys(self) -> int:
        """The number of keys with state."""
        ...

    @property
    def groups(self) -> int:
        """The number of key groups with state."""
        ...

    @property
    def touched_keys(self) -> int:
        """The number of keys that the current epoch has touched."""
        ...

    def held_bytes(self) -> int:
        """Roughly what is kept for the current epoch alone: rows that wait, and before-images."""
        ...

    def keys_in(self, groups: Collection[KeyGroup]) -> int:
        """The number of keys with state in these key groups."""
        ...

    def state_bytes(self) -> int:
        """Roughly the size of all state when it is encoded, from a sample."""
        ...


class Startable(Protocol):
    """A deployment of any layout."""

    @property
    def name(self) -> OperatorName:
        """The operator's name."""
        ...

    @property
    def layout(self) -> Layout:
        """How its state lies in memory."""
        ...

    @property
    def store(self) -> Store:
        """Where its state is that was not touched of late."""
        ...

    @property
    def store_url(self) -> str:
        """Of a remote one."""
        ...

    @property
    def key_types(self) -> tuple[pa.DataType, ...]:
        """The types of the key's columns."""
        ...

    @property
    def variables(self) -> tuple[StateVariable, ...]:
        """The state variables, with what is to be known of them without the operator's code."""
        ...

    @property
    def timed(self) -> bool:
        """Whether its keys have timers, or expire: whether there is something to do without rows."""
        ...

    @property
    def epoch_bytes(self) -> int | None:
        """What an epoch may take at a worker beside the state; None: what the worker finds right."""
        ...

    def prepare(self) -> None:
        """Do at a worker, when the deployment arrives, what the first batch should not wait for."""
        ...

    def start(self, worker: WorkerId, stores: Stores | None = None) -> Runtime:
        """The running operator; without ``stores``, state can be in memory alone."""
        ...
