"""Where workers run: processes beside the driver, or long-running Spark tasks.

A host starts workers and tells when one could not start. It does not know what workers do: they connect to the
coordinator by themselves, and end when the coordinator says so or is gone.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Protocol

import msgspec
from pyspark import SparkContext
from pyspark.sql import SparkSession

from bedload.core.errors import TooFewSlots, WorkerStartFailed
from bedload.core.ids import WorkerId
from bedload.spark.interpreter import check_python
from bedload.spark.jobs import Job
from bedload.spark.processes import NURSERIES, Child, Nurseries, Spawned, driver_environment
from bedload.transport import Credentials
from bedload.worker.durable import Place
from bedload.worker.local_files import LOCAL, Local
from bedload.worker.nursery import available

_STOP_SECONDS = 10.0
_TASK_RETRY_SECONDS = 5.0
"""How long Spark may take to see that the task of a lost worker failed. If it has not by then, it runs it again."""
_EXECUTORS_SECONDS = 120.0
"""How long executors may take to come, after the session is there, before the slots are counted too few."""


_MORE_SLOTS = (
    "give the application more executors or cores (spark.cores.max, spark.executor.instances), or run the workers "
    "beside the driver (attach(..., host='process'))"
)


class WorkerHost(Protocol):
    """Starts and ends workers."""

    takes_slots: bool
    """Workers compete with feeders for Spark's task slots."""

    def start(self, coordinator: str, credentials: Credentials, workers: int, place: Place | None = None) -> None:
        """Start this many workers, numbered from 0; ``place`` is where they find the checkpoint."""
        ...

    def check(self, worker: WorkerId | None = None) -> None:
        """Raise if a worker failed to start: this one, or any."""
        ...

    def replace(self, worker: WorkerId) -> None:
        """Start a worker in place of one that was lost, and make sure that the lost one is gone."""
        ...

    def kill(self, worker: WorkerId, task: int) -> None:
        """End a worker that hangs, by force. It is lost; another one may be started in its place."""
        ...

    def room(self, workers: int) -> None:
        """Raise if there is no room for so many workers at once."""
        ...

    def add(self, worker: WorkerId) -> None:
        """Start one more worker. Its number may be that of one that was removed."""
        ...

    def remove(self, worker: WorkerId) -> None:
        """Return when a worker that was told to end is gone; it is ended if it takes too long."""
        ...

    def last_words(self, worker: WorkerId) -> str:
        """The end of a worker's log, if it is at hand."""
        ...

    def stop(self) -> None:
        """Make sure that all workers are gone; they have been told to end."""
        ...


