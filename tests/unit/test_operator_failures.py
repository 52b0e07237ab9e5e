"""What is left of a call of operator code that failed: nothing. And what such a failure does: it fails the epoch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.errors import DefinitionError, OperatorFailed
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.keys import hash_columns, key_groups
from bedload.testing import InProcessCluster, OperatorHarness
from bedload.worker.column_runtime import ColumnDeployment, ColumnRuntime
from bedload.worker.operator import Context, Operator
from bedload.worker.rows import Rows
from bedload.worker.vector import VectorLogic, VectorOperator

OUT = {"k": pa.string(), "n": pa.int64()}
IN = {"k": pa.string(), "x": pa.int64()}

ENDINGS: dict[str, Callable[[], BaseException]] = {
    "an exception": lambda: RuntimeError("flaky"),
    "sys.exit": lambda: SystemExit("bad config"),
    "an interrupt": KeyboardInterrupt,
    "a generator's end": GeneratorExit,
    "a cancelled task": asyncio.CancelledError,
}


def row(key: str, x: int = 1) -> dict[str, Any]:
    return {"k": key, "x": x}


def harness(operator: type[Operator]) -> OperatorHarness:
    return OperatorHarness(operator, schema=OUT, key="k", input=IN)


class Forgetful(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for item in rows:
            self.n += 1
            if item.x < 0:
                ctx.forget()
            if item.x == -1:
                raise RuntimeError("flaky")
        return key, self.n


class ForgetfulGenerator(Forgetful):
    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.n += len(rows)
        for item in rows:
            if item.x < 0:
                ctx.forget()
                yield key, "not an int"
                raise RuntimeError("flaky")
        yield key, self.n


class ForgetfulResult(Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.n += sum(item.x for item in rows)

    def result(self, key: Any, ctx: Context) -> Any:
        if self.n < 0:
            ctx.forget()
            raise RuntimeError("flaky")
        return key, self.n


@pytest.mark.parametrize("operator", [Forgetful, ForgetfulGenerator, ForgetfulResult])
def test_a_forget_whose_call_failed_removes_no_other_key(operator: type[Operator]) -> None:
    h = harness(operator)
    for _ in range(3):
        h.run_epoch([row("innocent")])
    with pytest.raises(OperatorFailed, match="flaky"):
        h.run_epoch([row("bad", -1)])
    assert h.run_epoch([row("innocent")]) == [{"k": "innocent", "n": 4}]
    assert h.state("innocent") == {"n": 4}
    assert h.state("bad") is None


def test_a_forget_whose_call_failed_removes_no_other_key_in_a_cluster() -> None:
    cluster = InProcessCluster(Forgetful, schema=OUT, key="k", input=IN, workers=1)
    cluster.run_epoch([[row("a"), row("b")]])
    with pytest.raises(OperatorFailed):
        cluster.run_epoch([[row("bad", -1), row("a")]])
    cluster.restart()
    cluster.run_epoch([[row("a"), row("b")]])
    assert cluster.snapshot() == {"a": {"n": 2}, "b": {"n": 2}}


def test_a_forget_that_is_followed_by_an_abort_is_undone() -> None:
    h = harness(Forgetful)
    h.run_epoch([row("a")])
    h.feed([row("a", -2)])
    h.feed([row("a")])
    h.abort()
    assert h.snapshot() == {"a": {"n": 1}}


def test_every_key_of_a_batch_can_be_forgotten_at_the_price_of_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    import bedload.worker.row_runtime as runtime

    def group_rows(*args: Any) -> Any:
        made = grouping(*args)
        return made._replace(keys=list(map(Key, made.keys)))

    grouping = runtime.group_rows
    monkeypatch.setattr(runtime, "group_rows", group_rows)
    keys = 2000
    h = OperatorHarness(Forgetful, schema=OUT, key="k", input=IN, key_groups=2)
    h.run_epoch([row(f"key {i}", -2) for i in range(keys)])
    assert h.snapshot() == {}
    assert compared < 20 * keys


@pytest.mark.parametrize("ttl", [None, "1 hour"])
def test_setup_has_no_key_to_set_a_state_variable_of(ttl: Any) -> None:
    class Sets(Operator):
        n: int = bl.value(0, ttl=ttl)

        def setup(self, ctx: Context) -> None:
            self.n = 5

        def process(self, key: Any, rows: Any, ctx: Context) -> None:
            self.n += 1

    with pytest.raises(DefinitionError, match="setup of operator Sets sets n, which is a state variable"):
        OperatorHarness(Sets, schema="key string", key="key", input="key string").run_epoch([("a",)])


def test_setup_has_no_key_to_forget() -> None:
    class Early(Forgetful):
        def setup(self, ctx: Context) -> None:
            ctx.forget()

    with pytest.raises(DefinitionError, match=r"setup of operator Early called ctx\.forget"):
        harness(Early)


class Poison(Operator):
    n: int = bl.value(0)
    ending: Callable[[], BaseException]

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        self.n += len(rows)
        if any(item.x == -1 for item in rows):
            raise self.ending()
        if any(item.x == -2 for item in rows):
            return self._many(key)
        return key, self.n

    def _many(self, key: Any) -> Any:
        yield key, self.n
        raise self.ending()

    def result(self, key: Any, ctx: Context) -> Any:
        if self.n == 13:
            raise self.ending()


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("x", [-1, -2])
def test_whatever_process_raises_fails_the_epoch_alone(ending: Callable[[], BaseException], x: int) -> None:
    operator = type("Poisoned", (Poison,), {"ending": staticmethod(ending)})
    h = harness(operator)
    h.run_epoch([row("a")])
    with pytest.raises(OperatorFailed, match=f"process of operator Poisoned.*raised {type(ending()).__name__}"):
        h.run_epoch([row("a"), row("b", x)])
    assert h.run_epoch([row("a")]) == [{"k": "a", "n": 2}]

    cluster = InProcessCluster(operator, schema=OUT, key="k", input=IN)
    cluster.run_epoch([[row("a")]])
    with pytest.raises(OperatorFailed):
        cluster.run_epoch([[row("a"), row("b", x)]])
    cluster.restart()
    assert cluster.run_epoch([[row("a")]]) == [{"k": "a", "n": 2}]


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_whatever_result_raises_fails_the_epoch_alone(ending: Callable[[], BaseException]) -> None:
    h = harness(type("Poisoned", (Poison,), {"ending": staticmethod(ending)}))
    with pytest.raises(OperatorFailed, match="result of operator"):
        h.run_epoch([row("a") for _ in range(13)])
    assert h.run_epoch([row("a")]) == [{"k": "a", "n": 1}]


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_whatever_setup_and_close_raise_is_an_operator_error(ending: Callable[[], BaseException]) -> None:
    def fail(*_: Any) -> None:
        raise ending()

    with pytest.raises(OperatorFailed, match="setup of operator"):
        harness(type("Broken", (Forgetful,), {"setup": fail}))
    h = harness(type("Broken", (Forgetful,), {"close": fail}))
    with pytest.raises(OperatorFailed, match="close of operator"):
        h.close()


def test_an_output_row_that_ends_the_interpreter_fails_the_epoch_alone() -> None:
    class Row(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            sys.exit()

    class Odd(Forgetful):
        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            self.n += 1
            return Row(k=key, n=1) if rows[0].x else (key, self.n)

    h = harness(Odd)
    with pytest.raises(OperatorFailed, match="SystemExit"):
        h.run_epoch([row("a")])
    assert h.run_epoch([row("a", 0)]) == [{"k": "a", "n": 1}]


# --- on columns ---


class Vector(VectorOperator):
    n: int = bl.value(0)

    def process(self, batch: Any, state: Any, ctx: Context) -> Any:
        if batch.numpy("x").min() == -1:
            raise SystemExit(3)
        if batch.numpy("x").min() == -2:
            ctx.forget()
        return {"n": state["n"] + np.bincount(batch.index, minlength=len(state["n"]))}


def vector() -> ColumnRuntime:
    logic = VectorLogic(Vector, pa.schema([("k", pa.string()), ("n", pa.int64())]))
    return ColumnDeployment(OperatorName("Vector"), logic, (0,), (pa.string(),), 4).start(WorkerId(0))


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    keys = pa.array([item["k"] for item in rows], pa.string())
    groups = pa.array(key_groups(hash_columns([keys]), 4).astype(np.int16))
    return pa.RecordBatch.from_arrays(
        [keys, pa.array([item["x"] for item in rows], pa.int64()), groups], names=["k", "x", "g"]
    )


def run(runtime: ColumnRuntime, *rows: dict[str, Any]) -> None:
    runtime.begin(Epoch(0), [KeyGroup(group) for group in range(4)])
    try:
        runtime.apply(batch(*rows))
        runtime.seal()
    except BaseException:
        runtime.abort()
        raise
    runtime.commit()


def test_an_exit_in_a_vector_operator_fails_the_epoch_alone() -> None:
    runtime = vector()
    run(runtime, row("a"))
    with pytest.raises(OperatorFailed, match="SystemExit"):
        run(runtime, row("a"), row("b", -1))
    assert dict(runtime.snapshot()) == {"a": {"n": 1}}


class Speechless(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def test_an_exception_without_a_text_is_told_with_its_key() -> None:
    class Mute(Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            raise Speechless

    harness = OperatorHarness(Mute, schema="car string", key="car")
    with pytest.raises(OperatorFailed, match=r"key 'a'.* raised Speechless: \(its str\(\) failed\)"):
        harness.run_epoch([{"car": "a"}])


def test_a_setup_that_raises_an_exception_without_a_text_fails_as_any_other() -> None:
    class Mute(Operator):
        n: int = bl.value(0)

        def setup(self, ctx: Context) -> None:
            raise Speechless

        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            pass

    with pytest.raises(OperatorFailed, match=r"setup of operator Mute.* raised Speechless"):
        OperatorHarness(Mute, schema="car string", key="car", input="car string")
