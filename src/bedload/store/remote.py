"""A store apart from the workers, as the stores of key groups use it, and what is written there.

The state of a key group is in one *place*, a map of names to bytes with a head (:data:`HEAD`) among them. So it is
there as a whole or not at all, and a place without a head was lost. The head says the turn whose state it is, the turn
before that, and who may write. Beside a place are the values that its last turn has replaced, so that the turn can be
undone.

Invariants:

- an order is done as a whole or not at all, and says which turn it builds upon: of another one it does nothing. So
  neither a worker that was given up, nor a store that has lost what it was told last, is ever taken for right;
- a turn replaces what is undone of the one before: a place has one state and the one before it, no more;
- who adopts a place owns it, and nobody who had it before can write any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from bedload.core.errors import RemoteStoreError
from bedload.core.ids import Turn

HEAD = b"\0"
"""The name of the head of a place: no key has that."""
MOST_UNDONE = 2000
"""Keys that are put back with one order."""

Stamp: TypeAlias = bytes
"""A turn, or nothing: stamps are in the order of their turns."""
NO_STAMP: Stamp = b"-"
NEW: Stamp = b""
"""Of a place that is not there yet."""


def stamp_of(turn: Turn) -> Stamp:
    """The stamp of a turn."""
    return b"%020d" % (turn + 1)


class Head(NamedTuple):
    """What is said of a place."""

    stamp: Stamp
    """The turn whose state it is,"""
    before: Stamp
    """and the one that is back when it is undone."""
    whole: bool
    """Whether all keys of the key group were there at the end of that turn."""
    partial: bool
    """Whether a turn is being written, or undone."""
    owner: bytes
    fence: Stamp
    """No turn up to this one writes here: it was undone, or had begun before somebody took the place over."""
    undone: int
    """How many names are to be put back to undo it."""
    shape: bytes
    """What the values are of: see :func:`~bedload.store.remote_rows.shape_of`."""

    def pack(self) -> bytes:
        """As it is stored."""
        flags = (b"w" if self.whole else b"-") + (b"p" if self.partial else b"-")
        return b" ".join((self.stamp, self.before, flags, self.owner, self.fence, b"%d" % self.undone, self.shape))

    @classmethod
    def of(cls, packed: bytes) -> Head:
        """The head that was stored."""
        stamp, before, flags, owner, fence, undone, shape = packed.split(b" ")
        return cls(stamp, before, flags[:1] == b"w", flags[1:] == b"p", owner, fence, int(undone), shape)


# --- orders. Each is an array: what to do, and with what ---


class Whose(NamedTuple):
    """Where a place is known: in a map of its operator."""

    places: bytes
    field: bytes
    """Its key group; or its key group and worker, as long as no turn has said whose it is."""
    private: bytes
    """The latter."""


def seal(
    place: bytes,
    whose: Whose,
    owner: bytes,
    expected: Stamp,
    turn: Stamp,
    base: Stamp,
    shape: bytes,
    *,
    whole: bool,
    first: bool,
    last: bool,
    puts: Sequence[tuple[bytes, bytes]],
    gone: Sequence[bytes],
) -> list[Any]:
    """Write what a turn has changed, or a part of that. The answer: ``ok``."""
    flat = [item for put in puts for item in put]
    return [
        b"seal",
        place,
        *whose,
        owner,
        expected,
        turn,
        base,
        shape,
        int(whole),
        int(first),
        int(last),
        flat,
        [*gone],
    ]


def put(
    place: bytes,
    whose: Whose,
    owner: bytes,
    expected: Stamp,
    stamp: Stamp,
    shape: bytes,
    puts: Iterable[tuple[bytes, bytes]],
    gone: Iterable[bytes] = (),
) -> list[Any]:
    """Put committed state in, of no turn of this worker. The answer: ``ok``, how many are new, how many are gone."""
    flat = [item for one in puts for item in one]
    return [b"put", place, *whose, owner, expected, stamp, shape, flat, [*gone]]


def undo(place: bytes, owner: bytes, base: Stamp, was: Stamp, latest: Stamp) -> list[Any]:
    """Put back what the last turn has replaced, if it was written; ``was``: what was there before.

    The answer: ``ok`` with the turn that is there, ``more``, or ``none``: there is no such place.
    """
    return [b"undo", place, owner, base, was, latest, MOST_UNDONE]


def find(whose: Whose, owner: bytes, base: Stamp, latest: Stamp, shape: bytes) -> list[Any]:
    """Own the place of a key group as of a turn. The answer: ``ok`` with the place and its keys, ``more``, ``lost``."""
    return [b"find", whose.places, whose.field, owner, base, latest, shape, MOST_UNDONE]


def take(place: bytes, owner: bytes, expected: Stamp) -> list[Any]:
    """Own a place that another worker has handed over. The answer: ``ok`` with its keys."""
    return [b"take", place, owner, expected]


def drop(place: bytes, whose: Whose, owner: bytes) -> list[Any]:
    """Nobody needs a place any more. The answer: ``ok``."""
    return [b"drop", place, whose.places, whose.private, owner]


Answer: TypeAlias = list[Any]


class Remote(Protocol):
    """The store, for one operator at one worker. What raises RemoteStoreError may have been done, or not."""

    prefix: bytes
    """What all names of the operator begin with."""
    owner: bytes
    """Who this worker is: no other process has been that."""

    def read(self, asks: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """What lies in places under these names."""
        ...

    def do(self, orders: Sequence[list[Any]]) -> list[Answer]:
        """Follow orders, each as a whole or not at all, one after the other."""
        ...

    def names(self, place: bytes) -> Iterator[bytes]:
        """The names in a place, but for the head; those that come or go meanwhile may be among them or not."""
        ...

    def size(self) -> int:
        """About the bytes that the store has."""
        ...

    def lose(self, why: str) -> RemoteStoreError:
        """State that should be there is not: the worker has to end. The error to raise."""
        ...

    def close(self) -> None:
        """Nobody needs it any more; what is there stays."""
        ...


class Remotes(Protocol):
    """Where the operators of one worker have theirs."""

    def open(self, operator: str, url: str) -> Remote:
        """That of an operator."""
        ...

    @property
    def lost(self) -> RemoteStoreError | None:
        """Why the state of an operator is not to be trusted any more, if that is so."""
        ...
