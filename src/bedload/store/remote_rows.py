"""Rows in a remote store: keys that were touched of late are objects, as in memory, and all keys lie encoded there.

The epoch is the one of :class:`~bedload.store.rows.RowStore`, and memory is the one of
:class:`~bedload.store.disk_rows.DiskStore`. What is different: what an epoch has changed is written with its seal, so
objects leave memory without a write, and a key group that passes on to another worker stays where it is.

Invariants:

- what is read is of the turn that this worker knows, or the state is lost and the worker ends;
- what a turn has written that does not count is undone before anything else is read or written there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from bedload.core.errors import RemoteStoreError
from bedload.core.ids import NO_TURN, KeyGroup
from bedload.state import RecordLayout
from bedload.state.arrow import arrow_type
from bedload.store import remote
from bedload.store.cache import Cache
from bedload.store.disk import Disk, key_of
from bedload.store.disk_rows import DiskStore, Place
from bedload.store.remote import HEAD, NEW, Head, Remote, Stamp, Whose

_AT_ONCE = 1000
_BYTES = 1 << 19
"""Keys, and about their bytes, that are written with one order: the store does nothing else meanwhile."""


class _NoDisk:
    """There is none."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the store is remote, and has no {name}")


_NO_DISK: Any = _NoDisk()


class RemotePlace(Place):
    """What the stores of one operator share."""

    def __init__(self, there: Remote, cache: Cache) -> None:
        disk: Disk = _NO_DISK
        super().__init__(disk, cache)
        self.remote = there
        self.base = self.latest = remote.stamp_of(NO_TURN)
        """The turn that the one under way builds upon; and the last one that this worker has heard of."""
        self.owned: Collection[KeyGroup] = ()
        """The key groups that are this worker's own as a whole."""
        self.shape = b""
        self._numbers = count()

    def bind(self, layout: RecordLayout, key_types: Sequence[pa.DataType] = ()) -> None:
        """State is of this layout from now on."""
        super().bind(layout)
        self.shape = shape_of(layout, key_types)

    def prefix(self, group: KeyGroup) -> bytes:
        """Names need none: each key group has a place."""
        return b""

    def name_of(self, group: KeyGroup) -> bytes:
        """A place that nobody had before."""
        return b"%s:%d:%s-%d" % (self.remote.prefix, group, self.remote.owner, next(self._numbers))

    def whose(self, group: KeyGroup, *, owned: bool) -> Whose:
        """Where a place is known."""
        private = b"%d@%s" % (group, self.remote.owner.split(b".")[0])
        return Whose(self.remote.prefix + b":places", b"%d" % group if owned else private, private)

    def put_away(self, going: list[tuple[DiskStore, list[Any]]]) -> None:
        """These objects leave memory: they are there already."""
        for store, rows in going:
            store.left(rows)
        self.figures.evicted += sum(len(rows) for _, rows in going)

    def follow(self, orders: Sequence[list[Any]]) -> list[list[Any]]:
        """Have orders followed."""
        return self.remote.do(orders) if orders else []

    def refused(self, store: RemoteStore, answer: list[Any]) -> RemoteStoreError:
        """What to raise: the order was of another state than the one that is there."""
        said = answer[0]
        if said == b"fenced":
            why = "another worker has taken it over, and this one was given up"
        elif said in (b"lost", b"none"):
            why = (
                "it is not there any more. Somebody has removed it, as with flushall, or the store has: look at its "
                "maxmemory-policy"
            )
        else:
            why = (
                "it is of another turn. The store was started again with an older state, or somebody has written there"
            )
        return self.remote.lose(
            f"the state of key group {store.group} ({(store.at or b'?').decode()}) is lost: {why}. It is read back "
            f"from the checkpoint when the query is started again"
        )


def shape_of(layout: RecordLayout, key_types: Sequence[pa.DataType]) -> bytes:
    """What values are of: those of another shape cannot be read."""
    specs = sorted(layout.specs, key=lambda spec: spec.name)
    said = [f"{spec.name}: {spec.type}, {arrow_type(spec.type)}" for spec in specs]
    return hashlib.sha256("\n".join([*said, *map(str, key_types)]).encode()).hexdigest()[:16].encode()


