"""The testing kit for every kind of operator: on rows, on arrays, aggregates; one way of use for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import bedload as bl
from bedload.core.errors import DataError, DefinitionError, NullKey, OperatorFailed, SchemaError, TooLarge
from bedload.testing import InProcessCluster, OperatorHarness

SCHEMA = "car string, n long, top double"
INPUT = "car string, speed double"


class TopOnRows(bl.Operator):
    n: int = bl.value(0)
    top: float = bl.value(0.0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        self.n += len(rows)
        self.top = max(self.top, *(row.speed for row in rows if row.speed is not None), 0.0)

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, self.n, self.top


class TopOnArrays(bl.VectorOperator):
    n: int = bl.value(0)
    top: float = bl.value(0.0)

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
        rows = batch.by_key
        top = np.fmax.reduceat(rows.numpy("speed"), rows.offsets[:-1])
        return {"n": state["n"] + np.diff(rows.offsets), "top": np.fmax(state["top"], top)}

    def result(self, keys: Any, state: Any, ctx: bl.Context) -> Any:
        return {"car": keys, "n": state["n"], "top": state["top"]}


KINDS = ["rows", "arrays", "aggregate"]


def make(kind: str, **options: Any) -> OperatorHarness:
    if kind == "aggregate":
        return OperatorHarness.aggregate(key="car", n=bl.agg.count(), top=bl.agg.max("speed"), **options)
    operator = TopOnRows if kind == "rows" else TopOnArrays
    return OperatorHarness(operator, schema=SCHEMA, key="car", **options)


def make_cluster(kind: str, **options: Any) -> InProcessCluster:
    if kind == "aggregate":
        return InProcessCluster.aggregate(
            key="car", input=INPUT, n=bl.agg.count(), top=bl.agg.max("speed"), key_groups=8, **options
        )
    operator = TopOnRows if kind == "rows" else TopOnArrays
    return InProcessCluster(operator, schema=SCHEMA, key="car", input=INPUT, key_groups=8, **options)


def row(car: str, speed: float | None) -> dict[str, Any]:
    return {"car": car, "speed": speed}


def by_car(outputs: list[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    assert all(list(output) == ["car", "n", "top"] for output in outputs)
    return {output["car"]: (output["n"], output["top"]) for output in outputs}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_used_in_one_way(kind: str) -> None:
    harness = make(kind)
    first = harness.run_epoch([row("a", 50.0), row("b", 60.0)], [row("a", 40.0)])
    assert by_car(first) == {"a": (2, 50.0), "b": (1, 60.0)}
    assert set(harness.state) == {"a", "b"}
    assert list(harness.state["a"].values()) == [2, 50.0]
    before = harness.snapshot()

    harness.feed([row("a", 90.0), row("c", 1.0)])
    assert by_car(harness.seal()) == {"a": (3, 90.0), "c": (1, 1.0)}
    assert harness.state == before, "reads see what is committed"
    harness.abort()
    assert harness.state == before

    assert by_car(harness.run_epoch([row("a", 70.0)])) == {"a": (3, 70.0)}
    assert harness.current_epoch == 1, "the number of the epoch that was rolled back"
    assert harness.state["b"] == before["b"]
    harness.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rows",
    [
        [("a", 50.0), ("a", None), ["b", 60.0]],
        [row("a", 50.0), {"car": "a"}, row("b", 60.0)],
        pa.table({"speed": [50.0, None, 60.0], "car": ["a", "a", "b"]}),
        pa.record_batch({"car": ["a", "a", "b"], "speed": [50.0, None, 60.0]}),
        pd.DataFrame({"car": ["a", "a", "b"], "speed": [50.0, None, 60.0]}, index=[7, 8, 9]),
        pa.chunked_array([[row("a", 50.0)], [row("a", None), row("b", 60.0)]]).to_pylist(),
    ],
    ids=["tuples", "dicts", "table", "batch", "pandas", "list"],
)
def test_rows_come_in_many_forms(kind: str, rows: Any) -> None:
    assert by_car(make(kind, input=INPUT).run_epoch(rows)) == {"a": (2, 50.0), "b": (1, 60.0)}


def test_a_table_may_be_in_pieces() -> None:
    part = pa.table({"car": ["a"], "speed": [50.0]})
    assert by_car(make("aggregate").run_epoch(pa.concat_tables([part, part]))) == {"a": (2, 50.0)}


def test_rows_of_spark_have_names() -> None:
    from pyspark.sql import Row

    assert by_car(make("rows").run_epoch([Row(car="a", speed=50.0)])) == {"a": (1, 50.0)}


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_that_is_too_large_fails_in_all_kinds(kind: str) -> None:
    harness = make(kind, epoch_bytes=10)
    with pytest.raises(TooLarge, match="epoch 0"):
        harness.run_epoch([row(str(car), 1.0) for car in range(100)])
    assert harness.snapshot() == {}


def test_the_time_is_there_on_arrays() -> None:
    class Clocked(bl.VectorOperator):
        late: int = bl.value(0)

        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
            return {"late": np.full(len(state["late"]), ctx.now - ctx.watermark)}

    harness = OperatorHarness(Clocked, schema="k string", key="k")
    harness.now, harness.watermark = 1_000, 400
    harness.run_epoch([{"k": "a"}])
    assert harness.state["a"] == {"late": 600}


def test_what_a_vector_operator_raises_ends_its_epoch() -> None:
    class Fails(TopOnArrays):
        def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.Context) -> Any:
            raise ValueError("no")

    harness = OperatorHarness(Fails, schema=SCHEMA, key="car", input=INPUT)
    with pytest.raises(OperatorFailed, match="no"):
        harness.feed([("a", 1.0)])
    assert harness.snapshot() == {}


def test_aggregates_combine_rows_as_a_feeder_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from bedload.operators.aggregates import Aggregates

    merged: list[int] = []
    merge = Aggregates.update_partial
    monkeypatch.setattr(
        Aggregates,
        "update_partial",
        lambda self, table, slots, batch, ctx=None: (
            merged.append(batch.num_rows),
            merge(self, table, slots, batch, ctx),
        )[1],
    )
    harness = make("aggregate")
    harness.run_epoch([row("a", 1.0), row("b", 2.0)])
    assert merged == [], "two keys of two rows: nothing to gain"
    assert by_car(harness.run_epoch([row("a", speed) for speed in (1.0, 3.0, 2.0)])) == {"a": (4, 3.0)}
    assert merged == [1]
    cluster = make_cluster("aggregate")
    cluster.run_epoch([[[("a", 1.0), ("a", 2.0)], [("a", 3.0), ("b", 4.0)]], [("b", 5.0)]])
    assert list(cluster.state["a"].values()) == [3, 3.0]
    assert list(cluster.state["b"].values()) == [2, 5.0]
    assert sum(merged) == 4


def test_aggregates_have_composite_keys_and_types_of_spark() -> None:
    harness = OperatorHarness.aggregate(
        key=["car", "day"], input="car string, day date, n int, other binary", total=bl.agg.sum("n")
    )
    table = pa.table({"car": ["a", None], "day": pa.array([1, 1], pa.date32()), "n": [3, 4], "other": [b"", None]})
    outputs = harness.run_epoch(table)
    assert [(output["car"], output["total"]) for output in outputs] == [("a", 3), (None, 4)]
    day = outputs[0]["day"]
    assert next(iter(harness.state["a", day].values())) == 3
    assert harness.state(("a", None)) is None


def test_aggregates_are_checked_as_on_spark() -> None:
    with pytest.raises(DefinitionError, match="name at least one"):
        OperatorHarness.aggregate(key="car", input=INPUT)
    with pytest.raises(SchemaError, match="'sped' is not in the input"):
        OperatorHarness.aggregate(key="car", input=INPUT, top=bl.agg.max("sped"))
    with pytest.raises(DefinitionError, match=r"not one of bl\.agg's functions"):
        OperatorHarness.aggregate(key="car", input=INPUT, top=max)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="has no process"):
        OperatorHarness(type("Empty", (bl.VectorOperator,), {}), schema=SCHEMA, key="car")


# --- the state that a test looks at ---


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_a_mapping_of_the_keys_that_have_some(kind: str) -> None:
    harness = make(kind)
    assert len(harness.state) == 0
    assert harness.state("a") is None
    harness.run_epoch([row("a", 1.0)])
    assert harness.state == harness.snapshot()
    assert harness.state.get("a") == harness.state("a") == harness.state["a"]
    assert "a" in harness.state
    assert "b" not in harness.state
    assert harness.state("b") is None
    assert repr(harness.state) == f"CommittedState({harness.snapshot()!r})"
    with pytest.raises(KeyError, match="key 'b' has no committed state; commit the epoch if"):
        harness.state["b"]


# --- the types of the input ---


def test_rows_on_rows_have_the_type_of_their_first_value_that_is_not_null() -> None:
    harness = make("rows")
    assert by_car(harness.run_epoch([row("a", None)])) == {"a": (1, 0.0)}
    assert by_car(harness.run_epoch([row("a", 50.0)])) == {"a": (2, 50.0)}
    assert by_car(harness.run_epoch([row("a", None)], [row("a", 7)])) == {"a": (4, 50.0)}


UNKNOWN = (
    r"column 'speed' has been null in all rows so far, so its type is not known. Declare the columns with input=, as "
    r"in input='car string, speed double', or feed a row first that has a value"
)


@pytest.mark.parametrize("kind", ["arrays", "aggregate"])
def test_code_on_columns_wants_to_know_their_types(kind: str) -> None:
    harness = make(kind)
    with pytest.raises(SchemaError, match=UNKNOWN):
        harness.run_epoch([row("a", None)])
    assert by_car(harness.run_epoch([row("a", 5.0)])) == {"a": (1, 5.0)}
    assert by_car(harness.run_epoch([row("a", None)])) == {"a": (2, 5.0)}
    harness = make(kind, input=INPUT)
    harness.run_epoch([row("a", None)])
    assert harness.state["a"]


def test_rows_that_wait_for_the_end_of_the_epoch_need_types_too() -> None:
    class Grouped(TopOnRows):
        grouped = True

    harness = OperatorHarness(Grouped, schema=SCHEMA, key="car")
    with pytest.raises(SchemaError, match=UNKNOWN):
        harness.feed([row("a", None)])


def test_columns_that_an_aggregate_does_not_read_need_no_type() -> None:
    harness = OperatorHarness.aggregate(key="car", n=bl.agg.count())
    assert harness.run_epoch([row("a", None)]) == [{"car": "a", "n": 1}]
    assert harness.run_epoch([row("a", 5.0)]) == [{"car": "a", "n": 2}]


def test_a_key_of_nulls_is_refused() -> None:
    with pytest.raises(NullKey, match="all rows have null in the key column 'car'"):
        make("rows").feed([row(None, 1.0)])  # type: ignore[arg-type]
    with pytest.raises(NullKey, match="1 rows have null in the key column 'car'"):
        make("rows", input=INPUT).feed([{}])
    harness = OperatorHarness.aggregate(key=["car", "day"], n=bl.agg.count())
    with pytest.raises(SchemaError, match="column 'day' has been null in all rows so far"):
        harness.feed([{"car": "a", "day": None}])


@pytest.mark.parametrize("value", [1.5, "fast"])
def test_a_value_of_another_type_is_refused_not_bent(value: Any) -> None:
    harness = make("rows")
    harness.run_epoch([row("a", 50)])
    with pytest.raises(DataError) as caught:
        harness.feed([row("a", 1), row("a", value)])
    message = caught.value.message
    assert message.startswith("column 'speed' (bigint, by its first value; declare another type with input=): ")
    assert f"{value!r} ({type(value).__name__}) is not a bigint" in message
    harness = make("rows", input="car string, speed int")
    with pytest.raises(DataError, match=r"column 'speed' \(int, as declared\): "):
        harness.feed([row("a", value)])
    with pytest.raises(DataError, match=r"column 'speed' \(int, as declared\): "):
        harness.feed(pa.table({"car": ["a"], "speed": [value]}))


def test_values_without_a_common_type_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"column 'speed': its values have no common type .* Declare the columns"):
        make("rows").feed([row("a", 1.0), {"car": "a", "speed": "fast"}])


def test_columns_that_are_not_there_are_refused_not_left_out() -> None:
    harness = make("rows", input=INPUT)
    with pytest.raises(SchemaError, match=r"no column 'sped' in the input, which has: car, speed$"):
        harness.feed([{"car": "a", "sped": 1.0}])
    with pytest.raises(SchemaError, match="no column 'speed' in the rows, which have: car"):
        harness.feed(pa.table({"car": ["a"]}))
    harness = make("rows")
    harness.feed([row("a", 1.0)])
    with pytest.raises(SchemaError, match="by the first rows that were fed; declare more with input="):
        harness.feed([{"car": "a", "color": "red"}])


def test_columns_of_all_the_first_rows_are_seen() -> None:
    harness = make("rows")
    assert by_car(harness.run_epoch([{"car": "a"}, row("a", 3.0)])) == {"a": (2, 3.0)}


def test_null_in_a_column_that_has_none_is_refused() -> None:
    with pytest.raises(DataError, match="column 'speed' has null, but it is declared NOT NULL"):
        make("rows", input="car string, speed double not null").feed([row("a", None)])


def test_tuples_need_names() -> None:
    with pytest.raises(
        SchemaError, match=r"the row \('a', 1.0\) has no names for its columns: declare them with input="
    ):
        make("rows").feed([("a", 1.0)])
    with pytest.raises(SchemaError, match=r"the row \('a',\) has 1 values for 2 columns: car, speed"):
        make("rows", input=INPUT).feed([("a",)])
    with pytest.raises(SchemaError, match="'a' is no row: give dicts, tuples, or a table"):
        make("rows", input=INPUT).feed(["a"])


@pytest.mark.parametrize("rows", [row("a", 1.0), "a", iter(())])
def test_rows_are_a_list_or_a_table(rows: Any) -> None:
    with pytest.raises(SchemaError, match="is no list of rows: give a list of dicts or of tuples, or a table"):
        make("rows").feed(rows)


# --- clusters in one process ---


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_run_on_several_workers_and_move(kind: str) -> None:
    cluster = make_cluster(kind, workers=2)
    cars = [f"car {i}" for i in range(20)]
    cluster.run_epoch([[(car, 1.0) for car in cars], [row(car, 2.0) for car in cars]])
    cluster.rescale(3)
    cluster.begin_epoch([[(car, 3.0) for car in cars]])
    first = by_car(cluster.action())
    assert by_car(cluster.action()) == first, "a second action applies nothing twice"
    cluster.restart()
    assert by_car(cluster.action()) == first == dict.fromkeys(cars, (3, 3.0))
    cluster.commit()
    assert set(cluster.state) == set(cars)
    assert all(list(state.values()) == [3, 3.0] for state in cluster.state.values())
    assert len(cluster.workers) == 3


def test_a_sum_that_overflows_in_a_feeder_ends_the_epoch() -> None:
    cluster = InProcessCluster.aggregate(key="car", input="car string, n long", total=bl.agg.sum("n"))
    cluster.run_epoch([[("a", 1)]])
    with pytest.raises(DataError, match="ARITHMETIC_OVERFLOW"):
        cluster.run_epoch([[("a", 2**62), ("a", 2**62)]])
    assert next(iter(cluster.state["a"].values())) == 1
