"""Live, elastic state for PySpark streaming.

A stateful operator is written in plain Python. Bedload keeps its state on long-lived workers, by key, and counts every
row exactly once. Spark stays the data pipeline::

    import bedload as bl

    class Trip(bl.Operator):
        count: int = bl.value(0)
        recent: list[float] = bl.list(maxlen=20)

        def process(self, key, rows, ctx):
            for row in rows:
                self.count += 1
                self.recent.append(row.speed)
            yield key, self.count, sum(self.recent) / len(self.recent)

    cluster = bl.attach(spark, workers=2)
    out = cluster.apply(cars, key="car", operator=Trip, schema="car string, n long, mean double")
    query = out.writeStream.format("parquet").option("checkpointLocation", ...).start(...)

The layers, from the top; each imports only those below it:

- ``spark``: feeders, worker hosts, the driver's endpoint: all that touches pyspark;
  ``testing``: the public testing kit
- ``operators``: ready-made operators: aggregates
- ``control``: the coordinator; ``worker``: operator runtimes and the worker's side of the protocol
- ``migration``: moving state while the query runs
- ``checkpoint``: durable state
- ``store``: the state of an operator at a worker
- ``state``: state types and their before-image log; ``protocol``: messages and the feeder's side;
  ``transport``: frames over sockets
- ``keys``: hashing, key groups, routing tables
- ``core``: ids, clock, errors, an epoch's time and figures
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bedload.core import errors
from bedload.migration.strategies import STRATEGIES as strategies  # noqa: N811 - a public name like the others
from bedload.migration.strategies import Strategy
from bedload.state import (
    Heap,
    array,
    counter,
    deque,
    heap,
    list,  # noqa: A004 - named for what it declares
    map,  # noqa: A004 - named for what it declares
    set,  # noqa: A004 - named for what it declares
    value,
)
from bedload.state.timers import Timer
from bedload.worker.operator import Context, Operator
from bedload.worker.parameters import param
from bedload.worker.rows import Rows

if TYPE_CHECKING:
    from bedload.operators import aggregates as agg
    from bedload.spark.attaching import attach
    from bedload.spark.changes import Change
    from bedload.spark.cluster import Cluster
    from bedload.spark.drop_in.call import transformWithState, transformWithStateInPandas
    from bedload.spark.drop_in.patching import patch_pyspark, unpatch_pyspark
    from bedload.spark.results import MoveResult
    from bedload.spark.state_view import OperatorState, StateAnswer
    from bedload.worker.batch_context import BatchContext
    from bedload.worker.vector import VectorOperator
    from bedload.worker.vector_batch import RowsByKey, VectorBatch
    from bedload.worker.vector_timers import BatchTimer

__version__ = "0.1.0"

__all__ = [
    "BatchContext",
    "BatchTimer",
    "Change",
    "Cluster",
    "Context",
    "Heap",
    "MoveResult",
    "Operator",
    "OperatorState",
    "Rows",
    "RowsByKey",
    "StateAnswer",
    "Strategy",
    "Timer",
    "VectorBatch",
    "VectorOperator",
    "__version__",
    "agg",
    "array",
    "attach",
    "counter",
    "deque",
    "errors",
    "heap",
    "list",
    "map",
    "param",
    "patch_pyspark",
    "set",
    "strategies",
    "transformWithState",
    "transformWithStateInPandas",
    "unpatch_pyspark",
    "value",
]

_LAZY = {
    "BatchContext": "bedload.worker.batch_context",
    "BatchTimer": "bedload.worker.vector_timers",
    "Change": "bedload.spark.changes",
    "Cluster": "bedload.spark.cluster",
    "MoveResult": "bedload.spark.results",
    "OperatorState": "bedload.spark.state_view",
    "RowsByKey": "bedload.worker.vector_batch",
    "StateAnswer": "bedload.spark.state_view",
    "VectorBatch": "bedload.worker.vector_batch",
    "VectorOperator": "bedload.worker.vector",
    "attach": "bedload.spark.attaching",
    "patch_pyspark": "bedload.spark.drop_in.patching",
    "transformWithState": "bedload.spark.drop_in.call",
    "transformWithStateInPandas": "bedload.spark.drop_in.call",
    "unpatch_pyspark": "bedload.spark.drop_in.patching",
}


def __getattr__(name: str) -> Any:
    """Import what needs pyspark or numba on first use: workers, feeders and the testing kit start without them."""
    if name == "agg":
        return import_module("bedload.operators.aggregates")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'bedload' has no attribute {name!r}")


def __dir__() -> Any:
    """What is imported on first use, too: completion in a notebook offers it."""
    return sorted({*globals(), *__all__})
