"""State on its way to another worker: the keys that go, and their current state, batch by batch.

A shelf names the keys of some key groups, or some of their keys by hash, while the query runs on. The state of a key
can be had from it at any time, and again after it changed, until the keys are dropped. All keys of one hash are one
unit.

::

    shelve ──▶ list_some, collect_range, list_some, …   the sweep
               sealed, note_some, note_some, … ──▶ collect(noted hashes)   at each epoch that changes the keys meanwhile
               drop_some, drop_some, …                   when they live elsewhere

Nothing here takes longer because there are more keys: a shelf is empty at first, and lists its keys key group by key
group, some at a time; it drops them like that, and so it notes what an epoch touched, also when that epoch is over.

Invariants:

- a key group that is listed, or of which some keys are, is *begun*: what an epoch touches of it is noted. Of the others
  nothing was ever collected, so nothing of them needs to be noted;

- what is collected is the state as of the last commit, or as of the seal of a sealed epoch. Keys that an epoch before
  its seal has touched are left out, and named; what is noted of that epoch names them again;
- a key that was on the shelf and has no state is a REMOVE row. So if an epoch was collected after its seal and
  aborted, the hashes that it noted, collected once more, put the copy right;
- a unit is never divided: not between what is given and what is left out, and not between two ranges;
- a batch shares nothing with live state.

A shelf *without names* (:class:`Selection`) is for keys that nothing touches until they are dropped, and that nobody
asks for by hash: their state is had by ranges alone. To hash keys and to note their hashes would cost more than all
else.

Why the shelf and not the mover knows what has changed: touched keys are a list that every layout has anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import TooLarge
from bedload.core.ids import KeyGroup
from bedload.keys import key_groups
from bedload.keys.lookup import among, distinct
from bedload.store.entries import Entries, Hashes, Numbers
from bedload.store.selection import Flags, Selection

Collected = tuple[pa.RecordBatch | None, Hashes]
"""State in delta form, PUT and REMOVE rows alone, and the hashes that were left out."""

NO_HASHES: Hashes = np.empty(0, np.int64)
_SAMPLE = 32
"""Keys to look at for a first estimate of their size."""
_SAMPLE_BYTES = 1 << 20
_GUESS = 64.0
"""Bytes per key when none can be looked at."""
LARGEST = (1 << 31) - 1
"""Bytes of the state of one key: an Arrow column of strings has no more."""
_GROUP = 64
"""To forget a key group takes as long as to forget so many keys, however few it has."""


class Listed(NamedTuple):
    """What was put on a shelf."""

    groups: tuple[KeyGroup, ...]
    """Key groups of which all keys are on it by now."""
    touched: Hashes
    """The hashes of those keys among them that the epoch under way has touched."""


class Shelf(Protocol):
    """Keys that go elsewhere. It is of one operator at one worker, and of no use once keys of it were dropped."""

    @property
    def hashes(self) -> Hashes:
        """The hash of each key that is or was on it; those of a key group one after another, but for new ones."""
        ...

    @property
    def named(self) -> bool:
        """Whether keys are known by their hashes. If not, nothing may touch them, and ranges alone can be had."""
        ...

    @property
    def groups(self) -> npt.NDArray[np.int16]:
        """The key group of each."""
        ...

    by_place: frozenset[KeyGroup]
    """Key groups whose state stays where it is, in a remote store: they go as a whole, and none is listed."""

    def places(self) -> dict[KeyGroup, tuple[bytes, bytes]]:
        """Where that is, and the turn whose state it is; when nothing touches them any more."""
        ...

    @property
    def listed(self) -> bool:
        """Whether all keys that are meant are on it."""
        ...

    @property
    def whole(self) -> int:
        """So many keys from the first on are of key groups that are listed to the end: no part of a unit is missing."""
        ...

    @property
    def expected(self) -> int:
        """About how many keys will be on it."""
        ...

    @property
    def nbytes_hint(self) -> float:
        """Roughly the bytes per key of what is collected."""
        ...

    def list_some(self, keys: int, first: KeyGroup | None = None) -> Listed:
        """Put so many more keys on it, or the rest; those of the key group ``first`` before others."""
        ...

    def covers(self, groups: npt.NDArray[np.integer[Any]]) -> Flags:
        """Whether all keys of these key groups, as far as they are meant, are on it."""
        ...

    def sealed(self) -> None:
        """An epoch is sealed: what it touched has to be noted, now or later."""
        ...

    @property
    def unnoted(self) -> int:
        """So many touched keys have to be noted."""
        ...

    def note_some(self, keys: int) -> Hashes:
        """The hashes of so many of them. New ones join the shelf."""
        ...

    def fitting(self, hashes: Hashes, most: int) -> int:
        """So many of these, from the first on, have state of so many bytes at most, about; at least one."""
        ...

    def fitting_in_range(self, first: int, count: int, most: int) -> int:
        """The same of a range."""
        ...

    def collect(self, hashes: Hashes) -> Collected:
        """The current state of the keys with these hashes."""
        ...

    def collect_range(self, first: int, count: int) -> Collected:
        """The same for so many of the :attr:`whole` ones, from ``first`` on; a unit comes with its first key."""
        ...

    def means(self, group: KeyGroup, hash_of: Callable[[], Hashes]) -> bool:
        """Whether a key of a key group is meant, on it or not."""
        ...

    def drop_some(self, keys: int) -> bool:
        """Forget about so many keys in the runtime, key group by key group, without before-images.

        No epoch may have touched them. Whether that was all.
        """
        ...

    def let_go(self, keys: int) -> bool:
        """It is of no use any more: give back what it takes for so many keys. Whether that was all."""
        ...


Some = TypeVar("Some", list[Any], npt.NDArray[np.int64])
"""Keys of a key group, as a layout has them."""


class AnyShelf(Generic[Some]):
    """What both layouts have in common. A layout knows which keys are held back, and makes the batches."""

    _each = 1
    by_place: frozenset[KeyGroup] = frozenset()

    def __init__(self, selection: Selection, entries: Entries, key_groups: int, expected: int, nothing: Some) -> None:
        self.expected = expected
        self.whole = 0
        self.named = selection.named
        self._selection = selection
        self._entries = entries
        self._rows, self._bytes = 0, 0
        self._unlisted = deque(selection.groups)
        """Key groups that are not begun."""
        self._begun = np.zeros(key_groups, np.bool_)
        self._listing: KeyGroup | None = None
        self._pending: Some = nothing
        """Keys of the key group that is being listed, or places of so many keys each."""
        self._put_so_far = 0
        """How many of them are on the shelf."""
        self._noted = False
        """Whether new keys joined the shelf since that key group was begun."""
        self._undropped = list(selection.groups)

    @property
    def hashes(self) -> Hashes:
        """The hash of each key."""
        return self._entries.hashes

    @property
    def groups(self) -> npt.NDArray[np.int16]:
        """The key group of each key."""
        return self._entries.groups

    @property
    def listed(self) -> bool:
        """Whether all keys that are meant are on it."""
        return not self._unlisted and self._listing is None

    def places(self) -> dict[KeyGroup, tuple[bytes, bytes]]:
        """Where the state is of what stays there."""
        return {}

    def list_some(self, keys: int, first: KeyGroup | None = None) -> Listed:
        """Put so many more keys on it, or the rest."""
        whole: list[KeyGroup] = []
        touched: list[Hashes] = []
        while not self.listed and keys > 0:
            if self._listing is None:
                if first is not None and first in self._unlisted:
                    self._unlisted.remove(first)
                    self._unlisted.appendleft(first)
                self._listing = self._unlisted.popleft()
                self._begun[self._listing] = True
                self._noted = False
                self._pending, self._put_so_far = self._held_in(self._listing), 0
            part = self._pending[self._put_so_far : self._put_so_far + max(1, keys // self._each)]
            if len(part):
                touched.append(self._put(part, self._listing))
                keys -= len(part) * self._each
                self._put_so_far += len(part)
            if self._put_so_far == len(self._pending):
                whole.append(self._listing)
                self._listing, self._pending, self._put_so_far = None, self._pending[:0], 0
                self.whole = len(self._entries)
        return Listed(tuple(whole), np.concatenate([NO_HASHES, *touched]))

    def covers(self, groups: npt.NDArray[np.integer[Any]]) -> Flags:
        """Whether all keys of these key groups, as far as they are meant, are on it."""
        rest = [*self._unlisted] if self._listing is None else [*self._unlisted, self._listing]
        covered: Flags = ~np.isin(groups, rest)
        return covered

    def means(self, group: KeyGroup, hash_of: Callable[[], Hashes]) -> bool:
        """Whether a key of a key group is meant, on it or not."""
        if group not in self._selection.groups:
            return False
        return bool(self._selection.admits(hash_of(), np.array([group])).any())

    def drop_some(self, keys: int) -> bool:
        """Forget about so many keys."""
        self._leave()
        some: list[KeyGroup] = []
        step = keys
        while keys > 0 and len(some) < len(self._undropped):
            some.append(self._undropped[len(some)])
            keys -= max(_GROUP, self._count(some[-1]))
        del self._undropped[: self._forget(some, step)]
        return not self._undropped and self._tidied(keys) and self.let_go(step)

    def let_go(self, keys: int) -> bool:
        """Give back what it takes for so many keys; whether that was all."""
        self._leave()
        return True

    @property
    def nbytes_hint(self) -> float:
        """Bytes per key of the last batches; before the first one, of some keys."""
        if not self._rows and len(self._entries):
            self.collect_range(0, self.fitting_in_range(0, _SAMPLE, _SAMPLE_BYTES))
        return self._bytes / self._rows if self._rows else _GUESS

    def fitting(self, hashes: Hashes, most: int) -> int:
        """So many of these, from the first on, have state of so many bytes at most; at least one."""
        return self._fitting(len(hashes), most, lambda count: self._find(hashes[:count]))

    def fitting_in_range(self, first: int, count: int, most: int) -> int:
        """The same of a range."""
        return self._fitting(count, most, lambda count: self._entries.span(first, count))

    def _fitting(self, count: int, most: int, entries_of: Callable[[int], Numbers]) -> int:
        each = self._most_each
        while count and count * each > most:
            entries = entries_of(count)
            weight = self._weight(entries)
            if weight <= most or (count == 1 and weight <= LARGEST):
                break
            if count == 1:
                raise TooLarge(
                    f"the state of key {self._key(entries)!r} has about {weight:,} bytes, and at most {LARGEST:,} "
                    "of a key can be sent to another worker: keep less under one key"
                )
            count //= 2
        return count

    def collect(self, hashes: Hashes) -> Collected:
        """The current state of the keys with these hashes."""
        return self._collect(self._find(hashes))

    def _find(self, hashes: Hashes) -> Numbers:
        of = self._selection.of
        return self._entries.find(hashes, None if of is None else key_groups(hashes, of))

    def collect_range(self, first: int, count: int) -> Collected:
        """The current state of the keys of a range."""
        return self._collect(self._entries.span(first, count))

    def _weighed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # The last batches count for more: what is swept now is like what is swept next.
        self._rows, self._bytes = self._rows // 2 + batch.num_rows, self._bytes // 2 + batch.nbytes
        return batch

    def _collect(self, entries: Numbers) -> Collected:
        groups = self.groups[entries]
        if (groups[1:] < groups[:-1]).any():
            entries = entries[np.argsort(groups, kind="stable")]
        left = NO_HASHES
        held = self._held(entries)
        if held is not None and held.any():
            left = distinct(self.hashes[entries[held]])
            if self._entries.any_shared:
                held = among(left, self.hashes[entries])
            entries = entries[~held]
        if not len(entries):
            return None, left
        return self._weighed(self._batch(entries)), left

    def _held_in(self, group: KeyGroup) -> Some:
        """Where the keys with committed or current state of a key group are, or they themselves."""
        raise NotImplementedError

    def _put(self, some: Some, group: KeyGroup) -> Hashes:
        """Make entries of those that are meant and have none; the hashes of those that the epoch has touched."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Nothing is collected any more."""

    def _count(self, group: KeyGroup) -> int:
        """How many keys of a key group there are."""
        raise NotImplementedError

    def _forget(self, groups: list[KeyGroup], keys: int) -> int:
        """Drop the keys of key groups that are meant, of many keys so many; of how many groups none is left."""
        raise NotImplementedError

    def _tidied(self, keys: int) -> bool:
        """After the last one: look at so much of what they may have left behind; whether nothing is."""
        return True

    @property
    def _most_each(self) -> float:
        """No key has more bytes of state, if that is known without a look at them."""
        raise NotImplementedError

    def _weight(self, entries: Numbers) -> int:
        """About the bytes of their state."""
        raise NotImplementedError

    def _key(self, entries: Numbers) -> Any:
        """The first of these keys."""
        raise NotImplementedError

    def _held(self, entries: Numbers) -> Flags | None:
        """Which of them, in the order of their key groups, an epoch has touched that is not sealed; None: not one."""
        raise NotImplementedError

    def _batch(self, entries: Numbers) -> pa.RecordBatch:
        """Their current state; they are in the order of their key groups."""
        raise NotImplementedError
