"""What happens to the cluster of a simulation from outside: losses, and changes that its user asks for.

Half of the losses come at a time that the seed says, the others when there is progress, so that there is state to lose.
A loss within a move comes at a phase of the move, so that every phase has its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from bedload.control.phases import TransferPhase
from bedload.core.ids import OperatorName
from tests.simulator.application import Application
from tests.simulator.chance import Chance
from tests.simulator.cluster import SimulatedDriver
from tests.simulator.faults import Faults, Scenario
from tests.simulator.network import Network
from tests.simulator.query import SimulatedQuery
from tests.simulator.storage import Outages
from tests.simulator.wishes import make_wish
from tests.simulator.worker import SimulatedWorker


class Mishaps:
    """Lets things happen."""

    def __init__(
        self,
        network: Network,
        faults: Faults,
        scenario: Scenario,
        queries: list[SimulatedQuery],
        outages: Outages,
        application: Callable[[], Application],
    ) -> None:
        self.phases: Counter[str] = Counter()
        """Phases that moves came to."""
        self._network = network
        self._chance: Chance = network.chance
        self._faults = faults
        self._scenario = scenario
        self._queries = queries
        self._outages = outages
        self._application = application
        self._wishes = 0
        """What is asked for as soon as there is progress."""
        self._losses: list[Callable[[], None]] = []
        """What is lost as soon as there is progress."""

    def plan(self) -> None:
        """Decide what is going to happen."""
        self._plan_losses()
        for _ in range(self._scenario.moves):
            if self._chance.happens(0.2):
                self._later(50, self._wish)
            else:
                self._wishes += 1

    def progressed(self) -> None:
        """Spark committed an epoch: there is state to lose now."""
        if self._losses and self._chance.happens(0.6):
            self._later(4, self._losses.pop())
        if self._wishes and self._chance.happens(0.9):
            self._wishes -= 1
            self._later(4, self._wish)

    def _later(self, scale: float, action: Callable[[], None]) -> None:
        over = self._queries
        self._network.after(self._chance.delay(scale), lambda: None if all(query.over for query in over) else action())

    # --- losses ---

    def _plan_losses(self) -> None:
        if not self._scenario.durable:
            if self._faults.strikes("lost worker", 8):
                self._later(40, self._lose_worker)
            self._plan_each((("slow worker", self._slow_worker), ("read", self._read)))
            self._plan_each((("hung worker", self._hang_worker), ("vanished worker", self._vanish_worker)), 0.5)
            return
        self._plan_each(
            (
                ("lost worker", self._lose_worker),
                ("cut off worker", self._cut_off_worker),
                ("lost workers", self._lose_workers),
                ("lost driver", self._lose_driver),
                ("paused cluster", self._pause),
                ("store failure", self._store_fails),
                ("slow worker", self._slow_worker),
                ("hung worker", self._hang_worker),
                ("vanished worker", self._vanish_worker),
                ("snapshot", self._ask_for_snapshots),
                ("read", self._read),
                ("export", lambda: self._application().export()),
            )
        )

    def _plan_each(self, mishaps: tuple[tuple[str, Callable[[], None]], ...], times: float = 4) -> None:
        for fault, action in mishaps:
            while self._faults.strikes(fault, times):
                if self._chance.happens(0.5):
                    self._later(50, action)
                else:
                    self._losses.append(action)
        self._losses = self._chance.shuffled(self._losses)

    @property
    def _workers(self) -> list[SimulatedWorker]:
        driver = self._application().driver
        return [] if driver is None else list(driver.workers.values())

    def _lose_worker(self) -> None:
        if self._workers:
            self._chance.pick(self._workers).kill()

    def _cut_off_worker(self) -> None:
        if self._workers:
            self._chance.pick(self._workers).cut_off()

    def _lose_workers(self) -> None:
        workers = self._workers
        if workers:
            for worker in self._chance.shuffled(workers)[: self._chance.number(1, len(workers))]:
                worker.kill()

    def _slow_worker(self) -> None:
        if self._workers:
            self._chance.pick(self._workers).hang(self._chance.delay(15))

    def _hang_worker(self) -> None:
        """One that stands still until it is given up; it is ended, or wakes up and believes to be in time."""
        driver = self._application().driver
        if driver is None or not driver.alive:
            return
        victim = self._chance.pick(self._workers)
        patience = 10 + self._chance.delay(10)
        victim.hang(patience + self._chance.delay(60))
        kill = self._chance.happens(0.5)
        self._network.after(patience, lambda: driver.give_up(victim, kill=kill) if victim.hung else None)

    def _vanish_worker(self) -> None:
        """One whose machine is gone; sometimes another one is there before anybody noticed."""
        driver = self._application().driver
        if driver is None or not driver.alive:
            return
        victim = self._chance.pick(self._workers)
        victim.vanish(15 + self._chance.delay(15))
        if self._chance.happens(0.5):
            self._network.after(self._chance.delay(15), lambda: driver.comes_again(victim))

    def _read(self) -> None:
        driver = self._application().driver
        if driver is not None and driver.alive:
            driver.read(self._application().deployments)

    def _ask_for_snapshots(self) -> None:
        driver = self._application().driver
        if driver is not None and driver.alive:
            driver.wishes.ask_for_snapshots(driver)

    def _lose_driver(self) -> None:
        self._application().die()

    def _pause(self) -> None:
        self._application().pause()

    def _store_fails(self) -> None:
        now = self._network.time.now
        self._network.note("the store begins to fail")
        self._outages.times.append((now, now + 1 + self._chance.delay(6), self._chance.pick([0.1, 0.4, 1.0])))

    # --- changes of the cluster ---

    def _wish(self) -> None:
        driver, scenario = self._application().driver, self._scenario
        if driver is None or not driver.alive:
            return
        kinds, strategies = scenario.wishes, scenario.strategies
        wish = make_wish(self._chance, driver.coordinator, kinds, strategies, durable=scenario.durable)
        driver.wishes.ask(wish, driver.tell, driver.coordinator)

    def on_copied(self) -> None:
        """A worker that copies state ahead has sealed an epoch, and sends what it changed: it may not count."""
        if self._faults.strikes("aborted after copying", 3):
            for query in self._queries:
                self._later(2, query.fail)

    def on_phase(self, driver: SimulatedDriver, name: OperatorName, phase: TransferPhase) -> None:
        """A move has come to a phase: somebody who has a part in it may be lost in it."""
        self.phases[phase.name] += 1
        transfer = driver.coordinator.operator(name).transfer
        if transfer is None or phase in (TransferPhase.WAITING, TransferPhase.DONE):
            return
        faults, lots = self._faults, transfer._lots
        if faults.strikes("read", 3):
            self._later(2, self._read)
        # An epoch that fails now was sealed, copied ahead and rolled back before ownership flips.
        failed = {TransferPhase.FLIPPED: "failed flip", TransferPhase.DUE: "failed copy"}.get(phase)
        if failed is not None and faults.strikes(failed, 3):
            for query in self._queries:
                self._later(3, query.fail)
        victims = []
        if faults.strikes("lost source"):
            victims.append(self._chance.pick([lot.source for lot in lots]))
        if faults.strikes("lost target"):
            victims.append(self._chance.pick([lot.target for lot in lots]))
        newcomers = [lot.target for lot in lots if not transfer._before.groups_of(lot.target)]
        if newcomers and faults.strikes("lost newcomer", 2):
            victims.append(self._chance.pick(newcomers))
        for victim in victims:
            self._later(2, driver.workers[victim].kill)
        if faults.strikes("driver lost in a move"):
            self._later(2, self._lose_driver)
