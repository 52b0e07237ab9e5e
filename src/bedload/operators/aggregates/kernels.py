"""The loops of the aggregates, compiled: one pass over a batch, updating the state of each row's slot.

Arguments are alike in all of them: ``slots[i]`` is the slot of row ``i``, ``values[i]`` its value, ``ok[i]`` False
where that is null; then come the arrays of the state, by slot, with their masks. State that is null is zero underneath:
new slots start so, and nulls are written so.

Values come as 64-bit integers, doubles or booleans only (see :mod:`~bedload.operators.aggregates.carriers`), always
read-only and with a mask: so each kernel is compiled once or twice, not for every type and layout that Arrow has.
Kernels that only copy values take wide decimals, too; all other work on those is in
:mod:`~bedload.operators.aggregates.decimal_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bedload.store.columns.compiling import jit


@jit
def above(a: Any, b: Any) -> Any:
    """Whether a is larger than b, as Spark orders: NaN is larger than any number, and -0.0 is 0.0."""
    return a > b or (a != a and b == b)


@jit
def count_rows(slots: Any, counts: Any) -> None:
    """Count rows."""
    for i in range(slots.shape[0]):
        counts[slots[i]] += 1


@jit
def count_valid(slots: Any, ok: Any, counts: Any) -> None:
    """Count what is not null."""
    for i in range(slots.shape[0]):
        counts[slots[i]] += np.int64(ok[i])


@jit
def add_counts(slots: Any, more: Any, counts: Any) -> None:
    """Add counts that were made elsewhere; a slot may occur more than once."""
    for i in range(slots.shape[0]):
        counts[slots[i]] += more[i]


@jit
def add_integers(slots: Any, values: Any, ok: Any, sums: Any, valid: Any) -> int:
    """Sums of integers. Returns the row at which one did not fit any more, or -1."""
    for i in range(slots.shape[0]):
        if ok[i]:
            slot = slots[i]
            held, value = sums[slot], values[i]
            total = held + value
            if (held ^ total) & (value ^ total) < 0:
                return i
            sums[slot] = total
            valid[slot] = True
    return -1


@jit
def add_doubles(slots: Any, values: Any, ok: Any, sums: Any, valid: Any) -> None:
    """Sums of doubles."""
    for i in range(slots.shape[0]):
        if ok[i]:
            slot = slots[i]
            sums[slot] += values[i]
            valid[slot] = True


@jit
def add_moments(slots: Any, values: Any, ok: Any, counts: Any, means: Any, squares: Any) -> None:
    """Count, mean and sum of squared differences from it (Welford)."""
    for i in range(slots.shape[0]):
        if ok[i]:
            # Loads before stores: for all that the compiler knows the arrays overlap, and it would load again.
            slot, value = slots[i], values[i]
            count, mean, square = counts[slot] + 1, means[slot], squares[slot]
            delta = value - mean
            mean += delta / count
            square += delta * (value - mean)
            counts[slot], means[slot], squares[slot] = count, mean, square


@jit
def merge_moments(
    slots: Any, more: Any, their_means: Any, their_squares: Any, counts: Any, means: Any, squares: Any
) -> None:
    """Join the moments of two sets of rows (Chan)."""
    for i in range(slots.shape[0]):
        slot, theirs = slots[i], more[i]
        if theirs > 0:
            ours = counts[slot]
            if ours == 0:
                # Not by the formula below: the square of a large mean is infinite, and nought times that is NaN.
                means[slot], squares[slot] = their_means[i], their_squares[i]
            else:
                delta = their_means[i] - means[slot]
                total = np.float64(ours + theirs)
                means[slot] += delta * theirs / total
                squares[slot] += their_squares[i] + delta * delta * ours * theirs / total
            counts[slot] = ours + theirs


@jit
def keep_largest(slots: Any, values: Any, ok: Any, best: Any, valid: Any) -> None:
    """The largest value."""
    for i in range(slots.shape[0]):
        if ok[i]:
            slot = slots[i]
            if not valid[slot] or above(values[i], best[slot]):
                best[slot] = values[i]
                valid[slot] = True


@jit
def keep_smallest(slots: Any, values: Any, ok: Any, best: Any, valid: Any) -> None:
    """The smallest value."""
    for i in range(slots.shape[0]):
        if ok[i]:
            slot = slots[i]
            if not valid[slot] or above(best[slot], values[i]):
                best[slot] = values[i]
                valid[slot] = True


@jit
def keep_any(slots: Any, values: Any, ok: Any, held: Any, valid: Any) -> None:
    """Whether one is true."""
    for i in range(slots.shape[0]):
        if ok[i]:
            slot = slots[i]
            # Bits and not `or`: which way a branch goes here cannot be foreseen.
            held[slot] |= values[i]
            valid[slot] = True


@jit
def keep_all(slots: Any, values: Any, ok: Any, held: Any, valid: Any) -> None:
    """Whether none is false."""
    for i in range(slots.shape[0]):
        if ok[i]:
            slot = slots[i]
            held[slot] = values[i] & (held[slot] | (not valid[slot]))
            valid[slot] = True


@jit
def keep_last(slots: Any, values: Any, ok: Any, ignore_nulls: bool, held: Any, valid: Any) -> None:
    """The last value, or the last one that is not null."""
    for i in range(slots.shape[0]):
        if ok[i] or not ignore_nulls:
            held[slots[i]] = values[i]
            valid[slots[i]] = ok[i]


@jit
def first_rows(slots: Any, ok: Any, seen: Any, rows: Any) -> int:
    """List the rows that are the first ones of their slots, and mark the slots as seen."""
    found = 0
    for i in range(slots.shape[0]):
        if ok[i] and not seen[slots[i]]:
            seen[slots[i]] = True
            rows[found] = i
            found += 1
    return found


@jit
def winning_rows(slots: Any, by: Any, ok: Any, best: Any, valid: Any, largest: bool, rows: Any) -> int:
    """List, in order, the rows that win over what their slot holds, or draw with it; keep what they won with."""
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
def last_best_bytes(groups: Any, data: Any, starts: Any, lengths: Any, ok: Any, largest: bool, rows: Any) -> None:
    """For each group of a batch the last one of its best rows, -1 if it has none that counts.

    Values are strings of bytes, which lie in ``data``.
    """
    for i in range(groups.shape[0]):
        if ok[i]:
            row = rows[groups[i]]
            if row < 0 or not (
                _bytes_above(data, starts, lengths, row, i) if largest else _bytes_above(data, starts, lengths, i, row)
            ):
                rows[groups[i]] = i


@jit
def _bytes_above(data: Any, starts: Any, lengths: Any, a: int, b: int) -> Any:
    for i in range(min(lengths[a], lengths[b])):
        x, y = data[starts[a] + i], data[starts[b] + i]
        if x != y:
            return x > y
    return lengths[a] > lengths[b]
