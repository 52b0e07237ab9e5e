"""Routing tables on the way from what is to what is wanted."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload.control.wish import Kind, Wish
from bedload.core.errors import DefinitionError
from bedload.core.ids import KeyGroup, WorkerId
from bedload.keys import RoutingTable
from bedload.migration import AUTO, STRATEGIES, Strategy, hash_set, plan, strategy_named
from bedload.migration.chooser import Facts, choose
from bedload.migration.hash_set import HashSet, pack, unpack
from bedload.migration.record import EpochSpan, MoveRecord, stoppages, with_latency
from bedload.migration.strategies import DEFAULT
from bedload.protocol.messages import Order, Terms, WaitsFor


def workers(count: int) -> list[WorkerId]:
    return [WorkerId(number) for number in range(count)]


def table(count: int, groups: int = 16) -> RoutingTable:
    return RoutingTable.initial(groups, workers(count))


@given(before=st.integers(1, 5), after=st.integers(1, 5), per_flip=st.one_of(st.none(), st.integers(1, 6)))
def test_steps_lead_to_the_target_and_move_each_key_group_once(before: int, after: int, per_flip: int | None) -> None:
    first = table(before)
    target = first.reassign(workers(after))
    moved: list[KeyGroup] = []
    last = first
    for step in plan.steps_of(first, target, per_flip):
        groups = [group for move in last.diff(step) for group in move.key_groups]
        assert per_flip is None or len(groups) <= per_flip
        moved += groups
        last = step
    assert last.owners == target.owners
    assert len(moved) == len(set(moved)) == sum(len(move.key_groups) for move in first.diff(target))


def test_nothing_to_do_is_no_step() -> None:
    assert plan.steps_of(table(2), table(2), None) == []


def test_a_pinned_key_leaves_its_key_group_and_comes_back() -> None:
    before = table(2, 4)
    pinned = plan.pin(before, [9], WorkerId(0) if before.owner_of_key(9) == 1 else WorkerId(1))
    (there,) = before.diff(pinned)
    assert (there.key_groups, there.keys) == ((), (9,))
    (back,) = pinned.diff(plan.unpin(pinned, [9]))
    assert (back.source, back.target, back.keys) == (there.target, there.source, (9,))


def test_a_pinned_key_stays_when_its_key_group_moves() -> None:
    before = table(2, 4)
    group = KeyGroup(9 % 4)
    owner = before.owners[group]
    other = WorkerId(1 - owner)
    pinned = plan.pin(before, [9], owner)
    (move,) = pinned.diff(plan.place(pinned, [group], other))
    assert (move.key_groups, move.keys, move.stay) == ((group,), (), (9,))


def test_pins_to_a_worker_that_leaves_are_let_go() -> None:
    pinned = plan.pin(table(2, 4), [9, 10], WorkerId(1))
    assert pinned.reassign([WorkerId(0)]).pins == ()


@given(loads=st.lists(st.floats(0, 100), min_size=16, max_size=16), count=st.integers(1, 4))
def test_balancing_never_makes_the_busiest_worker_busier(loads: list[float], count: int) -> None:
    before = table(count)
    weights = {worker: {group: loads[group] for group in before.groups_of(worker)} for worker in before.workers}
    after = plan.balance(before, weights)

    def busiest(routing: RoutingTable) -> float:
        return max(sum(loads[group] for group in routing.groups_of(worker)) for worker in routing.workers)

    assert busiest(after) <= busiest(before) + 1e-9
    mean = sum(loads) / count
    if busiest(before) <= mean * (1 + plan.TOLERANCE):
        assert after.owners == before.owners


def test_balancing_moves_one_key_group_where_one_is_enough() -> None:
    before = table(2, 4)
    after = plan.balance(before, {WorkerId(0): {0: 10.0, 1: 10.0}, WorkerId(1): {2: 0.0, 3: 0.0}})
    assert sum(len(move.key_groups) for move in before.diff(after)) == 1


def test_strategies_are_found_by_name() -> None:
    assert strategy_named("auto") is AUTO
    assert strategy_named("lazy") is STRATEGIES["lazy"]
    own = Strategy("own", order="backlog", bandwidth=1e6)
    assert strategy_named(own) is own
    with pytest.raises(DefinitionError, match="adaptive"):
        strategy_named("fast")


def test_no_strategy_is_the_default_at_every_depth() -> None:
    assert DEFAULT is STRATEGIES["seamless"]
    assert strategy_named(None) is DEFAULT
    assert Wish(Kind.REBALANCE).strategy is DEFAULT


@pytest.mark.parametrize(
    "bad", [{"order": "backlgo"}, {"waits_for": "keys"}, {"order": None}, {"waits_for": Order.BACKLOG}]
)
def test_words_that_no_worker_knows_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="is none of "):
        Strategy("own", **bad)


def test_the_words_of_strategies_are_those_that_travel() -> None:
    fields = get_type_hints(Strategy)
    assert get_args(fields["order"]) == tuple(it.value for it in Order)
    assert get_args(fields["waits_for"]) == tuple(it.value for it in WaitsFor)
    for strategy in STRATEGIES.values():
        words = (strategy.order, strategy.waits_for)
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(strategy.terms))
        assert sent == [strategy.copy_ahead, *words, strategy.share, strategy.bandwidth, strategy.most_share]
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(strategy.terms), type=Terms) == strategy.terms


@pytest.mark.parametrize("bad", [{"share": 0.0}, {"share": 1.5}, {"bandwidth": 0.0}, {"groups_per_flip": 0}])
def test_limits_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(DefinitionError):
        Strategy("own", **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "name", "word"),
    [
        (Facts(1000, 10, 5, 0.1, 16), "adaptive", "message"),
        (Facts(10**9, 10**6, 9 * 10**5, 0.1, 16), "adaptive", "out of date"),
        (Facts(10**9, 10**6, 10**3, 0.9, 16), "seamless", "hot ones first"),
        (Facts(10**9, 10**6, 10**3, 0.06, 16, 1e6), "seamless", "1 MB/s"),
    ],
)
def test_the_choice_says_why(facts: Facts, name: str, word: str) -> None:
    choice = choose(facts)
    assert choice.strategy.name == name
    assert word in choice.why


def test_keys_that_did_not_wait_count_as_not_stopped() -> None:
    assert stoppages(np.array([0.1]), 4)["stoppage_ms_p50"] == 0.0
    assert stoppages(np.array([0.1]), 4)["stoppage_ms_max"] == pytest.approx(100)
    assert stoppages(np.empty(0), 0)["stoppage_ms_p99"] == 0.0


def epochs(*seconds: float) -> list[EpochSpan]:
    return [EpochSpan(float(number), took) for number, took in enumerate(seconds)]


def record(began: float, took: float) -> MoveRecord:
    return MoveRecord(number=0, kind="rescale", operator="o", strategy="s", began=began, duration_s=took)


def test_the_spike_and_the_time_to_stabilise() -> None:
    series = epochs(*[0.1] * 5, 0.4, 0.3, 0.2, *[0.1] * 12)
    found = with_latency(record(5.0, 1.5), series)
    assert found.spike == pytest.approx(4.0)
    assert found.stabilise_s == pytest.approx(2.2)


def test_where_no_epoch_ran_there_is_no_latency_and_no_spike() -> None:
    quiet = with_latency(record(50.0, 1.5), epochs(*[0.1] * 5))
    assert (quiet.epoch_s_median, quiet.epoch_s_longest, quiet.spike) == (pytest.approx(0.1), None, None)
    first = with_latency(record(-1.0, 1.5), epochs(0.1, 0.3))
    assert (first.epoch_s_median, first.epoch_s_longest, first.spike) == (None, 0.1, None)


def test_a_latency_that_is_not_calm_yet_has_no_time_to_stabilise() -> None:
    found = with_latency(record(5.0, 1.5), epochs(*[0.1] * 5, 0.4, 0.1, 0.1))
    assert found.stabilise_s is None


def test_a_move_that_nobody_noticed_was_stable_at_once() -> None:
    assert with_latency(record(5.0, 1.5), epochs(*[0.1] * 20)).stabilise_s == 0.0


@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["add", "remove", "take over"]), st.lists(st.integers(-50, 50), max_size=10)),
        max_size=20,
    ),
    full=st.sampled_from([4, hash_set.FULL]),
)
def test_a_hash_set_is_a_set(changes: list[tuple[str, list[int]]], full: int) -> None:
    mine, model = HashSet(), set[int]()
    with mock.patch.object(hash_set, "FULL", full):
        for change, hashes in changes:
            some = np.array(hashes, np.int64)
            if change == "remove":
                mine.remove(some)
                model -= set(hashes)
                continue
            other = HashSet()
            (mine if change == "add" else other).add(some)
            mine.take_over(other)
            model |= set(hashes)
    every = np.arange(-50, 51)
    assert mine.has(every).tolist() == [it in model for it in every.tolist()]
    assert bool(mine) == bool(model)
    parts = mine.parts(3)
    assert max(map(len, parts), default=0) <= 3
    there = np.concatenate([np.empty(0, np.int64), *parts])
    assert set(there.tolist()) == model
    assert len(there) == len(mine)
    assert unpack(pack(there)).tolist() == there.tolist()


def test_what_is_full_is_not_merged() -> None:
    with mock.patch.object(hash_set, "FULL", 8):
        many = HashSet()
        for first in range(0, 64, 2):
            many.add(np.arange(first, first + 2))
    assert len(many) == 64
    assert max(map(len, many.parts(64))) < 16
