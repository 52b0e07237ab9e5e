"""The log of a large sequence: the committed positions as a window over the current ones.

Invariants: committed position ``v`` is at current position ``v - base`` unless the log holds its old
value; ``size`` is the committed length. So an append or a push at the left logs nothing, and a pop at
either end or a write logs the one entry that it takes away.

Why a window: bounded lists and deques drop from one end what they gain at the other. Positions from
the front would shift with every drop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bedload.state.changes import SequenceChanges


class WindowLog(dict[int, Any]):
    """Committed position to old value."""

    __slots__ = ("base", "children", "size")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.base = 0
        self.children = False
        """Whether an entry changed in place; which one is found by looking."""

    def note(self, current: Any, index: int) -> None:
        """Keep the entry at a current position (not negative) before it goes."""
        at = self.base + index
        if 0 <= at < self.size and at not in self:
            self[at] = current[index]

    def committed(self, current: Sequence[Any]) -> list[Any]:
        """The committed sequence."""
        base, size = self.base, self.size
        low, high = max(0, base), min(size, base + len(current))
        old: list[Any] = [None] * size
        if low < high:
            old[low:high] = current[low - base : high - base]
        for at, value in self.items():
            old[at] = value
        return old

    def differs(self, current: Any, child_differs: Callable[[Any], bool] | None) -> bool:
        """Whether the current sequence is other than the committed one."""
        if self.base or len(current) != self.size:
            return True
        for at, old in self.items():
            now = current[at]
            if now is not old and (child_differs is not None or now != old):
                return True
        return child_differs is not None and self.children and any(map(child_differs, current))

    def news(self, current: Sequence[Any], dirty_at: Sequence[int]) -> list[Any]:
        """The entries that are not the committed ones, or changed in place."""
        found = self.changes(current, lambda value: value, dirty_at)
        return [*found.head, *found.tail, *found.items.values()]

    def changes(self, current: Sequence[Any], plain: Callable[[Any], Any], dirty_at: Sequence[int]) -> SequenceChanges:
        """What changed; ``dirty_at`` are the current positions of entries that changed in place."""
        base = self.base
        low, high = max(0, base), min(self.size, base + len(current))
        if low >= high:
            return SequenceChanges(0, 0, (), tuple(map(plain, current)), {})
        touched = sorted({at for at in self if low <= at < high} | {base + i for i in dirty_at})
        return SequenceChanges(
            low,
            high - low,
            tuple(map(plain, current[: low - base])),
            tuple(map(plain, current[high - base :])),
            {at - low: plain(current[at - base]) for at in touched if low <= at < high},
        )
