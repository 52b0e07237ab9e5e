"""What a cluster is made from: the arguments of ``bedload.attach``, checked, with the host and the checkpoint chosen.

Invariant: whatever can be refused is refused before anything starts; the checkpoint is claimed last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bedload.control.compaction import Retention
from bedload.control.liveness import Patience
from bedload.core.errors import DefinitionError
from bedload.keys import check_key_groups
from bedload.spark.hosts import ProcessHost, TaskHost, WorkerHost
from bedload.spark.interpreter import use_own_python
from bedload.spark.keeper import Keeper
from bedload.state.kinds import IN_MEMORY, Chosen, Store
from bedload.transport import is_loopback
from bedload.worker.local_files import Local
from bedload.worker.local_stores import LEAST
from bedload.worker.memory import epoch_share, store_share
from bedload.worker.redis_remote import address_of

_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_WIDENED = "spark.bedload.recordsPerBatch.widenedFrom"
"""What the session had there before it was attached to."""
_OURS = "65536"


@dataclass(frozen=True)
class Attachment:
    """The parts of a cluster, before its first worker is started."""

    spark: SparkSession
    host: WorkerHost
    listen: str
    """The driver's own address, as workers and feeders reach it."""
    workers: int
    key_groups: int
    start_seconds: float
    keeper: Keeper | None
    """None: state is kept in memory only."""
    retention: Retention
    patience: Patience
    encrypt: bool
    """Whether connections are encrypted."""
    epoch_bytes: int | None = None
    """What an epoch may take at a worker beside the state; None: what each worker finds right."""
    store: Chosen = IN_MEMORY
    """Where state is, unless an operator says otherwise."""

    def store_of(self, given: str, where: str) -> Chosen:
        """Where the state of an operator is to be."""
        return store_of(given, where, durable=self.keeper is not None)

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        *,
        workers: int,
        key_groups: int,
        host: str | None,
        start_seconds: float,
        checkpoint: str | os.PathLike[str] | None,
        storage_options: Mapping[str, Any] | None,
        retain_epochs: int,
        patience: Patience,
        encrypt: bool | None,
        epoch_bytes: int | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        store: str = "memory",
        memory: str | int | None = None,
    ) -> Attachment:
        """Check what the user asks for, set the session up for it, and open the checkpoint."""
        _check_session(spark)
        if workers < 1:
            raise DefinitionError(f"workers={workers}: at least one worker is needed")
        check_key_groups(key_groups)
        if retain_epochs < 1:
            raise DefinitionError(f"retain_epochs={retain_epochs}: at least the last epoch has to be kept")
        if min(patience.silent, patience.stuck) <= 0:
            raise DefinitionError(
                f"silent_seconds={patience.silent:g}, stuck_seconds={patience.stuck:g}: give both more than 0 seconds"
            )
        if epoch_bytes is not None and epoch_bytes < 1:
            raise DefinitionError(f"epoch_bytes={epoch_bytes}: give a number of bytes, or leave it out")
        url = _url(checkpoint, storage_options)
        local = str(spark.sparkContext.master).startswith("local")
        kind = host or ("process" if local else "task")
        if kind not in ("process", "task"):
            raise DefinitionError(f"host={host!r}: use 'process', 'task', or leave it out")
        budget = None if memory is None else _memory(memory)
        if budget is None and kind == "process":
            budget = store_share(workers)
        chosen_store = store_of(store, "attach", durable=url is not None)
        _set_up(spark, local=local)
        listen = "127.0.0.1" if local else str(spark.sparkContext.getConf().get("spark.driver.host"))
        executors = None if local else spark.sparkContext
        means = Local(_local_dir(local_dir, here=local or kind == "process"), budget)
        chosen: WorkerHost
        if kind == "process":
            chosen = ProcessHost(executors, look_seconds=start_seconds, local=means)
        else:
            chosen = TaskHost(spark, look_seconds=start_seconds, local=means)
        keeper = None if url is None else Keeper(url, storage_options)
        secure = not is_loopback(listen) if encrypt is None else encrypt
        retention = Retention(retain_epochs)
        if epoch_bytes is None and kind == "process":
            epoch_bytes = epoch_share(workers)  # they share this machine; on a cluster each looks for itself
        return cls(
            spark,
            chosen,
            listen,
            workers,
            key_groups,
            start_seconds,
            keeper,
            retention,
            patience,
            secure,
            epoch_bytes,
            chosen_store,
        )

    def durable(self, what: str) -> Keeper:
        """The keeper of the checkpoint; raises if there is none, which ``what`` needs."""
        if self.keeper is None:
            raise DefinitionError(
                f"{what} needs a checkpoint, and this cluster keeps state in memory only: attach with "
                f'bedload.attach(spark, checkpoint="file:///...")'
            )
        return self.keeper


