"""On which terms an operator goes on with stored state: parameters, and variables that it does not declare any more."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import bedload as bl
from bedload.checkpoint.heritage import NO_TERMS, Terms, inherit
from bedload.checkpoint.records import OperatorSchema, TurnRecord, manifest_of, pack_owners
from bedload.control.lineage import Lineage
from bedload.core.errors import BedloadWarning, DefinitionError, OperatorNotShippable, SchemaChanged, StateDropped
from bedload.core.ids import NO_TURN, DeploymentId, Epoch, OperatorName, QueryId, RunId, Turn, WorkerId
from bedload.keys import RoutingTable
from bedload.spark import applying
from bedload.spark.application import Application, Keyed
from bedload.spark.keeper import Keeper
from bedload.worker.operator import state_of
from bedload.worker.row_runtime import Deployment
from bedload.worker.state_schema import state_schema

NAME = OperatorName("Trip")
CAR = pa.string()


class Trip(bl.Operator):
    n: int = bl.value(0)
    speed: float = bl.value(0.0)
    gap: int = bl.param(30)
    size: int = bl.param(8, fixed=True)

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


class Less(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


class Renamed(Less):
    velocity: float = bl.value(0.0, renamed_from="speed")


def schema_of(operator: type[bl.Operator]) -> OperatorSchema:
    deployment = Deployment(NAME, operator, (0,), ("car", "x"), pa.schema([("n", pa.int64())]), (CAR,))
    return state_schema(deployment, ["car"], [CAR], 8, state_of(operator))


def taken_over(
    root: Path, operator: type[bl.Operator], terms: Terms = NO_TERMS, *, epochs: int = 1, **options: Any
) -> Lineage:
    """What an attachment finds; then it writes so many epochs."""
    keeper = Keeper(str(root))
    lineage = keeper.lineage(NAME, schema_of(operator), terms, **options)
    lineage.head = lineage.history.head
    lineage.parameters[DeploymentId(0)] = terms.parameters
    routing = RoutingTable.initial(8, [WorkerId(0)])
    turn = NO_TURN
    for epoch in range(epochs):
        turn = lineage.next_turn(turn)
        record = lineage.record(turn, QueryId("q"), RunId("r"), Epoch(epoch), routing, {}, DeploymentId(0))
        keeper.checkpoint.write_turn(NAME, without_segments(record))
        lineage.head = turn
    return lineage


def without_segments(record: TurnRecord) -> TurnRecord:
    """One that counts at once."""
    return TurnRecord(
        **{name: getattr(record, name) for name in record.__struct_fields__ if name not in ("workers", "owners")},
        owners=pack_owners([0] * 8),
        workers=(),
    )


def schemas(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "operators" / NAME / "schemas").iterdir())


# --- variables ---


def test_a_variable_that_goes_by_accident_is_warned_of_at_the_users_line(tmp_path: Path) -> None:
    taken_over(tmp_path, Trip)
    with pytest.warns(StateDropped) as found:
        taken_over(tmp_path, Less, epochs=0)
    (warned,) = found
    assert str(warned.message) == (
        "operator Trip: the stored state has speed, and the class does not declare it any more. With the next epoch "
        "its state is dropped; it stays only in the epochs before, as long as these are retained. If it has another "
        "name now, say which: new_name = bl.value(..., renamed_from='speed'). If it is to go, say so: "
        "cluster.apply(..., drop=['speed'])"
    )
    assert warned.filename == __file__
    with pytest.warns(StateDropped):  # no epoch has run: nothing is dropped yet
        taken_over(tmp_path, Less, epochs=1)
    taken_over(tmp_path, Less)  # now it is


def test_timers_that_go_by_accident_are_warned_of_as_such(tmp_path: Path) -> None:
    class Timed(Trip):
        def on_timer(self, key: Any, timer: Any, ctx: Any) -> None: ...

    taken_over(tmp_path, Timed)
    with pytest.warns(
        StateDropped, match=r"has bedload_timers, and the class does not have such timers any more.*"
    ) as it:
        taken_over(tmp_path, Trip, epochs=0)
    assert "Those that are set will not fire." in str(it[0].message)
    assert "renamed_from" not in str(it[0].message)
    with pytest.warns(StateDropped, match=r"has speed, bedload_timers, .*renamed_from='speed'"):
        taken_over(tmp_path, Less, epochs=0)
    taken_over(tmp_path, Trip, Terms(drop=frozenset({"bedload_timers"})))


def test_as_an_error_the_warning_comes_before_anything_is_written(tmp_path: Path) -> None:
    taken_over(tmp_path, Trip)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BedloadWarning)
        with pytest.raises(StateDropped):
            taken_over(tmp_path, Less)
    assert schemas(tmp_path) == ["0001.json"]


@pytest.mark.parametrize(
    ("operator", "terms", "options"),
    [
        (Less, Terms(drop=frozenset({"speed", "long gone"})), {}),
        (Renamed, NO_TERMS, {}),
        (Less, NO_TERMS, {"fresh": True}),
        (Trip, NO_TERMS, {}),
    ],
    ids=["dropped on purpose", "renamed", "fresh", "unchanged"],
)
def test_what_is_said_is_not_warned_of(
    tmp_path: Path, operator: type[bl.Operator], terms: Terms, options: dict[str, Any]
) -> None:
    taken_over(tmp_path, Trip)
    taken_over(tmp_path, operator, terms, **options)


def test_a_variable_is_not_taken_for_one_that_was_renamed_long_ago(tmp_path: Path) -> None:
    class Both(Renamed):
        speed: float = bl.value(0.0)

    for operator in (Trip, Renamed, Both):
        with warnings.catch_warnings(action="error"):
            taken_over(tmp_path, operator)
    with pytest.warns(StateDropped, match=r"the stored state has speed, and the class"):
        taken_over(tmp_path, Renamed)


def test_an_aggregate_that_goes_is_warned_of_in_words_of_its_own(tmp_path: Path) -> None:
    taken_over(tmp_path, Trip)
    with pytest.warns(
        StateDropped, match=r"speed, and no aggregate needs it.*cluster\.aggregate\(\.\.\., drop=\['speed'"
    ):
        taken_over(tmp_path, Less, Terms(call="aggregate"))


def test_whoever_is_no_user_gets_it_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken_over(tmp_path, Trip)
    with caplog.at_level(logging.WARNING, "bedload"):
        inherit(Keeper(str(tmp_path)), NAME, schema_of(Less))
    assert "the stored state has speed" in caplog.text


def test_a_name_to_drop_that_the_state_never_had_is_told_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken_over(tmp_path, Trip, Terms(drop=frozenset({"sped"})))
    assert not caplog.text, "there was no state yet"
    for drop in ({"speed"}, {"speed"}, {"n", "speed"}):  # it may stay in the code
        taken_over(tmp_path, Less, Terms(drop=frozenset(drop)))
    assert not caplog.text
    taken_over(tmp_path, Less, Terms(drop=frozenset({"sped", "speed"})))
    assert "operator Trip: drop names sped, which its state never had; it has had: n, speed" in caplog.text


# --- parameters ---


def test_parameters_may_change_and_the_log_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken_over(tmp_path, Trip, Terms({"gap": "30", "old": "1"}))
    with caplog.at_level(logging.INFO, "bedload"):
        taken_over(tmp_path, Trip, Terms({"gap": "60", "new": "2"}))
    assert "operator Trip goes on with other parameters: gap: 30 → 60; new is new: 2; old is gone, was 1" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "bedload"):
        taken_over(tmp_path, Trip, Terms({"gap": "60", "new": "2"}))
        taken_over(tmp_path, Trip, Terms({"gap": "90"}), fresh=True)
    assert "parameters" not in caplog.text
    assert schemas(tmp_path)[:1] == ["0001.json"]


def test_a_fixed_parameter_that_changed_is_refused(tmp_path: Path) -> None:
    fixed = frozenset({"size"})
    taken_over(tmp_path, Trip, Terms({"size": "8"}, fixed))
    with pytest.raises(SchemaChanged) as refused:
        taken_over(tmp_path, Trip, Terms({"size": "16"}, fixed))
    assert refused.value.message.startswith(
        "operator Trip: the stored state does not fit the operator as it is now.\n"
        "  size: 8 → 16: the state was made with size=8, and the parameter is declared as fixed; use that value\n"
    )
    assert "fresh=True" in refused.value.message
    taken_over(tmp_path, Trip, Terms({"size": "16"}, fixed), fresh=True)
    taken_over(tmp_path, Trip, Terms({"size": "16"}, fixed))


def test_state_that_does_not_tell_its_parameters_goes_on_with_any(tmp_path: Path) -> None:
    """As that of older versions does not."""
    taken_over(tmp_path, Trip)
    taken_over(tmp_path, Trip, Terms({"size": "16"}, frozenset({"size"})))


def test_a_snapshot_tells_the_parameters_of_its_turn() -> None:
    record = TurnRecord(
        turn=Turn(1),
        parent=None,
        generation=1,  # type: ignore[arg-type]
        query=QueryId("q"),
        run="r",
        epoch=Epoch(0),
        location="",
        schema=1,
        owners=pack_owners([0] * 8),
        workers=(),
        committed={},
        parameters={"gap": "30"},
    )
    parts: Any = [SimpleNamespace(groups=tuple(range(8)), rows=0, files={})]
    assert manifest_of(record, schema_of(Trip), parts).parameters == {"gap": "30"}


# --- from what the user writes ---


def of(operator: Any, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Application:
    """An operator of the user's, applied without Spark."""
    monkeypatch.setattr(applying, "arrow_schema", lambda spark, schema: pa.schema([("n", pa.int64())]))
    keyed = Keyed(NAME, SimpleNamespace(columns=["car", "x"]), ((0, "car"),), (CAR,), 8)  # type: ignore[arg-type]
    spark: Any = None
    return applying.of_operator(spark, keyed, operator, StructType([StructField("n", LongType())]), None, **more)


