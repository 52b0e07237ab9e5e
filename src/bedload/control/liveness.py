"""Who is alive: what the workers' beats said, and when. Facts in; out comes whom to give up. No I/O.

A worker's process beats from a thread of its own, apart from the loop that does the work, and says how long the loop
has been busy with one thing. So two ways to hang are told apart: a process that is silent (stopped, frozen, or its
host is gone without a word) and one whose loop does not come back (operator code that never ends).

SUBTLE: the driver may be the one that stood still. A worker that was silent only while nobody listened is not given up.
"""

from __future__ import annotations

from dataclasses import dataclass

from bedload.core.ids import WorkerId


@dataclass(frozen=True)
class Patience:
    """How long a worker may say nothing, and how long it may be busy with one thing."""

    silent: float = 60.0
    stuck: float = 600.0

    @property
    def every(self) -> float:
        """How often workers beat, and how often somebody looks."""
        return min(1.0, self.silent / 10)


@dataclass
class _Pulse:
    heard: float
    busy: float = 0.0
    where: str = ""


class Liveness:
    """The workers that are there, and when each was heard last."""

    def __init__(self, patience: Patience, now: float) -> None:
        self._patience = patience
        self._pulses: dict[WorkerId, _Pulse] = {}
        self._looked = now

    def came(self, worker: WorkerId, now: float) -> None:
        """A worker is there."""
        self._pulses[worker] = _Pulse(now)

    def gone(self, worker: WorkerId) -> None:
        """A worker is not expected to say anything any more."""
        self._pulses.pop(worker, None)

    def beat(self, worker: WorkerId, busy: float, where: str, now: float) -> None:
        """A worker's process lives; its loop has been busy with one thing for so many seconds, at this place."""
        if worker in self._pulses:
            self._pulses[worker] = _Pulse(now, busy, where)

    def look(self, now: float) -> dict[WorkerId, str]:
        """Whom to give up, and why; each is told once."""
        patience = self._patience
        paused = now - self._looked - patience.every
        self._looked = now
        if paused > patience.every:
            for pulse in self._pulses.values():
                pulse.heard = min(now, pulse.heard + paused)
        hung: dict[WorkerId, str] = {}
        for worker, pulse in self._pulses.items():
            silent = now - pulse.heard
            if silent > patience.silent:
                hung[worker] = (
                    f"its process said nothing for {silent:.0f} seconds (attach(..., silent_seconds="
                    f"{patience.silent:g})): it is stopped, its machine is gone, or native code does not let go of it"
                )
            elif pulse.busy > patience.stuck:
                hung[worker] = (
                    f"it was busy with one thing for {pulse.busy:.0f} seconds (attach(..., stuck_seconds="
                    f"{patience.stuck:g})): operator code that does not come to an end? It was here:\n{pulse.where}"
                )
        for worker in hung:
            del self._pulses[worker]
        return hung
