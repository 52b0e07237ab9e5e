"""What users ask for, and what it means: who shall own key groups, and which of them. Pure functions.

Invariant: what cannot be done is refused before anything begins.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bedload.core.errors import MoveRefused
from bedload.core.ids import KeyGroup, KeyHash, OperatorName, WorkerId
from bedload.keys import RoutingTable
from bedload.migration import plan
from bedload.migration.chooser import Facts, choose
from bedload.migration.strategies import AUTO, DEFAULT, Auto, Strategy, restarts
from bedload.protocol import messages as m


class Kind(enum.StrEnum):
    """What is asked for. The values are put on record."""

    RESCALE = "rescale"
    MOVE = "move"
    DRAIN = "drain"
    REBALANCE = "rebalance"
    PIN = "pin"
    UNPIN = "unpin"


MAX_PINS = 1_000_000
"""Single keys of an operator with a place of their own: every feeder is told of all of them when an epoch opens."""


@dataclass(frozen=True)
class Wish:
    """What a user asks for."""

    kind: Kind
    strategy: Strategy | Auto = DEFAULT
    workers: int | None = None
    """How many there shall be."""
    worker: WorkerId | None = None
    """Who takes it, or who leaves."""
    operator: OperatorName | None = None
    """None: all of them."""
    groups: tuple[KeyGroup, ...] = ()
    keys: tuple[KeyHash, ...] = ()
    """By their hash."""
    what: str = field(default="", compare=False)
    """The same in words, for people."""

    @property
    def pins(self) -> bool:
        """Whether single keys get a place of their own."""
        return self.kind is Kind.PIN or (self.kind is Kind.MOVE and bool(self.keys))


def members_after(wish: Wish, members: tuple[WorkerId, ...]) -> tuple[WorkerId, ...]:
    """Who shall own key groups when a wish is fulfilled."""
    if wish.kind is Kind.DRAIN:
        if wish.worker not in members:
            raise MoveRefused(f"there is no worker {wish.worker} to drain; there are {listed(members)}")
        if len(members) == 1:
            raise MoveRefused(f"worker {wish.worker} is the last one: its state has nowhere to go")
        return tuple(worker for worker in members if worker != wish.worker)
    if wish.kind is not Kind.RESCALE:
        return members
    assert wish.workers is not None
    if wish.workers <= len(members):
        return members[: wish.workers]
    free = (WorkerId(number) for number in itertools.count() if number not in members)
    return tuple(sorted((*members, *itertools.islice(free, wish.workers - len(members)))))


def check_wish(
    wish: Wish, members: tuple[WorkerId, ...], tables: Mapping[OperatorName, RoutingTable], *, durable: bool
) -> None:
    """Refuse what cannot be done."""
    if wish.kind in (Kind.MOVE, Kind.PIN) and wish.worker not in members:
        raise MoveRefused(f"there is no worker {wish.worker}; there are {listed(members)}")
    if wish.operator is not None and wish.operator not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise MoveRefused(f"no operator {wish.operator!r} was applied on this cluster; there are: {known}")
    for name, table in tables.items() if wish.operator is None else [(wish.operator, tables[wish.operator])]:
        count = table.key_groups
        pinned = {pin.key for pin in table.pins}
        if wish.pins and len(pinned.union(wish.keys)) > MAX_PINS:
            raise MoveRefused(
                f"operator {name}: {len(pinned.union(wish.keys)):,} keys would have a place of their own, at most "
                f"{MAX_PINS:,} can: move key groups, or unpin keys first"
            )
        if wish.kind is Kind.UNPIN and pinned.isdisjoint(wish.keys):
            raise MoveRefused(
                f"{wish.what or f'unpin of keys of {name}'}: there is nothing to do, since no such key is pinned: it "
                f"lives with its key group. A pin also ends with its worker"
            )
        if bad := [group for group in wish.groups if not 0 <= group < count]:
            raise MoveRefused(f"operator {name} has no key group {bad[0]}: they are 0 to {count - 1}")
    if restarts(wish.strategy) and not durable:
        raise MoveRefused(
            "stop_restart starts workers from the checkpoint, and this cluster keeps state in memory only: attach "
            'with bedload.attach(spark, checkpoint="file:///..."), or use another strategy'
        )


def strategy_for(wish: Wish, key_groups: int, weights: Collection[m.Weighed]) -> tuple[Strategy, str]:
    """How an operator's state moves, and why, if that was chosen."""
    if wish.strategy is not AUTO:
        return wish.strategy, ""
    rows = [count for it in weights for count in it.rows.values()]
    return choose(
        Facts(
            sum(it.bytes for it in weights),
            sum(it.keys for it in weights),
            sum(it.touched for it in weights),
            max(rows, default=0.0) / (sum(rows) or 1.0),
            key_groups,
        )
    )


def target_of(
    wish: Wish, routing: RoutingTable, members: tuple[WorkerId, ...], weights: Mapping[WorkerId, m.Weighed]
) -> RoutingTable:
    """Who shall own what of an operator."""
    if not set(members) <= set(routing.workers):
        # It was applied, or its state given up, while workers came that it does not know.
        routing = routing.next(workers={*routing.workers, *members})
    match wish.kind:
        case Kind.RESCALE | Kind.DRAIN:
            return routing.reassign(members)
        case Kind.MOVE | Kind.PIN:
            assert wish.worker is not None
            if wish.pins:
                return plan.pin(routing, wish.keys, wish.worker)
            return plan.place(routing, wish.groups, wish.worker)
        case Kind.UNPIN:
            return plan.unpin(routing, wish.keys)
        case Kind.REBALANCE:
            loads: dict[WorkerId, dict[KeyGroup, float]] = {worker: it.rows for worker, it in weights.items()}
            return plan.balance(routing, loads)


def listed(workers: tuple[WorkerId, ...]) -> str:
    """Workers, for people."""
    return ", ".join(map(str, workers))
