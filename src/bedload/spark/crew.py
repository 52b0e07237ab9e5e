"""Workers that come and go while the cluster runs: a host starts, replaces and ends them.

Invariants:
- A worker that is awaited either arrives or is reported as not coming, never both.
- A number is given to a new worker only after the one that had it before is gone.

Why on threads of their own: a host may wait for seconds, and the coordinator's thread must not.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bedload.core.ids import WorkerId
from bedload.spark.hosts import WorkerHost

_log = logging.getLogger("bedload")
_CHECK_SECONDS = 0.1
"""How often to see whether a worker that was started lives, until it comes."""

_GONE_SECONDS = 60.0
"""How long a host may take to end a worker, by force if need be, before nobody waits for that."""

Failed = Callable[[WorkerId, str], None]
"""Told that a worker does not come, and why; on any thread."""


class Arrival(enum.Enum):
    """What a worker that came is."""

    NEW = "one that was asked for beside those from the beginning"
    REPLACEMENT = "one in place of a lost one"
    UNASKED = "nobody waits for it"


@dataclass
class _Errands:
    """What is under way at the host for one worker."""

    awaited: dict[Arrival, threading.Timer] = field(default_factory=dict)
    """When it is given up; both if it was lost and a change asks for one of its number."""
    leaving: threading.Thread | None = None
    """Sees to it that it ends, or has done so."""
    killing: threading.Thread | None = None
    """Ends one that hangs, until another one is to have its number."""


class Crew:
    """Has a host start, replace and end workers, and gives up on those that do not come."""

    def __init__(self, host: WorkerHost, *, not_started: Failed, not_replaced: Failed) -> None:
        self._host = host
        self._not_started = not_started
        self._not_replaced = not_replaced
        self._errands: dict[WorkerId, _Errands] = {}

    def add(self, worker: WorkerId, seconds: float) -> None:
        """Start one more worker, and wait so long for it."""
        at = self._at(worker)

        def failed(why: str) -> None:
            _log.error("worker %s could not be started: %s", worker, why)
            self.let_go(worker)
            self._not_started(worker, why)

        def start(worker: WorkerId) -> None:
            if at.leaving is not None:
                at.leaving.join(_GONE_SECONDS)
            self._host.add(worker)

        known = at.awaited.pop(Arrival.NEW, None)
        if known is None:
            self._bring(worker, seconds, Arrival.NEW, start, failed)
        else:
            # Whoever asked for it before has called that off, and it is on its way still.
            known.cancel()
            self._bring(worker, seconds, Arrival.NEW, None, failed)

    def kill(self, worker: WorkerId, task: int) -> None:
        """End a worker that hangs, by force; ``task`` is its attempt at a Spark task, if it runs in one."""

        def run() -> None:
            try:
                self._host.kill(worker, task)
            except Exception as error:
                _log.warning("worker %s hangs, and may not have ended: %s", worker, error)

        thread = threading.Thread(target=run, name=f"bedload-kill-{worker}", daemon=True)
        self._at(worker).killing = thread
        thread.start()

    def replace(self, worker: WorkerId, seconds: float, *, start: bool = True) -> None:
        """Start a worker in place of a lost one, unless one is there, and wait so long for it."""
        at = self._at(worker)

        def failed(why: str) -> None:
            _log.error("worker %s could not be replaced: %s", worker, why)
            self._not_replaced(worker, why)

        def replace(worker: WorkerId) -> None:
            # Else it could be the new one that is killed: both go by the same number.
            before, at.killing = at.killing, None
            if before is not None:
                before.join(_GONE_SECONDS)
            self._host.replace(worker)

        self._bring(worker, seconds, Arrival.REPLACEMENT, replace if start else None, failed)

    def arrived(self, worker: WorkerId) -> Arrival:
        """A worker came: it is awaited no longer."""
        for arrival in (Arrival.NEW, Arrival.REPLACEMENT):
            timer = self._at(worker).awaited.pop(arrival, None)
            if timer is not None:
                timer.cancel()
                return arrival
        return Arrival.UNASKED

    def let_go(self, worker: WorkerId) -> None:
        """See to it that a worker that was told to end does."""
        at = self._at(worker)
        before = at.leaving

        def run() -> None:
            if before is not None:
                before.join(_GONE_SECONDS)
            try:
                self._host.remove(worker)
            except Exception as error:
                _log.warning("worker %s may not have ended: %s", worker, error)

        thread = at.leaving = threading.Thread(target=run, name=f"bedload-leave-{worker}", daemon=True)
        thread.start()

    def stop(self) -> None:
        """Wait for nobody any more, and return when those that were let go are gone."""
        errands = list(self._errands.values())
        for at in errands:
            for arrival in list(at.awaited):
                if (timer := at.awaited.pop(arrival, None)) is not None:
                    timer.cancel()
        for at in errands:
            if at.leaving is not None:
                at.leaving.join(_GONE_SECONDS)

    def _bring(
        self,
        worker: WorkerId,
        seconds: float,
        arrival: Arrival,
        start: Callable[[WorkerId], None] | None,
        failed: Callable[[str], None],
    ) -> None:
        """Have a worker started; if that fails, or it does not come in time, say so."""
        awaited = self._at(worker).awaited

        def give_up(why: str) -> None:
            timer = awaited.pop(arrival, None)
            if timer is not None:  # else it came at the last moment
                timer.cancel()
                failed(why)

        late = f"it did not come within {seconds:g} seconds"
        timer = awaited[arrival] = threading.Timer(seconds, give_up, [late])
        timer.daemon = True
        timer.start()
        if start is None:
            return

        def run() -> None:
            try:
                start(worker)
                while awaited.get(arrival) is timer:
                    self._host.check(worker)
                    time.sleep(_CHECK_SECONDS)
            except Exception as error:
                give_up(str(error))

        threading.Thread(target=run, name=f"bedload-start-{worker}", daemon=True).start()

    def _at(self, worker: WorkerId) -> _Errands:
        return self._errands.setdefault(worker, _Errands())
