"""The loops over decimals, compiled. Arguments are those of :mod:`~bedload.operators.aggregates.kernels`.

A decimal is its unscaled value: 64 bits, or 128 bits in two words (:data:`~bedload.store.columns.layout.WIDE`). Values
are below ten to the power of their precision, so below 2**127: a sum of two of them may wrap around, once.

Sums may leave their range within a batch and come back to it. So a kernel goes on when one does, says that it happened,
and notes in ``carries`` the rows at which a sum wrapped around, and which way; the caller checks the sums at the end.

Why words: Numba has no 128-bit integers. Here, too, a kernel may call only what is in its own file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bedload.store.columns.compiling import jit

_ONE, _HALF = np.uint64(1), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_LIMBS = 6
_CHUNK = 128
_CACHED = 2**16
"""Sums up to so many are near enough: a megabyte of them."""


@jit
def above(a: Any, b: Any) -> Any:
    """Whether a is larger than b."""
    return a.high > b.high or (a.high == b.high and a.low > b.low)


@jit
def add_narrow(slots: Any, values: Any, ok: Any, limit: int, sums: Any, valid: Any, carries: Any) -> bool:
    """Sums of 64 bits. Returns whether one was not between minus limit and limit, at least for a while."""
    strayed = False
    for i in range(slots.shape[0]):
        if ok[i]:
            slot, more = slots[i], values[i]
            old = sums[slot]
            new = old + more
            if new >= limit or new <= -limit or ((old ^ new) & (more ^ new)) < 0:
                strayed = True
                if ((old ^ new) & (more ^ new)) < 0:
                    carries[i] = 1 if new < 0 else -1
            sums[slot] = new
            valid[slot] = True
    return strayed


@jit
def add_wide(
    slots: Any, values: Any, ok: Any, limits: Any, sums: Any, valid: Any, carries: Any
) -> tuple[bool, np.uint64]:
    """Sums of 128 bits; ``limits`` are the largest number that is too small and the smallest that is too large.

    Returns whether one was not between them, and what it read ahead, which means nothing.
    """
    strayed = False
    ahead = np.uint64(0)
    rows = slots.shape[0]
    floor_low, floor_high, limit_low, limit_high = limits[0].low, limits[0].high, limits[1].low, limits[1].high
    for begin in range(0, rows, _CHUNK):
        end = min(begin + _CHUNK, rows)
        if sums.shape[0] > _CACHED:
            # The steps below are many, so few rows are under way at once. These loads do not wait for one another.
            for i in range(begin, end):
                ahead ^= sums[slots[i]].low
        for i in range(begin, end):
            if ok[i]:
                slot = slots[i]
                # Loads before stores: for all that the compiler knows the arrays overlap, and it would load again.
                old_low, old_high = sums[slot].low, sums[slot].high
                more_low, more_high = values[i].low, values[i].high
                low = old_low + more_low
                high = old_high + more_high + np.int64(low < more_low)
                wrapped = ((old_high ^ high) & (more_high ^ high)) < 0
                if (
                    wrapped
                    or high > limit_high
                    or high < floor_high
                    or (high == limit_high and low >= limit_low)
                    or (high == floor_high and low <= floor_low)
                ):
                    strayed = True
                    if wrapped:
                        carries[i] = 1 if high < 0 else -1
                sums[slot].low = low
                sums[slot].high = high
                valid[slot] = True
    return strayed, ahead


@jit
def keep_best(slots: Any, values: Any, ok: Any, largest: bool, best: Any, valid: Any) -> None:
    """The largest or the smallest of 128 bits."""
    for i in range(slots.shape[0]):
        if ok[i]:
            slot = slots[i]
            if not valid[slot] or (above(values[i], best[slot]) if largest else above(best[slot], values[i])):
                best[slot] = values[i]
                valid[slot] = True


@jit
def winning_rows(slots: Any, by: Any, ok: Any, best: Any, valid: Any, largest: bool, rows: Any) -> int:
    """The kernel of that name, for 128 bits."""
    found = 0
    for i in range(slots.shape[0]):
        if ok[i]:
            slot = slots[i]
            loses = valid[slot] and (above(best[slot], by[i]) if largest else above(by[i], best[slot]))
            if not loses:
                best[slot] = by[i]
                valid[slot] = True
                rows[found] = i
                found += 1
    return found


@jit
def divide(totals: Any, counts: Any, factor: int, limits: Any, quotients: Any) -> int:
    """Each total times a factor of at most 2**32, divided by its count and rounded half up, as Spark does.

    Nothing where the count is nought. Returns the first place at which a quotient is beyond the limit, or -1.
    """
    limbs = np.zeros(_LIMBS, np.uint64)  # of 32 bits, the lowest first: a remainder and one more fit 64 bits
    limit_low, limit_high = limits[1].low, np.uint64(limits[1].high)
    for i in range(totals.shape[0]):
        if counts[i] == 0:
            continue
        low, high = totals[i].low, np.uint64(totals[i].high)
        negative = totals[i].high < 0
        if negative:
            low, high = ~low + _ONE, ~high + np.uint64(low == 0)
        limbs[0], limbs[1] = low & _LOW, low >> _HALF
        limbs[2], limbs[3] = high & _LOW, high >> _HALF
        limbs[4], limbs[5] = 0, 0
        carry = np.uint64(0)
        for j in range(_LIMBS):
            carry += limbs[j] * np.uint64(factor)
            limbs[j] = carry & _LOW
            carry >>= _HALF
        divisor = np.uint64(counts[i])
        rest = np.uint64(0)
        for j in range(_LIMBS - 1, -1, -1):
            if divisor <= _LOW:
                rest = (rest << _HALF) | limbs[j]
                if rest >= divisor:
                    limbs[j] = rest // divisor
                    rest = rest % divisor
                else:
                    limbs[j] = 0
            else:
                # So many rows that a remainder and 32 bits do not fit a word: bit by bit.
                limb, digits = limbs[j], np.uint64(0)
                for bit in range(31, -1, -1):
                    rest = (rest << _ONE) | ((limb >> np.uint64(bit)) & _ONE)
                    digits <<= _ONE
                    if rest >= divisor:
                        rest -= divisor
                        digits |= _ONE
                limbs[j] = digits
        carry = np.uint64(rest >= divisor - rest)
        for j in range(_LIMBS):
            carry += limbs[j]
            limbs[j] = carry & _LOW
            carry >>= _HALF
        low, high = limbs[0] | (limbs[1] << _HALF), limbs[2] | (limbs[3] << _HALF)
        beyond = high > limit_high or (high == limit_high and low >= limit_low)
        if beyond or limbs[4] != 0 or limbs[5] != 0:
            return i
        if negative:
            low, high = ~low + _ONE, ~high + np.uint64(low == 0)
        quotients[i].low = low
        quotients[i].high = np.int64(high)
    return -1
