"""What must hold when a simulation has come to its end.

Every query finished or was refused for good with an error that says so; each epoch's outputs were written once; every
epoch that Spark committed is in the state of each operator that has a part in it, or was refused loudly; every state
that the checkpoint retains, read from the storage alone, is right; every change that was asked for has come to its end,
and left nothing behind; and with nothing going on any more every key can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bedload.checkpoint.checkpoint import Checkpoint
from bedload.control.standing import Phase as ControlPhase
from bedload.core.errors import CheckpointError
from bedload.core.ids import Epoch, OperatorName, Turn
from bedload.worker.machine import Phase
from tests.simulator.application import World
from tests.simulator.cluster import SimulatedDriver
from tests.simulator.desk import read_back
from tests.simulator.holdings import on_its_way
from tests.simulator.inline import Inline
from tests.simulator.oracle import History, Oracle
from tests.simulator.query import SimulatedQuery
from tests.simulator.storage import MemoryStorage
from tests.simulator.workload import GROUP_OF, HASH_OF


class Ending:
    """Looks at everything once more."""

    def __init__(self, world: World, oracles: Mapping[OperatorName, Oracle], drain: Callable[[], None]) -> None:
        self._world = world
        self._oracles = oracles
        self._drain = drain

    # --- state ---

    def check_memory(self, driver: SimulatedDriver) -> None:
        """State that is in memory only."""
        error = driver.coordinator.error
        lost = error is not None
        if error is not None:
            self._world.faults.explain(error)
        else:
            self._settle(driver)
        for name, watcher in self._world.watchers.items():
            if name not in driver.coordinator.operators:
                continue  # the cluster was lost before it was applied
            epochs = driver.coordinator.operator(name)
            for worker in driver.workers.values():
                if not worker.alive:
                    continue
                holdings = worker.holdings[name]
                watcher.check_worker(holdings)
                if lost:
                    hosted = worker.machine._hosted.get(name)
                    busy = hosted is not None and hosted.phase in (Phase.OPEN, Phase.SEALED)
                    assert not busy, f"{worker.name} did not roll back when another worker was lost"
                else:
                    owns = holdings.keys and worker.worker in epochs.routing.workers  # else it is about to leave
                    up_to_date = not owns or holdings.history == watcher.history
                    assert up_to_date, f"{worker.name} missed a commit"
            if lost:
                assert epochs.phase in (ControlPhase.IDLE, ControlPhase.ABORTED)
            for query in self._queries(name):
                self._check_query(query, name, None if lost else watcher.history)

    def check_checkpoint(self, driver: SimulatedDriver | None, storage: MemoryStorage, *, whole: bool) -> None:
        """State that is in a checkpoint; ``whole``: of the states that it retains, not the latest alone."""
        if driver is not None:
            self._settle(driver)
        checkpoint = Checkpoint.open(storage, pools=Inline)
        for name in self._world.watchers:
            try:
                self._check_stored(checkpoint, name, whole=whole)
                self._check_known(driver, checkpoint, name)
            except CheckpointError:  # never another state
                if not self._world.faults.happened["damaged file"]:
                    raise

    def _check_stored(self, checkpoint: Checkpoint, name: OperatorName, *, whole: bool) -> None:
        watcher = self._world.watchers[name]
        history = checkpoint.load_history(name)
        retained, keep = history.retained(), self._world.retention.epochs
        if not self._world.faults.happened["set back"] and not self._world.faults.happened["damaged file"]:
            wanted = min(keep + 1, len(history.chain()), len(watcher.history_at(history.head)))
            assert len(retained) >= wanted, f"{len(retained)} states are retained, not {wanted}"
        # The latest, the oldest and one between: reading all back would take as long as the rest.
        looked_at = {*retained[:1], *retained[-1:], *retained[len(retained) // 2 :][:1]} if whole else {*retained[:1]}
        for turn in sorted(looked_at):
            watcher.check_restored(turn, read_back(checkpoint, self._world.versions[name], turn))
        for query in self._queries(name):
            self._check_query(query, name, watcher.history_at(history.head))

    def _check_known(self, driver: SimulatedDriver | None, checkpoint: Checkpoint, name: OperatorName) -> None:
        """The snapshots that the coordinator would have workers read are those that are there."""
        if driver is None or not driver.alive or name not in driver.coordinator.operators:
            return
        lineage, stored = driver.coordinator.operator(name).lineage, checkpoint.load_history(name)
        assert lineage is not None
        for turn in lineage.history.retained():
            known = lineage.history.manifest(turn)
            there = stored.manifest(turn)
            damaged = self._world.faults.happened["damaged file"] and there is None
            assert known in (None, there) or damaged, f"the snapshot at turn {turn} is not the one that is known"

    def _settle(self, driver: SimulatedDriver) -> None:
        """The last epoch's progress event may have been dropped: tell it now, so that all is committed."""
        for name in driver.coordinator.operators:
            epochs = driver.coordinator.operator(name)
            if epochs.run is not None and epochs.query is not None:
                query, run, epoch = self._world.queries[epochs.query], epochs.run, epochs.epoch
                if epoch < query.committed:
                    driver.tell(lambda c, query=query.query, run=run, epoch=epoch: c.progress(query, run, epoch))  # type: ignore[misc]
                    self._drain()

    def _queries(self, name: OperatorName) -> list[SimulatedQuery]:
        return [query for query in self._world.queries.values() if name in query.plan.operators]

    def _check_query(self, query: SimulatedQuery, name: OperatorName, history: History | None) -> None:
        """Nothing is missing, but what was refused loudly; without a history all of it is lost."""
        watcher, quiet = self._world.watchers[name], query.quiet(name)
        wanted = [Epoch(e) for e in range(query.committed) if e not in quiet]
        where = f"{query.query}, {name}"
        if history is not None and not self._world.faults.happened["damaged file"]:
            done = [epoch for other, epoch in history if other == query.query]
            missing = [e for e in wanted if e not in done and not watcher.is_forgiven(query.query, e)]
            assert set(missing) <= query.lossy, f"{where}: {missing} are committed, but not in the state"
            if missing:
                assert query.gave_up is not None, f"{where}: {missing} were lost in silence"
                assert not [epoch for epoch in done if epoch > missing[0]], f"{where} went on after a loss"
        for epoch, outputs in query.sink.outputs.items():
            if epoch < query.committed and name in query.sink.turns[epoch]:
                base = watcher.base[Turn(query.sink.turns[epoch][name])]
                part = epoch in query.sink.partial
                self._oracles[name].check_outputs(base, (query.query, epoch), outputs.get(name, []), part=part)
        if query.gave_up is None:
            assert query.committed == len(query.plan.epochs)
            # An epoch without an action has no outputs, even if a zombie of an earlier run completed it.
            written = {epoch for epoch, turns in query.sink.turns.items() if name in turns}
            unwritten = set(wanted) - written - query.lossy - query.sink.partial
            assert not unwritten, f"{where}: the outputs of {unwritten} are missing"

    # --- moves ---

    def check_moves(self, driver: SimulatedDriver | None) -> None:
        """Every change has come to its end, and nothing is left of it."""
        if driver is None or not driver.alive or driver.coordinator.error is not None:
            return
        coordinator = driver.coordinator
        assert not driver.wishes.open, f"{driver.wishes.open} did not come to an end"
        assert not driver.wishes.snapshots, f"snapshots {driver.wishes.snapshots} did not come to an end"
        assert coordinator.changes.current is None, f"{coordinator.changes.current} did not come to an end"
        here = {worker.name for worker in driver.places.values() if worker.alive}
        members = {coordinator.workers[worker] for worker in coordinator.members.owning}
        assert here == members, f"{sorted(here)} run, but {sorted(members)} are the cluster"
        for address in sorted(here):
            driver.places[address].check_at_rest()

    def check_readable(self, driver: SimulatedDriver | None) -> None:
        """With nothing going on any more, every key can be read."""
        if driver is None or not driver.alive or driver.coordinator.error is not None:
            return
        coordinator, durable = driver.coordinator, self._world.storage is not None
        if coordinator.members.missing:
            return
        unanswered = [reader.name for reader in driver.readers if reader.waits]
        assert not unanswered, f"{unanswered} wait for ever"
        for name in coordinator.operators:
            epochs = coordinator.operator(name)
            if epochs.lineage is not None and epochs.lineage.owes and epochs.is_sealed:
                # Its owner has sealed an epoch that nobody may ever commit, without key groups of a worker that was
                # lost in it and not replaced. Whoever reads it is told so after a while.
                continue
            routing = epochs.routing
            for key, hashed in HASH_OF.items():
                worker = driver.workers[routing.owner_of_key(hashed)]
                hosted = worker.machine._hosted.get(name)
                assert hosted is not None, f"{worker.name} owns {key} and has no operator"
                if hosted.restoring.error is not None:
                    continue  # whoever reads it is told why
                known = not durable or hosted.holdings.knows(GROUP_OF[key])
                assert known, f"who reads {key} at {worker.name} waits for ever: it does not know that it owns it"
                assert not on_its_way(hosted, key), f"who reads {key} at {worker.name} waits for ever: it is on its way"
