"""Changes of an in-process cluster: workers come and go, keys move and are pinned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bedload.control.coordinator import Coordinator
from bedload.control.instructions import Instruction
from bedload.control.wish import Kind, Wish
from bedload.core.ids import KeyGroup, WorkerId
from bedload.migration import AUTO, Auto, Strategy, strategy_named
from bedload.testing.input import InputFormat


class Changing:
    """The part of an in-process cluster that asks for changes of it."""

    coordinator: Coordinator
    _format: InputFormat

    def _carry_out(self, steps: list[Instruction]) -> None:
        raise NotImplementedError

    def rescale(self, workers: int, strategy: str | Strategy | None = None) -> None:
        """Have so many workers, while the query runs.

        ``strategy`` means what it does for :meth:`bedload.Cluster.rescale`, here and in the calls below. What is named
        takes all of the time that it can have, since nobody else needs it.
        """
        self._change(Wish(Kind.RESCALE, self._quick(strategy), workers=workers))

    def move(self, key_groups: Sequence[int], to: int, strategy: str | Strategy | None = None) -> None:
        """Have key groups at a worker."""
        groups = tuple(KeyGroup(group) for group in key_groups)
        self._change(Wish(Kind.MOVE, self._quick(strategy), worker=WorkerId(to), groups=groups))

    def drain(self, worker: int, strategy: str | Strategy | None = None) -> None:
        """Have a worker leave."""
        self._change(Wish(Kind.DRAIN, self._quick(strategy), worker=WorkerId(worker)))

    def pin(self, keys: Sequence[Any], to: int, strategy: str | Strategy | None = None) -> None:
        """Have single keys at a worker, whatever becomes of their key groups."""
        hashes = tuple(self._format.hash(key) for key in keys)
        self._change(Wish(Kind.PIN, self._quick(strategy), worker=WorkerId(to), keys=hashes))

    def unpin(self, keys: Sequence[Any], strategy: str | Strategy | None = None) -> None:
        """Have single keys live with their key groups again."""
        self._change(Wish(Kind.UNPIN, self._quick(strategy), keys=tuple(self._format.hash(key) for key in keys)))

    def _quick(self, strategy: str | Strategy | None) -> Strategy | Auto:
        # Nothing else waits for the time that the background leaves to others, and there is no wire to spare.
        meant = strategy_named(strategy)
        return meant if meant is AUTO else meant.with_(share=1.0, bandwidth=None)

    def _change(self, wish: Wish) -> None:
        _, steps = self.coordinator.change("change", wish)
        self._carry_out(steps)