class ProcessHost:
    """Workers as processes of the driver's: they take no Spark task slot.

    They are forked from one process that has loaded what they need, and which all attachments share. Where there is no
    fork, or ``BEDLOAD_NO_FORK=1`` is set, each is a fresh interpreter.
    """

    takes_slots = False

    def __init__(
        self,
        executors: SparkContext | None = None,
        nurseries: Nurseries = NURSERIES,
        *,
        look_seconds: float = 60.0,
        local: Local = LOCAL,
    ) -> None:
        """``executors``: whose Python the feeders run with, if they are on other machines, and are looked at first.

        ``local``: what a worker may have of its machine.
        """
        self._local_means = local
        self._executors = executors
        self._look_seconds = look_seconds
        self._children: dict[WorkerId, Child] = {}
        self._nurseries = nurseries
        self._logs = tempfile.TemporaryDirectory(prefix="bedload-workers-", ignore_cleanup_errors=True)
        self._hello: tuple[str, Credentials, Place | None] | None = None
        self._again: set[WorkerId] = set()
        """Workers that were ordered twice."""
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, coordinator: str, credentials: Credentials, workers: int, place: Place | None = None) -> None:
        """Start the processes; their output goes to a log file each."""
        if self._executors is not None:
            check_python(self._executors, self._look_seconds)
        self._hello = coordinator, credentials, place
        with self._lock:
            for number in range(workers):
                self._start(WorkerId(number))

    def replace(self, worker: WorkerId) -> None:
        """Start another process; the old one is killed if it is there still."""
        self._again.discard(worker)
        self._replace(worker)

    def _replace(self, worker: WorkerId) -> None:
        with self._lock:
            old = self._children.get(worker)
            if old is not None:
                self._end(old)
                old.close()
            if not self._stopped:
                self._start(worker)

    def _end(self, child: Child) -> None:
        child.kill(_STOP_SECONDS)
        if (nursery := child.ignored) is not None:
            self._nurseries.leave(nursery)  # it does not listen: nobody has to wait for it again

    def kill(self, worker: WorkerId, task: int) -> None:
        """Kill its process."""
        with self._lock:
            found = self._children.get(worker)
            if found is not None:
                found.kill(_STOP_SECONDS)

    def room(self, workers: int) -> None:
        """There is always room: the machine decides how well they run."""

    def add(self, worker: WorkerId) -> None:
        """Start another process; it goes on with the log of a former one of its number."""
        self.replace(worker)

    def remove(self, worker: WorkerId) -> None:
        """Wait for a process to end by itself, and end it if it does not."""
        with self._lock:
            found = self._children.pop(worker, None)
        if found is not None:
            if not found.wait(_STOP_SECONDS):
                found.kill(_STOP_SECONDS)
            found.close()

    def _start(self, worker: WorkerId) -> None:
        environment = driver_environment()
        log = Path(self._logs.name) / f"worker-{worker}.log"
        assert self._hello is not None
        coordinator, credentials, place = self._hello
        hello = {"worker": worker, "coordinator": coordinator, "credentials": credentials, "place": place}
        line = msgspec.json.encode({**hello, "local": self._local_means}) + b"\n"
        try:
            self._children[worker] = (
                self._fork(log, environment, line) if available() else Spawned(log, environment, line)
            )
        except OSError as error:
            raise WorkerStartFailed(
                f"worker {worker} could not be started with {sys.executable}: {error}", worker=worker
            ) from error

    def _fork(self, log: Path, environment: dict[str, str], hello: bytes) -> Child:
        return self._nurseries.get(environment).order(log, environment, hello)  # if it dies just now: see check()

    def check(self, worker: WorkerId | None = None) -> None:
        """Raise with the end of the log of a worker that died."""
        for number, child in list(self._children.items()):
            if worker in (None, number) and (fate := child.fate()) is not None:
                if child.stranded and number not in self._again:
                    self._again.add(number)
                    self._replace(number)
                    continue
                raise WorkerStartFailed(
                    f"worker {number} {fate} before it joined; the end of its log:\n{_tail(child.log)}", worker=number
                )

    def last_words(self, worker: WorkerId) -> str:
        """The end of the log of a worker."""
        found = self._children.get(worker)
        return "" if found is None else _tail(found.log)

    def stop(self) -> None:
        """Wait for the workers; end those that do not end by themselves."""
        with self._lock:
            self._stopped = True
            children = list(self._children.values())
            self._children = {}
        for child in children:
            child.let_go()
        deadline = time.monotonic() + _STOP_SECONDS
        for child in children:
            child.wait(max(0.0, deadline - time.monotonic()))
        for child in children:
            self._end(child)
            child.close()
        self._logs.cleanup()


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    except OSError:
        return ""


