"""What is checked when an operator is defined, before anything runs."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

import bedload as bl
from bedload.core.errors import DefinitionError, StateTypeError
from bedload.worker.operator import check_operator, make_shared, share, state_of


class Trip(bl.Operator):
    count: int = bl.value(0)
    recent: list[float] = bl.list(maxlen=20)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        self.count += 1


class LongTrip(Trip):
    stops: set[str] = bl.set()


def test_state_is_inherited_and_ordered() -> None:
    assert [spec.name for spec in state_of(LongTrip)] == ["count", "recent", "stops"]
    assert [spec.maxlen for spec in state_of(Trip)] == [None, 20]


def test_an_init_is_refused_with_the_alternative() -> None:
    with pytest.raises(DefinitionError, match="setup"):

        class Wrong(bl.Operator):
            def __init__(self) -> None:
                pass


def test_an_annotation_that_cannot_be_resolved_is_refused() -> None:
    with pytest.raises(StateTypeError, match="Nowhere"):
        exec(  # the name must be missing where the class is defined
            "class Wrong(bl.Operator):\n    x: 'Nowhere' = bl.value(None)\n", {"bl": bl, "__name__": "elsewhere"}
        )


@pytest.mark.parametrize("operator", [int, "Trip", None, lambda key, rows: None])
def test_only_operator_classes_can_be_applied(operator: object) -> None:
    with pytest.raises(DefinitionError, match=r"subclass of bedload\.Operator"):
        check_operator(operator)


def test_process_must_be_there_and_callable() -> None:
    class NoProcess(bl.Operator):
        pass

    class OtherArguments(bl.Operator):
        def process(self, rows: Any) -> None:  # type: ignore[override]
            pass

    with pytest.raises(DefinitionError, match="no process"):
        check_operator(NoProcess)
    with pytest.raises(DefinitionError, match=r"process\(self, key, rows, ctx\)"):
        check_operator(OtherArguments)


def test_what_setup_makes_is_shared_and_cannot_be_assigned_later() -> None:
    class Shares(bl.Operator):
        n: int = bl.value(0)

        def setup(self, ctx: bl.Context) -> None:
            self.model = [1, 2, 3]

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None: ...

    holder, row = make_shared(Shares)
    holder.setup(None)  # type: ignore[arg-type]
    share(holder, row)
    item: Any = row.__new__(row)
    item.n = 1
    assert item.model is holder.model  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        item.model = []
    with pytest.raises(AttributeError):
        item.other = 1


def test_an_operator_survives_being_pickled_by_value() -> None:
    """As one in ``__main__`` or a notebook is."""
    space: dict[str, Any] = {"bl": bl, "__name__": "__main__"}
    exec(
        "class Counts(bl.Operator):\n"
        "    n: int = bl.value(7)\n"
        "    def process(self, key, rows, ctx):\n"
        "        self.n += 1\n",
        space,
    )
    again = cloudpickle.loads(cloudpickle.dumps(space["Counts"]))
    assert [(spec.name, spec.default) for spec in state_of(again)] == [("n", 7)]
    _, row = make_shared(again)
    item: Any = row.__new__(row)
    item.n = 1
    item.process(None, None, None)
    assert item.n == 2


def test_objects_of_one_version_can_become_objects_of_the_next() -> None:
    _, old = make_shared(Trip)

    class Trip2(bl.Operator):
        count: int = bl.value(0)
        recent: list[float] = bl.list(maxlen=20)

        def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
            self.count += 100

    _, new = make_shared(Trip2)
    item: Any = old.__new__(old)
    item.count = 1
    item.__class__ = new
    item.process(None, None, None)
    assert item.count == 101
