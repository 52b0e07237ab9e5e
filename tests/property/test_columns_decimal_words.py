"""Arithmetic on the words of decimals, against Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from bedload.operators.aggregates import decimals
from bedload.operators.aggregates.batch import Batch
from bedload.store.columns.compiling import read_only
from bedload.store.columns.layout import WIDE, arrow_of

KEYS = 3


def near(bound: int) -> st.SearchStrategy[int]:
    """Numbers within a bound, many of them at words' ends."""
    edges = [n for e in (0, 31, 32, 63, 64, 96, 126) for n in (2**e - 1, 2**e, 2**e + 1) if n <= bound]
    return st.one_of(
        st.integers(-bound, bound), st.sampled_from([*edges, *(-n for n in edges)]), st.integers(bound - 9, bound)
    )


def words(numbers: list[int]) -> Any:
    return np.array([(n & (2**64 - 1), n >> 64) for n in numbers], WIDE)


def number(word: Any) -> int:
    return (int(word["high"]) << 64) | int(word["low"]) if word.dtype == WIDE else int(word)


def column(numbers: list[int | None], kind: pa.DataType) -> pa.Array:
    valid = np.array([n is not None for n in numbers], bool)
    return arrow_of(words([n or 0 for n in numbers]), valid, kind)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[list[tuple[int, int | None]]]]:
    """The digits of a sum, and batches of rows: which sum, and what is added."""
    digits = draw(st.sampled_from([18, 19, 20, 28, 37, 38]))
    row = st.tuples(st.integers(0, KEYS - 1), st.none() | near(10**digits - 1))
    return digits, draw(st.lists(st.lists(row, min_size=1, max_size=20), min_size=1, max_size=3))


@given(batches())
def test_sums_are_those_of_integers_and_the_first_that_does_not_fit_is_found(case: Any) -> None:
    digits, rounds = case
    kind = pa.decimal128(digits, 0)
    sums: Any = np.zeros(KEYS, np.int64 if digits <= 18 else WIDE)
    valid = np.zeros(KEYS, bool)
    exact, seen = [0] * KEYS, [False] * KEYS
    for rows in rounds:
        slots = read_only(np.array([slot for slot, _ in rows]), np.int64)
        batch = Batch(slots, [column([x for _, x in rows], kind)], ["x"])
        found = decimals.add(batch, 0, kind, sums, valid)
        for slot, x in rows:
            if x is not None:
                exact[slot] += x
                seen[slot] = True
        beyond = [i for i, (slot, _) in enumerate(rows) if abs(exact[slot]) >= 10**digits]
        assert found == (beyond[0] if beyond else -1)
        if beyond:
            return
        assert [number(s) for s in sums] == exact
        assert valid.tolist() == seen


@given(near(10**38 - 1), st.integers(1, 2**63 - 1) | st.integers(1, 9), st.integers(0, 4))
@example(10**38 - 1, 2**63 - 1, 4)
@example(-(10**38 - 1), 2**32 - 1, 4)
@example(2**127 - 1 - 2**90, 2**32, 3)
def test_means_are_exact_quotients_rounded_half_up(total: int, count: int, more_digits: int) -> None:
    kind = pa.decimal128(38, more_digits)
    means, row = decimals.divide(words([7, total, total]), np.array([7, count, 0]), more_digits, kind)
    exact = (2 * abs(total) * 10**more_digits + count) // (2 * count)
    if exact >= 10**38:
        assert row == 1
    else:
        assert row == -1
        assert [number(mean) for mean in means] == [10**more_digits, -exact if total < 0 else exact, 0]
