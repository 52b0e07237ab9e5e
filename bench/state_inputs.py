"""What the state study puts into every layout: kinds of state, keys, and batches of rows.

Invariants:
- A batch, and the state that a key starts with, follow from the seed, the shape and the number of keys alone, so
  every layout gets the same.
- Every value is an object of its own: small integers and shared bytes would cost a Python layout no memory.

Why these kinds: a counter is the least that state can be, a bounded list and a map are what operators keep about a
key, and a map of lists is what has to be tracked on two levels. Containers are full from the start, so what is
measured is change, not growth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.keys import DEFAULT_KEY_GROUPS, hash_columns, key_groups

KINDS = ("value", "list", "map", "nested")
SIZES = ("small", "large")
LIST_LENGTH = 20
MAP_ENTRIES = 10
NESTED_ENTRIES, NESTED_LENGTH = 5, 4
LARGE_BYTES = 1_000
BATCH_ROWS = {"small": 65_536, "large": 8_192}
GROUPS = DEFAULT_KEY_GROUPS
FIELDS = tuple(f"f{i}" for i in range(MAP_ENTRIES))

_SEED = 20_260
_CHUNK, _CHUNKS = 512, 64
_FAR = 2**40
_POOL = 1 << 22


@dataclass(frozen=True)
class Shape:
    """A kind of state and the size of its values."""

    kind: str
    size: str

    @property
    def large(self) -> bool:
        """Whether a value is a kilobyte of bytes, rather than an integer."""
        return self.size == "large"

    @property
    def counter(self) -> bool:
        """Whether rows are counted; everything else keeps the values of rows."""
        return self.kind == "value" and not self.large

    @property
    def entries(self) -> int:
        """Entries of a map."""
        return NESTED_ENTRIES if self.kind == "nested" else MAP_ENTRIES


@dataclass(frozen=True)
class Keys:
    """Keys, and the key group of each."""

    column: pa.Array
    groups: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.column)

    def take(self, where: npt.NDArray[np.int64]) -> "Keys":
        """Some of them."""
        return Keys(self.column.take(pa.array(where)), self.groups[where])

    def pairs(self) -> list[tuple[int, int]]:
        """Group and key of each."""
        return list(zip(self.groups.tolist(), self.column.to_pylist(), strict=True))


@dataclass(frozen=True)
class Batch:
    """Input rows: the key, the entry of the map that it is about, and a value."""

    keys: Keys
    fields: pa.Array
    values: pa.Array


class Inputs:
    """Keys, states to start with, and batches, of one shape and number of keys."""

    def __init__(self, shape: Shape, keys: int) -> None:
        self.shape = shape
        self._random = np.random.default_rng(_SEED)
        # Scattered over the integers, so that no layout gains by keys that are also positions.
        column = pa.array(np.unique(self._random.integers(0, 2**62, keys + keys // 8 + 16))[:keys])
        self.keys = Keys(column, key_groups(hash_columns([column]), GROUPS))
        self._pool = self._random.bytes(_POOL + LARGE_BYTES)

    def batch(self, rows: int) -> Batch:
        """The next batch, of random keys."""
        keys = self.keys.take(self._random.integers(0, len(self.keys), rows))
        fields = pa.array(self._random.integers(0, self.shape.entries, rows).astype(np.int32))
        names = pa.DictionaryArray.from_arrays(fields, pa.array(FIELDS)).dictionary_decode()
        values = pa.array(self._values(rows), pa.binary() if self.shape.large else pa.int64())
        return Batch(keys, names, values)

    def some(self, count: int) -> Keys:
        """Random keys."""
        return self.keys.take(self._random.integers(0, len(self.keys), count))

    def states(self) -> Iterator[tuple[Keys, list[Any]]]:
        """What each key starts with, a small part of the keys at a time: what is made for it is memory, too."""
        size = max(_CHUNK, len(self.keys) // _CHUNKS)
        for begin in range(0, len(self.keys), size):
            part = self.keys.take(np.arange(begin, min(begin + size, len(self.keys))))
            yield part, self._states(len(part))

    def _states(self, count: int) -> list[Any]:
        shape = self.shape
        if shape.counter:
            return [0] * count
        if shape.kind == "value":
            return self._values(count)
        if shape.kind == "list":
            flat = self._values(count * LIST_LENGTH)
            return [flat[at : at + LIST_LENGTH] for at in range(0, len(flat), LIST_LENGTH)]
        names = FIELDS[: shape.entries]
        if shape.kind == "map":
            flat = self._values(count * MAP_ENTRIES)
            return [
                dict(zip(names, flat[at : at + MAP_ENTRIES], strict=True)) for at in range(0, len(flat), MAP_ENTRIES)
            ]
        flat = self._values(count * NESTED_ENTRIES * NESTED_LENGTH)
        lists = [flat[at : at + NESTED_LENGTH] for at in range(0, len(flat), NESTED_LENGTH)]
        return [
            dict(zip(names, lists[at : at + NESTED_ENTRIES], strict=True))
            for at in range(0, len(lists), NESTED_ENTRIES)
        ]

    def _values(self, count: int) -> list[Any]:
        if not self.shape.large:
            numbers: list[Any] = self._random.integers(_FAR, 2 * _FAR, count).tolist()
            return numbers
        pool = self._pool
        return [pool[at : at + LARGE_BYTES] for at in self._random.integers(0, _POOL, count).tolist()]
