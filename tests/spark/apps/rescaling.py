"""Rescales workers that are Spark tasks while a query runs: arguments are a folder and a master."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle

import bedload as bl
from bedload.core.errors import TooFewSlots
from tests.patience import PATIENCE
from tests.spark import tally
from tests.spark.apps import eventually, say
from tests.spark.apps.session import session
from tests.spark.conftest import Sink
from tests.spark.tally import applied, check_epochs, check_states, states, stream


def main(folder: Path, master: str) -> None:
    """Grow, shrink and start anew; every output and the state of every key must be right in the end."""
    cloudpickle.register_pickle_by_value(tally)  # executors do not have the tests
    spark = session(master, folder, spark_executor_cores="2", spark_executor_memory="512m", spark_cores_max="4")
    sink = Sink()
    with bl.attach(spark, workers=2, checkpoint=folder / "checkpoint", encrypt=True) as cluster:
        out = applied(cluster, stream(spark), "rows").writeStream.foreachBatch(sink)
        supervised = cluster.run(out.option("checkpointLocation", str(folder / "query")), first_pause=0.2)

        def go_on() -> None:
            wanted = len(sink.epochs) + 2

            def there() -> bool:
                assert supervised.exception() is None, supervised.exception()
                return len(sink.epochs) >= wanted

            eventually(there, f"epoch {wanted}")

        eventually(
            lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 3, "both executors are there"
        )
        with supervised:
            go_on()
            for workers, strategy in ((3, None), (1, None), (2, "adaptive"), (3, "stop_restart"), (2, None)):
                cluster.rescale(workers, strategy=strategy).wait(PATIENCE)
                go_on()
                say("rescaled", workers=cluster.workers)
            try:
                cluster.rescale(4)
            except TooFewSlots as error:
                say("refused", message=error.message)
        check_epochs("rows", sink.epochs, 12)

        def one_epoch() -> bool:
            return len({epoch for epoch, _ in states(cluster, "rows").values()}) == 1

        eventually(one_epoch, "a commit that was under way when the query stopped has come to all workers")
        seen = check_states("rows", states(cluster, "rows"))
        assert seen in (len(sink.epochs) - 1, len(sink.epochs) - 2)
    say("done", epochs=len(sink.epochs))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
