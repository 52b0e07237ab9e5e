"""``bedload.attach``.

SUBTLE: little is imported here before the process that workers are forked from is on its way. It takes longer to load
what they need than all that is done here meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bedload.keys import DEFAULT_KEY_GROUPS
from bedload.spark.processes import NURSERIES, driver_environment
from bedload.worker.nursery import available

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bedload.spark.cluster import Cluster


def attach(
    spark: SparkSession,
    *,
    workers: int = 2,
    key_groups: int = DEFAULT_KEY_GROUPS,
    host: str | None = None,
    start_seconds: float = 60.0,
    checkpoint: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    retain_epochs: int = 100,
    silent_seconds: float = 60.0,
    stuck_seconds: float = 600.0,
    encrypt: bool | None = None,
    epoch_bytes: int | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    store: str = "memory",
    memory: str | int | None = None,
) -> Cluster:
    """Start workers for a Spark session.

    ``workers``: how many. ``key_groups``: the default number of key groups of an operator's state, fixed when the state
    is created. ``host``: ``"process"`` (processes beside the driver, the default with a ``local[...]`` master) or
    ``"task"`` (long-running Spark tasks, the default on a cluster; each takes a task slot). ``start_seconds``: how long
    to wait for the workers, and for the replacement of a lost one.

    ``checkpoint``: a URL (``file:///...``, ``s3://...``, any fsspec filesystem) or a local path under which state is
    kept durable; all machines of the cluster must reach it. Without one, state lives and dies with the workers.
    ``storage_options`` go to the fsspec filesystem, except ``deadline``: within how many seconds a store, or a local
    folder, has to answer (60). ``retain_epochs``: so many epochs back can be restored and read.

    A worker that hangs is killed and counts as lost: after ``silent_seconds`` if its process gives no sign of life, and
    after ``stuck_seconds`` if it has been busy with one thing for so long, such as a call of ``process`` on one batch.

    ``encrypt``: whether connections between driver, workers and feeders are encrypted (TLS 1.3, with a certificate that
    is made for this attachment). Left out, they are encrypted unless the driver's address is a loopback one.

    ``epoch_bytes``: what one epoch of one operator may take at one worker in memory, beside the state: above all what
    is needed to roll back. An epoch that takes more fails with ``TooLarge``. Left out, a quarter of the machine's
    memory, shared by the workers that the driver starts on its own machine. Outputs wait for Spark's commit: up to
    64 MB of them, or a quarter of ``epoch_bytes`` if that is less, in memory, and the others in a local file in
    ``local_dir``, a folder of each worker's machine on a disk with room for them (default: the system's temporary one).

    ``store``: where the state of operators is, unless their ``store=`` says otherwise: ``"memory"``, ``"disk"`` for
    state that is larger than memory, ``"redis://…"`` for state of operators on rows apart from the workers. Of the
    latter two each worker has in memory what was touched of late, in ``memory`` bytes (``"2g"``; default: a share of
    the machine's). The rest is in ``local_dir``, for which operators on rows need ``bedload[disk]``; or in a Redis
    server, with ``bedload[redis]``.

    With a ``local[...]`` master, Spark's tasks run with this Python from now on, whatever ``PYSPARK_PYTHON`` says; on a
    cluster a tiny task on each executor looks whether its Python has what is needed (:class:`WrongPython`).

    Use it as a context manager, or call :meth:`Cluster.stop`. Sets
    ``spark.sql.execution.arrow.maxRecordsPerBatch`` to 65536 on the session unless it was changed from
    Spark's default of 10000: larger batches are faster here. :meth:`Cluster.apply` and :meth:`Cluster.aggregate` add
    a rule to ``spark.sql.adaptive.optimizer.excludedRules``, so that batches without rows are seen, too.
    """
    _start_nursery(spark, host)
    from bedload.control.liveness import Patience
    from bedload.spark.attachment import Attachment
    from bedload.spark.cluster import Cluster

    return Cluster(
        Attachment.of(
            spark,
            workers=workers,
            key_groups=key_groups,
            host=host,
            start_seconds=start_seconds,
            checkpoint=checkpoint,
            storage_options=storage_options,
            retain_epochs=retain_epochs,
            patience=Patience(silent_seconds, stuck_seconds),
            encrypt=encrypt,
            epoch_bytes=epoch_bytes,
            local_dir=local_dir,
            store=store,
            memory=memory,
        )
    )


def _start_nursery(spark: SparkSession, host: str | None) -> None:
    """Have it load what workers need, if they will be its. Whatever is wrong is told by who needs it."""
    with contextlib.suppress(Exception):
        if available() and (host == "process" or (host is None and str(spark.sparkContext.master).startswith("local"))):
            NURSERIES.get(driver_environment())
