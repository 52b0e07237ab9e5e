"""An epoch that is too large for a worker fails by a clear error, and nothing of it is left."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.real_cluster import RealCluster

from bedload import state as bl
from bedload.core.epoch import EpochTime
from bedload.core.errors import TooLarge
from bedload.core.ids import DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.protocol import messages as m
from bedload.protocol.feeder import FeederSession
from bedload.protocol.split import pack
from bedload.testing import OperatorHarness
from bedload.testing.input import InputFormat
from bedload.worker import memory
from bedload.worker.column_runtime import ColumnDeployment
from bedload.worker.machine import COORDINATOR, Phase, WorkerMachine
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows
from bedload.worker.vector import VectorLogic, VectorOperator

NAME = OperatorName("op")
IN = pa.schema([("k", pa.int64()), ("x", pa.string())])
OUT = pa.schema([("k", pa.int64()), ("x", pa.string())])
FORM = InputFormat(IN, "k", 4)
GROUPS = tuple(KeyGroup(group) for group in range(4))
FEEDER = m.FeederId(0, 0)


class Clock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    def processor(self) -> float:
        return self.monotonic()


class Echo(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.n += len(rows)
        for row in rows:
            yield key, row.x


class AtTheSeal(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.n += len(rows)

    def result(self, key: Any, ctx: Context) -> Any:
        return key, "x" * 100_000


class Each(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.n += len(rows)
        return [(key, row.x) for row in rows]

    def result(self, key: Any, ctx: Context) -> Any:
        return key, self.n


class Waiting(AtTheSeal):
    grouped = True


class Images(Operator):
    seen: dict[int, int] = bl.map()

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for i in range(2000):
            self.seen[i] = self.seen.get(i, 0) + 1


class Columns(VectorOperator):
    n: int = bl.value(0)

    def process(self, batch: Any, state: Any, ctx: Context) -> Any:
        n = state["n"] + np.bincount(batch.index, minlength=len(state["n"]))
        return {"n": n}, {"k": batch["k"], "x": batch["x"]}


class Alarms(Operator):
    """Each key has one timer, all are due at once, and each gives a large row."""

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        ctx.timers.set(1)

    def on_timer(self, key: Any, timer: Any, ctx: Context) -> Any:
        FIRED.append(key)
        return key, "x" * 400


FIRED: list[Any] = []


class ColumnAlarms(VectorOperator):
    """The same on columns; each key fires again and again."""

    n: int = bl.value(0)

    def process(self, batch: Any, state: Any, ctx: Any) -> Any:
        ctx.timers.set(1)

    def on_timer(self, keys: Any, timer: Any, state: Any, ctx: Any) -> Any:
        FIRED.extend(keys.to_pylist())
        if len(FIRED) < 50_000:
            ctx.timers.set(1)
        return {"n": state["n"] + 1}, {"k": keys, "x": ["x" * 100] * len(keys)}


def rows(count: int, size: int, keys: int = 10) -> list[dict[str, Any]]:
    return [{"k": i % keys, "x": "v" * size} for i in range(count)]


class Rig:
    def __init__(self, deployment: Any, limit: int | None = None) -> None:
        self.machine = WorkerMachine(WorkerId(3), lambda _: deployment, Clock(), epoch_bytes=limit)
        self.machine.handle(COORDINATOR, m.Deploy(NAME, DeploymentId(0), 4), b"")
        self.turn = -1

    def begin(self, epoch: int) -> None:
        self.turn, self.number = self.turn + 1, -1
        begin = m.Begin(NAME, Turn(self.turn), Epoch(epoch), QueryId("q"), DeploymentId(0), GROUPS)
        self.machine.handle(COORDINATOR, begin)
        self.machine.handle(COORDINATOR, m.Time(NAME, Turn(self.turn), EpochTime()))
        self.machine.handle(COORDINATOR, m.Expect(NAME, Turn(self.turn), 1))
        schema = FORM.batch(rows(1, 1)).schema.serialize()
        self.machine.handle("feeder", m.Join(NAME, Turn(self.turn), FEEDER), schema)

    def apply(self, batch: list[dict[str, Any]]) -> list[Any]:
        self.number += 1
        body, check = pack(FORM.batch(batch))
        return self.machine.handle("feeder", m.Apply(NAME, Turn(self.turn), FEEDER, self.number, check), body)

    def done(self) -> list[Any]:
        return self.machine.handle("feeder", m.Done(NAME, Turn(self.turn), FEEDER, self.number + 1))

    @property
    def phase(self) -> Phase:
        return self.machine.phase(NAME)


def failure(out: list[Any]) -> str:
    (failed,) = [message for _, message, _ in out if isinstance(message, m.Failed)]
    error = failed.error.error()
    assert isinstance(error, TooLarge)
    return error.message


def rows_deployment(operator: type[Operator], limit: int | None = None) -> Deployment:
    return Deployment(NAME, operator, FORM.key, FORM.columns, OUT, FORM.key_types, limit)


@pytest.mark.parametrize(
    "deployment",
    [
        rows_deployment(Echo, 300_000),
        ColumnDeployment(NAME, VectorLogic(Columns, OUT), FORM.key, FORM.key_types, 4, 300_000),
    ],
    ids=["rows", "columns"],
)
def test_outputs_that_outgrow_the_limit_fail_the_epoch_and_the_next_starts_from_nothing(deployment: Any) -> None:
    rig = Rig(deployment)
    rig.begin(7)
    for _ in range(2):
        assert not any(isinstance(message, m.Failed) for _, message, _ in rig.apply(rows(100, 1000)))
    message = failure(rig.apply(rows(100, 1000)))
    assert "operator op, epoch 7, worker 3" in message
    assert "0.3 MB is the limit" in message
    assert "maxFilesPerTrigger" in message
    assert rig.phase is Phase.ABORTED
    rig.begin(7)
    rig.apply(rows(100, 1000))
    rig.done()
    assert rig.phase is Phase.SEALED


def test_the_limit_of_the_worker_counts_if_the_deployment_has_none() -> None:
    rig = Rig(rows_deployment(Echo), 50_000)
    rig.begin(0)
    failure(rig.apply(rows(100, 1000)))


@pytest.mark.parametrize("operator", [AtTheSeal, Waiting])
def test_outputs_of_the_seal_count(operator: type[Operator]) -> None:
    rig = Rig(rows_deployment(operator, 500_000))
    rig.begin(0)
    rig.apply(rows(10, 1))
    failure(rig.done())
    assert rig.phase is Phase.ABORTED


def test_rows_that_wait_for_the_seal_count() -> None:
    rig = Rig(rows_deployment(Waiting, 500_000))
    rig.begin(0)
    failure(rig.apply(rows(1000, 1000)))


def test_before_images_count() -> None:
    rig = Rig(rows_deployment(Images, 3_000_000))
    rig.begin(0)
    rig.apply(rows(40, 1, keys=40))
    rig.done()
    rig.machine.handle(COORDINATOR, m.Commit(NAME, Turn(rig.turn)))
    rig.begin(1)
    failure(rig.apply(rows(5000, 1, keys=40)))


def test_real_workers_give_more_than_the_limit_from_files_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    original = FeederSession.wants
    monkeypatch.setattr(FeederSession, "wants", lambda self: asked.extend(found := original(self)) or found)
    with RealCluster(Each, epoch_bytes=2_000_000) as cluster:
        for epoch in range(2):
            batches = [[(key, i) for key in range(10_000)] for i in range(30)]
            out = cluster.epoch_of(batches)
            given = Counter((row["k"], row["n"]) for row in out[:-10_000])
            assert given == Counter(row for batch in batches for row in batch)
            counts = Counter((row["k"], row["n"]) for row in out[-10_000:])
            assert counts == Counter((key, 30 * (epoch + 1)) for key in range(10_000)), "results come last"
    assert len(asked) >= 4, "of two workers, in two epochs"


def test_the_harness_shows_it() -> None:
    h = OperatorHarness(Echo, schema=OUT, key="k", input=IN, epoch_bytes=100_000)
    h.run_epoch(rows(50, 1000))
    with pytest.raises(TooLarge, match="operator Echo, epoch 1"):
        h.run_epoch(rows(50, 1000), rows(60, 1000))
    h.run_epoch(rows(50, 1000))
    assert h.state(0) == {"n": 10}


def test_the_default_is_a_share_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert 0 < memory.epoch_share() <= memory.machine_bytes() // 4
    limit = tmp_path / "limit"
    limit.write_text("8000000\n")
    monkeypatch.setattr(memory, "_LIMITS", (str(limit), str(tmp_path / "none")))
    assert memory.epoch_share(2) == 1_000_000
    limit.write_text("max\n")
    assert memory.machine_bytes() > 8_000_000


@pytest.mark.parametrize("operator", [Alarms, ColumnAlarms])
def test_outputs_of_timers_are_counted_while_they_fire(operator: Any) -> None:
    FIRED.clear()
    keys, limit = (40_000, 5_000_000) if operator is Alarms else (1000, 1_000_000)
    harness = OperatorHarness(operator, schema="k long, x string", key="k", input=IN, epoch_bytes=limit)
    harness.run_epoch(rows(keys, 1, keys))
    harness.watermark = 1
    harness.feed([])
    with pytest.raises(TooLarge, match="fewer timers due at the same time") as failed:
        harness.seal()
    assert f"{limit / 1e6} MB is the limit" in str(failed.value)
    assert "epoch_bytes" in str(failed.value)
    assert 4000 <= len(FIRED) <= 30_000, "not only when all have fired"


def test_operators_without_timers_are_told_nothing_of_them() -> None:
    harness = OperatorHarness(AtTheSeal, schema="k long, x string", key="k", input=IN, epoch_bytes=300_000)
    harness.feed(rows(10, 1))
    with pytest.raises(TooLarge) as failed:
        harness.seal()
    assert "timers" not in str(failed.value)


class Expiring(Operator):
    """Large state that goes without a row."""

    seen: dict[int, int] = bl.map(ttl="1 second")

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.seen.update(dict.fromkeys(range(200), 1))


class Silent(Operator):
    """Its timers put nothing out."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        ctx.timers.processing.set(1000)

    def on_timer(self, key: Any, timer: Any, ctx: Context) -> Any:
        FIRED.append(key)


class Rewriting(Images):
    """It changes all that it has when its rows are together."""

    grouped = True


@pytest.mark.parametrize(
    ("operator", "keys", "limit"), [(Expiring, 500, 500_000), (Silent, 20_000, 500_000), (Rewriting, 40, 1_000_000)]
)
def test_before_images_of_the_seal_count(operator: type[Operator], keys: int, limit: int) -> None:
    FIRED.clear()
    harness = OperatorHarness(operator, schema=OUT, key="k", input=IN)
    harness.run_epoch(rows(keys, 1, keys))
    harness._allowance.limit = limit
    harness.now = 1000
    before = dict(harness.snapshot())
    with pytest.raises(TooLarge, match="before-images about"):
        harness.run_epoch(rows(keys, 1, keys) if operator is Rewriting else [])
    assert harness.snapshot() == before
    assert len(FIRED) < keys, "not only when all have fired"
