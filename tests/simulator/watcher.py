"""Compares what the machines of a simulation do with what is right, for one operator.

Invariants that the watcher keeps, at every moment:

- a worker's committed state is the oracle's after the epochs that it should have, as far as it is there;
- in a turn every key group and every pinned key has one owner;
- in memory only, the backup at the seal (all changes so far, applied to nothing) is the oracle's state;
- a turn builds upon all epochs that Spark committed, each once, and on no other; so nothing that Spark was told is
  lost or applied twice, whoever dies;
- the epochs that are committed are in Spark's commit log, each once, in order;
- a seal that is acknowledged is on record and in the storage, nobody has given its turn up for want of it, and every
  later attachment that has looked has seen it;
- after an epoch nobody takes what is due next for due later than it is, nor for due already: else it would wait for
  rows, or each trigger would have an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from bedload.checkpoint import paths
from bedload.control.instructions import EpochEnded
from bedload.core.epoch import Due, EpochTime
from bedload.core.ids import (
    NO_EPOCH,
    NO_TURN,
    Epoch,
    Generation,
    KeyGroup,
    OperatorName,
    QueryId,
    Turn,
    WorkerId,
    generation_of,
)
from bedload.keys import RoutingTable
from bedload.protocol import messages as m
from bedload.state.timers import TimerClock
from tests.simulator.oracle import History, Oracle
from tests.simulator.storage import MemoryStorage
from tests.simulator.workload import GROUP_OF, KEY_GROUPS

Plain = dict[str, dict[str, Any]]

_SAID = {TimerClock.EVENT: "watermark", TimerClock.PROCESSING: "processing"}


class CommitLog(Protocol):
    """What Spark knows of a query."""

    committed: int
    """The commit log has the epochs below this."""
    high: int
    """As many it had at most."""
    lossy: set[Epoch]
    went_back: bool
    """Its checkpoint was set back."""

    def quiet(self, operator: OperatorName) -> set[Epoch]:
        """Epochs in which an operator has no part."""
        ...


class Watched(Protocol):
    """The part of a worker in the operator."""

    name: str
    worker: WorkerId
    history: History
    """The epochs whose state it should have."""

    def state(self) -> tuple[Plain, set[str]]:
        """The committed state that is here, and the keys that should be."""
        ...


class Watcher:
    """Knows what is right."""

    def __init__(
        self, name: OperatorName, oracle: Oracle, logs: dict[QueryId, CommitLog], storage: MemoryStorage | None
    ) -> None:
        self.name = name
        self._oracle = oracle
        self._logs = logs
        self._storage = storage
        self.history: History = ()
        """All epochs that were committed, in their order; what a checkpoint went back behind is left out."""
        self.base: dict[Turn, History] = {}
        """What each turn began on."""
        self.histories: dict[Turn, History] = {NO_TURN: ()}
        """The epochs in the state at each turn."""
        self.routings: dict[Turn, RoutingTable] = {}
        """Who owned what in each turn."""
        self.aborted = 0
        self.committed = 0
        self._forgiven: set[tuple[QueryId, Epoch]] = set()
        """Epochs that went when the checkpoint of another query was set back, or when the state was given up."""
        self._damaged = False
        self._damaged_paths: set[str] = set()
        self._fresh = False
        """The state was given up, and no turn has begun since."""
        self._latest: History = ()
        self._back = 0
        """How many epochs Spark went back in all."""
        self._given_up: dict[Turn, frozenset[WorkerId]] = {}
        """Turns that are not whole, and whose segments were not there when somebody looked."""
        self._seen: dict[Generation, frozenset[str]] = {}

    # --- turns ---

    def begun(self, turn: Turn, query: QueryId, epoch: Epoch, base: History, *, live: bool = True) -> None:
        """A turn begins on the state after these epochs; one of a program that is over may begin where it likes."""
        self.base[turn] = base
        self.histories[turn] = (*base, (query, epoch))
        if not live:
            return
        where = f"turn {turn} ({query}, epoch {epoch}) on {base}"
        log = self._logs[query]
        if self._fresh and not base:
            self._forgive_all()  # also what was committed meanwhile without a turn
        self._fresh = False
        self._forgiven -= {(query, epoch)}
        mine = [done for name, done in base if name == query]
        wanted = [Epoch(e) for e in range(epoch) if e not in log.quiet(self.name)]
        left = [e for e in wanted if (query, e) not in self._forgiven]
        assert mine in (wanted, left), f"{where}: of this query it should be {wanted} or {left}"
        if log.went_back and self._latest[: len(base)] == base:
            gone = self._latest[len(base) :]
            self._back += len(gone)
            self._forgiven |= {epoch for epoch in gone if epoch[0] != query}
        for name, other in self._logs.items():
            if name == query:
                continue
            there = {done for owner, done in base if owner == name}
            due = {Epoch(e) for e in range(other.committed)} - other.quiet(self.name) - other.lossy
            missing = {e for e in due - there if (name, e) not in self._forgiven and not self._damaged}
            assert not missing, f"{where}: Spark committed {missing} of {name}, too"
            assert all(e < other.high for e in there), f"{where}: Spark never committed all of {name}"
        self._latest = self.histories[turn]

    def damaged(self, path: str) -> None:
        """A file is not what was written. A query whose epochs are lost with it is refused; others may go on."""
        self._damaged = True
        self._damaged_paths.add(path)

    def fresh(self) -> None:
        """The user gives the state up: what comes next begins anew, unless it is lost before it is durable."""
        self._fresh, self.history = True, ()
        self._forgive_all()

    def _forgive_all(self) -> None:
        # Also what is sealed, and what Spark is about to commit.
        self._forgiven |= {(name, Epoch(e)) for name, it in self._logs.items() for e in range(it.committed + 1)}

    def owned(self, turn: Turn, begins: dict[WorkerId, m.Begin], pins: Iterable[int]) -> None:
        """A turn begins at these workers."""
        owners = {group: worker for worker, begin in begins.items() for group in begin.groups}
        groups = sorted(group for begin in begins.values() for group in begin.groups)
        assert groups == list(range(KEY_GROUPS)), f"turn {turn} begins with the owned key groups {groups}"
        guests = {guest: worker for worker, begin in begins.items() for guest in begin.guests}
        assert len(guests) == sum(len(begin.guests) for begin in begins.values()), (
            f"turn {turn}: a guest of two workers"
        )
        assert guests.keys() <= set(pins), f"turn {turn}: guests that are not pinned"
        table = RoutingTable.initial(KEY_GROUPS, begins)
        self.routings[turn] = table.next(owners=[owners[KeyGroup(group)] for group in groups], pins=guests)

    def ended(self, event: EpochEnded) -> None:
        """A coordinator ended an epoch."""
        if not event.committed:
            self.aborted += 1
            return
        epoch = event.query, event.epoch
        assert event.epoch < self._logs[event.query].high, f"{epoch} was committed, but not by Spark"
        self.committed += 1
        if self._storage is None:
            assert epoch not in self.history, f"{epoch} was committed twice"
            later = [other for other in self.history if other[0] == event.query and other[1] > event.epoch]
            assert not later, f"{epoch} was committed after {later}"
            self.history = (*self.history, epoch)

    def check_due(self, turn: Turn, time: EpochTime, due: Due, *, exact: bool) -> None:
        """What the coordinator takes for due next, after a turn of that time, is not later than what the state has.

        ``exact``: nor is it due already.
        """
        wanted, where = self._oracle.due(self.histories[turn]), f"after turn {turn} at {time}"
        for clock in TimerClock:
            said, first = getattr(due, _SAID[clock]), wanted.get(clock)
            assert first is None or (said is not None and said <= first), (
                f"{where} something is due at {first} by {clock} time, and it counts as due at {said}"
            )
            # By a watermark that is there already nobody asks (Lull.due_by_watermark).
            early = exact and clock is TimerClock.PROCESSING and said is not None and said <= time.processing
            assert not early, f"{where} something counts as due at {said}, and all of that has happened"

    # --- workers ---

    def check_worker(self, worker: Watched) -> None:
        """A worker's committed state is right."""
        actual, keys = worker.state()
        self._oracle.check_state(worker.history, actual, keys, worker.name)

    def check_seal(self, where: str, history: History, backup: Plain, keys: set[str]) -> None:
        """What a worker in memory only seals is right."""
        self._oracle.check_state(history, backup, keys, where)

    def acknowledged(self, worker: Watched, turn: Turn) -> None:
        """A worker says that it has sealed a turn; what is said cannot be taken back."""
        if self._storage is None:
            return
        where = f"{worker.name} acknowledged turn {turn}"
        path = paths.delta(self.name, turn, worker.worker)
        given_up = worker.worker in self._given_up.get(turn, ())
        # What both sides go by: the segment that one writes and the other looks for, and the mark.
        excused = not self._damaged_paths.isdisjoint((path, paths.abandoned(self.name, turn)))
        assert excused or not given_up, f"{where}, which was given up because its segment was not there"
        name = path.rpartition("/")[2]
        later = {generation: seen for generation, seen in self._seen.items() if generation > generation_of(turn)}
        blind = [generation for generation, seen in later.items() if name not in seen]
        # One that came before its garbage was collected has told those after it, by the state that it wrote.
        known = not later or min(later) not in blind or self._damaged
        assert known, f"{where}, but the generations {blind} do not know of it"
        listed = map(paths.parse_turn, self._storage.list(paths.turns(self.name)))
        over = any(it is not None and it > turn for it in listed)  # it woke up late: its turn may be collected by now
        if not later and not over:
            assert self._storage.exists(paths.turn(self.name, turn)), f"{where}, which is not on record"
            assert self._storage.exists(path), f"{where}, but its segment is not there"

    # --- attachments ---

    def attached(self, generation: Generation, segments: Iterable[str]) -> None:
        """An attachment has looked at what is there."""
        self._seen[generation] = frozenset(segments)

    def given_up(self, turn: Turn, missing: Iterable[WorkerId]) -> None:
        """The coordinator is told that a turn is not whole, because the segments of these workers are not there."""
        self._given_up[turn] = frozenset(missing)

    def counts_at(self, key: str, at: tuple[QueryId, Epoch]) -> set[int | None]:
        """What the count of a key was when an epoch was the last one; None: it had no state."""
        known = {history for history in self.histories.values() if history[-1:] == (at,)}
        if at[1] == NO_EPOCH:
            known.add(())
        states = [self._oracle.state(history).get(key) for history in known]
        return {None if state is None else state.count for state in states}

    # --- the end ---

    def history_at(self, turn: Turn | None) -> History:
        """The epochs in the state at a turn; None is the empty state."""
        return self.histories[NO_TURN if turn is None else turn]

    def distance(self, query: QueryId, epoch: Epoch) -> int | None:
        """How many epochs back an epoch is from the latest that there ever was, at most; None if it is not known."""
        if (query, epoch) not in self._latest:
            return None
        return self._back + len(self._latest) - self._latest.index((query, epoch))

    def check_restored(self, turn: Turn, actual: Plain) -> None:
        """What was read from the storage alone is the state at a turn."""
        self._oracle.check_state(self.histories[turn], actual, set(GROUP_OF), f"the checkpoint at turn {turn}")

    def is_forgiven(self, query: QueryId, epoch: Epoch) -> bool:
        """Whether an epoch went because another query's checkpoint was set back."""
        return (query, epoch) in self._forgiven
