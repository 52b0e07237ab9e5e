"""Rows on disk: keys that were touched of late are objects, as in memory, and the others lie encoded on a local disk.

The epoch is the one of :class:`~bedload.store.rows.RowStore`: what it touches, and the before-images of that, are
objects in memory until it ends. What is on the disk is committed state, or it is dead.

Invariants:

- a key has its state in the object, if there is one; else on the disk, unless it is *buried* or the epoch has removed
  it. So what lies on the disk under a key with an object says nothing, unless the object is marked as *stored*;
- a key leaves memory when its committed state is on the disk, and never while an epoch under way has touched it;
- no list of the keys on disk is kept, only how many they are. Whoever makes a store of a key group anew begins under a
  prefix of its own, and finds nothing of those before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice, repeat
from operator import attrgetter
from typing import Any

from bedload.core.ids import KeyGroup
from bedload.state import RecordLayout
from bedload.state.arrays import ArrayNode
from bedload.state.patches import is_small
from bedload.state.timers import VARIABLE
from bedload.state.types import ScalarNode, TypeNode
from bedload.state.weight import weigher
from bedload.store.base import SLICE, Plain, Sizes
from bedload.store.cache import Cache
from bedload.store.disk import Disk, Packing, key_of, name_of
from bedload.store.rows import RowStore

DISK_SLOTS = ("_bedload_seen", "_bedload_weight", "_bedload_stored")
"""What objects have besides: when they were touched last, their bytes, and whether their state is on the disk."""

_OBJECT, _VALUE, _PART = 220, 40, 4
"""About the bytes of an object with its key and its place; of a value; of what has parts, times its encoded bytes."""
_SLICE = 256
"""Keys that are read from the disk at a time where it may be that few are wanted."""
_BURIED = 512
"""So many dead keys are taken from the disk together."""


class Figures:
    """What the stores of an operator have done since its start."""

    __slots__ = ("evicted", "hits", "misses", "read", "read_bytes", "written", "written_bytes")

    def __init__(self) -> None:
        self.hits = 0
        """Keys that operator code wanted and that were in memory."""
        self.misses = 0
        """Those that were looked for on the disk."""
        self.read = 0
        """Keys that were looked for there, whoever wanted them."""
        self.read_bytes = 0
        self.evicted = 0
        """Objects that left memory."""
        self.written = 0
        """Keys whose state was written to the disk."""
        self.written_bytes = 0


class Place:
    """What the stores of one operator share."""

    def __init__(self, disk: Disk, cache: Cache) -> None:
        self.disk = disk
        self.cache = cache
        self.figures = Figures()
        self.memory = 0
        """About the bytes of the objects of this operator."""
        self._prefixes = count()

    def bind(self, layout: RecordLayout) -> None:
        """State is of this layout from now on."""
        self.packing = Packing(layout)
        large = [it for it in layout.specs if not (is_small(it.type) or isinstance(it.type, ArrayNode))]
        self.each = _OBJECT + _VALUE * len(layout.specs) + layout.array_bytes
        self._weighers = [(attrgetter(it.name), weigher(it.type), _factor(it.type)) for it in large]

    def prefix(self, group: KeyGroup) -> bytes:
        """A prefix that nobody had before."""
        return int(group).to_bytes(2, "big") + next(self._prefixes).to_bytes(5, "big")

    def get(self, names: list[bytes]) -> list[bytes | None]:
        """What lies on the disk."""
        found = self.disk.get(names)
        figures = self.figures
        figures.read += len(names)
        there = [it for it in found if it is not None]
        figures.read_bytes += sum(map(len, there))
        return found

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Put these, take those away."""
        self.figures.written_bytes += self.disk.write(puts, deletes)
        self.figures.written += len(puts)

    def weights(self, rows: Sequence[Any]) -> Iterable[int]:
        """About the bytes of each of these objects."""
        if not self._weighers:
            return repeat(self.each, len(rows))
        return [self.each + sum(factor * weigh((get(row),)) for get, weigh, factor in self._weighers) for row in rows]

    def count(self, rows: int, weight: int) -> None:
        """So many more objects are in memory, of so many bytes."""
        self.cache.count += rows
        self.cache.used += weight
        self.memory += weight

    def put_away(self, going: list[tuple[DiskStore, list[Any]]]) -> None:
        """These objects leave memory; none of them has a before-image."""
        puts = [(store, row) for store, rows in going for row in rows if not row._bedload_stored]
        names = [store.name(row._bedload_key) for store, row in puts]
        if puts:
            self.write(list(zip(names, self.packing.of_rows([row for _, row in puts]), strict=True)))
        for store, rows in going:
            store.left(rows)
        self.figures.evicted += sum(len(rows) for _, rows in going)


