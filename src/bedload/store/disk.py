"""A place on a disk for the encoded state of one operator at one worker, as stores use it.

It is a sorted map of bytes, and it is a cache: whatever it loses can be read back from the checkpoint, but by nobody in
the store. So a disk says two different things (:class:`~bedload.core.errors.LocalDiskError` both): that it took
nothing, and then all is as it was; or that something is *lost*, and then the worker that it is of has to end.
"""

from __future__ import annotations

import datetime as dt
import marshal
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, Protocol

import pyarrow as pa

from bedload.core.errors import BedloadError
from bedload.keys.canonical import NAN
from bedload.state import RecordLayout
from bedload.state.arrays import ArrayNode
from bedload.state.arrow import arrow_type, decode_all, encode_all
from bedload.state.types import ScalarNode, TimersNode, TypeNode
from bedload.store.columns.paged import Backing

PACKED = "bedload_packed"
"""The column of keys that move as they lie on a disk, in place of a column for each variable."""


class Disk(Protocol):
    """A sorted map. Each call is done or raises LocalDiskError; of a write that raised, nothing is there."""

    def get(self, names: list[bytes]) -> list[bytes | None]:
        """What lies under these names."""
        ...

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> int:
        """Put these, take those away, all at once; how many bytes are put."""
        ...

    def drop(self, prefix: bytes) -> None:
        """Take away all names that begin like this, some time."""
        ...

    def names(self, prefix: bytes) -> Iterator[bytes]:
        """All names that begin like this, as of now."""
        ...

    def size(self) -> int:
        """About the bytes that it takes on the disk."""
        ...

    def close(self) -> None:
        """Nobody needs it any more, nor what is there."""
        ...


class Disks(Protocol):
    """Where the operators of one worker have theirs."""

    def open(self, operator: str) -> Disk:
        """An empty one; that which the operator had before is gone."""
        ...

    def slabs(self, operator: str) -> Backing:
        """An empty file for an array of columns."""
        ...

    @property
    def lost(self) -> BedloadError | None:
        """Why the state of an operator is not there any more, if that is so."""
        ...


# --- names ---


def name_of(key: Any) -> bytes:
    """The bytes of a key; keys that are equal have the same."""
    try:
        return marshal.dumps(key, 2)  # that version knows no references, so equal keys are written alike
    except ValueError:
        return marshal.dumps(_marked(key), 2)


def key_of(name: bytes | memoryview) -> Any:
    """The key with this name."""
    found = marshal.loads(name)
    return found if type(found) is int or type(found) is str else _unmarked(found)


def _marked(key: Any) -> Any:
    """A key of what marshal does not know: such parts are lists, which no key is."""
    match key:
        case tuple():
            return tuple(map(_marked, key))
        case dt.datetime():
            return [0, _micros(key), key.tzinfo is not None]
        case dt.date():
            return [1, key.toordinal()]
        case Decimal():
            return [2, str(key)]
    return key


def _unmarked(found: Any) -> Any:
    match found:
        case tuple():  # before the patterns of lists, which match tuples, too
            return tuple(map(_unmarked, found))
        case [0, micros, zoned]:
            return (_ZONED if zoned else _NAIVE) + dt.timedelta(microseconds=micros)
        case [1, day]:
            return dt.date.fromordinal(day)
        case [2, text]:
            return Decimal(text)
    return NAN if found != found else found


_NAIVE = dt.datetime(1970, 1, 1)
_ZONED = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _micros(at: dt.datetime) -> int:
    return (at - (_NAIVE if at.tzinfo is None else _ZONED)) // dt.timedelta(microseconds=1)


# --- states ---


class Packing:
    """The state of one key as bytes: what Arrow would get of each variable, in the order of their names, pickled.

    SUBTLE: not in that of the layout. A worker that came before new code has the variables in another order than one
    that came after it, and what one packs, the other unpacks.

    Not the plain values: those of a dataclass are objects of a class that a pickle could not find by its name.
    """

    def __init__(self, layout: RecordLayout) -> None:
        self._layout = layout
        self._specs = sorted(layout.specs, key=attrgetter("name"))
        self._nodes = [(spec.name, spec.type) for spec in self._specs]
        self._direct = layout.scalars_only and all(_is_plain(node) for _, node in self._nodes)
        """Whether the attributes of an object are what is pickled."""

    def of_rows(self, rows: Sequence[Any]) -> list[bytes]:
        """Of objects that no epoch has touched."""
        if self._direct and self._nodes:
            return self._dumped([list(map(attrgetter(name), rows)) for name, _ in self._nodes], len(rows))
        plain = list(map(self._layout.plain, rows))
        return self.of_columns({name: [it[name] for it in plain] for name, _ in self._nodes}, len(rows))

    def of_columns(self, values: Mapping[str, Sequence[Any]], count: int) -> list[bytes]:
        """Of so many keys as columns of plain values; a variable that has none gets its default."""
        columns = []
        for spec in self._specs:
            found = values[spec.name] if spec.name in values else [spec.fresh_default() for _ in range(count)]
            columns.append(_encoded(spec.type, found))
        return self._dumped(columns, count)

    def _dumped(self, columns: list[list[Any]], count: int) -> list[bytes]:
        if not columns:
            return [_EMPTY] * count
        try:
            return list(map(_dumps, zip(*columns, strict=True)))
        except Exception:
            # A value may be of a class of the user's, as an enum that is a str. Arrow gives the plain one.
            pairs = zip(self._nodes, columns, strict=True)
            plain = [
                column if _as_is(node) else pa.array(column, arrow_type(node)).to_pylist()
                for (_, node), column in pairs
            ]
            return list(map(_dumps, zip(*plain, strict=True)))

    def values(self, packed: Sequence[bytes]) -> dict[str, list[Any]]:
        """Columns of plain values."""
        if not packed or not self._nodes:
            return {name: [] for name, _ in self._nodes}
        columns = zip(*map(pickle.loads, packed), strict=True)
        pairs = zip(self._nodes, columns, strict=True)
        return {
            name: list(column) if _as_is(node) else decode_all(node, list(column)) for (name, node), column in pairs
        }


def _is_plain(node: TypeNode) -> bool:
    return isinstance(node, ScalarNode) and node.py in (int, float, str, bytes, bool)


def _as_is(node: TypeNode) -> bool:
    return isinstance(node, ArrayNode | TimersNode)


def _encoded(node: TypeNode, values: Sequence[Any]) -> list[Any]:
    return list(values) if _as_is(node) else encode_all(node, values)


_dumps: Callable[[Any], bytes] = pickle.dumps
_EMPTY = _dumps(())
