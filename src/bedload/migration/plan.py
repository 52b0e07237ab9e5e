"""From what is wanted to routing tables: who owns what in the end, and the steps on the way. Pure.

Invariants: a plan moves as little as it can; the same arguments give the same plan.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from math import isfinite

from bedload.core.ids import KeyGroup, KeyHash, WorkerId
from bedload.keys import RoutingTable

TOLERANCE = 0.1
"""Loads that are so close to the mean are even."""
_FINEST = 1 << 40
"""Loads are told apart down to this part of the largest."""


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


def pin(routing: RoutingTable, keys: Iterable[KeyHash], to: WorkerId) -> RoutingTable:
    """These keys, by their hash, go to a worker, whatever becomes of their key groups."""
    pins = {item.key: item.worker for item in routing.pins}
    return routing.next(pins={**pins, **dict.fromkeys(keys, to)})


def unpin(routing: RoutingTable, keys: Collection[KeyHash]) -> RoutingTable:
    """These keys live with their key groups again."""
    return routing.next(pins={item.key: item.worker for item in routing.pins if item.key not in keys})


def balance(
    routing: RoutingTable, load: Mapping[WorkerId, Mapping[KeyGroup, float]], tolerance: float = TOLERANCE
) -> RoutingTable:
    """Even loads, by moving few key groups: ``load`` has that of each key group at each worker.

    It ends: in whole numbers, each move lessens the sum of the squares of the workers' loads; and there are no more
    moves than key groups.
    """
    weights = _in_whole_numbers({worker: load.get(worker, {}) for worker in routing.workers})
    # What a worker does for pinned keys of other key groups stays with it.
    movable = {
        worker: sorted((w, g) for g, w in groups.items() if g < routing.key_groups and routing.owners[g] == worker)
        for worker, groups in weights.items()
    }
    total = {worker: sum(groups.values()) for worker, groups in weights.items()}
    even = sum(total.values()) / len(total) * (1 + tolerance)
    owners = list(routing.owners)
    for _ in range(routing.key_groups):
        high = max(total, key=lambda worker: (total[worker], -worker))
        low = min(total, key=lambda worker: (total[worker], worker))
        gap, heavy = total[high] - total[low], movable[high]
        if total[high] <= even:
            break
        middle = bisect_left(heavy, (gap / 2, -1))
        fits = [item for item in heavy[max(0, middle - 1) : middle + 1] if 0 < item[0] < gap]
        if not fits:
            break
        item = min(fits, key=lambda item: (abs(2 * item[0] - gap), item[1]))
        heavy.remove(item)
        insort(movable[low], item)
        weight, group = item
        total[high] -= weight
        total[low] += weight
        owners[group] = low
    return routing.next(owners=owners)


def _in_whole_numbers(load: Mapping[WorkerId, Mapping[KeyGroup, float]]) -> dict[WorkerId, dict[KeyGroup, int]]:
    """Loads as shares of the largest one: sums of numbers as they are measured depend on their order, and may tie."""
    most = max((w for groups in load.values() for w in groups.values() if isfinite(w)), default=0.0)
    if most <= 0:
        return {worker: {} for worker in load}
    return {
        worker: {group: round(w / most * _FINEST) for group, w in groups.items() if isfinite(w) and w > 0}
        for worker, groups in load.items()
    }
