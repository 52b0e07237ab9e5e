"""Parameters of operators: how they are declared, what is refused where, and that every worker has the same."""

from __future__ import annotations

import enum
import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

import bedload as bl
from bedload.core.errors import DefinitionError, OperatorFailed
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.testing import InProcessCluster, OperatorHarness
from bedload.worker.operator import check_operator, state_of
from bedload.worker.parameters import parameters_of, parts_of, texts_of
from bedload.worker.row_runtime import Deployment, OperatorRuntime

OUT = pa.schema([("k", pa.string()), ("n", pa.int64())])


class Unit(enum.Enum):
    KMH = "km/h"


@dataclass(frozen=True)
class Limits:
    low: int
    names: tuple[str, ...] = ()


class Steps(bl.Operator):
    """Counts by a step."""

    n: int = bl.value(0)
    step: int = bl.param(1)
    start: int = bl.param(0, fixed=True)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        self.n += self.step * len(rows)
        return key, self.start + self.n


class Plain(bl.Operator):
    """Has none."""

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None: ...


class VectorSteps(bl.VectorOperator):
    """The same on columns."""

    n: int = bl.value(0)
    step: int = bl.param()

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
        return {"n": state["n"] + self.step * np.bincount(batch.index, minlength=len(state["n"]))}

    def result(self, keys: Any, state: Any, ctx: bl.Context) -> Any:
        return {"k": keys, "n": state["n"]}


def rows(*keys: str) -> list[dict[str, Any]]:
    return [{"k": key} for key in keys]


# --- what is declared ---


def test_parameters_are_no_state_and_are_inherited() -> None:
    class More(Steps):
        m: int = bl.value(0)
        factor: float = bl.param(2.0)

    class Narrow(Steps):
        step = 7  # a constant now

    assert [spec.name for spec in state_of(More)] == ["n", "m"]
    assert list(parameters_of(More)) == ["step", "start", "factor"]
    assert list(parameters_of(Narrow)) == ["start"]
    harness = OperatorHarness(Narrow, schema=OUT, key="k")
    assert harness.run_epoch(rows("a")) == [{"k": "a", "n": 7}]


@pytest.mark.parametrize("declared", [{"step": bl.value(0)}, {"n": bl.param(0)}], ids=["state", "parameter"])
def test_a_name_is_a_parameter_or_a_state_variable(declared: dict[str, Any]) -> None:
    says = f"operator Wrong: {next(iter(declared))} is a parameter and a state variable"
    with pytest.raises(DefinitionError, match=says):
        type(Steps)("Wrong", (Steps,), declared)


def test_a_parameter_that_is_declared_again_keeps_its_type() -> None:
    class Wide(Steps):
        step = bl.param(5)

    assert Wide().step == 5
    with pytest.raises(DefinitionError, match="parameter step of operator Wide is int, and not 'a'"):
        Wide(step="a")


@pytest.mark.parametrize("declared", [{"gap": bl.param([1])}, {"count": bl.value(0)}], ids=["parameter", "state"])
def test_declarations_of_a_base_that_is_no_operator_are_refused(declared: dict[str, Any]) -> None:
    mixin = type("Mixin", (), declared)
    with pytest.raises(DefinitionError, match=f"base Mixin declares {next(iter(declared))}, but is no operator"):
        type(Steps)("Mixed", (mixin, Steps), {})


@pytest.mark.parametrize("annotation", [float, float | None, Annotated[float, "km/h"]])
def test_a_float_is_one_however_it_is_written(annotation: Any) -> None:
    made = type(Steps)("Limit", (bl.Operator,), {"__annotations__": {"limit": annotation}, "limit": bl.param(90)})
    texts = {repr(made()), repr(made(limit=90)), repr(made(limit=90.0))}
    assert texts == {"Limit(limit=90.0)"}


