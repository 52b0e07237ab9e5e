"""One run of the user's program: a Spark application with a cluster attached, from its claim to its end.

An application may die at any moment, or be paused as a whole and wake up when another one has long taken its place.
It then goes on where it was and believes to be the one; what it can still do is what the simulation is there to see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bedload.checkpoint.storage import Storage
from bedload.control.compaction import Retention
from bedload.control.coordinator import QueryFacts
from bedload.control.instructions import InspectQuery, InspectStage
from bedload.control.lineage import Lineage
from bedload.control.transfer import Stage
from bedload.core.errors import BedloadError, CheckpointDamaged, ProtocolError
from bedload.core.ids import DeploymentId, Epoch, OperatorName, QueryId, WorkerId
from bedload.testing.faults import Faults
from bedload.testing.network import Network
from bedload.testing.simulated_cluster import SimulatedDriver
from bedload.testing.simulated_desk import Desk, location_of
from bedload.testing.simulated_query import SimulatedQuery
from bedload.testing.simulated_spark import SparkContext
from bedload.testing.simulated_worker import SimulatedWorker
from bedload.testing.watcher import Watcher
from bedload.testing.workload import KEY_GROUPS
from bedload.worker.runtime import Startable


@dataclass(frozen=True)
class World:
    """What all applications of a simulation share."""

    network: Network
    faults: Faults
    watchers: dict[OperatorName, Watcher]
    queries: dict[QueryId, SimulatedQuery]
    deployments: dict[OperatorName, Startable]
    workers: int
    slots: int
    storage: Storage | None
    retention: Retention
    explain: Callable[[Exception, QueryId, Epoch], None]
    on_stage: Callable[[SimulatedDriver, OperatorName, Stage], None]
    """A move of the cluster that counts has come to another stage."""
    on_copied: Callable[[], None]
    """A worker that copies state ahead has sealed an epoch."""
    damage: Callable[[], None]
    """Something may happen to a file."""


class Application:
    """Attaches, runs the queries, ends."""

    def __init__(self, world: World, number: int, ended: Callable[[Application], None]) -> None:
        self.driver: SimulatedDriver | None = None
        self.live = True
        """It is the one that the user believes in."""
        self._world = world
        self._number = number
        self._ended = ended
        self._network = world.network.another()
        self._spark: SparkContext | None = None
        self._processes = 0
        self._shipped = 0

    # --- its life ---

    def start(self) -> None:
        """Attach, step by step."""
        self._network.after(self._network.delay(), self._attach if self._world.storage is None else self._claim)

    def _claim(self) -> None:
        if not self.live:
            return
        storage, world = self._world.storage, self._world
        assert storage is not None
        try:
            desk = Desk(self._network, storage, world.watchers, self._number)
        except BedloadError as error:
            self._over(error)
            return
        self._network.note(f"generation {desk.generation} is claimed")
        self._network.after(self._network.delay(), lambda: self._look(desk))

    def _look(self, desk: Desk) -> None:
        if not self.live:
            return
        if self._number > 1:
            self._world.damage()
        try:
            lineages = {name: desk.lineage(deployment) for name, deployment in self._world.deployments.items()}
        except BedloadError as error:
            self._over(error)
            return
        self._attach(desk, lineages)

    def _attach(self, desk: Desk | None = None, lineages: Mapping[OperatorName, Lineage] | None = None) -> None:
        world = self._world
        ids = [WorkerId(number) for number in range(world.workers)]
        driver = self.driver = SimulatedDriver(
            self._network,
            world.watchers,
            world.faults,
            self,
            ids,
            lambda worker: self._make_worker(worker, desk),
            desk=desk,
            retention=world.retention,
        )
        self._spark = SparkContext(
            self._network, driver, world.faults, world.slots, self._explain, lambda *what: self._redeploy(*what)
        )
        driver.on_over = self._over
        driver.on_stage = lambda name, stage: world.on_stage(driver, name, stage) if self.live else None
        self._deploy(
            [(query, name) for query in world.queries.values() for name in query.plan.operators], lineages or {}, {}
        )

    def _deploy(
        self,
        left: list[tuple[SimulatedQuery, OperatorName]],
        lineages: Mapping[OperatorName, Lineage],
        known: dict[OperatorName, DeploymentId],
    ) -> None:
        """Apply the operators of one query after the other."""
        (query, name), left = left[0], left[1:]

        def deployed(deployment: DeploymentId, error: BedloadError | None) -> None:
            if not self.live or (error is not None and self._world.faults.durable):
                return  # the program is over; in memory only it goes on, to be refused
            assert self._spark is not None
            known[name] = deployment
            if name == query.plan.operators[-1]:
                query.attach(self._spark, dict(known))
            if left:
                self._deploy(left, lineages, known)

        self._ship(name, lineages.get(name), deployed)

    def _ship(
        self, name: OperatorName, lineage: Lineage | None, then: Callable[[DeploymentId, BedloadError | None], None]
    ) -> None:
        """Ship an operator, and go on when every worker has it, or one cannot take it."""
        driver = self.driver
        assert driver is not None
        self._shipped += 1
        token = f"deployment {self._shipped}"
        deployment: DeploymentId
        driver.on_deployed[token] = lambda error: then(deployment, error)
        deployment, steps = driver.coordinator.deploy(token, name, KEY_GROUPS, name.encode(), lineage=lineage)
        driver.carry_out(steps)

    def _redeploy(self, query: SimulatedQuery, then: Callable[[dict[OperatorName, DeploymentId]], None]) -> None:
        """Apply the operators of a query again before it starts; one that cannot be shipped stays as it was."""
        left, made = list(query.plan.operators), dict[OperatorName, DeploymentId]()

        def shipped(deployment: DeploymentId, error: BedloadError | None) -> None:
            name = left.pop(0)
            if error is None:
                made[name] = deployment
            if left:
                self._ship(left[0], None, shipped)
            else:
                then(made)

        self._ship(left[0], None, shipped)

    def _make_worker(self, worker: WorkerId, desk: Desk | None) -> SimulatedWorker:
        world = self._world
        self._processes += 1
        place = None if desk is None or world.storage is None else (world.storage, desk.generation)
        first = self._number == 1 and self._processes <= world.workers
        name = f"worker {worker}" if first else f"worker {worker} ({self._number}.{self._processes})"
        return SimulatedWorker(
            self._network, worker, name, world.deployments, world.watchers, world.faults, world.on_copied, place
        )

    def _over(self, error: BedloadError) -> None:
        """The cluster takes no more work. With a checkpoint the program ends, and whoever looks after it starts it."""
        self._network.note(f"the cluster is over: {error}"[:300])
        if isinstance(error, CheckpointDamaged) and self._world.faults.happened["damaged file"]:
            for query in self._world.queries.values():
                query.give_up(error)  # whoever starts the program gets the same error every time
        if self._world.faults.durable:
            self._network.after(self._network.delay(), self.die)

    def die(self) -> None:
        """The program ends, and all that it started: sooner or later."""
        if self.driver is not None and self.driver.alive:
            self.driver.kill()
        self._leave(lost=True)

    def pause(self) -> None:
        """The program and all that it started stand still, until they wake up."""
        self._network.note("the program is paused with all that it started")
        self._network.hold()
        self._leave(lost=False)
        world = self._world.network
        world.after(5 + world.chance.delay(40), self._wake)

    def _wake(self) -> None:
        self._network.note("the paused program wakes up")
        self._network.go_on()

    def _leave(self, *, lost: bool) -> None:
        if self.live:
            self.live = False
            if self.driver is not None:
                self.driver.live = False
            for query in self._world.queries.values():
                query.detach(lost=lost)
            self._ended(self)

    def _explain(self, error: Exception, query: QueryId, epoch: Epoch) -> None:
        if self.live:
            self._world.explain(error, query, epoch)

    # --- answering for Spark ---

    def inspect_stage(self, step: InspectStage) -> None:
        """Look at the running plan, some time later; the answer takes its time, too."""
        self._network.after(self._network.delay(), lambda: self._look_at_stage(step))

    def _look_at_stage(self, step: InspectStage) -> None:
        assert self.driver is not None
        assert self._spark is not None
        driver, query = self.driver, self._world.queries[step.query]
        delay = self._network.delay()
        # A program that was paused believes that its query runs.
        running = not self.live or (query.active and query.epoch == step.epoch)
        if not running or self._world.faults.strikes("unreadable plan", 3):
            error = ProtocolError(f"query {step.query} is not at epoch {step.epoch} any more")
            self._network.after(delay, lambda: driver.tell(lambda c: c.stage_unknown(step.operator, step.turn, error)))
            return
        feeders = query.plan.epochs[step.epoch].feeders(step.operator)
        shape = self._spark.shapes[step.stage]
        self._network.after(
            delay,
            lambda: driver.tell(lambda c: c.stage_inspected(step.operator, step.turn, step.stage, feeders, shape)),
        )

    def inspect_query(self, step: InspectQuery) -> None:
        """Look at a query, some time later."""
        self._network.after(step.pause + self._network.delay(), lambda: self._look_at_query(step))

    def _look_at_query(self, step: InspectQuery) -> None:
        assert self.driver is not None
        driver, query = self.driver, self._world.queries[step.query]
        # A program that was paused believes that its query runs; whoever waits for its epochs finds out in the end.
        believed = not self.live and not (step.pause and query.over)
        facts = QueryFacts(believed, None, frozenset())
        if query.ran_here or step.location:
            # What ran here is known; of another one the place must be, to read the log there.
            committed = Epoch(query.committed - 1) if query.committed else None
            active = query.active or believed
            facts = QueryFacts(active, committed, frozenset(query.quiet(step.operator)), location_of(step.query), True)
        self._network.after(
            self._network.delay(),
            lambda: driver.tell(lambda c: c.query_inspected(step.operator, step.query, step.turn, facts)),
        )
