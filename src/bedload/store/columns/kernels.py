"""The loops of the column store, compiled: find and insert keys, free slots, move hash tables.

A table is a handful of arrays that Python owns and kernels fill; see :class:`~bedload.store.columns.index.KeyIndex`
and :class:`~bedload.store.columns.hash_tables.HashTables` for what each holds. A kernel never makes room: when an
array is full it returns how far it came and what it needs, Python makes room, and the kernel goes on from there.

Why compiled: at a million keys the work per row is a few cache misses. In NumPy it would be several passes over the
batch, and probing has no vectorised form at all. Why in chunks of rows: the loads of the first passes over a chunk do
not wait for one another, so the misses of many rows overlap; the last pass then finds everything in the cache.

Compiled code is kept on disk, by the content of this file alone: a kernel may call only what is in its own file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bedload.store.columns.compiling import jit

CHUNK = 128
"""Rows whose cache misses overlap."""
SMALL = 16384
"""Up to this many keys all is in the cache, and the passes ahead do not pay."""

NEED_SLOTS, NEED_TABLE, KNOWN = 1, 2, 3
"""Why :func:`locate` or :func:`insert` stopped; the last one: a key is there already, which must be new."""

# Positions in the index's counters.
NEXT_BLOCK, FREE_BLOCKS, LIVE, TOUCHED, BLOCK, UNUSED = 0, 1, 2, 3, 4, 5
# Columns of the hash tables' list: where, entries, entries in use, and how many may be.
OFFSET, CAPACITY, USED, LIMIT = 0, 1, 2, 3
# Columns of the list of key groups.
NEXT_SLOT, SLOTS_LEFT, FREE = 0, 1, 2

_C1 = np.uint64(0x9E3779B97F4A7C15)
_C2 = np.uint64(0xBF58476D1CE4E5B9)
_C3 = np.uint64(0x94D049BB133111EB)
_S27, _S31, _S33 = np.uint64(27), np.uint64(31), np.uint64(33)
_LOW = np.int64(0xFFFFFFFF)


@jit
def tag_of(words: Any, row: int, width: int) -> Any:
    """31 bits of hash. Not Spark's hash: that one chose the key group, so part of it is spent."""
    h = _C1
    for w in range(width):
        h = (h ^ np.uint64(words[row, w])) * _C2
        h = (h ^ (h >> _S27)) * _C3
        h = h ^ (h >> _S31)
    return np.int64(h >> _S33)


@jit
def rehash(entries: Any, old: int, old_capacity: int, new: int, new_capacity: int) -> None:
    """Fill a new table with the entries of an old one. An entry says itself where it wants to be."""
    entries[new : new + new_capacity] = 0
    mask = new_capacity - 1
    for i in range(old, old + old_capacity):
        entry = entries[i]
        if entry != 0:
            at = (entry >> 32) & mask
            while entries[new + at] != 0:
                at = (at + 1) & mask
            entries[new + at] = entry


@jit
def _erase(entries: Any, offset: int, mask: int, at: int) -> None:
    """Empty a place, moving back what had to step over it: so there are no tombstones."""
    hole = at
    here = (at + 1) & mask
    while entries[offset + here] != 0:
        entry = entries[offset + here]
        if (here - (entry >> 32)) & mask >= (here - hole) & mask:
            entries[offset + hole] = entry
            hole = here
        here = (here + 1) & mask
    entries[offset + hole] = 0


@jit
def _same(keys: Any, slot: int, words: Any, row: int, width: int) -> bool:
    for w in range(width):  # noqa: SIM110 - a generator compiles to something slower
        if keys[slot, w] != words[row, w]:
            return False
    return True


