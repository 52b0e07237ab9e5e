"""The same operator name, applied again: what has to stay, and that a refusal comes before anything is done."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.checkpoint_states import COUNTS

import bedload as bl
from bedload.checkpoint.heritage import NO_TERMS, Terms
from bedload.checkpoint.records import TurnRecord, pack_owners
from bedload.control.coordinator import Coordinator
from bedload.control.lineage import Lineage
from bedload.control.members import workers_at
from bedload.core.clock import SystemClock
from bedload.core.errors import (
    Fenced,
    KeyGroupsChanged,
    OperatorNotShippable,
    SchemaChanged,
    StateTypeError,
    Timeout,
)
from bedload.core.ids import NO_TURN, DeploymentId, Epoch, OperatorName, QueryId, WorkerId
from bedload.spark.application import Application, Keyed
from bedload.spark.deployments import Deployments
from bedload.spark.keeper import Keeper
from bedload.spark.state_view import ColumnDecoder, RowDecoder
from bedload.store.columns import ColumnSpec
from bedload.worker.operator import state_of
from bedload.worker.row_runtime import Deployment

NAME = OperatorName("Count")


class Count(bl.Operator):
    """Counts rows."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        self.n += len(list(rows))


class Sums(bl.VectorOperator):
    """Of the same name and variable, on columns."""

    n: int = bl.value(0)


class Wider(Count):
    """With one variable more."""

    m: int = bl.value(0)


class FakeDriver:
    """A real coordinator; nothing is sent."""

    address = "nowhere"

    def __init__(self, *, durable: bool) -> None:
        self.coordinator = Coordinator(workers_at({WorkerId(0): "here"}), durable=durable, clock=SystemClock())
        self.shipped: list[OperatorName] = []
        self.refusal: BaseException | None = None

    def call(self, action: Callable[[Coordinator], Any]) -> Any:
        return action(self.coordinator)

    def deploy(
        self, name: OperatorName, groups: int, payload: bytes, *, fresh: bool, lineage: Lineage | None = None
    ) -> DeploymentId:
        self.shipped.append(name)
        number, _ = self.coordinator.deploy(Future(), name, groups, payload, fresh=fresh, lineage=lineage)
        if self.refusal is not None:
            raise self.refusal
        return number


class Applying:
    """A cluster, as far as applying goes."""

    def __init__(self, root: Path | None) -> None:
        self.keeper = None if root is None else Keeper(str(root))
        self.driver = FakeDriver(durable=root is not None)
        attached: Any = SimpleNamespace(
            keeper=self.keeper, spark=None, epoch_bytes=1 << 30, durable=lambda what: self.keeper
        )
        self.deployments = Deployments(attached, self.driver, b"")  # type: ignore[arg-type]

    def apply(
        self,
        keys: dict[str, pa.DataType],
        operator: Any = Count,
        groups: int = 8,
        *,
        fresh: bool = False,
        terms: Terms = NO_TERMS,
    ) -> None:
        columns = tuple(enumerate(keys))
        df: Any = SimpleNamespace(columns=[*keys, "x"])
        keyed = Keyed(NAME, df, columns, tuple(keys.values()), groups)
        out = pa.schema([("n", pa.int64())])
        if issubclass(operator, bl.VectorOperator):
            from bedload.worker.vector import VectorLogic

            made = Application.on_columns(keyed, VectorLogic(operator, out), None, out)  # type: ignore[arg-type]
        else:
            specs = state_of(operator)
            code = Deployment(NAME, operator, keyed.at, (*keys, "x"), out, keyed.types)
            made = Application(keyed, None, out, code, RowDecoder(specs), specs)  # type: ignore[arg-type]
        made = replace(made, terms=terms)
        number = self.deployments._deploy(made, fresh=fresh)
        self.deployments._remember(made)
        self.deployments._record_terms(made, number)

    def files(self) -> list[str]:
        assert self.keeper is not None
        return sorted(self.keeper.checkpoint.storage.list("operators/Count/schemas"))


