"""A local query whose operator is in the middle of a long call in one worker, while the other is idle."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import bedload as bl
from tests.spark.apps import eventually, say
from tests.spark.apps.session import session
from tests.spark.conftest import numbers

FOLDER = Path(sys.argv[1])
MARK = str(FOLDER / "in-process")


class Sleeper(bl.Operator):
    n: int = bl.value(0)

    def process(self, key: Any, rows: bl.Rows, ctx: bl.Context) -> None:
        Path(MARK).write_text(str(os.getpid()))
        time.sleep(600)


def main() -> None:
    spark = session("local[2]", FOLDER)
    cluster = bl.attach(spark, workers=2)
    stream = numbers(spark, 10, 1).selectExpr("1L as key", "value")
    out = cluster.apply(stream, key="key", operator=Sleeper, schema="key long")
    out.writeStream.format("noop").option("checkpointLocation", str(FOLDER / "checkpoint")).start()
    eventually(lambda: Path(MARK).exists() and bool(Path(MARK).read_text()), "the operator is in process()")
    say("sleeping", workers=cluster.workers, busy=int(Path(MARK).read_text()))
    time.sleep(600)


if __name__ == "__main__":
    main()
