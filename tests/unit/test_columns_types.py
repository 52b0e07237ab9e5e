"""A vector operator whose state is not of its declared type fails the epoch."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.errors import StateTypeError
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.vector import VectorLogic, VectorOperator


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (int, 0, [None]),
        (int, 0, [1.5]),
        (int, 0, [2**70]),
        (int, 0, ["1"]),
        (float, 0.0, ["1.0"]),
        (str, "", [None]),
        (str, "", [1]),
        (str, "", [b"a"]),
        (bytes, b"", [None]),
        (bytes, b"", ["a"]),
        (bool, False, [2]),
        (datetime.date, datetime.date(2026, 1, 1), ["2026-01-01"]),
    ],
)
def test_state_of_another_type_than_declared_is_refused(kind: type, default: Any, value: list[Any]) -> None:
    def process(self: Any, batch: Any, state: Any, ctx: Any) -> Any:
        return {"v": value}

    body = {"__annotations__": {"v": kind}, "v": bl.value(default), "process": process, "__module__": __name__}
    operator = type(VectorOperator)("Odd", (VectorOperator,), body)
    logic = VectorLogic(operator, pa.schema([("k", pa.string())]))
    runtime = ColumnDeployment(OperatorName("Odd"), logic, (0,), (pa.string(),), 4).start(WorkerId(0))
    runtime.begin(Epoch(0), [KeyGroup(0)])
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([0], pa.int16())], names=["k", "g"])
    with pytest.raises(StateTypeError, match=r"operator Odd.*'v'"):
        runtime.apply(batch)
    runtime.abort()
    assert dict(runtime.snapshot()) == {}
