"""What goes wrong in a simulation, and how much of it: each fault has a budget, so every run ends.

Invariant: an error that fails a live query must be explained by a fault that was injected. So the simulator
also finds false alarms: a query that fails although nothing happened that the protocol cannot bear.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bedload.testing.chance import Chance

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
}

ALWAYS = frozenset(
    {"crash", "speculate", "zombie", "query failure", "lost commit log", "dropped progress", "dropped end"}
    | {"second action", "peek", "lost slot"}
)
"""Faults that every simulation may have; the others are switched on for some seeds."""

EXPLAINS: dict[str, tuple[str, ...]] = {
    "TaskCrashed": ("crash",),
    "OperatorFailed": ("poison",),
    "NotDeterministic": ("noise", "other shape"),
    "EpochIncomplete": ("stop early", "no action"),
    "EpochMismatch": ("stop early", "no action"),
    "WorkerLost": ("lost worker",),
    "OperatorBusy": ("second query",),
    "NullKey": ("bad data",),
    "ProtocolError": ("unreadable plan",),
}
"""Which faults may be behind an error that a live query fails with."""

FINAL = frozenset({"EpochIncomplete", "EpochMismatch", "WorkerLost"})
"""Errors after which no restart helps."""


@dataclass(frozen=True)
class Scenario:
    """Which faults a simulation may have, and how likely each is when there is an occasion for it."""

    faults: frozenset[str]
    likely: float = 0.12

    @classmethod
    def chosen(cls, chance: Chance) -> Scenario:
        """A scenario for a seed: quiet, usual, or with one of the rarer faults."""
        if chance.happens(0.1):
            return cls(frozenset(), 0.0)
        rare = sorted((set(BUDGETS) | {"noise", "poison", "second query"}) - ALWAYS)
        extra = {fault for fault in rare if chance.happens(0.12)}
        return cls(ALWAYS | extra, chance.pick([0.05, 0.12, 0.3]))


class Faults:
    """Decides what goes wrong, and remembers what did."""

    def __init__(self, chance: Chance, scenario: Scenario) -> None:
        self._chance = chance
        self._scenario = scenario
        self.happened: Counter[str] = Counter()

    def on(self, fault: str) -> bool:
        """Whether the scenario has this fault at all."""
        return fault in self._scenario.faults

    def strikes(self, fault: str, times: float = 1.0) -> bool:
        """Whether it goes wrong here; ``times`` makes it more or less likely."""
        if not self.on(fault) or self.happened[fault] >= BUDGETS[fault]:
            return False
        if not self._chance.happens(min(1.0, self._scenario.likely * times)):
            return False
        self.happened[fault] += 1
        return True

    def explain(self, error: Exception) -> None:
        """Raise unless a fault that happened explains the error."""
        kind = type(error).__name__
        causes = [fault for fault in EXPLAINS.get(kind, ()) if self.happened[fault]]
        assert causes, f"a live query failed for no reason: {kind}: {error}"
