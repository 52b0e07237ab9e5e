"""A seeded simulation of the whole epoch protocol, against an oracle.

Coordinator, workers and feeders run the very code of a cluster, on a virtual network and under a virtual
Spark; what happens, in which order, and what goes wrong follows from the seed. ::

    report = simulate(17)          # raises AssertionError, which says how to replay it, if anything is wrong

State is in memory only, or in a checkpoint on a storage in memory (a *durable* simulation); the seed says which. With
a checkpoint workers are lost and replaced, the whole program dies or is paused and another one attaches, Spark's own
checkpoint is set back, and the storage fails.

With *moves*, the cluster is changed while it runs: workers come and go, state moves between them in every way there is,
and whoever has a part in that is lost at every stage of it.

Checked, at every step: what :mod:`bedload.testing.watcher` says; phases of coordinator and workers fit; a live query
fails only over a fault that was injected. At the end: every query finished or was refused for good with an error that
says so; each epoch's outputs were written once; every epoch that Spark committed is in the state, or was refused
loudly; every state that the checkpoint retains, read from the storage alone, is right; every change that was asked for
has come to an end, and left nothing behind. A simulation that runs
out of events with work left is a deadlock, one that does not run out is a livelock; both fail.

Its limits: one operator, messages lost only with their connection.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from bedload.checkpoint.checkpoint import Checkpoint
from bedload.checkpoint.compaction import restore_at
from bedload.checkpoint.history import CompactionSettings
from bedload.control.compaction import Retention
from bedload.control.standing import Phase as ControlPhase
from bedload.control.transfer import Stage
from bedload.core.ids import Epoch, KeyGroup, QueryId, Turn, WorkerId
from bedload.migration import sender
from bedload.testing.chance import Chance
from bedload.testing.faults import Faults, Scenario
from bedload.testing.network import Broken, Network
from bedload.testing.oracle import Oracle
from bedload.testing.simulated_application import Application, World
from bedload.testing.simulated_cluster import SimulatedDriver
from bedload.testing.simulated_holdings import on_its_way
from bedload.testing.simulated_query import SimulatedQuery
from bedload.testing.simulated_storage import MemoryStorage, Outages, TroubledStorage
from bedload.testing.simulated_wishes import make_wish
from bedload.testing.watcher import CommitLog, Plain, Watcher
from bedload.testing.workload import GROUP_OF, HASH_OF, KEYS, MORE_KEYS, NAME, Kind, Poison, make_deployment, plan_query
from bedload.worker.machine import Phase

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
    committed: int = 0
    """Epochs that the operator committed."""
    aborted: int = 0
    """Turns that were rolled back."""
    turns: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    """Changes of the cluster, by kind, strategy and outcome."""
    stages: Counter[str] = field(default_factory=Counter)
    """Stages that moves came to."""
    endings: dict[str, str] = field(default_factory=dict)
    """How each query ended."""
    story: list[str] = field(default_factory=list)


def simulate(seed: int, scenario: Scenario | None = None, *, moves: bool = False, tracing: bool = False) -> Report:
    """Run one simulation; an AssertionError that names the seed if anything is wrong.

    Without a scenario the seed chooses one; with ``moves`` it is one in which the cluster is changed.
    """
    simulation = Simulation(seed, scenario, moves=moves, tracing=tracing)
    try:
        return simulation.run()
    except (Exception, Broken) as raised:
        error = raised.error if isinstance(raised, Broken) else raised
        for line in simulation.network.story:
            print(line)
        raise AssertionError(
            f"seed={seed}: {type(error).__name__}: {error}\n"
            f"replay it with: python -m bedload.testing.simulate --seed {seed}{' --moves' if moves else ''} --trace"
        ) from error


class Simulation:
    """One run of the simulator."""

    def __init__(
        self, seed: int, scenario: Scenario | None = None, *, moves: bool = False, tracing: bool = False
    ) -> None:
        self.seed = seed
        chance = self.chance = Chance(seed)
        scenario = self._scenario = scenario or Scenario.chosen(chance, moves=moves)
        self.network = Network(chance, tracing=tracing, delay=chance.pick([0.3, 1.0, 3.0]))
        self.network.time.watch = self._check_step
        self.faults = Faults(chance, scenario)
        self.kind = chance.pick(list(Kind))
        names = [QueryId("A"), QueryId("B")] if self.faults.on("second query") else [QueryId("A")]
        # With moves, more keys and fewer tasks: much happens between workers, and runs are to stay short.
        longest = 4 if scenario.moves or not scenario.durable else 6
        keys, sources = (MORE_KEYS, 2) if scenario.moves else (KEYS, 4)
        plans = {
            name: plan_query(chance, name, number, chance.number(2, longest), keys, sources)
            for number, name in enumerate(names)
        }
        self.queries = {name: SimulatedQuery(plan, self._query_ended, self._progressed) for name, plan in plans.items()}
        self._oracle = Oracle(self.kind, plans)
        self._storage = MemoryStorage() if scenario.durable else None
        self._outages = Outages(seed, lambda: self.network.time.now)
        logs = cast(dict[QueryId, CommitLog], self.queries)
        self.watcher = Watcher(self._oracle, logs, self._storage)
        self.poison = Poison()
        turns = (2, 5) if scenario.moves else (1, 3)
        self._world = World(
            network=self.network,
            faults=self.faults,
            watcher=self.watcher,
            queries=self.queries,
            deployment=make_deployment(self.kind, self.poison),
            workers=chance.number(1, 3),
            slots=chance.number(1, 5),
            storage=None if self._storage is None else TroubledStorage(self._storage, self._outages),
            retention=Retention(chance.number(1, 4), CompactionSettings(max_turns=chance.number(*turns))),
            explain=self._explain,
            on_stage=self._on_stage,
        )
        self._most_keys = chance.pick([1, 2, 5]) if scenario.moves else sender._MOST_KEYS
        self._wishes = 0
        """What is asked for as soon as there is progress."""
        self._stages: Counter[str] = Counter()
        self._losses: list[Callable[[], None]] = []
        """What is lost as soon as there is progress."""
        self._applications: list[Application] = []
        self._attach()

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
        self._plan_losses()
        self._plan_wishes()
        with _in_small_steps(self._most_keys):
            self._drain()
            if self._storage is None:
                self._check_memory()
            else:
                self._check_checkpoint(self._storage)
        if self._scenario.moves:
            self._check_moves()
            self._check_readable()
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
        if kind == "EpochNotRetained":
            distance = self.watcher.distance(query, epoch)
            if distance is None or distance > self._world.retention.epochs:
                self.faults.happened["set back beyond what is retained"] += 1
        elif any(self.watcher.is_forgiven(query, Epoch(e)) for e in range(epoch)):
            self.faults.happened["another query's set back"] = 1
        self.faults.explain(error)

    # --- what is lost ---

    def _plan_losses(self) -> None:
        if self._storage is None:
            if self.faults.strikes("lost worker", 8):
                self._later(40, self._lose_worker)
            return
        for fault, action in (
            ("lost worker", self._lose_worker),
            ("cut off worker", self._cut_off_worker),
            ("lost workers", self._lose_workers),
            ("lost driver", self._lose_driver),
            ("paused cluster", self._pause),
            ("store failure", self._store_fails),
        ):
            while self.faults.strikes(fault, 4):
                if self.chance.happens(0.5):
                    self._later(50, action)
                else:
                    self._losses.append(action)
        self._losses = self.chance.shuffled(self._losses)

    def _progressed(self) -> None:
        """Spark committed an epoch: there is state to lose now."""
        if self._losses and self.chance.happens(0.6):
            self._later(4, self._losses.pop())
        if self._wishes and self.chance.happens(0.9):
            self._wishes -= 1
            self._later(4, self._wish)

    def _later(self, scale: float, action: Callable[[], None]) -> None:
        self.network.after(self.chance.delay(scale), lambda: None if self._all_over else action())

    @property
    def _all_over(self) -> bool:
        return all(query.over for query in self.queries.values())

    def _lose_worker(self) -> None:
        if self._driver is not None:
            self.chance.pick(list(self._driver.workers.values())).kill()

    def _cut_off_worker(self) -> None:
        if self._driver is not None:
            self.chance.pick(list(self._driver.workers.values())).cut_off()

    def _lose_workers(self) -> None:
        if self._driver is not None:
            workers = list(self._driver.workers.values())
            for worker in self.chance.shuffled(workers)[: self.chance.number(1, len(workers))]:
                worker.kill()

    def _lose_driver(self) -> None:
        self._applications[-1].die()

    def _pause(self) -> None:
        self._applications[-1].pause()

    def _store_fails(self) -> None:
        now = self.network.time.now
        self.network.note("the store begins to fail")
        self._outages.times.append((now, now + 1 + self.chance.delay(6), self.chance.pick([0.1, 0.4, 1.0])))

    # --- changes of the cluster ---

    def _plan_wishes(self) -> None:
        for _ in range(self._scenario.moves):
            if self.chance.happens(0.2):
                self._later(50, self._wish)
            else:
                self._wishes += 1

    def _wish(self) -> None:
        driver, scenario = self._driver, self._scenario
        if driver is None or not driver.alive:
            return
        kinds, strategies = scenario.wishes, scenario.strategies
        wish = make_wish(self.chance, driver.coordinator, kinds, strategies, durable=scenario.durable)
        driver.wishes.ask(wish, driver.tell, driver.coordinator)

    def _on_stage(self, driver: SimulatedDriver, stage: Stage) -> None:
        """A move has come to a stage: somebody who has a part in it may be lost in it."""
        self._stages[stage.name] += 1
        transfer = driver.coordinator.operator(NAME).transfer
        if transfer is None or stage in (Stage.WAITING, Stage.DONE):
            return
        faults, lots = self.faults, transfer._lots
        # An epoch that fails now was sealed, copied ahead and rolled back before ownership flips.
        failed = {Stage.FLIPPED: "failed flip", Stage.DUE: "failed copy"}.get(stage)
        if failed is not None and faults.strikes(failed, 3):
            for query in self.queries.values():
                self._later(3, query.fail)
        victims = []
        if faults.strikes("lost source"):
            victims.append(self.chance.pick([lot.source for lot in lots]))
        if faults.strikes("lost target"):
            victims.append(self.chance.pick([lot.target for lot in lots]))
        newcomers = [lot.target for lot in lots if not transfer._before.groups_of(lot.target)]
        if newcomers and faults.strikes("lost newcomer", 2):
            victims.append(self.chance.pick(newcomers))
        for victim in victims:
            self._later(2, driver.workers[victim].kill)
        if faults.strikes("driver lost in a move"):
            self._later(2, self._lose_driver)

    def _check_moves(self) -> None:
        """Every change has come to its end, and nothing is left of it."""
        driver = self._driver
        if driver is None or not driver.alive or driver.coordinator.error is not None:
            return
        coordinator = driver.coordinator
        epochs = coordinator.operator(NAME) if NAME in coordinator.operators else None
        if epochs is not None:
            lineage = epochs.lineage
            if epochs.phase is not ControlPhase.IDLE or not (lineage is None or lineage.all_hold_head(epochs.routing)):
                return  # a move may wait for an epoch that does not come
        assert not driver.wishes.open, f"{driver.wishes.open} did not come to an end"
        assert coordinator.changes.current is None, f"{coordinator.changes.current} did not come to an end"
        here = {worker.name for worker in driver.places.values() if worker.alive}
        members = {coordinator.workers[worker] for worker in coordinator.changes.members}
        assert here == members, f"{sorted(here)} run, but {sorted(members)} are the cluster"
        for address in sorted(here):
            driver.places[address].check_at_rest()

    def _check_readable(self) -> None:
        """With nothing going on any more, every key can be read."""
        driver = self._driver
        if driver is None or not driver.alive or driver.coordinator.error is not None:
            return
        coordinator = driver.coordinator
        if NAME not in coordinator.operators or coordinator._missing:
            return
        routing = coordinator.operator(NAME).routing
        for key, hashed in HASH_OF.items():
            worker = driver.workers[routing.owner_of_key(hashed)]
            hosted = worker.machine._hosted.get(NAME)
            assert hosted is not None, f"{worker.name} owns {key} and has no operator"
            if hosted.unrestored is not None:
                continue  # whoever reads it is told why
            known = self._storage is None or GROUP_OF[key] in hosted.owned | hosted.lodging
            assert known, f"who reads {key} at {worker.name} waits for ever: it does not know that it owns it"
            assert not on_its_way(hosted, key), f"who reads {key} at {worker.name} waits for ever: it is on its way"

    # --- programs ---

    @property
    def _driver(self) -> SimulatedDriver | None:
        return self._applications[-1].driver

    def _attach(self, _: Application | None = None) -> None:
        """The program starts, or starts again."""
        application = Application(self._world, len(self._applications) + 1, self._ended)
        self._applications.append(application)
        application.start()

    def _ended(self, application: Application) -> None:
        self.network.after(self.chance.delay(6), lambda: self._attach(application))

    # --- checks at the end ---

    def _check_memory(self) -> None:
        driver = self._driver
        assert driver is not None
        error = driver.coordinator.error
        lost = error is not None
        if error is not None:
            self.faults.explain(error)
        if not lost:
            self._settle(driver)
        epochs = driver.coordinator.operator(NAME)
        for worker in driver.workers.values():
            if not worker.alive:
                continue
            self.watcher.check_worker(worker)
            if lost:
                hosted = worker.machine._hosted.get(NAME)
                busy = hosted is not None and hosted.phase in (Phase.OPEN, Phase.SEALED)
                assert not busy, f"{worker.name} did not roll back when another worker was lost"
            else:
                up_to_date = not worker.holdings.keys or worker.history == self.watcher.history
                assert up_to_date, f"{worker.name} missed a commit"
        if lost:
            assert epochs.phase in (ControlPhase.IDLE, ControlPhase.ABORTED)
        for query in self.queries.values():
            self._check_query(query, None if lost else self.watcher.history)

    def _check_checkpoint(self, storage: MemoryStorage) -> None:
        driver = self._driver
        if driver is not None:
            self._settle(driver)
        checkpoint = Checkpoint.open(storage, create=False)
        history = checkpoint.load_history(NAME)
        retained, keep = history.retained(), self._world.retention.epochs
        if not self.faults.happened["set back"]:
            wanted = min(keep + 1, len(history.chain()), len(self.watcher.history_at(history.head)))
            assert len(retained) >= wanted, f"{len(retained)} states are retained, not {wanted}"
        for turn in retained[:1] if self._scenario.moves else retained:
            self.watcher.check_restored(turn, self._read_back(checkpoint, turn))
        for query in self.queries.values():
            self._check_query(query, self.watcher.history_at(history.head))

    def _read_back(self, checkpoint: Checkpoint, turn: Turn) -> Plain:
        found, _ = restore_at(checkpoint, NAME, turn, threads=1)
        runtime = self._world.deployment.start(WorkerId(99))
        for groups, state in found.chunks():
            runtime.install([KeyGroup(group) for group in groups], state)
        return dict(runtime.snapshot())

    def _settle(self, driver: SimulatedDriver) -> None:
        """The last epoch's progress event may have been dropped: tell it now, so that all is committed."""
        if NAME not in driver.coordinator.operators:
            return
        epochs = driver.coordinator.operator(NAME)
        if epochs.run is not None and epochs.query is not None:
            query, run, epoch = self.queries[epochs.query], epochs.run, epochs.epoch
            if epoch < query.committed:
                driver.tell(lambda c: c.progress(query.query, run, epoch))
                self._drain()

    def _check_query(self, query: SimulatedQuery, history: tuple[tuple[QueryId, Epoch], ...] | None) -> None:
        """Nothing is missing, but what was refused loudly; without a history all of it is lost."""
        wanted = [Epoch(e) for e in range(query.committed) if e not in query.quiet]
        if history is not None:
            done = [epoch for name, epoch in history if name == query.query]
            missing = [e for e in wanted if e not in done and not self.watcher.is_forgiven(query.query, e)]
            assert set(missing) <= query.lossy, f"{query.query}: {missing} are committed, but not in the state"
            if missing:
                assert query.gave_up is not None, f"{query.query}: {missing} were lost in silence"
                assert not [epoch for epoch in done if epoch > missing[0]], f"{query.query} went on after a loss"
        for epoch, outputs in query.sink.outputs.items():
            if epoch < query.committed:
                base = self.watcher.base[Turn(query.sink.turns[epoch])]
                part = epoch in query.sink.partial
                self._oracle.check_outputs(base, (query.query, epoch), outputs, part=part)
        if query.gave_up is None:
            assert query.committed == len(query.plan.epochs)
            # An epoch without an action has no outputs, even if a zombie of an earlier run completed it.
            unwritten = set(wanted) - query.sink.outputs.keys() - query.lossy
            assert not unwritten, f"{query.query}: the outputs of {unwritten} are missing"

    # --- making it ---

    def _poison(self) -> None:
        if not self.faults.on("poison"):
            return
        for query in self.queries.values():
            rows = [row for epoch in query.plan.epochs for row in epoch.rows]
            for row in self.chance.shuffled(rows)[:2]:
                self.faults.happened["poison"] += 1
                self.poison.rows[row.source, row.seq] = self.chance.number(1, 2)

    def _report(self) -> Report:
        return Report(
            seed=self.seed,
            kind=self.kind,
            workers=self._world.workers,
            durable=self._storage is not None,
            events=self.network.time.events,
            attachments=len(self._applications),
            committed=self.watcher.committed,
            aborted=self.watcher.aborted,
            turns=len(self.watcher.base),
            faults=self.faults.happened,
            changes=sum((it.driver.wishes.over for it in self._applications if it.driver is not None), Counter()),
            stages=self._stages,
            endings={
                str(query.query): "finished" if query.gave_up is None else type(query.gave_up).__name__
                for query in self.queries.values()
            },
            story=self.network.story,
        )


class _Inline(Executor):
    """Reads state back in the one thread of a simulation: others would cost time, and have an order of their own."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it now."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


@contextmanager
def _in_small_steps(keys: int) -> Iterator[None]:
    """Let state move few keys at a time, so that a little of it takes many messages; and have one thread."""
    from bedload.checkpoint import checkpoint, restore  # compiled code: only who needs it waits

    most, readers = sender._MOST_KEYS, [vars(module) for module in (checkpoint, restore)]
    threads = [names["ThreadPoolExecutor"] for names in readers]
    sender._MOST_KEYS = keys
    for names in readers:
        names["ThreadPoolExecutor"] = _Inline
    collecting = gc.isenabled()
    gc.disable()  # a run is short, and a tenth of its time would go there
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        sender._MOST_KEYS = most
        for names, pool in zip(readers, threads, strict=True):
            names["ThreadPoolExecutor"] = pool
