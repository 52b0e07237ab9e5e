"""How much of a move an old owner does in a step, and how long it rests afterwards.

A step takes a few milliseconds: how many keys that are is found out on the way. After a step that nobody waited for it
leaves time to others. What is idle at both ends is there to be used, so a move takes that share of the time; but never
less than the strategy's floor, or a busy owner would never come to an end, and never more than its ceiling.

Copies get stale while others are made. Below some share more of them get stale than are made, and the longer it takes
the more has to go after the flip, when rows wait for it. So copying ahead takes a share that outruns what changes, also
of a busy owner; and after the flip, when somebody may wait for any key, no less than a quarter.
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
_OUTRUN = 3.0
"""So many times as many keys are copied as get stale meanwhile: what is left falls to a third with each round."""
_KNOWN = 0.05
"""Of fewer keys nothing is concluded for all of them."""
_SOON = 0.25
"""The least share after the flip."""
MOST_BYTES = 4 * _STEP_BYTES
"""What a step may take where keys are not like those before: the only one that is looked at first."""


class Changing:
    """How many copies get stale in a second, once all keys are copied."""

    def __init__(self, clock: Clock) -> None:
        self.keys_per_second = 0.0
        self._clock = clock
        self._since: float | None = None

    def sealed(self, touched: int, known: float) -> None:
        """An epoch has touched so many, of a share of the keys."""
        now, since = self._clock.monotonic(), self._since
        self._since = now
        if since is not None and now > since and known > 0:
            rate = touched / (now - since) / min(1.0, max(known, _KNOWN))
            self.keys_per_second = rate if not self.keys_per_second else (self.keys_per_second + rate) / 2


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
        self._worked, self._copied = 0.0, 0
        """Seconds that copying ahead took, and how many keys were copied."""
        self._changing = Changing(clock)
        self.flipped = False

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
        self._worked += took
        share = min(max(idle, self._least()), self._terms.most_share)
        pause = took * (1 / share - 1)
        if self._terms.bandwidth is not None:
            pause = max(pause, nbytes / self._terms.bandwidth - took)
        self._rests_until = started + took + pause

    def flip(self) -> None:
        """Ownership has passed on: rest no longer."""
        self.flipped = True
        self._rests_until = 0.0

    def copied(self, keys: int) -> None:
        """So many keys were copied ahead."""
        self._copied += keys

    def sealed(self, touched: int, known: float) -> None:
        """An epoch has touched so many of the keys that are listed, which are that share of all."""
        self._changing.sealed(touched, known)

    def _least(self) -> float:
        """What is taken of a busy owner."""
        if self.flipped:
            return max(self._terms.share, _SOON)
        each = self._worked / self._copied if self._copied else 0.0
        return max(self._terms.share, _OUTRUN * self._changing.keys_per_second * each)

    def _many(self, keys: int, started: float, before: float) -> float:
        return max(self._fit(keys, started, before), min(_FEWEST_LISTED, 2 * before))

    def _fit(self, keys: int, started: float, before: float) -> float:
        fits = keys * _STEP_SECONDS / max(self._clock.processor() - started, 1e-6)
        return min(max(fits, before / 2, _FEWEST_KEYS), before * 2)
