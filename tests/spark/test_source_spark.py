"""``spark.read.format("bedload")``: the state of a checkpoint as a table, with no call to make it known."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import re
import subprocess
import sys
import zoneinfo
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import bedload as bl
from tests.patience import PATIENCE
from tests.spark.conftest import Sink, committed, numbers, run

pytestmark = pytest.mark.spark

EPOCHS = 4
ROWS = 100
CARS = 10


@dataclasses.dataclass
class Stop:
    place: str
    minutes: int | None


class Car(bl.Operator):
    """Of each kind of state one; a car is forgotten when it comes to 30 rows, if it is car 9."""

    n: int = bl.value(0)
    ratio: float = bl.value(0.0)
    on: bool = bl.value(False)
    name: str | None = bl.value()
    raw: bytes = bl.value(b"")
    day: dt.date = bl.value(dt.date(2026, 1, 1))
    at: dt.datetime = bl.value(dt.datetime(2026, 1, 1))
    since: dt.datetime | None = bl.value()
    mixed: dt.datetime | None = bl.value()
    grid: np.ndarray = bl.array((2, 2), "float32")
    took: dt.timedelta = bl.value(dt.timedelta(0))
    price: Decimal = bl.value(Decimal("0"))
    pair: tuple[int, str] = bl.value((0, ""))
    stop: Stop = bl.value(Stop("home", None))
    thing: Any = bl.value(None, codec="pickle")
    recent: list[int] = bl.list(maxlen=2)
    seen: dict[str, int] = bl.map()
    maybe: dict[str | None, int] = bl.map()
    tags: set[str] = bl.set()
    tally: collections.Counter[str] = bl.counter()
    last: collections.deque[int] = bl.deque(maxlen=2)

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            self.n += 1
            self.recent.append(row.value)
            self.seen[f"v{row.value % 3}"] = row.value
            self.maybe[None] = self.n
            self.tags.add(f"t{row.value % 2}")
            self.tally["rows"] += 1
            self.last.append(row.value)
        self.name, self.on, self.ratio = f"car-{key}", True, self.n / 2
        self.raw, self.pair, self.stop.minutes = b"\x00\x01", (self.n, "x"), self.n
        self.took, self.price = dt.timedelta(seconds=self.n), Decimal(self.n) / 100
        self.since = dt.datetime(2026, 1, 1, tzinfo=dt.UTC if self.n % 2 else zoneinfo.ZoneInfo("Europe/Berlin"))
        self.mixed = dt.datetime(2026, 1, 1, tzinfo=dt.UTC if key % 2 else None)
        np.add(self.grid[1], key, out=self.grid[1])
        if key == 9 and self.n >= 30:
            ctx.forget()


@dataclasses.dataclass
class Made:
    url: str
    query: str
    cluster: bl.Cluster


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: Any) -> Iterator[Made]:
    """A checkpoint with two operators, of which one ran for some epochs; the cluster is still there."""
    folder = tmp_path_factory.mktemp("source")
    url = (folder / "state").as_uri()
    with bl.attach(spark, workers=2, checkpoint=url, key_groups=32) as cluster:
        cars = numbers(spark, ROWS).selectExpr(f"value % {CARS} as car", "value")
        run(
            cluster.apply(cars, key="car", operator=Car, schema="car long"),
            Sink(lambda batch, _: batch.count()),
            folder / "query",
            EPOCHS,
        )
        run(
            cluster.aggregate(cars, key="car", n=bl.agg.count(), name="totals"),
            Sink(),
            folder / "another query",
            1,
        )
        committed(cluster, "Car", EPOCHS - 1)
        (query,) = cluster.committed("Car")
        yield Made(url, query, cluster)


def load(spark: SparkSession, made: Made, **options: Any) -> DataFrame:
    reader = spark.read.format("bedload")
    for name, value in ({"operatorName": "Car"} | options).items():
        if value is not None:
            reader = reader.option(name, value)
    return reader.load(made.url)


def test_a_state_of_every_type_is_a_table(spark: SparkSession, made: Made) -> None:
    df = load(spark, made)
    assert df.schema.simpleString() == (
        "struct<car:bigint,n:bigint,ratio:double,on:boolean,name:string,raw:binary,day:date,"
        "at:timestamp_ntz,since:timestamp,mixed:struct<wall:timestamp_ntz,zone:string,fold:boolean>,"
        "grid:array<array<float>>,took:interval day to second,price:string,"
        "pair:struct<f0:bigint,f1:string>,stop:struct<place:string,minutes:bigint>,thing:binary,recent:array<bigint>,"
        "seen:map<string,bigint>,maybe:array<struct<key:string,value:bigint>>,tags:array<string>,"
        "tally:map<string,bigint>,last:array<bigint>,key_group:int>"
    )
    rows = {row["car"]: row.asDict(recursive=True) for row in df.collect()}
    n = EPOCHS * ROWS // CARS
    assert rows.keys() == set(range(CARS))
    row = rows[3]
    thing, group, since = row.pop("thing"), row.pop("key_group"), row.pop("since")
    zone = dt.UTC if n % 2 else zoneinfo.ZoneInfo("Europe/Berlin")
    assert since.timestamp() == dt.datetime(2026, 1, 1, tzinfo=zone).timestamp()  # collected in this machine's zone
    assert row["grid"][0] == [0, 0]
    assert row["grid"][1][0] == row["grid"][1][1] > 0
    del row["grid"]
    assert 0 <= group < 32
    assert thing
    assert row | {"tags": sorted(row["tags"])} == {
        "car": 3,
        "n": n,
        "ratio": n / 2,
        "on": True,
        "name": "car-3",
        "raw": b"\x00\x01",
        "day": dt.date(2026, 1, 1),
        "at": dt.datetime(2026, 1, 1),
        "mixed": {"wall": dt.datetime(2026, 1, 1), "zone": "+00:00", "fold": False},
        "took": dt.timedelta(seconds=n),
        "price": str(Decimal(n) / 100),
        "pair": {"f0": n, "f1": "x"},
        "stop": {"place": "home", "minutes": n},
        "recent": [383, 393],
        "seen": {"v0": 393, "v1": 373, "v2": 383},
        "maybe": [{"key": None, "value": n}],
        "tags": ["t1"],
        "tally": {"rows": n},
        "last": [383, 393],
    }


def test_time_travel_reads_the_state_after_an_epoch(spark: SparkSession, made: Made) -> None:
    for batch in range(EPOCHS):
        found = load(spark, made, stateVarName="n", batchId=batch)
        assert found.columns == ["car", "n", "key_group"]
        n = (batch + 1) * ROWS // CARS
        expected = dict.fromkeys(range(CARS), n) | {9: n % 30}
        assert {row["car"]: row["n"] for row in found.collect()} == {car: n for car, n in expected.items() if n}


def test_the_change_feed_shows_containers_as_they_were_after_each_epoch(spark: SparkSession, made: Made) -> None:
    feed = load(spark, made, readChangeFeed=True, changeStartBatchId=1, changeEndBatchId=3, queryId=made.query)
    assert feed.columns[:3] == ["batch_id", "change_type", "car"]
    rows = {(row["batch_id"], row["car"]): row for row in feed.collect()}
    assert rows.keys() == {(batch, car) for batch in (1, 2, 3) for car in range(CARS)}
    for batch in (1, 2, 3):
        at = rows[batch, 4]
        assert (at["change_type"], at["n"]) == ("update", (batch + 1) * 10)
        assert (at["recent"], at["tally"]) == ([batch * 100 + 84, batch * 100 + 94], {"rows": (batch + 1) * 10})
    gone = rows[2, 9]
    assert (gone["change_type"], gone["n"], gone["seen"]) == ("delete", None, None)
    assert (rows[3, 9]["change_type"], rows[3, 9]["n"]) == ("update", 10)


def test_a_read_has_a_task_for_each_part_and_reads_named_keys_alone(spark: SparkSession, made: Made) -> None:
    assert load(spark, made, stateVarName="n").rdd.getNumPartitions() == 2
    one = load(spark, made, stateVarName="n", keys="[4, 77]")
    assert [(row["car"], row["n"]) for row in one.collect()] == [(4, EPOCHS * ROWS // CARS)]


def test_a_filter_does_not_stay_with_the_dataframe(spark: SparkSession, made: Made) -> None:
    """Spark keeps what a source was told with a filter: one that takes it would read less for ever after."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        df = load(spark, made, stateVarName="n")
        assert df.where("car = 4").count() == 1
        assert df.where("car in (4, 5) and key_group >= 0").count() == 2
        assert df.count() == CARS
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_columns_can_be_chosen_by_a_schema(spark: SparkSession, made: Made) -> None:
    reader = spark.read.format("bedload").option("operatorName", "Car").option("storage.fsync", "false")
    found = reader.schema("n long, car long").load(made.url)
    assert found.agg(F.sum("n"), F.count("car")).first()[:] == ((CARS - 1) * EPOCHS * 10 + 10, CARS)


