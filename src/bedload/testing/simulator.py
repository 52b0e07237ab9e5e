"""A seeded simulation of the whole epoch protocol, against an oracle.

Coordinator, workers and feeders run the very code of a cluster, on a virtual network and under a virtual
Spark; what happens, in which order, and what goes wrong follows from the seed. ::

    report = simulate(17)          # raises AssertionError, which says how to replay it, if anything is wrong

Checked, at every step: state is the oracle's after the epochs that were committed; a sealed epoch holds every
row once; phases of coordinator and workers fit; a live query fails only over a fault that was injected. At the
end: every query finished or was refused for good with an error that says so; each epoch's outputs were
written once; every epoch that Spark committed is in the state, or was refused loudly. A simulation that runs
out of events with work left is a deadlock, one that does not run out is a livelock; both fail.

Its limits: one operator, no routing changes, messages lost only with their connection.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bedload.control.coordinator import Phase as ControlPhase
from bedload.control.coordinator import QueryFacts
from bedload.control.instructions import InspectQuery, InspectStage
from bedload.core.errors import ProtocolError
from bedload.core.ids import DeploymentId, Epoch, QueryId, WorkerId
from bedload.keys import RoutingTable
from bedload.testing.chance import Chance
from bedload.testing.faults import Faults, Scenario
from bedload.testing.input import InputFormat
from bedload.testing.network import Network
from bedload.testing.oracle import Oracle
from bedload.testing.simulated_cluster import SimulatedDriver, SimulatedWorker, Watcher
from bedload.testing.simulated_query import SimulatedQuery
from bedload.testing.simulated_spark import SparkContext
from bedload.testing.workload import (
    INPUT,
    KEY_GROUPS,
    KEYS,
    NAME,
    Kind,
    Poison,
    make_deployment,
    plan_query,
)
from bedload.worker.machine import Phase

MAX_EVENTS = 60_000
"""A simulation takes some hundreds to a few thousand events; this many means that it goes round in circles."""

_FORM = InputFormat(INPUT, "key", KEY_GROUPS)


@dataclass
class Report:
    """What happened in a simulation."""

    seed: int
    kind: Kind
    workers: int
    events: int = 0
    committed: int = 0
    """Epochs that the operator committed."""
    aborted: int = 0
    """Turns that were rolled back."""
    turns: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    endings: dict[str, str] = field(default_factory=dict)
    """How each query ended."""
    story: list[str] = field(default_factory=list)


def simulate(seed: int, scenario: Scenario | None = None, *, tracing: bool = False) -> Report:
    """Run one simulation; an AssertionError that names the seed if anything is wrong."""
    simulation = Simulation(seed, scenario, tracing=tracing)
    try:
        return simulation.run()
    except Exception as error:
        for line in simulation.network.story:
            print(line)
        raise AssertionError(
            f"seed={seed}: {type(error).__name__}: {error}\n"
            f"replay it with: python -m bedload.testing.simulate --seed {seed} --trace"
        ) from error


class Simulation:
    """One run of the simulator; also the inspector that answers for Spark."""

    def __init__(self, seed: int, scenario: Scenario | None = None, *, tracing: bool = False) -> None:
        self.seed = seed
        chance = self.chance = Chance(seed)
        scenario = scenario or Scenario.chosen(chance)
        self.network = Network(chance, tracing=tracing, delay=chance.pick([0.3, 1.0, 3.0]))
        self.faults = Faults(chance, scenario)
        self.kind = chance.pick(list(Kind))
        names = [QueryId("A"), QueryId("B")] if self.faults.on("second query") else [QueryId("A")]
        plans = {name: plan_query(chance, name, number, chance.number(2, 4)) for number, name in enumerate(names)}
        self._oracle = Oracle(self.kind, plans)
        self.watcher = Watcher(self._oracle, self._in_commit_log)
        self.driver = SimulatedDriver(self.network, self._make_workers(), self.watcher)
        self.driver.inspector = self
        self.spark = SparkContext(self.network, self.driver, self.faults, slots=chance.number(1, 5))
        self.queries: dict[QueryId, SimulatedQuery] = {}
        for name, plan in plans.items():
            self.queries[name] = SimulatedQuery(self.spark, plan, _FORM, self._deploy(), self._query_ended)

    # --- running ---

    def run(self) -> Report:
        """Run to the end and check everything."""
        self._poison()
        queries = list(self.queries.values())
        self.network.time.after(self.network.delay(), queries[0].start)
        if len(queries) > 1:
            self.faults.happened["second query"] += 1
            # Sometimes it comes too early and is refused for a while; at the latest it comes when A is over.
            self.network.time.after(self.chance.delay(60), queries[1].start)
        if self.faults.strikes("lost worker", 8):
            victim = self.chance.pick(list(self.driver.workers.values()))
            self.network.time.after(self.chance.delay(40), victim.kill)
        self._drain()
        self._check_end()
        return self._report()

    def check_invariants(self) -> None:
        """What holds between any two events."""
        self.driver.check()

    def _drain(self) -> None:
        while self.network.time.step():
            assert self.network.time.events < MAX_EVENTS, "livelock: the simulation does not come to an end"
            self.check_invariants()
        stuck = [query.query for query in self.queries.values() if not query.over]
        assert not stuck, f"deadlock: nothing can happen any more, but {stuck} wait"

    def _query_ended(self, query: SimulatedQuery) -> None:
        for other in self.queries.values():
            if not other.over and not other.active:
                self.network.time.after(self.network.delay(), other.start)

    # --- answering for Spark ---

    def inspect_stage(self, step: InspectStage) -> None:
        """Look at the running plan, some time later; the answer takes its time, too."""
        self.network.time.after(self.network.delay(), lambda: self._look_at_stage(step))

    def _look_at_stage(self, step: InspectStage) -> None:
        query, coordinator = self.queries[step.query], self.driver.coordinator
        delay = self.network.delay()
        running = query.active and query.epoch == step.epoch
        if not running or self.faults.strikes("unreadable plan", 3):
            error = ProtocolError(f"query {step.query} is not at epoch {step.epoch} any more")
            self.network.time.after(
                delay, lambda: self.driver.carry_out(coordinator.stage_unknown(step.operator, step.turn, error))
            )
            return
        feeders = len(query.plan.epochs[step.epoch].partitions)
        shape = self.spark.shapes[step.stage]
        self.network.time.after(
            delay,
            lambda: self.driver.carry_out(
                coordinator.stage_inspected(step.operator, step.turn, step.stage, feeders, shape)
            ),
        )

    def inspect_query(self, step: InspectQuery) -> None:
        """Look at a query, some time later."""
        self.network.time.after(self.network.delay(), lambda: self._look_at_query(step))

    def _look_at_query(self, step: InspectQuery) -> None:
        query, coordinator = self.queries[step.query], self.driver.coordinator
        committed = Epoch(query.committed - 1) if query.committed else None
        facts = QueryFacts(query.active, committed, frozenset(query.quiet))
        self.network.time.after(
            self.network.delay(),
            lambda: self.driver.carry_out(coordinator.query_inspected(step.operator, step.query, step.turn, facts)),
        )

    # --- checks at the end ---

    def _check_end(self) -> None:
        lost = self.faults.happened["lost worker"] > 0 and self.driver.coordinator.error is not None
        if not lost:
            self._settle()
        epochs = self.driver.coordinator.operator(NAME)
        for worker in self.driver.workers.values():
            if not worker.alive:
                continue
            self.watcher.check_worker(worker)
            if lost:
                busy = worker.machine._hosted[NAME].phase in (Phase.OPEN, Phase.SEALED)
                assert not busy, f"{worker.name} did not roll back when another worker was lost"
            else:
                assert worker.history == self.watcher.history, f"{worker.name} missed a commit"
        if lost:
            assert epochs.phase in (ControlPhase.IDLE, ControlPhase.ABORTED)
        for query in self.queries.values():
            self._check_query(query, lost)

    def _settle(self) -> None:
        """The last epoch's progress event may have been dropped: tell it now, so that all is committed."""
        epochs = self.driver.coordinator.operator(NAME)
        if epochs.run is not None and epochs.query is not None:
            query = self.queries[epochs.query]
            if epochs.epoch < query.committed:
                query.report_progress(epochs.run, epochs.epoch, 0.0)
                self._drain()

    def _check_query(self, query: SimulatedQuery, lost: bool) -> None:
        done = [epoch for name, epoch in self.watcher.history if name == query.query]
        wanted = [Epoch(e) for e in range(query.committed) if e not in query.quiet]
        if not lost:
            missing = [epoch for epoch in wanted if epoch not in done]
            assert set(missing) <= query.lossy, f"{query.query}: {missing} are committed, but not in the state"
            if missing:
                assert query.gave_up is not None, f"{query.query}: {missing} were lost in silence"
                assert not [epoch for epoch in done if epoch > missing[0]], f"{query.query} went on after a loss"
        for epoch, outputs in query.sink.outputs.items():
            if epoch < query.committed:
                base = self.watcher.base[query.sink.turns[epoch]]  # type: ignore[index]
                part = epoch in query.sink.partial
                self._oracle.check_outputs(base, (query.query, epoch), outputs, part=part)
        if query.gave_up is None:
            assert query.committed == len(query.plan.epochs)
            # An epoch without an action has no outputs, even if a zombie of an earlier run completed it.
            unwritten = set(wanted) - query.sink.outputs.keys() - query.lossy
            assert not unwritten, f"{query.query}: the outputs of {unwritten} are missing"

    # --- making it ---

    def _make_workers(self) -> list[SimulatedWorker]:
        self.poison = Poison()
        deployment = make_deployment(self.kind, self.poison)
        ids = [WorkerId(number) for number in range(self.chance.number(1, 3))]
        routing = RoutingTable.initial(KEY_GROUPS, ids)
        owner = {key: routing.owner_of(_FORM.group(key)) for key in KEYS}
        return [
            SimulatedWorker(
                self.network, worker, deployment, {key for key in KEYS if owner[key] == worker}, self.watcher
            )
            for worker in ids
        ]

    def _deploy(self) -> DeploymentId:
        deployment, steps = self.driver.coordinator.deploy("deploy", NAME, KEY_GROUPS, b"")
        self.driver.carry_out(steps)
        while not self.driver.deployed and self.network.time.step():
            pass
        assert self.driver.deployed.pop() is None
        return deployment

    def _poison(self) -> None:
        if not self.faults.on("poison"):
            return
        for query in self.queries.values():
            rows = [row for epoch in query.plan.epochs for row in epoch.rows]
            for row in self.chance.shuffled(rows)[:2]:
                self.faults.happened["poison"] += 1
                self.poison.rows[row.source, row.seq] = self.chance.number(1, 2)

    def _in_commit_log(self, query: QueryId, epoch: Epoch) -> bool:
        return epoch < self.queries[query].committed

    def _report(self) -> Report:
        return Report(
            self.seed,
            self.kind,
            len(self.driver.workers),
            self.network.time.events,
            len(self.watcher.history),
            self.watcher.aborted,
            self.driver.coordinator.operator(NAME).turn + 1,
            self.faults.happened,
            {
                str(query.query): "finished" if query.gave_up is None else type(query.gave_up).__name__
                for query in self.queries.values()
            },
            self.network.story,
        )