class RemoteStore(DiskStore):
    """One key group."""

    __slots__ = ("at", "back", "expected", "owned", "undoes", "was")
    sealed_is_stored = True
    place: RemotePlace

    def __init__(self, group: KeyGroup, layout: RecordLayout, row: type, place: RemotePlace) -> None:
        super().__init__(group, layout, row, place)
        self.at: bytes | None = None
        """Its place, if there is one."""
        self.expected: Stamp = NEW
        """The turn whose state is there."""
        self.was: Stamp = NEW
        """The one before the seal."""
        self.back: Stamp | None = None
        """The turn to go back to if the epoch does not count; None: it has written nothing."""
        self.undoes = False
        """Whether that is to be done."""
        self.owned = False
        """Whether the place is known to be that of the key group."""

    # --- what is there ---

    def look_up(self, keys: Sequence[Any]) -> list[bytes | None]:
        """What is there of these keys."""
        if not keys:
            return []
        settle([self])
        (found,) = look_up_all([(self, keys)])
        return found

    def _names(self) -> Iterator[Any]:
        if self.at is None:
            return
        settle([self])
        yield from map(key_of, self.place.remote.names(self.at))
        # SUBTLE: what is not there any more has no names, and looks like a key group without keys.
        settle([self])
        if self.at is not None:
            ((head,),) = self.place.remote.read([(self.at, [HEAD])])
            self.check(head)

    def check(self, head: bytes | None) -> None:
        """Raise if what was read is not the state that is expected."""
        if head is None:
            raise self.place.refused(self, [b"lost"])
        found = Head.of(head)
        if found.owner != self.place.remote.owner:
            raise self.place.refused(self, [b"fenced"])
        if found.stamp != self.expected or found.partial:
            raise self.place.refused(self, [b"stale"])

    # --- what is written ---

    def seals(self, turn: Stamp, base: Stamp, *, whole: bool) -> Iterator[list[Any]]:
        """The orders that write what the epoch under way has changed; after the seal."""
        rows, gone = list[Any](), list[Any]()
        if self._touched:
            written = self.written()
            rows, gone = [*written.created, *written.changed], written.removed
        if self.at is None:
            self.at = self.place.name_of(self.group)
        packed = self.place.packing.of_rows(rows)
        puts = [(self.name(row._bedload_key), data) for row, data in zip(rows, packed, strict=True)]
        self.place.figures.written += len(puts)
        self.place.figures.written_bytes += sum(len(name) + len(data) for name, data in puts)
        owned = self.group in self.place.owned
        whose, names = self.place.whose(self.group, owned=owned), list(map(self.name, gone))
        self.was, self.back, self.owned = self.expected, base, owned
        parts = list(_parts(puts, names))
        for i, (some, away) in enumerate(parts):
            yield remote.seal(
                self.at,
                whose,
                self.place.remote.owner,
                self.expected,
                turn,
                base,
                self.place.shape,
                whole=whole,
                first=i == 0,
                last=i == len(parts) - 1,
                puts=some,
                gone=away,
            )

    def puts(self, keys: Sequence[Any], packed: Sequence[bytes], gone: Sequence[Any] = ()) -> list[list[Any]]:
        """The orders that put committed state in."""
        new = self.at is None
        if self.at is None:
            self.at = self.place.name_of(self.group)
        whose = self.place.whose(self.group, owned=False)._replace(field=b"%d" % self.group)
        stamp = self.place.base
        orders = []
        for some, away in _parts(list(zip(map(self.name, keys), packed, strict=True)), list(map(self.name, gone))):
            expected = NEW if new else self.expected
            said = self.place.remote.owner, expected, stamp, self.place.shape
            orders.append(remote.put(self.at, whose, *said, some, away))
            if new:
                new, self.expected = False, stamp
        return orders

    def laid(self, keys: Sequence[Any], before: int) -> None:
        """Committed state of these was put there; ``before``: so many are not new, objects or not."""
        objects = sum(key in self._rows for key in keys)
        self._let_go(keys)
        self._absent.difference_update(keys)
        self._cold += len(keys) - before + objects

    def put(self, keys: Sequence[Any], values: Any) -> None:
        """Put keys in as committed state."""
        if self._expiring is not None:
            self._expiring.expiries.pair(values)
        lay([(self, list(keys), self.place.packing.of_columns(values, len(keys)))])
        self.point(keys, values)

    def discard(self, keys: Sequence[Any]) -> None:
        """Drop these keys."""
        gone = 0
        objects = sum(key in self._rows for key in keys)
        if self.at is not None and keys:
            settle([self])
            for answer in checked(self, self.place.follow(self.puts((), (), keys))):
                gone += answer[2]
        self._let_go(keys)
        self._absent.difference_update(keys)
        self._cold -= gone - objects

    def _bury(self, keys: Iterable[Any]) -> None:
        """Nothing that is dead stays there."""

    def _leave_disk(self) -> None:
        """It stays: somebody else may have it now."""

    def empty(self) -> bool:
        """Whether nothing is here, and nothing is known of what is there."""
        return self.at is None and not self._rows and not self._touched and not self._cold

    def moved_in(self, at: bytes, stamp: Stamp, keys: int) -> None:
        """The state is in a place that this worker owns now."""
        self.at, self.expected, self._cold, self.owned = at, stamp, keys, True

    # --- epochs ---

    def commit(self) -> None:
        """Drop the before-images; all is there."""
        super().commit()
        if not self.undoes:  # else it had no part in the epoch, as it leaves
            self.back = None

    def abort(self) -> None:
        """Put the before-images back; what is there goes back before anything else is done with it."""
        super().abort()
        self.undoes = self.back is not None


