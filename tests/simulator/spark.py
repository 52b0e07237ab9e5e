"""Spark as the protocol sees it: slots, jobs, task retries, speculation.

Invariants, all Spark's own: a task is tried up to four times, then its job fails; the first attempt of a task
to finish counts and the others are killed; a speculative attempt takes only a slot that nobody waits for;
stage and attempt ids count up over the whole application.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId
from bedload.protocol.routes import Told
from tests.simulator.cluster import SimulatedDriver
from tests.simulator.faults import Faults
from tests.simulator.feeder import Ending, Fate, Input, TaskAttempt, TaskCrashed, TaskSpec
from tests.simulator.network import Network

MAX_FAILURES = 4
"""``spark.task.maxFailures``."""
_PROCESSES, _NEW_PROCESS_EVERY = 3, 7
"""Python processes that take turns with the task attempts, and how often one is a new one."""


class Slots:
    """Task slots of the application."""

    def __init__(self, count: int) -> None:
        self.free = self.total = count
        self._waiting: deque[Callable[[], bool]] = deque()

    def request(self, launch: Callable[[], bool]) -> None:
        """Launch when there is a slot; ``launch`` says whether it took it."""
        self._waiting.append(launch)
        self._serve()

    def spare(self) -> bool:
        """Whether a slot is free that nobody waits for."""
        return self.free > 0 and not self._waiting

    def give_back(self) -> None:
        """A task left its slot."""
        self.free += 1
        self._serve()

    def _serve(self) -> None:
        while self.free and self._waiting:
            self.free -= 1
            if not self._waiting.popleft()():
                self.free += 1


class SparkContext:
    """What all queries of the application share."""

    def __init__(
        self,
        network: Network,
        driver: SimulatedDriver,
        faults: Faults,
        slots: int,
        explain: Callable[[Exception, QueryId, Epoch], None],
        redeploy: Callable[[Any, Callable[[dict[OperatorName, DeploymentId]], None]], None],
    ) -> None:
        self.network = network
        self.driver = driver
        self.faults = faults
        self.slots = Slots(slots)
        self.explain = explain
        """Raises unless a fault that happened explains an error."""
        self.redeploy = redeploy
        """Applies the operators of a query again."""
        self.stages = 0
        self.attempts = 0
        self._processes: dict[int, Told] = {}
        self.shapes: dict[int, int] = {}

    def next_stage(self, shape: int) -> int:
        """The id of a new stage whose RDD has so many partitions."""
        self.stages += 1
        self.shapes[self.stages] = shape
        return self.stages

    def next_attempt(self) -> int:
        """The id of a new task attempt."""
        self.attempts += 1
        return self.attempts

    def process(self, attempt: int) -> Told:
        """The Python process that runs an attempt, by what it was told: a new one, or one that ran some before.

        By the attempt's number, which says nothing about what the routes were when the process ran the last one.
        """
        if attempt % _NEW_PROCESS_EVERY == 0:
            self._processes.pop(attempt % _PROCESSES, None)
        return self._processes.setdefault(attempt % _PROCESSES, Told())


@dataclass(frozen=True)
class JobSpec:
    """An action on the batch of an epoch."""

    query: QueryId
    run: RunId
    epoch: Epoch
    tasks: tuple[tuple[int, ...], ...]
    """The partitions that each task runs."""
    given: Callable[[int, int], Input]
    """The input of a partition in an attempt: another attempt may see other bytes."""
    stop_after: int | None = None
    """The consumer has enough after so many outputs of the first task (``take``, ``isEmpty``)."""


class Job:
    """One running action."""

    def __init__(self, spark: SparkContext, spec: JobSpec, ended: Callable[[Job, Exception | None], None]) -> None:
        self.spec = spec
        self.stage = spark.next_stage(len(spec.tasks))
        self.over = False
        self.turns: set[tuple[OperatorName, int]] = set()
        self._spark = spark
        self._ended = ended
        wanted = range(1 if spec.stop_after is not None else len(spec.tasks))
        self._failures = dict.fromkeys(wanted, 0)
        self._running: dict[int, list[TaskAttempt]] = {task: [] for task in wanted}
        self._results: dict[int, list[tuple[OperatorName, dict[str, Any]]]] = {}
        for task in wanted:
            self._request(task)

    @property
    def outputs(self) -> dict[OperatorName, list[dict[str, Any]]]:
        """The outputs of all tasks, by operator."""
        found: dict[OperatorName, list[dict[str, Any]]] = {}
        for task in sorted(self._results):
            for operator, row in self._results[task]:
                found.setdefault(operator, []).append(row)
        return found

    def cancel(self) -> None:
        """The query is over: kill the attempts, all but those that do not notice."""
        self.over = True
        for attempts in self._running.values():
            for attempt in list(attempts):
                self._drop(attempt)

    def lose(self) -> None:
        """The application is gone: its attempts end whenever they notice."""
        self.over = True
        network = self._spark.network
        for attempts in self._running.values():
            for attempt in attempts:
                network.after(network.chance.delay(4), attempt.kill)

    # --- steps ---

    def _request(self, task: int) -> None:
        self._spark.slots.request(lambda: self._launch(task))

    def _launch(self, task: int) -> bool:
        if self.over or task in self._results:
            return False
        spark, spec = self._spark, self.spec
        number = spark.next_attempt()
        inputs = tuple(spec.given(partition, number) for partition in spec.tasks[task])
        described = TaskSpec(spec.query, spec.run, spec.epoch, self.stage, task, number, inputs)
        attempt = TaskAttempt(
            spark.network, spark.driver, described, self._fate(), self._attempt_ended, spark.process(number)
        )
        self._running[task].append(attempt)
        if spark.faults.strikes("speculate", 0.7):
            spark.network.after(spark.network.chance.delay(8), lambda: self._speculate(task))
        return True

    def _speculate(self, task: int) -> None:
        if not self.over and self._running[task] and self._spark.slots.spare():
            self._request(task)

    def _fate(self) -> Fate:
        chance, faults = self._spark.network.chance, self._spark.faults
        fate = Fate(window=chance.number(0, 3), copies=chance.pick([0.0, 0.0, 0.15]))
        if faults.strikes("crash"):
            fate.crash_after = chance.number(1, 12)
        if faults.strikes("bad data"):
            fate.bad_data = True
        fate.stop_after = self.spec.stop_after
        return fate

    def _attempt_ended(self, attempt: TaskAttempt) -> None:
        task = attempt.spec.partition
        if attempt.zombie:
            return  # its slot was given back when Spark lost sight of it
        self._running[task].remove(attempt)
        # Spark hears of it later; only then is the slot free.
        self._spark.network.after(self._spark.network.delay(), lambda: self._heard(attempt))

    def _heard(self, attempt: TaskAttempt) -> None:
        task = attempt.spec.partition
        if self.over or task in self._results or attempt.ending is Ending.KILLED:
            pass
        elif attempt.ending is Ending.FAILED:
            self._failed(task, attempt)
        else:
            self._finished(task, attempt)
        slots = self._spark.slots
        crashed = isinstance(attempt.error, TaskCrashed)
        if crashed and slots.total > 1 and self._spark.faults.strikes("lost slot"):
            slots.total -= 1  # its executor died with it
        else:
            slots.give_back()

    def _failed(self, task: int, attempt: TaskAttempt) -> None:
        assert attempt.error is not None
        if not isinstance(attempt.error, TaskCrashed):
            self._spark.explain(attempt.error, self.spec.query, self.spec.epoch)
        self._failures[task] += 1
        if self._failures[task] < MAX_FAILURES:
            self._request(task)
            return
        self.cancel()
        self._ended(self, attempt.error)

    def _finished(self, task: int, attempt: TaskAttempt) -> None:
        self.turns |= attempt.turns
        self._results[task] = attempt.outputs
        for other in list(self._running[task]):
            self._drop(other)
        if len(self._results) == len(self._running):
            self.over = True
            self._ended(self, None)

    def _drop(self, attempt: TaskAttempt) -> None:
        if self._spark.faults.strikes("zombie", 3):
            self._spark.network.note(f"{attempt.name} goes on as a zombie")
            attempt.zombie = True
            self._running[attempt.spec.partition].remove(attempt)
            self._spark.slots.give_back()
        else:
            attempt.kill()
