"""Where workers run: child processes of the driver, or long-running Spark tasks.

A host starts workers and tells when one could not start. It does not know what workers do: they come
to the coordinator by themselves, and end when it says so or when it is gone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Protocol

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from bedload.core.errors import TooFewSlots, WorkerStartFailed
from bedload.core.ids import WorkerId

_STOP_SECONDS = 10.0
_EXECUTORS_SECONDS = 30.0
"""How long executors may take to come, after the session is there, before the slots are counted too few."""


class WorkerHost(Protocol):
    """Starts and ends workers."""

    def start(self, coordinator: str, secret: bytes, workers: int) -> None:
        """Start this many workers, numbered from 0."""
        ...

    def check(self) -> None:
        """Raise if a worker failed to start."""
        ...

    def stop(self) -> None:
        """Make sure that all workers are gone; they have been told to end."""
        ...


class ProcessHost:
    """Workers as child processes of the driver: they take no Spark task slot."""

    def __init__(self) -> None:
        self._children: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._logs = tempfile.TemporaryDirectory(prefix="bedload-workers-", ignore_cleanup_errors=True)

    def start(self, coordinator: str, secret: bytes, workers: int) -> None:
        """Start the processes; their output goes to a log file each."""
        # SUBTLE: what the driver can import, the operators that it ships may need: a script's folder, say.
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        for worker in range(workers):
            log = Path(self._logs.name) / f"worker-{worker}.log"
            try:
                with log.open("wb") as output:
                    child = subprocess.Popen(
                        [sys.executable, "-m", "bedload.worker"],
                        stdin=subprocess.PIPE,
                        stdout=output,
                        stderr=output,
                        env=environment,
                    )
            except OSError as error:
                raise WorkerStartFailed(
                    f"worker {worker} could not be started with {sys.executable}: {error}", worker=WorkerId(worker)
                ) from error
            assert child.stdin is not None
            _hand_over(child.stdin, worker, coordinator, secret)
            self._children.append((child, log))

    def check(self) -> None:
        """Raise with the end of the log of a child that died."""
        for worker, (child, log) in enumerate(self._children):
            if child.poll() is not None:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise WorkerStartFailed(
                    f"worker {worker} ended with code {child.returncode} before it joined; the end of its log:\n{tail}",
                    worker=WorkerId(worker),
                )

    def stop(self) -> None:
        """Wait for the children; end those that do not end by themselves."""
        for child, _ in self._children:
            assert child.stdin is not None
            with contextlib.suppress(OSError):
                child.stdin.close()
        for child, _ in self._children:
            try:
                child.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children = []
        self._logs.cleanup()


def _hand_over(pipe: IO[bytes], worker: int, coordinator: str, secret: bytes) -> None:
    line = msgspec.json.encode({"worker": worker, "coordinator": coordinator, "secret": secret})
    with contextlib.suppress(BrokenPipeError):  # it died at once: check() says why
        pipe.write(line + b"\n")
        pipe.flush()


class TaskHost:
    """Workers as long-running Spark tasks: Spark places them on executors. Each takes a task slot."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._group = ""
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self, coordinator: str, secret: bytes, workers: int) -> None:
        """Start one Spark job whose tasks are the workers."""
        self._wait_for_slots(workers)
        self._group = f"bedload-workers-{coordinator}"

        def run() -> None:
            try:
                # A job group belongs to the thread, so the user's own jobs are not in this one.
                self._context.setJobGroup(self._group, "Bedload workers", False)
                numbers = self._context.parallelize(range(workers), workers)
                serve = _task(coordinator, secret)
                if self._setting("spark.speculation") and not self._dynamic:
                    # SUBTLE: a copy of a worker's task is no help, it has no state, and takes a slot. Spark makes
                    # none of the tasks of a barrier stage; its price is that all workers go when one is lost.
                    numbers.barrier().mapPartitions(serve).count()
                else:
                    # One attempt more or less makes no difference: a worker that comes back has no state.
                    numbers.mapPartitions(serve).count()
            except Exception as error:
                self._failure = error
            finally:
                self._ended.set()

        self._thread = threading.Thread(target=run, name="bedload-task-host", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if the job of the workers ended."""
        if self._ended.is_set():
            raise WorkerStartFailed(f"the Spark job of the workers ended: {self._failure or 'without an error'}")

    def stop(self) -> None:
        """Wait for the job to end; cancel it if a worker is too busy to hear that it should."""
        if self._thread is None:
            return
        self._thread.join(timeout=_STOP_SECONDS)
        if self._thread.is_alive():
            with contextlib.suppress(Py4JError):  # the session may be gone already
                self._context.cancelJobGroup(self._group)
            self._thread.join(timeout=_STOP_SECONDS)

    def _wait_for_slots(self, workers: int) -> None:
        """Return when Spark has room for the workers; raise as soon as it is clear that it will not."""
        if self._dynamic:
            return  # Spark asks for executors when it has tasks for them, not before
        limit = self._limit()
        waited = 0.0
        while (slots := self._slots()) <= workers:
            if (limit is not None and limit <= workers) or waited >= _EXECUTORS_SECONDS:
                slots = slots if limit is None else limit
                raise TooFewSlots(
                    f"{workers} workers and at least one feeder need {workers + 1} task slots, but Spark has {slots}. "
                    f"Ask for at most {max(slots - 1, 0)} workers (attach(..., workers={max(slots - 1, 1)})), "
                    f"give the application more executors or cores (spark.cores.max, spark.executor.instances), or "
                    f"run the workers beside the driver (attach(..., host='process'))"
                )
            time.sleep(0.1)
            waited += 0.1

    @property
    def _dynamic(self) -> bool:
        return self._setting("spark.dynamicAllocation.enabled")

    def _setting(self, name: str) -> bool:
        return str(self._context.getConf().get(name)).lower() == "true"

    def _limit(self) -> int | None:
        """The most slots that there can be, if that is known."""
        if str(self._context.master).startswith("local"):
            return self._slots()
        conf = self._context.getConf()
        cores = conf.get("spark.cores.max")
        return None if cores is None else int(cores) // int(conf.get("spark.task.cpus", "1"))

    def _slots(self) -> int:
        """How many tasks the executors that are there now can run at once.

        The public ``defaultParallelism`` is a setting of the user's, and at least 2 whatever there is.
        """
        context = self._context._jsc.sc()
        return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def _task(coordinator: str, secret: bytes) -> Callable[[Iterable[int]], Iterable[None]]:
    def run(numbers: Iterable[int]) -> Iterable[None]:
        from bedload.spark.tasks import serve_in_task

        for number in numbers:
            serve_in_task(WorkerId(number), coordinator, secret)
        return ()

    return run
