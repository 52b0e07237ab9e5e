"""State on its way to another worker: the keys that go, and their current state, batch by batch.

A shelf names the keys of some key groups, or some of their keys by hash, while the query runs on. The state of a key
can be had from it at any time, and again after it changed, until the keys are dropped. All keys of one hash are one
unit.

::

    shelve ──▶ list_some, collect_range, list_some, …   the sweep
               seal ──▶ note ──▶ collect(noted hashes)   at each epoch that changes the keys meanwhile
               drop_some, drop_some, …                   when they live elsewhere

Nothing here takes longer because there are more keys: a shelf is empty at first, and lists its keys key group by key
group, some at a time; and it drops them like that.

Invariants:

- a key group that is listed, or of which some keys are, is *begun*: what an epoch touches of it is noted. Of the others
  nothing was ever collected, so nothing of them needs to be noted;

- what is collected is the state as of the last commit, or as of the seal of a sealed epoch. Keys that an epoch before
  its seal has touched are left out, and named; the seal's :meth:`Shelf.note` names them again;
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
from collections.abc import Callable, Collection
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.ids import KeyGroup
from bedload.keys.lookup import among
from bedload.store.entries import Entries, Hashes, Numbers

Flags = npt.NDArray[np.bool_]
Collected = tuple[pa.RecordBatch | None, Hashes]
"""State in delta form, PUT and REMOVE rows alone, and the hashes that were left out."""

NO_HASHES: Hashes = np.empty(0, np.int64)
_SAMPLE = 32
"""Keys to look at for a first estimate of their size."""
_GUESS = 64.0
"""Bytes per key when none can be looked at."""
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

    def note(self) -> Hashes:
        """The hashes of the keys that the epoch has touched; between its seal and its end. New ones join the shelf."""
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
        """Forget about so many keys in the runtime, whole key groups at a time, without before-images.

        No epoch may have touched them. Whether that was all.
        """
        ...


class Selection:
    """Which keys a shelf is about: key groups as a whole, but for some keys, and single keys of any key group."""

    def __init__(
        self,
        whole: Collection[KeyGroup],
        without: Hashes = NO_HASHES,
        single: Collection[KeyGroup] = (),
        only: Hashes = NO_HASHES,
        *,
        named: bool = True,
    ) -> None:
        """``single``: the key groups of the keys that have one of the hashes ``only``.

        Without single keys, in or out, it need not be ``named``: see :class:`Shelf`.
        """
        assert named or not (len(without) or len(single) or len(only)), "single keys are known by their hashes"
        self.named = named
        self.groups = sorted({*whole, *single})
        self._all = frozenset(whole)
        self._whole = np.array(sorted(whole), np.int64)
        self._without, self._only = np.sort(without), np.sort(only)

    def admits(self, hashes: Hashes, groups: npt.NDArray[np.integer[Any]]) -> Flags:
        """Which keys of these key groups are meant."""
        meant: Flags = np.isin(groups, self._whole)
        if len(self._without):
            meant &= ~among(self._without, hashes)
        if len(self._only):
            meant |= among(self._only, hashes)
        return meant

    def admits_all(self, group: KeyGroup) -> bool:
        """Whether all keys of a key group are meant for certain."""
        return not len(self._without) and group in self._all


Some = TypeVar("Some", list[Any], npt.NDArray[np.int64])
"""Keys of a key group, as a layout has them."""


class AnyShelf(Generic[Some]):
    """What both layouts have in common. A layout knows which keys are held back, and makes the batches."""

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
        """Keys of the key group that is being listed."""
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
            part = self._pending[self._put_so_far : self._put_so_far + keys]
            if len(part):
                touched.append(self._put(part, self._listing))
                keys -= len(part)
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
        """Forget about so many keys, whole key groups at a time."""
        self._leave()
        some: list[KeyGroup] = []
        while keys > 0 and len(some) < len(self._undropped):
            some.append(self._undropped[len(some)])
            keys -= max(_GROUP, self._count(some[-1]))
        self._forget(some)
        del self._undropped[: len(some)]
        return not self._undropped and self._tidied(keys)

    @property
    def nbytes_hint(self) -> float:
        """Bytes per key of the last batches; before the first one, of some keys."""
        if not self._rows and len(self._entries):
            self.collect_range(0, _SAMPLE)
        return self._bytes / self._rows if self._rows else _GUESS

    def collect(self, hashes: Hashes) -> Collected:
        """The current state of the keys with these hashes."""
        return self._collect(self._entries.find(hashes))

    def collect_range(self, first: int, count: int) -> Collected:
        """The current state of the keys of a range."""
        return self._collect(self._entries.span(first, count))

    def _collect(self, entries: Numbers) -> Collected:
        groups = self.groups[entries]
        if (groups[1:] < groups[:-1]).any():
            entries = entries[np.argsort(groups, kind="stable")]
        left = NO_HASHES
        held = self._held(entries)
        if held is not None and held.any():
            left = np.unique(self.hashes[entries[held]])
            if self._entries.any_shared:
                held = among(left, self.hashes[entries])
            entries = entries[~held]
        if not len(entries):
            return None, left
        batch = self._batch(entries)
        # The last batches count for more: what is swept now is like what is swept next.
        self._rows, self._bytes = self._rows // 2 + batch.num_rows, self._bytes // 2 + batch.nbytes
        return batch, left

    def _held_in(self, group: KeyGroup) -> Some:
        """The keys with committed or current state of a key group."""
        raise NotImplementedError

    def _put(self, some: Some, group: KeyGroup) -> Hashes:
        """Make entries of those that are meant and have none; the hashes of those that the epoch has touched."""
        raise NotImplementedError

    def _leave(self) -> None:
        """Nothing is collected any more."""

    def _count(self, group: KeyGroup) -> int:
        """How many keys of a key group there are."""
        raise NotImplementedError

    def _forget(self, groups: list[KeyGroup]) -> None:
        """Drop the keys of key groups that are meant."""
        raise NotImplementedError

    def _tidied(self, keys: int) -> bool:
        """After the last one: look at so much of what they may have left behind; whether nothing is."""
        return True

    def _held(self, entries: Numbers) -> Flags | None:
        """Which of them, in the order of their key groups, an epoch has touched that is not sealed; None: not one."""
        raise NotImplementedError

    def _batch(self, entries: Numbers) -> pa.RecordBatch:
        """Their current state; they are in the order of their key groups."""
        raise NotImplementedError
