"""What an operator has to do while its sources are quiet: whether an epoch without rows shall be asked for.

With a seal the workers say when the state has something to do next without rows: by the watermark and by processing
time, which are the times of epochs and nobody's clock. What they have not said, because they are new or were lost,
may be any moment; then the next epoch tells. So it is when a query was set back: what they said was of later epochs,
which do not count any more, and timers that fired in these wait again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bedload.control.standing import Phase, Standing
from bedload.core.epoch import Due, EpochTime
from bedload.core.ids import Epoch, QueryId, RunId


class Start(NamedTuple):
    """Where a run of a query began."""

    query: QueryId
    run: RunId
    after: Epoch
    """The last epoch that Spark had committed."""

    def is_behind(self, at: Standing) -> bool:
        """Whether the run will begin an epoch that the state has, and has not yet: its query was set back."""
        if self.run == at.run or self.run in at.past_runs:
            return False
        sealed = at.phase is Phase.SEALED and at.query == self.query and at.epoch > self.after
        return sealed or at.committed.get(self.query, self.after) > self.after


@dataclass(frozen=True)
class Lull:
    """Where an operator stands between two epochs."""

    waits: bool
    """No: an epoch is under way."""
    time: EpochTime
    """Of the last epoch; 0 if it is not known."""
    due: Due | None
    """What is due first; None: that is not known."""

    @classmethod
    def of(cls, at: Standing, start: Start | None = None) -> Lull:
        """As the coordinator knows it; ``start``: of the run that asks."""
        over = at.phase in (Phase.SEALED, Phase.IDLE) and at.current.time is not None
        over = over and not (start is not None and start.is_behind(at))
        time = at.current.time if over and at.current.time is not None else EpochTime()
        return cls(at.undecided, time, at.current.due if over else None)

    @property
    def heeds_watermark(self) -> bool:
        """Whether something may be due by the watermark: only then anybody has to look where that is."""
        return not self.waits and (self.due is None or self.due.watermark is not None)

    def due_by_time(self, now: int) -> bool:
        """Whether something is due by processing time."""
        if self.waits or self.due is None:
            return not self.waits
        return self.due.processing is not None and self.due.processing <= now

    def due_by_watermark(self, watermark: int) -> bool:
        """Whether something is due by the watermark of the next epoch.

        SUBTLE: a watermark at which there was an epoch has done all that it can do, whatever is said to be due.
        """
        if not self.heeds_watermark or watermark <= self.time.watermark:
            return False
        return self.due is None or (self.due.watermark is not None and self.due.watermark <= watermark)
