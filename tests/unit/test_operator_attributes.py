"""Plain values on an operator's class: what looks like state and is none is refused where the class is made."""

from __future__ import annotations

import collections
import typing
from typing import Any, ClassVar, Final, Generic, TypeVar

import cloudpickle
import numpy as np
import pytest

import bedload as bl
from bedload.core.errors import DefinitionError, OperatorFailed
from bedload.testing import OperatorHarness
from bedload.worker.operator import OperatorMeta

T = TypeVar("T")
KINDS = [bl.Operator, bl.VectorOperator]


def make(base: type, annotations: dict[str, Any] | None = None, /, **attributes: Any) -> type:
    return OperatorMeta("Made", (base,), {"__annotations__": annotations or {}, **attributes})


@pytest.mark.parametrize("base", KINDS)
@pytest.mark.parametrize(
    ("annotation", "value", "advice"),
    [
        ("list[int]", [], r"xs: list\[int\] = bl\.list\(\)"),
        (list[int], [], r"xs: list\[int\] = bl\.list\(\)"),
        ("dict", {}, r"xs: dict = bl\.map\(\)"),
        (int, 0, r"xs: int = bl\.value\(0\).*bl\.param.*ClassVar.*XS"),
        ("str | None", None, r"xs: str \| None = bl\.value\(None\)"),
        (None, [1], r"bl\.list\(\)"),
        (None, {}, r"bl\.map\(\)"),
        (None, {1}, r"bl\.set\(\)"),
        (None, collections.Counter(), r"bl\.counter\(\)"),
        (None, collections.deque(), r"bl\.deque\(\)"),
        (None, bytearray(), r"xs: bytes = bl\.value\(b''\)"),
        (None, np.zeros(3), r"bl\.array\("),
    ],
)
def test_a_plain_value_that_looks_like_state_is_refused(base: type, annotation: Any, value: Any, advice: str) -> None:
    with pytest.raises(DefinitionError, match=rf"(?s)operator Made: xs = .*plain value.*{advice}"):
        make(base, {} if annotation is None else {"xs": annotation}, xs=value)


@pytest.mark.parametrize("base", KINDS)
def test_constants_methods_descriptors_and_classes_stay(base: type) -> None:
    class Cached:
        def __get__(self, holder: object, owner: type) -> int:
            return 3

    annotations = {
        "shared": "ClassVar[dict[str, int]]",
        "other": "typing.ClassVar",
        "third": ClassVar[list[int]],
        "last": Final[int],
        "LIMIT": int,
        "function": "Callable[[], int]",
        "descriptor": Cached,
        "grouped": bool,
        "bare": int,
    }
    made: Any = make(
        base,
        annotations,
        shared={"a": 1},
        other=[],
        third=[],
        last=3,
        LIMIT=130,
        TABLE={"a": 1},
        _TABLE=[1],
        number=3,
        text="a",
        nothing=None,
        pair=(1, 2),
        function=lambda self: 1,
        descriptor=Cached(),
        prop=property(lambda self: 1),
        static=staticmethod(int),
        of_class=classmethod(lambda cls: 1),
        Inner=type("Inner", (), {"xs": []}),
        grouped=True,
    )
    assert (made.shared, made.number, made.TABLE, made.grouped) == ({"a": 1}, 3, {"a": 1}, True)
    assert cloudpickle.loads(cloudpickle.dumps(made)).TABLE == {"a": 1}


def test_class_bodies_as_people_write_them() -> None:
    class Trip(bl.Operator, Generic[T]):
        limits: ClassVar[dict[str, int]] = {"a": 1}
        others: typing.ClassVar = [1]
        n: int = bl.value(0)
        NAMES = ["a"]  # noqa: RUF012

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
            self.n += self.limits[key] + len(self.NAMES)
            return key, self.n

    harness = OperatorHarness(Trip, key="k", schema="k string, n long")
    assert harness.run_epoch([{"k": "a"}]) == [{"k": "a", "n": 2}]

    with pytest.raises(DefinitionError, match=r"Wrong: xs = \[\].*bl\.list"):

        class Wrong(bl.Operator):
            n: int = bl.value(0)
            xs: list[int] = []  # noqa: RUF012


class Adds:
    """A base class that is no operator, as many are: it has no slots."""

    step = 2

    def add(self) -> None:
        self.n: int = self.n + self.step

    def note(self) -> None:
        self.noted = True


class Mixed(Adds, bl.Operator):
    n: int = bl.value(0)  # type: ignore[assignment]

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        self.add()
        if rows[0].note:
            self.note()
        return key, self.n


def test_a_base_class_that_is_no_operator_works_and_lets_nothing_else_be_assigned() -> None:
    harness = OperatorHarness(Mixed, key="k", schema="k string, n long", input="k string, note boolean")
    assert harness.run_epoch([("a", False)]) == [{"k": "a", "n": 2}]
    with pytest.raises(OperatorFailed, match=r"(?s)no attribute 'noted'.*Mixed has the state variables: n"):
        harness.run_epoch([("a", True)])
    assert harness.state["a"] == {"n": 2}


def test_a_base_class_that_is_no_operator_has_no_plain_values_and_no_declarations() -> None:
    class Holds:
        xs: list[int] = []  # noqa: RUF012

    class Declares:
        n: int = bl.value(0)

    class Chooses:
        LIMIT: int = bl.param(3)

    for base, wanted in (
        (Holds, "Holds: xs"),
        (Declares, "base Declares declares n, but is no operator"),
        (Chooses, "base Chooses declares LIMIT, but is no operator"),
    ):
        with pytest.raises(DefinitionError, match=wanted):
            OperatorMeta("Made", (base, bl.Operator), {})


def test_a_state_variable_is_hidden_by_nothing() -> None:
    with pytest.raises(DefinitionError, match=r"state variable close is hidden by Operator\.close"):
        make(bl.Operator, {"close": float}, close=bl.value(0.0))
    with pytest.raises(DefinitionError, match=r"state variable n is hidden by Made\.n"):
        make(Mixed, n=5)
    make(Mixed, {"n": int}, n=bl.value(5))
