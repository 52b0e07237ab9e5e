"""A seeded simulation of the whole epoch protocol, against an oracle.

Coordinator, workers and feeders run the very code of a cluster, on a virtual network and under a virtual
Spark; what happens, in which order, and what goes wrong follows from the seed. ::

    report = simulate(17)          # raises AssertionError, which says how to replay it, if anything is wrong

State is in memory only, or in a checkpoint on a storage in memory (a *durable* simulation); the seed says which. With
a checkpoint workers are lost and replaced, the whole program dies or is paused and another one attaches, Spark's own
checkpoint is set back, and the storage fails.

With *moves*, the cluster is changed while it runs: workers come and go, state moves between them in every way there is,
and whoever has a part in that is lost in every phase of it.

There are one or two operators, in one query or in two at once (:class:`~tests.simulator.workload.Layout`). Some
simulations have rarer faults besides (:data:`~tests.simulator.faults.EXTRA`): workers that hang, are slow or vanish,
slow snapshots and stores, stores without an exclusive create, damaged files, and user code that does harm. Users read
keys, ask for snapshots and copy state away meanwhile; between runs they apply operators again, or give their state up;
and when they attach again, an operator has other state variables, or other keys, which is refused. Code comes with its
variables declared in another order, which is the same state; and reads fail while workers are given more to read.
In half of the simulations nearly all outputs are in local files; disks are full in some, or lose what is on them.

Checked, at every step: what :mod:`tests.simulator.watcher` says; phases of coordinator and workers fit; a live query
fails only over a fault that was injected. At the end: every query finished or was refused for good with an error that
says so; each epoch's outputs were written once; every epoch that Spark committed is in the state, or was refused
loudly; every state that the checkpoint retains, read from the storage alone, is right; every change that was asked for
has come to an end, and left nothing behind. A simulation that runs
out of events with work left is a deadlock, one that does not run out is a livelock; both fail.

Its limits: at most two operators, messages lost only with their connection.
"""

from __future__ import annotations

import gc
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, field, replace
from typing import Any, cast

from bedload.checkpoint.history import CompactionSettings
from bedload.checkpoint.storage import Storage
from bedload.control.compaction import Retention
from bedload.core.ids import Epoch, OperatorName, QueryId
from bedload.core.limits import LIMITS, Limits
from bedload.state.kinds import Layout as StateLayout
from bedload.state.kinds import Store
from bedload.worker.runtime import Startable
from tests.simulator.application import Application, World
from tests.simulator.chance import Chance
from tests.simulator.cluster import SimulatedDriver
from tests.simulator.ending import Ending
from tests.simulator.faults import Faults, Scenario
from tests.simulator.mishaps import Mishaps
from tests.simulator.network import Broken, Network
from tests.simulator.oracle import Oracle
from tests.simulator.query import SimulatedQuery
from tests.simulator.storage import (
    CarelessStorage,
    MemoryStorage,
    Outages,
    SlowStorage,
    TroubledStorage,
    damage,
)
from tests.simulator.stores import SimulatedRedis
from tests.simulator.time_limit import TookTooLong, time_limit
from tests.simulator.watcher import CommitLog, Watcher
from tests.simulator.workload import (
    KEYS,
    MORE_KEYS,
    NAME,
    OTHER,
    Harm,
    Kind,
    Layout,
    Poison,
    drawn_kind,
    lay_out,
    make_deployment,
    plan_query,
)

_HOLD_SECONDS = 2000.0
"""A restart waits so long for epochs to end: messages are under way for up to a minute here."""
MAX_EVENTS = 60_000
"""A simulation takes some hundreds to a few thousand events; this many means that it goes round in circles."""


@dataclass
class Report:
    """What happened in a simulation."""

    seed: int
    kind: Kind
    workers: int
    durable: bool = False
    events: int = 0
    attachments: int = 1
    """How often a program attached."""
    layout: Layout = Layout.ONE
    committed: int = 0
    """Epochs that the operators committed."""
    aborted: int = 0
    """Turns that were rolled back."""
    turns: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    """Changes of the cluster, by kind, strategy and outcome."""
    phases: Counter[str] = field(default_factory=Counter)
    """Phases that moves came to."""
    endings: dict[str, str] = field(default_factory=dict)
    """How each query ended."""
    story: list[str] = field(default_factory=list)


