"""One run of the user's program: a Spark application with a cluster attached, from its claim to its end.

An application may die at any moment, or be paused as a whole and wake up when another one has long taken its place.
It then goes on where it was and believes to be the one; what it can still do is what the simulation is there to see.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from bedload.checkpoint.storage import Storage
from bedload.control.attempt import StageFacts
from bedload.control.compaction import Retention
from bedload.control.inquiries import QueryFacts
from bedload.control.instructions import DeployResult, InspectQuery, InspectStage
from bedload.control.lineage import Lineage
from bedload.control.phases import TransferPhase
from bedload.core.errors import BedloadError, CheckpointDamaged, ProtocolError, SchemaChanged
from bedload.core.ids import DeploymentId, Epoch, Generation, OperatorName, QueryId, WorkerId
from bedload.core.limits import Limits
from bedload.worker.runtime import Startable
from tests.simulator.cluster import SimulatedDriver
from tests.simulator.desk import Desk, location_of
from tests.simulator.faults import Faults
from tests.simulator.network import Network
from tests.simulator.query import SimulatedQuery
from tests.simulator.spark import SparkContext
from tests.simulator.stores import SimulatedRedis
from tests.simulator.turned import both_ways, payload_of
from tests.simulator.watcher import Watcher
from tests.simulator.worker import ProcessKilled, SimulatedWorker
from tests.simulator.workload import KEY_GROUPS, time_of


@dataclass(frozen=True)
class World:
    """What all applications of a simulation share."""

    network: Network
    faults: Faults
    watchers: dict[OperatorName, Watcher]
    queries: dict[QueryId, SimulatedQuery]
    as_it_was: dict[OperatorName, Startable]
    """The operators."""
    changed: dict[OperatorName, Startable]
    """The same, as their user has changed them."""
    versions: dict[OperatorName, tuple[Startable, ...]]
    """All that an operator ever was, without harm, to read state with."""
    workers: int
    slots: int
    storage: Storage | None
    slow: Callable[[Callable[[str, str], None]], Storage]
    """The storage as one process sees it, which is given what happens before and after each call."""
    retention: Retention
    explain: Callable[[Exception, QueryId, Epoch], None]
    on_phase: Callable[[SimulatedDriver, OperatorName, TransferPhase], None]
    """A move of the cluster that counts has come to another phase."""
    on_copied: Callable[[], None]
    """A worker that copies state ahead has sealed an epoch."""
    damage: Callable[[], None]
    """Something may happen to a file."""
    limits: Limits
    redis: SimulatedRedis
    """The remote store."""
    claimed: set[Generation] = field(default_factory=set)
    """Nobody else gets these."""


class Application:
    """Attaches, runs the queries, ends."""

    def __init__(self, world: World, number: int, ended: Callable[[Application], None], *, changed: bool) -> None:
        self.deployments = world.changed if changed else world.as_it_was
        self._code = both_ways(self.deployments)
        self.driver: SimulatedDriver | None = None
        self.live = True
        """It is the one that the user believes in."""
        self._world = world
        self._number = number
        self._ended = ended
        self._network = world.network.another()
        self._spark: SparkContext | None = None
        self._desk: Desk | None = None
        self._dead = False
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
        claiming = None
        if world.faults.on("careless store"):
            world.faults.happened["careless store"] += 1
            claiming = world.slow(self._pause_in_the_claim)
        try:
            desk = Desk(self._network, storage, world.watchers, self._number, claiming)
        except ProcessKilled:
            return
        except BedloadError as error:
            self._over(error)
            return
        self._network.note(f"generation {desk.generation} is claimed")
        assert desk.generation not in world.claimed, f"generation {desk.generation} was claimed twice"
        world.claimed.add(desk.generation)
        self._network.after(self._network.delay(), lambda: self._look(desk))

    def _look(self, desk: Desk) -> None:
        if not self.live:
            return
        faults = self._world.faults
        if self._number > 1:
            self._world.damage()
        # If the file that says what the keys are is gone, whoever comes first makes another one.
        another = self._number > 1 and not faults.happened["damaged file"] and faults.strikes("another key", 4)
        fresh = {name for name in self.deployments if self._number > 1 and faults.strikes("fresh", 2)}
        try:
            if another:
                for deployment in self.deployments.values():
                    desk.refuses_another_key(deployment)
                self._over(SchemaChanged("the keys are of another type"))
                return
            lineages = {name: desk.lineage(self._code_of(name), fresh=name in fresh) for name in self.deployments}
        except BedloadError as error:
            self._over(error)
            return
        self._desk = desk
        self._attach(desk, lineages, fresh)

    def _pause_in_the_claim(self, *_: str) -> None:
        """Another program may claim meanwhile."""
        if self.live and self._world.faults.strikes("paused in the claim", 0.5):
            self.pause()
        self._network.sleep(self._network.delay() / 2)
        if self._dead:
            raise ProcessKilled("the driver")
        self._world.faults.happened["claimed late"] += not self.live

    def _attach(
        self,
        desk: Desk | None = None,
        lineages: Mapping[OperatorName, Lineage] | None = None,
        fresh: Container[OperatorName] = (),
    ) -> None:
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
            limits=world.limits,
        )
        self._spark = SparkContext(
            self._network, driver, world.faults, world.slots, self._explain, lambda *what: self._redeploy(*what)
        )
        driver.on_over = self._over
        driver.on_phase = lambda name, phase: world.on_phase(driver, name, phase) if self.live else None
        shipped = [(query, name) for query in world.queries.values() for name in query.plan.operators]
        self._deploy(shipped, lineages or {}, {}, fresh)

    def _deploy(
        self,
        left: list[tuple[SimulatedQuery, OperatorName]],
        lineages: Mapping[OperatorName, Lineage],
        known: dict[OperatorName, DeploymentId],
        fresh: Container[OperatorName],
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
                self._deploy(left, lineages, known, fresh)

        self._ship(name, lineages.get(name), deployed, fresh=name in fresh and name not in known)

    def _ship(
        self,
        name: OperatorName,
        lineage: Lineage | None,
        then: Callable[[DeploymentId, BedloadError | None], None],
        *,
        fresh: bool = False,
        running: frozenset[QueryId] = frozenset(),
    ) -> None:
        """Ship an operator, and go on when every worker has it, or one cannot take it."""
        driver = self.driver
        assert driver is not None
        self._shipped += 1
        token = f"deployment {self._shipped}"
        deployment: DeploymentId
        driver.on_deployed[token] = lambda error: then(deployment, error)
        deployment, steps = driver.coordinator.deploy(
            token, name, KEY_GROUPS, self._payload_of(name), lineage=lineage, fresh=fresh, running=running
        )
        if fresh and not any(isinstance(step, DeployResult) and step.error is not None for step in steps):
            self._network.note(f"the state of {name} is given up")
            self._world.watchers[name].fresh()
        driver.carry_out(steps)

    def _redeploy(self, query: SimulatedQuery, then: Callable[[dict[OperatorName, DeploymentId]], None]) -> None:
        """Apply the operators of a query again before it starts; one that cannot be shipped stays as it was."""
        left, made = list(query.plan.operators), dict[OperatorName, DeploymentId]()
        others = frozenset(it.query for it in self._world.queries.values() if it.active and it is not query)

        def shipped(deployment: DeploymentId, error: BedloadError | None) -> None:
            name = left.pop(0)
            if error is None:
                made[name] = deployment
            if left:
                ship()
            else:
                then(made)

        def ship() -> None:
            name, lineage = left[0], None
            fresh = self._world.faults.strikes("fresh", 4)
            try:
                if fresh and self._desk is not None:
                    lineage = self._desk.lineage(self._code_of(name), fresh=True)
            except BedloadError:  # somebody else has the checkpoint, or the store fails
                fresh = False
            self._ship(name, lineage, shipped, fresh=fresh, running=others if fresh else frozenset())

        ship()

    def _payload_of(self, name: OperatorName) -> bytes:
        """An operator as it is shipped, its variables in some order."""
        return payload_of(name, turned=self._world.faults.strikes("another order", 3))

    def _code_of(self, name: OperatorName) -> Startable:
        return self._code[self._payload_of(name).decode()]

    def _make_worker(self, worker: WorkerId, desk: Desk | None) -> SimulatedWorker:
        world = self._world
        self._processes += 1
        place = None if desk is None or world.storage is None else (world.storage, desk.generation)
        first = self._number == 1 and self._processes <= world.workers
        name = f"worker {worker}" if first else f"worker {worker} ({self._number}.{self._processes})"
        return SimulatedWorker(
            self._network,
            worker,
            name,
            self._code,
            world.watchers,
            world.faults,
            world.on_copied,
            lambda: None if self.driver is None else self.driver.nobody_comes(),
            world.limits,
            place,
            world.redis,
        )

    def export(self) -> None:
        """The user copies the state away while the program runs."""
        if self._desk is None or self.driver is None or not self.driver.alive:
            return
        faults = self._world.faults
        try:
            self._desk.export(self._world.slow(self._pause_in_the_export), self._world.versions)
        except ProcessKilled:
            return
        except BedloadError:
            if not faults.happened["store failure"] and not faults.happened["damaged file"]:
                raise

    def _pause_in_the_export(self, *_: str) -> None:
        self._network.sleep(self._network.delay() / 4)
        if self.driver is None or not self.driver.alive:
            raise ProcessKilled("the driver")

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
        self._dead = True
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
        facts = StageFacts(feeders, self._spark.shapes[step.stage], time_of(step.epoch))
        self._network.after(
            delay, lambda: driver.tell(lambda c: c.stage_inspected(step.operator, step.turn, step.stage, facts))
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