def test_an_application_carries_parameters_and_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = of(Trip(gap=60), monkeypatch, drop="old")
    assert applied.terms == Terms({"gap": "60", "size": "8"}, frozenset({"size"}), frozenset({"old"}))
    assert applied.parameters == {"gap": 60, "size": 8}
    assert applied.schema() == of(Trip(gap=30, size=9), monkeypatch).schema(), "state does not depend on parameters"


@pytest.mark.parametrize(("drop", "named"), [("n", "n"), (["speed", "n"], "n, speed")])
def test_what_is_declared_is_not_dropped(monkeypatch: pytest.MonkeyPatch, drop: Any, named: str) -> None:
    with pytest.raises(DefinitionError, match=f"operator Trip: drop names {named}, which it has as a state variable"):
        of(Trip, monkeypatch, drop=drop)


def test_what_is_no_name_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    for drop in (3, [3]):
        with pytest.raises(DefinitionError, match="give the names of state variables"):
            of(Trip, monkeypatch, drop=drop)


def test_a_parameter_that_cannot_be_pickled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Chooses(Less):
        chosen: Callable[[], Any] = bl.param()

    held = (it for it in "a generator is not pickled")
    applied = of(Chooses(chosen=lambda: held), monkeypatch)
    with pytest.raises(
        OperatorNotShippable,
        match=r"(?s)parameter chosen of operator Trip cannot be pickled: .* refers to held \(builtins\.generator\)",
    ):
        applied.payload()
