"""What a transfer has moved so far, and how long that took: for the record of its change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bedload.control.phases import TransferPhase
from bedload.core.ids import WorkerId
from bedload.migration.record import stoppages
from bedload.protocol import messages as m


@dataclass
class Tally:
    """Counts of one transfer."""

    flips: int = 0
    keys: int = 0
    bytes: int = 0
    groups: int = 0
    single_keys: int = 0
    waits: list[np.ndarray] = field(default_factory=list)
    """For how long each key that had rows was waited for."""
    asked: int = 0
    rows: int = 0
    slices: dict[str, float] = field(default_factory=dict)
    """The longest step of each kind, at any worker."""
    copy_s: float = 0.0
    """Time in which state was copied ahead."""
    handover_s: float = 0.0
    """Time from flips until all was with its new owners."""
    from_checkpoint: bool = False
    """Something was read from the checkpoint because a worker was lost."""
    since: float = 0.0
    """When what is under way began."""
    sources: int = 0
    """Old owners in the step that is under way."""
    under_way: dict[WorkerId, m.Progressed] = field(default_factory=dict)
    """How far they are, as far as they have said so."""
    _share: float = 0.0
    """How much of the step's bytes was sent."""
    _before: int = 0
    """Bytes of the steps before it."""

    def begins(self, lots: Iterable[m.Lot]) -> None:
        """A step begins, in which these pass on."""
        self.sources, self.under_way = len({lot.source for lot in lots}), {}
        self._share, self._before = 0.0, self.bytes

    def progressed(self, message: m.Progressed) -> None:
        """An old owner has sent some of what it has to."""
        self.under_way[message.worker] = message
        sent, left = self._sent, sum(it.left for it in self.under_way.values())
        # Of those that have said nothing yet, nothing is known to be sent. What was shown is not taken back.
        known = sent / max(1, sent + left) * len(self.under_way) / max(1, self.sources)
        self._share = max(self._share, known)

    @property
    def _sent(self) -> int:
        return sum(it.sent for it in self.under_way.values())

    @property
    def sent(self) -> int:
        """Bytes of state that were sent so far."""
        return self._before + max(self.bytes - self._before, self._sent)

    def share(self, phase: TransferPhase, *, ahead: bool) -> float:
        """How much of a step is done, from 0 to 1; ``ahead``: most of its state is copied before the flip."""
        match phase:
            case TransferPhase.COPYING:
                return 0.9 * self._share
            case TransferPhase.DUE:
                return 0.9 if ahead else 0.0
            case TransferPhase.FLIPPED:
                return 0.92 if ahead else 0.95 * self._share
            case TransferPhase.ARRIVED:
                return 0.97
            case TransferPhase.ENDING:
                return 0.99
        return 0.0

    def copied(self, now: float) -> None:
        """State was copied ahead."""
        self.copy_s += now - self.since

    def flipped(self, lots: Iterable[m.Lot], now: float) -> None:
        """These have new owners."""
        self.since = now
        self._count(lots, 1)

    def given_back(self, lots: Iterable[m.Lot]) -> None:
        """These have their old owners again."""
        self._count(lots, -1)

    def _count(self, lots: Iterable[m.Lot], sign: int) -> None:
        self.flips += sign
        for lot in lots:
            self.groups += sign * len(lot.groups)
            self.single_keys += sign * len(lot.keys)

    def arrived(self, message: m.Arrived, body: m.Body) -> None:
        """A new owner has all of its own."""
        self.keys += message.keys
        self.bytes += message.bytes
        self.asked += message.asked
        self.rows += message.rows
        self.waits.append(np.frombuffer(body or b"", "<f8"))

    def released(self, message: m.Released) -> None:
        """A worker has forgotten what lives elsewhere."""
        for step, seconds in message.slices.items():
            self.slices[step] = max(self.slices.get(step, 0.0), seconds)

    def handed_over(self, now: float) -> None:
        """All new owners have."""
        self.handover_s += now - self.since

    def facts(self) -> dict[str, Any]:
        """For the record of the move."""
        waited = np.concatenate(self.waits) if self.waits else np.empty(0)
        return stoppages(waited, self.asked) | {
            "moved_groups": self.groups,
            "moved_keys": self.keys,
            "moved_bytes": self.bytes,
            "single_keys": self.single_keys,
            "flips": self.flips,
            "copy_s": self.copy_s,
            "handover_s": self.handover_s,
            "from_checkpoint": self.from_checkpoint,
            "asked_keys": max(self.asked, len(waited)),
            "waited_keys": len(waited),
            "rows_parked": self.rows,
            "slice_ms_longest": 1000 * max(self.slices.values(), default=0.0),
            "slices_ms": {step: 1000 * seconds for step, seconds in sorted(self.slices.items())},
        }
