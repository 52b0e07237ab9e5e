"""Attaches where Spark is told to run tasks with a Python that has no packages: in local mode, and on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import bedload as bl
from tests.spark.apps import say
from tests.spark.apps.session import counts, session
from tests.spark.conftest import numbers

FOLDER, MASTER, PYTHON = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


class Count(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        self.n += len(rows)

    def result(self, key: Any, ctx: bl.Context) -> Any:
        return key, self.n


def main() -> None:
    spark = session(MASTER, FOLDER, PYTHON, spark_executor_memory="512m")
    assert spark.sparkContext.pythonExec == PYTHON
    for host in (None, "process"):
        try:
            with bl.attach(spark, workers=1, host=host) as cluster:
                stream = numbers(spark, 400, 2).selectExpr("value % 20 as key")
                out = cluster.apply(stream, key="key", operator=Count, schema="key long, n long")
                say("counted", epochs=counts(out, FOLDER / f"query-{host}", 2))
        except bl.errors.WrongPython as error:
            say("wrong", message=error.message)
    spark.stop()


if __name__ == "__main__":
    main()
