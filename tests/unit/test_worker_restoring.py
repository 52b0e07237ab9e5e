"""State that was read back is put in a little at a time: all of it, in any steps, and what somebody waits for first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bedload.core.ids import DeploymentId, Epoch, KeyGroup, OperatorName, QueryId, Turn, WorkerId
from bedload.core.limits import Limits
from bedload.migration.holdings import Holdings
from bedload.protocol import messages as m
from bedload.store.deltas import GROUP, key_column
from bedload.worker.durability import Hurry, Load, Loaded
from bedload.worker.restoring import Restoring

NAME = OperatorName("Count")


class Ticking:
    """A clock on which a key takes so many seconds."""

    def __init__(self, per_key: float) -> None:
        self.per_key = per_key
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.now


class Shelf:
    """A runtime that remembers what was installed, in which steps."""

    def __init__(self, clock: Ticking) -> None:
        self._clock = clock
        self.held: dict[int, list[int]] = {}
        self.steps: list[list[int]] = []
        self.foreseen: list[int] = []

    def foresee(self, keys: int) -> None:
        self.foreseen.append(keys)

    @property
    def keys(self) -> int:
        return sum(map(len, self.held.values()))

    def install(self, groups: Iterable[int], state: pa.RecordBatch | None, more: Any = (), expect: int = 0) -> None:
        keys = [] if state is None else state.column(key_column(0)).to_pylist()
        of = [] if state is None else state.column(GROUP).to_pylist()
        for group in groups:
            assert (group in self.held) == (group in more), f"{group} was begun, or not"
            self.held.setdefault(group, [])
        for key, group in zip(keys, of, strict=True):
            self.held[group].append(key)
        assert set(of) <= set(groups)
        self.steps.append(keys)
        self._clock.now += len(keys) * self._clock.per_key


class Rig:
    def __init__(self, rows: int = 1 << 16, per_key: float = 1e-6) -> None:
        self.clock = Ticking(per_key)
        self.holdings = Holdings()
        self.limits = Limits(install_rows=rows)
        self.restoring = Restoring(WorkerId(0), NAME, self.holdings, self.clock, self.limits)
        self.runtime: Any = Shelf(self.clock)

    def order(self, *groups: int) -> Load:
        told = m.Restore(
            NAME, Turn(1), DeploymentId(0), tuple(map(KeyGroup, groups)), Epoch(0), QueryId("q"), (), (), ()
        )
        for group in groups:
            self.runtime.held.pop(group, None)  # the machine drops them first
        order = self.restoring.order(told, b"plan")
        assert order is not None
        return order

    def comes(self, order: Load, keys: dict[int, list[int]], expected: int = 0) -> None:
        groups = [group for group, its in sorted(keys.items()) for _ in its]
        columns = [pa.array(groups, pa.int16()), pa.array([key for _, its in sorted(keys.items()) for key in its])]
        state = pa.RecordBatch.from_arrays(columns, [GROUP, key_column(0)])
        self.restoring.take(Loaded(NAME, order.ticket, tuple(map(KeyGroup, keys)), state, 0, expected))

    def step(self) -> tuple[int, ...] | None:
        news = self.restoring.step(self.runtime)
        self.restoring.check()
        self.holdings.check()
        return None if news is None else news.groups

    def all_steps(self) -> None:
        while self.restoring.busy:
            self.step()

    def slice(self) -> float:
        told = self.restoring.progress(self.runtime)[1]
        assert isinstance(told, m.Restored)
        return told.slice


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 1000])
def test_all_of_it_is_put_in_whatever_the_steps(rows: int) -> None:
    chance = np.random.default_rng(rows)
    rig = Rig(rows)
    sizes = [0, 0, *chance.integers(0, 6, 10).tolist(), 0, 9, 0]
    keys = {group: list(range(100 * group, 100 * group + size)) for group, size in enumerate(sizes)}
    rig.comes(rig.order(*keys), keys)
    rig.all_steps()
    assert rig.runtime.held == keys, "each key group once, also those without keys"
    assert max(map(len, rig.runtime.steps)) <= rows
    assert rig.holdings.whole


def test_what_is_to_come_is_foreseen_once() -> None:
    rig = Rig(rows=2)
    order = rig.order(0, 1)
    rig.comes(order, {0: [1, 2, 3]}, expected=5)
    rig.comes(order, {1: [4, 5]})
    rig.all_steps()
    assert rig.runtime.foreseen == [5]


def test_a_key_group_is_here_when_all_of_its_chunk_is() -> None:
    rig = Rig(rows=2)
    rig.comes(rig.order(0, 1), {0: [1, 2, 3], 1: [4, 5]})
    assert [rig.step(), rig.step()] == [None, None]
    assert rig.holdings.left == 2
    assert rig.step() == (0, 1)
    assert rig.holdings.left == 0


def test_as_many_keys_go_into_a_step_as_its_time_allows() -> None:
    rig = Rig(per_key=1e-6)
    rig.comes(rig.order(0), {0: list(range(50_000))})
    rig.all_steps()
    sizes = list(map(len, rig.runtime.steps))
    assert sizes[0] == 256, "nothing is known of them yet"
    assert max(sizes) == 2000, "what two milliseconds are enough for"
    assert rig.slice() == pytest.approx(0.002)
    rig.clock.per_key = 1e-4
    rig.comes(rig.order(0), {0: list(range(5000))})
    rig.all_steps()
    assert min(map(len, rig.runtime.steps[len(sizes) : -1])) == 256, "not less, however long they take"


def test_the_longest_step_is_told_and_begins_anew_with_the_next_order() -> None:
    rig = Rig(per_key=1e-3)
    rig.comes(rig.order(0), {0: [1, 2, 3]})
    rig.all_steps()
    assert rig.slice() == pytest.approx(0.003)
    rig.comes(rig.order(0), {0: [1]})
    rig.all_steps()
    assert rig.slice() == pytest.approx(0.001)


def test_what_somebody_waits_for_goes_first_also_before_what_is_begun() -> None:
    rig = Rig(rows=2)
    order = rig.order(0, 1, 2)
    rig.comes(order, {0: [1, 2, 3]})
    rig.comes(order, {1: [4]})
    assert rig.step() is None
    rig.comes(order, {2: [5, 6, 7]})
    rig.holdings.ask(np.array([2, 2]))
    assert rig.restoring.hurry() == [("loader", Hurry(NAME, order.ticket, (KeyGroup(2),)), None)]
    assert rig.restoring.hurry() == [], "it was said"
    assert [rig.step(), rig.step(), rig.step(), rig.step()] == [None, (2,), (0,), (1,)]
    assert rig.runtime.steps == [[1, 2], [5, 6], [7], [3], [4]]


def test_nobody_hurries_for_what_is_here() -> None:
    rig = Rig()
    rig.comes(rig.order(0, 1), {0: [1]})
    rig.all_steps()
    rig.holdings.ask(np.array([0]))
    assert rig.restoring.hurry() == []
    assert not rig.restoring.busy


def test_a_newer_order_takes_the_rest_of_a_chunk_back() -> None:
    rig = Rig(rows=2)
    old = rig.order(0, 1)
    rig.comes(old, {0: [1, 2, 3], 1: [4, 5, 6]})
    rig.step()
    new = rig.order(0)
    rig.comes(new, {0: [10, 20, 30]})
    rig.all_steps()
    assert rig.runtime.held == {0: [10, 20, 30], 1: [4, 5, 6]}


def test_an_order_that_is_taken_back_as_a_whole_leaves_nothing_to_do() -> None:
    rig = Rig(rows=1)
    rig.comes(rig.order(0), {0: [1, 2]})
    rig.step()
    rig.order(0)
    assert not rig.restoring.busy
    assert rig.step() is None
    assert rig.runtime.held == {}


@pytest.mark.parametrize("late", [False, True])
def test_a_chunk_that_is_taken_back_as_a_whole_does_not_outlive_its_order(late: bool) -> None:
    rig = Rig(rows=2)
    old = rig.order(0, 1)
    if not late:
        rig.comes(old, {0: [1, 2, 3]})
    rig.comes(old, {1: [4]})
    new = rig.order(0)
    if late:
        rig.comes(old, {0: [1, 2, 3]})
    rig.holdings.ask(np.array([1]))  # so that it goes first, and with it the old order is over
    assert rig.step() == (1,)
    rig.comes(new, {0: [10, 20, 30]})
    rig.all_steps()
    assert rig.runtime.held == {0: [10, 20, 30], 1: [4]}
