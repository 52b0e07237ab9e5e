"""The compiled loops of :mod:`bedload.store.columns.compiled_entries`."""

from __future__ import annotations

from typing import Any

import numpy as np

from bedload.store.columns.compiling import jit, read_only

CHUNK = 128
"""Rows whose cache misses overlap."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_S32, _S33 = np.uint64(32), np.uint64(33)
_LOW = np.int64(0xFFFFFFFF)


@jit
def _tag(key: Any) -> Any:
    """31 bits, mixed again: all hashes of a key group have some bits in common."""
    h = np.uint64(key) * _MIX
    return np.int64((h ^ (h >> _S32)) * _MIX >> _S33)


@jit
def _home(key: Any, tag: int, homes: Any) -> Any:
    """Where a hash wants to be: each key group has a part of the table."""
    group = key % (homes.shape[0] - 1)
    return homes[group] + (tag * (homes[group + 1] - homes[group]) >> 31)


@jit
def insert(hashes: Any, begin: int, end: int, homes: Any, table: Any, shared: Any) -> int:
    """Put entries into the table, and mark those with a hash that is there already; how many were marked."""
    mask = table.shape[0] - 1
    marked = 0
    for entry in range(begin, end):
        tag = _tag(hashes[entry])
        at = _home(hashes[entry], tag, homes) & mask
        while table[at] != 0:
            if table[at] >> 32 == tag:
                other = (table[at] & _LOW) - 1
                if hashes[other] == hashes[entry]:
                    for twin in (other, entry):
                        marked += not shared[twin]
                        shared[twin] = True
            at = (at + 1) & mask
        table[at] = (tag << 32) | (entry + 1)
    return marked


@jit
def find(wanted: Any, hashes: Any, homes: Any, table: Any, seen: Any, several: bool, found: Any) -> int:
    """Fill ``found`` with the entries of these hashes, each once; how many there are.

    Unless ``several`` entries may have one hash, the first is all.
    """
    mask = table.shape[0] - 1
    rows = wanted.shape[0]
    tags = np.empty(CHUNK + 1, np.int64)
    home = np.empty(CHUNK, np.int64)
    first = np.empty(CHUNK, np.int64)
    count = 0
    for chunk in range(0, rows, CHUNK):
        size = min(CHUNK, rows - chunk)
        # The loads of one pass do not wait for one another: the misses of many rows overlap.
        for i in range(size):
            tags[i] = _tag(wanted[chunk + i])
            home[i] = _home(wanted[chunk + i], tags[i], homes) & mask
            first[i] = table[home[i]]
        ahead = np.int64(0)
        for i in range(size):
            entry = max((first[i] & _LOW) - 1, 0)
            ahead ^= hashes[entry] ^ seen[entry]
        tags[CHUNK] = ahead  # or the compiler would drop the loads
        for i in range(size):
            tag, at, here = tags[i], home[i], first[i]
            while here != 0:
                if here >> 32 == tag:
                    entry = (here & _LOW) - 1
                    if hashes[entry] == wanted[chunk + i]:
                        if not seen[entry]:
                            seen[entry] = True
                            found[count] = entry
                            count += 1
                        if not several:
                            break
                at = (at + 1) & mask
                here = table[at]
    for i in range(count):
        seen[found[i]] = False
    return count


__all__ = ["find", "insert", "read_only"]
