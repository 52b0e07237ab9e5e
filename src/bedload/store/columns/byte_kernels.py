"""The loops over bytes, compiled: find and keep strings, write them out again.

A kept string is four bytes of length and its bytes, somewhere in an arena. Arrow's and the arena's bytes are read
eight at a time, through arrays whose i-th element is the eight bytes from byte i on (``*_words``). They are records
of one field, because a record is read without the assumption that its place is a multiple of eight. See
:class:`~bedload.store.columns.interner.Interner` for the arrays.

Here, too, a kernel may call only what is in its own file: compiled code is kept by the content of this file alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bedload.store.columns.compiling import jit

SHARDS = 64
"""Hash tables that the strings are spread over, so that a table that grows is a small one."""
CHUNK = 128
SMALL = 16384
HEADER = 4
SLACK = 8
"""Bytes behind the last one of the arena that can be read."""

NEED_TABLE, NEED_NUMBERS, NEED_BYTES = 1, 2, 3
"""Why :func:`intern` stopped."""

# Positions in the interner's counters: the next new number, the first free one, the end of the arena, and what is kept.
NEXT_NUMBER, FREE_NUMBER, TOP, LIVE, LIVE_BYTES, UNUSED = 0, 1, 2, 3, 4, 5
_OFFSET, _CAPACITY, _USED, _LIMIT = 0, 1, 2, 3

_C1 = np.uint64(0x9E3779B97F4A7C15)
_C2 = np.uint64(0xBF58476D1CE4E5B9)
_C3 = np.uint64(0x94D049BB133111EB)
_S3, _S29, _S32, _S33 = np.uint64(3), np.uint64(29), np.uint64(32), np.uint64(33)
_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(8)], np.uint64)
"""Masks of the first so many bytes of a word."""
_SHARD_BITS = np.uint64(SHARDS - 1)
_LOW = np.int64(0xFFFFFFFF)


@jit
def _tail(words: Any, at: int, count: int) -> Any:
    """Up to seven bytes as a word, with zeros behind. Near the end of the data they are read from before."""
    begin = min(at, words.shape[0] - 1)
    return (words[begin].bits >> (np.uint64(at - begin) << _S3)) & _BYTES[count]


@jit
def _hash(words: Any, start: int, length: int) -> Any:
    h = _C1 ^ np.uint64(length)
    at, left = start, length
    while left >= 8:
        h = (h ^ words[at].bits) * _C2
        h = h ^ (h >> _S32)
        at += 8
        left -= 8
    if left > 0:
        h = (h ^ _tail(words, at, left)) * _C2
        h = h ^ (h >> _S32)
    h = h * _C3
    h = (h ^ (h >> _S29)) * _C2
    return h ^ (h >> _S32)


@jit
def _length(arena_words: Any, start: int) -> Any:
    return np.int64(arena_words[start].bits) & _LOW


@jit
def _same(words: Any, start: int, length: int, arena_words: Any, kept: int) -> bool:
    if _length(arena_words, kept) != length:
        return False
    at, other, left = start, kept + HEADER, length
    while left >= 8:
        if words[at].bits != arena_words[other].bits:
            return False
        at += 8
        other += 8
        left -= 8
    return left == 0 or _tail(words, at, left) == _tail(arena_words, other, left)


@jit
def _copy(words: Any, start: int, length: int, target: Any, to: int) -> None:
    """Copy bytes, eight at a time: up to seven more are written behind them."""
    left = length
    while left >= 8:
        target[to].bits = words[start].bits
        start += 8
        to += 8
        left -= 8
    if left > 0:
        target[to].bits = _tail(words, start, left)


@jit
def intern(
    words: Any,
    starts: Any,
    lengths: Any,
    valid: Any,
    begin: int,
    add: bool,
    entries: Any,
    tables: Any,
    counters: Any,
    places: Any,
    arena_words: Any,
    room: int,
    numbers: Any,
) -> tuple[int, int]:
    """Fill ``numbers`` with the number of each row's bytes from row ``begin`` on: 0 for nulls, -1 for unknown ones.

    If ``add``, unknown ones are kept and get a number. Returns how far it came and why it stopped (0: at the end).
    """
    rows = starts.shape[0]
    hashes = np.empty(CHUNK, np.uint64)
    first = np.empty(CHUNK, np.int64)
    chunk = begin
    while chunk < rows:
        count = min(CHUNK, rows - chunk)
        for i in range(count):
            row = chunk + i
            hashes[i] = _hash(words, starts[row], lengths[row]) if valid[row] else np.uint64(0)
        if counters[LIVE] > SMALL:
            # The loads of one pass do not wait for one another: the misses of many rows overlap.
            for i in range(count):
                shard = np.int64(hashes[i] & _SHARD_BITS)
                at = np.int64(hashes[i] >> _S33) & (tables[shard, _CAPACITY] - 1) if tables[shard, _CAPACITY] else 0
                first[i] = entries[tables[shard, _OFFSET] + at]
            for i in range(count):
                # Of another value nothing is looked at: most keys of a state that comes are new.
                alike = first[i] >> 32 == np.int64(hashes[i] >> _S33)
                first[i] = max(places[max((first[i] & _LOW) - 1, 0) if alike else 0], 0)
            seen = np.uint64(0)
            for i in range(count):
                seen ^= arena_words[first[i]].bits
            counters[UNUSED] = np.int64(seen)
        for i in range(count):
            row = chunk + i
            if not valid[row]:
                numbers[row] = 0
                continue
            start, length = starts[row], lengths[row]
            shard = np.int64(hashes[i] & _SHARD_BITS)
            tag = np.int64(hashes[i] >> _S33)
            offset, mask = tables[shard, _OFFSET], tables[shard, _CAPACITY] - 1
            found = np.int64(-1)
            at = np.int64(0)
            if mask >= 0:
                at = tag & mask
                while True:
                    entry = entries[offset + at]
                    if entry == 0:
                        break
                    if entry >> 32 == tag:
                        number = (entry & _LOW) - 1
                        if _same(words, start, length, arena_words, places[number]):
                            found = number
                            break
                    at = (at + 1) & mask
            if found < 0 and add:
                if tables[shard, _USED] >= tables[shard, _LIMIT]:
                    return row, NEED_TABLE
                top = counters[TOP]
                if top + HEADER + length + SLACK > room:
                    return row, NEED_BYTES
                found = counters[FREE_NUMBER]
                if found >= 0:
                    counters[FREE_NUMBER] = -2 - places[found]
                else:
                    found = counters[NEXT_NUMBER]
                    if found >= places.shape[0]:
                        return row, NEED_NUMBERS
                    counters[NEXT_NUMBER] = found + 1
                places[found] = top
                # A word at a time: what is written too much lies behind the end, where there is room for it.
                arena_words[top].bits = np.uint64(length)
                _copy(words, start, length, arena_words, top + HEADER)
                counters[TOP] = top + HEADER + length
                entries[offset + at] = (tag << 32) | (found + 1)
                tables[shard, _USED] += 1
                counters[LIVE] += 1
                counters[LIVE_BYTES] += HEADER + length
            numbers[row] = found
        chunk += count
    return rows, 0


@jit
def _find(start: int, entries: Any, tables: Any, places: Any, arena_words: Any) -> Any:
    """The shard of the value that is kept at a place, and where in it its entry is: -1 if it is forgotten."""
    h = _hash(arena_words, start + HEADER, _length(arena_words, start))
    shard = np.int64(h & _SHARD_BITS)
    tag = np.int64(h >> _S33)
    offset, mask = tables[shard, _OFFSET], tables[shard, _CAPACITY] - 1
    at = tag & mask
    while mask >= 0 and entries[offset + at] != 0:
        entry = entries[offset + at]
        if entry >> 32 == tag and places[(entry & _LOW) - 1] == start:
            return shard, at
        at = (at + 1) & mask
    return shard, np.int64(-1)


@jit
def forget(
    used: Any, begin: int, end: int, entries: Any, tables: Any, counters: Any, places: Any, arena_words: Any
) -> bool:
    """Forget the numbers of a range that are not used; False if a value is not where its hash says."""
    for number in range(begin, end):
        start = places[number]
        if start < 0 or used[number]:
            continue
        shard, hole = _find(start, entries, tables, places, arena_words)
        if hole < 0:
            return False
        offset, mask = tables[shard, _OFFSET], tables[shard, _CAPACITY] - 1
        here = (hole + 1) & mask
        while entries[offset + here] != 0:
            entry = entries[offset + here]
            if (here - (entry >> 32)) & mask >= (here - hole) & mask:
                entries[offset + hole] = entry
                hole = here
            here = (here + 1) & mask
        entries[offset + hole] = 0
        tables[shard, _USED] -= 1
        counters[LIVE] -= 1
        counters[LIVE_BYTES] -= HEADER + _length(arena_words, start)
        places[number] = -2 - counters[FREE_NUMBER]
        counters[FREE_NUMBER] = number
    return True


@jit
def slide(
    start: int,
    target: int,
    work: int,
    entries: Any,
    tables: Any,
    counters: Any,
    places: Any,
    arena_words: Any,
    arena: Any,
) -> tuple[int, int]:
    """Move the values from ``start`` on down to ``target``, without those that are forgotten, as far as ``work`` goes.

    Returns where the next value is and where it goes to; after the last one, the old and the new end of the arena.
    """
    while start < counters[TOP] and work > 0:
        size = HEADER + _length(arena_words, start)
        shard, at = _find(start, entries, tables, places, arena_words)
        if at >= 0:
            places[(entries[tables[shard, _OFFSET] + at] & _LOW) - 1] = target
            if start > target:
                for b in range(size):
                    arena[target + b] = arena[start + b]
            target += size
        start += size
        work -= 1 + (size >> 9)
    return start, target


@jit
def write(
    numbers: Any, null: Any, begin: int, width: int, places: Any, arena_words: Any, ends: Any, target: Any
) -> int:
    """Write the bytes of each number from row ``begin`` on one after another, and where they end.

    ``width``: of all values, 0 if each has its own. It stops before rows for which there is no room: how far it came.
    Where those end is known then.
    """
    rows: int = numbers.shape[0]
    starts = np.empty(CHUNK, np.int64)
    chunk = begin
    while chunk < rows:
        count = min(CHUNK, rows - chunk)
        for i in range(count):  # here and in the next pass the misses of many rows overlap
            starts[i] = places[numbers[chunk + i]] if not null[chunk + i] else 0
        end = ends[chunk]
        for i in range(count):
            if width > 0:
                end += width
            elif not null[chunk + i]:
                end += _length(arena_words, starts[i])
            ends[chunk + i + 1] = end
        if end >= target.shape[0]:
            return chunk
        for row in range(chunk, chunk + count):
            if not null[row]:
                _copy(arena_words, starts[row - chunk] + HEADER, ends[row + 1] - ends[row], target, ends[row])
        chunk += count
    return rows