@pytest.mark.parametrize("name", ["process", "grouped", "_bl_x", "__x"])
def test_some_names_are_taken(name: str) -> None:
    with pytest.raises(DefinitionError, match=f"operator Wrong: no parameter can be named {name}"):
        type(Steps)("Wrong", (bl.Operator,), {name: bl.param(1)})


@pytest.mark.parametrize("method", ["__init__", "__new__"])
def test_an_init_is_refused_with_the_way_to_parameters(method: str) -> None:
    with pytest.raises(
        DefinitionError, match=rf"operator Wrong defines {method}.*bl\.param\(30\), then Wrong\(gap=60\)"
    ):
        type(Steps)("Wrong", (bl.Operator,), {method: lambda self: None})


def test_a_default_has_to_fit() -> None:
    with pytest.raises(DefinitionError, match=r"parameter gap of operator Wrong is int, and not '30' \(str\)"):

        class Wrong(bl.Operator):
            gap: int = bl.param("30")


# --- what is given ---


def test_an_operator_with_parameters_reads_as_it_was_written_and_pickles() -> None:
    made = Steps(step=3)
    assert repr(made) == "Steps(step=3, start=0)"
    assert isinstance(made, Steps)
    assert (made.step, made.start) == (3, 0)
    for again in (pickle.loads(pickle.dumps(made)), cloudpickle.loads(cloudpickle.dumps(made))):
        assert parts_of(again) == (Steps, {"step": 3, "start": 0})
    assert parts_of(Steps) == (Steps, {"step": 1, "start": 0})
    assert check_operator(parts_of(made)[0]) is Steps


def test_what_has_to_be_given_has_to_be_given_also_after_pickling() -> None:
    class Needs(bl.Operator):
        gap: int = bl.param()

    with pytest.raises(DefinitionError, match="parameter gap has no default and was not given"):
        cloudpickle.loads(cloudpickle.dumps(Needs))()


def test_one_of_a_class_that_is_pickled_by_value_keeps_its_parameters() -> None:
    """As one in ``__main__`` or a notebook is."""
    space: dict[str, Any] = {"bl": bl, "__name__": "__main__"}
    exec(
        "class Counts(bl.Operator):\n"
        "    n: int = bl.value(0)\n"
        "    step: int = bl.param(2)\n"
        "    def process(self, key, rows, ctx):\n"
        "        self.n += self.step\n"
        "        return key, self.n\n",
        space,
    )
    again = cloudpickle.loads(cloudpickle.dumps(space["Counts"](step=5)))
    assert OperatorHarness(again, schema=OUT, key="k").run_epoch(rows("a")) == [{"k": "a", "n": 5}]
    assert parts_of(again)[0](step=1).step == 1


