"""Columns of many values at once: as if each had been encoded by itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload.core.errors import StateTypeError
from bedload.state.arrow import arrow_type, encode_all
from bedload.state.encoded import encoded_column
from bedload.state.types import ListNode, OptionalNode, ScalarNode, TupleNode

PAIRS = ListNode(TupleNode((OptionalNode(ScalarNode(int)), ScalarNode(str)), names=("n", "s")))
NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.lists(st.tuples(NUMBERS, st.text(max_size=3)), max_size=4), max_size=6), st.integers(0, 3))
def test_lists_of_tuples_are_as_one_by_one(values: list[list[tuple[Any, ...]]], more: int) -> None:
    alone = pa.array(encode_all(PAIRS, values), arrow_type(PAIRS))
    assert encoded_column(PAIRS, values).equals(alone)
    rows, at = len(values) + more, list(range(more, len(values) + more))
    spread = encoded_column(PAIRS, values, rows, at)
    spread.validate(full=True)
    assert spread.to_pylist() == [None] * more + alone.to_pylist()


@pytest.mark.parametrize("wrong", [[("a", "b")], [(1,)], [[1, "b"]], [(1.5, "b")], ((1, "b"),), None])
def test_what_does_not_fit_is_refused_as_one_by_one(wrong: Any) -> None:
    with pytest.raises(StateTypeError):
        encoded_column(PAIRS, [[(1, "a")], wrong])


def test_a_number_that_is_too_large_is_refused() -> None:
    with pytest.raises((StateTypeError, OverflowError, pa.ArrowInvalid)):
        encoded_column(PAIRS, [[(2**63, "a")]])
