"""The Spark jobs whose tasks are workers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

from py4j.protocol import Py4JError
from pyspark import SparkContext

from bedload.core.ids import WorkerId
from bedload.transport import Credentials
from bedload.worker.durable import Place
from bedload.worker.local_files import LOCAL, Local


class Job:
    """The Spark job of some workers."""

    def __init__(
        self,
        context: SparkContext,
        workers: list[WorkerId],
        coordinator: str,
        credentials: Credentials,
        place: Place | None,
        *,
        barrier: bool,
        local: Local = LOCAL,
    ) -> None:
        self.failure: Exception | None = None
        self.ended = threading.Event()
        self.workers = workers
        self._context = context
        self._barrier = barrier
        self._group = f"bedload-workers-{workers[0]}-{coordinator}"
        task = _task(coordinator, credentials, place, local)
        threading.Thread(target=self._run, args=(task,), name=self._group, daemon=True).start()

    def cancel(self) -> None:
        """End it from Spark's side."""
        with contextlib.suppress(Py4JError):  # the session may be gone already
            self._context.cancelJobGroup(self._group)

    def _run(self, task: Callable[[Iterable[int]], Iterable[None]]) -> None:
        try:
            # A job group belongs to the thread, so the user's own jobs are not in this one.
            self._context.setJobGroup(self._group, "Bedload workers", False)
            numbers = self._context.parallelize(list(map(int, self.workers)), len(self.workers))
            if self._barrier:
                numbers.barrier().mapPartitions(task).count()
            else:
                numbers.mapPartitions(task).count()
        except Exception as error:
            self.failure = error
        finally:
            self.ended.set()


def _task(
    coordinator: str, credentials: Credentials, place: Place | None, local: Local
) -> Callable[[Iterable[int]], Iterable[None]]:
    def run(numbers: Iterable[int]) -> Iterable[None]:
        from bedload.spark.tasks import serve_in_task

        for number in numbers:
            serve_in_task(WorkerId(number), coordinator, credentials, place, local)
        return ()

    return run
