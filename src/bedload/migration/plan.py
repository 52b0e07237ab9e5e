"""From what is wanted to routing tables: who owns what in the end, and the steps on the way. Pure.

Invariants: a plan moves as little as it can; the same arguments give the same plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from bedload.core.ids import KeyGroup, WorkerId
from bedload.keys import RoutingTable

TOLERANCE = 0.1
"""Loads that are so close to the mean are even."""


def steps_of(before: RoutingTable, target: RoutingTable, groups_per_flip: int | None) -> list[RoutingTable]:
    """The tables on the way to the target, each of which moves no more than so many key groups; none if it is there."""
    if before.owners == target.owners and before.pins == target.pins:
        return [target] if before.workers != target.workers else []
    moved = [group for move in before.diff(target) for group in move.key_groups]
    per_flip = len(moved) if groups_per_flip is None else groups_per_flip
    steps = []
    table = before
    for first in range(0, len(moved) - per_flip, max(1, per_flip)):
        owners = list(table.owners)
        for group in moved[first : first + per_flip]:
            owners[group] = target.owners[group]
        table = table.next(owners=owners, workers={*before.workers, *target.workers})
        steps.append(table)
    return [*steps, target]


def leave_out(routing: RoutingTable, worker: WorkerId, here: Iterable[WorkerId]) -> RoutingTable:
    """The key groups of a worker go to those that have the fewest, and no other key group moves.

    If it was the last one, those that are ``here`` take them: they were about to leave.
    """
    share = {other: len(routing.groups_of(other)) for other in routing.workers if other != worker}
    share = share or dict.fromkeys(sorted(here), 0)
    owners = list(routing.owners)
    for group in routing.groups_of(worker):
        owners[group] = min(share, key=lambda other: (share[other], other))
        share[owners[group]] += 1
    return routing.next(owners=owners, workers=share)


def place(routing: RoutingTable, groups: Iterable[KeyGroup], to: WorkerId) -> RoutingTable:
    """These key groups go to a worker."""
    owners = list(routing.owners)
    for group in groups:
        owners[group] = to
    return routing.next(owners=owners)


def pin(routing: RoutingTable, keys: Iterable[int], to: WorkerId) -> RoutingTable:
    """These keys, by their hash, go to a worker, whatever becomes of their key groups."""
    pins = {item.key: item.worker for item in routing.pins}
    return routing.next(pins={**pins, **dict.fromkeys(keys, to)})


def unpin(routing: RoutingTable, keys: Collection[int]) -> RoutingTable:
    """These keys live with their key groups again."""
    return routing.next(pins={item.key: item.worker for item in routing.pins if item.key not in keys})


def balance(
    routing: RoutingTable, load: Mapping[WorkerId, Mapping[int, float]], tolerance: float = TOLERANCE
) -> RoutingTable:
    """Even loads, by moving few key groups: ``load`` has that of each key group at each worker."""
    weights = {worker: dict(load.get(worker, {})) for worker in routing.workers}
    # What a worker does for pinned keys of other key groups stays with it.
    movable = {
        worker: {g: w for g, w in groups.items() if g < routing.key_groups and routing.owners[g] == worker}
        for worker, groups in weights.items()
    }
    total = {worker: sum(groups.values()) for worker, groups in weights.items()}
    mean = sum(total.values()) / len(total)
    owners = list(routing.owners)
    while mean > 0:
        high = max(total, key=lambda worker: (total[worker], -worker))
        low = min(total, key=lambda worker: (total[worker], worker))
        gap = total[high] - total[low]
        if total[high] <= mean * (1 + tolerance):
            break
        fits = {group: weight for group, weight in movable[high].items() if 0 < weight < gap}
        if not fits:
            break
        group = min(fits, key=lambda item: (abs(fits[item] - gap / 2), item))
        weight = movable[high].pop(group)
        movable[low][group] = weight
        total[high] -= weight
        total[low] += weight
        owners[group] = low
    return routing.next(owners=owners)
