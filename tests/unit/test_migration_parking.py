"""Rows that wait for the state of their key or key group: each is given out once, in its order, and not before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from bedload.core.ids import KeyGroup
from bedload.core.limits import Limits
from bedload.migration.holdings import Holdings, Presence
from bedload.migration.parking import Parking

GROUPS = 5


def batch(*groups: int, start: int = 0) -> pa.RecordBatch:
    rows = pa.array(range(start, start + len(groups)), pa.int64())
    return pa.RecordBatch.from_arrays([rows, pa.array(groups, pa.int16())], names=["row", "group"])


def rows(found: pa.RecordBatch | None) -> list[int]:
    return [] if found is None else found.column(0).to_pylist()


Given = list[tuple[Any, list[int], bool]]


def free(parking: Parking, now: float = 0.0, only: Any = None) -> Given:
    parking.holdings.check()
    return [(owner, rows(found), last) for owner, found, last in parking.free(now, only)]


def arrive(parking: Parking, *groups: int) -> Given:
    parking.holdings.arrive(map(KeyGroup, groups))
    return free(parking)


def arrive_keys(parking: Parking, *keys: int, now: float = 0.0) -> list[list[int]]:
    parking.holdings.arrive_keys(hashes(*keys))
    return [found for _, found, _ in free(parking, now, hashes(*keys))]


def cut(parking: Parking, owner: Any, whole: pa.RecordBatch, now: float = 0.0) -> tuple[pa.RecordBatch | None, bool]:
    found, waiting = parking.cut(owner, whole, lambda it: it.column(0).to_numpy(), now)
    return found, waiting is not None


def expecting(*groups: int, at_once: int = 1 << 16) -> Parking:
    parking = Parking(Holdings(), Limits(free_rows=at_once))
    parking.holdings.expect(map(KeyGroup, groups))
    return parking


def handed(groups: dict[int, Presence], *missing: int, at_once: int = 1 << 16) -> Parking:
    parking = Parking(Holdings(), Limits(free_rows=at_once))
    for name, presence in groups.items():
        parking.holdings.hand_over([KeyGroup(name)], presence)
    parking.holdings.miss(hashes(*missing))
    return parking


def test_nothing_waits_when_all_state_is_here() -> None:
    parking = expecting()
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
    assert parking.holdings.left == 1


def test_the_end_of_a_turn_drops_its_rows_but_the_state_stays_on_its_way() -> None:
    parking = expecting(1)
    cut(parking, "a", batch(1))
    parking.clear()
    assert parking.empty
    assert parking.holdings.absent(KeyGroup(1))
    assert arrive(parking, 1) == []


def test_state_that_will_not_come_is_not_waited_for() -> None:
    holdings = expecting(1, 2).holdings
    holdings.forget()
    assert (holdings.left, holdings.absent(KeyGroup(1))) == (0, False)


def test_a_key_group_that_nobody_spoke_of_is_here() -> None:
    assert not expecting(1).holdings.absent(KeyGroup(99))


def test_state_that_arrived_can_be_on_its_way_again() -> None:
    parking = expecting(1)
    arrive(parking, 1)
    parking.holdings.expect([KeyGroup(1)])
    assert cut(parking, "a", batch(1)) == (None, True)


group = st.integers(0, GROUPS - 1)
event = st.one_of(
    st.tuples(st.just("rows"), st.lists(group, min_size=1, max_size=5)),
    st.tuples(st.just("arrive"), st.lists(group, max_size=3)),
    st.tuples(st.just("look"), st.just(list[int]())),
)
at_once = st.sampled_from([1, 2, 4, 1 << 16])


@given(absent=st.sets(group), events=st.lists(event, max_size=12), at_once=at_once)
def test_every_row_is_given_out_once_in_the_order_of_its_key_group(
    absent: set[int], events: list[tuple[str, list[int]]], at_once: int
) -> None:
    parking, away = expecting(*absent, at_once=at_once), set(absent)
    came: dict[int, list[int]] = {number: [] for number in range(GROUPS)}
    given_out: dict[int, list[int]] = {number: [] for number in range(GROUPS)}
    group_of: dict[int, int] = {}

    def take(found: pa.RecordBatch | None) -> None:
        for row in rows(found):
            assert group_of[row] not in away, "a row came out before its state"
            given_out[group_of[row]].append(row)

    for kind, groups in [*events, ("arrive", list(range(GROUPS)))]:
        if kind == "look":
            for _, found, _ in parking.free_some(0.0):
                take(found)
        elif kind == "arrive":
            away -= set(groups)
            parking.holdings.arrive(map(KeyGroup, groups))
            for _, found, _ in parking.free(0.0):
                take(found)
        else:
            start = len(group_of)
            group_of |= {start + place: name for place, name in enumerate(groups)}
            for place, name in enumerate(groups):
                came[name].append(start + place)
            take(cut(parking, start, batch(*groups, start=start))[0])
    while parking.due:
        for _, found, _ in parking.free_some(0.0):
            take(found)
    assert given_out == came
    assert parking.empty


def test_rows_that_waited_come_out_some_at_a_time_before_later_ones_of_their_key_group() -> None:
    parking = expecting(1, 2, at_once=2)
    for owner, groups in (("a", (1, 2)), ("b", (1,)), ("c", (2, 2)), ("d", (1, 0))):
        cut(parking, owner, batch(*groups))
    assert arrive(parking, 1) == [("a", [0], False)]
    assert parking.due
    found, waits = cut(parking, "e", batch(1, 2, 0))
    assert (rows(found), waits) == ([2], True), "rows of the first key group are before it that were not looked at"
    out = []
    while parking.due:
        out += [(owner, rows(found), last) for owner, found, last in parking.free_some(0.0)]
    assert out == [("b", [0], True), ("d", [0], True), ("e", [0], False)]
    assert arrive(parking, 2) == [("a", [1], True), ("c", [0, 1], True)]


# --- keys that another worker hands over: the key is the number of the row's key, its group that modulo GROUPS ---


def keyed(*keys: int) -> pa.RecordBatch:
    groups = [key % GROUPS for key in keys]
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.int64()), pa.array(groups, pa.int16())], names=["key", "group"]
    )


def hashes(*keys: int) -> Any:
    return np.array(keys, np.int64)


def test_rows_of_an_arriving_key_group_wait_for_their_key() -> None:
    parking = handed({1: Presence.ARRIVING})
    now, parked = cut(parking, "a", keyed(0, 1, 6, 2))
    assert (rows(now), parked) == ([0, 2], True)
    assert arrive_keys(parking, 6) == [[6]]
    assert rows(cut(parking, "b", keyed(6, 1))[0]) == [6]
    assert arrive_keys(parking, 1) == [[1], [1]]


def test_of_a_patchy_key_group_only_the_missing_keys_wait() -> None:
    parking = handed({1: Presence.PATCHY}, 6)
    now, _ = cut(parking, "a", keyed(1, 6, 11))
    assert rows(now) == [1, 11]
    assert arrive_keys(parking, 6) == [[6]]


def test_of_an_awaited_key_group_all_wait_until_it_is_known_what_is_missing() -> None:
    parking = handed({1: Presence.AWAITED}, 6)
    assert cut(parking, "a", keyed(1, 6)) == (None, True)
    parking.holdings.hand_over([KeyGroup(1)], Presence.PATCHY)
    assert free(parking) == [("a", [1], False)]
    parking.holdings.all_here()
    assert free(parking) == [("a", [6], True)]


def test_how_long_a_key_waited_counts_from_its_first_row() -> None:
    parking = handed({1: Presence.ARRIVING})
    for since in (1.0, 2.0):
        cut(parking, since, keyed(1), since)
    arrive_keys(parking, 1, now=5.0)
    assert [(keys.tolist(), seconds) for keys, seconds in parking.waits(9.0)] == [([1], 4.0), ([1], 3.0)]
    assert parking.rows == 2


def test_keys_that_are_asked_for_again_and_again_are_counted_once() -> None:
    parking = handed({1: Presence.ARRIVING})
    arrive_keys(parking, 1, 6)
    for owner in range(50):
        cut(parking, owner, keyed(1, 6, 2, 1))
    cut(parking, "last", keyed(11, 1))
    assert len(parking.asked) == 3


def test_reading_back_supersedes_a_hand_over() -> None:
    parking = handed({1: Presence.ARRIVING})
    parking.holdings.expect([KeyGroup(1)])
    cut(parking, "a", keyed(1))
    assert arrive_keys(parking, 1) == []
    assert arrive(parking, 1) == [("a", [1], True)]


def test_rows_that_wait_for_a_key_group_to_be_read_are_asked_of_nobody() -> None:
    parking = expecting(1)
    cut(parking, "a", keyed(1))
    parking.holdings.hand_over([KeyGroup(2)], Presence.ARRIVING)
    cut(parking, "b", keyed(2))
    assert parking.waiting_keys().tolist() == [2]


key = st.integers(0, 19)
keyed_event = st.one_of(
    st.tuples(st.just("rows"), st.lists(key, min_size=1, max_size=6)),
    st.tuples(st.just("keys"), st.lists(key, max_size=4)),
    st.tuples(st.just("here"), st.lists(group, max_size=2)),
    st.tuples(st.just("look"), st.just(list[int]())),
)


@given(
    kinds=st.dictionaries(group, st.sampled_from([it for it in Presence if it is not Presence.HERE])),
    missing=st.sets(key),
    events=st.lists(keyed_event, max_size=15),
    at_once=at_once,
)
def test_every_row_is_given_out_once_in_the_order_of_its_key(
    kinds: dict[int, Presence], missing: set[int], events: list[tuple[str, list[int]]], at_once: int
) -> None:
    parking = handed(kinds, *missing, at_once=at_once)
    arrived: set[int] = set()
    came: dict[int, list[int]] = {}
    out: dict[int, list[int]] = {}
    key_of: dict[int, int] = {}

    def is_here(it: int) -> bool:
        kind = kinds.get(it % GROUPS)
        if kind is None:
            return True
        return kind != Presence.AWAITED and (it in arrived or (kind == Presence.PATCHY and it not in missing))

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
            parking.holdings.arrive_keys(hashes(*named))
            for _, found, _ in parking.free(0.0, hashes(*named)):
                take(found)
        elif what == "look":
            for _, found, _ in parking.free_some(0.0):
                take(found)
        else:
            for name in named:
                kinds.pop(name, None)
            parking.holdings.hand_over(map(KeyGroup, named), Presence.HERE)
            for _, found, _ in parking.free(0.0):
                take(found)
    kinds.clear()
    parking.holdings.all_here()
    for _, found, _ in parking.free(0.0):
        take(found)
    while parking.due:
        for _, found, _ in parking.free_some(0.0):
            take(found)
    assert out == came
    assert parking.empty
