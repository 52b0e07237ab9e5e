"""Attaches where no executor ever comes, since none has the memory that is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import bedload as bl
from tests.spark.apps import say
from tests.spark.apps.session import no_jobs, session

FOLDER, MASTER = Path(sys.argv[1]), sys.argv[2]


def main() -> None:
    spark = session(MASTER, FOLDER, spark_executor_memory="64g", spark_dynamicAllocation_enabled="true")
    with bl.attach(spark, workers=1, host="process", start_seconds=20.0) as cluster:
        say("attached", workers=cluster.workers)
    try:
        bl.attach(spark, workers=1, start_seconds=5.0)
    except bl.errors.BedloadError as error:
        say("refused", kind=type(error).__name__, message=error.message)
    no_jobs(spark)
    spark.stop()


if __name__ == "__main__":
    main()
