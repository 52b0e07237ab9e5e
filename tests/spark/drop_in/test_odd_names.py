"""Odd names, structs and nulls in the key, sinks that act more than once: a query of Spark's goes on here with them.

One program for all of it, as a start of a query costs more than what it shows.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import bedload as bl
from bedload.core.errors import DefinitionError
from tests.spark.drop_in.engines import _quick_python

pytestmark = pytest.mark.spark

SCHEMA = "n string, st struct<a: long, class: string>, `a b` long, class int, `_1` string, `größe` double"
"""Without dots in columns, and with letters alone in keys and state: others fail on Spark."""
OUT = "k string, `a.b` long, `class` string"
DAY = 86_400_000


class Odd(StatefulProcessor):
    """Variables that have the names of columns, of each other but for the case, and of words of Python's."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n long, `N` double", DAY)
        self.words = handle.getValueState("N", "def string")
        self.items = handle.getListState("a.b", "class long, def string", DAY)
        self.entries = handle.getMapState("class", "class string", "`_1` long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (n, total) = self.n.get() or (0, 0.0)
        for row in sorted(rows, key=lambda row: row["a b"]):
            n, total = n + 1, total + row["größe"]
            self.items.appendValue((row["class"], row["_1"]))
            found = self.entries.getValue((row["_1"],))
            self.entries.updateValue((row["_1"],), (1 if found is None else found["_1"] + 1,))
        self.n.update((n, total))
        self.words.update((f"{n}",))
        entries = sorted((entry[0] or "", times) for entry, (times,) in self.entries.iterator())
        text = f"{total} {self.words.get()} {list(self.items.get())} {entries}"
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + DAY)
        yield Row(**{"class": text, "k": repr(tuple(key)), "a.b": n})


def write(folder: Path, number: int) -> None:
    """A batch: some keys are null, or structs that are, or have nulls."""
    keys = [
        ("x", {"a": 1, "class": "y"}),
        ("x", {"a": None, "class": None}),
        ("x", None),
        (None, None),
        ("x", {"a": 0}),
    ]
    rows = [
        {
            "n": n,
            "st": st,
            "a b": number * 10 + at,
            "class": at,
            "_1": None if at == 3 else f"{at % 2}",
            "größe": at / 2,
        }
        for at, (n, st) in enumerate(keys[number % 3 :])
    ]
    file = folder / f"{number}.json"
    file.write_text("\n".join(map(json.dumps, rows)))
    os.utime(file, (1_000 + number, 1_000 + number))


class Sink:
    """It reads a batch in several ways, and fails once."""

    def __init__(self, folder: Path, fails: int | None = None) -> None:
        self.rows: dict[int, list[Any]] = {}
        self._folder, self._fails = folder, fails

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        batch.persist()
        found = sorted(map(tuple, batch.collect()))
        batch.write.mode("overwrite").parquet(str(self._folder / f"{epoch}"))
        assert len(batch.toPandas()) == len(found)
        batch.unpersist()
        if epoch == self._fails:
            self._fails = None
            raise ValueError("once")
        assert sorted(map(tuple, batch.collect())) == found, "another action"
        assert sorted(map(tuple, batch.sparkSession.read.parquet(str(self._folder / f"{epoch}")).collect())) == found
        self.rows[epoch] = found


def run(out: DataFrame, location: Path, sink: Sink) -> dict[int, list[Any]]:
    """Over what is there, once more if the sink fails."""
    writer = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(location)).trigger(availableNow=True)
    try:
        writer.start().awaitTermination()
    except StreamingQueryException as error:
        if "once" not in str(error):
            raise
        writer.start().awaitTermination()
    return sink.rows


def test_a_query_with_odd_names_goes_on_here(session: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    grouped, call = source.groupBy("n", "st"), (Odd(), OUT, "Update", "ProcessingTime")
    for number in range(2):
        write(folder, number)
    with _quick_python(session):
        assert run(grouped.transformWithState(*call), tmp_path / "old", Sink(tmp_path / "a"))
        shutil.copytree(tmp_path / "old", tmp_path / "on")
        for number in range(2, 5):
            write(folder, number)
        expected = run(grouped.transformWithState(*call), tmp_path / "on", Sink(tmp_path / "b"))
    for part in ("offsets", "commits", "sources"):
        shutil.copytree(tmp_path / "old" / part, tmp_path / "new" / part)
    shutil.copy(tmp_path / "old" / "metadata", tmp_path / "new" / "metadata")
    with bl.attach(session, workers=2, checkpoint=tmp_path / "bedload") as cluster:
        out = bl.transformWithState(grouped, *call, takeOver=str(tmp_path / "old"))
        assert run(out, tmp_path / "new", Sink(tmp_path / "c", fails=3)) == expected
        found = cluster.state("Odd").get(("x", True, 1, "y"))
        assert found is not None
        assert (found["n"][0], found["N"], len(found["bedload_timers"])) == (2, ("2",), 2)
        cluster.checkpoint()
    table = session.read.format("bedload").load(str(tmp_path / "bedload"))
    kept = {tuple(row)[:4]: row for row in table.collect()}
    structs = [(True, 1, "y"), (True, None, None), (False, None, None), (True, 0, None)]
    assert kept.keys() == {*(("x", *st) for st in structs), (None, False, None, None)}
    with pytest.raises(DefinitionError, match="takeOver is for a stream"):
        bl.transformWithState(session.createDataFrame([("a",)], "k string").groupBy("k"), *call, takeOver="old")
    assert table.columns[:4] == ["key_n", "st", "st_a", "st_class"]
