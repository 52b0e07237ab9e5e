"""Timers of operators on arrays: what fires when, in which order, and what is refused."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import bedload as bl
from bedload.core.epoch import Due, EpochTime
from bedload.core.errors import DefinitionError, OperatorFailed
from bedload.core.ids import Epoch, KeyGroup, WorkerId
from bedload.testing import InProcessCluster, OperatorHarness
from bedload.worker import vector_firing
from bedload.worker.vector_timers import VectorTimers

NEVER = VectorTimers.NEVER
OUT = "key string, name string, at long, n long"
ALL = [KeyGroup(group) for group in range(256)]


class Alarms(bl.VectorOperator):
    """Sets what the rows say: the last one of a key by each clock and name."""

    n: int = bl.value(0)
    timers = ("", "b")
    processing_timers = ("a",)
    calls: ClassVar[list[tuple[str, list[Any]]]] = []

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        rows = batch.by_key
        last = rows.offsets[1:] - 1
        at, names = rows.numpy("at")[last], np.array(rows["name"].to_pylist(), object)[last]
        ctx.timers.set(at, where=names == "")
        ctx.timers.set(at, "b", where=np.flatnonzero(names == "b"))
        ctx.timers.processing.set(at, "a", where=names == "a")
        return {"n": state["n"] + np.diff(rows.offsets)}

    def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
        self.calls.append((f"{timer.name}/{timer.clock}", list(zip(keys.to_pylist(), timer.at.tolist(), strict=True))))
        names = [timer.name] * len(keys)
        return {"n": state["n"] + 100}, {"key": keys, "name": names, "at": timer.at, "n": state["n"]}


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    Alarms.calls.clear()


def made(operator: Any = Alarms, **more: Any) -> OperatorHarness:
    return OperatorHarness(operator, schema=OUT, key="key", input="key string, name string, at long", **more)


def row(key: str | None, at: int, name: str = "") -> dict[str, Any]:
    return {"key": key, "name": name, "at": at}


def test_what_is_due_fires_once_in_the_order_of_time_and_then_of_keys() -> None:
    harness = made()
    harness.run_epoch([row("c", 5), row("a", 7), row("d", 9), row("b", 5), row("e", 4)])
    harness.watermark = 7
    fired = harness.run_epoch()
    assert [(out["key"], out["at"]) for out in fired] == [("e", 4), ("b", 5), ("c", 5), ("a", 7)]
    assert Alarms.calls == [("/event", [("e", 4), ("b", 5), ("c", 5), ("a", 7)])]
    assert harness.run_epoch() == []
    assert harness.state["a"]["n"] == 101
    assert harness.state["d"]["bedload_timer_event"] == 9
    assert harness.state["a"]["bedload_timer_event"] is None


def test_each_key_gets_its_timers_in_the_order_of_time_name_and_clock() -> None:
    harness = made()
    harness.run_epoch([row("x", 5), row("y", 3), row("z", 6)])
    harness.run_epoch([row("x", 3, "b"), row("y", 3, "b")])
    harness.run_epoch([row("x", 3, "a"), row("z", 6, "a")])
    harness.watermark = harness.now = 10
    harness.run_epoch()
    assert Alarms.calls == [
        ("/event", [("y", 3), ("z", 6)]),
        ("a/processing", [("x", 3)]),
        ("a/processing", [("z", 6)]),
        ("b/event", [("x", 3), ("y", 3)]),
        ("/event", [("x", 5)]),
    ]
    per_key = {key: [(at, name) for name, calls in Alarms.calls for k, at in calls if k == key] for key in "xyz"}
    assert per_key["x"] == [(3, "a/processing"), (3, "b/event"), (5, "/event")]
    assert per_key["y"] == [(3, "/event"), (3, "b/event")]
    assert per_key["z"] == [(6, "/event"), (6, "a/processing")]


def test_a_timer_set_again_moves_and_one_in_the_past_fires_in_the_epoch() -> None:
    harness = made()
    harness.run_epoch([row("a", 5)], [row("a", 50)])
    harness.watermark = 20
    assert harness.run_epoch([row("b", -3)]) == [{"key": "b", "name": "", "at": -3, "n": 1}]
    harness.watermark = 50
    assert [out["key"] for out in harness.run_epoch()] == ["a"]


def test_a_key_of_null_and_keys_of_several_columns_have_timers() -> None:
    class Pairs(Alarms):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
            ctx.timers.set(1)

        def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
            first, second = keys
            return None, {"key": first, "name": second, "at": timer.at, "n": timer.at}

    harness = OperatorHarness(Pairs, schema=OUT, key=["key", "name"], input="key string, name string, at long")
    harness.watermark = 1
    fired = harness.run_epoch([row(None, 0, "x"), row("b", 0, "y"), row("b", 0, "x"), row("a", 0, "z")])
    assert [(out["key"], out["name"]) for out in fired] == [("a", "z"), ("b", "x"), ("b", "y"), (None, "x")]


def test_an_abort_puts_back_what_was_taken() -> None:
    harness = made()
    harness.run_epoch([row("a", 5), row("b", 6)])
    harness.watermark = 5
    for _ in range(2):
        harness.feed([])
        assert [out["key"] for out in harness.seal()] == ["a"]
        harness.abort()
    harness.watermark = 6
    assert [out["key"] for out in harness.run_epoch()] == ["a", "b"]


def test_a_call_that_fails_leaves_the_timers_as_they_were() -> None:
    class Fails(Alarms):
        fails: ClassVar[bool] = True

        def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
            ctx.timers.set(1000)
            if Fails.fails:
                raise RuntimeError("once")

    harness = made(Fails)
    harness.run_epoch([row("a", 5)])
    harness.watermark = 5
    with pytest.raises(OperatorFailed, match=r"on_timer of operator Fails, epoch 1.*once"):
        harness.run_epoch()
    assert harness.state["a"]["bedload_timer_event"] == 5
    Fails.fails = False
    harness.run_epoch()
    assert harness.state["a"]["bedload_timer_event"] == 1000


def test_a_timer_that_is_set_while_firing_and_is_due_fires_in_the_same_epoch() -> None:
    class Days(Alarms):
        def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
            ctx.timers.set(timer.at + 10)
            super().on_timer(keys, timer, state, ctx)

    harness = made(Days)
    harness.run_epoch([row("a", 5), row("b", 20)])
    harness.watermark = 30
    harness.run_epoch()
    assert [calls for _, calls in Alarms.calls] == [[("a", 5), ("b", 20)], [("a", 15), ("b", 30)], [("a", 25)]]
    assert harness.state["a"]["bedload_timer_event"] == 35


def test_timers_without_an_end_are_an_error_that_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Alarms):
        def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
            ctx.timers.set(timer.at)

    monkeypatch.setattr(vector_firing, "MOST", 50)
    harness = made(Endless)
    harness.run_epoch([row("a", 5), row("b", 7)])
    harness.watermark = 6
    with pytest.raises(DefinitionError, match=r"50 times for key 'a'.*sets timers that are due already"):
        harness.run_epoch()


def test_timers_are_deleted_and_asked_for() -> None:
    seen = []

    class Asks(Alarms):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
            super().process(batch, state, ctx)
            seen.append(dict(zip(batch.keys.to_pylist(), ctx.timers.at().tolist(), strict=True)))
            ctx.timers.delete(where=[0])
            ctx.timers.delete("b")
            ctx.timers.set(np.minimum(ctx.timers.at(), 70), where=ctx.timers.at() != NEVER)
            ctx.timers.processing.set(NEVER, "a")
            seen.append(dict(zip(batch.keys.to_pylist(), ctx.timers.at().tolist(), strict=True)))

    harness = made(Asks)
    harness.run_epoch([row("a", 5), row("b", 80), row("c", 1, "b"), row("d", 1, "a")])
    assert seen == [{"a": 5, "b": 80, "c": NEVER, "d": NEVER}, {"a": NEVER, "b": 70, "c": NEVER, "d": NEVER}]
    harness.now = harness.watermark = 10
    assert harness.run_epoch() == []


class Forgets(Alarms):
    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        super().process(batch, state, ctx)
        ctx.forget(where=batch.by_key.numpy("at")[batch.by_key.offsets[:-1]] == 0)
        return {"n": state["n"] + 1}

    def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
        ctx.timers.set(timer.at)
        ctx.forget(where=[0])
        ctx.timers.delete()
        return {"n": state["n"] + 1}

    def result(self, keys: Any, state: Any, ctx: bl.BatchContext) -> Any:
        ctx.forget(where=state["n"] > 3)
        return {"key": keys, "name": ["r"] * len(keys), "at": state["n"], "n": state["n"]}


def test_keys_are_forgotten_in_every_call() -> None:
    harness = made(Forgets)
    harness.run_epoch([row("a", 5), row("b", 5), row("c", 0)])
    assert set(harness.snapshot()) == {"a", "b"}
    harness.watermark = 5
    out = harness.run_epoch()
    assert [(o["key"], o["n"]) for o in out] == [("b", 2)]
    assert set(harness.snapshot()) == {"b"}
    harness.run_epoch([row("b", 90)], [row("b", 91)])
    assert harness.snapshot() == {}
    harness.watermark = 100
    assert harness.run_epoch() == []
    harness.run_epoch([row("b", 0)], [row("b", 200)])  # forgotten, and then there again
    assert harness.state["b"]["n"] == 1


def test_what_uses_the_place_of_a_key_that_is_gone_has_no_timer_of_it() -> None:
    harness = made(Forgets, key_groups=2)
    keys = [f"k{i}" for i in range(40)]
    harness.run_epoch([row(key, 50) for key in keys])
    harness.run_epoch([row(key, 0) for key in keys])
    assert harness.snapshot() == {}
    harness.run_epoch([row(f"other{i}", 60) for i in range(40)])
    harness.watermark = 55
    assert harness.run_epoch() == []


def test_timers_move_with_their_keys() -> None:
    cluster = InProcessCluster(
        Alarms, schema=OUT, key="key", input="key string, name string, at long", workers=1, key_groups=8
    )
    keys = [f"k{i}" for i in range(20)]
    cluster.run_epoch([[row(key, 10) for key in keys]])
    cluster.rescale(3)
    cluster.run_epoch([[]])
    cluster.watermark = 10
    assert sorted(out["key"] for out in cluster.run_epoch([[]])) == sorted(keys)
    cluster.rescale(1)
    assert cluster.run_epoch([[row("k1", 5)]]) == [{"key": "k1", "name": "", "at": 5, "n": 102}]


def test_state_that_is_installed_has_timers_and_only_those_of_keys_that_are_owned_fire() -> None:
    harness = made()
    harness.run_epoch([row(key, 5) for key in "abcdef"])
    before = harness._runtime
    assert before is not None
    table = before._table  # type: ignore[attr-defined]
    state = table.extract(table.committed_slots())
    applied = harness._applied
    assert applied is not None
    runtime = applied.deployment.start(WorkerId(1))
    groups = table.index.group_of(table.committed_slots())
    runtime._table.put(state.columns[:1], groups, state)  # type: ignore[attr-defined]
    owned = KeyGroup(int(groups[0]))
    time = EpochTime(watermark=5)
    assert len(runtime.due_hashes(ALL, time)) == 6
    assert len(runtime.due_hashes([owned], time)) == np.count_nonzero(groups == owned)
    assert len(runtime.due_hashes(ALL, EpochTime(watermark=4))) == 0
    runtime.begin(Epoch(1), [owned])
    assert runtime.next_due() == Due(watermark=5)
    runtime.set_time(time)
    runtime.seal()
    assert len(Alarms.calls[0][1]) == np.count_nonzero(groups == owned)
    assert runtime.next_due() == Due(), "the others are for their owners"
    runtime.abort()
    Alarms.calls.clear()
    runtime.begin(Epoch(1), ALL)
    runtime.set_time(time)
    runtime.seal(lambda groups, hashes: np.arange(len(groups)) < 2)
    assert len(Alarms.calls[0][1]) == 2
    runtime.commit()
    assert len(runtime.due_hashes(ALL, time)) == 4


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda ctx: ctx.timers.set(1, "nobody"),
            r"no timer 'nobody' by event time: .* timers = \('', 'b', 'nobody'\)",
        ),
        (lambda ctx: ctx.timers.processing.set(1), r"no timer '' by processing time: .* = \('a', ''\)"),
        (lambda ctx: ctx.timers.set([1, 2, 3]), "shape .3,.: give one time for each of the 2 keys"),
        (lambda ctx: ctx.timers.set(1.5), "float64: give milliseconds"),
        (lambda ctx: ctx.timers.set(np.array(["2024-01-01", "2024-01-02"], "datetime64[s]")), "datetime64"),
        (lambda ctx: ctx.timers.set(2**62), "no time in milliseconds"),
        (lambda ctx: ctx.timers.set(1_704_067_200_000_000), "of microseconds: at // 1000"),
        (lambda ctx: ctx.timers.set(-(2**63)), "no time in milliseconds"),
        (lambda ctx: ctx.timers.set(1, where=[2]), "positions from 0 to 1"),
        (lambda ctx: ctx.timers.set(1, where=[-1]), "positions from 0 to 1"),
        (lambda ctx: ctx.timers.set(1, where=[True]), "a boolean for each of the 2 keys"),
        (lambda ctx: ctx.forget(where="all"), "a boolean for each of the 2 keys"),
    ],
)
def test_what_is_no_time_or_no_key_is_refused(call: Any, says: str) -> None:
    class Wrong(Alarms):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
            call(ctx)

    with pytest.raises(DefinitionError, match=says):
        made(Wrong).run_epoch([row("a", 1), row("b", 1)])


def test_timers_are_of_the_keys_that_a_call_is_about() -> None:
    class Late(Alarms):
        def result(self, keys: Any, state: Any, ctx: bl.BatchContext) -> Any:
            ctx.timers.set(1)

    with pytest.raises(DefinitionError, match="is for process and on_timer"):
        made(Late).run_epoch([row("a", 1)])

    class Early(Alarms):
        def setup(self, ctx: Any) -> None:
            ctx.forget()

    with pytest.raises(DefinitionError, match=r"ctx.forget\(\) is for process, on_timer and result"):
        made(Early).run_epoch([row("a", 1)])


def test_an_operator_without_on_timer_has_no_timers_and_no_column_for_them() -> None:
    class Plain(bl.VectorOperator):
        n: int = bl.value(0)

        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
            if ctx.watermark:
                ctx.timers.set(1)

    harness = made(Plain)
    harness.run_epoch([row("a", 1)])
    assert harness.state["a"] == {"n": 0}
    harness.watermark = 1
    with pytest.raises(DefinitionError, match="has no on_timer"):
        harness.run_epoch([row("a", 1)])


@pytest.mark.parametrize("names", ["idle", ["idle"], (1,), ("not good",), ("a.b",)])
def test_names_that_are_none_are_refused(names: Any) -> None:
    class Bad(Alarms):
        pass

    Bad.timers = names
    with pytest.raises(DefinitionError, match="operator Bad: timers"):
        made(Bad)


def test_lateness_is_asked_of_whole_arrays() -> None:
    class Late(Alarms):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
            late = ctx.is_late(batch.numpy("at"))
            return {"n": np.bincount(batch.index, ~late, minlength=len(state["n"])).astype(int)}

    harness = made(Late)
    harness.watermark = 10
    harness.run_epoch([row("a", 9), row("a", 10), row("b", 3)])
    assert [harness.state[key]["n"] for key in "ab"] == [1, 0]


def test_timers_are_a_column_of_numbers() -> None:
    operator = made()
    operator.run_epoch([row("a", 5)])
    assert operator._applied is not None
    variables = {it.name: it.field.type for it in operator._applied.deployment.variables}
    assert variables == {
        "n": pa.int64(),
        "bedload_timer_event": pa.int64(),
        "bedload_timer_processing_a": pa.int64(),
        "bedload_timer_event_b": pa.int64(),
    }
