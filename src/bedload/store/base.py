"""What the engine needs of state, and no more: the seam behind which a layout, or another place for state, is built.

:class:`StateTable` is all state of one operator at one worker. Runtimes, moves, checkpoints and reads go through it, by
batches that have keys of many key groups. How operator code reaches current state is the layout's own business, because
that is where layouts differ and where speed is won: rows are objects (:class:`KeyGroupStore`), columns are slots of
arrays (:class:`~bedload.store.columns.ColumnTable`).

Invariants, kept by the contract suite (``tests/contract``) for every layout:

- between the first touch and the end of an epoch, reads give the committed state;
- ``abort`` leaves exactly the committed state; ``commit`` makes the current state the committed one;
- ``delta`` and ``changes`` name every key whose state differs from the committed one, and none that was not touched;
- state that comes in is committed state, whatever becomes of an epoch under way; if it does not fit, nothing of it has
  come in;
- what goes out is a copy: it shares nothing with live state.

How to write another store. Operators on rows: give :class:`~bedload.store.row_table.RowTable` another
:data:`MakeStore`, as rows on disk do (:mod:`bedload.store.disk_rows`); key groups, batches, deltas and shelves are done
there. Whatever the layout: implement :class:`StateTable`. In both cases nothing is asked of a store key by key, and
nothing asks for all of its keys at once, so state may be larger than memory, encoded, or elsewhere: what a store must
hold as objects is what the epoch under way has touched. A store reads no clock and starts no thread; calls come from
one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from bedload.core.epoch import EpochTime
from bedload.core.ids import KeyGroup
from bedload.state import RecordLayout
from bedload.state.settling import Settling
from bedload.state.timers import TimerClock
from bedload.store.deltas import Written
from bedload.store.selection import Selection
from bedload.store.shelf import Shelf

Plain: TypeAlias = dict[str, Any]
"""The state of one key as plain values, by variable."""

SLICE = 1 << 14
"""Keys that are listed at a time: enough to forget what a step costs, few enough to hold."""


class Sizes(NamedTuple):
    """How much a store holds."""

    keys: int
    """Keys with current state."""
    touched: int
    """Keys with a before-image in the current epoch."""
    groups: int = 1
    """Key groups that it has a place for."""


class Changes(NamedTuple):
    """What an epoch changed in one key group, as plain values: to look at."""

    group: KeyGroup
    entries: dict[Any, Plain]
    """For each changed key, the changed entries of each changed variable."""
    created: frozenset[Any]
    """Keys that had no state before: their entries are whole values."""
    removed: tuple[Any, ...]
    """Keys whose state is gone."""


class StateTable(Protocol):
    """The state of one operator at one worker, over all its key groups.

    ::

        begin ──▶ operator code touches keys ──▶ seal ──▶ delta ──▶ commit
                            └───────────────────────────────────▶ abort

    ``install``, ``take_in``, ``drop``, ``shelve`` and the reads may come at any time, also within an epoch. State comes
    and goes as Arrow, in the forms of :mod:`bedload.store.deltas`. Keys are as :func:`~bedload.keys.freeze_keys` makes
    them.
    """

    def begin(self, groups: Iterable[KeyGroup]) -> None:
        """An epoch begins, in which the worker owns these key groups; the last one must have ended."""
        ...

    def seal(self) -> None:
        """All operator code of the epoch ran: take in what it left.

        Raises :class:`~bedload.core.errors.StateTypeError` if that is not of the declared types: abort then.
        """
        ...

    def changes(self) -> Iterator[Changes]:
        """What the epoch changed, by key group; after the seal."""
        ...

    def delta(self) -> pa.RecordBatch | None:
        """What the epoch changed, in delta form; None if nothing. After the seal."""
        ...

    def commit(self) -> None:
        """The current state is the committed one; after the seal."""
        ...

    def abort(self) -> None:
        """Go back to the committed state."""
        ...

    def install(
        self,
        groups: Collection[KeyGroup],
        state: pa.RecordBatch | None,
        more: Collection[KeyGroup] = (),
        expect: int = 0,
    ) -> None:
        """Put these key groups in with this state, in state form; None or no rows: they are empty.

        They must have no state yet, but those of ``more``, which have other keys already; and an epoch under way must
        not have touched them. A variable that the state does not have gets its default. ``expect``: so many more keys
        of the last key group are to follow.
        """
        ...

    def foresee(self, keys: int, groups: int = 0) -> None:
        """About so many keys will be taken in, of so many key groups if that is known.

        Make ready for them what costs no memory before they come.
        """
        ...

    def take_in(self, state: pa.RecordBatch) -> None:
        """Put whole keys in, in delta form, over what they have; a REMOVE row takes its key out.

        An epoch under way must not have touched any of them.
        """
        ...

    def drop(self, groups: Iterable[KeyGroup]) -> None:
        """Forget these key groups, without before-images; an epoch under way must not have touched them."""
        ...

    def shelve(self, selection: Selection) -> Shelf:
        """The keys that are meant, to go elsewhere. It lists them slice by slice, and keeps no state."""
        ...

    def read(self, group: KeyGroup, keys: Sequence[Any]) -> list[Plain | None]:
        """The committed state of keys of one key group; None for a key that has none."""
        ...

    def read_encoded(self, group: KeyGroup, keys: Sequence[Any]) -> pa.RecordBatch:
        """The same as Arrow: a column per variable, and no row for a key that has none."""
        ...

    def snapshot(self) -> Iterator[tuple[Any, Plain]]:
        """The committed state of every key, key group by key group."""
        ...

    def sizes(self) -> Sizes:
        """How much is there."""
        ...

    def keys_in(self, groups: Iterable[KeyGroup]) -> int:
        """The number of keys with state in these key groups."""
        ...

    def image_bytes(self) -> int:
        """Roughly the memory of the before-images."""
        ...

    def encoded_bytes(self) -> int:
        """Roughly the encoded size of all state, from the committed state of some keys."""
        ...


class KeyGroupStore(Protocol):
    """The state of one key group of an operator on rows: an object per key, made by :data:`MakeStore`.

    An object is an instance of the class that the store was made with. Its attributes are the state, as the
    :class:`~bedload.state.RecordLayout` has it, and besides ``_bedload_key`` and ``_bedload_image``
    (:func:`~bedload.store.rows.row_slots`). The objects that :meth:`touch` gave are live until the epoch ends: operator
    code changes them in place, at any time before the seal.
    """

    group: KeyGroup

    def rebind(self, row: type, layout: RecordLayout) -> None:
        """New code for the same state, between epochs: objects are of this class from now on.

        The layout has the same variables in the same order; new keys start with its defaults, and it says how long
        entries live.
        """
        ...

    # --- epochs ---

    def begin(self) -> None:
        """Raise if the last epoch has not ended."""
        ...

    def touch(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The live objects of these keys, made if need be, with their before-images taken. Runs for every sub-batch."""
        ...

    def forget(self, keys: Iterable[Any]) -> None:
        """Remove the state of touched keys in this epoch. They may be touched again, and are new then."""
        ...

    def changed(self) -> list[Any]:
        """The live objects whose state differs from the committed one, or that are new; before the seal, too."""
        ...

    def seal(self, settling: Settling) -> None:
        """Adopt what operator code assigned, and have ``settling`` check it, at once or when its check is called."""
        ...

    def written(self) -> Written:
        """What the epoch changed, for its delta; after the seal."""
        ...

    def gather(self, keys: list[Any], columns: Sequence[list[Any]]) -> list[Any]:
        """The same where ``layout.gather`` is there: adds the keys and values that a delta writes; the removed keys."""
        ...

    def changes(self) -> Changes:
        """What the epoch changed, as plain values."""
        ...

    def commit(self) -> None:
        """Drop the before-images."""
        ...

    def abort(self) -> None:
        """Put the before-images back."""
        ...

    # --- state that comes and goes ---

    def put(self, keys: Sequence[Any], values: Mapping[str, Sequence[Any]]) -> None:
        """Put keys in as committed state, over what they have, a column of plain values per variable.

        An epoch under way must not have touched them: nobody asks for what :meth:`touched_among` says no to.
        """
        ...

    def discard(self, keys: Sequence[Any]) -> None:
        """Drop keys without before-images; an epoch under way must not have touched them."""
        ...

    def touched_among(self, keys: Sequence[Any]) -> list[bool]:
        """For each key, whether the epoch has touched it."""
        ...

    def touched(self) -> list[Any]:
        """The objects that the epoch has touched, also those of keys that it removed; the list is the caller's."""
        ...

    @property
    def open(self) -> bool:
        """Whether an epoch has touched keys and is not sealed: their current state is not fit to be seen."""
        ...

    def current(self, keys: Sequence[Any]) -> list[Any]:
        """Objects with the current state of these keys, to be encoded and not changed; None for a key without state."""
        ...

    # --- timers: keys by when their first one may be due. An abort puts back what was taken ---

    def arm(self, clock: TimerClock, at: int, key: Any) -> None:
        """A key may have something due at that time, and has nothing due before."""
        ...

    def next_due(self, clock: TimerClock) -> int:
        """Nothing is due before that time."""
        ...

    def may_be_due(self, time: EpochTime) -> list[Any]:
        """Keys that may have something due."""
        ...

    def take_due(self, time: EpochTime) -> list[Any]:
        """The same, each once. Whoever takes them has them armed again: they may have timers still."""
        ...

    def arm_again(self, keys: Sequence[Any]) -> None:
        """These keys were taken."""
        ...

    # --- what expires ---

    def overdue(self) -> list[Any]:
        """Keys that may have something due in the epoch, and were not touched since that came up."""
        ...

    def sweep(self, keys: Collection[Any]) -> None:
        """Take out what is due in those of the overdue keys that are named; the others are asked of again."""
        ...

    # --- seeing it ---

    def scan(self) -> Iterator[list[Any]]:
        """Keys with committed or current state, at most :data:`SLICE` at a time. Nothing changes meanwhile."""
        ...

    def read(self, keys: Iterable[Any]) -> list[Plain | None]:
        """The committed state of these keys; None for a key that has none."""
        ...

    def sizes(self) -> Sizes:
        """How much is there. It is asked for several times per epoch: no look at the keys."""
        ...

    def image_bytes(self) -> int:
        """Roughly the memory of the before-images."""
        ...


MakeStore: TypeAlias = Callable[[KeyGroup, RecordLayout, type], KeyGroupStore]
"""Makes the empty store of a key group: for state of this layout, on objects of this class."""