def simulate(
    seed: int,
    scenario: Scenario | None = None,
    *,
    moves: bool = False,
    tracing: bool = False,
    limit: float | None = None,
) -> Report:
    """Run one simulation; an AssertionError that names the seed if anything is wrong.

    Without a scenario the seed chooses one; with ``moves`` it is one in which the cluster is changed. With a ``limit``
    it may take so many seconds of processor time.
    """
    simulation = Simulation(seed, scenario, moves=moves, tracing=tracing)
    try:
        with nullcontext() if limit is None else time_limit(limit):
            return simulation.run()
    except (Exception, Broken, TookTooLong) as raised:
        error = raised.error if isinstance(raised, Broken) else raised
        for line in simulation.network.story:
            print(line)
        raise AssertionError(
            f"seed={seed}: {type(error).__name__}: {error}\n"
            f"replay it with: python -m tests.simulator --seed {seed}{' --moves' if moves else ''} --trace"
        ) from error


class Simulation:
    """One run of the simulator."""

    def __init__(
        self, seed: int, scenario: Scenario | None = None, *, moves: bool = False, tracing: bool = False
    ) -> None:
        self.seed = seed
        chance = self.chance = Chance(seed)
        self._more = Chance(f"{seed}+")
        """Apart, so that what is drawn here leaves a simulation without it as it is."""
        scenario = self._scenario = scenario or self._drawn(chance, moves=moves)
        self.network = Network(chance, tracing=tracing, delay=chance.pick([0.3, 1.0, 3.0]))
        self.network.time.watch = self._check_step
        self.faults = Faults(chance, scenario)
        small = Chance(f"{seed} small")
        self.kind = drawn_kind(chance, small)
        self._layout = scenario.layout
        if self._layout is Layout.CHAINED:
            self.kind = Kind.PROCESS  # what it makes has the rows that it gets
        two = self.faults.on("second query") or self._layout is Layout.APART
        names = [QueryId("A"), QueryId("B")] if two else [QueryId("A")]
        # With moves, more keys and fewer tasks: much happens between workers, and runs are to stay short.
        longest = scenario.epochs or (4 if scenario.moves or not scenario.durable else 6)
        keys, sources = (MORE_KEYS, 2) if scenario.moves else (KEYS, 4)
        plans = {
            name: plan_query(chance, name, number, chance.number(scenario.epochs or 2, longest), keys, sources)
            for number, name in enumerate(names)
        }
        lay_out(self._more, self._layout, plans, keys)
        self.queries = {
            name: SimulatedQuery(plan, self._query_ended, lambda: self._mishaps.progressed())
            for name, plan in plans.items()
        }
        self._storage = MemoryStorage() if scenario.durable else None
        outages = Outages(seed, lambda: self.network.time.now)
        troubled = TroubledStorage(self._storage or MemoryStorage(), outages)
        self._kinds = {NAME: self.kind}
        if self._layout is not Layout.ONE:
            self._kinds[OTHER] = drawn_kind(self._more, small)
        self._oracles = {name: Oracle(name, kind, plans) for name, kind in self._kinds.items()}
        self._poisons = {name: Poison() for name in self._kinds}
        logs = {
            name: cast(
                dict[QueryId, CommitLog], {q.query: q for q in self.queries.values() if name in q.plan.operators}
            )
            for name in self._kinds
        }
        turns = (2, 5) if scenario.moves else (1, 3)
        self._world = World(
            network=self.network,
            faults=self.faults,
            watchers={name: Watcher(name, oracle, logs[name], self._storage) for name, oracle in self._oracles.items()},
            queries=self.queries,
            as_it_was=self._make_deployments(changed=False),
            changed=self._make_deployments(changed=True),
            versions={
                name: tuple(make_deployment(kind, Poison(), name, changed=changed) for changed in (False, True))
                for name, kind in self._kinds.items()
            },
            workers=chance.number(1, 3),
            slots=chance.number(1, 5),
            storage=None if self._storage is None else self._seen(troubled),
            slow=lambda pause: self._seen(SlowStorage(troubled, pause)),
            # As few files are deleted at a time as epochs are retained.
            retention=Retention(
                retained := chance.number(1, 4), CompactionSettings(most_turns=chance.number(*turns)), retained
            ),
            explain=self._explain,
            on_phase=lambda *what: self._mishaps.on_phase(*what),
            on_copied=lambda: self._mishaps.on_copied(),
            damage=self._damage,
            limits=Limits(
                # Few, so that a little state takes many messages.
                ship_keys=chance.pick([1, 2, 5]) if scenario.moves else LIMITS.ship_keys,
                # And many steps to be read back, between which anything may happen.
                install_rows=Chance(f"{seed} install").pick([1, 1, 2, LIMITS.install_rows]),
                # Most outputs are in a file, or some, or none.
                output_bytes=Chance(f"{seed} outputs").pick([0, 0, 600, LIMITS.output_bytes]),
                free_rows=Chance(f"{seed} free").pick([1, 1, 3, LIMITS.free_rows]),
                hold_seconds=_HOLD_SECONDS,
            ),
            redis=SimulatedRedis(self.faults),
        )
        self._applications: list[Application] = []
        self._changed = False
        self._mishaps = Mishaps(
            self.network,
            self.faults,
            scenario,
            list(self.queries.values()),
            outages,
            lambda: self._applications[-1],
        )
        self._attach()

    def _drawn(self, chance: Chance, *, moves: bool) -> Scenario:
        drawn = Scenario.chosen(chance, moves=moves).extended(self._more)
        return drawn.with_later(Chance(f"{self.seed} later"))

    # --- running ---

    def run(self) -> Report:
        """Run to the end and check everything."""
        self._poison()
        queries = list(self.queries.values())
        self.network.after(self.network.delay(), queries[0].start)
        if len(queries) > 1:
            self.faults.happened["second query"] += 1
            # Sometimes it comes too early and is refused for a while; at the latest it comes when A is over.
            self.network.after(self.chance.delay(60), queries[1].start)
        self._mishaps.plan()
        # What a worker writes into its log is for its user.
        with _without_collecting(), redirect_stderr(io.StringIO()):
            self._drain()
            for poison in self._poisons.values():
                poison.end()
            ending, driver = Ending(self._world, self._oracles, self._drain), self._driver
            if self._scenario.moves:
                ending.check_moves(driver)  # before anybody says what became of the last epochs
            if self._storage is not None:
                ending.check_checkpoint(driver, self._storage, whole=not self._scenario.moves)
            else:
                assert driver is not None
                ending.check_memory(driver)
        if self._scenario.moves:
            ending.check_moves(driver)
            ending.check_readable(driver)
        return self._report()

    def _drain(self) -> None:
        while self.network.time.step():
            pass
        stuck = [query.query for query in self.queries.values() if not query.over]
        assert not stuck, f"deadlock: nothing can happen any more, but {stuck} wait"

    def _check_step(self) -> None:
        """What holds between any two events."""
        assert self.network.time.events < MAX_EVENTS, "livelock: the simulation does not come to an end"
        for application in self._applications:
            if application.driver is not None:
                application.driver.check()

    def _query_ended(self, query: SimulatedQuery) -> None:
        for other in self.queries.values():
            if not other.over and not other.active:
                self.network.after(self.network.delay(), other.start)

    def _explain(self, error: Exception, query: QueryId, epoch: Epoch) -> None:
        kind = type(error).__name__
        watchers = self._world.watchers.values()
        if kind == "EpochNotRetained":
            distances = [watcher.distance(query, epoch) for watcher in watchers]
            if any(distance is None or distance > self._world.retention.epochs for distance in distances):
                self.faults.happened["set back beyond what is retained"] += 1
        elif any(watcher.is_forgiven(query, Epoch(e)) for watcher in watchers for e in range(epoch)):
            self.faults.happened["another query's set back"] = 1
        self.faults.explain(error)

    # --- programs ---

    @property
    def _driver(self) -> SimulatedDriver | None:
        return self._applications[-1].driver

    def _attach(self, _: Application | None = None) -> None:
        """The program starts, or starts again."""
        if self._applications and self.faults.strikes("changed state", 6):
            self._changed = not self._changed
        application = Application(self._world, len(self._applications) + 1, self._ended, changed=self._changed)
        self._applications.append(application)
        application.start()

    def _damage(self) -> None:
        """Something happens to a file while nobody uses the checkpoint."""
        if self._storage is None or not self.faults.strikes("damaged file", 6):
            return
        path, how = damage(self._storage, self._more)
        for watcher in self._world.watchers.values():
            watcher.damaged(path)
        self.network.note(f"{path} is {how}")

    def _ended(self, application: Application) -> None:
        if self.faults.happened["damaged file"] and all(query.over for query in self.queries.values()):
            return
        self.network.after(self.chance.delay(6), lambda: self._attach(application))

    # --- making it ---

    def _make_deployments(self, *, changed: bool) -> dict[OperatorName, Startable]:
        kinds = self._kinds.items()
        made = {name: make_deployment(kind, self._poisons[name], name, changed=changed) for name, kind in kinds}
        if self.faults.on("state in redis"):
            self.faults.happened["state in redis"] += 1
            return {name: in_redis(it) for name, it in made.items()}
        if not self.faults.on("state on disk"):
            return made
        self.faults.happened["state on disk"] += 1
        return {name: on_disk(it) for name, it in made.items()}

    def _seen(self, storage: Storage) -> Storage:
        """A storage as whoever uses it sees it."""
        return CarelessStorage(storage) if self.faults.on("careless store") else storage

    def _poison(self) -> None:
        self._poison_more()
        if not self.faults.on("poison"):
            return
        for query in self.queries.values():
            rows = [(name, row) for name in query.plan.operators for it in query.plan.epochs for row in it.rows(name)]
            for name, row in self.chance.shuffled(rows)[:2]:
                self.faults.happened["poison"] += 1
                self._poisons[name].rows[row.source, row.seq] = Harm.RAISE, self.chance.number(1, 2)

    def _poison_more(self) -> None:
        plans = [(query.plan, name) for query in self.queries.values() for name in query.plan.operators]
        rows = [(name, row) for plan, name in plans for epoch in plan.epochs for row in epoch.rows(name)]
        for fault, harm in (("exit", Harm.EXIT), ("forget and raise", Harm.FORGET), ("misfit", Harm.MISFIT)):
            if self.faults.on(fault):
                self.faults.happened[fault] += 1
                for name, row in self._more.shuffled(rows)[:2]:
                    self._poisons[name].rows[row.source, row.seq] = harm, self._more.number(1, 2)
        for poison in self._poisons.values():
            if self.faults.on("setup fails"):
                self.faults.happened["setup fails"] += 1
                poison.setups = {self._more.number(1, 12) for _ in range(3)}
            if self.faults.on("close fails"):
                self.faults.happened["close fails"] += 1
                poison.closes = {self._more.number(1, 4) for _ in range(2)}

    def _report(self) -> Report:
        return Report(
            seed=self.seed,
            kind=self.kind,
            workers=self._world.workers,
            layout=self._layout,
            durable=self._storage is not None,
            events=self.network.time.events,
            attachments=len(self._applications),
            committed=sum(watcher.committed for watcher in self._world.watchers.values()),
            aborted=sum(watcher.aborted for watcher in self._world.watchers.values()),
            turns=sum(len(watcher.base) for watcher in self._world.watchers.values()),
            faults=self.faults.happened,
            changes=sum((it.driver.wishes.over for it in self._applications if it.driver is not None), Counter()),
            phases=self._mishaps.phases,
            endings={
                str(query.query): "finished" if query.gave_up is None else type(query.gave_up).__name__
                for query in self.queries.values()
            },
            story=self.network.story,
        )


def on_disk(deployment: Startable) -> Startable:
    """The same operator with its state on disk."""
    it: Any = deployment
    made: Startable = replace(it, store=Store.DISK)
    return made


def in_redis(deployment: Startable) -> Startable:
    """The same operator with its state in a remote store, if that can be."""
    rows: Any = deployment
    in_rows = deployment.layout is StateLayout.ROWS
    return replace(rows, store=Store.REDIS, store_url="redis://simulated") if in_rows else deployment


@contextmanager
def _without_collecting() -> Iterator[None]:
    """A run is short, and a tenth of its time would go there."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
