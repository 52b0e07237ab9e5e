"""New code for state that workers have in memory: the variables are the same, in whatever order they are declared."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.epoch import EpochTime
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.split import pack, pack_whole
from bedload.spark.state_view import ColumnDecoder, Decoder, RowDecoder
from bedload.testing.input import InputFormat
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.machine import COORDINATOR, WorkerMachine
from bedload.worker.operator import Operator, state_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.runtime import Startable
from bedload.worker.vector import VectorLogic, VectorOperator, vector_columns

NAME = OperatorName("Numbers")
OUTPUT = pa.schema([("key", pa.string())])
FORM = InputFormat(pa.schema([("key", pa.string()), ("n", pa.int64())]), "key", 4)
GROUPS = tuple(KeyGroup(group) for group in range(4))


class StillClock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0


class OnRows(Operator):
    total: int = bl.value(0)
    rows: int = bl.value(50)

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            self.total += row.n
            self.rows += 1


class OnRowsTheOtherWayRound(Operator):
    rows: int = bl.value(50)
    total: int = bl.value(0)
    process = OnRows.process


class OnColumns(VectorOperator):
    total: int = bl.value(0)
    rows: int = bl.value(50)

    def process(self, batch: Any, state: Any, ctx: Any) -> Any:
        return {"total": state["total"] + batch.numpy("n").sum(), "rows": state["rows"] + 1}  # of one key at a time


class OnColumnsTheOtherWayRound(VectorOperator):
    rows: int = bl.value(50)
    total: int = bl.value(0)
    process = OnColumns.process


def shipped(operator: Any) -> tuple[Startable, Decoder]:
    """An operator as workers get it, and what reads its state."""
    if issubclass(operator, VectorOperator):
        logic = VectorLogic(operator, OUTPUT)
        return ColumnDeployment(NAME, logic, FORM.key, (pa.string(),), 4), ColumnDecoder(vector_columns(operator))
    return Deployment(NAME, operator, FORM.key, FORM.columns, OUTPUT, (pa.string(),)), RowDecoder(state_of(operator))


class Rig:
    """A worker that runs one version of the code after another."""

    def __init__(self, *versions: Any) -> None:
        self.versions = [shipped(version) for version in versions]
        self.machine = WorkerMachine(WorkerId(0), lambda number: self.versions[int(number)][0], StillClock())
        for number in range(len(versions)):
            self.machine.handle(COORDINATOR, m.Deploy(NAME, DeploymentId(number), 4), b"%d" % number)

    def epoch(self, number: int, version: int, **totals: int) -> None:
        """One row for each key, one batch for each row."""
        turn, feeder = Turn(number), m.FeederId(0, 0)
        begin = m.Begin(NAME, turn, Epoch(number), QueryId("q"), DeploymentId(version), GROUPS)
        for message in (begin, m.Time(NAME, turn, EpochTime()), m.Expect(NAME, turn, 1)):
            self.machine.handle(COORDINATOR, message)
        batches = [FORM.batch([{"key": key, "n": n}]) for key, n in totals.items()]
        self.machine.handle("feeder", m.Join(NAME, turn, feeder), batches[0].schema.serialize())
        for place, batch in enumerate(batches):
            body, checksum = pack(batch)
            self.machine.handle("feeder", m.Apply(NAME, turn, feeder, place, checksum), body)
        self.machine.handle("feeder", m.Done(NAME, turn, feeder, len(batches)))
        self.machine.handle(COORDINATOR, m.Commit(NAME, turn))

    def read(self, version: int, key: str) -> dict[str, Any]:
        """A live read by whoever applied that version."""
        asked = pack_whole(pa.RecordBatch.from_arrays([pa.array([key])], names=["key0"]))
        ((_, answer, body),) = self.machine.handle("reader", m.Read(NAME, KeyGroup(FORM.group(key))), asked)
        assert isinstance(answer, m.ReadAnswer)
        assert body is not None
        return self.versions[version][1].decode(memoryview(body))


@pytest.mark.parametrize(
    "versions",
    [(OnRows, OnRowsTheOtherWayRound), (OnColumns, OnColumnsTheOtherWayRound)],
    ids=["rows", "columns"],
)
def test_live_reads_go_by_the_names_of_variables_whatever_their_order(versions: tuple[Any, Any]) -> None:
    rig = Rig(*versions)
    rig.epoch(0, 0, a=100)
    for version in (0, 1):  # the new one is shipped, and runs with the next epoch
        assert rig.read(version, "a") == {"total": 100, "rows": 51}
    rig.epoch(1, 1, a=5, b=7)
    for version in (0, 1):
        assert rig.read(version, "a") == {"total": 105, "rows": 52}
        assert rig.read(version, "b") == {"total": 7, "rows": 51}


class OnRowsFromSeven(OnRows):
    rows: int = bl.value(7)


class OnColumnsFromSeven(OnColumns):
    rows: int = bl.value(7)


@pytest.mark.parametrize(
    "versions", [(OnRows, OnRowsFromSeven), (OnColumns, OnColumnsFromSeven)], ids=["rows", "columns"]
)
def test_new_keys_start_as_new_code_says_also_beside_old_ones(versions: tuple[Any, Any]) -> None:
    """The driver refuses such code while workers have state; a worker does not depend on that."""
    rig = Rig(*versions)
    keys = [f"key {i}" for i in range(8)]  # of all key groups
    rig.epoch(0, 0, **dict.fromkeys(keys[:4], 1))
    rig.epoch(1, 1, **dict.fromkeys(keys, 1))
    for key in keys[:4]:
        assert rig.read(1, key) == {"total": 2, "rows": 52}
    for key in keys[4:]:
        assert rig.read(1, key) == {"total": 1, "rows": 8}