def test_the_state_of_an_aggregate_has_its_state_columns(spark: SparkSession, made: Made) -> None:
    rows = load(spark, made, operatorName="totals").collect()
    assert {row["car"]: row["count()"] for row in rows} == dict.fromkeys(range(CARS), 10)


def test_sql_reads_it_too(spark: SparkSession, made: Made) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW cars USING bedload OPTIONS (path '{made.url}', operatorName 'Car')")
    try:
        assert spark.sql("SELECT max(n) FROM cars").first()[0] == EPOCHS * 10
    finally:
        spark.catalog.dropTempView("cars")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"operatorName": None}, "several operators: Car, totals"),
        ({"operatorName": "Bus"}, "no operator 'Bus'; there are: Car, totals"),
        ({"stateVarName": "m"}, "no state variable 'm'; there are: n, ratio"),
        ({"batchId": 17}, "after batch 17 is not there; retained are the states after batches 0 to 3"),
        ({"batch": 1}, "no option batch"),
    ],
)
def test_what_is_not_there_is_an_error_that_says_what_is(
    spark: SparkSession, made: Made, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        load(spark, made, **options)


def test_a_place_without_a_checkpoint_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="there is no checkpoint at"):
        spark.read.format("bedload").load(str(tmp_path))


def test_a_dataframe_stays_at_its_state_while_the_operator_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with bl.attach(spark, workers=2, checkpoint=state, retain_epochs=1000) as cluster:
        cars = numbers(spark, ROWS).selectExpr(f"value % {CARS} as car")
        out = cluster.aggregate(cars, key="car", n=bl.agg.count())
        query = out.writeStream.format("noop").outputMode("update").option("checkpointLocation", tmp_path / "q").start()
        try:
            committed(cluster, "aggregate", 1)
            df = spark.read.format("bedload").load(str(state))
            counts = {row["count()"] for row in df.collect()}
            assert len(counts) == 1, "a state between two epochs"
            last = max(cluster.committed("aggregate").values())
            committed(cluster, "aggregate", last + 2)
            cluster.checkpoint()
            assert {row["count()"] for row in df.collect()} == counts
            newer = {row["count()"] for row in spark.read.format("bedload").load(str(state)).collect()}
            assert len(newer) == 1
            assert min(newer) > min(counts)
        finally:
            query.stop()


def test_a_damaged_file_is_named(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    copy = made.cluster.export(tmp_path / "copy")
    for file in (tmp_path / "copy").rglob("n/*.parquet"):
        file.write_bytes(file.read_bytes()[:-9] + bytes(9))
    df = spark.read.format("bedload").option("operatorName", "Car").option("stateVarName", "n").load(copy)
    with pytest.raises(PySparkException, match=r"snapshot file .*/n/part-.*\.parquet is damaged: its checksum differs"):
        df.collect()
    others = spark.read.format("bedload").option("operatorName", "Car").option("stateVarName", "name").load(copy)
    assert others.count() == CARS


# --- what the docs say ---

DOCS = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize("page", ["read-state.md", "take-over-a-spark-query.md"])
def test_the_code_of_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(blocks) >= 5
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for said in _SAID[page]:
        assert said in done.stdout, done.stdout


_SAID = {
    "read-state.md": [
        "|car-3|   20|   40|",
        "|       3|     update|car-3|   40|",
        "sum(count)",
        "400",
        "live: 40 rows, mean 198.0",
        "|car-3| 40|198.0|",
    ],
    "take-over-a-spark-query.md": ["n=250", "|car-1|    3|", "|car-3|    1|"],
}
"""What the pages promise to show."""
