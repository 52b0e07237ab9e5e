"""Rows that wait for the state of their key group: each is given out once, in its order, and not before."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bedload.core.ids import KeyGroup
from bedload.worker.parking import Parking

GROUPS = 5


def batch(*groups: int, start: int = 0) -> pa.RecordBatch:
    rows = pa.array(range(start, start + len(groups)), pa.int64())
    return pa.RecordBatch.from_arrays([rows, pa.array(groups, pa.int16())], names=["row", "group"])


def rows(found: pa.RecordBatch | None) -> list[int]:
    return [] if found is None else found.column(0).to_pylist()


def arrive(parking: Parking, *groups: int) -> list[tuple[Any, list[int], bool]]:
    return [(owner, rows(found), last) for owner, found, last in parking.arrive(map(KeyGroup, groups))]


def expecting(*groups: int) -> Parking:
    parking = Parking()
    parking.expect(map(KeyGroup, groups))
    return parking


def test_nothing_waits_when_all_state_is_here() -> None:
    parking = Parking()
    whole = batch(0, 1, 2)
    assert parking.cut("a", whole) == (whole, False)
    assert parking.empty


def test_rows_of_key_groups_that_are_here_do_not_wait() -> None:
    parking = expecting(3)
    whole = batch(0, 1, 2)
    assert parking.cut("a", whole) == (whole, False)


def test_a_batch_is_cut_into_what_can_be_applied_and_what_waits() -> None:
    parking = expecting(1)
    now, parked = parking.cut("a", batch(0, 1, 2, 1))
    assert (rows(now), parked) == ([0, 2], True)
    assert not parking.empty
    assert arrive(parking, 1) == [("a", [1, 3], True)]
    assert parking.empty


def test_a_batch_that_waits_as_a_whole_leaves_nothing_to_apply() -> None:
    assert expecting(1).cut("a", batch(1, 1)) == (None, True)


def test_the_last_of_a_batch_is_told() -> None:
    parking = expecting(1, 2)
    parking.cut("a", batch(1, 2, 1))
    assert arrive(parking, 2) == [("a", [1], False)]
    assert arrive(parking, 1) == [("a", [0, 2], True)]


def test_batches_of_one_key_group_come_out_in_the_order_in_which_they_came() -> None:
    parking = expecting(1)
    for number in range(3):
        parking.cut(number, batch(1, start=number))
    assert arrive(parking, 1) == [(0, [0], True), (1, [1], True), (2, [2], True)]


def test_what_arrives_without_being_waited_for_frees_nothing() -> None:
    parking = expecting(1)
    parking.cut("a", batch(1))
    assert arrive(parking, 0, 4) == []
    assert parking.left == 1


def test_the_end_of_a_turn_drops_its_rows_but_the_state_stays_on_its_way() -> None:
    parking = expecting(1)
    parking.cut("a", batch(1))
    parking.clear()
    assert parking.empty
    assert parking.absent(KeyGroup(1))
    assert arrive(parking, 1) == []


def test_state_that_will_not_come_is_not_waited_for() -> None:
    parking = expecting(1, 2)
    parking.forget()
    assert (parking.left, parking.absent(KeyGroup(1))) == (0, False)


def test_a_key_group_that_nobody_spoke_of_is_here() -> None:
    assert not expecting(1).absent(KeyGroup(99))


def test_state_that_arrived_can_be_on_its_way_again() -> None:
    parking = expecting(1)
    arrive(parking, 1)
    parking.expect([KeyGroup(1)])
    assert parking.cut("a", batch(1)) == (None, True)


group = st.integers(0, GROUPS - 1)
event = st.one_of(
    st.tuples(st.just("rows"), st.lists(group, min_size=1, max_size=5)),
    st.tuples(st.just("arrive"), st.lists(group, max_size=3)),
)


@given(absent=st.sets(group), events=st.lists(event, max_size=12))
def test_every_row_is_given_out_once_in_the_order_of_its_key_group(
    absent: set[int], events: list[tuple[str, list[int]]]
) -> None:
    parking, away = expecting(*absent), set(absent)
    came: dict[int, list[int]] = {number: [] for number in range(GROUPS)}
    given_out: dict[int, list[int]] = {number: [] for number in range(GROUPS)}
    group_of: dict[int, int] = {}

    def take(found: pa.RecordBatch | None) -> None:
        for row in rows(found):
            assert group_of[row] not in away, "a row came out before its state"
            given_out[group_of[row]].append(row)

    for kind, groups in [*events, ("arrive", list(range(GROUPS)))]:
        if kind == "arrive":
            away -= set(groups)
            for _, found, _ in parking.arrive(map(KeyGroup, groups)):
                take(found)
        else:
            start = len(group_of)
            group_of |= {start + place: name for place, name in enumerate(groups)}
            for place, name in enumerate(groups):
                came[name].append(start + place)
            take(parking.cut(start, batch(*groups, start=start))[0])
    assert given_out == came
    assert parking.empty
