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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

import msgspec
from pyspark.sql import SparkSession

from bedload.core.errors import TooFewSlots, WorkerStartFailed
from bedload.core.ids import WorkerId

_STOP_SECONDS = 10.0


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
            with log.open("wb") as output:
                child = subprocess.Popen(
                    [sys.executable, "-m", "bedload.worker"],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=environment,
                )
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
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self, coordinator: str, secret: bytes, workers: int) -> None:
        """Start one Spark job whose tasks are the workers."""
        slots = self._context.defaultParallelism
        if workers + 1 > slots:
            raise TooFewSlots(
                f"{workers} workers and at least one feeder need {workers + 1} task slots, but Spark has {slots} "
                f"cores. Ask for at most {max(slots - 1, 0)} workers (attach(..., workers={max(slots - 1, 1)})), "
                f"give the application more executors or cores (spark.cores.max, spark.executor.instances), or "
                f"run the workers beside the driver (attach(..., host='process'))"
            )

        def run() -> None:
            try:
                self._context.setLocalProperty("spark.scheduler.pool", None)
                self._context.setJobGroup(f"bedload-workers-{coordinator}", "Bedload workers", False)
                # One attempt more or less makes no difference: a worker that comes back has no state.
                self._context.parallelize(range(workers), workers).foreachPartition(_task(coordinator, secret))
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
        """Wait for the job to end."""
        if self._thread is not None:
            self._thread.join(timeout=_STOP_SECONDS)
            if self._thread.is_alive():
                self._context.cancelJobGroup(f"bedload-workers-{self._thread.name}")


def _task(coordinator: str, secret: bytes) -> Callable[[Iterator[int]], None]:
    def run(numbers: Iterator[int]) -> None:
        from bedload.spark.tasks import serve_in_task

        for number in numbers:
            serve_in_task(WorkerId(number), coordinator, secret)

    return run
