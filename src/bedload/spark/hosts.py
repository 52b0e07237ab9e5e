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
from pyspark import SparkContext
from pyspark.sql import SparkSession

from bedload.core.errors import TooFewSlots, WorkerStartFailed
from bedload.core.ids import WorkerId
from bedload.worker.durable import Place

_STOP_SECONDS = 10.0
_TASK_RETRY_SECONDS = 5.0
"""How long Spark may take to see that the task of a lost worker failed. If it has not by then, it runs it again."""
_EXECUTORS_SECONDS = 30.0
"""How long executors may take to come, after the session is there, before the slots are counted too few."""


class WorkerHost(Protocol):
    """Starts and ends workers."""

    takes_slots: bool
    """Workers compete with feeders for Spark's task slots."""

    def start(self, coordinator: str, secret: bytes, workers: int, place: Place | None = None) -> None:
        """Start this many workers, numbered from 0; ``place`` is where they find the checkpoint."""
        ...

    def check(self) -> None:
        """Raise if a worker failed to start."""
        ...

    def replace(self, worker: WorkerId) -> None:
        """Start a worker in place of one that was lost, and make sure that the lost one is gone."""
        ...

    def last_words(self, worker: WorkerId) -> str:
        """The end of a worker's log, if it is at hand."""
        ...

    def stop(self) -> None:
        """Make sure that all workers are gone; they have been told to end."""
        ...


class ProcessHost:
    """Workers as child processes of the driver: they take no Spark task slot."""

    takes_slots = False

    def __init__(self) -> None:
        self._children: dict[WorkerId, tuple[subprocess.Popen[bytes], Path]] = {}
        self._logs = tempfile.TemporaryDirectory(prefix="bedload-workers-", ignore_cleanup_errors=True)
        self._hello: tuple[str, bytes, Place | None] = ("", b"", None)
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, coordinator: str, secret: bytes, workers: int, place: Place | None = None) -> None:
        """Start the processes; their output goes to a log file each."""
        self._hello = coordinator, secret, place
        for number in range(workers):
            self._start(WorkerId(number))

    def replace(self, worker: WorkerId) -> None:
        """Start another process; the old one is killed if it is there still."""
        with self._lock:
            old = self._children.get(worker)
            if old is not None:
                old[0].kill()
                old[0].wait()
                assert old[0].stdin is not None
                with contextlib.suppress(OSError):
                    old[0].stdin.close()
            if not self._stopped:
                self._start(worker)

    def _start(self, worker: WorkerId) -> None:
        # SUBTLE: what the driver can import, the operators that it ships may need: a script's folder, say.
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        log = Path(self._logs.name) / f"worker-{worker}.log"
        try:
            with log.open("ab") as output:
                child = subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", "-m", "bedload.worker"],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=environment,
                )
        except OSError as error:
            raise WorkerStartFailed(
                f"worker {worker} could not be started with {sys.executable}: {error}", worker=worker
            ) from error
        assert child.stdin is not None
        _hand_over(child.stdin, worker, *self._hello)
        self._children[worker] = child, log

    def check(self) -> None:
        """Raise with the end of the log of a child that died."""
        for worker, (child, log) in list(self._children.items()):
            if child.poll() is not None:
                tail = _tail(log)
                raise WorkerStartFailed(
                    f"worker {worker} ended with code {child.returncode} before it joined; the end of its log:\n{tail}",
                    worker=worker,
                )

    def last_words(self, worker: WorkerId) -> str:
        """The end of the log of a child."""
        found = self._children.get(worker)
        return "" if found is None else _tail(found[1])

    def stop(self) -> None:
        """Wait for the children; end those that do not end by themselves."""
        with self._lock:
            self._stopped = True
        for child, _ in self._children.values():
            assert child.stdin is not None
            with contextlib.suppress(OSError):
                child.stdin.close()
        for child, _ in self._children.values():
            try:
                child.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children = {}
        self._logs.cleanup()


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    except OSError:
        return ""


def _hand_over(pipe: IO[bytes], worker: int, coordinator: str, secret: bytes, place: Place | None) -> None:
    line = msgspec.json.encode({"worker": worker, "coordinator": coordinator, "secret": secret, "place": place})
    with contextlib.suppress(BrokenPipeError):  # it died at once: check() says why
        pipe.write(line + b"\n")
        pipe.flush()


