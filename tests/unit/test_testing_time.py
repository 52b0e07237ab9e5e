"""Time in the testing kit: it passes when a test says so, and what is due then happens, on every kind of operator."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest

import bedload as bl
from bedload.core.errors import DefinitionError, EpochError, OperatorFailed
from bedload.state.timers import TimerClock
from bedload.testing import InProcessCluster, OperatorHarness

SCHEMA = "car string, n long, at long"
INPUT = "car string, ts long"
HOUR = 3_600_000


class Session(bl.Operator):
    """Ends a minute after its last row, and reports every hour of processing time."""

    n: int = bl.value(0)

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        self.n += len(rows)
        ctx.timers.set(max(row.ts for row in rows) + 60_000)
        ctx.timers.processing.set(ctx.now + HOUR, "hourly_report")

    def on_timer(self, key: Any, timer: bl.Timer, ctx: bl.Context) -> Any:
        if timer.at == 66_666:
            raise ValueError("not this one")
        yield key, self.n, timer.at
        if not timer.name:
            ctx.forget()


class Sessions(bl.VectorOperator):
    """The same, on arrays."""

    n: int = bl.value(0)
    processing_timers = ("hourly_report",)

    def process(self, batch: bl.VectorBatch, state: Any, ctx: bl.BatchContext) -> Any:
        rows = batch.by_key
        ctx.timers.set(np.maximum.reduceat(rows.numpy("ts"), rows.offsets[:-1]) + 60_000)
        ctx.timers.processing.set(ctx.now + HOUR, "hourly_report")
        return {"n": state["n"] + np.diff(rows.offsets)}

    def on_timer(self, keys: Any, timer: bl.BatchTimer, state: Any, ctx: bl.BatchContext) -> Any:
        if (timer.at == 66_666).any():
            raise ValueError("not this one")
        if not timer.name:
            ctx.forget()
        return None, {"car": keys, "n": state["n"], "at": timer.at}


Kit = OperatorHarness | InProcessCluster


def made(operator: Any, kit: type[Kit]) -> Any:
    return kit(operator, schema=SCHEMA, key="car", input=INPUT, key_groups=8)


def fed(operator: Any, kit: type[Kit]) -> Any:
    """With a row of car a at 1000, and one of car b at 2000."""
    found = made(operator, kit)
    found.run_epoch([[("a", 1000), ("b", 2000)]] if kit is InProcessCluster else [("a", 1000), ("b", 2000)])
    return found


kinds = pytest.mark.parametrize("operator", [Session, Sessions])
kits = pytest.mark.parametrize("kit", [OperatorHarness, InProcessCluster])


@kinds
@kits
def test_a_watermark_that_advances_fires_what_it_has_reached(operator: Any, kit: type[Kit]) -> None:
    sessions = fed(operator, kit)
    assert sessions.advance_watermark("1 minute") == []
    assert sessions.advance_watermark(1000) == [{"car": "a", "n": 1, "at": 61_000}]
    assert sessions.advance_watermark(dt.timedelta(seconds=1)) == [{"car": "b", "n": 1, "at": 62_000}]
    assert (sessions.watermark, sessions.now) == (62_000, 0)
    assert len(sessions.state) == 0


@kinds
@kits
def test_processing_time_that_passes_fires_its_own_timers(operator: Any, kit: type[Kit]) -> None:
    sessions = fed(operator, kit)
    assert sessions.advance_time("59 minutes 59 seconds") == []
    fired = sessions.advance_time(to=dt.datetime(1970, 1, 1, 1))
    assert sorted(row["car"] for row in fired) == ["a", "b"]
    assert {row["at"] for row in fired} == {sessions.now} == {HOUR}
    assert sessions.advance_time(to=dt.datetime(1970, 1, 1, 3, tzinfo=dt.timezone(dt.timedelta(hours=1)))) == []
    assert sessions.now == 2 * HOUR
    assert sessions.watermark == 0


@kinds
@kits
def test_timers_that_are_set_are_seen(operator: Any, kit: type[Kit]) -> None:
    sessions = fed(operator, kit)
    last = bl.Timer(HOUR, "hourly_report", TimerClock.PROCESSING)
    assert sessions.timers("a") == [bl.Timer(61_000), last]
    assert sessions.timers("never seen") == []
    sessions.advance_time(to=HOUR)
    assert sessions.timers("a") == [bl.Timer(61_000)]
    sessions.advance_watermark(to=61_000)
    assert sessions.timers("a") == []


def test_timers_are_those_that_are_committed() -> None:
    sessions = made(Session, OperatorHarness)
    sessions.feed([("a", 0)])
    assert sessions.timers("a") == []
    sessions.commit()
    assert [timer.at for timer in sessions.timers("a")] == [60_000, HOUR]


@kits
def test_aggregates_expire_when_time_passes(kit: type[Kit]) -> None:
    counts: Any = kit.aggregate(key="car", input=INPUT, key_groups=8, ttl="1 hour", n=bl.agg.count())
    counts.run_epoch([[("a", 0)]] if kit is InProcessCluster else [("a", 0)])
    assert counts.advance_time("59 minutes") == []
    assert set(counts.state) == {"a"}
    assert counts.advance_time("1 minute") == []
    assert set(counts.state) == set()
    assert counts.timers("a") == []


class Seen(bl.Operator):
    """What a car was seen with, of late."""

    at: dict[int, int] = bl.map(ttl="1 hour")

    def process(self, key: Any, rows: Any, ctx: bl.Context) -> None:
        for row in rows:
            self.at[row.ts] = self.at.get(row.ts, 0) + 1


@kits
def test_entries_and_whole_keys_of_operators_on_rows_expire_when_time_passes(kit: type[Kit]) -> None:
    seen: Any = kit(Seen, schema=SCHEMA, key="car", input=INPUT, key_groups=8, ttl="2 hours")
    first, second = [("a", 1), ("a", 2)], [("a", 2)]
    seen.run_epoch([first] if kit is InProcessCluster else first)
    seen.now += HOUR // 2
    seen.run_epoch([second] if kit is InProcessCluster else second)
    seen.advance_time("30 minutes")
    assert dict(seen.state["a"]["at"]) == {2: 2}
    seen.advance_time("89 minutes")
    assert dict(seen.state["a"]["at"]) == {}
    seen.advance_time("1 minute")
    assert seen.state("a") is None


def test_both_clocks_may_advance_for_one_epoch() -> None:
    sessions = fed(Session, OperatorHarness)
    sessions.now += HOUR
    assert [row["at"] for row in sessions.advance_watermark(to=61_000)] == [61_000, HOUR]  # a is gone, and b reports


def test_a_time_that_was_advanced_stays_for_the_epochs_after() -> None:
    sessions = fed(Session, OperatorHarness)
    sessions.advance_watermark(to=70_000)
    assert sessions.run_epoch([("a", 5000)]) == [{"car": "a", "n": 1, "at": 65_000}]


@kits
@pytest.mark.parametrize("what", ["advance_time", "advance_watermark"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "say how much later"),
        ({"by": 5, "to": 5}, "say how much later"),
        ({"by": -1}, "it is 500 already, and time does not go back to 499"),
        ({"to": 499}, "does not go back to 499"),
        ({"to": dt.datetime(1970, 1, 1)}, "does not go back to 0"),
        ({"by": "soon"}, "by='soon' is no duration"),
        ({"by": 1.5}, "give a duration"),
        ({"to": "2 hours"}, "to='2 hours': give milliseconds since 1970, or a datetime"),
    ],
)
def test_what_is_no_later_time_is_refused_and_changes_nothing(
    kit: type[Kit], what: str, given: dict[str, Any], says: str
) -> None:
    sessions = made(Session, kit)
    sessions.now = sessions.watermark = 500
    with pytest.raises(DefinitionError, match=rf"^{what}\b.*{says}"):
        getattr(sessions, what)(**given)
    assert (sessions.now, sessions.watermark) == (500, 500)


@kits
def test_the_watermark_does_not_go_back_behind_an_epoch(kit: type[Kit]) -> None:
    sessions = made(Session, kit)
    sessions.watermark = 900
    sessions.watermark = 500
    sessions.advance_time(1)
    with pytest.raises(DefinitionError, match=r"watermark = 499: an epoch had 500 already"):
        sessions.watermark = 499
    assert sessions.watermark == 500


def test_an_open_epoch_has_its_time() -> None:
    sessions = made(Session, OperatorHarness)
    sessions.feed([("a", 0)])
    with pytest.raises(EpochError, match="is open, and has its time"):
        sessions.advance_watermark("1 hour")
    sessions.commit()
    assert (sessions.watermark, sessions.now) == (0, 0)
    assert len(sessions.advance_watermark("1 hour")) == 1


def test_a_replay_has_the_time_of_its_epoch() -> None:
    cluster = made(Session, InProcessCluster)
    cluster.begin_epoch([[("a", 0)]])
    cluster.action()
    with pytest.raises(EpochError, match="has begun, and has its time"):
        cluster.advance_time("1 hour")
    cluster.now = 5 * HOUR
    cluster.restart()
    cluster.action()
    cluster.commit()
    assert [timer.at for timer in cluster.timers("a")] == [60_000, HOUR]
    assert [row["at"] for row in cluster.advance_time(1)] == [HOUR]


@kinds
def test_an_error_in_a_quiet_epoch_leaves_the_state_and_the_later_time(operator: Any) -> None:
    sessions = made(operator, OperatorHarness)
    sessions.run_epoch([("a", 6_666)])
    with pytest.raises(OperatorFailed, match="not this one"):
        sessions.advance_watermark(to=66_666)
    assert [timer.at for timer in sessions.timers("a")] == [66_666, HOUR]
    assert sessions.watermark == 66_666


@pytest.mark.parametrize("kind", [OperatorHarness, InProcessCluster])
@pytest.mark.parametrize("at", [1000.5, dt.datetime(2020, 1, 1), None, True, 1 << 63])
def test_a_time_that_is_no_int_is_refused(kind: Any, at: Any) -> None:
    sessions = made(Session, kind)
    for name in ("now", "watermark"):
        with pytest.raises(DefinitionError, match=rf"{name} = .*: it is an int, the milliseconds since 1970"):
            setattr(sessions, name, at)
    assert (sessions.now, sessions.watermark) == (0, 0)
