"""Variables of operators on arrays that expire: when they have their default again, and what has them live on."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import bedload as bl
from bedload.core.epoch import Due, EpochTime
from bedload.core.errors import DefinitionError
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.store.deltas import PUT
from bedload.testing import InProcessCluster, OperatorHarness

GROUPS = 8
ALL = [KeyGroup(group) for group in range(GROUPS)]
SCHEMA = "key string, n long, last long, total long"
INPUT = "key string, v long"


class Recent(bl.VectorOperator):
    """Counts all rows, those of a while, and the last value of a longer while; odd values write less."""

    total: int = bl.value(0)
    n: int = bl.value(0, ttl="10 milliseconds")
    last: int | None = bl.value(ttl="100 milliseconds")

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        rows = batch.by_key
        count, last = np.diff(rows.offsets), rows.numpy("v")[rows.offsets[1:] - 1]
        if (last < 0).all():
            return {"total": state["total"] + count}
        return {"total": state["total"] + count, "n": state["n"] + count, "last": last}

    def result(self, keys: Any, state: Any, ctx: bl.BatchContext) -> Any:
        return {"key": keys, **state}


def made(operator: Any = Recent, **more: Any) -> OperatorHarness:
    return OperatorHarness(operator, schema=SCHEMA, key="key", input=INPUT, key_groups=GROUPS, **more)


def row(key: str, v: int = 1) -> dict[str, Any]:
    return {"key": key, "v": v}


def seen(harness: OperatorHarness, key: str) -> tuple[Any, ...]:
    state = harness.state[key]
    return state["total"], state["n"], state["last"]


def test_a_value_that_nothing_writes_is_the_default_again_and_the_others_stay() -> None:
    harness = made()
    harness.now = 1000
    harness.run_epoch([row("a", 7), row("b", 8)])
    assert harness.advance_time(9) == []
    assert seen(harness, "a") == (1, 1, 7)
    assert harness.advance_time(1) == []
    assert seen(harness, "a") == (1, 0, 7)
    assert harness.advance_time(to=1100) == []
    assert seen(harness, "b") == (1, 0, None)
    assert harness.advance_time("1 day") == []


def test_a_row_in_the_epoch_in_which_a_value_expires_finds_the_default() -> None:
    harness = made()
    harness.run_epoch([row("a")] * 3)
    harness.now = 10
    assert harness.run_epoch([row("a")], [row("a"), row("a")])[-1] == {"key": "a", "n": 3, "last": 1, "total": 6}
    harness.advance_time(9)
    assert seen(harness, "a") == (6, 3, 1)


def test_what_a_call_returns_lives_on_and_what_it_leaves_out_does_not() -> None:
    harness = made()
    harness.run_epoch([row("a")])
    harness.now = 9
    harness.run_epoch([row("a")])
    harness.now = 18
    harness.run_epoch([row("a", -1)])
    assert seen(harness, "a") == (3, 2, 1)
    harness.now = 19
    harness.run_epoch([row("a", -1)])
    assert seen(harness, "a") == (4, 0, 1)


def test_reading_has_a_value_live_on_if_it_is_asked_to() -> None:
    class Read(Recent):
        n: int = bl.value(0, ttl="10 milliseconds", refresh="read")

    harness = made(Read)
    harness.run_epoch([row("a"), row("b")])
    harness.now = 9
    harness.run_epoch([row("a", -1)])
    harness.advance_time(to=10)
    assert (seen(harness, "a")[1], seen(harness, "b")[1]) == (1, 0)
    harness.now = 19
    harness.run_epoch([row("a", -1)])
    assert seen(harness, "a")[1] == 0, "what has expired is not there to be read"
    assert harness.state["a"]["bedload_ttl_n"] is None


def test_event_time_counts_from_the_first_watermark() -> None:
    class ByEvent(Recent):
        n: int = bl.value(0, ttl="10 milliseconds", clock="event")

    harness = made(ByEvent)
    harness.now = 10**9
    harness.run_epoch([row("a"), row("b")])
    harness.advance_time(1)
    assert seen(harness, "a")[1] == 1
    harness.watermark = 5000
    harness.run_epoch([row("b")])
    harness.advance_watermark(to=5009)
    assert (seen(harness, "a")[1], seen(harness, "b")[1]) == (1, 2)
    harness.advance_watermark(to=5010)
    assert (seen(harness, "a")[1], seen(harness, "b")[1]) == (0, 0)


def test_an_epoch_that_is_rolled_back_has_expired_nothing() -> None:
    harness = made()
    harness.run_epoch([row("a"), row("b")])
    harness.now = 10
    for _ in range(2):
        harness.feed([row("a")])
        assert [(out["key"], out["n"]) for out in harness.seal()] == [("a", 1)]
        harness.abort()
        assert (seen(harness, "a"), seen(harness, "b")) == ((1, 1, 1), (1, 1, 1))
    harness.run_epoch()
    assert seen(harness, "b") == (1, 0, 1)


def test_what_expires_is_in_the_delta_and_what_is_only_refreshed_gives_no_output() -> None:
    class Top(Recent):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
            return {"n": np.maximum(state["n"], 5)}

    harness = made(Top)
    assert len(harness.run_epoch([row("a"), row("b")])) == 2
    harness.now = 9
    assert harness.run_epoch([row("a")]) == []
    harness.now = 10
    harness.feed([row("c")])
    harness.seal()
    runtime: Any = harness._runtime
    delta = runtime.delta()
    keys, ops = delta.column("bedload_key_0").to_pylist(), delta.column("bedload_op").to_pylist()
    assert dict(zip(keys, ops, strict=True)) == {"b": PUT, "c": PUT}
    assert dict(zip(keys, delta.column("n").to_pylist(), strict=True)) == {"b": 0, "c": 5}


def test_every_type_has_its_default_again() -> None:
    class All(bl.VectorOperator):
        flag: bool = bl.value(True, ttl="1 hour")
        part: float = bl.value(0.5, ttl="1 hour")
        text: str = bl.value("none", ttl="1 hour")
        data: bytes | None = bl.value(ttl="1 hour")
        day: dt.date | None = bl.value(ttl="1 hour")
        rest: float | None = bl.value(ttl="1 hour")

        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
            count = len(state["flag"])
            return {
                "flag": [False] * count,
                "part": [1.5] * count,
                "text": ["some"] * count,
                "data": [b"some"] * count,
                "day": [dt.date(2026, 1, 1)] * count,
                "rest": [2.5] * count,
            }

    harness = OperatorHarness(All, schema="key string", key="key", input=INPUT)
    harness.run_epoch([row("a")])
    assert list(harness.state["a"].values())[:6] == [False, 1.5, "some", b"some", dt.date(2026, 1, 1), 2.5]
    harness.advance_time("1 hour")
    assert list(harness.state["a"].values())[:6] == [True, 0.5, "none", None, None, None]


class Both(bl.VectorOperator):
    """A timer and a variable that expires."""

    n: int = bl.value(0, ttl="10 milliseconds")
    fired: int = bl.value(0)
    timers = ()
    processing_timers = ("",)

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        ctx.timers.processing.set(batch.by_key.numpy("v")[batch.by_key.offsets[:-1]])
        return {"n": state["n"] + 1}

    def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
        outputs = {"key": keys, "n": state["n"], "last": timer.at, "total": state["fired"]}
        return {"fired": state["fired"] + 1, "n": state["n"] + 1}, outputs


def test_a_timer_of_the_same_epoch_sees_what_has_expired_and_what_it_returns_lives_on() -> None:
    harness = made(Both)
    harness.run_epoch([row("a", 10), row("b", 5)])
    assert [(out["key"], out["n"]) for out in harness.advance_time(5)] == [("b", 1)]
    assert [(out["key"], out["n"]) for out in harness.advance_time(5)] == [("a", 0)]
    assert (harness.state["a"]["n"], harness.state["b"]["n"]) == (1, 2)
    harness.advance_time(5)
    assert (harness.state["a"]["n"], harness.state["b"]["n"]) == (1, 0)


def test_what_expires_gives_no_output_but_rows_and_timers_of_the_key_do() -> None:
    class Told(Both):
        def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
            return None

        def result(self, keys: Any, state: Any, ctx: bl.BatchContext) -> Any:
            return {"key": keys, "n": state["n"], "last": state["fired"], "total": state["fired"]}

    harness = made(Told)
    assert len(harness.run_epoch([row("silent", 99), row("timer", 10), row("rows", 99)])) == 3
    harness.now = 10
    found = harness.run_epoch([row("rows", 99)], [row("rows", 99)])
    assert {out["key"]: out["n"] for out in found} == {"rows": 2, "timer": 0}
    assert harness.state["silent"]["n"] == 0


def test_whole_keys_of_an_operator_on_arrays_expire_and_their_timers_with_them() -> None:
    harness = made(Both, ttl="8 milliseconds")
    harness.run_epoch([row("a", 10), row("b", 5), row("c", 7)])
    assert [out["key"] for out in harness.advance_time(5)] == ["b"]
    assert set(harness.state) == {"a", "b", "c"}, "a key is not gone because its timer is due"
    harness.now = 7
    assert [out["key"] for out in harness.run_epoch([row("b", 50)])] == ["c"]
    assert harness.advance_time(to=8) == []
    assert set(harness.state) == {"b"}
    assert harness.advance_time(to=14) == []
    assert set(harness.state) == {"b"}
    harness.advance_time(to=15)
    assert set(harness.state) == set()


def test_state_from_before_the_ttl_counts_from_the_first_epoch_with_it() -> None:
    class Plain(Recent):
        n: int = bl.value(0)

    plain, timed = made(Plain), made()
    plain.run_epoch([row("a", 3), row("b", 4)])
    timed.run_epoch()
    old: Any = plain._runtime
    slots = old._table.committed_slots()
    state, groups = old._table.extract(slots), old._table.index.group_of(slots)
    assert "bedload_ttl_n" not in state.schema.names
    assert timed._applied is not None
    runtime: Any = timed._applied.deployment.start(WorkerId(0))
    missing = pa.array([0, 0], pa.int64())
    runtime._table.put(state.columns[:1], groups, state.append_column("bedload_ttl_n", missing))
    for epoch, (now, n) in enumerate([(1000, 1), (1009, 1), (1010, 0)]):
        runtime.begin(Epoch(epoch), ALL)
        runtime.set_time(EpochTime(processing=now))
        runtime.seal()
        runtime.commit()
        assert {state["n"] for _, state in runtime.snapshot()} == {n}


def test_values_expire_at_whichever_worker_their_keys_are() -> None:
    cluster = InProcessCluster(Recent, schema=SCHEMA, key="key", input=INPUT, workers=1, key_groups=GROUPS)
    cluster.run_epoch([[row(f"k{i}") for i in range(20)]])
    cluster.rescale(3)
    cluster.now = 5
    cluster.run_epoch([[row("k3")]])
    assert cluster.advance_time(to=10) == []
    assert {key for key, state in cluster.snapshot().items() if state["n"]} == {"k3"}


def test_a_runtime_says_when_the_next_value_expires() -> None:
    harness = made()
    harness.now = 1000
    harness.run_epoch([row("a")])
    runtime: Any = harness._runtime
    assert runtime.timed
    assert runtime.next_due() == Due(None, 1010)
    assert len(runtime.due_hashes(ALL, EpochTime(processing=1009))) == 0
    assert len(runtime.due_hashes(ALL, EpochTime(processing=1010))) == 1


def test_a_key_that_is_forgotten_and_comes_again_starts_anew() -> None:
    class Forgets(Recent):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
            ctx.forget(batch.by_key.numpy("v")[batch.by_key.offsets[:-1]] == 13)
            return super().process(batch, state, ctx)

    harness = made(Forgets)
    harness.run_epoch([row("a")])
    harness.now = 9
    harness.run_epoch([row("a", 13)])
    assert harness.state("a") is None
    harness.run_epoch([row("a", 13)], [row("a")])
    assert seen(harness, "a") == (1, 1, 1)
    harness.advance_time(to=18)
    assert seen(harness, "a") == (1, 1, 1)
    harness.advance_time(to=19)
    assert seen(harness, "a") == (1, 0, 1)


def test_a_bad_ttl_names_the_variable() -> None:
    with pytest.raises(DefinitionError, match=r"Bad\.n.*ttl='soon' is no duration"):

        class Bad(Recent):
            n: int = bl.value(0, ttl="soon")
