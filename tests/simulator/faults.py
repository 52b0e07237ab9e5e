"""What goes wrong in a simulation, and how much of it: each fault has a budget, so every run ends.

Invariant: an error that fails a live query must be explained by a fault that was injected. So the simulator
also finds false alarms: a query that fails although nothing happened that the protocol cannot bear.

A simulation keeps its state in memory only, or in a checkpoint (*durable*). With a checkpoint much more is borne, so
there are more faults, and fewer errors are final.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tests.simulator.chance import Chance
from tests.simulator.workload import Layout

BUDGETS = {
    "crash": 6,
    "speculate": 3,
    "zombie": 3,
    "query failure": 3,
    "lost commit log": 2,
    "dropped progress": 4,
    "dropped end": 2,
    "second action": 3,
    "other shape": 1,
    "peek": 2,
    "stop early": 1,
    "no action": 1,
    "unreadable plan": 1,
    "bad data": 1,
    "lost worker": 1,
    "lost slot": 2,
    "stopped for good": 1,
}

DURABLE = {
    "lost worker": 3,
    "cut off worker": 2,
    "lost workers": 1,
    "killed in the seal": 2,
    "cut off in the seal": 2,
    "killed in restore": 2,
    "dead replacement": 2,
    "no replacement": 1,
    "lost driver": 2,
    "paused cluster": 2,
    "set back": 2,
    "store failure": 2,
}
"""Budgets of what is borne with a checkpoint alone, or more of it."""

MOVES = {
    "no newcomer": 2,
    "dead newcomer": 2,
    "broken neighbour": 4,
    "repeated shipment": 4,
    "failed flip": 2,
    "failed copy": 4,
    "late copy": 4,
    "failing move": 2,
    "failed setup": 4,
    "cancel": 2,
    "lost newcomer": 1,
}
"""Budgets of what goes wrong with changes of the cluster."""

DURABLE_MOVES = {
    "lost source": 3,
    "lost target": 3,
    "driver lost in a move": 2,
}
"""The same with a checkpoint alone: without one, it is the end."""

EXTRA = {
    "slow worker": 3,
    "hung worker": 1,
    "vanished worker": 1,
    "redeploy": 2,
    "read": 8,
    "exit": 1,
    "forget and raise": 1,
    "misfit": 1,
    "setup fails": 1,
    "close fails": 1,
    "aborted after copying": 3,
    "fresh": 2,
    "skipped replay": 3,
    "another order": 4,
    "full disk": 2,
    "lost outputs": 2,
    "state on disk": 1,
    "full store": 4,
}
"""Budgets of what only some simulations have."""

DURABLE_EXTRA = {
    "hung worker": 3,
    "vanished worker": 2,
    "slow snapshot": 6,
    "slow store": 3,
    "snapshot": 4,
    "damaged file": 1,
    "export": 2,
    "changed state": 4,
    "another key": 1,
    "careless store": 1,
    "paused in the claim": 2,
    "failed restore": 3,
    "lost store": 2,
    "state in redis": 1,
    "slow redis": 4,
    "cut redis": 4,
    "wiped redis": 2,
    "old redis": 2,
}
"""The same with a checkpoint alone, or more of it. A snapshot that is asked for is no fault, and comes beside some."""

REDIS = ("state in redis", "slow redis", "cut redis", "wiped redis", "old redis")
LATER = (
    *("another order", "failed restore", "full disk", "lost outputs", "state on disk", "full store", "lost store"),
    *REDIS,
)
"""Those of both that are drawn apart, so that what is drawn besides stays as it was without them."""

ABSENCES = frozenset({"hung worker", "vanished worker"})
"""A worker that does not answer, which the driver takes for lost."""

_WITH_CHECKPOINT = DURABLE.keys() | DURABLE_MOVES.keys() | DURABLE_EXTRA.keys()

ALWAYS = frozenset(
    {"crash", "speculate", "zombie", "query failure", "lost commit log", "dropped progress", "dropped end"}
    | {"second action", "peek", "lost slot"}
)
"""Faults that every simulation may have; the others are switched on for some seeds."""

LOSSES = (
    (frozenset(DURABLE) - {"set back", "store failure"})
    | DURABLE_MOVES.keys()
    | {"paused in the claim", "lost store", "cut redis", "wiped redis", "old redis"}
)
"""Something of the cluster was lost, or seemed to be."""

EXPLAINS: dict[str, tuple[str, ...]] = {
    "TaskCrashed": ("crash",),
    "OperatorFailed": ("poison", "exit", "forget and raise", "misfit", "setup fails", "failed setup"),
    "MoveFailed": ("failing move", "failed setup", "setup fails", "misfit", "full store", "lost store", *REDIS),
    "NotDeterministic": ("noise", "other shape"),
    "EpochIncomplete": ("stop early", "no action", "fresh"),
    "EpochMismatch": ("stop early", "no action", "fresh"),
    "WorkerLost": ("lost worker", "lost newcomer", "dead newcomer", "hung worker", "vanished worker"),
    "StateTypeError": ("misfit",),
    "OperatorBusy": ("second query",),
    "NullKey": ("bad data",),
    "ProtocolError": ("unreadable plan",),
    "StaleAttempt": ("fresh",),
    "RemoteStoreError": ("cut redis", "wiped redis", "old redis"),
    "LocalDiskError": ("full disk", "lost outputs", "full store", "lost store"),
}
"""Which faults may be behind an error that a live query fails with."""

_SETUPS = ("failed setup", "setup fails")
_GONE = (*sorted(LOSSES | ABSENCES), "lost newcomer", "dead newcomer", *_SETUPS, "stop_restart")

EXPLAINS_DURABLE: dict[str, tuple[str, ...]] = EXPLAINS | {
    "EpochIncomplete": ("stop early", "no action", "another query's set back"),
    "EpochMismatch": ("stop early", "no action", "another query's set back"),
    "WorkerLost": _GONE,
    "EpochAborted": _GONE,
    "EpochNotRetained": ("set back beyond what is retained",),
    "StoreError": ("store failure", "failed restore"),
    "WorkerStartFailed": ("no newcomer", "dead newcomer", *_SETUPS),
    "CheckpointDamaged": ("damaged file",),
    "Fenced": ("claimed late",),
}
for _kind in ("EpochIncomplete", "EpochMismatch", "EpochNotRetained"):
    EXPLAINS_DURABLE[_kind] += ("damaged file", "fresh")

FINAL = frozenset({"EpochIncomplete", "EpochMismatch", "EpochNotRetained", "QueryStopped", "CheckpointDamaged"})
"""Errors after which no restart helps, or comes; in memory only, the loss of a worker is one of them."""


@dataclass(frozen=True)
class Scenario:
    """Which faults a simulation may have, and how likely each is when there is an occasion for it."""

    faults: frozenset[str]
    likely: float = 0.12
    durable: bool = False
    """State is in a checkpoint."""
    moves: int = 0
    """So many changes of the cluster are asked for."""
    strategies: tuple[str, ...] = ()
    """How state moves; none: all ways there are."""
    wishes: tuple[str, ...] = ()
    """What is asked for; none: all that there is."""
    layout: Layout = Layout.ONE
    epochs: int | None = None
    """So many epochs of each query; None: a few."""

    @classmethod
    def chosen(cls, chance: Chance, *, moves: bool = False) -> Scenario:
        """A scenario for a seed: in memory or durable; quiet, usual, or with some of the rarer faults."""
        durable = chance.happens(0.35 if moves else 0.5)
        count = chance.number(2, 4) if moves else 0
        if chance.happens(0.1):
            return cls(frozenset(), 0.0, durable, count)
        rare = sorted((set(BUDGETS) | {"noise", "poison", "second query"}) - ALWAYS)
        extra = {fault for fault in rare if chance.happens(0.12)}
        if durable:
            extra |= {fault for fault in DURABLE if chance.happens(0.3)}
        if moves:
            extra |= {fault for fault in (*MOVES, *DURABLE_MOVES) if chance.happens(0.4)}
        return cls(ALWAYS | extra, chance.pick([0.05, 0.12, 0.3]), durable, count)

    def extended(self, chance: Chance) -> Scenario:
        """The same with some of what not every simulation has, from a chance of its own."""
        layout = chance.pick([Layout.BESIDE, Layout.CHAINED, Layout.APART]) if chance.happens(0.2) else Layout.ONE
        if not self.faults or chance.happens(0.5):
            return replace(self, layout=layout)
        extra = {fault for fault in (*EXTRA, *DURABLE_EXTRA) if fault not in LATER and chance.happens(0.4)}
        return replace(self, layout=layout, faults=self.faults | extra)

    def with_later(self, chance: Chance) -> Scenario:
        """The same with some of what is drawn apart."""
        extra = {fault for fault in LATER if self.faults and chance.happens(0.2)}
        return replace(self, faults=self.faults | extra)


class Faults:
    """Decides what goes wrong, and remembers what did."""

    def __init__(self, chance: Chance, scenario: Scenario) -> None:
        self._chance = chance
        self._scenario = scenario
        durable = DURABLE | DURABLE_MOVES | DURABLE_EXTRA if scenario.durable else {}
        self._budgets = BUDGETS | MOVES | EXTRA | durable
        self.happened: Counter[str] = Counter()

    @property
    def durable(self) -> bool:
        """Whether state is in a checkpoint."""
        return self._scenario.durable

    def on(self, fault: str) -> bool:
        """Whether the scenario has this fault at all."""
        if fault == "skipped replay" and "second query" in self._scenario.faults:
            return False  # one that takes the state over rolls back what is sealed: see ADR 4
        with_memory = fault in BUDGETS or fault in EXTRA or fault not in _WITH_CHECKPOINT
        return fault in self._scenario.faults and (self.durable or with_memory)

    def strikes(self, fault: str, times: float = 1.0) -> bool:
        """Whether it goes wrong here; ``times`` makes it more or less likely."""
        if not self.on(fault) or self.happened[fault] >= self._budgets[fault]:
            return False
        if not self._chance.happens(min(1.0, self._scenario.likely * times)):
            return False
        self.happened[fault] += 1
        return True

    def explain(self, error: Exception) -> None:
        """Raise unless a fault that happened explains the error."""
        kind = type(error).__name__
        known = EXPLAINS_DURABLE if self.durable else EXPLAINS
        causes = [fault for fault in known.get(kind, ()) if self.happened[fault]]
        assert causes, f"a live query failed for no reason: {kind}: {error}"

    def final(self, error: Exception, *, over: bool) -> bool:
        """Whether no restart helps after this error; ``over``: the cluster takes no more work."""
        kind = type(error).__name__
        return kind in FINAL or (kind in ("WorkerLost", "MoveFailed") and not self.durable and over)
