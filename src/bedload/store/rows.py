"""State as one Python object per key: the layout for :class:`~bedload.worker.operator.Operator`.

The before-image of a key is taken when it is first touched in an epoch: a shallow copy of its
attributes. Containers log their own entries (see :mod:`bedload.state`); all containers of the store
share one journal, which aborts or commits them together.

The image is kept on the object itself, beside its state, and the objects touched in the epoch are a plain
list: with millions of keys every look into a dict is a cache miss, so ``touch`` makes one and the seal,
the commit and the abort make none. ``touch`` runs once per key and sub-batch.

Why one file: touch, seal, commit and abort of an object lean on one another line by line; what has a life of its own,
as timers due and expiries have, is elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, compress, islice, repeat
from operator import itemgetter
from typing import Any

from bedload.core.epoch import EpochTime
from bedload.core.errors import ProtocolError, StateTypeError
from bedload.core.ids import KeyGroup
from bedload.state import Journal, RecordLayout
from bedload.state.expiries import ARMED
from bedload.state.settling import Settling
from bedload.state.timers import VARIABLE, TimerClock, Timers, timers_on
from bedload.store.base import SLICE, Changes, Plain, Sizes
from bedload.store.deltas import Written
from bedload.store.due import NEVER, Due
from bedload.store.expiring import Expiring

_ABSENT: Any = object()
"""The before-image of a key that had no state."""

ROW_SLOTS = ("_bedload_key", "_bedload_image")
"""What the class of the per-key objects has besides its state: the key, and the before-image or None."""


def row_slots(layout: RecordLayout) -> tuple[str, ...]:
    """The same, with what is to be known of objects of which something expires."""
    clocks = () if layout.expiries is None else layout.expiries.clocks
    return (*ROW_SLOTS, *(ARMED[clock] for clock in clocks))


_TUPLE, _VALUE = 56, 40
"""Bytes of an image: of the tuple, and for each variable of its place there and of the old value."""


class RowStore:
    """One key group; ``row`` is the class of the per-key objects, ``layout`` knows their attributes."""

    __slots__ = (
        "_due",
        "_expiring",
        "_forgotten",
        "_gone",
        "_journal",
        "_layout",
        "_passes",
        "_row",
        "_rows",
        "_sealed",
        "_taken",
        "_touched",
        "_void",
        "group",
    )

    def __init__(self, group: KeyGroup, layout: RecordLayout, row: type) -> None:
        self.group = group
        self._layout = layout
        self._passes = layout.passes
        self._row: Any = row
        self._rows: dict[Any, Any] = {}
        self._touched: list[Any] = []
        self._journal = Journal(self._touched, sum(layout.tracked))
        self._gone: dict[Any, Any] = {}
        """Objects with committed state that the epoch removed."""
        self._forgotten: set[int] = set()
        """Identities of the touched objects that the epoch removed."""
        self._void: set[Any] = set()
        """Keys without committed state that it made and removed."""
        self._sealed = False
        self._due = {clock: Due() for clock in TimerClock} if layout.timed else {}
        """Keys by when their first timer may be due: each key that has timers by a clock is there, not after that."""
        self._taken: list[tuple[TimerClock, list[int], list[Any]]] = []
        """What the epoch took out of it."""
        self._expiring = None if layout.expiries is None else Expiring(layout.expiries)

    # --- what operator code runs on ---

    def touch(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The live objects of these keys, made if need be, with their before-images taken."""
        touched = self._touched.append
        if self._sealed:
            self._layout.reopen(self._live())
            self._sealed = False
        if len(keys) > 1:
            try:
                known: tuple[Any, ...] = itemgetter(*keys)(self._rows)  # all of them without a call in between
            except KeyError:
                pass
            else:
                self._passes.open(known, touched)
                return known if self._expiring is None else self._without_expired(self._expiring, keys, known)
        get, image = self._rows.get, self._layout.image
        found: list[Any] = []
        add = found.append
        for key in keys:
            row = get(key)
            if row is None:
                row = self._make(key)
                row._bedload_image = _ABSENT
                touched(row)
            elif row._bedload_image is None:
                row._bedload_image = image(row)
                touched(row)
            add(row)
        return found if self._expiring is None else self._without_expired(self._expiring, keys, found)

    def _without_expired(self, expiring: Expiring, keys: Sequence[Any], rows: Sequence[Any]) -> Sequence[Any]:
        """Open objects that operator code is about to see, without what is due of them."""
        if expiring.swept:
            expiring.swept.difference_update(map(id, rows))
        overdue = expiring.look()
        if not overdue:
            return rows
        found, expire = list(rows), expiring.expiries.expire
        for i, key in enumerate(keys):
            if key in overdue:
                expiring.looked_at(key)
                if not expire(found[i], self._journal):
                    self.forget([key])
                    found[i] = row = self._make(key)
                    row._bedload_image = _ABSENT
                    self._touched.append(row)
        return found

    def forget(self, keys: Iterable[Any]) -> None:
        """Remove the state of touched keys in this epoch."""
        for key in keys:
            row = self._rows.pop(key)
            self._forgotten.add(id(row))
            if row._bedload_image is not _ABSENT:
                self._gone[key] = row
            else:
                self._void.add(key)

    def changed(self) -> list[Any]:
        """The live objects whose state differs from the committed one; ``row._bedload_key`` is the key.

        Not those of which only an expiry differs, or that have lost what is due and were left alone by operator code.
        Call it after the epoch's operator code ran: it also adopts plain containers that the code assigned.
        """
        layout = self._layout
        if self._passes.changed is not None and self._expiring is None:
            # With an attribute that was deleted it goes one by one: that gives it its default.
            with suppress(AttributeError):
                return self._passes.changed(self._live(), _ABSENT)
        return self._changed(layout.adopt, layout.differs, () if self._expiring is None else self._expiring.swept)

    def _changed(self, adopt: Any, differs: Any, but: Collection[int]) -> list[Any]:
        journal, found = self._journal, []
        for row in self._touched:
            if (self._forgotten and id(row) in self._forgotten) or id(row) in but:
                continue
            adopt(row, journal)
            image = row._bedload_image
            if image is _ABSENT or differs(row, image):
                found.append(row)
        return found

    def written(self) -> Written:
        """What the epoch changed, for its delta; after :meth:`seal`."""
        live = self._live()
        created = [row for row in live if row._bedload_image is _ABSENT]
        known = [row for row in live if row._bedload_image is not _ABSENT] if created else live
        images = [row._bedload_image for row in known]
        masks = self._layout.written(known, images)
        if not all(masks):
            known, images = list(compress(known, masks)), list(compress(images, masks))
            masks = list(filter(None, masks))
        removed = [key for key in self._gone if key not in self._rows]
        return Written(self.group, created, known, images, masks, removed)

    def gather(self, keys: list[Any], columns: Sequence[list[Any]]) -> list[Any]:
        """The same for a layout of small values: adds the keys and values that a delta writes; the removed keys."""
        gather = self._layout.gather
        assert gather is not None
        gather(self._live(), _ABSENT, keys, *columns)
        return [key for key in self._gone if key not in self._rows]

    def put(self, keys: Sequence[Any], values: Mapping[str, Sequence[Any]]) -> None:
        """Put keys in as committed state, or over what they have; an epoch under way must not have touched them."""
        if self._expiring is not None:
            self._expiring.expiries.pair(values)
        self._make_objects(keys, values)
        if self._due and VARIABLE in values:
            self._arm_first(zip(keys, values[VARIABLE], strict=True))
        if self._expiring is not None:
            self._expiring.arm(keys, values)

    def _make_objects(self, keys: Sequence[Any], values: Mapping[str, Sequence[Any]]) -> None:
        made = self._row
        objects = list(map(made.__new__, repeat(made, len(keys))))
        for row, key in zip(objects, keys, strict=True):
            row._bedload_key = key
            row._bedload_image = None
            if self._expiring is not None:
                self._expiring.expiries.fresh(row)
        self._layout.load_columns(objects, values, self._journal)
        self._rows.update(zip(keys, objects, strict=True))

    # --- timers ---

    def arm(self, clock: TimerClock, at: int, key: Any) -> None:
        """A key may have something due at that time."""
        self._due[clock].add(at, key)

    def next_due(self, clock: TimerClock) -> int:
        """Nothing is due before that time."""
        first = self._due[clock].next if self._due else NEVER
        return first if self._expiring is None else min(first, self._expiring.next(clock))

    def may_be_due(self, time: EpochTime) -> list[Any]:
        """Keys that may have something due."""
        found = [key for clock, due in self._due.items() for key in due.seen(clock.now(time))]
        return found if self._expiring is None else found + self._expiring.may_be_due(time)

    def take_due(self, time: EpochTime) -> list[Any]:
        """Keys that may have something due, each once. Whoever takes them arms those again that keep timers."""
        found: dict[Any, None] = {}
        for clock, due in self._due.items():
            ats, keys = due.take(clock.now(time))
            if keys:
                self._taken.append((clock, ats, keys))
                found.update(dict.fromkeys(keys))
        return list(found)

    def arm_again(self, keys: Sequence[Any]) -> None:
        """These keys were taken, and may have timers still."""
        rows = self.current(keys)
        self._arm_first((key, timers_on(row)) for key, row in zip(keys, rows, strict=True) if row is not None)

    def _arm_first(self, timers: Iterable[tuple[Any, Timers]]) -> None:
        dues = list(self._due.items())
        for key, some in timers:
            if some:
                for clock, due in dues:
                    for timer in some:  # in order, so that the first one says all
                        if timer.clock is clock:
                            due.add(timer.at, key)
                            break

    # --- what expires ---

    def overdue(self) -> list[Any]:
        """Keys that may have something due in the epoch, and were not touched since that came up."""
        return [] if self._expiring is None else list(self._expiring.look())

    def sweep(self, keys: Collection[Any]) -> None:
        """Take out what is due in those of the overdue keys that are named; the others are asked of again."""
        expiring = self._expiring
        assert expiring is not None
        found, ripe = list(expiring.overdue), list[Any]()
        for key, row in zip(found, self.current(found), strict=True):
            if row is None or key not in keys or not expiring.expiries.ripe(row):
                expiring.leave(key, row)  # SUBTLE: now, as nobody seals a key group that the epoch leaves alone
            else:
                expiring.looked_at(key)
                ripe.append(key)
        expire, journal = expiring.expiries.expire, self._journal
        for key, row in zip(ripe, self.touch(ripe) if ripe else (), strict=True):
            if expire(row, journal):
                expiring.swept.add(id(row))
            else:
                self.forget([key])

    def rebind(self, row: type, layout: RecordLayout) -> None:
        """New code for the same state, between epochs: the live objects change their class."""
        self.begin()
        if self._expiring is not None and layout.expiries is not None:
            self._layout.take_over(layout, self._rows.values(), self._journal)
            self._expiring.expiries = layout.expiries
        self._row, self._layout, self._passes = row, layout, layout.passes
        for item in self._rows.values():
            item.__class__ = row

    def discard(self, keys: Sequence[Any]) -> None:
        """Drop these keys; an epoch under way must not have touched them."""
        for key in keys:
            self._rows.pop(key, None)

    # --- keys on their way elsewhere ---

    @property
    def open(self) -> bool:
        """Whether an epoch has touched keys and is not sealed: their current state is not fit to be seen."""
        return bool(self._touched) and not self._sealed

    def touched(self) -> list[Any]:
        """The objects that the epoch has touched, also those of keys that it removed."""
        return self._touched.copy()

    def current(self, keys: Sequence[Any]) -> list[Any]:
        """The live objects of these keys; None for a key that has none now."""
        return list(map(self._rows.get, keys))

    def touched_among(self, keys: Sequence[Any]) -> list[bool]:
        """For each key, whether the epoch has touched it."""
        rows, gone, void = map(self._rows.get, keys), self._gone, self._void
        return [
            (row is not None and row._bedload_image is not None) or key in gone or key in void
            for row, key in zip(rows, keys, strict=True)
        ]

    # --- epochs ---

    def begin(self) -> None:
        """Check that the last epoch was ended."""
        if self._touched:
            raise ProtocolError(f"key group {self.group}: an epoch began before the last one ended")

    def seal(self, settling: Settling) -> None:
        """Track the plain containers that operator code assigned; one that stayed plain would keep no before-image."""
        live = self._live()
        if self._expiring is not None:
            self._expiring.stamp(live, _ABSENT)
            self._expiring.arm_again(self.current)
        try:
            settling.add(live, self._journal, _ABSENT)
        except (AttributeError, StateTypeError):
            # One by one: it gives what was deleted its default, or names the key that does not fit.
            self._adopt(live)
            settling.add(live, self._journal, _ABSENT)
        self._sealed = True

    def _adopt(self, live: list[Any]) -> None:
        adopt, journal = self._layout.adopt, self._journal
        row: Any = None
        try:
            for row in live:
                adopt(row, journal)
        except StateTypeError as bad:
            raise StateTypeError(f"key {row._bedload_key!r}: {bad.message}", key=row._bedload_key) from None

    def commit(self) -> None:
        """Drop the before-images."""
        self._journal.commit()
        for row in self._touched:
            row._bedload_image = None
        self._layout.disown(self._gone.values())
        if self._expiring is not None:
            self._expiring.commit()
        self._end()

    def abort(self) -> None:
        """Put the before-images back."""
        rows, restore = self._rows, self._layout.restore
        self._layout.disown(row for row in self._touched if row._bedload_image is _ABSENT)
        for row in self._touched:
            image, key = row._bedload_image, row._bedload_key
            if image is not _ABSENT:
                restore(row, image)
                row._bedload_image = None
            elif rows.get(key) is row:
                del rows[key]
        rows.update(self._gone)
        self._journal.abort()
        for clock, ats, keys in self._taken:
            self._due[clock].extend(ats, keys)
        if self._expiring is not None:
            self._expiring.abort()
        self._end()

    def changes(self) -> Changes:
        """The changed entries, for the backup."""
        layout, gone = self._layout, self._gone
        entries: dict[Any, dict[str, Any]] = {}
        created = set()
        for row in self._changed(layout.adopt, layout.changed, ()):
            key, image = row._bedload_key, row._bedload_image
            fresh = image is _ABSENT
            entries[key] = layout.changes(row, None if fresh else image)
            if fresh:
                created.add(key)
        removed = tuple(key for key in gone if key not in self._rows)
        return Changes(self.group, entries, frozenset(created), removed)

    # --- seeing it ---

    def scan(self) -> Iterator[list[Any]]:
        """Keys with committed or current state, slice by slice."""
        keys = chain(self._rows, (key for key in self._gone if key not in self._rows))
        while part := list(islice(keys, SLICE)):
            yield part

    def read(self, keys: Iterable[Any]) -> list[Plain | None]:
        """The committed state of these keys."""
        return list(map(self._read, keys))

    def _read(self, key: Any) -> Plain | None:
        row = self._gone.get(key)
        if row is None:
            row = self._rows.get(key)
        if row is None or row._bedload_image is _ABSENT:
            return None
        return self._layout.snapshot(row, row._bedload_image)

    def sizes(self) -> Sizes:
        """How much is there."""
        return Sizes(len(self._rows), len(self._touched))

    def image_bytes(self) -> int:
        """Roughly the memory of the before-images; the logs of containers from a sample."""
        image = _TUPLE + _VALUE * len(self._layout.names) + self._layout.array_bytes
        return len(self._touched) * image + self._journal.log_bytes()

    def _live(self) -> list[Any]:
        """The touched objects that are still there."""
        gone = self._forgotten
        return [row for row in self._touched if id(row) not in gone] if gone else self._touched

    def _make(self, key: Any) -> Any:
        row = self._rows[key] = self._row.__new__(self._row)
        self._layout.fill(row, self._journal)
        row._bedload_key = key
        if self._expiring is not None:
            self._expiring.expiries.fresh(row)
        return row

    def _end(self) -> None:
        self._touched.clear()
        self._gone = {}
        self._forgotten = set()
        self._void = set()
        self._sealed = False
        self._taken = []
