"""The one source of randomness of a simulation: everything that can go one way or another asks here.

Invariant: two simulations with the same seed ask the same questions in the same order, so they get the
same answers and are the same run. That is what makes a failing seed worth printing.
"""

from __future__ import annotations

import random  # noqa: TID251 - the one place: every choice of a simulation comes from its seed
from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Chance:
    """Choices that follow from a seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def happens(self, probability: float) -> bool:
        """Yes, with this probability."""
        return self._random.random() < probability

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self._random.randint(low, high)

    def pick(self, items: Sequence[_T]) -> _T:
        """One of the items."""
        return self._random.choice(items)

    def shuffled(self, items: Sequence[_T]) -> list[_T]:
        """The items in another order."""
        return self._random.sample(items, len(items))

    def delay(self, scale: float = 1.0) -> float:
        """A time: mostly short, now and then long, so that what usually comes second comes first."""
        base = self._random.random() * scale
        return base * 20 if self._random.random() < 0.08 else base
