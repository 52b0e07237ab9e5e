"""The before-image log: which containers changed in this epoch, and how they go back.

Invariants: a container's log is None exactly when it did not change since the last commit; a
container with a log is in its journal's ``dirty``; if a child has a log, so has every container
around it, as long as it is theirs. A log restores the *shallow* structure of its own container,
children restore themselves, so the order of restoring does not matter.

How a container keeps its log is decided by its class, which changes as the epoch goes on:

clean
    No log. Every mutator first touches: it makes the log, swaps the class, and calls itself again.
raw
    The log is a shallow copy of the committed content. Nothing more has to be noted, so the mutators
    are the builtin's own, at the builtin's speed.
logged
    The log holds the old value of each changed entry. For containers too large to copy.

A container may change only in an epoch in which its key has rows: else there would be no before-image of the key, no
backup of the change, and a move or a read would take it for committed. So the first change of an epoch asks the
journal (:meth:`Journal.admit`) whether the record is open, and raises before anything has changed. That is once per
container and epoch, where the log is made anyway.

Why three classes: small containers (at most ``SMALL`` entries) are most of all state, and one copy of
64 entries costs less than two logged writes; a large one must not be copied for one changed entry.
Commit and abort put the clean class back.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Final

from bedload.core.errors import StateNotOpen

SMALL: Final = 64
"""Copying 64 entries takes 100-250 ns, a logged write about 120 ns more than a plain one."""


_SAMPLE = 64
"""How many logs are looked at to say how large all are."""
_LOG, _ENTRY = 100, 40
"""Bytes of a log, and of one entry: between those of a copied list and of a dict."""


class _Missing:
    """The before-image of an entry that was not there."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()

SLOTS = ("_bl_journal", "_bl_key", "_bl_log", "_bl_owner")
"""What each tracked class adds to its builtin."""


class Tracked:
    """What the journal, the owner and the record layout ask of every tracked container.

    The names start with ``_bl_`` because a dataclass's own fields live beside them.
    """

    __slots__ = ()

    _bl_clean: ClassVar[type[Any]]
    """The class that the container has between epochs."""
    _bl_flat: ClassVar[bool] = False
    """Whether the news are the container itself: its log is a copy, and its entries cannot change in place."""
    _bl_journal: Journal
    _bl_owner: Tracked | None
    """The container that this one is an entry of; None for an operator's own attribute."""
    _bl_key: Any
    """Under which key the owner has it (maps, structs). Without an owner its place: its record's id, and a number."""
    _bl_log: Any

    def _bl_attach(self: Any, journal: Journal, owner: Tracked | None, key: Any) -> None:
        self._bl_journal = journal
        self._bl_owner = owner
        self._bl_key = key
        self._bl_log = None

    def _bl_begin(self) -> None:
        """Make the log and swap the class."""
        raise NotImplementedError

    def _bl_touch(self) -> None:
        """Open this container's log for the epoch and tell the owner."""
        if self._bl_log is not None:
            return  # a method that was looked up before the first change: ``add = self.seen.add``
        owner, journal = self._bl_owner, self._bl_journal
        if owner is not None:
            owner._bl_child_changed(self._bl_key)
        elif self._bl_key not in journal.known:
            journal.admit(self)
        self._bl_begin()
        journal.dirty.append(self)

    def _bl_child_changed(self, key: Any) -> None:
        """Note that a child changed: the before-image of its entry is the child itself."""
        if self._bl_log is None:
            self._bl_touch()
            self._bl_child_changed(key)  # the class is another one now, and may note the entry

    def _bl_settle(self) -> None:
        """Forget the log: the current content is the committed one."""
        self._bl_log = None
        self.__class__ = self._bl_clean

    def _bl_restore(self) -> None:
        """Put the committed content back."""
        raise NotImplementedError

    def _bl_plain(self) -> Any:
        """The current content, as plain builtins all the way down."""
        raise NotImplementedError

    def _bl_committed(self) -> Any:
        """The committed content, as plain builtins all the way down."""
        raise NotImplementedError

    def _bl_changes(self) -> Any:
        """What to apply to the committed content to get the current one."""
        raise NotImplementedError

    def _bl_news(self) -> Any:
        """Of a container that has a log, what may be new: items; a dict of entries or fields; or all there is."""
        raise NotImplementedError

    def _bl_differs(self) -> bool:
        """Whether a container that has a log is now other than it was: a change may have been undone."""
        raise NotImplementedError

    def _bl_shallow(self) -> Any:
        """A plain copy that shares the children, as ``copy()`` of a builtin does."""
        raise NotImplementedError

    def __copy__(self) -> Any:
        return self._bl_shallow()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickle and deepcopy: as the plain copy, in which the children are reduced in the same way.
        # copy.copy gives it back, so that whoever unpickles it needs nothing of ours.
        return copy.copy, (self._bl_shallow(),)


class Tagged(list[Any]):
    """The log of a sequence whose items expire: what was there; and for each item that is there now, where it was."""

    __slots__ = ("tags",)

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.tags: Any = list(range(len(self)))


class Journal:
    """The containers of one key-group store that changed in this epoch."""

    __slots__ = ("_containers", "_counted", "_records", "dirty", "known")

    def __init__(self, records: list[Any] | None = None, containers: int = 0) -> None:
        self.dirty: list[Tracked] = []
        self._records = records
        """The store's own list of the records that the epoch has touched; None: whatever changes is welcome."""
        self._containers = containers
        """How many variables of a record are containers."""
        self.known: set[Any] = set()
        """Their places on the first so many records. SUBTLE: the list keeps those alive, so their ids stay theirs."""
        self._counted = 0

    def admit(self, container: Tracked) -> None:
        """Raise unless the record of a root container was touched in this epoch."""
        if self._records is None:
            return
        new = self._records[self._counted :]
        self._counted = len(self._records)
        self.known.update(map(id, new))
        for number in range(1, self._containers):
            self.known.update([id(record) + number for record in new])
        if container._bl_key not in self.known:
            raise StateNotOpen(
                f"a state container was to be changed in an epoch in which its key has no rows: {container!r:.100}. It "
                "was kept from setup, from another key or from an earlier epoch, and the change was refused. Change a "
                "key's state in its own calls only, and keep a copy of what other keys need"
            )

    def commit(self) -> None:
        """Drop the logs: what is there now is committed."""
        for container in self.dirty:
            container._bl_settle()
        self._end()

    def abort(self) -> None:
        """Put every changed container back to its committed content."""
        for container in self.dirty:
            container._bl_restore()
            container._bl_settle()
        self._end()

    def log_bytes(self) -> int:
        """Roughly the memory of the logs, from some of them."""
        step = len(self.dirty) // _SAMPLE + 1
        seen = self.dirty[::step]
        return step * sum(_LOG + _ENTRY * len(container._bl_log) for container in seen)

    def _end(self) -> None:
        self.dirty.clear()
        self.known.clear()
        self._counted = 0


def is_dirty(container: Any) -> bool:
    """Whether a tracked container, or anything in it, was written to since the last commit."""
    return container._bl_log is not None


def differs(container: Any) -> bool:
    """Whether a tracked container, or anything in it, is other than at the last commit."""
    return container._bl_log is not None and container._bl_differs()
