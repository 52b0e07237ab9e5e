"""A simulated streaming query: runs, epochs, sink, offset and commit log, and the supervisor that restarts it.

Invariants, all Spark's own: an epoch that is in the offset log and not in the commit log is run again by the
next run, with the same input; epoch N+1 starts only when N is in the commit log; the sink is written before
the commit log and ignores an epoch that it has already, some sinks without running a task. Progress and end events
come late or never.

A query outlives the application that runs it: sink and logs are durable. When they are set back to a backup, the
query starts again some epochs earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, RunId
from tests.simulator.feeder import Input
from tests.simulator.spark import Job, JobSpec, SparkContext
from tests.simulator.workload import EpochPlan, QueryPlan


class QueryFailed(Exception):
    """The driver's side of a query failed by itself."""


class QueryStopped(Exception):
    """The user has stopped a query, and does not start it again."""


Outputs = dict[OperatorName, list[dict[str, Any]]]
"""What came out of each operator."""


@dataclass
class Sink:
    """What a query has written, by epoch, and what the epoch was based on."""

    outputs: dict[Epoch, Outputs] = field(default_factory=dict)
    turns: dict[Epoch, dict[OperatorName, int]] = field(default_factory=dict)
    partial: set[Epoch] = field(default_factory=set)

    def has_all_of(self, epoch: Epoch) -> bool:
        """Whether all outputs of an epoch are there."""
        return epoch in self.outputs and epoch not in self.partial


