"""An operator starts with the state that it is given, whole or not at all, and goes on from there."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

import bedload as bl
from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.storage import open_storage
from bedload.core.errors import (
    DataError,
    DefinitionError,
    KeyColumnError,
    NullKey,
    OperatorBusy,
    SchemaError,
    StateTypeError,
)
from bedload.core.ids import OperatorName
from tests.patience import PATIENCE
from tests.spark.conftest import Sink, committed, numbers, run

pytestmark = pytest.mark.spark


class Visits(bl.Operator):
    n: int = bl.value(0)
    last: str | None = bl.value()
    tags: set[str] = bl.set()

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for _ in rows:
            self.n += 1

    def result(self, key: Any, ctx: Any) -> Any:
        return key, self.n


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    """Ten rows of each of ten cars per epoch."""
    return numbers(spark, 100).selectExpr("value % 10 as car")


def visits(cluster: bl.Cluster, stream: DataFrame, **more: Any) -> DataFrame:
    return cluster.apply(stream, key="car", operator=Visits, schema="car long, n long", **more)


def cars(spark: SparkSession, rows: list[tuple[Any, ...]], schema: str = "car long, n long") -> DataFrame:
    return spark.createDataFrame(rows, schema)


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Iterator[bl.Cluster]:
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "state", key_groups=32) as attached:
        yield attached


def table(spark: SparkSession, folder: Path, name: str = "Visits") -> dict[int, Any]:
    df = spark.read.format("bedload").option("operatorName", name).load(str(folder))
    return {row["car"]: row for row in df.collect()}


def test_an_operator_starts_with_the_state_that_it_is_given(
    spark: SparkSession, cluster: bl.Cluster, stream: DataFrame, tmp_path: Path
) -> None:
    given = cars(spark, [(3, 1000), (77, 7)])
    out = visits(cluster, stream, initial_state=given)
    # It can be read before any query has run: from memory, and as a table.
    assert dict(cluster.state("Visits").get(77) or {}) == {"n": 7, "last": None, "tags": set()}
    assert {car: row["n"] for car, row in table(spark, tmp_path / "state").items()} == {3: 1000, 77: 7}
    sink = Sink()
    run(out, sink, tmp_path / "query", 2)
    assert dict(sink.epochs[1]) == {car: 20 + (1000 if car == 3 else 0) for car in range(10)}
    assert {car: row["n"] for car, row in table(spark, tmp_path / "state").items()}[77] == 7


def test_the_state_outlives_the_cluster_that_it_was_given_to(
    spark: SparkSession, stream: DataFrame, tmp_path: Path
) -> None:
    with bl.attach(spark, workers=2, checkpoint=tmp_path / "state") as cluster:
        visits(cluster, stream, initial_state=cars(spark, [(3, 1000)]))
    with bl.attach(spark, workers=1, checkpoint=tmp_path / "state") as cluster:
        sink = Sink()
        run(visits(cluster, stream), sink, tmp_path / "query", 1)
    assert dict(sink.epochs[0])[3] == 1010


def test_columns_of_every_kind_are_taken_and_cast_where_nothing_is_lost(
    spark: SparkSession, cluster: bl.Cluster, stream: DataFrame
) -> None:
    given = spark.createDataFrame(
        [(3, 5, "x", ["a", "b"]), (4, 6, None, [])], "car int, n smallint, last string, tags array<string>"
    )
    visits(cluster, stream, initial_state=given)
    assert dict(cluster.state("Visits").get(3) or {}) == {"n": 5, "last": "x", "tags": {"a", "b"}}
    assert dict(cluster.state("Visits").get(4) or {}) == {"n": 6, "last": None, "tags": set()}


class Timed(bl.Operator):
    at: dt.datetime | None = bl.value()
    wall: dt.datetime | None = bl.value()
    times: dict[str, dt.datetime] = bl.map()
    grid: np.ndarray = bl.array((2, 2), "float32")

    def process(self, key: Any, rows: Any, ctx: Any) -> None: ...


def test_timestamps_become_datetimes_and_lists_arrays(
    spark: SparkSession, cluster: bl.Cluster, stream: DataFrame, tmp_path: Path
) -> None:
    given = spark.sql(
        "SELECT 3L AS car, timestamp'2024-07-01 12:00:00 UTC' AS at, timestamp_ntz'2024-07-01 12:00:00' AS wall, "
        "map('a', timestamp'2024-07-01 12:00:00 UTC') AS times, array(array(1f, 2f), array(3f, 4f)) AS grid "
        "UNION ALL SELECT 4L, NULL, NULL, map(), array(array(0f, 0f), array(0f, 0f))"
    )
    cluster.apply(stream, key="car", operator=Timed, schema="car long", initial_state=given)
    state = cluster.state("Timed").get(3)
    assert state is not None
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    assert state["at"] == state["times"]["a"] == noon
    assert str(state["at"].tzinfo) == spark.conf.get("spark.sql.session.timeZone")
    assert state["wall"] == noon.replace(tzinfo=None)
    assert (state["grid"].dtype, state["grid"].tolist()) == (np.float32, [[1, 2], [3, 4]])
    df = spark.read.format("bedload").option("operatorName", "Timed").load(str(tmp_path / "state"))
    assert df.drop("key_group").schema.simpleString() == given.schema.simpleString()
    assert df.drop("key_group").orderBy("car").collect() == given.orderBy("car").collect()
    late = spark.sql("SELECT 3L AS car, '2024-07-01' AS at")
    with pytest.raises(SchemaError, match="is string, but the state has timestamp: cast it"):
        cluster.apply(stream, key="car", operator=Timed, schema="car long", initial_state=late, name="other")


def test_an_aggregate_goes_by_its_own_name(
    spark: SparkSession, cluster: bl.Cluster, stream: DataFrame, tmp_path: Path
) -> None:
    given = spark.createDataFrame([(3, 1000, 5)], "car long, n long, `max(car)` long")
    out = cluster.aggregate(stream, key="car", n=bl.agg.count(), top=bl.agg.max("car"), initial_state=given)
    sink = Sink()
    run(out, sink, tmp_path / "query", 1)
    assert {car: (n, top) for car, n, top in sink.epochs[0]} == {
        car: (1010, 5) if car == 3 else (10, car) for car in range(10)
    }


def test_state_of_one_checkpoint_starts_another_with_other_key_groups(
    spark: SparkSession, cluster: bl.Cluster, stream: DataFrame, tmp_path: Path
) -> None:
    visits(cluster, stream, initial_state=cars(spark, [(car, car) for car in range(50)]))
    copied = spark.read.format("bedload").load(str(tmp_path / "state"))
    with bl.attach(spark, workers=1, checkpoint=tmp_path / "other", key_groups=7) as other:
        visits(other, stream, initial_state=copied)
        assert [(other.state("Visits").get(car) or {})["n"] for car in (0, 17, 49)] == [0, 17, 49]
        assert len(table(spark, tmp_path / "other")) == 50


# --- refusals ---


def test_without_a_checkpoint_it_is_refused(spark: SparkSession, stream: DataFrame) -> None:
    with (
        bl.attach(spark, workers=1) as cluster,
        pytest.raises(DefinitionError, match="initial_state needs a checkpoint"),
    ):
        visits(cluster, stream, initial_state=cars(spark, [(3, 1)]))


REFUSED = [
    pytest.param([(1, 1)], "kar long, n long", KeyColumnError, "no key column 'car'; it has: kar, n", id="no key"),
    pytest.param([(1, 1)], "car long, m long", SchemaError, "neither key nor state variable: m", id="unknown column"),
    pytest.param(
        [(1, "1")], "car long, n string", SchemaError, "'n' .* is string, but the state has bigint", id="type"
    ),
    pytest.param([("1", 1)], "car string, n long", SchemaError, "key column 'car' .* is string", id="key type"),
    pytest.param([(1, 1), (None, 2)], "car long, n long", NullKey, "null in the key column 'car'", id="null key"),
    pytest.param([(1, 1), (2, 1), (1, 2)], "car long, n long", DataError, "the key 1 more than once", id="twice"),
    pytest.param([(1, None)], "car long, n long", DataError, "variable 'n' is null for 1", id="null value"),
]


@pytest.mark.parametrize(("rows", "schema", "error", "says"), REFUSED)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    spark: SparkSession,
    refusing: tuple[bl.Cluster, Path],
    rows: list[Any],
    schema: str,
    error: type[Exception],
    says: str,
) -> None:
    cluster, folder = refusing
    stream = numbers(spark).selectExpr("value as car")
    with pytest.raises(error, match=says):
        visits(cluster, stream, initial_state=cars(spark, rows, schema))
    assert list(folder.rglob("Visits/**/*.parquet")) == []
    assert "Visits" not in Checkpoint.open(open_storage(str(folder))).operators()


@pytest.fixture(scope="module")
def refusing(spark: SparkSession, tmp_path_factory: Any) -> Iterator[tuple[bl.Cluster, Path]]:
    folder = tmp_path_factory.mktemp("refusing") / "state"
    with bl.attach(spark, workers=1, checkpoint=folder) as attached:
        yield attached, folder


def test_values_that_the_operator_could_not_load_are_refused(
    spark: SparkSession, refusing: tuple[bl.Cluster, Path]
) -> None:
    from decimal import Decimal

    class Priced(bl.Operator):
        price: Decimal = bl.value(Decimal(0))

        def process(self, key: Any, rows: Any, ctx: Any) -> None: ...

    cluster, folder = refusing
    stream = numbers(spark).selectExpr("value as car")

    def apply(df: DataFrame) -> None:
        cluster.apply(stream, key="car", operator=Priced, schema="car long", initial_state=df)

    with pytest.raises(StateTypeError, match="variable 'price' has values that are not of its type"):
        apply(cars(spark, [(1, "one")], "car long, price string"))
    assert list(folder.rglob("Priced/**/*.parquet")) == []
    apply(cars(spark, [(1, Decimal("1.50"))], "car long, price decimal(10, 2)"))
    assert dict(cluster.state("Priced").get(1) or {}) == {"price": Decimal("1.50")}


def test_what_spark_keeps_beside_key_and_value_has_to_be_dropped_by_name(
    spark: SparkSession, refusing: tuple[bl.Cluster, Path]
) -> None:
    stream = numbers(spark).selectExpr("value as car")
    given = spark.sql("SELECT named_struct('id', 1L) key, named_struct('n', 2L) value, 0 partition_id, 9L expires")
    with pytest.raises(SchemaError, match="neither key nor state variable: expires"):
        visits(refusing[0], stream, name="expiring", initial_state=given)
    visits(refusing[0], stream, name="expiring", initial_state=given.drop("expires"))
    assert (refusing[0].state("expiring").get(1) or {})["n"] == 2


def test_a_streaming_dataframe_is_refused(spark: SparkSession, refusing: tuple[bl.Cluster, Path]) -> None:
    stream = numbers(spark).selectExpr("value as car")
    with pytest.raises(DefinitionError, match="must be a batch"):
        visits(refusing[0], stream, initial_state=stream)


def test_state_that_is_there_is_replaced_only_when_asked_to(
    spark: SparkSession, cluster: bl.Cluster, stream: DataFrame, tmp_path: Path
) -> None:
    visits(cluster, stream, initial_state=cars(spark, [(3, 1)]))
    with pytest.raises(DefinitionError, match="has state in the checkpoint"):
        visits(cluster, stream, initial_state=cars(spark, [(3, 2)]))
    assert (cluster.state("Visits").get(3) or {})["n"] == 1
    # On the cluster that has it in memory,
    visits(cluster, stream, initial_state=cars(spark, [(3, 2)]), fresh=True)
    assert (cluster.state("Visits").get(3) or {})["n"] == 2
    out = visits(cluster, stream)
    sink = Sink()
    run(out, sink, tmp_path / "query", 2)
    assert dict(sink.epochs[1])[3] == 22
    committed(cluster, "Visits", 1)
    visits(cluster, stream, initial_state=cars(spark, [(3, 500)]), fresh=True)
    assert (cluster.state("Visits").get(3) or {})["n"] == 500
    assert cluster.state("Visits").get(4) is None
    cluster.stop()
    # and on one that has to read it.
    with bl.attach(spark, workers=1, checkpoint=tmp_path / "state", key_groups=32) as again:
        with pytest.raises(DefinitionError, match="has state in the checkpoint"):
            visits(again, stream, initial_state=cars(spark, [(3, 2)]))
        out = visits(again, stream, initial_state=cars(spark, [(4, 700)]), fresh=True)
        sink = Sink()
        run(out, sink, tmp_path / "another query", 1)
    assert (dict(sink.epochs[0])[3], dict(sink.epochs[0])[4]) == (10, 710)


def test_state_in_use_is_not_replaced(
    spark: SparkSession, cluster: bl.Cluster, stream: DataFrame, tmp_path: Path
) -> None:
    query = visits(cluster, stream).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "q")).start()
    try:
        committed(cluster, "Visits", 0)
        with pytest.raises(OperatorBusy):
            visits(cluster, stream, initial_state=cars(spark, [(3, 1)]), fresh=True)
        after = max(cluster.committed("Visits").values()) + 1
        committed(cluster, "Visits", after)
    finally:
        query.stop()
    assert list((tmp_path / "state").rglob("*.parquet")) == []


def test_a_bootstrap_that_ends_before_its_manifest_does_not_count(
    spark: SparkSession, stream: DataFrame, tmp_path: Path
) -> None:
    with bl.attach(spark, workers=1, checkpoint=tmp_path / "state") as cluster:
        visits(cluster, stream, initial_state=cars(spark, [(3, 1000)]))
    (manifest,) = (tmp_path / "state").rglob("manifest.json")
    manifest.unlink()
    with bl.attach(spark, workers=1, checkpoint=tmp_path / "state") as cluster:
        visits(cluster, stream)
        assert cluster.state("Visits").get(3) is None
        assert Checkpoint.open(open_storage(str(tmp_path / "state"))).load_history(OperatorName("Visits")).head is None


# --- taking over a query of Spark's ---


def events(folder: Path, number: int, rows: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.json").write_text("\n".join(json.dumps({"car": car}) for car in rows))


def drain(df: DataFrame, mode: str, checkpoint: Path, rows: list[Any] | None = None) -> None:
    """Run a query on all that is there, and let it end."""
    writer = df.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    take = (lambda batch, _: rows.extend(batch.collect())) if rows is not None else (lambda batch, _: batch.count())
    query = writer.foreachBatch(take).start()
    assert query.awaitTermination(PATIENCE)


def copy_progress(old: Path, new: Path) -> None:
    """Where a query is in its sources and sinks, without its state."""
    for part in ("offsets", "commits", "sources"):
        shutil.copytree(old / part, new / part)
    shutil.copy(old / "metadata", new / "metadata")


def test_a_count_of_sparks_is_taken_over_with_its_place_in_the_source(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    events(source, 1, ["a", "b", "a"])
    cars_in = spark.readStream.schema("car string").option("maxFilesPerTrigger", 1).json(str(source))
    drain(cars_in.groupBy("car").count(), "update", tmp_path / "old")
    events(source, 2, ["a", "c"])
    drain(cars_in.groupBy("car").count(), "update", tmp_path / "old")

    state = spark.read.format("statestore").load(str(tmp_path / "old"))
    out = cluster.aggregate(cars_in, key="car", count=bl.agg.count(), initial_state=state)
    copy_progress(tmp_path / "old", tmp_path / "new")
    events(source, 3, ["a", "b", "d"])
    rows: list[Any] = []
    drain(out, "update", tmp_path / "new", rows)
    assert Counter({row["car"]: row["count"] for row in rows}) == {"a": 4, "b": 2, "d": 1}
    assert (cluster.state("aggregate").get("c") or {})["count()"] == 1


def test_a_value_of_transform_with_state_is_taken_over(
    spark: SparkSession, cluster: bl.Cluster, tmp_path: Path
) -> None:
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Counting(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.seen = handle.getValueState("seen", "n long, last string")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            count = sum(len(frame) for frame in rows)
            if self.seen.exists():
                count += self.seen.get()[0]
            self.seen.update((count, f"batch of {key[0]}"))
            yield pd.DataFrame({"car": [key[0]], "n": [count]})

        def close(self) -> None: ...

    source = tmp_path / "source"
    events(source, 1, ["a", "b", "a"])
    cars_in = spark.readStream.schema("car string").json(str(source))
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    try:
        old = cars_in.groupBy("car").transformWithStateInPandas(Counting(), "car string, n long", "update", "None")
        drain(old, "update", tmp_path / "old")
        state = spark.read.format("statestore").option("stateVarName", "seen").load(str(tmp_path / "old"))
        cluster.apply(cars_in, key="car", operator=Visits, schema="car string, n long", initial_state=state)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert dict(cluster.state("Visits").get("a") or {}) == {"n": 2, "last": "batch of a", "tags": set()}
    assert dict(cluster.state("Visits").get("b") or {}) == {"n": 1, "last": "batch of b", "tags": set()}