def test_it_does_not_change() -> None:
    made = Steps(step=3)
    with pytest.raises(
        DefinitionError, match=r"parameter step of operator Steps was to be set to 4.*Steps\(step=\.\.\.\)"
    ):
        made.step = 4
    with pytest.raises(AttributeError):
        made.other = 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Steps(stepp=3), "operator Steps has no parameter stepp; there are: step, start"),
        (lambda: Steps(3), r"parameters are given by name, as in Steps\(step=...\), and not as 3"),
        (lambda: Plain(3), r"operator Plain has no parameters, and was given 3"),
        (lambda: Steps(step="3"), r"parameter step of operator Steps is int, and not '3' \(str\)"),
        (lambda: Steps(step=True), r"is int, and not True \(bool\)"),
        (lambda: Steps(step=None), r"is int, and not None"),
        (lambda: VectorSteps(), "operator VectorSteps: parameter step has no default and was not given: use Vector"),
        (lambda: parts_of(VectorSteps), r"VectorSteps\(step=\.\.\.\)"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_parameter_is_said_where_it_is_given(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        make()


def test_an_operator_without_parameters_says_how_to_declare_one() -> None:
    class Plain(bl.Operator):
        pass

    with pytest.raises(
        DefinitionError, match=r"Plain has no parameter gap; declare it on the class: gap: int = bl\.param"
    ):
        Plain(gap=3)


def test_a_state_variable_is_no_parameter() -> None:
    class Count(bl.Operator):
        n: int = bl.value(0)
        gap: int = bl.param(3)

    with pytest.raises(DefinitionError, match=r"Count: n is a state variable and not .*process.*initial_state=df"):
        Count(n=4, gap=2)


class Typed(bl.Operator):
    any_ = bl.param(None)
    rate: float = bl.param(1.0)
    maybe: int | None = bl.param(None)
    mode: Literal["a", "b"] = bl.param("a")
    names: list[str] = bl.param([])
    pair: tuple[int, int] = bl.param((1, 2))
    limits: Mapping[str, int] = bl.param({})
    key: Callable[[int], int] = bl.param(abs)
    more: Limits = bl.param(Limits(1))
    unit: Unit = bl.param(Unit.KMH)


@pytest.mark.parametrize(
    "given",
    [
        {"any_": "x"},
        {"rate": 3},
        {"maybe": 3},
        {"mode": "b"},
        {"names": ("a",)},
        {"names": ["a"]},
        {"pair": [1, 2]},
        {"limits": {"car": 3}},
        {"key": lambda x: x},
        {"more": Limits(2, ("a",))},
    ],
)
def test_values_of_the_declared_type_are_taken(given: dict[str, Any]) -> None:
    made = Typed(**given)
    for name, value in given.items():
        assert getattr(made, name) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    "given",
    [
        {"rate": "3"},
        {"maybe": "3"},
        {"mode": "c"},
        {"names": "ab"},
        {"limits": 3},
        {"key": 3},
        {"more": 1},
        {"unit": 1},
    ],
)
def test_values_of_another_type_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=f"parameter {next(iter(given))} of operator Typed is .*, and not "):
        Typed(**given)


@dataclass
class Changes:
    n: int = 0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (threading.Lock(), "of the type lock, whose values can change"),
        (bytearray(b"x"), "of the type bytearray"),
        (np.zeros(2), "of the type ndarray"),
        (Changes(), "the dataclass Changes is not declared with frozen=True"),
        ((1, [Changes()]), "the dataclass Changes"),
    ],
    ids=["lock", "bytearray", "array", "dataclass", "deep"],
)
def test_what_can_change_is_refused_with_the_alternative(value: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=rf"(?s)parameter any_ of operator Typed: .*{says}.*setup\(\)"):
        Typed(any_=value)


def test_what_the_caller_changes_later_changes_nothing() -> None:
    names, limits = ["a"], {"car": {"low": [1]}}
    made = Typed(names=names, limits=limits)
    names.append("b")
    limits["car"]["low"].append(2)
    assert (made.names, made.limits) == (("a",), {"car": {"low": (1,)}})
    with pytest.raises(TypeError, match="cannot change"):
        made.limits["bus"] = 1  # type: ignore[index]


def test_texts_are_the_same_in_every_process() -> None:
    values = parts_of(Typed(any_={"b": {3, 1, 2}, "a": len}, key=abs, more=Limits(2, ("x",))))[1]
    found = texts_of(values)
    assert found["any_"] == "{'a': builtins.len, 'b': {1, 2, 3}}"
    assert found["more"] == "Limits(low=2, names=('x',))"
    assert found["unit"] == "Unit.KMH"
    assert found["names"] == "()"


# --- what runs ---


@pytest.mark.parametrize("operator", [Steps, VectorSteps])
def test_two_applications_of_a_class_each_have_their_own(operator: Any) -> None:
    three = OperatorHarness(operator(step=3), schema=OUT, key="k")
    five = OperatorHarness(operator(step=5), schema=OUT, key="k")
    for times in (1, 2):
        assert three.run_epoch(rows("a")) == [{"k": "a", "n": 3 * times}]
        assert five.run_epoch(rows("a")) == [{"k": "a", "n": 5 * times}]
    assert (three.state("a"), five.state("a")) == ({"n": 6}, {"n": 10})


