"""A worker's sign of life: a thread that beats to the coordinator, apart from the loop that does the work.

It has a connection of its own, so that it beats while the loop is in operator code. With each beat it pokes the loop,
and says how long a poke has been unanswered and, when that is long, where the loop is.

Nothing is done about a beat that cannot be sent: silence is what the coordinator acts upon.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable

from bedload.core.clock import Clock
from bedload.core.errors import ClusterStopped
from bedload.core.ids import WorkerId
from bedload.protocol import messages as m
from bedload.transport import Channel, Endpoint

_TELL_WHERE_SECONDS = 2.0
_SEND_SECONDS = 5.0
"""How long a beat may take, and the connection for it: some round trips around the world, lost packets included."""
_MOST_BETWEEN_SECONDS = 4 * _SEND_SECONDS
"""Between two beats. If it was more, this process or its machine stood still, and the loop with it."""
_FRAMES = 12


class Pulse:
    """Beats until the endpoint's loop is over."""

    def __init__(
        self, worker: WorkerId, endpoint: Endpoint, connect: Callable[[float], Channel], clock: Clock, every: float
    ) -> None:
        """To be made on the loop's thread; ``connect`` calls the coordinator, within so many seconds."""
        self._worker = worker
        self._endpoint = endpoint
        self._connect = connect
        self._clock = clock
        self._every = every
        self._loop = threading.get_ident()
        self._looked = clock.monotonic()
        self._answered = True
        self._busy = 0.0
        """For how long the loop has not answered."""
        self._over = threading.Event()
        threading.Thread(target=self._run, name="bedload-pulse", daemon=True).start()

    def stop(self) -> None:
        """Beat no longer."""
        self._over.set()

    def _run(self) -> None:
        channel: Channel | None = None
        try:
            while not self._over.is_set():
                busy = self._poke()
                try:
                    if channel is None or channel.closed:
                        channel = self._connect(_SEND_SECONDS)
                    beat = m.Beat(self._worker, self._endpoint.address, busy, self._where(busy))
                    channel.send(m.encode(beat), timeout=_SEND_SECONDS)
                except Exception:
                    if channel is not None:
                        channel.close()
                        channel = None
                self._over.wait(self._every)
        except ClusterStopped:
            pass  # the loop is over
        finally:
            if channel is not None:
                channel.close()

    def _poke(self) -> float:
        """Ask the loop for an answer; for how long it has given none."""
        now = self._clock.monotonic()
        passed, self._looked = min(now - self._looked, _MOST_BETWEEN_SECONDS), now
        if self._answered:
            self._answered, self._busy = False, 0.0
            self._endpoint.call_soon(self._answer)
        else:
            self._busy += passed
        return self._busy

    def _answer(self) -> None:
        self._answered = True

    def _where(self, busy: float) -> str:
        if busy < _TELL_WHERE_SECONDS:
            return ""
        with contextlib.suppress(KeyError):
            return "".join(traceback.format_stack(sys._current_frames()[self._loop])[-_FRAMES:])
        return ""
