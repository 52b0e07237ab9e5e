"""Each behaviour that takes a query of its own, on both engines; see ``cases``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from tests.spark.drop_in.cases import LATER, Call, Query
from tests.spark.drop_in.cases_output import LATE_BATCHES, late_rows_by_event_time
from tests.spark.drop_in.cases_restarts import FOUR, XS, N, Versions
from tests.spark.drop_in.engines import BEDLOAD, ENGINES, ROWS, SPARK, Program, Seen, apply, run, run_batch
from tests.spark.drop_in.everything import CALLS, QUERIES

pytestmark = pytest.mark.spark


class Door:
    """The call of one engine, on a stream that is never run."""

    def __init__(self, session: SparkSession, engine: str) -> None:
        self._engine = engine
        self.df: DataFrame = (
            session.readStream.format("rate")
            .load()
            .selectExpr("string(value) AS k", "value AS v", "timestamp AS ts", "named_struct('p', value) AS st")
        )

    def __call__(self, *args: Any, by: tuple[Any, ...] = ("k",), watermark: bool = False, **options: Any) -> DataFrame:
        df = self.df.withWatermark("ts", "1 second") if watermark else self.df
        return apply(self._engine, df.groupBy(*by), ROWS, *args, **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_a_call(case: Call, engine: str, session: SparkSession, bedload: bl.Cluster) -> None:
    try:
        seen = case.code(Door(session, engine))
    except Exception as error:
        seen = kind_of(error)
    assert seen == case.expected(engine)


def of(case: Query, engine: str, session: SparkSession) -> Seen:
    with tempfile.TemporaryDirectory() as place:
        runs = run_batch if case.batch else run
        seen = runs(session, engine, case.build(Path(place)), Path(place) / engine)
        if case.check is not None and seen.error is None:
            case.check(seen)
        return seen


def fails_as_said(seen: Seen, case: Query, engine: str) -> None:
    expected = case.failure(engine)
    if seen.error is not None and not expected:
        raise seen.error
    assert expected in str(seen.error or "")
    assert bool(expected) == (seen.error is not None)


def kind_of(error: Exception | None) -> tuple[str, Any] | None:
    """What a caller can catch: class and condition."""
    return None if error is None else (type(error).__name__, getattr(error, "getCondition", lambda: None)())


def check_both(case: Query, session: SparkSession) -> None:
    """Run a query on both engines, and compare."""
    spark = of(case, SPARK, session)
    fails_as_said(spark, case, SPARK)
    here = of(case, BEDLOAD, session)
    fails_as_said(here, case, BEDLOAD)
    if not case.why:
        assert kind_of(here.error) == kind_of(spark.error)
    if case.equal:
        assert spark.epochs, "Spark has shown something"
        assert here.by_key == spark.by_key


@pytest.mark.parametrize("case", [it for it in QUERIES if it.section not in LATER], ids=lambda case: case.name)
def test_a_query(case: Query, session: SparkSession, bedload: bl.Cluster) -> None:
    check_both(case, session)


def test_rows_that_are_dropped_as_they_are_late_are_counted(session: SparkSession, bedload: bl.Cluster) -> None:
    with tempfile.TemporaryDirectory() as place:
        seen = run(session, BEDLOAD, late_rows_by_event_time(Path(place)), Path(place))
    ended = [row for row in bedload.epochs() if row["operator"] == seen.name and row["committed"]]
    late = {row["epoch"]: row["late"] for row in ended}
    # Each row that is not dropped is given on.
    assert [late[epoch] for epoch in range(5)] == [
        len(LATE_BATCHES[epoch]) - len(seen.epochs[epoch]) for epoch in range(5)
    ]
    assert sum(late.values()) > 0


def test_queries_of_one_class_have_states_of_their_own(
    session: SparkSession, bedload: bl.Cluster, tmp_path: Path
) -> None:
    """One after the other; none has a name for its state."""

    def both(processor: Versions, place: str) -> tuple[Seen, Seen]:
        program = Program(processor, FOUR[:2], named=False)
        spark, here = (run(session, engine, program, tmp_path / place / engine) for engine in ENGINES)
        assert spark.error is None
        return spark, here

    spark, here = both(Versions(N), "one")
    assert here.error is None
    assert here.by_key == spark.by_key
    _, here = both(Versions(N), "two")
    assert "can go on from" in str(here.error), "the state of the first one is not given up"
    assert not here.epochs
    shutil.rmtree(tmp_path / "one")
    spark, here = both(Versions(N), "three")
    assert here.error is None
    assert here.by_key == spark.by_key
    _, here = both(Versions(XS, N), "four")
    assert isinstance(here.error, bl.errors.SchemaChanged)