def _factor(node: TypeNode) -> int:
    return 1 if isinstance(node, ScalarNode) else _PART


class DiskStore(RowStore):
    """One key group, of which some keys are on disk."""

    __slots__ = ("_absent", "_buried", "_cold", "_prefix", "_wrote", "place")
    sealed_is_stored = False
    """Whether what an epoch has changed is where it belongs before the commit."""

    def __init__(self, group: KeyGroup, layout: RecordLayout, row: type, place: Place) -> None:
        super().__init__(group, layout, row)
        self.place = place
        self._prefix = place.prefix(group)
        self._cold = 0
        """Keys that are on the disk, and no objects."""
        self._wrote = False
        """Whether anything was ever put there."""
        self._buried: set[Any] = set()
        """Keys under which something may be on the disk that counts for nothing."""
        self._absent: set[Any] = set()
        """Keys that were looked for on the disk for the next call of :meth:`touch`, and are not there."""

    @property
    def rows(self) -> dict[Any, Any]:
        """The objects."""
        return self._rows

    @property
    def gone(self) -> dict[Any, Any]:
        """The objects that the epoch has removed."""
        return self._gone

    def name(self, key: Any) -> bytes:
        """Where a key is on the disk."""
        return self._prefix + name_of(key)

    # --- from the disk, and back ---

    def look_up(self, keys: Sequence[Any]) -> list[bytes | None]:
        """What the disk has of these keys."""
        return self.place.get(list(map(self.name, keys))) if keys else []

    def unknown(self, keys: Sequence[Any]) -> list[Any]:
        """Those that only the disk knows of, each once."""
        if not self._cold:
            return []
        rows, gone, buried, absent = self._rows, self._gone, self._buried, self._absent
        found = [key for key in keys if key not in rows]
        if gone or buried or absent:
            found = [key for key in found if not (key in gone or key in buried or key in absent)]
        return list(dict.fromkeys(found))

    def rise(self, keys: Sequence[Any], packed: Sequence[bytes | None]) -> None:
        """These were looked for on the disk: make objects of those that are there."""
        there = [(key, data) for key, data in zip(keys, packed, strict=True) if data is not None]
        if there:
            risen = [key for key, _ in there]
            self._make_objects(risen, self.place.packing.values([data for _, data in there]))
            self._cold -= len(there)
            rows = list(map(self._rows.__getitem__, risen))
            weights = list(self.place.weights(rows))
            for row, weight in zip(rows, weights, strict=True):
                row._bedload_weight, row._bedload_stored = weight, True
            self.place.count(len(rows), sum(weights))
            self.place.cache.seen(self, rows)
        if len(there) < len(keys):
            self._absent.update(key for key, data in zip(keys, packed, strict=True) if data is None)

    def left(self, rows: Sequence[Any]) -> None:
        """The state of these objects is on the disk: they are objects no longer."""
        for row in rows:
            del self._rows[row._bedload_key]
        self._layout.disown(rows)
        if self._buried:
            self._buried.difference_update(row._bedload_key for row in rows)
        self._wrote = True
        self._cold += len(rows)
        self.place.count(-len(rows), -sum(row._bedload_weight for row in rows))

    def touch(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The live objects of these keys, made or read if need be."""
        asked = self.unknown(keys)
        if asked:
            self.place.figures.misses += len(asked)
            self.rise(asked, self.look_up(asked))
        found = super().touch(keys)
        if self._absent:
            self._absent = set()
        return found

    def _make_objects(self, keys: Sequence[Any], values: Mapping[str, Sequence[Any]]) -> None:
        super()._make_objects(keys, values)
        now = self.place.cache.now
        for row in map(self._rows.__getitem__, keys):
            row._bedload_seen, row._bedload_weight, row._bedload_stored = now, 0, False

    def _make(self, key: Any) -> Any:
        row = super()._make(key)
        row._bedload_seen, row._bedload_weight, row._bedload_stored = 0, 0, False
        return row

    # --- keys that come and go ---

    def existing(self, keys: Sequence[Any]) -> list[Any]:
        """Those of the keys that are on the disk and no objects."""
        asked = self.unknown(keys)
        return [key for key, data in zip(asked, self.look_up(asked), strict=True) if data is not None]

    def laid(self, keys: Sequence[Any], before: int) -> None:
        """Committed state of these was put on the disk; ``before``: so many were there before."""
        self._let_go(keys)
        self._buried.difference_update(keys)
        self._absent.difference_update(keys)
        self._wrote = True
        self._cold += len(keys) - before

    def point(self, keys: Sequence[Any], values: Mapping[str, Sequence[Any]]) -> None:
        """Put these keys into the indexes of what is due."""
        if self._due and VARIABLE in values:
            self._arm_first(zip(keys, values[VARIABLE], strict=True))
        if self._expiring is not None:
            self._expiring.arm(keys, values)

    def put(self, keys: Sequence[Any], values: Mapping[str, Sequence[Any]]) -> None:
        """Put keys in as committed state: on the disk."""
        if self._expiring is not None:
            self._expiring.expiries.pair(values)
        before = len(self.existing(keys))
        packed = self.place.packing.of_columns(values, len(keys))
        self.place.write(list(zip(map(self.name, keys), packed, strict=True)))
        self.laid(keys, before)
        self.point(keys, values)

    def discard(self, keys: Sequence[Any]) -> None:
        """Drop these keys."""
        existing = self.existing(keys)
        self._cold -= len(existing)
        self._buried.update(existing)
        self._let_go(keys)
        self._absent.difference_update(keys)

    def _let_go(self, keys: Sequence[Any]) -> None:
        """Drop the objects of these keys; what the disk has under them is dead."""
        lost = [row for key in keys if (row := self._rows.pop(key, None)) is not None]
        self._bury(row._bedload_key for row in lost)
        self.place.cache.gone(len(lost))
        self.place.count(-len(lost), -sum(row._bedload_weight for row in lost))

    def _bury(self, keys: Iterable[Any]) -> None:
        """What the disk has under these keys is dead."""
        if self._wrote:
            self._buried.update(keys)

    def give_up(self) -> None:
        """The key group is not here any more."""
        self.place.cache.gone(len(self._rows))
        self.place.count(-len(self._rows), -sum(row._bedload_weight for row in self._rows.values()))
        self._rows.clear()
        self._leave_disk()

    def _leave_disk(self) -> None:
        self.place.disk.drop(self._prefix)

    # --- epochs ---

    def commit(self) -> None:
        """Drop the before-images; what has changed is not on the disk."""
        if not self._touched:
            super().commit()
            return
        live, gone = list(self._live()), list(self._gone.values())
        super().commit()
        place, now = self.place, self.place.cache.now
        grown = new = 0
        for row, weight in zip(live, place.weights(live), strict=True):
            new += not row._bedload_weight
            grown += weight - row._bedload_weight
            row._bedload_seen, row._bedload_weight, row._bedload_stored = now, weight, self.sealed_is_stored
        place.count(new - len(gone), grown - sum(row._bedload_weight for row in gone))
        place.cache.gone(len(gone))
        self._bury(row._bedload_key for row in gone if row._bedload_key not in self._rows)
        place.cache.seen(self, live)

    @property
    def overgrown(self) -> bool:
        """Whether dead keys should be taken from the disk."""
        return len(self._buried) >= _BURIED

    def dead(self) -> list[Any]:
        """Some of them."""
        return list(islice(self._buried, _BURIED))

    def cleared(self, keys: Sequence[Any]) -> None:
        """They were."""
        self._buried.difference_update(keys)

    def _end(self) -> None:
        super()._end()
        self._absent = set()

    # --- seeing it ---

    def current(self, keys: Sequence[Any]) -> list[Any]:
        """Objects with the current state of these keys; those on the disk stay there."""
        rows = super().current(keys)
        asked = self.unknown(keys)
        if not asked:
            return rows
        there = self._read_packed(asked)
        made = dict(zip(there, map(self._row.__new__, repeat(self._row, len(there))), strict=True))
        if self._expiring is not None:
            for row in made.values():
                self._expiring.expiries.fresh(row)
        objects = list(made.values())
        self._layout.load_columns(objects, self.place.packing.values(list(there.values())), self._journal)
        return [made.get(key) if row is None else row for row, key in zip(rows, keys, strict=True)]

    def packed(self, keys: Sequence[Any]) -> list[bytes | None]:
        """The current state of these keys, encoded; None for a key without state."""
        rows = super().current(keys)
        there = self._read_packed(self.unknown(keys))
        live = [row for row in rows if row is not None]
        encoded = iter(self.place.packing.of_rows(live))
        return [next(encoded) if row is not None else there.get(key) for row, key in zip(rows, keys, strict=True)]

    def scan(self) -> Iterator[list[Any]]:
        """Keys with committed or current state, slice by slice."""
        yield from super().scan()
        if not self._cold:
            return
        rows, gone, buried = self._rows, self._gone, self._buried
        part: list[Any] = []
        for key in self._names():
            if not (key in rows or key in gone or key in buried):
                part.append(key)
                if len(part) >= min(_SLICE, SLICE):
                    yield part
                    part = []
        if part:
            yield part

    def listing(self) -> Iterator[Any]:
        """Keys with committed or current state as of now, while keys come to memory and leave it."""
        here = dict.fromkeys((*self._rows, *self._gone))
        dead = self._buried - here.keys()
        cold = self._names() if self._cold else iter(())
        return chain(here, (key for key in cold if not (key in here or key in dead)))

    def _names(self) -> Iterator[Any]:
        """The keys under which something is on the disk, as of now."""
        cut, names = len(self._prefix), self.place.disk.names(self._prefix)
        return (key_of(name[cut:]) for name in names)

    def read(self, keys: Iterable[Any]) -> list[Plain | None]:
        """The committed state of these keys."""
        keys = list(keys)
        there = self._read_packed(self.unknown(keys))
        values = self.place.packing.values(list(there.values()))
        cold = {key: {name: column[i] for name, column in values.items()} for i, key in enumerate(there)}
        return [cold[key] if key in cold else self._read(key) for key in keys]

    def sizes(self) -> Sizes:
        """How much is there."""
        return Sizes(len(self._rows) + self._cold, len(self._touched))

    def image_bytes(self) -> int:
        """Roughly the memory of the before-images, and of the objects that cannot leave before the epoch ends."""
        each = self.place.each
        objects: int = sum(max(row._bedload_weight, each) for row in self._touched)
        return super().image_bytes() + objects

    def _read_packed(self, keys: list[Any]) -> dict[Any, bytes]:
        """What the disk has of these keys."""
        return {key: data for key, data in zip(keys, self.look_up(keys), strict=True) if data is not None}