class SimulatedQuery:
    """One query over all of its runs."""

    def __init__(
        self, plan: QueryPlan, ended: Callable[[SimulatedQuery], None], progressed: Callable[[], None]
    ) -> None:
        self.query: QueryId = plan.query
        self.plan = plan
        self.sink = Sink()
        self.committed = 0
        """The commit log has the epochs below this."""
        self.high = 0
        """As many it had at most."""
        self.went_back = False
        """It was set back at least once."""
        self.lossy: set[Epoch] = set()
        """Epochs that Spark committed although a consumer did not read them whole."""
        self.run: RunId | None = None
        self.over = False
        self.gave_up: Exception | None = None
        self._application: tuple[SparkContext, dict[OperatorName, DeploymentId]] | None = None
        self._ended = ended
        self._progressed = progressed
        self.ran_here = False
        """Whether the current application has run it."""
        self._wanted = False
        self._runs = 0
        self._job: Job | None = None
        self._job_outputs: Outputs | None = None
        self._job_turns: dict[OperatorName, int] = {}

    @property
    def active(self) -> bool:
        """Whether a run is under way."""
        return self.run is not None

    @property
    def epoch(self) -> Epoch:
        """The epoch that is running, or the next one."""
        return Epoch(self.committed)

    def quiet(self, operator: OperatorName) -> set[Epoch]:
        """Epochs in which an operator has no part."""
        return self.plan.quiet(operator)

    # --- applications ---

    @property
    def _spark(self) -> SparkContext:
        assert self._application is not None
        return self._application[0]

    def attach(self, spark: SparkContext, deployments: dict[OperatorName, DeploymentId]) -> None:
        """An application is there that can run it."""
        self._application, self.ran_here = (spark, deployments), False
        if self._wanted:
            spark.network.after(spark.network.chance.delay(spark.network.chance.pick([0.1, 6])), self.start)

    def detach(self, *, lost: bool) -> None:
        """The application is gone, or (not ``lost``) seems to be."""
        if self._job is not None and lost:
            self._job.lose()
        self.run, self._job, self._application = None, None, None

    # --- runs ---

    def start(self) -> None:
        """A new run: by the user, or by the supervisor."""
        self._wanted = True
        if self.over or self.active or self._application is None:
            return
        if self.committed and self._runs and self._spark.faults.strikes("set back", 2):
            self._set_back(self._spark.network.chance.number(1, min(4, self.committed)))
        self._runs += 1
        self.ran_here = True
        self.run = RunId(f"{self.query}-run{self._runs}")
        self._spark.network.note(f"{self.run} starts at epoch {self.epoch}")
        if self._spark.faults.strikes("redeploy", 3):
            self._redeploy(self.run)
            return
        self._go(self.run)

    def _go(self, run: RunId) -> None:
        self._plan_failure(run)
        self._later(self._begin_epoch, run)

    def _redeploy(self, run: RunId) -> None:
        """The user applies the operators again before the query starts."""

        def done(deployments: dict[OperatorName, DeploymentId]) -> None:
            if self.run == run and self._application is not None:
                self._application = self._application[0], {**self._application[1], **deployments}
                self._go(run)

        self._spark.redeploy(self, done)

    def fail(self) -> None:
        """The current run fails by itself, if there is one."""
        if self.run is not None and self._application is not None:
            self._fail(self.run, QueryFailed("by the simulation"))

    def give_up(self, error: Exception) -> None:
        """Nobody starts it any more."""
        if not self.over:
            self.over, self.gave_up = True, error

    def _set_back(self, epochs: int) -> None:
        """Somebody put an older copy of the query's checkpoint and of its sink in place."""
        self.committed -= epochs
        self.went_back = True
        for epoch in [epoch for epoch in self.sink.outputs if epoch >= self.committed]:
            del self.sink.outputs[epoch], self.sink.turns[epoch]
        self.sink.partial = {epoch for epoch in self.sink.partial if epoch < self.committed}
        self.lossy = {epoch for epoch in self.lossy if epoch < self.committed}
        self._spark.network.note(f"{self.query} is set back by {epochs} epochs")

    def _plan_failure(self, run: RunId) -> None:
        if self._spark.faults.strikes("query failure", 3):
            when = self._spark.network.chance.delay(30)
            self._spark.network.after(when, lambda: self._fail(run, QueryFailed("by the simulation")))
        if self._spark.faults.strikes("stopped for good", 2):
            when = self._spark.network.chance.delay(60)
            self._spark.network.after(when, lambda: self._fail(run, QueryStopped("by its user")))

    def _fail(self, run: RunId, error: Exception) -> None:
        if self.run != run:
            return
        self._spark.network.note(f"{run} fails: {type(error).__name__}: {error}"[:300])
        if not isinstance(error, QueryFailed | QueryStopped):
            self._spark.explain(error, self.query, self.epoch)
        self._stop(run, stopped=isinstance(error, QueryStopped))
        if self._spark.faults.final(error, over=self._spark.driver.coordinator.error is not None):
            self.over, self.gave_up = True, error
            self._ended(self)
        else:
            self._spark.network.after(self._spark.network.chance.delay(6), self.start)

    def _stop(self, run: RunId, *, stopped: bool = False) -> None:
        self.run = None
        if self._job is not None:
            self._job.cancel()
            self._job = None
        if stopped or not self._spark.faults.strikes("dropped end", 2):
            network, driver = self._spark.network, self._spark.driver
            network.after(network.chance.delay(5), lambda: driver.tell(lambda c: c.query_ended(self.query, run)))

    def _later(self, action: Callable[[RunId], None], run: RunId) -> None:
        """Go on with a run, unless it is over by then."""

        def go_on() -> None:
            if self.run == run:
                action(run)

        self._spark.network.after(self._spark.network.delay(), go_on)

    # --- epochs ---

    def _begin_epoch(self, run: RunId) -> None:
        if self.epoch == len(self.plan.epochs):
            self._spark.network.note(f"{run} is finished")
            self._stop(run)
            self.over = True
            self._ended(self)
            return
        plan = self.plan.epochs[self.epoch]
        last = self.epoch == len(self.plan.epochs) - 1
        faults = self._spark.faults
        self._job_outputs, self._job_turns = None, {}
        if not plan.partitions:
            self._later(self._commit, run)
        elif self.sink.has_all_of(self.epoch) and faults.on("skipped replay"):
            faults.happened["skipped replay"] += 1
            self._spark.network.note(f"{run}: the sink has epoch {self.epoch} already, and no task runs")
            self._later(self._commit, run)
        elif not last and self._next_has_rows() and faults.strikes("no action", 0.5):
            self.lossy.add(self.epoch)
            self._later(self._commit, run)
        elif not last and self._next_has_rows() and faults.strikes("stop early"):
            self.lossy.add(self.epoch)
            self._act(run, [self._peek(plan, run)])
        else:
            self.lossy.discard(self.epoch)
            first = [self._peek(plan, run)] if faults.strikes("peek") else []
            second = [self._full(plan, run)] if faults.strikes("second action") else []
            if second and faults.strikes("other shape", 3) and len(plan.tasks) > 1:
                whole = tuple(partition for task in plan.tasks for partition in task)
                second = [JobSpec(**{**vars(second[0]), "tasks": (whole,)})]
            self._act(run, [*first, self._full(plan, run), *second])

    def _next_has_rows(self) -> bool:
        """Whether a loss would be noticed by every operator in the next epoch."""
        return all(self.plan.epochs[self.epoch + 1].feeders(operator) for operator in self.plan.operators)

    def _full(self, plan: EpochPlan, run: RunId) -> JobSpec:
        # A program that is paused goes on with this when the query has long left it.
        epoch, faults, noisy = self.epoch, self._spark.faults, self._spark.faults.on("noise")

        assert self._application is not None
        deployments = self._application[1]

        def given(partition: int, attempt: int) -> Input:
            if noisy:
                faults.happened["noise"] += 1
            chain = tuple((operator, deployments[operator]) for operator in plan.chains[partition])
            return Input(chain, tuple(self.plan.batches(epoch, partition, attempt if noisy else 0)))

        return JobSpec(self.query, run, epoch, tuple(map(tuple, plan.tasks)), given)

    def _peek(self, plan: EpochPlan, run: RunId) -> JobSpec:
        full = self._full(plan, run)
        return JobSpec(**{**vars(full), "stop_after": self._spark.network.chance.number(0, 2)})

    def _act(self, run: RunId, actions: list[JobSpec]) -> None:
        """Run the actions one after another, then commit."""

        def ended(job: Job, error: Exception | None) -> None:
            if self.run != run:
                return
            self._job = None
            if error is not None:
                self._fail(run, error)
                return
            if job.spec.stop_after is None or len(actions) == 1:
                self._took(job)
            if len(actions) > 1:
                self._later(lambda run: self._act(run, actions[1:]), run)
            else:
                self._later(self._commit, run)

        self._job = Job(self._spark, actions[0], ended)

    def _took(self, job: Job) -> None:
        """A whole action's outputs are one and the same for every action of the epoch."""
        turns = dict(job.turns)
        assert len(job.turns) == len(turns), f"an action of {self.query}, epoch {self.epoch} saw the turns {job.turns}"
        if self._job_outputs is not None:
            assert self._job_outputs == job.outputs, "a second action got other outputs than the first"
        self._job_outputs, self._job_turns = job.outputs, turns

    def _commit(self, run: RunId) -> None:
        """The sink, the commit log, the progress event: a crash may come between any two."""
        epoch, faults = self.epoch, self._spark.faults
        if epoch not in self.sink.outputs and self._job_outputs is not None:
            self.sink.outputs[epoch] = self._job_outputs
            self.sink.turns[epoch] = self._job_turns
            if epoch in self.lossy:
                self.sink.partial.add(epoch)
        if epoch not in self.lossy and faults.strikes("lost commit log"):
            self._fail(run, QueryFailed("between sink and commit log"))
            return
        self._later(self._log_commit, run)

    def _log_commit(self, run: RunId) -> None:
        epoch = self.epoch
        self.committed += 1
        self.high = max(self.high, self.committed)
        self._progressed()
        self._spark.network.note(f"{run} commits epoch {epoch}")
        if not self._spark.faults.strikes("dropped progress", 2):
            self.report_progress(run, epoch, self._spark.network.chance.delay(10))
        self._later(self._begin_epoch, run)

    def report_progress(self, run: RunId, epoch: Epoch, delay: float) -> None:
        """Tell the coordinator that an epoch is committed, after a while."""
        driver = self._spark.driver
        self._spark.network.after(delay, lambda: driver.tell(lambda c: c.progress(self.query, run, epoch)))