@jit
def locate(
    words: Any,
    of_group: Any,
    begin: int,
    entries: Any,
    tables: Any,
    groups: Any,
    counters: Any,
    keys: Any,
    owner: Any,
    free_blocks: Any,
    mark: Any,
    touched: Any,
    fresh: Any,
    slots: Any,
) -> tuple[int, int]:
    """Fill ``slots`` with the slot of each row's key from row ``begin`` on, making slots for new keys.

    Slots that the epoch meets for the first time go on the list of touched ones. Returns how far it came and
    why it stopped (0: at the end).
    """
    rows, width = words.shape
    tags = np.empty(CHUNK, np.int64)
    first = np.empty(CHUNK, np.int64)
    chunk = begin
    while chunk < rows:
        count = min(CHUNK, rows - chunk)
        for i in range(count):
            tags[i] = tag_of(words, chunk + i, width)
        if counters[LIVE] > SMALL:
            for i in range(count):
                group = of_group[chunk + i]
                at = tags[i] & (tables[group, CAPACITY] - 1) if tables[group, CAPACITY] else 0
                first[i] = entries[tables[group, OFFSET] + at]
            seen = np.int64(0)
            for i in range(count):
                slot = max((first[i] & _LOW) - 1, 0)
                seen ^= keys[slot, 0] ^ mark[slot]
            counters[UNUSED] = seen  # or the compiler would drop the loads
        for i in range(count):
            row = chunk + i
            group, tag = of_group[row], tags[i]
            offset, mask = tables[group, OFFSET], tables[group, CAPACITY] - 1
            found = np.int64(-1)
            at = np.int64(0)
            if mask >= 0:
                at = tag & mask
                while True:
                    entry = entries[offset + at]
                    if entry == 0:
                        break
                    if entry >> 32 == tag:
                        slot = (entry & _LOW) - 1
                        if _same(keys, slot, words, row, width):
                            found = slot
                            break
                    at = (at + 1) & mask
            place = counters[TOUCHED]
            if found >= 0:
                if mark[found] == 0:
                    mark[found] = place + 1
                    touched[place] = found
                    fresh[place] = 0
                    counters[TOUCHED] = place + 1
                slots[row] = found
                continue
            if tables[group, USED] >= tables[group, LIMIT]:
                return row, NEED_TABLE
            found = groups[group, FREE]
            if found >= 0:
                groups[group, FREE] = keys[found, 0]
            else:
                if groups[group, SLOTS_LEFT] == 0:
                    if counters[FREE_BLOCKS] > 0:
                        counters[FREE_BLOCKS] -= 1
                        block = np.int64(free_blocks[counters[FREE_BLOCKS]])
                    else:
                        block = counters[NEXT_BLOCK]
                        if block >= owner.shape[0]:
                            return row, NEED_SLOTS
                        counters[NEXT_BLOCK] = block + 1
                    owner[block] = group
                    groups[group, NEXT_SLOT] = block * counters[BLOCK]
                    groups[group, SLOTS_LEFT] = counters[BLOCK]
                found = groups[group, NEXT_SLOT]
                groups[group, NEXT_SLOT] = found + 1
                groups[group, SLOTS_LEFT] -= 1
            for w in range(width):
                keys[found, w] = words[row, w]
            entries[offset + at] = (tag << 32) | (found + 1)
            tables[group, USED] += 1
            counters[LIVE] += 1
            mark[found] = place + 1
            touched[place] = found
            fresh[place] = 1
            counters[TOUCHED] = place + 1
            slots[row] = found
        chunk += count
    return rows, 0


