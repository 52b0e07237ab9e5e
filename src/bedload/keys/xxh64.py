"""XXH64 over whole columns: the hash function, and nothing about keys or types.

Invariant: for every row, the result is standard XXH64 of the row's bytes with the row's seed, as
unsigned 64-bit integers. Spark's ``hashInt``, ``hashLong`` and ``hashUnsafeBytes`` are the same function
over 4, 8 and any number of bytes.

Why not one call of the C library per row: that costs a Python loop, and two to three times the time for
short strings. Here each step of the algorithm runs over all rows of equal length at once. Seeds are
arrays throughout (of one element for a constant): NumPy warns of overflow for scalars, never for arrays,
and here overflow is the arithmetic.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

U64 = npt.NDArray[np.uint64]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_P1_PLUS_P2 = np.uint64((int(_P1) + int(_P2)) % 2**64)

_STRIPE = 32
_MAX_VECTOR_BYTES = 96
"""Longer values are hashed one by one: per byte the C library is faster than many NumPy steps."""
_MIN_ROWS_PER_BYTE = 16
"""Fewer rows of one length than this, times the length, do not pay for the fixed cost of the NumPy steps.
Measured to break even at 110 rows of 3 bytes, 380 of 31 and 1,600 of 95."""


def hash_ints(values: npt.NDArray[np.int32], seeds: U64) -> U64:
    """XXH64 of each value as 4 little-endian bytes."""
    h = _start(seeds, 4)
    return _avalanche(_mix4(h, values.view(np.uint32).astype(np.uint64)))


def hash_longs(values: npt.NDArray[np.int64], seeds: U64) -> U64:
    """XXH64 of each value as 8 little-endian bytes."""
    h = _start(seeds, 8)
    return _avalanche(_mix8(h, values.view(np.uint64)))


def hash_bytes(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seeds: U64,
) -> U64:
    """XXH64 of ``data[start : start + length]`` for each row."""
    n = len(starts)
    seeds = np.broadcast_to(seeds, (n,))
    if n == 0:
        return np.empty(0, np.uint64)
    longest = int(lengths.max())
    if longest == int(lengths.min()):
        return _hash_equal_length(data, starts, longest, seeds)
    out = np.empty(n, np.uint64)
    # A sort of 16-bit integers is a radix sort, twice as fast; clipped lengths all take the loop.
    clipped = np.minimum(lengths, _MAX_VECTOR_BYTES + 1).astype(np.uint16)
    order = np.argsort(clipped, kind="stable")
    bounds = np.flatnonzero(np.diff(clipped[order])) + 1
    for rows in np.split(order, bounds):
        length = int(clipped[rows[0]])
        if length > _MAX_VECTOR_BYTES:
            out[rows] = _hash_one_by_one(data, starts[rows], lengths[rows], seeds[rows])
        else:
            out[rows] = _hash_equal_length(data, starts[rows], length, seeds[rows])
    return out


def _hash_equal_length(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int, seeds: U64) -> U64:
    if length > _MAX_VECTOR_BYTES or len(starts) < _MIN_ROWS_PER_BYTE * (length + 4):
        return _hash_one_by_one(data, starts, np.full(len(starts), length, np.int64), seeds)
    at = 0
    if length >= _STRIPE:
        h, at = _stripes(data, starts, length, seeds)
        h += np.uint64(length)
    else:
        h = _start(seeds, length)
    while length - at >= 8:
        h = _mix8(h, _words(data, starts + at, 8))
        at += 8
    if length - at >= 4:
        h = _mix4(h, _words(data, starts + at, 4))
        at += 4
    while at < length:
        h = _rotate(h ^ (data[starts + at].astype(np.uint64) * _P5), 11) * _P1
        at += 1
    return _avalanche(h)


def _hash_one_by_one(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seeds: U64,
) -> U64:
    view = data.data
    digest = xxhash.xxh64_intdigest
    rows = zip(starts.tolist(), (starts + lengths).tolist(), seeds.tolist(), strict=True)
    return np.fromiter((digest(view[a:b], seed) for a, b, seed in rows), np.uint64, len(starts))


def _stripes(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int, seeds: U64) -> tuple[U64, int]:
    lanes = [seeds + _P1_PLUS_P2, seeds + _P2, seeds.copy(), seeds - _P1]
    at = 0
    while length - at >= _STRIPE:
        for i, lane in enumerate(lanes):
            lanes[i] = _round(lane, _words(data, starts + (at + 8 * i), 8))
        at += _STRIPE
    a, b, c, d = lanes
    h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    for lane in lanes:
        h = (h ^ _round(np.zeros(1, np.uint64), lane)) * _P1 + _P4
    return h, at


def _words(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], width: int) -> U64:
    # A view with a stride of one byte: word i is the little-endian word that starts at byte i.
    every: npt.NDArray[np.unsignedinteger] = np.ndarray(
        (len(data) - width + 1,), dtype=f"<u{width}", buffer=data, strides=(1,)
    )
    return every[at].astype(np.uint64, copy=False)


def _start(seeds: U64, length: int) -> U64:
    return seeds + np.uint64(int(_P5) + length)


def _round(lane: U64, word: U64) -> U64:
    return _rotate(lane + word * _P2, 31) * _P1


def _mix8(h: U64, word: U64) -> U64:
    return _rotate(h ^ (_rotate(word * _P2, 31) * _P1), 27) * _P1 + _P4


def _mix4(h: U64, word: U64) -> U64:
    return _rotate(h ^ (word * _P1), 23) * _P2 + _P3


def _rotate(h: U64, bits: int) -> U64:
    return (h << np.uint64(bits)) | (h >> np.uint64(64 - bits))


def _avalanche(h: U64) -> U64:
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    h ^= h >> np.uint64(32)
    return h
