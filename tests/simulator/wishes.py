"""What the user of a simulated cluster asks for while it runs: more or fewer workers, other places for state.

Invariant: whatever is asked for comes to an end, once, and fails only for a reason that there was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from bedload.control.coordinator import Coordinator
from bedload.control.instructions import ChangeResult, Instruction
from bedload.control.wish import Kind, Wish
from bedload.core.errors import BedloadError, MoveCancelled, StoreError
from bedload.core.ids import NO_CHANGE, ChangeId, KeyGroup, OperatorName, Turn
from bedload.migration import AUTO, STRATEGIES, Auto, Strategy
from bedload.migration.strategies import restarts
from tests.simulator.chance import Chance
from tests.simulator.faults import ABSENCES, LOSSES, REDIS, Faults
from tests.simulator.network import Network
from tests.simulator.workload import HASH_OF, KEY_GROUPS

MOST_WORKERS = 5

KINDS = (*[Kind.RESCALE] * 3, *[Kind.MOVE] * 2, Kind.DRAIN, Kind.REBALANCE, *[Kind.PIN] * 2, Kind.UNPIN)

WHY = {
    "MoveCancelled": ("cancel",),
    "MoveFailed": ("second query", "failing move", "failed setup", "setup fails", "full store", "lost store", *REDIS),
    "WorkerStartFailed": (
        "no newcomer",
        "dead newcomer",
        "lost newcomer",
        "failed setup",
        "setup fails",
        *sorted(LOSSES | ABSENCES),
    ),
    "WorkerLost": ("dead newcomer", "lost newcomer", "lost worker", *sorted(ABSENCES)),
}
"""Which faults may be behind a change that failed."""

_UNREAD = ("store failure", "damaged file", "cut redis")
"""Which faults may be behind state that cannot be read back."""


def make_wish(
    chance: Chance, coordinator: Coordinator, kinds: tuple[str, ...], strategies: tuple[str, ...], *, durable: bool
) -> Wish:
    """Make something up that moves something, most of the time."""
    members = coordinator.members.owning
    kind = chance.pick([it for it in KINDS if not kinds or it in kinds])
    pinned = [pin.key for name in coordinator.operators for pin in coordinator.operator(name).routing.pins]
    if not kinds and len(members) == 1 and chance.happens(0.8):
        kind = Kind.RESCALE
    elif kind is Kind.UNPIN and not pinned:
        kind = Kind.PIN
    strategy = _strategy(chance, strategies, durable=durable)
    if restarts(strategy) and kind not in (Kind.RESCALE, Kind.DRAIN):
        kind = Kind.RESCALE
    match kind:
        case Kind.RESCALE:
            counts = [count for count in range(1, MOST_WORKERS + 1) if count != len(members)]
            return Wish(kind, strategy, workers=chance.pick(counts))
        case Kind.MOVE:
            count = chance.number(1, KEY_GROUPS // 2)
            groups = tuple(KeyGroup(group) for group in chance.shuffled(range(KEY_GROUPS))[:count])
            return Wish(kind, strategy, worker=chance.pick(members), groups=groups)
        case Kind.DRAIN:
            return Wish(kind, strategy, worker=chance.pick(members))
        case Kind.REBALANCE:
            return Wish(kind, strategy)
        case Kind.PIN | Kind.UNPIN:
            known = pinned if kind is Kind.UNPIN and pinned else list(HASH_OF.values())
            keys = tuple(chance.shuffled(known)[: chance.number(1, 3)])
            return Wish(kind, strategy, worker=chance.pick(members) if kind is Kind.PIN else None, keys=keys)


def _strategy(chance: Chance, names: tuple[str, ...], *, durable: bool) -> Strategy | Auto:
    known = names or (*STRATEGIES, AUTO.value)
    name = chance.pick([it for it in known if durable or it != "stop_restart"])
    if name == AUTO.value:
        return AUTO
    strategy = STRATEGIES[name]
    if strategy.groups_per_flip is not None:
        strategy = replace(strategy, groups_per_flip=chance.number(1, 3))
    return strategy.with_(bandwidth=chance.pick([None, None, 200.0]), share=chance.pick([None, 0.05]))


_NO_SNAPSHOT = (*sorted(LOSSES), "store failure", "lost newcomer", "dead newcomer", "stop_restart", *sorted(ABSENCES))
"""Which faults may be behind a snapshot that cannot be made."""


_AGAIN_SECONDS = 5.0
"""After so long a snapshot that the store did not take is asked for again."""


class Asked(Protocol):
    """A cluster that something is asked of."""

    coordinator: Coordinator
    alive: bool

    def tell(self, event: Callable[[Coordinator], list[Instruction]]) -> None:
        """Something happened that the coordinator should know."""
        ...


class Wishes:
    """All that is asked of one cluster."""

    def __init__(self, network: Network, faults: Faults) -> None:
        self.open: dict[ChangeId, Wish] = {}
        """What has not come to its end."""
        self.over: Counter[str] = Counter()
        """What has, by kind, strategy and outcome."""
        self._network = network
        self._faults = faults
        self.snapshots: dict[int, tuple[OperatorName, Turn | None]] = {}
        """Snapshots that were asked for and are not there, of which turn or a later one."""
        self._snapshots = 0

    def ask(
        self, wish: Wish, tell: Callable[[Callable[[Coordinator], list[Instruction]]], None], coordinator: Coordinator
    ) -> None:
        """Ask, and maybe think better of it."""
        self._network.note(f"the user wants {wish}")
        if restarts(wish.strategy):
            self._faults.happened["stop_restart"] += 1
        number = NO_CHANGE

        def change(coordinator: Coordinator) -> list[Instruction]:
            nonlocal number
            if coordinator.error is not None:
                return []
            number, steps = coordinator.change("change", wish)
            self.open[number] = wish
            return steps

        tell(change)
        if number != NO_CHANGE and self._faults.strikes("cancel", 2):
            self._network.after(
                self._network.chance.delay(8), lambda: tell(lambda coordinator: self._cancel(coordinator, number))
            )

    def ask_for_snapshots(self, driver: Asked) -> None:
        """Have all that is committed in a snapshot, of every operator."""
        for name in driver.coordinator.operators:
            self._ask_for_snapshot(name, driver)

    def _ask_for_snapshot(self, name: OperatorName, driver: Asked) -> None:
        if not driver.alive:
            return
        lineage = driver.coordinator.operator(name).lineage
        self._snapshots += 1
        number = self._snapshots
        self._network.note(f"the user wants a snapshot of {name}")
        self.snapshots[number] = name, None if lineage is None else lineage.head
        driver.tell(lambda c: c.checkpoint(number, name))

    def snapshot_over(self, number: int, error: BedloadError | None, driver: Asked) -> None:
        """There is a snapshot, or there is a reason why not; if that is the store, somebody asks again."""
        coordinator = driver.coordinator
        name, wanted = self.snapshots.pop(number)
        self.over[f"snapshot: {'done' if error is None else type(error).__name__}"] += 1
        if error is not None:
            known = [fault for fault in _NO_SNAPSHOT if self._faults.happened[fault]]
            assert known or error is coordinator.error, f"no snapshot of {name} for no reason: {error!r}"
            if isinstance(error, StoreError) and coordinator.error is None:
                self._network.after(_AGAIN_SECONDS, lambda: self._ask_for_snapshot(name, driver))
            return
        lineage = coordinator.operator(name).lineage
        assert lineage is not None
        there = [turn for turn in lineage.history.retained() if lineage.history.manifest(turn) is not None]
        gone = self._faults.happened["set back"] or self._faults.happened["fresh"]
        assert wanted is None or gone or any(turn >= wanted for turn in there), f"no snapshot of {name} at {wanted}"

    def _cancel(self, coordinator: Coordinator, number: ChangeId) -> list[Instruction]:
        known = number in self.open
        could, steps = coordinator.cancel(number)
        results = [step for step in steps if isinstance(step, ChangeResult) and step.number == number]
        ended = any(isinstance(result.error, MoveCancelled) for result in results)  # it may be over by itself
        self._network.note(f"change {number} is called off: {could}")
        assert known or not could, f"change {number} was called off after its end"
        assert could or not ended
        return steps

    def ended(self, result: ChangeResult, coordinator: Coordinator) -> None:
        """A change is over."""
        self._network.note(f"change {result.number} is over: {result.error or 'done'}"[:300])
        wish = self.open.pop(result.number, None)
        assert wish is not None, f"change {result.number} ended twice, or nobody asked for it"
        error = result.error
        kind = "done" if error is None else type(error).__name__
        strategies = {record.strategy for record in result.records} or {"none"}
        self.over[f"{wish.kind} {'/'.join(sorted(strategies))}: {kind}"] += 1
        if error is None or error is coordinator.error or kind == "MoveRefused":
            return
        causes = [fault for fault in WHY.get(kind, ()) if self._faults.happened[fault]]
        causes += [fault for fault in _UNREAD if self._faults.happened[fault] and "read back" in str(error)]
        # Only the next run shows what becomes of a sealed epoch.
        left = "unknown" in error.details and coordinator.operator(error.details["operator"]).is_sealed
        assert causes or left, f"{wish} failed for no reason: {kind}: {error}"
