"""What a processor may use of Spark beside the handle, and what it may not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import bedload as bl
from tests.spark.drop_in.engines import BEDLOAD, ENGINES, TEXT, apply

pytestmark = pytest.mark.spark


class Uses(StatefulProcessor):
    """Counts its rows, and says where it is."""

    def __init__(self, count: Any) -> None:
        self._count = count

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self._count.add(sum(1 for _ in rows))
        seed = os.environ.get("PYTHONHASHSEED")
        yield Row(k=key[0], text=f"{seed} {TaskContext.get() is None}")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_else_of_spark_a_processor_uses(
    engine: str, session: SparkSession, bedload: bl.Cluster, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"k": "a"}\n{"k": "b"}\n{"k": "a"}')
    count = session.sparkContext.accumulator(0)
    rows = session.readStream.schema("k string").json(str(tmp_path / "in"))
    grouped, seen = rows.groupBy("k"), []
    out = apply(engine, grouped, "rows", Uses(count), TEXT, "Update", "None", name=f"Uses_{engine}")
    writer = out.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "query"))
    query = writer.foreachBatch(lambda batch, _: seen.extend(map(tuple, batch.collect()))).trigger(availableNow=True)
    running = query.start()
    running.awaitTermination()
    is_here = engine == BEDLOAD
    seed = os.environ.get("PYTHONHASHSEED", "0")
    assert sorted(seen) == [("a", f"{seed} {is_here}"), ("b", f"{seed} {is_here}")]
    assert count.value == (0 if is_here else 3)
    progress: Any = running.lastProgress
    assert len(progress["stateOperators"]) == (0 if is_here else 1)
