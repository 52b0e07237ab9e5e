"""How much of a move an old owner does in a step, and how long it rests afterwards.

A step takes a few milliseconds: how many keys that are is found out on the way. After a step that nobody waited for it
leaves time to others. What is idle at both ends is there to be used, so a move takes that share of the time; but never
less than the strategy's floor, or a busy owner would never come to an end, and never more than its ceiling.
"""

from __future__ import annotations

from collections.abc import Callable

from bedload.core.clock import Clock
from bedload.keys.lookup import Hashes
from bedload.migration.slices import Slices, Step
from bedload.protocol.messages import Terms
from bedload.store.shelf import Collected

_FIRST_KEYS = 256
"""Keys of the first step: how long a key takes is not known yet."""
_FEWEST_KEYS = 16.0
_FEWEST_LISTED = 1024.0
"""To list or note so many takes less than all else in a step. With fewer, a slow machine would come to no end."""
_MOST_NOTED = 4096.0
"""With few keys on a shelf noting takes a tenth of what it takes with many: that says nothing of a larger step."""
_STEP_SECONDS = 0.002
"""What a step may take: rows of other keys wait that long."""
_STEP_BYTES = 1 << 20
MOST_BYTES = 4 * _STEP_BYTES
"""What a step may take where keys are not like those before: the only one that is looked at first."""


class Pace:
    """Of one move at one old owner."""

    def __init__(self, terms: Terms, clock: Clock, most_keys: int, slices: Slices) -> None:
        self._terms = terms
        self._clock = clock
        self._most_keys = most_keys
        self._slices = slices
        self._collected = self._listed = self._noted = float(_FIRST_KEYS)
        """Keys that fit into a step."""
        self._rests_until = 0.0

    def keys(self, key_bytes: float) -> int:
        """How many keys to collect in a step."""
        return max(1, int(min(self._collected, _STEP_BYTES / max(1.0, key_bytes), self._most_keys)))

    def collect(self, key_bytes: float, collect: Callable[[], Collected]) -> Collected:
        """Collect, and find out how many keys make a step."""
        limit, started = self.keys(key_bytes), self._clock.processor()
        with self._slices.timing(Step.COLLECT):
            state, left = collect()
        if state is not None and state.num_rows * 2 > limit:
            self._collected = min(self._fit(state.num_rows, started, self._collected), float(self._most_keys))
        return state, left

    def list_some(self, list_some: Callable[[int], Hashes]) -> Hashes:
        """List as many keys as make a step."""
        keys, started = int(min(self._listed, self._most_keys)), self._clock.processor()
        with self._slices.timing(Step.LIST):
            touched = list_some(keys)
        self._listed = self._many(keys, started, self._listed)
        return touched

    def note_some(self, unnoted: int, note_some: Callable[[int], Hashes]) -> None:
        """Note as many of the keys that are not noted as make a step."""
        keys, started = min(int(min(self._noted, self._most_keys, _MOST_NOTED)), unnoted), self._clock.processor()
        with self._slices.timing(Step.NOTE):
            note_some(keys)
        if keys * 2 > self._noted:
            self._noted = self._many(keys, started, self._noted)

    def rests(self) -> float:
        """For how many seconds nothing is done that nobody waits for; 0: it can be."""
        return max(0.0, self._rests_until - self._clock.monotonic())

    def worked(self, started: float, nbytes: int, idle: float) -> None:
        """Something was done that nobody waited for; ``idle``: the share of their time that both ends have to spare."""
        took = self._clock.monotonic() - started
        share = min(max(idle, self._terms.share), self._terms.most_share)
        pause = took * (1 / share - 1)
        if self._terms.bandwidth is not None:
            pause = max(pause, nbytes / self._terms.bandwidth - took)
        self._rests_until = started + took + pause

    def hurry(self) -> None:
        """Rest no longer."""
        self._rests_until = 0.0

    def _many(self, keys: int, started: float, before: float) -> float:
        return max(self._fit(keys, started, before), min(_FEWEST_LISTED, 2 * before))

    def _fit(self, keys: int, started: float, before: float) -> float:
        fits = keys * _STEP_SECONDS / max(self._clock.processor() - started, 1e-6)
        return min(max(fits, before / 2, _FEWEST_KEYS), before * 2)
