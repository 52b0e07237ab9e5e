"""The time of an epoch is for the code of that epoch: ``setup`` belongs to none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from bedload.core.epoch import EpochTime
from bedload.core.errors import BedloadError
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.state import value
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.vector import VectorBatch, VectorLogic, VectorOperator

OUT = pa.schema([("n", pa.int64())])
NAME = OperatorName("op")


class Rows(Operator):
    def process(self, key: Any, rows: Any, ctx: Context) -> Any: ...


class RowsAtSetup(Rows):
    def setup(self, ctx: Context) -> None:
        self.since = ctx.now


class Columns(VectorOperator):
    n: int = value(0)

    def process(self, batch: VectorBatch, state: Any, ctx: Any) -> Any: ...


class ColumnsAtSetup(Columns):
    def setup(self, ctx: Any) -> None:
        self.since = ctx.now


def rows(operator: type[Operator]) -> Deployment:
    return Deployment(NAME, operator, (0,), ("k",), OUT, (pa.int64(),))


def columns(operator: type[VectorOperator]) -> ColumnDeployment:
    return ColumnDeployment(NAME, VectorLogic(operator, OUT), (0,), (pa.int64(),), 4)


@pytest.mark.parametrize(
    ("before", "after"),
    [(rows(Rows), rows(RowsAtSetup)), (columns(Columns), columns(ColumnsAtSetup))],
    ids=["rows", "columns"],
)
def test_setup_has_no_time_whether_or_not_other_code_ran_before(before: Any, after: Any) -> None:
    with pytest.raises(BedloadError, match="setup belongs to none"):
        after.start(WorkerId(0))
    runtime = before.start(WorkerId(0))
    runtime.begin(Epoch(0), [KeyGroup(0)])
    runtime.set_time(EpochTime(watermark=3, processing=5))
    runtime.seal()
    runtime.commit()
    with pytest.raises(BedloadError, match="setup belongs to none"):
        runtime.redeploy(after)