def _parts(
    puts: list[tuple[bytes, bytes]], gone: list[bytes]
) -> Iterator[tuple[list[tuple[bytes, bytes]], list[bytes]]]:
    """What is written with each order: at least one."""
    start = 0
    while True:
        size, end = 0, start
        while end < len(puts) and end - start < _AT_ONCE and size < _BYTES:
            size += len(puts[end][1])
            end += 1
        rest = len(puts) - end
        yield puts[start:end], [] if rest else gone[:_AT_ONCE]
        start = end
        if not rest:
            break
    for first in range(_AT_ONCE, len(gone), _AT_ONCE):
        yield [], gone[first : first + _AT_ONCE]


def checked(store: RemoteStore, answers: list[list[Any]]) -> list[list[Any]]:
    """Answers that are ``ok``; raises what is wrong with one of them."""
    for answer in answers:
        if answer[0] != b"ok":
            raise store.place.refused(store, answer)
    return answers


def settle(stores: Iterable[RemoteStore]) -> None:
    """Undo what a turn has written that does not count."""
    waiting = [store for store in stores if store.undoes]
    while waiting:
        place = waiting[0].place
        orders = []
        for store in waiting:
            assert store.at is not None
            assert store.back is not None
            orders.append(remote.undo(store.at, place.remote.owner, store.back, store.was, place.latest))
        left = []
        for store, answer in zip(waiting, place.follow(orders), strict=True):
            if answer[0] == b"more":
                left.append(store)
                continue
            if answer[0] == b"none" and store.was == NEW:
                store.at, answer = None, [b"ok", NEW]
            checked(store, [answer])
            store.expected, store.back, store.undoes = answer[1], None, False
        waiting = left


def look_up_all(unknown: Sequence[tuple[RemoteStore, Sequence[Any]]]) -> list[list[bytes | None]]:
    """What is there of keys of several key groups; all of them are settled."""
    if not unknown:
        return []
    place = unknown[0][0].place
    asks, of = list[tuple[bytes, list[bytes]]](), list[int]()
    for i, (store, keys) in enumerate(unknown):
        assert store.at is not None, "keys are known to be where there is no place"
        names = list(map(store.name, keys))
        asks += [(store.at, [HEAD, *names[start : start + _AT_ONCE]]) for start in range(0, len(names), _AT_ONCE)]
        of += [i] * (len(asks) - len(of))
    found: list[list[bytes | None]] = [[] for _ in unknown]
    for i, (head, *data) in zip(of, place.remote.read(asks), strict=True):
        unknown[i][0].check(head)
        found[i] += data
        place.figures.read += len(data)
        place.figures.read_bytes += sum(len(it) for it in data if it is not None)
    return found


def lay(found: Sequence[tuple[RemoteStore, list[Any], list[bytes]]]) -> None:
    """Put keys of several key groups in as committed state."""
    if not found:
        return
    settle(store for store, _, _ in found)
    orders, of = list[list[Any]](), list[int]()
    for i, (store, keys, packed) in enumerate(found):
        some = store.puts(keys, packed)
        orders += some
        of += [i] * len(some)
        store.place.figures.written += len(keys)
        store.place.figures.written_bytes += sum(map(len, packed))
    new = [0] * len(found)
    for i, answer in zip(of, found[0][0].place.follow(orders), strict=True):
        checked(found[i][0], [answer])
        new[i] += answer[1]
    for i, (store, keys, _) in enumerate(found):
        store.laid(keys, len(keys) - new[i])
