"""Interned values against a dict, while sweeps go on between what comes and goes, in pieces of any size."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.thorough import TIMES

from bedload.store.columns import interner as module
from bedload.store.columns.interner import Interner

GROUPS = 4
VALUES = st.lists(
    st.integers(0, 20).map(lambda number: f"{number}".rjust(number % 7, "x") * (1 + 40 * (number % 5 == 0))),
    min_size=1,
    max_size=8,
)


@pytest.fixture(autouse=True)
def _sweep_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SWEPT_FROM", 1)
    monkeypatch.setattr(module, "_SLICE", 1)


class Kept(RuleBasedStateMachine):
    """Keys are values, in the key group of their length."""

    def __init__(self) -> None:
        super().__init__()
        self.interner = Interner(pa.string())
        self.numbers: dict[str, int] = {}

    @rule(values=VALUES)
    def keys_come(self, values: list[str]) -> None:
        found = self.interner.encode(pa.array(values), add=True).tolist()
        for value, number in zip(values, found, strict=True):
            assert self.numbers.setdefault(value, number) == number

    @rule(values=VALUES)
    def keys_go(self, values: list[str]) -> None:
        gone = self.numbers.keys() & set(values)
        for value in gone:
            del self.numbers[value]
        self.interner.gone(len(gone))

    @rule(group=st.integers(0, GROUPS - 1))
    def a_key_group_goes(self, group: int) -> None:
        self.keys_go([value for value in self.numbers if len(value) % GROUPS == group])

    @rule(values=VALUES)
    def somebody_asks(self, values: list[str]) -> None:
        found = self.interner.encode(pa.array(values), add=False).tolist()
        for value, number in zip(values, found, strict=True):
            assert self.numbers.get(value, number) == number

    @rule(work=st.integers(1, 8))
    def it_tidies(self, work: int) -> None:
        before = self.interner.nbytes
        if self.interner.tidy(len(self.numbers), GROUPS, self._numbers_of, work):
            assert self.interner.nbytes <= before

    def _numbers_of(self, group: int) -> Iterator[np.ndarray]:
        mine = [value for value in self.numbers if len(value) % GROUPS == group]
        for at in range(0, len(mine), 2):  # by then some of them may have gone
            yield np.array([self.numbers[it] for it in mine[at : at + 2] if it in self.numbers], np.int64)

    @invariant()
    def all_keys_are_found_and_read(self) -> None:
        values, numbers = list(self.numbers), np.array(list(self.numbers.values()), np.int64)
        self.interner.check(numbers)
        assert self.interner.encode(pa.array(values, pa.string()), add=False).tolist() == numbers.tolist()
        assert self.interner.decode(numbers, None).to_pylist() == values


Kept.TestCase.settings = settings(max_examples=100 * TIMES, stateful_step_count=40, deadline=None)
TestKept = Kept.TestCase


def test_what_no_key_has_is_forgotten_however_small_the_pieces() -> None:
    it = Interner(pa.string())
    values = [f"value {number}" for number in range(1000)]
    numbers = it.encode(pa.array(values), add=True)
    full = it.nbytes
    kept = numbers[::10]
    it.gone(900)
    pieces = 0
    while not it.tidy(100, GROUPS, lambda group: [kept[group::GROUPS]], 1):
        pieces += 1
    assert pieces > 100
    assert it.encode(pa.array(values), add=False).tolist() == [n if n in set(kept) else -1 for n in numbers.tolist()]
    assert full - it.nbytes >= 900 * len("value 1....")
