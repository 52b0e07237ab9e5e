"""Lots: what passes from one worker to another at a flip. Pure functions."""

from __future__ import annotations

from collections.abc import Container, Iterable

from bedload.core.ids import WorkerId
from bedload.keys import RoutingTable
from bedload.protocol import messages as m


def lots_between(before: RoutingTable, after: RoutingTable) -> tuple[m.Lot, ...]:
    """What changes owners when a routing table gives way to another."""
    lots = []
    for move in before.diff(after):
        of_keys = tuple(map(before.group_of, move.keys))
        lots.append(m.Lot(move.source, move.target, move.key_groups, move.keys, move.stay, of_keys))
    return tuple(lots)


def backlog_of(lots: Iterable[m.Lot], awaited: Container[WorkerId]) -> dict[WorkerId, m.Backlogged]:
    """What is still on its way to those that are awaited, by old owner."""
    found: dict[WorkerId, m.Backlogged] = {}
    for lot in lots:
        if lot.target in awaited:
            had = found.get(lot.source, m.Backlogged(()))
            found[lot.source] = m.Backlogged((*had.groups, *lot.groups), (*had.keys, *lot.keys))
    return found
