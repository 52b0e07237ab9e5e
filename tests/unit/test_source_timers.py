"""The timers in a state as a table: of operators on rows and on arrays, as they were set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.checkpoint_states import OPERATOR
from tests.source_states import GROUPS, Baskets, Recorded

import bedload as bl
from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.keys import hash_columns, key_groups
from bedload.spark.source import BedloadSource
from bedload.spark.source_options import parse_options
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.operator import state_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.state_schema import state_schema
from bedload.worker.vector import VectorLogic

OUTPUT = pa.schema([("x", pa.int64())])
INPUT = pa.schema([("timer_at", pa.int64()), ("wait", pa.int64())])
"""The key has the name of a column of the table."""


class OnRows(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            ctx.timers.set(row.wait)
            ctx.timers.processing.set(row.wait + 1, "report")
            if row.wait < 0:
                ctx.timers.delete()

    def on_timer(self, key: Any, timer: Any, ctx: Any) -> None: ...


class OnArrays(bl.VectorOperator):
    n: int = bl.value(0)
    timers = ("",)
    processing_timers = ("report", "a_b")

    def process(self, batch: Any, state: Any, ctx: Any) -> Any:
        waits = batch.by_key.numpy("wait")
        ctx.timers.set(waits, where=waits >= 0)
        ctx.timers.processing.set(waits + 1, "report")
        return {"n": state["n"] + 1}

    def on_timer(self, keys: Any, timer: Any, state: Any, ctx: Any) -> Any: ...


def deployment_of(operator: Any) -> Any:
    if operator is OnRows:
        return Deployment(OPERATOR, OnRows, (0,), tuple(INPUT.names), OUTPUT, (pa.int64(),))
    return ColumnDeployment(OPERATOR, VectorLogic(OnArrays, OUTPUT, {}), (0,), (pa.int64(),), GROUPS)


def write(folder: Path, operator: Any, waits: dict[int, int]) -> None:
    """A checkpoint after one epoch."""
    deployment = deployment_of(operator)
    specs = state_of(operator) if operator is OnRows else operator.__bedload_specs__
    writer = Recorded(folder, state_schema(deployment, ["timer_at"], [pa.int64()], GROUPS, specs))
    runtime = deployment.start(WorkerId(0))
    keys = pa.array(list(waits), pa.int64())
    groups = pa.array(key_groups(hash_columns([keys]), GROUPS), pa.int16())
    columns = [keys, pa.array(list(waits.values()), pa.int64()), groups]
    runtime.begin(Epoch(0), [KeyGroup(group) for group in range(GROUPS)])
    runtime.set_time(EpochTime(-1_000, -1_000))
    runtime.apply(pa.RecordBatch.from_arrays(columns, [*INPUT.names, "group"]))
    runtime.seal()
    writer.turn(runtime.delta())


def table(folder: Path, **options: str) -> list[dict[str, Any]]:
    """What Spark would get."""
    source = BedloadSource({"path": str(folder), "readRegisteredTimers": "true", **options})
    reader: Any = source.reader(source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("operator", [OnRows, OnArrays])
def test_each_timer_is_a_row(tmp_path: Path, operator: Any) -> None:
    waits = {1: 50, 2: 0, 3: -7}
    write(tmp_path, operator, waits)
    rows = table(tmp_path)
    found = {(row["key_timer_at"], row["timer_name"], row["timer_clock"]): row["timer_at"] for row in rows}
    expected = {(key, "", "event"): wait for key, wait in waits.items() if wait >= 0}
    assert found == expected | {(key, "report", "processing"): wait + 1 for key, wait in waits.items()}
    assert {row["key_timer_at"] for row in table(tmp_path, keys="[2]")} == {2}


def test_the_columns_have_their_types_without_any_timer(tmp_path: Path) -> None:
    write(tmp_path, OnRows, {1: -7})
    schema = BedloadSource({"path": str(tmp_path), "readRegisteredTimers": "true"}).schema()
    assert [(field.name, field.dataType.simpleString()) for field in schema] == [
        ("key_timer_at", "bigint"),
        ("timer_name", "string"),
        ("timer_clock", "string"),
        ("timer_at", "bigint"),
        ("key_group", "int"),
    ]


def test_a_state_without_timers_says_so(tmp_path: Path) -> None:
    Baskets(tmp_path).epoch([(1, 1)])
    with pytest.raises(DefinitionError, match="has no timers in this state; leave readRegisteredTimers out"):
        BedloadSource({"path": str(tmp_path), "readRegisteredTimers": "true"}).schema()


@pytest.mark.parametrize("other", ["stateVarName", "readChangeFeed"])
def test_timers_are_read_alone(other: str) -> None:
    feed = {"changeStartBatchId": "0"} if other == "readChangeFeed" else {}
    with pytest.raises(DefinitionError, match=f"leave {other} out"):
        parse_options({"path": "x", "readRegisteredTimers": "true", other: "true"} | feed)
