"""A query on a cluster whose source goes quiet at once, with a beat: its partition is read at the executors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import bedload as bl
from tests.patience import PATIENCE
from tests.spark.apps import say
from tests.spark.apps.session import session

FOLDER, MASTER = Path(sys.argv[1]), sys.argv[2]


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        self.n += len(rows)


def main() -> None:
    spark = session(MASTER, FOLDER, spark_executor_cores="2", spark_executor_memory="512m", spark_cores_max="4")
    (FOLDER / "in").mkdir()
    (FOLDER / "in/0.json").write_text('{"key": 1}\n')
    rows = spark.readStream.schema("key long").json(str(FOLDER / "in"))
    with bl.attach(spark, workers=2) as cluster:
        out = cluster.apply(rows, key="key", operator=Count, schema="n long", beat="1 millisecond")
        query = out.writeStream.format("noop").option("checkpointLocation", str(FOLDER / "spark")).start()
        cluster.wait_for_epoch(query, 3, seconds=PATIENCE)
        query.stop()
        say("beaten", rows=[row["rows"] for row in cluster.epochs()][:4])
    spark.stop()


if __name__ == "__main__":
    main()