class TaskHost:
    """Workers as long-running Spark tasks: Spark places them on executors. Each takes a task slot.

    On a cluster they start as the tasks of one job, which Spark spreads over the executors and tries again when they
    fail. In local mode, where the first failure ends a job, each is a job of its own; so is one that Spark gave up.
    """

    takes_slots = True

    def __init__(self, spark: SparkSession, *, look_seconds: float = 60.0, local: Local = LOCAL) -> None:
        """``look_seconds``: how long to look at the Python of the executors. ``local``: what a worker may have."""
        self._local_means = local
        self._context = spark.sparkContext
        self._look_seconds = look_seconds
        self._jobs: dict[WorkerId, Job] = {}
        self._hello: tuple[str, Credentials, Place | None] | None = None
        self._stopped = False

    def start(self, coordinator: str, credentials: Credentials, workers: int, place: Place | None = None) -> None:
        """Start one Spark job for each worker."""
        advice = f"Ask for at most {{most}} workers (attach(..., workers={{most}})), {_MORE_SLOTS}"
        self._wait_for_slots(workers, _EXECUTORS_SECONDS, advice)
        if not self._local:
            check_python(self._context, self._look_seconds)
        self._hello = coordinator, credentials, place
        everybody = [WorkerId(number) for number in range(workers)]
        together = [[one] for one in everybody] if self._local else [everybody]
        for some in together:
            self._start(some)

    def replace(self, worker: WorkerId) -> None:
        """Start another job, unless Spark starts the task again by itself; wherever it was, it ended with us."""
        job = self._jobs.get(worker)
        if job is not None:
            job.ended.wait(_TASK_RETRY_SECONDS)
        if not self._stopped and (job is None or job.ended.is_set()):
            self._start([worker])

    def kill(self, worker: WorkerId, task: int) -> None:
        """Have Spark kill the task, whose process it ends with it, and start it again."""
        self._context._jsc.sc().killTaskAttempt(task, True, f"Bedload worker {worker} hangs")

    def room(self, workers: int) -> None:
        """Raise unless Spark has a task slot for each, and one for a feeder."""
        self._wait_for_slots(workers, 0.0, f"Ask for at most {{most}} workers (rescale({{most}})), {_MORE_SLOTS}")

    def add(self, worker: WorkerId) -> None:
        """Start a job of its own."""
        if not self._stopped:
            self._start([worker])

    def remove(self, worker: WorkerId) -> None:
        """Wait for the worker's job, if it is of that one alone; a task among others ends by itself."""
        job = self._jobs.pop(worker, None)
        if job is None or len(job.workers) > 1:
            return
        if not job.ended.wait(_STOP_SECONDS):
            job.cancel()
            job.ended.wait(_STOP_SECONDS)

    def _start(self, workers: list[WorkerId]) -> None:
        # SUBTLE: a copy of a worker's task is no help, it has no state, and takes a slot. Spark makes none of the tasks
        # of a barrier stage; its price is that all workers of the job go when one is lost.
        barrier = len(workers) > 1 and self._setting("spark.speculation") and not self._dynamic
        assert self._hello is not None
        job = Job(self._context, workers, *self._hello, barrier=barrier, local=self._local_means)
        for worker in workers:
            self._jobs[worker] = job

    def check(self, worker: WorkerId | None = None) -> None:
        """Raise if the job of a worker ended."""
        for number, job in list(self._jobs.items()):
            if worker in (None, number) and job.ended.is_set():
                raise WorkerStartFailed(
                    f"the Spark job of worker {number} ended: {job.failure or 'without an error'}", worker=number
                )

    def last_words(self, worker: WorkerId) -> str:
        """Nothing: the log is with the executor."""
        return ""

    def stop(self) -> None:
        """Wait for the jobs to end; cancel those whose worker is too busy to hear that it should."""
        self._stopped = True
        jobs = list(self._jobs.values())
        for job in jobs:
            job.ended.wait(_STOP_SECONDS)
        for job in jobs:
            if not job.ended.is_set():
                job.cancel()
        for job in jobs:
            job.ended.wait(_STOP_SECONDS)

    def _wait_for_slots(self, workers: int, seconds: float, advice: str) -> None:
        """Return when Spark has room for the workers; raise as soon as it is clear that it will not."""
        if self._dynamic:
            return  # Spark asks for executors when it has tasks for them, not before
        limit = self._limit()
        waited = 0.0
        while (slots := self._slots()) <= workers:
            if (limit is not None and limit <= workers) or waited >= seconds:
                slots = slots if limit is None else limit
                raise TooFewSlots(
                    f"{workers} workers and at least one feeder need {workers + 1} task slots, but Spark has {slots}. "
                    f"{advice.format(most=max(slots - 1, 1))}"
                )
            time.sleep(0.1)
            waited += 0.1

    @property
    def _local(self) -> bool:
        return str(self._context.master).startswith("local")

    @property
    def _dynamic(self) -> bool:
        return self._setting("spark.dynamicAllocation.enabled")

    def _setting(self, name: str) -> bool:
        return str(self._context.getConf().get(name)).lower() == "true"

    def _limit(self) -> int | None:
        """The most slots that there can be, if that is known."""
        if self._local:
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