@pytest.mark.parametrize("operator", [Steps, VectorSteps])
def test_workers_that_come_later_have_the_same(operator: Any) -> None:
    cluster = InProcessCluster(operator(step=3), schema=OUT, key="k", input={"k": pa.string()}, workers=1, key_groups=8)
    keys = [f"key {i}" for i in range(20)]
    for epoch in range(1, 5):
        outputs = cluster.run_epoch([rows(*keys)])
        assert sorted(row["n"] for row in outputs) == [3 * epoch] * len(keys)
        cluster.rescale(1 + epoch % 3)
    assert cluster.snapshot() == {key: {"n": 12} for key in keys}


def test_setup_and_result_see_parameters() -> None:
    class Shares(bl.Operator):
        n: int = bl.value(0)
        step: int = bl.param(1)

        def setup(self, ctx: bl.Context) -> None:
            self.twice = 2 * self.step

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
            self.n += self.twice

        def result(self, key: Any, ctx: bl.Context) -> Any:
            return key, self.n + self.step

    harness = OperatorHarness(Shares(step=10), schema=OUT, key="k")
    assert harness.run_epoch(rows("a")) == [{"k": "a", "n": 30}]


def _twice(x: int) -> int:
    return 2 * x


def test_a_function_is_called_as_it_was_given() -> None:
    class Calls(bl.Operator):
        n: int = bl.value(0)
        function: Callable[[int], int] = bl.param()

        def setup(self, ctx: Any) -> None:
            self.made = lambda x: x + 1
            assert (self.function(4), self.made(4)) == (8, 5)

        def process(self, key: Any, rows: Any, ctx: Any) -> Any:
            self.n = self.made(self.function(4))
            return key, self.n

    for function in (_twice, lambda x: 2 * x):
        harness = OperatorHarness(Calls(function=function), schema=OUT, key="k")
        assert harness.run_epoch(rows("a")) == [{"k": "a", "n": 9}]


def test_new_parameters_for_state_in_memory_hold_from_the_next_epoch_on() -> None:
    def shipped(step: int) -> Deployment:
        operator, values = parts_of(Steps(step=step))
        return Deployment(OperatorName("Steps"), operator, (0,), ("k",), OUT, (pa.string(),), parameters=values)

    runtime = OperatorRuntime(shipped(1), WorkerId(0))
    batch = pa.record_batch({"k": ["a"], "bedload_group": pa.array([0], pa.int16())})
    for epoch, step in enumerate((1, 10)):
        runtime.redeploy(shipped(step))
        runtime.begin(Epoch(epoch), [KeyGroup(0)])
        runtime.apply(batch)
        runtime.seal()
        runtime.commit()
    assert runtime.read(KeyGroup(0), "a") == {"n": 11}


def test_no_method_can_set_one() -> None:
    class InSetup(Steps):
        def setup(self, ctx: bl.Context) -> None:
            self.step = 9

    class InProcess(Steps):
        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
            self.step = 9

    class InColumns(VectorSteps):
        def process(self, batch: Any, state: Any, ctx: Any) -> Any:
            self.step = 9

    with pytest.raises(DefinitionError, match="parameter step of operator Steps was to be set to 9"):
        OperatorHarness(InSetup, schema=OUT, key="k").run_epoch(rows("a"))
    with pytest.raises(OperatorFailed, match=r"read-only(.|\n)*step is a parameter of Steps, and .*does not change"):
        OperatorHarness(InProcess, schema=OUT, key="k").run_epoch(rows("a"))
    with pytest.raises(DefinitionError, match="parameter step of operator VectorSteps was to be set to 9"):
        OperatorHarness(InColumns(step=1), schema=OUT, key="k").run_epoch(rows("a"))
