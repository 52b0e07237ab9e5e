"""Time in tests: it stands still until a test says what it is, and then fires timers and ends what has a TTL.

``now`` and ``watermark`` are the next epoch's time, whether it has rows or not. :meth:`PassingTime.advance_time` and
:meth:`PassingTime.advance_watermark` set one of them and run an epoch without rows, which is what a query does while
its source is quiet.

Invariants: an epoch has one time, also when it is replayed; the watermark never goes back, as on Spark.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from bedload.core.durations import Duration, milliseconds
from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError
from bedload.state.timers import VARIABLE, Timer

if TYPE_CHECKING:
    from bedload.testing.harness import Output

By: TypeAlias = int | Duration | None
"""How much later: milliseconds, ``"1 hour"`` or a timedelta."""
To: TypeAlias = int | dt.datetime | None
"""When: milliseconds since 1970, or a datetime (one without a time zone is in UTC)."""


class PassingTime:
    """The part of :class:`OperatorHarness` and :class:`InProcessCluster` that sets the time."""

    def _start_time(self) -> None:
        self._now = self._watermark = self._reached = 0

    @property
    def now(self) -> int:
        """What ``ctx.now`` says in the next epoch, in milliseconds since 1970."""
        return self._now

    @now.setter
    def now(self, at: int) -> None:
        _check_time("now", at)
        self._now = at

    @property
    def watermark(self) -> int:
        """What ``ctx.watermark`` says in the next epoch, in milliseconds since 1970; 0 is none yet."""
        return self._watermark

    @watermark.setter
    def watermark(self, at: int) -> None:
        _check_time("watermark", at)
        if at < self._reached:
            raise DefinitionError(
                f"watermark = {at}: an epoch had {self._reached} already, and a watermark never goes back; begin "
                "another test for that"
            )
        self._watermark = at

    def advance_watermark(self, by: By = None, *, to: To = None) -> list[Output]:
        """Raise the watermark, and run an epoch without rows at it: the outputs of what fires, and of what else is due.

        Either ``by`` so much (milliseconds, ``"10 minutes"`` or a timedelta) or ``to`` a time (milliseconds since 1970,
        or a datetime)::

            assert sessions.advance_watermark("1 minute") == [{"car": "a", "n": 2}]
        """
        later = _later("advance_watermark", self.watermark, by, to)
        self._check_between_epochs()
        self.watermark = later
        return self._run_quiet_epoch()

    def advance_time(self, by: By = None, *, to: To = None) -> list[Output]:
        """Let processing time pass, and run an epoch without rows then: the outputs of what fires, and of what is due.

        ``by`` and ``to`` as for :meth:`advance_watermark`::

            counts.advance_time("1 hour")
            assert "a" not in counts.state
        """
        later = _later("advance_time", self.now, by, to)
        self._check_between_epochs()
        self.now = later
        return self._run_quiet_epoch()

    def timers(self, key: Any) -> list[Timer]:
        """The committed timers of a key in the order in which they fire; a composite key is a tuple.

        ::

            assert sessions.timers("a") == [bl.Timer(160_000)]
        """
        state = self._read(key)
        if state is None or VARIABLE in state:
            return [] if state is None else list(state[VARIABLE])
        from bedload.worker.vector_timers import TimerColumn  # compiled code: only who needs it waits

        set_at = ((TimerColumn.of(variable), at) for variable, at in state.items() if at is not None)
        found = (Timer(at, column.name, column.clock) for column, at in set_at if column is not None)
        return sorted(found)

    def _begin_time(self) -> EpochTime:
        """The time of an epoch that begins."""
        self._reached = self.watermark
        return EpochTime(self.watermark, self.now)

    # --- what there is to a harness or a cluster ---

    def _read(self, key: Any) -> dict[str, Any] | None:
        raise NotImplementedError

    def _check_between_epochs(self) -> None:
        """Raise an EpochError if an epoch is under way: it has its time."""
        raise NotImplementedError

    def _run_quiet_epoch(self) -> list[Output]:
        raise NotImplementedError


def _check_time(name: str, at: Any) -> None:
    if type(at) is not int or abs(at) > _MOST:
        raise DefinitionError(
            f"{name} = {at!r:.100}: it is an int, the milliseconds since 1970; int(time.time() * 1000) is the machine's"
        )


def _later(what: str, before: int, by: By, to: To) -> int:
    if (by is None) == (to is None):
        raise DefinitionError(
            f'{what}: say how much later, as in {what}("1 hour"), or when, as in {what}(to=3_600_000)'
        )
    if type(by) is int:
        at = before + by
    elif by is not None:
        at = before + milliseconds(cast(Duration, by), f"{what}: by")
    elif isinstance(to, dt.datetime):
        moment = to if to.tzinfo is not None else to.replace(tzinfo=dt.UTC)
        at = (moment - _EPOCH) // dt.timedelta(milliseconds=1)
    elif type(to) is int:
        at = to
    else:
        raise DefinitionError(f"{what}: to={to!r:.100}: give milliseconds since 1970, or a datetime")
    if at < before:
        raise DefinitionError(f"{what}: it is {before} already, and time does not go back to {at}")
    return at


_MOST = 1 << 62
"""What lives for a while after that has an end that is a time, too."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