def _check_session(spark: object) -> None:
    """Refuse a session whose driver is not this process: the coordinator lives there, and reads the queries' plans."""
    # By name: the class can be imported only where grpcio is installed.
    if any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(spark).__mro__):
        raise DefinitionError(
            "bedload.attach(spark): this is a Spark Connect session, and workers need the Spark driver in the same "
            "process. Make the session with SparkSession.builder.master(...) or run the program with spark-submit, "
            "without SPARK_REMOTE and spark.remote. What works over Spark Connect is reading state: "
            'spark.read.format("bedload").load(<checkpoint>)'
        )
    make = "make one with SparkSession.builder.getOrCreate(), and attach to that"
    if not isinstance(spark, SparkSession):
        raise DefinitionError(f"attach({spark!r}): this is not a SparkSession; {make}")
    if spark.sparkContext._jsc is None or spark.sparkContext._jsc.sc().isStopped():
        raise DefinitionError(f"attach(spark): the Spark session was stopped; {make}")


def _url(checkpoint: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None) -> str | None:
    if storage_options and checkpoint is None:
        raise DefinitionError("storage_options are for a checkpoint: give checkpoint=... as well")
    url = None if checkpoint is None else os.fspath(checkpoint)
    if url is not None and url.startswith("memory:"):
        raise DefinitionError(
            f"checkpoint={url!r}: such a store lives in one process, and workers are processes of their own. Use a "
            f"file:// URL, or leave checkpoint out to keep state in memory only"
        )
    return url


def _local_dir(given: str | os.PathLike[str] | None, *, here: bool) -> str | None:
    """The folder for local files of workers; ``here``: they run on this machine."""
    if given is None:
        return None
    if here and not os.access(given, os.W_OK | os.X_OK):
        raise DefinitionError(
            f"local_dir={os.fspath(given)!r}: it is not there, or cannot be written to. Name a folder that exists, or "
            f"leave it out for the system's temporary one"
        )
    return str(Path(given).absolute())  # a worker's working directory may be another one


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def _memory(given: str | int) -> int:
    """A number of bytes, as Spark has it: ``"2g"``."""
    match = _SIZE.fullmatch(str(given).strip()) if isinstance(given, int | str) else None
    if match is None:
        raise DefinitionError(f"memory={given!r}: give a size such as '2g' or '500m', or a number of bytes")
    found = int(float(match[1]) * (1 << _UNITS[match[2].lower()]))
    if found < LEAST:
        raise DefinitionError(
            f"memory={given!r}: a worker needs at least '{LEAST >> 20}m' for state on disk: buffers take a quarter of "
            f"it, and the keys of an epoch have to fit into the rest"
        )
    return found


def store_of(given: str, where: str, *, durable: bool) -> Chosen:
    """Where state is to be."""
    if isinstance(given, str) and given.startswith(("redis:", "rediss:")):
        address_of(given)
        if not durable:
            raise DefinitionError(
                f"{where}: state in Redis needs a checkpoint, which is what is durable: attach with checkpoint="
            )
        return Chosen(Store.REDIS, given)
    if given in (Store.MEMORY, Store.DISK):
        return Chosen(Store(given))
    raise DefinitionError(
        f"{where}: store={given!r}: use 'memory' or 'disk', or the address of a Redis server, as 'redis://host:6379/0'"
    )


def _set_up(spark: SparkSession, *, local: bool) -> None:
    if local:
        use_own_python(spark.sparkContext)
    if spark.conf.get(_ARROW_ROWS) == "10000":
        spark.conf.set(_ARROW_ROWS, _OURS)
        spark.conf.set(_WIDENED, "10000")


def records_per_batch(spark: SparkSession) -> int:
    """How many rows of Arrow go to Python at once, as the user has it."""
    found = str(spark.conf.get(_ARROW_ROWS))
    return int(str(spark.conf.get(_WIDENED, found)) if found == _OURS else found)
