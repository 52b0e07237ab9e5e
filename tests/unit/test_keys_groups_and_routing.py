"""Key groups and routing tables: the cases that have a name."""

import pickle

import numpy as np
import pytest

import bedload.keys
from bedload.core.errors import DefinitionError, KeyGroupsChanged
from bedload.core.ids import KeyGroup, WorkerId
from bedload.keys import DEFAULT_KEY_GROUPS, MAX_KEY_GROUPS, Move, RoutingTable, key_group, key_groups


def workers(*numbers: int) -> tuple[WorkerId, ...]:
    return tuple(map(WorkerId, numbers))


def table(*owners: int) -> RoutingTable:
    return RoutingTable(workers(*owners), workers(*sorted(set(owners))))


@pytest.mark.parametrize("groups", [1, 10, 256])
def test_key_group_of_a_negative_hash_is_not_negative(groups: int) -> None:
    hashes = np.array([-(2**63), -7, -1, 0, 1, 2**63 - 1])
    expected = [int(h) % groups for h in hashes]
    assert key_groups(hashes, groups).tolist() == expected
    assert [key_group(int(h), groups) for h in hashes] == expected
    assert key_groups(hashes, groups).dtype == np.int32


@pytest.mark.parametrize("groups", [0, -1, MAX_KEY_GROUPS + 1])
def test_number_of_key_groups_out_of_range_is_refused(groups: int) -> None:
    for ask in (
        lambda: key_group(0, groups),
        lambda: key_groups(np.zeros(1, np.int64), groups),
        lambda: RoutingTable.initial(groups, workers(0)),
    ):
        with pytest.raises(DefinitionError, match=f"{groups} key groups"):
            ask()


def test_first_table_gives_each_worker_one_run_of_key_groups() -> None:
    first = RoutingTable.initial(7, workers(2, 0, 1))
    assert first.owners == workers(0, 0, 0, 1, 1, 2, 2)
    assert first.workers == workers(0, 1, 2)
    assert first.key_groups == 7


def test_owners_and_what_they_own_are_found() -> None:
    routing = table(0, 5, 5, 0)
    assert routing.owners == (0, 5, 5, 0)
    assert routing.groups_of(WorkerId(5)) == (1, 2)
    assert routing.groups_of(WorkerId(9)) == ()


def test_new_worker_takes_from_each_of_the_others() -> None:
    before = RoutingTable.initial(6, workers(0, 1))
    after = before.reassign(workers(0, 1, 2))
    assert before.diff(after) == (
        Move(WorkerId(0), WorkerId(2), (KeyGroup(2),)),
        Move(WorkerId(1), WorkerId(2), (KeyGroup(5),)),
    )


def test_leaving_worker_gives_up_only_its_own_key_groups() -> None:
    before = RoutingTable.initial(6, workers(0, 1, 2))
    after = before.reassign(workers(0, 2))
    assert before.diff(after) == (
        Move(WorkerId(1), WorkerId(0), (KeyGroup(2),)),
        Move(WorkerId(1), WorkerId(2), (KeyGroup(3),)),
    )


def test_larger_shares_stay_where_they_are() -> None:
    # Worker 1 has the larger share; giving it to worker 0 instead would move one more key group.
    before = table(0, 0, 1, 1, 1)
    assert before.diff(before.reassign(workers(0, 1))) == ()


def test_worker_without_key_groups_stays_a_member() -> None:
    routing = RoutingTable.initial(2, workers(0, 1, 2))
    assert routing.workers == workers(0, 1, 2)
    assert routing.groups_of(WorkerId(2)) == ()


def test_same_workers_make_the_next_table_without_a_move() -> None:
    before = RoutingTable.initial(DEFAULT_KEY_GROUPS, workers(0, 1, 2))
    after = before.reassign(workers(2, 1, 0))
    assert after.owners == before.owners


def test_tables_of_different_numbers_of_key_groups_have_no_diff() -> None:
    with pytest.raises(KeyGroupsChanged, match="of 2 key groups cannot give way to one of 3"):
        table(0, 1).diff(table(0, 1, 1))


@pytest.mark.parametrize(
    ("members", "complaint"), [((), "at least one worker"), ((0, 0, 1), "listed twice"), ((-1, 0), "must be from 0")]
)
def test_set_of_workers_that_makes_no_table_is_refused(members: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        RoutingTable.initial(8, workers(*members))
    with pytest.raises(DefinitionError, match=complaint):
        RoutingTable.initial(8, workers(0)).reassign(workers(*members))


def test_owner_that_is_not_a_member_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"gives key groups to workers \[3\]"):
        RoutingTable(workers(0, 3), workers(0, 1))


def test_members_out_of_order_are_refused() -> None:
    with pytest.raises(DefinitionError, match="ascending"):
        RoutingTable(workers(0, 1), workers(1, 0))


def test_table_cannot_be_changed() -> None:
    routing = RoutingTable.initial(4, workers(0, 1))
    with pytest.raises(AttributeError):
        routing.owners = workers(0, 0, 0, 1)  # type: ignore[misc]


def test_pickled_table_is_the_same_table() -> None:
    routing = RoutingTable.initial(4, workers(0, 1))
    routing.groups_of(WorkerId(0))  # fills a cache, which must not travel
    again = pickle.loads(pickle.dumps(routing))
    assert again == routing
    assert "_groups" not in vars(again)


def test_public_names_are_sorted_and_there() -> None:
    # Constants, classes, functions: the order that the linter keeps.
    names = bedload.keys.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert all(hasattr(bedload.keys, name) for name in names)
