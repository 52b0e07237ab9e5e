"""Rows that wait for the state of their key or key group: each is given out once, in its order, and not before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bedload.core.ids import KeyGroup
from bedload.migration.parking import ARRIVING, AWAITED, PATCHY, Parking

GROUPS = 5


def batch(*groups: int, start: int = 0) -> pa.RecordBatch:
    rows = pa.array(range(start, start + len(groups)), pa.int64())
    return pa.RecordBatch.from_arrays([rows, pa.array(groups, pa.int16())], names=["row", "group"])


def rows(found: pa.RecordBatch | None) -> list[int]:
    return [] if found is None else found.column(0).to_pylist()


def arrive(parking: Parking, *groups: int) -> list[tuple[Any, list[int], bool]]:
    return [(owner, rows(found), last) for owner, found, last in parking.arrive(map(KeyGroup, groups))]


def cut(parking: Parking, owner: Any, whole: pa.RecordBatch) -> tuple[pa.RecordBatch | None, bool]:
    now, waiting = parking.cut(owner, whole, lambda it: it.column(0).to_numpy())
    return now, waiting is not None


def expecting(*groups: int) -> Parking:
    parking = Parking()
    parking.expect(map(KeyGroup, groups))
    return parking


def test_nothing_waits_when_all_state_is_here() -> None:
    parking = Parking()
    whole = batch(0, 1, 2)
    assert cut(parking, "a", whole) == (whole, False)
    assert parking.empty


def test_rows_of_key_groups_that_are_here_do_not_wait() -> None:
    parking = expecting(3)
    whole = batch(0, 1, 2)
    assert cut(parking, "a", whole) == (whole, False)


def test_a_batch_is_cut_into_what_can_be_applied_and_what_waits() -> None:
    parking = expecting(1)
    now, parked = cut(parking, "a", batch(0, 1, 2, 1))
    assert (rows(now), parked) == ([0, 2], True)
    assert not parking.empty
    assert arrive(parking, 1) == [("a", [1, 3], True)]
    assert parking.empty


def test_a_batch_that_waits_as_a_whole_leaves_nothing_to_apply() -> None:
    assert cut(expecting(1), "a", batch(1, 1)) == (None, True)


def test_the_last_of_a_batch_is_told() -> None:
    parking = expecting(1, 2)
    cut(parking, "a", batch(1, 2, 1))
    assert arrive(parking, 2) == [("a", [1], False)]
    assert arrive(parking, 1) == [("a", [0, 2], True)]


def test_batches_of_one_key_group_come_out_in_the_order_in_which_they_came() -> None:
    parking = expecting(1)
    for number in range(3):
        cut(parking, number, batch(1, start=number))
    assert arrive(parking, 1) == [(0, [0], True), (1, [1], True), (2, [2], True)]


def test_what_arrives_without_being_waited_for_frees_nothing() -> None:
    parking = expecting(1)
    cut(parking, "a", batch(1))
    assert arrive(parking, 0, 4) == []
    assert parking.left == 1


def test_the_end_of_a_turn_drops_its_rows_but_the_state_stays_on_its_way() -> None:
    parking = expecting(1)
    cut(parking, "a", batch(1))
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
    assert cut(parking, "a", batch(1)) == (None, True)


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
            take(cut(parking, start, batch(*groups, start=start))[0])
    assert given_out == came
    assert parking.empty


# --- keys that another worker hands over: the key is the number of the row's key, its group that modulo GROUPS ---


def keyed(*keys: int) -> pa.RecordBatch:
    groups = [key % GROUPS for key in keys]
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.int64()), pa.array(groups, pa.int16())], names=["key", "group"]
    )


def hashes(*keys: int) -> Any:
    return np.array(keys, np.int64)


def test_rows_of_an_arriving_key_group_wait_for_their_key() -> None:
    parking = Parking()
    parking.hand_over([KeyGroup(1)], ARRIVING)
    now, parked = cut(parking, "a", keyed(0, 1, 6, 2))
    assert (rows(now), parked) == ([0, 2], True)
    assert [rows(found) for _, found, _ in parking.arrive_keys(hashes(6), 1.0)] == [[6]]
    assert rows(cut(parking, "b", keyed(6, 1))[0]) == [6]
    assert [rows(found) for _, found, _ in parking.arrive_keys(hashes(1), 2.0)] == [[1], [1]]


def test_of_a_patchy_key_group_only_the_missing_keys_wait() -> None:
    parking = Parking()
    parking.hand_over([KeyGroup(1)], PATCHY)
    parking.miss(hashes(6))
    now, _ = cut(parking, "a", keyed(1, 6, 11))
    assert rows(now) == [1, 11]
    assert [rows(found) for _, found, _ in parking.arrive_keys(hashes(6), 1.0)] == [[6]]


def test_of_an_awaited_key_group_all_wait_until_it_is_known_what_is_missing() -> None:
    parking = Parking()
    parking.hand_over([KeyGroup(1)], AWAITED)
    assert cut(parking, "a", keyed(1, 6)) == (None, True)
    parking.miss(hashes(6))
    assert [rows(found) for _, found, _ in parking.hand_over([KeyGroup(1)], PATCHY)] == [[1]]
    assert [rows(found) for _, found, _ in parking.settle(1.0)] == [[6]]


def test_how_long_a_key_waited_counts_from_its_first_row() -> None:
    parking = Parking()
    parking.hand_over([KeyGroup(1)], ARRIVING)
    for since in (1.0, 2.0):
        parking.cut(since, keyed(1), lambda it: it.column(0).to_numpy(), since)
    parking.arrive_keys(hashes(1), 5.0)
    assert [(keys.tolist(), seconds) for keys, seconds in parking.waits] == [([1], 4.0), ([1], 3.0)]
    assert parking.rows == 2


def test_reading_back_supersedes_a_hand_over() -> None:
    parking = Parking()
    parking.hand_over([KeyGroup(1)], ARRIVING)
    parking.expect([KeyGroup(1)])
    cut(parking, "a", keyed(1))
    assert parking.arrive_keys(hashes(1), 1.0) == []
    assert arrive(parking, 1) == [("a", [1], True)]


key = st.integers(0, 19)
keyed_event = st.one_of(
    st.tuples(st.just("rows"), st.lists(key, min_size=1, max_size=6)),
    st.tuples(st.just("keys"), st.lists(key, max_size=4)),
    st.tuples(st.just("here"), st.lists(group, max_size=2)),
)


@given(
    kinds=st.dictionaries(group, st.sampled_from([ARRIVING, AWAITED, PATCHY])),
    missing=st.sets(key),
    events=st.lists(keyed_event, max_size=15),
)
def test_every_row_is_given_out_once_in_the_order_of_its_key(
    kinds: dict[int, int], missing: set[int], events: list[tuple[str, list[int]]]
) -> None:
    parking = Parking()
    for name, kind in kinds.items():
        parking.hand_over([KeyGroup(name)], kind)
    parking.miss(hashes(*missing))
    arrived: set[int] = set()
    came: dict[int, list[int]] = {}
    out: dict[int, list[int]] = {}
    key_of: dict[int, int] = {}

    def is_here(it: int) -> bool:
        kind = kinds.get(it % GROUPS)
        if kind is None:
            return True
        return kind != AWAITED and (it in arrived or (kind == PATCHY and it not in missing))

    def take(found: pa.RecordBatch | None) -> None:
        for row in [] if found is None else found.column(2).to_pylist():
            assert is_here(key_of[row]), "a row came out before its state"
            out.setdefault(key_of[row], []).append(row)

    for what, named in events:
        if what == "rows":
            whole = keyed(*named)
            numbers = list(range(len(key_of), len(key_of) + len(named)))
            key_of |= dict(zip(numbers, named, strict=True))
            for number in numbers:
                came.setdefault(key_of[number], []).append(number)
            # The group is the last column.
            whole = pa.RecordBatch.from_arrays(
                [whole.column(0), whole.column(1), pa.array(numbers, pa.int64()), whole.column(1)],
                names=["key", "unused", "row", "group"],
            )
            take(cut(parking, numbers[0], whole)[0])
        elif what == "keys":
            arrived |= set(named)
            for _, found, _ in parking.arrive_keys(hashes(*named), 0.0):
                take(found)
        else:
            for name in named:
                kinds.pop(name, None)
            for _, found, _ in parking.hand_over(map(KeyGroup, named), 0):
                take(found)
    kinds.clear()
    for _, found, _ in parking.settle(0.0):
        take(found)
    assert out == came
    assert parking.empty
