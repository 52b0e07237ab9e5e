"""Plans for any loads: they come to an end, and never make things worse."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bedload.core.ids import WorkerId
from bedload.keys import RoutingTable
from bedload.migration import plan

GROUPS = 64

SETTLED = [sum(0.8**age * 16 * rows for age in range(epochs)) for rows in (1, 2, 3, 5) for epochs in range(1, 12)]
"""What workers measure: sums that would be equal but for rounding."""

ANY = st.floats(allow_nan=True, allow_infinity=True)
WEIGHTS = st.one_of(st.just(0.0), st.sampled_from(SETTLED), st.floats(0, 1e308), st.floats(0, 1e-300))


def loads(weight: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[int, dict[int, float]]]:
    return st.tuples(st.integers(1, 6), st.dictionaries(st.integers(0, GROUPS - 1), weight, max_size=GROUPS))


def spread(workers: int, weights: dict[int, float]) -> tuple[RoutingTable, dict[WorkerId, dict[int, float]]]:
    routing = RoutingTable.initial(GROUPS, tuple(WorkerId(worker) for worker in range(workers)))
    found: dict[WorkerId, dict[int, float]] = {}
    for group, weight in weights.items():
        found.setdefault(routing.owners[group], {})[group] = weight
    return routing, found


@settings(max_examples=300, deadline=None)
@given(loads(WEIGHTS))
def test_a_balanced_plan_is_no_worse_and_balancing_it_again_changes_nothing_much(
    made: tuple[int, dict[int, float]],
) -> None:
    routing, found = spread(*made)
    after = plan.balance(routing, found)
    weights = made[1]
    scale = max(weights.values(), default=0.0) or 1.0

    def highest(table: RoutingTable) -> float:
        return max(
            sum(weights.get(int(group), 0.0) / scale for group in table.groups_of(worker)) for worker in table.workers
        )

    assert highest(after) <= highest(routing) * (1 + 1e-9)
    # Good: what is over the mean and the tolerance is less than the largest key group there.
    mean = sum(weight / scale for weight in weights.values()) / made[0]
    assert highest(after) <= mean * (1 + plan.TOLERANCE) + 1 + 1e-9
    assert plan.balance(routing, found) == after


@settings(max_examples=200, deadline=None)
@given(loads(ANY))
def test_loads_that_make_no_sense_end_in_a_plan_all_the_same(made: tuple[int, dict[int, float]]) -> None:
    routing, found = spread(*made)
    assert len(plan.balance(routing, found).owners) == GROUPS


def test_equal_hot_key_groups_up_to_rounding_do_not_go_to_and_fro() -> None:
    routing = RoutingTable.initial(256, (WorkerId(0), WorkerId(1)))
    for rows in (1, 2, 3, 5, 10, 100, 1000):
        weight = 0.0
        for _ in range(40):
            weight = 0.8 * weight + 16 * rows
            for here, there in ((2, 3), (3, 2), (1, 2), (3, 4), (4, 3)):
                load = {
                    WorkerId(0): dict.fromkeys(map(int, routing.groups_of(WorkerId(0))[:here]), weight),
                    WorkerId(1): dict.fromkeys(map(int, routing.groups_of(WorkerId(1))[:there]), weight),
                }
                moved = plan.balance(routing, load)
                assert sum(a != b for a, b in zip(moved.owners, routing.owners, strict=True)) <= 1


def test_a_hot_worker_gives_away_about_half() -> None:
    routing = RoutingTable.initial(GROUPS, (WorkerId(0), WorkerId(1)))
    load = {WorkerId(0): {int(group): 1.0 for group in routing.groups_of(WorkerId(0))}}
    after = plan.balance(routing, load)
    kept = [group for group in routing.groups_of(WorkerId(0)) if after.owners[group] == WorkerId(0)]
    assert 13 <= len(kept) <= 19
