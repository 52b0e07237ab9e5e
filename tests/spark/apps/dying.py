"""A query whose action in ``foreachBatch`` fails with a text so long that Spark's thread of the query dies over it.

Started plainly, it ends without an exception; kept running by ``cluster.run``, it is started again and then given up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import bedload as bl
from tests.patience import PATIENCE
from tests.spark.apps import eventually, say
from tests.spark.apps.session import session
from tests.spark.conftest import numbers

FOLDER = Path(sys.argv[1])


class Fails(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> Any:
        raise ValueError("x" * 100_000)


def show(batch: DataFrame, epoch: int) -> None:
    batch.show(2)


def main() -> None:
    spark = session("local[2]", FOLDER)
    with bl.attach(spark, workers=1) as cluster:
        out = cluster.apply(numbers(spark, 10, 1), key="value", operator=Fails, schema="key long, n long")
        writer = out.writeStream.foreachBatch(show).option("checkpointLocation", str(FOLDER / "query"))

        query = writer.start()
        eventually(lambda: not query.isActive, "the query has ended")
        say("plain", error=repr(query.exception()))
        try:
            cluster.wait_for_epoch(query)
        except bl.errors.QueryDied as error:
            say("waited", message=error.message)

        running = cluster.run(writer, restarts=1, first_pause=0.01)
        try:
            running.await_termination(PATIENCE)
        except bl.errors.QueryDied as error:
            say("run", message=error.message, restarts=running.restarts)
    spark.stop()


if __name__ == "__main__":
    main()