@jit
def insert(
    words: Any,
    of_group: Any,
    begin: int,
    entries: Any,
    tables: Any,
    groups: Any,
    counters: Any,
    keys: Any,
    owner: Any,
    free_blocks: Any,
    slots: Any,
) -> tuple[int, int]:
    """The same for keys that are new, and that no epoch touches; it stops at one that is there already."""
    rows, width = words.shape
    tags = np.empty(CHUNK, np.int64)
    chunk = begin
    while chunk < rows:
        count = min(CHUNK, rows - chunk)
        seen = np.int64(0)
        for i in range(count):
            group = of_group[chunk + i]
            tags[i] = tag_of(words, chunk + i, width)
            if tables[group, CAPACITY]:
                seen ^= entries[tables[group, OFFSET] + (tags[i] & (tables[group, CAPACITY] - 1))]
        counters[UNUSED] = seen
        for i in range(count):
            row = chunk + i
            group, tag = of_group[row], tags[i]
            offset, mask = tables[group, OFFSET], tables[group, CAPACITY] - 1
            at = tag & mask
            entry: Any = entries[offset + at] if mask >= 0 else np.int64(0)
            while entry != 0:
                if entry >> 32 == tag and _same(keys, (entry & _LOW) - 1, words, row, width):
                    return row, KNOWN
                at = (at + 1) & mask
                entry = entries[offset + at]
            if tables[group, USED] >= tables[group, LIMIT]:
                return row, NEED_TABLE
            # As in locate: a call would cost more than all of this, as it counts references to the arrays.
            found = groups[group, FREE]
            if found >= 0:
                groups[group, FREE] = keys[found, 0]
            else:
                if groups[group, SLOTS_LEFT] == 0:
                    if counters[FREE_BLOCKS] > 0:
                        counters[FREE_BLOCKS] -= 1
                        block = np.int64(free_blocks[counters[FREE_BLOCKS]])
                    else:
                        block = counters[NEXT_BLOCK]
                        if block >= owner.shape[0]:
                            return row, NEED_SLOTS
                        counters[NEXT_BLOCK] = block + 1
                    owner[block] = group
                    groups[group, NEXT_SLOT] = block * counters[BLOCK]
                    groups[group, SLOTS_LEFT] = counters[BLOCK]
                found = groups[group, NEXT_SLOT]
                groups[group, NEXT_SLOT] = found + 1
                groups[group, SLOTS_LEFT] -= 1
            for w in range(width):
                keys[found, w] = words[row, w]
            entries[offset + at] = (tag << 32) | (found + 1)
            tables[group, USED] += 1
            counters[LIVE] += 1
            slots[row] = found
        chunk += count
    return rows, 0


@jit
def copy_runs(source: Any, source_at: Any, target: Any, target_at: Any, lengths: Any, size: int) -> None:
    """Copy runs of values of ``size`` bytes; both arrays are given as bytes, and places in values."""
    for i in range(lengths.shape[0]):
        count = lengths[i] * size
        of, to = source_at[i] * size, target_at[i] * size
        # SUBTLE: of slices the compiler makes wide moves. With sums as indices it does not: ten times as slow.
        one, other = source[of : of + count], target[to : to + count]
        for j in range(count):
            other[j] = one[j]


@jit
def find(words: Any, of_group: Any, entries: Any, tables: Any, keys: Any, slots: Any) -> None:
    """Fill ``slots`` with the slot of each key, -1 for keys that are not there."""
    rows, width = words.shape
    for row in range(rows):
        group = of_group[row]
        offset, mask = tables[group, OFFSET], tables[group, CAPACITY] - 1
        slots[row] = -1
        if mask < 0:
            continue
        tag = tag_of(words, row, width)
        at = tag & mask
        while True:
            entry = entries[offset + at]
            if entry == 0:
                break
            if entry >> 32 == tag:
                slot = (entry & _LOW) - 1
                if _same(keys, slot, words, row, width):
                    slots[row] = slot
                    break
            at = (at + 1) & mask


@jit
def remove(slots: Any, entries: Any, tables: Any, groups: Any, counters: Any, keys: Any, owner: Any) -> int:
    """Take keys out of the index and put their slots on their group's free list; how many it took.

    It stops at a slot that holds no key.
    """
    count: int = slots.shape[0]
    width = keys.shape[1]
    for i in range(count):
        slot = slots[i]
        group = owner[slot // counters[BLOCK]]
        if group < 0 or tables[group, CAPACITY] == 0:
            return i
        offset, mask = tables[group, OFFSET], tables[group, CAPACITY] - 1
        at = tag_of(keys, slot, width) & mask
        while entries[offset + at] & _LOW != slot + 1:
            if entries[offset + at] == 0:
                return i
            at = (at + 1) & mask
        _erase(entries, offset, mask, at)
        tables[group, USED] -= 1
        counters[LIVE] -= 1
        keys[slot, 0] = groups[group, FREE]
        groups[group, FREE] = slot
    return count


@jit
def slots_in(entries: Any, offset: int, capacity: int, slots: Any) -> None:
    """Fill ``slots`` with those of one table, in the order of its entries."""
    count = 0
    for i in range(offset, offset + capacity):
        if entries[i] != 0:
            slots[count] = (entries[i] & _LOW) - 1
            count += 1
