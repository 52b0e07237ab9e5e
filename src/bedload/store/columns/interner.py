"""Strings and binaries, each kept once, under a number.

- ``arena``: the bytes, one value after another, each with its length in front
- ``places``: for each number where its value is in the arena; in a free number the next free one
- hash tables from bytes to numbers, spread over shards

A value is kept as long as a key may have it. References are not counted: that would cost on each new key. Instead the
keys that went are counted. When they are enough to be worth a look at all keys, a sweep begins: it marks the values
that keys have, key group by key group, forgets the others, and moves what is left together. Numbers stay, so no key
changes. A sweep is done some values at a time (:meth:`Interner.tidy`), and keys come and go meanwhile: what is asked
for in order to be kept counts as marked.

Invariant: a number below the next new one has a value that the hash tables find, or is on the list of free ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import DataError, ProtocolError
from bedload.keys.columns import bytes_of
from bedload.store.columns import byte_kernels as b
from bedload.store.columns.compiling import read_only
from bedload.store.columns.hash_tables import HashTables
from bedload.store.columns.memory import PLAIN, Memory

_SWEPT_FROM = 4096
"""Keys that must have gone before a sweep is worth a thought."""
_SLICE = 2048
"""Values that are looked at between two looks at how much work is left."""
_PER_VALUE = 4
"""Values that a sweep looks at for each new one, at least: so there are at most twice as many as without pieces."""
_GUESS = 24
"""Bytes of a value, as long as there is none."""
_SPARE = 64
"""Bytes more than what values are likely to take."""
_LONGEST = 2**31 - 1
_WORD = np.dtype([("bits", "<u8")])

NumbersOf = Callable[[int], Iterable[npt.NDArray[np.int64]]]
"""From a key group to the numbers that its keys have, some at a time. Between two of them keys may come and go."""


class Interner:
    """The distinct values of one key column."""

    def __init__(self, kind: pa.DataType, memory: Memory = PLAIN) -> None:
        self._kind = kind
        self._counters = np.zeros(6, np.int64)
        self._counters[b.FREE_NUMBER] = -1
        self._tables = HashTables(b.SHARDS, memory)
        self._places = memory.other(np.int64)
        self._places.resize(16)
        self._arena = memory.other(np.uint8)
        self._arena.resize(256)
        self._arena_words = _by_eight(self._arena.array)
        self.longest = 0
        """No value has more bytes."""
        self._gone = 0
        self._made = 0
        """Values that were new since the last work on a sweep."""
        self._sweep: Iterator[int] | None = None
        self._used = np.zeros(0, np.bool_)
        """While a sweep marks and forgets: which numbers a key may have. Later ones are not looked at."""

    def foresee(self, values: int) -> None:
        """About so many more values will come."""
        self._places.foresee(int(self._counters[b.NEXT_NUMBER]) + values)
        self._arena.foresee(int(self._counters[b.TOP]) + values * self._each)
        self._arena_words = _by_eight(self._arena.array)
        self._tables.foresee(values)

    @property
    def _each(self) -> int:
        """Bytes of a value and its length, on average."""
        known = int(self._counters[b.LIVE])
        return int(self._counters[b.LIVE_BYTES]) // known if known else _GUESS

    # --- values to numbers ---

    def encode(self, column: pa.Array, *, add: bool) -> npt.NDArray[np.int64]:
        """The number of each row's value, 0 for nulls. Unknown ones are kept if ``add``, and -1 if not."""
        data, starts, lengths = bytes_of(column)
        if len(lengths) and int(lengths.max()) > _LONGEST:
            raise DataError(f"a key of {int(lengths.max())} bytes is too long: at most {_LONGEST} are possible")
        if add and len(lengths):
            self.longest = max(self.longest, int(lengths.max()))
        if len(data) < 16:
            # Eight bytes can be read, and there is more than one place to do so.
            data = np.concatenate((data, np.zeros(16, np.uint8)))
        data = read_only(data, np.uint8)
        starts, lengths = read_only(starts, np.int64), read_only(lengths, np.int64)
        if column.null_count:
            valid = read_only(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        else:
            valid = read_only(np.ones(len(column), np.bool_), np.bool_)
        numbers = np.empty(len(column), np.int64)
        self._made -= int(self._counters[b.LIVE])
        row = 0
        while True:
            row, why = b.intern(
                _by_eight(data),
                starts,
                lengths,
                valid,
                row,
                add,
                self._tables.entries,
                self._tables.list,
                self._counters,
                self._places.array,
                self._arena_words,
                len(self._arena),
                numbers,
            )
            if why == b.NEED_TABLE:
                # The row's hash is not known here: every shard that is full is in need, or will be soon.
                self._tables.grow_full()
            elif why == b.NEED_NUMBERS:
                self._places.at_least(len(self._places) + 1)
            elif why == b.NEED_BYTES:
                self._arena.at_least(int(self._counters[b.TOP] + b.HEADER + lengths[row] + b.SLACK))
                self._arena_words = _by_eight(self._arena.array)
            else:
                self._made += int(self._counters[b.LIVE])
                if add and len(self._used):
                    self._used[numbers[numbers < len(self._used)]] = True
                return numbers

    # --- numbers to values ---

    def decode(self, numbers: npt.NDArray[np.int64], null: npt.NDArray[np.bool_] | None) -> pa.Array:
        """The values of these numbers, null where the mask says so."""
        count = len(numbers)
        numbers = read_only(numbers, np.int64)
        mask = read_only(np.zeros(count, np.bool_) if null is None else null, np.bool_)
        fixed = pa.types.is_fixed_size_binary(self._kind)
        width = self._kind.byte_width if fixed else 0
        ends = np.zeros(count + 1, np.int64)
        room = np.zeros(count * (width or self._each) + _SPARE, np.uint8)
        row = 0
        while (
            row := b.write(numbers, mask, row, width, self._places.array, self._arena_words, ends, _by_eight(room))
        ) < count:
            lacking = int(ends[min(row + b.CHUNK, count)]) + b.SLACK - len(room)
            room = np.concatenate((room, np.zeros(lacking + (count - row) * self._each, np.uint8)))
        data = room[: ends[-1]]
        validity = None if null is None else pa.array(~null).buffers()[1]
        if fixed:
            return pa.Array.from_buffers(self._kind, count, [validity, pa.py_buffer(data)])
        large = pa.types.is_large_string(self._kind) or pa.types.is_large_binary(self._kind)
        if not large:
            if len(data) > _LONGEST:
                raise DataError(f"the keys of one batch have {len(data)} bytes: extract fewer keys at a time")
            ends = ends.astype(np.int32)
        return pa.Array.from_buffers(self._kind, count, [validity, pa.py_buffer(ends), pa.py_buffer(data)])

    def weight(self, numbers: npt.NDArray[np.int64]) -> int:
        """Bytes of the values of these numbers."""
        return int((self._arena_words["bits"][self._places.array[numbers]] & np.uint64(0xFFFFFFFF)).sum())

    # --- forgetting ---

    def gone(self, keys: int) -> None:
        """Count keys that were taken out."""
        self._gone += keys

    def tidy(self, keys: int, groups: int, numbers_of: NumbersOf, work: int) -> bool:
        """Go on with a sweep, if there is one to do: over so many values, and more if many are new.

        ``keys``: how many there are; in ``groups`` key groups.
        Returns whether there is nothing left to do.
        """
        if self._sweep is not None:
            work += self._made * _PER_VALUE
        elif self._wants_sweep(keys):
            self._sweep = self._sweeping(groups, numbers_of)
        self._made = 0
        if self._sweep is None:
            return True
        for done in self._sweep:
            work -= done
            if work <= 0:
                return False
        self._sweep = None
        return True

    def _wants_sweep(self, keys: int) -> bool:
        """Whether so many keys have gone that looking at all ``keys`` pays."""
        values = int(self._counters[b.LIVE])
        # Values beyond the number of keys are of none: dictionaries bring some that no row has.
        return max(self._gone * 4, (values - keys) * 2) >= max(keys + values, 4 * _SWEPT_FROM)

    def _sweeping(self, groups: int, numbers_of: NumbersOf) -> Iterator[int]:
        """Forget every value that no key has; after each piece of work, how much it was."""
        self._gone = 0
        self._used = np.zeros(int(self._counters[b.NEXT_NUMBER]), np.bool_)
        for group in range(groups):
            for numbers in numbers_of(group):
                self._used[numbers[numbers < len(self._used)]] = True
                yield 1 + len(numbers) // 8  # it takes that much less than the rest
        for begin in range(0, len(self._used), _SLICE):
            end = min(begin + _SLICE, len(self._used))
            tables, places = self._tables, self._places.array
            if not b.forget(
                self._used, begin, end, tables.entries, tables.list, self._counters, places, self._arena_words
            ):
                raise ProtocolError("a kept key is not found by its own bytes: the state at this worker is damaged")
            yield end - begin
        self._used = np.zeros(0, np.bool_)
        for shard in self._tables.sparse():
            self._tables.fit(shard)
            yield _SLICE
        start = target = 0
        while True:
            start, target = b.slide(
                start,
                target,
                _SLICE,
                self._tables.entries,
                self._tables.list,
                self._counters,
                self._places.array,
                self._arena_words,
                self._arena.array,
            )
            if start >= self._counters[b.TOP]:
                break
            yield _SLICE
        self._counters[b.TOP] = target
        self._arena.resize(max(256, int(self._counters[b.TOP]) + b.SLACK))
        self._arena_words = _by_eight(self._arena.array)

    @property
    def nbytes(self) -> int:
        """Memory of the values and of the way to them."""
        return self._arena.nbytes + self._places.nbytes + self._tables.nbytes + self._counters.nbytes

    def check(self, numbers: npt.NDArray[np.int64]) -> None:
        """Raise AssertionError unless the invariants hold and these numbers have values."""
        self._tables.check()
        top = int(self._counters[b.NEXT_NUMBER])
        kept = np.flatnonzero(self._places.array[:top] >= 0)
        assert np.isin(numbers, kept).all(), "a key has a number without a value"
        assert len(kept) == int(self._counters[b.LIVE])
        assert self.encode(self.decode(kept, None), add=False).tolist() == kept.tolist(), "values are not found"
        free, link = [], int(self._counters[b.FREE_NUMBER])
        while link >= 0:
            free.append(link)
            link = -2 - int(self._places.array[link])
        assert sorted([*kept.tolist(), *free]) == list(range(top)), "numbers are lost, or both free and in use"


def _by_eight(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """An array whose i-th element is the eight bytes from byte i on."""
    words: npt.NDArray[np.void] = np.ndarray((len(data) - 7,), _WORD, buffer=data, strides=(1,))
    return words
