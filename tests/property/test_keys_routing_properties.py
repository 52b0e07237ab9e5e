"""Routing tables under any sequence of workers: balanced, moved as little as possible, reproducible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from bedload.core.ids import KeyGroup, WorkerId
from bedload.keys import RoutingTable

members = st.sets(st.integers(0, 30).map(WorkerId), min_size=1, max_size=12)


@st.composite
def any_table(draw: st.DrawFn) -> RoutingTable:
    """Also tables that are far from balanced, as moves of single key groups leave them."""
    workers = sorted(draw(members))
    owners = draw(st.lists(st.sampled_from(workers), min_size=1, max_size=60))
    return RoutingTable(tuple(owners), tuple(workers))


def shares(table: RoutingTable) -> list[int]:
    return [len(table.groups_of(worker)) for worker in table.workers]


def fewest_moves(table: RoutingTable, workers: set[WorkerId]) -> int:
    """The lower bound: what no balanced table over these workers can leave in place.

    Balanced means that all own ``q`` or ``q + 1`` and exactly ``r`` own ``q + 1``. So of what a worker owns at
    most ``q`` stay, and one more for at most ``r`` of those that own more than ``q``.
    """
    q, r = divmod(table.key_groups, len(workers))
    sizes = [len(table.groups_of(worker)) for worker in workers]
    stay = sum(min(size, q) for size in sizes) + min(r, sum(size > q for size in sizes))
    return table.key_groups - stay


@given(key_groups=st.integers(1, 2000), workers=members)
def test_first_table_is_balanced_and_contiguous(key_groups: int, workers: set[WorkerId]) -> None:
    table = RoutingTable.initial(key_groups, workers)
    assert max(shares(table)) - min(shares(table)) <= 1
    assert list(table.owners) == sorted(table.owners)
    assert table.key_groups == key_groups


@examples(150)
@given(table=any_table(), workers=members)
def test_reassigned_table_is_balanced_over_exactly_the_asked_workers(
    table: RoutingTable, workers: set[WorkerId]
) -> None:
    after = table.reassign(workers)
    assert after.workers == tuple(sorted(workers))
    assert max(shares(after)) - min(shares(after)) <= 1
    assert sum(shares(after)) == table.key_groups


@examples(150)
@given(table=any_table(), workers=members)
def test_reassigning_moves_exactly_the_lower_bound(table: RoutingTable, workers: set[WorkerId]) -> None:
    after = table.reassign(workers)
    moved = sum(len(move.key_groups) for move in table.diff(after))
    assert moved == fewest_moves(table, workers)


@given(table=any_table(), workers=st.lists(members, min_size=1, max_size=6))
def test_moves_carry_one_table_over_to_the_next(table: RoutingTable, workers: list[set[WorkerId]]) -> None:
    for asked in workers:
        after = table.reassign(asked)
        owners = list(table.owners)
        moves = table.diff(after)
        for move in moves:
            assert move.source != move.target
            assert move.key_groups
            for kg in move.key_groups:
                assert owners[kg] == move.source
                owners[kg] = move.target
        assert tuple(owners) == after.owners
        assert [(move.source, move.target) for move in moves] == sorted({(m.source, m.target) for m in moves})
        table = after


@given(table=any_table(), workers=members)
def test_tables_do_not_depend_on_the_order_of_the_workers(table: RoutingTable, workers: set[WorkerId]) -> None:
    ascending = sorted(workers)
    assert table.reassign(ascending) == table.reassign(reversed(ascending))
    assert RoutingTable.initial(64, ascending) == RoutingTable.initial(64, reversed(ascending))


@given(any_table())
def test_every_key_group_has_one_owner_by_every_way_of_asking(table: RoutingTable) -> None:
    owned = {kg: worker for worker in table.workers for kg in table.groups_of(worker)}
    assert sum(shares(table)) == table.key_groups
    assert tuple(owned[KeyGroup(kg)] for kg in range(table.key_groups)) == table.owners
