"""The loops of the column store, compiled: find and insert keys, free slots, move hash tables.

A table is a handful of arrays that Python owns and kernels fill; see :class:`~bedload.store.columns.index.KeyIndex`
and :class:`~bedload.store.columns.hash_tables.HashTables` for what each holds. A kernel never makes room: when an
array is full it returns how far it came and what it needs, Python makes room, and the kernel goes on from there.

Why compiled: at a million keys the work per row is a few cache misses. In NumPy it would be several passes over the
batch, and probing has no vectorised form at all. Why in chunks of rows: the loads of the first passes over a chunk do
not wait for one another, so the misses of many rows overlap; the last pass then finds everything in the cache.

Why one file: compiled code is kept on disk by the content of its file alone, so a kernel may call only what is in its
own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bedload.store.columns.compiling import jit

CHUNK = 128
"""Rows whose cache misses overlap."""
BATCH = 256
"""New keys that are put in together."""
SMALL = 16384
"""Up to this many keys all is in the cache, and the passes ahead do not pay."""

NEED_SLOTS, NEED_TABLE, KNOWN = 1, 2, 3
"""Why :func:`locate` or :func:`insert` stopped; the last one: a key is there already, which must be new.

Which table is full is among the counters."""

# Positions in the index's counters.
NEXT_BLOCK, FREE_BLOCKS, LIVE, TOUCHED, BLOCK, UNUSED, RUNS, FULL = 0, 1, 2, 3, 4, 5, 6, 7
# Columns of the hash tables' list: where, entries, entries in use, and how many may be.
OFFSET, CAPACITY, USED, LIMIT = 0, 1, 2, 3
# Columns of the list of key groups: slots that were not given out yet, the first free one, and how many have a key.
NEXT_SLOT, SLOTS_LEFT, FREE, KEYS = 0, 1, 2, 3
# Columns of the roots: where the list of a key group's tables begins, and how many bits of a hash do not choose one.
FIRST, SHIFT = 0, 1

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
def split(entries: Any, old: int, capacity: int, low: int, high: int, bit: int) -> int:
    """Fill two new tables with the entries of an old one, by a bit of their hashes; how many went to the second."""
    entries[low : low + capacity] = 0
    entries[high : high + capacity] = 0
    mask = capacity - 1
    count = 0
    for i in range(old, old + capacity):
        entry = entries[i]
        if entry != 0:
            upper = (entry >> (32 + bit)) & 1
            new = high if upper else low
            at = (entry >> 32) & mask
            while entries[new + at] != 0:
                at = (at + 1) & mask
            entries[new + at] = entry
            count += upper
    return count


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
    roots: Any,
    directory: Any,
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
    table_of = np.empty(CHUNK, np.int64)
    first = np.empty(CHUNK, np.int64)
    chunk = begin
    while chunk < rows:
        count = min(CHUNK, rows - chunk)
        for i in range(count):
            group = of_group[chunk + i]
            tags[i] = tag_of(words, chunk + i, width)
            table_of[i] = directory[roots[group, FIRST] + (tags[i] >> roots[group, SHIFT])]
        if counters[LIVE] > SMALL:
            for i in range(count):
                table = table_of[i]
                at = tags[i] & (tables[table, CAPACITY] - 1) if tables[table, CAPACITY] else 0
                first[i] = entries[tables[table, OFFSET] + at]
            seen = np.int64(0)
            for i in range(count):
                slot = max((first[i] & _LOW) - 1, 0)
                seen ^= keys[slot, 0] ^ mark[slot]
            counters[UNUSED] = seen  # or the compiler would drop the loads
        for i in range(count):
            row = chunk + i
            group, tag, table = of_group[row], tags[i], table_of[i]
            offset, mask = tables[table, OFFSET], tables[table, CAPACITY] - 1
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
            if tables[table, USED] >= tables[table, LIMIT]:
                counters[FULL] = table
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
            tables[table, USED] += 1
            groups[group, KEYS] += 1
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
    spans: Any,
    begin: int,
    entries: Any,
    tables: Any,
    roots: Any,
    directory: Any,
    groups: Any,
    counters: Any,
    keys: Any,
    owner: Any,
    free_blocks: Any,
    runs: Any,
) -> tuple[int, int]:
    """Put keys in that are new, each once, and that no epoch touches: rows of ``spans`` (group, first, end) in order.

    Where they lie goes into ``runs`` (slot, row, length), of which the counters know how many there are. It stops
    after a key that is there already; all keys up to where it stopped are in then.
    """
    rows, width = words.shape
    flat = words.reshape(rows * width)
    tags = np.empty(BATCH, np.int64)
    home = np.empty(BATCH, np.int64)
    slot_of = np.empty(BATCH, np.int64)
    late = np.empty(BATCH, np.int64)
    row: Any = begin
    for span in range(spans.shape[0]):
        group, end = spans[span, 0], spans[span, 2]
        while row < end:
            size = min(BATCH, end - row)
            if width == 1:
                for i in range(size):  # as in tag_of: like this it is done for many at a time
                    h = (_C1 ^ np.uint64(flat[row + i])) * _C2
                    h = (h ^ (h >> _S27)) * _C3
                    tags[i] = np.int64((h ^ (h >> _S31)) >> _S33)
            else:
                for i in range(size):
                    tags[i] = tag_of(words, row + i, width)
            # As many as their tables have room for.
            shift, root = roots[group, SHIFT], roots[group, FIRST]
            table = np.int64(directory[root])
            if shift == 31:
                size = min(size, tables[table, LIMIT] - tables[table, USED])
                offset, mask = tables[table, OFFSET], tables[table, CAPACITY] - 1
                for i in range(size):
                    home[i] = offset + (tags[i] & mask)
                tables[table, USED] += size
            else:
                for i in range(size):
                    table = np.int64(directory[root + (tags[i] >> shift)])
                    if tables[table, USED] >= tables[table, LIMIT]:
                        size = i
                        break
                    home[i] = tables[table, OFFSET] + (tags[i] & (tables[table, CAPACITY] - 1))
                    tables[table, USED] += 1
            if size == 0:
                counters[FULL] = table
                return row, NEED_TABLE
            # As many as there are slots for.
            done = np.int64(0)
            while done < size:
                first = groups[group, FREE]
                if first >= 0:
                    groups[group, FREE] = keys[first, 0]
                    count = np.int64(1)
                else:
                    if groups[group, SLOTS_LEFT] == 0:
                        blocks = np.int64(1)
                        if counters[FREE_BLOCKS] > 0:
                            counters[FREE_BLOCKS] -= 1
                            block = np.int64(free_blocks[counters[FREE_BLOCKS]])
                        else:
                            block = counters[NEXT_BLOCK]
                            if block >= owner.shape[0]:
                                break
                            # All of the span that can be: so that its keys lie side by side.
                            blocks = (end - row - done + counters[BLOCK] - 1) // counters[BLOCK]
                            blocks = min(blocks, owner.shape[0] - block)
                            counters[NEXT_BLOCK] = block + blocks
                        for b in range(block, block + blocks):
                            owner[b] = group
                        groups[group, NEXT_SLOT] = block * counters[BLOCK]
                        groups[group, SLOTS_LEFT] = blocks * counters[BLOCK]
                    first = groups[group, NEXT_SLOT]
                    count = min(size - done, groups[group, SLOTS_LEFT])
                    groups[group, NEXT_SLOT] = first + count
                    groups[group, SLOTS_LEFT] -= count
                keys[first : first + count] = words[row + done : row + done + count]
                for i in range(count):
                    slot_of[done + i] = first + i
                last = counters[RUNS] - 1
                if last >= 0 and runs[0, last] + runs[2, last] == first:
                    runs[2, last] += count
                else:
                    runs[0, last + 1], runs[1, last + 1], runs[2, last + 1] = first, row + done, count
                    counters[RUNS] = last + 2
                done += count
            for i in range(done, size):
                tables[directory[root + (tags[i] >> shift)], USED] -= 1
            if done == 0:
                return row, NEED_SLOTS
            # Most keys find their place empty. Nothing depends on which do: a wrong guess would cost more.
            lates = 0
            for i in range(done):
                at = home[i]
                there = entries[at]
                entries[at] = (tags[i] << 32) | (slot_of[i] + 1) if there == 0 else there
                late[lates] = i
                lates += there != 0
            known = False
            for j in range(lates):
                i = late[j]
                tag = tags[i]
                table = np.int64(directory[root + (tag >> shift)])
                offset, mask = tables[table, OFFSET], tables[table, CAPACITY] - 1
                at = tag & mask
                there = entries[offset + at]
                while there != 0:
                    if there >> 32 == tag and _same(keys, (there & _LOW) - 1, words, row + i, width):
                        known = True
                    at = (at + 1) & mask
                    there = entries[offset + at]
                entries[offset + at] = (tag << 32) | (slot_of[i] + 1)
            groups[group, KEYS] += done
            counters[LIVE] += done
            row += done
            if known:
                return row, KNOWN
    return row, 0


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
def find(
    words: Any, of_group: Any, entries: Any, tables: Any, roots: Any, directory: Any, keys: Any, slots: Any
) -> None:
    """Fill ``slots`` with the slot of each key, -1 for keys that are not there."""
    rows, width = words.shape
    for row in range(rows):
        group = of_group[row]
        tag = tag_of(words, row, width)
        table = directory[roots[group, FIRST] + (tag >> roots[group, SHIFT])]
        offset, mask = tables[table, OFFSET], tables[table, CAPACITY] - 1
        slots[row] = -1
        if mask < 0:
            continue
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
def remove(
    slots: Any,
    entries: Any,
    tables: Any,
    roots: Any,
    directory: Any,
    groups: Any,
    counters: Any,
    keys: Any,
    owner: Any,
) -> int:
    """Take keys out of the index and put their slots on their group's free list; how many it took.

    It stops at a slot that holds no key.
    """
    count: int = slots.shape[0]
    width = keys.shape[1]
    for i in range(count):
        slot = slots[i]
        group = owner[slot // counters[BLOCK]]
        if group < 0:
            return i
        tag = tag_of(keys, slot, width)
        table = directory[roots[group, FIRST] + (tag >> roots[group, SHIFT])]
        offset, mask = tables[table, OFFSET], tables[table, CAPACITY] - 1
        if mask < 0:
            return i
        at = tag & mask
        while entries[offset + at] & _LOW != slot + 1:
            if entries[offset + at] == 0:
                return i
            at = (at + 1) & mask
        _erase(entries, offset, mask, at)
        tables[table, USED] -= 1
        groups[group, KEYS] -= 1
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