class TaskHost:
    """Workers as long-running Spark tasks: Spark places them on executors. Each takes a task slot.

    On a cluster they start as the tasks of one job, which Spark spreads over the executors and tries again when they
    fail. In local mode, where the first failure ends a job, each is a job of its own; so is one that Spark gave up.
    """

    takes_slots = True

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._jobs: dict[WorkerId, _Job] = {}
        self._hello: tuple[str, bytes, Place | None] = ("", b"", None)
        self._stopped = False

    def start(self, coordinator: str, secret: bytes, workers: int, place: Place | None = None) -> None:
        """Start one Spark job for each worker."""
        self._wait_for_slots(workers)
        self._hello = coordinator, secret, place
        everybody = [WorkerId(number) for number in range(workers)]
        together = [everybody] if not str(self._context.master).startswith("local") else [[one] for one in everybody]
        for some in together:
            self._start(some)

    def replace(self, worker: WorkerId) -> None:
        """Start another job, unless Spark starts the task again by itself; wherever it was, it ended with us."""
        job = self._jobs.get(worker)
        if job is not None:
            job.ended.wait(_TASK_RETRY_SECONDS)
        if not self._stopped and (job is None or job.ended.is_set()):
            self._start([worker])

    def _start(self, workers: list[WorkerId]) -> None:
        # SUBTLE: a copy of a worker's task is no help, it has no state, and takes a slot. Spark makes none of the tasks
        # of a barrier stage; its price is that all workers of the job go when one is lost.
        barrier = len(workers) > 1 and self._setting("spark.speculation") and not self._dynamic
        job = _Job(self._context, workers, *self._hello, barrier=barrier)
        for worker in workers:
            self._jobs[worker] = job

    def check(self) -> None:
        """Raise if the job of a worker ended."""
        for worker, job in list(self._jobs.items()):
            if job.ended.is_set():
                raise WorkerStartFailed(
                    f"the Spark job of worker {worker} ended: {job.failure or 'without an error'}", worker=worker
                )

    def last_words(self, worker: WorkerId) -> str:
        """Nothing: the log is with the executor."""
        return ""

    def stop(self) -> None:
        """Wait for the jobs to end; cancel those whose worker is too busy to hear that it should."""
        self._stopped = True
        for job in self._jobs.values():
            job.ended.wait(_STOP_SECONDS)
        for job in self._jobs.values():
            if not job.ended.is_set():
                job.cancel()
        for job in self._jobs.values():
            job.ended.wait(_STOP_SECONDS)

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


class _Job:
    """The Spark job of some workers."""

    def __init__(
        self,
        context: SparkContext,
        workers: list[WorkerId],
        coordinator: str,
        secret: bytes,
        place: Place | None,
        *,
        barrier: bool,
    ) -> None:
        self.failure: Exception | None = None
        self.ended = threading.Event()
        self._context = context
        self._workers = workers
        self._barrier = barrier
        self._group = f"bedload-workers-{workers[0]}-{coordinator}"
        task = _task(coordinator, secret, place)
        threading.Thread(target=self._run, args=(task,), name=self._group, daemon=True).start()

    def cancel(self) -> None:
        """End it from Spark's side."""
        with contextlib.suppress(Py4JError):  # the session may be gone already
            self._context.cancelJobGroup(self._group)

    def _run(self, task: Callable[[Iterable[int]], Iterable[None]]) -> None:
        try:
            # A job group belongs to the thread, so the user's own jobs are not in this one.
            self._context.setJobGroup(self._group, "Bedload workers", False)
            numbers = self._context.parallelize(list(map(int, self._workers)), len(self._workers))
            if self._barrier:
                numbers.barrier().mapPartitions(task).count()
            else:
                numbers.mapPartitions(task).count()
        except Exception as error:
            self.failure = error
        finally:
            self.ended.set()


def _task(coordinator: str, secret: bytes, place: Place | None) -> Callable[[Iterable[int]], Iterable[None]]:
    def run(numbers: Iterable[int]) -> Iterable[None]:
        from bedload.spark.tasks import serve_in_task

        for number in numbers:
            serve_in_task(WorkerId(number), coordinator, secret, place)
        return ()

    return run