CAR = {"car": pa.string()}
OTHERS = {
    "another type": ({"car": pa.int64()}, Count, r"key: car string → car int64: .* use the key"),
    "another column": ({"user": pa.string()}, Count, r"key: car string → user string"),
    "one column more": ({"car": pa.string(), "day": pa.string()}, Count, r"key: car string → car string, day string"),
    "on columns": (CAR, Sums, r"layout: rows → columns"),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("durable", [False, True])
def test_another_key_or_layout_under_the_same_name_is_refused_before_anything_is_done(
    case: str, durable: bool, tmp_path: Path
) -> None:
    keys, operator, says = OTHERS[case]
    cluster = Applying(tmp_path / "state" if durable else None)
    cluster.apply(CAR)
    shipped, files = list(cluster.driver.shipped), cluster.files() if durable else []
    with pytest.raises(SchemaChanged if durable else StateTypeError, match=says) as refused:
        cluster.apply(keys, operator)
    assert "another name (name=...)" in str(refused.value)
    assert "fresh=True" in str(refused.value)
    assert cluster.driver.shipped == shipped
    assert not durable or cluster.files() == files
    cluster.apply(CAR)  # as it was, it goes on
    cluster.apply(keys, operator, fresh=True)
    cluster.apply(keys, operator)
    with pytest.raises((SchemaChanged, StateTypeError)):
        cluster.apply(CAR)


@pytest.mark.parametrize("durable", [False, True])
def test_a_composite_key_in_another_order_is_another_key(durable: bool, tmp_path: Path) -> None:
    cluster = Applying(tmp_path / "state" if durable else None)
    cluster.apply({"a": pa.string(), "b": pa.string()})
    with pytest.raises((SchemaChanged, StateTypeError), match="key: a string, b string → b string, a string"):
        cluster.apply({"b": pa.string(), "a": pa.string()})
    cluster.apply({"A": pa.string(), "b": pa.string()})  # Spark does not tell cases apart


@pytest.mark.parametrize("durable", [False, True])
def test_another_number_of_key_groups_is_refused(durable: bool, tmp_path: Path) -> None:
    cluster = Applying(tmp_path / "state" if durable else None)
    cluster.apply(CAR)
    with pytest.raises(KeyGroupsChanged, match="8 key groups, but 16"):
        cluster.apply(CAR, groups=16)
    cluster.apply(CAR, groups=16, fresh=True)
    cluster.apply(CAR, groups=16)


def test_with_fresh_state_the_checkpoint_knows_the_new_key(tmp_path: Path) -> None:
    cluster = Applying(tmp_path / "state")
    cluster.apply(CAR)
    cluster.apply({"car": pa.int64()}, fresh=True)
    lineage = cluster.driver.coordinator.operator(NAME).lineage
    assert lineage is not None
    assert lineage.schema.keys.types == [pa.int64()]


@pytest.mark.parametrize(
    "refusal",
    [OperatorNotShippable("a module is missing"), KeyboardInterrupt(), Timeout("a worker does not answer")],
    ids=lambda refusal: type(refusal).__name__,
)
def test_what_was_shipped_and_did_not_come_to_an_end_counts_as_applied(refusal: BaseException, tmp_path: Path) -> None:
    """The coordinator knows the operator by it: a later one of another shape would be written under its schema."""
    cluster = Applying(tmp_path / "state")
    cluster.driver.refusal = refusal
    applied = cluster.deployments.launch
    for _ in range(2):
        with pytest.raises(type(refusal)):
            _launch(cluster, applied, CAR)
    with pytest.raises(SchemaChanged, match="key: car string → car int64"):
        _launch(cluster, applied, {"car": pa.int64()})


def test_what_could_not_be_pickled_does_not_count_as_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with fresh state: nobody was told, and the state of before is there."""
    cluster = Applying(tmp_path / "state")
    _launch(cluster, cluster.deployments.launch, CAR)

    def payload(self: Application, epoch_bytes: int | None = None) -> bytes:
        raise OperatorNotShippable("a lock is in the way")

    with monkeypatch.context() as patch:
        patch.setattr(Application, "payload", payload)
        with pytest.raises(OperatorNotShippable):
            _launch(cluster, cluster.deployments.launch, {"car": pa.int64()}, fresh=True)
    with pytest.raises(SchemaChanged, match="key: car string → car int64"):
        _launch(cluster, cluster.deployments.launch, {"car": pa.int64()})


def _launch(
    cluster: Applying, launch: Callable[..., Any], keys: dict[str, pa.DataType], *, fresh: bool = False
) -> None:
    df: Any = SimpleNamespace(columns=[*keys, "x"], mapInArrow=lambda *_: None)
    keyed = Keyed(NAME, df, tuple(enumerate(keys)), tuple(keys.values()), 8)
    out = pa.schema([("n", pa.int64())])
    code = Deployment(NAME, Count, keyed.at, (*keys, "x"), out, keyed.types)
    made = Application(keyed, None, out, code, RowDecoder(state_of(Count)), state_of(Count))  # type: ignore[arg-type]
    launch(made, fresh=fresh)


@pytest.mark.parametrize("durable", [False, True])
def test_other_variables_are_refused_as_before(durable: bool, tmp_path: Path) -> None:
    cluster = Applying(tmp_path / "state" if durable else None)
    cluster.apply(CAR)
    says = "attach again with the same checkpoint" if durable else "m differ.*fresh=True"
    with pytest.raises((SchemaChanged, StateTypeError), match=says):
        cluster.apply(CAR, Wider)


@pytest.mark.parametrize("durable", [False, True])
def test_a_fixed_parameter_stays_and_others_may_change(
    durable: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Applying(tmp_path / "state" if durable else None)
    fixed = frozenset({"size"})
    cluster.apply(CAR, terms=Terms({"gap": "30", "size": "8"}, fixed))
    with caplog.at_level(logging.INFO, "bedload"):
        cluster.apply(CAR, terms=Terms({"gap": "60", "size": "8"}, fixed))
    assert "operator Count goes on with other parameters: gap: 30 → 60" in caplog.text
    shipped = list(cluster.driver.shipped)
    with pytest.raises(SchemaChanged, match=r"size: 8 → 9: .*declared as fixed"):
        cluster.apply(CAR, terms=Terms({"gap": "60", "size": "9"}, fixed))
    assert cluster.driver.shipped == shipped
    cluster.apply(CAR, terms=Terms({"size": "9"}, fixed), fresh=True)
    lineage = cluster.driver.coordinator.operator(NAME).lineage
    recorded = [{"gap": "30", "size": "8"}, {"gap": "60", "size": "8"}, {"size": "9"}]
    assert lineage is None or list(lineage.parameters.values()) == recorded


def test_an_attachment_that_a_newer_one_has_run_past_does_not_go_on_from_its_turns(tmp_path: Path) -> None:
    """Its own turns would get the numbers of the newer one's, and be written over them."""
    old, new = Keeper(str(tmp_path)), Keeper(str(tmp_path))
    wanted = COUNTS
    head = new.lineage(NAME, wanted).next_turn(NO_TURN)
    record = TurnRecord(
        turn=head,
        parent=None,
        generation=new.generation,
        query=QueryId("q"),
        run="r",
        epoch=Epoch(0),
        location="",
        schema=1,
        owners=pack_owners([0] * 8),
        workers=(),
        committed={},
    )
    new.checkpoint.write_turn(NAME, record)
    for fresh in (False, True):
        with pytest.raises(Fenced, match="taken over by generation 2"):
            old.lineage(NAME, wanted, fresh=fresh)


@pytest.mark.parametrize(
    ("default", "options", "other"),
    [
        (lambda: float("nan"), {}, 0.0),
        (lambda: np.zeros(3), {"codec": "pickle"}, np.ones(3)),
        (lambda: -0.0, {}, 0.0),
    ],
    ids=["nan", "array", "zero"],
)
def test_a_default_is_the_same_where_it_is_written_again(
    default: Callable[[], Any], options: dict[str, Any], other: Any
) -> None:
    """As when the cell of a notebook is run again."""

    def variables(start: Any) -> dict[str, Any]:
        annotations = {"x": type(start)}
        made = type(Count)("Count", (bl.Operator,), {"__annotations__": annotations, "x": bl.value(start, **options)})
        return RowDecoder(state_of(made)).variables

    assert variables(default()) == variables(default())
    assert variables(default()) != variables(other)


@pytest.mark.parametrize(("default", "other"), [(lambda: float("nan"), 0.0), (lambda: -0.0, 0.0)], ids=["nan", "zero"])
def test_so_is_a_default_of_a_column(default: Callable[[], float], other: float) -> None:
    """Else a new key would begin with one or the other, as the worker had the table before or not."""

    def variables(start: float) -> dict[str, Any]:
        return ColumnDecoder((ColumnSpec("x", pa.float64(), start),)).variables

    assert variables(default()) == variables(default())
    assert variables(default()) != variables(other)
