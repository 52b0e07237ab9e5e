"""Two shelves as one: whole key groups and single keys that go to the same worker."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.keys.lookup import Hashes
from bedload.store.shelf import Shelf

_T = TypeVar("_T", bound=np.generic)
Collected = tuple[pa.RecordBatch | None, Hashes]


class BothShelves:
    """The entries that were there at the beginning come first, so that they keep their places."""

    def __init__(self, one: Shelf, other: Shelf) -> None:
        self._one, self._other = one, other
        self._ends = len(one.hashes), len(other.hashes)

    @property
    def hashes(self) -> Hashes:
        """Of all keys."""
        return self._joined(self._one.hashes, self._other.hashes)

    @property
    def groups(self) -> npt.NDArray[np.int16]:
        """Of all keys."""
        return self._joined(self._one.groups, self._other.groups)

    @property
    def nbytes_hint(self) -> float:
        """Of a key."""
        return max(self._one.nbytes_hint, self._other.nbytes_hint)

    def note(self) -> Hashes:
        """What the epoch touched."""
        return np.concatenate([self._one.note(), self._other.note()])

    def collect(self, hashes: Hashes) -> Collected:
        """The current state of these keys."""
        return _both(self._one.collect(hashes), self._other.collect(hashes))

    def collect_range(self, first: int, count: int) -> Collected:
        """The current state of these entries, of those at the beginning."""
        middle = self._ends[0]
        here = max(0, min(count, middle - first))
        one = self._one.collect_range(first, here)
        return _both(one, self._other.collect_range(max(0, first - middle), count - here))

    def drop(self) -> None:
        """Forget them."""
        self._one.drop()
        self._other.drop()

    def _joined(self, one: npt.NDArray[_T], other: npt.NDArray[_T]) -> npt.NDArray[_T]:
        first, second = self._ends
        return np.concatenate([one[:first], other[:second], one[first:], other[second:]])


def _both(one: Collected, other: Collected) -> Collected:
    states = [state for state in (one[0], other[0]) if state is not None]
    left = np.concatenate([one[1], other[1]])
    if len(states) < 2:
        return (states[0] if states else None), left
    whole = pa.Table.from_batches(states).combine_chunks().to_batches()
    return (whole[0] if whole else None), left
