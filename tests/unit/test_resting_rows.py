"""Rows at rest wake whole or not at all, also those of an operator without variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.ids import KeyGroup, OperatorName
from bedload.state import RecordLayout
from bedload.store.deltas import PUT, delta_batch
from bedload.store.resting import RestingStore
from bedload.store.row_table import RowTable
from bedload.worker.operator import Operator, make_shared, state_of

GROUP = KeyGroup(0)


class Seen(Operator):
    """Its state is which keys there are."""

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


class Picky(Operator):
    n: int = bl.value(0)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "n" and value == 13:
            raise ValueError("not this one")
        super().__setattr__(name, value)

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


def resting(operator: type[Operator], keys: list[int], **state: pa.Array) -> RowTable:
    table = RowTable(OperatorName("rows"), RestingStore)
    table.bind(RecordLayout(state_of(operator)), make_shared(operator)[1], 1, [pa.int64()])
    rows = len(keys)
    table.take_in(delta_batch(np.zeros(rows, np.int16), np.full(rows, PUT, np.int8), [pa.array(keys)], state))
    return table


def test_keys_of_an_operator_without_variables_wake_and_stay() -> None:
    table = resting(Seen, [1, 2, 3])
    table.begin([GROUP])
    assert len(table.stores[GROUP].touch([1, 3, 4])) == 3
    table.seal()
    table.abort()
    assert dict(table.snapshot()) == {1: {}, 2: {}, 3: {}}


def test_keys_that_cannot_wake_are_at_rest_still() -> None:
    table = resting(Picky, [1, 2], n=pa.array([12, 13]))
    table.begin([GROUP])
    with pytest.raises(ValueError, match="not this one"):
        table.stores[GROUP].touch([1, 2])
    table.abort()
    assert dict(table.snapshot()) == {1: {"n": 12}, 2: {"n": 13}}
